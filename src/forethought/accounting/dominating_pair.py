"""Dominating pairs of one round, as two mixtures of shifted Gaussians, and closed bounds.

With R the density of one side over that of N(0, 1), the error bounds of the transform need only
log R, its derivative (the posterior mean of the shift) and a bound on its second derivative (the
posterior variance).

**The Gaussian mechanism in closed form: δ, ε and μ of G_μ = T(N(0, 1), N(μ, 1)).** Sources: Balle
and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 2.13. A run of Gaussian releases with
sensitivities Δ_t and noise σ_t is itself Gaussian with μ² = Σ (Δ_t/σ_t)².

**Bounds without integrals: they are finite and fast for any mechanism.** Upper bounds are the
Gaussian run in which the records are in every batch, and the sum of the rounds' total variation
distances. Lower bounds are the run's Gaussian part, and the gain of an attack that counts rounds
with a large loss.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtrc, log_ndtr

from forethought.accounting.interval import reached
from forethought.values.checks import real

Array = NDArray[np.float64]

EPS = float(np.finfo(float).eps)
_AT_ONCE = 2**21


class Values(NamedTuple):
    """Values of a :class:`Mixture` at points of the line, shape (rows, points), one row per pair.

    Args:
        log: log R.
        mean: posterior mean of the shift, at least 0: the size of (log R)'.
        rounding: bound on the absolute error of ``log``, in units of the rounding unit.
    """

    log: Array
    mean: Array
    rounding: Array


class Mixture:
    """Σ w_k N(± c_k, 1) + idle·N(0, 1), one row for each pair.

    Args:
        shifts: c_k > 0, shape (rows, components).
        weights: w_k ≥ 0, of the same shape.
        idle: weight of N(0, 1), shape (rows,).
        sign: 1 for components right of 0, -1 for those left of it.
        spread: bound on the posterior variance of the shift at every point, shape (rows,).
    """

    def __init__(
        self, shifts: Array, weights: Array, idle: Array, sign: float, spread: Array
    ) -> None:
        self.shifts, self.weights, self.idle = shifts, weights, idle[:, None]
        self.sign, self.spread = sign, spread[:, None]
        self.largest = shifts.max(axis=1, initial=0.0)[:, None]

    @property
    def empty(self) -> bool:
        """True if this side is N(0, 1) alone."""
        return not self.shifts.size

    def rows(self, chosen: NDArray[np.intp]) -> Mixture:
        """The mixture of the ``chosen`` rows."""
        shifts, weights = self.shifts[chosen], self.weights[chosen]
        idle, spread = self.idle[chosen, 0], self.spread[chosen, 0]
        return Mixture(shifts, weights, idle, self.sign, spread)

    def at(self, z: Array) -> Values:
        """Evaluate at ``z``, of shape (points,) for all rows or of shape (rows, points)."""
        z = np.atleast_2d(z)
        rows, components = self.shifts.shape
        if components == 0:
            zero = np.zeros((rows, z.shape[1]))
            return Values(zero, zero, zero)
        if components == 1:
            return self._simple(z)
        chunk = max(1, _AT_ONCE // (rows * components))
        got = [self._many(z[:, i : i + chunk]) for i in range(0, max(1, z.shape[1]), chunk)]
        return Values(*(np.concatenate(x, axis=1) for x in zip(*got, strict=True)))

    def _simple(self, z: Array) -> Values:
        c, w = self.shifts, self.weights
        e = self.sign * c * z - 0.5 * c * c
        rise = np.expm1(np.minimum(e, 30.0))
        excess = w * rise
        near = np.log1p(np.maximum(excess, -0.5))
        density = self.idle + w * (1 + rise)
        deep = excess < -0.5
        log = np.where(deep, np.log(density), near)
        far, rest = e > 30, self.idle / w * np.exp(-e)
        if far.any():
            # log(idle + w e^e) with e large.
            log = np.where(far, np.log(w) + e + np.log1p(rest), log)
        # The error bounds of integrals need the mean with full relative accuracy, however small.
        mean = c / (1 + rest)
        off = np.where(far, 1.0, np.abs(excess) / np.where(far, 1.0, density))
        rounding = 4 * (mean * (np.abs(z) + c) + off + np.abs(log))
        return Values(log, mean, rounding)

    def _many(self, z: Array) -> Values:
        c, w = self.shifts[:, :, None], self.weights[:, :, None]
        e = self.sign * c * z[:, None, :] - 0.5 * c * c
        with np.errstate(divide="ignore"):
            log_w, log_idle = np.log(w), np.log(self.idle)
        top = np.maximum((log_w + e).max(axis=1), log_idle)
        terms = np.exp(log_w + e - top[:, None, :])
        total = terms.sum(axis=1) + np.exp(log_idle - top)
        mean = (c * terms).sum(axis=1) / total
        rise = w * np.expm1(np.minimum(e, 30.0))
        excess, size = rise.sum(axis=1), np.abs(rise).sum(axis=1)
        usable = (e.max(axis=1) < 30) & (np.abs(excess) < 0.5)
        log = np.where(usable, np.log1p(np.where(usable, excess, 0)), top + np.log(total))
        off = np.where(usable, np.minimum(size, 1e300), 2 + np.abs(top) + self.shifts.shape[1])
        off = off * (4 + 0.5 * self.shifts.shape[1]) + np.abs(log)
        return Values(log, mean, 4 * (mean * (np.abs(z) + self.largest) + off))


_LARGEST_SHIFT = 3000.0
_DISCLOSING, _MANY_COMPONENTS = 300.0, 256


@dataclass(frozen=True)
class Pair:
    """Two mixtures of Gaussians that dominate one round of a mechanism.

    Args:
        up: (shift, weight) of the components of P right of 0, shifts > 0 in noise standard
            deviations; the rest of P is N(0, 1).
        down: (distance, weight) of the components of Q left of 0; the rest of Q is N(0, 1).
        symmetric: the profile for α ≥ 1 is this pair's, for α < 1 its mirror image
            H(α) = 1 - α + α H(1/α) (Zhu, Dong, Wang 2022, Theorem 11).
        idle, rest: weight of N(0, 1) in P and in Q; default: 1 minus the other weights, which loses
            digits if the result is small.
        doubt: bound on the relative error of every weight, also of those of N(0, 1).
        lost, lost_rest: bounds on the mass of P and of Q that is in no component.
    """

    up: tuple[tuple[float, float], ...]
    down: tuple[tuple[float, float], ...] = ()
    symmetric: bool = False
    idle: float = -1.0
    rest: float = -1.0
    doubt: float = 0.0
    lost: float = 0.0
    lost_rest: float = 0.0

    def __post_init__(self) -> None:
        for name, part in (("idle", self.up), ("rest", self.down)):
            if getattr(self, name) < 0:
                object.__setattr__(self, name, max(0.0, 1 - math.fsum(w for _, w in part)))

    @property
    def two_sided(self) -> bool:
        """True if both directions of the pair have the same profile."""
        return self.symmetric or self.up == self.down or self.gaussian

    @property
    def gaussian(self) -> bool:
        """True for N(c, 1) against N(0, 1), which composes exactly."""
        return not self.down and len(self.up) == 1 and self.up[0][1] == 1.0

    @property
    def largest(self) -> float:
        """The largest shift on either side."""
        return max(c for c, _ in (*self.up, *self.down))

    @property
    def integrable(self) -> bool:
        """True if integrals are tighter than closed bounds, and fast enough.

        They are not tighter if the noise is very small relative to the shifts. With large shifts a
        single hit discloses nearly everything, and with many components integrals take seconds.
        """
        heavy = self.largest > _DISCLOSING and len(self.up) > _MANY_COMPONENTS
        return self.largest <= _LARGEST_SHIFT and not heavy

    def ratios(self, _fineness: float) -> tuple[Pair, Pair]:
        """The pair itself as lower and upper bound: it needs no bounds in convex order."""
        return self, self

    @property
    def shape(self) -> tuple[int, int, bool]:
        """The numbers of components and the symmetry; pairs that agree are evaluated together."""
        return len(self.up), len(self.down), self.symmetric


# Closed bounds: of the Gaussian mechanism, and of pairs without integrals.


def gaussian_delta(epsilon: ArrayLike, mu: ArrayLike) -> Array:
    """δ of G_μ at ε, on the whole real line: Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).

    Args:
        epsilon, mu: broadcast against each other; mu ≥ 0 (at 0: max(0, 1 − e^ε)).
    """
    return _delta(epsilon, mu, 0.0)


def gaussian_delta_above(epsilon: ArrayLike, mu: ArrayLike) -> Array:
    """An upper bound on :func:`gaussian_delta`, with a bound on its rounding error added."""
    return _delta(epsilon, mu, 1.0)


def gaussian_delta_below(epsilon: ArrayLike, mu: ArrayLike) -> Array:
    """A lower bound on :func:`gaussian_delta`, less a bound on its rounding error."""
    return _delta(epsilon, mu, -1.0)


# Above this distance the closed form loses all digits by cancellation; tail bounds are used then.
_FAR = 1e5
_ROOT_8 = math.sqrt(8)
# Beyond it a tail is below the least double, and its argument's square may overflow.
_FARTHEST = 1e300
# Twice the least double: the rounding of numbers that are hardly above 0.
_LEAST = 1e-323


# Overflow and underflow are bounded where they arise.
@np.errstate(all="ignore")
def _delta(epsilon: ArrayLike, mu: ArrayLike, side: float) -> Array:
    eps, size = np.broadcast_arrays(np.asarray(epsilon, dtype=float), np.asarray(mu, dtype=float))
    shift = np.where(size > 0, size, 1.0)
    middle = np.clip(eps / shift, -_FARTHEST, _FARTHEST)
    a, b = shift / 2 - middle, -shift / 2 - middle
    first, second = log_ndtr(a), log_ndtr(b)
    gap = eps + second - first
    # Each log-tail has an error of a few units in the last place; the rounding of its argument
    # moves it by about the argument's square.
    noise = 16 * EPS * (1 + np.abs(eps) - first - second + a * a + b * b)
    inside = np.exp(first) * (1 + side * noise) * (side * noise - np.expm1(np.minimum(gap, 0)))
    # P(loss > ε) - e^ε Q(loss > ε) = Φ(a) - e^ε Φ(b); the second term is at most φ(a)/|b| by the
    # tail bound Φ(-t) ≤ φ(t)/t, and at most e^ε.
    tail = np.exp(log_ndtr(a + side * 8 * EPS * (shift + np.abs(a)))) * (1 + side * 1e-9)
    taken = np.where(b < -1, np.exp(-0.5 * a * a) / -b, np.exp(np.minimum(eps, 0.0)))
    beyond = tail if side > 0 else tail - taken * (1 + 1e-9)
    value = np.where((shift <= _FAR) & (noise < 0.5), inside, beyond) + side * _LEAST
    still = np.abs(np.expm1(np.minimum(eps, 0.0))) * (1 + 2 * side * EPS)
    # δ(ε) ≥ 1 − e^ε always; cancellation loses this for ε far below zero.
    return np.asarray(np.clip(np.where(size > 0, np.maximum(value, still), still), 0.0, 1.0))


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The smallest ε ≥ 0 at which G_μ is (ε, δ)-DP, rounded up.

    Raises:
        ValueError: δ outside (0, 1) or μ below 0.
    """
    target, size = real("delta", delta, above=0, below=1), real("mu", mu, least=0)
    return gaussian_epsilon_bounds(size, target).upper


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest μ for which G_μ is (ε, δ)-DP, rounded down. ε may be any real number.

    Raises:
        ValueError: δ is outside (0, 1), or at most 1 − e^ε, the δ of μ = 0.
    """
    eps, target = real("epsilon", epsilon), real("delta", delta, above=0, below=1)
    if -math.expm1(min(eps, 0.0)) >= target:
        raise ValueError(f"no mu has delta {target} at epsilon {eps}: mu = 0 already has more")

    def meets(mu: float) -> bool:
        return bool(gaussian_delta_above(eps, mu) <= target)

    return reached(meets, 0.0, 1.0, steps=1200)[0]  # so many reach the least double


class Bounds(NamedTuple):
    """A quantity's lower and upper bound."""

    lower: float
    upper: float


def gaussian_delta_bounds(distance: float, epsilon: float) -> Bounds:
    """δ(ε) of N(distance, 1) against N(0, 1) (Balle and Wang 2018, Theorem 8).

    The ends are the floating-point value moved by a bound on its rounding error.
    """
    if 0 < distance <= _FAR:
        a = distance / 2 - epsilon / distance
        b = -distance / 2 - epsilon / distance
        log_p, log_q = float(log_ndtr(a)), float(log_ndtr(b))
        gap = epsilon + log_q - log_p  # log of the number that is subtracted from 1
        noise = 16 * EPS * (1 + abs(epsilon) + abs(log_p) + abs(log_q) + a * a + b * b)
        if noise < 0.5:
            value, scale = -math.expm1(min(gap, 0.0)), math.exp(log_p)
            return Bounds(
                min(1.0, max(0.0, scale * (1 - noise) * (value - noise) - _LEAST)),
                min(1.0, scale * (1 + noise) * (value + noise) + _LEAST),
            )
    return Bounds(float(_delta(epsilon, distance, -1.0)), float(_delta(epsilon, distance, 1.0)))


def gaussian_epsilon_bounds(distance: float, delta: float) -> Bounds:
    """Bounds on ε of N(distance, 1) against N(0, 1) at δ, also for a very large ε."""
    return inverted(lambda level, end: gaussian_delta_bounds(distance, level)[end], delta)


def inverted(profile: Callable[[float, int], float], delta: float) -> Bounds:
    """Bounds on ε ≥ 0 at ``delta`` by bisection of ``profile``: (ε, 0 or 1) → lower or upper δ."""

    def smallest(end: int) -> tuple[float, float]:
        # The profile decreases in ε, up to rounding.
        if profile(0.0, end) <= delta:
            return 0.0, 0.0
        return reached(lambda at: profile(at, end) > delta, 0.0, 1.0, relative=1e-13, steps=80)

    return Bounds(smallest(0)[0], smallest(1)[1])


def hits_epsilon(pair: Pair, count: int, delta: float) -> float:
    """A lower bound on ε from the event "the noise is at least t in at least k rounds".

    With K ~ Bin(count, w) rounds in which a component at ``shift`` or beyond is drawn, its
    probability under P is at least P(K ≥ k)·Φ(shift - t)^k. Under Q it is at most
    C(count, k) Φ(-t)^k, since no component of Q lies right of 0.
    """
    chosen = pair.up[:: max(1, len(pair.up) // 8)]
    found = []
    for shift, _ in chosen:
        weight = min(1.0, math.fsum(w for c, w in pair.up if c >= shift)) * (1 - 1e-12)
        least = shift / 2 if pair.symmetric else 0.0
        found.append(hits_beyond(shift, weight - pair.doubt, count, delta, least))
    return min(max(found, default=0.0), sys.float_info.max)


def hits_beyond(
    shift: float, weight: float, count: int, delta: float, least: float = 0.0, places: int = 1
) -> float:
    """A lower bound on ε from the event of :func:`hits_epsilon`, for one shift.

    Args:
        weight: a lower bound on a round's probability of a hit.
        least: t is above this.
        places: number of draws of the noise of which one may be at least t, in a round with or
            without a hit: Φ(-t) then counts so many times under Q.
    """
    best = 0.0
    mean, spread = count * weight, math.sqrt(count * max(weight, 0.0))
    steps = (-12, -8, -5, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8)
    wanted = {1, 2, 3, count, *(math.floor(mean + x * spread) for x in steps)}
    for k in sorted(x for x in wanted if 1 <= x <= count):
        if k == 1:
            many = -math.expm1(count * math.log1p(-weight)) * (1 - 1e-9)
        else:
            many = float(bdtrc(k - 1, count, weight)) * (1 - 1e-9)
        if many <= delta:
            continue
        choices = math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        choices = min(choices * (1 + 1e-12) + 1e-9, k * math.log(count))
        for x in (-8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0):
            t = shift - x
            p = many * math.exp(k * float(log_ndtr(x))) * (1 - 1e-9)
            if t > least and p > delta:
                log_q = choices + k * (math.log(places) + log_tail(t))
                best = max(best, math.log(p - delta) - log_q - 1e-9 * (1 + abs(log_q)))
    return best


def log_tail(t: float) -> float:
    """An upper bound on log Φ(-t) for t > 0, without overflow."""
    if t < 1e5:
        return float(log_ndtr(-t)) * (1 - 1e-12)
    return -t * (t / 2)


def disclosed_epsilon(counts: Mapping[Pair, int], delta: float) -> float:
    """An upper bound on ε against an attacker who knows which rounds held the record.

    It is for pairs of one component right of 0, and ∞ for others. With probability at least
    1 − δ/2 at most k rounds are hit, and then the run is Gaussian at √k times the shift.
    """
    if len(counts) != 1:
        return math.inf
    ((pair, count),) = counts.items()
    if pair.down or pair.symmetric or len(pair.up) != 1:
        return math.inf
    shift, weight = pair.up[0]
    # The least number of hits that is exceeded with a probability of at most δ/2.
    most = bisect_left(range(count), True, key=lambda k: _more_than(k, count, weight) <= delta / 2)
    if most == 0:
        return 0.0
    return gaussian_epsilon_bounds(math.sqrt(most) * shift * (1 + 4 * EPS), delta / 2).upper


def _more_than(k: int, count: int, weight: float) -> float:
    """An upper bound on P(Bin(count, weight) > k) by Chernoff."""
    if k >= count:
        return 0.0
    mean = count * weight
    share = (k + 1) / count
    if share <= weight:
        return 1.0
    first = share * math.log(share / weight)
    rest = (1 - share) * math.log((1 - share) / (1 - weight)) if share < 1 else 0.0
    return min(math.exp(-count * (first + rest) * (1 - 1e-9) + 1e-9 * mean / count), 1.0)


def total_variation(pair: Pair) -> float:
    """An upper bound on δ(0) of one round, by joint convexity over its components."""
    same = pair.up == pair.down

    def moved(parts: tuple[tuple[float, float], ...]) -> float:
        # Distance of N(c) and N(-c) if both sides have the same weights, else of N(c) and N(0).
        scale = (2.0 if same else 1.0) / _ROOT_8
        return math.fsum(w * math.erf(min(c * scale, 30.0)) for c, w in parts)

    value = moved(pair.up) + (0.0 if same else moved(pair.down))
    return (value + pair.lost + pair.lost_rest) * (1 + 1e-12 + 2 * pair.doubt)
