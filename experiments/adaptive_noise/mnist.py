"""Noise that falls against constant noise on MNIST, by `forethought.train`: all else is equal.

python experiments/adaptive_noise/mnist.py --data-dir ../shared/data      # about ten minutes
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch
from torch import nn

import forethought as ft
from forethought.data import load
from forethought.models import build

SCHEDULES = (("constant", None), ("geometric", 1.5), ("geometric", 2.5), ("forgetting", 2.0))
EPSILONS = (0.5, 2.0)


def _model(name: str) -> nn.Module:
    return build(name, inputs=(1, 28, 28), classes=10)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["linear", "mlp"])
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    data = load("mnist", folder=given.data_dir)
    print("| model | ε | noise | fall | accuracy, mean (least to most) | of constant |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in given.models:
        for epsilon in EPSILONS:
            constant = None
            for schedule, fall in SCHEDULES:
                plan = ft.plan(
                    data=data,
                    model=_model(name),
                    budget=ft.Budget(epsilon, 1e-6),
                    noise_schedule=schedule,
                    noise_fall=fall,
                )
                found = []
                for seed in range(given.seeds):
                    torch.manual_seed(seed)
                    run = ft.train(
                        _model(name), data, plan, seeds=ft.Seeds(seed, seed), log_every=plan.rounds
                    )
                    found.append(100 * (run.accuracy or 0.0))
                mean = statistics.fmean(found)
                constant = mean if constant is None else constant
                shown = "" if fall is None else f"{fall:g}"
                spread = f"{mean:.2f} ({min(found):.2f} to {max(found):.2f})"
                row = f"| {name} | {epsilon:g} | {schedule} | {shown} | {spread} "
                print(f"{row}| {mean - constant:+.2f} |", flush=True)


if __name__ == "__main__":
    main()
