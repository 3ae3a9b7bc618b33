"""Convolutions of one to three dimensions, with every argument, and their transposes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.patches import Convolved, Window
from forethought.gradients.registry import Rule, Use, register
from forethought.gradients.terms import Dense, Term, wide

_ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups")


def _each(value: Any, dims: int, default: int) -> tuple[int, ...]:
    value = default if value is None else value
    if isinstance(value, int):
        return (value,) * dims
    return tuple(value) * (dims if len(value) == 1 else 1)


def _images(use: Use, value: Tensor) -> Tensor:
    # (B·several, C, *space)
    return value.flatten(0, 1) if use.folded else value


def _bias(use: Use) -> Dense:
    gradient = wide(use.gradient)
    if use.folded:
        gradient = gradient.movedim(2, 1)
    return Dense(gradient.flatten(2).sum(2))


def _convolution(use: Use) -> Iterator[tuple[str, Term]]:
    if "bias" in use.parameters:
        yield "bias", _bias(use)
    if "weight" not in use.parameters:
        return
    weight, given = use.parameters["weight"], use.arguments
    dims = weight.dim() - 2
    stride = _each(given.get("stride"), dims, 1)
    dilation = _each(given.get("dilation"), dims, 1)
    image, padding = _images(use, use.saved["input"]), given.get("padding", 0)
    if padding == "same":
        sides: list[int] = []
        for size, step in zip(reversed(weight.shape[2:]), reversed(dilation), strict=True):
            total = step * (size - 1)
            sides += [total // 2, total - total // 2]
        image, padding = F.pad(image, sides), 0
    elif padding == "valid":
        padding = 0
    window = Window(tuple(weight.shape[2:]), stride, _each(padding, dims, 0), dilation)
    several = use.gradient.shape[1] if use.folded else 1
    groups = given.get("groups", 1)
    yield "weight", Convolved(image, _images(use, use.gradient), window, groups, several)


def _transposed(use: Use) -> Iterator[tuple[str, Term]]:
    # The transpose of a convolution has the same weight gradient with input and output swapped.
    if "bias" in use.parameters:
        yield "bias", _bias(use)
    if "weight" not in use.parameters:
        return
    weight, given = use.parameters["weight"], use.arguments
    dims = weight.dim() - 2
    window = Window(
        tuple(weight.shape[2:]),
        _each(given.get("stride"), dims, 1),
        _each(given.get("padding"), dims, 0),
        _each(given.get("dilation"), dims, 1),
    )
    several = use.gradient.shape[1] if use.folded else 1
    image, gradient = _images(use, use.gradient), _images(use, use.saved["input"])
    yield "weight", Convolved(image, gradient, window, given.get("groups", 1), several)


def _batched(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    # An image without a batch dimension could only be shared by all examples.
    dims: int = arguments["input"].dim()
    return bool(dims == arguments["weight"].dim())


for _name in ("conv1d", "conv2d", "conv3d"):
    register(
        Rule(_name, _ARGUMENTS, ("weight", "bias"), ("input",), _convolution, _batched),
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
            _batched,
        ),
        getattr(torch, _name),
    )
