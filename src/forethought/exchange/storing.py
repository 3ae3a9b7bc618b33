"""What machines need of storage: a client's ledger, a server's journal, and named files below both.

Protocols and plain values only. A crash may come at every write; what a reader finds afterwards is
the old content or the new one, and at the end of an appended file at most a torn record, which is
cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.events import Release
from forethought.exchange.messages import Update, Vector


class Storage(Protocol):
    """Named contents."""

    def read(self, name: str) -> bytes | None:
        """The content, or None where there is none."""
        ...

    def replace(self, name: str, content: bytes) -> None:
        """Write whole or not at all; durable on return."""
        ...

    def append(self, name: str, content: bytes) -> None:
        """Add at the end; durable on return. A crash may leave a part of it."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class LedgerState:
    """Where a client stands, as its ledger says.

    Args:
        updates: how many were committed. rounds: private rounds of the plan in them.
        state: the trainer's, of the last one. acknowledged: updates that the server surely has.
        outgoing: those it may not have, oldest first.
        base: version of the model that the last one was computed on; -1: there is none.
    """

    updates: int = 0
    rounds: int = 0
    state: bytes = b""
    acknowledged: int = 0
    outgoing: tuple[Update, ...] = ()
    base: int = -1


class Ledger(Protocol):
    """What a client released, for ever."""

    def read(self) -> LedgerState:
        """Where the client stands."""
        ...

    def commit(self, release: Release) -> None:
        """Write a release and its outgoing frame in one atomic write.

        The same release again changes nothing; another one for its round is refused.
        """
        ...

    def acknowledged(self, round: int) -> None:
        """The server has this update."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Accepted:
    """The server applies this update, at this place in its order.

    Args:
        mark: 16 bytes by which the same update is known again.
    """

    client: int
    round: int
    base: int
    vector: Vector
    mark: bytes


@dataclass(frozen=True, slots=True)
class Closed:
    """A synchronous round ended with what had come."""

    base: int


@dataclass(frozen=True, slots=True)
class Absent:
    """The server goes on without a client that was not heard of."""

    client: int


@dataclass(frozen=True, slots=True)
class Returned:
    """A client that was absent is back."""

    client: int


@dataclass(frozen=True, slots=True)
class Left:
    """A client stopped for good."""

    client: int


Entry: TypeAlias = Accepted | Closed | Absent | Returned | Left

# Number in a journal → class of the entry.
ENTRIES: dict[int, type] = {1: Accepted, 2: Closed, 3: Absent, 4: Returned, 5: Left}


@dataclass(frozen=True, slots=True, eq=False)
class ServerSnapshot:
    """A server's whole state.

    Args:
        values: JSON-ready. arrays: name → array.
    """

    values: Mapping[str, Any]
    arrays: Mapping[str, NDArray[np.generic]]


class Journal(Protocol):
    """What a server decided, in order."""

    def read(self) -> tuple[ServerSnapshot | None, Sequence[Entry]]:
        """The last snapshot and the entries since."""
        ...

    def append(self, entry: Entry) -> None:
        """Add an entry; durable on return."""
        ...

    def snapshot(self, state: ServerSnapshot) -> None:
        """Begin again from this state, atomically."""
        ...
