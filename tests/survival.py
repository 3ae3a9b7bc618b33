"""Made-up survival data, and the curve by its definition."""

from __future__ import annotations

import numpy as np


def kaplan_meier(times: np.ndarray, happened: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """By its definition: Π over event times up to t of 1 − d/n."""
    found = []
    for end in grid:
        survival = 1.0
        for time in np.unique(times[happened & (times <= end)]):
            died = (happened & (times == time)).sum()
            survival *= 1 - died / (times >= time).sum()
        found.append(survival)
    return np.array(found)


def weibull(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Times and events: Weibull of shape 1.3, censored evenly up to 90."""
    generator = np.random.default_rng(seed)
    event, censored = 60 * generator.weibull(1.3, n), generator.uniform(0, 90, n)
    return np.minimum(event, censored), event <= censored
