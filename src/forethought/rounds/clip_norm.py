"""The clipping norm from round to round; only the quantile rule moves it.

Quantile rule (Andrew, Thakkar, McMahan, Ramaswamy 2021): the share of contributions within the
norm, released with noise, steers the norm geometrically to the wanted quantile. Each contribution
adds ±1/2 to the released count, so its sensitivity is half that of the sum in units of C, and
:meth:`forethought.plans.Clip.gradient_noise` takes the count's cost from the sum's noise.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from forethought.gradients.clipping import next_clip_norm
from forethought.plans import Clip


class ClipNorm(Protocol):
    """The norm that this round's contributions are clipped to."""

    value: float

    def follow(self, norms: torch.Tensor, expected: float, generator: np.random.Generator) -> None:
        """Release what the rule needs of a round's norms and set the next round's norm."""
        ...


class FixedNorm:
    """A norm set by the plan."""

    def __init__(self, clip: Clip) -> None:
        self.value = clip.norm

    def follow(self, norms: torch.Tensor, expected: float, generator: np.random.Generator) -> None:
        """Nothing to do."""


class QuantileNorm:
    """A norm that follows a quantile of the contributions' norms, privately estimated."""

    def __init__(self, clip: Clip) -> None:
        if clip.count_noise is None:
            raise ValueError("the quantile rule needs count_noise")
        self.value = clip.norm
        self._quantile, self._rate, self._noise = (
            clip.quantile,
            clip.quantile_rate,
            clip.count_noise,
        )

    def follow(self, norms: torch.Tensor, expected: float, generator: np.random.Generator) -> None:
        """Geometric update C ← C·exp(−η(b̃ − γ)), their Algorithm 1, line 13.

        The centred count is divided by the *expected* number of contributions. A non-finite norm
        counts as above the clipping norm.
        """
        within = int((norms <= self.value).sum())
        centred = within - norms.shape[0] / 2 + self._noise * float(generator.standard_normal())
        share = 0.5 + centred / expected
        self.value = next_clip_norm(self.value, share, self._quantile, self._rate)


def clip_norm(clip: Clip) -> ClipNorm:
    """The rule's norm, at its first round's value."""
    return QuantileNorm(clip) if clip.rule == "quantile" else FixedNorm(clip)
