"""Faults that trials of kills must find, put between a worker and its driver."""

from __future__ import annotations

from typing import Any

from forethought.gossip import events as on
from forethought.gossip.events import Weights


class Around:
    """A worker as its driver sees it."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)


class CommitsLate(Around):
    """What is sent goes out before its release is in the ledger."""

    held: tuple[Any, ...] = ()

    def handle(self, event: Any) -> list[Any]:
        effects = self.machine.handle(event)
        late = tuple(one for one in effects if isinstance(one, on.Commit | on.Acknowledged))
        if isinstance(event, on.GradientDone):
            before, self.held = self.held, late
            return [*before, *(one for one in effects if one not in late)]
        return effects


class WaitsForTheDead(Around):
    """Does nothing until its last exchange is answered, whoever is lost."""

    waiting: int | None = None
    events: tuple[Any, ...] = ()

    def handle(self, event: Any) -> list[Any]:
        if isinstance(event, on.PeerLost | on.PeerBack):
            return []
        if self.waiting is not None and isinstance(event, on.GradientDone | on.Mix):
            self.events += (event,)
            return []
        return self._handled(event)

    def _handled(self, event: Any) -> list[Any]:
        effects = self.machine.handle(event)
        for one in effects:
            if isinstance(one, on.Send) and isinstance(one.message, Weights):
                if isinstance(event, on.Mix) and one.message.base == event.step:
                    self.waiting = event.step
            elif isinstance(one, on.Mixed) and one.step == self.waiting:
                self.waiting = None
        while self.waiting is None and self.events:
            event, *later = self.events
            self.events = tuple(later)
            effects = effects + self._handled(event)
        return effects


class HearsAnotherMean(Around):
    """One worker of SYNC takes another mean than the others."""

    def handle(self, event: Any) -> list[Any]:
        recorded = self.machine._machine
        if isinstance(event, on.Reduced) and recorded.machine.me == 1:
            event = on.Reduced(event.round, event.vector + 1)
        return self.machine.handle(event)
