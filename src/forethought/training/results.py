"""What a run's result is worth, on held-out records: beside a baseline, with intervals.

Held-out records are not those that the guarantee is about; the Statement names their use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn import metrics

from forethought.accounting.interval import at_least, at_most
from forethought.training.measures import (
    MEASURES,
    Answers,
    Figure,
    chosen_measures,
    classes_of,
    labels_of,
    values_of,
    without_a_model,
)

SCHEMA = "forethought/results/1"
_ROWS = 4096


@dataclass(frozen=True)
class Results:
    """Figures on held-out records.

    Args:
        examples: how many there are.
        figures: name → figure, those of :data:`forethought.training.measures.MEASURES` that were
            asked for; AUC, F1, precision and recall are means over classes or labels.
        baseline: the same figures of answering every record alike.
        classes: their names, or those of labels; empty for a regression. recall: of each; None for
            one that no held-out record has. confusion: true class × predicted class; of each label
            how many were rightly left out, wrongly given, missed, found.
        weak: whether the model is not clearly better than the baseline.
        task: "classification", "multilabel" or "regression".
    """

    examples: int
    figures: Mapping[str, Figure]
    baseline: Mapping[str, float]
    classes: tuple[str, ...] = ()
    recall: tuple[float | None, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    weak: bool = False
    task: str = "classification"

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
            values.get("task", "classification" if values["classes"] else "regression"),
        )

    def sentences(self) -> tuple[str, ...]:
        """The result in words, its baseline beside it."""
        (name, lead), *rest = self.figures.items()
        form, nothing = ".1%", "always saying the most frequent class"
        if self.task == "multilabel":
            nothing, name = "always saying what most records have", f"{name} over all labels"
        elif self.task == "regression":
            form, nothing = ".3g", "always saying the mean"
        around = ""
        if lead.low is not None and lead.high is not None:
            around = f" ({at_least(lead.low, form)} to {at_most(lead.high, form)})"
        first = next(iter(self.figures))
        lines = [
            f"{name} on {self.examples:,} held-out records {lead.value:{form}}{around}; {nothing} "
            f"gives {self.baseline[first]:{form}}"
        ]
        if rest:
            lines.append(", ".join(self._named_with(other, figure) for other, figure in rest))
        if self.weak:
            lines.append(
                "the model is not clearly better than no model: give it more records, a larger ε, "
                "or columns that say more"
            )
        return tuple(lines)

    def _named_with(self, name: str, figure: Figure) -> str:
        """A figure with what no model reaches."""
        plain = self.baseline.get(name)
        return f"{name} {figure.value:.3g}" + ("" if plain is None else f" (no model {plain:.3g})")


def measured(
    outputs: NDArray[np.floating[Any]],
    targets: NDArray[Any],
    classes: Sequence[object] | None,
    names: Sequence[str] | None = None,
) -> Results:
    """Figures of a model's outputs.

    Args:
        outputs: of a classifier (N, classes), before the softmax; of labels (N, labels), before
            the sigmoid; of a regression (N,), in the unit of its targets.
        targets: (N,), or (N, labels) of 0 and 1.
        classes: their names, class 0 first, or those of labels; None for a regression.
        names: the figures wanted; None: the usual ones.

    Raises:
        ValueError: a figure that there is not.
    """
    values = outputs.astype(np.float64)
    if classes is None:
        task, answers = "regression", values_of(values.reshape(-1), targets.astype(np.float64))
    elif targets.ndim == 2:
        task, answers = "multilabel", labels_of(values, targets.astype(np.int64))
    else:
        task, answers = "classification", classes_of(values, targets)
    nothing = without_a_model(answers)
    figures, baseline = {}, {}
    for name in chosen_measures(task, names):
        figure = MEASURES[task][name](answers)
        plain = MEASURES[task][name](nothing)
        if figure is not None:
            figures[name] = figure
        if figure is not None and plain is not None:
            baseline[name] = plain.value
    called = tuple(map(str, classes or ()))
    confusion, recall = _confusion(answers, len(called))
    return Results(
        len(targets),
        figures,
        baseline,
        called,
        recall,
        confusion,
        _weak(task, answers, nothing),
        task,
    )


def _confusion(
    answers: Answers, count: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[float | None, ...]]:
    """What was taken for what, and the share of each class or label that was found."""
    if answers.scores.ndim == 1:
        return (), ()
    if answers.targets.ndim == 2:
        table = metrics.multilabel_confusion_matrix(answers.targets, answers.chosen).reshape(-1, 4)
        found, of_all = table[:, 3], table[:, 2] + table[:, 3]
    else:
        table = metrics.confusion_matrix(answers.targets, answers.chosen, labels=range(count))
        found, of_all = np.diagonal(table), table.sum(axis=1)
    recall = tuple(
        float(hits / total) if total else None for hits, total in zip(found, of_all, strict=True)
    )
    return tuple(tuple(int(number) for number in row) for row in table), recall


def _weak(task: str, answers: Answers, nothing: Answers) -> bool:
    """Whether the interval of the task's own figure does not keep clear of no model's."""
    name = "mean absolute error" if task == "regression" else "accuracy"
    figure, plain = MEASURES[task][name](answers), MEASURES[task][name](nothing)
    assert figure is not None and plain is not None
    assert figure.low is not None and figure.high is not None
    if task == "regression":
        return figure.high >= plain.value
    return figure.low <= plain.value


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
