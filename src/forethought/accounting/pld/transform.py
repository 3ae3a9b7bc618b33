"""The transform E[e^{s loss}] of rounds, as numbers with proven errors.

Everything is formed as M(s) - 1 = Σ p (e^{s l} - 1): real tilts by expm1, frequencies by sin² and
sin, so that rounding is relative to how far a round's transform is from 1 and not to 1. On an even
grid of frequencies the sums are matrix products, since e^{i(s+t)l} - 1 = E_s + E_t + E_s E_t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from forethought.accounting.pld.mixtures import EPS, Array, Mixture
from forethought.accounting.pld.pair import Pair
from forethought.accounting.pld.quadrature import (
    FORWARD,
    MIRROR,
    Demand,
    UnresolvedError,
    rule,
)

Complex = NDArray[np.complex128]
_LOG_NORMAL = 0.5 * math.log(2 * math.pi)
_AT_ONCE = 2**18
_NODES, _WEIGHTS = (np.asarray(x) for x in np.polynomial.legendre.leggauss(8))
_SMALLEST = 1e-7
_LARGEST = 600.0
_BLOCK = 60_000


class Line(NamedTuple):
    """Log transform of a composition at c + i k h.

    Args:
        real, phase: of the logarithm.
        doubt: bound on the absolute error of the real exponential, relative to its exact size at
            each point: |M̂ - M| ≤ e^real (e^doubt - 1).
    """

    real: Array
    phase: Array
    doubt: Array

    def __add__(self, other: Line) -> Line:  # type: ignore[override]
        return Line(*(a + b for a, b in zip(self, other, strict=True)))


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
        right = _side([p.up for p in pairs], [p.idle for p in pairs])
        left = _side([p.down for p in pairs], [p.rest for p in pairs])
        # Seen in a mirror, (Q, P) has Q's components on the right.
        self.up, self.down = (left, right) if swapped and not first.two_sided else (right, left)
        self.down.sign = -1.0
        self.start = self.up.shifts[:, 0] / 2 if first.symmetric else None
        self.cut, self.lost = math.inf, np.zeros(self.size)
        self.farthest = float(self.up.largest.max(initial=0.0))
        self._sample: tuple[Array, Array] | None = None

    def truncate(self, cut: float) -> tuple[float, float, float]:
        """Leave out what lies beyond ``cut``, where P is largest beside Q.

        Returns:
            Summed over the rounds: bounds on the mass left out of the measure, on P's mass beyond
            ``cut`` from below, and on Q's from above.
        """
        if self.start is not None:
            cut = max(cut, float(self.start.max()) + 1)
        self.cut = cut
        self._sample = None
        first = self._beyond(self.up, cut)
        second = self._beyond(self.down, cut)
        self.lost = first + (second if self.start is not None else 0.0)
        n = self.counts
        some = -math.expm1(float(n @ np.log1p(-np.minimum(first, 0.5)) * (1 - 1e-9)))
        return float(n @ self.lost) * (1 + 1e-9), some, float(n @ second) * (1 + 1e-9)

    @staticmethod
    def _beyond(side: Mixture, cut: float) -> Array:
        tail = (side.weights * ndtr(side.sign * side.shifts - cut)).sum(axis=1)
        return np.asarray(tail + side.idle[:, 0] * ndtr(-cut))

    def _on(self, nodes: Array, weights: Array) -> tuple[Array, Array, Array, Array]:
        """Losses, log masses, rounding of both (in rounding units), rows by pair."""
        z = nodes[None, :] if self.start is None else nodes[None, :] + self.start[:, None]
        up, down = self.up.at(z), self.down.at(z)
        base = np.log(weights) - 0.5 * z * z - _LOG_NORMAL
        loss = up.log - down.log
        slip = up.rounding + down.rounding + (up.mean + down.mean) * np.abs(z)
        rough = 8 + np.abs(base) + z * z
        losses = [m.sign * loss for m in self.measures]
        masses = [base + m.up * up.log for m in self.measures]
        roughs = [rough + m.up * up.rounding for m in self.measures]
        slips = [slip for _ in self.measures]
        found = (np.concatenate(x, axis=1) for x in (losses, masses, slips, roughs))
        return tuple(found)  # type: ignore[return-value]

    def sample(self) -> tuple[Array, Array]:
        """Losses and log masses for choosing tilts, not for bounds."""
        if self._sample is None:
            a = float(self.up.largest.max(initial=0.0))
            d = float(self.down.largest.max(initial=0.0))
            high, low = min(a + 12, self.cut), -12 - d
            if self.start is not None:
                low = 0.0
                high -= float(self.start.min())
            step = max(min(0.2, 0.6 / max(a, d)), (high - low) / 20_000)
            panels = math.ceil((high - low) / (8 * step))
            edges = np.linspace(low, high, panels + 1)
            half = (edges[1] - edges[0]) / 2
            points = ((edges[1:] + edges[:-1])[:, None] / 2 + half * _NODES).ravel()
            self._sample = self._on(points, np.tile(half * _WEIGHTS, panels))[:2]
        return self._sample

    def cumulant(self, tilts: Array) -> Array:
        """About log E e^{tilt·loss}, summed over the rounds."""
        loss, log_mass = self.sample()
        total = np.zeros(tilts.size)
        chunk = max(1, _AT_ONCE // loss.size)
        open_end = self.cut == math.inf and not self.up.empty
        if open_end:
            a, w = self.up.shifts[:, -1], self.up.weights[:, -1]
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
            rise = rise - self.lost + np.exp(np.minimum(beyond, 600.0))
            rise = np.log1p(np.maximum(rise, -0.999999))
            total[at : at + chunk] = (np.where(top > 300, top, rise) * self.counts).sum(axis=1)
        return total

    def spread(self) -> tuple[float, float]:
        """About the mean and the variance of the summed loss."""
        loss, log_mass = self.sample()
        mass = np.exp(log_mass)
        mean = (mass * loss).sum(axis=1)
        second = (mass * loss * loss).sum(axis=1)
        return float(mean @ self.counts), float((second - mean * mean) @ self.counts)

    def variance(self, tilt: float) -> float:
        """About the variance of the summed loss under the tilted measure."""
        loss, log_mass = self.sample()
        size = log_mass + tilt * loss
        mass = np.exp(size - size.max(axis=1, keepdims=True))
        mass = mass / mass.sum(axis=1, keepdims=True)
        mean = (mass * loss).sum(axis=1, keepdims=True)
        return float(self.counts @ (mass * (loss - mean) ** 2).sum(axis=1))

    def log_moment_above(self, tilt: float, log_error: float) -> float:
        """A certain upper bound on the log of the summed rounds' E e^{tilt·loss}."""
        scale = self._scale(tilt)
        demands = [Demand(tilt, 0.0, log_error + scale), Demand(0.0, 0.0, log_error)]
        found = rule(self.up, self.down, self.measures, demands, self.start, self.cut)
        here = _Points(*self._on(found.nodes, found.weights), tilt)
        error = np.exp(found.log_errors).sum() + here.rounding(np.zeros(1), 1)[:, 0]
        most = here.rise.sum(axis=1) - self.lost * (1 - 1e-9) + 2 * error
        value = float(np.log1p(most) @ self.counts)
        return value + 1e-12 * abs(value) + 1e-300

    def _scale(self, tilt: float) -> float:
        """About the log of the smallest of the rounds' moments, to which errors are relative."""
        loss, log_mass = self.sample()
        size = log_mass + tilt * loss
        top = size.max(axis=1, keepdims=True)
        log = top[:, 0] + np.log(np.exp(size - top).sum(axis=1))
        if not float(log.max()) < _LARGEST:
            raise UnresolvedError(f"a moment of e^{float(log.max()):.0f}")
        return max(0.0, float(log.min()))

    def along(
        self,
        tilt: float,
        step: float,
        first: int,
        last: int,
        log_error: float,
        most_work: float,
        every: int = 1,
    ) -> tuple[Line, float]:
        """The log transform at tilt + i k step for first ≤ k < last; ``log_error`` is relative.

        Of ``every`` so many rows one is used; the others count with their value at ``tilt``, and
        only the real part and its doubt are then of use, as an upper bound.

        Returns:
            The transform, and the work it took, in products of two numbers.

        Raises:
            UnresolvedError: it would take more than ``most_work`` products.
        """
        log_error += self._scale(tilt)
        demands = [Demand(tilt, step * last, log_error), Demand(0.0, 0.0, log_error)]
        found = rule(self.up, self.down, self.measures, demands, self.start, self.cut)
        points = _Points(*self._on(found.nodes, found.weights), tilt)
        count = last - first
        used = np.arange(0, self.size, every)
        quadrature = 2 * float(np.exp(found.log_errors).sum())
        fine = max(1, min(64, math.isqrt(count)))
        grid = (-(-count // fine), fine)
        # Powers of e^(i h l) and the panels themselves cost more than products do.
        work = float(used.size) * points.loss.shape[1] * (count + 8 * sum(grid) + 300)
        if work > most_work:
            raise UnresolvedError(f"{used.size} rows of {points.loss.shape[1]} x {count} products")
        chunk = max(1, _AT_ONCE // (points.loss.shape[1] * sum(grid)))
        frequency = step * np.arange(first, last, dtype=float)
        total = Line(np.zeros(count), np.zeros(count), np.zeros(count))
        for at in range(0, used.size, chunk):
            rows = used[at : at + chunk]
            here = points.rows(rows)
            lost = self.lost[rows, None]
            gap = here.gaps(step * first, step, grid)[:, :count] - lost
            error = here.rounding(frequency, count) + quadrature + 1e-9 * lost
            total = total + _composed(gap, error, self.counts[rows])
        if every > 1:
            others = np.setdiff1d(np.arange(self.size), used)
            here = points.rows(others)
            most = here.rise.sum(axis=1) + here.rounding(np.zeros(1), 1)[:, 0] + quadrature
            total = total._replace(real=total.real + float(self.counts[others] @ np.log1p(most)))
        return total, work


class _Points:
    """Masses on the line, one row for each pair, tilted; with what their sums may be off by."""

    def __init__(
        self, loss: Array, log_mass: Array, slip: Array, rough: Array, tilt: float
    ) -> None:
        self.loss, self.log_mass, self.slip, self.rough = loss, log_mass, slip, rough
        self.tilt = tilt

    def rows(self, chosen: NDArray[np.intp]) -> _Points:
        """Some of the rows."""
        fields = (self.loss, self.log_mass, self.slip, self.rough)
        loss, log_mass, slip, rough = (x[chosen] for x in fields)
        return _Points(loss, log_mass, slip, rough, self.tilt)

    @cached_property
    def tilted(self) -> Array:
        """Masses times e^{tilt·loss}."""
        return np.asarray(np.exp(self.log_mass + self.tilt * self.loss))

    @cached_property
    def rise(self) -> Array:
        """Masses times e^{tilt·loss} - 1."""
        exponent = self.tilt * self.loss
        near = np.exp(self.log_mass) * np.expm1(np.minimum(exponent, 30.0))
        return np.where(exponent < 30, near, self.tilted)

    def gaps(self, first: float, step: float, grid: tuple[int, int]) -> Complex:
        """M - 1 at tilt + i (first + k step), k < the product of ``grid``."""
        coarse, fine = grid
        here = _turns(first * self.loss, step * fine * self.loss, coarse)
        there = _turns(np.zeros_like(self.loss), step * self.loss, fine)
        weighted = np.swapaxes(here * self.tilted[:, :, None], 1, 2)
        along = np.einsum("ij,ijk->ik", self.tilted, there)
        total = _product(weighted, there)
        total += weighted.sum(axis=2)[:, :, None] + along[:, None, :]
        return np.asarray(total.reshape(self.loss.shape[0], -1) + self.rise.sum(axis=1)[:, None])

    def rounding(self, frequency: Array, count: int) -> Array:
        """A bound on the rounding error of :meth:`gaps` at each frequency."""
        loss, mass = self.loss, self.tilted
        units = self.rough + loss.shape[1] + 16 + 8 * math.log2(count + 1)
        units = units + np.abs(self.log_mass) + np.abs(self.tilt * loss)
        turned = np.minimum(
            2 * (mass * units).sum(axis=1)[:, None],
            frequency * (mass * units * np.abs(loss)).sum(axis=1)[:, None],
        )
        # Where the losses themselves are off.
        plain = np.exp(self.log_mass + np.minimum(self.tilt * loss, 0))
        slips = ((mass + plain) * self.slip).sum(axis=1)[:, None]
        still = (np.abs(self.rise) * units).sum(axis=1)[:, None]
        return np.asarray(EPS * (6 * turned + (frequency + abs(self.tilt)) * slips + still))


def _side(parts: Sequence[tuple[tuple[float, float], ...]], idle: Sequence[float]) -> Mixture:
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


def _product(left: Complex, right: Complex) -> Complex:
    """Matrix products in blocks that BLAS does in one thread.

    On a machine whose cores are busy, threads that wait for each other take a hundred times as
    long as the product.
    """
    rows, tall, inner = left.shape
    wide = right.shape[2]
    total = np.zeros((rows, tall, wide), dtype=complex)
    high = max(1, min(tall, _BLOCK // (16 * wide)))
    deep = max(16, _BLOCK // (high * wide))
    for at in range(0, tall, high):
        for start in range(0, inner, deep):
            some = left[:, at : at + high, start : start + deep]
            total[:, at : at + high] += some @ right[:, start : start + deep]
    return total


def _turn(angle: Array) -> Complex:
    """e^{i angle} - 1 to rounding, however small the angle."""
    half = np.sin(angle / 2)
    return np.asarray(-2 * half * half + 2j * half * np.cos(angle / 2))


def _turns(first: Array, step: Array, count: int) -> Complex:
    """:func:`_turn` of first + k step, k < count, along a new last axis, by doubling.

    Each doubling rounds once: a few rounding units times log2(count) in all.
    """
    found = np.empty((*first.shape, count), dtype=complex)
    found[..., 0] = _turn(first)
    jump, done = _turn(step), 1
    while done < count:
        more = min(done, count - done)
        here, by = found[..., :more], jump[..., None]
        found[..., done : done + more] = here + by + here * by
        jump = 2 * jump + jump * jump
        done += more
    return found


def _composed(gap: Complex, error: Array, counts: Array) -> Line:
    """Powers and products: Σ n log(1 + gap), with what bounds the product's error."""
    x, y = gap.real, gap.imag
    near = np.maximum(2 * x + x * x + y * y, -0.75)
    far = np.log(np.maximum(np.hypot(1 + x, y), _SMALLEST))
    real = np.where(near > -0.75, 0.5 * np.log1p(near), far)
    phase = np.arctan2(y, 1 + x)
    size = np.exp(real)
    # What is smaller than this is taken for it.
    error = error + 8 * EPS * np.abs(gap) + np.where(size < 2 * _SMALLEST, 2 * _SMALLEST, 0)
    doubt = np.log1p(error / size)
    doubt = doubt + 4 * EPS * (np.abs(real) + np.abs(phase))
    # Not by BLAS, which would wake its threads for these.
    sums = [np.einsum("i,ij->j", counts, x) for x in (real, phase, doubt)]
    return Line(*sums)


def gaussian_line(distance: float, tilt: float, frequencies: Array) -> Line:
    """N(distance, 1) against N(0, 1): log M = s (s + 1) distance²/2, exactly."""
    scale = distance * distance / 2
    real = scale * (tilt * (tilt + 1) - frequencies**2)
    phase = scale * frequencies * (2 * tilt + 1)
    doubt = 8 * EPS * (np.abs(phase) + scale * (tilt * (tilt + 1) + frequencies**2))
    return Line(real, phase, doubt)
