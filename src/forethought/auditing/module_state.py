"""The state that a module holds besides its parameters, so that a change of it is seen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

# What torch itself keeps in a module's dictionary; buffers and parameters are read by name.
_OWN = frozenset(nn.Module().__dict__) - {"training"}


def state_of(model: nn.Module) -> dict[str, Any]:
    """Every buffer and plain attribute by its full name, as values that can be compared."""
    found: dict[str, Any] = {}
    for name, buffer in model.named_buffers():
        found[f"buffer {name}"] = _frozen(buffer)
    for place, module in model.named_modules():
        for name, value in module.__dict__.items():
            if name not in _OWN and not isinstance(value, nn.Module | nn.Parameter):
                where = f"{place}.{name}" if place else name
                found[f"attribute {where}"] = _frozen(value)
    return found


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names of what is new, gone or different."""
    return sorted(
        name
        for name in {*before, *after}
        if name not in before or name not in after or before[name] != after[name]
    )


def _frozen(value: Any, depth: int = 0) -> Any:
    if isinstance(value, torch.Tensor):
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return (str(value.dtype), tuple(value.shape), content)
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, bool | int | float | complex | str | bytes | type(None)):
        return repr(value)
    if depth < 4:
        if isinstance(value, Mapping):
            return tuple((repr(key), _frozen(inner, depth + 1)) for key, inner in value.items())
        if isinstance(value, list | tuple):
            return tuple(_frozen(inner, depth + 1) for inner in value)
        if isinstance(value, set | frozenset):
            return tuple(sorted(repr(inner) for inner in value))
    return id(value)
