"""Into how many groups, with what inside, and whether at all: rules that were measured.

docs/general_framework.md has the tables and the commands that print them.
"""

from __future__ import annotations

import math

from forethought.mechanism import Mechanism
from forethought.planning import defaults
from forethought.planning.limits import PlanError
from forethought.planning.noise_to_signal import noise_to_signal
from forethought.planning.plan_request import PlanRequest, local_of
from forethought.plans import Plan

# In a plan's reasons: what groups cost against clipped examples.
GROUPS_AGAINST = "groups against examples"
# Noise against signal of groups of 64 records at which batch normalisation inside made them better
# than clipped examples, and at which they still were worse; and at which the step size, which grows
# as noise falls, was too long for some of them.
WON, LOST, TOO_LONG = 0.05, 0.16, 0.013


def groups_of(request: PlanRequest, mechanism: Mechanism, why: dict[str, str]) -> int | None:
    """How many groups a batch is dealt into, as given or by rule; None: examples are clipped.

    Raises:
        PlanError: more groups than a batch has records.
    """
    if request.clipping != "group":
        return request.groups
    # The smallest of samples that change must be dealt into as many groups.
    batch = min(part.sampling.expected_batch(request.examples) for part in mechanism)
    if request.groups is not None:
        if request.groups > math.ceil(batch):
            raise PlanError(
                f"{request.groups} groups are more than the {batch:.0f} records of a batch as "
                "planned: choose fewer, or give batch="
            )
        return request.groups
    local = local_of(request.local)
    if local is None:
        return 1
    groups = defaults.groups_for(batch)
    why["groups"] = (
        f"{groups:,} of about {batch / groups:.0f} records: as many as leave an inner algorithm "
        f"{defaults.GROUP} records to work on, since every group more makes the noise on their "
        "mean smaller"
    )
    return groups


def explain(plan: Plan, parameters: int, why: dict[str, str]) -> None:
    """Add to a plan's reasons what runs inside its groups, and what they cost against examples."""
    if plan.groups is None:
        return
    local = plan.local
    if local is not None and local.step == defaults.INNER_STEP and local.passes == 1:
        why["inner steps"] = (
            f"one pass in steps of {local.step} records: fewer and larger ones, a second pass, and "
            "step sizes a third or three times as long were no better by more than seeds differ; "
            "ten times shorter ones were worse, ten times longer ones of plain SGD too"
        )
    each = plan.mean_batch / plan.groups
    noise = noise_to_signal(plan, parameters)
    measured = (
        f"above {LOST:g} clipped examples did better in every combination that was measured"
        if noise > (LOST * WON) ** 0.5
        else f"at {WON:g} groups with batch normalisation inside did better than clipped examples, "
        "and without it no better"
    )
    if noise < (WON * TOO_LONG) ** 0.5:
        measured += (
            f"; at {TOO_LONG:g} steps of the planner's length were too long for some of them"
        )
    why[GROUPS_AGAINST] = (
        f"groups, as asked: with {each:.0f} records a contribution and a sensitivity of 2 the "
        f"noise is about {2 * each:.0f} times that of clipped examples for the same signal, "
        f"{noise:.2g} of it in {parameters:,} weights. At equal ε, {measured} "
        "(docs/general_framework.md)"
    )
