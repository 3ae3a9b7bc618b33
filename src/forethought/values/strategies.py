"""The correlation of noise over rounds: strategy matrices C, plain frozen values.

Round t's noise is σ·C_norm·(C⁻¹z)_t with z independent standard normal. C is lower triangular and
Toeplitz. So its first column determines it, the noise of a round depends on the random numbers of
earlier rounds only, and the same strategy holds for the first rounds of a run. Sources: Denisov et
al. 2022 (the mechanism); Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization"
(bands); McMahan, Xu and Zhang 2024, "A hassle-free algorithm for private learning in practice"
(buffers).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from forethought.values.checks import reals, settle

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Banded:
    """The matrix C with ``coefficients`` in every column from the diagonal down, then 0.

    Args:
        coefficients: c_0 = 1, c_1, …: one for each band of C.

    Raises:
        TypeError: no list of numbers. ValueError: the first one is not 1.
    """

    coefficients: tuple[float, ...]
    kind: ClassVar[str] = "banded"

    def __post_init__(self) -> None:
        values = reals("coefficient", self.coefficients)
        if not values or values[0] != 1:
            raise ValueError("a banded strategy's first coefficient, on the diagonal, must be 1")
        settle(self, coefficients=values)

    @property
    def bands(self) -> int:
        """The number of diagonals that are not 0."""
        return len(self.coefficients)

    @property
    def nonnegative(self) -> bool:
        """True if no coefficient is negative."""
        return min(self.coefficients) >= 0

    def words(self) -> str:
        """The number of bands, in words."""
        return f"{self.bands:,} bands"

    def column(self, count: int) -> Array:
        """The first ``count`` entries of C's first column."""
        found = np.zeros(count)
        some = min(count, self.bands)
        found[:some] = self.coefficients[:some]
        return found


@dataclass(frozen=True)
class BufferedToeplitz:
    """The matrix C with c_0 = 1 and c_i = Σ_j weights_j · decays_j^(i-1): one buffer for each j.

    Args:
        weights: above 0, of sum at most 1, so that the coefficients fall.
        decays: in [0, 1).

    Raises:
        TypeError: no lists of numbers. ValueError: values out of range, or different numbers of
            weights and decays.
    """

    weights: tuple[float, ...]
    decays: tuple[float, ...]
    kind: ClassVar[str] = "buffered-toeplitz"

    def __post_init__(self) -> None:
        weights = reals("weight", self.weights, above=0)
        decays = reals("decay", self.decays, least=0, below=1)
        if not weights or len(weights) != len(decays):
            raise ValueError(
                f"a buffered Toeplitz strategy has as many weights as decays, and at least one; "
                f"got {len(weights)} and {len(decays)}"
            )
        if math.fsum(weights) > 1:
            raise ValueError(f"the weights must sum to at most 1, not {math.fsum(weights):g}")
        settle(self, weights=weights, decays=decays)

    @property
    def bands(self) -> float:
        """The number of diagonals that are not 0: infinite."""
        return math.inf

    @property
    def nonnegative(self) -> bool:
        """True always, since weights and decays are not negative."""
        return True

    def words(self) -> str:
        """The number of buffers, in words."""
        count = len(self.weights)
        return f"{count} {'buffer' if count == 1 else 'buffers'}"

    def column(self, count: int) -> Array:
        """The first ``count`` entries of C's first column."""
        powers = np.arange(max(0, count - 1), dtype=float)
        found = np.ones(count)
        found[1:] = sum(
            (w * d**powers for w, d in zip(self.weights, self.decays, strict=True)),
            np.zeros(max(0, count - 1)),
        )
        return found


Strategy = Banded | BufferedToeplitz
STRATEGIES: dict[str, type[Strategy]] = {kind.kind: kind for kind in (Banded, BufferedToeplitz)}
