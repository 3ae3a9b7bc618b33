"""Step sizes of Adam and its kin under noise: gradient descent's, in units of what they divide by.

Where noise of variance φ outweighs the gradients, Adam's second moment is φ in every coordinate, so
a step is that of gradient descent with an averaged gradient divided by √φ (Tang, Shpilevskiy and
Lécuyer 2023: "DP-Adam is actually DP-SGD"). So η for gradient descent, which the planner knows how
to choose, is η√φ for Adam. With the noise taken out (their DP-AdamBC) such a coordinate is divided
by the root of the floor instead. φ is public, so no record is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from forethought.mechanism import Correlated
from forethought.plans import Plan

# Adam's own, where noise is not what decides.
USUAL = 1e-3
_BETA = 0.999
# Rounds at which a floor that falls is looked at.
_POINTS = 1000
NAMES = ("adam", "adamw", "adam-bc")


def planned(optimizer: str) -> bool:
    """Whether this optimizer's step size follows from that of gradient descent."""
    return optimizer.lower() in NAMES


def adaptive_rate(plan: Plan, optimizer: str, options: Mapping[str, Any], rate: float) -> float:
    """The step size with which an optimizer goes as far as gradient descent with ``rate``.

    Args:
        plan: all but its optimizer. rate: of gradient descent without momentum.

    Returns:
        At least :data:`USUAL`; that where there is no noise or rounds' noises cancel each other.
    """
    if not planned(optimizer) or any(isinstance(p, Correlated) for p in plan.privacy.mechanism):
        return USUAL
    return max(USUAL, rate * math.sqrt(_divided_by(plan, optimizer, options)))


def _divided_by(plan: Plan, optimizer: str, options: Mapping[str, Any]) -> float:
    """What a coordinate with nothing but noise is divided by, squared."""
    index, variance = 0, 0.0
    for part in plan.privacy.mechanism:  # the mean over the rounds, which differ little within β₂
        variance += part.count * plan.round(index).mean_variance / plan.rounds
        index += part.count
    if plan.gradient_filter is not None:
        variance *= plan.gradient_filter.noise_left(plan.rounds)
    if optimizer.lower() != "adam-bc":
        return variance
    floor = options.get("floor")
    if floor is not None:
        return float(floor)
    # The default floor falls over the rounds; what counts is the mean of what steps are divided by.
    second = tuple(options.get("betas", (0.9, _BETA)))[1]
    rounds = np.linspace(1, plan.rounds, min(plan.rounds, _POINTS))
    past = second**rounds
    floors = np.sqrt(2 * (1 - second) / (1 + second) * (1 + past) / (1 - past))
    return variance / float(np.mean(floors**-0.5)) ** 2
