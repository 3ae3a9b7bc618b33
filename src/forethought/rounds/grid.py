"""Noise in whole numbers: discrete Gaussian noise on a fixed grid, exactly sampled.

**Formal guarantee.** A sum that one contribution moves by at most C (in L2 norm) is released with
the noise that is accounted, N(0, (σC)²), or better, and no floating-point number stands between.

1. The sum is rounded to multiples of γ = 2ᵏ (exactly: a power of two only shifts exponents) and
   clamped to ±2⁵¹γ, which moves no two values apart. Each of d coordinates moves by at most γ/2, so
   one contribution moves the gridded sum by at most C + √d·γ: *the rounding is charged*.
2. The noise is K·γ, K from the discrete Gaussian of parameter s ≥ σ(C + √d·γ)/γ·(1 + 2⁻³⁰), a whole
   number between 2²⁵ and 2²⁷. Canonne, Kamath and Steinke (2020), Algorithms 1 to 3, sample it
   exactly from uniform whole numbers.
3. The discrete Gaussian of s is post-processing of a real one. Let y ~ N(0, s² − r²) and draw K
   from the discrete Gaussian of parameter r around y. By Poisson summation the normalising sum
   over the integers, seen from any y, is r√(2π)(1 ± τ) with τ = 2.1·exp(−2π²r²) (Micciancio and
   Regev 2007, Lemma 4.4; Peikert 2010, Theorem 3.1), so K has the discrete Gaussian's law up to a
   factor within 1 ± 3τ. With r = 3, τ < 10⁻⁷⁶; over d coordinates and T rounds, ε and ln δ change
   by at most 6τdT, below 10⁻⁵⁰ for any dT below 10²⁵. The slack in point 2 is what √(s² − 9) takes
   away and a million times more, and the accountant rounds outward. So every theorem about real
   Gaussian noise, subsampled or not, holds for the grid.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forethought.rounds.grid_step import grid

# Whole numbers up to here are exact in double precision, with noise added.
LIMIT = float(1 << 51)
# Coordinates that are drawn at a time.
CHUNK = 1 << 16

Whole = NDArray[np.int64]


def add_grid_noise(
    vector: torch.Tensor, std: float, clip_norm: float, generator: np.random.Generator
) -> None:
    """Round ``vector`` to the grid and add discrete Gaussian noise, in place.

    Args:
        vector: the sum, float64, shape (parameters,).
        std: standard deviation σC that is accounted.
        clip_norm: C, what one contribution can move the sum by.
    """
    if not std:
        return
    step, scale = grid(std, clip_norm, vector.shape[0])
    for start in range(0, vector.shape[0], CHUNK):
        part = vector[start : start + CHUNK]
        whole = (part / step).round_().clamp_(-LIMIT, LIMIT)
        noise = discrete_gaussian(scale, len(part), generator)
        # Both are whole numbers below 2⁵³, and so is their sum: nothing is rounded.
        whole += torch.from_numpy(noise).to(whole)
        torch.mul(whole, step, out=part)


def discrete_gaussian(scale: int, size: int, generator: np.random.Generator) -> Whole:
    """``size`` independent whole numbers k with probability proportional to exp(−k²/(2·scale²)).

    Canonne, Kamath and Steinke (2020), Algorithm 3, with t = scale: propose from the discrete
    Laplace distribution, accept with probability exp(−(|y| − scale)²/(2·scale²)). Only uniform
    whole numbers are compared.
    """
    found = np.empty(size, dtype=np.int64)
    missing = np.arange(size)
    while len(missing):
        proposed = discrete_laplace(scale, len(missing), generator)
        kept = _accepted(np.abs(proposed) - scale, scale, generator)
        found[missing[kept]] = proposed[kept]
        missing = missing[~kept]
    return found


def discrete_laplace(scale: int, size: int, generator: np.random.Generator) -> Whole:
    """Whole numbers y with probability proportional to exp(−|y|/scale): their Algorithm 2."""
    found = np.empty(size, dtype=np.int64)
    missing = np.arange(size)
    while len(missing):
        low = generator.integers(scale, size=len(missing))
        kept = bernoulli_exp(low, scale, generator)
        high = _geometric(int(kept.sum()), generator)
        magnitude = low[kept] + scale * high
        negative = generator.integers(2, size=len(magnitude), dtype=np.int8).astype(bool)
        # Zero has one sign only.
        whole = ~(negative & (magnitude == 0))
        places = missing[kept][whole]
        found[places] = np.where(negative, -magnitude, magnitude)[whole]
        done = np.zeros(len(missing), dtype=bool)
        done[np.flatnonzero(kept)[whole]] = True
        missing = missing[~done]
    return found


def bernoulli_exp(
    numerator: Whole, denominator: int, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """True with probability exp(−numerator/denominator), for each numerator in [0, denominator].

    Their Algorithm 1: count how many in a row of coins of chance γ/1, γ/2, γ/3, … come up; the
    first failure at an odd place means yes.
    """
    result = np.zeros(len(numerator), dtype=bool)
    active = np.arange(len(numerator))
    place = 1
    while len(active):
        # A coin of chance γ/k is one of chance γ and one of chance 1/k.
        up = generator.integers(denominator, size=len(active)) < numerator[active]
        if place > 1:
            up &= generator.integers(place, size=len(active)) == 0
        result[active[~up]] = place % 2 == 1
        active = active[up]
        place += 1
    return result


def _geometric(size: int, generator: np.random.Generator) -> Whole:
    """The number of times in a row that a coin of chance 1/e comes up."""
    counts = np.zeros(size, dtype=np.int64)
    active = np.arange(size)
    while len(active):
        one = np.ones(len(active), dtype=np.int64)
        active = active[bernoulli_exp(one, 1, generator)]
        counts[active] += 1
    return counts


def _accepted(offset: Whole, scale: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """True with probability exp(−offset²/(2·scale²)), each."""
    denominator = 2 * scale * scale
    # Beyond this the square leaves 64 bits; such proposals are rare and go one by one.
    far = np.abs(offset) >= 1 << 31
    square = np.where(far, 0, offset) ** 2
    whole, rest = np.divmod(square, denominator)
    kept = bernoulli_exp(rest, denominator, generator)
    for units in range(1, int(whole.max(initial=0)) + 1):
        # exp(−γ) for γ above 1 is exp(−1) as often as γ holds 1, and exp of the rest.
        again = np.flatnonzero(kept & (whole >= units))
        kept[again] = bernoulli_exp(np.ones(len(again), dtype=np.int64), 1, generator)
    for place in np.flatnonzero(far):
        kept[place] = accepted_far(int(offset[place]), denominator, generator)
    return kept


def accepted_far(offset: int, denominator: int, generator: np.random.Generator) -> bool:
    whole, rest = divmod(offset * offset, denominator)
    one = np.ones(1, dtype=np.int64)
    if not all(bernoulli_exp(one, 1, generator)[0] for _ in range(whole)):
        return False
    return bool(bernoulli_exp(np.array([rest]), denominator, generator)[0])
