"""The clipping norm from round to round, which the quantile rule moves.

Quantile rule (Andrew, Thakkar, McMahan, Ramaswamy 2021): the share of contributions within the
norm, released with noise, steers the norm geometrically to the wanted quantile. Each contribution
adds ±1/2 to the released count, so its sensitivity is half that of the sum in units of C, and
:meth:`forethought.privacy.Clip.gradient_noise` takes the count's cost from the sum's noise.
"""

from __future__ import annotations

import numpy as np
import torch

from forethought.gradients.clipping import centred_count_below, next_clip_norm
from forethought.privacy import Clip


def noised_share(
    norms: torch.Tensor,
    clip_norm: float,
    count_noise: float,
    expected: float,
    generator: np.random.Generator,
) -> float:
    """Noised share of contributions whose norm is at most C.

    The released sum is Σ (1[‖g‖ ≤ C] − 1/2) + N(0, σ_b²), which one contribution moves by at most
    1/2 (Andrew et al. 2021, Section 2.2).

    Args:
        norms: shape (contributions,), before clipping.
        count_noise: σ_b, standard deviation of the noise on the sum.
        expected: expected number of contributions, public (never ``len(norms)``).
    """
    centred = centred_count_below(norms, clip_norm)
    centred += count_noise * float(generator.standard_normal())
    return 0.5 + centred / expected


def next_norm(clip: Clip, clip_norm: float, share: float) -> float:
    """Geometric update C ← C·exp(−η(b̃ − γ)), their Algorithm 1, line 13."""
    return next_clip_norm(clip_norm, share, clip.quantile, clip.quantile_rate)
