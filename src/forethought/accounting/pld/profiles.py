"""Dominating pairs of one round: two mixtures of shifted Gaussians on the line.

A pair is P = Σ w_k N(c_k, 1) against Q = Σ v_k N(-d_k, 1) in units of the noise's standard
deviation, with all c_k, d_k ≥ 0, so that the privacy loss log(dP/dQ) increases along the line and
the privacy profile H(α) = sup_T P(T) - α Q(T) is attained by half lines. That of a single round is
read off them, with no integral.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from forethought.accounting.pld.pair import Pair

Array = NDArray[np.float64]

EPS = float(np.finfo(float).eps)


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
        lost = (first.lost, first.lost_rest)
        self.lost, self.lost_below = lost[::-1] if self.swapped else lost

    def loss(self, z: Array) -> Array:
        """log(dP/dQ) at ``z``, shape (rows, points)."""
        up = _log_mixture(z, self.up, self.idle, 1.0)
        return up - _log_mixture(z, self.down, self.rest, -1.0)

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
        noise_below = noise + math.exp(min(level, 700.0)) * self.lost_below
        lower = max(0.0, value - noise_below) if level < 700 else 0.0
        return lower, min(1.0, max(0.0, value) + noise + self.lost)

    def _slips(self, edges: Array, z: Array) -> Array:
        fine = np.isfinite(z)
        z = np.where(fine, z, 0)
        size = np.minimum(1.0, np.abs(edges) + self.up_mass + self.down_mass)
        error = 8 * EPS * (1 + (np.abs(z) + self._reach()) * self._reach()) * size
        if len(self.up) > 1 or self.down:
            error = error + np.where(fine, np.abs(self.loss(z) - edges), 0)
        return np.asarray(error)

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

    def _reach(self) -> Array:
        reach = np.zeros((self.rows, 1))
        for c, _ in self.up + self.down:
            reach = np.maximum(reach, c)
        return reach


def _above_idle(loss: Array, mass: Array) -> Array:
    """e^loss - (1 - mass), with a rounding error that is small beside mass and beside e^loss."""
    return np.asarray(np.where(loss < -0.69, np.exp(loss) - (1 - mass), np.expm1(loss) + mass))


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
