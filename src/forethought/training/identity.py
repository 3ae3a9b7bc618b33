"""What makes a run the same run, so that resuming repeats its rounds and nothing else.

Rounds released after the last checkpoint are computed again with the same noise. Had data, model
or settings changed, the difference of the two releases would show the change without noise; so
they are compared first, by hashes under the run's own key.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import numpy as np
import torch

from forethought.plans import Plan
from forethought.rounds.records import Records
from forethought.training.checkpoint import CheckpointError


def identity(
    model: torch.nn.Module,
    records: Records,
    test: Records | None,
    plan: Plan,
    loss: Callable[..., Any],
    key: bytes,
) -> dict[str, str]:
    """Part of the run → keyed hash. All of them must match for a run to be resumed."""
    return {
        "data": records.digest(key),
        "held-out data": "" if test is None else test.digest(key),
        "model": _hash(_architecture(model), key),
        "plan": _hash(plan.to_json(), key),
        "loss": _hash(_behaviour(loss), key),
    }


def environment(model: torch.nn.Module, micro_batch: int | None) -> dict[str, str]:
    """What can move a result by rounding, or change the stream of random numbers."""
    device = next(model.parameters()).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "device": f"{device.type} {name}",
        "threads": str(torch.get_num_threads()),
        "micro_batch": str(micro_batch),
        "numpy": np.__version__,
        "torch": torch.__version__,
    }


def require_same(saved: Mapping[str, str], present: Mapping[str, str]) -> None:
    """Refuse another run's data, model, plan or loss.

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


def _hash(text: str, key: bytes) -> str:
    return hashlib.blake2b(text.encode(), key=key, digest_size=32).hexdigest()


def _architecture(model: torch.nn.Module) -> str:
    """Modules, their settings and code, and every tensor's shape; not the weights."""
    modules = {type(module) for module in model.modules()}
    lines = [re.sub(r" at 0x[0-9a-f]+", "", repr(model))]
    lines += [f"{name} {tuple(t.shape)} {t.dtype}" for name, t in model.state_dict().items()]
    lines += [f"{name} {p.requires_grad}" for name, p in model.named_parameters()]
    lines += [f"{name} {module.training}" for name, module in model.named_modules()]
    lines += sorted(_behaviour(kind.forward) for kind in modules)
    return "\n".join(lines)


def _behaviour(function: Callable[..., Any]) -> str:
    """A function's name and code. What it closes over or calls is not followed."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if isinstance(function, torch.nn.Module):
        return f"{name} {_architecture(function)}"
    code = getattr(function, "__code__", None)
    return name if code is None else f"{name} {_code(code)}"


def _code(code: CodeType) -> str:
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"
