"""A client's newest global model with its own steps on it: Algorithm 4, line 15.

The weights are computed on first access. Until then a client refers to the global model, which all
clients share, and to its own unacknowledged update, which it keeps anyway. So a simulation of a
million clients does not hold a million models.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from forethought.exchange.events import HasVector
from forethought.exchange.messages import Vector

# Long vectors are processed in pieces, so that the intermediate products stay in the cache. Every
# product is rounded as in the expression without pieces: the results agree bit for bit.

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


class OwnModel:
    """The weights ``model − size·step``, computed on first access to :attr:`vector`.

    Algorithm 4 as printed adds U. U is a sum of gradients, so this class subtracts it.

    Args:
        model: the weights before the step. step: an update. size: step size, rounded to float32.
    """

    __slots__ = ("_parts", "_vector")

    def __init__(self, model: HasVector, step: Vector, size: float) -> None:
        self._parts: tuple[HasVector, Vector, float] | None = (model, step, size)
        self._vector: Vector | None = None

    @property
    def vector(self) -> Vector:
        """The weights, float32, shape (parameters,); not to be written to."""
        if self._parts is not None:
            model, step, size = self._parts
            weights = model.vector
            self._vector = np.empty_like(weights)
            subtract_step(weights, step, size, self._vector)
            self._parts = None
        assert self._vector is not None
        return self._vector

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        return None, {"_parts": None, "_vector": self.vector}
