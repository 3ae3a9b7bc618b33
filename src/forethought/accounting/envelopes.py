"""Envelopes of mixtures of Gaussian trade-off functions, for all that is known of a mixture.

Source: van Dijk et al., "Generalizing DP-SGD with Shuffling and Batch Clipping", Definitions 5.3
and 5.4.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from forethought.accounting.gaussian import gaussian_delta_above
from forethought.accounting.tradeoff import Array, TradeOff, gaussian, gaussian_curve
from forethought.checks import real


def upper_envelope(mass: float, mu: float) -> TradeOff:
    """f^U of Definition 5.3, min{û, û⁻¹}** with û = u + (1 − u)G_μ: an *upper* bound on a mixture.

    Args:
        mass: u, at least the weight of the components below μ. mu: c^U/σ.
    """
    u, size = real("mass", mass, least=0, most=1), real("mu", mu, least=0)
    if u == 1:
        return gaussian(0.0)
    shift = -math.log1p(-u)

    def profile(epsilon: Array) -> Array:
        ahead = (1 - u) * gaussian_delta_above(epsilon + shift, size)
        behind = gaussian_delta_above(epsilon - shift, size) - u * np.exp(epsilon)
        return np.asarray(np.maximum(np.maximum(ahead, behind), 0.0))

    return TradeOff(profile, profile, size)


def lower_envelope(mass: float, mu: float, symmetric: bool = True) -> TradeOff:
    """f^L of Definition 5.4, max{l̂, l̂⁻¹} with l̂(α) = G_μ(min{1, α + l}): a *lower* bound.

    Args:
        mass: l, at least the weight of the components above μ. mu: c^L/σ.
        symmetric: False gives l̂ itself, the weaker bound that Table 1 states.
    """
    tail, size = real("mass", mass, least=0, most=1), real("mu", mu, least=0)
    floor = size if tail == 0 else math.inf
    top = float(gaussian_curve(np.array([tail]), size)[0])

    def touch(epsilon: Array) -> Array:
        """Where G_μ has slope −e^ε."""
        return np.asarray(ndtr(-epsilon / max(size, 1e-300) - size / 2))

    def behind(epsilon: Array) -> Array:
        # l̂⁻¹ = max(0, G − l), which bottoms out at α = G(l).
        with np.errstate(over="ignore", invalid="ignore"):
            bottom = 1 - np.exp(epsilon) * top
        return np.asarray(
            np.where(touch(epsilon) <= top, tail + gaussian_delta_above(epsilon, size), bottom)
        )

    def ahead(epsilon: Array) -> Array:
        with np.errstate(over="ignore"):
            moved = np.exp(epsilon) * tail + gaussian_delta_above(epsilon, size)
        return np.asarray(np.where(touch(epsilon) >= tail, moved, 1 - top))

    if not symmetric:
        return TradeOff(ahead, behind, floor)
    # The halves meet at β with G(β) − l = β.
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if float(gaussian_curve(np.array([middle]), size)[0]) - tail > middle:
            low = middle
        else:
            high = middle
    corner = low

    def profile(epsilon: Array) -> Array:
        with np.errstate(over="ignore"):
            kink = 1 - (1 + np.exp(epsilon)) * corner
        return np.asarray(
            np.where(touch(epsilon) <= corner, tail + gaussian_delta_above(epsilon, size), kink)
        )

    return TradeOff(profile, profile, floor)
