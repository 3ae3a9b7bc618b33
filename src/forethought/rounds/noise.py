"""Gaussian noise on a sum of clipped contributions.

Noise is drawn in double precision and rounded once, together with the sum. What floating-point
numbers leave of the difference between two sums (Mironov 2012) is an assumption of the guarantee,
not covered by it.
"""

from __future__ import annotations

import numpy as np
import torch

# Small enough to stay in the nearest cache, large enough to hide the call.
CHUNK = 1 << 13


class GaussianNoise:
    """Adds N(0, std² I) to vectors, a small buffer at a time."""

    def add_to(self, vector: torch.Tensor, std: float, generator: np.random.Generator) -> None:
        """Add to ``vector`` (one dimension, floating point) in place.

        The numbers are drawn on the CPU, so that a round's noise does not depend on the device.
        """
        size = vector.shape[0]
        # Its own for every call: a thousand clients' buffers would be cold.
        buffer = np.empty(min(size, CHUNK))
        drawn = torch.from_numpy(buffer)
        for start in range(0, size, CHUNK):
            length = min(CHUNK, size - start)
            generator.standard_normal(out=buffer[:length])
            noise = drawn[:length].to(vector.device)
            vector[start : start + length].add_(noise, alpha=std)
