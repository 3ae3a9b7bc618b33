"""A pass over records leaves nothing in the model: what it wrote is put back."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# Where torch keeps parameters and submodules; these a pass does not write, buffers have their own.
_INTERNAL = frozenset({"_parameters", "_modules", "_buffers"})
_CONTAINERS = (list, dict, set, deque)


@contextmanager
def undisturbed(model: torch.nn.Module) -> Iterator[None]:
    """Buffers and attributes of all modules are afterwards as they were before.

    What a forward pass writes into them comes from the records and carries no noise.
    """
    before = [
        (
            module,
            {name: (buffer, _copy(buffer)) for name, buffer in module._buffers.items()},
            {
                name: (value, _copy(value))
                for name, value in module.__dict__.items()
                if name not in _INTERNAL
            },
        )
        for module in model.modules()
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, buffers, attributes in before:
                for name in set(module.__dict__) - set(attributes) - _INTERNAL:
                    del module.__dict__[name]
                for name, (value, kept) in attributes.items():
                    module.__dict__[name] = _restored(value, kept)
                module._buffers.clear()
                module._buffers.update(
                    {name: _restored(value, kept) for name, (value, kept) in buffers.items()}
                )


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.copy(value) if isinstance(value, _CONTAINERS) else value


def _restored(value: Any, kept: Any) -> Any:
    """The same object with the content it had."""
    if isinstance(value, torch.Tensor):
        if value.shape != kept.shape:
            value.data = kept
        elif not torch.equal(value, kept):
            value.copy_(kept)
    elif isinstance(value, list | deque):
        value.clear()
        value.extend(kept)
    elif isinstance(value, dict | set):
        value.clear()
        value.update(kept)
    return value
