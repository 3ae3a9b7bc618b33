"""Tests of the noise on coordinates that no record contributes to, where a sum is noise only.

The numbers must be independent and N(0, (σC)²): in width, in distribution, over rounds and
coordinates, and no number may occur again. If a plan correlates its noise, y = C⁻¹z, the numbers
(Cy)_t are z again and are tested in the same way: another strategy than the claimed one, or a
missing lag, appears as dependence between rounds. A replay shows that every way of running adds
exactly these numbers (:mod:`forethought.auditing.replay`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy import stats
from scipy.signal import lfilter

from forethought.auditing import canaries
from forethought.auditing import exact_tests as exact
from forethought.auditing.verdict import Finding, smallest, tested
from forethought.values.mechanism import Correlated, Mechanism, Rounds
from forethought.values.plan import Plan

Array = NDArray[np.float64]

# Distances in rounds and in coordinates at which numbers are compared.
ROUND_LAGS = (1, 2, 3, 5)
COORDINATE_LAGS = (1, 2, 3, 4, 8, 64, 1024, 1 << 15, 1 << 16)
TAILS = (2.0, 3.0, 4.0, 5.0)
# Two double-precision numbers of a sound run are equal with at most this chance, rounding included.
COLLISION = 2.0**-48
# Single numbers on a grid may be equal; so many in a row are not.
STRETCH = 12
# Number of records in these runs: few, because the noise does not depend on them.
RECORDS = 400


def noise(plan: Plan, sizes: canaries.CheckSizes, generator: np.random.Generator) -> list[Finding]:
    """All findings about the noise of runs on records with known gradients.

    Args:
        plan: the claim. sizes: of the runs. generator: of the audit's own choices, not of the run.
    """
    if all(part.noise_multiplier == 0 for part in plan.mechanism):
        return [Finding("noise", "noise", "not looked at", "none is claimed", "")]
    numbers = standardised(noise_plan(plan, sizes.noise_rounds), sizes.coordinates)
    return noise_findings(numbers, plan.noise == "grid")


def noise_plan(plan: Plan, rounds: int) -> Plan:
    """``rounds`` rounds with the noise of the plan's parts, on few records."""
    examples = min(plan.examples, RECORDS)
    parts = canaries.evenly([part for part in plan.mechanism if part.noise_multiplier > 0])
    each = max(2, rounds // len(parts))
    short = [
        replace(part, count=each, sampling=canaries.scaled(part.sampling, plan.examples, examples))
        for part in parts
    ]
    return canaries.with_parts(plan, short, examples)


def standardised(plan: Plan, coordinates: int, **options: Any) -> list[Array]:
    """Each round's numbers in units of the claimed noise: standard normal in a sound run.

    Records contribute to the first ``plan.examples`` coordinates only. Every other record is short,
    the rest are far above any norm, so that the quantile rule keeps its norm.
    """
    place = np.arange(plan.examples)
    weight = np.where(place % 2 == 0, 1, canaries.LARGE)
    records = canaries.CanaryRecords(
        place, weight, plan.clip.norm / 1000, coordinates + plan.examples
    )
    seen, norms = canaries.kept(plan, records, lambda total: total[-coordinates:], **options)
    numbers = [total / scale for total, scale in zip(seen, scales(plan, norms), strict=True)]
    return whitened(plan.mechanism, numbers)


def scales(plan: Plan, norms: Sequence[float] | None = None) -> list[float]:
    """Standard deviation of the noise on the sum of each round, from the claim alone.

    Args:
        norms: each round's clip norm; None: the result is in units of it.
    """
    at = iter([1.0] * plan.rounds if norms is None else norms)
    return [
        plan.clip.gradient_noise(part.noise_multiplier) * next(at)
        for part in plan.mechanism
        for _ in range(part.count)
    ]


def whitened(mechanism: Mechanism, numbers: Sequence[Array]) -> list[Array]:
    """One array for each round, with the claimed correlation of each part undone."""
    found: list[Array] = []
    for part in mechanism:
        some = numbers[len(found) : len(found) + part.count]
        if isinstance(part, Correlated) and some:
            some = list(applied(part, np.stack(some)))
        found += some
    return found


def applied(part: Correlated, rows: Array) -> Array:
    """C times ``rows``, one row for each round of the part."""
    return np.asarray(lfilter(part.strategy.column(len(rows)), [1.0], rows, axis=0))


def correlated(part: Rounds, rows: Array) -> Array:
    """C⁻¹ times ``rows``, one for each round of the part; unchanged if noise is independent."""
    if not isinstance(part, Correlated):
        return rows
    return np.asarray(lfilter([1.0], part.strategy.column(len(rows)), rows, axis=0))


def noise_findings(numbers: Sequence[Array], grid: bool = False) -> list[Finding]:
    """Tests of numbers that should be standard normal: structure first, then size and shape.

    Args:
        numbers: one array for each round, all of one length.
        grid: True if they lie on a grid, where equal numbers are possible.
    """
    together = np.concatenate(numbers)
    width = float(np.sqrt(np.mean(np.square(together))))
    if not np.any(together):
        reason = "Noise is missing: sums carry none on coordinates that no record touches."
        return [Finding("noise", "width", "0", "1", reason, violated=True)]
    repeated, collisions = _repeated(together, grid)
    shape = [exact.kolmogorov_smirnov_p(together)]
    for k in TAILS:
        beyond = int((np.abs(together) > k).sum())
        shape.append(exact.binomial_p(beyond, len(together), 2 * float(stats.norm.sf(k))))
    share = f"{repeated:,} of {len(together):,}"
    by_chance = float(stats.poisson.sf(repeated - 1, collisions))
    again = f"Noise is used again: {share} numbers occurred before."
    lags = {"coordinates": _coordinate_lags(numbers), "rounds": _round_lags(numbers)}
    wide = f"The noise has a standard deviation of {width:.4g} times what is claimed."
    other = "The noise is not Gaussian: its distribution differs from the normal one."
    return [
        Finding("noise", "numbers that occur again", share, "none", again, by_chance),
        *(
            tested(
                *("noise", f"independence of {over}", "independent"),
                f"The noise of different {over} is not independent.",
                p_value,
            )
            for over, p_value in lags.items()
        ),
        Finding("noise", "width", f"{width:.4f}", "1 (in σC)", wide, exact.normal_p(together)),
        tested("noise", "distribution", "Gaussian", other, smallest(shape)),
    ]


def _repeated(together: Array, grid: bool) -> tuple[int, float]:
    """The number of repeated values, and the largest average number in a sound run.

    On a grid, stretches of :data:`STRETCH` successive numbers are compared, by a random linear
    hash.
    """
    if not grid:
        return len(together) - len(np.unique(together)), 0.5 * len(together) ** 2 * COLLISION
    if len(together) < STRETCH:
        return 0, 0.0
    keys = np.random.default_rng(0).integers(1, 2**63, STRETCH, dtype=np.uint64) | np.uint64(1)
    bits = (together + 0.0).view(np.uint64) >> np.uint64(8)
    hashed = sliding_window_view(bits, STRETCH) @ keys
    count = len(hashed)
    return count - len(np.unique(hashed)), 0.5 * count**2 * COLLISION


def _direction_uniform(one: Array, other: Array) -> float:
    """The angle between two vectors as a number that is uniform if either is Gaussian noise.

    Student's t distribution of r·√((n − 1)/(1 − r²)) is exact for every width.
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
