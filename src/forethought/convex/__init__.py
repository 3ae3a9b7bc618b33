"""Noisy full-batch gradient descent for linear models, with a default schedule without tuning.

The names below are loaded on first use; only ``descend`` and its relatives load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forethought.convex import schedules as schedules
    from forethought.convex.descent import Descended as Descended
    from forethought.convex.descent import bounded_rows as bounded_rows
    from forethought.convex.descent import descend as descend
    from forethought.convex.descent import descend_steered as descend_steered
    from forethought.convex.descent import descend_unprotected as descend_unprotected
    from forethought.convex.planning import DescentPlan as DescentPlan
    from forethought.convex.planning import plan as plan
    from forethought.convex.problems import DeclaredLoss as DeclaredLoss
    from forethought.convex.problems import HuberRegression as HuberRegression
    from forethought.convex.problems import LinearRegression as LinearRegression
    from forethought.convex.problems import LogisticRegression as LogisticRegression
    from forethought.convex.problems import SmoothedHinge as SmoothedHinge
    from forethought.convex.problems import SoftmaxRegression as SoftmaxRegression

# Module → the public names that it holds.
_HELD = {
    "descent": "Descended bounded_rows descend descend_steered descend_unprotected",
    "planning": "DescentPlan plan",
    "problems": "DeclaredLoss HuberRegression LinearRegression LogisticRegression SmoothedHinge "
    "SoftmaxRegression",
}
_HOME = {name: module for module, held in _HELD.items() for name in held.split()}

__all__ = ["schedules", *sorted(_HOME)]  # noqa: PLE0604 (all strings)


def __getattr__(name: str) -> Any:
    if name == "schedules":
        return import_module(f"{__name__}.schedules")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
