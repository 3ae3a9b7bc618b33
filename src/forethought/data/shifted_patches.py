"""Deep patches averaged over shifts of the image, their components evened out by alterations.

What the windows see is what ``deep_patches`` sees, in five places: as they are, and two pixels up,
down, left and right of that. The components that are taken of it differ: what changes most when
synthetic images are turned, zoomed, moved or lit otherwise is kept small
(`tools/learners/shifted_patches.py` in the repository). Nothing here has seen a photograph, and the
bits are the same everywhere, as in ``deep_patches``.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

import numpy as np
import torch

from forethought.data.deep_patches import BLOCKS, Place, deep_patch_features
from forethought.data.whole_filters import Components, Filters

# Even: the image at half its size is shifted by whole pixels too.
SHIFTS: tuple[Place, ...] = ((0, 0), (-2, 0), (2, 0), (0, -2), (0, 2))


def shifted_patch_features(images: torch.Tensor, *, chunk: int = 64) -> torch.Tensor:
    """Shifted patch features of every image by itself.

    Responses are the same ones under windows that are moved, and are computed once. What a shift
    brings in from beyond the edge is flat: nothing responds to it.

    Args:
        images: float32, (N, 1 or 3, H, W) in [0, 1], 20 to 96 pixels a side; values are rounded
            to 1/255.
        chunk: images at a time. It bounds memory and changes nothing else, not a bit.

    Returns:
        float32, (N, 1280, 4, 4), each image of norm 1 less what truncation to eight bits takes.

    Raises:
        ValueError: another shape.
    """
    return deep_patch_features(images, chunk=chunk, places=SHIFTS, evened_out=components)


@lru_cache(maxsize=2)
def components(channels: int) -> dict[str, Components]:
    """The bundled components for grey (1) or colour (3) images, by block."""
    file = files("forethought.data") / f"shifted_patches_{channels}.npz"
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
        return {
            name: Components(
                Filters(arrays[name], arrays[f"{name}_exponents"]), arrays[f"{name}_offsets"]
            )
            for name in BLOCKS
        }
