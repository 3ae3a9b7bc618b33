"""Learns the constants of ``deep_patches`` from synthetic images; what it gave is bundled.

``experiments/patches/constants.py --deep`` calls it. As with ``learners.patches``, another
processor finds other, equally good ones.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from forethought.data.deep_patches import (
    BLOCKS,
    COMPONENTS,
    STANDARD,
    Components,
    DeepFilterConstants,
    cell_maps,
    cell_patches,
    first_filters,
    halved,
    second_pooled,
    standardise_,
)
from forethought.data.patches import FINE, STILL, Filters, pooled_at
from learners.dead_leaves import dead_leaves
from learners.patches import (
    CHANNEL_RIDGE,
    SEED,
    clustered,
    counted_filters,
    image_filters,
)

SECOND_FILTERS, HALF_FILTERS = 512, 256
_PART = 25  # images at a time
_SAMPLED = 60  # second patches taken of each image and its mirror image


def learn(channels: int) -> DeepFilterConstants:
    """Constants for grey (1) or colour (3) images; some minutes of one core."""
    images = torch.from_numpy(dead_leaves(channels).astype(np.float32) / np.float32(255))
    parts = torch.split(images, _PART)
    first = first_filters(channels)
    half = Filters(*counted_filters(image_filters(halved(images), HALF_FILTERS)))
    fine = (pooled(part, first)[1].flatten(0, 1) for part in parts)
    cells = leading_components((standard_counts(part) for part in fine), COMPONENTS)
    maps = torch.cat([cell_maps(pooled(part, first)[1], cells) for part in parts])
    random = torch.Generator().manual_seed(SEED)
    sampled = []
    for part in torch.split(maps, _PART):
        found = cell_patches(part.flatten(0, 1)).flatten(0, 2)
        rows = torch.randint(len(found), (_SAMPLED * len(part),), generator=random)
        sampled.append(found[rows] / 32)
    second = Filters(*counted_filters(clustered(torch.cat(sampled), SECOND_FILTERS, random)))
    return DeepFilterConstants(
        half_filters=half,
        second_filters=second,
        cells=cells,
        first=leading_components(
            (standard_counts(pooled(part, first)[0]) for part in parts), BLOCKS["first"]
        ),
        half=leading_components(
            (standard_counts(pooled(halved(part), half)[0]) for part in parts), BLOCKS["half"]
        ),
        second=leading_components(
            (standard_counts(second_pooled(part, second)) for part in torch.split(maps, _PART)),
            BLOCKS["second"],
        ),
    )


def pooled(images: torch.Tensor, filters: Filters) -> tuple[torch.Tensor, torch.Tensor]:
    """Pooled responses to the filters and to their negatives, in whole numbers.

    Returns:
        Over the coarse grid, image and mirror image together, (N, 16, 2 · filters); and over the
        fine grid the two apart, (N, 2, 81, 2 · filters).
    """
    fine = torch.empty(len(images), 2, FINE * FINE, 2 * len(filters.filters))
    coarse = [
        pooled_at(one, filters, STILL, cells)
        for one, cells in zip(images[:, None], fine[:, None], strict=True)
    ]
    return torch.cat(coarse), fine


def standard_counts(pools: torch.Tensor) -> torch.Tensor:
    """Roots of pooled responses, each image by itself to mean 0 and deviation 1, in 1/16.

    Args:
        pools: whole numbers, (N, cells, channels).
    """
    return standardise_(pools.clone())


def leading_components(parts: Iterable[torch.Tensor], count: int) -> Components:
    """The leading components of counts (N, cells, channels) in 1/16, decorrelated.

    A component of variance λ has variance λ/(λ + ridge) afterwards.
    """
    rows, total, products = 0, torch.zeros(()), torch.zeros(())
    for part in parts:
        flat = part.flatten(0, 1)
        rows += len(flat)
        total = total + flat.sum(0, dtype=torch.float64)
        products = products + (flat.T @ flat).double()
    means = total / rows
    covariance = (products / rows - torch.outer(means, means)) / STANDARD**2
    values, vectors = torch.linalg.eigh(covariance)
    values, vectors = values.flip(0)[:count], vectors.flip(1)[:, :count]
    filters = (vectors * (values.clamp_min(0) + CHANNEL_RIDGE) ** -0.5).T
    whole = Filters(*counted_filters(filters.float()))
    offsets = np.round(whole.filters.astype(np.float64) @ means.numpy())
    return Components(whole, offsets.astype(np.int32))


def arrays_of(known: DeepFilterConstants) -> dict[str, NDArray[np.generic]]:
    """As the bundled file has them."""
    found: dict[str, NDArray[np.generic]] = {}
    for name, value in vars(known).items():
        filters = value.filters if isinstance(value, Components) else value
        found |= {name: filters.filters, f"{name}_exponents": filters.exponents}
        if isinstance(value, Components):
            found[f"{name}_offsets"] = value.offsets
    return found
