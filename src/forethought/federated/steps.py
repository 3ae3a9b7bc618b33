"""Step sizes along exchanged gradients, and how long an honest update can be.

Torch-free: the server and the simulator of times read this.
"""

from __future__ import annotations

import math

from forethought.federated.federation import Federation
from forethought.values.plan import Plan
from forethought.values.use import kind_of

# Chance that honest noise is beyond the bound: exp(−TAIL) an update.
TAIL = 45.0


def step_size(federation: Federation, client: int, index: int) -> float:
    """The step along a client's update ``index``: η_i · share · server's rate.

    The shares of all clients sum to 1, so that one update of each is one step along their mean.
    """
    sizes = federation.step_sizes[federation.members[client].plan]
    return federation.shares[client] * federation.server.rate * sizes(index)


def longest_update(federation: Federation, client: int, start: float = 0.0) -> float:
    """L2 norm that an honest update does not exceed: of the mean, or of the change of the weights.

    Args:
        start: norm of the weights that it begins with, where weight decay pulls on them.

    Returns:
        ∞ where the local optimizer has no known bound.
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
        # A public schedule of the norm is monotone: its ends are its extremes.
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
