"""The events that reach a machine, and the effects that it asks for.

A machine has no clock, no socket and no randomness. Its driver calls ``handle(event)`` and executes
the effects that come back *in order, each whole before the next*: what was committed or appended is
durable before anything is sent. A crash anywhere loses the machine and nothing else; a new one is
made from what was stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from forethought.exchange.messages import Update, Vector

# ---- events; ``now`` is in seconds of a monotonic clock that the driver reads


@dataclass(frozen=True, slots=True)
class Connected:
    """The way to the other side is open."""

    now: float


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The way to the other side is lost."""

    now: float


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """A message came, its signature checked.

    Args:
        sender: place in the roster, or :data:`~forethought.exchange.messages.SERVER`.
        digest: 16 bytes, a collision-resistant hash of the frame it came in; b"": there was none.
    """

    sender: int
    message: Any
    now: float
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Woken:
    """A time that a :class:`Wake` asked for has come, or any later one."""

    now: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """The owner ends this machine gracefully."""

    now: float


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """A trainer finished what a :class:`Compute` asked for.

    Args:
        round: of the update. base: version of the model it was computed on.
        vector: what leaves the client, float32, shape (parameters,).
        rounds: private rounds of the plan that are done now, all updates together.
        input_hash: 32 bytes: of the weights that it was computed on.
        state: the trainer's own, to go on from after a restart.
    """

    round: int
    base: int
    vector: Vector
    rounds: int
    input_hash: bytes
    state: bytes
    now: float


Event: TypeAlias = Connected | Disconnected | Received | Woken | Stopped | Computed


# ---- effects


@dataclass(frozen=True, slots=True, eq=False)
class Send:
    """Send a message; it may be lost, doubled, late or out of order."""

    to: int
    message: Any


@dataclass(frozen=True, slots=True)
class Wake:
    """Say :class:`Woken` at this time. Of several only the earliest matters."""

    at: float


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something that an operator must see. ``code`` is for machines, ``text`` for people."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The machine has nothing more to do."""

    reason: str


class HasVector(Protocol):
    """A value with weights: a model as it was sent, or one with own steps, made when looked at."""

    @property
    def vector(self) -> Vector:
        """float32, shape (parameters,); not to be written to."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """A client's next update, on the weights of ``model``; the answer is :class:`Computed`.

    Args:
        part: of so many ``parts`` of the update's batch, which are asked for in order, each on a
            model of its own. Only the last one is answered.
        place: of the update in the client's plan; -1: its number.
        sampling: of its batch, where its size is chosen; None: as planned.
    """

    round: int
    base: int
    model: HasVector
    part: int = 0
    parts: int = 1
    place: int = -1
    sampling: Any = None

    @property
    def planned(self) -> int:
        """Its place in the client's plan."""
        return self.round if self.place < 0 else self.place

    @property
    def vector(self) -> Vector:
        """The weights."""
        return self.model.vector


@dataclass(frozen=True, slots=True, eq=False)
class ClientRelease:
    """The record of one update in a client's ledger, and its outgoing frame: one atomic write.

    Args:
        round, base, rounds, input_hash, state: see :class:`Computed`.
        update: the message.
    """

    round: int
    base: int
    rounds: int
    input_hash: bytes
    state: bytes
    update: Update


@dataclass(frozen=True, slots=True)
class Begin:
    """Write into the ledger, durably, with which round an update begins, before it does.

    Args:
        round: number of the update. rounds: the round that it is accounted as, as JSON.
    """

    round: int
    rounds: str


@dataclass(frozen=True, slots=True, eq=False)
class Commit:
    """Write a release into the ledger, durably, before it is sent."""

    release: ClientRelease


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The server has this update: its frame need not be kept."""

    round: int


@dataclass(frozen=True, slots=True, eq=False)
class Append:
    """Write an entry into the server's journal, durably."""

    entry: Any


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A good time to store the server's whole state and begin a new journal."""


Effect: TypeAlias = (
    Send | Wake | Alarm | Done | Compute | Begin | Commit | Acknowledged | Append | Snapshot
)
