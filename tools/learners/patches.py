"""Learns the constants of ``patches`` from synthetic images; what it gave is bundled.

``experiments/patches/constants.py`` calls it. Clustering is sensitive to the last bit, so another
processor finds other, equally good filters: that is why they are bundled and not computed on first
use.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forethought.data.patches import (
    FILTERS,
    FilterConstants,
    normalised_patches,
    pooled_roots,
    standardised,
)
from learners.dead_leaves import dead_leaves

SEED = 5
PATCHES = 300_000
PASSES = 15  # of k-means: its error hardly falls after ten
RIDGE = 0.1  # added to the eigenvalues of the patches' covariance, as Coates and Ng (2012) do
_PART = 20_000  # patches compared at a time
CHANNEL_RIDGE = 0.1  # likewise for the channels, as for scattering


def learn(channels: int) -> FilterConstants:
    """Filters and statistics for grey (1) or colour (3) images; about a minute on one core."""
    images = torch.from_numpy(dead_leaves(channels).astype(np.float32) / np.float32(255))
    filters, exponents = counted_filters(image_filters(images))
    parts = [
        standardised(pooled_roots(images[at : at + 8], filters, exponents)).float()
        for at in range(0, len(images), 8)
    ]
    rows = torch.cat(parts).movedim(1, -1).flatten(0, 2).double()
    means = rows.mean(0)
    rows -= means
    matrix = _decorrelation(rows.T @ rows / len(rows), CHANNEL_RIDGE)
    return FilterConstants(
        filters,
        exponents,
        np.round(means.numpy() * 256).astype(np.int16),
        np.clip(np.round(matrix.numpy() * 4096), -32767, 32767).astype(np.int16),
    )


def counted_filters(filters: torch.Tensor) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
    """Filters as whole numbers of seven bits times a power of two each."""
    exponents = torch.floor(torch.log2(127 / filters.abs().amax(1)))
    counted = (filters * torch.exp2(exponents)[:, None]).round()
    return counted.numpy().astype(np.int8), exponents.numpy().astype(np.int8)


def image_filters(images: torch.Tensor, count: int = FILTERS) -> torch.Tensor:
    """Spherical k-means of whitened patches, a filter and its negative being one; (count, size)."""
    random = torch.Generator().manual_seed(SEED)
    patches = torch.cat(
        [
            some[torch.randint(len(some), (PATCHES // len(images),), generator=random)]
            for image in images
            for some in [normalised_patches(image[None]).flatten(0, 2) / 32]
        ]
    )
    return clustered(patches, count, random)


def clustered(patches: torch.Tensor, count: int, random: torch.Generator) -> torch.Tensor:
    """Spherical k-means of patches (N, size), whitened; (count, size), to apply to patches."""
    exact = patches.double()
    whiten = _decorrelation(exact.T @ exact / len(exact), RIDGE)
    white = (exact @ whiten).float()
    white = white[white.norm(dim=1) > 1e-3]
    centres = white[torch.randperm(len(white), generator=random)[:count]]
    centres = centres / centres.norm(dim=1, keepdim=True)
    for _ in range(PASSES):
        total = torch.zeros_like(centres)
        for at in range(0, len(white), _PART):
            part = white[at : at + _PART]
            likeness = part @ centres.T
            best = likeness.abs().argmax(1)
            weight = likeness.gather(1, best[:, None])
            # Damped averages: each patch counts by how well it fits (Coates and Ng 2012).
            total.index_add_(0, best, weight * part)
        centres = centres + total
        centres = centres / centres.norm(dim=1, keepdim=True)
    filters: torch.Tensor = centres @ whiten.float()
    return filters


def _decorrelation(covariance: torch.Tensor, ridge: float) -> torch.Tensor:
    """(Σ + ridge)^(−1/2)."""
    values, vectors = torch.linalg.eigh(covariance)
    root: torch.Tensor = vectors * (values.clamp_min(0) + ridge) ** -0.5 @ vectors.T
    return root
