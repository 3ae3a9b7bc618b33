"""Measurements of a run, and figures of its model on held-out records."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr, ndtri, softmax
from torch import Tensor, nn
from torch.func import functional_call

from forethought.accounting.interval import at_least, at_most, bisected
from forethought.gradients import BatchDims
from forethought.gradients.batches import call, filled
from forethought.gradients.boundary import memory_of, shards_of
from forethought.gradients.clipped import outputs_in_front, placed, rows_alike, shortened
from forethought.rounds.contributions import Loss, correct, mixing_layers, undisturbed
from forethought.rounds.records import Records

# The statistics that batch normalisation uses in evaluation after private training.
#
# In training, a layer normalises by the statistics of its own group, which are not kept: running
# statistics of private records are never released, so the model has none. Evaluation uses either
# the layer statistics of a public batch, which are then stored in the model's buffers, or those of
# the evaluated records, a batch at a time.


def public_statistics(
    model: nn.Module, parameters: Mapping[str, Tensor], inputs: Any
) -> dict[str, Tensor]:
    """Buffer name → running mean or variance of a public batch, layer by layer.

    Args:
        model: its batch normalisation layers are put in training mode, all others in evaluation
            mode.
        parameters: weights in place of the model's own, by name.
        inputs: a tensor, tuple or dict of at least two public records, batch first.
    """
    with undisturbed(model), torch.no_grad():
        layers = [(name, m) for name, m in mixing_layers(model) if m.track_running_stats]
        if not layers:
            return {}
        model.eval()
        for _, layer in layers:
            layer.train()
            layer.momentum = 1.0
        functional_call(model, dict(parameters), *_arguments(inputs))
        return {
            f"{name}.{kind}" if name else kind: getattr(layer, kind).clone()
            for name, layer in layers
            for kind in ("running_mean", "running_var")
        }


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A model's positional and keyword arguments, from inputs in any form."""
    if isinstance(inputs, dict):
        return (), inputs
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}


def settle_statistics(model: nn.Module, inputs: Any) -> None:
    """Store a public batch's layer statistics in the model's buffers, for evaluation mode.

    Args:
        inputs: public records, batch first.
    """
    buffers = dict(model.named_buffers())
    for name, value in public_statistics(model, {}, inputs).items():
        buffers[name].copy_(value)


# From a classifier's outputs to probabilities and answers, by declared facts, not measured ones.
#
# With class shares q among the records in use, and shares p in a model's answers, probabilities are
# proportional to softmax · q/p (Saerens, Latinne and Decaestecker 2002; Elkan 2001), so log(q/p) is
# added to the outputs. Clipping makes p differ from the shares of the records: the gradients of a
# rare class are long and are shortened, those of a frequent one are not. If a linear model clips at
# a known share of its features' norm, :func:`learnt` computes p from declared numbers.
# The answer is the one of the least expected cost: the class of the largest probability times its
# cost.


@dataclass(frozen=True)
class Decisions:
    """The rule from a classifier's outputs to probabilities and answers.

    Args:
        shift: added to the outputs before the softmax, one a class; empty: nothing is added.
        costs: for each true class, the cost of a wrong answer; empty: all are equal.
    """

    shift: tuple[float, ...] = ()
    costs: tuple[float, ...] = ()

    @classmethod
    def of(
        cls, asked: Sequence[float] | None, answered: Sequence[float] | None, costs: Sequence[float]
    ) -> Decisions:
        """The rule that follows from declared facts.

        Args:
            asked: class shares where the model is used; None: not declared.
            answered: class shares in the model's answers without a shift.
            costs: of wrong answers, by true class.
        """
        moved: tuple[float, ...] = ()
        if asked is not None and answered is not None:
            moved = tuple((np.log(asked) - np.log(answered)).tolist())
        return cls(moved if any(abs(one) > 1e-9 for one in moved) else (), tuple(costs))

    def shifted(self, outputs: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """Outputs whose softmax is the probabilities, float64, (N, classes)."""
        return outputs.astype(np.float64) + (self.shift or 0.0)

    def shares(self, outputs: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """The probability of each class, (N, classes)."""
        return np.asarray(softmax(self.shifted(outputs), axis=1))

    def chosen(self, outputs: NDArray[np.floating[Any]]) -> NDArray[np.int64]:
        """The class of the least expected cost for each record, int64, (N,)."""
        own = np.log(self.costs) if self.costs else 0.0
        return np.asarray((self.shifted(outputs) + own).argmax(axis=1))


def learnt(
    shares: Sequence[float], weights: Sequence[float] | None, clip: float | None
) -> tuple[float, ...]:
    """Class shares in the answers of a linear model that has learnt nothing but its intercept.

    The gradients of class k, w_k (p − e_k) times features of norm R, are clipped at C. The answer p
    at which their mean is zero has p_k proportional to q_k w_k min(1, C/(w_k R ‖p − e_k‖)).

    Args:
        shares: q, of the records.
        weights: w, of the loss; None: all 1.
        clip: C/R; None: unknown, and the result is ``shares``.
    """
    own = np.asarray(shares, float)
    if clip is None:
        return tuple(own.tolist())
    each = np.ones(len(own)) if weights is None else np.asarray(weights, float)
    found = own
    for _ in range(200):
        length = np.linalg.norm(found - np.eye(len(own)), axis=1)
        wanted = own * np.minimum(each, clip / np.maximum(length, 1e-12))
        found = np.sqrt(found * wanted / wanted.sum())
        found = found / found.sum()
    return tuple(found.tolist())


# Figures of a model on held-out records, by name, each with its value for constant answers.
#
# *No model* gives every record the same answer: of classes, the most frequent one and the class
# shares among the held-out records; of values, their mean; of labels, each label's share. The same
# function measures a figure on these constant answers, so that both values mean the same.


# Confidence level of the intervals.
CONFIDENCE = 0.95
_Z = float(ndtri((1 + CONFIDENCE) / 2))
_BINS = 10


@dataclass(frozen=True)
class Figure:
    """A measured figure, with its interval at 95 % confidence if there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    def around(self, form: str) -> str:
        """The interval as text to print after the figure; empty if there is none."""
        if self.low is None or self.high is None:
            return ""
        return f" ({at_least(self.low, form)} to {at_most(self.high, form)})"


@dataclass(frozen=True, eq=False)
class HeldOutAnswers:
    """The right answers for held-out records, and a model's answers.

    Args:
        targets: values (N,), or 0.0 and 1.0 for each class or label (N, K).
        scores: probabilities (N, K); of a regression its values (N,).
        chosen: 0.0 and 1.0 for each class or label (N, K).
        one: True for classes, of which every record has one, and one is chosen.
        costs: for each true class, the cost of a wrong answer; empty: not declared.
    """

    targets: NDArray[Any]
    scores: NDArray[np.float64]
    chosen: NDArray[np.float64]
    one: bool = False
    costs: tuple[float, ...] = ()


Measure = Callable[[HeldOutAnswers], Figure | None]


def values_of(outputs: NDArray[np.float64], targets: NDArray[np.float64]) -> HeldOutAnswers:
    """Answers of a regression."""
    return HeldOutAnswers(targets, outputs, np.empty(0))


def without_a_model(answers: HeldOutAnswers) -> HeldOutAnswers:
    """The constant answers of no model to the same records."""
    targets, scores = answers.targets, answers.scores
    if scores.ndim == 1:
        return values_of(np.full(len(targets), targets.mean()), targets)
    shares = targets.mean(axis=0)
    usual = (shares > 0.5).astype(np.float64)
    if answers.one:
        usual = np.eye(len(shares))[(shares * (answers.costs or 1.0)).argmax()]
    like = targets.shape
    both = np.broadcast_to(shares, like), np.broadcast_to(usual, like)
    return HeldOutAnswers(targets, *both, answers.one, answers.costs)


def share(hits: int, count: int) -> Figure:
    """A share with the interval of Clopper and Pearson (1934)."""
    tail = (1 - CONFIDENCE) / 2
    low = float(betaincinv(hits, count - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, count - hits, 1 - tail)) if hits < count else 1.0
    return Figure(hits / count, low, high)


def _mean(values: NDArray[np.float64], least: float = -math.inf, most: float = math.inf) -> Figure:
    """A mean over records with the interval of the central limit theorem.

    With two ends, two more records at each keep a width where all are at one (Agresti and Coull).
    """
    mean = float(values.mean())
    if math.isfinite(most):
        values = np.append(values, [least, least, most, most])
    centre, half = float(values.mean()), _Z * float(values.std()) / math.sqrt(len(values))
    return Figure(mean, max(least, min(mean, centre - half)), min(most, max(mean, centre + half)))


def _accuracy(a: HeldOutAnswers) -> Figure:
    if a.one:
        return _all_right(a)
    return _mean((a.chosen == a.targets).mean(axis=1), 0.0, 1.0)


def _all_right(a: HeldOutAnswers) -> Figure:
    return share(int((a.chosen == a.targets).all(axis=1).sum()), len(a.targets))


def _area(targets: NDArray[Any], scores: NDArray[np.float64]) -> Figure:
    """Area under the curve, from the least to the largest true area that it is not far from.

    How far an area strays follows from the true one (Hanley and McNeil 1982), so that an area of 1
    has an interval as well (Newcombe 2006).
    """
    from sklearn.metrics import roc_auc_score

    area = float(roc_auc_score(targets, scores))
    positive = int((targets == 1).sum())
    negative = len(targets) - positive

    def least(area: float) -> float:
        def far(true: float) -> bool:
            other = 1 - true
            shared = (len(targets) / 2 - 1) * (other / (2 - true) + true / (1 + true))
            variance = true * other * (1 + shared) / positive / negative
            return area - true > _Z * math.sqrt(variance)

        return bisected(far, 0.0, area, steps=50)[0]

    return Figure(area, least(area), 1 - least(1 - area))


def _each(a: HeldOutAnswers, weight: Any = 1.0) -> list[tuple[NDArray[Any], NDArray[np.float64]]]:
    """Truth and scores of each class or label that some, but not all, weighted records have."""
    each = zip(a.targets.T, a.scores.T, strict=True)
    every = np.sum(weight * np.ones(len(a.targets)))
    return [(y, p) for y, p in each if 0 < np.sum(weight * y) < every]


def _auc(a: HeldOutAnswers) -> Figure | None:
    found = [_area(y, p) for y, p in _each(a)]
    if a.one and a.scores.shape[1] == 2:
        found = found[1:]  # both are the same area
    if not found:
        return None
    # The deviation of a mean is at most the mean of the deviations.
    ends = [np.mean([getattr(one, end) for one in found]) for end in ("value", "low", "high")]
    return Figure(*map(float, ends))


def _average_precision(a: HeldOutAnswers) -> Figure | None:
    from sklearn.metrics import average_precision_score

    def value(some: HeldOutAnswers, weight: NDArray[np.float64]) -> float:
        each = _each(some, weight)
        found = [float(average_precision_score(y, p, sample_weight=weight)) for y, p in each]
        return float(np.mean(found)) if found else math.nan

    return _resampled(a, value) if _each(a) else None


def _macro(score: Callable[[Any, Any, Any], Any]) -> Measure:
    """The mean over classes or labels of a score of the counts found, wrong and missed."""

    def measure(a: HeldOutAnswers) -> Figure:
        there = a.targets.any(axis=0) if a.one else slice(None)

        def value(some: HeldOutAnswers, weight: NDArray[np.float64]) -> float:
            parts = some.targets * some.chosen, some.chosen, some.targets
            found, given, true = ((weight @ part)[there] for part in parts)
            return float(np.mean(score(found, given - found, true - found)))

        return _resampled(a, value)

    return measure


def _share_of(found: Any, others: Any) -> Any:
    return found / np.maximum(found + others, 1)


def _calibration(a: HeldOutAnswers) -> Figure:
    """Expected calibration error over ten bins: the distance of confidence from accuracy.

    The mean size of a bin's noisy gap γ + N(0, σ²) is too large by E|γ + N(0, σ²)| − |γ|, most
    where γ is 0. The interval's lower end subtracts this, with each γ a deviation nearer to 0 than
    it was measured; its upper end subtracts nothing.
    """
    sure, right = a.scores, a.targets
    if a.one:
        sure, right = sure.max(axis=1), sure.argmax(axis=1) == right.argmax(axis=1)
    sure, right = (part.reshape(len(a.targets), -1) for part in (sure, right))
    bins = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    # Shape (n, bins): the part of each record's answers in each bin's gap.
    cells = (np.arange(len(sure))[:, None] * _BINS + bins).ravel()
    each = np.bincount(cells, (sure - right).ravel(), len(sure) * _BINS) / sure.shape[1]
    each = each.reshape(len(sure), _BINS)
    gaps, few = each.mean(axis=0), math.sqrt(len(each))
    deviations = np.maximum(each.std(axis=0) / few, 1e-300)
    least = np.maximum(np.abs(gaps) / deviations - 1, 0.0)
    density = np.exp(-(least**2) / 2) / math.sqrt(2 * math.pi)
    excess = 2 * float(deviations @ (density - least * ndtr(-least)))
    half = _Z * float((each @ np.sign(gaps)).std()) / few
    error = float(np.abs(gaps).sum())
    if not np.ptp(a.scores, axis=0).any():  # constant answers need no interval
        return Figure(error)
    return Figure(error, max(0.0, error - excess - half), min(1.0, error + half))


def _log_loss(a: HeldOutAnswers) -> Figure:
    likely = np.clip(a.scores, 1e-12, 1.0)
    if a.one:
        return _mean(-np.log(likely[a.targets == 1]), 0.0)
    other = np.clip(1 - a.scores, 1e-12, 1.0)
    return _mean(-(np.where(a.targets == 1, np.log(likely), np.log(other))).mean(axis=1), 0.0)


def _brier(a: HeldOutAnswers) -> Figure:
    return _mean(np.square(a.scores - a.targets).mean(axis=1), 0.0)


def _cost(a: HeldOutAnswers) -> Figure | None:
    """Mean cost of the answers; None if no costs are declared.

    It is a sum over classes of a share times a cost. Its ends lie where those of the shares take
    it, their squares added (Zou and Donner 2008), so that a mistake that was not met counts too.
    """
    if not a.costs:
        return None
    costs, count, missed = np.array(a.costs), len(a.targets), a.targets > a.chosen
    mean = float((missed @ costs).mean())
    shares = np.array([astuple(share(int(hits), count)) for hits in missed.sum(axis=0)])
    below, above = (np.linalg.norm((shares[:, end] - shares[:, 0]) * costs) for end in (1, 2))
    return Figure(mean, max(0.0, mean - float(below)), mean + float(above))


def _r_squared(a: HeldOutAnswers) -> Figure:
    """R² with the interval of the delta method, as a ratio of two means over the same records."""
    plain = np.square(a.targets - a.targets.mean())
    gaps = np.square(a.scores - a.targets)
    spread = float(plain.mean())
    if not spread:
        return Figure(math.nan)
    left = float(gaps.mean()) / spread
    half = _Z * float((gaps - left * plain).std()) / spread / math.sqrt(len(gaps))
    return Figure(1 - left, 1 - left - half, min(1.0, 1 - left + half))


def _root_mean_square(a: HeldOutAnswers) -> Figure:
    mean = _mean(np.square(a.scores - a.targets), 0.0)
    assert mean.low is not None and mean.high is not None
    return Figure(*map(math.sqrt, (mean.value, mean.low, mean.high)))


def _median_error(a: HeldOutAnswers) -> Figure:
    """Median error between two order statistics, for any distribution; none if N is small."""
    from scipy.stats import binom  # imported here since it is slow, and other figures lack it

    errors, count = np.sort(np.abs(a.scores - a.targets)), len(a.targets)
    low = int(binom.ppf((1 - CONFIDENCE) / 2, count, 0.5)) - 1
    high = int(binom.ppf((1 + CONFIDENCE) / 2, count, 0.5))
    median = float(np.median(errors))
    if low < 0 or high >= count:
        return Figure(median)
    return Figure(median, float(errors[low]), float(errors[high]))


# Bootstrap samples of the held-out records, for the interval of a figure without a formula.
_DRAWS = 200


def _resampled(
    a: HeldOutAnswers, value: Callable[[HeldOutAnswers, NDArray[np.float64]], float]
) -> Figure:
    """A share with a normal interval, by the bootstrap's deviation and bias (Efron 1979).

    One record of each outcome is added before drawing, so that a sample without a mistake has an
    interval as well. Constant answers get none.

    Args:
        value: of answers, and the number of times that each record counts.
    """
    own, generator = value(a, np.ones(len(a.targets))), np.random.default_rng(0)
    if not math.isfinite(own) or not np.ptp(a.scores, axis=0).any():
        return Figure(own)
    more = _one_of_each(a)
    count = len(more.targets)
    rows = (generator.integers(count, size=count) for _ in range(_DRAWS))
    drawn = [value(more, np.bincount(some, minlength=count).astype(np.float64)) for some in rows]
    half, base = _Z * float(np.nanstd(drawn)), value(more, np.ones(count))
    bias = float(np.nanmean(drawn)) - base
    # Around the figure with the added records and without them, for they move it one way.
    low, high = min(own, base) - bias - half, max(own, base) - bias + half
    return Figure(own, max(0.0, min(own, low)), min(1.0, max(own, high)))


def _one_of_each(a: HeldOutAnswers) -> HeldOutAnswers:
    """The answers, and one right and one wrong answer for both values of every label.

    Of several classes the two that fewest records have, as their figures are known least.
    """
    kinds, often = a.scores.shape[1], a.targets.sum(axis=0)
    true, chosen = (np.tile(one, (kinds, 1)).T for one in ([0, 0, 1, 1], [0, 1, 0, 1]))
    if a.one:
        rare = np.argsort(np.where(often, often, math.inf), kind="stable")[
            : min(2, (often > 0).sum())
        ]
        pairs = np.repeat(rare, 2), np.stack([rare, (rare + 1) % kinds], 1).ravel()
        true, chosen = (np.eye(kinds)[some] for some in pairs)
    both = (np.r_[a.targets, true], np.r_[a.scores, chosen], np.r_[a.chosen, chosen])
    return HeldOutAnswers(*both, a.one)


_OF_VALUES: dict[str, Measure] = {
    "R²": _r_squared,
    "mean absolute error": lambda a: _mean(np.abs(a.scores - a.targets), 0.0),
    "root mean squared error": _root_mean_square,
    "median absolute error": _median_error,
}
_OF_CLASSES: dict[str, Measure] = {
    "accuracy": _accuracy,
    "AUC": _auc,
    "F1": _macro(lambda found, wrong, missed: _share_of(2 * found, wrong + missed)),
    "calibration error": _calibration,
    "balanced accuracy": _macro(lambda found, wrong, missed: _share_of(found, missed)),
    "precision": _macro(lambda found, wrong, missed: _share_of(found, wrong)),
    "average precision": _average_precision,
    "log loss": _log_loss,
    "Brier score": _brier,
    "mean cost": _cost,
}
# Figures that may be above 1.
_ENDLESS = {"log loss", "mean cost", *_OF_VALUES} - {"R²"}
# Kind of task → name → figure. The first one is always measured: it shows if a model is useful.
MEASURES: dict[str, Mapping[str, Measure]] = {
    "classification": _OF_CLASSES,
    "multilabel": {**_OF_CLASSES, "all labels right": _all_right},
    "regression": _OF_VALUES,
}
# The figures that are measured by default.
USUAL: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "AUC", "F1", "calibration error"),
    "multilabel": ("accuracy", "all labels right", "AUC", "F1", "calibration error"),
    "regression": ("R²", "mean absolute error", "root mean squared error"),
}


def chosen_measures(task: str, names: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the wanted figures, with the first one of the task before them.

    Raises:
        ValueError: a name that this task does not have; the message lists those that it has.
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


# The measurements of a run.
#
# Two kinds of numbers are separate. Those that follow from the released model (rounds, step size,
# ε) and from held-out records go to ``metrics.csv``. Loss, share of clipped contributions and
# number of non-finite ones are measured on private batches without noise: they are for the
# operator, go to ``diagnostics.csv``, and the Statement names them as not covered.


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
    """The values for a progress display after every round, as they were last measured.

    ``loss``, ``clipped`` and ``non_finite`` come from private batches: show them to the operator
    only.
    """

    round: int
    rounds: int
    loss: float | None = None
    accuracy: float | None = None
    epsilon: float | None = None
    clipped: float | None = None
    non_finite: int | None = None
    learning_rate: float | None = None


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
    """Read the rows that :func:`as_csv` wrote, from the public file and perhaps the private one."""
    rows = list(csv.DictReader(io.StringIO(public)))
    if private is not None:
        more = csv.DictReader(io.StringIO(private))
        rows = [{**row, **extra} for row, extra in zip(rows, more, strict=True)]
    whole = ("round", "non_finite")
    return [
        Metrics(**{k: (int if k in whole else float)(v) for k, v in row.items() if v})  # type: ignore[arg-type]
        for row in rows
    ]


def evaluate(
    model: torch.nn.Module,
    parameters: dict[str, torch.Tensor],
    loss: Loss,
    records: Records,
    dims: BatchDims | None = None,
    public_inputs: Any = None,
) -> tuple[float, float | None]:
    """Mean loss and accuracy of the model, in evaluation mode.

    Args:
        parameters: in place of the model's own, by name.
        dims: the dimensions that hold the examples, if the user declares them.
        public_inputs: records whose statistics batch normalisation uses. None: those of the
            evaluated records, at most 512 at a time.

    Returns:
        (loss, accuracy); the accuracy is None if targets are no labels.
    """
    total, hits, size = 0.0, 0, len(records)
    classified = True
    mixing = [layer for _, layer in mixing_layers(model)]
    if mixing and public_inputs is not None:
        parameters = {**parameters, **public_statistics(model, parameters, public_inputs)}
        mixing = []
    shards = shards_of(model)
    having = nullcontext() if shards is None else shards.having(parameters)
    widest = 1 if mixing else memory_of(model).widest  # of passes that were tried
    rows = shortened(EVALUATION_BATCH, widest, tuple(model.parameters()))
    with undisturbed(model, loss), torch.no_grad(), having:
        model.eval()
        for layer in mixing:
            layer.train()
        for indices in np.array_split(np.arange(size), max(1, -(-size // rows))):
            inputs, targets = records.take(indices)
            if shards is None:
                outputs = functional_call(model, parameters, *_arguments(placed(inputs, dims)))
            else:
                outputs = call(model, inputs)
            outputs = outputs_in_front(outputs, dims)
            values = loss(outputs, targets).double()
            # A model that computes its own loss returns the mean over its batch.
            total += float(values.sum() if values.ndim else values * len(indices))
            found = correct(outputs, targets)
            classified = classified and found is not None
            hits += found or 0
    return total / size, hits / size if classified else None


def share_alone(model: nn.Module, loss: Loss, records: Records) -> float | None:
    """The accuracy if every answer is computed from its record alone; None without labels.

    So another record more or less changes the number of right answers by at most 1. Blocks of one
    size run as lanes of ``torch.vmap`` if a row's place in them does not change its bits, and
    otherwise one record at a time.
    """
    form = records.take(np.zeros(1, dtype=np.int64))[0]

    def one(row: Tensor) -> Tensor:
        return model(row.unsqueeze(0)).squeeze(0)

    def answers(inputs: Any) -> Any:
        with undisturbed(model, loss), torch.no_grad():
            model.eval()
            return lanes(inputs) if size > 1 else call(model, inputs)

    lanes, size, right = torch.vmap(one), EVALUATION_BATCH, 0
    try:
        draw = torch.Generator(form.device)  # its own: models may be built between scores
        made_up = torch.empty(size, *form.shape[1:], dtype=form.dtype, device=form.device)
        made_up.uniform_(generator=draw)
        size = size if rows_alike(answers, made_up) else 1
    except Exception:  # inputs of another form, or a model that runs in no lanes
        size = 1
    for start in range(0, len(records), size):
        inputs, targets = records.take(np.arange(start, min(start + size, len(records))))
        given = filled(inputs, 0, len(targets), size) if size > 1 else inputs
        found = correct(answers(given)[: len(targets)], targets)
        if found is None:
            return None
        right += found
    return right / len(records)


# The result of a run on held-out records, beside a baseline, with intervals.
#
# The guarantee is not about held-out records; the Statement names their use.


SCHEMA = "forethought/results/1"
# Rows, and numbers in them, of which outputs are computed at a time, to bound the memory.
_ROWS, _NUMBERS = 4096, 1 << 24


@dataclass(frozen=True)
class Results:
    """Figures on held-out records.

    Args:
        examples: number of held-out records.
        figures: name → figure, those of :data:`forethought.training.metrics.MEASURES` that were
            asked for; AUC, F1, precision and recall are means over classes or labels.
        baseline: the same figures for constant answers.
        classes: names of the classes or labels; empty for a regression.
        recall: of each class or label; None if no held-out record has it.
        confusion: true class × predicted class; for each label the counts of true negatives, false
            positives, false negatives and true positives.
        weak: True if the model is not clearly better than the baseline.
        task: "classification", "multilabel" or "regression".
        target: of a regression, the name of its target, the unit of all figures but R².
    """

    examples: int
    figures: Mapping[str, Figure]
    baseline: Mapping[str, float]
    classes: tuple[str, ...] = ()
    recall: tuple[float | None, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    weak: bool = False
    task: str = "classification"
    target: str | None = None

    def to_json(self) -> str:
        """One JSON object."""
        values = asdict(self)
        if self.target is None:
            del values["target"]
        return json.dumps({"schema": SCHEMA, **values}, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def load(cls, path: Path) -> Results | None:
        """Read ``results.json``; None if the run has none. Raises ValueError: a damaged file."""
        from pydantic import TypeAdapter

        if not path.is_file():
            return None
        try:
            found = TypeAdapter(cls).validate_python(json.loads(path.read_text(encoding="utf-8")))
            found.sentences()  # raises if a figure that is told is not there
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            words = "restore it from a copy, or delete it and do without its figures"
            raise ValueError(f"{path} is damaged: {words}") from None
        return found

    def sentences(self) -> tuple[str, ...]:
        """The result in words, with its baseline."""
        (name, lead), *rest = self.figures.items()
        form, nothing = ".1%", "always saying the most frequent class"
        if self.task == "multilabel":
            nothing, name = "always saying what most records have", f"{name} over all labels"
        elif self.task == "regression":
            form, nothing = ".3g", "always saying the mean"
        first = next(iter(self.figures))
        lines = [
            *self.warnings(),
            f"{name} on {self.examples:,} held-out records {lead.value:{form}}{lead.around(form)}; "
            f"{nothing} gives {self.baseline[first]:{form}}",
        ]
        if rest:
            units = "" if self.target is None else f"in units of {self.target}: "
            lines.append(units + ", ".join(self._named_with(name, figure) for name, figure in rest))
        if self.weak and not self._worse:
            lines.append(
                "the model is not clearly better than no model: give it more records, a larger ε, "
                "or columns that say more"
            )
        return tuple(lines)

    @property
    def _worse(self) -> bool:
        """True if the model is worse than constant answers, beyond chance."""
        errs = self.task == "regression"
        name = "mean absolute error" if errs else "accuracy"
        figure, plain = self.figures.get(name), self.baseline.get(name)
        if figure is None or plain is None or figure.low is None or figure.high is None:
            return False
        return self.weak and (figure.low > plain if errs else figure.high < plain)

    def warnings(self) -> list[str]:
        """The sentences that a reader must see before any figure."""
        found = []
        if self._worse:
            nothing = "its mean" if self.task == "regression" else "its most frequent class"
            found.append(
                f"the model is worse than no model: always saying {nothing} does better. Check the "
                "declared ranges, or give it more records or a larger ε"
            )
        if self.task == "classification":
            for at, name in enumerate(self.classes):
                there = sum(self.confusion[at])
                if there and not self.confusion[at][at]:
                    never = not any(row[at] for row in self.confusion)
                    does = "never says" if never else "finds none of"
                    found.append(
                        f"the model {does} {name!r}, which {there:,} of {self.examples:,} "
                        "held-out records are: rank by probability, or say what mistakes cost, "
                        "with [predict] costs"
                    )
        return found

    def _named_with(self, name: str, figure: Figure) -> str:
        """A figure, with the value for constant answers."""
        # The constant answer is the frequency of each class, which is calibrated by definition.
        plain = None if name == "calibration error" else self.baseline.get(name)
        around = figure.around(".3g") if self.task == "regression" else ""
        without = "" if plain is None else f" (no model {plain:.3g})"
        return f"{name} {figure.value:.3g}{around}{without}"


def measured(
    outputs: NDArray[np.floating[Any]],
    targets: NDArray[Any],
    classes: Sequence[object] | None,
    names: Sequence[str] | None = None,
    decisions: Decisions | None = None,
    target: str | None = None,
    persons: NDArray[Any] | None = None,
) -> Results:
    """Figures of a model's outputs.

    Args:
        outputs: of a classifier (N, classes), before the softmax; of labels (N, labels), before
            the sigmoid; of a regression (N,), in the unit of its targets.
        targets: (N,), or (N, labels) of 0 and 1.
        classes: names of the classes, class 0 first, or of the labels; None for a regression.
        names: the wanted figures; None: the default ones. The mean cost is added if costs are
            declared.
        decisions: the rule from a classifier's outputs to probabilities and answers.
        target: name of a regression's target.
        persons: (N,), the person of each record, where several can be one person's.

    Raises:
        ValueError: a figure that the task does not have.
    """
    values = outputs.astype(np.float64)
    if classes is None:
        task, answers = "regression", values_of(values.reshape(-1), targets.astype(np.float64))
    elif targets.ndim == 2:
        task, likely = "multilabel", 1 / (1 + np.exp(-values))
        answers = HeldOutAnswers(targets.astype(np.float64), likely, (values > 0).astype(float))
    else:
        task, rule, each = "classification", decisions or Decisions(), np.eye(values.shape[1])
        if (targets < 0).any():
            raise ValueError("the targets have a negative class: number the classes from 0")
        both = rule.shares(values), each[rule.chosen(values)]
        answers = HeldOutAnswers(each[targets], *both, True, rule.costs)
    nothing = without_a_model(answers)
    effect = 1.0 if persons is None else _design_effect(answers, persons)
    figures, baseline = {}, {}
    for name in (*chosen_measures(task, names), *(("mean cost",) if answers.costs else ())):
        figure = MEASURES[task][name](answers)
        plain = MEASURES[task][name](nothing)
        if figure is not None:
            figures[name] = _wider(figure, effect, name)
        if figure is not None and plain is not None:
            baseline[name] = plain.value
    called = tuple(map(str, classes or ()))
    confusion, recall = _confusion(answers, len(called))
    weak = _weak(task, answers, nothing, effect)
    sizes = called, recall, confusion
    return Results(len(targets), figures, baseline, *sizes, weak, task, target)


def _confusion(
    answers: HeldOutAnswers, count: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[float | None, ...]]:
    """Counts of each true and predicted class or label, and the recall of each."""
    if answers.scores.ndim == 1:
        return (), ()
    true, chosen = answers.targets, answers.chosen
    if answers.one:
        cells = count * true.argmax(axis=1) + chosen.argmax(axis=1)
        table = np.bincount(cells, minlength=count * count).reshape(count, count)
    else:
        table = np.stack([((2 * true + chosen) == kind).sum(axis=0) for kind in range(4)], 1)
    every = zip((true * chosen).sum(axis=0), true.sum(axis=0), strict=True)
    recall = tuple(float(hits / total) if total else None for hits, total in every)
    return tuple(tuple(int(number) for number in row) for row in table), recall


def _design_effect(a: HeldOutAnswers, persons: NDArray[Any]) -> float:
    """The number of records that tell as much as one, where records of a person are alike.

    The variance of a mean over persons' records, over that of as many independent ones (Kish 1965):
    the largest of the parts that figures are made of, and at least 1.
    """
    apart = a.scores - a.targets, a.targets - a.targets.mean(axis=0)
    chosen = a.chosen.reshape(len(a.targets), -1)  # empty for a regression
    gaps = np.column_stack([a.targets, a.scores, chosen, *map(np.square, apart)])
    gaps -= gaps.mean(axis=0)
    _, owners = np.unique(persons, return_inverse=True)
    sums = np.zeros((owners.max() + 1, gaps.shape[1]))
    np.add.at(sums, owners, gaps)
    own = np.square(gaps).sum(axis=0)
    return max([1.0, *(np.square(sums).sum(axis=0)[own > 0] / own[own > 0]).tolist()])


def _wider(figure: Figure, effect: float, name: str) -> Figure:
    """The figure with the interval of fewer records by ``effect``."""
    value, low, high = astuple(figure)
    if low is None or effect == 1:
        return figure
    # A share without a mistake is as far from its end as 1/N is, any other figure as 1/√N.
    factor = effect if value in (low, high) else math.sqrt(effect)
    least, most = (-math.inf if name == "R²" else 0.0), (math.inf if name in _ENDLESS else 1.0)
    ends = value - factor * (value - low), value + factor * (high - value)
    return Figure(value, max(least, ends[0]), min(most, ends[1]))


def _weak(task: str, answers: HeldOutAnswers, nothing: HeldOutAnswers, effect: float) -> bool:
    """True if no interval excludes the baseline: that of the task's main figure, or of the AUC."""
    name = "mean absolute error" if task == "regression" else "accuracy"
    figure, plain = MEASURES[task][name](answers), MEASURES[task][name](nothing)
    assert figure is not None and plain is not None
    figure = _wider(figure, effect, name)
    assert figure.low is not None and figure.high is not None
    if task == "regression":
        return figure.high >= plain.value
    ranked = MEASURES[task]["AUC"](answers) if "AUC" in MEASURES[task] else None
    ranked = ranked and _wider(ranked, effect, "AUC")
    # If one class is rare, a model may have learnt the order of records without better accuracy.
    clear = ranked is not None and ranked.low is not None and ranked.low > 0.5
    return figure.low <= plain.value and not clear


def outputs_of(model: torch.nn.Module, inputs: Any) -> NDArray[np.float32]:
    """The outputs of a model in evaluation mode, float32, (N, …)."""
    like = next(model.parameters())
    rows = torch.as_tensor(inputs)
    with evaluating(model), torch.no_grad():
        found = [model(some.to(like)).float().cpu() for some in in_pieces(rows)]
    return torch.cat(found).numpy()


def in_pieces(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows (N, …) in pieces so small that a network's memory for one of them is bounded."""
    fitting = _NUMBERS // max(1, rows[:1].numel())
    return torch.split(rows, min(_ROWS, max(1, fitting)))


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """A context with all modules in evaluation mode; each gets its own mode back."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
