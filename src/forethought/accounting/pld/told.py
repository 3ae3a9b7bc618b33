"""Rounds in which a hit replaces something: bounds that do not double the distance.

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
that of an epoch is (:mod:`forethought.accounting.pld.law`): *above*, what lies in a cell is spread
onto its ends, keeping its mean; *below*, it is gathered at its mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from forethought.accounting.pld.law import Law
from forethought.accounting.pld.mixtures import EPS, Array
from forethought.accounting.pld.pair import Pair

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
class Told:
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
def told_laws(told: Told, fineness: float) -> tuple[Law, Law]:
    """A lower and an upper bound, in convex order, on a round's likelihood ratio.

    Args:
        told: its largest distance at most :data:`LARGEST_DISTANCE`.
        fineness: 1 is good for intervals of about 1e-3.
    """
    return _law(told, fineness, above=False), _law(told, fineness, above=True)


def _law(told: Told, fineness: float, *, above: bool) -> Law:
    hit = math.fsum(w for _, w in told.hits)
    rows: list[tuple[Array, Array, Array]] = []
    lost, lost_rest, doubt = told.lost, told.lost, told.doubt
    still = 0.0
    for r, weight in told.hits:
        share = weight / hit
        ahead = _Side(told.missed, hit, 2 * r if told.blanked else r, r if told.blanked else 0.0)
        behind = _Side(told.missed, hit, r, 0.0)
        for side, sign in ((ahead, 1.0), (behind, -1.0)):
            coarse = fineness * (1 + min(3.0, -math.log10(max(share, 1e-300)) / 4))
            loss, first, second, gone, off = _cells(side, coarse, above)
            if sign < 0:
                first, second, gone = second, first, gone[::-1]
            rows.append((sign * loss, share * first, share * second))
            lost, lost_rest = lost + share * gone[0], lost_rest + share * gone[1]
            doubt = max(doubt, told.doubt + off)
        # Φ(r/2) - Φ(-start) is what neither side holds of either measure.
        nearest = float(ndtr(r / 2))
        still += share * told.missed * (nearest - float(ndtr(-ahead.start)))
    rows.append((np.zeros(1), np.full(1, still), np.full(1, still)))
    loss, first, second = (np.concatenate(x) for x in zip(*rows, strict=True))
    doubt += _QUADRATURE + EPS * 64
    if loss.size > _MOST_LOSSES / fineness:
        loss, first, second = _fewer(loss, second, int(_MOST_LOSSES / fineness), above)
        doubt += EPS * loss.size
    if not above:
        lost = lost_rest = 0.0
    # In a triangle losses above 0 of one direction are those of the other, mirrored.
    same = not told.blanked
    return Law(loss, first, second, doubt, lost * (1 + 1e-9), lost_rest * (1 + 1e-9), same)


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
