"""Which places deep patches are averaged over, and how much of their second layer is taken.

    python experiments/patches/shifts.py --data DIR    # shifts.csv; twenty minutes of one core

CIFAR-10's training images 0 to 10,000: 6,000 to train on, 4,000 to measure on, with the noise and
the steps that 50,000 records have; three seeds at ε = 1 and 3, the mean of each, percent right.
Then what was taken from it, with and without components that are evened out, on these and on
images 20,000 to 29,000, those of ``variants.py`` (3,000 to measure on). The half-sized
image stays where it is for a place that is one pixel away. Finished rows are kept; ``--blocks``:
a folder for the blocks of every place by itself, 3.7 gigabytes. ``--smoke``: nothing is kept.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import torch
from kept_rows import keep, kept
from numpy.typing import NDArray
from side_by_side import Run, accuracies, trained
from variants import COUNT as OTHERS
from variants import FIRST as OTHER
from variants import MEASURE as OTHERS_MEASURED

from forethought.data import load
from forethought.data.deep_patches import (
    BLOCKS,
    CHANNELS,
    SHIFTS,
    STILL,
    WEIGHTS,
    blocks_of,
    combined,
    deep_patch_features,
)
from forethought.data.deep_patches import evened_components as evened_out
from forethought.data.patches import GRID, exact_products

KEPT = Path(__file__).with_name("shifts.csv")
FIELDS = ("images", "places", "second layer's weight", "epsilon 1", "epsilon 3")
COUNT, MEASURE, RECORDS = 10_000, 4_000, 50_000
RUNS = [Run(epsilon, 1.0, seed) for epsilon in (1.0, 3.0) for seed in range(3)]
PLACES = ((0, 0), (-2, 0), (2, 0), (0, -2), (0, 2), (-1, -1), (1, 1), (-1, 1), (1, -1))
SETS = {
    "as they are": (0,),
    "and four, two pixels up, down, left and right": (0, 1, 2, 3, 4),
    "four, two pixels up, down, left and right": (1, 2, 3, 4),
    "four, one pixel along each diagonal": (5, 6, 7, 8),
    "and four, one pixel along each diagonal": (0, 5, 6, 7, 8),
    "two, one pixel along a diagonal": (5, 6),
    "all nine": tuple(range(9)),
}
ENDS = np.cumsum([0, *BLOCKS.values()])
Blocks = NDArray[np.int16]  # bfloat16, (places, images, 16, channels)


def blocks_at(images: NDArray[np.float32], path: Path) -> Blocks:
    """The blocks of every place, read from the file, or written to it."""
    if not path.exists():
        shape = (len(PLACES), len(images), GRID**2, CHANNELS)
        partial = path.with_suffix(".partial")
        made = np.lib.format.open_memmap(partial, "w+", np.int16, shape)
        with exact_products():
            for at in range(0, len(images), 50):
                part = torch.from_numpy(np.ascontiguousarray(images[at : at + 50]))
                for where, place in enumerate(PLACES):
                    found = torch.cat(list(blocks_of(part, [place]).values()), -1)
                    made[where, at : at + 50] = found.bfloat16().view(torch.int16).numpy()
        made.flush()
        partial.rename(path)
    return np.load(path, mmap_mode="r")


def averaged(blocks: Blocks, chosen: tuple[int, ...], weight: float) -> torch.Tensor:
    """Features as they would be with these places, bfloat16, (images, features)."""
    found = []
    with exact_products():
        for at in range(0, blocks.shape[1], 500):
            kept = torch.from_numpy(np.array(blocks[list(chosen), at : at + 500]))
            mean = kept.view(torch.bfloat16).float().mean(0).round_()
            parts = {
                name: mean[..., a:b] for name, (a, b) in zip(BLOCKS, pairwise(ENDS), strict=True)
            }
            made = combined(parts, {**WEIGHTS, "second": weight})
            found.append(made.flatten(1).bfloat16())
    return torch.cat(found)


def measured(inputs: torch.Tensor, targets: torch.Tensor, measure: int) -> list[str]:
    """Mean accuracies at the two budgets, percent."""
    weights = trained(inputs[:-measure], targets[:-measure], RUNS, RECORDS)
    found = accuracies(weights, inputs[-measure:], targets[-measure:])
    return [f"{sum(found[:3]) / 3:.2f}", f"{sum(found[3:]) / 3:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="where cifar10/ is")
    parser.add_argument("--blocks", type=Path, help="where blocks are kept; default: nowhere")
    parser.add_argument("--smoke", action="store_true", help="a hundred images, nothing kept")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    whole = load("cifar10", folder=arguments.data).train
    done = set() if arguments.smoke else {tuple(row[f] for f in FIELDS[:3]) for row in kept(KEPT)}

    def finished(*row: str) -> None:
        print(*row, flush=True)
        if not arguments.smoke:
            keep(KEPT, FIELDS, [row])

    size, measure = (100, 30) if arguments.smoke else (COUNT, MEASURE)
    targets = torch.from_numpy(whole.targets[:size])
    wanted = [
        (f"0 to {size}", name, str(weight))
        for name in SETS
        for weight in (WEIGHTS["second"], 2.0)
        if (f"0 to {size}", name, str(weight)) not in done
    ]
    with tempfile.TemporaryDirectory() as empty:
        folder = Path(empty) if arguments.smoke or not arguments.blocks else arguments.blocks
        blocks = blocks_at(whole.inputs[:size], folder / "blocks.npy") if wanted else None
        for key in wanted:
            assert blocks is not None
            inputs = averaged(blocks, SETS[key[1]], float(key[2]))
            finished(*key, *measured(inputs, targets, measure))
    for first, whole_size, part in ((0, COUNT, MEASURE), (OTHER, OTHERS, OTHERS_MEASURED)):
        size, measure = (100, 30) if arguments.smoke else (whole_size, part)
        images = torch.from_numpy(np.ascontiguousarray(whole.inputs[first : first + size]))
        targets = torch.from_numpy(whole.targets[first : first + size])
        for (name, places), components in product(
            zip(SETS, (STILL, SHIFTS), strict=False), (None, evened_out)
        ):
            label = name if components is None else f"{name}; evened out"
            key = (f"{first} to {first + size}", label, str(WEIGHTS["second"]))
            if key not in done:
                found = [
                    deep_patch_features(part, places=places, evened_out=components)
                    for part in images.split(500)
                ]
                inputs = torch.cat([part.flatten(1).bfloat16() for part in found])
                finished(*key, *measured(inputs, targets, measure))


if __name__ == "__main__":
    main()
