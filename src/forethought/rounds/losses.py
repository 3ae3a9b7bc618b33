"""Losses with one value per example, and passes over records that leave nothing in a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from forethought.gradients.boundary import Refused
from forethought.gradients.clipped import cross_entropy_slope, separable
from forethought.gradients.state import ExternalState, State
from forethought.turns import turns

# A pass over records leaves nothing in the model: what it wrote is put back.


@contextmanager
def undisturbed(model: torch.nn.Module, loss: object = None) -> Iterator[None]:
    """Buffers, attributes and modes of all modules are afterwards as they were before.

    What a forward pass writes into them comes from the records and carries no noise. So does what
    it leaves in objects, closures and generators that the model or the loss can reach.

    Raises:
        ValueError: an iterator among these, which cannot be put back.
    """
    with turns:
        before = State(model.named_modules())
        try:
            surroundings = ExternalState(model.modules(), model, loss)
        except Refused as reason:
            raise ValueError(str(reason)) from None
        try:
            yield
        finally:
            surroundings.restore()
            with torch.no_grad():
                before.restore()


def mixing_layers(model: torch.nn.Module) -> list[tuple[str, _BatchNorm]]:
    """Batch normalisation in training mode, which normalises by the batch it sees."""
    return [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.training
    ]


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
