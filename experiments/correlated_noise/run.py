"""Correlated against independent noise on MNIST, at equal ε, over one, four and sixteen passes.

    python experiments/correlated_noise/run.py --data ../shared/data    # ten minutes of one core

A linear model on pixels, trained by `ft.train` at (ε, δ) = (1, 1e-6) with momentum 0.9: 120 rounds
a pass, batches of 500 of 60,000 records. Four ways to take part and to add noise, each planned by
`ft.plan`. Step sizes: the planner's, and the best of the planner's times 1/2, 1 and 2 on the *test*
set with a seed of its own, which is a yardstick and no method. Writes results.csv beside it.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import forethought as ft
from forethought.planning.defaults import gain

RESULTS = Path(__file__).with_name("results.csv")
PASSES, BATCHES = (1, 4, 16), 120
BUDGET, MOMENTUM = ft.Budget(1.0, 1e-6), 0.9
FACTORS = (0.5, 1.0, 2.0)
TUNING_SEED = 100
WAYS: dict[str, dict[str, Any]] = {
    "Poisson, independent": {"sampling": "poisson", "batch": 500},
    "whole parts in turn, independent": {"sampling": "cyclic-poisson", "parts": BATCHES},
    "whole parts in turn, correlated": {
        "sampling": "cyclic-poisson",
        "parts": BATCHES,
        "noise": "correlated",
    },
    "12 parts, sampled, correlated": {
        "sampling": "cyclic-poisson",
        "parts": 12,
        "batch": 500,
        "noise": "correlated",
    },
}
HEADER = (
    "passes",
    "way",
    "strategy",
    "noise_multiplier",
    "noise_in_the_weights",
    "accuracy",
    "spread",
    "tuned_factor",
    "tuned_accuracy",
    "tuned_spread",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="where mnist/ is; or FORETHOUGHT_DATA")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", default="", help="ways whose name contains this word")
    arguments = parser.parse_args()
    data = ft.data.load("mnist", folder=arguments.data)
    rows = []
    for passes in PASSES:
        chosen = {way: options for way, options in WAYS.items() if arguments.only in way}
        for way, options in chosen.items():
            rows.append(row(data, passes, way, options, arguments.seeds))
            print(*rows[-1], f"({time.process_time():.0f} s)", sep=" | ", flush=True)
    if arguments.only:
        return
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows((HEADER, *rows))


def row(data: Any, passes: int, way: str, options: dict[str, Any], seeds: int) -> tuple[Any, ...]:
    """One line: the plan, and accuracies in per cent with their standard deviations."""
    features = data.train.inputs[0].size
    plan = ft.plan(
        examples=len(data.train),
        budget=BUDGET,
        rounds=passes * BATCHES,
        parameters=10 * (features + 1),
        options={"momentum": MOMENTUM},
        **options,
    )
    (part,) = plan.mechanism.rounds
    strategy = getattr(part, "strategy", None)
    left = 1.0 if strategy is None else gain(strategy, part.count, MOMENTUM)
    tried = {factor: accuracy(data, plan, factor, TUNING_SEED) for factor in FACTORS}
    best = max(tried, key=lambda factor: tried[factor])
    own = [accuracy(data, plan, 1.0, seed) for seed in range(seeds)]
    tuned = own if best == 1 else [accuracy(data, plan, best, seed) for seed in range(seeds)]
    return (
        passes,
        way,
        "none" if strategy is None else strategy.kind,
        f"{part.noise_multiplier:.3f}",
        f"{part.noise_multiplier * left:.3f}",
        *summed_up(own),
        f"{best:g}",
        *summed_up(tuned),
    )


def summed_up(values: list[float]) -> tuple[str, str]:
    """Mean and standard deviation."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2f}", f"{spread:.2f}"


def accuracy(data: Any, plan: ft.Plan, factor: float, seed: int) -> float:
    """Test accuracy, in per cent, of one run with the step size times ``factor``."""
    step = replace(plan.optimizer, learning_rate=plan.optimizer.learning_rate * factor)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(data.train.inputs[0].size, 10))
    run = ft.train(
        model,
        (data.train.inputs, data.train.targets),
        plan.with_(optimizer=step),
        test=(data.test.inputs, data.test.targets),
        seed=seed,
        noise_seed=seed,
        log_every=plan.rounds,
        diagnostics=False,
    )
    assert run.accuracy is not None
    return 100 * run.accuracy


if __name__ == "__main__":
    main()
