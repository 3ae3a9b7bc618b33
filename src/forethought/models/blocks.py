"""What the convolutional networks are built of: normalised convolutions, gates, shuffles, branches.

Batch normalisation, which mixes examples, is group normalisation everywhere (Wu and He 2018), with
the same number of parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

# Fewest channels of a group: a group of one channel and one pixel would be normalised to nothing.
_CHANNELS, _GROUPS = 4, 32


def norm(channels: int) -> nn.Module:
    """Group normalisation with as many groups as divide the channels: at most 32, of 4 or more."""
    most = max(1, min(_GROUPS, channels // _CHANNELS))
    return nn.GroupNorm(max(n for n in range(1, most + 1) if channels % n == 0), channels)


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


def conv(
    before: int,
    after: int,
    size: int = 1,
    stride: int = 1,
    groups: int = 1,
    *,
    bias: bool = False,
    relu: bool = True,
) -> list[nn.Module]:
    """A convolution that keeps the sides (but for its stride), normalised, with or without ReLU."""
    layer = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=bias)
    return [layer, norm(after), *([nn.ReLU()] if relu else [])]


def head(channels: int, classes: int) -> list[nn.Module]:
    """The mean over all pixels, and a linear layer."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


class Gate(nn.Module):
    """Squeeze and excitation (Hu et al. 2018): channels weighted by what the whole image shows."""

    def __init__(self, channels: int, share: int = 16) -> None:
        super().__init__()
        inner = max(1, channels // share)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, inner, 1),
            nn.ReLU(),
            nn.Conv2d(inner, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x * self.gate(x)
        return y


class Residual(nn.Module):
    """A branch and a shortcut, added; ``after`` is applied to their sum."""

    def __init__(
        self, branch: nn.Module, shortcut: nn.Module | None = None, after: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = nn.Identity() if shortcut is None else shortcut
        self.after = nn.Identity() if after is None else after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.after(self.branch(x) + self.shortcut(x))
        return y


class Branches(nn.ModuleList):
    """Every branch's channels, side by side."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self], 1)


class HalfBranch(nn.Module):
    """The second half of the channels through a branch; the first half as it is."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, changed = x.chunk(2, 1)
        return torch.cat([kept, self.branch(changed)], 1)


class Shuffle(nn.Module):
    """Channels dealt out over groups in turn (Zhang et al. 2018, Figure 1)."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.channel_shuffle(x, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


def image(name: str, inputs: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """(channels, height, width) of an image.

    Raises:
        ValueError: another shape, or a side below ``least`` pixels.
    """
    if len(inputs) != 3:
        raise ValueError(
            f"{name} takes images of shape (channels, height, width), not {inputs}: "
            "for plain features use 'linear' or 'mlp'"
        )
    channels, height, width = inputs
    if min(height, width) < least:
        raise ValueError(
            f"{name} needs images of at least {least} pixels a side, not {height} × {width}: use "
            "'linear', 'mlp' or 'tempered-cnn'"
        )
    return channels, height, width
