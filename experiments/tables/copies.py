"""A job's plan run in NumPy: its releases and rounds, without files, statement or guarantee.

A run of the library takes seconds, most of them for what is not asked here; ten seeds of twenty
tables are too many of these. The plan is the job's own, its noise the accountant's, and what
follows from a release is computed by the library. `python experiments/tables/run.py check FOLDER`
runs both ways on the same tables, and says how far their means are apart.
"""

from __future__ import annotations

import numpy as np
import torch

from forethought.data.basis import Basis
from forethought.jobs.train import PreparedJob
from forethought.rounds.preparation import Vectors, centre, rescaled, usual_ranges
from forethought.values.plan import Preparation


def accuracy(prepared: PreparedJob, seed: int, path: float = 1.0) -> float:
    """Accuracy on held-out records of one run of the plan.

    Args:
        path: so many times the plan's step size.
    """
    plan, data, rng = prepared.plan, prepared.loaded.dataset, np.random.default_rng(seed)
    train, test, targets = data.train.inputs, data.test.inputs, np.asarray(data.train.targets)
    asked, count = plan.preparation, len(targets)

    def released(statistic: str, inputs: np.ndarray, middle: tuple[float, ...] = ()) -> torch.Tensor:
        vectors = Vectors(None, asked, statistic, middle).of(torch.as_tensor(inputs), None)
        noise = asked.sigma(statistic) * asked.norm(statistic) / count
        return vectors.mean(0) + noise * torch.as_tensor(rng.standard_normal(vectors.shape[1]))

    if asked is not None and asked.measures:
        basis = data.encoder.basis or Basis(data.encoder.numbers)
        width = train.shape[1] - basis.more
        shares = released("ranges", train[:, list(basis.numbers)])
        basis = basis.with_ranges(usual_ranges(asked, shares, count))
        train, test = (basis.of(part[:, :width]) for part in (train, test))
    if asked is not None and "means" in asked.statistics:
        constants = centre(asked, released("means", train), count)
        if "norms" in asked.statistics:
            norm = float(released("norms", train, constants.shift))
            constants = rescaled(asked, constants, norm, count)
        train, test = (constants.apply(part).numpy() for part in (train, test))
    train, test = (np.c_[part, np.ones(len(part))].astype(np.float32) for part in (train, test))
    weights = _descended(plan, path, train, targets, data.classes, rng)
    return float(((test @ weights).argmax(1) == np.asarray(data.test.targets)).mean())


def _descended(plan, path, inputs, targets, classes, rng) -> np.ndarray:
    """The averaged iterate of softmax regression, (features, classes)."""
    squares, truth = (inputs**2).sum(1), np.eye(classes, dtype=np.float32)[targets]
    weights = np.zeros((inputs.shape[1], classes), np.float32)
    moved, average = np.zeros_like(weights), np.zeros_like(weights)
    rate, momentum = path * plan.optimizer.learning_rate, plan.optimizer.momentum
    for index in range(plan.rounds):
        now = plan.round(index)
        drawn = np.flatnonzero(rng.random(len(inputs)) < now.divisor / len(inputs))
        batch = inputs[drawn]
        slopes = batch @ weights
        slopes = np.exp(slopes - slopes.max(1, keepdims=True))
        slopes = slopes / slopes.sum(1, keepdims=True) - truth[drawn]
        norms = np.sqrt((slopes**2).sum(1) * squares[drawn])
        slopes *= np.minimum(1, now.clip_norm / np.maximum(norms, 1e-12))[:, None]
        noise = rng.standard_normal(weights.shape, np.float32)
        moved = momentum * moved + (batch.T @ slopes + now.noise_std * noise) / now.divisor
        weights -= rate * moved.astype(np.float32)
        average += (1 - min(plan.averaging.decay, (1 + index) / (10 + index))) * (weights - average)
    return average
