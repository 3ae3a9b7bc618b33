"""Dominating pairs of one round: two mixtures of shifted Gaussians on the line.

A pair is P = Σ w_k N(c_k, 1) against Q = Σ v_k N(-d_k, 1) in units of the noise's standard
deviation, with all c_k, d_k ≥ 0, so that the privacy loss log(dP/dQ) increases along the line and
the privacy profile H(α) = sup_T P(T) - α Q(T) is attained by half lines. The engine needs no more
of a pair than the Bregman gaps of H between neighbouring points of a grid, which are integrals of
positive functions: nothing cancels, however small the rate or large the noise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from forethought.accounting.pld.pair import Pair

Array = NDArray[np.float64]

EPS = float(np.finfo(float).eps)
_NODES, _WEIGHTS = (np.asarray(x) for x in np.polynomial.legendre.leggauss(5))
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2
# Beyond this product of cell width and logarithmic slope the closed form loses less than the
# quadrature does.
_NARROW = 0.6
_LOG_NORMAL = 0.5 * float(np.log(2 * np.pi))


class Sample(NamedTuple):
    """Privacy losses with log-probabilities, rows by pair: for choosing grids, not for bounds."""

    loss: Array
    log_mass: Array


class Gaps(NamedTuple):
    """Bregman gaps of a profile in each cell [l, r] of a grid, rows by pair.

    ``low`` = P - e^l Q and ``high`` = e^r Q - P on the cell; ``error`` bounds the relative error of
    both.
    """

    low: Array
    high: Array
    error: Array


class Stack:
    """Pairs of one shape, evaluated together in one direction.

    Args:
        pairs: at least one, all of the same shape.
        swapped: take (Q, P) instead of (P, Q).
    """

    def __init__(self, pairs: list[Pair], *, swapped: bool = False) -> None:
        first = pairs[0]
        self.symmetric = first.symmetric
        self.swapped = swapped and not first.two_sided
        self.up = [
            (np.array([[p.up[k][0]] for p in pairs]), np.array([[p.up[k][1]] for p in pairs]))
            for k in range(len(first.up))
        ]
        self.down = [
            (np.array([[p.down[k][0]] for p in pairs]), np.array([[p.down[k][1]] for p in pairs]))
            for k in range(len(first.down))
        ]
        self.rows = len(pairs)
        zero = np.zeros((self.rows, 1))
        # Binomial weights may add up to 1 plus a rounding error.
        self.up_mass = np.minimum(sum((w for _, w in self.up), zero), 1.0)
        self.down_mass = np.minimum(sum((w for _, w in self.down), zero), 1.0)
        self.idle = np.array([[p.idle] for p in pairs])
        self.rest = np.array([[p.rest] for p in pairs])
        self.doubt = np.array([p.doubt for p in pairs])
        self.lost = np.array([p.lost_rest if self.swapped else p.lost for p in pairs])

    def loss(self, z: Array) -> Array:
        """log(dP/dQ) at ``z``, shape (rows, points)."""
        up = _log_mixture(z, self.up, self.idle, 1.0)
        return up - _log_mixture(z, self.down, self.rest, -1.0)

    def sample(self) -> Sample:
        """Quadrature of the loss under P, good far into the tails but not certified."""
        right = max((float(c.max()) for c, _ in self.up), default=0.0)
        left = max((float(c.max()) for c, _ in self.down), default=0.0)
        if self.symmetric:
            return self._symmetric_sample(right + 14)
        z = np.linspace(-left - 14, right + 14, int((left + right + 28) * 8))[None, :]
        loss = self.loss(z)
        base = -0.5 * z * z - _LOG_NORMAL + np.log(z[0, 1] - z[0, 0])
        log_p = base + _log_mixture(z, self.up, self.idle, 1.0)
        log_q = base + _log_mixture(z, self.down, self.rest, -1.0)
        return Sample(-loss, log_q) if self.swapped else Sample(loss, log_p)

    def _symmetric_sample(self, end: float) -> Sample:
        # The density jumps at loss 0, so the quadrature starts there.
        nodes, weights = np.polynomial.legendre.leggauss(160)
        start = self.up[0][0] / 2
        z = start + (end - start) * (nodes + 1) / 2
        loss = self.loss(z)
        base = -0.5 * z * z - _LOG_NORMAL + np.log(weights * (end - start) / 2)
        log_p = base + _log_mixture(z, self.up, self.idle, 1.0)
        middle = self._atom()
        with np.errstate(divide="ignore"):
            return Sample(
                np.concatenate([loss, -loss, np.zeros_like(middle)], axis=1),
                np.concatenate([log_p, base, np.log(middle)], axis=1),
            )

    def gaps(self, edges: Array) -> Gaps:
        """Bregman gaps between neighbouring ``edges`` (increasing losses, one row for all)."""
        if self.symmetric:
            # The grid holds 0: cells on the left are the mirror images of cells on the right.
            right = self._gaps(edges[edges >= 0])
            left = _mirrored(self._gaps(-edges[edges <= 0][::-1]), edges[edges <= 0])
            return Gaps(*(np.concatenate(pair, axis=1) for pair in zip(left, right, strict=True)))
        if self.swapped:
            return _mirrored(self._gaps(-edges[::-1]), edges)
        return self._gaps(edges)

    def atom(self) -> Array:
        """Mass of the loss at exactly 0, one per row."""
        return self._atom()[:, 0] if self.symmetric else np.zeros(self.rows)

    def tails(self, low: float, high: float) -> tuple[Array, Array]:
        """Upper bounds on P(loss < low) and P(loss > high), one per row."""
        if self.symmetric or self.swapped:
            below = self._masses(self._beyond(-low, -1))[3]
        else:
            below = self._masses(self._beyond(low, 1))[0]
        if self.swapped:
            above = self._masses(self._beyond(-high, 1))[2]
        else:
            above = self._masses(self._beyond(high, -1))[1]
        return below * (1 + 1e-9), above * (1 + 1e-9)

    def _beyond(self, loss: float, side: int) -> Array:
        # A point whose loss is certainly at least (side 1) or at most (side -1) this one.
        z = self._place(np.array([loss]))
        if len(self.up) == 1 and not self.down:
            return z  # placed by a formula, to rounding
        push = 1e-12
        for _ in range(64):
            wrong = np.isfinite(z) & (side * (self.loss(z) - loss) < 0)
            if not wrong.any():
                return z
            z = np.where(wrong, z + side * push, z)
            push *= 2
        return np.full_like(z, side * np.inf)  # counts everything

    def above(self, level: float) -> tuple[float, float]:
        """P and Q of the first pair's half line where the loss exceeds ``level`` > 0.

        The half line's end is rounded; both are of the same half line, good to 1e-10 of themselves.
        """
        _, p, _, q = self._masses(self._place(np.array([level])))
        return float(p[0]), float(q[0])

    def direct(self, level: float) -> tuple[float, float]:
        """The first pair's profile at ``level`` ≥ 0, less and plus a bound on rounding."""
        at = np.array([-level if self.swapped else level])
        z = self._place(at)
        p_low, p_high, q_low, q_high = self._masses(z)
        p, q = (q_low[0], p_low[0]) if self.swapped else (p_high[0], q_high[0])
        taken = math.exp(min(level, 700.0)) * float(q)
        value = float(p) - taken
        # Relative errors of the normal distribution function, and of the test's threshold.
        size = float(np.where(np.isfinite(z), np.abs(z), 0)[0, 0] + self._reach()[0, 0])
        slip = math.expm1(min(700.0, 2 * float(self._slips(at, z)[0, 0])))
        noise = (1e-13 + 16 * EPS * (size * size + level) + slip) * (float(p) + taken)
        lower = max(0.0, value - noise) if level < 700 else 0.0
        return lower, min(1.0, max(0.0, value) + noise)

    def shift_error(self, edges: Array) -> Array:
        """How far each edge may be off the loss it stands for, through rounding; rows by pair."""
        if self.symmetric:
            right = self._shift_error(edges[edges >= 0])
            left = self._shift_error(-edges[edges <= 0][::-1])[:, ::-1]
            return np.asarray(np.concatenate([left[:, :-1], right], axis=1))
        if self.swapped:
            return np.asarray(self._shift_error(-edges[::-1])[:, ::-1])
        return self._shift_error(edges)

    def _shift_error(self, edges: Array) -> Array:
        return self._slips(edges, self._place(edges))

    def _slips(self, edges: Array, z: Array) -> Array:
        fine = np.isfinite(z)
        z = np.where(fine, z, 0)
        size = np.minimum(1.0, np.abs(edges) + self.up_mass + self.down_mass)
        error = 8 * EPS * (1 + (np.abs(z) + self._reach()) * self._reach()) * size
        if len(self.up) > 1 or self.down:
            error = error + np.where(fine, np.abs(self.loss(z) - edges), 0)
        return np.asarray(error)

    def _atom(self) -> Array:
        shift, rate = self.up[0]
        tail = ndtr(-shift / 2)
        return np.asarray(np.maximum(1 - (1 - rate) * tail - rate * ndtr(shift / 2) - tail, 0))

    def _masses(self, z: Array) -> tuple[Array, Array, Array, Array]:
        # P below, P above, Q below, Q above the points, one per row.
        p_low, p_high = self.idle * ndtr(z), self.idle * ndtr(-z)
        for c, w in self.up:
            p_low, p_high = p_low + w * ndtr(z - c), p_high + w * ndtr(c - z)
        q_low, q_high = self.rest * ndtr(z), self.rest * ndtr(-z)
        for c, w in self.down:
            q_low, q_high = q_low + w * ndtr(z + c), q_high + w * ndtr(-c - z)
        return p_low[:, 0], p_high[:, 0], q_low[:, 0], q_high[:, 0]

    def _place(self, loss: Array) -> Array:
        """Points of the line where the privacy loss takes these values; -∞ where it never does."""
        if len(self.up) == 1 and not self.down:
            shift, rate = self.up[0]
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                small = np.log(_above_idle(np.minimum(loss, 1), rate) / rate)
                large = loss + np.log1p((rate - 1) * np.exp(-np.maximum(loss, 1))) - np.log(rate)
                z = np.where(loss > 1, large, small)
            z = np.where(rate == 1, loss, np.where(np.isnan(z), -np.inf, z))
            return np.asarray(z / shift + shift / 2)
        return self._solve(loss)

    def _solve(self, loss: Array) -> Array:
        # Far out the loss is linear in z with the largest shift, or, left of a pair without `down`,
        # within e^-40 of its infimum.
        reach = sum(float(c.max()) for c, _ in self.up + self.down)
        most = 40 + float(np.abs(loss).max())
        right = 40 + reach + most / max(float(c.min()) for c, _ in self.up)
        slopes = [float(c.min()) for c, _ in self.down or self.up]
        left = 40 + reach + most / (max(slopes) if self.down else min(slopes))
        grid = np.linspace(-left, right, 4000)
        table = self.loss(grid[None, :])
        z = np.empty((self.rows, loss.size))
        for row in range(self.rows):
            z[row] = np.interp(loss, *_increasing(table[row], grid))
        bottom = np.log(self.idle) if not self.down else -np.inf
        inside = (loss > bottom) & (z > grid[0]) & (z < grid[-1])
        most_step = 4 * float(grid[1] - grid[0])
        for _ in range(8):
            slope = self._slope(z)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = (self.loss(z) - loss) / slope
            # A bounded Newton step cannot leave a flat stretch for good.
            z = z - np.where(inside & np.isfinite(step), np.clip(step, -most_step, most_step), 0)
        return np.where(loss > bottom, z, -np.inf)

    def _slope(self, z: Array) -> Array:
        top = _log_mixture(z, self.up, self.idle, 1.0)
        slope = sum((c * w * np.exp(c * z - c * c / 2 - top) for c, w in self.up), np.zeros_like(z))
        if self.down:
            low = _log_mixture(z, self.down, self.rest, -1.0)
            for c, w in self.down:
                slope = slope + c * w * np.exp(-c * z - c * c / 2 - low)
        return np.asarray(slope)

    def _gaps(self, edges: Array) -> Gaps:
        z = self._place(edges)
        a, b = z[:, :-1], z[:, 1:]
        with np.errstate(invalid="ignore"):
            width = b - a
            slope = (np.abs(a) + self._reach() + 4) * width
        narrow = slope <= _NARROW
        low, high = np.zeros_like(a), np.zeros_like(a)
        error = np.zeros_like(a)
        left = np.broadcast_to(edges[:-1], a.shape)
        right = np.broadcast_to(edges[1:], a.shape)
        wide = ~narrow & (b > -np.inf)
        if narrow.all():
            low, high, error = self._quadrature(a, width, left, right, slope, None)
        else:
            for mask, integrate in ((narrow, True), (wide, False)):
                rows, columns = np.nonzero(mask)
                if not rows.size:
                    continue
                at = (rows, columns)
                if integrate:
                    got = self._quadrature(a[at], width[at], left[at], right[at], slope[at], rows)
                else:
                    got = self._closed(a[at], b[at], left[at], right[at], rows)
                low[at], high[at], error[at] = got
        return Gaps(low, high, error)

    def _reach(self) -> Array:
        reach = np.zeros((self.rows, 1))
        for c, _ in self.up + self.down:
            reach = np.maximum(reach, c)
        return reach

    def _quadrature(
        self,
        a: Array,
        width: Array,
        left: Array,
        right: Array,
        slope: Array,
        rows: NDArray[np.intp] | None,
    ) -> tuple[Array, Array, Array]:
        def pick(x: Array) -> Array:
            return x if rows is None else x[rows, 0]

        y = [width * node for node in _NODES]
        bell = [w * np.exp(-yi * (a + 0.5 * yi)) for w, yi in zip(_WEIGHTS, y, strict=True)]
        low, high = np.zeros_like(a), np.zeros_like(a)
        for c, w in self.up:
            shift = pick(c)
            rise = [np.expm1(shift * yi) for yi in y]
            scale = pick(w) * np.exp(-0.5 * (a - shift) ** 2 - _LOG_NORMAL) * width
            low += scale * _dot(bell, rise)
            high += scale * _dot(
                bell, [(1 + up) * back for up, back in zip(rise, rise[::-1], strict=True)]
            )
        for c, w in self.down:
            shift = pick(c)
            fall = [-np.expm1(-shift * yi) for yi in y]
            log_scale = -0.5 * (a + shift) ** 2 - _LOG_NORMAL
            scale = pick(w) * width
            low += scale * np.exp(log_scale + left) * _dot(bell, fall)
            high += (
                scale
                * np.exp(log_scale + right)
                * _dot(
                    bell, [(1 - down) * back for down, back in zip(fall, fall[::-1], strict=True)]
                )
            )
        # Five-point Gauss-Legendre: the remainder is the tenth derivative times 4e-13 width^11.
        error = 32 * EPS * (2 + np.abs(a)) ** 2 + 2e-11 * slope**9
        return low, high, error

    def _closed(
        self, a: Array, b: Array, left: Array, right: Array, rows: NDArray[np.intp]
    ) -> tuple[Array, Array, Array]:
        here, here_scale = _log_interval(a, b)
        low, high = np.zeros_like(a), np.zeros_like(a)
        noise_low, noise_high = np.zeros_like(a), np.zeros_like(a)
        finite_a = np.where(np.isfinite(a), a, 0)
        bounded = np.isfinite(a)
        for terms, sign in ((self.up, 1.0), (self.down, -1.0)):
            for c, w in terms:
                shift, weight = c[rows, 0] * sign, w[rows, 0]
                there, there_scale = _log_interval(a - shift, b - shift)
                at_a = np.where(bounded, shift * finite_a - shift**2 / 2, -np.inf)
                at_b = shift * b - shift**2 / 2
                start = np.zeros_like(a) if sign > 0 else left
                stop = np.zeros_like(a) if sign > 0 else right
                p_a, q_a = np.exp(start + there), np.exp(start + at_a + here)
                p_b, q_b = np.exp(stop + there), np.exp(stop + at_b + here)
                low += sign * weight * (p_a - q_a)
                high += sign * weight * (q_b - p_b)
                noise_low += weight * np.exp(start + np.maximum(there_scale, at_a + here_scale))
                noise_high += weight * np.exp(stop + np.maximum(there_scale, at_b + here_scale))
        if not self.down:
            # The cell in which the losses begin: its left edge lies below all of them.
            mass = self.up_mass[rows, 0]
            gap = np.maximum(-_above_idle(left, mass), 0)
            below = np.where(bounded, 0, np.exp(here))
            low += gap * below
            noise_low += np.minimum(mass, 1 - mass + np.exp(left)) * below
        unit = 32 * EPS * (2 + np.abs(finite_a) + np.abs(b) + self._reach()[rows, 0]) ** 2
        low, high = np.maximum(low, 0), np.maximum(high, 0)
        low, high = low + unit * noise_low, high + unit * noise_high
        with np.errstate(divide="ignore", invalid="ignore"):
            error = unit + 2 * unit * np.maximum(noise_low / low, noise_high / high)
        return low, high, np.where(np.isfinite(error), np.minimum(error, 1.0), 0.0)


def _above_idle(loss: Array, mass: Array) -> Array:
    """e^loss - (1 - mass), with a rounding error that is small beside mass and beside e^loss."""
    return np.asarray(np.where(loss < -0.69, np.exp(loss) - (1 - mass), np.expm1(loss) + mass))


def _mirrored(forward: Gaps, edges: Array) -> Gaps:
    """Gaps of (Q, P) on ``edges`` from those of (P, Q) on the negated edges."""
    return Gaps(
        forward.high[:, ::-1] * np.exp(edges[:-1]),
        forward.low[:, ::-1] * np.exp(edges[1:]),
        forward.error[:, ::-1],
    )


def _dot(one: list[Array], other: list[Array]) -> Array:
    total = one[0] * other[0]
    for x, y in zip(one[1:], other[1:], strict=True):
        total += x * y
    return total


def _increasing(x: Array, y: Array) -> tuple[Array, Array]:
    keep = np.concatenate([[True], np.diff(np.maximum.accumulate(x)) > 0])
    return x[keep], y[keep]


def _log_mixture(z: Array, parts: list[tuple[Array, Array]], idle: Array, sign: float) -> Array:
    """log of a mixture's density over that of N(0, 1), exact to rounding where it is near 0."""
    if not parts:
        return np.zeros(np.broadcast_shapes(z.shape, idle.shape))
    exponents = [sign * c * z - c * c / 2 for c, _ in parts]
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        excess = sum(w * np.expm1(e) for e, (_, w) in zip(exponents, parts, strict=True))
        near = np.log1p(np.maximum(excess, -0.9))
        far = np.log(idle)
        for e, (_, w) in zip(exponents, parts, strict=True):
            far = np.logaddexp(far, np.log(w) + e)
        return np.where(np.abs(excess) < 0.5, near, far)


def _log_interval(a: Array, b: Array) -> tuple[Array, Array]:
    """log(Φ(b) - Φ(a)) and the log of the larger of the two tails it came from."""
    flip = a + b > 0
    left, right = np.where(flip, -b, a), np.where(flip, -a, b)
    low, high = log_ndtr(left), log_ndtr(right)
    with np.errstate(divide="ignore", invalid="ignore"):
        return high + np.log(-np.expm1(np.minimum(low - high, 0))), high
