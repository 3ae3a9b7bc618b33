"""False alarms and misses of one attack, judged together against a trade-off function.

For independent games with error rates α and β, T = misses + λ·false alarms is the sum of two
binomials and grows with either rate. If β ≥ f(α), as f claims of every attack, then P(T ≤ t) is at
most its value on the curve, sup_α P(T ≤ t | α, f(α)): that is a p-value. With λ the slope of f at
the threshold, fixed in advance, it is much smaller than from two confidence intervals, whose errors
add up where these partly cancel.

The supremum is never underestimated: where α_i ≤ α ≤ α_k, both rates are at least α_i and f(α_k),
and such pieces are halved until their bound is close to a value on the curve.
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
# The first and the finest pieces of [0, 1], the latter for few games and for many, and how far a
# bound may lie above the curve's own.
FIRST, FINE, FINEST, MANY, CLOSE = 64, 1024, 4096, 4_000, 1.03
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
        finest = FINE if self.outside + self.inside < MANY else FINEST
        alphas = np.linspace(0.0, 1.0, finest + 1)
        misses = claim(alphas)
        chance = self._binomial if self.independent else self._chernoff
        step = finest // FIRST
        left, right = np.arange(0, finest, step), np.arange(step, finest + 1, step)
        reached, settled = 0.0, 0.0
        while len(left):
            bounds = chance(alphas[left], misses[right])
            reached = max(reached, float(np.max(chance(alphas[left], misses[left]))))
            done = (bounds <= CLOSE * reached) | (right - left == 1)
            settled = max(settled, float(np.max(bounds[done], initial=0.0)))
            left, right = left[~done], right[~done]
            middle = (left + right) // 2
            left, right = np.r_[left, middle], np.r_[middle, right]
        return min(1.0, settled)

    @property
    def total(self) -> float:
        """T as observed."""
        return self.missed + self.weight * self.false

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
