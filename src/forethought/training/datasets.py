"""A loaded data set as training data: its arrays, and what the Statement must say of loading it."""

from __future__ import annotations

from collections.abc import Sequence

from forethought.caveats import Caveat
from forethought.data import Dataset
from forethought.plans import Plan


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


def with_caveats(plan: Plan, found: Sequence[Caveat]) -> Plan:
    """The plan with what loading read from the private data, or was declared, each thing once."""
    new = tuple(use for use in found if use not in plan.not_covered)
    return plan.with_(not_covered=(*plan.not_covered, *new)) if new else plan
