"""One epoch of random allocation, from above and below: sums of log-normal numbers.

A record that is present goes to one of t rounds, so an epoch's likelihood ratio is W = (1/t) Σ X_i
with X_i = exp(a z_i - a²/2), a the distance that a round is moved by and z_i standard normal under
Q, the record's absence. (P = (1/t) Σ N(a e_i, I) against Q = N(0, I): Chua et al. 2024,
"Balls-and-bins sampling for DP-SGD"; Feldman and Shenfeld 2025, "Privacy amplification by random
allocation". Where sums are seen one by one, round i can move by any vector u_i of at most that
length that depends on what came before: a rotation, a contraction and independent noise, chosen by
what came before, turn round i of P and of Q into it, so both directions hold.)

W's law is bounded in convex order (:mod:`forethought.accounting.pld.law`) on a geometric grid:

- *above*, every value is spread onto its two neighbours on the grid, keeping its mean;
- *below*, values of one cell are gathered at their conditional mean (Jensen).

Both commute with sums of independent terms, so the mean of 2j terms is built from that of j, and of
j + 1 with one term more. What is cut off at the ends is charged above and forgotten below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri

from forethought.accounting.pld.law import Law
from forethought.accounting.pld.mixtures import EPS, Array

# What the ends that are cut off may hold in all.
CUT = 1e-20
# Beyond this a single term leaves the range of a double.
LARGEST_DISTANCE = 18.0
MOST_ROUNDS = 10**7
_NODES, _WEIGHTS = (np.asarray(x) for x in np.polynomial.legendre.leggauss(8))
_LOG_NORMAL = 0.5 * math.log(2 * math.pi)
# Relative error of the quadrature of a cell: cells are narrow beside the bell.
_QUADRATURE = 1e-12
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
def epoch_laws(epoch: Epoch, fineness: float) -> tuple[Law, Law]:
    """A lower and an upper bound, in convex order, on an epoch's likelihood ratio.

    Args:
        epoch: its distance at most :data:`LARGEST_DISTANCE`.
        fineness: 1 is good for intervals of about 1e-3; half of it costs four times as much.
    """
    return _law(epoch, fineness, above=False), _law(epoch, fineness, above=True)


def _law(epoch: Epoch, fineness: float, *, above: bool) -> Law:
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
    doubt = 2 * t * (_QUADRATURE + EPS * (most + 64))
    doubt += 64 * EPS * math.log2(2 * t) * (1 + float(np.max(np.abs(np.log(value)))) + a * a)
    lost_first = share * found.lost_moment + (1 - share) * found.lost
    return Law(
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
