"""Noise that falls over a run of subsampled rounds, at the exact cost of each.

Weights of late rounds' noise stay in the model; of early rounds' noise the rest of the run forgets
some. With w_t the share of round t's noise variance that is left at the end, and w_T/w_1 = fall⁴:

- "forgetting" minimises Σ w_t σ_t² at a given Σ c(σ_t). For Poisson rounds the central limit
  theorem (Bu et al. 2020) has c ∝ e^(1/σ²) − 1; the optimum is w_t σ_t⁴ = ν e^(1/σ_t²), that is
  1/σ_t² = 2W(√(w_t/ν)/2) with Lambert's W. For full batches c ∝ 1/σ², and σ_t ∝ w_t^(−1/4).
- "geometric" takes σ_t ∝ w_t^(−1/4), whatever the sampling.

"Adaptive Hyperparameter Selection for Differentially Private Gradient Descent" leaves subsampled
gradients open: by its ratio, with costs that add in μ², the best noise is infinite. So the number
of rounds is fixed and the shape is solved for. Both are chosen before the run from no data; the
scale is calibrated with the exact accountant, so only the shape rests on the theorem's
approximation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

from scipy.special import lambertw

from forethought.accounting.calibration import calibrate
from forethought.accounting.exact import epsilon
from forethought.mechanism import Adjacency, Budget, FullBatch, Mechanism, Rounds, Shuffled

NoiseScheduleName = Literal["constant", "geometric", "forgetting"]

# A schedule is a staircase: so many parts are accounted as fast as a few.
STEPS = 12
FALL = 2.0


def staircase(
    name: NoiseScheduleName, fall: float, rounds: Rounds
) -> Callable[[float], list[Rounds]]:
    """The shape of a schedule as a function of its scale.

    Args:
        name: which shape. fall: the fourth root of w_T/w_1, above 0; below 1 the noise grows.
        rounds: the equal rounds that it takes the place of.

    Returns:
        From a noise multiplier to parts whose noise multipliers are monotone in it.
    """
    steps = min(STEPS, rounds.count)
    edges = [round(rounds.count * step / steps) for step in range(steps + 1)]
    places = [(low + high) / (2 * rounds.count) for low, high in pairwise(edges)]
    optimal = name == "forgetting" and not isinstance(rounds.sampling, FullBatch)

    def parts(scale: float) -> list[Rounds]:
        found = []
        for place, (low, high) in zip(places, pairwise(edges), strict=True):
            # √w_t, 1 in the middle of the run.
            root = math.exp(2 * (place - 0.5) * math.log(fall))
            if optimal:
                x = 2 * float(lambertw(root / (2 * scale**2)).real)
                sigma = 1 / math.sqrt(x)
            else:
                sigma = scale / math.sqrt(root)
            found.append(
                Rounds(sigma, high - low, rounds.sampling, rounds.clipping, groups=rounds.groups)
            )
        return found

    return parts


def scheduled(
    rounds: Rounds,
    budget: Budget,
    adjacency: Adjacency,
    name: NoiseScheduleName,
    fall: float,
    group: int = 1,
    ahead: Sequence[Rounds] = (),
) -> Mechanism:
    """The rounds with noise of that shape, at the least scale within the budget.

    Args:
        rounds: equal rounds whose noise meets the budget, or about so.
        group: how many records the budget is for together.
        ahead: releases of their own noise that go before and are within the budget too.

    Raises:
        ValueError: shuffled rounds, of which only whole epochs can have a noise of their own.
    """
    if isinstance(rounds.sampling, Shuffled):
        raise ValueError(
            "noise_schedule= is for rounds that are sampled one by one: shuffled epochs are "
            "accounted whole. Use Poisson sampling"
        )
    shape = staircase(name, fall, rounds)

    def make(scale: float) -> Mechanism:
        return Mechanism(*ahead, *shape(scale), adjacency=adjacency)

    def meets(scale: float) -> bool:
        return epsilon(make(scale), budget.delta, group).upper <= budget.epsilon

    # Lambert's W falls behind its argument's root, so scales are no noise multipliers.
    high = max(rounds.noise_multiplier, 1e-3)
    while not meets(high):
        high *= 1.5
    low = high / 1.5
    while meets(low):
        low /= 1.5
    return make(calibrate(make, budget, (low, high), group=group))
