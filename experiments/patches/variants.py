"""What the parts of deep patch features are worth, on held-out training images.

    python experiments/patches/variants.py --data DIR    # variants.csv; two minutes of one core

CIFAR-10's training images 20,000 to 29,000: 6,000 to train on, 3,000 to measure on, with the noise
and the steps that 50,000 records have. Three seeds at ε = 1, two at 3, one at 8: the mean of each,
percent right. ``--smoke``: a hundred images, nothing kept.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch
from side_by_side import Run, accuracies, trained

from forethought.data import load
from forethought.data.deep_patches import WAVES, WEIGHTS, blocks_of, combined
from forethought.data.features import cached
from forethought.data.patches import exact_products

KEPT = Path(__file__).with_name("variants.csv")
FIRST, COUNT, MEASURE, RECORDS = 20_000, 9_000, 3_000, 50_000
RUNS = [Run(e, 1.0, seed) for e, seeds in ((1.0, 3), (3.0, 2), (8.0, 1)) for seed in range(seeds)]
LEVEL = (1.0, 1.0, 1.0, 1.0)
# Which blocks, with what weights, and how much of the grid's cosines.
VARIANTS: list[tuple[str, dict[str, float], tuple[float, ...]]] = [
    ("first layer", {"first": 1.0}, LEVEL),
    ("half size", {"half": 1.0}, LEVEL),
    ("second layer", {"second": 1.0}, LEVEL),
    ("first and half", {"first": 1.0, "half": 0.7}, LEVEL),
    ("first and second", {"first": 1.0, "second": 1.4}, LEVEL),
    ("three, even", {"first": 1.0, "half": 1.0, "second": 1.0}, LEVEL),
    ("three", WEIGHTS, LEVEL),
    ("three, slow waves", WEIGHTS, WAVES),
    ("three, slower waves", WEIGHTS, (1.0, 0.6, 0.4, 0.2)),
    ("three, more second", {**WEIGHTS, "second": 2.0}, WAVES),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="where cifar10/ is")
    parser.add_argument("--smoke", action="store_true", help="a hundred images, nothing kept")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    count, measure = (100, 30) if arguments.smoke else (COUNT, MEASURE)
    whole = load("cifar10", folder=arguments.data).train
    images = whole.inputs[FIRST : FIRST + count]
    targets = torch.from_numpy(whole.targets[FIRST : FIRST + count])
    first = torch.from_numpy(cached(images, "patches"))
    rows = [("patches", *measured(first, targets, measure))]
    del first
    print(*rows[0], flush=True)
    with exact_products():
        parts = [blocks_of(part) for part in torch.split(torch.from_numpy(images), 8)]
    for name, weights, waves in VARIANTS:
        features = torch.cat(
            [
                combined({block: part[block] for block in weights}, weights, waves).bfloat16()
                for part in parts
            ]
        )
        rows.append((name, *measured(features, targets, measure)))
        print(*rows[-1], flush=True)
    if not arguments.smoke:
        with KEPT.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("features", "numbers", "epsilon 1", "epsilon 3", "epsilon 8"))
            writer.writerows(rows)


def measured(
    features: torch.Tensor, targets: torch.Tensor, measure: int
) -> tuple[int, str, str, str]:
    """How many numbers an image has, and the mean accuracies at the three budgets."""
    inputs = features.flatten(1).bfloat16()
    weights = trained(inputs[:-measure], targets[:-measure], RUNS, RECORDS)
    found = accuracies(weights, inputs[-measure:], targets[-measure:])
    means = (sum(found[:3]) / 3, sum(found[3:5]) / 2, found[5])
    one, three, eight = (f"{mean:.2f}" for mean in means)
    return inputs.shape[1], one, three, eight


if __name__ == "__main__":
    main()
