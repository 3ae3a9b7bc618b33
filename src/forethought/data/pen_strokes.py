"""Images of random pen strokes: statistics of handwriting without anybody's hand.

One or two smooth curves, drawn with a pen of some width and scaled to fit the middle of the image,
as digits and letters in data sets of handwriting are. What is computed from them has seen no
record of anybody.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

IMAGES, SEED = 6000, 11
FILLED = 20 / 28  # of the image's shorter side: the frame that a drawing fills
NARROWEST, WIDEST = 0.7 / 28, 1.5 / 28  # half the pen's width, likewise
EDGE = 1 / 28  # over which ink fades
SECOND_STROKE = 0.4  # probability of one
SLIMNESS = 0.75  # control points fill a box this much narrower than high
_POINTS = 80  # of a curve


def pen_strokes(
    height: int, width: int, images: int = IMAGES, seed: int = SEED
) -> NDArray[np.float32]:
    """Random drawings, bright on dark.

    Returns:
        float32 in [0, 1], (images, 1, height, width).
    """
    random = np.random.default_rng(seed)
    side = min(height, width)
    middle = (np.array([height, width]) - 1) / 2
    out = np.empty((images, 1, height, width), np.float32)
    for image in out:
        strokes = 2 if random.random() < SECOND_STROKE else 1
        points = np.concatenate([_curve(random) for _ in range(strokes)])
        pen = random.uniform(NARROWEST, WIDEST) * side
        low, high = points.min(0), points.max(0)
        frame = FILLED * side - 2 * pen
        points = (points - (low + high) / 2) * (
            frame / max(float((high - low).max()), 0.2)
        ) + middle
        down, across = (
            (np.arange(n)[:, None] - points[:, axis]) ** 2 for axis, n in enumerate((height, width))
        )
        distance = np.sqrt((down[:, None] + across).min(-1))
        image[0] = np.clip(1 - (distance - pen) / (EDGE * side), 0, 1)
    return out


def _curve(random: np.random.Generator) -> NDArray[np.float64]:
    """Points (80, 2) of a cubic B-spline through a box, from three to six control points."""
    control = random.uniform(0, 1, (int(random.integers(3, 7)), 2)) * [1.0, SLIMNESS]
    control = np.concatenate([control[:1], control[:1], control, control[-1:], control[-1:]])
    at = np.linspace(0, len(control) - 3, _POINTS, endpoint=False)
    first = at.astype(int)
    t = (at - first)[:, None]
    weights = (
        (1 - t) ** 3,
        3 * t**3 - 6 * t**2 + 4,
        -3 * t**3 + 3 * t**2 + 3 * t + 1,
        t**3,
    )
    curve: NDArray[np.float64] = sum(
        (w * control[first + i] for i, w in enumerate(weights)), np.zeros((1, 2))
    )
    return curve / 6
