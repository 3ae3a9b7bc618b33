"""DP-SGD of linear models, many step sizes and clip norms at once: what makes a grid affordable.

The gradient of one example of a softmax regression is an outer product, (p − y) ⊗ (x, 1), so its
norm is a product of two norms and no per-example gradient is ever formed. All columns of a grid
share batches and noise (common random numbers). tests/planning/test_defaults.py holds this against
`forethought.train`: the same weights without noise, the same noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

GAMMA = 0.01  # of the automatic rule, as in forethought.Clip


@dataclass(frozen=True)
class Column:
    """One point of a grid. ``clip_norm`` None: automatic normalisation to norm 1."""

    learning_rate: float
    clip_norm: float | None


def train_columns(
    inputs: Tensor,
    targets: Tensor,
    classes: int,
    *,
    rate: float,
    rounds: int,
    noise_multiplier: float,
    columns: list[Column],
    momentum: float = 0.9,
    decay: float = 0.95,
    seed: int = 0,
) -> Tensor:
    """Weights of every column after Poisson-sampled DP-SGD from zero weights.

    Args:
        inputs: (N, d) float32. targets: (N,) classes.
        rate: sampling rate; 1 takes every example. rounds, noise_multiplier: as in a Plan.
        momentum: of torch's SGD. decay: of the exponential average, with its warm-up.

    Returns:
        (d + 1, columns, classes): the averaged weights, bias last.
    """
    generator = torch.Generator().manual_seed(seed)
    examples, features = inputs.shape
    data = torch.cat([inputs, torch.ones(examples, 1)], 1)
    norms = data.norm(dim=1, keepdim=True)
    automatic = torch.tensor([column.clip_norm is None for column in columns])
    bounds = torch.tensor([column.clip_norm or 1.0 for column in columns])
    steps = torch.tensor([column.learning_rate for column in columns])[:, None]
    shape = (features + 1, len(columns), classes)
    weights, velocity, average = (torch.zeros(shape) for _ in range(3))
    for done in range(rounds):
        if rate < 1:
            chosen = (torch.rand(examples, generator=generator) < rate).nonzero()[:, 0]
            batch, labels, lengths = data[chosen], targets[chosen], norms[chosen]
        else:
            batch, labels, lengths = data, targets, norms
        size = len(labels)
        errors = (batch @ weights.flatten(1)).view(size, len(columns), classes).softmax(-1)
        errors[torch.arange(size), :, labels] -= 1
        found = errors.norm(dim=-1) * lengths
        scale = torch.where(automatic, bounds / (found + GAMMA), (bounds / found).clamp(max=1))
        scaled = errors * scale.nan_to_num(0.0)[:, :, None]
        total = (batch.T @ scaled.reshape(size, len(columns) * classes)).view(shape)
        noise = torch.randn(features + 1, 1, classes, generator=generator)
        total += noise * (noise_multiplier * bounds)[:, None]
        velocity.mul_(momentum).add_(total, alpha=1 / (rate * examples))
        weights -= steps * velocity
        average.lerp_(weights, 1 - min(decay, (2 + done) / (11 + done)))
    return average


def accuracies(weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """Share of correct predictions of every column, in per cent, shape (columns,)."""
    scores = (inputs @ weights[:-1].flatten(1)).view(len(inputs), *weights.shape[1:])
    predicted = (scores + weights[-1]).argmax(-1)
    return 100 * (predicted == targets[:, None]).double().mean(0)
