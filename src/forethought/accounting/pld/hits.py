"""How many of a group's records are in a batch, with a bound on the weights' relative errors.

The probabilities come from ratios of neighbours, outwards from the largest, so that each carries a
few rounding errors for every step and no difference of logarithms of factorials.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from forethought.accounting.pld.mixtures import EPS, Array

# What is less likely than this is left out, and charged.
_LEAST = 1e-280


class Hits(NamedTuple):
    """P(k records are in) = ``weights``[k] within a relative ``doubt``, for k from ``first``.

    At most ``lost`` of the probability lies elsewhere.
    """

    first: int
    weights: Array
    doubt: float
    lost: float


def binomial(group: int, rate: float) -> Hits:
    """Poisson sampling: each of ``group`` records is in with probability ``rate``."""
    if rate == 1:
        return Hits(group, np.ones(1), 0.0, 0.0)
    if group == 1:
        return Hits(0, np.array([1 - rate, rate]), EPS, 0.0)
    odds = rate / (1 - rate)
    mode = min(group, int((group + 1) * rate))

    def ratio(k: Array) -> Array:
        return np.asarray((group - k) / (k + 1) * odds)

    return _from_ratios(mode, 0, group, ratio)


def hypergeometric(group: int, batch: int, examples: int) -> Hits:
    """Sampling without replacement: how many of ``group`` among ``batch`` of ``examples``."""
    group = min(group, examples)
    if group == 1:
        rest = (examples - batch) / examples
        return Hits(0, np.array([rest, batch / examples]), EPS, 0.0)
    low, high = max(0, group - (examples - batch)), min(group, batch)
    mode = min(high, max(low, (group + 1) * (batch + 1) // (examples + 2)))

    def ratio(k: Array) -> Array:
        return np.asarray(
            (group - k) / (k + 1) * ((batch - k) / (examples - group - batch + k + 1))
        )

    return _from_ratios(mode, low, high, ratio)


def _from_ratios(mode: int, low: int, high: int, ratio: Callable[[Array], Array]) -> Hits:
    above = _until_rare(lambda k: ratio(k), mode, high)
    below = _until_rare(lambda k: 1 / ratio(-k - 1), -mode, -low)
    weights = np.concatenate([below[:0:-1], above])
    total = float(weights.sum())
    first = mode - (below.size - 1)
    # Six roundings a step, and those of the sum.
    doubt = EPS * (6.0 * max(above.size, below.size) + weights.size + 8)
    whole = first == low and mode + above.size - 1 == high
    weights = weights / total
    kept = weights > _LEAST
    start = int(np.argmax(kept))
    weights = weights[start : weights.size - int(np.argmax(kept[::-1]))]
    cut = not (whole and kept.all())
    # Beyond a weight below 1e-280 the ratios only fall: a geometric tail at most.
    return Hits(first + start, weights, doubt, 1e-270 if cut else 0.0)


def _until_rare(ratio: Callable[[Array], Array], first: int, last: int) -> Array:
    """1 at ``first`` and the running products of ``ratio`` upwards, until they are negligible."""
    pieces: list[Array] = [np.ones(1)]
    here, size, k = 1.0, 64, first
    while k < last and here > 1e-290:
        steps = np.arange(k, min(k + size, last), dtype=float)
        piece = np.asarray(here * np.cumprod(ratio(steps)), dtype=float)
        pieces.append(piece)
        here, k, size = float(piece[-1]), k + steps.size, 2 * size
    return np.concatenate(pieces)
