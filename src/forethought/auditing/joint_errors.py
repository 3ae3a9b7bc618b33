"""False alarms and misses of one attack, judged together against a trade-off function.

For independent games with error rates α and β, the statistic T = misses + λ·false alarms is the sum of
two binomials and grows with either rate. If f(α) ≤ β, as f claims of every attack, then P(T ≤ t) is
at most its value on the curve, sup_α P(T ≤ t | α, f(α)): that is a p-value. With λ the slope of f at
the threshold, fixed in advance, it is much smaller than from two confidence intervals, whose errors
add up where these partly cancel. Between grid points α_i ≤ α ≤ α_{i+1} both rates are bounded from
below by α_i and f(α_{i+1}), so the supremum is never underestimated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr
from scipy.stats import binom

from forethought.accounting.tradeoff import TradeOff

Array = NDArray[np.float64]

# Binomial mass beyond so many standard deviations is added to the p-value as this much.
REACH, BEYOND = 9.0, 1e-15
# Points of the grid: over all error rates, and close to the observed one.
EVENLY, CLOSELY = 60, 140
# Exponents that Chernoff's bound tries; any is valid.
EXPONENTS = np.geomspace(1e-3, 30.0, 120)


@dataclass(frozen=True)
class JointErrors:
    """The two error counts of one threshold.

    Args:
        false, outside: false alarms, of how many games. missed, inside: misses likewise.
        weight: λ, what a false alarm counts against a miss; fixed before the games.
        independent: whether the games are; otherwise they are negatively associated, and Chernoff's
            bound takes the place of the binomials (Dubhashi and Ranjan 1998, Proposition 7).
    """

    false: int
    outside: int
    missed: int
    inside: int
    weight: float
    independent: bool = True

    def p_value(self, claim: TradeOff) -> float:
        """Chance, at most, of so few errors if ``claim`` holds."""
        grid = self._grid()
        least_false, least_missed = grid[:-1], claim(grid[1:])
        found = (
            self._binomial(least_false, least_missed)
            if self.independent
            else self._chernoff(least_false, least_missed)
        )
        return float(min(1.0, np.max(found)))

    @property
    def total(self) -> float:
        """T as observed."""
        return self.missed + self.weight * self.false

    def _grid(self) -> Array:
        rate = self.false / self.outside
        spread = math.sqrt(max(rate * (1 - rate), 1 / self.outside) / self.outside)
        near = np.linspace(rate - 6 * spread, rate + 6 * spread, CLOSELY)
        return np.unique(np.clip(np.r_[np.linspace(0, 1, EVENLY), near], 0.0, 1.0))

    def _binomial(self, alpha: Array, beta: Array) -> Array:
        spread = np.sqrt(self.outside * alpha * (1 - alpha))
        width = math.ceil(2 * REACH * float(spread.max())) + 20
        start = np.clip(np.floor(self.outside * alpha - REACH * spread) - 9, 0, None)
        counts = start[:, None] + np.arange(width)
        mass = binom.pmf(counts, self.outside, alpha[:, None])
        left = np.floor(self.total - self.weight * counts + 1e-9)
        below = np.where(
            left < 0,
            0.0,
            bdtr(np.clip(left, 0, self.inside), self.inside, np.clip(beta[:, None], 0.0, 1.0)),
        )
        return np.asarray((mass * below).sum(axis=1) + BEYOND)

    def _chernoff(self, alpha: Array, beta: Array) -> Array:
        s = EXPONENTS / max(1.0, self.weight)
        log = (
            s * self.total
            + self.inside * np.log1p(beta[:, None] * np.expm1(-s))
            + self.outside * np.log1p(alpha[:, None] * np.expm1(-s * self.weight))
        )
        return np.asarray(np.exp(np.minimum(log.min(axis=1), 0.0)))
