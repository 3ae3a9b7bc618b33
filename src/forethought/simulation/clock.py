"""A virtual clock: what happens next, in the order of time, and of asking where times are equal."""

from __future__ import annotations

import heapq
from typing import Any


class Agenda:
    """The events to come, in virtual seconds.

    Attributes:
        now: the time of the last thing that happened.
    """

    __slots__ = ("_entries", "_order", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._order = 0
        self._entries: list[tuple[float, int, int, int, Any]] = []

    def __len__(self) -> int:
        """Things to come."""
        return len(self._entries)

    @property
    def alone(self) -> bool:
        """True if nothing else is to happen at this very time."""
        return not self._entries or self._entries[0][0] > self.now

    def add(self, at: float, kind: int, machine: int, what: Any = None) -> None:
        """Let something happen to a machine at a time, at once if the time has passed."""
        self._order += 1
        at = at if at > self.now else self.now
        heapq.heappush(self._entries, (at, self._order, kind, machine, what))

    def next(self) -> tuple[int, int, Any]:
        """Go to the next thing: its kind, machine, and content.

        Raises:
            IndexError: nothing is to come.
        """
        self.now, _, kind, machine, what = heapq.heappop(self._entries)
        return kind, machine, what
