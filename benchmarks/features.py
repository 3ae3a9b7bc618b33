"""Processor time of fixed image features and of a linear model trained on them, on one thread.

    python benchmarks/features.py            # half a minute
    python benchmarks/features.py --smoke

Every figure is the least of several repeats: what else the machine does can only add to it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

import forethought as ft
from forethought.data.deep_patches import deep_patch_features, shifted_patch_features
from forethought.data.patches import patch_features
from forethought.data.scattering import scatter
from forethought.models import build

COLOUR, ROUNDS = 50_000, 30  # CIFAR-10, and the rounds of its job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="a few images, once")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    images, repeats = (4, 1) if arguments.smoke else (96, 5)
    random = np.random.default_rng(0)
    colour = torch.from_numpy(random.random((images, 3, 32, 32), np.float32))
    for function in (patch_features, deep_patch_features, scatter):
        function(colour[:1])  # reads constants
    print("| features of 50,000 images 3 × 32 × 32 | images at a time | seconds |\n|---|---|---|")
    for chunk in (1, 8, 32):
        spent = least(partial(patch_features, colour, chunk=chunk), repeats)
        print(f"| patches | {chunk} | {spent / images * COLOUR:.0f} |", flush=True)
    for chunk in (1, 8, 32):
        spent = least(partial(deep_patch_features, colour, chunk=chunk), repeats)
        print(f"| deep patches | {chunk} | {spent / images * COLOUR:.0f} |", flush=True)
    spent = least(partial(shifted_patch_features, colour), repeats)
    print(f"| shifted patches | 64 | {spent / images * COLOUR:.0f} |", flush=True)
    for chunk in (4, 8, 16, 64):
        spent = least(partial(scatter, colour, chunk=chunk), repeats)
        print(f"| scattering, planes | {chunk} | {spent / images * COLOUR:.0f} |", flush=True)
    train(
        np.zeros((8, 1024, 4, 4), np.float32), np.zeros(8, np.int64), 2, 8
    )  # what is slow at first
    rows = 256 if arguments.smoke else 2048
    inputs = random.standard_normal((rows, 1024, 4, 4), np.float32) / 128
    targets = random.integers(0, 10, rows)
    print("\n| linear model on patch features, full batch | seconds a round of 50,000 |\n|---|---|")
    for micro_batch in (64, 128, 512):
        few, many = (
            least(partial(train, inputs, targets, rounds, micro_batch), repeats)
            for rounds in (2, 6)
        )
        print(f"| micro-batches of {micro_batch} | {(many - few) / 4 / rows * COLOUR:.2f} |")
    print(f"\nThe jobs take {ROUNDS} rounds.")


def train(inputs: np.ndarray, targets: np.ndarray, rounds: int, micro_batch: int) -> None:
    plan = ft.plan(
        examples=len(inputs),
        budget=ft.Budget(3.0, 1e-5),
        sampling="full-batch",
        rounds=rounds,
        clip_norm=0.25,
        learning_rate=1000.0,
        averaging=ft.Averaging("none"),
        parameters=inputs[0].size * 10,
    )
    model = build("linear", inputs=inputs.shape[1:], classes=10, bias=False)
    ft.train(model, (inputs, targets), plan, seed=0, log_every=rounds, micro_batch=micro_batch)


def least(function: Callable[[], object], repeats: int) -> float:
    spent = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        spent.append(time.process_time() - start)
    return min(spent)


if __name__ == "__main__":
    main()
