"""The events that a machine handles, and the effects that it requests.

A machine has no clock, no socket and no randomness. Its driver calls ``handle(event)`` and executes
the returned effects *in order, each completely before the next*: a commit or an append is durable
before anything later is sent. A crash loses the machine's memory and nothing else; a new machine is
made from the stored records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from forethought.exchange.messages import Update, Vector

# ---- events; ``now`` is in seconds of a monotonic clock that the driver reads


@dataclass(frozen=True, slots=True)
class Connected:
    """The connection to the other side is open."""

    now: float


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """A message arrived, and its signature was verified.

    Args:
        sender: place in the roster, or :data:`~forethought.exchange.messages.SERVER`.
        digest: 16 bytes, a collision-resistant hash of its frame; b"": there was no frame.
    """

    sender: int
    message: Any
    now: float
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Woken:
    """The time that a :class:`Wake` asked for has been reached or passed."""

    now: float


@dataclass(frozen=True, slots=True)
class Stopped:
    """The owner ends this machine gracefully."""

    now: float


@dataclass(frozen=True, slots=True, eq=False)
class Computed:
    """A trainer finished the computation that a :class:`Compute` asked for.

    Args:
        round: number of the update. base: version of the model that it was computed on.
        vector: the release, float32, shape (parameters,).
        rounds: private rounds of the plan that are done now, over all updates.
        input_hash: 32 bytes: hash of the weights that the update was computed on.
        state: the trainer's state, from which it continues after a restart.
    """

    round: int
    base: int
    vector: Vector
    rounds: int
    input_hash: bytes
    state: bytes
    now: float


Event: TypeAlias = Connected | Received | Woken | Stopped | Computed


# ---- effects


@dataclass(frozen=True, slots=True, eq=False)
class Send:
    """Send a message; it may be lost, duplicated, delayed or reordered."""

    to: int
    message: Any


@dataclass(frozen=True, slots=True)
class Wake:
    """Give the machine a :class:`Woken` at this time; of several, only the earliest matters."""

    at: float


@dataclass(frozen=True, slots=True)
class Alarm:
    """A problem that an operator must see; ``code`` is for programs, ``text`` for people."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """The machine has nothing more to do."""

    reason: str


class HasVector(Protocol):
    """A value with weights: a model as sent, or one with own steps, computed on first access."""

    @property
    def vector(self) -> Vector:
        """float32, shape (parameters,); not to be written to."""


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """Compute a client's next update on the weights of ``model``; the answer is :class:`Computed`.

    Args:
        part: number of this part among the ``parts`` of the update's batch, from 0. They are asked
            for in order, each on its own model; only the last one is answered.
        place: place of the update in the client's plan; -1: it equals ``round``.
        sampling: sampling of the batch, where its size is chosen; None: as planned.
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
        """The update's place in the client's plan."""
        return self.round if self.place < 0 else self.place

    @property
    def vector(self) -> Vector:
        """The weights."""
        return self.model.vector


@dataclass(frozen=True, slots=True, eq=False)
class ClientRelease:
    """One update for a client's ledger: its record and its message, written atomically together.

    Args:
        round, base, rounds, input_hash, state: see :class:`Computed`.
        update: the message to the server.
    """

    round: int
    base: int
    rounds: int
    input_hash: bytes
    state: bytes
    update: Update


@dataclass(frozen=True, slots=True)
class Begin:
    """Write the round of an update durably into the ledger, before the update begins.

    Args:
        round: number of the update. rounds: the round that it is accounted as, as JSON.
    """

    round: int
    rounds: str


@dataclass(frozen=True, slots=True, eq=False)
class Commit:
    """Write a release durably into the ledger, before it is sent."""

    release: ClientRelease


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The server has this update: its frame need not be kept."""

    round: int


@dataclass(frozen=True, slots=True, eq=False)
class Append:
    """Write an entry durably into the server's journal."""

    entry: Any


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A good time to store the server's whole state and begin a new journal."""


Effect: TypeAlias = (
    Send | Wake | Alarm | Done | Compute | Begin | Commit | Acknowledged | Append | Snapshot
)
