"""Noise that falls (or grows) over a run of subsampled rounds, at the exact cost of each.

Weights of late rounds' noise stay in the model; of early rounds' noise the rest of the run forgets
some. With w_t the share of round t's noise variance that is left at the end, and w_T/w_1 = fall⁴:

- "forgetting" minimises Σ w_t σ_t² at a given Σ c(σ_t). For Poisson rounds the central limit
  theorem (Bu et al. 2020) has c ∝ e^(1/σ²) − 1; the optimum is w_t σ_t⁴ = ν e^(1/σ_t²), that is
  1/σ_t² = 2W(√(w_t/ν)/2) with Lambert's W. For full batches c ∝ 1/σ², and σ_t ∝ w_t^(−1/4).
- "geometric" takes σ_t ∝ w_t^(−1/4), whatever the sampling; "linear" a line through the middle
  between the same first and last noise, up to scale.

"Adaptive Hyperparameter Selection for Differentially Private Gradient Descent" leaves subsampled
gradients open: by its ratio, with costs that add in μ², the best noise is infinite. So the number
of rounds is fixed and the shape is solved for. Both are chosen before the run from no data; the
scale is calibrated with the exact accountant, so only the shape rests on the theorem's
approximation.
"""

from __future__ import annotations

import math
from typing import Literal

from scipy.special import lambertw

NoiseScheduleName = Literal["constant", "geometric", "linear", "forgetting"]

FALL = 2.0


def noise_at(
    name: NoiseScheduleName, fall: float, place: float, middle: float, optimal: bool = True
) -> float:
    """The noise multiplier at a place of the run.

    Args:
        name: which shape. fall: the fourth root of w_T/w_1, above 0; below 1 the noise grows.
        place: share of the run that has gone, in (0, 1).
        middle: the noise multiplier in the middle of the run; the result is monotone in it.
        optimal: whether "forgetting" is to follow a sampled round's costs, not a full batch's.
    """
    if name == "constant" or middle == 0:
        return middle
    if name == "linear":
        return middle * (fall + (1 - fall) * place) / (fall + (1 - fall) * 0.5)
    # √w_t, 1 in the middle of the run.
    root = math.exp(2 * (place - 0.5) * math.log(fall))
    if name == "geometric" or not optimal:
        return middle / math.sqrt(root)
    # W(y) for y = √(w_t/ν)/2 = √w_t h e^h, ν from the middle's own σ, by its logarithm: h is large
    # where noise is small.
    half = 1 / (2 * middle**2)
    log = math.log(root) + math.log(half) + half
    if log < 500:
        return 1 / math.sqrt(2 * float(lambertw(math.exp(log)).real))
    w = log
    for _ in range(6):  # Newton's steps for w + ln w = log, which double the digits
        w -= (w + math.log(w) - log) / (1 + 1 / w)
    return 1 / math.sqrt(2 * w)
