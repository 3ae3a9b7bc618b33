"""Composition: bounds on both sides of a dense quadrature, and planted faults that it catches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr

from forethought.accounting import exact, line_integral, theorems
from forethought.accounting.dominating_pair import Pair
from forethought.accounting.tradeoff import tradeoff
from forethought.values.mechanism import (
    ADJACENCIES,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    WithoutReplacement,
)


def _log_mixture(z, parts, sign):
    idle = max(0.0, 1 - math.fsum(w for _, w in parts))
    terms = [np.full_like(z, math.log(idle) if idle > 0 else -np.inf)]
    terms += [math.log(w) + sign * c * z - c * c / 2 for c, w in parts]
    return np.logaddexp.reduce(terms)


def losses(pair: Pair, *, swapped: bool, points: int = 100_000):
    """Losses of one round and their log masses, by the midpoint rule."""
    right = max(c for c, _ in pair.up) + 13
    left = max((c for c, _ in pair.down), default=0.0) + 13
    start = pair.up[0][0] / 2 if pair.symmetric else -left
    h = (right - start) / points
    z = start + h * (np.arange(points) + 0.5)
    base = -z * z / 2 - 0.5 * math.log(2 * math.pi) + math.log(h)
    up, down = _log_mixture(z, pair.up, 1), _log_mixture(z, pair.down, -1)
    loss = up - down
    if pair.symmetric:
        atom = math.log(1 - np.exp(base + up).sum() - np.exp(base).sum())
        return np.r_[loss, -loss, 0.0], np.r_[base + up, base, atom]
    return (-loss, base + down) if swapped else (loss, base + up)


def dense_delta(parts, level: float, *, swapped: bool, size: int = 2**18) -> tuple[float, float]:
    """δ of a composition by FFT of masses split between grid points, and its relative error."""

    def at(cells: int) -> float:
        rounds = [(*losses(p, swapped=swapped), n) for p, n in parts.items()]
        low = high = 0.0
        for loss, log_mass, n in rounds:
            mass = np.exp(log_mass)
            mean = mass @ loss
            far = 9 * math.sqrt(n * (mass @ (loss - mean) ** 2))
            heavy = loss[np.exp(log_mass) > 1e-16]
            low += n * mean - far + min(0.0, heavy.min())
            high += n * mean + far + max(0.0, heavy.max())
        step = (max(high, level) - low) / (cells - 16)
        spectrum = np.ones(cells // 2 + 1, dtype=complex)
        for loss, log_mass, n in rounds:
            place = np.floor(loss / step)
            share, place = loss / step - place, place.astype(np.int64)
            mass = np.exp(log_mass)
            line = np.bincount(place % cells, mass * (1 - share), cells)
            line += np.bincount((place + 1) % cells, mass * share, cells)
            spectrum *= np.fft.rfft(line) ** n
        start = math.floor(low / step)
        density = np.roll(np.fft.irfft(spectrum, cells), -(start % cells))
        loss = (start + np.arange(cells)) * step
        return float((density * np.maximum(0.0, -np.expm1(level - loss))).sum())

    coarse, fine = at(size // 4), at(size)
    return fine, abs(coarse - fine) / fine + 1e-6


def encloses(mechanism: Mechanism, level: float, group: int = 1) -> bool:
    got = exact.delta(mechanism, level, group)
    parts = theorems.parts(mechanism, group)
    both = all(p.two_sided for p in parts)
    found = [dense_delta(parts, level, swapped=s) for s in ((False,) if both else (False, True))]
    truth, error = max(found)
    # The oracle is not tilted: good to 1e-13 absolutely.
    return got.lower <= truth * (1 + error) + 1e-13 and truth * (1 - error) - 1e-13 <= got.upper


def _cases(seed: int, count: int):
    rng = np.random.default_rng(seed)

    def log_uniform(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    for _ in range(count):
        rounds = []
        for _ in range(int(rng.integers(1, 3))):
            rate, sigma, n = log_uniform(3e-3, 1), log_uniform(0.6, 10), int(log_uniform(2, 300))
            sampling = Poisson(rate)
            if rng.random() < 0.3:
                sampling = WithoutReplacement(max(1, int(1000 * rate)), 1000)
            rounds.append(Rounds(sigma, n, sampling, str(rng.choice(["example", "group"]))))
        adjacency = ADJACENCIES[int(rng.integers(3))]
        yield Mechanism(*rounds, adjacency=adjacency), log_uniform(0.01, 3), int(rng.integers(1, 3))


@pytest.mark.parametrize(("seed", "count"), [(1, 6), pytest.param(2, 40, marks=pytest.mark.slow)])
def test_random_compositions_lie_in_their_intervals(seed, count):
    for mechanism, level, group in _cases(seed, count):
        if not all(isinstance(pair, Pair) for pair in theorems.parts(mechanism, group)):
            continue  # laws: the fuzz has an oracle for them
        assert encloses(mechanism, level, group), (mechanism, level, group)


@pytest.mark.thinned
@pytest.mark.parametrize("rounds", [2, 3])
@pytest.mark.parametrize(
    ("part", "adjacency"),
    [
        (Rounds(1.0, 2, Poisson(0.1)), "add-or-remove"),
        (Rounds(1.0, 2, Poisson(0.1)), "replace-one"),
        (Rounds(2.0, 2, WithoutReplacement(10, 100)), "replace-one"),
    ],
    ids=["one-sided", "two-sided", "combined"],
)
def test_two_and_three_rounds_lie_in_their_intervals(part, adjacency, rounds):
    some = Rounds(part.noise_multiplier, rounds, part.sampling)
    for level in (0.0, 0.1, 0.7):
        assert encloses(Mechanism(some, adjacency=adjacency), level)


def test_a_window_that_misses_the_answer_claims_nothing():
    got = exact.epsilon(Mechanism(Rounds(16.0, 833, Poisson(0.297))), 1e-6, 2)
    assert got.lower <= 5.311 <= got.upper
    assert got.relative_width <= 1e-3


def test_few_rounds_with_large_losses_among_many_with_small_ones():
    some = Rounds(1.0487971953841666, 3, Poisson(0.193006038003512))
    mechanism = Mechanism(some, Rounds(13.3686, 50, Poisson(3.2908e-4)))
    got = exact.delta(mechanism, 0.01115)
    alone = exact.delta(Mechanism(some), 0.01115)
    # A lower end of 1 was once clamped to the upper end.
    assert alone.lower <= got.upper <= alone.upper + 1e-3
    assert got.upper - got.lower > 0
    assert encloses(mechanism, 0.01115)


def test_windows_longer_than_the_range_of_exponentials():
    mechanism = Mechanism(Rounds(0.8, 40_000, Poisson(0.3)))
    # ε is in the thousands, so δ is 1 here; sums of e^-loss once underflowed to 0.
    assert exact.delta(mechanism, 0.02).upper > 0.999
    assert encloses(Mechanism(Rounds(0.8, 4000, Poisson(0.3))), 300.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "wanted"),
    [
        (Rounds(0.3, 50, Poisson(1e-8)), 1e-10),
        (Rounds(0.3, 5, Poisson(1e-11)), 1e-12),
        (Rounds(0.2, 10**6, Poisson(1e-8)), 1e-5),
        (Rounds(13.5, 2, WithoutReplacement(76, 26_192)), 0.28),
    ],
    ids=str,
)
def test_rare_records_get_valid_bounds(rounds, wanted):
    got = exact.enclose(Mechanism(rounds), 1, 1e-3, exact.Asked(wanted))
    assert 0 <= got.lower <= got.upper < 10


def test_delta_at_zero_needs_no_fine_grid():
    for at in (0.0, 1e-6, 1e-3):
        got = exact.delta(Mechanism(Rounds(1.1, 1400, Poisson(0.004))), at)
        assert got.relative_width <= 1e-3


CURVES = {
    "one-sided": (Mechanism(Rounds(1.0, 40, Poisson(0.05))), 1),
    "two-sided": (Mechanism(Rounds(1.0, 20, Poisson(0.1)), adjacency="replace-one"), 1),
    "combined": (
        Mechanism(Rounds(2.0, 9, WithoutReplacement(10, 100)), adjacency="replace-one"),
        1,
    ),
    "near 1": (Mechanism(Rounds(0.8, 300, Poisson(0.2))), 1),
    "group": (Mechanism(Rounds(2.0, 30, Poisson(0.05))), 3),
    "two kinds": (Mechanism(Rounds(1.0, 3, Poisson(0.2)), Rounds(8.0, 50, Poisson(0.01))), 1),
}


def curves_miss(mechanism: Mechanism, group: int = 1) -> bool:
    """Whether a curve lies on the wrong side of the oracle anywhere, negative ε included."""
    counts = theorems.parts(mechanism, group)
    curves = exact.privacy_loss(mechanism, group)
    reach = curves[0][1].epsilon(1e-8)
    for swapped, (below, above) in enumerate(curves):
        for level in reach * np.array([-0.5, -0.1, 0.0, 0.03, 0.2, 0.5, 0.8, 1.0]):
            truth, error = dense_delta(counts, float(level), swapped=bool(swapped))
            slack = truth * error + 1e-12
            if not below.delta(level) - slack <= truth <= above.delta(level) + slack:
                return True
    return False


@pytest.mark.thinned
@pytest.mark.parametrize("name", CURVES)
def test_curves_hold_at_every_real_epsilon(name):
    assert not curves_miss(*CURVES[name])


@pytest.mark.thinned
@pytest.mark.parametrize("name", CURVES)
def test_curves_are_sharp_and_fall(name):
    mechanism, group = CURVES[name]
    for below, above in exact.privacy_loss(mechanism, group):
        levels = above.epsilon(1e-10) * np.linspace(0, 1, 57)
        low, high = below.deltas(levels), above.deltas(levels)
        assert (low <= high).all() and (np.diff(high) <= 1e-15).all()
        assert (high - low <= 2e-2 * high).all()
        assert below.epsilon(1e-6) <= above.epsilon(1e-6) <= below.epsilon(1e-6) * 1.005


def test_what_was_asked_first_leaves_no_trace():
    mechanism, _ = CURVES["one-sided"]
    (_, first), _ = exact.privacy_loss(mechanism)
    (_, second), _ = exact.privacy_loss(mechanism)
    one = [first.delta(x) for x in (0.1, 2.0, -0.4)]
    assert [second.delta(x) for x in (-0.4, 2.0, 0.1)] == one[::-1]


def test_noise_too_small_for_integrals_leaves_certain_curves():
    for below, above in exact.privacy_loss(Mechanism(Rounds(1e-9, 30, Poisson(0.01)))):
        assert below.delta(1.0) <= 0.2604 <= above.delta(1.0)  # 1 - 0.99^30: a hit is seen
        # No line reaches so far; the Gaussian of a record that is in every batch does.
        assert below.epsilon(1e-5) < 1e18 < above.epsilon(1e-5) < math.inf


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "adjacency", "group"),
    [
        # Half lines prove less than the disclosed count; the reverse; a chain of single changes.
        (Rounds(1.9, 472, WithoutReplacement(2, 20_000)), "zero-out", 5),
        (Rounds(4.0, 100, WithoutReplacement(100, 1000)), "zero-out", 4),
        (Rounds(4.0, 40, RandomAllocation(10)), "add-or-remove", 4),
        (Rounds(4.0, 40, RandomAllocation(10)), "replace-one", 1),
    ],
)
def test_curves_are_of_the_least_that_any_theorem_proves(rounds, adjacency, group):
    mechanism = Mechanism(rounds, adjacency=adjacency)
    curves = exact.privacy_loss(mechanism, group)
    for level in (1e-4, 1e-6):
        least = exact.epsilon(mechanism, level, group)
        assert max(above.epsilon(level) for _, above in curves) <= least.upper * 1.01
        assert max(below.epsilon(level) for below, _ in curves) <= least.upper
    assert tradeoff(mechanism, group).epsilon(1e-6) <= least.upper * 1.05


def test_negative_losses_of_the_same_direction_are_caught(monkeypatch):
    curve = line_integral.Curve.__init__

    def same(self, ahead, behind, *, above):
        curve(self, ahead, ahead, above=above)

    monkeypatch.setattr(line_integral.Curve, "__init__", same)
    assert curves_miss(*CURVES["two kinds"])


@pytest.mark.parametrize("end", ["lower", "upper"])
def test_a_transform_one_percent_off_is_caught(monkeypatch, end):
    bound = getattr(line_integral.Charged, end)
    factor = 1.01 if end == "upper" else 0.99

    def stretched(self, epsilon):
        return bound(self, factor * epsilon)

    monkeypatch.setattr(line_integral.Charged, end, stretched)
    assert curves_miss(*CURVES["one-sided"])


def test_bounds_carried_to_the_wrong_side_are_caught(monkeypatch):
    bound = line_integral.Profile.bound

    def wrong(self, epsilon, end):
        found = bound(self, epsilon, end)
        after = int(np.searchsorted(self._knots, epsilon, side="left"))
        return min(found, float(self._upper[min(after, self._knots.size - 1)])) if end else found

    monkeypatch.setattr(line_integral.Profile, "bound", wrong)
    assert curves_miss(*CURVES["one-sided"])


def test_absence_against_presence_is_resolved_near_its_largest_loss() -> None:
    """Two rounds of little noise: the loss ends at −2 log(1 − rate) = 0.713."""
    rate, a, level = 0.3, 1 / 0.4, 0.5
    low, high = exact.privacy_loss(Mechanism(Rounds(0.4, 2, Poisson(rate))))[1]

    def given_the_first(z: float) -> float:
        """E (1 − e^level w W)+ over the second ratio W, where the first is w."""
        taken = math.exp(level) * (1 - rate + rate * math.exp(a * z - a * a / 2))
        if 1 / taken <= 1 - rate:
            return 0.0
        edge = math.log((1 / taken - (1 - rate)) / rate) / a + a / 2
        below, shifted = float(ndtr(edge)), float(ndtr(edge - a))
        bell = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        return (below - taken * ((1 - rate) * below + rate * shifted)) * bell

    last = math.log((math.exp(-level) / (1 - rate) - (1 - rate)) / rate) / a + a / 2
    wanted = quad(given_the_first, -12, last, epsabs=1e-12, limit=200)[0]
    assert low.delta(level) <= wanted * (1 + 1e-7) and wanted * (1 - 1e-7) <= high.delta(level)
    assert high.delta(level) - low.delta(level) < 2e-3 * wanted
