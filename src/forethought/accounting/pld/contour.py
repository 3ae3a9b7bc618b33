"""δ(ε) of a composition by a line integral with proven ends.

With M the transform of the total privacy loss L under P, δ(ε) = (1/2πi) ∫ M(s) e^(-sε) / (s(s+1))
along Re s = c > 0. Two smoothed versions of it bound it from both sides, and both integrands fall
off like a Gaussian:

- *above*: δ is convex in α = e^ε, so by Jensen E δ(ε + U) ≥ δ(ε) for U ~ N(-τ²/2, τ²), where
  E e^U = 1. The kernel becomes e^(τ²(s²+s)/2) / (s(s+1)).
- *below*: for any test ψ with values in [0, 1], δ(ε) ≥ E ψ(L)(1 - e^(ε-L)); with
  ψ(L) = Φ((L - ε)/τ) the kernel is e^(τ²s²/2)/s - e^(τ²(s+1)²/2)/(s+1).

Both are off by about τ²c(c+1)/2 of δ. The trapezoidal rule with step 2π/W sums the integral's value
at ε + kW times e^(ckW), all k (Poisson): from above these only add, from below they are bounded by
1 to the left and by Chernoff's bound to the right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from forethought.accounting.pld.integral import Integral
from forethought.accounting.pld.mixtures import EPS, Array
from forethought.accounting.pld.profiles import Pair
from forethought.accounting.pld.quadrature import UnresolvedError
from forethought.accounting.pld.transform import Line, Rows, gaussian_line

_MOST_POINTS = 2**19
_MOST_WORK = 1.5e9
_FACTORS = np.array([1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0, 15.0])
# Where the transform has fallen to e^-this, what is left of the line needs little accuracy.
_DEEP = 60.0


class Place(NamedTuple):
    """About where the answer lies: for choosing lines, not for bounds."""

    tilt: float
    epsilon: float
    log_delta: float


class Total:
    """Rounds composed in one direction.

    Args:
        parts: how often each pair occurs.
        swapped: compose (Q, P) instead of (P, Q).
    """

    def __init__(self, parts: Mapping[Pair, int], *, swapped: bool = False) -> None:
        self.distance = math.sqrt(
            math.fsum(n * p.up[0][0] ** 2 for p, n in parts.items() if p.gaussian)
        )
        shapes: dict[tuple[object, ...], list[Pair]] = {}
        for pair in parts:
            if not pair.gaussian:
                far = max(c for c, _ in (*pair.up, *pair.down))
                key = (*pair.shape, round(2 * math.log2(far)))
                shapes.setdefault(key, []).append(pair)
        self.rows = [
            Rows(pairs, np.array([float(parts[p]) for p in pairs]), swapped=swapped)
            for pairs in shapes.values()
        ]
        self.count = math.fsum(n for p, n in parts.items() if not p.gaussian)
        # What the weights' relative errors may move ε by, and the mass that no component holds.
        self.shift = math.fsum(2 * n * p.doubt for p, n in parts.items())
        lost = [(n * p.lost, n * p.lost_rest) for p, n in parts.items()]
        first, second = (math.fsum(x) for x in zip(*lost, strict=True))
        self.cut_off = 0.0
        self.lost, self.lost_below = (second, first) if swapped else (first, second)

    def cumulant(self, tilts: Array) -> Array:
        """About log E e^{tilt·L}."""
        total = tilts * (tilts + 1) * (self.distance**2 / 2)
        for rows in self.rows:
            total = total + rows.cumulant(tilts)
        return np.asarray(total)

    def deviation(self) -> float:
        """About the standard deviation of L."""
        variance = self.distance**2 + sum(r.spread()[1] for r in self.rows)
        return max(math.sqrt(max(variance, 0.0)), 1e-150)

    def truncate(self, log_mass: float) -> None:
        """Leave out rounds' largest losses, of at most about this log mass in all."""
        low, high = -3.0, 40.0
        for _ in range(20):
            middle = (low + high) / 2
            lost = sum(rows.truncate(middle) for rows in self.rows)
            if lost > 0 and math.log(lost) > log_mass:
                low = middle
            else:
                high = middle
        self.cut_off = sum(rows.truncate(high) for rows in self.rows)

    def locate(self, *, delta: float | None = None, epsilon: float | None = None) -> Place:
        """The tilt of the best Chernoff bound, which is close to the saddle point."""
        low, high = -5.0, 5.0
        unit = 1 / self.deviation()
        best = 0.0
        for points in (41, 21, 11):
            exponents = np.linspace(low, high, points)
            tilts = unit * np.exp(exponents)
            peak = tilts * np.log(tilts / (tilts + 1)) - np.log1p(tilts)
            value = self.cumulant(tilts) + peak
            if delta is not None:
                value = (value - math.log(delta)) / tilts
            else:
                value = value - tilts * float(epsilon or 0.0)
            at = int(np.nanargmin(value))
            best, width = float(value[at]), (high - low) / (points - 1)
            low, high = float(exponents[at]) - width, float(exponents[at]) + width
        tilt = float(tilts[at])
        if delta is not None:
            return Place(tilt, max(best, 0.0), math.log(delta))
        return Place(tilt, float(epsilon or 0.0), min(best, 0.0))

    def integral(self, place: Place, smoothing: float, accuracy: float) -> Integral:
        """The transform along the line through ``place``.

        Args:
            place: where the bounds are to be sharp.
            smoothing: τ.
            accuracy: everything but smoothing is kept below this, relative to δ.

        Raises:
            UnresolvedError: it would take too much work.
        """
        c, epsilon, log_delta = place
        small = log_delta + math.log(accuracy)
        tilts = c * _FACTORS
        moments = self.cumulant(tilts)
        peaks = tilts * np.log(tilts / (tilts + 1)) - np.log1p(tilts)
        needs = (moments + peaks - tilts * epsilon - small + 1) / (tilts - c)
        at = int(np.nanargmin(needs))
        beyond = float(tilts[at])
        width = max((1 - small) / c, float(needs[at]))
        # How much larger the line's first value is than the answer: all errors count for more.
        excess = max(0.0, float(self.cumulant(np.array([c]))[0]) - c * epsilon - log_delta)
        ahead = 6.0 - math.log(accuracy) + excess
        end = math.sqrt(c * c + 2 * ahead / smoothing**2)
        step = 2 * math.pi / width
        points = math.ceil(end / step) + 1
        if points > _MOST_POINTS:
            raise UnresolvedError(f"{points} points on the line")
        line = self._line(c, step, points, accuracy * math.exp(-excess))
        tight = -math.log(self.count + 1) - 3
        bound = beyond * (beyond + 1) * self.distance**2 / 2 * (1 + 8 * EPS)
        for rows in self.rows:
            bound += rows.log_moment_above(beyond, tight)
        return Integral(c, step, smoothing, line, beyond, bound)

    def _line(self, tilt: float, step: float, points: int, accuracy: float) -> Line:
        # In bands: the further out, the finer the panels, and the smaller what the transform of
        # the whole composition still is.
        wanted = math.log(1e-3 * accuracy / (self.count + 1))
        pieces: list[Line] = []
        first, peak = 0, 0.0
        last = min(points, max(16, math.ceil(8 / (step * self.deviation()))))
        work = _MOST_WORK
        while first < points:
            line = gaussian_line(self.distance, tilt, step * np.arange(first, last))
            fallen = peak - float(pieces[-1].real[-1]) if pieces else 0.0
            loose = wanted
            if fallen > _DEEP:
                loose = max(wanted, math.log(0.3 * (fallen - 30) / (self.count + 1)))
            for rows in self.rows:
                line = line + rows.along(tilt, step, first, last, min(loose, -2.0), work)
            if not pieces:
                peak = float(line.real[0])
            pieces.append(line)
            first, last = last, min(points, 3 * last)
        return Line(*(np.concatenate(x) for x in zip(*pieces, strict=True)))
