"""Step sizes along exchanged gradients, and how long an honest update can be.

Torch-free: the server and the simulator of times read this.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.messages import Vector
from forethought.federated.federation import Federation, ServerOptimizer
from forethought.values.plan import Plan
from forethought.values.use import kind_of

# The noise of an honest update exceeds the bound with probability at most exp(−TAIL).
TAIL = 45.0


def step_size(federation: Federation, client: int, index: int) -> float:
    """The step size for a client's update ``index``: η_i · share · server's rate.

    The clients' shares sum to 1, so that one update from each makes one step along their mean.
    """
    sizes = federation.step_sizes[federation.members[client].plan]
    return federation.shares[client] * federation.server.rate * sizes(index)


def longest_update(federation: Federation, client: int, start: float = 0.0) -> float:
    """Bound on the L2 norm of an honest update: a mean gradient or a change of the weights.

    Args:
        start: L2 norm of the weights that the update starts from; weight decay acts on them.

    Returns:
        The bound; ∞ where the local optimizer has no known bound.
    """
    plan = federation.plan(client)
    larger = 1.0 if federation.sizes is None else federation.sizes.most
    mean = _longest(plan, federation.parameters, larger)
    if federation.exchanged == "gradients":
        return mean
    options = dict(plan.optimizer.options)
    rate, kind = plan.optimizer.learning_rate, kind_of(plan.optimizer.name)
    if kind.longest is None:
        return math.inf
    step = rate * kind.longest(options, mean, federation.parameters)
    decay = rate * float(options.get("weight_decay", kind.weight_decay))
    local = federation.local_rounds
    most = local if isinstance(local, int) else max(local)
    moved = most * step
    if decay:
        moved += most * decay * (start + moved)
    return moved * (1 + 1e-6)


def _longest(plan: Plan, parameters: int | None, larger: float) -> float:
    dimension = math.sqrt(parameters or 1)
    longest = 0.0
    first = 0
    for part in plan.mechanism:
        # A public schedule of the clip norm is monotone, so its extremes are at its ends.
        for index in (first, first + part.count - 1):
            chosen = plan.round(index)
            norm = chosen.clip_norm
            if plan.clip.rule == "quantile":
                norm *= math.exp(min(plan.clip.quantile_rate * plan.rounds * 2, 50.0))
            b = chosen.divisor
            came = b * larger
            most = min(came + math.sqrt(2 * came * TAIL) + TAIL, float(max(chosen.examples, b)))
            noise = chosen.noise_multiplier * (dimension + math.sqrt(2 * TAIL))
            longest = max(longest, norm * (most + noise) / b)
        first += part.count
    return longest


# The step of the global model along the mean of a round's updates.
#
# Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar and McMahan 2021 ("Adaptive federated
# optimization"), Algorithm 2: the mean change Δ is a pseudo-gradient. FedAvg: McMahan et al. 2017;
# FedAvgM: Hsu, Qi and Brown 2019.


Moments = dict[str, NDArray[np.float64]]


def moved(
    how: ServerOptimizer, moments: Moments, weights: Vector, change: NDArray[np.float64]
) -> Vector:
    """The weights after a step along the mean change; updates ``moments`` in place."""
    step = change
    if how.kind != "avg":
        part = 1.0 if how.kind == "avgm" else 1 - how.momentum
        step = moments["first"] = how.momentum * moments.get("first", np.zeros(1)) + part * change
    step = how.rate * step
    if how.kind in ("adam", "yogi"):
        second = moments.get("second", np.full(len(change), how.tau**2))
        square = change * change
        if how.kind == "yogi":
            second = second - (1 - how.second) * square * np.sign(second - square)
        else:
            second = how.second * second + (1 - how.second) * square
        moments["second"] = second
        step = step / (np.sqrt(second) + how.tau)
    return (weights + step).astype(np.float32)
