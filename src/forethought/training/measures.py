"""Figures of a model on held-out records, by name: what each is, and what no model at all reaches.

*No model* answers every record alike: with the most frequent class and the shares of the classes
among the held-out records, with the mean of values, with each label's share. A figure is measured
on these constant answers by the same function, so that the two are about the same thing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, norm
from sklearn import metrics

# Of the intervals.
CONFIDENCE = 0.95
_Z = float(norm.ppf((1 + CONFIDENCE) / 2))
_BINS = 10


@dataclass(frozen=True)
class Figure:
    """A measured figure with its interval at 95 % confidence, where one is known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, eq=False)
class Answers:
    """What was to be said of held-out records, and what a model said.

    Args:
        targets: classes (N,), values (N,), or labels (N, K) of 0 and 1.
        scores: probabilities (N, K); of a regression its values (N,).
        chosen: classes (N,) or labels (N, K).
    """

    targets: NDArray[Any]
    scores: NDArray[np.float64]
    chosen: NDArray[np.int64]

    @property
    def there(self) -> NDArray[np.int64]:
        """The classes that some record has."""
        return np.flatnonzero(np.bincount(self.targets, minlength=self.scores.shape[1]))


Measure = Callable[[Answers], Figure | None]


def classes_of(outputs: NDArray[np.float64], targets: NDArray[np.int64]) -> Answers:
    """Answers of a classifier from its outputs (N, classes) before the softmax."""
    shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return Answers(targets, shares, outputs.argmax(axis=1))


def labels_of(outputs: NDArray[np.float64], targets: NDArray[np.int64]) -> Answers:
    """Answers of a model of several labels from its outputs (N, labels) before the sigmoid."""
    return Answers(targets, 1 / (1 + np.exp(-outputs)), (outputs > 0).astype(np.int64))


def values_of(outputs: NDArray[np.float64], targets: NDArray[np.float64]) -> Answers:
    """Answers of a regression."""
    return Answers(targets, outputs, np.empty(0, np.int64))


def without_a_model(answers: Answers) -> Answers:
    """The same answer to every record."""
    targets, scores = answers.targets, answers.scores
    if scores.ndim == 1:
        return values_of(np.full(len(targets), targets.mean()), targets)
    if targets.ndim == 1:
        shares = np.bincount(targets, minlength=scores.shape[1]) / len(targets)
        most = np.full(len(targets), int(shares.argmax()))
        return Answers(targets, np.tile(shares, (len(targets), 1)), most)
    shares = targets.mean(axis=0)
    usual = np.tile((shares > 0.5).astype(np.int64), (len(targets), 1))
    return Answers(targets, np.tile(shares, (len(targets), 1)), usual)


def share(hits: int, count: int) -> Figure:
    """A share with the interval of Clopper and Pearson (1934)."""
    tail = (1 - CONFIDENCE) / 2
    low = float(beta.ppf(tail, hits, count - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, count - hits)) if hits < count else 1.0
    return Figure(hits / count, low, high)


def _mean(values: NDArray[np.float64], least: float = -math.inf, most: float = math.inf) -> Figure:
    """A mean over records with the interval of the central limit theorem."""
    mean, half = float(values.mean()), _Z * float(values.std()) / math.sqrt(len(values))
    return Figure(mean, max(least, mean - half), min(most, mean + half))


def _accuracy(a: Answers) -> Figure:
    if a.targets.ndim == 1:
        return share(int((a.chosen == a.targets).sum()), len(a.targets))
    return _mean((a.chosen == a.targets).mean(axis=1), 0.0, 1.0)


def _all_right(a: Answers) -> Figure:
    return share(int((a.chosen == a.targets).all(axis=1).sum()), len(a.targets))


def _area(targets: NDArray[Any], scores: NDArray[np.float64]) -> Figure:
    """Area under the curve with the interval of Hanley and McNeil (1982)."""
    area = float(metrics.roc_auc_score(targets, scores))
    positive = int((targets == 1).sum())
    negative = len(targets) - positive
    one, two = area / (2 - area), 2 * area * area / (1 + area)
    variance = area * (1 - area)
    variance += (positive - 1) * (one - area**2) + (negative - 1) * (two - area**2)
    width = _Z * math.sqrt(variance / (positive * negative))
    return Figure(area, max(0.0, area - width), min(1.0, area + width))


def _one_against_rest(a: Answers, score: Callable[..., Any]) -> Figure | None:
    """The mean over classes or labels that some, and not all, records have."""
    if a.targets.ndim == 1:
        each = [(a.targets == kind, a.scores[:, kind]) for kind in a.there]
    else:
        each = list(zip(a.targets.T, a.scores.T, strict=True))
    found = [float(score(y, p)) for y, p in each if 0 < int(np.sum(y)) < len(y)]
    return Figure(float(np.mean(found))) if found else None


def _auc(a: Answers) -> Figure | None:
    if a.targets.ndim == 1 and a.scores.shape[1] == 2 and len(a.there) == 2:
        return _area(a.targets, a.scores[:, 1])
    return _one_against_rest(a, metrics.roc_auc_score)


def _macro(score: Callable[..., Any]) -> Measure:
    def measure(a: Answers) -> Figure:
        labels = a.there if a.targets.ndim == 1 else None
        value = score(a.targets, a.chosen, labels=labels, average="macro", zero_division=0)
        return Figure(float(value))

    return measure


def _calibration(a: Answers) -> Figure:
    """Expected calibration error over ten bins: how far confidence is from accuracy."""
    if a.targets.ndim == 1:
        sure, right = a.scores.max(axis=1), (a.chosen == a.targets).astype(float)
    else:
        sure, right = a.scores.ravel(), a.targets.ravel().astype(float)
    place = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    return Figure(float(np.abs(np.bincount(place, sure - right, _BINS)).sum() / len(sure)))


def _log_loss(a: Answers) -> Figure:
    likely = np.clip(a.scores, 1e-12, 1.0)
    if a.targets.ndim == 1:
        return _mean(-np.log(likely[np.arange(len(a.targets)), a.targets]), 0.0)
    other = np.clip(1 - a.scores, 1e-12, 1.0)
    return _mean(-(np.where(a.targets == 1, np.log(likely), np.log(other))).mean(axis=1), 0.0)


def _brier(a: Answers) -> Figure:
    wanted = a.targets if a.targets.ndim == 2 else np.eye(a.scores.shape[1])[a.targets]
    return _mean(np.square(a.scores - wanted).mean(axis=1), 0.0)


def _r_squared(a: Answers) -> Figure:
    plain = float(np.square(a.targets - a.targets.mean()).sum())
    gaps = float(np.square(a.scores - a.targets).sum())
    return Figure(1 - gaps / plain if plain else math.nan)


def _mean_error(a: Answers) -> Figure:
    return _mean(np.abs(a.scores - a.targets), 0.0)


def _root_mean_error(a: Answers) -> Figure:
    return Figure(math.sqrt(float(np.square(a.scores - a.targets).mean())))


def _middle_error(a: Answers) -> Figure:
    return Figure(float(np.median(np.abs(a.scores - a.targets))))


_OF_CLASSES: dict[str, Measure] = {
    "accuracy": _accuracy,
    "AUC": _auc,
    "F1": _macro(metrics.f1_score),
    "calibration error": _calibration,
    "balanced accuracy": _macro(metrics.recall_score),
    "precision": _macro(metrics.precision_score),
    "average precision": lambda a: _one_against_rest(a, metrics.average_precision_score),
    "log loss": _log_loss,
    "Brier score": _brier,
}
# Kind of task → name → figure; the first is always given: it says whether a model is any good.
MEASURES: dict[str, Mapping[str, Measure]] = {
    "classification": _OF_CLASSES,
    "multilabel": {**_OF_CLASSES, "all labels right": _all_right},
    "regression": {
        "R²": _r_squared,
        "mean absolute error": _mean_error,
        "root mean squared error": _root_mean_error,
        "median absolute error": _middle_error,
    },
}
# What is measured where nobody says what.
USUAL: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "AUC", "F1", "calibration error"),
    "multilabel": ("accuracy", "all labels right", "AUC", "F1", "calibration error"),
    "regression": ("R²", "mean absolute error", "root mean squared error"),
}


def chosen_measures(task: str, names: Sequence[str] | None) -> tuple[str, ...]:
    """The measures that are wanted, the first one of the task before them.

    Raises:
        ValueError: a name that this task does not have; says which there are.
    """
    known = MEASURES[task]
    if names is None:
        return USUAL[task]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(
            f"metrics has {', '.join(map(repr, unknown))}: of a {task} there are "
            f"{', '.join(known)} (recall of each class and the confusion matrix are always given)"
        )
    return tuple(dict.fromkeys((next(iter(known)), *names)))
