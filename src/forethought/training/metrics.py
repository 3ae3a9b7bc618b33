"""What a run tells while it runs and afterwards.

Two kinds of numbers are kept apart. What follows from the released model (the rounds, the step
size, ε) and from held-out records goes to ``metrics.csv``. Loss, share of clipped contributions
and the number of non-finite ones are taken on private batches without noise: they are for the
operator, go to ``diagnostics.csv``, and the Statement names them as not covered.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
import torch
from torch.func import functional_call

from forethought.gradients import BatchDims
from forethought.gradients.declared import outputs_in_front, placed
from forethought.rounds.losses import Loss, correct
from forethought.rounds.records import Records
from forethought.rounds.undisturbed import undisturbed
from forethought.training.normalisation import mixing_layers, public_statistics

EVALUATION_BATCH = 512


@dataclass(frozen=True)
class Metrics:
    """One row of the history, after ``round`` rounds.

    Args:
        epoch: expected passes over the data so far.
        epsilon: certified upper end of ε of all rounds so far, at the plan's δ.
        clip_norm: the norm that the round's contributions were clipped to.
        test_loss, accuracy: of the reported (averaged) model on held-out records.
        loss: mean loss of the round's private batch before its update (operator only).
        clipped: share of that batch's contributions above the clipping norm (operator only).
        non_finite: contributions dropped so far as not finite (operator only).
    """

    round: int
    epoch: float
    learning_rate: float
    clip_norm: float
    epsilon: float
    test_loss: float | None = None
    accuracy: float | None = None
    loss: float | None = None
    clipped: float | None = None
    non_finite: int | None = None


PRIVATE = ("loss", "clipped", "non_finite")
PUBLIC = tuple(field.name for field in fields(Metrics) if field.name not in PRIVATE)


@dataclass(frozen=True)
class Event:
    """What a progress display needs, after every round: the values last measured.

    ``loss``, ``clipped`` and ``non_finite`` come from private batches: show them, do not publish.
    """

    round: int
    rounds: int
    loss: float | None = None
    accuracy: float | None = None
    epsilon: float | None = None
    clipped: float | None = None
    non_finite: int | None = None
    learning_rate: float | None = None


def event(done: int, rounds: int, last: Metrics | None) -> Event:
    """The event of round ``done``, with the values of the last row of the history."""
    if last is None:
        return Event(done, rounds)
    return Event(
        done,
        rounds,
        last.loss,
        last.accuracy,
        last.epsilon,
        last.clipped,
        last.non_finite,
        last.learning_rate,
    )


def as_csv(history: Sequence[Metrics], columns: Sequence[str]) -> str:
    """Rows as text; a missing value is an empty cell, numbers keep all their digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in history:
        values = (getattr(row, column) for column in columns)
        writer.writerow(["" if value is None else repr(value) for value in values])
    return text.getvalue()


def from_csv(public: str, private: str | None) -> list[Metrics]:
    """The inverse of :func:`as_csv` on the columns of both files."""
    rows = list(csv.DictReader(io.StringIO(public)))
    if private is not None:
        more = csv.DictReader(io.StringIO(private))
        rows = [{**row, **extra} for row, extra in zip(rows, more, strict=True)]
    whole = ("round", "non_finite")
    return [
        Metrics(**{k: (int if k in whole else float)(v) for k, v in row.items() if v})  # type: ignore[arg-type]
        for row in rows
    ]


def from_values(values: Sequence[Sequence[float | None]]) -> list[Metrics]:
    """The inverse of :func:`to_values`."""
    return [Metrics(*row) for row in values]  # type: ignore[arg-type]


def to_values(history: Sequence[Metrics]) -> list[tuple[float | None, ...]]:
    """Rows as plain values, for a checkpoint."""
    return [astuple(row) for row in history]


def evaluate(
    model: torch.nn.Module,
    parameters: dict[str, torch.Tensor],
    loss: Loss,
    records: Records,
    dims: BatchDims | None = None,
    public_inputs: Any = None,
) -> tuple[float, float | None]:
    """Mean loss and accuracy of the model with other parameters, in evaluation mode.

    Args:
        dims: where the model has its examples, where its owner declares it.
        public_inputs: records whose statistics batch normalisation uses. None: those of the records
            that are evaluated, so many at a time.

    Returns:
        (loss, accuracy); the accuracy is None where targets are no labels.
    """
    total, hits, size = 0.0, 0, len(records)
    classified = True
    mixing = [layer for _, layer in mixing_layers(model)]
    if mixing and public_inputs is not None:
        parameters = {**parameters, **public_statistics(model, parameters, public_inputs)}
        mixing = []
    with undisturbed(model, loss), torch.no_grad():
        model.eval()
        for layer in mixing:
            layer.train()
        for indices in np.array_split(np.arange(size), max(1, -(-size // EVALUATION_BATCH))):
            inputs, targets = records.take(indices)
            inputs = placed(inputs, dims)
            args = () if isinstance(inputs, dict) else inputs
            args = tuple(args) if isinstance(args, list) else args
            kwargs = inputs if isinstance(inputs, dict) else {}
            outputs = functional_call(model, parameters, args, kwargs)
            outputs = outputs_in_front(outputs, dims)
            values = loss(outputs, targets).double()
            # A model that computes its own loss gives the mean of its batch.
            total += float(values.sum() if values.ndim else values * len(indices))
            found = correct(outputs, targets)
            classified = classified and found is not None
            hits += found or 0
    return total / size, hits / size if classified else None
