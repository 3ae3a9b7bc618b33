"""One round on a grid of losses, bounded from above and from below.

*Above*: connect-the-dots (Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022): between grid points
the profile H(α) is replaced by its chord, the smallest dominating distribution on the grid.
*Below*: each grid point is lowered by the largest gap between chord and profile on its two sides,
so every chord lies under the profile; where the lowered points are not convex they are lowered
further.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forethought.accounting.pld.profiles import EPS, Array, Stack


class Discrete(NamedTuple):
    """Masses on the grid's nodes that bound one round from above and below, rows by pair."""

    above: Array
    below: Array
    infinity: Array
    charge: Array
    shift: Array


def discretise(stack: Stack, nodes: NDArray[np.int64], step: float) -> Discrete:
    """Bound each pair by a distribution on ``nodes`` (in units of ``step``) from both sides."""
    losses = np.asarray(nodes * step, dtype=float)
    half = np.empty(2 * nodes.size - 1)
    half[::2] = losses
    half[1::2] = (nodes[:-1] + nodes[1:]) * (step / 2)
    gaps = stack.gaps(half)
    slip = stack.shift_error(half)
    width = np.diff(nodes) * step
    between = width / 2
    low1, low2 = gaps.low[:, ::2], gaps.low[:, 1::2]
    high1, high2 = gaps.high[:, ::2], gaps.high[:, 1::2]
    error = np.maximum(gaps.error[:, ::2], gaps.error[:, 1::2]) + 16 * EPS
    error += 2 * (slip[:, :-1:2] + 2 * slip[:, 1::2] + slip[:, 2::2]) / between
    # Whole cells from halves: the far half's mass is seen from the far edge.
    low = low1 + low2 + np.exp(-between) * (low2 + high2)
    high = high1 + high2 + np.exp(between) * (low1 + high1)
    to_right, to_left = -np.expm1(-width), np.expm1(width)
    rows, count = low.shape[0], nodes.size
    above = np.zeros((rows, count))
    above[:, 1:] += low / to_right
    above[:, :-1] += high / to_left
    # At the kink of a symmetrised profile.
    origin = int(np.searchsorted(nodes, 0))
    atom = stack.atom()
    above[:, origin] += atom
    sag = np.zeros((rows, count))
    gap = np.maximum(low1, high2)
    sag[:, 1:] = gap
    sag[:, :-1] = np.maximum(sag[:, :-1], gap)
    left, right = stack.tails(float(half[0]), float(half[-1]))
    right = right + 1e-300  # what underflows
    straight = _keep_above_lines(sag, low, high, losses, left, right, atom, origin)
    rise = np.diff(sag, axis=1)
    below = above.copy()
    below[:, :-1] -= rise / to_left
    below[:, 1:] += rise / to_right
    worst = np.zeros((rows, count))
    worst[:, 1:] = error
    worst[:, :-1] = np.maximum(worst[:, :-1], error)
    spread = worst.copy()
    spread[:, 1:] = np.maximum(spread[:, 1:], worst[:, :-1])
    spread[:, :-1] = np.maximum(spread[:, :-1], worst[:, 1:])
    doubt = above.copy()
    # The sums that put the lowered points on a line carry one rounding error for each node.
    sums = 1 + 4 * EPS * count / (spread[:, 1:] + EPS)
    doubt[:, :-1] += sums * (sag[:, 1:] + sag[:, :-1]) / to_left
    doubt[:, 1:] += sums * (sag[:, 1:] + sag[:, :-1]) / to_right
    below -= spread * doubt
    below[straight] = 0
    # The ends of the grid are given up. What that may raise the profile by: the tails, the mass of
    # the cells given up, and masses below 0 that are left out.
    charge = left + right + (low / to_right + high / to_left)[:, [0, 1]].sum(axis=1)
    charge -= np.minimum(below[:, [0, 1, -2, -1]], 0).sum(axis=1)
    below[:, :2] = 0
    below[:, -2:] = 0
    # Where exponentials leave the range of a double: what is always true.
    broken = ~np.isfinite(below).all(axis=1)
    below[broken] = 0
    below[broken, origin] = 1
    charge[broken] = 0
    charge += _repair(below, losses)
    # Unknown is everything: a charge of 1 leaves no lower bound.
    charge = np.where(np.isnan(charge), 1.0, charge)
    above *= 1 + worst
    above[:, 0] += left
    broken = ~np.isfinite(above).all(axis=1)
    above[broken] = 0
    right = np.where(broken, 1.0, right)
    return Discrete(above, below, right, charge, slip.max(axis=1))


def _keep_above_lines(
    sag: Array,
    low: Array,
    high: Array,
    losses: Array,
    left: Array,
    right: Array,
    atom: Array,
    origin: int,
) -> NDArray[np.bool_]:
    # Every profile lies above the lines 1 - α and 0. Where the density falls so fast that lowering
    # by the sag would cross them, the lowered profile follows the line; on the cell where it leaves
    # the line, it must also pass below the tangent at the line's end.
    safe = np.abs(losses) < 600
    clipped = np.where(safe, losses, 0.0)
    width = np.diff(losses)
    q = (low + high) * np.exp(-clipped[:-1]) / np.expm1(width)
    kink = np.zeros_like(sag)
    kink[:, origin] = atom
    below = np.zeros_like(sag)
    below[:, 1:] = np.cumsum(q, axis=1)
    below += np.cumsum(kink, axis=1) + (left * np.exp(-clipped[0]))[:, None]
    beyond = np.zeros_like(sag)
    beyond[:, :-1] = np.cumsum(q[:, ::-1], axis=1)[:, ::-1]
    beyond += np.cumsum(kink[:, ::-1], axis=1)[:, ::-1] + (right * np.exp(-clipped[-1]))[:, None]
    alpha = np.exp(clipped)
    over_one = np.zeros_like(sag)
    over_one[:, 1:] = np.cumsum(alpha[:-1] * np.expm1(width) * below[:, :-1] + high, axis=1)
    over_one += left[:, None]
    over_zero = np.zeros_like(sag)
    steps = alpha[:-1] * np.expm1(width) * beyond[:, 1:] + low
    over_zero[:, :-1] = np.cumsum(steps[:, ::-1], axis=1)[:, ::-1]
    over_zero += right[:, None]
    over_one[:, ~safe] = np.inf
    over_zero[:, ~safe] = np.inf
    # Left of a point on the line 1 - α all points are put on it, right of one on the line 0 too.
    one = np.logical_or.accumulate((over_one < sag)[:, ::-1], axis=1)[:, ::-1]
    zero = np.logical_or.accumulate(over_zero < sag, axis=1)
    both = one[:, origin] | zero[:, origin]
    one[:, : origin + 1] |= both[:, None]
    zero[:, origin:] |= both[:, None]
    one[:, origin + 1 :] = False
    zero[:, :origin] = False
    leaves = one[:, :-1] & ~one[:, 1:] & ~zero[:, :-1]
    enters = ~zero[:, :-1] & zero[:, 1:] & ~one[:, 1:]
    sag[:] = np.where(zero, over_zero, np.where(one, over_one, sag))
    sag[:, 1:] = np.where(leaves, np.maximum(sag[:, 1:], high), sag[:, 1:])
    sag[:, :-1] = np.where(enters, np.maximum(sag[:, :-1], low), sag[:, :-1])
    straight = np.zeros(sag.shape, dtype=bool)
    for line in (one, zero):
        straight[:, 1:-1] |= line[:, :-2] & line[:, 1:-1] & line[:, 2:]
    return straight


def _repair(masses: Array, losses: Array) -> Array:
    """Make the masses nonnegative without raising the profile; what cannot be repaired is returned.

    Dropping a node with negative mass replaces the profile around it by the chord of its two
    neighbours, which lies below; the limit is the largest convex minorant.
    """
    lost = np.zeros(masses.shape[0])
    for row in np.nonzero((masses < 0).any(axis=1))[0]:
        line = masses[row].tolist()
        before = list(range(-1, len(line) - 1))
        after = list(range(1, len(line) + 1))
        todo = np.nonzero(masses[row] < 0)[0].tolist()[::-1]
        while todo:
            i = todo.pop()
            mass = line[i]
            if mass >= 0:
                continue
            left, right = before[i], after[i]
            line[i] = 0.0
            if right >= len(line) or losses[right] - losses[i] > 600:
                lost[row] -= mass
                continue
            y = losses[right] - losses[i]
            if left < 0:  # the same Q-mass, taken away further right
                line[right] += mass * math.exp(y)
                before[right] = -1
                if line[right] < 0:
                    todo.append(right)
                continue
            x = losses[i] - losses[left]
            total = math.expm1(y) - math.expm1(-x)
            line[left] += mass * math.exp(-x) * math.expm1(y) / total
            line[right] -= mass * math.exp(y) * math.expm1(-x) / total
            after[left], before[right] = right, left
            todo += [j for j in (right, left) if line[j] < 0]
        masses[row] = line
    return lost
