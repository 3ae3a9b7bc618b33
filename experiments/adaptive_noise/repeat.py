"""Many repetitions of a descent side by side: one column of weights each, seeded noise.

For studies on public data: nothing here is private. The steps are those of
:class:`forethought.convex.descent.Path`, the losses those of the library; only the sums are taken
for all repetitions in one product, in single precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from sets import Task
from torch import Tensor

from forethought.convex.descent import LossAndSlope, Path, loss_and_slope
from forethought.convex.problems import Problem

# Rows that are worked on at a time: their outputs stay in cache.
ROWS = 2048

Sigma = Callable[[int, Tensor], Tensor | float]
"""(t, mean gradients (d, repetitions), regularisation included) → σ_t."""


@dataclass(frozen=True)
class Way:
    """How repetitions descend.

    Args:
        sigma: noise on the mean gradient. step: η, the same throughout.
        clip_norm: C; None: nothing is clipped. accelerated: Nesterov's momentum.
        rate: every repetition draws a Poisson batch of its own at this rate each round.
    """

    sigma: Sigma
    step: float
    clip_norm: float | None = None
    accelerated: bool = False
    rate: float = 1.0


def paths(
    task: Task, problem: Problem, way: Way, start: Tensor, seed: int
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(t, weights, mean gradients at them) of t = 0, 1, …, without end; (d, repetitions) each.

    Args:
        start: (d, repetitions), float32.
    """
    functions = loss_and_slope(problem)
    norms = task.features.norm(dim=1, keepdim=True)
    if way.clip_norm is not None and float(norms.max()) <= way.clip_norm * (1 + 1e-6):
        way = replace(way, clip_norm=None)  # no slope exceeds 1: nothing would be clipped
    generator = torch.Generator().manual_seed(seed)
    path = Path(start, problem.l2, problem.radius, way.accelerated, apart=True)
    t = 0
    while True:
        place = path.place(t + 1)
        gradient = _gradient(task, functions, place, norms, way, generator)
        whole = gradient + problem.l2 * place
        yield t, path.weights, whole
        t += 1
        noise = torch.randn(gradient.shape, generator=generator) * way.sigma(t, whole)
        path.step(place, gradient + noise, way.step)


def _gradient(
    task: Task,
    functions: LossAndSlope,
    weights: Tensor,
    norms: Tensor,
    way: Way,
    generator: torch.Generator,
) -> Tensor:
    total = torch.zeros_like(weights)
    for at in range(0, len(task.features), ROWS):
        rows, labels = task.features[at : at + ROWS], task.targets[at : at + ROWS]
        slopes = functions.slope(rows @ weights, labels)
        if way.clip_norm is not None:
            most = way.clip_norm / norms[at : at + ROWS].clamp(min=1e-30)
            slopes = torch.maximum(torch.minimum(slopes, most), -most)
        if way.rate < 1:
            slopes *= torch.rand(slopes.shape, generator=generator) < way.rate
        total.addmm_(rows.T, slopes)
    return total / (way.rate * len(task.features))


def risks(task: Task, problem: Problem, weights: Tensor) -> Tensor:
    """F of every column, shape (repetitions,)."""
    loss = loss_and_slope(problem).loss
    total = torch.zeros(weights.shape[1], dtype=torch.float64)
    for at in range(0, len(task.features), ROWS):
        rows, labels = task.features[at : at + ROWS], task.targets[at : at + ROWS]
        total += loss(rows @ weights, labels).sum(0, dtype=torch.float64)
    return total / len(task.features) + problem.l2 / 2 * weights.double().square().sum(0)


def minimum(task: Task, problem: Problem) -> float:
    """F*, by L-BFGS in double precision; without regularisation the infimum may not be attained."""
    weights = torch.zeros(task.features.shape[1], 1, dtype=torch.float64, requires_grad=True)
    rows, loss = task.features.double(), loss_and_slope(problem).loss
    optimizer = torch.optim.LBFGS(
        [weights],
        max_iter=2000 if len(rows) < 50_000 else 300,
        tolerance_grad=1e-9,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
        history_size=20,
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(rows @ weights, task.targets).mean()
        value = value + problem.l2 / 2 * weights.square().sum()
        value.backward()
        return value

    optimizer.step(closure)
    return closure().item()
