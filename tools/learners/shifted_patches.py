"""Learns the components of ``shifted-patches``: those of deep patches, evened out by alterations.

Of what deep patches see, a part changes when one image is turned a little, zoomed, moved or lit
otherwise, and that part tells nothing of what is in it. The synthetic images are altered so, and
each block's components are multiplied by C^(−1/2), where C is the mean covariance *within* an image
and its alterations: within-class covariance normalisation (Hatch, Kajarekar and Stolcke 2006), with
an image in the place of a class. ``experiments/patches/constants.py --shifted`` calls it; what
it gave is bundled. As with ``learners.patches``, another processor finds other, equally good ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from forethought.data.deep_patches import (
    BLOCKS,
    STANDARD,
    Components,
    components,
    counts_of,
)
from forethought.data.patches import STILL, Filters, exact_products
from learners.dead_leaves import dead_leaves
from learners.patches import SEED, counted_filters

IMAGES, LOOKS = 2000, 3  # images, and looks at each: itself and two alterations
RIDGE = 0.3  # added to the covariance, in means of its eigenvalues
TURN, ZOOM, MOVE = 0.2, 0.2, 0.15  # radians; of the size; of half a side
LIGHT, TINT = 0.3, 0.08  # of contrast and brightness; deviation of a colour's shift
_PART = 25  # images at a time


def altered(images: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Each image turned, zoomed, moved and lit otherwise, by chance; what comes in is reflected.

    Args:
        images: (N, channels, H, W) in [0, 1].
    """
    count, channels = images.shape[:2]

    def between(least: float, most: float) -> torch.Tensor:
        return least + (most - least) * torch.rand(count, generator=random)

    turn, zoom = between(-TURN, TURN), between(1 - ZOOM, 1 + ZOOM)
    across, down = between(-MOVE, MOVE), between(-MOVE, MOVE)
    rows = [
        torch.stack([zoom * turn.cos(), -zoom * turn.sin(), across], 1),
        torch.stack([zoom * turn.sin(), zoom * turn.cos(), down], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(images.shape), align_corners=False)
    moved = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
    mean = moved.mean((2, 3), keepdim=True)
    contrast, light = (between(1 - LIGHT, 1 + LIGHT)[:, None, None, None] for _ in range(2))
    tint = TINT * torch.randn(count, channels, 1, 1, generator=random)
    return ((moved - mean) * contrast + mean * light + tint).clamp_(0, 1)


def arrays_of(found: Mapping[str, Components]) -> dict[str, NDArray[np.generic]]:
    """As the bundled file has them."""
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, known in found.items():
        arrays |= {
            name: known.filters.filters,
            f"{name}_exponents": known.filters.exponents,
            f"{name}_offsets": known.offsets,
        }
    return arrays


def learn(channels: int) -> dict[str, Components]:
    """Components of every block for grey (1) or colour (3) images; minutes of one core."""
    plain = components(channels)
    random = torch.Generator().manual_seed(SEED)
    images = torch.from_numpy(dead_leaves(channels)[:IMAGES].astype(np.float32) / np.float32(255))
    sums: dict[str, torch.Tensor] = {}
    within = {name: torch.zeros(size, size, dtype=torch.float64) for name, size in BLOCKS.items()}
    with exact_products():
        for part in torch.split(images, _PART):
            looks = [part, *(altered(part, random) for _ in range(LOOKS - 1))]
            counts = [counts_of(look, STILL) for look in looks]
            for name in BLOCKS:
                sums[name] = sums.get(name, 0) + counts[0][name].sum((0, 1), dtype=torch.float64)
                seen = [values_of(plain[name], each[name].flatten(0, 1)) for each in counts]
                for one, other in combinations(seen, 2):
                    within[name] += (one - other).mT @ (one - other)
    means = {name: total / (len(images) * 16) for name, total in sums.items()}
    return {name: evened_out(plain[name], within[name], means[name]) for name in BLOCKS}


def values_of(components: Components, counts: torch.Tensor) -> torch.Tensor:
    """Components of counts (rows, channels), before they are counted themselves; float64."""
    return counts.double() @ weights_of(components.filters).T / STANDARD


def weights_of(filters: Filters) -> torch.Tensor:
    """Filters as numbers, float64, (count, size)."""
    scale = np.exp2(-filters.exponents.astype(np.float64))
    return torch.from_numpy(filters.filters * scale[:, None])


def evened_out(components: Components, within: torch.Tensor, means: torch.Tensor) -> Components:
    """Components times C^(−1/2), for a covariance C up to a factor, and off the channels' means.

    Their size does not matter: each block gets its norm afterwards. It is kept as it was in the
    mean, so that counting in whole numbers loses as little.
    """
    values, vectors = torch.linalg.eigh(within)
    values = values.clamp_min(0)
    root = (vectors * (values + RIDGE * values.mean()) ** -0.5) @ vectors.T
    root *= math.sqrt(len(root)) / root.norm()
    whole = Filters(*counted_filters((root @ weights_of(components.filters)).float()))
    offsets = np.round(whole.filters.astype(np.float64) @ means.numpy())
    return Components(whole, offsets.astype(np.int32))
