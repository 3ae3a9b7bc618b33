"""A loaded data set as training data: its arrays, and what the Statement must say of loading it."""

from __future__ import annotations

from collections.abc import Sequence

from forethought.caveats import Caveat
from forethought.data import Dataset
from forethought.mechanism import Mechanism
from forethought.plans import Plan
from forethought.preparing.prepare import Prepared
from forethought.rounds.transcript import Transcript


def opened(data: object, held_out: object | None) -> tuple[object, object | None, Sequence[Caveat]]:
    """Pairs of arrays, and caveats, where ``data`` is a Dataset; anything else as it is.

    Args:
        held_out: records to test or score on; by default the Dataset's own test part.
    """
    if isinstance(held_out, Dataset):
        held_out = (held_out.train.inputs, held_out.train.targets)
    if not isinstance(data, Dataset):
        return data, held_out, ()
    if held_out is None and data.test is not None:
        held_out = (data.test.inputs, data.test.targets)
    return (data.train.inputs, data.train.targets), held_out, data.caveats


def steered(plan: Plan, held_out: object | None) -> tuple[Caveat, ...]:
    """What the Statement must say where accuracy on held-out records sets the step sizes.

    Raises:
        ValueError: there are none.
    """
    if plan.schedule.kind != "drops":
        return ()
    if held_out is None:
        raise ValueError(
            "the schedule 'drops' looks at accuracy after every epoch: give public records as "
            "test=, or another schedule. Private ones would have to be paid for (forethought.tune "
            "scores with noise)"
        )
    return (Caveat("public-test"),)


def require_prepared(plan: Plan, prepared: Prepared | None) -> None:
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
    paid = prepared.preparation.rounds()
    found = Mechanism(paid, adjacency=plan.mechanism.adjacency)
    prepared.transcript.require(found)


def with_preparation(prepared: Prepared | None, transcript: Transcript) -> Transcript:
    """All releases of a run, those of the preparation first."""
    if prepared is None:
        return transcript
    whole = Transcript()
    whole.extend(prepared.transcript)
    whole.extend(transcript)
    return whole


def with_caveats(plan: Plan, found: Sequence[Caveat]) -> Plan:
    """The plan with what loading read from the private data, or was declared, each thing once."""
    new = tuple(use for use in found if use not in plan.not_covered)
    return plan.with_(not_covered=(*plan.not_covered, *new)) if new else plan
