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
    """What only speed depends on, kept between passes of a model.

    Attributes:
        unshared: what lanes write to is made for each. without: names of rules that failed. asks:
            values reach Python. judged: losses that were compared. probed: (loss, key, blocks).
    """

    unshared: bool = False
    without: frozenset[str] = frozenset()
    asks: bool = False
    judged: list[weakref.ref[Any]] = field(default_factory=list)
    probed: list[tuple[weakref.ref[Any], Any, Any]] = field(default_factory=list)

    def has_judged(self, loss: Any) -> bool:
        """Whether the loss was compared with that of a whole batch."""
        self.judged = [known for known in self.judged if known() is not None]
        return any(known() == loss for known in self.judged)

    def judge(self, loss: Any) -> None:
        """It was."""
        self.judged.append(_weak(loss))

    def found(self, loss: Any, key: Any) -> Any:
        """What :meth:`note` was told of the loss under this key; None: nothing."""
        self.probed = [known for known in self.probed if known[0]() is not None]
        for kept, named, value in self.probed:
            if named == key and kept() == loss:
                return value
        return None

    def note(self, loss: Any, key: Any, value: Any) -> None:
        """Keep a value for :meth:`found`."""
        self.probed.append((_weak(loss), key, value))


def _weak(loss: Any) -> weakref.ref[Any]:
    return weakref.WeakMethod(loss) if isinstance(loss, MethodType) else weakref.ref(loss)


_REMEMBERED: WeakKeyDictionary[nn.Module, Remembered] = WeakKeyDictionary()


def of(model: nn.Module) -> Remembered:
    """What is known of the model so far."""
    return _REMEMBERED.setdefault(model, Remembered())
