"""Convolutions of one to three dimensions, with every argument, and their transposes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.patches import Convolved, Window
from forethought.gradients.terms import Dense, Rule, Term, Use, register, wide

_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups")


def _each(value: Any, dims: int, default: int) -> tuple[int, ...]:
    value = default if value is None else value
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * (dims if len(value) == 1 else 1)


def _images(value: Tensor, dims: int) -> tuple[Tensor, int]:
    # (B·several, C, *space), and how many images a lane has: a batch, or one without a dimension
    # for it.
    if value.dim() == dims + 2:
        return value, 1
    return value.flatten(0, 1), value.shape[1]


def _bias(use: Use) -> Dense:
    channels = use.parameters["bias"].shape[0]
    gradient = wide(use.gradient)
    before = gradient.shape[1] if gradient.dim() == use.parameters["weight"].dim() + 1 else 1
    shape = (gradient.shape[0], before, channels, -1)
    return Dense(gradient.reshape(shape).sum((1, 3)))


def _convolution(use: Use) -> Iterator[tuple[str, Term]]:
    if "bias" in use.trained:
        yield "bias", _bias(use)
    if "weight" not in use.trained:
        return
    weight, given = use.parameters["weight"], use.arguments
    dims = weight.dim() - 2
    stride = _each(given.get("stride"), dims, 1)
    dilation = _each(given.get("dilation"), dims, 1)
    image, several = _images(use.saved["input"], dims)
    padding = given.get("padding", 0)
    if padding == "same":
        sides: list[int] = []
        for size, step in zip(reversed(weight.shape[2:]), reversed(dilation), strict=True):
            total = step * (size - 1)
            sides += [total // 2, total - total // 2]
        image, padding = F.pad(image, sides), 0
    elif padding == "valid":
        padding = 0
    window = Window(tuple(weight.shape[2:]), stride, _each(padding, dims, 0), dilation)
    gradient, _ = _images(use.gradient, dims)
    yield "weight", Convolved(image, gradient, window, given.get("groups", 1), several)


def _transposed(use: Use) -> Iterator[tuple[str, Term]]:
    # The transpose of a convolution has the same weight gradient with input and output swapped.
    if "bias" in use.trained:
        yield "bias", _bias(use)
    if "weight" not in use.trained:
        return
    weight, given = use.parameters["weight"], use.arguments
    dims = weight.dim() - 2
    window = Window(
        tuple(weight.shape[2:]),
        _each(given.get("stride"), dims, 1),
        _each(given.get("padding"), dims, 0),
        _each(given.get("dilation"), dims, 1),
    )
    image, several = _images(use.gradient, dims)
    gradient, _ = _images(use.saved["input"], dims)
    yield "weight", Convolved(image, gradient, window, given.get("groups", 1), several)


for _name in ("conv1d", "conv2d", "conv3d"):
    register(
        Rule(_name, _ARGUMENTS, ("weight", "bias"), ("input",), _convolution),
        getattr(torch, _name),
    )
for _name in ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"):
    register(
        Rule(
            _name,
            (*_TRANSPOSED, "dilation"),
            ("weight", "bias"),
            ("input",),
            _transposed,
        ),
        getattr(torch, _name),
    )
