"""Likelihood ratios with finitely many values, as bounds on rounds.

A :class:`DiscreteRatio` represents a pair (P, Q) by the values and Q-masses of W = dP/dQ. Such laws
are bounds by convexity: δ(ε) = E_Q[(ΠW - e^ε)+], in any composition, is convex in each round's W,
and so is the reverse E_Q[(1 - e^ε ΠW)+]. So a law that is larger in convex order bounds both
directions from above, and a smaller one bounds both from below, at every ε.

**Rounds in which a hit replaces a contribution: bounds that do not double the distance.**

Without any of the records a round's sum is 0 (in coordinates that depend on all other records). k
of the records hit with probability w_k, h = Σ w_k in total, and the sum is then A_k in P and B_k in
Q. Only bounds on the distances between 0, A_k and B_k, in noise standard deviations, are known, not
their directions. For every test T and α ≥ 1, as Σ_k w_k/h = 1,

P(T) - α Q(T) = Σ_k w_k/h [(1 - h)(1 - α) N(0)(T) + h N(A_k)(T) - α h N(B_k)(T)],

and each bracket is bounded separately, as if k were disclosed. With d the largest distance of A_k
and B_k:

- *centre B_k*, where B_k is at most r from 0 and d = r: by Neyman and Pearson N(A_k)(T) is at most
  Φ(t + r) and N(0)(T) at least Φ(t - r) where N(B_k)(T) = Φ(t), all attained by one half line. So
  the bracket is at most the profile of (1 - h)N(0) + hN(2r) against (1 - h)N(0) + hN(r). In the
  other direction, h N(B_k)(T) - (1 - h)(α - 1) N(0)(T) - α h N(A_k)(T) is at most the profile of
  (1 - h)N(0) + hN(r) against N(0), with A_k at 0.
- *any triangle* of sides at most r: a bracket is h times [N(A_k) - α'((1 - β)N(0) + β N(B_k))](T)
  with α' = 1 + (α - 1)/h (advanced joint convexity: Balle, Barthe and Gaboardi 2018, Theorem 2), at
  most the profile of (1 - h)N(0) + hN(r) against N(0), in both directions.

A profile for α ≥ 1 in one direction and one in the other determine a privacy loss distribution:
losses above 0 are those of the first, losses below 0 those of the second with the sides exchanged,
and the rest has loss 0 (Zhu, Dong and Wang 2022, Theorem 11). Its law is bounded in convex order
like that of an epoch: *above*, the mass of a cell is spread onto its ends with the same mean;
*below*, it is gathered at its mean.

**One epoch of random allocation, from above and below: sums of log-normal numbers.**

A record that is present goes to one of t rounds, so an epoch's likelihood ratio is W = (1/t) Σ X_i
with X_i = exp(a z_i - a²/2), a the distance by which a round is moved and z_i standard normal under
Q, the record's absence. (P = (1/t) Σ N(a e_i, I) against Q = N(0, I): Chua et al. 2024,
"Balls-and-bins sampling for DP-SGD"; Feldman and Shenfeld 2025, "Privacy amplification by random
allocation". If sums are released one by one, round i can move by any vector u_i of at most that
length that depends on earlier sums: a rotation, a contraction and independent noise, chosen by
the earlier sums, map round i of P and of Q to it, so both directions hold.)

W's law is bounded in convex order on lattices:

- *above*, every term is spread onto its two neighbours on a lattice, with the same mean;
- *below*, values of one cell are gathered at their conditional mean (Jensen).

Both commute with sums of independent terms, so the sum of 2j terms is built from that of j terms,
and that of j + 1 terms by adding one term. A sum of two numbers on a lattice is on the same
lattice. So mass is spread again only in the change to a lattice twice as wide, whose points are
every other point of the narrower one: for the upper bound, half of each odd point's mass goes to
either side, exactly. The lattices 2^r Z are like floating-point numbers: they are wider at a larger
distance from the bulk of the law. Each has some hundred points and is convolved once with the sum
of all narrower ones, in positive numbers. Mass that is cut off at the ends is charged in the upper
bound and dropped in the lower one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from forethought.accounting.dominating_pair import EPS, Array, Bounds, Pair, total_variation
from forethought.accounting.transform import FEW, Line, Nodes, UnresolvedError, composed

_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class DiscreteRatio:
    """Values of log(dP/dQ) with their masses.

    Args:
        loss: log of the likelihood ratio W at each value, shape (values,).
        first, second: P- and Q-mass of each value, shape (values,).
        doubt: bound on the relative error of every mass, and on the error of every loss.
        lost, lost_rest: bounds on the mass of P and of Q at no value; 0 in a law that is a lower
            bound, where omitted mass only lowers the bound.
        two_sided: True if both directions have the same profile.
    """

    loss: Array
    first: Array
    second: Array
    doubt: float
    lost: float
    lost_rest: float
    two_sided: bool = False
    #: It has finitely many values.
    gaussian: ClassVar[bool] = False
    integrable: ClassVar[bool] = True

    def ratios(self, _fineness: float) -> tuple[DiscreteRatio, DiscreteRatio]:
        """The law itself as lower and upper bound."""
        return self, self

    def delta(self, epsilon: float, *, swapped: bool) -> float:
        """δ(ε) of one round in one direction, without its error bounds."""
        loss, mass = (-self.loss, self.second) if swapped else (self.loss, self.first)
        return float(mass @ -np.expm1(np.minimum(epsilon - loss, 0.0)))

    def above(self, level: float) -> tuple[float, float]:
        """P- and Q-mass of losses above ``level``."""
        beyond = self.loss > level
        return float(self.first[beyond].sum()), float(self.second[beyond].sum())

    def profile(self, epsilon: float, *, swapped: bool) -> Bounds:
        """Bounds on δ(ε) of one round in one direction."""
        off = self.doubt + 64 * EPS
        slack = off + self.loss.size * EPS
        low = self.delta(epsilon + off, swapped=swapped)
        high = self.delta(max(0.0, epsilon - off), swapped=swapped)
        high += self.lost_rest if swapped else self.lost
        return Bounds(low * (1 - slack), min(1.0, high * (1 + slack)))


def varies(pair: Pair | DiscreteRatio) -> float:
    """An upper bound on δ(0) of one round."""
    if isinstance(pair, Pair):
        return total_variation(pair)
    return max(pair.profile(0.0, swapped=side).upper for side in (False, True))


class RatioRows:
    """One law, composed ``count`` times in one direction, with the interface of IntegratedPairs.

    ``few_counts`` is the number of rounds that it represents in the choice of lines, not in bounds.
    """

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
        """Leave out the least likely losses, with the total mass of a normal law beyond ``cut``.

        Returns:
            As :meth:`~forethought.accounting.transform.IntegratedPairs.truncate`: a bound on the
            mass left out, summed over the rounds; then 0 and 0, since lower bounds do not use it.
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
        """An estimate of log E e^{tilt·loss}, summed over the rounds that the law represents."""
        count = float(self.few_counts[0])
        return np.array([count * self._log_moment(float(t)) if count else 0.0 for t in tilts])

    def _log_moment(self, tilt: float) -> float:
        exponent = tilt * self._loss[0]
        top = float(np.max(self._log_mass[0] + exponent))
        if top > 30:
            return top + math.log(float(np.exp(self._log_mass[0] + exponent - top).sum()))
        rise = float(self._mass[0] @ np.expm1(np.minimum(exponent, 700.0)))
        return math.log1p(max(rise - self._gap, -0.999999))

    def variance(self) -> float:
        """An estimate of the variance of the summed loss."""
        mass, loss = self._mass[0], self._loss[0]
        return (float(mass @ loss**2) - float(mass @ loss) ** 2) * float(self.few_counts[0])

    def tilted(self, tilt: float) -> tuple[float, float, float]:
        """Estimates of mean, variance and third cumulant of the summed loss, tilted."""
        if not self.few_counts[0]:
            return 0.0, 0.0, 0.0
        size = self._log_mass[0] + tilt * self._loss[0]
        mass = np.exp(size - size.max())
        mass = mass / mass.sum()
        mean = float(mass @ self._loss[0])
        away, count = self._loss[0] - mean, float(self.few_counts[0])
        return count * mean, count * float(mass @ away**2), count * float(mass @ away**3)

    def fall(self, tilt: float, frequency: float) -> float:
        """An estimate of the decrease of log |transform| from the real line to ``frequency``."""
        mass = self._mass[0] * np.exp(np.minimum(tilt * self._loss[0], 600.0))
        wave = abs(complex(mass @ np.exp(1j * frequency * self._loss[0])))
        return float(self.few_counts[0] * -math.log(max(wave / float(mass.sum()), 1e-300)))

    def log_moment_above(self, tilt: float, _log_error: float) -> float:
        """A proven upper bound on log E e^{tilt·loss}, summed over the rounds."""
        value = self._log_moment(tilt)
        if not value < 600:
            raise UnresolvedError(f"a moment of e^{value:.0f}")
        units = self._loss.shape[1] + 16 + float(np.max(np.abs(tilt * self._loss)))
        return float(self.counts[0] * (value + 8 * EPS * units * (1 + math.exp(-value))))

    def swing(self, tilt: float) -> Array:
        """A bound on the derivative of the transform along the line, up to its rotation."""
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

        ``slack`` is added to its error bound.

        Raises:
            UnresolvedError: it would take more than ``most_work`` products.
        """
        count, values = last - first, self._loss.shape[1]
        work = float(values) * (count + 300)
        if work > most_work:
            raise UnresolvedError(f"{values} x {count} products")
        slip = 4 + np.abs(self._loss)
        points = Nodes(self._loss, self._log_mass, slip, 8 + np.abs(self._log_mass), tilt)
        most = max(2, _AT_ONCE // (4 * values))
        fine = max(1, min(512, math.isqrt(count), most // 2))
        chunk = fine * (most - fine)
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


def represented(rows: list[RatioRows]) -> None:
    """Let a few laws represent all similar ones in the choice of lines."""
    if len(rows) <= FEW:
        return
    alike = sorted(rows, key=lambda row: row.variance() / row.counts[0])
    size = -(-len(rows) // FEW)
    for group in (alike[i : i + size] for i in range(0, len(alike), size)):
        total = math.fsum(float(row.counts[0]) for row in group)
        for row in group:
            row.few_counts = np.zeros(1)
        group[len(group) // 2].few_counts = np.array([total])


# Largest distance for which laws are built, and the least hit · distance that they resolve.
LARGEST_DISTANCE, LEAST_MOVE = 18.0, 1e-8
MOST_HITS = 64
_NODES, _WEIGHTS = (np.asarray(x) for x in np.polynomial.legendre.leggauss(8))
_LOG_NORMAL = 0.5 * math.log(2 * math.pi)
# Ends of the fine cells and of all cells, in standard deviations beyond the farthest component.
_NEAR, _FAR = 11.0, 35.5
_MOST_LOSSES = 3000
# Largest widths of the fine cells (at most 29 from the centre) and of the others (at most 54 from
# it). The relative error of the rule is at most (width · away)^16 (8!)^4 / (17 (16!)^3), times 2
# over the change of the loss in the cell if the cell is spread.
_WIDEST, _WIDEST_FAR = 0.06, 0.07
_QUADRATURE = 1e-13


@dataclass(frozen=True)
class DisclosedCount:
    """A dominating pair of one round in which hits replace a contribution, as if k were disclosed.

    Args:
        hits: (distance, weight): r of the module's docstring in noise standard deviations, and w_k.
        blanked: True for the case *centre B_k*, False for *any triangle*.
        missed: 1 - h, with full relative accuracy.
        otherwise: another pair that dominates the round: that of half lines.
        doubt: bound on the weights' relative errors.
        lost: bound on the mass in no component.
    """

    hits: tuple[tuple[float, float], ...]
    blanked: bool
    missed: float
    otherwise: Pair
    doubt: float = 0.0
    lost: float = 0.0
    #: Never Gaussian, since some batches hold none of the records.
    gaussian: ClassVar[bool] = False
    integrable: ClassVar[bool] = True

    def ratios(self, fineness: float) -> tuple[DiscreteRatio, DiscreteRatio]:
        """A lower and an upper bound, in convex order, on the round's likelihood ratio."""
        return disclosed_ratios(self, fineness)

    @property
    def largest(self) -> float:
        """The largest distance between two of the three sums."""
        return max(r for r, _ in self.hits) * (2 if self.blanked else 1)

    @property
    def resolved(self) -> bool:
        """True if its bounds can be built: few hits, and distances in the resolved range."""
        least = (1 - self.missed) * self.hits[0][0]
        near = self.largest <= LARGEST_DISTANCE and least >= LEAST_MOVE
        return near and len(self.hits) <= MOST_HITS


# Losses, P-masses and Q-masses.
_Masses = tuple[Array, Array, Array]


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
        """The point at which the loss is 0."""
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
        """The loss at ``z``, up to a few rounding units of itself and of its exponents."""
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
        disclosed: a pair whose largest distance is at most :data:`LARGEST_DISTANCE`.
        fineness: scale of the cells; 1 gives intervals of about 1e-3.
    """
    hit = math.fsum(w for _, w in disclosed.hits)
    # Losses, P- and Q-masses of the lower bound and of the upper one.
    rows: tuple[list[_Masses], list[_Masses]] = ([], [])
    lost, lost_rest, doubt = disclosed.lost, disclosed.lost, disclosed.doubt
    still = 0.0
    for r, weight in disclosed.hits:
        share = weight / hit
        ahead = _Side(disclosed.missed, hit, *((2 * r, r) if disclosed.blanked else (r, 0.0)))
        behind = _Side(disclosed.missed, hit, r, 0.0)
        for side, sign in ((ahead, 1.0), (behind, -1.0)):
            coarse = fineness * (1 + min(3.0, -math.log10(max(share, 1e-300)) / 4))
            both, gone, off = _cells(side, coarse)
            for found, (loss, first, second) in zip(rows, both, strict=True):
                masses = (first, second) if sign > 0 else (second, first)
                found.append((sign * loss, share * masses[0], share * masses[1]))
            gone = gone if sign > 0 else gone[::-1]
            lost, lost_rest = lost + share * gone[0], lost_rest + share * gone[1]
            doubt = max(doubt, disclosed.doubt + off)
        # The mass of loss 0 in either measure, relative to missed, is Φ(r/2) - Φ(-start).
        nearest = float(ndtr(r / 2))
        still += share * disclosed.missed * (nearest - float(ndtr(-ahead.start)))
    doubt += _QUADRATURE + EPS * 64
    below, above = (
        _united([*found, (np.zeros(1), np.full(1, still), np.full(1, still))], fineness, end)
        for found, end in zip(rows, (False, True), strict=True)
    )
    # In a triangle both directions have the same losses above 0.
    same = not disclosed.blanked
    ends = ((below, (0.0, 0.0)), (above, (lost * (1 + 1e-9), lost_rest * (1 + 1e-9))))
    low, high = (
        DiscreteRatio(*masses, doubt + more, *charged, same) for (masses, more), charged in ends
    )
    return low, high


def _united(rows: list[_Masses], fineness: float, above: bool) -> tuple[_Masses, float]:
    """All laws as one, and the increase of its doubt."""
    loss, first, second = (np.concatenate(x) for x in zip(*rows, strict=True))
    if loss.size <= _MOST_LOSSES / fineness:
        return (loss, first, second), 0.0
    found = _fewer(loss, second, int(_MOST_LOSSES / fineness), above)
    return found, EPS * found[0].size


def _fewer(loss: Array, second: Array, most: int, above: bool) -> tuple[Array, Array, Array]:
    """The law with about ``most`` losses, spread (``above``) or gathered once more."""
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
    side: _Side, fineness: float
) -> tuple[tuple[_Masses, _Masses], tuple[float, float], float]:
    """Losses above 0 with their P- and Q-masses, in cells.

    Returns:
        The gathered and the spread masses; the P- and Q-mass cut off; the masses' relative error.
    """
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
    # The errors of losses matter relatively more for their differences in narrow cells.
    size = 8 + 4 * np.abs(side.first * edges[1:]) + 4 * side.first**2
    slip = EPS * size * np.maximum(np.abs(ends[1:]), EPS) / gap[:, 0]
    right = np.expm1(rise) / np.expm1(gap)
    spread = np.zeros(edges.size)
    spread[:-1] += (mass * (1 - right)).sum(axis=1)
    spread[1:] += (mass * right).sum(axis=1)
    gathered = mass.sum(axis=1)
    most = np.maximum(gathered, 1e-320)  # empty cells are left out below
    mean = ends[:-1] + np.log1p((mass * np.expm1(rise)).sum(axis=1) / most)
    below, above = (
        (loss[held], np.exp(np.log(second[held]) + loss[held]), second[held])
        for loss, second, held in ((mean, gathered, gathered > 0), (ends, spread, spread > 0))
    )
    return (below, above), side.beyond(float(edges[-1])), float(slip.max())


# Total mass that may be cut off at the ends, and a bound on the mass lost to underflow.
CUT, _UNDERFLOW = 1e-20, 1e-100
MOST_ROUNDS = 10**7
# Largest width of a term's cells, in standard deviations; they are at most 33 from the centre. The
# quadrature's relative error is as above, with the factor 2 over the term's change in the cell.
_WIDEST_OF_TERM = 0.1
# Points of a lattice on either side of its middle; fewer at a large distance, unless the law is
# much narrower than its mean.
_HALF, _LEAST_HALF = 224, 64
# Below this ratio of the sum's spread and mean, lattices lie around the mean, otherwise around 0.
_NARROW = 0.25


@dataclass(frozen=True)
class Epoch:
    """One epoch of random allocation, as a dominating pair.

    Args:
        distance: the distance by which a record moves its round, in noise standard deviations.
        rounds: number of rounds of an epoch.
        used: number of released rounds, from 1 to ``rounds``.
    """

    distance: float
    rounds: int
    used: int
    #: Never Gaussian: an epoch of a single round is represented by a :class:`Pair`.
    gaussian: ClassVar[bool] = False

    @property
    def integrable(self) -> bool:
        """True if a law can be built of it."""
        near = LEAST_MOVE <= self.distance <= LARGEST_DISTANCE
        return near and self.rounds <= MOST_ROUNDS

    def ratios(self, fineness: float) -> tuple[DiscreteRatio, DiscreteRatio]:
        """A lower and an upper bound, in convex order, on the epoch's likelihood ratio."""
        return epoch_ratios(self, fineness)


class _Points(NamedTuple):
    """Masses at k·2^r for k from ``first``, or in the cells from k·2^r to (k + 1)·2^r.

    ``beyond`` has the cells' first moments about k·2^r, in units of 2^r, if values are gathered;
    None if they are spread.
    """

    first: int
    mass: Array
    beyond: Array | None

    def part(self, low: int, high: int) -> _Points:
        """The points from ``low`` to before ``high``, both counted from ``first``."""
        beyond = None if self.beyond is None else self.beyond[low:high]
        return _Points(self.first + low, self.mass[low:high], beyond)

    def wider(self) -> _Points:
        """The masses on the lattice twice as wide: those of odd points are spread or gathered."""
        lead = self.first % 2
        size = lead + self.mass.size
        mass = _placed(self.mass, lead, size + size % 2)
        first = (self.first - lead) // 2
        if self.beyond is None:
            odd = mass[1::2] / 2
            found = _placed(mass[::2] + odd, 0, odd.size + 1)
            found[1:] += odd
            return _Points(first, found, None)
        beyond = _placed(self.beyond, lead, size + size % 2)
        gathered = (beyond[::2] + beyond[1::2] + mass[1::2]) / 2
        return _Points(first, mass[::2] + mass[1::2], gathered)

    def joined(self, other: _Points | None) -> _Points:
        """The sum of both masses, on one lattice."""
        if other is None:
            return self
        first = min(self.first, other.first)
        size = max(self.first + self.mass.size, other.first + other.mass.size) - first

        def both(one: Array, two: Array) -> Array:
            found = _placed(one, self.first - first, size)
            found[other.first - first :][: two.size] += two
            return found

        beyond = None
        if self.beyond is not None and other.beyond is not None:
            beyond = both(self.beyond, other.beyond)
        return _Points(first, both(self.mass, other.mass), beyond)

    def plus(self, other: _Points) -> _Points:
        """The law of the sum of two independent numbers on one lattice."""
        beyond = None
        if self.beyond is not None and other.beyond is not None:
            beyond = np.convolve(self.beyond, other.mass)
            # If both are the same, so are both products.
            turned = beyond if other is self else np.convolve(self.mass, other.beyond)
            beyond = beyond + turned
        return _Points(self.first + other.first, np.convolve(self.mass, other.mass), beyond)


def _placed(values: Array, at: int, size: int) -> Array:
    found = np.zeros(size)
    found[at : at + values.size] = values
    return found


class _Lattices(NamedTuple):
    """The lattice of each number: 2^least Z around ``centre``, wider ones further away."""

    centre: int
    least: int
    half: int

    def ends(self, r: int) -> tuple[int, int]:
        """The first and the last point that 2^r Z covers; both are on the next lattice as well."""
        middle = math.floor(math.ldexp(self.centre, -r - 1))
        return 2 * max(0, middle - self.half // 2), 2 * (middle + self.half // 2)


def _lattices(a: float, terms: int, epoch: int, half: int) -> _Lattices:
    """The lattices of a sum of ``terms`` terms, on the way to ``epoch`` terms."""
    spread = math.sqrt(math.expm1(min(a * a, 700.0)) * terms)
    if spread < _NARROW * terms:
        return _Lattices(terms, math.floor(math.log2(4 * spread / half)), half)
    # Choose the narrowest lattice so that a term is rounded to 0 with negligible probability only.
    half = 2 * max(_LEAST_HALF // 2, int(half / (2 * min(4.0, max(1.0, a)))))
    least = a * min(float(ndtri((CUT / 100) ** (1 / epoch))), -3.0) - a * a / 2
    return _Lattices(0, math.floor(least / math.log(2) - math.log2(half) + 3), half)


class _Sum(NamedTuple):
    """The law of the sum of ``terms`` terms: r → its points on 2^r Z.

    ``lost`` bounds the Q-mass that was cut off, ``lost_moment`` its share of the mean.
    """

    terms: int
    points: dict[int, _Points]
    lost: float
    lost_moment: float

    def trimmed(self, epoch: int) -> _Sum:
        """The law without ends whose mass is negligible in the whole epoch."""
        copies = epoch / self.terms
        tiny = CUT / (64 * math.log2(2 * epoch) * (len(self.points) + 1))
        kept: dict[int, _Points] = {}
        lost, lost_moment = self.lost, self.lost_moment
        for r, points in self.points.items():
            value = (points.first + np.arange(points.mass.size, dtype=float)) * 2.0**r / self.terms
            # The larger of the Q-mass and the P-mass: the sum's share of the mean, and the others'.
            weight = copies * points.mass * np.maximum(1.0, value / copies + 1)
            low = int(np.searchsorted(np.cumsum(weight), tiny))
            high = weight.size - int(np.searchsorted(np.cumsum(weight[::-1]), tiny))
            high = max(low, high)
            lost += float(points.mass[:low].sum() + points.mass[high:].sum())
            lost_moment += float(
                points.mass[:low] @ value[:low] + points.mass[high:] @ value[high:]
            )
            if low < high:
                kept[r] = points.part(low, high)
        return _Sum(self.terms, kept, lost, lost_moment)

    def plus(self, other: _Sum, lattices: _Lattices, epoch: int) -> _Sum:
        """The law of the sum of two independent sums."""
        found: dict[int, _Points] = {}
        # The sums of everything on narrower lattices.
        mine: _Points | None = None
        theirs: _Points | None = None
        same = other is self
        levels = (*self.points, *other.points)
        for r in range(min(levels), max(levels) + 1):
            mine = mine and mine.wider()
            theirs = mine if same else theirs and theirs.wider()
            one, two = self.points.get(r), other.points.get(r)
            products = [
                x.plus(y) for x, y in ((one, two), (one, theirs)) if x is not None and y is not None
            ]
            if same:
                products = products[:1] + [x.joined(x) for x in products[1:]]
            elif mine is not None and two is not None:
                products.append(mine.plus(two))
            for product in products:
                found[r] = product.joined(found.get(r))
            mine = mine if one is None else one.joined(mine)
            theirs = theirs if two is None else two.joined(theirs)
        j, k = self.terms, other.terms
        lost = self.lost + other.lost
        # If one of them was cut off, the other's mean is at most 1.
        lost_moment = j * (self.lost_moment + other.lost) + k * (self.lost + other.lost_moment)
        return _Sum(j + k, _settled(found, lattices), lost, lost_moment / (j + k)).trimmed(epoch)


def _settled(points: dict[int, _Points], lattices: _Lattices) -> dict[int, _Points]:
    """Move every point to the lattice that covers it, unless it is on a wider one already."""
    found: dict[int, _Points] = {}
    carried: _Points | None = None
    r, last = min(points), max(points)
    while r <= last or carried is not None:
        here = points.get(r)
        if carried is not None:
            here = carried.joined(here)
        carried = None
        if here is not None and r < lattices.least:
            carried = here.wider()
        elif here is not None:
            low, high = (x - here.first for x in lattices.ends(r))
            low, high = max(0, low), max(0, min(here.mass.size, high + 1))
            if low < high:
                found[r] = here.part(low, high)
            for part in (here.part(0, min(low, here.mass.size)), here.part(high, here.mass.size)):
                if part.mass.any():
                    carried = part.wider().joined(carried)
        r += 1
    return found


@lru_cache(maxsize=256)
def epoch_ratios(epoch: Epoch, fineness: float) -> tuple[DiscreteRatio, DiscreteRatio]:
    """A lower and an upper bound, in convex order, on an epoch's likelihood ratio.

    Args:
        epoch: an epoch whose distance is at most :data:`LARGEST_DISTANCE`.
        fineness: scale of the cells; 1 gives intervals of about 1e-3.
    """
    return _epoch_ratio(epoch, fineness, above=False), _epoch_ratio(epoch, fineness, above=True)


def _epoch_ratio(epoch: Epoch, fineness: float, *, above: bool) -> DiscreteRatio:
    a, t = epoch.distance, epoch.used
    half = 2 * round(_HALF / fineness / 2)
    one = found = _one_term(a, t, _lattices(a, 1, t, half), above)
    most = len(one.points)
    for bit in f"{t:b}"[1:]:
        found = found.plus(found, _lattices(a, 2 * found.terms, t, half), t)
        if bit == "1":
            found = found.plus(one, _lattices(a, found.terms + 1, t, half), t)
        most = max(most, len(found.points))
    values, masses = [np.zeros(0)], [np.zeros(0)]
    for r, points in found.points.items():
        held = points.mass > 0
        mass, place = points.mass[held], (points.first + np.flatnonzero(held)).astype(float)
        if points.beyond is not None:
            place = place + points.beyond[held] / mass
        values.append(place * 2.0**r / t)
        masses.append(mass)
    value, mass = np.concatenate(values), np.concatenate(masses)
    # A record whose round was not released has a likelihood ratio of 1.
    share = t / epoch.rounds
    value = 1 + share * (value - 1) if share < 1 else value
    # A value of 0 counts as 1e-300, which is within the rounding.
    value = np.maximum(value, 1e-300)
    order = np.argsort(value, kind="stable")
    value, mass = value[order], mass[order]
    # Relative errors of each mass: of the quadrature, of sums of positive products, and of the
    # changes of lattice; and of the values, one rounding for each level.
    doubt = 2 * t * (_QUADRATURE + EPS * (2 * half + 8 * most + 64))
    doubt += 64 * EPS * math.log2(2 * t) * (1 + float(np.max(np.abs(np.log(value)))) + a * a)
    lost_first = share * found.lost_moment + (1 - share) * found.lost
    lost = (lost_first * (1 + 1e-9) + _UNDERFLOW, found.lost * (1 + 1e-9) + _UNDERFLOW)
    lost = lost if above else (0.0, 0.0)
    return DiscreteRatio(np.log(value), mass * value, mass, doubt, *lost)


def _one_term(a: float, epoch: int, lattices: _Lattices, above: bool) -> _Sum:
    """A single term on the lattices: the cells' masses by quadrature, to relative accuracy."""
    far = -float(ndtri(CUT / (8 * epoch)))
    bottom, top = math.exp(-a * far - a * a / 2), math.exp(a * (far + a) - a * a / 2)
    # Mass beyond the ends, which is as large under Q as under P (the first moment under Q).
    lost = (float(ndtr(-far)) + float(ndtr(-far - a))) * (1 + 1e-9)
    cells: list[tuple[int, np.ndarray]] = []
    r, inner = lattices.least, (0, 0)
    while True:
        low, high = lattices.ends(r)
        if r == lattices.least:
            inner = (low, low)
        cells.append((r, np.concatenate([np.arange(low, inner[0]), np.arange(inner[1], high)])))
        if math.ldexp(high, r) >= top and (low == 0 or math.ldexp(low, r) <= bottom):
            break
        r, inner = r + 1, (low // 2, high // 2)
    level = np.concatenate([np.full(k.size, r) for r, k in cells])
    place = np.concatenate([k for _, k in cells]).astype(float)
    step = np.ldexp(1.0, level)
    kept = ((place + 1) * step > bottom) & (place * step < top)
    level, place, step = level[kept], place[kept], step[kept]
    start = (np.log(np.maximum(place * step, bottom)) + a * a / 2) / a
    width = (np.log(np.minimum((place + 1) * step, top)) + a * a / 2) / a - start
    # Divide wide cells.
    pieces = np.maximum(1, np.ceil(width / _WIDEST_OF_TERM)).astype(np.int64)
    cell = np.repeat(np.arange(place.size), pieces)
    piece = np.arange(cell.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    wide = (width / pieces)[cell, None]
    z = start[cell, None] + wide * (piece[:, None] + (_NODES + 1) / 2)
    bell = np.exp(-0.5 * z * z - _LOG_NORMAL) * (_WEIGHTS * wide / 2)
    # Position of a value in its cell, as a share of the width.
    log, k = a * z - a * a / 2, place[cell, None]
    log_low = np.log(np.maximum(k, 1.0) * step[cell, None])
    into = np.where(k > 0, k * np.expm1(log - log_low), np.exp(log) / step[cell, None])
    into = np.clip(into, 0.0, 1.0)
    left, right = (
        np.bincount(cell, (bell * share).sum(axis=1), place.size) for share in (1 - into, into)
    )
    found: dict[int, _Points] = {}
    for r in np.unique(level).tolist():
        own = level == r
        first = int(place[own][0])
        size = int(place[own][-1]) - first + 2
        at = place[own].astype(np.int64) - first
        if above:
            mass = np.bincount(at, left[own], size) + np.bincount(at + 1, right[own], size)
            found[r] = _Points(first, np.asarray(mass, dtype=float), None)
        else:
            gathered = (np.bincount(at, x[own], size) for x in (left + right, right))
            found[r] = _Points(first, *(np.asarray(x, dtype=float) for x in gathered))
    return _Sum(1, found, lost, lost).trimmed(epoch)
