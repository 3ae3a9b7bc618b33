"""Five kinds of drawn images, whose classes are drawn anew by every seed.

Nothing here is a photograph or anybody's hand. Each kind is a function of the number of records, a
generator and a number of classes, and returns grey images of 16 × 16 pixels in [0, 1].
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from forethought.data.handwriting import pen_strokes
from forethought.data.synthetic import images

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from learners.dead_leaves import dead_leaves

SIDE = 16
Arrays = tuple[NDArray[np.float32], NDArray[np.int64]]
Draw = Callable[[int, int, np.random.Generator], Arrays]


def _finished(
    clean: NDArray[np.float64], targets: NDArray[np.int64], random: np.random.Generator
) -> Arrays:
    """With brightness, and noise in every pixel."""
    bright = random.uniform(0.6, 1, (len(clean), 1, 1))
    noisy = bright * clean + 0.2 * random.standard_normal(clean.shape)
    return np.clip(noisy, 0, 1).astype(np.float32), targets


def strokes(records: int, classes: int, random: np.random.Generator) -> Arrays:
    """Letters of an alphabet that nobody writes: two drawings a class, moved a little."""
    side = SIDE + 4
    letters = pen_strokes(side, side, 2 * classes, int(random.integers(1 << 31)))[:, 0]
    letters = gaussian_filter(letters, (0, 0.5, 0.5))
    y = random.integers(classes, size=records)
    return _finished(_crops(letters[2 * y + random.integers(2, size=records)], random), y, random)


def leaves(records: int, classes: int, random: np.random.Generator) -> Arrays:
    """A scene of discs and boxes a class, looked at a little aside."""
    scenes = dead_leaves(1, SIDE + 4, classes, int(random.integers(1 << 31)))[:, 0] / 255
    y = random.integers(classes, size=records)
    return _finished(_crops(scenes[y], random), y, random)


def _crops(pictures: NDArray[np.floating], random: np.random.Generator) -> NDArray[np.float64]:
    """A part of each that is :data:`SIDE` pixels wide and high, at a random place."""
    found = np.empty((len(pictures), SIDE, SIDE))
    places = random.integers(pictures.shape[1] - SIDE + 1, size=(len(pictures), 2))
    for image, picture, (down, right) in zip(found, pictures, places, strict=True):
        image[:] = picture[down : down + SIDE, right : right + SIDE]
    return found


def shapes(records: int, classes: int, random: np.random.Generator) -> Arrays:
    """Discs, squares, triangles, crosses and rings of many sizes near the middle; at most five."""
    y = random.integers(classes, size=records)
    at = np.arange(SIDE) - (SIDE - 1) / 2
    middle = random.uniform(-2.5, 2.5, (2, records, 1, 1))
    size = random.uniform(3, 6.5, (records, 1, 1))
    down, across = at[:, None] - middle[0], at - middle[1]
    far = np.hypot(down, across)
    widest = np.maximum(abs(down), abs(across))
    inside = (
        far < size,
        widest < 0.85 * size,
        (down < 0.7 * size) & (2 * abs(across) < down + 1.1 * size),
        (np.minimum(abs(down), abs(across)) < 0.3 * size) & (widest < size),
        abs(far - 0.8 * size) < 0.25 * size,
    )
    kinds = random.permutation(len(inside))[:classes]
    clean = np.stack([inside[kind] for kind in kinds])[y, np.arange(records)]
    return _finished(clean.astype(float), y, random)


def gratings(records: int, classes: int, random: np.random.Generator) -> Arrays:
    """Stripes, each class in a direction of its own, finer or coarser and moved a little."""
    y = random.integers(classes, size=records)
    angle = np.pi * (random.random() + y[:, None, None]) / classes
    at = np.arange(SIDE) - (SIDE - 1) / 2
    wave = random.uniform(0.6, 0.9, (records, 1, 1))
    moved = random.uniform(-1.2, 1.2, (records, 1, 1))
    along = np.cos(angle) * at[:, None] + np.sin(angle) * at
    return _finished(0.5 + 0.5 * np.cos(wave * along + moved), y, random)


def blobs(records: int, classes: int, random: np.random.Generator) -> Arrays:
    """Smooth random fields, two a class, under other fields and noise."""
    seed = int(random.integers(1 << 31))
    drawn = images(records, (1, SIDE, SIDE), classes, noise=1.5, seed=seed)
    return drawn.inputs[:, 0], drawn.targets


KINDS: dict[str, Draw] = {
    "strokes": strokes,
    "leaves": leaves,
    "shapes": shapes,
    "gratings": gratings,
    "blobs": blobs,
}
