"""How far a rehearsal may be off because the private data are not the public ones.

No statistic of the public data says that. What can be said is how far rehearsals were off on other
pairs of a public and a private set in the same *relation*: split conformal prediction, in the form
that widens an interval (Romano, Patterson and Candès 2019, "Conformalized Quantile Regression",
Theorem 1). With scores E_i = max(g(low_i) − g(achieved_i), g(achieved_i) − g(high_i)) of n pairs
and Q the ⌈(n + 1)·level⌉-th smallest, [g⁻¹(g(low) − Q), g⁻¹(g(high) + Q)] holds the accuracy of
one more pair with a chance of at least ``level``, *if* that pair is like those (exchangeable with
them). g(p) = ln((p + κ)/(1 − p + κ)), so that a point near 100 % counts more than one near 50 %.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

Relation = Literal["same source", "same task", "same shape", "synthetic"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)
_KAPPA = 0.005


def _odds(share: float) -> float:
    return math.log((share + _KAPPA) / (1 - share + _KAPPA))


def _share(odds: float) -> float:
    found = (1 + 2 * _KAPPA) / (1 + math.exp(-odds)) - _KAPPA
    return min(1.0, max(0.0, found))


def score(interval: tuple[float, float], achieved: float) -> float:
    """How far, in log-odds, an accuracy lies outside an interval; negative inside it."""
    low, high = map(_odds, interval)
    return max(low - _odds(achieved), _odds(achieved) - high)
