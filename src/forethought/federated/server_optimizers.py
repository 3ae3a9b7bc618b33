"""The step of the global model along the mean of a round's updates.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan 2021 ("Adaptive federated
optimization"), Algorithm 2: the mean change Δ is a pseudo-gradient. FedAvg: McMahan et al. 2017;
FedAvgM: Hsu, Qi and Brown 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.messages import Vector
from forethought.federated.federation import ServerKind, ServerOptimizer

Moments = dict[str, NDArray[np.float64]]
Step = Callable[[ServerOptimizer, Moments, NDArray[np.float64]], NDArray[np.float64]]


def _avg(
    how: ServerOptimizer, moments: Moments, change: NDArray[np.float64]
) -> NDArray[np.float64]:
    return how.rate * change


def _avgm(
    how: ServerOptimizer, moments: Moments, change: NDArray[np.float64]
) -> NDArray[np.float64]:
    first = how.momentum * moments.get("first", np.zeros(1)) + change
    moments["first"] = first
    return how.rate * first


def _adaptive(
    how: ServerOptimizer, moments: Moments, change: NDArray[np.float64], yogi: bool
) -> NDArray[np.float64]:
    first = how.momentum * moments.get("first", np.zeros(1)) + (1 - how.momentum) * change
    second = moments.get("second", np.full(len(change), how.tau**2))
    square = change * change
    if yogi:
        second = second - (1 - how.second) * square * np.sign(second - square)
    else:
        second = how.second * second + (1 - how.second) * square
    moments["first"], moments["second"] = first, second
    return how.rate * first / (np.sqrt(second) + how.tau)


STEPS: Mapping[ServerKind, Step] = {
    "avg": _avg,
    "avgm": _avgm,
    "adam": lambda how, moments, change: _adaptive(how, moments, change, False),
    "yogi": lambda how, moments, change: _adaptive(how, moments, change, True),
}


def moved(
    how: ServerOptimizer, moments: Moments, weights: Vector, change: NDArray[np.float64]
) -> Vector:
    """The weights after a step along a mean change; ``moments`` are updated in place."""
    return (weights + STEPS[how.kind](how, moments, change)).astype(np.float32)


def is_plain(how: ServerOptimizer) -> bool:
    """True if the new weights are the mean itself: then nothing is subtracted and added again."""
    return how.kind == "avg" and how.rate == 1.0
