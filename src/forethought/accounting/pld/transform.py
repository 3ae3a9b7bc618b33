"""The transform E[e^{s loss}] of rounds, as numbers with proven errors.

Rounds are integrated together where they are alike, on the same nodes of the line. Rounds of one
rate and many noises even share their losses: with u = cz - c²/2 the loss log(1 - q + q e^u) is the
same for every shift c, and only the Gaussian N(-c²/2, c²) of u is not (:meth:`Rows.of_one_rate`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from forethought.accounting.pld.mixtures import Array, Mixture
from forethought.accounting.pld.pair import Pair
from forethought.accounting.pld.points import Line, Points, composed
from forethought.accounting.pld.quadrature import (
    FORWARD,
    MIRROR,
    STANDARD,
    Base,
    Demand,
    UnresolvedError,
    rule,
)

_AT_ONCE = 2**18
_NODES, _WEIGHTS = (np.asarray(x) for x in np.polynomial.legendre.leggauss(8))
_LARGEST = 600.0
# Where lines go is chosen from so many of the rounds.
_FEW = 16
# Logarithms of moments that are this far apart are bounded one by one.
_APART = 3.0


class Rows:
    """Pairs that are integrated together in one direction.

    Args:
        pairs: at least one, with as many components on each side, all symmetric or none.
        counts: how often each is composed.
        swapped: the loss of (Q, P) instead of (P, Q).
    """

    def __init__(self, pairs: Sequence[Pair], counts: Array, *, swapped: bool) -> None:
        first = pairs[0]
        self.counts = counts
        self.size = len(pairs)
        self.measures = (FORWARD, MIRROR) if first.symmetric else (FORWARD,)
        right = side_of([p.up for p in pairs], [p.idle for p in pairs])
        left = side_of([p.down for p in pairs], [p.rest for p in pairs])
        self.base = STANDARD
        # All rows then have their losses at the same nodes.
        self.shared = self.size > 1 and of_one_rate(pairs)
        if self.shared:
            # Coordinate x = u + 1/2, in which every round's component is e^(x - 1/2).
            variance = right.shifts**2
            self.base = Base((1 - variance) / 2, variance)
            right = side_of([((1.0, first.up[0][1]),)], [first.idle])
            left = side_of([()], [first.rest])
        # Seen in a mirror, (Q, P) has Q's components on the right.
        self.up, self.down = (left, right) if swapped and not first.two_sided else (right, left)
        if self.up is left:
            self.base = Base(-self.base.mean, self.base.variance)
        self.down.sign = -1.0
        self.start = self.up.shifts[:, 0] / 2 if first.symmetric else None
        self.cut, self.lost = math.inf, np.zeros(self.size)
        # In standard deviations from the base's mean.
        self.farthest = float((self.up.largest * self.base.deviation).max())
        self._sample: tuple[Array, Array] | None = None
        # Neighbours, if the pairs are sorted, are alike.
        groups = np.array_split(np.arange(self.size), min(self.size, _FEW))
        self._few = np.array([group[group.size // 2] for group in groups])
        self.few_counts = np.array([float(counts[group].sum()) for group in groups])

    def truncate(self, cut: float) -> tuple[float, float, float]:
        """Leave out what lies beyond ``cut``, where P is largest beside Q.

        Args:
            cut: in standard deviations from the mean, for the rows whose shifts are largest.

        Returns:
            Summed over the rounds: bounds on the mass left out of the measure, on P's mass beyond
            ``cut`` from below, and on Q's from above.
        """
        if self.start is not None:
            cut = max(cut, float(self.start.max()) + 1)
        cut = float((self.base.mean + cut * self.base.deviation).max())
        self.cut = cut
        self._sample = None
        first = self._beyond(self.up, cut)
        second = self._beyond(self.down, cut)
        self.lost = first + (second if self.start is not None else 0.0)
        n = self.counts
        some = -math.expm1(float(n @ np.log1p(-np.minimum(first, 0.5)) * (1 - 1e-9)))
        return float(n @ self.lost) * (1 + 1e-9), some, float(n @ second) * (1 + 1e-9)

    def _beyond(self, side: Mixture, cut: float) -> Array:
        mean, deviation = self.base.mean, self.base.deviation
        moved = side.sign * side.shifts * self.base.variance
        tail = (side.weights * ndtr((mean + moved - cut) / deviation)).sum(axis=1)
        return np.asarray(tail + side.idle[:, 0] * ndtr((mean - cut) / deviation)[:, 0])

    def _some(self, chosen: NDArray[np.intp]) -> tuple[Mixture, Mixture, Base, Array | None]:
        """The two sides, the base and where the integrals begin, of some of the rows."""
        if self.shared:
            base = Base(self.base.mean[chosen], self.base.variance[chosen])
            return self.up, self.down, base, None
        start = None if self.start is None else self.start[chosen]
        return self.up.rows(chosen), self.down.rows(chosen), self.base, start

    def _on(
        self, nodes: Array, weights: Array, chosen: NDArray[np.intp] | None = None
    ) -> tuple[Array, Array, Array, Array]:
        """Losses, log masses, rounding of both (in rounding units), rows by pair.

        Where rows share their losses there is one row of them.
        """
        sides = (self.up, self.down, self.base, self.start)
        right, left, base, start = sides if chosen is None else self._some(chosen)
        z = nodes[None, :] if start is None else nodes[None, :] + start[:, None]
        up, down = right.at(z), left.at(z)
        density = np.log(weights) + base.log(z)
        loss = up.log - down.log
        slip = up.rounding + down.rounding + (up.mean + down.mean) * np.abs(z)
        away = np.abs(z - base.mean) / base.variance
        # The base's own mean and variance are rounded too.
        rough = 8 + np.abs(density) + away * (np.abs(z - base.mean) + np.abs(z))
        rough = rough + 2 * away * (np.abs(base.mean) + base.variance)
        losses = [m.sign * loss for m in self.measures]
        masses = [density + m.up * up.log for m in self.measures]
        roughs = [rough + m.up * up.rounding for m in self.measures]
        slips = [slip for _ in self.measures]
        found = (np.concatenate(x, axis=1) for x in (losses, masses, slips, roughs))
        return tuple(found)  # type: ignore[return-value]

    def sample(self) -> tuple[Array, Array]:
        """Losses and log masses for choosing tilts, not for bounds."""
        if self._sample is None:
            up, down, base, start = self._some(self._few)
            far = 12 * base.deviation
            right, left = up.largest * base.variance, down.largest * base.variance
            high = min(float((base.mean + right + far).max()), self.cut)
            low = float((base.mean - left - far).min())
            if start is not None:
                low = 0.0
                high -= float(start.min())
            slope = max(float(up.largest.max()), float(down.largest.max()))
            step = min(0.2 * float(base.deviation.min()), 0.6 / slope)
            step = max(step, (high - low) / 20_000)
            panels = math.ceil((high - low) / (8 * step))
            edges = np.linspace(low, high, panels + 1)
            half = (edges[1] - edges[0]) / 2
            points = ((edges[1:] + edges[:-1])[:, None] / 2 + half * _NODES).ravel()
            self._sample = self._on(points, np.tile(half * _WEIGHTS, panels), self._few)[:2]
        return self._sample

    def cumulant(self, tilts: Array) -> Array:
        """About log E e^{tilt·loss}, summed over the rounds."""
        loss, log_mass = self.sample()
        total = np.zeros(tilts.size)
        chunk = max(1, _AT_ONCE // log_mass.size)
        open_end = self.cut == math.inf and not self.up.empty
        if open_end:
            up, _, base, _ = self._some(self._few)
            a, w = (up.shifts[:, -1:] * base.deviation)[:, 0], up.weights[:, -1]
        for at in range(0, tilts.size, chunk):
            t = tilts[at : at + chunk][:, None]
            exponent = t[:, :, None] * loss[None]
            size = log_mass[None] + exponent
            top = np.maximum(size.max(axis=2), 0.0)
            if open_end:
                # Beyond the sample the largest shift is all of the pair.
                u = 1 + t
                z = np.maximum(a + 12 - u * a, 0.0)
                beyond = u * np.log(w) + 0.5 * (u * u - u) * a * a - 0.5 * z * z
                beyond = np.where(u * a > a + 4, beyond, -np.inf)
                top = np.maximum(top, beyond)
            else:
                beyond = np.full_like(top, -np.inf)
            near = np.exp(log_mass)[None] * np.expm1(np.minimum(exponent, 30.0))
            rise = np.where(exponent < 30, near, np.exp(np.minimum(size, 600.0))).sum(axis=2)
            rise = rise - self.lost[self._few] + np.exp(np.minimum(beyond, 600.0))
            rise = np.log1p(np.maximum(rise, -0.999999))
            total[at : at + chunk] = (np.where(top > 300, top, rise) * self.few_counts).sum(axis=1)
        return total

    def spread(self) -> tuple[float, float]:
        """About the mean and the variance of the summed loss."""
        loss, log_mass = self.sample()
        mass = np.exp(log_mass)
        mean = (mass * loss).sum(axis=1)
        second = (mass * loss * loss).sum(axis=1)
        return float(mean @ self.few_counts), float((second - mean * mean) @ self.few_counts)

    def variance(self, tilt: float) -> float:
        """About the variance of the summed loss under the tilted measure."""
        loss, log_mass = self.sample()
        size = log_mass + tilt * loss
        mass = np.exp(size - size.max(axis=1, keepdims=True))
        mass = mass / mass.sum(axis=1, keepdims=True)
        mean = (mass * loss).sum(axis=1, keepdims=True)
        return float(self.few_counts @ (mass * (loss - mean) ** 2).sum(axis=1))

    def log_moment_above(self, tilt: float, log_error: float) -> float:
        """A certain upper bound on the log of the summed rounds' E e^{tilt·loss}."""
        scales = self._scales(tilt)
        everything = np.arange(self.size)
        # Errors are relative to the smallest moment, so very different ones are taken one by one.
        apart = self._few.size == self.size and float(np.ptp(scales)) > _APART
        parts = everything[:, None] if apart else everything[None, :]
        value = 0.0
        for rows in parts:
            scale = max(0.0, float(scales[rows].min() if apart else scales.min()))
            demands = [Demand(tilt, 0.0, log_error + scale), Demand(0.0, 0.0, log_error)]
            up, down, base, start = self._some(rows)
            found = rule(up, down, self.measures, demands, start, self.cut, base)
            here = Points(*self._on(found.nodes, found.weights, rows), tilt)
            error = np.exp(found.log_errors).sum() + here.rounding(np.zeros(1), 1)[:, 0]
            most = here.rise.sum(axis=1) - self.lost[rows] * (1 - 1e-9) + 2 * error
            value += float(np.log1p(most) @ self.counts[rows])
        return value + 1e-12 * abs(value) + 1e-300

    def swing(self, tilt: float) -> Array:
        """How fast each round's transform can change along the line: bounds on its derivative.

        But for a turning factor that is at most √(M E (L - m)² e^(tilt·L)) by Cauchy and Schwarz,
        for any m, and x² is at most (2 sinh(hx/2)/h)².
        """
        scale = self._scale(tilt)
        h = min(0.5, 0.5 * tilt)
        tilts = (tilt, tilt + h, tilt - h)
        demands = [Demand(t, 0.0, scale - 16.0) for t in tilts]
        found = rule(self.up, self.down, self.measures, demands, self.start, self.cut, self.base)
        loss, log_mass, _, _ = self._on(found.nodes, found.weights)
        mass = np.exp(log_mass + tilt * loss)
        moment = mass.sum(axis=1)
        mean = (mass * loss).sum(axis=1) / moment
        turn = np.exp(h * np.abs(mean))
        error = np.exp(found.log_errors)
        square = (mass * (2 * np.sinh(h / 2 * (loss - mean[:, None])) / h) ** 2).sum(axis=1)
        square = square + (2 * error[0] + turn * (error[1] + error[2])) / h**2
        return np.asarray(np.sqrt((moment + error[0]) * square) * (1 + 1e-9))

    def _scales(self, tilt: float) -> Array:
        """About the logs of the rounds' moments, of those that are looked at.

        Raises:
            UnresolvedError: one leaves the range of a double.
        """
        loss, log_mass = self.sample()
        size = log_mass + tilt * loss
        top = size.max(axis=1, keepdims=True)
        log = top[:, 0] + np.log(np.exp(size - top).sum(axis=1))
        if not float(log.max()) < _LARGEST:
            raise UnresolvedError(f"a moment of e^{float(log.max()):.0f}")
        return np.asarray(log)

    def _scale(self, tilt: float) -> float:
        """About the log of the smallest of the moments, to which errors are relative."""
        return max(0.0, float(self._scales(tilt).min()))

    def along(
        self,
        tilt: float,
        step: float,
        first: int,
        last: int,
        log_error: float,
        most_work: float,
        every: int = 1,
        slack: Array | None = None,
    ) -> tuple[Line, float]:
        """The log transform at tilt + i k step for first ≤ k < last; ``log_error`` is relative.

        Of ``every`` so many rows one is used; the others count with their value at ``tilt``, and
        only the real part and its doubt are then of use, as an upper bound. ``slack`` is added
        to what each round's transform may be off by.

        Returns:
            The transform, and the work it took, in products of two numbers.

        Raises:
            UnresolvedError: it would take more than ``most_work`` products.
        """
        log_error += self._scale(tilt)
        demands = [Demand(tilt, step * last, log_error), Demand(0.0, 0.0, log_error)]
        found = rule(self.up, self.down, self.measures, demands, self.start, self.cut, self.base)
        points = Points(*self._on(found.nodes, found.weights), tilt)
        count = last - first
        used = np.arange(0, self.size, every)
        quadrature = 2 * float(np.exp(found.log_errors).sum())
        fine = max(1, min(64, math.isqrt(count)))
        grid = (-(-count // fine), fine)
        nodes = max(1, points.loss.shape[1])  # none, where all that moves is within the errors
        # Powers of e^(i h l) and the panels themselves cost more than products do.
        if self.shared:
            work = nodes * (count * (8 + used.size / 4) + 300 * used.size)
        else:
            work = float(used.size) * nodes * (count + 8 * sum(grid) + 300)
        if work > most_work:
            raise UnresolvedError(f"{used.size} rows of {nodes} x {count} products")
        chunk = max(1, _AT_ONCE // (4 * count if self.shared else nodes * sum(grid)))
        frequency = step * np.arange(first, last, dtype=float)
        total = Line(np.zeros(count), np.zeros(count), np.zeros(count))
        turns = points.turns(step * first, step, grid) if self.shared else None
        for at in range(0, used.size, chunk):
            rows = used[at : at + chunk]
            here = points.rows(rows)
            lost = self.lost[rows, None]
            gap = here.gaps(step * first, step, grid) if turns is None else here.sums(turns)
            error = here.rounding(frequency, count) + quadrature + 1e-9 * lost
            if slack is not None:
                error = error + slack[rows, None]
            total = total + composed(gap[:, :count] - lost, error, self.counts[rows])
        if every > 1:
            others = np.setdiff1d(np.arange(self.size), used)
            here = points.rows(others)
            most = here.rise.sum(axis=1) + here.rounding(np.zeros(1), 1)[:, 0] + quadrature
            total = total._replace(real=total.real + float(self.counts[others] @ np.log1p(most)))
        return total, work


def of_one_rate(pairs: Sequence[Pair]) -> bool:
    """Whether all are one component at the same weight against N(0, 1): one rate, any noise."""
    first = pairs[0]
    return all(
        len(p.up) == 1
        and not (p.down or p.symmetric)
        and (p.up[0][1], p.idle, p.rest) == (first.up[0][1], first.idle, first.rest)
        for p in pairs
    )


def side_of(parts: Sequence[tuple[tuple[float, float], ...]], idle: Sequence[float]) -> Mixture:
    shifts = np.array([[c for c, _ in part] for part in parts]).reshape(len(parts), -1)
    weights = np.array([[w for _, w in part] for part in parts]).reshape(len(parts), -1)
    if not shifts.shape[1]:
        zero = np.zeros(len(parts))
        return Mixture(shifts, weights, np.ones(len(parts)), 1.0, zero)
    largest = shifts.max(axis=1)
    # Popoviciu; and for log-concave weights of an evenly spaced mixture the posterior is more
    # log-concave than a Gaussian on that lattice, hence no wider.
    spread = largest**2 / 4
    if shifts.shape[1] > 1:
        steps = np.diff(np.concatenate([np.zeros((len(parts), 1)), shifts], axis=1), axis=1)
        unit = steps.min(axis=1)
        even = np.isclose(steps, np.rint(steps / unit[:, None]) * unit[:, None], rtol=1e-9).all(
            axis=1
        )
        all_weights = np.concatenate([np.array(idle, dtype=float)[:, None], weights], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            bend = np.diff(np.log(all_weights), n=2, axis=1)
        even &= ~(bend > 1e-6).any(axis=1) & (all_weights[:, 1:] > 0).all(axis=1)
        spread = np.where(even, np.minimum(spread, 1.001 + unit**2 / 4), spread)
    return Mixture(shifts, weights, np.array(idle, dtype=float), 1.0, spread)
