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
from collections.abc import Sequence
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


def widened(
    interval: tuple[float, float], relation: Relation | None, level: float
) -> tuple[float, float] | None:
    """An interval of a run on public data, widened to one of a run on private data.

    Args:
        interval: that holds one more run on the public data with a chance of ``level``.
        relation: how the public data stand to the private ones; None: nobody says.
        level: the chance wanted.

    Returns:
        Shares in [0, 1]; None where nothing is known: no relation, one whose intervals did not
        hold, or a level that the pairs are too few for.
    """
    return None if relation is None else calibrated(interval, SCORES.get(relation, ()), level)


def calibrated(
    interval: tuple[float, float], scores: Sequence[float], level: float
) -> tuple[float, float] | None:
    """An interval widened by what holds ``level`` of other pairs, whose scores these are.

    Returns:
        Shares in [0, 1]; None where there are too few pairs for the level.
    """
    rank = math.ceil((len(scores) + 1) * level)
    if rank > len(scores):
        return None
    extra = sorted(scores)[rank - 1]
    low, high = (_odds(end) for end in interval)
    low, high = low - extra, high + extra
    if low > high:  # pairs agreed more than their repeats did
        low = high = (low + high) / 2
    return _share(low), _share(high)


# Scores of the pairs that are calibrated on, by `python experiments/defaults/rehearsals.py
# --constants`, from experiments/defaults/rehearsals.jsonl; pairs.py there says how pairs are made.
# "synthetic" has none: calibrated like the others', its intervals held 24 of 37 pairs of other data
# sets (rehearsals.md). How hard a data set is next to synthetic data depends on the data set, and
# five of them say too little of the next one. "same shape" has none either: its
# intervals, 72 points wide at the median, held 30 of 36.
# fmt: off
SCORES: dict[Relation, tuple[float, ...]] = {
    "same source": (
        -1.833, -1.457, -1.4, -1.312, -1.278, -1.229, -1.109, -0.99, -0.831, -0.732, -0.701,
        -0.673, -0.656, -0.635, -0.624, -0.611, -0.581, -0.552, -0.444, -0.435, -0.429, -0.424,
        -0.381, -0.36, -0.347, -0.311, -0.283, -0.256, -0.244, -0.237, -0.214, -0.191, -0.18,
        -0.104, -0.091, -0.061, 0.206, 0.57,
    ),
    "same task": (
        -1.457, -1.411, -1.224, -1.171, -1.144, -1.109, -1.061, -1.048, -0.951, -0.883, -0.834,
        -0.822, -0.587, -0.537, -0.472, -0.422, -0.419, -0.384, -0.382, -0.363, -0.341, -0.312,
        -0.289, -0.247, -0.238, -0.223, -0.219, -0.172, -0.164, -0.136, -0.136, -0.092, -0.045,
        0.063, 0.121, 0.427,
    ),
}
# fmt: on
