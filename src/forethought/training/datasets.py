"""A loaded data set as training data: its arrays, and what the Statement must say of loading it."""

from __future__ import annotations

from collections.abc import Sequence

from forethought.caveats import Caveat
from forethought.data import Dataset
from forethought.data.persons import PersonRows
from forethought.plans import Plan
from forethought.rounds.losses import Loss, label_cross_entropy


def opened(data: object, held_out: object | None) -> tuple[object, object | None, Sequence[Caveat]]:
    """Pairs of arrays, and caveats, where ``data`` is a Dataset; anything else as it is.

    Where the Dataset says whose each row is, the rows with that.

    Args:
        held_out: records to test or score on; by default the Dataset's own test part.
    """
    if isinstance(held_out, Dataset):
        held_out = (held_out.train.inputs, held_out.train.targets)
    if not isinstance(data, Dataset):
        return data, held_out, ()
    if held_out is None and data.test is not None:
        held_out = (data.test.inputs, data.test.targets)
    if data.persons is not None:
        return PersonRows(data.train, data.persons, data.records_per_person), held_out, data.caveats
    return (data.train.inputs, data.train.targets), held_out, data.caveats


def usual_loss(data: object) -> Loss | None:
    """The loss that a data set's targets call for, where that is not to be seen from their type."""
    return label_cross_entropy if isinstance(data, Dataset) and data.multilabel else None


def declared(plan: Plan, held_out: object | None) -> tuple[Caveat, ...]:
    """What the Statement must say of an algorithm of the user's own, and of steps that follow
    accuracy on held-out records.

    Raises:
        ValueError: there are none.
    """
    own = plan.local.function if plan.local is not None else None
    found = () if own is None else (Caveat("own-algorithm", own),)
    if plan.schedule.kind != "drops":
        return found
    if held_out is None:
        raise ValueError(
            "the schedule 'drops' looks at accuracy after every epoch: give public records as "
            "test=, or another schedule. Private ones would have to be paid for (forethought.tune "
            "scores with noise)"
        )
    return (*found, Caveat("public-test"))


def with_caveats(plan: Plan, found: Sequence[Caveat]) -> Plan:
    """The plan with what loading read from the private data, or was declared, each thing once."""
    new = tuple(use for use in found if use not in plan.not_covered)
    return plan.with_(not_covered=(*plan.not_covered, *new)) if new else plan
