"""Full-batch private training of many linear models in one pass over the data.

``ft.train`` reads the features once a round for one model. Comparing step sizes, budgets and seeds
reads the same features for all of them here: the rule is the same (each record's gradient clipped,
summed, Gaussian noise, divided by N, momentum), and so is the noise multiplier, which ``ft.plan``
gives. Products are in bfloat16: patch features are bfloat16 anyhow, scores and sums are off by
about 2⁻⁹ of themselves. tests/data/test_patch_trials.py holds it against ``ft.train``. Its noise
comes from seeded generators: it measures accuracy, and nothing that it trains is private.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

import forethought as ft

ROUNDS, MOMENTUM, CLIP, DELTA = 30, 0.8, 0.25, 1e-5
CLASSES = 10
_PART = 1000  # records at a time


@dataclass(frozen=True)
class Run:
    """One model: its budget, how far it may travel, its seed.

    Args:
        epsilon: at δ = 1e-5; infinite for no noise.
        spread: standard deviation that the noise of the whole run leaves in a score of a record
            of norm 1, were there no pull back; it sets the step size.
    """

    epsilon: float
    spread: float
    seed: int = 0


@lru_cache
def noise_multiplier(epsilon: float, examples: int, rounds: int = ROUNDS) -> float:
    """What the plan of such a run has; 0 without a budget."""
    if epsilon == float("inf"):
        return 0.0
    plan = ft.plan(
        examples=examples,
        budget=ft.Budget(epsilon, DELTA),
        sampling="full-batch",
        rounds=rounds,
        clip_norm=CLIP,
        learning_rate=1.0,
        averaging=ft.Averaging("none"),
        parameters=10_000,
    )
    return float(plan.noise_multiplier)


def step_size(run: Run, examples: int, rounds: int = ROUNDS) -> float:
    """η with η/(1 − m) · σC/N · √T = spread; without noise, that of ε = 8."""
    sigma = noise_multiplier(min(run.epsilon, 8.0), examples, rounds)
    return run.spread * (1 - MOMENTUM) * examples / (sigma * CLIP * rounds**0.5)


def trained(
    inputs: torch.Tensor,
    targets: torch.Tensor,
    runs: list[Run],
    noise_as_for: int | None = None,
    rounds: int = ROUNDS,
) -> torch.Tensor:
    """Weights (features, runs, classes) after the last round.

    Args:
        inputs: bfloat16, (N, features). targets: int64, (N,).
        noise_as_for: the noise of that many records in place of N.
    """
    N, size = inputs.shape
    whole = noise_as_for or N
    weights, speed = torch.zeros(2, size, len(runs), CLASSES)
    generators = [torch.Generator().manual_seed(run.seed) for run in runs]
    steps = torch.tensor([step_size(run, whole, rounds) for run in runs])[:, None]
    scales = [noise_multiplier(run.epsilon, whole, rounds) * CLIP / whole for run in runs]
    lengths = torch.cat([part.float().norm(dim=1) for part in inputs.split(_PART)])
    for _ in range(rounds):
        now = weights.flatten(1).bfloat16()
        total = torch.zeros(size, len(runs) * CLASSES)
        for at in range(0, N, _PART):
            part = inputs[at : at + _PART]
            slopes = (part @ now).float().view(-1, len(runs), CLASSES).softmax(-1)
            slopes[torch.arange(len(part)), :, targets[at : at + _PART]] -= 1
            norms = slopes.norm(dim=-1, keepdim=True) * lengths[at : at + _PART, None, None]
            slopes *= (CLIP / norms.clamp_min(1e-12)).clamp_max(1)
            total += (part.T @ slopes.flatten(1).bfloat16()).float()
        gradient = total.view(size, len(runs), CLASSES) / N
        for i, (scale, generator) in enumerate(zip(scales, generators, strict=True)):
            if scale:
                gradient[:, i] += scale * torch.randn(size, CLASSES, generator=generator)
        speed = MOMENTUM * speed + gradient
        weights -= steps * speed
    return weights


def accuracies(weights: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> list[float]:
    """Percent right, by run."""
    now = weights.flatten(1).bfloat16()
    right = torch.zeros(weights.shape[1])
    for at in range(0, len(inputs), _PART):
        scores = (inputs[at : at + _PART] @ now).float().view(-1, *weights.shape[1:])
        right += (scores.argmax(-1) == targets[at : at + _PART, None]).float().sum(0)
    return (100 * right / len(inputs)).tolist()
