"""Long vectors added up a piece at a time, so that what lies between stays in cache.

Every product is rounded by itself, as in the plain expressions: the bits are the same.
"""

from __future__ import annotations

import numpy as np

from forethought.exchange.messages import Vector

# Elements of a piece.
PIECE = 1 << 15


def subtract_step(weights: Vector, step: Vector, size: float, out: Vector) -> None:
    """``out = weights − size·step``; ``out`` may be ``weights``."""
    scale, length = np.float32(size), len(weights)
    if length <= PIECE:
        np.subtract(weights, step * scale, out=out)
        return
    scratch = np.empty(PIECE, dtype=np.float32)
    for begin in range(0, length, PIECE):
        end = min(begin + PIECE, length)
        scaled = np.multiply(step[begin:end], scale, out=scratch[: end - begin])
        np.subtract(weights[begin:end], scaled, out=out[begin:end])


def add_weighted(total: Vector, vector: Vector, weight: float) -> None:
    """``total += weight·vector``."""
    scale, length = np.float32(weight), len(total)
    if length <= PIECE:
        total += vector * scale
        return
    scratch = np.empty(PIECE, dtype=np.float32)
    for begin in range(0, length, PIECE):
        end = min(begin + PIECE, length)
        total[begin:end] += np.multiply(vector[begin:end], scale, out=scratch[: end - begin])
