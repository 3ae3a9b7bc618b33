"""What a run's result is worth, on held-out records: beside a baseline, with intervals.

Held-out records are not those that the guarantee is about; the Statement names their use.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import beta, norm
from sklearn import metrics

SCHEMA = "forethought/results/1"
# Of the intervals.
CONFIDENCE = 0.95
_ROWS = 4096
_BINS = 10


@dataclass(frozen=True)
class Figure:
    """A measured figure with its interval at 95 % confidence, where one is known."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Results:
    """Figures on held-out records.

    Args:
        examples: how many there are.
        figures: name → figure: of a classification accuracy, AUC (of two classes, else the mean of
            each against the rest), F1 (mean over classes) and calibration error; of a regression
            R², mean absolute error and root mean squared error.
        baseline: the figure of the same name that takes no model: the share of the most frequent
            class, or the error of always predicting the mean.
        classes: their names; empty for a regression. recall: of each class; None for one that no
            held-out record has. confusion: true class × predicted class.
        weak: whether the model is not clearly better than the baseline.
    """

    examples: int
    figures: Mapping[str, Figure]
    baseline: Mapping[str, float]
    classes: tuple[str, ...] = ()
    recall: tuple[float | None, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    weak: bool = False

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, path: Path) -> Results | None:
        """Read ``results.json``; None where a run kept none."""
        if not path.is_file():
            return None
        values = json.loads(path.read_text(encoding="utf-8"))
        values.pop("schema")
        return cls(
            values["examples"],
            {name: Figure(**figure) for name, figure in values["figures"].items()},
            values["baseline"],
            tuple(values["classes"]),
            tuple(values["recall"]),
            tuple(tuple(row) for row in values["confusion"]),
            values["weak"],
        )

    def sentences(self) -> tuple[str, ...]:
        """The result in words, its baseline beside it."""
        (name, lead), *rest = self.figures.items()
        more = [f"{other} {figure.value:.3g}" for other, figure in rest]
        around = ""
        if self.classes:
            if lead.low is not None and lead.high is not None:
                around = f" ({lead.low:.1%} to {lead.high:.1%})"
            lines = [
                f"{name} on {self.examples:,} held-out records {lead.value:.1%}{around}; always "
                f"saying the most frequent class gives {self.baseline[name]:.1%}",
                ", ".join(more),
            ]
        else:
            lines = [
                f"{name} on {self.examples:,} held-out records {lead.value:.3g}; always saying the "
                f"mean gives {self.baseline[name]:.3g}",
                ", ".join(
                    f"{text} (mean {self.baseline[other]:.3g})"
                    for text, (other, _) in zip(more, rest, strict=True)
                ),
            ]
        if self.weak:
            lines.append(
                "the model is not clearly better than no model: give it more records, a larger ε, "
                "or columns that say more"
            )
        return tuple(lines)


def measured(
    outputs: NDArray[np.floating[Any]],
    targets: NDArray[Any],
    classes: Sequence[object] | None,
) -> Results:
    """Figures of a model's outputs.

    Args:
        outputs: of a classifier (N, classes), before the softmax; of a regression (N,), in the
            unit of its targets. targets: (N,).
        classes: their names, class 0 first; None for a regression.
    """
    if classes is None:
        return _regression(outputs.reshape(-1).astype(np.float64), targets.astype(np.float64))
    return _classification(outputs.astype(np.float64), targets, tuple(map(str, classes)))


def outputs_of(model: torch.nn.Module, inputs: Any) -> NDArray[np.float32]:
    """The outputs of a model in evaluation mode, float32, (N, …)."""
    like = next(model.parameters())
    rows = torch.as_tensor(inputs)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            found = [
                model(rows[start : start + _ROWS].to(like)).float().cpu()
                for start in range(0, len(rows), _ROWS)
            ]
    finally:
        model.train(training)
    outputs: NDArray[np.float32] = torch.cat(found).numpy()
    return outputs


def _classification(
    outputs: NDArray[np.float64], targets: NDArray[Any], classes: tuple[str, ...]
) -> Results:
    count, kinds = len(targets), np.arange(len(classes))
    shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    chosen = outputs.argmax(axis=1)
    hits = int((chosen == targets).sum())
    confusion = metrics.confusion_matrix(targets, chosen, labels=kinds)
    most = int(np.bincount(targets, minlength=len(classes)).max())
    accuracy = _share(hits, count)
    figures = {"accuracy": accuracy}
    there = np.flatnonzero(np.bincount(targets, minlength=len(classes)))
    if len(there) == len(classes) == 2:
        figures["AUC"] = _auc(targets, shares[:, 1])
    elif len(there) > 1:
        each = [metrics.roc_auc_score(targets == kind, shares[:, kind]) for kind in there]
        figures["AUC"] = Figure(float(np.mean(each)))
    figures["F1"] = Figure(
        float(metrics.f1_score(targets, chosen, labels=there, average="macro", zero_division=0))
    )
    figures["calibration error"] = Figure(_calibration(shares, chosen, targets))
    of_class = confusion.sum(axis=1)
    recall = tuple(
        float(confusion[kind, kind] / of_class[kind]) if of_class[kind] else None for kind in kinds
    )
    assert accuracy.low is not None
    return Results(
        count,
        figures,
        {"accuracy": most / count},
        classes,
        recall,
        tuple(tuple(int(n) for n in row) for row in confusion),
        accuracy.low <= most / count,
    )


def _share(hits: int, count: int) -> Figure:
    """A share with the interval of Clopper and Pearson (1934)."""
    tail = (1 - CONFIDENCE) / 2
    low = float(beta.ppf(tail, hits, count - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, count - hits)) if hits < count else 1.0
    return Figure(hits / count, low, high)


def _auc(targets: NDArray[Any], scores: NDArray[np.float64]) -> Figure:
    """Area under the curve with the interval of Hanley and McNeil (1982)."""
    area = float(metrics.roc_auc_score(targets, scores))
    positive = int((targets == 1).sum())
    negative = len(targets) - positive
    one, two = area / (2 - area), 2 * area * area / (1 + area)
    variance = area * (1 - area)
    variance += (positive - 1) * (one - area**2) + (negative - 1) * (two - area**2)
    width = float(norm.ppf((1 + CONFIDENCE) / 2)) * math.sqrt(variance / (positive * negative))
    return Figure(area, max(0.0, area - width), min(1.0, area + width))


def _calibration(
    shares: NDArray[np.float64], chosen: NDArray[np.int64], targets: NDArray[Any]
) -> float:
    """Expected calibration error over ten bins: how far confidence is from accuracy."""
    sure = shares.max(axis=1)
    place = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    right = (chosen == targets).astype(float)
    gaps = np.abs(np.bincount(place, sure - right, _BINS))
    return float(gaps.sum() / len(targets))


def _regression(outputs: NDArray[np.float64], targets: NDArray[np.float64]) -> Results:
    gaps, spread = outputs - targets, targets - targets.mean()
    plain = float(np.square(spread).sum())
    score = 1 - float(np.square(gaps).sum()) / plain if plain else math.nan
    error, mean_error = float(np.abs(gaps).mean()), float(np.abs(spread).mean())
    half = float(norm.ppf((1 + CONFIDENCE) / 2)) * float(np.abs(gaps).std()) / math.sqrt(len(gaps))
    figures = {
        "R²": Figure(score),
        "mean absolute error": Figure(error, error - half, error + half),
        "root mean squared error": Figure(math.sqrt(float(np.square(gaps).mean()))),
    }
    baseline = {
        "R²": 0.0,
        "mean absolute error": mean_error,
        "root mean squared error": math.sqrt(plain / len(targets)),
    }
    return Results(len(targets), figures, baseline, weak=error + half >= mean_error)
