"""Private counts along an axis, with little noise on every sum of neighbouring counts.

Noise on each of m counts adds up in their running sums: the last one has √m times as much. Instead
C·h is released, h the counts and C the lower triangular Toeplitz matrix with C·C = A, the matrix
of running sums: its coefficients are those of (1 − x)^(−1/2), 1, 1/2, 3/8, … (Fichtenberger,
Henzinger and Upadhyay 2023; within a constant of the least error possible, Matoušek, Nikolov and
Talwar 2020). A record moves C·h by a column of C, whose norm squared is about 1.07 + ln(m)/π, and
the running sums A·h = C·(C·h) have noise of another such norm: for 1,024 counts 3.3 times that of
one count, where separate noise has 32 times and a binary tree about 5 to 7 times.

C is rounded to whole numbers, so that C·h is exact: the rounded matrix is a mechanism like any
other, with its own norm and its own inverse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import toeplitz
from scipy.optimize import isotonic_regression

Array = NDArray[np.float64]
# The first coefficient; the others are scaled by it and rounded to whole numbers.
UNIT = 1 << 12
# Most counts along an axis: with more, C·h of a billion records could exceed 2⁵³.
MOST_BINS = 4096


@cache
def coefficients(bins: int) -> NDArray[np.int64]:
    """The first column of C in whole numbers, shape (bins,)."""
    ratio = (2 * np.arange(1, bins) - 1) / (2 * np.arange(1, bins))
    exact = np.concatenate([[1.0], np.cumprod(ratio)])
    return np.asarray(np.rint(UNIT * exact), dtype=np.int64)


@cache
def norm(bins: int) -> float:
    """The distance (L2 norm) by which one record moves C·h, rounded up."""
    square = sum(int(one) ** 2 for one in coefficients(bins))
    return math.nextafter(math.sqrt(square), math.inf)


@cache
def inverse(bins: int) -> Array:
    """The first column of C⁻¹, shape (bins,), by the recursion of a power series."""
    column = coefficients(bins).astype(np.float64)
    found = np.zeros(bins)
    found[0] = 1 / column[0]
    for place in range(1, bins):
        found[place] = -(column[1 : place + 1] @ found[place - 1 :: -1]) / column[0]
    return found


def encoded(counts: NDArray[Any]) -> Array:
    """C·h, exact: whole numbers below 2⁵³.

    Args:
        counts: whole numbers, shape (bins,).
    """
    bins = len(counts)
    return np.convolve(counts.astype(np.int64), coefficients(bins))[:bins].astype(np.float64)


def decoded(noised: Array) -> Array:
    """Counts with noise, from C·h with noise; shape (bins,)."""
    bins = len(noised)
    return np.asarray(np.convolve(noised, inverse(bins))[:bins], dtype=np.float64)


@cache
def _matrix(bins: int) -> Array:
    """A·C⁻¹, which maps noise on C·h to noise on the running sums; shape (bins, bins)."""
    return np.asarray(toeplitz(np.cumsum(inverse(bins)), np.zeros(bins)))


@cache
def noise_of_sums(bins: int, share: float | None) -> Array:
    """Standard deviation of each running sum less a share of the total, in units of C·h's noise.

    Args:
        share: the share of the last sum (with its noise) that is subtracted. None: the total is
            known, and the sums are those of :func:`settled`.

    Returns:
        Shape (bins,).
    """
    rows = _matrix(bins)
    last = rows[-1]
    off = share * last if share is not None else np.outer(rows @ last / (last @ last), last)
    return np.asarray(np.linalg.norm(rows - off, axis=1))


def settled(counts: Sequence[Array], total: float) -> list[Array]:
    """Counts corrected so that they add up to ``total``: the best estimate given the noise's law.

    Args:
        counts: counts of one or several axes; all have noise of the same size on C·h.
        total: the known total number.
    """
    shares = [np.diff(_matrix(len(part)) @ _matrix(len(part))[-1], prepend=0.0) for part in counts]
    off = sum(float(part.sum()) for part in counts) - total
    off /= sum(float(part.sum()) for part in shares)
    return [part - off * share for part, share in zip(counts, shares, strict=True)]


def rising(counts: Array) -> Array:
    """The nonnegative counts whose running sums are nearest to those of ``counts``."""
    return np.diff(isotonic_regression(np.cumsum(counts)).x.clip(min=0), prepend=0.0)
