"""The transform E[e^{s loss}] of rounds by quadrature with proven error bounds.

**Integrals over the line: Gauss-Legendre quadrature in panels, each with its own error bound.**

A round's transform is M(s) = ∫ φ R^a S^b with exponents linear in s (R, S: the densities of the
pair's two sides over φ). The integrand is analytic where neither mixture vanishes, and in an
ellipse around a panel it is bounded by the values at the panel's centre: with posterior mean m and
variance at most V of the shift, |R(x + iy)| lies between R(x)(1 - V y²/2) and R(x), and
|arg R(x + iy) - m y| ≤ asin(V y²/2). The rule's error is then at most 64/15 · sup|f| ρ^(-2(n-1)) /
(1 - ρ^-2) times the half width (Trefethen, Approximation Theory and Approximation Practice,
Theorem 19.3).

**Sums over the nodes at many frequencies, with bounds on their rounding errors.**

All sums have the form M(s) - 1 = Σ p (e^{s l} - 1), with expm1 for real tilts and sin² and sin for
frequencies, so that rounding is relative to |M - 1| and not to 1. On an equally spaced grid of
frequencies the sums are matrix products, since e^{i(s+t)l} - 1 = E_s + E_t + E_s E_t.

**Similar rounds** are integrated together, on the same nodes of the line. Rounds of one rate and
different noises even share their losses: with u = cz - c²/2 the loss log(1 - q + q e^u) is the same
for every shift c, and only the Gaussian N(-c²/2, c²) of u differs (:func:`of_one_rate`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from forethought.accounting.dominating_pair import EPS, Array, Mixture, Pair

_ORDER = 20
_NODES, _WEIGHTS = (np.asarray(x) for x in np.polynomial.legendre.leggauss(_ORDER))
# Ellipses around a panel [-1, 1], and the panel itself (ρ = 1): their half axes, and log of the
# rule's error relative to the largest value in each.
_RHO = np.array([1.25, 1.6, 2.1, 2.8, 3.8, 5.2, 7.5])[:, None, None]
_WIDE = np.concatenate([np.ones((1, 1, 1)), (_RHO + 1 / _RHO) / 2])
_TALL = (_RHO - 1 / _RHO) / 2
_RATE = math.log(64 / 15) - 2 * (_ORDER - 1) * np.log(_RHO) - np.log1p(-(_RHO**-2.0))
_LOG_NORMAL = 0.5 * math.log(2 * math.pi)
_WIDTH = 1.5
_MOST_PANELS = 4000
_SPLITS = 24


class UnresolvedError(ArithmeticError):
    """The wanted accuracy would take too much work, or leaves the range of a double."""


class Base(NamedTuple):
    """The Gaussian base measure of a round's integrals, one for each row.

    Args:
        mean, variance: shape (rows, 1), or (1, 1) if they are the same for all rows.
    """

    mean: Array
    variance: Array

    @property
    def deviation(self) -> Array:
        """Standard deviations."""
        return np.asarray(np.sqrt(self.variance))

    def log(self, x: Array) -> Array:
        """log of the density at ``x``, shape (rows, points)."""
        away = x - self.mean
        scale = _LOG_NORMAL + 0.5 * np.log(self.variance)
        return np.asarray(-0.5 * away * away / self.variance - scale)


STANDARD = Base(np.zeros((1, 1)), np.ones((1, 1)))


class Measure(NamedTuple):
    """One integral of a transform: ∫ φ R^(up + sign·s) S^(-sign·s).

    The privacy loss is ``sign``·(log R - log S), tilted by e^(s loss).
    """

    up: float
    sign: float

    def exponents(self, tilt: float) -> tuple[float, float]:
        """Real exponents of R and of S at the real part ``tilt`` of s."""
        return self.up + self.sign * tilt, -self.sign * tilt


FORWARD = Measure(1.0, 1.0)
# The mirror image of a symmetric pair: the losses below 0, whose mass is that of Q.
MIRROR = Measure(0.0, -1.0)


class Demand(NamedTuple):
    """A demand on a transform at Re s = ``tilt``, |Im s| ≤ ``frequency``: log of the error."""

    tilt: float
    frequency: float
    log_error: float

    def covers(self, other: Demand) -> bool:
        """True if a quadrature that meets this demand meets ``other`` too."""
        return (
            self.tilt == other.tilt
            and self.frequency >= other.frequency
            and self.log_error <= other.log_error
        )


class Quadrature(NamedTuple):
    """Nodes and weights on the line, and the log of a bound on the error at each demand."""

    nodes: Array
    weights: Array
    log_errors: Array


def rule(
    up: Mixture,
    down: Mixture,
    measures: Sequence[Measure],
    demands: Sequence[Demand],
    start: Array | None = None,
    cut: float = math.inf,
    base: Base = STANDARD,
) -> Quadrature:
    """A quadrature with which every measure meets every demand, for every row.

    Args:
        up, down: the two sides of the pairs.
        measures: the integrals.
        demands: the demands, with absolute errors.
        start: lower limit of the integrals, one for each row: nodes and weights are then relative
            to it and the first panel begins at 0. None: the whole line.
        cut: upper limit of the integrals.
        base: the measure over which R and S are densities.

    Raises:
        UnresolvedError: too many panels would be needed.
    """
    cases = _Cases.of(measures, demands)
    margin = math.sqrt(2 * max(30.0, 20 - min(x.log_error for x in demands))) * base.deviation
    rise, fall = cases.slopes(up.largest, down.largest)
    high = float((base.mean + base.variance * rise + margin).max())
    low = float((base.mean - base.variance * fall - margin).min())
    offset = np.zeros((up.shifts.shape[0], 1)) if start is None else start[:, None]
    whole = high <= cut
    high = min(high, cut)
    if start is not None:
        low, high = 0.0, high - float(start.min())
    count = math.ceil((high - low) / (_WIDTH * min(1.0, float(base.deviation.max()))))
    if not count <= _MOST_PANELS:
        raise UnresolvedError(f"{count} panels")
    edges = np.linspace(low, high, count + 1)
    centres, halves = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    wanted = cases.log_error[:, 0, 0] - math.log(64.0)
    errors = np.full(len(wanted), -np.inf)
    kept: list[tuple[Array, Array]] = []
    accepted = 0
    for _ in range(_SPLITS):
        sup, bound = _bounds(up, down, cases, centres, halves, offset, base)
        dropped = (sup <= wanted).all(axis=0)
        good = ~dropped & (bound <= wanted).all(axis=0)
        # All other panels are split.
        cost = np.where(dropped, sup, np.where(good, bound, -np.inf))
        errors = np.logaddexp(errors, np.logaddexp.reduce(cost, axis=1))
        kept.append((centres[good], halves[good]))
        accepted += int(good.sum())
        rest = ~(dropped | good)
        if not rest.any():
            break
        if accepted + 2 * int(rest.sum()) > _MOST_PANELS:
            raise UnresolvedError(f"more than {_MOST_PANELS} panels")
        c, h = centres[rest], halves[rest] / 2
        centres, halves = np.concatenate([c - h, c + h]), np.concatenate([h, h])
    else:
        raise UnresolvedError("panels too narrow")
    centre = np.concatenate([c for c, _ in kept])
    half = np.concatenate([h for _, h in kept])
    order = np.argsort(centre)
    centre, half = centre[order], half[order]
    ends = (high + offset if whole else None, low + offset if start is None else None)
    errors = np.logaddexp(errors, _tails(up, down, cases, ends, base))
    errors = np.logaddexp.reduce(errors.reshape(len(measures), -1), axis=0)
    nodes = (centre[:, None] + half[:, None] * _NODES).ravel()
    weights = (half[:, None] * _WEIGHTS).ravel()
    return Quadrature(nodes, weights, errors + 1e-9)


class _Cases(NamedTuple):
    """Every measure at every demand, along the first of four axes; the others are for panels."""

    up: Array
    down: Array
    frequency: Array
    log_error: Array

    @classmethod
    def of(cls, measures: Sequence[Measure], demands: Sequence[Demand]) -> _Cases:
        every = [(*m.exponents(d.tilt), *d[1:]) for m in measures for d in demands]
        return cls(*np.array(every).T[:, :, None, None, None])

    def slopes(self, a: Array, d: Array) -> tuple[Array, Array]:
        """Bounds on the slope of log |f| over the base's density, to the right and to the left.

        ``a`` and ``d`` are the largest shifts of both sides.
        """
        rise = np.maximum(self.up, 0) * a + np.maximum(-self.down, 0) * d
        return rise, np.maximum(-self.up, 0) * a + np.maximum(self.down, 0) * d


def _bounds(
    up: Mixture,
    down: Mixture,
    cases: _Cases,
    centres: Array,
    halves: Array,
    offset: Array,
    base: Base,
) -> tuple[Array, Array]:
    """Bounds on log ∫|f| on each panel and on log of the rule's error there, one row per case."""
    x = centres + offset
    # Half axes of the ellipses with foci at the panel's ends; ρ = 1 is the panel itself.
    wide, tall = halves * _WIDE, halves * _TALL
    level, slope = base.log(x), (base.mean - x) / base.variance
    bend, larger = -0.5 / base.variance, growth(tall, base.variance)
    turn, dips = np.zeros_like(tall), np.zeros_like(tall)
    for side, exponent, sign in ((up, cases.up, 1.0), (down, cases.down, -1.0)):
        if side.empty:
            continue
        log, mean, _ = side.at(x)
        most, high = _posterior(side, mean, wide)
        dip = most[1:] * tall * tall / 2
        dips = np.maximum(dips, dip)
        dip = np.minimum(dip, 0.9)
        turn = turn + tall * high[1:] + np.arcsin(dip)
        level = level + exponent * log
        slope = slope + sign * exponent * mean
        bend = bend + 0.5 * np.maximum(exponent, 0) * most
        larger = larger + np.minimum(exponent, 0) * np.log1p(-dip)
    size = level + np.abs(slope) * wide + np.maximum(bend, 0) * wide * wide
    sup = (size[:, 0] + np.log(2 * halves)).max(axis=1)
    size = size[:, 1:] + larger + cases.frequency * turn + (_RATE + np.log(halves))
    # In larger ellipses the integrand may not be analytic.
    size = np.where(dips < 0.9, size, np.inf)
    return sup, size.min(axis=1).max(axis=1)


def growth(height: Array, variance: Array) -> Array:
    """log of the ratio of a normal density's size at ``height`` above the line and on it.

    |e^(−(x + iy − m)²/2v)| = e^(−(x − m)²/2v) · e^(y²/2v).
    """
    return height * height / (2 * variance)


def _posterior(side: Mixture, mean: Array, reach: Array) -> tuple[Array, Array]:
    """Bounds on the posterior variance and mean of the shift within ``reach`` of the points."""
    most, a = side.spread, side.largest
    # The logarithms of the mean and of `a` minus the mean have slopes of at most `a`. Both are
    # rounded up before they grow, and e^700 times either is above every shift.
    grow = np.exp(np.minimum(a * reach, 700.0))
    high = np.minimum(np.minimum(mean + most * reach, np.maximum(mean, 1e-300) * grow), a)
    lacks = np.maximum(a - mean, 4 * EPS * a)
    lacks = np.minimum(lacks + most * reach, lacks * grow)
    return np.minimum(most, a * np.minimum(high, lacks)), high


def _tails(
    up: Mixture, down: Mixture, cases: _Cases, ends: tuple[Array | None, Array | None], base: Base
) -> Array:
    """Bounds on log ∫|f| beyond the outermost panels, by the bounds on the slope of log |f|."""
    total = np.full(len(cases.up), -np.inf)
    for end, slope in zip(ends, cases.slopes(up.largest, down.largest), strict=True):
        if end is None:
            continue
        size = base.log(end) + cases.up * up.at(end).log + cases.down * down.at(end).log
        room = np.abs(end - base.mean) / base.variance - slope
        total = np.logaddexp(total, (size - np.log(room)).max(axis=(1, 2, 3)))
    return total


Complex = NDArray[np.complex128]
_SMALLEST = 1e-7
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
        return Line(*map(add, self, other))


class Nodes:
    """Masses at nodes of the line, one row for each pair, with bounds on their rounding errors.

    Args:
        loss, log_mass: losses and log masses, shape (rows, nodes), or (1, nodes) for all rows.
        slip, rough: bounds on the rounding of both, in rounding units.
        tilt: the tilt of the sums.
    """

    def __init__(
        self, loss: Array, log_mass: Array, slip: Array, rough: Array, tilt: float
    ) -> None:
        self.loss, self.log_mass, self.slip, self.rough = loss, log_mass, slip, rough
        self.tilt = tilt

    def rows(self, chosen: NDArray[np.intp]) -> Nodes:
        """The nodes of the ``chosen`` rows."""
        fields = (self.loss, self.log_mass, self.slip, self.rough)
        loss, log_mass, slip, rough = (x[chosen] if len(x) > 1 else x for x in fields)
        return Nodes(loss, log_mass, slip, rough, self.tilt)

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
        """M - 1 at tilt + i (first + k step), for k below the product of ``grid``."""
        coarse, fine = grid
        here = _turns(first * self.loss, step * fine * self.loss, coarse)
        there = _turns(np.zeros_like(self.loss), step * self.loss, fine)
        still = self.rise.sum(axis=1)[:, None] + (here * self.tilted[:, :, None]).sum(axis=1)
        here += 1
        here *= self.tilted[:, :, None]
        total = _product(np.swapaxes(here, 1, 2), there) + still[:, :, None]
        return np.asarray(total.reshape(self.loss.shape[0], -1))

    def turns(self, first: float, step: float, grid: tuple[int, int]) -> Complex:
        """e^{i t loss} - 1 of losses that all rows share, shape (nodes, frequencies)."""
        coarse, fine = grid
        here = _turns(first * self.loss[0], step * fine * self.loss[0], coarse)[:, :, None]
        there = _turns(np.zeros_like(self.loss[0]), step * self.loss[0], fine)[:, None, :]
        return np.asarray((here + (1 + here) * there).reshape(self.loss.shape[1], -1))

    def sums(self, turns: Complex) -> Complex:
        """The result of :meth:`gaps`, computed from :meth:`turns`."""
        parts = (_product(self.tilted[None], x[None])[0] for x in (turns.real, turns.imag))
        real, imaginary = parts
        return np.asarray(real + self.rise.sum(axis=1)[:, None] + 1j * imaginary)

    def rounding(self, frequency: Array, count: int) -> Array:
        """A bound on the rounding error of :meth:`gaps` at each frequency."""
        loss, mass = self.loss, self.tilted
        units = self.rough + loss.shape[1] + 16 + 8 * math.log2(count + 1)
        units = units + np.abs(self.log_mass) + np.abs(self.tilt * loss)
        turned = np.minimum(
            2 * (mass * units).sum(axis=1)[:, None],
            frequency * (mass * units * np.abs(loss)).sum(axis=1)[:, None],
        )
        # The effect of the errors of the losses themselves.
        plain = np.exp(self.log_mass + np.minimum(self.tilt * loss, 0))
        slips = ((mass + plain) * self.slip).sum(axis=1)[:, None]
        still = (np.abs(self.rise) * units).sum(axis=1)[:, None]
        return np.asarray(EPS * (6 * turned + (frequency + abs(self.tilt)) * slips + still))


def _product(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    """Matrix products in blocks that BLAS computes in one thread.

    On a machine with busy cores, waiting threads take a hundred times as long as the product.
    """
    rows, tall, inner = left.shape
    wide = right.shape[2]
    total = np.zeros((rows, tall, wide), dtype=left.dtype)
    high = max(1, min(tall, _BLOCK // (16 * wide)))
    deep = max(16, _BLOCK // (high * wide))
    for at in range(0, tall, high):
        for start in range(0, inner, deep):
            some = left[:, at : at + high, start : start + deep]
            total[:, at : at + high] += some @ right[:, start : start + deep]
    return total


def _turn(angle: Array) -> Complex:
    """e^{i angle} - 1, with full relative accuracy also for small angles."""
    half = np.sin(angle / 2)
    return np.asarray(-2 * half * half + 2j * half * np.cos(angle / 2))


def _turns(first: Array, step: Array, count: int) -> Complex:
    """:func:`_turn` of first + k step, k < count, along a new last axis, by doubling.

    Each doubling rounds once: the error is a few rounding units times log2(count).
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


def composed(gap: Complex, error: Array, counts: Array) -> Line:
    """log of a product of powers: Σ n log(1 + gap), with a bound on the product's error."""
    x, y = gap.real, gap.imag
    near = np.maximum(2 * x + x * x + y * y, -0.75)
    far = np.log(np.maximum(np.hypot(1 + x, y), _SMALLEST))
    real = np.where(near > -0.75, 0.5 * np.log1p(near), far)
    phase = np.arctan2(y, 1 + x)
    size = np.exp(real)
    # A smaller factor counts as _SMALLEST.
    error = error + 8 * EPS * np.abs(gap) + np.where(size < 2 * _SMALLEST, 2 * _SMALLEST, 0)
    doubt = np.log1p(error / size)
    doubt = doubt + 4 * EPS * (np.abs(real) + np.abs(phase))
    # einsum avoids BLAS and the start of its threads for these small sums.
    sums = [np.einsum("i,ij->j", counts, x) for x in (real, phase, doubt)]
    return Line(*sums)


def gaussian_line(distance: float, tilt: float, frequencies: Array) -> Line:
    """N(distance, 1) against N(0, 1): log M = s (s + 1) distance²/2, exactly."""
    scale = distance * distance / 2
    real = scale * (tilt * (tilt + 1) - frequencies**2)
    phase = scale * frequencies * (2 * tilt + 1)
    doubt = 8 * EPS * (np.abs(phase) + scale * (tilt * (tilt + 1) + frequencies**2))
    return Line(real, phase, doubt)


# Losses, log masses, and the rounding of both, as of Nodes.
Grid = tuple[Array, Array, Array, Array]
# Pairs (largest frequency of a band of a line, log of the relative error in it).
Bands = Sequence[tuple[float, float]]
_AT_ONCE = 2**18
_EIGHT_NODES, _EIGHT_WEIGHTS = (np.asarray(x) for x in np.polynomial.legendre.leggauss(8))
_LARGEST = 600.0
# Number of rounds that represent all in the choice of lines.
FEW = 16
# Moments whose logarithms are further apart than this are bounded one by one.
_APART = 3.0


class IntegratedPairs:
    """Pairs that are integrated together in one direction.

    Args:
        pairs: at least one; all of the same shape, or of one rate.
        counts: number of rounds of each pair, shape (pairs,).
        swapped: True for the loss of (Q, P) instead of (P, Q).
    """

    def __init__(self, pairs: Sequence[Pair], counts: Array, *, swapped: bool) -> None:
        first = pairs[0]
        self.counts = counts
        self.size = len(pairs)
        self.measures = (FORWARD, MIRROR) if first.symmetric else (FORWARD,)
        right = side_of([p.up for p in pairs], [p.idle for p in pairs])
        left = side_of([p.down for p in pairs], [p.rest for p in pairs])
        self.base = STANDARD
        # Then all rows have the same losses at the same nodes.
        self.shared = self.size > 1 and of_one_rate(pairs)
        if self.shared:
            # Coordinate x = u + 1/2, in which every round's component is e^(x - 1/2).
            variance = right.shifts**2
            self.base = Base((1 - variance) / 2, variance)
            right = side_of([((1.0, first.up[0][1]),)], [first.idle])
            left = side_of([()], [first.rest])
        # Mirrored, (Q, P) has Q's components on the right.
        self.up, self.down = (left, right) if swapped and not first.two_sided else (right, left)
        if self.up is left:
            self.base = Base(-self.base.mean, self.base.variance)
        self.down.sign = -1.0
        self.start = self.up.shifts[:, 0] / 2 if first.symmetric else None
        self.cut, self.lost = math.inf, np.zeros(self.size)
        # In standard deviations from the base's mean.
        self.farthest = float((self.up.largest * self.base.deviation).max())
        self._sample: tuple[Array, Array] | None = None
        self._kept: tuple[list[Demand], Array, Grid] | None = None
        # The pairs are sorted, so neighbours are similar.
        groups = np.array_split(np.arange(self.size), min(self.size, FEW))
        self._few = np.array([group[group.size // 2] for group in groups])
        self.few_counts = np.array([float(counts[group].sum()) for group in groups])

    def truncate(self, cut: float) -> tuple[float, float, float]:
        """Leave out the points beyond ``cut``, where P/Q is largest.

        Args:
            cut: in standard deviations from the mean, for the rows with the largest shifts.

        Returns:
            Over all rounds: a bound on the mass left out of the measure, a lower bound on P's mass
            of the event that some round is beyond ``cut``, and an upper bound on Q's.
        """
        if self.start is not None:
            cut = max(cut, float(self.start.max()) + 1)
        cut = float((self.base.mean + cut * self.base.deviation).max())
        self.cut = cut
        self._sample = self._kept = None
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
        """The two sides, the base and the lower limits of the ``chosen`` rows."""
        if self.shared:
            base = Base(self.base.mean[chosen], self.base.variance[chosen])
            return self.up, self.down, base, None
        start = None if self.start is None else self.start[chosen]
        return self.up.rows(chosen), self.down.rows(chosen), self.base, start

    def keep(self, tilt: float, bands: Bands, beyond: float, log_error: float) -> None:
        """Compute nodes for the bands of a line through ``tilt`` and for a moment beyond it.

        Later demands that they meet use the same nodes. Errors are relative.
        """
        scale = self._scale(tilt)
        demands = [Demand(tilt, frequency, error + scale) for frequency, error in bands]
        demands.append(Demand(0.0, 0.0, min(d.log_error for d in demands)))
        demands.append(Demand(beyond, 0.0, log_error + self._scale(beyond)))
        self._kept = demands, *self._nodes(demands)

    def _nodes(self, demands: Sequence[Demand]) -> tuple[Array, Grid]:
        """Nodes for the demands, and the log of a bound on the error at each of them."""
        if self._kept is not None:
            kept, errors, grid = self._kept
            met = [
                next((i for i, other in enumerate(kept) if other.covers(one)), -1)
                for one in demands
            ]
            if min(met) >= 0:
                return errors[met], grid
        found = rule(self.up, self.down, self.measures, demands, self.start, self.cut, self.base)
        return found.log_errors, self._on(found.nodes, found.weights)

    def fall(self, tilt: float, frequency: float) -> float:
        """An estimate of the decrease of log |transform| from the real line to ``frequency``."""
        loss, log_mass = self.sample()
        mass = np.exp(log_mass + tilt * loss)
        total = mass.sum(axis=1)
        half = np.sin(frequency / 2 * loss)
        wave = np.abs(
            (mass * (1 - 2 * half * (half - 1j * np.cos(frequency / 2 * loss)))).sum(axis=1)
        )
        return float(self.few_counts @ np.log(total / np.maximum(wave, 1e-300)))

    def _on(self, nodes: Array, weights: Array, chosen: NDArray[np.intp] | None = None) -> Grid:
        """Losses, log masses, and rounding of both in rounding units, one row for each pair.

        If rows share their losses, the losses have one row.
        """
        sides = (self.up, self.down, self.base, self.start)
        right, left, base, start = sides if chosen is None else self._some(chosen)
        z = nodes[None, :] if start is None else nodes[None, :] + start[:, None]
        up, down = right.at(z), left.at(z)
        density = np.log(weights) + base.log(z)
        loss = up.log - down.log
        slip = up.rounding + down.rounding + (up.mean + down.mean) * np.abs(z)
        away = np.abs(z - base.mean) / base.variance
        # The base's mean and variance have rounding errors too.
        rough = 8 + np.abs(density) + away * (np.abs(z - base.mean) + np.abs(z))
        rough = rough + 2 * away * (np.abs(base.mean) + base.variance)
        losses = [m.sign * loss for m in self.measures]
        masses = [density + m.up * up.log for m in self.measures]
        roughs = [rough + m.up * up.rounding for m in self.measures]
        slips = [slip for _ in self.measures]
        found = (np.concatenate(x, axis=1) for x in (losses, masses, slips, roughs))
        return tuple(found)  # type: ignore[return-value]

    def sample(self) -> tuple[Array, Array]:
        """Losses and log masses for the choice of tilts, not for bounds."""
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
            points = ((edges[1:] + edges[:-1])[:, None] / 2 + half * _EIGHT_NODES).ravel()
            self._sample = self._on(points, np.tile(half * _EIGHT_WEIGHTS, panels), self._few)[:2]
        return self._sample

    def cumulant(self, tilts: Array) -> Array:
        """An estimate of log E e^{tilt·loss}, summed over the rounds, for each of ``tilts``."""
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
                # Beyond the sample only the component of the largest shift matters.
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

    def variance(self) -> float:
        """An estimate of the variance of the summed loss."""
        loss, log_mass = self.sample()
        mass = np.exp(log_mass)
        mean = (mass * loss).sum(axis=1)
        return float(((mass * loss * loss).sum(axis=1) - mean * mean) @ self.few_counts)

    def tilted(self, tilt: float) -> tuple[float, float, float]:
        """Estimates of mean, variance and third cumulant of the summed loss, tilted."""
        loss, log_mass = self.sample()
        size = log_mass + tilt * loss
        mass = np.exp(size - size.max(axis=1, keepdims=True))
        mass = mass / mass.sum(axis=1, keepdims=True)
        mean = (mass * loss).sum(axis=1, keepdims=True)
        away = loss - mean
        square = mass * away * away
        found = (mean[:, 0], square.sum(axis=1), (square * away).sum(axis=1))
        mean, variance, third = (float(self.few_counts @ x) for x in found)
        return mean, variance, third

    def log_moment_above(self, tilt: float, log_error: float) -> float:
        """A proven upper bound on log E e^{tilt·loss}, summed over the rounds."""
        scales = self._scales(tilt)
        everything = np.arange(self.size)
        # Errors are relative to the smallest moment, so very different moments are bounded one by
        # one.
        apart = self._few.size == self.size and float(np.ptp(scales)) > _APART
        parts = everything[:, None] if apart else everything[None, :]
        value = 0.0
        for rows in parts:
            scale = max(0.0, float(scales[rows].min() if apart else scales.min()))
            demands = [Demand(tilt, 0.0, log_error + scale), Demand(0.0, 0.0, log_error)]
            if rows.size == self.size:
                errors, grid = self._nodes(demands)
            else:
                up, down, base, start = self._some(rows)
                found = rule(up, down, self.measures, demands, start, self.cut, base)
                errors, grid = found.log_errors, self._on(found.nodes, found.weights, rows)
            here = Nodes(*grid, tilt)
            error = np.exp(errors).sum() + here.rounding(np.zeros(1), 1)[:, 0]
            most = here.rise.sum(axis=1) - self.lost[rows] * (1 - 1e-9) + 2 * error
            value += float(np.log1p(most) @ self.counts[rows])
        return value + 1e-12 * abs(value) + 1e-300

    def swing(self, tilt: float) -> Array:
        """Bounds on the derivative of each round's transform along the line, up to its rotation.

        It is at most √(M E (L - m)² e^(tilt·L)) by Cauchy and Schwarz, for any m, and x² is at most
        (2 sinh(hx/2)/h)².
        """
        scale = self._scale(tilt)
        h = min(0.5, 0.5 * tilt)
        tilts = (tilt, tilt + h, tilt - h)
        demands = [Demand(t, 0.0, scale - 16.0) for t in tilts]
        errors, (loss, log_mass, _, _) = self._nodes(demands)
        mass = np.exp(log_mass + tilt * loss)
        moment = mass.sum(axis=1)
        mean = (mass * loss).sum(axis=1) / moment
        turn = np.exp(h * np.abs(mean))
        error = np.exp(errors)
        square = (mass * (2 * np.sinh(h / 2 * (loss - mean[:, None])) / h) ** 2).sum(axis=1)
        square = square + (2 * error[0] + turn * (error[1] + error[2])) / h**2
        return np.asarray(np.sqrt((moment + error[0]) * square) * (1 + 1e-9))

    def _scales(self, tilt: float) -> Array:
        """Estimates of the logs of the representative rounds' moments.

        Raises:
            UnresolvedError: a moment leaves the range of a double.
        """
        loss, log_mass = self.sample()
        size = log_mass + tilt * loss
        top = size.max(axis=1, keepdims=True)
        log = top[:, 0] + np.log(np.exp(size - top).sum(axis=1))
        if not float(log.max()) < _LARGEST:
            raise UnresolvedError(f"a moment of e^{float(log.max()):.0f}")
        return np.asarray(log)

    def _scale(self, tilt: float) -> float:
        """An estimate of log of the smallest moment, at least 0: errors are relative to it."""
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

        With ``every`` above 1 only every so many rows are used. The others count with their value
        at ``tilt``, and the real part with its doubt is then only an upper bound. ``slack`` is
        added to the error bound of each round's transform.

        Returns:
            The transform, and the work it took, in multiplications.

        Raises:
            UnresolvedError: it would take more than ``most_work`` products.
        """
        log_error += self._scale(tilt)
        demands = [Demand(tilt, step * last, log_error), Demand(0.0, 0.0, log_error)]
        errors, nodes_of = self._nodes(demands)
        points = Nodes(*nodes_of, tilt)
        count = last - first
        used = np.arange(0, self.size, every)
        quadrature = 2 * float(np.exp(errors).sum())
        fine = max(1, min(512, math.isqrt(count)))
        grid = (-(-count // fine), fine)
        nodes = max(1, points.loss.shape[1])  # there are none if all panels are negligible
        # The estimate includes the powers of e^(i h l) and the panels, which cost more.
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
    """True if all pairs have one component of the same weight, against N(0, 1): one rate."""
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
    # Popoviciu's inequality. For log-concave weights at equal spacing, the posterior is more
    # log-concave than a Gaussian on that lattice, and its variance is not larger.
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
