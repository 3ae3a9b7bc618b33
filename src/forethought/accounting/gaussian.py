"""The Gaussian mechanism in closed form: δ, ε and μ of G_μ = T(N(0, 1), N(μ, 1)).

Source: Balle and Wang 2018, Theorem 8; Dong, Roth and Su 2022, Corollary 2.13. A run of Gaussian
releases with sensitivities Δ_t and noise σ_t is itself Gaussian with μ² = Σ (Δ_t/σ_t)².
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

from forethought.checks import real

Array = NDArray[np.float64]

_EPS = float(np.finfo(float).eps)


def gaussian_delta(epsilon: ArrayLike, mu: ArrayLike) -> Array:
    """δ of G_μ at ε, on the whole real line: Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ).

    Args:
        epsilon, mu: broadcast against each other; mu ≥ 0 (at 0: max(0, 1 − e^ε)).
    """
    return _delta(epsilon, mu, 0.0)


def gaussian_delta_above(epsilon: ArrayLike, mu: ArrayLike) -> Array:
    """An upper end of :func:`gaussian_delta`: its rounding is bounded and added."""
    return np.asarray(np.minimum(1.0, _delta(epsilon, mu, 1.0)))


def gaussian_delta_below(epsilon: ArrayLike, mu: ArrayLike) -> Array:
    """A lower end of :func:`gaussian_delta`."""
    return np.asarray(np.maximum(0.0, _delta(epsilon, mu, -1.0)))


def _delta(epsilon: ArrayLike, mu: ArrayLike, side: float) -> Array:
    eps, size = np.broadcast_arrays(np.asarray(epsilon, dtype=float), np.asarray(mu, dtype=float))
    shift = np.where(size > 0, size, 1.0)
    a, b = shift / 2 - eps / shift, -shift / 2 - eps / shift
    first, second = log_ndtr(a), log_ndtr(b)
    gap = eps + second - first
    # Each log-tail is good to a few units in the last place; its argument's rounding moves it by
    # about the argument's square.
    noise = 16 * _EPS * (1 + np.abs(eps) - first - second + a * a + b * b)
    with np.errstate(over="ignore"):
        inside = np.exp(first) * (1 + side * noise) * (side * noise - np.expm1(np.minimum(gap, 0)))
        still = -np.expm1(np.minimum(eps, 0.0))
    # δ(ε) ≥ 1 − e^ε always; the difference of two near-ones loses that for ε far below zero.
    return np.asarray(np.where(size > 0, np.maximum(inside, still), still))


def _smallest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Upper end of the bisection bracket of the smallest value at which ``holds`` turns true."""
    for _ in range(200):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def gaussian_epsilon(delta: float, mu: float) -> float:
    """The smallest ε ≥ 0 at which G_μ is (ε, δ)-DP, rounded up.

    Raises:
        ValueError: δ outside (0, 1) or μ below 0.
    """
    target, size = real("delta", delta, above=0, below=1), real("mu", mu, least=0)

    def holds(epsilon: float) -> bool:
        return bool(gaussian_delta_above(epsilon, size) <= target)

    if holds(0.0):
        return 0.0
    high = size * (size / 2 + math.sqrt(-2 * math.log(target)) + 1)
    while not holds(high):
        high *= 2
    return _smallest(holds, 0.0, high)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest μ for which G_μ is (ε, δ)-DP, rounded down. ε may be any real number.

    Raises:
        ValueError: δ outside (0, 1), or below 1 − e^ε, which even μ = 0 has.
    """
    eps, target = real("epsilon", epsilon), real("delta", delta, above=0, below=1)
    if -math.expm1(min(eps, 0.0)) >= target:
        raise ValueError(f"no mu has delta {target} at epsilon {eps}: mu = 0 already has more")
    high = 1.0
    while gaussian_delta_above(eps, high) <= target:
        high *= 2

    def exceeds(mu: float) -> bool:
        return bool(gaussian_delta_above(eps, mu) > target)

    return math.nextafter(_smallest(exceeds, 0.0, high), 0.0)
