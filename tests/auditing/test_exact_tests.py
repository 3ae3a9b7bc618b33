"""The tests that audits are made of: against brute force and against sound random numbers.

False-alarm rates: each statistical test here fails a sound implementation with a chance of 1e-6.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from forethought.auditing import exact_tests as exact

ALPHA = 1e-6


def flat(uniforms: np.ndarray) -> bool:
    return bool(stats.kstest(uniforms, "uniform").pvalue > ALPHA)


@pytest.mark.parametrize(("trials", "rate"), [(1, 0.3), (5, 0.01), (2_000, 0.1), (40, 0.999)])
def test_binomial_counts_become_uniform(trials: int, rate: float) -> None:
    source = np.random.default_rng(1)
    counts = source.binomial(trials, rate, 20_000)
    assert flat(exact.uniform_binomial(counts, trials, rate, source))


def test_a_binomial_of_another_rate_does_not() -> None:
    source = np.random.default_rng(1)
    counts = source.binomial(2_000, 0.11, 500)
    assert exact.uniform_p(exact.uniform_binomial(counts, 2_000, 0.1, source)) < 1e-12


def test_overlaps_of_drawn_subsets_become_uniform() -> None:
    source = np.random.default_rng(2)
    counts = [int((source.permutation(30)[:7] < 11).sum()) for _ in range(20_000)]
    found = exact.uniform_hypergeometric(counts, 30, 11, 7, source)
    assert flat(found)


def test_the_certain_overlap_of_nothing_is_uniform_too() -> None:
    counts = np.zeros(2_000, dtype=int)
    assert flat(exact.uniform_hypergeometric(counts, 0, 0, 0, np.random.default_rng(3)))


def test_pairs_in_a_subset_have_the_counted_distribution() -> None:
    pairs, drawn = 4, 5
    counts = np.zeros(4)
    for chosen in combinations(range(2 * pairs), drawn):
        counts[sum({2 * k, 2 * k + 1} <= set(chosen) for k in range(pairs))] += 1
    share = counts / counts.sum()

    class Halfway:
        @staticmethod
        def random(shape: object) -> np.ndarray:
            return np.full(shape, 0.5)  # type: ignore[call-overload]

    for k in (1, 2):
        (found,) = exact.uniform_pairs([k], pairs, [drawn], Halfway)  # type: ignore[arg-type]
        assert found == pytest.approx(share[:k].sum() + share[k] / 2)


def test_pairs_of_real_draws_become_uniform() -> None:
    source = np.random.default_rng(3)
    both, sizes = [], []
    for _ in range(5_000):
        size = int(source.binomial(60, 0.3))
        inside = np.zeros(60, dtype=bool)
        inside[source.choice(60, size, replace=False)] = True
        both.append(int(inside.reshape(30, 2).all(axis=1).sum()))
        sizes.append(size)
    assert flat(exact.uniform_pairs(both, 30, sizes, source))


@pytest.mark.thinned
@pytest.mark.parametrize("name", ["uniform_p", "normal_p", "kolmogorov_smirnov_p", "spread_p"])
def test_p_values_of_sound_numbers_are_not_too_small(name: str) -> None:
    source = np.random.default_rng(4)
    found = []
    for _ in range(2_000):
        z = source.standard_normal(50)
        found.append(getattr(exact, name)(stats.norm.cdf(z) if name == "uniform_p" else z))
    for level in (0.01, 0.1, 0.5):
        below = int((np.array(found) <= level).sum())
        assert stats.binom.sf(below - 1, len(found), level) > ALPHA


@pytest.mark.parametrize("successes", [0, 1, 37, 199, 200])
def test_upper_ends_are_those_of_clopper_and_pearson(successes: int) -> None:
    end = exact.share_at_most(successes, 200, 0.01)
    if successes == 200:
        assert end == 1
    else:
        assert stats.binom.cdf(successes, 200, end) == pytest.approx(0.01)
    assert exact.share_at_least(successes, 200, 0.01) == pytest.approx(
        1 - exact.share_at_most(200 - successes, 200, 0.01)
    )


@pytest.mark.parametrize("successes", [0, 3, 100, 199])
def test_the_bound_for_dependent_trials_is_wider_and_chernoffs(successes: int) -> None:
    end = exact.share_at_most(successes, 200, 0.01, independent=False)
    assert end >= exact.share_at_most(successes, 200, 0.01)
    share = successes / 200
    divergence = (1 - share) * math.log((1 - share) / (1 - end))
    divergence += share * math.log(share / end) if share else 0.0
    assert math.exp(-200 * divergence) == pytest.approx(0.01, rel=1e-6)
