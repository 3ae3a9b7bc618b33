"""Linear filters in whole numbers: products with them are exact, so every machine has the same.

Counts are whole numbers up to ±127, filters are of eight bits, and sums of their products stay
below 2²⁴: single precision holds them exactly, in whatever order they are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

STANDARD = 16  # a standardised number is counted in 1/16, to ±127


@dataclass(frozen=True, eq=False)
class Filters:
    """Linear filters in whole numbers: filter k counts in 2^−exponents[k].

    Args:
        filters: int8, (count, size). exponents: int8, (count,).
    """

    filters: NDArray[np.int8]
    exponents: NDArray[np.int8]

    @lru_cache(maxsize=32)  # noqa: B019 (there are fourteen, bundled, of grey and of colour)
    def times(self, unit: float) -> torch.Tensor:
        """The filters times a power of two, float32, (size, count): products stay exact."""
        scaled = self.filters * (unit * np.exp2(-self.exponents.astype(np.float64)))[:, None]
        return torch.from_numpy(scaled.astype(np.float32)).T.contiguous()


@dataclass(frozen=True)
class Components:
    """Leading components of standardised roots, decorrelated.

    Args:
        filters: one for each component, over the channels.
        offsets: int32, (components,): what they give for the mean of the channels, to be taken off.
    """

    filters: Filters
    offsets: NDArray[np.int32]

    def of(self, counts: torch.Tensor, unit: float) -> torch.Tensor:
        """Components of counts (…, channels), in whole numbers of 1/unit; (…, components)."""
        scales = unit / STANDARD * np.exp2(-self.filters.exponents.astype(np.float64))
        offsets = torch.from_numpy((self.offsets * scales).astype(np.float32))
        return (counts @ self.filters.times(unit / STANDARD)).sub_(offsets).round_()
