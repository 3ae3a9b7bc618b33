"""Learn the constants of patch features again, from synthetic images, and compare or write them.

    python experiments/patches/constants.py            # how near are the bundled ones?
    python experiments/patches/constants.py --write    # replace them

About a minute and 1 GB for each of grey and colour. k-means is sensitive to the last bit: on
another processor other filters come out, which is why the bundled ones are what everybody uses.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import forethought.data
from forethought.data.patch_filters import learn
from forethought.data.patches import Constants, constants

FOLDER = Path(forethought.data.__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="replace the bundled constants")
    arguments = parser.parse_args()
    for channels in (1, 3):
        learnt = learn(channels)
        if arguments.write:
            np.savez_compressed(FOLDER / f"patches_{channels}.npz", **vars(learnt))
        else:
            compare(channels, learnt, constants(channels))


def compare(channels: int, learnt: Constants, bundled: Constants) -> None:
    """Print how well each bundled filter is matched by its likest new one."""
    likeness = np.abs(_unit(learnt) @ _unit(bundled).T).max(0)
    print(
        f"{channels} channel{'s' * (channels > 1)}: likest filter, cosine: "
        f"median {np.median(likeness):.4f}, least {likeness.min():.4f}; "
        f"the same bits: {all(map(np.array_equal, vars(learnt).values(), vars(bundled).values()))}"
    )


def _unit(known: Constants) -> NDArray[np.float64]:
    filters = known.filters.astype(np.float64)
    unit: NDArray[np.float64] = filters / np.linalg.norm(filters, axis=1, keepdims=True)
    return unit


if __name__ == "__main__":
    main()
