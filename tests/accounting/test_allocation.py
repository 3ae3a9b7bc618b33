"""Random allocation: bounds in convex order, against integrals that share no code with them."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.interpolate import PchipInterpolator
from scipy.special import ndtr

from forethought.accounting import discrete_ratio
from forethought.accounting.attack_bounds import attained
from forethought.accounting.discrete_ratio import CUT, Epoch, epoch_ratios
from forethought.accounting.exact import delta, epsilon, privacy_loss
from forethought.accounting.statement import FROZEN_SCHEMA, account
from forethought.accounting.theorems import parts
from forethought.accounting.tradeoff import tradeoff
from forethought.values.mechanism import (
    ADJACENCIES,
    CLIPPINGS,
    FullBatch,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Shuffled,
    WithoutReplacement,
)


def above(a: float, level: float) -> float:
    """E (X - level)+ of one log-normal term, which is δ of a Gaussian."""
    if level <= 0:
        return 1 - level
    place = (math.log(level) + a * a / 2) / a
    return float(ndtr(a - place) - level * ndtr(-place))


def two_rounds(a: float, level: float) -> float:
    """E ((X₁ + X₂)/2 - level)+ by conditioning on X₁."""

    def inside(z: float) -> float:
        x = math.exp(a * z - a * a / 2)
        bell = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return above(a, 2 * level - x) / 2 * bell

    kink = (math.log(2 * level) + a * a / 2) / a if level > 0 else 0.0
    ends = (-13.0, min(max(kink, -12.0), 20.0), 22.0 + a)
    pieces = itertools.pairwise(ends)
    return sum(quad(inside, *piece, epsabs=1e-16, epsrel=1e-9, limit=400)[0] for piece in pieces)


def reverse(forward: float, level: float) -> float:
    """E (1 - W/level)+ from E (W - level)+, by put-call parity, for a W of mean 1."""
    return (forward - 1 + level) / level


@pytest.mark.parametrize(("a", "eps"), [(1.0, 0.5), (1.0, 2.0), (0.3, 0.2), (3.0, 4.0)])
def test_two_rounds_are_enclosed_in_both_directions(a: float, eps: float) -> None:
    low, high = epoch_ratios(Epoch(a, 2, 2), 1.0)
    truth = two_rounds(a, math.exp(eps))
    assert low.delta(eps, swapped=False) <= truth <= high.delta(eps, swapped=False)
    assert high.delta(eps, swapped=False) <= truth * 1.001
    back = reverse(two_rounds(a, math.exp(-eps)), math.exp(-eps))
    assert low.delta(eps, swapped=True) <= back <= high.delta(eps, swapped=True)
    assert low.delta(eps, swapped=True) >= back * 0.999


@pytest.mark.parametrize(("terms", "used"), [(2, 1), (3, 2), (7, 7), (100, 37)])
@pytest.mark.parametrize("a", [0.2, 1.0, 4.0])
def test_laws_have_mean_one_and_enclose_the_variance(a: float, terms: int, used: int) -> None:
    low, high = epoch_ratios(Epoch(a, terms, used), 1.0)
    exact = math.expm1(a * a) * used / terms**2
    for law in (low, high):
        assert law.first.sum() == pytest.approx(1, abs=1e-9)
        assert law.second.sum() == pytest.approx(1, abs=1e-9)
    variances = [float(law.second @ np.expm1(law.loss) ** 2) for law in (low, high)]
    assert variances[0] <= exact * (1 + 1e-9)
    if a < 4:  # at 4 the variance sits where next to no mass is
        assert exact <= variances[1] * (1 + 1e-9)
        assert variances[1] <= exact * 1.02
        assert variances[0] >= exact * 0.98
    assert high.lost < 10 * CUT


@pytest.mark.parametrize("terms", [999, 10**6, 10**7])
@pytest.mark.parametrize("a", [0.2, 1.0, 2.0])
def test_laws_of_many_rounds_enclose_the_moments(a: float, terms: int) -> None:
    low, high = epoch_ratios(Epoch(a, terms, terms), 1.0)
    # Central moments of a mean of independent terms, and those of a log-normal number.
    second, third = (math.exp(a * a * k * (k - 1) / 2) for k in (2, 3))
    exact = [(second - 1) / terms, (third - 3 * second + 2) / terms**2]
    for law in (low, high):
        assert abs(law.second.sum() - 1) <= law.doubt
        assert abs(law.first.sum() - 1) <= law.doubt
    for law, sign in ((low, -1), (high, 1)):
        around = np.expm1(law.loss)
        found = float(law.second @ around**2)
        assert 0 <= sign * (found / exact[0] - 1) + law.doubt <= 2e-2
        # W³ is convex.
        cube = float(law.second @ (around**3 + 3 * around**2))
        whole = exact[1] + 3 * exact[0]
        assert 0 <= sign * (cube / whole - 1) + law.doubt <= 2e-2


@pytest.mark.parametrize(
    ("a", "terms", "used"), [(2.0, 3, 3), (4.0, 2, 2), (1.0, 37, 20), (0.3, 64, 64)]
)
def test_what_is_cut_off_is_charged(
    a: float, terms: int, used: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As much as this could be seen; the sums' own rounding is far below it.
    monkeypatch.setattr(discrete_ratio, "CUT", 1e-5)
    epoch_ratios.cache_clear()
    _, law = epoch_ratios(Epoch(a, terms, used), 1.0)
    epoch_ratios.cache_clear()
    for mass, lost in ((law.first.sum(), law.lost), (law.second.sum(), law.lost_rest)):
        assert mass < 1 - 1e-8
        assert 1 - 1e-12 <= mass + lost < 1 + 1e-4


def test_one_used_round_of_many_is_a_poisson_round() -> None:
    """W = 1 - 1/t + X/t: the subsampled Gaussian that the other engine integrates."""
    allocated = Mechanism(Rounds(1.2, 1, RandomAllocation(25)))
    sampled = Mechanism(Rounds(1.2, 1, Poisson(1 / 25)))
    for eps in (0.01, 0.3):
        one, other = delta(allocated, eps), delta(sampled, eps)
        assert one.lower <= other.upper and other.lower <= one.upper
        assert one.upper <= other.upper * 1.01


@pytest.mark.slow
def test_two_epochs_of_two_rounds_by_a_double_integral() -> None:
    a, eps = 0.8, 1.0
    levels = np.geomspace(1e-5, 1e5, 151)
    second = PchipInterpolator(np.log(levels), [two_rounds(a, float(x)) for x in levels])
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    x = np.exp(a * nodes - a * a / 2)
    first = (x[:, None] + x[None, :]) / 2
    wanted = weights @ (first * second(np.log(math.exp(eps) / first))) @ weights
    found = delta(Mechanism(Rounds(1 / a, 4, RandomAllocation(2))), eps)
    assert found.lower * (1 - 1e-4) <= wanted <= found.upper * (1 + 1e-4)
    assert found.relative_width < 0.01


@pytest.mark.slow
def test_many_rounds_by_simulation() -> None:
    """2·10⁵ epochs of 50 rounds; false-alarm rate below 1e-9 (six standard errors)."""
    a, t, eps = 1.0, 50, 0.3
    rng = np.random.default_rng(5)
    total = np.zeros(200_000)
    for _ in range(t):
        total += np.exp(a * rng.standard_normal(total.size) - a * a / 2)
    sample = np.maximum(0.0, total / t - math.exp(eps))
    error = 6 * sample.std() / math.sqrt(sample.size)
    found = delta(Mechanism(Rounds(1 / a, t, RandomAllocation(t))), eps)
    assert found.lower - error <= sample.mean() <= found.upper + error


@pytest.mark.parametrize(
    ("sigma", "epochs", "rounds"),
    [pytest.param(1.0, 1, 100, marks=pytest.mark.slow), (2.0, 20, 50), (4.0, 100, 10)],
)
def test_intervals_are_narrow_and_near_poisson(sigma: float, epochs: int, rounds: int) -> None:
    count = epochs * rounds
    found = epsilon(Mechanism(Rounds(sigma, count, RandomAllocation(rounds))), 1e-5)
    sampled = epsilon(Mechanism(Rounds(sigma, count, Poisson(1 / rounds))), 1e-5)
    shuffled = epsilon(
        Mechanism(Rounds(sigma, count, Shuffled(1, rounds)), adjacency="zero-out"), 1e-5
    )
    assert found.relative_width <= 5e-3
    assert abs(found.upper / sampled.upper - 1) < 0.2
    assert found.upper < shuffled.upper


@pytest.mark.slow
def test_parts_compose_with_other_rounds() -> None:
    allocated = Rounds(1.0, 150, RandomAllocation(100))
    others = Rounds(2.0, 50, Poisson(0.1))
    alone = epsilon(Mechanism(allocated), 1e-6)
    both = epsilon(Mechanism(allocated, others), 1e-6)
    assert alone.upper < both.lower < both.upper < alone.upper + 2
    assert both.relative_width <= 5e-3


def _twice(mechanism: Mechanism) -> Mechanism:
    (rounds,) = mechanism.rounds
    return Mechanism(replace(rounds, count=2), adjacency=mechanism.adjacency)


@pytest.mark.parametrize("clipping", CLIPPINGS)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("group", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_the_first_round_of_an_epoch_is_a_round_of_a_simpler_sampling(
    clipping, adjacency, group
) -> None:
    pairs = [(RandomAllocation(10), Poisson(0.1))]
    if adjacency != "add-or-remove":
        pairs.append((Shuffled(10, 95), WithoutReplacement(10, 95)))
    for dealt, drawn in pairs:
        first, same = (
            Mechanism(Rounds(1.5, 1, sampling, clipping), adjacency=adjacency)
            for sampling in (dealt, drawn)
        )
        assert epsilon(first, 1e-5, group) == epsilon(same, 1e-5, group)
        if group == 1:
            assert attained(first, 1e-5) == attained(same, 1e-5)
            # Two rounds of an epoch are not two such rounds.
            assert parts(_twice(first)) != parts(_twice(same))
        stated = [account(one, 1e-5, group=group) for one in (first, same)]
        assert stated[0].theorems == stated[1].theorems


def test_a_statement_names_what_proves_a_last_round_by_itself() -> None:
    epochs, begun, round = (
        account(Mechanism(Rounds(1.5, count, sampling)), 1e-5)
        for count, sampling in (
            *((4, RandomAllocation(4)), (5, RandomAllocation(4)), (1, Poisson(0.25))),
        )
    )
    assert begun.theorems == (*epochs.theorems, *round.theorems)
    assert replace(begun, schema=FROZEN_SCHEMA).theorems == epochs.theorems


def test_one_round_an_epoch_is_a_full_batch() -> None:
    one = epsilon(Mechanism(Rounds(3.0, 20, RandomAllocation(1))), 1e-5)
    assert one == epsilon(Mechanism(Rounds(3.0, 20, FullBatch())), 1e-5)


@pytest.mark.slow
def test_groups_and_exchanged_records_go_change_by_change() -> None:
    # By the definition: neighbours of neighbours, at the best levels of a fine lattice.
    rounds = Rounds(3.0, 20, RandomAllocation(10))
    curves = [above for _, above in privacy_loss(Mechanism(rounds, adjacency="zero-out"))]
    for mechanism, group in (
        (Mechanism(rounds), 3),
        (Mechanism(rounds, adjacency="replace-one"), 1),
        (Mechanism(rounds, adjacency="replace-one"), 2),
    ):
        got = epsilon(mechanism, 1e-5, group)
        assert got.relative_width < 2e-3
        levels = np.linspace(0, got.upper, 401)
        gone, back = (curve.deltas(levels) for curve in curves)

        def after(first: np.ndarray, second: np.ndarray, levels: np.ndarray = levels) -> np.ndarray:
            grown = np.exp(levels)
            return np.array(
                [np.min(first[: n + 1] + grown[: n + 1] * second[n::-1]) for n in range(401)]
            )

        ways = [reduce(after, [one] * group) for one in (gone, back)]
        if mechanism.adjacency == "replace-one":
            ways = [after(*ways)]
        lost = max(way[-1] for way in ways)
        assert 0.98e-5 <= lost <= 1.03e-5
        assert delta(mechanism, got.upper, group).upper <= 1e-5 * (1 + 1e-6)
        steps = group * len(curves) // len(ways)
        assert got.upper < 0.8 * epsilon(Mechanism(Rounds(3.0, 2, FullBatch())), 1e-5, steps).lower


@pytest.mark.slow
def test_an_exchanged_record_of_two_rounds_by_an_integral() -> None:
    # One epoch of two rounds: (N(a, 0) + N(0, a))/2 against the same with -a, in the plane.
    a, eps = 0.6, 0.5
    x = np.linspace(-9, 9, 1200)
    first, second = np.meshgrid(x, x, indexing="ij")

    def both(c: float) -> np.ndarray:
        ways = ((first - c) ** 2 + second**2, first**2 + (second - c) ** 2)
        return sum(np.exp(-0.5 * way) for way in ways) / (4 * math.pi)

    truth = float(np.maximum(both(a) - math.exp(eps) * both(-a), 0).sum()) * (x[1] - x[0]) ** 2
    mechanism = Mechanism(Rounds(1 / a, 2, RandomAllocation(2)), adjacency="replace-one")
    assert truth <= delta(mechanism, eps).upper


@pytest.mark.parametrize("sigma", [1e-3, 0.05, pytest.param(0.2, marks=pytest.mark.slow), 1e6])
def test_extreme_noise_has_finite_bounds(sigma: float) -> None:
    found = epsilon(Mechanism(Rounds(sigma, 20, RandomAllocation(10))), 1e-6)
    assert 0 <= found.lower <= found.upper < math.inf
    if sigma < 0.1:
        assert found.lower > 0.4 * found.upper


def test_group_clipping_moves_by_two() -> None:
    clipped = epsilon(Mechanism(Rounds(4.0, 100, RandomAllocation(100), "group")), 1e-5)
    assert clipped == epsilon(Mechanism(Rounds(2.0, 100, RandomAllocation(100))), 1e-5)


@pytest.mark.slow
def test_the_tradeoff_is_below_any_attack() -> None:
    """The best test of one epoch of two rounds, at its own threshold."""
    claim = tradeoff(Mechanism(Rounds(1.0, 2, RandomAllocation(2))))
    rng = np.random.default_rng(3)
    noise = rng.standard_normal((2, 400_000))
    absent = np.logaddexp(*noise)
    noise[0] += 1
    present = np.logaddexp(*noise)
    for threshold in (1.0, 1.5, 2.5):
        false, missed = float((absent > threshold).mean()), float((present <= threshold).mean())
        assert missed >= claim(false) - 6 / math.sqrt(400_000)
        assert missed <= claim(false) + 0.02


def test_some_rounds_of_an_epoch_of_exchanged_records_cost_no_more_than_all() -> None:
    costs = [
        epsilon(Mechanism(Rounds(1.0, count, RandomAllocation(5)), adjacency="replace-one"), 1e-5)
        for count in (1, 2, 3, 5)
    ]
    for fewer, more in itertools.pairwise(costs):
        assert fewer.upper < more.lower
    assert all(one.relative_width < 1e-4 for one in costs)


def test_a_noise_that_hides_all_has_an_answer():
    mechanism = Mechanism(Rounds(1e16, 8, RandomAllocation(4)))
    assert epsilon(mechanism, 1e-5).upper < 1e-9
