"""Deep networks for 32 × 32 images: VGG, GoogLeNet, ResNet, SENet, ResNeXt, AlexNet.

As those who compare optimizers on CIFAR-10 build them (github.com/kuangliu/pytorch-cifar, which Xu
et al. 2020 trained): no early pooling, first strides of one. Parameters are those of the published
networks to the last one; docs/models.md lists them. ``width`` multiplies every number of channels.
"""

from __future__ import annotations

import torch
from torch import nn

from forethought.models.blocks import Branches, Gate, Residual, conv, head, image, norm, scaled

# (filters, stride) of the eight blocks of networks of 18 layers.
_STAGES = (
    *((64, 1), (64, 1), (128, 2), (128, 1)),
    *((256, 2), (256, 1), (512, 2), (512, 1)),
)


def vgg19(inputs: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """VGG-19 (Simonyan and Zisserman 2015) with one linear layer: 20,040,522 parameters."""
    channels, _, _ = image("vgg-19", inputs, 8)
    wide = scaled(width)
    layers: list[nn.Module] = []
    for filters, depth in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(depth):
            layers += conv(channels, wide(filters), 3, bias=True)
            channels = wide(filters)
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    return nn.Sequential(*layers, *head(channels, classes))


def alexnet(
    inputs: tuple[int, ...], classes: int, width: float = 1.0, dropout: float = 0.0
) -> nn.Module:
    """AlexNet (Krizhevsky et al. 2012) at 32 × 32: 23,272,266 parameters.

    The one that van Dijk et al. (2020) trained on CIFAR-10 (github.com/icpm/pytorch-cifar10); it
    has no normalisation. Its ``dropout`` of 0.5 is off by default: noise regularises already.
    """
    channels, _, _ = image("alexnet", inputs, 8)
    wide = scaled(width)
    layers: list[nn.Module] = []
    for filters, stride, pooled in (
        (64, 2, True),
        (192, 1, True),
        (384, 1, False),
        (256, 1, False),
        (256, 1, True),
    ):
        layers += [nn.Conv2d(channels, wide(filters), 3, stride, 1), nn.ReLU()]
        layers += [nn.MaxPool2d(2, ceil_mode=True)] if pooled else []
        channels = wide(filters)
    hidden = wide(4096)
    return nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(4 * channels, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


# Outputs of the branches 1 × 1, 3 × 3, 5 × 5 (two of 3 × 3) and pooling, with the reductions before
# the second and the third (Szegedy et al. 2015, Table 1); None: pooling.
_INCEPTIONS = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


def googlenet(inputs: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """GoogLeNet (Szegedy et al. 2015) without its side outputs: 6,166,250 parameters."""
    channels, _, _ = image("googlenet", inputs, 8)
    wide = scaled(width)
    layers = conv(channels, wide(192), 3, bias=True)
    channels = wide(192)
    for filters in _INCEPTIONS:
        if filters is None:
            layers.append(nn.MaxPool2d(3, 2, 1))
            continue
        one, three_in, three, five_in, five, pool = (wide(n) for n in filters)
        fives = (
            conv(channels, five_in, bias=True)
            + conv(five_in, five, 3, bias=True)
            + conv(five, five, 3, bias=True)
        )
        pooled = [nn.MaxPool2d(3, 1, 1), *conv(channels, pool, bias=True)]
        branches = (
            conv(channels, one, bias=True),
            conv(channels, three_in, bias=True) + conv(three_in, three, 3, bias=True),
            fives,
            pooled,
        )
        layers.append(Branches(nn.Sequential(*branch) for branch in branches))
        channels = one + three + five + pool
    return nn.Sequential(*layers, *head(channels, classes))


def resnet18(inputs: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """ResNet-18 (He et al. 2016): 11,173,962 parameters."""
    channels, _, _ = image("resnet-18", inputs, 8)
    wide = scaled(width)
    layers = conv(channels, wide(64), 3)
    channels = wide(64)
    for filters, stride in _STAGES:
        after = wide(filters)
        branch = conv(channels, after, 3, stride) + conv(after, after, 3, relu=False)
        short = conv(channels, after, 1, stride, relu=False)
        same = stride == 1 and channels == after
        shortcut = None if same else nn.Sequential(*short)
        layers.append(Residual(nn.Sequential(*branch), shortcut, nn.ReLU()))
        channels = after
    return nn.Sequential(*layers, *head(channels, classes))


class _Activated(nn.Module):
    """Normalised and activated first, for the branch and for a shortcut that changes shapes."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.activate = nn.Sequential(norm(before), nn.ReLU())
        self.branch = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            norm(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            Gate(after),
        )
        same = stride == 1 and before == after
        self.shortcut = None if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activated = self.activate(x)
        kept = x if self.shortcut is None else self.shortcut(activated)
        y: torch.Tensor = self.branch(activated) + kept
        return y


def senet18(inputs: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """SENet-18 (Hu et al. 2018), activations first (He et al. 2016b): 11,260,354 parameters."""
    channels, _, _ = image("senet-18", inputs, 8)
    wide = scaled(width)
    layers = conv(channels, wide(64), 3)
    channels = wide(64)
    for filters, stride in _STAGES:
        layers.append(_Activated(channels, wide(filters), stride))
        channels = wide(filters)
    return nn.Sequential(*layers, *head(channels, classes))


def resnext29(inputs: tuple[int, ...], classes: int, width: float = 1.0) -> nn.Module:
    """ResNeXt-29, 2 × 64d (Xie et al. 2017): 9,128,778 parameters."""
    channels, _, _ = image("resnext-29", inputs, 8)
    wide = scaled(width)
    layers = conv(channels, wide(64), 1)
    channels = wide(64)
    for filters, first in ((128, 1), (256, 2), (512, 2)):
        inner, after = wide(filters), 2 * wide(filters)
        for stride in (first, 1, 1):
            branch = (
                conv(channels, inner)
                + conv(inner, inner, 3, stride, groups=2)
                + conv(inner, after, relu=False)
            )
            same = stride == 1 and channels == after
            short = None if same else nn.Sequential(*conv(channels, after, 1, stride, relu=False))
            layers.append(Residual(nn.Sequential(*branch), short, nn.ReLU()))
            channels = after
    return nn.Sequential(*layers, *head(channels, classes))
