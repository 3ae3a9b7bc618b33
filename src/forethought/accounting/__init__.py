"""Privacy accounting, from a Mechanism to a Statement; importable without torch.

The names below are loaded on first use. :mod:`forethought.accounting.tradeoff` is a module; its
function is ``forethought.tradeoff``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forethought.accounting.exact import calibrate as calibrate
    from forethought.accounting.exact import delta as delta
    from forethought.accounting.exact import epsilon as epsilon
    from forethought.accounting.exact import epsilon_curve as epsilon_curve
    from forethought.accounting.exact import noise_multiplier as noise_multiplier
    from forethought.accounting.exact import privacy_loss as privacy_loss
    from forethought.accounting.interval import Interval as Interval
    from forethought.accounting.statement import Statement as Statement
    from forethought.accounting.statement import account as account
    from forethought.accounting.tradeoff import TradeOff as TradeOff
    from forethought.accounting.verification import verify as verify

# Module → the public names that it holds.
_HELD = {
    "exact": "calibrate delta epsilon epsilon_curve noise_multiplier privacy_loss",
    "interval": "Interval",
    "statement": "Statement account",
    "tradeoff": "TradeOff",
    "verification": "verify",
}
_HOME = {name: module for module, held in _HELD.items() for name in held.split()}

__all__ = sorted(_HOME)  # noqa: PLE0605 (a list of strings)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
