"""A dominating pair of one round: two mixtures of shifted Gaussians on the line.

With R the density of one side over that of N(0, 1), everything the transform's certificate needs is
log R, its derivative (the posterior mean of the shift) and a bound on its second derivative (the
posterior variance).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EPS = float(np.finfo(float).eps)
_AT_ONCE = 2**21


class Values(NamedTuple):
    """At points of the line, rows by pair.

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
        shifts: c_k > 0, shape (rows, components); weights: w_k ≥ 0, of the same shape.
        idle: what is left at 0, shape (rows,).
        sign: 1 right of 0, -1 left of it.
        spread: bound on the posterior variance of the shift anywhere, shape (rows,).
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
        """Some of the rows."""
        shifts, weights = self.shifts[chosen], self.weights[chosen]
        idle, spread = self.idle[chosen, 0], self.spread[chosen, 0]
        return Mixture(shifts, weights, idle, self.sign, spread)

    def at(self, z: Array) -> Values:
        """Evaluate at ``z``, shape (points,) for all rows alike or (rows, points)."""
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
        low = np.minimum(e, 30.0)
        rise = np.expm1(low)
        excess = w * rise
        near = np.log1p(np.maximum(excess, -0.5))
        density = self.idle + w * (1 + rise)
        deep = excess < -0.5
        log = np.where(deep, np.log(density), near)
        far = e > 30
        if far.any():
            # log(idle + w e^e) with e large.
            log = np.where(far, np.log(w) + e + np.log1p(self.idle / w * np.exp(-e)), log)
        share = np.where(far, 1.0, w * (1 + rise) / np.where(far, 1.0, density))
        mean = c * share
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
        idle, rest: what of P and of Q is N(0, 1); by default what the weights leave of 1, which
            loses digits where that is little.
        doubt: bound on the relative error of every weight, those of N(0, 1) included.
        lost, lost_rest: bound on the mass of P and of Q that no component holds.
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
        """Both directions of the pair have the same profile."""
        return self.symmetric or self.up == self.down or self.gaussian

    @property
    def gaussian(self) -> bool:
        """N(c, 1) against N(0, 1): composes exactly."""
        return not self.down and len(self.up) == 1 and self.up[0][1] == 1.0

    @property
    def largest(self) -> float:
        """The largest shift on either side."""
        return max(c for c, _ in (*self.up, *self.down))

    @property
    def integrable(self) -> bool:
        """True if integrals say more than closed bounds.

        They do not where noise is small beside the shifts. And a single hit discloses nearly
        everything where shifts are large: with many components besides, integrals take seconds.
        """
        heavy = self.largest > _DISCLOSING and len(self.up) > _MANY_COMPONENTS
        return self.largest <= _LARGEST_SHIFT and not heavy

    def ratios(self, _fineness: float) -> tuple[Pair, Pair]:
        """Itself below and above: its integrals need no bounds in convex order."""
        return self, self

    @property
    def shape(self) -> tuple[int, int, bool]:
        """Pairs of the same shape are evaluated together."""
        return len(self.up), len(self.down), self.symmetric
