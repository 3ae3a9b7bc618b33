"""What makes a run the same run, so that resuming repeats its rounds and nothing else.

Rounds released after the last checkpoint are computed again. Had data, model or settings changed,
each of them would be one more release (:mod:`forethought.rounds.randomness`); so they are compared
first, by hashes under the run's own key. What may have changed for good reasons is only warned of.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
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
    batch_dims: object = None,
) -> dict[str, str]:
    """Part of the run → keyed hash. All of them must match for a run to be resumed.

    Args:
        key: 32 bytes. Every record is hashed.
        batch_dims: where the model has its examples, if its owner declares it.
    """
    return {
        "data": records.digest(key),
        "held-out data": "" if test is None else test.digest(key),
        "model": blake3(_architecture(model).encode(), key=key).hexdigest(),
        "loss": blake3(fingerprint(loss), key=key).hexdigest(),
        "batch_dims": blake3(fingerprint(batch_dims), key=key).hexdigest(),
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


def watched(model: torch.nn.Module, loss: Callable[..., Any], key: bytes) -> dict[str, str]:
    """More that a sum may depend on → keyed hash: a run goes on where it changed, with a warning.

    Args:
        key: 32 bytes.
    """
    modules = dict(model.named_modules())
    held: dict[str, Any] = {
        "code of model or loss, or a value that it names": [
            loss,
            *dict.fromkeys(map(type, modules.values())),
            *(getattr(module, hooks) for module in modules.values() for hooks in _HOOKS),
        ],
        "plain attributes of the model": {
            name: {part: value for part, value in vars(module).items() if part not in OF_TORCH}
            for name, module in modules.items()
        },
        "buffers that no checkpoint holds": {
            f"{name}.{part}": module._buffers[part]
            for name, module in modules.items()
            for part in sorted(module._non_persistent_buffers_set)
        },
        "instruction set": _instructions(),
    }
    return {
        name: blake3(fingerprint(value, wide=True), key=key).hexdigest()
        for name, value in held.items()
    }


# What every module has, and what of it is the user's code.
OF_TORCH = frozenset(vars(torch.nn.Module()))
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


def _instructions() -> list[str]:
    """What the numerical libraries choose their code paths by."""
    found = [torch.backends.cpu.get_cpu_capability()]
    found += [os.environ.get(name, "") for name in ("MKL_CBWR", "ONEDNN_MAX_CPU_ISA")]
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8") as file:
        found += [line for line in file if line.startswith(("flags", "Features"))][:1]
    return found


def require_same(saved: Mapping[str, str], present: Mapping[str, str]) -> None:
    """Refuse another run's data, model or loss.

    Raises:
        CheckpointError: names what changed.
    """
    changed = sorted(name for name in saved if saved[name] != present.get(name))
    if changed:
        raise CheckpointError(
            f"cannot resume: {' and '.join(changed)} changed since the run began. Its rounds would "
            "be released again, about something else. Give what the run began with, or start a new "
            "run in another folder"
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
            f"cannot resume here: {'; '.join(changed)}. Rounds after the last checkpoint are "
            "repeated, bit for bit or at a cost in privacy, and this could change their rounding. "
            "Set it back (threads: OMP_NUM_THREADS) and resume again"
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


def fingerprint(value: Any, *, wide: bool = False) -> bytes:
    """What a function does, as bytes: its code, and the values that it closes over or is bound to.

    Followed are partials, closures, defaults, bound objects, callable objects, modules with their
    tensors, and the plain values and functions of its own module that it names.

    Args:
        wide: follow everything of the user's own modules that it names, classes and objects too.
    """
    state = hashlib.sha256()
    _feed(value, state.update, {}, wide)
    return state.digest()


# Objects that are followed at most.
_MOST = 20_000


def _feed(value: Any, take: Callable[[bytes], None], seen: dict[int, Any], wide: bool) -> None:
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
    if id(value) in seen or len(seen) == _MOST:
        take(b"again")
        return
    seen[id(value)] = value  # kept, so that nothing else is there
    for part in _wide_parts(value) if wide else _parts(value):
        _feed(part, take, seen, wide)


def _wide_parts(value: Any) -> list[Any]:
    """:func:`_parts`, with what the user's own code names wherever it is."""
    if isinstance(value, classmethod | staticmethod):
        return ["method", value.__func__]
    if isinstance(value, property):
        return ["property", value.fget]
    if isinstance(value, type):
        if not _of_user(value.__module__):
            return [value.__qualname__]
        held = {name: part for name, part in vars(value).items() if _speaks(name, part)}
        return ["class", value.__qualname__, held, list(value.__bases__)]
    if isinstance(value, FunctionType):
        if not _of_user(value.__module__):
            return [value.__qualname__]
        named = _named(value)
        return [*_of_function(value), {name: named[name] for name in sorted(named)}]
    if isinstance(value, torch.nn.Module):
        return ["module", _architecture(value), type(value), dict(value.state_dict())]
    plain = isinstance(value, functools.partial | Mapping | tuple | list | set | frozenset)
    if plain or isinstance(value, MethodType):
        return _parts(value)
    kind = type(value)
    if kind is not SimpleNamespace and not _of_user(kind.__module__):
        return [kind.__qualname__]
    return [kind, dict(getattr(value, "__dict__", {}))]


def _of_user(module: str | None) -> bool:
    """Whether a module is the user's own, and not an installed or a standard one."""
    package = (module or "").partition(".")[0]
    if package == "__main__":
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    installed = package in sys.stdlib_module_names or package == "forethought"
    return not installed and file is not None and "site-packages" not in file


def _speaks(name: str, part: Any) -> bool:
    """Whether a class's entry is in its source, and not one that Python adds."""
    code = isinstance(part, FunctionType | classmethod | staticmethod | property)
    return code or not name.startswith("__")


def _named(function: FunctionType) -> dict[str, Any]:
    """The globals that a function names, and of modules of the user's the parts that it names."""
    names = _names(function.__code__)
    found: dict[str, Any] = {}
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            if _of_user(value.__name__):
                found.update((f"{name}.{part}", vars(value).get(part)) for part in names)
        elif value is not None:
            found[name] = value
    return found


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
