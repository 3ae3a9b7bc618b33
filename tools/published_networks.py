"""Networks for 32 × 32 images that papers compared optimizers with, for the experiments.

VGG, GoogLeNet, ResNet, SENet, ResNeXt, MobileNets, EfficientNet-B0, ShuffleNets: as those who
compare optimizers on CIFAR-10 build them (github.com/kuangliu/pytorch-cifar, which Xu et al. 2020
trained), with no early pooling and first strides of one; and the AlexNet of van Dijk et al. (2020).
Parameters are those of the published networks to the last one; docs/models.md lists them. ``width``
multiplies every number of channels. Batch normalisation, which mixes examples, is group
normalisation everywhere (Wu and He 2018), with the same number of parameters.

A job whose folder this file lies in, or ``forethought.models.build`` where it can be imported,
takes them by name: ``resnet-18``.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from forethought.models import build
from forethought.models.networks import head, image, scaled
from forethought.models.zoo import PUBLISHED

# Fewest channels of a group: a group of one channel and one pixel would be normalised to nothing.
_CHANNELS, _GROUPS = 4, 32


def norm(channels: int) -> nn.Module:
    """Group normalisation with as many groups as divide the channels: at most 32, of 4 or more."""
    most = max(1, min(_GROUPS, channels // _CHANNELS))
    return nn.GroupNorm(max(n for n in range(1, most + 1) if channels % n == 0), channels)


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


if __name__ == "__main__":
    print("| name | parameters | MB of 2^20 bytes |\n| --- | --- | --- |")
    for name in (*PUBLISHED, "lstm-512"):
        inputs, classes = ((21, 260), 32_000) if name == "lstm-512" else ((3, 32, 32), 10)
        with torch.device("meta"):
            network = build(name, inputs=inputs, classes=classes)
        count = sum(parameter.numel() for parameter in network.parameters())
        print(f"| {name} | {count:,} | {4 * count / 2**20:.2f} |")
