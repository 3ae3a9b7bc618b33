"""What the limit on a linear model's step is worth on fixed features, on held-out training images.

    python experiments/patches/longest_step.py fashion-mnist scattering 50000 3 --data DIR

prints the recipe's accuracy with steps of at most 40 units of a score and with those that grow with
the root of the number of weights: the first so many training images, the last 8,000 to measure on.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

import forethought as ft
from forethought.data import Split, load
from forethought.models import build
from forethought.planning import defaults

MEASURE = 8_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="a data set of images")
    parser.add_argument("features", choices=("scattering", "patches"))
    parser.add_argument("count", type=int, help="training images")
    parser.add_argument("epsilon", type=float)
    parser.add_argument("--data", type=Path, help="where mnist/, cifar10/, … are")
    given = parser.parse_args()
    torch.set_num_threads(1)
    whole = load(given.name, folder=given.data, features=given.features)
    inputs, targets = whole.train.inputs, whole.train.targets
    if given.count > len(targets) - MEASURE:
        parser.error(f"at most {len(targets) - MEASURE} images, so that {MEASURE} are left")
    data = replace(
        whole,
        train=Split(inputs[: given.count], targets[: given.count]),
        test=Split(inputs[-MEASURE:], targets[-MEASURE:]),
    )
    for growing in (False, True):
        if not growing:
            kept, defaults.STEP_WEIGHTS = defaults.STEP_WEIGHTS, 10**12
        model = build("linear", inputs=data.shape, classes=10, seed=0)
        plan = ft.plan(data=data, model=model, budget=ft.Budget(given.epsilon, 1e-5))
        defaults.STEP_WEIGHTS = kept
        run = ft.train(model, data, plan, seed=0, noise_seed=0, micro_batch=512)
        assert run.accuracy is not None
        what = "growing with the weights" if growing else "at most 40"
        print(f"steps {what}: batch {plan.batch:.0f}, {100 * run.accuracy:.2f} %", flush=True)


if __name__ == "__main__":
    main()
