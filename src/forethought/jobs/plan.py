"""What a job would do and cost, before anything private is trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forethought.accounting import exact
from forethought.plans import Plan

if TYPE_CHECKING:
    from forethought.planning.neighbours import Neighbour
    from forethought.planning.pareto import Front
    from forethought.planning.plan_request import PlanRequest
    from forethought.utility.rehearsal import Rehearsal


def chosen_plan(request: PlanRequest, utility: Path | None = None, tolerance: float = 0.1) -> Plan:
    """The plan of a request; noise and clip norm from a saved utility graph, if there is one."""
    from forethought.planning.solve import plan

    if utility is None:
        return plan(request)
    from forethought.utility.graph import UtilityGraph

    chosen = UtilityGraph.load(utility).plan_arguments(tolerance)
    return plan(request.with_(**chosen))


def front(
    request: PlanRequest, limits: Mapping[str, float | None], utility: Path | None = None
) -> Front:
    """The non-dominated plans for a request; what it fixes is kept, its budget is a limit.

    With a saved utility graph the predicted loss of accuracy takes the place of the noise.
    """
    from forethought.planning.pareto import pareto
    from forethought.utility.graph import UtilityGraph

    graph = None if utility is None else UtilityGraph.load(utility)
    return pareto(
        request,
        clip_norms=None if graph is None else graph.clip_norms,
        loss_of_utility=None if graph is None else graph.loss,
        limits={name: most for name, most in limits.items() if most is not None},
    )


def plan_report(
    plan: Plan,
    alternatives: Sequence[Neighbour],
    front: Front | None = None,
    rehearsal: Rehearsal | None = None,
) -> dict[str, Any]:
    """A plan, its exact ε, its neighbours, front and rehearsal, JSON-ready."""
    epsilon = exact.epsilon(plan.mechanism, plan.delta, plan.records_per_person)
    return {
        "plan": plan.to_dict(),
        "epsilon": {"lower": epsilon.lower, "upper": epsilon.upper, "reason": epsilon.reason},
        "neighbours": [
            {"name": near.name, "reason": near.reason, "plan": near.plan.to_dict()}
            for near in alternatives
        ],
        **({} if front is None else front.to_dict()),
        **({} if rehearsal is None else {"rehearsal": rehearsal.to_dict()}),
    }
