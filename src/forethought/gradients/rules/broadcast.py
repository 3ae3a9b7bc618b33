"""Parameters that are added, multiplied or expanded: biases, scales, positions, class tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from forethought.gradients.place import Slot
from forethought.gradients.registry import Rule, Use, register
from forethought.gradients.terms import Dense, Term, wide


def _aligned(use: Use, name: str) -> Tensor:
    # The other operand, in the output's rank: its missing dimensions go behind the batch.
    value = wide(use.saved[name])
    missing = use.gradient.dim() - value.dim()
    return value.reshape(value.shape[0], *(1,) * missing, *value.shape[1:])


def _elementwise(
    slope: Callable[[Use, str, str], Tensor],
) -> Callable[[Use], Iterator[tuple[str, Term]]]:
    def gradients(use: Use) -> Iterator[tuple[str, Term]]:
        for role in use.parameters:
            other = "input" if role == "other" else "other"
            yield role, Dense(use.reduced(slope(use, role, other), role))

    return gradients


def _plus(use: Use, role: str, other: str) -> Tensor:
    return use.gradient


def _minus(use: Use, role: str, other: str) -> Tensor:
    return -use.gradient if role == "other" else use.gradient


def _times(use: Use, role: str, other: str) -> Tensor:
    return wide(use.gradient) * _aligned(use, other)


def _over(use: Use, role: str, other: str) -> Tensor:
    value = _aligned(use, other)
    if role == "input":
        return wide(use.gradient) / value
    divisor = wide(use.parameters[role])
    rank = use.gradient.dim() - (0 if use.folded else 1)
    padded = divisor.reshape((1,) * (rank - divisor.dim()) + tuple(divisor.shape))
    if not use.folded:
        # The output without its batch dimension, which the divisor has no entries along.
        at = use.batch_dim
        whole = divisor.reshape((1,) * (rank + 1 - divisor.dim()) + tuple(divisor.shape))
        padded = whole.squeeze(at)
    return -wide(use.gradient) * value / padded.square()


def _one_tensor(arguments: Mapping[str, Any], parameters: Mapping[str, Slot]) -> bool:
    other = "input" if "other" in parameters else "other"
    return len(parameters) == 1 and isinstance(arguments.get(other), Tensor)


def _expand(use: Use) -> Iterator[tuple[str, Term]]:
    yield "input", Dense(use.reduced(use.gradient, "input"))


def _prelu(use: Use) -> Iterator[tuple[str, Term]]:
    # ∂/∂w of max(0, x) + w·min(0, x); one weight, or one a channel (dimension 1 of the input).
    product = wide(use.gradient) * wide(use.saved["input"]).clamp(max=0)
    size = use.parameters["weight"].numel()
    if size == 1:
        yield "weight", Dense(product.flatten(1).sum(1, keepdim=True))
    else:
        if use.folded:
            product = product.movedim(1, -1)
        yield "weight", Dense(product.flatten(2).sum(2))


def _operands(*saved: str) -> dict[str, Any]:
    return {
        "signature": ("input", "other"),
        "parameters": ("input", "other"),
        "saved": saved,
        "accepts": _one_tensor,
    }


T = torch.Tensor
register(
    Rule("add", gradients=_elementwise(_plus), **_operands()),
    torch.add,
    T.add,
    T.__add__,
    T.__radd__,
)
register(Rule("sub", gradients=_elementwise(_minus), **_operands()), torch.sub, T.sub, T.__sub__)
register(
    Rule("mul", gradients=_elementwise(_times), **_operands("input", "other")),
    torch.mul,
    T.mul,
    T.__mul__,
    T.__rmul__,
)
register(
    Rule("div", gradients=_elementwise(_over), **_operands("input", "other")),
    torch.div,
    T.div,
    T.__truediv__,
)
# Sizes come as one sequence or one by one; only the parameter matters here.
register(
    Rule("expand", ("input", *"abcdefgh"), ("input",), (), _expand),
    T.expand,
    T.expand_as,
    torch.broadcast_to,
    T.broadcast_to,
)
register(Rule("prelu", ("input", "weight"), ("weight",), ("input",), _prelu), torch.prelu)
