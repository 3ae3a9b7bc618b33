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

from forethought.mechanism import Correlated
from forethought.optimizers import USUAL_RATE, kind_of
from forethought.plans import Plan


def adaptive_rate(plan: Plan, optimizer: str, options: Mapping[str, Any], rate: float) -> float:
    """The step size with which an optimizer goes as far as gradient descent with ``rate``.

    Args:
        plan: all but its optimizer. rate: of gradient descent without momentum.

    Returns:
        At least :data:`~forethought.optimizers.USUAL_RATE`; that where there is no noise or rounds'
        noises cancel each other.
    """
    divides = kind_of(optimizer).divides
    if divides is None or any(isinstance(p, Correlated) for p in plan.privacy.mechanism):
        return USUAL_RATE
    divided = divides(_variance(plan), options, plan.rounds)
    return max(USUAL_RATE, rate * math.sqrt(divided))


def _variance(plan: Plan) -> float:
    """Of the noise on a coordinate of a mean, in the mean over the rounds."""
    index, variance = 0, 0.0
    for part in plan.privacy.mechanism:  # the rounds differ little within β₂
        variance += part.count * plan.round(index).mean_variance / plan.rounds
        index += part.count
    if plan.gradient_filter is not None:
        variance *= plan.gradient_filter.noise_left(plan.rounds)
    return variance
