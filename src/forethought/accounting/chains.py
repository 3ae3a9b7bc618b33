"""Several records, or an exchanged one, as a chain of single changes: group privacy.

Where no amplification theorem covers s changes at once, one for a single change does. If neighbours
at one change are (x, d)-indistinguishable, P_0(T) ≤ e^x P_1(T) + d ≤ e^(2x) P_2(T) + d e^x + d ≤ …:
s changes are (sx, d (e^(sx) - 1)/(e^x - 1))-indistinguishable (group privacy: Vadhan 2017, "The
complexity of differential privacy"). A record that is exchanged is blanked and then written anew,
two changes under zero-out. Chains are used for random allocation, whose records choose their rounds
independently of each other and of what they say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from forethought.accounting.limits import Bounds
from forethought.accounting.pld.privacy_loss import Curve
from forethought.mechanism import Mechanism
from forethought.samplings import RandomAllocation

Curves = Sequence[tuple[Curve, Curve]]
_LEVELS = 64
_ROUNDING = 1e-12


def single_changes(mechanism: Mechanism, group: int) -> tuple[Mechanism, int] | None:
    """The mechanism under single changes, and how many make the difference; None: no chain."""
    allocated = [
        isinstance(part.sampling, RandomAllocation) and part.sampling.rounds > 1
        for part in mechanism
    ]
    exchanged = mechanism.adjacency == "replace-one"
    if not any(allocated) or (group == 1 and not exchanged):
        return None
    if not exchanged:
        return mechanism, group
    return Mechanism(*mechanism.rounds, adjacency="zero-out"), 2 * group


def log_growth(level: float, steps: int) -> float:
    """log of (e^(steps·level) - 1)/(e^level - 1)."""
    if level < 1e-12:
        return math.log(steps)
    return (steps - 1) * level + math.log(math.expm1(-steps * level) / math.expm1(-level))


def chained_delta(curves: Curves, steps: int, epsilon: float) -> Bounds:
    """δ at ``epsilon`` by the chain, from the curves of a single change."""
    level = epsilon / steps
    grown = math.exp(min(log_growth(level, steps), 700.0))
    low, high = (max(pair[end].delta(level) for pair in curves) for end in (0, 1))
    return Bounds(min(1.0, low * grown * (1 - _ROUNDING)), min(1.0, high * grown * (1 + _ROUNDING)))


def chained_epsilon(curves: Curves, steps: int, delta: float, most: float) -> Bounds:
    """The least ε at ``delta`` by the chain, if it is below ``most``; else (most, most).

    A chain's δ need not fall with its ε. Any level at which it is small enough holds; and between
    two levels it is at least a single change's δ at the higher, grown as at the lower.
    """

    def logs(levels: Sequence[float], end: int) -> list[float]:
        found = [max(pair[end].delta(level) for pair in curves) for level in levels]
        return [math.log(value) if value > 0 else -math.inf for value in found]

    low, high, target = 0.0, most / steps, math.log(delta)
    lower = upper = most
    for _ in range(3):
        levels = [float(x) for x in np.linspace(low, high, _LEVELS + 1)]
        growth = [log_growth(level, steps) for level in levels]
        above = logs(levels, 1)
        holds = [a + g <= target - _ROUNDING for a, g in zip(above, growth, strict=True)]
        if not any(holds):
            break
        first = holds.index(True)
        upper = min(upper, steps * levels[first] * (1 + _ROUNDING))
        below = logs(levels, 0)
        may = [below[i + 1] + growth[i] <= target + _ROUNDING for i in range(first)]
        start = may.index(True) if any(may) else max(0, first - 1)
        lower = steps * levels[start] * (1 - _ROUNDING)
        low, high = levels[start], levels[first]
    return Bounds(min(lower, upper), upper)
