"""From a request to a finished run folder, and back from a run folder to what it says.

The command line calls these functions and nothing else; they are the same from Python.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forethought.accounting.statement import Statement
from forethought.jobs.job import JobError
from forethought.jobs.plan import count_parameters
from forethought.jobs.request import JOB_NAME, Request, without_none
from forethought.mechanism import one_of, real
from forethought.plans import Plan

if TYPE_CHECKING:
    from torch import nn

    from forethought.accounting.renyi.selection import Trials
    from forethought.data import Dataset
    from forethought.training.run import Run
    from forethought.training.search import Tuned


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
        from forethought.planning.phase_plans import plan_phases

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
    from forethought.accounting.renyi.selection import NegativeBinomialTrials, PoissonTrials

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
    from forethought.planning.search_plans import plan_tuning
    from forethought.training.search import tune as search

    job = request.job
    dataset = job.load_data(data_dir)
    if job.budget.epsilon is None or dataset.test is None:
        raise JobError("a private search needs a budget, and held-out data to score trials on")
    parameters = count_parameters(job.build_model(dataset))
    wish = without_none(job.wish(len(dataset.train), parameters))
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
