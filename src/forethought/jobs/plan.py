"""What a job would do and cost, before anything private is trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forethought.accounting import exact
from forethought.jobs.request import Request
from forethought.plans import Plan

if TYPE_CHECKING:
    from torch import nn

    from forethought.data import Dataset
    from forethought.planning.neighbours import Neighbour
    from forethought.planning.pareto import Front
    from forethought.utility.graph import UtilityGraph
    from forethought.utility.rehearsal import Rehearsal

# Clip norms and noise that a utility graph tries when none are given.
UTILITY_GRID = {
    "clip_norms": (0.01, 0.03, 0.1, 0.3, 1.0),
    "noise_multipliers": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
}


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
    from forethought.utility.graph import UtilityGraph

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
    from forethought.utility.graph import UtilityGraph

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
    from forethought.utility import rehearsal

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
    from forethought.utility.perturbing import utility_graph

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
