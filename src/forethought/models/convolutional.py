"""Small convolutional networks from the papers."""

from __future__ import annotations

import math

import torch
from torch import nn

from forethought.models.activations import Magnitude, TemperedSigmoid, by_name


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


def lenet5(
    inputs: tuple[int, ...], classes: int, activation: str = "tanh", pooling: str = "average"
) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998): 61,706 parameters for 28 × 28 grey images and ten classes.

    Bounded activations and average pooling, as in the original. The first convolution pads by two
    pixels, which stands for the original's 32 × 32 inputs. ``pooling`` may be ``"max"``.
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
    """Four convolutions of 3 × 3 with average pooling between, then one average per channel.

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

    8,650 parameters for 28 × 28 grey images, all of them trained. What little a private run can
    tell the filters is not needed to find edges: they start as Gabor functions, ridges and edges in
    ``filters`` / 2 directions. Each channel of a record is centred and scaled by itself (group
    normalisation without parameters), so that no direction is shared by all records, and what the
    linear layer sees has norm ``strength``. That layer starts at 0.

    Raises:
        ValueError: an odd number of filters, an even kernel, or pooling wider than the image.
    """
    channels, height, width = image("gabor-cnn", inputs, 8)
    if filters < 2 or filters % 2:
        raise ValueError(f"filters come in pairs: give an even number of them, not {filters}")
    if kernel < 3 or kernel % 2 == 0:
        raise ValueError(f"kernel must be odd and 3 or more (images keep their size), not {kernel}")
    rows, columns = height // pooling, width // pooling
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
        (filters, 1, kernel, kernel): a direction's ridge, then its edge. The wave is 0.8 kernels
        long, the Gaussian's deviation 2/7 of one.
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
    """Inputs times a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def extra_repr(self) -> str:
        return f"{self.factor:g}"
