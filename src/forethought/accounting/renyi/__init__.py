"""Rényi differential privacy: curves, a filter for adaptive rounds, private selection."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

# What this path named while it was one file.
_MOVED = (
    "LIFT",
    "ORDERS",
    "RenyiCurve",
    "binary_moment",
    "canonne_epsilon",
    "exchange_rdp",
    "gaussian_rdp",
    "mironov_epsilon",
    "poisson_rdp",
    "rdp",
    "releases",
    "zcdp",
    "zcdp_epsilon",
)


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__name__}.curves"
    warnings.warn(f"{__name__}.{name} has moved to {home}", DeprecationWarning, stacklevel=2)
    return getattr(import_module(home), name)
