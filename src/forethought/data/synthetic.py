"""Synthetic data of a given shape: something to rehearse on when there is no public data.

Nothing here looks at real records. What private data enters is its shape, number of classes and
number of examples, all of which a plan takes as public anyway.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from forethought.checks import real, whole
from forethought.data.dataset import Dataset, Split

# Prototypes a class of images has; a linear model then errs as often as on real digits (3 to 8 %).
PROTOTYPES = 2
# An example is moved off its prototype by up to one pixel in so many, each way.
PIXELS_PER_SHIFT = 14
# Clusters are scaled by one public constant, and clipped, to values in [−1, 1].
_CLUSTER_SCALE = 5.0


def like(
    shape: tuple[int, ...],
    classes: int,
    examples: int,
    *,
    test: int | None = None,
    noise: float = 1.0,
    seed: int = 0,
) -> Dataset:
    """A synthetic data set of the same shape as a private one.

    Args:
        shape: of one example: (features,) gives :func:`clusters`, (channels, height, width) gives
            :func:`images`.
        classes: at least 2.
        examples: size of the training part. test: of the test part; a fifth of ``examples``, and
            at least one per class, by default.
        noise: how hard it is: 1 leaves a good model with a few per cent of errors, 2 with many.
        seed: the same data for the same seed.

    Raises:
        ValueError, TypeError: a shape of another length, or a number outside its range.

    >>> like((1, 8, 8), 10, 100).train.inputs.shape
    (100, 1, 8, 8)
    """
    sides = tuple(whole("each side of shape", side) for side in shape)
    whole("classes", classes, least=2)
    examples = whole("examples", examples)
    tested = max(classes, examples // 5) if test is None else whole("test", test)
    match sides:
        case (features,):
            drawn = clusters(examples + tested, features, classes, noise=noise, seed=seed)
            kind = "Gaussian clusters, one a class"
        case (channels, height, width):
            drawn = images(
                examples + tested, (channels, height, width), classes, noise=noise, seed=seed
            )
            kind = "smooth random images, shifted and noised"
        case _:
            raise ValueError(
                f"shape must be (features,) or (channels, height, width), not {tuple(shape)}"
            )
    return Dataset(
        "synthetic",
        Split(drawn.inputs[:examples], drawn.targets[:examples]),
        Split(drawn.inputs[examples:], drawn.targets[examples:]),
        classes,
        (f"synthetic data ({kind}; seed {seed}): no real record was read",),
    )


def clusters(
    examples: int, features: int, classes: int, *, noise: float = 1.0, seed: int = 0
) -> Split:
    """One Gaussian cluster a class, with values in [−1, 1].

    The centres are random directions at distance 3.5, so that with ``noise`` 1 two classes are
    confused with probability about Φ(−3.5/√2) ≈ 0.7 % (more where chance brings two centres close).

    Returns:
        inputs float32 (examples, features), targets int64 (examples,).
    """
    noise = real("noise", noise, least=0)
    random = np.random.default_rng([seed, 0])
    centres = random.standard_normal((classes, features))
    centres *= 3.5 / np.linalg.norm(centres, axis=1, keepdims=True)
    labels = random.integers(classes, size=examples)
    inputs = centres[labels] + noise * random.standard_normal((examples, features))
    scaled = np.clip(inputs / _CLUSTER_SCALE, -1, 1)
    return Split(scaled.astype(np.float32), labels.astype(np.int64))


def images(
    examples: int, shape: tuple[int, int, int], classes: int, *, noise: float = 1.0, seed: int = 0
) -> Split:
    """Smooth random images with values in [0, 1].

    A class has two prototypes, smooth random fields. An example is a prototype moved by up to
    1/14 of a side each way, under another smooth field and pixel noise, both scaled by ``noise``.

    Args:
        shape: (channels, height, width).

    Returns:
        inputs float32 (examples, *shape), targets int64 (examples,).
    """
    noise = real("noise", noise, least=0)
    channels, height, width = shape
    random = np.random.default_rng([seed, 1])
    scale = max(1.0, min(height, width) / 8)
    margin = min(height, width) // PIXELS_PER_SHIFT
    padded = (classes, PROTOTYPES, channels, height + 2 * margin, width + 2 * margin)
    prototypes = _smooth(random, padded, scale)
    labels = random.integers(classes, size=examples)
    which = random.integers(PROTOTYPES, size=examples)
    moves = random.integers(2 * margin + 1, size=(examples, 2))
    inputs = np.empty((examples, *shape), dtype=np.float32)
    for start in range(0, examples, 4096):  # bounds memory, in double precision, at any size
        part = slice(start, min(start + 4096, examples))
        size = part.stop - part.start
        field = 0.7 * noise * _smooth(random, (size, *shape), scale)
        field += 0.5 * noise * random.standard_normal((size, *shape))
        for row in range(size):
            index = start + row
            down, right = moves[index]
            view = prototypes[labels[index], which[index], :, down:, right:]
            field[row] += view[:, :height, :width]
        inputs[part] = np.clip(0.5 + field / 4, 0, 1)
    return Split(inputs, labels.astype(np.int64))


def _smooth(
    random: np.random.Generator, shape: tuple[int, ...], scale: float
) -> NDArray[np.float64]:
    """Random fields of unit variance, correlated over about ``scale`` pixels of the last axes."""
    white = random.standard_normal(shape)
    widths = (0.0,) * (len(shape) - 2) + (scale, scale)
    # Averaging white noise over a Gaussian of width s leaves a variance of 1/(4π s²).
    return np.asarray(gaussian_filter(white, widths, mode="wrap") * 2 * scale * math.sqrt(math.pi))
