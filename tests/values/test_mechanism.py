"""Mechanism: plain values that compose, round-trip and refuse what has no meaning."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forethought.values.mechanism import (
    SAMPLINGS,
    Budget,
    CyclicPoisson,
    FullBatch,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Shuffled,
    UnsupportedMechanismError,
    WithoutReplacement,
)

samplings = st.one_of(
    *(
        st.builds(kind.sized, st.integers(1, 3), st.integers(6, 1000), st.just(2))
        for kind in SAMPLINGS.values()
    )
)
rounds = st.builds(
    Rounds,
    st.floats(0, 1e5),
    st.integers(1, 10**6),
    samplings,
    st.sampled_from(["example", "group"]),
)
mechanisms = st.builds(
    lambda parts, adjacency: Mechanism(*parts, adjacency=adjacency),
    st.lists(rounds, min_size=1, max_size=5),
    st.sampled_from(["zero-out", "replace-one"]),
)


@given(mechanisms)
def test_json_round_trip(mechanism: Mechanism) -> None:
    assert Mechanism.from_json(mechanism.to_json()) == mechanism


@given(mechanisms, mechanisms)
def test_composition_counts_all_rounds(one: Mechanism, other: Mechanism) -> None:
    if one.adjacency != other.adjacency:
        with pytest.raises(ValueError, match="cannot compose"):
            one + other
    else:
        assert len(one + other) == len(one) + len(other)


@given(mechanisms, st.data())
def test_prefix_has_the_asked_length_and_is_a_prefix(mechanism: Mechanism, data: object) -> None:
    count = data.draw(st.integers(1, len(mechanism)))  # type: ignore[attr-defined]
    prefix = mechanism.first(count)
    assert len(prefix) == count
    assert prefix.rounds[0].noise_multiplier == mechanism.rounds[0].noise_multiplier
    assert mechanism.first(len(mechanism)) == mechanism


def test_equal_neighbours_merge_but_a_broken_epoch_does_not() -> None:
    part = Rounds(1.0, 2, Poisson(0.1))
    assert Mechanism(part, part) == Mechanism(Rounds(1.0, 4, Poisson(0.1)))
    half = Rounds(1.0, 5, Shuffled(10, 100))
    assert len(Mechanism(half, half, adjacency="zero-out").rounds) == 2
    whole = Rounds(1.0, 10, Shuffled(10, 100))
    assert len(Mechanism(whole, half, adjacency="zero-out").rounds) == 1
    for sampling in (RandomAllocation(10), CyclicPoisson(0.1, 10)):
        some, turn = Rounds(1.0, 5, sampling), Rounds(1.0, 10, sampling)
        assert len(Mechanism(some, some).rounds) == 2
        assert len(Mechanism(turn, some).rounds) == 1


@pytest.mark.parametrize(
    ("sampling", "clipping", "adjacency", "expected"),
    [
        (Poisson(0.1), "example", "add-or-remove", 1),
        (Poisson(0.1), "example", "zero-out", 1),
        (Poisson(0.1), "example", "replace-one", 2),
        (Poisson(0.1), "group", "add-or-remove", 2),
        (FullBatch(), "example", "add-or-remove", 1),
        (FullBatch(), "group", "zero-out", 2),
        (FullBatch(), "example", "replace-one", 2),
        (WithoutReplacement(1, 10), "example", "replace-one", 2),
        (WithoutReplacement(1, 10), "example", "zero-out", 2),
        (Shuffled(1, 10), "example", "zero-out", 1),
        (Shuffled(1, 10), "example", "replace-one", 2),
        (Shuffled(1, 10), "group", "zero-out", 2),
        (RandomAllocation(10), "example", "add-or-remove", 1),
        (RandomAllocation(10), "group", "add-or-remove", 2),
        (CyclicPoisson(0.1, 10), "example", "zero-out", 1),
        (CyclicPoisson(0.1, 10), "example", "replace-one", 2),
    ],
)
def test_sensitivity_follows_from_the_mechanism(
    sampling: object, clipping: str, adjacency: str, expected: float
) -> None:
    assert Rounds(1.0, 1, sampling, clipping).sensitivity(adjacency) == expected  # type: ignore[arg-type]


def test_shuffling_under_add_or_remove_is_refused_with_a_way_out() -> None:
    with pytest.raises(UnsupportedMechanismError, match=r"zero-out.*replace-one.*Poisson"):
        Mechanism(Rounds(1.0, 1, Shuffled(1, 10)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Budget(0, 1e-5), r"epsilon must be .* above 0"),
        (lambda: Budget(1, 1), r"delta must be .* below 1"),
        (lambda: Budget(float("nan"), 1e-5), "epsilon"),
        (lambda: Budget(10**400, 1e-5), "a finite number"),
        (lambda: Budget(np.array([1.0, 2.0]), 1e-5), "a finite number"),
        (lambda: Poisson(0), "rate"),
        (lambda: Poisson(1.5), "rate"),
        (lambda: WithoutReplacement(11, 10), "batch must be .* at most 10"),
        (lambda: Shuffled(0, 10), "batch"),
        (lambda: Rounds(-1, 1, FullBatch()), "noise_multiplier"),
        (lambda: Rounds(1, 0, FullBatch()), "count"),
        (lambda: Rounds(1, 1, FullBatch(), "batch"), "'example', 'group'"),
        (lambda: Mechanism(), "at least one"),
        (lambda: Mechanism(Rounds(1, 1, FullBatch()), adjacency="near"), "add-or-remove"),
    ],
)
def test_wrong_values_are_refused_in_the_users_words(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rounds(1.0, 1.5, FullBatch()),
        lambda: Rounds("1", 1, FullBatch()),
        lambda: Rounds(1.0, 1, 0.01),
        lambda: Mechanism(FullBatch()),
    ],
)
def test_wrong_types_are_refused(make: object) -> None:
    with pytest.raises(TypeError):
        make()  # type: ignore[operator]


def test_other_schema_versions_and_unknown_keys_are_refused() -> None:
    values = Mechanism(Rounds(1.0, 1, FullBatch())).to_dict()
    with pytest.raises(ValueError, match="schema"):
        Mechanism.from_dict({**values, "schema": "forethought/mechanism/3"})
    with pytest.raises(ValueError, match="unknown"):
        Mechanism.from_dict({**values, "sigma": 1})
    broken = json.loads(json.dumps(values))
    broken["rounds"][0]["sampling"]["kind"] = "magic"
    with pytest.raises(ValueError, match="magic"):
        Mechanism.from_dict(broken)
    part = values["rounds"][0]
    for rounds, words in (
        (5, "must be a list"),
        ([5], "entry of rounds"),
        ([{**part, "sampling": "poisson"}], "sampling must be"),
    ):
        with pytest.raises(TypeError, match=words):
            Mechanism.from_dict({**values, "rounds": rounds})


def longest_move(records: int, groups: int, places: int) -> float:
    """By trying every way of dealing so many records out over rounds."""
    if places == 0:
        return 0.0
    return max(
        math.hypot(2 * min(here, groups), longest_move(records - here, groups, places - 1))
        for here in range(records + 1)
    )


@pytest.mark.parametrize(
    ("sampling", "places"),
    [(Poisson(0.1), 1), (FullBatch(), 1), (Shuffled(10, 25), 3), (CyclicPoisson(0.5, 2), 2)],
)
def test_records_of_a_batch_move_at_most_its_groups(sampling: object, places: int) -> None:
    for groups in (1, 2, 3, 5):
        part = Rounds(1.0, 30, sampling, "group", groups=groups)  # type: ignore[arg-type]
        for records in (1, 2, 3, 4, 6, 7):
            found = part.reach("zero-out", records)
            assert math.isclose(found, longest_move(records, groups, places), rel_tol=1e-12)
    unknown = Rounds(1.0, 30, sampling, "group")  # type: ignore[arg-type]
    assert unknown.reach("zero-out", 7) == 14


def test_groups_are_stored_and_go_with_group_clipping() -> None:
    known, unknown = Rounds(1.0, 3, Poisson(0.1), "group", groups=4), Rounds(1.0, 3, Poisson(0.1))
    for one in (known, unknown):
        assert Rounds.from_dict(one.to_dict()) == one
    assert len(Mechanism(known, Rounds(1.0, 3, Poisson(0.1), "group")).rounds) == 2
    with pytest.raises(ValueError, match="goes with clipping='group'"):
        Rounds(1.0, 3, Poisson(0.1), groups=4)
    with pytest.raises(ValueError, match="groups"):
        Rounds(1.0, 3, Poisson(0.1), "group", groups=0)


def test_no_mechanism_begins_inside_an_epoch() -> None:
    for sampling in (Shuffled(10, 95), RandomAllocation(10), CyclicPoisson(0.1, 10)):
        mechanism = Mechanism(Rounds(1.0, 25, sampling), adjacency="zero-out")
        assert mechanism.after(10) == Mechanism(Rounds(1.0, 15, sampling), adjacency="zero-out")
        with pytest.raises(UnsupportedMechanismError, match="epoch of 10"):
            mechanism.after(15)
