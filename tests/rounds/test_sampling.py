"""Sampling: exact distributions, reproducible rounds. All statistical tests use fixed seeds; the
stated false-alarm rate is what a fresh seed would meet."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from forethought.rounds.randomness import (
    Stream,
    assign_groups,
    poisson_count,
    sampler,
    uniform_subset,
)
from forethought.values.mechanism import (
    CyclicPoisson,
    FullBatch,
    Poisson,
    RandomAllocation,
    Shuffled,
    WithoutReplacement,
)

FALSE_ALARM = 1e-6


def stream(seed: int = 0) -> Stream:
    return Stream(bytes([seed] * 32), "sampling")


@pytest.mark.parametrize(
    ("examples", "rate"),
    [(1000, 0.013), (200, 0.5), (64, 0.9), (5000, 2.0**-9), (100_000, 3e-5), (30_000, 2e-3)],
)
def test_poisson_batch_sizes_are_binomial(examples: int, rate: float) -> None:
    """Chi-square goodness of fit, false-alarm rate 1e-6."""
    generator = np.random.default_rng(1)
    counts = [poisson_count(examples, rate, generator) for _ in range(4000)]
    law = stats.binom(examples, rate)
    edges = np.unique(law.ppf(np.linspace(0.05, 0.95, 12)))
    observed = np.bincount(np.searchsorted(edges, counts), minlength=len(edges) + 1)
    expected = np.diff([0.0, *law.cdf(edges), 1.0]) * len(counts)
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


def test_planted_fault_in_the_rate_is_seen() -> None:
    """The same test catches a rate that is 10 % off."""
    generator = np.random.default_rng(1)
    counts = [poisson_count(1000, 0.055, generator) for _ in range(4000)]
    law = stats.binom(1000, 0.05)
    edges = np.unique(law.ppf(np.linspace(0.05, 0.95, 12)))
    observed = np.bincount(np.searchsorted(edges, counts), minlength=len(edges) + 1)
    expected = np.diff([0.0, *law.cdf(edges), 1.0]) * len(counts)
    assert stats.chisquare(observed, expected).pvalue < FALSE_ALARM


def test_tiny_rates_are_not_rounded_away() -> None:
    """Total over 40 rounds of 50 million records: Poisson test, false-alarm rate 1e-6."""
    rate, examples = 1e-8, 50_000_000
    generator = np.random.default_rng(2)
    total = sum(poisson_count(examples, rate, generator) for _ in range(40))
    low, high = stats.poisson(40 * rate * examples).interval(1 - FALSE_ALARM)
    assert low <= total <= high
    # Far below the spacing of doubles near 1, where 1 − rate is exactly 1.
    assert poisson_count(1000, 1e-300, generator) == 0


def test_rates_at_the_ends() -> None:
    generator = np.random.default_rng(3)
    assert poisson_count(77, 1.0, generator) == 77
    assert poisson_count(0, 0.5, generator) == 0
    assert 0 <= poisson_count(77, np.nextafter(1.0, 0.0), generator) <= 77


def test_poisson_includes_records_equally_and_independently() -> None:
    """Inclusion frequencies (chi-square) and pairwise correlations (largest of 190, Bonferroni),
    false-alarm rate 1e-6 each."""
    examples, rate, rounds = 20, 0.3, 20_000
    draw = sampler(Poisson(rate), examples, stream())
    seen = np.zeros((rounds, examples))
    for index in range(rounds):
        seen[index, draw(index)] = 1
    frequencies = seen.sum(0)
    chi = ((frequencies - rounds * rate) ** 2 / (rounds * rate * (1 - rate))).sum()
    assert stats.chi2.sf(chi, examples) > FALSE_ALARM
    correlations = np.corrcoef(seen.T)[np.triu_indices(examples, 1)] * np.sqrt(rounds)
    assert np.abs(correlations).max() < stats.norm.isf(FALSE_ALARM / 2 / 190)


def test_poisson_rounds_are_independent() -> None:
    """Lag-one correlation of one record's inclusion, false-alarm rate 1e-6."""
    draw = sampler(Poisson(0.4), 5, stream(4))
    inside = np.array([0 in draw(index) for index in range(20_000)], dtype=float)
    z = np.corrcoef(inside[:-1], inside[1:])[0, 1] * np.sqrt(len(inside))
    assert abs(z) < stats.norm.isf(FALSE_ALARM / 2)


def test_without_replacement_subsets_are_uniform() -> None:
    """All 20 subsets of 3 out of 6 equally often: chi-square, false-alarm rate 1e-6."""
    draw = sampler(WithoutReplacement(3, 6), 6, stream())
    found: dict[tuple[int, ...], int] = {}
    for index in range(8000):
        batch = draw(index)
        assert len(set(batch.tolist())) == 3
        key = tuple(sorted(batch.tolist()))
        found[key] = found.get(key, 0) + 1
    assert len(found) == 20
    assert stats.chisquare(list(found.values())).pvalue > FALSE_ALARM


def test_shuffled_covers_every_record_once_an_epoch() -> None:
    draw = sampler(Shuffled(4, 10), 10, stream(), first=5)
    epochs = [[draw(5 + 3 * epoch + position) for position in range(3)] for epoch in range(2)]
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == [4, 4, 2]
        assert sorted(np.concatenate(epoch).tolist()) == list(range(10))
    assert np.concatenate(epochs[0]).tolist() != np.concatenate(epochs[1]).tolist()


def test_shuffled_permutations_are_uniform() -> None:
    """All 24 orders of 4 records: chi-square, false-alarm rate 1e-6."""
    draw = sampler(Shuffled(4, 4), 4, stream())
    orders = [tuple(draw(index).tolist()) for index in range(6000)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_random_allocation_deals_each_record_once_an_epoch_independently() -> None:
    """Places are uniform (chi-square) and pairs of records independent, epochs too: 1e-6 each."""
    draw = sampler(RandomAllocation(4), 3, stream(), first=7)
    places = np.empty((6000, 3), dtype=int)
    for epoch in range(len(places)):
        found = [draw(7 + 4 * epoch + place) for place in range(4)]
        assert sorted(np.concatenate(found).tolist()) == [0, 1, 2]
        for place, batch in enumerate(found):
            places[epoch, batch] = place
    triples = places @ [16, 4, 1]
    assert stats.chisquare(np.bincount(triples, minlength=64)).pvalue > FALSE_ALARM
    follow = 4 * places[:-1, 0] + places[1:, 0]
    assert stats.chisquare(np.bincount(follow, minlength=16)).pvalue > FALSE_ALARM


def test_cyclic_poisson_keeps_records_in_their_part() -> None:
    """Parts are even and fixed, and sampled at the rate: chi-square and binomial, 1e-6 each."""
    examples, parts, rate = 3000, 5, 0.3
    draw = sampler(CyclicPoisson(rate, parts), examples, stream(), first=2)
    part_of = np.full(examples, -1)
    taken = 0
    for index in range(2, 2 + 40 * parts):
        batch = draw(index)
        part = (index - 2) % parts
        assert np.isin(part_of[batch], (-1, part)).all()
        part_of[batch] = part
        taken += len(batch)
    assert (part_of >= 0).all()
    assert stats.chisquare(np.bincount(part_of)).pvalue > FALSE_ALARM
    assert stats.binomtest(taken, 40 * examples, rate).pvalue > FALSE_ALARM
    assert stats.binomtest(int((part_of[1:] == part_of[:-1]).sum()), examples - 1, 0.2).pvalue > (
        FALSE_ALARM
    )


@pytest.mark.parametrize("sampling", [RandomAllocation(4), CyclicPoisson(0.5, 4)], ids=str)
def test_dealt_rounds_can_be_drawn_again_in_any_order(sampling: object) -> None:
    first = sampler(sampling, 50, stream(), first=3)  # type: ignore[arg-type]
    again = sampler(sampling, 50, stream(), first=3)  # type: ignore[arg-type]
    drawn = [first(index).tolist() for index in range(3, 15)]
    for index in (14, 3, 9, 4, 10):
        assert again(index).tolist() == drawn[index - 3]


def test_full_batch_is_everything() -> None:
    assert sampler(FullBatch(), 7, stream())(3).tolist() == list(range(7))


@pytest.mark.parametrize(
    "kind", [Poisson(0.3), WithoutReplacement(5, 40), Shuffled(7, 40), FullBatch()]
)
def test_any_round_can_be_drawn_again(kind: object) -> None:
    forward = sampler(kind, 40, stream())  # type: ignore[arg-type]
    batches = [forward(index).copy() for index in range(20)]
    again = sampler(kind, 40, stream())  # type: ignore[arg-type]
    for index in (19, 3, 11, 0):
        assert np.array_equal(again(index), batches[index])


def test_uniform_subset_has_no_repeats() -> None:
    generator = np.random.default_rng(0)
    for size in (0, 1, 999, 1000):
        assert len(set(uniform_subset(1000, size, generator).tolist())) == size


def test_groups_are_independent_and_uniform() -> None:
    """Chi-square over 3 groups, false-alarm rate 1e-6."""
    groups = assign_groups(30_000, 3, np.random.default_rng(0))
    assert stats.chisquare(np.bincount(groups, minlength=3)).pvalue > FALSE_ALARM
    assert assign_groups(0, 3, np.random.default_rng(0)).shape == (0,)


def test_unknown_sampling_is_refused() -> None:
    with pytest.raises(TypeError, match="no sampler"):
        sampler("poisson", 10, stream())  # type: ignore[arg-type]
