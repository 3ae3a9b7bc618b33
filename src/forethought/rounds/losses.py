"""Losses with one value per example, and the accuracy that goes with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from forethought.gradients import BatchDims
from forethought.gradients.batches import batch_size
from forethought.gradients.clipped import clipped_sum, cross_entropy_slope, placed, separable
from forethought.local.alone import OneByOne
from forethought.rounds.augmenting import require_images
from forethought.rounds.records import Records, blank
from forethought.rounds.undisturbed import undisturbed
from forethought.values.contributions import (
    Augmentation,
    Contribution,
    Examples,
    LocalUpdates,
    Persons,
)

Loss = Callable[[Any, Any], torch.Tensor]


@separable(cross_entropy_slope)
def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of logits (batch, classes, …) with labels, shape (batch, …)."""
    return F.cross_entropy(outputs, targets, reduction="none")


@separable()
def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Squared error summed over all but the batch; outputs (batch, 1) fit targets (batch)."""
    if outputs.shape != targets.shape and outputs.numel() == targets.numel():
        outputs = outputs.reshape(targets.shape)
    if outputs.shape != targets.shape:
        raise ValueError(
            f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} must have one "
            "shape for squared error: for classes give whole numbers (targets.long()), for "
            "anything else give loss="
        )
    return (
        (outputs - targets).square().flatten(1).sum(1)
        if targets.ndim > 1
        else (outputs - targets).square()
    )


@separable()
def label_cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Binary cross entropy of several labels, meant over them; outputs, targets (batch, labels)."""
    values = F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    return values.flatten(1).mean(1)


def default_loss(targets: Any) -> Loss:
    """Cross entropy for labels, squared error for floating-point targets.

    Raises:
        TypeError: targets that are no tensor need ``loss=``.
    """
    if not isinstance(targets, torch.Tensor):
        raise TypeError(
            f"targets of type {type(targets).__name__} have no default loss: give loss="
        )
    return squared_error if targets.is_floating_point() else cross_entropy


def correct(outputs: Any, targets: Any) -> int | None:
    """The number of labels that were hit, or None where outputs and targets are no
    classification."""
    if (
        not isinstance(outputs, torch.Tensor)
        or not isinstance(targets, torch.Tensor)
        or targets.is_floating_point()
        or outputs.ndim != targets.ndim + 1
        or targets.ndim != 1
    ):
        return None
    return int((outputs.argmax(1) == targets).sum())


def check_loss(
    model: torch.nn.Module,
    loss: Loss,
    records: Records,
    dims: BatchDims | None = None,
    contribution: Contribution = Examples(),  # noqa: B008 (frozen)
    augmentation: Augmentation | None = None,
) -> None:
    """Refuse what cannot be trained privately, before anything is released.

    Tried on records of zeros: whether it passes says nothing about the private ones.

    Args:
        contribution: what is clipped; groups are tried as one group, local updates are made.
        augmentation: of the records, which must then be images.

    Raises:
        ValueError: not one value an example, what :func:`clipped_sum` refuses, or an algorithm
            that does not run or returns no weight change.
    """
    if dims is not None and contribution.clipping == "group":
        raise ValueError("batch_dims= goes with clipped examples: a group is a batch of its own")
    inputs, targets = blank(records)
    if augmentation is not None:
        require_images(inputs, augmentation, isinstance(contribution, Persons), dims)
    with undisturbed(model, loss):
        if isinstance(contribution, LocalUpdates) and not contribution.local.is_gradient:
            OneByOne(model, loss, contribution.local).update(inputs, targets, 0)
            return
        if contribution.clipping == "group":
            groups = torch.zeros(batch_size(inputs, targets), dtype=torch.int64)
            clipped_sum(model, loss, inputs, targets, 1.0, groups)
            return
        clipped_sum(model, loss, placed(inputs, dims), targets, 1.0, batch_dims=dims)
