"""How far sums of discrete Gaussians are from real Gaussian noise: certified charges.

A discrete Gaussian of scale s has every whole number k with probability ∝ exp(−k²/2s²). Write
a(s) = 2·Σ_{k≥1} exp(−2π²s²k²). By Poisson summation Σ_j exp(−(j − c)²/2s²) = s√(2π)·(1 + θ) with
|θ| ≤ a(s) for every real c, and = s√(2π)·(1 + a(s)) at c = 0. Two facts follow.

**Sums.** X and Y with scales s and t are convolved: the product of their weights at x and w − x is
the weight of scale u = √(s² + t²) at w, times a Gaussian in x of scale v = st/u. So the ratio of
P(X + Y = w) to that of scale u is (1 + θ_v)(1 + a(u))/((1 + a(s))(1 + a(t))), and its logarithm is
at most −ln(1 − a(v)) + 2·a(v) in size, since v is the smallest of the four. Adding one variable
after another, the charges add (Kairouz, Liu and Steinke 2021, Corollary 12, with 10·e^(−2π²v²)).

**Real noise.** A real Gaussian of standard deviation √(s² − r²), rounded by drawing k ∝
exp(−(k − y)²/2r²), is the discrete Gaussian of scale s up to (1 + a(s))/(1 + θ_r) (Peikert 2010,
Theorem 3.1). Rounding is post-processing and commutes with shifts by whole numbers, so theorems
about real Gaussian noise, subsampled or not, hold up to the charge.
"""

from __future__ import annotations

import math

from forethought.accounting.interval import Interval

# Rounding of the few operations here, outward.
_OUTWARD = 1 + 1e-12
# Scale of the rounding in the second fact: its charge is below 10⁻⁷⁵, and 9 is little beside s².
ROUNDING_SCALE = 3.0
# Above this a(s) is not small, and the bounds say nothing worth having.
_LEAST_SCALE = 0.5


def sum_divergence(scale: float, parties: int) -> float:
    """A bound on |ln P(sum = w)/P(one of scale √n·s = w)|, for ``parties`` n discrete Gaussians.

    Args:
        scale: s of each, in whole steps. parties: n ≥ 1.

    Raises:
        ValueError: a scale below ½, or no party.
    """
    if not scale >= _LEAST_SCALE or parties < 1:
        raise ValueError(f"a discrete Gaussian needs a scale of at least {_LEAST_SCALE}: {scale}")
    total = 0.0
    for before in range(1, parties):
        # Scales √before·s and s together: v² = s²·before/(before + 1). It grows with every party.
        charge = _charge(scale * math.sqrt(before / (before + 1)))
        if charge == 0.0:
            break
        total += charge
    return total * _OUTWARD


def real_divergence(scale: float, rounding: float = ROUNDING_SCALE) -> float:
    """A bound on |ln| of the ratio between a discrete Gaussian and a rounded real one.

    Args:
        scale: s of the discrete Gaussian. rounding: r; the real one has √(s² − r²).

    Raises:
        ValueError: r is not below s.
    """
    if not _LEAST_SCALE <= rounding < scale:
        raise ValueError(
            f"a discrete Gaussian of scale {scale:g} cannot be rounded at scale {rounding:g}: use "
            "more noise for the grid's step, or a finer grid"
        )
    return _charge(rounding)


def charged(interval: Interval, divergence: float) -> Interval:
    """ε of mechanisms whose every output is as likely as before up to exp(±``divergence``).

    ``interval`` is at δ·exp(−divergence): P' ≤ e^d P ≤ e^d (e^ε Q + δe^−d) ≤ e^(ε+2d) Q' + δ.
    """
    return Interval(
        max(0.0, interval.lower - 2 * divergence), (interval.upper + 2 * divergence) * _OUTWARD
    )


def _tail(scale: float) -> float:
    """a(s), rounded up: the series is below its first term over 1 − the ratio of the first two."""
    first = math.exp(-2 * math.pi**2 * scale * scale)
    return 2 * first / (1 - first**3) * _OUTWARD


def _charge(smallest: float) -> float:
    tail = _tail(smallest)
    return (2 * tail - math.log1p(-tail)) * _OUTWARD
