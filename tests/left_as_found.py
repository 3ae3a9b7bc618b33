"""Whether a test leaves the process as it found it: torch, numpy, environment and ourselves."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

# Whose functions a test, or what it tests, may be tempted to replace.
_PATCHED = (
    *("torch", "torch.nn.functional", "torch.autograd", "torch.autograd.graph"),
    *("torch.utils.checkpoint", "torch.nn.modules.module", "torch.random", "numpy", "random"),
    *("time", "signal", "socket", "threading", "pickle", "json", "math", "hashlib"),
)
_CLASSES = (
    *(("torch", "Tensor"), ("torch.nn", "Module"), ("torch.autograd", "Function")),
    *(("torch.autograd.graph", "saved_tensors_hooks"), ("torch.optim", "Optimizer")),
)
# Pytest's, torch's and scikit-learn's own; what importing the room for networks asks of grpc, once.
_NOT_OURS = ("PYTEST_", "GRPC_SSL_CIPHER_SUITES", "TORCH", "KMP_")
# What peft leaves set where it cannot compile the kernel of its BOFT layers.
_PEFTS = ("CC", "CXX")
# What may change: caches and what is worked out on first use, by module and name.
CACHES: frozenset[tuple[str, str]] = frozenset()


class Namespaces:
    """The names of modules and classes, and what they stood for."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Mapping[str, Any], dict[str, Any]]] = {}
        self._modules = 0
        self.stale = False  # a test that is not held to it ran since, and may have changed names

    def look(self) -> None:
        """Note modules that were imported since, and what a test that is not held to it changed."""
        if self.stale:
            list(self.changed())
            self.stale = False
        if len(sys.modules) == self._modules:
            return
        self._modules = len(sys.modules)
        for name, module in list(sys.modules.items()):
            ours = name.partition(".")[0] == "forethought"
            if (ours or name in _PATCHED) and name not in self._kept and module is not None:
                self._keep(name, vars(module))
        for name, kind in _CLASSES:
            label = f"{name}.{kind}"
            if label not in self._kept and hasattr(sys.modules.get(name), kind):
                self._keep(label, vars(getattr(sys.modules[name], kind)))

    def _keep(self, label: str, names: Mapping[str, Any]) -> None:
        self._kept[label] = names, dict(names)

    def changed(self) -> Iterator[str]:
        """Names that stand for something else; from now on they are what they should be."""
        for label, (now, before) in self._kept.items():
            try:
                if now == before:  # by identity first, and fast
                    continue
            except Exception:  # arrays
                pass
            for name, value in before.items():
                found = now.get(name, value)
                if found is not value and (label, name) not in CACHES and not _torchs(found):
                    yield f"{label}.{name} is another"
            self._keep(label, now)


def _torchs(value: Any) -> bool:
    """Whether torch put it there itself, as it does when its compiler is loaded."""
    return str(getattr(value, "__module__", "")).startswith("torch.")


def settings() -> dict[str, Any]:
    """What torch, numpy and the system are set to."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_NOT_OURS) and name not in _PEFTS
    }
    found: dict[str, Any] = {"environment": environment}
    if numpy := sys.modules.get("numpy"):
        found["numpy's errors"] = numpy.geterr()
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "nn"):
        found |= {
            "default dtype": torch.get_default_dtype(),
            "gradients enabled": torch.is_grad_enabled(),
            "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
            "threads": torch.get_num_threads(),
            "float32 products": torch.get_float32_matmul_precision(),
            "autocast": torch.is_autocast_enabled("cpu"),
            "modes": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
            "hooks on saved tensors": torch._C._autograd._top_saved_tensors_default_hooks(True),
            "transforms": torch._C._functorch.maybe_current_level(),
            "process group": torch.distributed.is_available()
            and torch.distributed.is_initialized(),
        }
    return found


def differing(before: Mapping[str, Any]) -> Iterator[str]:
    """Settings that are no longer what they were."""
    now = settings()
    for name, value in before.items():
        if now[name] == value:
            continue
        if name == "environment":
            keys = sorted(k for k in {*value, *now[name]} if value.get(k) != now[name].get(k))
            yield f"{', '.join(keys)} in the environment"
        else:
            yield f"{name}: {now[name]}, not {value}"
