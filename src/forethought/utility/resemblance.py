"""How far a rehearsal may be off because the private data are not the public ones.

No statistic of the public data says that. What can be said is how far rehearsals were off on other
pairs of a public and a private set in the same *relation*: split conformal prediction, in the form
that widens an interval (Romano, Patterson and Candès 2019, "Conformalized Quantile Regression"),
with scores E = max(g(low) − g(achieved), g(achieved) − g(high)) and g(p) = ln((p + κ)/(1 − p + κ)),
so that a point near 100 % counts more than one near 50 %.

Pairs that share a data set resemble each other: what is independent are data sets. So the quantile
is hierarchical (Lee, Barber and Willett 2023, "Distribution-free inference with hierarchical data",
Theorem 1): of K data sets with N_k pairs each, Q is the smallest score at which the weights
1/((K + 1) N_k) of the scores up to it sum to the level, and [g⁻¹(g(low) − Q), g⁻¹(g(high) + Q)]
holds the accuracy of a pair of one more data set with a chance of at least the level, *if* that
data set is like those (exchangeable with them). An interval is never made narrower than the run's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from forethought.assumed import is_linear

Relation = Literal["same source", "same task", "same shape", "synthetic"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)
# Kinds of networks that are told apart; HELD has those that rehearsals were measured with.
Network = Literal["perceptron", "convolutional"]
NETWORKS: tuple[Network, ...] = get_args(Network)
Scores = Mapping[str, Sequence[float]]
# What the pairs were rehearsed with: a run's interval of this level, from so many repeats.
LEVEL, REPEATS = 0.9, 6
_KAPPA = 0.005

# Scores of 120 pairs a relation of twelve data sets, of linear models and of a perceptron of 32
# units, by `python experiments/defaults/rehearsals.py --constants`, from rehearsals.jsonl beside
# it; pairs.py there says how pairs are made. "synthetic" and "same shape" have none: calibrated
# like the others', their intervals held 36 of 60 and 49 of 58 pairs of other data sets.
SCORES: dict[str, dict[str, Scores]] = json.loads(
    Path(__file__).with_name("resemblance.json").read_text(encoding="utf-8")
)
_LAYERS: dict[frozenset[str], Network] = {
    frozenset({"Linear"}): "perceptron",
    frozenset({"Linear", "Conv2d"}): "convolutional",
    frozenset({"Conv2d"}): "convolutional",
}


def network_of(model: Any) -> Network | None:
    """Which kind of network a torch module is, of those that are told apart.

    Returns:
        By the layers that have weights: None for a linear model, and for one with other layers than
        linear ones and convolutions.
    """
    if is_linear(model):
        return None
    weighed = {type(m).__name__ for m in model.modules() if list(m.parameters(recurse=False))}
    return _LAYERS.get(frozenset(weighed))


def _odds(share: float) -> float:
    return math.log((share + _KAPPA) / (1 - share + _KAPPA))


def _share(odds: float) -> float:
    found = (1 + 2 * _KAPPA) / (1 + math.exp(-odds)) - _KAPPA
    return min(1.0, max(0.0, found))


def score(interval: tuple[float, float], achieved: float) -> float:
    """How far, in log-odds, an accuracy lies outside an interval; negative inside it."""
    low, high = map(_odds, interval)
    return max(low - _odds(achieved), _odds(achieved) - high)


def scores_of(relation: Relation | None, model: str | None) -> Scores:
    """Scores of the pairs that are calibrated on, by data set; none where nothing is known.

    Args:
        model: "linear", or which of :data:`NETWORKS`; None: another.
    """
    if relation is None or model is None or relation not in HELD.get(model, {}):
        return {}
    return SCORES[model][relation]


def quantile(scores: Scores, level: float) -> float | None:
    """The score Q that one more data set's pair has at most, with a chance of ``level``.

    Returns:
        None where there are too few data sets, K of them, for the level: above K/(K + 1).
    """
    sets = len(scores) + 1
    weighed = sorted((one, 1 / (sets * len(of))) for of in scores.values() for one in of)
    summed = 0.0
    for one, weight in weighed:
        summed += weight
        if summed >= level - 1e-9:
            return one
    return None


def calibrated(
    interval: tuple[float, float], scores: Scores, level: float
) -> tuple[float, float] | None:
    """An interval moved outward, or inward, by the quantile of other pairs' scores.

    Args:
        interval: of a further run on the public data, of :data:`LEVEL`.

    Returns:
        Shares in [0, 1]; None where there are too few data sets for the level.
    """
    extra = quantile(scores, level)
    if extra is None:
        return None
    low, high = _odds(interval[0]) - extra, _odds(interval[1]) + extra
    if low > high:  # pairs agreed more than their repeats did
        low = high = (low + high) / 2
    return _share(low), _share(high)


# How many fresh pairs' intervals of 90 % held what was achieved, of how many: pairs of data sets
# that nothing is calibrated on. From experiments/defaults/rehearsals.md; fresh_pairs.py there has
# the rule and the pairs, written down before any of them was run.
HELD: dict[str, dict[Relation, tuple[int, int]]] = {
    "linear": {"same source": (65, 66), "same task": (65, 66)},
    "perceptron": {"same source": (64, 66), "same task": (64, 66)},
}
