"""Into how many groups, with what inside, and whether at all: rules that were measured.

docs/general_framework.md has the tables and the commands that print them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from forethought.local_updates import Local
from forethought.mechanism import Mechanism
from forethought.planning import defaults
from forethought.planning.limits import PlanError
from forethought.planning.noise_to_signal import noise_to_signal
from forethought.plans import Plan
from forethought.samplings import expected_batch

if TYPE_CHECKING:  # which asks what runs inside a group
    from forethought.planning.plan_request import PlanRequest

# In a plan's reasons: what groups cost against clipped examples.
GROUPS_AGAINST = "groups against examples"
# Noise against signal of groups of 64 records at which batch normalisation inside made them better
# than clipped examples, and at which they still were worse; and at which the step size, which grows
# as noise falls, was too long for some of them.
WON, LOST, TOO_LONG = 0.05, 0.16, 0.013
# Appendix D of van Dijk et al. 2022 keeps each group with probability 1/2. A record then takes part
# with probability kept · rate, and two neighbouring rounds share all but that: the combined curve
# at distance 2 (Balle, Barthe and Gaboardi 2018, Theorem 2).
NO_FILTER = (
    "a probabilistic filter of groups is not offered: keeping each group with probability p of a "
    "batch at rate q amplifies as batches at rate p·q do, has a larger ε, since what is left out "
    "is no longer the same in both directions, and throws away the updates it computed. Use "
    "sampling='poisson' with batch= p times as large"
)


def local_of(given: Local | str | Mapping[str, Any] | None) -> Local | None:
    """The algorithm inside a group, from itself, an optimizer's name, or its fields.

    With the name alone the planner chooses: one pass in steps of :data:`defaults.INNER_STEP`
    records, with the optimizer's usual step size.

    Raises:
        PlanError: anything else. ValueError, TypeError: fields outside their range.
    """
    if given is None or isinstance(given, Local):
        return given
    if isinstance(given, str):
        if ":" in given:
            return Local(function=given)
        return Local(given, step=defaults.INNER_STEP)
    if isinstance(given, Mapping):
        known = [field.name for field in fields(Local)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise PlanError(
                f"local has no {', '.join(map(repr, unknown))}; it takes {', '.join(known)}"
            )
        return Local(**given)
    raise PlanError(
        f"local must be a forethought.Local or the name of an inner optimizer, not {given!r}"
    )


def groups_of(request: PlanRequest, mechanism: Mechanism, why: dict[str, str]) -> int | None:
    """How many groups a batch is dealt into, as given or by rule; None: examples are clipped.

    Raises:
        PlanError: more groups than a batch has records.
    """
    if request.clipping != "group":
        return request.groups
    # The smallest of samples that change must be dealt into as many groups.
    batch = min(expected_batch(part.sampling, request.examples) for part in mechanism)
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
