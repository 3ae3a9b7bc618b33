"""Activations by name, and the tempered sigmoid that keeps private gradients small."""

from __future__ import annotations

import difflib
import math

import torch
from torch import nn


class TemperedSigmoid(nn.Module):
    """s/(1 + exp(−temp·z)) − o (Papernot et al. 2021, Section 4).

    Bounded activations bound the gradient, so that clipping loses less of it. Scale 2, temperature
    2 and offset 1, the defaults, are exactly tanh.
    """

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        for name, value in (("scale", scale), ("temperature", temperature), ("offset", offset)):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name} of a tempered sigmoid must be a number, not {value!r}")
            if not math.isfinite(value):
                raise ValueError(f"{name} of a tempered sigmoid must be finite, not {value!r}")
        if scale == 0 or temperature == 0:
            raise ValueError("a tempered sigmoid of scale or temperature 0 is a constant")
        self.scale, self.temperature, self.offset = float(scale), float(temperature), float(offset)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return self.scale * torch.sigmoid(self.temperature * z) - self.offset

    def extra_repr(self) -> str:
        return f"scale={self.scale:g}, temperature={self.temperature:g}, offset={self.offset:g}"


class Magnitude(nn.Module):
    """|z|: how strongly a filter responds, whichever way; as in scattering (Mallat 2012)."""

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
        near = difflib.get_close_matches(str(name).lower(), _ACTIVATIONS, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"unknown activation {name!r}.{hint} The choice is {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]()
