"""Small networks for 32 × 32 images: MobileNet and its successor, EfficientNet-B0, ShuffleNets.

As those who compare optimizers on CIFAR-10 build them (github.com/kuangliu/pytorch-cifar, which Xu
et al. 2020 trained). Parameters are those of the published networks to the last one; docs/models.md
lists them. ``width`` multiplies every number of channels.
"""

from __future__ import annotations

import torch
from torch import nn

from forethought.models.blocks import (
    Branches,
    Gate,
    HalfBranch,
    Residual,
    Shuffle,
    conv,
    head,
    image,
    scaled,
)


def mobilenet(inputs: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """MobileNet (Howard et al. 2017): 3,217,226 parameters."""
    channels, _, _ = image("mobilenet", inputs, 8)
    wide = scaled(width)
    layers = conv(channels, wide(32), 3)
    channels = wide(32)
    strided = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5)
    for filters, stride in (*strided, (1024, 2), (1024, 1)):
        layers += conv(channels, channels, 3, stride, groups=channels)
        layers += conv(channels, wide(filters))
        channels = wide(filters)
    return nn.Sequential(*layers, *head(channels, classes))


def _inverted(before: int, after: int, expansion: int, stride: int) -> list[nn.Module]:
    """Expand, convolve each channel by itself, project (Sandler et al. 2018, Table 1)."""
    inner = expansion * before
    return (
        conv(before, inner)
        + conv(inner, inner, 3, stride, groups=inner)
        + conv(inner, after, relu=False)
    )


# (expansion, filters, blocks, stride of the first) at 32 × 32.
_INVERTED = (
    *((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2)),
    *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
)


def mobilenet_v2(inputs: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """MobileNetV2 (Sandler et al. 2018), with a projected shortcut: 2,296,922 parameters."""
    channels, _, _ = image("mobilenet-v2", inputs, 8)
    wide = scaled(width)
    layers = conv(channels, wide(32), 3)
    channels = wide(32)
    for expansion, filters, blocks, first in _INVERTED:
        for stride in (first, *[1] * (blocks - 1)):
            after = wide(filters)
            branch = nn.Sequential(*_inverted(channels, after, expansion, stride))
            projected = nn.Sequential(*conv(channels, after, relu=False))
            shortcut = None if channels == after else projected
            layers.append(Residual(branch, shortcut) if stride == 1 else branch)
            channels = after
    last = wide(1280)
    return nn.Sequential(*layers, *conv(channels, last), *head(last, classes))


# The same of EfficientNet-B0 (Tan and Le 2019, Table 1), all depthwise convolutions of 3 × 3.
_EFFICIENT = (
    *((1, 16, 1, 2), (6, 24, 2, 1), (6, 40, 2, 2), (6, 80, 3, 2)),
    *((6, 112, 3, 1), (6, 192, 4, 2), (6, 320, 1, 2)),
)


class _Gated(nn.Module):
    """A branch, gated, plus its input; where sides change, plus itself without the gate."""

    def __init__(self, before: int, after: int, expansion: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(*_inverted(before, after, expansion, stride))
        self.gate = Gate(after)
        self.shortcut: nn.Module | None = None
        if stride == 1:
            projected = nn.Sequential(*conv(before, after, relu=False))
            self.shortcut = nn.Identity() if before == after else projected

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.branch(x)
        kept = made if self.shortcut is None else self.shortcut(x)
        y: torch.Tensor = self.gate(made) + kept
        return y


def efficientnet_b0(inputs: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """EfficientNet-B0 (Tan and Le 2019) in the form of Xu et al.: 2,912,089 parameters.

    Every depthwise convolution is of 3 × 3, and ReLU stands for swish: the only form whose size is
    the 11.11 MB of their Table 2.
    """
    channels, _, _ = image("efficientnet-b0", inputs, 8)
    wide = scaled(width)
    layers = conv(channels, wide(32), 3)
    channels = wide(32)
    for expansion, filters, blocks, first in _EFFICIENT:
        for stride in (first, *[1] * (blocks - 1)):
            layers.append(_Gated(channels, wide(filters), expansion, stride))
            channels = wide(filters)
    return nn.Sequential(*layers, *head(channels, classes))


def shufflenet(inputs: tuple[int, ...], classes: int, groups: int = 2) -> nn.Module:
    """ShuffleNet (Zhang et al. 2018, Table 1), with 2 groups 887,582 and with 3 862,768 parameters.

    Args:
        groups: 2 or 3, of the convolutions of 1 × 1.
    """
    channels, _, _ = image("shufflenet", inputs, 8)
    if groups not in (2, 3):
        raise ValueError(f"shufflenet has 2 or 3 groups, not {groups!r}")
    layers = conv(channels, 24)
    channels = 24
    first = {2: 200, 3: 240}[groups]
    for after, blocks in ((first, 4), (2 * first, 8), (4 * first, 4)):
        for block in range(blocks):
            layers.append(_shuffled(channels, after, groups, strided=block == 0))
            channels = after
    return nn.Sequential(*layers, *head(channels, classes))


def _shuffled(before: int, after: int, groups: int, strided: bool) -> nn.Module:
    """One unit (Zhang et al. 2018, Figure 2 b and c): strided ones keep their pooled input."""
    out = after - before if strided else after
    inner, first = out // 4, 1 if before == 24 else groups
    branch = nn.Sequential(
        *conv(before, inner, groups=first),
        Shuffle(first),
        *conv(inner, inner, 3, 2 if strided else 1, groups=inner),
        *conv(inner, out, groups=groups, relu=False),
    )
    if not strided:
        return Residual(branch, after=nn.ReLU())
    return nn.Sequential(Branches((branch, nn.AvgPool2d(3, 2, 1))), nn.ReLU())


def shufflenet_v2(inputs: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """ShuffleNet V2 1 × (Ma et al. 2018, Table 5): 1,263,854 parameters."""
    channels, _, _ = image("shufflenet-v2", inputs, 8)
    wide = scaled(width)
    layers = conv(channels, wide(24), 3)
    channels = wide(24)
    for filters, blocks in ((116, 3), (232, 7), (464, 3)):
        half = wide(filters) // 2
        kept = conv(channels, channels, 3, 2, groups=channels, relu=False) + conv(channels, half)
        changed = (
            conv(channels, half)
            + conv(half, half, 3, 2, groups=half, relu=False)
            + conv(half, half)
        )
        layers += [Branches((nn.Sequential(*kept), nn.Sequential(*changed))), Shuffle(2)]
        for _ in range(blocks):
            unit = conv(half, half) + conv(half, half, 3, groups=half, relu=False)
            layers += [HalfBranch(nn.Sequential(*unit, *conv(half, half))), Shuffle(2)]
        channels = 2 * half
    last = wide(1024)
    return nn.Sequential(*layers, *conv(channels, last), *head(last, classes))
