"""Noise that is correlated over rounds: (C⁻¹z)_t, drawn round by round.

Each round's z is bound to that round's sum, and what it takes from the rounds before is kept in as
many vectors as C has bands (less one) or buffers. Nothing of them is ever stored: a run that goes
on keeps 32 bytes a round and draws the earlier rounds' noise again from the secret, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray

from forethought.rounds.noise import CHUNK
from forethought.rounds.randomness import BoundNoise
from forethought.values.strategies import Banded, BufferedToeplitz, Strategy

Array = NDArray[np.float64]


class CorrelatedNoise:
    """The noise of one part of a mechanism, in order.

    Args:
        size: numbers in a round's noise.
        strategy: C. noise: where z comes from.
        bound: what the z of each of the run's rounds is bound to; grows while it is used.
        first: number of the part's first round.
    """

    def __init__(
        self, size: int, strategy: Strategy, noise: BoundNoise, bound: Sequence[bytes], first: int
    ) -> None:
        self.strategy, self.first = strategy, first
        self._noise, self._bound = noise, bound
        self._memory = _memory(strategy, size)
        self._present = np.empty(size)
        self._next = first

    def add_to(self, vector: torch.Tensor, std: float, index: int) -> None:
        """Add std·(C⁻¹z) of round ``index`` to ``vector`` (one dimension, floating point).

        The numbers are drawn and combined on the CPU in double precision, so that a round's noise
        does not depend on the device.
        """
        if index < self._next - 1:
            raise ValueError(
                f"round {index} is before {self._next - 1}: correlated noise is in order"
            )
        while self._next <= index:
            self._step()
        for start in range(0, vector.shape[0], CHUNK):
            part = slice(start, start + CHUNK)
            noise = torch.from_numpy(self._present[part]).to(vector.device)
            vector[part].add_(noise, alpha=std)

    def _step(self) -> None:
        generator = self._noise.at(self._bound[self._next])
        for start in range(0, self._present.size, CHUNK):
            # The numbers of uncorrelated noise, in the same order.
            generator.standard_normal(out=self._present[start : start + CHUNK])
        self._memory.pass_on(self._present)
        self._next += 1


def _memory(strategy: Strategy, size: int) -> _Bands | _Buffers:
    match strategy:
        case Banded():
            return _Bands(strategy, size)
        case BufferedToeplitz():
            return _Buffers(strategy, size)
        case _:
            assert_never(strategy)


class _Bands:
    """y_t = z_t - Σ_i c_i y_{t-i}: the last bands - 1 of them."""

    def __init__(self, strategy: Banded, size: int) -> None:
        self._coefficients = strategy.coefficients[1:]
        self._last = np.zeros((len(self._coefficients), size))
        self._newest = 0

    def pass_on(self, present: Array) -> None:
        """Turn z_t into y_t, in place, and keep it."""
        bands = len(self._coefficients)
        for lag, coefficient in enumerate(self._coefficients):
            if coefficient:
                present -= coefficient * self._last[(self._newest + lag) % bands]
        if bands:
            self._newest = (self._newest - 1) % bands
            self._last[self._newest] = present


class _Buffers:
    """y_t = z_t - Σ_j w_j s_j with s_j ← d_j s_j + y_t."""

    def __init__(self, strategy: BufferedToeplitz, size: int) -> None:
        self._weights, self._decays = strategy.weights, strategy.decays
        self._sums = np.zeros((len(self._weights), size))

    def pass_on(self, present: Array) -> None:
        """Turn z_t into y_t, in place, and keep its trace in every buffer."""
        for weight, buffer in zip(self._weights, self._sums, strict=True):
            present -= weight * buffer
        for decay, buffer in zip(self._decays, self._sums, strict=True):
            buffer *= decay
            buffer += present
