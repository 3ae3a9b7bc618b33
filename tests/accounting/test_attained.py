"""ε that data sets attain, against data sets: small ones, every batch and every deal enumerated."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import binom, norm

from forethought.accounting import attack_bounds, exact
from forethought.accounting.attack_bounds import (
    OPPOSITE,
    ZEROS,
    _composed,
    _lower,
    attained,
    in_one_part,
)
from forethought.accounting.statement import account, truth
from forethought.accounting.theorems import replacing
from forethought.values.mechanism import (
    Correlated,
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
from forethought.values.strategies import Banded

SIGMA = 1.3


def delta_of(one: Counter, other: Counter, epsilon: float) -> float:
    """δ(ε) of one round, the larger of both directions: mixtures of normals, by one integral."""
    z = np.linspace(-30, 30, 60_001)
    densities = [
        sum(float(w) * norm.pdf(z, place / SIGMA) for place, w in law.items())
        for law in (one, other)
    ]
    ways = (densities, densities[::-1])
    step = z[1] - z[0]
    return max(float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * step) for p, q in ways)


def sums(values: list[float], batch: int, groups: int | None) -> Counter:
    """The law of a round's sum: every batch, and every deal to groups, as likely as any other.

    Without groups each value is added; else a group adds 1 where it holds a marked record, else -1.
    """
    law: Counter = Counter()
    batches = list(itertools.combinations(values, batch))
    for chosen in batches:
        if groups is None:
            law[sum(chosen)] += 1 / len(batches)
            continue
        deals = list(itertools.product(range(groups), repeat=batch))
        for deal in deals:
            marked = {g for g, value in zip(deal, chosen, strict=True) if value == 1}
            law[2 * len(marked) - groups] += 1 / (len(batches) * len(deals))
    return law


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 2, 3])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("others", [ZEROS, OPPOSITE])
def test_batches_of_examples_enumerated(group, adjacency, others):
    rest = [0.0 if others == ZEROS else -1.0] * (6 - group)
    one = sums([1.0] * group + rest, 3, None)
    other = sums([0.0 if adjacency == "zero-out" else -1.0] * group + rest, 3, None)
    mechanism = Mechanism(Rounds(SIGMA, 1, WithoutReplacement(3, 6)), adjacency=adjacency)
    counts = _composed(mechanism, group, others)
    for delta in (1e-2, 1e-4):
        found = _lower(counts, delta)
        assert delta_of(one, other, found) >= delta * (1 - 1e-3)
        assert delta_of(one, other, found * 1.002) <= delta
        assert found <= exact.epsilon(mechanism, delta, group).upper


@pytest.mark.parametrize("group", [2, 3])
@pytest.mark.parametrize("groups", [1, 2, 3])
def test_deals_to_groups_enumerated(group, groups):
    # Full batches, so that no group's emptiness matters to what is enumerated here.
    one, other = sums([1.0] * group, group, groups), Counter({-float(groups): 1.0})
    mechanism = Mechanism(Rounds(SIGMA, 1, FullBatch(), "group", groups=groups))
    found = _lower(_composed(mechanism, group, OPPOSITE), 1e-3)
    assert delta_of(one, other, found) == pytest.approx(1e-3, rel=3e-3)


CELLS = [
    (sampling, clipping, adjacency)
    for sampling in (
        Poisson(0.05),
        FullBatch(),
        WithoutReplacement(20, 300),
        RandomAllocation(12),
        Shuffled(20, 300),
    )
    for clipping in ("example", "group")
    for adjacency in ("add-or-remove", "zero-out", "replace-one")
    if not (isinstance(sampling, Shuffled) and adjacency == "add-or-remove")
]


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(cell, marks=pytest.mark.slow if isinstance(cell[0], RandomAllocation) else ())
        for cell in CELLS
    ],
    ids=str,
)
@pytest.mark.parametrize("group", [1, 4])
def test_no_data_attain_more_than_is_proven(cell, group):
    sampling, clipping, adjacency = cell
    mechanism = Mechanism(Rounds(2.5, 48, sampling, clipping), adjacency=adjacency)
    proven = exact.epsilon(mechanism, 1e-5, group)
    found = attained(mechanism, 1e-5, group)
    assert 0 < found.epsilon <= proven.upper * (1 + 1e-9)
    exactly = isinstance(sampling, FullBatch) or (
        isinstance(sampling, Poisson) and (clipping == "example" or adjacency != "replace-one")
    )
    if exactly:
        assert found.epsilon >= proven.lower * (1 - 1e-6)
    elif group == 1 and isinstance(sampling, Poisson | WithoutReplacement):
        assert proven.upper <= 1.25 * found.epsilon


def test_a_statement_says_what_data_attain_and_how_far_below_that_is():
    mechanism = Mechanism(Rounds(2.5, 48, WithoutReplacement(20, 300)), adjacency="zero-out")
    made = account(mechanism, 1e-5)
    assert made.attained is not None and made.attained.epsilon <= made.epsilon.upper
    assert "| ε that data attain | at least" in made.to_markdown()
    (_, value), (_, factor) = truth(made)
    assert value.endswith(made.attained.data)
    assert float(factor.split()[2]) >= made.epsilon.upper / made.attained.epsilon
    assert account(Mechanism(Rounds(0.0, 1, FullBatch())), 1e-5).attained is None


def test_an_attack_that_beats_the_certificate_is_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: an attack that claims a little more than is proven; it is never clipped."""
    mechanism = Mechanism(Rounds(2.5, 49, WithoutReplacement(20, 300)), adjacency="zero-out")
    proven = exact.epsilon(mechanism, 1e-5).upper
    monkeypatch.setattr(exact, "of_ratios_below", lambda *_: proven * (1 + 1e-6))
    for ask in (attained, account):
        with pytest.raises(exact.CertificateError, match="beats the certificate"):
            ask(mechanism, 1e-5)


@pytest.mark.parametrize("group", [1, 3])
def test_of_parts_that_nobody_is_told_no_more_is_claimed_than_of_rounds(group: int) -> None:
    """One epoch of ten parts, all of each, is random allocation, which proves half of one turn."""
    parts = Rounds(1.0, 10, CyclicPoisson(1.0, 10))
    dealt = exact.epsilon(Mechanism(Rounds(1.0, 10, RandomAllocation(10))), 1e-5, group)
    assert 0.4 * dealt.upper <= attained(Mechanism(parts), 1e-5, group).epsilon <= dealt.upper
    turns = Correlated(1.0, 10, CyclicPoisson(1.0, 10), strategy=Banded((1.0, 0.5)))
    assert attained(Mechanism(turns), 1e-5).epsilon <= dealt.upper


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_parts_are_tried_out_at_the_price_of_their_number(adjacency) -> None:
    """At so little noise the sum of a cycle says half of what one of its four parts does."""
    mechanism = Mechanism(Rounds(1.0, 100, CyclicPoisson(0.5, 4), "group"), adjacency=adjacency)
    told = Mechanism(Rounds(1.0, 25, Poisson(0.5), "group"), adjacency="zero-out")
    wanted = exact.epsilon(told, 1e-5)
    found = attained(mechanism, 1e-5).epsilon
    assert wanted.lower - math.log(4) - 1e-6 <= found <= wanted.upper - math.log(4) + 1e-6
    # Of eight some part has four or more in 0.449 of all deals; at least 0.37 is known.
    more = exact.epsilon(told, 1e-5 / 0.37, 4).lower - math.log(4 / 0.37)
    assert attained(mechanism, 1e-5, 8).epsilon >= more


@pytest.mark.parametrize(("records", "places"), [(1, 3), (4, 2), (5, 3), (6, 4), (8, 2)])
def test_records_are_together_at_least_as_often_as_claimed(records: int, places: int) -> None:
    most = Counter(
        max(Counter(deal).values()) for deal in itertools.product(range(places), repeat=records)
    )
    for many in range(1, records + 1):
        chance = sum(n for k, n in most.items() if k >= many) / places**records
        claimed = attack_bounds.in_one_part(records, many, places)
        assert 0.6 * chance <= claimed <= chance * (1 + 1e-12)
        if many > records / 2 or chance == 1:
            assert claimed == pytest.approx(chance)


def test_rounds_without_noise_attain_everything_only_where_a_record_is_always_in_them():
    assert attained(Mechanism(Rounds(0.0, 1, FullBatch())), 1e-5).epsilon == math.inf
    assert attained(Mechanism(Rounds(0.0, 1, Poisson(1e-7))), 1e-5).epsilon == 0


@pytest.mark.parametrize("sampling", [FullBatch(), Poisson(0.05), RandomAllocation(12)], ids=str)
def test_groups_move_twice_as_far_only_where_the_others_point_the_other_way(sampling):
    mechanism = Mechanism(Rounds(2.5, 48, sampling, "group"), adjacency="zero-out")
    assert attained(mechanism, 1e-5).data.endswith(OPPOSITE)


def test_a_lone_blanked_record_leaves_nobody_to_point_the_other_way():
    alone = Mechanism(Rounds(2.5, 10, Shuffled(1, 10), "group"), adjacency="zero-out")
    single = Mechanism(Rounds(2.5, 10, Shuffled(1, 10)), adjacency="zero-out")
    assert attained(alone, 1e-5).epsilon == attained(single, 1e-5).epsilon


def test_hits_that_replace_nobody_are_refused_where_a_blank_is_taken_for_half_way():
    with pytest.raises(UnsupportedMechanismError, match="Poisson"):
        replacing(Rounds(1.0, 50, Poisson(0.5)), "zero-out", 1)


def test_large_groups_in_one_part_are_counted_in_whole_numbers():
    for records, many, places in ((3, 2, 10), (50, 8, 7), (1000, 120, 10)):
        chance = in_one_part(records, many, places)
        one = binom.sf(many - 1, records, 1 / places)
        assert one <= chance * (1 + 1e-9) and chance <= places * one * (1 + 1e-9)
    assert 0 < in_one_part(2000, 250, 10) <= 1


def test_laws_without_a_common_cell_are_left_out_of_the_attack():
    far = Rounds(0.01, 2, WithoutReplacement(10, 10))
    found = attained(Mechanism(far, Rounds(1.0, 1, FullBatch()), adjacency="zero-out"), 1e-5)
    assert 0 < found.epsilon <= 20_000


def test_a_group_that_is_never_missed_is_in_every_batch():
    certain = Mechanism(Rounds(0.12, 100, Poisson(0.12), "group", groups=1))
    always = Mechanism(Rounds(0.12, 100, FullBatch(), "group", groups=1))
    for delta in (1e-5, 1 - 1e-9):
        assert exact.epsilon(certain, delta, 10**6) == exact.epsilon(always, delta, 10**6)
