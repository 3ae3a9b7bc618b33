"""The fit of model, loss, records and plan, said before anything is spent."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from forethought.data import Dataset
from forethought.gradients import BatchDims, check_model
from forethought.gradients.batches import call
from forethought.gradients.clipped import outputs_in_front, placed
from forethought.rounds.losses import Loss, cross_entropy
from forethought.rounds.records import Records, TensorRecords, as_records, blank
from forethought.rounds.undisturbed import undisturbed
from forethought.training.execution import check_model as check_unwrapped
from forethought.training.execution import usable
from forethought.training.metrics import mixing_layers
from forethought.training.records import person_loss
from forethought.values.plan import LEAST_NOISE, Plan
from forethought.values.use import differences, is_linear, trained_parameters

# A warning where a plan was made for another model than the one it trains.


class OtherModelWarning(UserWarning):
    """Step size or batch of a plan were chosen for another model, or for other features."""


def warn_of_another_model(plan: Plan, model: torch.nn.Module, data: object = None) -> None:
    """Say where a plan was made for other weights or features than these, with cost and remedy.

    Of the data only what is declared is looked at: the usual norm that a
    :class:`forethought.data.Dataset` has of its features.

    Args:
        data: as for :func:`forethought.train`; None: only the model is compared.
    """
    norm = data.feature_norm if isinstance(data, Dataset) else None
    _warn(_found(plan, model, norm))


def warn_of_other_features(plan: Plan, model: torch.nn.Module, norm: float | None) -> None:
    """The same of the features alone, where training will get arrays and compare the model.

    Args:
        norm: usual norm of the model's inputs, declared; None: unknown.
    """
    alone = _found(plan, model, None)
    _warn(sentence for sentence in _found(plan, model, norm) if sentence not in alone)


def _found(plan: Plan, model: torch.nn.Module, norm: float | None) -> tuple[str, ...]:
    if plan.assumed is None:
        return ()
    return differences(plan.assumed, trained_parameters(model), is_linear(model), norm)


def _warn(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        warnings.warn(sentence, OtherModelWarning, stacklevel=4)


# Whether a model, its loss and the records go together: said in the user's words beforehand.


# Cross entropy passes over targets of this value.
IGNORED = -100
PIECE = 1 << 20  # numbers that are added at a time


class NonFiniteRecordsWarning(UserWarning):
    """Some records hold values that are not finite: they contribute nothing."""


def placed_records(
    model: torch.nn.Module, data: object, plan: Plan, device: str | torch.device | None
) -> Records:
    """A model that can be trained privately, where it is to be, and the records that it gets.

    Args:
        device: where the model is put; None leaves it where it is.

    Raises:
        ValueError, TypeError: a model that mixes examples, noise that protects nothing, or data of
            another form or size than the plan's.
    """
    check_model(model, plan.contribution.clipping == "group")
    check_unwrapped(model)
    if device is not None:
        model.to(usable(device))
    for part in plan.mechanism:
        if 0 < part.noise_multiplier < LEAST_NOISE:
            raise ValueError(
                f"a noise multiplier of {part.noise_multiplier:g} protects nothing: use at least "
                f"{LEAST_NOISE:g}, or 0 for training without privacy, which the statement says"
            )
    first = next(p for p in model.parameters() if p.requires_grad)
    records = as_records(data, first.dtype, first.device)
    if len(records) != plan.examples:
        raise ValueError(
            f"the plan is for {plan.examples} examples, the data has {len(records)}: the "
            "guarantee depends on it. Make the plan with examples=len(data)"
        )
    return records


def require_fit(
    model: torch.nn.Module,
    loss: Loss,
    records: Records,
    name: str = "data",
    dims: BatchDims | None = None,
    tried: dict[object, object] | None = None,
) -> None:
    """Refuse records that the model or the default loss cannot take, before anything is released.

    The model is tried on records of zeros. Labels, and whether features are finite, are looked at
    where all records are in memory; what is found goes to the caller and nowhere else.

    Args:
        tried: what the model made of zeros of each form, of many holders that share one model.

    Raises:
        ValueError: inputs of a shape that the model does not take, labels that are none of its
            classes, or targets that are not finite.
    """
    tried = {} if tried is None else tried
    form = None
    if isinstance(records, TensorRecords):
        form = records.inputs.shape[1:], records.inputs.dtype, len(records) > 1
    if form is None or form not in tried:
        tried[form] = _of_zeros(model, records, name, dims)
    outputs = tried[form]
    if not isinstance(records, TensorRecords):
        return
    targets = records.targets
    if (
        loss in (cross_entropy, person_loss)
        and isinstance(outputs, torch.Tensor)
        and outputs.ndim == targets.ndim + 1
    ):
        classes = outputs.shape[1 if loss is cross_entropy else -1]
        _require_labels(targets[targets != IGNORED], classes, name)
    if targets.is_floating_point() and not bool(torch.isfinite(targets).all()):
        raise ValueError(f"targets in {name} are not finite: drop these records, or mend them")
    if records.inputs.is_floating_point() and not _sums_are_finite(records.inputs):
        finite = torch.isfinite(records.inputs).flatten(1).all(1)
        count = len(finite) - int(finite.sum())
        if count:
            warnings.warn(
                f"{count} of {len(finite)} records in {name} hold features that are not finite "
                "(NaN or infinite): they will contribute nothing. Fill or drop them beforehand",
                NonFiniteRecordsWarning,
                stacklevel=4,
            )


def _of_zeros(
    model: torch.nn.Module, records: Records, name: str, dims: BatchDims | None
) -> object:
    inputs, _ = blank(records, 2 if mixing_layers(model) else 1)
    try:
        with undisturbed(model), torch.no_grad():
            return outputs_in_front(call(model, placed(inputs, dims)), dims)
    except (RuntimeError, ValueError, TypeError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"the model does not take one record of {name}, inputs of {_shapes(inputs)}: "
            f"{first_line}. {_remedy(inputs)}"
        ) from error


def _sums_are_finite(values: torch.Tensor) -> bool:
    """True if every number is finite, by sums: single precision cannot overflow in double.

    In pieces, for a sum in double precision makes a copy in it.
    """
    rows = max(1, PIECE // max(1, values[:1].numel()))
    return all(
        bool(torch.isfinite(piece.sum(dtype=torch.float64))) for piece in torch.split(values, rows)
    )


def _require_labels(targets: torch.Tensor, classes: int, name: str) -> None:
    if not targets.numel():
        return
    least, most = int(targets.min()), int(targets.max())
    if least >= 0 and most < classes:
        return
    hint = "write −1 as 0" if (least, most) == (-1, 1) else f"subtract {least}" if least > 0 else ""
    remedy = hint or f"or give the model {most + 1} outputs"
    raise ValueError(
        f"labels in {name} go from {least} to {most}, the model has outputs for the classes 0 to "
        f"{classes - 1}: number the classes from 0 ({remedy})"
    )


def _remedy(inputs: Any) -> str:
    leaves = torch.utils._pytree.tree_leaves(inputs)
    if any(isinstance(x, torch.Tensor) and not x.is_floating_point() for x in leaves):
        return (
            "These inputs are whole numbers: give them as inputs.float() where the model takes "
            "features, and otherwise build it for that shape, or reshape the inputs"
        )
    return "Build it for that shape, or reshape the inputs"


def _shapes(inputs: Any) -> str:
    leaves = torch.utils._pytree.tree_leaves(inputs)
    shapes = [f"shape {tuple(x.shape[1:])}" for x in leaves if isinstance(x, torch.Tensor)]
    return ", ".join(shapes) or type(inputs).__name__
