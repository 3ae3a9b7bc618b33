"""Half of a convex trade-off function as straight pieces, exact under composition of functions.

A half holds the points (α, power) with slope of the power at least 1, α ascending from 0: the
part where false positives are rarer than false negatives. The other half is the same thing for
the inverse function. Keeping 1 − f (the power) instead of f keeps tiny errors relative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Profile = Callable[[Array], Array]

PIECES = 2000
# δ below this is no longer told from 0 when a profile is cut into lines.
NEGLIGIBLE = 1e-22


@dataclass(frozen=True)
class Half:
    """Points (alphas[i], powers[i]) of a concave power, both ascending, alphas[0] = 0."""

    alphas: Array
    powers: Array

    def delta(self, epsilon: Array) -> Array:
        """sup over the points of power − e^ε α, for ε ≥ 0."""
        with np.errstate(divide="ignore"):
            steepness = np.log(np.diff(self.powers)) - np.log(np.diff(self.alphas))
        # Concave: steepness falls, and the best point is where it passes e^ε.
        best = np.searchsorted(-steepness, -epsilon, side="left")
        first = self.alphas[best] == 0
        with np.errstate(over="ignore", invalid="ignore"):
            lost = np.exp(epsilon) * self.alphas[best]
        # Rounding of the difference is charged; at α = 0 there is none.
        value = self.powers[best] * (1 + 1e-15) - lost
        return np.asarray(np.where(first, self.powers[0], np.maximum(value, self.powers[0])))


def half_below(profile: Profile) -> Half:
    """The support lines 1 − δ(ε_j) − e^{ε_j} α of a profile δ on ε ≥ 0, as points of the power.

    Their maximum lies on or below the trade-off function, so every error of the cut is sound.
    """
    epsilon = _grid(profile)
    delta = np.minimum.accumulate(profile(epsilon))
    slope = np.exp(epsilon)
    kept = [0]
    alphas: list[float] = []
    for j in range(1, len(epsilon)):
        # Lines whose place is taken by their neighbours are dropped: fewer lines, lower bound.
        while True:
            i = kept[-1]
            gap = slope[i] * np.expm1(epsilon[j] - epsilon[i])
            alpha = float((delta[i] - delta[j]) / gap)
            if not alphas or alpha < alphas[-1]:
                break
            kept.pop()
            alphas.pop()
        kept.append(j)
        alphas.append(alpha)
    knots = np.array(alphas)
    powers = delta[kept[:-1]] + slope[kept[:-1]] * knots
    last = delta[kept[-1]]
    order = slice(None, None, -1)
    alpha_points = np.concatenate([[0.0], knots[order]])
    power_points = np.concatenate([[last], powers[order]])
    distinct = np.concatenate([[True], np.diff(alpha_points) > 0])
    return Half(alpha_points[distinct], np.maximum.accumulate(power_points[distinct]))


def _grid(profile: Profile) -> Array:
    def at(epsilon: float) -> float:
        return float(profile(np.array([epsilon]))[0])

    # Beyond its reach a profile is negligible or flat (mass that nothing can hide).
    reach = 700.0
    while reach > 1e-12 and at(reach / 2) <= max(NEGLIGIBLE, (1 + 1e-9) * at(reach)):
        reach /= 2
    return np.asarray(reach * np.linspace(0.0, 1.0, PIECES) ** 1.5)


def whole_power(left: Half, right: Half) -> tuple[Array, Array]:
    """The power function on all of [0, 1] from the halves of f and of its inverse."""
    # The inverse's point (a, p) is the point (α, β) = (1 − p, a) of f.
    alphas = np.concatenate([left.alphas, (1 - right.powers)[::-1], [1.0]])
    powers = np.concatenate([left.powers, (1 - right.alphas)[::-1], [1.0]])
    alphas = np.maximum.accumulate(np.clip(alphas, 0, 1))
    distinct = np.concatenate([[True], np.diff(alphas) > 0])
    return alphas[distinct], np.maximum.accumulate(np.clip(powers, 0, 1))[distinct]


def repeated(left: Half, right: Half, times: int) -> Half:
    """Left half of the power composed with itself: F∘…∘F, F = 1 − f."""
    x, y = whole_power(left, right)
    alphas, powers = x, y
    for _ in range(times - 1):
        # New corners: where the power so far meets a corner of F.
        inside = (x > powers[0]) & (x < powers[-1])
        corners = np.interp(x[inside], powers, alphas)
        joined = np.unique(np.concatenate([alphas, corners]))
        powers = np.interp(np.interp(joined, alphas, powers), x, y)
        alphas = joined
    with np.errstate(divide="ignore", invalid="ignore"):
        steep = np.diff(powers) >= np.diff(alphas)
    ends = 1 + (int(np.argmin(steep)) if not steep.all() else len(steep))
    return _hull(alphas[:ends], powers[:ends])


def _hull(alphas: Array, powers: Array) -> Half:
    """Least concave power through or above the points, up to slope 1."""
    kept: list[int] = []
    for j in range(len(alphas)):
        while len(kept) > 1:
            a, b = kept[-2], kept[-1]
            first = (powers[b] - powers[a]) / (alphas[b] - alphas[a])
            second = (powers[j] - powers[b]) / (alphas[j] - alphas[b])
            if second < first:
                break
            kept.pop()
        kept.append(j)
    return Half(alphas[kept], powers[kept])


def double_conjugate(alphas: Array, betas: Array) -> tuple[Half, Half]:
    """Halves of the largest convex function below the points (and below α + β = 1)."""
    order = np.argsort(alphas, kind="stable")
    x = np.concatenate([[0.0], np.asarray(alphas, dtype=float)[order], [1.0]])
    y = np.concatenate([[1.0], np.asarray(betas, dtype=float)[order], [0.0]])
    x, first = np.unique(x, return_inverse=True)
    lowest = np.full(len(x), np.inf)
    np.minimum.at(lowest, first, y)
    hull = _hull(x, 1 - np.minimum.accumulate(lowest))
    steep = np.diff(hull.powers) >= np.diff(hull.alphas)
    turn = 1 + int(np.sum(steep))
    left = Half(hull.alphas[:turn], hull.powers[:turn])
    right = Half(1 - hull.powers[turn - 1 :][::-1], 1 - hull.alphas[turn - 1 :][::-1])
    if right.alphas[0] > 0:
        right = Half(np.append(0.0, right.alphas), np.append(right.powers[0], right.powers))
    return left, right
