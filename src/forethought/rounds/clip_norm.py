"""The clipping norm from round to round, which the quantile rule moves.

Quantile rule (Andrew, Thakkar, McMahan, Ramaswamy 2021): the share of contributions within the
norm, released with noise, steers the norm geometrically to the wanted quantile. Each contribution
adds ±1/2 to the released count, so its sensitivity is half that of the sum in units of C, and
:meth:`forethought.values.plan.Clip.gradient_noise` takes the count's cost from the sum's noise.
"""

from __future__ import annotations

import numpy as np
import torch

from forethought.gradients.sums import next_clip_norm
from forethought.rounds.grid import add_grid_noise
from forethought.values.plan import Clip, NoiseKind, Round


def noised_share(
    count: float, chosen: Round, count_noise: float, generator: np.random.Generator
) -> float:
    """Noised share of contributions whose norm is at most C.

    The released sum is Σ (1[‖g‖ ≤ C] − 1/2) plus noise, which one contribution moves by at most
    1/2 (Andrew et al. 2021, Section 2.2).

    Args:
        count: Σ (1[‖g‖ ≤ C] − 1/2), see :func:`forethought.gradients.sums.centred_count_below`.
        chosen: the round, whose public divisor the count is divided by (never ``len(norms)``).
        count_noise: σ_b, standard deviation of the noise on the sum.
    """
    counted = noised_count(count, count_noise, 0.5, chosen.noise, generator)
    return 0.5 + counted / chosen.divisor


def noised_count(
    count: float, std: float, most: float, noise: NoiseKind, generator: np.random.Generator
) -> float:
    """A count with Gaussian noise, on the grid where that is the noise.

    Args:
        std: standard deviation of the noise.
        most: what one record can move the count by.
    """
    if noise == "grid":
        vector = torch.tensor([count], dtype=torch.float64)
        add_grid_noise(vector, std, most, generator)
        return float(vector)
    return count + std * float(generator.standard_normal())


def next_norm(clip: Clip, clip_norm: float, share: float) -> float:
    """Geometric update C ← C·exp(−η(b̃ − γ)), their Algorithm 1, line 13."""
    return next_clip_norm(clip_norm, share, clip.quantile, clip.quantile_rate)
