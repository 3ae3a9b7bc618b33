"""Bounds that need no integral, beside closed forms and the integrals themselves."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from forethought.accounting import exact
from forethought.accounting.dominating_pair import (
    Pair,
    disclosed_epsilon,
    gaussian_delta_bounds,
    gaussian_epsilon_bounds,
    hits_epsilon,
    total_variation,
)
from forethought.accounting.theorems import unsampled_distance
from forethought.values.mechanism import (
    FullBatch,
    Mechanism,
    Poisson,
    Rounds,
    Shuffled,
    WithoutReplacement,
)


def _true_delta(distance: float, epsilon: float) -> float:
    mpmath.mp.dps = 60
    d, e = mpmath.mpf(distance), mpmath.mpf(epsilon)
    ahead = mpmath.ncdf(d / 2 - e / d)
    return float(ahead - mpmath.exp(e) * mpmath.ncdf(-d / 2 - e / d))


@pytest.mark.parametrize("distance", [1e-6, 0.1, 1.0, 7.0, 300.0, 1e5, 3e5, 1e8])
@pytest.mark.parametrize("x", [-3.0, 0.0, 2.0, 8.0])
def test_the_gaussian_is_enclosed_at_any_distance(distance, x):
    epsilon = max(0.0, distance * distance / 2 + x * distance)
    truth = _true_delta(distance, epsilon)
    got = gaussian_delta_bounds(distance, epsilon)
    assert got.lower <= truth * (1 + 1e-14) and truth <= got.upper * (1 + 1e-14)
    if 1e-12 < truth < 0.99:
        back = gaussian_epsilon_bounds(distance, truth)
        assert back.lower <= epsilon * (1 + 1e-12) and epsilon <= back.upper * (1 + 1e-12)
        assert back.upper - back.lower <= 1e-3 * back.upper + 1e-12


def test_the_cap_is_the_gaussian_at_the_groups_whole_distance():
    for group in (1, 3):
        for rounds, adjacency, wanted in (
            (Rounds(2.0, 9, Poisson(0.1)), "add-or-remove", 1.0),
            (Rounds(2.0, 9, Poisson(0.1)), "replace-one", 2.0),
            (Rounds(2.0, 9, Poisson(0.1), "group"), "zero-out", 2.0),
            (Rounds(2.0, 9, WithoutReplacement(3, 10)), "add-or-remove", 2.0),
            (Rounds(2.0, 9, FullBatch()), "zero-out", 1.0),
        ):
            got = unsampled_distance(Mechanism(rounds, adjacency=adjacency), group)
            assert got == pytest.approx(group * wanted * 3 / 2.0)
    shuffled = Mechanism(Rounds(2.0, 21, Shuffled(10, 100)), adjacency="replace-one")
    assert unsampled_distance(shuffled, 2) == pytest.approx(2 * 2 * math.sqrt(3) / 2)


def test_the_cap_is_used_where_it_is_the_smaller():
    sampled = Mechanism(Rounds(4.0, 1, WithoutReplacement(99, 100)), adjacency="replace-one")
    full = Mechanism(Rounds(4.0, 1, FullBatch()), adjacency="replace-one")
    for group in (2, 4):
        got, most = (exact.epsilon(m, 1e-5, group) for m in (sampled, full))
        assert got.upper <= most.upper * (1 + 1e-9)


@pytest.mark.parametrize("sigma", [0.05, 0.2, 0.7])
@pytest.mark.parametrize("count", [2, 40])
def test_hits_lie_below_and_disclosure_above(sigma, count):
    mechanism = Mechanism(Rounds(sigma, count, Poisson(0.05)))
    pair = Pair(((1 / sigma, 0.05),))
    got = exact.epsilon(mechanism, 1e-5)
    assert got.relative_width <= 1e-3
    low, high = hits_epsilon(pair, count, 1e-5), disclosed_epsilon({pair: count}, 1e-5)
    assert 0 < low <= got.upper
    assert got.lower <= high < math.inf
    if sigma == 0.05:
        assert low > 0.3 * got.lower and high < 2 * got.upper


def test_hits_of_two_sided_and_symmetric_pairs_lie_below():
    for adjacency, sampling, group in (
        ("replace-one", Poisson(0.02), 3),
        ("replace-one", WithoutReplacement(2, 100), 1),
    ):
        rounds = Rounds(0.3, 30, sampling)
        mechanism = Mechanism(rounds, adjacency=adjacency)
        ((pair, count),) = exact.parts(mechanism, group).items()
        assert 0 < hits_epsilon(pair, count, 1e-6) <= exact.epsilon(mechanism, 1e-6, group).upper


@pytest.mark.parametrize(
    "pair",
    [
        Pair(((1.0, 0.2),)),
        Pair(((1.0, 0.2), (2.0, 0.01)), idle=0.79),
        Pair(((1.0, 0.2),), ((1.0, 0.2),)),
        Pair(((0.2, 0.1),), ((1.5, 0.2),)),
        Pair(((1.5, 0.1),), symmetric=True),
    ],
    ids=str,
)
def test_total_variation_is_an_upper_bound(pair):
    at_zero = exact.single_part(pair, exact.Asked(epsilon=0.0))
    assert total_variation(pair) >= at_zero.lower * (1 - 1e-12)
    assert total_variation(pair) <= 1.2 * at_zero.upper


@pytest.mark.parametrize("rate", [0.01, 0.1])
def test_distance_one_would_not_cover_zero_out_without_replacement(rate):
    # All other records opposite to the blanked one: sums at 0 (it is out), 1 and 2.
    z = np.linspace(-12, 16, 100_001)

    def bell(m: float) -> np.ndarray:
        return np.asarray(np.exp(-((z - m) ** 2) / 2) / math.sqrt(2 * math.pi))

    attained = (1 - rate) * bell(0) + rate * bell(2), (1 - rate) * bell(0) + rate * bell(1)
    step = float(z[1] - z[0])
    for level in (0.1, 1.0):
        delta = float(np.maximum(attained[0] - math.exp(level) * attained[1], 0).sum()) * step
        one = exact.single_part(Pair(((1.0, rate),), symmetric=True), exact.Asked(epsilon=level))
        two = exact.single_part(Pair(((2.0, rate),), symmetric=True), exact.Asked(epsilon=level))
        assert one.upper < 0.9 * delta
        assert delta <= two.upper * (1 + 1e-6)
