"""Are these numbers independent and standard normal? Structure first, then size and shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from forethought.auditing import exact_tests as exact
from forethought.auditing.verdict import Finding, certain, smallest

Array = NDArray[np.float64]

# Rounds, and coordinates, that numbers are compared over.
ROUND_LAGS = (1, 2, 3, 5)
COORDINATE_LAGS = (1, 2, 3, 4, 8, 64, 1024, 1 << 15, 1 << 16)
TAILS = (2.0, 3.0, 4.0, 5.0)
# Two of a sound run's double-precision numbers agree with at most this chance, rounding included.
COLLISION = 2.0**-48
# Numbers on a grid may agree, so many in a row do not.
STRETCH = 12


def noise_findings(numbers: Sequence[Array], grid: bool = False) -> list[Finding]:
    """Tests of numbers that should be standard normal: structure first, then size and shape.

    Args:
        numbers: one array a round, all of one length. grid: whether they lie on a grid, where equal
            numbers are nothing strange.
    """
    together = np.concatenate(numbers)
    width = float(np.sqrt(np.mean(np.square(together))))
    if not np.any(together):
        reason = "Noise is missing: sums carry none on coordinates that no record touches."
        return [certain("noise", "width", "0", "1", True, reason)]
    repeated, collisions = _repeated(together, grid)
    over_rounds, over_coordinates = _round_lags(numbers), _coordinate_lags(numbers)
    beyond = [int((np.abs(together) > k).sum()) for k in TAILS]
    shape = [exact.kolmogorov_smirnov_p(together)] + [
        exact.binomial_p(count, len(together), 2 * float(stats.norm.sf(k)))
        for k, count in zip(TAILS, beyond, strict=True)
    ]
    return [
        Finding(
            "noise",
            "numbers that occur again",
            f"{repeated:,} of {len(together):,}",
            "none",
            f"Noise is used again: {repeated:,} of {len(together):,} numbers occurred before.",
            float(stats.poisson.sf(repeated - 1, collisions)),
        ),
        Finding(
            "noise",
            "independence of coordinates",
            f"p = {over_coordinates:.2g}",
            "independent",
            "The noise of different coordinates is not independent.",
            over_coordinates,
        ),
        Finding(
            "noise",
            "independence of rounds",
            f"p = {over_rounds:.2g}",
            "independent",
            "The noise of different rounds is not independent.",
            over_rounds,
        ),
        Finding(
            "noise",
            "width",
            f"{width:.4f}",
            "1 (in σC)",
            f"The noise has a standard deviation of {width:.4g} times what is claimed.",
            exact.normal_p(together),
        ),
        Finding(
            "noise",
            "distribution",
            f"p = {smallest(shape):.2g}",
            "Gaussian",
            "The noise is not Gaussian: its distribution differs from the normal one.",
            smallest(shape),
        ),
    ]


def _repeated(together: Array, grid: bool) -> tuple[int, float]:
    """The number of repeated values, and the most that a sound run would have on average.

    On a grid, stretches of so many successive numbers are compared, by a random linear hash.
    """
    if not grid:
        return len(together) - len(np.unique(together)), 0.5 * len(together) ** 2 * COLLISION
    keys = np.random.default_rng(0).integers(1, 2**63, STRETCH, dtype=np.uint64) | np.uint64(1)
    bits = (together + 0.0).view(np.uint64)
    count = len(bits) - STRETCH + 1
    hashed = np.zeros(count, dtype=np.uint64)
    for place, key in enumerate(keys):
        hashed += key * (bits[place : place + count] >> np.uint64(8))
    return count - len(np.unique(hashed)), 0.5 * count**2 * COLLISION


def _direction_uniform(one: Array, other: Array) -> float:
    """The angle between two vectors, as a uniform number if either is Gaussian noise.

    Student's distribution of r·√((n − 1)/(1 − r²)) is exact and does not depend on the width.
    """
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    if size == 0 or len(one) < 2:
        return 0.5
    r = min(1.0, max(-1.0, float(one @ other) / size))
    t = math.copysign(math.inf, r) if abs(r) >= 1 else r * math.sqrt((len(one) - 1) / (1 - r * r))
    return float(np.clip(stats.t.cdf(t, len(one) - 1), 1e-300, 1 - 2**-53))


def _round_lags(numbers: Sequence[Array]) -> float:
    found = []
    for lag in ROUND_LAGS:
        pairs = list(zip(numbers, numbers[lag:], strict=False))
        if pairs:
            found.append(exact.uniform_p([_direction_uniform(a, b) for a, b in pairs]))
    return smallest(found)


def _coordinate_lags(numbers: Sequence[Array]) -> float:
    length = len(numbers[0])
    found = []
    for lag in {*COORDINATE_LAGS, length // 2}:
        if not 0 < lag <= length // 2:
            continue
        blocks = [z[: length - length % (2 * lag)].reshape(-1, 2, lag) for z in numbers]
        uniforms = [_direction_uniform(b[:, 0].reshape(-1), b[:, 1].reshape(-1)) for b in blocks]
        found.append(exact.uniform_p(uniforms))
    return smallest(found)
