"""What a call of a torch function does: writes to its argument, draws numbers, makes a tensor."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch.nn import functional as F

FRESH = frozenset(
    {
        torch.zeros,
        torch.ones,
        torch.empty,
        torch.full,
        torch.zeros_like,
        torch.ones_like,
        torch.empty_like,
        torch.full_like,
        torch.arange,
        torch.eye,
        torch.tensor,
        torch.clone,
        torch.Tensor.clone,
        torch.Tensor.new_zeros,
        torch.Tensor.new_ones,
        torch.Tensor.new_empty,
        torch.Tensor.new_full,
        torch.Tensor.new_tensor,
    }
)
# What they return is whatever was in memory, until something is written there.
UNSET = frozenset({torch.empty, torch.empty_like, torch.Tensor.new_empty})
DROPOUTS = frozenset({F.dropout, torch.dropout, F.alpha_dropout, F.feature_alpha_dropout})


def own_operator(func: Any) -> bool:
    """Whether an operator is none of torch's, and may have a batching rule of its own."""
    return operator_name(func).partition("::")[0] not in ("aten", "prims", "prim")


def operator_name(func: Any) -> str:
    """The name by which an operator is registered."""
    return str(func._qualified_op_name if hasattr(func, "_qualified_op_name") else func.name())


@cache
def opened(function: FunctionType) -> FunctionType:
    """A copy of a Python function that does not hand itself over to the mode as a whole.

    The functions inside it are then caught one by one.
    """

    def never(*_: Any) -> bool:
        return False

    asked = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    scope = {**function.__globals__, **dict.fromkeys(asked, never)}
    copy = FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def writes(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a function changes its first argument."""
    name: str = getattr(func, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        return name != "requires_grad_"
    return name == "__setitem__" or name in _INPLACE or kwargs.get("out") is not None


@cache
def _place_of_inplace(function: FunctionType) -> int:
    names = [*inspect.signature(function).parameters]
    return names.index("inplace") if "inplace" in names else -1


def changes(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call changes its first argument, ``inplace=True`` included."""
    known = _WRITES.get(func)
    if known is None:
        known = _WRITES[func] = writes(func, {})
    if known or kwargs.get("out") is not None or kwargs.get("inplace"):
        return True
    if isinstance(func, FunctionType) and func.__globals__ is vars(F):
        place = _place_of_inplace(func)
        return 0 < place < len(args) and bool(args[place])
    return False


_WRITES: dict[Any, bool] = {}
_INPLACE = frozenset(
    f"__i{name}__"
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"),
        *("and", "or", "xor", "lshift", "rshift"),
    )
)
