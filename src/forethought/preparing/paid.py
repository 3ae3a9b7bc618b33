"""That what was released to prepare the data is what a plan pays for."""

from __future__ import annotations

from forethought.mechanism import Mechanism
from forethought.preparing.prepare import Paying, Prepared
from forethought.rounds.transcript import Transcript


def require_prepared(plan: Paying, prepared: Prepared | None) -> None:
    """Refuse a run whose first releases are not those that its plan accounts for.

    Raises:
        ValueError: no preparation where the plan has one, one that the plan does not have, or
            one that was released otherwise.
    """
    if prepared is None:
        if plan.preparation is not None:
            raise ValueError(
                "the plan pays for a preparation of the data: release it with prepared = "
                "forethought.prepare(plan, data), apply it to the inputs, and give prepared="
            )
        return
    if plan.preparation != prepared.preparation or plan.examples != prepared.examples:
        raise ValueError(
            "prepared= is not what the plan pays for: its releases would be in no ε. Make the plan "
            "with forethought.plan(preparation=...) first, and prepare with that plan"
        )
    paid = prepared.preparation.parts()
    found = Mechanism(*paid, adjacency=plan.mechanism.adjacency)
    prepared.transcript.require(found)


def require_unprepared(plan: Paying, what: str) -> None:
    """Refuse a plan that pays for a preparation where several runs share one accounting.

    Args:
        what: the caller, such as ``"train_until"``.

    Raises:
        ValueError: the plan has a preparation.
    """
    if plan.preparation is not None:
        raise ValueError(
            f"{what} accounts for its runs only, and this plan pays for a preparation of the data "
            "before them: standardise with public constants, and plan without preparation="
        )


def with_preparation(prepared: Prepared | None, transcript: Transcript) -> Transcript:
    """All releases of a run, those of the preparation first."""
    if prepared is None:
        return transcript
    whole = Transcript()
    whole.extend(prepared.transcript)
    whole.extend(transcript)
    return whole
