"""What all sides agree on: refused where it contradicts itself, the same when it is read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from machines import federation, plan

from forethought.federated.delay import Delay
from forethought.federated.federation import (
    Federation,
    FederationError,
    Member,
    Robust,
    ServerOptimizer,
)


def test_it_is_read_back_as_it_was_and_named_by_all_of_it() -> None:
    first = federation(rule="asynchronous", delay=Delay("sqrt", 2), absence=3.0)
    again = Federation.from_json(first.to_json())
    assert again == first and again.run_id == first.run_id and len(first.run_id) == 32
    others = (
        replace(first, seed=1),
        replace(first, architecture="another"),
        replace(first, plans=(plan(2),)),
        replace(first, members=(*first.members[:2], Member("c2", public_key="00" * 32))),
    )
    assert len({first.run_id, *(other.run_id for other in others)}) == 5


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"members": ()}, "at least one member"),
        ({"members": (Member("a"), Member("a"))}, "one name"),
        ({"members": (Member("a", plan=1),)}, "there are 1"),
        ({"local_rounds": 2}, "does not divide"),
        ({"exchanged": "gradients", "local_rounds": 3}, "of one round"),
        ({"rule": "asynchronous", "exchanged": "weights"}, "as they come"),
        ({"rule": "asynchronous", "cohort": 2}, "synchronous"),
        ({"rule": "asynchronous", "secure": {}}, "fixed cohort"),
        ({"rule": "asynchronous", "robust": Robust("median")}, "one by one"),
        ({"rule": "asynchronous", "server": ServerOptimizer("adam")}, "one by one"),
        ({"absence": 3.0}, "deadline"),
        ({"rule": "published", "absence": 3.0}, "waits for everyone"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FederationError, match=words):
        federation(**changes)


def test_permissible_delays() -> None:
    one, two, root = Delay().permits, Delay("constant", 2).permits, Delay("sqrt", 1).permits
    for i in range(40):
        for k in range(i + 2):
            assert one(k, i) == (k >= i - 1)
            assert two(k, i) == (k >= i - 2)
    # √(100/ln 100) = 4.66
    assert root(96, 100) and not root(95, 100) and root(0, 1)
    with pytest.raises(ValueError, match="delay must be"):
        Delay("never")
