"""The models of the zoo, their activations by name, and the tempered sigmoid."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from forethought.values.checks import meant, real, whole


class TemperedSigmoid(nn.Module):
    """s/(1 + exp(−temp·z)) − o (Papernot et al. 2021, Section 4).

    Bounded activations bound the gradient, so that clipping removes less of it. The defaults (scale
    2, temperature 2, offset 1) are exactly tanh.

    Raises:
        TypeError, ValueError: not finite numbers, or a scale or temperature of 0.
    """

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        self.scale = real("scale of a tempered sigmoid", scale)
        self.temperature = real("temperature of a tempered sigmoid", temperature)
        self.offset = real("offset of a tempered sigmoid", offset)
        if self.scale == 0 or self.temperature == 0:
            raise ValueError("a tempered sigmoid of scale or temperature 0 is a constant")

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.scale * torch.sigmoid(self.temperature * z) - self.offset

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}, temperature={self.temperature:g}, offset={self.offset:g}"


class Magnitude(nn.Module):
    """|z|: the strength of a filter's response without its sign, as in scattering (Mallat 2012)."""

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z.abs()


_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "magnitude": Magnitude,
}


def by_name(name: str) -> nn.Module:
    """A new activation module.

    Raises:
        ValueError: unknown name; suggests the nearest.
    """
    if name not in _ACTIVATIONS:
        raise ValueError(
            f"unknown activation {name!r}.{meant(str(name), _ACTIVATIONS)} The choice "
            f"is {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]()


# Small convolutional networks from the papers.


def image(name: str, inputs: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """The checked shape of an image, (channels, height, width).

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


def lenet5(
    inputs: tuple[int, ...], classes: int, activation: str = "tanh", pooling: str = "average"
) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998): 61,706 parameters for 28 × 28 grey images and ten classes.

    The defaults are bounded activations and average pooling, as in the original. The first
    convolution pads by two pixels, which gives 28 × 28 images the original's 32 × 32 inputs.

    Args:
        pooling: ``"average"`` or ``"max"``.

    Raises:
        ValueError: inputs that are no images of at least 12 pixels a side, or another pooling.
    """
    channels, height, width = image("lenet5", inputs, 12)
    pools = {"average": nn.AvgPool2d, "max": nn.MaxPool2d}
    if pooling not in pools:
        raise ValueError(f"pooling must be 'average' or 'max', not {pooling!r}")
    pool = pools[pooling]
    rows, columns = ((side // 2 - 4) // 2 for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=2),
        by_name(activation),
        pool(2),
        nn.Conv2d(6, 16, 5),
        by_name(activation),
        pool(2),
        nn.Flatten(),
        nn.Linear(16 * rows * columns, 120),
        by_name(activation),
        nn.Linear(120, 84),
        by_name(activation),
        nn.Linear(84, classes),
    )


def cnn(inputs: tuple[int, ...], classes: int, activation: str = "relu") -> nn.Module:
    """Four 3 × 3 convolutions with average pooling between them, then one average per channel.

    32, 64, 64 and 128 filters (van Dijk et al. 2022, "Generalizing DP-SGD with shuffling and batch
    clipping", Appendix H): 131,466 parameters for CIFAR-10. Softmax belongs to the loss.
    """
    channels, _, _ = image("cnn", inputs, 8)
    layers: list[nn.Module] = []
    for filters in (32, 64, 64):
        layers += [nn.Conv2d(channels, filters, 3, padding=1), by_name(activation), nn.AvgPool2d(2)]
        channels = filters
    layers += [nn.Conv2d(channels, 128, 3, padding=1), by_name(activation)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


def tempered_cnn(
    inputs: tuple[int, ...],
    classes: int,
    scale: float = 2.0,
    temperature: float = 2.0,
    offset: float = 1.0,
) -> nn.Module:
    """The small network of Papernot et al. (2021) with tempered sigmoids; tanh by default.

    For images: 16 filters of 8 × 8 and 32 of 4 × 4, each with stride 2 and max pooling, and a
    hidden layer of 32 (26,010 parameters for 28 × 28 grey images). For feature maps below 14 pixels
    a side, such as scattering coefficients: 16 and 32 filters of 3 × 3, the first with stride 2,
    and the same hidden layer (Tramèr and Boneh 2021).
    """
    channels, height, width = image("tempered-cnn", inputs, 1)

    def bounded() -> nn.Module:
        return TemperedSigmoid(scale, temperature, offset)

    layers: list[nn.Module]
    if min(height, width) < 14:
        layers = [
            nn.Conv2d(channels, 16, 3, stride=2, padding=1),
            bounded(),
            nn.Conv2d(16, 32, 3, padding=1),
            bounded(),
        ]
        rows, columns = ((side + 1) // 2 for side in (height, width))
    else:
        layers = [
            nn.Conv2d(channels, 16, 8, stride=2, padding=3),
            bounded(),
            nn.MaxPool2d(2, stride=1),
            nn.Conv2d(16, 32, 4, stride=2),
            bounded(),
            nn.MaxPool2d(2, stride=1),
        ]
        # Halved to side // 2, less one for pooling, then (n − 4) // 2 + 1 less one.
        rows, columns = ((side // 2 - 5) // 2 for side in (height, width))
    hidden = nn.Linear(32 * rows * columns, 32)
    return nn.Sequential(*layers, nn.Flatten(), hidden, bounded(), nn.Linear(32, classes))


def gabor_cnn(
    inputs: tuple[int, ...],
    classes: int,
    filters: int = 16,
    kernel: int = 7,
    pooling: int = 4,
    strength: float = 3.0,
) -> nn.Module:
    """One convolution, magnitudes, average pooling and a linear layer, for few and noisy steps.

    The model has 8,650 parameters for 28 × 28 grey images, and all are trained. A private run has
    too few and too noisy steps to learn edge filters, so the filters start as Gabor functions:
    ridges and edges in ``filters`` / 2 directions. Each channel of a record is centred and scaled
    by itself (group normalisation without parameters), so that records have no common mean, and the
    input of the linear layer has norm ``strength``. The linear layer starts at 0.

    Raises:
        ValueError: an odd number of filters, an even kernel, or pooling wider than the image.
    """
    channels, height, width = image("gabor-cnn", inputs, 8)
    if filters < 2 or filters % 2:
        raise ValueError(f"filters come in pairs: give an even number of them, not {filters}")
    if kernel < 3 or kernel % 2 == 0:
        raise ValueError(f"kernel must be odd and 3 or more (images keep their size), not {kernel}")
    rows, columns = height // whole("pooling", pooling), width // pooling
    if not rows or not columns:
        raise ValueError(f"pooling = {pooling} is wider than images of {height} × {width}")
    first = nn.Conv2d(channels, filters, kernel, padding=kernel // 2)
    size = filters * rows * columns
    last = nn.Linear(size, classes)
    with torch.no_grad():
        first.weight.copy_(gabor_filters(filters, kernel) / math.sqrt(channels))
        for start in (first.bias, last.weight, last.bias):
            assert start is not None
            start.zero_()
    return nn.Sequential(
        first,
        Magnitude(),
        nn.AvgPool2d(pooling),
        nn.GroupNorm(filters, filters, affine=False),
        Scaled(strength / math.sqrt(size)),
        nn.Flatten(),
        last,
    )


def gabor_filters(filters: int, kernel: int) -> torch.Tensor:
    """Even and odd waves in ``filters`` / 2 directions under a Gaussian, mean 0, norm 1.

    Returns:
        The filters, (filters, 1, kernel, kernel): for each direction a ridge, then an edge. The
        wavelength is 0.8 of the kernel's width, the Gaussian's standard deviation 2/7 of it.
    """
    at = torch.arange(kernel) - (kernel - 1) / 2
    y, x = torch.meshgrid(at, at, indexing="ij")
    window = torch.exp(-(x * x + y * y) / (2 * (kernel / 3.5) ** 2))
    found = []
    for direction in range(filters // 2):
        angle = 2 * math.pi * direction / filters
        phase = 2 * math.pi * (x * math.cos(angle) + y * math.sin(angle)) / (0.8 * kernel)
        for wave in (torch.cos(phase), -torch.sin(phase)):
            centred = window * (wave - (window * wave).sum() / window.sum())
            found.append(centred / centred.norm())
    return torch.stack(found)[:, None]


class Scaled(nn.Module):
    """A module that multiplies its inputs by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def extra_repr(self) -> str:
        return f"{self.factor:g}"


# Models without convolutions: the linear one and the multi-layer perceptron.


def linear(
    inputs: tuple[int, ...], classes: int, outputs: int | None = None, bias: bool = True
) -> nn.Module:
    """Logistic regression (softmax for several classes), or linear regression, from zero weights.

    Args:
        outputs: number of outputs; by default one for each class. 1 with two classes is the
            ordinary logistic model: its output is the log-odds of class 1, for a binary loss.
        bias: True for an intercept.

    Raises:
        ValueError: another number of outputs.
    """
    width = classes if outputs is None else outputs
    if width not in (classes, 1) or (width == 1 and classes > 2):
        raise ValueError(
            f"linear has one output for each of the {classes} classes, or 1 output for two "
            f"classes; not outputs={outputs!r}"
        )
    layer = nn.Linear(math.prod(inputs), width, bias=bias)
    # The loss is convex, so zero is as good a start as any, and the gradient there is bounded.
    nn.init.zeros_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def additive(
    inputs: tuple[int, ...], classes: int, pieces: int = 8, pairs: bool | str = "auto"
) -> nn.Module:
    """An additive model of a declared table: a curve for each numeric column, a weight a word.

    In a job the curves are features of the table (:mod:`forethought.data.basis`), and this is the
    linear model of these features.

    Args:
        pieces: number of pieces of each curve; used by the job's features.
        pairs: surfaces over pairs of columns; used by the job's features.
    """
    return linear(inputs, classes)


def mlp(
    inputs: tuple[int, ...],
    classes: int,
    hidden: int | Sequence[int] = 128,
    activation: str = "relu",
) -> nn.Module:
    """Fully connected layers of the sizes ``hidden``, each followed by an activation.

    Raises:
        ValueError: sizes that are not whole numbers above 0, or an unknown activation.
    """
    sizes = tuple(hidden) if isinstance(hidden, Sequence) else (hidden,)
    if not sizes or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sizes):
        raise ValueError(f"hidden must be a size or several, such as [256, 128], not {hidden!r}")
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(inputs)
    for size in sizes:
        layers += [nn.Linear(width, size), by_name(activation)]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, classes))


# Networks for sequences: the bidirectional LSTM of acoustic models, and smaller versions of it.


class FrameClassifier(nn.Module):
    """A bidirectional LSTM over a sequence of frames, a linear projection, and a linear output.

    Args:
        features: numbers in a frame. classes: number of classes.
        cells: of each direction of each layer. layers: number of recurrent layers.
        projection: units of the linear projection.
        every_frame: True to classify each frame, outputs (batch, classes, frames); False to
            classify the middle frame, outputs (batch, classes).
    """

    def __init__(
        self,
        features: int,
        classes: int,
        cells: int,
        layers: int,
        projection: int,
        every_frame: bool = False,
    ) -> None:
        super().__init__()
        self.every_frame = every_frame
        self.recurrent = nn.LSTM(features, cells, layers, batch_first=True, bidirectional=True)
        self.projection = nn.Linear(2 * cells, projection)
        self.output = nn.Linear(projection, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = x if x.dim() == 3 else x.transpose(1, 2).flatten(2)
        states, _ = self.recurrent(frames)
        if not self.every_frame:
            # At the middle frame the two directions have read the context on both sides, as in
            # acoustic models.
            states = states[:, frames.shape[1] // 2]
        y: torch.Tensor = self.output(self.projection(states))
        return y.transpose(1, 2) if self.every_frame else y


def lstm(
    inputs: tuple[int, ...],
    classes: int,
    cells: int,
    layers: int = 6,
    projection: int | None = None,
    every_frame: bool = False,
) -> nn.Module:
    """A bidirectional LSTM over frames (Xu et al. 2020, Section 5.1 and Appendix B).

    With 512 cells, 260 features and 32,000 classes it is the model of the paper: 43,154,944
    parameters, 164.62 MB.

    Args:
        inputs: (frames, features), or an image, whose rows are the frames.
        cells: of each direction of each layer.
        projection: units of the projection; None: half the number of cells.
        every_frame: see :class:`FrameClassifier`.

    Raises:
        ValueError: inputs of another shape, or sizes that are not whole numbers above 0.
    """
    if len(inputs) not in (2, 3):
        raise ValueError(
            f"an LSTM takes sequences of shape (frames, features), or images row by row, not "
            f"{inputs}: for plain features use 'linear' or 'mlp'"
        )
    features = inputs[1] if len(inputs) == 2 else inputs[0] * inputs[2]
    sizes = {"cells": cells, "layers": layers, "projection": projection or max(1, cells // 2)}
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {size!r}")
    return FrameClassifier(features, classes, every_frame=every_frame, **sizes)


# Wide residual networks for private training on images, without batch normalisation.


_GROUPS = 16
# The smallest divisor: a smaller variance times number of inputs is replaced by it.
_LEAST = 1e-4


def scaled(width: float) -> Callable[[int], int]:
    """A function from published channels to those of a network ``width`` times as wide.

    The result is a multiple of 8, or the published number for a width of 1.

    Raises:
        ValueError: not a number above 0 and at most 16.
    """
    if isinstance(width, bool) or not isinstance(width, int | float) or not 0 < width <= 16:
        raise ValueError(f"width must be a number above 0 and at most 16, not {width!r}")
    if width == 1:
        return lambda channels: channels
    return lambda channels: max(8, 8 * round(width * channels / 8))


def head(channels: int, classes: int) -> list[nn.Module]:
    """The last layers of a network: the mean over all pixels, and a linear layer."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


class StandardisedConv2d(nn.Module):
    """A convolution whose filters have mean 0 and norm 1, each times a trained gain.

    This is weight standardisation (Qiao et al. 2019), scaled as by Brock, De and Smith (2021,
    Section 4.2). Padding keeps the size of the image, except for the stride.

    Args:
        before, after: channels of inputs and outputs.
        size: of the filters, odd. stride: in both directions.
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
        """The standardised filters, in the weight's shape."""
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
    """Two activated convolutions plus a shortcut; in a stage's first block it has a convolution."""

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
        return self.branch(x) + self.shortcut(x)


def wide_residual(
    depth: int, inputs: tuple[int, ...], classes: int, width: float = 1.0
) -> nn.Module:
    """WRN-depth-4, a residual network of ``depth`` layers at four times the width.

    WRN-16-4 has 2,753,818 parameters, WRN-40-4 8,961,306.
    """
    channels, _, _ = image(f"wrn-{depth}-4", inputs, 8)
    wide = scaled(width)
    layers: list[nn.Module] = [StandardisedConv2d(channels, wide(16), 3)]
    channels = wide(16)
    for filters, stride in ((64, 1), (128, 2), (256, 2)):
        for number in range((depth - 4) // 6):
            first = number == 0
            layers.append(_Block(channels, wide(filters), stride if first else 1, first))
            channels = wide(filters)
    return nn.Sequential(*layers, *_activated(channels), *head(channels, classes))


#: Name → a network of the published size; and the LSTM of six layers with fewer cells a direction.
PRESETS: dict[str, Callable[..., nn.Module]] = {
    **{f"wrn-{depth}-4": partial(wide_residual, depth) for depth in (16, 40)},
    **{f"lstm-{cells}": partial(lstm, cells=cells) for cells in (32, 128, 512)},
}
