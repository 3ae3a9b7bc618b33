"""What a model keeps between passes: put back after every pass, whatever the pass wrote.

A pass writes what it computed from private records, without noise. Values are compared, not
versions only, since writes through NumPy leave no trace.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forethought.gradients.control import Refused

_INTERNAL = ("_parameters", "_buffers", "_modules")
_CONTAINERS = (list, dict, set, deque, OrderedDict)


def _copied(value: Any, depth: int = 4) -> Any:
    """The value with tensors and built-in containers copied; anything else as it is."""
    if isinstance(value, nn.Parameter):
        return value
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if depth and type(value) in (list, tuple, deque):
        return [_copied(leaf, depth - 1) for leaf in value]
    if depth and type(value) in (dict, OrderedDict):
        return {key: _copied(leaf, depth - 1) for key, leaf in value.items()}
    if type(value) is set:
        return set(value)
    return value


def _same(value: Any, kept: Any, depth: int = 4) -> bool:
    if isinstance(value, nn.Parameter):
        return value is kept
    if isinstance(value, Tensor):
        return (
            isinstance(kept, Tensor)
            and value.shape == kept.shape
            and value.dtype == kept.dtype
            and _equal(value.detach(), kept)
        )
    if isinstance(value, np.ndarray):
        return isinstance(kept, np.ndarray) and np.array_equal(value, kept, equal_nan=True)
    if depth and type(value) in (list, tuple, deque):
        return (
            isinstance(kept, list)
            and len(value) == len(kept)
            and all(_same(one, two, depth - 1) for one, two in zip(value, kept, strict=True))
        )
    if depth and type(value) in (dict, OrderedDict):
        return (
            isinstance(kept, dict)
            and value.keys() == kept.keys()
            and all(_same(value[key], kept[key], depth - 1) for key in value)
        )
    if type(value) is set:
        return bool(value == kept)
    return value is kept or (type(value) is type(kept) and _plainly_equal(value, kept))


def _equal(one: Tensor, other: Tensor) -> bool:
    return bool(torch.equal(one, other)) or (
        one.is_floating_point()
        and bool(torch.equal(one.isnan(), other.isnan()))
        and bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
    )


def _plainly_equal(value: Any, kept: Any) -> bool:
    return isinstance(value, int | float | str | bool | complex | bytes) and bool(value == kept)


def _restore(value: Any, kept: Any) -> Any:
    """The original object with its kept content."""
    if isinstance(value, nn.Parameter) or value is kept:
        return value
    with torch.no_grad():
        if isinstance(value, Tensor):
            if value.shape != kept.shape:
                value.resize_(kept.shape)
            if not _equal(value.detach(), kept):
                value.detach().copy_(kept)
        elif isinstance(value, np.ndarray):
            value[...] = kept
        elif type(value) in (list, deque):
            value.clear()
            value.extend(kept)
        elif type(value) in (dict, OrderedDict) or type(value) is set:
            value.clear()
            value.update(kept)
    return value


class State:
    """A snapshot of everything that modules hold: attributes, buffers, submodules, parameters.

    Args:
        model: its modules' attributes, with built-in containers inside them, are kept by value.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules = []
        for name, module in model.named_modules():
            attributes = dict(module.__dict__)
            tables = {table: dict(attributes.pop(table)) for table in _INTERNAL}
            buffers = {
                key: (value, None if value is None else value.detach().clone())
                for key, value in tables["_buffers"].items()
            }
            held = {
                key: (value, _copied(value))
                for key, value in attributes.items()
                if isinstance(value, Tensor | np.ndarray | tuple | list | dict | set | deque)
            }
            self._modules.append((name, module, attributes, tables, buffers, held))
        self._parameters = [(n, p, p._version, p.data_ptr()) for n, p in model.named_parameters()]

    def changes(self) -> dict[str, Any]:
        """Where the model differs from the snapshot: ``module.attribute`` → what is there now."""
        owners = {name: module for name, module, *_ in self._modules}
        found = {}
        for label in self._changed():
            path, _, key = label.rpartition(".")
            owner = owners.get(path, self._model)
            found[label] = _copied(getattr(owner, key, None))
        return found

    def _changed(self) -> list[str]:
        found = []
        for name, module, attributes, tables, buffers, held in self._modules:
            now = module.__dict__
            label = f"{name}." if name else ""
            if len(now) != len(attributes) + len(_INTERNAL):
                found += [
                    label + key
                    for key in {*now, *attributes} - {*now}.intersection(attributes)
                    if key not in _INTERNAL
                ]
            for key, value in attributes.items():
                current = now.get(key, _MISSING)
                if current is not value and not (
                    current is not _MISSING and _plainly_equal(current, value)
                ):
                    found.append(label + key)
            for table in _INTERNAL:
                current, before = now[table], tables[table]
                if len(current) != len(before) or any(
                    current.get(key, _MISSING) is not value for key, value in before.items()
                ):
                    found += [
                        label + key
                        for key in {*current, *before}
                        if current.get(key, _MISSING) is not before.get(key, _MISSING)
                    ]
            found += [
                label + key
                for key, (value, kept) in buffers.items()
                if value is not None and not _same(value, kept)
            ]
            found += [label + key for key, (value, kept) in held.items() if not _same(value, kept)]
        found += [
            name
            for name, parameter, version, place in self._parameters
            if parameter._version != version or parameter.data_ptr() != place
        ]
        return list(dict.fromkeys(found))

    def restore(self) -> None:
        """Put everything back; parameters, whose values are not kept, are left as they are."""
        for _, module, attributes, tables, buffers, held in self._modules:
            now = module.__dict__
            for value, kept in (*buffers.values(), *held.values()):
                if value is not None and not _same(value, kept):
                    _restore(value, kept)
            for key in [key for key in now if key not in attributes and key not in _INTERNAL]:
                del now[key]
            now.update(attributes)
            for table in _INTERNAL:
                current, before = now[table], tables[table]
                if len(current) != len(before) or any(
                    current.get(key, _MISSING) is not value for key, value in before.items()
                ):
                    current.clear()
                    current.update(before)

    def parameters_changed(self) -> list[str]:
        """Names of parameters that were written to."""
        return [n for n, p, version, _ in self._parameters if p._version != version]


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two passes changed the model in the same way."""
    return _same(one, other)


def changes_itself(changed: Iterable[str], why: str) -> Refused:
    """The refusal of a model that changes itself."""
    return Refused(
        f"the model changes itself while it runs: {', '.join([*changed][:5])} {why}; compute it "
        "from the example alone, or keep it fixed during private training"
    )


_MISSING = object()


class Generators:
    """The states of the generators that a forward pass may draw from."""

    def __init__(self, devices: list[torch.device]) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = {d: torch.cuda.get_rng_state(d) for d in devices if d.type == "cuda"}
        self._python = random.getstate()
        self._numpy = np.random.get_state()  # noqa: NPY002 - the one that user code may use

    def restore(self) -> None:
        """Draw again what was drawn."""
        torch.set_rng_state(self._torch)
        for device, state in self._cuda.items():
            torch.cuda.set_rng_state(state, device)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
