"""What makes a run the same run, so that resuming repeats its rounds and nothing else.

Rounds released after the last checkpoint are computed again with the same noise. Had data, model
or settings changed, the difference of the two releases would show the change without noise; so
they are compared first, by hashes under the run's own key.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from collections.abc import Callable, Mapping
from importlib.metadata import version
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from blake3 import blake3

from forethought import __version__
from forethought.rounds.records import Records, content
from forethought.training.checkpoint import CheckpointError


def identity(
    model: torch.nn.Module,
    records: Records,
    test: Records | None,
    loss: Callable[..., Any],
    key: bytes,
) -> dict[str, str]:
    """Part of the run → keyed hash. All of them must match for a run to be resumed.

    Args:
        key: 32 bytes. Every record is hashed.
    """
    return {
        "data": records.digest(key),
        "held-out data": "" if test is None else test.digest(key),
        "model": blake3(_architecture(model).encode(), key=key).hexdigest(),
        "loss": blake3(fingerprint(loss), key=key).hexdigest(),
    }


def environment(
    model: torch.nn.Module, micro_batch: int | None, processes: int = 1
) -> dict[str, str]:
    """What can move a result by rounding, or change the stream of random numbers."""
    device = next(model.parameters()).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "device": f"{device.type} {name}",
        "threads": str(torch.get_num_threads()),
        "micro_batch": str(micro_batch),
        "processes": str(processes),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "randomgen": version("randomgen"),
        "forethought": __version__,
    }


def require_same(saved: Mapping[str, str], present: Mapping[str, str]) -> None:
    """Refuse another run's data, model or loss.

    Raises:
        CheckpointError: names what changed.
    """
    changed = sorted(name for name in saved if saved[name] != present.get(name))
    if changed:
        raise CheckpointError(
            f"cannot resume: {' and '.join(changed)} changed since the run began. Repeating its "
            "noise on anything else would reveal the difference. Give what the run began with, or "
            "start a new run in another folder"
        )


def require_same_environment(saved: Mapping[str, str], present: Mapping[str, str]) -> None:
    """Refuse to repeat rounds where rounding could come out differently.

    Raises:
        CheckpointError: names what differs and how to set it back.
    """
    changed = [
        f"{name} was {saved[name]}, is {present.get(name)}"
        for name in sorted(saved)
        if saved[name] != present.get(name)
    ]
    if changed:
        raise CheckpointError(
            f"cannot resume here: {'; '.join(changed)}. Rounds after the last checkpoint must be "
            "repeated bit for bit, and this could change their rounding. Set it back (threads: "
            "OMP_NUM_THREADS) and resume again"
        )


def _architecture(model: torch.nn.Module) -> str:
    """Modules, their settings and code, and every tensor's shape; not the weights."""
    modules = {type(module) for module in model.modules()}
    lines = [_ADDRESS.sub("", repr(model))]
    lines += [f"{name} {tuple(t.shape)} {t.dtype}" for name, t in model.state_dict().items()]
    lines += [f"{name} {p.requires_grad}" for name, p in model.named_parameters()]
    lines += [f"{name} {module.training}" for name, module in model.named_modules()]
    lines += sorted(f"{kind.__qualname__} {_code(kind.forward.__code__)}" for kind in modules)
    return "\n".join(lines)


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def fingerprint(value: Any) -> bytes:
    """What a function does, as bytes: its code, and the values that it closes over or is bound to.

    Followed are partials, closures, defaults, bound objects, callable objects, modules with their
    tensors, and the plain values and functions of its own module that it names.
    """
    state = hashlib.sha256()
    _feed(value, state.update, set())
    return state.digest()


def _feed(value: Any, take: Callable[[bytes], None], seen: set[int]) -> None:
    if isinstance(value, torch.Tensor):
        take(f"tensor {value.dtype} {tuple(value.shape)}".encode())
        take(content(value))
        return
    if isinstance(value, np.ndarray):
        take(f"array {value.dtype} {value.shape}".encode())
        take(np.ascontiguousarray(value).tobytes() if value.dtype != object else b"")
        return
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        take(f"{type(value).__name__} {value!r};".encode())
        return
    if id(value) in seen:
        take(b"again")
        return
    seen.add(id(value))
    for part in _parts(value):
        _feed(part, take, seen)


def _parts(value: Any) -> list[Any]:
    """What something consists of, its kind first."""
    if isinstance(value, functools.partial):
        return ["partial", value.func, list(value.args), dict(value.keywords)]
    if isinstance(value, Mapping):
        return ["mapping", *(part for pair in value.items() for part in pair)]
    if isinstance(value, tuple | list):
        return ["sequence", *value]
    if isinstance(value, set | frozenset):
        return ["set", *sorted(map(repr, value))]
    if isinstance(value, MethodType):
        return ["method", value.__func__, value.__self__]
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, torch.nn.Module):
        return ["module", _architecture(value), dict(value.state_dict())]
    if isinstance(value, type) or not hasattr(value, "__dict__"):
        return [_ADDRESS.sub("", repr(value))]
    called = vars(type(value)).get("__call__")
    return [type(value).__qualname__, *([called] if called else []), dict(vars(value))]


def _of_function(function: FunctionType) -> list[Any]:
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # not filled yet
            cells.append("empty")
    named = {}
    for name in _names(function.__code__):
        found = function.__globals__.get(name)
        own = isinstance(found, FunctionType) and found.__module__ == function.__module__
        if own or isinstance(found, bool | int | float | str | torch.Tensor | np.ndarray):
            named[name] = found
    return [
        function.__qualname__,
        _code(function.__code__),
        function.__defaults__,
        function.__kwdefaults__,
        cells,
        named,
    ]


def _names(code: CodeType) -> list[str]:
    inner = [name for c in code.co_consts if isinstance(c, CodeType) for name in _names(c)]
    return sorted({*code.co_names, *inner})


def _code(code: CodeType) -> str:
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"
