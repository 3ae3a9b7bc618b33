"""Step sizes: a schedule is a function from time to a number.

The inverse schedule η₀/(1 + βt) and the inverse-root schedule η₀/(1 + β√t) are the diminishing
step sizes of convex and general problems; cosine is Loshchilov and Hutter 2017 without restarts.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from forethought.values.plan import Plan
from forethought.values.use import ScheduleKind

# Time t, its end T and the decay β to the factor on η₀.
SHAPES: dict[ScheduleKind, Callable[[float, float, float], float]] = {
    "constant": lambda t, end, decay: 1.0,
    "inverse": lambda t, end, decay: 1 / (1 + decay * t),
    "inverse-sqrt": lambda t, end, decay: 1 / (1 + decay * math.sqrt(t)),
    "drops": lambda t, end, decay: 1.0,
    "cosine": lambda t, end, decay: (1 + math.cos(math.pi * t / end)) / 2,
}


def step_sizes(plan: Plan) -> Callable[[int], float]:
    """The step size of every round of a plan.

    Time in examples counts *expected* batch sizes: the drawn ones depend on the private data's
    sampling and are never used. Over the first ``warmup`` rounds the value is multiplied by
    (round + 1)/warmup.

    Returns:
        From the round's number (from 0) to its step size.
    """
    schedule, rate = plan.schedule, plan.optimizer.learning_rate
    shape, decay, warmup = SHAPES[schedule.kind], schedule.decay, schedule.warmup
    if schedule.kind == "constant" and not warmup:
        return lambda index: rate
    in_examples = schedule.unit == "examples"
    time = plan.privacy.examples_before if in_examples else float
    end = time(plan.rounds)

    def step_size(index: int) -> float:
        ramp = min(1.0, (index + 1) / warmup) if warmup else 1.0
        return rate * ramp * shape(time(index), end, decay)

    return step_size
