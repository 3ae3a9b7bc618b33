"""Privacy profiles: of single rounds on the line, and the whole profile of a composition.

**Of one round.** A pair is P = Σ w_k N(c_k, 1) against Q = Σ v_k N(-d_k, 1) in units of the noise's
standard deviation, with all c_k, d_k ≥ 0, so that the privacy loss log(dP/dQ) increases along the
line and the privacy profile H(α) = sup_T P(T) - α Q(T) is attained by half lines. That of a single
round is read off them, with no integral.

**Of a composition.** Every line bounds δ(ε) at every ε, and is sharp near one of them
(:mod:`forethought.accounting.line_integral`). What is chosen here decides how tight the bounds are,
never whether they hold. The lines are placed once, so the answers do not depend on what is asked
first.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Protocol

import numpy as np
from scipy.special import ndtr

from forethought.accounting.closed_bounds import (
    Bounds,
    gaussian_delta_bounds,
    gaussian_epsilon_bounds,
    inverted,
)
from forethought.accounting.discrete_ratio import DiscreteRatio, varies
from forethought.accounting.dominating_pair import EPS, Array, Pair
from forethought.accounting.line_integral import Charged, Composition, Search

Side = tuple[tuple[float, float], ...]


class HalfLines:
    """One pair in one direction: its profile is attained by half lines and read off them.

    Args:
        swapped: take (Q, P) instead of (P, Q).
    """

    def __init__(self, pair: Pair, *, swapped: bool = False) -> None:
        self.swapped = swapped and not pair.two_sided
        self.up, self.down, self.idle, self.rest = pair.up, pair.down, pair.idle, pair.rest
        # Binomial weights may add up to 1 plus a rounding error.
        sides = (self.up, self.down)
        self.masses = [min(reduce(add, (w for _, w in side), 0.0), 1.0) for side in sides]
        self.reach = max(c for c, _ in (*self.up, *self.down))
        lost = (pair.lost, pair.lost_rest)
        self.lost, self.lost_below = lost[::-1] if self.swapped else lost

    def loss(self, z: Array) -> Array:
        """log(dP/dQ) at ``z``."""
        up = _log_mixture(z, self.up, self.idle, 1.0)
        return up - _log_mixture(z, self.down, self.rest, -1.0)

    def above(self, level: float) -> tuple[float, float]:
        """P and Q of the half line where the loss exceeds ``level`` > 0.

        The half line's end is rounded; both are of the same half line, good to 1e-10 of themselves.
        """
        _, p, _, q = self._masses(self._place(np.array([level])))
        return float(p[0]), float(q[0])

    def profile(self, level: float) -> Bounds:
        """δ at ``level`` ≥ 0, less and plus a bound on rounding."""
        at = np.array([-level if self.swapped else level])
        z = self._place(at)
        p_low, p_high, q_low, q_high = self._masses(z)
        p, q = (q_low[0], p_low[0]) if self.swapped else (p_high[0], q_high[0])
        taken = math.exp(min(level, 700.0)) * float(q)
        value = float(p) - taken
        # Relative errors of the normal distribution function, and of the test's threshold.
        size = float(np.where(np.isfinite(z), np.abs(z), 0)[0] + self.reach)
        slip = math.expm1(min(700.0, 2 * float(self._slips(at, z)[0])))
        noise = (1e-13 + 16 * EPS * (size * size + level) + slip) * (float(p) + taken)
        noise_below = noise + math.exp(min(level, 700.0)) * self.lost_below
        lower = max(0.0, value - noise_below) if level < 700 else 0.0
        return Bounds(lower, min(1.0, max(0.0, value) + noise + self.lost))

    def _slips(self, edges: Array, z: Array) -> Array:
        fine = np.isfinite(z)
        z = np.where(fine, z, 0)
        size = np.minimum(1.0, np.abs(edges) + self.masses[0] + self.masses[1])
        error = 8 * EPS * (1 + (np.abs(z) + self.reach) * self.reach) * size
        if len(self.up) > 1 or self.down:
            error = error + np.where(fine, np.abs(self.loss(z) - edges), 0)
        return np.asarray(error)

    def _masses(self, z: Array) -> tuple[Array, Array, Array, Array]:
        # P below, P above, Q below, Q above the points.
        p_low, p_high = self.idle * ndtr(z), self.idle * ndtr(-z)
        for c, w in self.up:
            p_low, p_high = p_low + w * ndtr(z - c), p_high + w * ndtr(c - z)
        q_low, q_high = self.rest * ndtr(z), self.rest * ndtr(-z)
        for c, w in self.down:
            q_low, q_high = q_low + w * ndtr(z + c), q_high + w * ndtr(-c - z)
        return p_low, p_high, q_low, q_high

    def _place(self, loss: Array) -> Array:
        """Points of the line where the privacy loss takes these values; -∞ where it never does."""
        if len(self.up) > 1 or self.down:
            return self._solve(loss)
        ((shift, rate),) = self.up
        if rate == 1:
            return np.asarray(loss / shift + shift / 2)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            small = np.log(_above_idle(np.minimum(loss, 1), rate) / rate)
            large = loss + np.log1p((rate - 1) * np.exp(-np.maximum(loss, 1))) - np.log(rate)
            z = np.where(loss > 1, large, small)
        return np.asarray(np.where(np.isnan(z), -np.inf, z) / shift + shift / 2)

    def _solve(self, loss: Array) -> Array:
        # Far out the loss is linear in z with the largest shift, or, left of a pair without `down`,
        # within e^-40 of its infimum.
        reach = sum(c for c, _ in self.up + self.down)
        most = 40 + float(np.abs(loss).max())
        right = 40 + reach + most / max(c for c, _ in self.up)
        slopes = [c for c, _ in self.down or self.up]
        left = 40 + reach + most / (max(slopes) if self.down else min(slopes))
        grid = np.linspace(-left, right, 4000)
        table = self.loss(grid)
        rising = np.concatenate([[True], np.diff(np.maximum.accumulate(table)) > 0])
        z = np.interp(loss, table[rising], grid[rising])
        bottom = np.log(self.idle) if not self.down else -np.inf
        inside = (loss > bottom) & (z > grid[0]) & (z < grid[-1])
        most_step = 4 * float(grid[1] - grid[0])
        for _ in range(8):
            with np.errstate(divide="ignore", invalid="ignore"):
                step = (self.loss(z) - loss) / self._slope(z)
            # A bounded Newton step cannot leave a flat stretch for good.
            z = z - np.where(inside & np.isfinite(step), np.clip(step, -most_step, most_step), 0)
        return np.where(loss > bottom, z, -np.inf)

    def _slope(self, z: Array) -> Array:
        slope = np.zeros_like(z)
        for side, idle, sign in ((self.up, self.idle, 1.0), (self.down, self.rest, -1.0)):
            top = _log_mixture(z, side, idle, sign)
            for c, w in side:
                slope = slope + c * w * np.exp(sign * c * z - c * c / 2 - top)
        return slope


def _above_idle(loss: Array, mass: float) -> Array:
    """e^loss - (1 - mass), with a rounding error that is small beside mass and beside e^loss."""
    return np.asarray(np.where(loss < -0.69, np.exp(loss) - (1 - mass), np.expm1(loss) + mass))


def _log_mixture(z: Array, parts: Side, idle: float, sign: float) -> Array:
    """log of a mixture's density over that of N(0, 1), exact to rounding where it is near 0."""
    if not parts:
        return np.zeros_like(z)
    exponents = [sign * c * z - c * c / 2 for c, _ in parts]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        excess = sum(w * np.expm1(e) for e, (_, w) in zip(exponents, parts, strict=True))
        near = np.log1p(np.maximum(excess, -0.9))
        far = np.log(idle)
        for e, (_, w) in zip(exponents, parts, strict=True):
            far = np.logaddexp(far, np.log(w) + e)
        return np.where(np.abs(excess) < 0.5, near, far)


# Down to here the profile is sharp; below it, only certain.
_TAIL = 1e-12
_KNOTS = 25
# Where lines are compared beyond the last knot, in multiples of it.
_BEYOND = np.geomspace(1.05, 12.0, 24)
_MOST_PLACES = 12
# Products of two numbers that all the lines may take.
_WORK = 2e8


class Profile:
    """Bounds on δ(ε), ε ≥ 0, of one direction of a composition.

    Args:
        parts: how often each pair, or law, occurs.
        swapped: compose (Q, P) instead of (P, Q).
        accuracy: wanted relative accuracy of δ where it is above 1e-12.
        exactly: a single round of so few components that its half lines are read off.
        integrable: whether line integrals are worth trying.
    """

    def __init__(
        self,
        parts: Mapping[Pair | DiscreteRatio, int],
        *,
        swapped: bool,
        accuracy: float = 1e-3,
        exactly: bool = False,
        integrable: bool = True,
    ) -> None:
        first = next(iter(parts))
        self._distance, self._single = -1.0, None
        if isinstance(first, Pair) and len(parts) == 1:
            if first.gaussian:
                self._distance = first.up[0][0]
            elif exactly:
                self._single = HalfLines(first, swapped=swapped)
        self._most = min(1.0, math.fsum(n * varies(p) for p, n in parts.items()))
        self._lines: list[Charged] = []
        self._knots = self._lower = np.zeros(1)
        self._upper = np.full(1, self._most)
        if self._distance < 0 and self._single is None and integrable:
            self._place(Composition(parts, swapped=swapped), accuracy)

    def _place(self, total: Composition, accuracy: float) -> None:
        total.work_left = _WORK
        search = Search(total, delta=_TAIL)
        search.refine(max(accuracy, 1e-2))
        if 0 < search.upper < math.inf:
            self._knots = search.upper * np.linspace(0.0, 1.0, _KNOTS)
        knots = self._knots.size
        self._places = np.concatenate([self._knots, self._knots[-1] * _BEYOND])
        known = np.empty((0, self._places.size, 2))
        tried = np.zeros(knots, dtype=bool)
        for _ in range(_MOST_PLACES + 1):
            self._lines += search.lines
            logs = [[(x.lower(e), x.upper(e)) for e in self._places] for x in search.lines]
            known = np.concatenate([known, np.reshape(logs, (-1, self._places.size, 2))])
            if not self._lines:
                break
            # What is sharpest at a place is all that is asked near it.
            self._sharpest = known[:, :, 0].argmax(axis=0), known[:, :, 1].argmin(axis=0)
            # A profile falls: what holds at one knot holds beyond it, or before it.
            lower = [self._mass(x, 0) for x in known[:, :knots, 0].max(axis=0)]
            upper = [self._mass(x, 1) for x in known[:, :knots, 1].min(axis=0)]
            self._lower = np.maximum.accumulate(lower[::-1])[::-1]
            self._upper = np.minimum.accumulate(upper)
            width = np.where(tried, 0.0, (self._upper - self._lower) / self._upper)
            worst = int(np.argmax(width))
            if not width[worst] > accuracy or total.work_left < 0.1 * _WORK:
                break
            tried[worst] = True
            search = Search(total, epsilon=float(self._knots[worst]))
            search.refine(accuracy / 2)

    def _mass(self, log: float, end: int) -> float:
        if end == 0:
            return math.exp(min(log, 0.0)) * (1 - 1e-13) if log > -700 else 0.0
        return min(self._most, math.exp(min(log, 0.0)) * (1 + 1e-13) + sys.float_info.min)

    def bound(self, epsilon: float, end: int) -> float:
        """δ at ``epsilon`` ≥ 0 is at least this (``end`` 0), or at most (1)."""
        if self._distance >= 0:
            return gaussian_delta_bounds(self._distance, epsilon)[end]
        if self._single is not None:
            return self._single.profile(epsilon)[end]
        after = int(np.searchsorted(self._knots, epsilon, side="left"))
        before = int(np.searchsorted(self._knots, epsilon, side="right")) - 1
        logs = []
        if self._lines:
            place = int(np.searchsorted(self._places, epsilon, side="right"))
            near = self._sharpest[end][max(place - 1, 0) : place + 1]
            lines = [self._lines[at] for at in set(near.tolist())]
            logs = [line.upper(epsilon) if end else line.lower(epsilon) for line in lines]
        if end:
            return min(self._mass(min(logs, default=0.0), 1), float(self._upper[before]))
        low = self._mass(max(logs, default=-math.inf), 0)
        return max(low, float(self._lower[after])) if after < self._knots.size else low

    def epsilons(self, delta: float) -> Bounds:
        """Of the smallest ε ≥ 0 at ``delta``; the upper end is ∞ where no line reaches so far."""
        if self._distance >= 0:
            return gaussian_epsilon_bounds(self._distance, delta)
        return inverted(self.bound, delta)


class Bounded(Protocol):
    """Whatever bounds one direction's δ(ε), ε ≥ 0, and its inverse."""

    def bound(self, epsilon: float, end: int) -> float:
        """δ at ``epsilon`` ≥ 0 is at least this (``end`` 0), or at most (1)."""

    def epsilons(self, delta: float) -> Bounds:
        """Of the smallest ε ≥ 0 at ``delta``."""


class Least:
    """The pointwise least of several profiles, each of which bounds the same direction."""

    def __init__(self, profiles: Sequence[Bounded]) -> None:
        self._profiles = profiles

    def bound(self, epsilon: float, end: int) -> float:
        """δ at ``epsilon`` ≥ 0 is at least this (``end`` 0), or at most (1)."""
        return min(profile.bound(epsilon, end) for profile in self._profiles)

    def epsilons(self, delta: float) -> Bounds:
        """Of the smallest ε ≥ 0 at ``delta``: that of the profile which is there first."""
        return Bounds(*map(min, zip(*(p.epsilons(delta) for p in self._profiles), strict=True)))


class Curve:
    """One end of a privacy profile, at every real ε.

    Args:
        ahead: the direction's profile; behind: that of the other direction.
        above: whether this is an upper bound.
    """

    def __init__(self, ahead: Bounded, behind: Bounded, *, above: bool) -> None:
        self._ahead, self._behind, self._above = ahead, behind, above

    def delta(self, epsilon: float) -> float:
        """The bound on δ at ``epsilon``, in [0, 1]."""
        if epsilon >= 0:
            return self._ahead.bound(epsilon, int(self._above))
        # H(α) = 1 - α + α H'(1/α) with the other direction's H'.
        alpha = math.exp(epsilon)
        value = 1 - alpha * (1 - self._behind.bound(-epsilon, int(self._above)))
        slip = 4 * EPS if self._above else -4 * EPS
        return min(1.0, max(0.0, value + slip))

    def deltas(self, epsilons: Array) -> Array:
        """The bounds on δ at each of ``epsilons``, in [0, 1]."""
        return np.array([self.delta(float(x)) for x in np.asarray(epsilons, dtype=float)])

    def epsilon(self, delta: float) -> float:
        """The bound on the smallest ε ≥ 0 that holds at ``delta``; ∞ where none is known."""
        return self._ahead.epsilons(delta)[self._above]
