"""Noised sums on a grid as whole numbers of a ring, and back.

A sum with ``noise="grid"`` (:mod:`forethought.rounds.randomness`) is a multiple of its step in
every coordinate. The ring of 2ᵇ elements is reduced modulo 2ᵇ, which is post-processing of the
integer sum: what overflows costs accuracy and no privacy.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Ring = NDArray[np.uint64]
LEAST_BITS, MOST_BITS = 8, 64


def to_ring(vector: NDArray[np.float64], step: float, bits: int) -> Ring:
    """Each coordinate over ``step``, modulo 2^``bits``.

    Raises:
        ValueError: a coordinate that is no whole number of steps, or beyond 2⁵³ of them.
    """
    steps = np.asarray(vector, np.float64) / step
    whole = np.rint(steps)
    # Also false where anything is not finite. 2⁵³ bounds what a double holds exactly.
    if not (np.abs(whole) <= 2.0**53).all() or (whole != steps).any():
        raise ValueError(
            f"a coordinate is no whole number of steps of {step:g}: secure aggregation takes "
            "noised sums of a plan with noise='grid', as they were released"
        )
    return whole.astype(np.int64).view(np.uint64) & mask(bits)


def from_ring(total: Ring, step: float, bits: int) -> NDArray[np.float64]:
    """The signed number of least size that each element stands for, times ``step``."""
    shift = np.uint64(64 - bits)
    signed = (total << shift).view(np.int64) >> np.int64(64 - bits)
    return signed.astype(np.float64) * step


def mask(bits: int) -> np.uint64:
    """2^``bits`` − 1."""
    return np.uint64((1 << bits) - 1)


def pack(elements: Ring, bits: int) -> bytes:
    """Elements as whole bytes, low byte first."""
    width = -(-bits // 8)
    little = elements.astype("<u8").view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(little[:, :width]).tobytes()


def words(content: bytes) -> NDArray[np.int64]:
    """Bytes as whole 64-bit words, padded with zeros, as messages carry long contents."""
    return np.frombuffer(content + bytes(-len(content) % 8), "<i8").astype(np.int64)


def unpack_words(content: NDArray[np.int64], bits: int, size: int) -> Ring:
    """The inverse of :func:`pack` and :func:`words`.

    Raises:
        ValueError: not ``size`` elements, or one outside the ring.
    """
    length = -(-bits // 8) * size
    whole = content.astype("<i8").tobytes()
    if len(whole) != length + -length % 8 or any(whole[length:]):
        raise ValueError(f"{len(whole)} bytes where {length} and padding belong")
    return unpack(whole[:length], bits, size)


def unpack(content: bytes, bits: int, size: int) -> Ring:
    """The inverse of :func:`pack`.

    Raises:
        ValueError: not ``size`` elements, or one outside the ring.
    """
    width = -(-bits // 8)
    if len(content) != width * size:
        raise ValueError(f"{len(content)} bytes where {size} elements of {width} bytes belong")
    wide = np.zeros((size, 8), np.uint8)
    wide[:, :width] = np.frombuffer(content, np.uint8).reshape(size, width)
    elements = wide.reshape(-1).view("<u8").astype(np.uint64)
    if (elements > mask(bits)).any():
        raise ValueError(f"an element outside the ring of 2^{bits}")
    return elements


def overflow_chance(
    largest: float, noise_std: float, step: float, bits: int, coordinates: int
) -> float:
    """An upper bound on the chance that a coordinate of the cohort's sum leaves the ring.

    Args:
        largest: bound on a coordinate of the cohort's sum before noise.
        noise_std: of the noise of all clients together; its tail is that of a discrete Gaussian,
            2·exp(−x²/(2·std²)) (Canonne, Kamath and Steinke 2020, Proposition 25).
    """
    room = step * 2.0 ** (bits - 1) - step - largest
    if room <= 0:
        return 1.0
    return min(1.0, 2.0 * coordinates * math.exp(-0.5 * (room / noise_std) ** 2))
