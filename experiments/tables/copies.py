"""A job's plan run in NumPy: its releases and rounds, without files, statement or guarantee.

A run of the library takes seconds, most of them for what is not asked here; ten seeds of twenty
tables are too many of these. The plan is the job's own, its noise the accountant's, and what
follows from a release is computed by the library. ``run.py show`` says how far the means of copies
are from those of the library's runs.
"""

from __future__ import annotations

import numpy as np
import torch

from forethought.data.basis import Basis
from forethought.jobs.train import PreparedJob
from forethought.rounds.preparation import Vectors, centre, rescaled, usual_ranges
from forethought.rounds.records import as_records
from forethought.values.plan import Plan, Preparation, Statistic


def accuracies(prepared: PreparedJob, seeds: list[int], path: float = 1.0) -> list[float]:
    """Accuracy on held-out records of runs of the plan, one a seed.

    Args:
        path: so many times the plan's step size.
    """
    plan, data = prepared.plan, prepared.loaded.dataset
    asked, targets = plan.preparation, np.asarray(data.train.targets)
    if asked is not None and asked.measures:
        basis = data.encoder.basis or Basis(data.encoder.numbers)
        encoded = [part.inputs[:, : data.shape[0] - basis.more] for part in (data.train, data.test)]
        numbers = as_records((encoded[0][:, list(basis.numbers)], targets), torch.float32)
        ones, _ = Vectors(numbers, asked, "ranges").take(np.arange(len(targets)))
        shares = ones.summed(torch.ones(len(targets)), None) / len(targets)
    found = []
    for seed in seeds:
        rng = np.random.default_rng(seed)

        def noised(
            statistic: Statistic, mean: torch.Tensor, rng: np.random.Generator = rng
        ) -> torch.Tensor:
            size = asked.sigma(statistic) * asked.norm(statistic) / len(targets)
            return mean + size * torch.as_tensor(rng.standard_normal(len(mean)))

        train, test = data.train.inputs, data.test.inputs
        if asked is not None and asked.measures:
            own = basis.with_ranges(usual_ranges(asked, noised("ranges", shares), len(targets)))
            train, test = (own.of(part) for part in encoded)
        if asked is not None and "means" in asked.statistics:
            means = noised("means", _mean(asked, "means", train))
            constants = centre(asked, means, len(targets))
            if "norms" in asked.statistics:
                norm = noised("norms", _mean(asked, "norms", train, constants.shift))
                constants = rescaled(asked, constants, float(norm), len(targets))
            train, test = (constants.apply(part).numpy() for part in (train, test))
        train, test = (np.c_[part, np.ones(len(part))].astype(np.float32) for part in (train, test))
        weights = _descended(plan, path, train, targets, data.classes, rng)
        found.append(float(((test @ weights).argmax(1) == np.asarray(data.test.targets)).mean()))
    return found


def _mean(
    asked: Preparation, statistic: Statistic, inputs: np.ndarray, middle: tuple[float, ...] = ()
) -> torch.Tensor:
    """Mean over all records of a statistic's vectors, without noise."""
    return Vectors(None, asked, statistic, middle).of(torch.as_tensor(inputs), None).mean(0)


def _descended(
    plan: Plan,
    path: float,
    inputs: np.ndarray,
    targets: np.ndarray,
    classes: int,
    rng: np.random.Generator,
) -> np.ndarray:
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
