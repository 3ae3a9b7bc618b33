"""The central limit theorem for private training: an approximation, on neither side of the truth.

Everything here carries ``approximate`` in its name and never reaches a Statement. Source: Bu,
Dong, Long and Su 2020, Section 3 (Poisson sampling); Dong, Roth and Su 2022, Corollary 5.4
(without replacement).
"""

from __future__ import annotations

import math

from scipy.special import ndtr

from forethought.accounting.closed_bounds import gaussian_epsilon
from forethought.accounting.theorems import all_uncorrelated
from forethought.mechanism import (
    Mechanism,
    Rounds,
    UnsupportedMechanismError,
    releases,
    sensitivity,
)
from forethought.samplings import (
    CyclicPoisson,
    FullBatch,
    Poisson,
    RandomAllocation,
    Shuffled,
    WithoutReplacement,
)


def approximate_clt_mu(mechanism: Mechanism) -> float:
    """μ of the Gaussian that many weakly informative rounds approach.

    Poisson: μ² = Σ T q²(e^{(Δ/σ)²} − 1). An epoch of random allocation in t rounds:
    (e^{(Δ/σ)²} − 1)/t. Without replacement: the limit of the symmetrised subsampled curve. Full
    batches and shuffled epochs are Gaussian as they are. Infinite without noise, and where the
    exponential overflows.
    """
    total = 0.0
    for part in all_uncorrelated(mechanism):
        if part.noise_multiplier == 0:
            return math.inf
        shift = sensitivity(part, mechanism.adjacency) / part.noise_multiplier
        total += releases(part) * _squared(part, shift)
    return math.sqrt(total)


def _squared(part: Rounds, shift: float) -> float:
    match part.sampling:
        case FullBatch() | Shuffled():
            return shift**2
        case _ if shift > 26:
            return math.inf
        case Poisson(rate=rate) | CyclicPoisson(rate=rate):
            return rate**2 * math.expm1(shift**2) if rate < 1 else shift**2
        case RandomAllocation(rate=rate):
            # A mean of 1/rate independent likelihood ratios of mean 1.
            return rate * math.expm1(shift**2)
        case WithoutReplacement(rate=rate):
            if rate == 1:
                return shift**2
            normal = math.exp(shift**2) * ndtr(1.5 * shift) + 3 * ndtr(-0.5 * shift) - 2
            return float(2 * rate**2 * normal)
        case other:
            raise UnsupportedMechanismError(
                f"no central limit is known for {type(other).__name__} sampling; there is one for "
                "Poisson, CyclicPoisson, RandomAllocation, WithoutReplacement, Shuffled, FullBatch"
            )


def approximate_clt_epsilon(mechanism: Mechanism, delta: float) -> float:
    """ε of the limiting Gaussian at δ: may be too small as well as too large."""
    mu = approximate_clt_mu(mechanism)
    return gaussian_epsilon(delta, mu) if math.isfinite(mu) else math.inf
