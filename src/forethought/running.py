"""From a job to a finished run folder, and back from a run folder to what it says.

The command line calls these functions and nothing else; they are the same from Python.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from forethought.accounting import exact
from forethought.accounting.statement import Statement
from forethought.accounting.statement import account as exact_account
from forethought.accounting.statement import verify as verified
from forethought.job import Job, JobError, explain
from forethought.mechanism import one_of, real
from forethought.planning.neighbours import neighbours as neighbours
from forethought.plans import Plan
from forethought.report.figures import draw_statement as draw_statement
from forethought.report.plan_figures import draw_plan as draw_plan
from forethought.report.utility_figures import draw_utility as draw_utility

if TYPE_CHECKING:
    from torch import nn

    from forethought.accounting.comparison import Row
    from forethought.accounting.selection import Trials
    from forethought.data import Dataset
    from forethought.planning.neighbours import Neighbour
    from forethought.planning.pareto import Front
    from forethought.planning.rehearsal import Rehearsal
    from forethought.planning.utility import UtilityGraph
    from forethought.training.run import Run
    from forethought.training.tuning import Tuned

JOB_NAME = "job.toml"
# Clip norms and noise that a utility graph tries when none are given.
UTILITY_GRID = {
    "clip_norms": (0.01, 0.03, 0.1, 0.3, 1.0),
    "noise_multipliers": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
}


@dataclass(frozen=True)
class Request:
    """A job with the text it was read from, which is stored with the run."""

    name: str
    text: str
    job: Job


@dataclass(frozen=True)
class Prepared:
    """A job with its data loaded, its plan made and its model built.

    ``until`` is the accuracy at which a run in phases stops; None runs the whole plan.
    """

    request: Request
    dataset: Dataset
    plan: Plan
    model: nn.Module
    until: float | None = None


@dataclass(frozen=True)
class Summary:
    """What a run folder says of its run."""

    folder: Path
    plan: Plan
    statement: Statement
    metrics: tuple[Mapping[str, str], ...]
    figures: tuple[Path, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "folder": str(self.folder),
            "plan": self.plan.to_dict(),
            "statement": json.loads(self.statement.to_json()),
            "metrics": [dict(row) for row in self.metrics],
            "figures": [str(path) for path in self.figures],
        }


def from_file(path: Path) -> Request:
    """Read a job file. Raises JobError."""
    job = Job.load(path)
    return Request(path.stem, path.read_text(encoding="utf-8"), job)


def demo() -> Request:
    """The built-in job: scikit-learn's handwritten digits at ε = 3."""
    text = resources.files("forethought").joinpath("demo.toml").read_text(encoding="utf-8")
    return Request("demo", text, Job.parse(text, "demo.toml"))


def resumed(folder: Path) -> Request:
    """The job of an interrupted run. Raises JobError when the folder holds none."""
    path = folder / JOB_NAME
    if not path.is_file():
        raise JobError(
            f"{folder} holds no interrupted run that can be resumed: there is no {JOB_NAME} in it"
        )
    return replace(from_file(path), name=folder.name)


def prepare(
    request: Request,
    data_dir: Path | None = None,
    *,
    until: float | None = None,
    max_epsilon: float | None = None,
    resume: Path | None = None,
) -> Prepared:
    """Load the data, make the plan, build the model; nothing private is released yet.

    Args:
        until: run in phases until this accuracy on held-out data.
        max_epsilon: their budget together; the job's by default.
        resume: folder of a run whose plan and accuracy are taken over if it is in phases.

    Raises:
        JobError: a run until an accuracy without a budget, or without held-out data.
    """
    if max_epsilon is not None:
        if until is None:
            raise JobError("a largest epsilon goes with an accuracy to run until")
        limit = real("max_epsilon", max_epsilon, above=0)
        budget = request.job.budget.model_copy(update={"epsilon": limit})
        request = replace(request, job=request.job.model_copy(update={"budget": budget}))
    job = request.job
    dataset = job.load_data(data_dir)
    begun = None
    if resume is not None:
        from forethought.training.phases import phases_of

        begun = phases_of(resume)
    if begun is not None:
        plan, until = begun
        return Prepared(request, dataset, plan, job.build_model(dataset), until)
    model = job.build_model(dataset)
    if until is not None and (job.budget.epsilon is None or dataset.test is None):
        raise JobError(
            "a run until an accuracy needs a budget (--max-epsilon) and held-out data (test or "
            "holdout in the job's [data]) to measure it on"
        )
    plan = job.make_plan(len(dataset.train), parameters=count_parameters(model))
    if dataset.not_covered:
        plan = plan.with_(not_covered=(*plan.not_covered, *dataset.not_covered))
    if until is not None:
        from forethought.planning.phases import plan_phases

        plan = plan_phases(plan)
    return Prepared(request, dataset, plan, model, until)


def run(
    prepared: Prepared,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[Any], None] | None = None,
) -> Run:
    """Train what was prepared and leave a complete run folder."""
    from forethought.report.figures import draw
    from forethought.training.phases import train_until
    from forethought.training.run import train

    settings = prepared.request.job.run
    data = (prepared.dataset.train.inputs, prepared.dataset.train.targets)
    test = prepared.dataset.test
    options: dict[str, Any] = {
        "test": None if test is None else (test.inputs, test.targets),
        "out": folder,
        "files": {JOB_NAME: prepared.request.text},
        "resume": resume,
        "overwrite": overwrite,
        "progress": progress,
        "seed": settings.seed,
        "noise_seed": settings.noise_seed,
        "micro_batch": settings.micro_batch,
        "device": settings.device,
        "checkpoint_every": settings.checkpoint_every,
    }
    if prepared.until is None:
        result = train(prepared.model, data, prepared.plan, **options)
    else:
        result = train_until(
            prepared.model, data, prepared.plan, accuracy=prepared.until, **options
        )
    draw(report_data(folder), folder / "figures")
    return result


def trials_of(distribution: str, mean: float) -> Trials:
    """A distribution of the number of trials by name, with its mean."""
    from forethought.accounting.selection import NegativeBinomialTrials, PoissonTrials

    one_of("distribution", distribution, ("negative-binomial", "poisson"))
    if distribution == "poisson":
        return PoissonTrials(mean)
    return NegativeBinomialTrials.of_mean(mean, shape=0)


def tune(
    request: Request,
    folder: Path,
    learning_rates: Sequence[float],
    trials: Trials,
    *,
    scoring: str = "noised",
    overwrite: bool = False,
    data_dir: Path | None = None,
) -> Tuned:
    """A private search for the best step size of a job; its budget covers the whole search.

    Raises:
        JobError: no budget, or no held-out data to score on.
    """
    from forethought.planning.tuning import plan_tuning
    from forethought.training.tuning import tune as search

    job = request.job
    dataset = job.load_data(data_dir)
    if job.budget.epsilon is None or dataset.test is None:
        raise JobError("a private search needs a budget, and held-out data to score trials on")
    parameters = count_parameters(job.build_model(dataset))
    wish = _without_none(job.wish(len(dataset.train), parameters))
    candidates = plan_tuning(
        trials=trials,
        candidates=[{"learning_rate": rate} for rate in learning_rates],
        **wish,
    )
    if dataset.not_covered:
        candidates = tuple(
            plan.with_(not_covered=(*plan.not_covered, *dataset.not_covered)) for plan in candidates
        )
    return search(
        lambda: job.build_model(dataset),
        (dataset.train.inputs, dataset.train.targets),
        candidates,
        trials=trials,
        holdout=(dataset.test.inputs, dataset.test.targets),
        scoring=scoring,  # type: ignore[arg-type]
        out=folder,
        overwrite=overwrite,
        seed=job.run.seed,
        noise_seed=job.run.noise_seed,
        micro_batch=job.run.micro_batch,
        device=job.run.device,
    )


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def report_data(folder: Path) -> Summary:
    """Read a finished run folder.

    Raises:
        ValueError: the folder holds no finished run.
    """
    if not (folder / "statement.json").is_file():
        raise ValueError(f"{folder} holds no finished run: there is no statement.json in it")
    with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        metrics = tuple(csv.DictReader(file))
    return Summary(
        folder,
        Plan.load(folder / "plan.json"),
        Statement.load(folder / "statement.json"),
        metrics,
        tuple(sorted((folder / "figures").glob("*.png"))),
    )


def report(folder: Path) -> Summary:
    """Draw the figures of a finished run again and return what it says."""
    from forethought.report.figures import draw

    draw(report_data(folder), folder / "figures")
    return report_data(folder)


def from_tables(tables: Mapping[str, Mapping[str, Any]]) -> Request:
    """A request without data, from tables of a job; entries that are None are left out.

    Raises:
        JobError: an unknown key or a value that is not allowed.
    """
    given = {name: _without_none(table) for name, table in tables.items()}
    try:
        return Request("", "", Job.model_validate({"data": {"source": "none"}, **given}))
    except ValidationError as error:
        raise JobError("; ".join(explain("", "", row) for row in error.errors())) from None


def count_parameters(model: nn.Module) -> int:
    """How many numbers a model trains."""
    return sum(weights.numel() for weights in model.parameters() if weights.requires_grad)


def sizes(request: Request, data_dir: Path | None = None) -> tuple[int, int]:
    """Training records of a job's data and parameters of its model: all that a plan reads."""
    dataset = request.job.load_data(data_dir)
    return len(dataset.train), count_parameters(request.job.build_model(dataset))


def chosen_plan(
    request: Request,
    examples: int,
    parameters: int | None = None,
    utility: Path | None = None,
    tolerance: float = 0.1,
) -> Plan:
    """The plan of a job; noise and clip norm from a saved utility graph, if there is one."""
    if utility is None:
        return request.job.make_plan(examples, parameters)
    from forethought.planning.utility import UtilityGraph

    chosen = UtilityGraph.load(utility).plan_arguments(tolerance)
    return request.job.make_plan(examples, parameters, chosen)


def front(
    request: Request,
    examples: int,
    parameters: int | None,
    limits: Mapping[str, float | None],
    utility: Path | None = None,
) -> Front:
    """The non-dominated plans for a job; what it fixes is kept, its budget is a limit.

    With a saved utility graph the predicted loss of accuracy takes the place of the noise.
    """
    from forethought.planning.pareto import pareto
    from forethought.planning.utility import UtilityGraph

    graph = None if utility is None else UtilityGraph.load(utility)

    wish = request.job.training
    wanted = {name: most for name, most in limits.items() if most is not None}
    if request.job.budget.epsilon is not None:
        wanted.setdefault("epsilon", request.job.budget.epsilon)
    return pareto(
        examples=examples,
        delta=request.job.budget.delta,
        batches=None if wish.batch is None else [wish.batch],
        rounds=None if wish.rounds is None else [wish.rounds],
        noise_multipliers=None if wish.noise_multiplier is None else [wish.noise_multiplier],
        clip_norms=None if graph is None else graph.clip_norms,
        loss_of_utility=None if graph is None else graph.loss,
        limits=wanted,
        parameters=parameters or 1,
        sampling=wish.sampling,
        clipping=wish.clipping,
        adjacency=wish.adjacency,
        groups=wish.groups,
    )


def rehearse(
    request: Request,
    plan: Plan,
    stand_in: str | None,
    repeats: int,
    data_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Rehearsal:
    """Run a job's plan on a stand-in for its data: a named public data set, or synthetic data."""
    from forethought.planning import rehearsal

    private = request.job.load_data(data_dir)
    shape = private.train.inputs.shape[1:]
    return rehearsal.rehearse(
        plan,
        lambda: request.job.build_model(private),
        rehearsal.synthetic(shape, private.classes or 2, plan.examples)
        if stand_in is None
        else _stand_in(request, stand_in, data_dir),
        repeats=repeats,
        progress=progress,
    )


def utility_of(
    request: Request,
    stand_in: str | None,
    settings: Mapping[str, Any],
    data_dir: Path | None = None,
    leaks: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> UtilityGraph:
    """The utility graph of a job's model on a stand-in for its data.

    Args:
        stand_in: a named public data set; ``"synthetic"`` draws one of the job's shape; None
            takes the private data itself, which needs ``leaks``.
        settings: clip_norms, noise_multipliers, draws, batch, epochs, optimizer, seed.
    """
    from forethought.data.synthetic import like
    from forethought.planning.perturbing import utility_graph

    private = request.job.load_data(data_dir)
    if stand_in is None:
        data, source = private, "private"
    elif stand_in == "synthetic":
        shape = private.train.inputs.shape[1:]
        data, source = like(shape, private.classes or 2, len(private.train)), "synthetic"
    else:
        data, source = _stand_in(request, stand_in, data_dir), "public"
    test = data.test
    return utility_graph(
        lambda: request.job.build_model(private),
        (data.train.inputs, data.train.targets),
        source=source,  # type: ignore[arg-type]
        leaks="accept" if leaks else None,
        test=None if test is None else (test.inputs, test.targets),
        progress=progress,
        **settings,
    )


def _stand_in(request: Request, name: str, data_dir: Path | None) -> Dataset:
    data = request.job.data.model_copy(update={"source": name, "test": None})
    return request.job.model_copy(update={"data": data}).load_data(data_dir)


def plan_report(
    plan: Plan,
    beside: Sequence[Neighbour],
    front: Front | None = None,
    rehearsal: Rehearsal | None = None,
) -> dict[str, Any]:
    """A plan, its exact ε, its neighbours, front and rehearsal, JSON-ready."""
    epsilon = exact.epsilon(plan.mechanism, plan.delta)
    return {
        "plan": plan.to_dict(),
        "epsilon": {"lower": epsilon.lower, "upper": epsilon.upper},
        "neighbours": [
            {"name": near.name, "reason": near.reason, "plan": near.plan.to_dict()}
            for near in beside
        ],
        **({} if front is None else {"front": [row.to_dict() for row in front.candidates]}),
        **({} if rehearsal is None else {"rehearsal": rehearsal.to_dict()}),
    }


def compared(statement: Statement) -> list[Row]:
    """What every analysis says of a statement's mechanism, for one record."""
    from forethought.accounting.comparison import compare

    return compare(statement.mechanism, statement.delta, statement.examples)


def account_for(request: Request, examples: int, group: int) -> Statement:
    """The statement of a run that a job describes, without data."""
    return exact_account(request.job.make_plan(examples), group=group)


def statement_of(
    path: Path, *, verify: bool = False, group: int = 1, delta: float | None = None
) -> Statement:
    """The statement of a run folder, a plan file or a statement file.

    Args:
        path: run folder, plan.json or statement.json.
        verify: recompute the statement and fail when it does not hold.
        group, delta: account again for another group size or δ.

    Raises:
        ValueError: neither a plan nor a statement, or (with ``verify``) it does not hold.
        OSError: no such file.
    """
    if path.is_dir():
        finished = path / "statement.json"
        plan_file = path / "plan.json"
        if finished.is_file():
            statement = Statement.load(finished)
            if verify and plan_file.is_file():
                _check_plan(statement, Plan.load(plan_file))
        elif plan_file.is_file():
            return exact_account(Plan.load(plan_file), delta, group=group)
        else:
            raise ValueError(f"{path} is no run folder: it holds no statement.json or plan.json")
    else:
        schema = _schema_of(path)
        if schema.startswith("forethought/plan/"):
            return exact_account(Plan.load(path), delta, group=group)
        statement = Statement.load(path)
    if verify:
        statement = verified(statement)
    if (group, delta) == (1, None) or (group, delta) == (statement.group, statement.delta):
        return statement
    again = exact_account(
        statement.mechanism,
        delta or statement.delta,
        group=group,
        accountant=statement.accountant,
    )
    return replace(
        statement,
        delta=again.delta,
        epsilon=again.epsilon,
        group=again.group,
        attack=again.attack,
        theorems=again.theorems,
        accountant=again.accountant,
    )


def _check_plan(statement: Statement, plan: Plan) -> None:
    planned = plan.mechanism
    released = len(statement.mechanism)
    if released > len(planned) or planned.first(released) != statement.mechanism:
        raise ValueError("the statement's mechanism is not that of the plan.json beside it")


def _schema_of(path: Path) -> str:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no JSON file: {error}") from None
    return str(values.get("schema", "")) if isinstance(values, dict) else ""
