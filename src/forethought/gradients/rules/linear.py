"""Linear maps: ``F.linear``, ``@``, ``addmm`` and ``bilinear``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.terms import Dense, Outer, Rule, Term, Use, register, wide


def _rows(values: Tensor) -> Tensor:
    # (B, …, n) → (B, T, n)
    return values.reshape(values.shape[0], -1, values.shape[-1])


def _linear(use: Use) -> Iterator[tuple[str, Term]]:
    # ∇W = Σ_t g_t x_tᵀ, ∇b = Σ_t g_t
    gradient = _rows(use.gradient)
    if "weight" in use.trained:
        yield "weight", Outer([(gradient, _rows(use.saved["input"]))])
    if "bias" in use.trained:
        wider = wide(gradient)
        yield "bias", Dense(wider.squeeze(1) if wider.shape[1] == 1 else wider.sum(1))


def _matmul(use: Use) -> Iterator[tuple[str, Term]]:
    if "other" in use.trained:
        left = use.saved["input"]
        if use.parameters["other"].dim() == 1:
            product = wide(left) * wide(use.gradient).unsqueeze(-1)
            yield "other", Dense(_rows(product).sum(1))
        else:
            yield "other", Outer([(_rows(left), _rows(use.gradient))])
    else:
        right, gradient = use.saved["other"], use.gradient
        if right.dim() == 2:  # an example's vector: one column
            right, gradient = right.unsqueeze(2), gradient.unsqueeze(2)
        yield "input", Outer([(_rows(gradient.mT), _rows(right.mT))])


def _one_matrix(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    if len(parameters) != 1:
        return False
    role = next(iter(parameters))
    dims = arguments[role].dim()
    return dims == 2 or (dims == 1 and role == "other")


def _addmm(use: Use) -> Iterator[tuple[str, Term]]:
    if "mat2" in use.trained:
        yield "mat2", Outer([(_rows(use.saved["mat1"]), _rows(use.gradient))])
    if "input" in use.trained:
        yield "input", Dense(use.reduced(use.gradient, "input"))


def _right_factor(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> bool:
    return "mat1" not in parameters and arguments["mat1"].dim() == 2


def _bilinear(use: Use) -> Iterator[tuple[str, Term]]:
    gradient = wide(_rows(use.gradient))
    if "weight" in use.trained:
        one, two = (wide(_rows(use.saved[name])) for name in ("input1", "input2"))
        yield "weight", Dense(torch.einsum("bto,bti,btj->boij", gradient, one, two))
    if "bias" in use.trained:
        yield "bias", Dense(gradient.sum(1))


register(
    Rule("linear", ("input", "weight", "bias"), ("weight", "bias"), ("input",), _linear), F.linear
)
register(
    Rule(
        "matmul", ("input", "other"), ("input", "other"), ("input", "other"), _matmul, _one_matrix
    ),
    torch.matmul,
    torch.mm,
    torch.mv,
    torch.Tensor.matmul,
    torch.Tensor.mm,
    torch.Tensor.mv,
    torch.Tensor.__matmul__,
)
register(
    Rule(
        "addmm",
        ("input", "mat1", "mat2"),
        ("input", "mat1", "mat2"),
        ("mat1",),
        _addmm,
        _right_factor,
    ),
    torch.addmm,
    torch.Tensor.addmm,
)
register(
    Rule(
        "bilinear",
        ("input1", "input2", "weight", "bias"),
        ("weight", "bias"),
        ("input1", "input2"),
        _bilinear,
    ),
    F.bilinear,
)
