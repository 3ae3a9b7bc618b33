"""Faults of dealing records out and of correlating noise."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from forethought.auditing.faults import Fault, replaced
from forethought.rounds import randomness, sampling
from forethought.rounds.randomness import CorrelatedNoise

_STEP = CorrelatedNoise._step
_DRAW = sampling._Allocated.__call__


def _in_two_rounds() -> AbstractContextManager[None]:
    """A tenth of each round's records comes in the next one as well."""
    before: dict[int, Any] = {}

    def draw(self: Any, index: int) -> Any:
        mine = _DRAW(self, index)
        again = before.get(id(self), mine[:0])
        before[id(self)] = mine[: len(mine) // 10]
        return np.union1d(mine, again)

    return replaced((sampling._Allocated, "__call__", draw))


def _in_order() -> AbstractContextManager[None]:
    """Records are dealt to rounds by their number, evenly, and not at random."""

    def dealt(size: int, places: int, _generator: Any) -> Any:
        return np.arange(size) % places

    return replaced((sampling, "assign_groups", dealt))


def _dealt_anew() -> AbstractContextManager[None]:
    """Parts change after every cycle."""
    turns = sampling._Turns

    def draw(self: Any, index: int) -> Any:
        cycle, turn = divmod(index - self._first, self._sampling.parts)
        examples = len(self._dealt._order)
        moved = turns(self._sampling, examples, self._stream, self._first + 7919 * cycle)
        part = moved._dealt[turn]
        return part[sampling._poisson(len(part), self._sampling.rate, self._stream.at(index))]

    return replaced((turns, "__call__", draw))


def _uncorrelated() -> AbstractContextManager[None]:
    """A fault: the independent numbers are drawn, of the size that is accounted for cancelling."""

    def passed(_self: Any, _present: Any) -> None:
        return None

    return replaced((randomness._Bands, "pass_on", passed))


def _forgets() -> AbstractContextManager[None]:
    """The noise forgets the rounds before every third one."""

    def step(self: CorrelatedNoise) -> None:
        if self._next % 3 == 0 and isinstance(self._memory, randomness._Bands):
            self._memory._last[:] = 0
        _STEP(self)

    return replaced((CorrelatedNoise, "_step", step))


TURN_FAULTS: tuple[Fault, ...] = (
    Fault("records in two rounds of an epoch", _in_two_rounds, "random allocation"),
    Fault("records dealt out in order", _in_order, "random allocation"),
    Fault("parts that change after every cycle", _dealt_anew, "parts in turn"),
    Fault("correlated noise that is independent", _uncorrelated, "correlated"),
    Fault("correlated noise that forgets", _forgets, "correlated"),
)
