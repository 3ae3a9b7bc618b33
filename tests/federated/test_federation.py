"""What all sides agree on: refused where it contradicts itself, the same when it is read back."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import federation, plan

from forethought.federated.federation import (
    Delay,
    Federation,
    FederationError,
    Member,
    Robust,
    ServerOptimizer,
)
from forethought.values.mechanism import Correlated, FullBatch, Mechanism, first_round, updates_of
from forethought.values.plan import Preparation
from forethought.values.strategies import Banded
from forethought.values.use import GradientFilter


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


def test_a_plan_that_prepares_the_data_is_refused() -> None:
    # No client releases it, and its rounds would count as some of those of training.
    prepared = plan().remade(preparation=Preparation(("classes",), classes=2, noise_multiplier=99))
    with pytest.raises(FederationError, match="preparation="):
        federation(plans=(prepared,))


def test_a_plan_that_no_client_can_run_is_refused_before_anybody_has_keys() -> None:
    filtered = plan().remade(use=replace(plan().use, gradient_filter=GradientFilter()))
    with pytest.raises(FederationError, match="send the weights"):
        federation(plans=(filtered,))
    rounds = plan().rounds
    noise = Correlated(2.0, rounds, FullBatch(), strategy=Banded((1.0, 0.5)))
    with pytest.raises(FederationError, match="independent noise"):
        federation(plans=(plan().remade(mechanism=Mechanism(noise)),))


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


def test_a_delay_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_delays.py").write_text("def even(k, i):\n    return k >= i - i % 2 * 2\n")
    agreed = federation(rule="asynchronous", delay=Delay("my_delays:even"))
    again = Federation.from_json(agreed.to_json())
    assert again == agreed and "my_delays" not in sys.modules  # a file alone imports nothing
    with pytest.raises(ValueError, match="importing my_delays failed"):
        again.permits(0, 0)
    monkeypatch.chdir(tmp_path)
    own = Federation.from_json(agreed.to_json()).permits
    for i in range(12):
        for k in range(i + 2):
            assert own(k, i) == (k >= (i - 2 if i % 2 else i))
    (tmp_path / "no_delays.py").write_text("def never(k, i):\n    return False\n")
    never = Delay("no_delays:never").permits
    assert never(3, 3) and not never(2, 3)  # no model newer than v_3 comes before round 3
    with pytest.raises(ValueError, match="never"):
        _ = Delay("no_delays:nevr").permits


@pytest.mark.parametrize("body", ["(k): return True", "(k, i): return i / k"])
def test_a_delay_that_cannot_be_called_is_refused_in_words(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "bad_delays", raising=False)
    (tmp_path / "bad_delays.py").write_text(f"def bad{body}\n")
    with pytest.raises(ValueError, match="failed with"):
        _ = Delay("bad_delays:bad").permits


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 60))
def test_rounds_and_updates_are_counted_both_ways(each: list[int], rounds: int) -> None:
    """Against counting one update after the other."""
    local = tuple(each)
    made, ahead = 0, [0]
    while ahead[-1] <= rounds:
        ahead.append(ahead[-1] + each[min(made, len(each) - 1)])
        made += 1
    assert updates_of(local, rounds) == made - 1
    assert [first_round(local, update) for update in range(made + 1)] == ahead
    if len(each) == 1:
        assert updates_of(each[0], rounds) == made - 1 and first_round(each[0], made) == ahead[-1]


def test_local_rounds_that_change_have_one_form() -> None:
    changing = replace(federation(2, 6), local_rounds=(1, 1, 2, 2, 2), rounds=4)
    assert changing.local_rounds == (1, 1, 2) and changing.updates(0) == 4
    assert Federation.from_json(changing.to_json()) == changing
    assert federation(2, 6, local_rounds=(3, 3)) == federation(2, 6, local_rounds=3)
    with pytest.raises(FederationError, match="takes 6"):
        federation(2, 5, local_rounds=(1, 1, 2))
    for wrong in ((), (1, 0), (1.5,)):
        with pytest.raises(ValueError, match="local_rounds"):
            federation(local_rounds=wrong)
