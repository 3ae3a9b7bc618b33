"""Into how many groups, with what inside, and whether at all: rules that were measured.

docs/general_framework.md has the tables and the commands that print them.
"""

from __future__ import annotations

from forethought.mechanism import Mechanism, expected_batch
from forethought.planning import defaults
from forethought.planning.plan_request import PlanRequest

# In a plan's reasons: what groups cost against clipped examples.
GROUPS_AGAINST = "groups against examples"


def groups_of(request: PlanRequest, mechanism: Mechanism, why: dict[str, str]) -> int | None:
    """How many groups a batch is dealt into, as given or by rule; None: examples are clipped."""
    if request.clipping != "group":
        return request.groups
    batch = expected_batch(mechanism.rounds[0].sampling, request.examples)
    each = batch / (request.groups or (1 if request.local is None else defaults.groups_for(batch)))
    why[GROUPS_AGAINST] = (
        f"groups, as asked: with {each:.0f} records a contribution and a sensitivity of 2 the "
        f"noise is about {2 * each:.0f} times that of clipped examples for the same signal. At "
        "equal ε "
        "clipped examples did better in every combination that was measured; batch normalisation "
        "and an optimizer inside made up a part of it (docs/general_framework.md)"
    )
    if request.groups is not None:
        return request.groups
    if request.local is None:
        return 1
    groups = defaults.groups_for(batch)
    why["groups"] = (
        f"{groups:,} of about {batch / groups:.0f} records: as many as leave an inner algorithm "
        f"{defaults.GROUP} records to work on, since every group more makes the noise on their "
        "mean smaller"
    )
    return groups
