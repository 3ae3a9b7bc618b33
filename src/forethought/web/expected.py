"""The accuracy that a plan might give a linear model: a rehearsal on synthetic clusters, in NumPy.

Two clusters of public, synthetic records are learned by logistic regression with the plan's noise
for its batch. What private data allow nobody knows beforehand; this shows what the noise leaves of
something that is known. The whole set takes part in every step, so the noise of sampling is left
out, and more than :data:`STEPS` rounds are gathered into so many steps with the same noise in sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from forethought.values.plan import Plan

STEPS, RECORDS, REPEATS = 100, 600, 4
# Distance between the clusters: two in a hundred are on the wrong side.
_APART = 4.1


@dataclass(frozen=True)
class Expected:
    """Accuracy on new records of the same clusters: with the plan's noise, and without any."""

    accuracy: float
    without_noise: float


@lru_cache(maxsize=16)
def _clusters(features: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Records (2 · RECORDS, features + 1), the first half for training, and classes of ±1."""
    draw = np.random.default_rng([features, 16])
    classes = np.where(draw.random(2 * RECORDS) < 0.5, -1.0, 1.0)
    direction = draw.normal(size=features)
    direction *= _APART / 2 / np.linalg.norm(direction)
    inputs = classes[:, None] * direction + draw.normal(size=(2 * RECORDS, features))
    return np.column_stack([inputs, np.ones(len(inputs))]), classes


def expected_accuracy(plan: Plan, features: int) -> Expected:
    """The accuracy of a linear model of so many features under a plan of equal rounds.

    Args:
        plan: with one contribution a record or person. features: columns of the synthetic records.
    """
    inputs, classes = _clusters(features)
    steps = min(STEPS, plan.rounds)
    each = plan.rounds / steps
    part = plan.mechanism.rounds[0]
    batch = plan.contribution.expected(plan.batch)
    noise = part.noise_multiplier / batch / math.sqrt(each)
    rate = plan.optimizer.learning_rate * plan.clip_norm * each
    momentum = plan.optimizer.momentum**each
    # Momentum is a longer step with some delay, which the gathered steps hardly have.
    rate *= 1.0 if momentum == 0 else (1 - momentum) / (1 - plan.optimizer.momentum)
    return Expected(
        _reached(inputs, classes, steps, rate, momentum, noise),
        _reached(inputs, classes, steps, rate, momentum, 0.0),
    )


def _reached(
    inputs: NDArray[np.float64],
    classes: NDArray[np.float64],
    steps: int,
    rate: float,
    momentum: float,
    noise: float,
) -> float:
    """Mean accuracy over several draws of the noise, the average of the last half's weights."""
    own, right = inputs[:RECORDS], classes[:RECORDS, None]
    signed = own * right
    norms = np.linalg.norm(own, axis=1)[:, None]
    draw = np.random.default_rng(16)
    repeats = REPEATS if noise else 1
    weights = np.zeros((own.shape[1], repeats))
    velocity, average = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(steps):
        wrong = 1 / (1 + np.exp(np.clip(signed @ weights, -50, 50)))
        # Automatic clipping: each contribution is divided by its norm.
        mean = signed.T @ (wrong / (norms * wrong + 0.01)) / RECORDS
        velocity = momentum * velocity + mean
        if noise:
            velocity += noise * draw.normal(size=weights.shape)
        weights += rate * velocity
        if 2 * step >= steps - 1:
            average += weights
    hits = (inputs[RECORDS:] @ average) * classes[RECORDS:, None] > 0
    return float(hits.mean())
