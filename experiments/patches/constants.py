"""Learn the constants of patch features again, from synthetic images, and compare or write them.

    python experiments/patches/constants.py            # how near are the bundled ones?
    python experiments/patches/constants.py --write    # replace them
    python experiments/patches/constants.py --deep      # likewise of deep patches
    python experiments/patches/constants.py --shifted   # likewise of shifted patches

About a minute and 1 GB for each of grey and colour, five minutes and 2 GB for deep ones. k-means
is sensitive to the last bit: on another processor other filters come out, which is why the bundled
ones are what everybody uses.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import forethought.data
from forethought.data import deep_patches
from forethought.data.patches import FilterConstants, constants, exact_products

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from learners import deep_patches as deep_learner
from learners import shifted_patches as shifted_learner
from learners.patches import learn

FOLDER = Path(forethought.data.__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the bundled constants")
    parser.add_argument("--deep", action="store_true", help="the constants of deep patches")
    parser.add_argument("--shifted", action="store_true", help="those of shifted patches")
    arguments = parser.parse_args()
    for channels in (1, 3):
        if arguments.deep:
            deep(channels, arguments.write)
            continue
        if arguments.shifted:
            shifted(channels, arguments.write)
            continue
        learnt = learn(channels)
        if arguments.write:
            np.savez_compressed(FOLDER / f"patches_{channels}.npz", **vars(learnt))
        else:
            compare(channels, learnt, constants(channels))


def deep(channels: int, write: bool) -> None:
    """Learn those of deep patches, and compare or write them."""
    with exact_products():
        learnt = deep_learner.arrays_of(deep_learner.learn(channels))
    if write:
        np.savez_compressed(FOLDER / f"deep_patches_{channels}.npz", **learnt)
        return
    bundled = deep_learner.arrays_of(deep_patches.constants(channels))
    for name in ("half_filters", "second_filters"):
        likeness = np.abs(_rows(learnt[name]) @ _rows(bundled[name]).T).max(0)
        print(f"{channels}, {name}: likest filter, cosine: median {np.median(likeness):.4f}")
    same = all(np.array_equal(learnt[name], bundled[name]) for name in bundled)
    print(f"{channels}: the same bits: {same}")


def shifted(channels: int, write: bool) -> None:
    """Learn those of shifted patches, and compare or write them."""
    learnt = shifted_learner.arrays_of(shifted_learner.learn(channels))
    if write:
        np.savez_compressed(FOLDER / f"shifted_patches_{channels}.npz", **learnt)
        return
    bundled = shifted_learner.arrays_of(deep_patches.evened_components(channels))
    for name in deep_patches.BLOCKS:
        likeness = (_rows(learnt[name]) * _rows(bundled[name])).sum(1)
        print(f"{channels}, {name}: same component, cosine: least {likeness.min():.4f}")
    same = all(np.array_equal(learnt[name], bundled[name]) for name in bundled)
    print(f"{channels}: the same bits: {same}")


def _rows(filters: NDArray[np.generic]) -> NDArray[np.float64]:
    rows = filters.astype(np.float64)
    unit: NDArray[np.float64] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def compare(channels: int, learnt: FilterConstants, bundled: FilterConstants) -> None:
    """Print how well each bundled filter is matched by its likest new one."""
    likeness = np.abs(_unit(learnt) @ _unit(bundled).T).max(0)
    print(
        f"{channels} channel{'s' * (channels > 1)}: likest filter, cosine: "
        f"median {np.median(likeness):.4f}, least {likeness.min():.4f}; "
        f"the same bits: {all(map(np.array_equal, vars(learnt).values(), vars(bundled).values()))}"
    )


def _unit(known: FilterConstants) -> NDArray[np.float64]:
    return _rows(known.filters)


if __name__ == "__main__":
    main()
