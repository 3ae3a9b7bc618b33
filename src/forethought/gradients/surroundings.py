"""What Python code can remember outside modules: objects, closures, globals, generators.

Values of the examples reach Python only through questions that the lanes answer
(:mod:`.exits`), or where examples run one at a time. Before the first of these, everything
that model and loss can reach is noted here, and put back before other examples see it. What cannot
be put back (an iterator, a file) is refused where that can be told; state in C code cannot.
"""

from __future__ import annotations

import functools
import random
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forethought.gradients.boundary import wrapped
from forethought.gradients.control import Refused
from forethought.gradients.state import STANDARD

_LIBRARIES = frozenset(
    {"torch", "numpy", "builtins", "transformers", "peft", "timm", "torchvision", "scipy", "typing"}
    | {"collections", "abc", "enum", "logging", "threading", "re", "os", "sys", "forethought"}
    | {"functools", "itertools", "weakref", "contextlib", "dataclasses", "warnings", "einops"}
)
_OPAQUE = frozenset({"torch", "builtins", "logging", "threading", "_thread", "os", "io", "_io"})
_PLAIN = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_CONTAINERS = (list, dict, set, deque, Tensor, np.ndarray)
_HEAP, _IMMUTABLE = 1 << 9, 1 << 8  # of a type's flags
_LIMIT = 200_000  # objects: far more than any model's own

Undo = Callable[[], object]


def _foreign(kind: type) -> bool:
    return kind.__module__.partition(".")[0] not in _LIBRARIES


class Surroundings:
    """A snapshot of all Python objects that ``roots`` can reach.

    Args:
        known: modules whose own attributes are looked after elsewhere.

    Raises:
        Refused: an iterator among them.
    """

    def __init__(self, known: Iterable[nn.Module], *roots: Any) -> None:
        self._undo: list[Undo] = []
        modules = list(known)
        self._known = {id(module) for module in modules}
        self._seen: dict[int, Any] = {}  # keeps the objects, so that an id stays a name
        pending = [*modules, *roots]
        while pending and len(self._seen) < _LIMIT:
            value = pending.pop()
            if isinstance(value, _PLAIN) or id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            pending += self._note(value)

    def restore(self) -> None:
        """Put everything back."""
        for undo in self._undo:
            undo()

    def _note(self, value: Any) -> Iterator[Any]:  # noqa: C901
        if isinstance(value, types.ModuleType):
            yield from self._module(value)
        elif isinstance(value, Tensor):
            if not isinstance(value, nn.Parameter):
                self._tensor(value)
            yield value.__dict__  # what was hung on it
        elif hasattr(value, "cache_clear") and hasattr(value, "__wrapped__"):
            self._undo.append(value.cache_clear)  # what is cached can be computed again
            yield value.__wrapped__
        elif isinstance(value, np.ndarray):
            self._undo.append(_refill_array(value))
        elif isinstance(value, np.random.Generator):
            self._undo.append(_reset(value.bit_generator, "state", value.bit_generator.state))
        elif isinstance(value, np.random.RandomState):
            self._undo.append(functools.partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            self._undo.append(functools.partial(value.setstate, value.getstate()))
        elif isinstance(value, torch.Generator):
            self._undo.append(functools.partial(value.set_state, value.get_state()))
        elif isinstance(value, dict | OrderedDict | defaultdict):
            self._undo.append(_refill(value, value.update))
            yield from list(value.values())
        elif isinstance(value, list | deque):
            self._undo.append(_refill(value, value.extend))
            yield from list(value)
        elif isinstance(value, set):
            self._undo.append(_refill(value, value.update))
        elif isinstance(value, bytearray):
            self._undo.append(functools.partial(value.__setitem__, slice(None), bytes(value)))
        elif isinstance(value, tuple | frozenset):
            yield from value
        elif isinstance(value, _FUNCTIONS):
            yield from self._function(value)
        elif isinstance(value, types.CellType):
            yield from self._cell(value)
        elif isinstance(value, type):
            yield from self._kind(value)
        elif isinstance(value, Iterator) and not hasattr(value, "close_fds"):
            raise Refused(
                f"the model or loss keeps an iterator ({type(value).__name__}) while values of the "
                "examples reach Python: how far it goes would tell of them; use a list"
            )
        else:
            yield from self._object(value)

    def _module(self, module: types.ModuleType) -> Iterator[Any]:
        root = module.__name__.partition(".")[0]
        if root in _LIBRARIES or root in sys.stdlib_module_names:
            return
        for name, value in list(vars(module).items()):
            if name.startswith("__"):
                continue
            if isinstance(value, _PLAIN):
                self._undo.append(functools.partial(setattr, module, name, value))
            elif isinstance(value, _CONTAINERS):
                yield value

    def _tensor(self, value: Tensor) -> None:
        if wrapped(value):
            return
        kept = value.detach().clone()

        def undo() -> None:
            with torch.no_grad():
                if value.shape != kept.shape:
                    value.resize_(kept.shape)
                if not torch.equal(value, kept):
                    value.detach().copy_(kept)

        self._undo.append(undo)

    def _function(self, value: Any) -> Iterator[Any]:
        if isinstance(value, functools.partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, types.MethodType):
            yield from (value.__self__, value.__func__)
        elif value.__module__ is not None and _foreign(value):
            yield from value.__closure__ or ()
            yield from (value.__defaults__, value.__kwdefaults__, value.__dict__)
            yield from self._globals(value)

    def _globals(self, function: types.FunctionType) -> Iterator[Any]:
        scope = function.__globals__
        for name in _names(function.__code__):
            if name not in scope:
                continue
            value = scope[name]
            if isinstance(value, _PLAIN):
                self._undo.append(functools.partial(scope.__setitem__, name, value))
            else:
                yield value

    def _cell(self, cell: types.CellType) -> Iterator[Any]:
        try:
            content = cell.cell_contents
        except ValueError:  # empty
            return
        self._undo.append(functools.partial(setattr, cell, "cell_contents", content))
        yield content

    def _kind(self, kind: type) -> Iterator[Any]:
        # Attributes of a class are shared by everything that the class makes.
        # Neither those of libraries nor those written in C, which cannot be changed.
        if not _foreign(kind) or not kind.__flags__ & _HEAP or kind.__flags__ & _IMMUTABLE:
            return
        for name, value in list(vars(kind).items()):
            if name.startswith("__"):
                continue
            function = getattr(value, "__func__", value)
            if isinstance(value, property):
                yield from (f for f in (value.fget, value.fset) if f is not None)
            elif isinstance(function, types.FunctionType):
                yield function
            elif not isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
                self._undo.append(functools.partial(setattr, kind, name, value))
                yield value
        yield from (base for base in kind.__mro__[1:] if base is not object)

    def _object(self, value: Any) -> Iterator[Any]:
        kind = type(value)
        if id(value) in self._known:
            # What it holds itself is known (:mod:`.state`), but not what that holds.
            for tensor in (*value._parameters.values(), *value._buffers.values()):
                if tensor is not None:
                    yield tensor.__dict__
            for name, content in vars(value).items():
                if name not in STANDARD:
                    yield content
                elif content and name.endswith("_hooks"):
                    yield from content.values()
        elif hasattr(value, "_init_fn"):  # an operator of the user's
            yield value._init_fn
        elif isinstance(value, nn.Module) or kind.__module__.partition(".")[0] not in _OPAQUE:
            yield from self._attributes(value)
        yield kind

    def _attributes(self, value: Any) -> Iterator[Any]:
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield attributes
        for base in type(value).__mro__:
            for name in getattr(base, "__slots__", ()):
                if isinstance(name, str) and name not in ("__dict__", "__weakref__"):
                    content = getattr(value, name, None)
                    self._undo.append(functools.partial(setattr, value, name, content))
                    yield content


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _refill(value: Any, fill: Callable[[Any], None]) -> Undo:
    kept = value.copy()

    def undo() -> None:
        if len(value) == len(kept) and all(
            one is other for one, other in zip(_items(value), _items(kept), strict=True)
        ):
            return
        value.clear()
        fill(kept)

    return undo


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key, content in value.items():
            yield from (key, content)
    else:
        yield from value


def _refill_array(value: np.ndarray[Any, Any]) -> Undo:
    kept = value.copy()

    def undo() -> None:
        if value.flags.writeable:
            value[...] = kept

    return undo


def _reset(owner: Any, name: str, kept: Any) -> Undo:
    return functools.partial(setattr, owner, name, kept)
