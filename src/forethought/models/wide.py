"""Wide residual networks as private training on images has them: no batch normalisation.

Zagoruyko and Komodakis (2016), in the form of De, Berrada, Hayes, Smith and Balle (2022): group
normalisation in 16 groups, convolutions with standardised weights, a gain and a bias for each
filter, and activations before normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from forethought.models.convolutional import image

_GROUPS = 16
# Below this, variance times inputs is not divided by.
_LEAST = 1e-4


def scaled(width: float) -> Callable[[int], int]:
    """Channels of a network ``width`` times as wide: multiples of 8, or as published for 1.

    Raises:
        ValueError: not a number above 0.
    """
    if isinstance(width, bool) or not isinstance(width, int | float) or not 0 < width <= 16:
        raise ValueError(f"width must be a number above 0 and at most 16, not {width!r}")
    if width == 1:
        return lambda channels: channels
    return lambda channels: max(8, 8 * round(width * channels / 8))


def head(channels: int, classes: int) -> list[nn.Module]:
    """The mean over all pixels, and a linear layer."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


class StandardisedConv2d(nn.Module):
    """A convolution whose filters have mean 0 and length 1, times a trained gain each.

    Weight standardisation (Qiao et al. 2019) scaled as by Brock, De and Smith (2021, Section 4.2).
    The sides are kept, but for the stride.

    Args:
        before, after: channels. size: of the filters, odd. stride: of both sides.
    """

    def __init__(self, before: int, after: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.padding = stride, size // 2
        inputs = before * size * size
        self.weight = nn.Parameter(torch.empty(after, before, size, size))
        self.gain = nn.Parameter(torch.ones(after))
        self.bias = nn.Parameter(torch.zeros(after))
        nn.init.trunc_normal_(
            self.weight, std=inputs**-0.5, a=-2 * inputs**-0.5, b=2 * inputs**-0.5
        )

    def standardised(self) -> torch.Tensor:
        """The filters that are applied, of the weight's shape."""
        rows = self.weight.flatten(1)
        variance, mean = torch.var_mean(rows, 1, correction=0, keepdim=True)
        scale = (variance * rows.shape[1]).clamp(min=_LEAST).rsqrt() * self.gain.unsqueeze(1)
        return ((rows - mean) * scale).view_as(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(x, self.standardised(), self.bias, self.stride, self.padding)

    def extra_repr(self) -> str:
        after, before, size, _ = self.weight.shape
        return f"{before}, {after}, size={size}, stride={self.stride}"


def _activated(channels: int) -> list[nn.Module]:
    return [nn.ReLU(), nn.GroupNorm(math.gcd(_GROUPS, channels), channels)]


class _Block(nn.Module):
    """Two activated convolutions beside a shortcut, which the first block of a stage convolves."""

    def __init__(self, before: int, after: int, stride: int, first: bool) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *_activated(before),
            StandardisedConv2d(before, after, 3, stride),
            *_activated(after),
            StandardisedConv2d(after, after, 3),
        )
        short = [*_activated(before), StandardisedConv2d(before, after, 1, stride)]
        self.shortcut = nn.Sequential(*short) if first else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.branch(x) + self.shortcut(x)
        return y


def _wide(name: str, depth: int, inputs: tuple[int, ...], classes: int, width: float) -> nn.Module:
    channels, _, _ = image(name, inputs, 8)
    wide = scaled(width)
    layers: list[nn.Module] = [StandardisedConv2d(channels, wide(16), 3)]
    channels = wide(16)
    for filters, stride in ((64, 1), (128, 2), (256, 2)):
        for number in range((depth - 4) // 6):
            first = number == 0
            layers.append(_Block(channels, wide(filters), stride if first else 1, first))
            channels = wide(filters)
    return nn.Sequential(*layers, *_activated(channels), *head(channels, classes))


def wrn_16_4(inputs: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """WRN-16-4, four times as wide as a residual network of 16 layers: 2,753,818 parameters."""
    return _wide("wrn-16-4", 16, inputs, classes, width)


def wrn_40_4(inputs: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """WRN-40-4, of 40 layers: 8,961,306 parameters."""
    return _wide("wrn-40-4", 40, inputs, classes, width)
