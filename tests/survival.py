"""Made-up survival data, and the curve by its definition."""

from __future__ import annotations

import numpy as np


def kaplan_meier(times: np.ndarray, happened: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """By its definition: Π over event times up to t of 1 − d/n."""
    ends = np.unique(times[happened])
    left = [1 - (happened & (times == end)).sum() / (times >= end).sum() for end in ends]
    return np.array([np.prod(np.array(left)[ends <= end]) for end in grid])


def weibull(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Times and events: Weibull of shape 1.3, censored evenly up to 90."""
    generator = np.random.default_rng(seed)
    event, censored = 60 * generator.weibull(1.3, n), generator.uniform(0, 90, n)
    return np.minimum(event, censored), event <= censored
