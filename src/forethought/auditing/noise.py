"""Is the noise what is claimed? On coordinates that no record touches, a sum is nothing but noise.

Its numbers must be independent and N(0, (σC)²): in width, distribution, over rounds and
coordinates, and never the same number again. That a run adds these numbers and no others, however
it runs, is what a replay shows (:mod:`forethought.auditing.replay`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.auditing.effort import Effort, evenly, scaled, with_parts
from forethought.auditing.noise_tests import noise_findings
from forethought.auditing.planted import (
    PlantedRecords,
    observe,
)
from forethought.auditing.verdict import Finding, certain
from forethought.auditing.whitening import whitened
from forethought.values.plan import Plan

Array = NDArray[np.float64]

# Records whose sums carry the noise: few, since nothing depends on them.
RECORDS = 400


def noise(plan: Plan, effort: Effort, generator: np.random.Generator) -> list[Finding]:
    """Every finding about the noise of planted runs.

    Args:
        plan: the claim. generator: of the audit's own choices, never of the run.
    """
    if all(part.noise_multiplier == 0 for part in plan.mechanism):
        return [
            certain("noise", "noise", "not looked at", "none is claimed", False, ""),
        ]
    numbers = standardised(noise_plan(plan, effort.noise_rounds), effort.coordinates)
    grid = plan.noise == "grid"
    return noise_findings(numbers, grid)


def noise_plan(plan: Plan, rounds: int) -> Plan:
    """``rounds`` rounds with the noise of the plan's parts, on few records."""
    examples = min(plan.examples, RECORDS)
    parts = evenly([part for part in plan.mechanism if part.noise_multiplier > 0])
    each = max(2, rounds // len(parts))
    return with_parts(
        plan,
        [
            replace(part, count=each, sampling=scaled(part.sampling, plan.examples, examples))
            for part in parts
        ],
        examples,
    )


def planted_blanks(plan: Plan, coordinates: int) -> PlantedRecords:
    """Records that leave all coordinates but the first ``plan.examples`` alone.

    Every other one is short and the rest are far above any norm, so that the quantile rule keeps
    its norm.
    """
    place = np.arange(plan.examples)
    weight = np.where(place % 2 == 0, 1, 10**6)
    return PlantedRecords(place, weight, plan.clip.norm / 1000, coordinates + plan.examples)


def standardised(plan: Plan, coordinates: int, **options: Any) -> list[Array]:
    """Each round's numbers in units of the claimed noise: standard normal if all is well."""
    kept: list[Array] = []
    moving = plan.clip.rule == "quantile"
    run = observe(
        plan,
        planted_blanks(plan, coordinates),
        lambda _index, total: kept.append(total[-coordinates:].copy()),
        log_every=1 if moving else plan.rounds,
        **options,
    )
    norms = [row.clip_norm for row in run.history] if moving else [plan.clip.norm] * plan.rounds
    return _standard(plan, kept, norms)


def _standard(plan: Plan, totals: Sequence[Array], norms: Sequence[float]) -> list[Array]:
    numbers = [total / scale for total, scale in zip(totals, scales(plan, norms), strict=True)]
    return whitened(plan.mechanism, numbers)


def scales(plan: Plan, norms: Sequence[float]) -> list[float]:
    """Standard deviation of the noise on the sum of each round, from the claim alone."""
    found, at = [], iter(norms)
    for part in plan.mechanism:
        sigma = plan.clip.gradient_noise(part.noise_multiplier)
        found += [sigma * next(at) for _ in range(part.count)]
    return found
