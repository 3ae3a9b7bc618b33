"""Images of occluding discs and boxes: statistics of photographs without a photograph.

Shapes of radius r with density r⁻³, thrown one upon another, have the edges, occlusions and scale
invariance of natural images (the dead leaves model: Lee, Mumford and Huang 2001). What is learnt
from them has seen no record of anybody.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IMAGES, SEED = 3000, 11
LEAVES = 160  # enough to cover nearly every pixel of 32 × 32 at the radii below
SMALLEST, LARGEST = 2.0, 24.0  # radii, in pixels
FINER = 2  # drawn on a grid so many times finer, then averaged: edges fall between pixels as well
CHROMA = 0.12  # standard deviation of a leaf's colour around its grey


def dead_leaves(
    channels: int, side: int = 32, images: int = IMAGES, seed: int = SEED
) -> NDArray[np.uint8]:
    """Random images of occluding discs and turned boxes.

    Args:
        channels: 1 for grey, 3 for colour.
        side: height and width in pixels.

    Returns:
        uint8, (images, channels, side, side); the same bits on every machine.
    """
    random = np.random.default_rng(seed)
    at = (np.arange(side * FINER) + 0.5) / FINER
    out = np.empty((images, channels, side, side), np.uint8)
    for image in out:
        radius = _radii(random, LEAVES)
        y, x = (random.random((2, LEAVES)) * (side + 2 * radius) - radius)[:, :, None, None]
        down, across = at[:, None] - y, at[None, :] - x
        turned = _turned(random, down, across)
        disc = down**2 + across**2 <= (radius**2)[:, None, None]
        aspect = (0.4 + 0.6 * random.random(LEAVES))[:, None, None]
        reach = radius[:, None, None]
        box = (np.abs(turned[0]) <= reach) & (np.abs(turned[1]) <= reach * aspect)
        leaves = np.where((random.random(LEAVES) < 0.5)[:, None, None], disc, box)
        grey = random.random((LEAVES, 1)) * np.ones(channels)
        tint = random.standard_normal((LEAVES, channels)) * (CHROMA if channels > 1 else 0.0)
        colour = np.clip((grey + tint) * 255, 0, 255).astype(np.uint8)
        # The first leaf that covers a pixel is the one on top; bare ground takes the last colour.
        top = np.where(leaves.any(0), leaves.argmax(0), LEAVES - 1)
        fine = colour[top].astype(np.uint16).reshape(side, FINER, side, FINER, channels)
        image[:] = (fine.sum((1, 3)) // FINER**2).transpose(2, 0, 1)
    return out


def _radii(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Radii with density proportional to r⁻³ between the two limits."""
    low, high = SMALLEST**-2, LARGEST**-2
    radii: NDArray[np.float64] = 1 / np.sqrt(low - random.random(count) * (low - high))
    return radii


def _turned(
    random: np.random.Generator, down: NDArray[np.float64], across: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coordinates turned by a random angle: by a random point of the circle, no sine needed.

    Sines differ in their last bit from one mathematical library to another; square roots do not.
    """
    cos = random.random(len(down)) * 2 - 1
    sin = np.sqrt(1 - cos**2)
    cos, sin = cos[:, None, None], sin[:, None, None]
    return down * cos + across * sin, across * cos - down * sin
