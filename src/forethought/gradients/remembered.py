"""What is kept between passes of a model: only speed and the comparison of losses depend on it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn


@dataclass
class Remembered:
    """What only speed depends on, kept between passes of a model."""

    unshared: bool = False
    asks: bool = False
    judged: list[weakref.ref[Any]] = field(default_factory=list)

    def has_judged(self, loss: Any) -> bool:
        """Whether the loss was compared with that of a whole batch."""
        self.judged = [known for known in self.judged if known() is not None]
        return any(known() == loss for known in self.judged)

    def judge(self, loss: Any) -> None:
        """It was."""
        kept = weakref.WeakMethod if isinstance(loss, MethodType) else weakref.ref
        self.judged.append(kept(loss))


_REMEMBERED: WeakKeyDictionary[nn.Module, Remembered] = WeakKeyDictionary()


def of(model: nn.Module) -> Remembered:
    """What is known of the model so far."""
    return _REMEMBERED.setdefault(model, Remembered())
