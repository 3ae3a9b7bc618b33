"""What a model keeps between passes: put back after every pass, whatever the pass wrote.

A pass writes what it computed from private records, without noise. Values are compared, not
versions only, since writes through NumPy leave no trace.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forethought.gradients.boundary import wrapped
from forethought.gradients.control import Refused

_TABLES = ("_parameters", "_buffers", "_modules")
STANDARD = frozenset(vars(nn.Module()))  # what every module has
_HOOKS = tuple(sorted(name for name in STANDARD if "ward_" in name and "hook" in name))
_CHANGEABLE = (Tensor, np.ndarray, tuple, list, dict, set, deque)
_PLAIN = (int, float, str, complex, bytes)
_MISSING = object()


def _copied(value: Any, depth: int = 4) -> Any:
    """The value with tensors and built-in containers copied; anything else as it is."""
    if isinstance(value, nn.Parameter):
        return value
    if isinstance(value, Tensor):
        return value if wrapped(value) else value.detach().clone()
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
        if value is kept or wrapped(value):
            return value is kept
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


def _untouched(now: Any, before: Any) -> bool:
    # Dictionaries compare objects by identity first, which is all that is needed and fast.
    try:
        return bool(now == before)
    except Exception:  # tensors that were replaced cannot be compared so
        return False


def _plainly_equal(value: Any, kept: Any) -> bool:
    return type(value) in _PLAIN and bool(value == kept)


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


@dataclass(frozen=True)
class _Kept:
    """One module's snapshot: its attributes, its three tables, and contents that can change."""

    name: str
    module: nn.Module
    attributes: dict[str, Any]
    tables: tuple[dict[str, Any], ...]
    hooks: list[tuple[Any, Any]]
    contents: list[tuple[str, Any, Any]]

    def differing(self) -> list[str]:
        """Attributes that are another object than they were."""
        now, before = self.module.__dict__, self.attributes
        tables = [now.get(name) for name in _TABLES]
        if _untouched(now, before) and all(map(_untouched, tables, self.tables)):
            return []
        found = [
            key
            for key, value in before.items()
            if now.get(key, _MISSING) is not value and not _plainly_equal(now.get(key), value)
        ]
        if len(now) != len(before):
            found += [key for key in now if key not in before]
        for name, table in zip(_TABLES, self.tables, strict=True):
            current = now[name]
            found += [k for k, value in table.items() if current.get(k, _MISSING) is not value]
            if len(current) != len(table):
                found += [key for key in current if key not in table]
        return found

    def rewritten(self) -> list[tuple[str, Any, Any]]:
        """Contents that are no longer what they were."""
        return [one for one in self.contents if not _same(one[1], one[2])]


def _snapshot(name: str, module: nn.Module) -> _Kept:
    attributes = module.__dict__.copy()
    tables = tuple([attributes[table].copy() for table in _TABLES])
    contents = [
        (key, value, _copied(value))
        for key, value in attributes.items()
        if key not in STANDARD and isinstance(value, _CHANGEABLE)
    ]
    contents += [
        (k, buffer, _copied(buffer)) for k, buffer in tables[1].items() if buffer is not None
    ]
    hooks = [
        (attributes[key], attributes[key].copy())
        for key in _HOOKS
        if hasattr(attributes.get(key), "clear")
    ]
    return _Kept(name, module, attributes, tables, hooks, contents)


class State:
    """A snapshot of everything that modules hold: attributes, buffers, submodules, parameters.

    Attributes, and the built-in containers, arrays and tensors in them, are kept by value; of
    parameters only whether they were written to.
    """

    def __init__(self, modules: Iterable[tuple[str, nn.Module]]) -> None:
        self._kept = [_snapshot(name, module) for name, module in modules]
        self._parameters = [
            (f"{kept.name}.{key}" if kept.name else key, parameter, parameter._version)
            for kept in self._kept
            for key, parameter in kept.tables[0].items()
            if parameter is not None
        ]

    def changes(self) -> dict[str, Any]:
        """Where the model differs from the snapshot: ``module.attribute`` → what is there now."""
        found = {}
        for kept in self._kept:
            names = [*kept.differing(), *(name for name, *_ in kept.rewritten())]
            for name in dict.fromkeys(names):
                label = f"{kept.name}.{name}" if kept.name else name
                found[label] = getattr(kept.module, name, None)
        return found

    def restore(self) -> None:
        """Put everything back; parameters, whose values are not kept, are left as they are."""
        for kept in self._kept:
            for _, value, before in kept.rewritten():
                _restore(value, before)
            for now, before in kept.hooks:  # also those that a pass installed
                if len(now) != len(before):
                    now.clear()
                    now.update(before)
            if not kept.differing():
                continue
            now = kept.module.__dict__
            for name, table in zip(_TABLES, kept.tables, strict=True):
                kept.attributes[name].clear()
                kept.attributes[name].update(table)
            now.clear()
            now.update(kept.attributes)

    def parameters_changed(self) -> list[str]:
        """Names of parameters that were written to."""
        return [
            name for name, parameter, version in self._parameters if parameter._version != version
        ]


def copied(changes: dict[str, Any]) -> dict[str, Any]:
    """The changes by value, to compare later ones with."""
    return {name: _copied(value) for name, value in changes.items()}


def alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two passes changed the model in the same way; ``other`` is copied."""
    return _same(one, other)


def changes_itself(changed: Iterable[str], why: str) -> Refused:
    """The refusal of a model that changes itself."""
    return Refused(
        f"the model changes itself while it runs: {', '.join([*changed][:5])} {why}; compute it "
        "from the example alone, or keep it fixed during private training"
    )


class Generators:
    """The states of the generators that a forward pass may draw from."""

    def __init__(self, devices: list[torch.device]) -> None:
        self._torch = torch.get_rng_state()
        self._dtype = torch.get_default_dtype()
        self._cuda = {d: torch.cuda.get_rng_state(d) for d in devices if d.type == "cuda"}
        self._python = random.getstate()
        self._numpy = np.random.get_state()  # noqa: NPY002 - the one that user code may use

    def restore(self) -> None:
        """Draw again what was drawn."""
        torch.set_default_dtype(self._dtype)
        torch.set_rng_state(self._torch)
        for device, state in self._cuda.items():
            torch.cuda.set_rng_state(state, device)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
