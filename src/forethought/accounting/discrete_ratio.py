"""Likelihood ratios with finitely many values, and rounds that are bounded by them.

A :class:`DiscreteRatio` stands for a pair (P, Q) by the values and Q-masses of W = dP/dQ. Convexity
makes such laws bounds: δ(ε) = E_Q[(ΠW - e^ε)+], composed with anything, is convex in each round's
W, and so is the reverse E_Q[(1 - e^ε ΠW)+]. So a law that is larger in convex order bounds both
directions from above and one that is smaller bounds both from below, at every ε at once.

**Rounds in which a hit replaces something: bounds that do not double the distance.**

Without any of the records a round's sum is 0 (of a coordinate chosen by everything else); k of them
hit with probability w_k, h = Σ w_k in all, and the sum is then A_k in P and B_k in Q. Every two of
0, A_k and B_k are so many noise standard deviations apart, and nothing else is known of them, not
even a common direction. For every test T and α ≥ 1, as Σ_k w_k/h = 1,

P(T) - α Q(T) = Σ_k w_k/h [(1 - h)(1 - α) N(0)(T) + h N(A_k)(T) - α h N(B_k)(T)],

and a bracket is bounded by itself, as if k were told. With d the distance that A_k and B_k may be
from each other:

- *centre B_k*, where B_k is at most r from 0 and d = r: by Neyman and Pearson N(A_k)(T) is at most
  Φ(t + r) and N(0)(T) at least Φ(t - r) where N(B_k)(T) = Φ(t), all attained by one half line. So
  the bracket is at most the profile of (1 - h)N(0) + hN(2r) against (1 - h)N(0) + hN(r). Backwards,
  h N(B_k)(T) - (1 - h)(α - 1) N(0)(T) - α h N(A_k)(T) is at most the profile of (1 - h)N(0) + hN(r)
  against N(0), with A_k where 0 is.
- *any triangle* of sides at most r: a bracket is h times [N(A_k) - α'((1 - β)N(0) + β N(B_k))](T)
  with α' = 1 + (α - 1)/h (advanced joint convexity: Balle, Barthe and Gaboardi 2018, Theorem 2), at
  most the profile of (1 - h)N(0) + hN(r) against N(0), in both directions.

A profile for α ≥ 1 in one direction and one in the other make a privacy loss distribution: losses
above 0 are those of the first, losses below 0 those of the second with the sides exchanged, and
what is left has loss 0 (Zhu, Dong and Wang 2022, Theorem 11). Its law is bounded in convex order as
that of an epoch is: *above*, what lies in a cell is spread onto its ends, keeping its mean;
*below*, it is gathered at its mean.

**One epoch of random allocation, from above and below: sums of log-normal numbers.**

A record that is present goes to one of t rounds, so an epoch's likelihood ratio is W = (1/t) Σ X_i
with X_i = exp(a z_i - a²/2), a the distance that a round is moved by and z_i standard normal under
Q, the record's absence. (P = (1/t) Σ N(a e_i, I) against Q = N(0, I): Chua et al. 2024,
"Balls-and-bins sampling for DP-SGD"; Feldman and Shenfeld 2025, "Privacy amplification by random
allocation". Where sums are seen one by one, round i can move by any vector u_i of at most that
length that depends on what came before: a rotation, a contraction and independent noise, chosen by
what came before, turn round i of P and of Q into it, so both directions hold.)

W's law is bounded in convex order on a geometric grid:

- *above*, every value is spread onto its two neighbours on the grid, keeping its mean;
- *below*, values of one cell are gathered at their conditional mean (Jensen).

Both commute with sums of independent terms, so the mean of 2j terms is built from that of j, and of
j + 1 with one term more. What is cut off at the ends is charged above and forgotten below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from forethought.accounting.closed_bounds import Bounds, total_variation
from forethought.accounting.dominating_pair import EPS, Array, Pair
from forethought.accounting.transform import Line, Nodes, UnresolvedError, composed

_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class DiscreteRatio:
    """Values of log(dP/dQ) and what mass each has.

    Args:
        loss: log of the likelihood ratio W at each value.
        first, second: P- and Q-mass of each.
        doubt: bound on the relative error of every mass, and on the error of every loss.
        lost, lost_rest: bound on the mass of P and of Q that no value holds; 0 in a law that is a
            lower bound, where leaving out mass only lowers.
        two_sided: whether both directions have the same profile.
    """

    loss: Array
    first: Array
    second: Array
    doubt: float
    lost: float
    lost_rest: float
    two_sided: bool = False

    @property
    def gaussian(self) -> bool:
        """Never: it has finitely many values."""
        return False

    def delta(self, epsilon: float, *, swapped: bool) -> float:
        """About δ(ε) of one round in one direction."""
        loss, mass = (-self.loss, self.second) if swapped else (self.loss, self.first)
        return float(mass @ -np.expm1(np.minimum(epsilon - loss, 0.0)))

    def profile(self, epsilon: float) -> Bounds:
        """δ(ε) of one round, the larger of both directions, less and plus what it may be off by."""
        off = self.doubt + 64 * EPS
        low = max(self.delta(epsilon + off, swapped=side) for side in (False, True))
        high = max(
            self.delta(max(0.0, epsilon - off), swapped=side) + lost
            for side, lost in ((False, self.lost), (True, self.lost_rest))
        )
        slack = off + self.loss.size * EPS
        return Bounds(low * (1 - slack), min(1.0, high * (1 + slack)))


def varies(pair: Pair | DiscreteRatio) -> float:
    """An upper bound on δ(0) of one round."""
    return pair.profile(0.0).upper if isinstance(pair, DiscreteRatio) else total_variation(pair)


class RatioRows:
    """One law, composed ``count`` times in one direction; has what `contour.Total` asks of rows."""

    size = 1
    farthest = 0.0

    def __init__(self, law: DiscreteRatio, count: int, *, swapped: bool) -> None:
        self.counts = self.few_counts = np.array([float(count)])
        loss, mass = (-law.loss, law.second) if swapped else (law.loss, law.first)
        kept = mass > 1e-290
        order = np.argsort(mass[kept], kind="stable")
        self._all = loss[kept][order], mass[kept][order]
        self._lost = float(mass[~kept].sum())
        self._take(0)

    def _take(self, first: int) -> None:
        loss, mass = (x[first:] for x in self._all)
        self._loss, self._mass = loss[None, :], mass[None, :]
        self._log_mass = np.log(self._mass)
        self._gap = 1 - float(mass.sum())  # its rounding is charged with the masses'

    def truncate(self, cut: float) -> tuple[float, float, float]:
        """Leave out the least likely losses, of as much mass in all as a normal has beyond ``cut``.

        Returns:
            As `transform.Rows.truncate`: what is left out of the measure, summed over the rounds;
            from below nothing is made of it.
        """
        mass = self._all[1]
        first = int(np.searchsorted(np.cumsum(mass), float(ndtr(-cut))))
        self._take(min(first, mass.size - 1))
        gone = float(mass[:first].sum()) + self._lost
        return float(self.counts[0]) * gone * (1 + 1e-9), 0.0, 0.0

    def sample(self) -> tuple[Array, Array]:
        """Losses and log masses, shape (1, values)."""
        return self._loss, self._log_mass

    def cumulant(self, tilts: Array) -> Array:
        """About log E e^{tilt·loss}, summed over the rounds."""
        return np.array([float(self.counts[0]) * self._log_moment(float(t)) for t in tilts])

    def _log_moment(self, tilt: float) -> float:
        exponent = tilt * self._loss[0]
        top = float(np.max(self._log_mass[0] + exponent))
        if top > 30:
            return top + math.log(float(np.exp(self._log_mass[0] + exponent - top).sum()))
        rise = float(self._mass[0] @ np.expm1(np.minimum(exponent, 700.0)))
        return math.log1p(max(rise - self._gap, -0.999999))

    def spread(self) -> tuple[float, float]:
        """About the mean and the variance of the summed loss."""
        mass, loss = self._mass[0], self._loss[0]
        mean = float(mass @ loss)
        return mean * self.counts[0], (float(mass @ loss**2) - mean**2) * self.counts[0]

    def variance(self, tilt: float) -> float:
        """About the variance of the summed loss under the tilted measure."""
        size = self._log_mass[0] + tilt * self._loss[0]
        mass = np.exp(size - size.max())
        mass = mass / mass.sum()
        loss = self._loss[0]
        return float(self.counts[0] * (mass @ (loss - mass @ loss) ** 2))

    def log_moment_above(self, tilt: float, _log_error: float) -> float:
        """A certain upper bound on the log of the summed rounds' E e^{tilt·loss}."""
        value = self._log_moment(tilt)
        if not value < 600:
            raise UnresolvedError(f"a moment of e^{value:.0f}")
        units = self._loss.shape[1] + 16 + float(np.max(np.abs(tilt * self._loss)))
        return float(self.counts[0] * (value + 8 * EPS * units * (1 + math.exp(-value))))

    def swing(self, tilt: float) -> Array:
        """A bound on how fast the transform can change along the line, but for a turn."""
        mass, loss = self._mass[0] * np.exp(tilt * self._loss[0]), self._loss[0]
        moment = float(mass.sum())
        square = float(mass @ (loss - float(mass @ loss) / moment) ** 2)
        units = 1 + EPS * (loss.size + 16 + float(np.max(np.abs(tilt * loss))))
        return np.array([math.sqrt(moment * square) * units * (1 + 1e-9)])

    def along(
        self,
        tilt: float,
        step: float,
        first: int,
        last: int,
        _log_error: float,
        most_work: float,
        _every: int = 1,
        slack: Array | None = None,
    ) -> tuple[Line, float]:
        """The log transform at tilt + i k step for first ≤ k < last, and the work it took.

        ``slack`` is added to what it may be off by.

        Raises:
            UnresolvedError: it would take more than ``most_work`` products.
        """
        count, values = last - first, self._loss.shape[1]
        work = float(values) * (count + 300)
        if work > most_work:
            raise UnresolvedError(f"{values} x {count} products")
        slip = 4 + np.abs(self._loss)
        points = Nodes(self._loss, self._log_mass, slip, 8 + np.abs(self._log_mass), tilt)
        fine = max(1, min(64, math.isqrt(count)))
        chunk = max(fine, _AT_ONCE // values // fine * fine)
        total = Line(np.zeros(0), np.zeros(0), np.zeros(0))
        for at in range(first, last, chunk):
            some = min(chunk, last - at)
            grid = (-(-some // fine), fine)
            gap = points.gaps(step * at, step, grid)[:, :some] - self._gap
            error = points.rounding(step * np.arange(at, at + some, dtype=float), some)
            error = error + EPS * (1 + values) + (0.0 if slack is None else slack[:, None])
            found = composed(gap, error, self.counts)
            total = Line(*(np.concatenate(x) for x in zip(total, found, strict=True)))
        return total, work


# Distances for which laws are built, and the least hit · distance that they resolve.
LARGEST_DISTANCE, LEAST_MOVE = 18.0, 1e-8
MOST_HITS = 64
_NODES, _WEIGHTS = (np.asarray(x) for x in np.polynomial.legendre.leggauss(8))
_LOG_NORMAL = 0.5 * math.log(2 * math.pi)
# Standard deviations behind the farthest component: up to here in fine cells, and in all.
_NEAR, _FAR = 11.0, 35.5
_MOST_LOSSES = 3000
# Widths of cells up to there, at most 29 from the centre, and behind, at most 54 from it. The
# relative error of the rule is at most (width · away)^16 (8!)^4 / (17 (16!)^3), times 2 over what
# the loss changes in the cell where a cell is spread.
_WIDEST, _WIDEST_FAR = 0.06, 0.07
_QUADRATURE = 1e-13


@dataclass(frozen=True)
class DisclosedCount:
    """One round in which hits replace something, as a dominating pair.

    Args:
        hits: (distance, weight): r as above in noise standard deviations, and w_k.
        blanked: whether the centre is B_k; else any triangle.
        missed: 1 - h, to its own rounding.
        otherwise: a pair that dominates the round as well, less tightly.
        doubt: bound on the weights' relative errors. lost: on the mass that no component holds.
    """

    hits: tuple[tuple[float, float], ...]
    blanked: bool
    missed: float
    otherwise: Pair
    doubt: float = 0.0
    lost: float = 0.0

    @property
    def gaussian(self) -> bool:
        """Never: some batches hold none of the records."""
        return False

    @property
    def largest(self) -> float:
        """The largest distance between two of the three sums."""
        return max(r for r, _ in self.hits) * (2 if self.blanked else 1)


class _Side(NamedTuple):
    """Losses above 0 of missed·N(0) + hit·N(first) against missed·N(0) + hit·N(second).

    Without a ``second`` the latter is N(0).
    """

    missed: float
    hit: float
    first: float
    second: float

    @property
    def start(self) -> float:
        """Where the loss is 0."""
        return (self.first + self.second) / 2

    def log_ratio(self, z: Array, shift: float) -> Array:
        """log of missed·N(0) + hit·N(shift) over N(0)."""
        if shift == 0:
            return np.zeros_like(z)
        e = shift * z - shift * shift / 2
        near = np.log1p(self.hit * np.expm1(np.minimum(e, 30.0)))
        far = math.log(self.hit) + e + np.log1p(self.missed / self.hit * np.exp(-e))
        return np.where(e > 30, far, near)

    def loss(self, z: Array) -> Array:
        """At most a few rounding units of itself and of its exponents off."""
        return self.log_ratio(z, self.first) - self.log_ratio(z, self.second)

    def beyond(self, z: float) -> tuple[float, float]:
        """P- and Q-mass right of ``z``."""
        tails = [float(ndtr(shift - z)) for shift in (0.0, self.first, self.second)]
        rest = self.missed * tails[0]
        return rest + self.hit * tails[1], rest + self.hit * tails[2]


@lru_cache(maxsize=512)
def disclosed_ratios(
    disclosed: DisclosedCount, fineness: float
) -> tuple[DiscreteRatio, DiscreteRatio]:
    """A lower and an upper bound, in convex order, on a round's likelihood ratio.

    Args:
        disclosed: its largest distance at most :data:`LARGEST_DISTANCE`.
        fineness: 1 is good for intervals of about 1e-3.
    """
    return _disclosed_ratio(disclosed, fineness, above=False), _disclosed_ratio(
        disclosed, fineness, above=True
    )


def _disclosed_ratio(disclosed: DisclosedCount, fineness: float, *, above: bool) -> DiscreteRatio:
    hit = math.fsum(w for _, w in disclosed.hits)
    rows: list[tuple[Array, Array, Array]] = []
    lost, lost_rest, doubt = disclosed.lost, disclosed.lost, disclosed.doubt
    still = 0.0
    for r, weight in disclosed.hits:
        share = weight / hit
        ahead = _Side(
            disclosed.missed,
            hit,
            2 * r if disclosed.blanked else r,
            r if disclosed.blanked else 0.0,
        )
        behind = _Side(disclosed.missed, hit, r, 0.0)
        for side, sign in ((ahead, 1.0), (behind, -1.0)):
            coarse = fineness * (1 + min(3.0, -math.log10(max(share, 1e-300)) / 4))
            loss, first, second, gone, off = _cells(side, coarse, above)
            if sign < 0:
                first, second, gone = second, first, gone[::-1]
            rows.append((sign * loss, share * first, share * second))
            lost, lost_rest = lost + share * gone[0], lost_rest + share * gone[1]
            doubt = max(doubt, disclosed.doubt + off)
        # Φ(r/2) - Φ(-start) is what neither side holds of either measure.
        nearest = float(ndtr(r / 2))
        still += share * disclosed.missed * (nearest - float(ndtr(-ahead.start)))
    rows.append((np.zeros(1), np.full(1, still), np.full(1, still)))
    loss, first, second = (np.concatenate(x) for x in zip(*rows, strict=True))
    doubt += _QUADRATURE + EPS * 64
    if loss.size > _MOST_LOSSES / fineness:
        loss, first, second = _fewer(loss, second, int(_MOST_LOSSES / fineness), above)
        doubt += EPS * loss.size
    if not above:
        lost = lost_rest = 0.0
    # In a triangle losses above 0 of one direction are those of the other, mirrored.
    same = not disclosed.blanked
    return DiscreteRatio(
        loss, first, second, doubt, lost * (1 + 1e-9), lost_rest * (1 + 1e-9), same
    )


def _fewer(loss: Array, second: Array, most: int, above: bool) -> tuple[Array, Array, Array]:
    """The same law with about ``most`` losses, spread or gathered once more."""
    order = np.argsort(loss, kind="stable")
    loss, second = loss[order], second[order]
    grid = np.unique(np.append(loss[:: math.ceil(loss.size / most)], loss[-1]))
    at = np.clip(np.searchsorted(grid, loss, side="right") - 1, 0, grid.size - 2)
    rise = loss - grid[at]
    if above:
        right = np.expm1(rise) / np.expm1(grid[at + 1] - grid[at])
        found: Array = np.bincount(at, second * (1 - right), grid.size).astype(float)
        found += np.bincount(at + 1, second * right, grid.size)
    else:
        found = np.bincount(at, second, grid.size).astype(float)
        kept = found > 0
        more = np.bincount(at, second * np.expm1(rise), grid.size)[kept] / found[kept]
        grid, found = grid[kept] + np.log1p(more), found[kept]
    return grid, np.exp(np.log(np.maximum(found, 1e-320)) + grid), found


def _cells(
    side: _Side, fineness: float, above: bool
) -> tuple[Array, Array, Array, tuple[float, float], float]:
    """Losses, P- and Q-masses right of where the loss is 0; what is cut off; doubt of masses."""
    step = min(_WIDEST, fineness * min(0.03, 0.02 * max(1.0, 1 / side.first)))
    wide = min(_WIDEST_FAR, 4 * step)
    near = side.first + _NEAR
    fine = np.linspace(side.start, near, math.ceil((near - side.start) / step) + 1)
    coarse = np.linspace(near, side.first + _FAR, math.ceil((_FAR - _NEAR) / wide) + 1)
    edges = np.concatenate([fine, coarse[1:]])
    low, width = edges[:-1, None], np.diff(edges)[:, None]
    z = low + width * (_NODES + 1) / 2
    ends = side.loss(edges)
    rise = side.loss(z) - ends[:-1, None]
    gap = np.diff(ends)[:, None]
    log_q = side.log_ratio(z, side.second) - 0.5 * z * z - _LOG_NORMAL
    mass = np.exp(log_q) * (_WEIGHTS * width / 2)
    # Differences of losses are off by what losses are, relatively more in narrow cells.
    size = 8 + 4 * np.abs(side.first * edges[1:]) + 4 * side.first**2
    slip = EPS * size * np.maximum(np.abs(ends[1:]), EPS) / gap[:, 0]
    if above:
        right = np.expm1(rise) / np.expm1(gap)
        second = np.zeros(edges.size)
        second[:-1] += (mass * (1 - right)).sum(axis=1)
        second[1:] += (mass * right).sum(axis=1)
        loss = ends
    else:
        second = mass.sum(axis=1)
        most = np.maximum(second, 1e-320)  # where there is nothing, it is left out
        loss = ends[:-1] + np.log1p((mass * np.expm1(rise)).sum(axis=1) / most)
    kept = second > 0
    loss, second = loss[kept], second[kept]
    first = np.exp(np.log(second) + loss)
    return loss, first, second, side.beyond(float(edges[-1])), float(slip.max())


# What the ends that are cut off may hold in all.
CUT = 1e-20
# Beyond this a single term leaves the range of a double.
MOST_ROUNDS = 10**7
# Relative error of the quadrature of a cell: cells are narrow beside the bell.
_EPOCH_QUADRATURE = 1e-12
_NARROW = 0.15


@dataclass(frozen=True)
class Epoch:
    """One epoch of random allocation, as a dominating pair.

    Args:
        distance: how far a record moves the round that holds it, in noise standard deviations.
        rounds: of an epoch. used: how many of them were released, from 1 to ``rounds``.
    """

    distance: float
    rounds: int
    used: int

    @property
    def gaussian(self) -> bool:
        """A single round is a Gaussian, and entered as one."""
        return False


@dataclass
class _Mean:
    """Law of the mean of ``terms`` terms: ``mass`` at exp(step·(first + k)), or in that cell.

    ``moment`` holds the cells' first moments where values are gathered, None where they are spread.
    ``lost`` is a bound on the Q-mass that was cut off, ``lost_moment`` on its first moment.
    """

    terms: int
    step: float
    first: int
    mass: Array
    moment: Array | None
    lost: float
    lost_moment: float

    @property
    def places(self) -> Array:
        return np.asarray(self.step * (self.first + np.arange(self.mass.size, dtype=float)))


@lru_cache(maxsize=256)
def epoch_ratios(epoch: Epoch, fineness: float) -> tuple[DiscreteRatio, DiscreteRatio]:
    """A lower and an upper bound, in convex order, on an epoch's likelihood ratio.

    Args:
        epoch: its distance at most :data:`LARGEST_DISTANCE`.
        fineness: 1 is good for intervals of about 1e-3; half of it costs four times as much.
    """
    return _epoch_ratio(epoch, fineness, above=False), _epoch_ratio(epoch, fineness, above=True)


def _epoch_ratio(epoch: Epoch, fineness: float, *, above: bool) -> DiscreteRatio:
    a, t = epoch.distance, epoch.used
    variance = math.log1p(math.expm1(min(a * a, 300.0)) / t)
    last_step = fineness * math.sqrt(2e-3 * variance)
    coarse = min(0.016 * fineness * max(1.0, a), _NARROW * a, last_step * math.sqrt(t))
    step = last_step * 2.0 ** math.floor(math.log2(coarse / last_step))
    one = _one_term(a, step, t, above)
    found, most = one, one.mass.size
    for bit in f"{t:b}"[1:]:
        found = _finer(found, last_step * math.sqrt(t / (2 * found.terms)) * 1.42)
        found = _trimmed(_doubled(found), t)
        most = max(most, found.mass.size)
        if bit == "1":
            # One term of many: a few of its values are enough.
            few = min(step * math.isqrt(found.terms), _NARROW * a)
            found = _trimmed(_with_one_more(found, _one_term(a, few, t, above)), t)
    if above:
        value, mass = np.exp(found.places), found.mass
    else:
        assert found.moment is not None
        kept = found.mass > 0
        mass = found.mass[kept]
        value = found.moment[kept] / mass
    # A record whose round was not released left no trace.
    share = t / epoch.rounds
    value = 1 + share * (value - 1) if share < 1 else value
    # A relative error of each mass, and the places of values, each level's a rounding off.
    doubt = 2 * t * (_EPOCH_QUADRATURE + EPS * (most + 64))
    doubt += 64 * EPS * math.log2(2 * t) * (1 + float(np.max(np.abs(np.log(value)))) + a * a)
    lost_first = share * found.lost_moment + (1 - share) * found.lost
    return DiscreteRatio(
        np.log(value),
        mass * value,
        mass,
        doubt,
        lost_first * (1 + 1e-9) if above else 0.0,
        found.lost * (1 + 1e-9) if above else 0.0,
    )


def _one_term(a: float, step: float, terms: int, above: bool) -> _Mean:
    """A single term on the grid: the cells' masses by quadrature, relatively accurate."""
    far = -float(ndtri(CUT / (8 * terms)))
    first = math.floor((-a * far - a * a / 2) / step)
    last = math.ceil((a * (far + a) - a * a / 2) / step)
    edges = np.arange(first, last, dtype=float)[:, None] * step
    inside = step * (_NODES + 1) / 2
    z = (edges + inside + a * a / 2) / a
    bell = np.exp(-0.5 * z * z - _LOG_NORMAL) * (_WEIGHTS * step / (2 * a))
    # Mass beyond the ends, under Q and with its first moment (which is P's).
    low, high = (first * step + a * a / 2) / a, (last * step + a * a / 2) / a
    lost = (float(ndtr(low)) + float(ndtr(-high))) * (1 + 1e-9)
    lost_moment = (float(ndtr(low - a)) + float(ndtr(a - high))) * (1 + 1e-9)
    mass = np.zeros(last - first + 1)
    if above:
        mass[:-1] += (bell * (np.expm1(inside - step) / math.expm1(-step))).sum(axis=1)
        mass[1:] += (bell * (np.expm1(inside) / math.expm1(step))).sum(axis=1)
        return _Mean(1, step, first, mass, None, lost, lost_moment)
    mass[:-1] = bell.sum(axis=1)
    moment = np.zeros_like(mass)
    moment[:-1] = (bell * np.exp(edges + inside)).sum(axis=1)
    return _gathered(mass, moment, 1, step)


def _gathered(mass: Array, moment: Array, terms: int, step: float) -> _Mean:
    """Cells by where their means lie; several in one cell become one."""
    kept = mass > 1e-280
    mass, moment = mass[kept], moment[kept]
    place = np.floor(np.log(moment / mass) / step).astype(np.int64)
    first = int(place.min())
    at, size = place - first, int(place.max()) - first + 1
    return _Mean(
        terms,
        step,
        first,
        np.bincount(at, mass, size).astype(float),
        np.bincount(at, moment, size).astype(float),
        0.0,
        0.0,
    )


def _finer(law: _Mean, wanted: float) -> _Mean:
    """The same law on a grid whose step is at most ``wanted``: cut into a power of two."""
    cuts = max(0, math.ceil(math.log2(law.step / wanted))) if law.step > wanted else 0
    if not cuts:
        return law
    by, step = 2**cuts, law.step / 2**cuts
    if law.moment is not None:
        return _gathered(law.mass, law.moment, law.terms, step)
    mass = np.zeros((law.mass.size - 1) * by + 1)
    mass[::by] = law.mass
    return _Mean(law.terms, step, law.first * by, mass, None, law.lost, law.lost_moment)


def _doubled(law: _Mean) -> _Mean:
    """The mean of two independent draws: the log of (e^x + e^y)/2 is x plus a function of y - x."""
    n, h = law.mass.size, law.step
    q = law.mass
    rise = np.log1p(np.expm1(h * np.arange(n)) / 2)
    far = h * np.arange(n) > 30
    rise[far] = (h * np.arange(n) + np.log1p(np.exp(-np.minimum(h * np.arange(n), 700.0))))[
        far
    ] - math.log(2)
    if law.moment is None:
        shift = np.minimum(np.floor(rise / h).astype(np.int64), n - 1)
        over = np.clip(rise - h * shift, 0.0, h)
        right = np.expm1(over) / math.expm1(h)
        left = np.expm1(over - h) / math.expm1(-h)
        out = np.zeros(n + 1)
        for d in range(n):
            m = shift[d]
            pairs = q[: n - d] * q[d:] * (2.0 if d else 1.0)
            out[m : m + n - d] += left[d] * pairs
            out[m + 1 : m + 1 + n - d] += right[d] * pairs
        lost = 2 * law.lost
        # Either half may be the one that was cut off; the other then has mean 1 at most.
        lost_moment = law.lost_moment + law.lost
        return _Mean(2 * law.terms, h, law.first, out, None, lost, lost_moment)
    r = law.moment
    shift = np.floor(rise / h + 0.5).astype(np.int64)
    out, moments = np.zeros(n + 1), np.zeros(n + 1)
    for d in range(n):
        m = shift[d]
        scale = 2.0 if d else 1.0
        out[m : m + n - d] += scale * (q[: n - d] * q[d:])
        moments[m : m + n - d] += (scale / 2) * (r[: n - d] * q[d:] + q[: n - d] * r[d:])
    return _gathered(out, moments, 2 * law.terms, h)


def _with_one_more(law: _Mean, one: _Mean) -> _Mean:
    """The mean of one term more."""
    j, h = law.terms, law.step
    old, new = j / (j + 1), 1 / (j + 1)
    lost, lost_moment = (
        law.lost + one.lost,
        old * (law.lost_moment + one.lost) + new * (law.lost + one.lost_moment),
    )
    if law.moment is None or one.moment is None:
        values, more = np.exp(law.places), np.exp(one.places)
    else:
        values = np.where(law.mass > 0, law.moment / np.where(law.mass > 0, law.mass, 1), 1.0)
        more = np.where(one.mass > 0, one.moment / np.where(one.mass > 0, one.mass, 1), 1.0)
    lowest = math.floor(math.log(old * values.min() + new * more.min()) / h) - 1
    size = math.ceil(math.log(old * values.max() + new * more.max()) / h) + 3 - lowest
    out, moments = np.zeros(size), np.zeros(size)
    for value, weight in zip(more, one.mass, strict=True):
        if weight <= 0:
            continue
        both = old * values + new * value
        place = np.log(both) / h - lowest
        at = np.floor(place).astype(np.int64)
        mass = law.mass * weight
        if law.moment is None:
            over = np.clip(h * (place - at), 0.0, h)
            out += np.bincount(at, mass * (np.expm1(over - h) / math.expm1(-h)), size)
            out += np.bincount(at + 1, mass * (np.expm1(over) / math.expm1(h)), size)
        else:
            out += np.bincount(at, mass, size)
            moments += np.bincount(at, mass * both, size)
    if law.moment is None:
        return _Mean(j + 1, h, lowest, out, None, lost, lost_moment)
    return _gathered(out, moments, j + 1, h)


def _trimmed(law: _Mean, terms: int) -> _Mean:
    """Without ends that hold next to nothing of what the whole epoch has."""
    value = np.exp(law.places + (law.step if law.moment is not None else 0.0))
    copies = terms / law.terms
    # Of Q, and of P: the sum's own share of the mean, and that of all other terms.
    weight = copies * law.mass * np.maximum(1.0, value / copies + 1)
    tiny = CUT / (64 * math.log2(2 * terms))
    low = int(np.searchsorted(np.cumsum(weight), tiny))
    high = law.mass.size - int(np.searchsorted(np.cumsum(weight[::-1]), tiny))
    cut = np.concatenate([law.mass[:low], law.mass[high:]])
    at = np.concatenate([value[:low], value[high:]])
    return _Mean(
        law.terms,
        law.step,
        law.first + low,
        law.mass[low:high],
        None if law.moment is None else law.moment[low:high],
        law.lost + float(cut.sum()),
        law.lost_moment + float(cut @ at),
    )
