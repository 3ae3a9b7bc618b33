"""Classes of different weight: the loss of a rare one counts more.

A weight scales a record's gradient before it is clipped. Automatic clipping normalises every
contribution, and takes the weight away again: it only matters there where gradients are small.
Under flat clipping it matters below the norm. No weight moves the bound of a contribution.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from forethought.data import Dataset
from forethought.plans import Plan


class MutedWeightsWarning(UserWarning):
    """Weights of classes that the clipping rule takes away again."""


@dataclass(frozen=True)
class WeightedCrossEntropy:
    """Cross entropy of logits (batch, classes) with labels (batch,), times the class's weight.

    Args:
        weights: one a class, above 0, class 0 first.
    """

    weights: tuple[float, ...]

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One value a record."""
        own = torch.tensor(self.weights, dtype=outputs.dtype, device=outputs.device)
        return F.cross_entropy(outputs, targets, weight=own, reduction="none")


def weighted(weights: Sequence[float], data: Dataset) -> WeightedCrossEntropy:
    """The loss with these weights.

    Raises:
        ValueError: not one weight a class, or data without classes.
    """
    if data.classes is None or data.multilabel:
        raise ValueError("class_weights goes with classes: drop it for a regression or labels")
    if len(weights) != data.classes:
        raise ValueError(
            f"class_weights has {len(weights)} numbers, the data have {data.classes} classes: give "
            "one a class, class 0 first"
        )
    return WeightedCrossEntropy(tuple(map(float, weights)))


def warn_if_muted(weights: Sequence[float] | None, plan: Plan) -> None:
    """Warn where the plan's clipping takes the weights away."""
    if weights is None or plan.clip.rule != "automatic" or len(set(weights)) == 1:
        return
    warnings.warn(
        "class_weights is all but muted by automatic clipping, which gives every record the same "
        "say whatever its weight: set clip_norm (and clip_rule = 'flat') in [training], so that "
        "what is below the norm keeps its weight",
        MutedWeightsWarning,
        stacklevel=3,
    )
