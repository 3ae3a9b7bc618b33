"""The server: accepts updates in order and answers clients; its rule makes models of the updates.

Sans-IO. Every change of state is an entry of the journal, appended before any message that depends
on it is sent. So a server restored from its journal after a crash continues with identical bits.
The privacy of the clients does not depend on anything in this module.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forethought.exchange import events as on
from forethought.exchange import messages, storage
from forethought.federated.federation import Federation, FederationError
from forethought.federated.rules import Arrays, Asynchronous, Synchronous, UpdateRule
from forethought.federated.steps import longest_update

Effects = list[on.Effect]
# Number of bytes by which an accepted update is recognised.
MARK = 16
NO_MARK = bytes(MARK)
# Number of coordinates that a mark is computed from if there is no frame to hash.
SAMPLE = 4096
# Number of entries after which a snapshot is written.
SNAPSHOT_EVERY = 64
# Reasons of refusals that happen to honest clients too, and raise no alarm.
ORDINARY = ("late", "twice")


class Average(Protocol):
    """A running average of the global models, for a federation that reports one."""

    def update(self, version: int, weights: messages.Vector) -> None:
        """Add the model of a version to the average."""

    @property
    def weights(self) -> messages.Vector:
        """The average, float32, shape (parameters,)."""

    def restore(self, weights: messages.Vector) -> None:
        """Continue from this average."""


class ServerMachine:
    """The server's decisions; see the module.

    Args:
        federation: the members' agreement.
        weights: the first model, float32, shape (parameters,).
        average: the average of the models; None exactly if the federation does not average.

    Raises:
        FederationError: weights of another shape or dtype, or an average that is missing or not
            expected.

    Attributes:
        applied: number of applied updates of each client, int64, shape (members,).
        absent: clients that the server goes on without.
    """

    def __init__(
        self, federation: Federation, weights: messages.Vector, average: Average | None = None
    ) -> None:
        if weights.shape != (federation.parameters,) or weights.dtype != np.float32:
            raise FederationError(
                f"the first model has shape {weights.shape} and {weights.dtype}, the federation is "
                f"for ({federation.parameters},) and float32"
            )
        if (average is None) != (federation.averaging.kind == "none"):
            raise FederationError("average= goes with a federation whose averaging is not 'none'")
        self.federation, self.average = federation, average
        kind = Synchronous if federation.rule == "synchronous" else Asynchronous
        self.rule: UpdateRule = kind(federation, weights)
        members = len(federation.members)
        self.applied = np.zeros(members, dtype=np.int64)
        self.absent: set[int] = set()
        # Client that left → its life (see Join) at that time.
        self._left: dict[int, int] = {}
        # Client → the marks of its updates, concatenated by round; zeros: not applied.
        self._marks: list[bytearray | None] = [None] * members
        self._limits: dict[int, float] = {}
        self._length: tuple[int, float] | None = None
        self._entries = 0
        # Not in the journal: the connected clients, and the time of each one's last message.
        self._present: dict[int, None] = {}
        self._heard = np.full(members, np.inf)
        self._lives: dict[int, int] = {}
        self._warned: set[tuple[int, str]] = set()
        self._since: float | None = None

    @classmethod
    def restored(
        cls,
        federation: Federation,
        weights: messages.Vector,
        snapshot: storage.ServerSnapshot | None,
        entries: Iterable[storage.Entry],
        average: Average | None = None,
    ) -> ServerMachine:
        """The server in the state after the journal's last entry.

        Args:
            federation, average: see the class. weights: the run's first model.
            snapshot, entries: the content of the journal.
        """
        machine = cls(federation, weights, average)
        if snapshot is not None:
            machine._restore(snapshot)
        for entry in entries:
            machine._take(entry)
            machine._advance()
        return machine

    @property
    def version(self) -> int:
        """Version of the newest model."""
        return self.rule.version

    @property
    def finished(self) -> bool:
        """True if the newest model is the last one."""
        return self.rule.finished

    @property
    def left(self) -> frozenset[int]:
        """Clients that left and did not return."""
        return frozenset(self._left)

    @property
    def reported(self) -> messages.Vector:
        """The reported model, float32: the average if the federation averages, else the newest."""
        return self.rule.weights if self.average is None else self.average.weights

    def handle(self, event: on.Event) -> Effects:
        """The effects of an event."""
        if isinstance(event, on.Received):
            return self._received(event)
        if isinstance(event, on.Connected | on.Woken):
            return self._timed(event.now)
        if isinstance(event, on.Stopped):
            return [on.Snapshot(), on.Done("stopped by its owner")]
        return []

    def close(self, now: float) -> Effects:
        """End a synchronous round that has some of its updates, without waiting for the others."""
        if isinstance(self.rule, Synchronous) and self.rule.begun:
            return self._decide(storage.Closed(self.version), now)
        return []

    # ---- received messages

    def _received(self, event: on.Received) -> Effects:
        client, message = event.sender, event.message
        if not 0 <= client < len(self._marks):
            return [on.Alarm("unknown", f"a message from {client}, who is not in the roster")]
        effects: Effects = []
        if self._since is None:
            effects += self._timed(event.now)
        self._heard[client] = event.now
        self._present[client] = None
        if client in self.absent:
            effects += self._decide(storage.Returned(client), event.now)
        life = getattr(message, "life", 0)
        if 0 < life < max(self._lives.get(client, 0), self._left.get(client, 0)):
            text = (
                "speaks as an earlier process than one before: its returns and goodbyes are not "
                "heard. If its computer's clock was set back, set it right and start it again"
            )
            effects += self._once(client, "earlier process", text)
        match message:
            case messages.Update():
                effects += self._update(client, message, event)
            case messages.Join():
                # A client that left and has restarted takes part again from here on. Not under
                # secure aggregation: a round with a client that lost its masks is never opened.
                able = self.federation.secure is None and not self.finished
                able = able and message.round < self.federation.updates(client)
                self._lives[client] = max(message.life, self._lives.get(client, 0))
                if able and self._begun_again(client, message):
                    effects += self._decide(storage.Returned(client), event.now)
                # A heartbeat of a client with the newest model does not make the server send it.
                news = message.base != self.version
                if message.base > self.version:
                    text = (
                        f"says it has model {message.base}, this journal is at {self.version}: if "
                        "it was restored from a backup, stop this server and restore the newest one"
                    )
                    effects += self._once(client, "journal set back", text)
                if self.finished or (news and self.rule.expects(client)):
                    effects.append(self._told(client))
            case messages.Leave():
                # A late Leave of an earlier process does not apply to the present process.
                late = message.life and message.life < self._lives.get(client, 0)
                if client not in self._left and not late:
                    effects += self._decide(storage.Left(client, message.life), event.now)
            case _:
                text = f"client {client} sent a {type(message).__name__}, which clients do not send"
                effects.append(on.Alarm("kind", text))
        return effects

    def _once(self, client: int, code: str, text: str) -> Effects:
        """An alarm about a client, which repeats what it says: the first time only."""
        if (client, code) in self._warned:
            return []
        self._warned.add((client, code))
        return [on.Alarm(code, f"{self.federation.members[client].name} {text}")]

    def _begun_again(self, client: int, join: messages.Join) -> bool:
        """True if a client that left has sent this Join from a later process."""
        ended = self._left.get(client)
        if not (ended and join.life):  # a client of 0.2.0: without a model, it has just restarted
            return ended is not None and join.base < 0
        return join.life > ended

    def _update(self, client: int, update: messages.Update, event: on.Received) -> Effects:
        square = self._square(update.vector)
        if square is None or not 0 <= update.round < self.federation.updates(client):
            return self._refused(client, update, "shape" if square is None else "beyond plan")
        mark = event.digest or _mark(update, square)
        marks = self._marks[client] or b""
        known = bytes(marks[MARK * update.round : MARK * (update.round + 1)])
        if known == mark:
            return [on.Send(client, messages.Acknowledgement(update.round, self.version))]
        if known and known != NO_MARK:
            return self._refused(client, update, "conflict")
        reason = self.rule.refuses(client, update)
        if reason is None and not self._reachable(client, update.vector, square):
            reason = "norm"
        if reason is not None:
            return self._refused(client, update, reason)
        entry = storage.Accepted(client, update.round, update.base, update.vector, mark)
        acknowledged = on.Send(client, messages.Acknowledgement(update.round, self.version))
        return self._decide(entry, event.now, acknowledged)

    def _square(self, vector: messages.Vector) -> float | None:
        """The vector's squared norm; None if its shape or dtype is not the federation's."""
        if vector.shape != (self.federation.parameters,) or vector.dtype != np.float32:
            return None
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow is refused later
            return float(np.dot(vector, vector))

    def _reachable(self, client: int, vector: messages.Vector, square: float) -> bool:
        """True if an honest update can have this norm; False for a NaN or an overflow."""
        if not math.isfinite(square):
            return False
        start = 0.0
        if self.federation.exchanged == "weights":
            if self._length is None or self._length[0] != self.version:
                self._length = (self.version, float(np.linalg.norm(self.rule.model)))
                self._limits.clear()
            start = self._length[1]
        plan = self.federation.members[client].plan
        if plan not in self._limits:
            self._limits[plan] = longest_update(self.federation, client, start)
        limit, length = self._limits[plan], math.sqrt(square)
        if length + start <= limit:
            return True
        if self.federation.exchanged == "weights":
            length = float(np.linalg.norm(vector - self.rule.model))
        return length <= limit

    def _refused(self, client: int, update: messages.Update, reason: str) -> Effects:
        refusal: on.Effect = on.Send(client, messages.Refusal(update.round, update.base, reason))
        if reason in ORDINARY:
            return [refusal]
        name = self.federation.members[client].name
        text = f"update {update.round} of {name} on model {update.base} was refused: {reason}"
        return [on.Alarm(reason, text), refusal]

    # ---- decisions

    def _timed(self, now: float) -> Effects:
        effects: Effects = []
        if self._since is None:
            self._since = now
            self._heard[:] = now
        for entry in self.rule.overdue(now, self._since, self._heard):
            effects += self._decide(entry, now)
        patience = self.rule.patience()
        if patience is not None:
            effects.append(on.Wake(now + patience))
        return effects

    def _decide(self, entry: storage.Entry, now: float, *answers: on.Effect) -> Effects:
        """Append an entry to the journal, apply it, and send the messages that follow from it."""
        self._take(entry)
        effects: Effects = [on.Append(entry), *answers]
        if not self._advance():
            return effects
        self._since = now
        if self.finished:
            # A client that left because its plan was used up gets the last model too.
            effects += [self._told(client) for client in self._present]
            return [*effects, on.Snapshot(), on.Done("finished")]
        present = self._present
        effects += [self._told(client) for client in self.rule.recipients() if client in present]
        patience = self.rule.patience()
        if patience is not None:
            effects.append(on.Wake(now + patience))
        if self._entries >= SNAPSHOT_EVERY:
            self._entries = 0
            effects.append(on.Snapshot())
        return effects

    def _take(self, entry: storage.Entry) -> None:
        self._entries += 1
        match entry:
            case storage.Accepted():
                marks = self._marks[entry.client]
                if marks is None:
                    marks = self._marks[entry.client] = bytearray()
                start = MARK * entry.round
                marks.extend(bytes(max(0, start + MARK - len(marks))))
                marks[start : start + MARK] = entry.mark
                self.applied[entry.client] += 1
                self.rule.apply(
                    entry.client, messages.Update(entry.round, entry.base, entry.vector)
                )
                return
            case storage.Absent():
                self.absent.add(entry.client)
            case storage.Returned():
                self.absent.discard(entry.client)
                self._left.pop(entry.client, None)
            case storage.Left():
                self._left[entry.client] = entry.life
        self.rule.decided(entry)

    def _advance(self) -> bool:
        """True if there is a new model or the run has ended."""
        was = self.finished
        moved = False
        while self.rule.advance():
            moved = True
            if self.average is not None:
                self.average.update(self.version, self.rule.model)
        return moved or self.finished != was

    def _told(self, client: int) -> on.Send:
        """The message with the newest model, or with the reported one at the end, to a client."""
        marks = self._marks[client]
        known = 0 if marks is None else len(marks) // MARK
        if self.finished:
            return on.Send(client, messages.Finished(known, self.version, self.reported))
        return on.Send(client, messages.Model(known, self.version, self.rule.model))

    # ---- snapshots

    def snapshot(self) -> storage.ServerSnapshot:
        """The whole state after the last entry."""
        values, arrays = self.rule.state()
        held: Arrays = {f"rule/{name}": array for name, array in arrays.items()}
        held["applied"] = self.applied
        lengths = [len(marks or b"") for marks in self._marks]
        held["marks/lengths"] = np.array(lengths, dtype=np.int64)
        held["marks"] = np.frombuffer(b"".join(m or b"" for m in self._marks), dtype=np.uint8)
        if self.average is not None:
            held["average"] = self.average.weights
        own: dict[str, Any] = {"absent": sorted(self.absent), "left": sorted(self._left)}
        lives = [life for _, life in sorted(self._left.items())]
        if any(lives):
            own["lives"] = lives
        return storage.ServerSnapshot(
            {"rule": values, **own}, {n: a.copy() for n, a in held.items()}
        )

    def _restore(self, snapshot: storage.ServerSnapshot) -> None:
        values: Mapping[str, Any] = snapshot.values
        arrays: Mapping[str, NDArray[Any]] = snapshot.arrays
        rule = {name[5:]: array for name, array in arrays.items() if name.startswith("rule/")}
        self.rule.restore(values["rule"], rule)
        self.applied = np.array(arrays["applied"])
        self.absent, left = set(values["absent"]), values["left"]
        self._left = dict(zip(left, values.get("lives", [0] * len(left)), strict=True))
        ends = np.cumsum(arrays["marks/lengths"]).tolist()
        marks = arrays["marks"].tobytes()
        self._marks = [
            bytearray(marks[start:end]) if end > start else None
            for start, end in zip([0, *ends[:-1]], ends, strict=True)
        ]
        if self.average is not None:
            self.average.restore(np.array(arrays["average"], dtype=np.float32))


def _mark(update: messages.Update, square: float) -> bytes:
    # Without a frame to hash (a simulation), this suffices to distinguish two honest updates.
    some = update.vector[:: 1 + len(update.vector) // SAMPLE]
    return struct.pack("<Idi", zlib.crc32(some.tobytes()), square, update.base)
