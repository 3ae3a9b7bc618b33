"""A client's ledger, its witness, and a server's journal."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from safetensors import SafetensorError
from safetensors.numpy import load, save

from forethought.exchange.codec import DecodeError, decode, encode, parts_of
from forethought.exchange.events import Release
from forethought.exchange.frame import PROOF_BYTES, Endpoint
from forethought.exchange.messages import SERVER, Update
from forethought.exchange.storage import (
    ENTRIES,
    Entry,
    LedgerState,
    RecordLog,
    ServerSnapshot,
    Storage,
)

# A client's ledger: every release it ever made, and the frames that are not acknowledged yet.
#
# A release and its outgoing frame are one record of a log, so that a crash leaves both or neither;
# the frame is signed before it is written, and the same bytes are sent until the server has them.
# Acknowledgements are written with the next release: one that a crash loses costs one more sending.


LEDGER = "ledger"
# A log is written anew when its acknowledged frames take more than this, and than what is live.
_SLACK = 32 << 20
_ROUND = struct.Struct("<q")


class LedgerError(RuntimeError):
    """A ledger that must not go on: of another run or other data, or two contents for one round."""


@dataclass(frozen=True, slots=True)
class _Opening:
    run_id: bytes
    client: int
    data: str


@dataclass(frozen=True, slots=True)
class _Released:
    """``state`` is kept of the last one, ``frame`` until it is acknowledged.

    ``confirmed``: the rounds that were acknowledged since the release before, 8 bytes each.
    """

    round: int
    base: int
    rounds: int
    input_hash: bytes
    digest: bytes
    state: bytes
    frame: bytes
    confirmed: bytes


_RECORDS: tuple[type, ...] = (_Opening, _Released)


class ClientLedger:
    """A client's releases, in a storage; see :class:`~forethought.exchange.storage.Ledger`.

    Args:
        storage: where, under the name "ledger".
        endpoint: of the client; signs what goes out.
        data: says which data it is about: a digest under the client's own secret.
        ahead: called with a release's private rounds before it is written; None: nobody asks.

    Raises:
        LedgerError: it belongs to another run, client or data. LogError: it is damaged.
    """

    def __init__(
        self,
        storage: Storage,
        endpoint: Endpoint,
        data: str,
        ahead: Callable[[int], None] | None = None,
    ) -> None:
        self._endpoint, self._ahead = endpoint, ahead
        self._log = RecordLog(storage, LEDGER)
        self._opening = _Opening(endpoint.run_id, endpoint.me, data)
        self._released: list[_Released] = []
        self._unconfirmed: set[int] = set()
        self._unwritten = b""
        self._stale = 0
        self._state = b""
        records = [_parsed(record) for record in self._log.replay()]
        if not records:
            self._log.append(_bytes(self._opening))
        elif records[0] != self._opening:
            raise LedgerError(
                "this ledger belongs to another run, client or data set. What it holds was "
                "released and counts for ever: go on with what it belongs to, or take a new folder "
                "and add both statements up"
            )
        for record in records[1:]:
            if isinstance(record, _Released):
                self._take(record)
            else:
                raise LedgerError("this ledger has two beginnings: restore it from a copy")

    def read(self) -> LedgerState:
        """The client's state."""
        waiting = sorted(self._unconfirmed)
        return LedgerState(
            updates=len(self._released),
            rounds=self._rounds,
            state=self._state,
            acknowledged=waiting[0] if waiting else len(self._released),
            base=self._released[-1].base if self._released else -1,
            outgoing=tuple(self._update(self._released[round].frame) for round in waiting),
        )

    def commit(self, release: Release) -> None:
        """Write a release and its signed frame in one atomic write.

        The same release again changes nothing.

        Raises:
            LedgerError: another content for a round, or a round out of order.
            OSError: cannot be written.
        """
        frame = self._endpoint.seal(SERVER, release.update)
        new = _Released(
            release.round,
            release.base,
            release.rounds,
            release.input_hash,
            blake3(frame).digest(),
            release.state,
            frame,
            self._unwritten,
        )
        due = len(self._released)
        if release.update.round != release.round:
            raise LedgerError(f"release {release.round} holds update {release.update.round}")
        if 0 <= release.round < due:
            if self._released[release.round].digest != new.digest:
                raise LedgerError(
                    f"update {release.round} was released with another content: a round is "
                    "released once"
                )
            return
        if release.round != due or release.rounds <= self._rounds:
            raise LedgerError(
                f"update {release.round} after {release.rounds} private rounds cannot be released: "
                f"the ledger holds {due} updates of {self._rounds} rounds"
            )
        if self._ahead is not None:
            self._ahead(release.rounds)
        self._log.append(bytes([_RECORDS.index(_Released)]), *parts_of(new))
        self._unwritten = b""
        self._take(new)
        if self._stale > max(_SLACK, self._log.size - self._stale):
            self._rewrite()

    def acknowledged(self, round: int) -> None:
        """The server has this update; its frame need not be kept.

        Raises:
            LedgerError: no such release.
        """
        if not 0 <= round < len(self._released):
            raise LedgerError(f"update {round} was acknowledged, but never released")
        if round not in self._unconfirmed:
            return
        self._unwritten += _ROUND.pack(round)
        self._confirm(round)

    def frames(self) -> list[bytes]:
        """The frames that the server may not have: the same bytes for ever, oldest first."""
        return [self._released[round].frame for round in sorted(self._unconfirmed)]

    def frame(self, round: int) -> bytes | None:
        """The outgoing frame of an update; None: it is acknowledged, or there is none."""
        return self._released[round].frame if round in self._unconfirmed else None

    @property
    def _rounds(self) -> int:
        return self._released[-1].rounds if self._released else 0

    def _take(self, record: _Released) -> None:
        self._stale += len(self._state)
        self._state = record.state
        self._released.append(replace(record, state=b"", confirmed=b""))
        for (round,) in _ROUND.iter_unpack(record.confirmed):
            self._confirm(round)
        if record.frame:
            self._unconfirmed.add(record.round)

    def _confirm(self, round: int) -> None:
        self._unconfirmed.discard(round)
        self._stale += len(self._released[round].frame)
        self._released[round] = replace(self._released[round], frame=b"")

    def _rewrite(self) -> None:
        records = [_bytes(self._opening)]
        for record in self._released:
            last = record.round == len(self._released) - 1
            records.append(_bytes(replace(record, state=self._state if last else b"")))
        self._log.rewrite(records)
        self._stale = 0

    def _update(self, frame: bytes) -> Update:
        message = self._endpoint.reopen(frame, to=SERVER)
        if not isinstance(message, Update):
            raise LedgerError("the ledger holds a frame that is no update: restore it from a copy")
        return message


def counted(storage: Storage) -> list[int]:
    """Private rounds of the plan after each release of a ledger, for whoever looks at it.

    Raises:
        LogError, LedgerError: it is damaged.
    """
    records = [_parsed(record) for record in RecordLog(storage, LEDGER).replay()]
    return [record.rounds for record in records if isinstance(record, _Released)]


def _bytes(record: _Opening | _Released) -> bytes:
    return bytes([_RECORDS.index(type(record))]) + encode(record)


def _parsed(record: bytes) -> _Opening | _Released:
    if not record or record[0] >= len(_RECORDS):
        raise LedgerError("the ledger was written by another version: go on with that one")
    try:
        found: _Opening | _Released = decode(_RECORDS[record[0]], memoryview(record)[1:])
    except DecodeError as error:
        raise LedgerError(f"the ledger was written by another version: {error}") from None
    return found


# How many updates left a client, kept apart from its ledger: what a restored backup has not.
#
# A ledger that was set back counts too little, and releases again what it has forgotten. The server
# can tell, if it is honest; this file tells whatever the server says, unless it was set back along.
# It is written after the ledger and before anything is sent, and need not reach the disk at once:
# one that lags says less, and nothing wrong.


_DIGITS = 20


class Witness:
    """The count of one member in one run.

    Args:
        folder: not the ledger's, and not in the same backup; it exists. run_id: 32 bytes.
        member: its place in the roster.
    """

    def __init__(self, folder: Path, run_id: bytes, member: int) -> None:
        self.path = folder / f"released-{run_id.hex()[:16]}-{member}"

    def count(self) -> int:
        """The number of updates that have left, as far as was noted.

        Raises:
            LedgerError: the count is damaged.
        """
        held = self._read()
        text, proof = held[:_DIGITS], held[_DIGITS:]
        whole = len(text) == _DIGITS and text.isdigit() and len(proof) in (0, PROOF_BYTES)
        if held and not whole:
            raise LedgerError(
                f"{self.path} is no count of updates: it is damaged. Remove it only if the ledger "
                "was not restored from a backup"
            )
        return int(text or 0)

    def proof(self) -> bytes:
        """The member's own signature on its count, where one was noted."""
        return self._read()[_DIGITS:]

    def _read(self) -> bytes:
        return self.path.read_bytes() if self.path.exists() else b""

    def require(self, updates: int) -> None:
        """Refuse a ledger that has fewer updates than have left.

        Raises:
            LedgerError: the ledger was set back, or the count is damaged.
        """
        left = self.count()
        if left > updates:
            raise LedgerError(
                f"{left} updates have left this member, its ledger has {updates}: the ledger "
                "was set back. Nothing more is released: restore the newest ledger; a run from the "
                "beginning is another run, with keys of its own"
            )

    def note(self, updates: int, proof: bytes = b"") -> None:
        """So many updates are in the ledger and about to leave.

        Args:
            proof: of a neighbour's count: see :func:`~forethought.exchange.frame.proven`.

        Raises:
            OSError: cannot be written; then nothing may be sent.
        """
        place = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(place, f"{updates:0{_DIGITS}d}".encode("ascii") + proof, 0)
        finally:
            os.close(place)


# A server's journal: its last snapshot and what it decided since, replayed bit for bit.
#
# One record log. A snapshot takes the place of everything before it in one atomic write, so that a
# crash leaves the old snapshot with its entries or the new one without any.


JOURNAL = "journal"
_OPENING, _SNAPSHOT = 254, 255
_SIZE = struct.Struct("<Q")


class JournalError(RuntimeError):
    """A journal that must not go on: of another run, or written by another version."""


@dataclass(frozen=True, slots=True)
class _JournalOpening:
    run_id: bytes


class ServerJournal:
    """A server's decisions; see :class:`~forethought.exchange.storage.Journal`.

    Args:
        storage: where, under the name "journal".
        run_id: 32 bytes.

    Raises:
        JournalError: it belongs to another run. LogError: it is damaged.
    """

    def __init__(self, storage: Storage, run_id: bytes) -> None:
        self._log = RecordLog(storage, JOURNAL)
        self._opening = bytes([_OPENING]) + encode(_JournalOpening(run_id))
        self._records = self._log.replay()
        if not self._records:
            self._log.append(self._opening)
            self._records = [self._opening]
        if self._records[0] != self._opening:
            raise JournalError(
                "this journal belongs to another run (another plan, model or roster): go on with "
                "the federation that it belongs to, or take a new folder"
            )

    def read(self) -> tuple[ServerSnapshot | None, list[Entry]]:
        """The last snapshot and the entries since; once, right after opening.

        Raises:
            JournalError: written by another version.
        """
        records, self._records = self._records[1:], []
        snapshot = None
        if records and records[0][0] == _SNAPSHOT:
            snapshot = _restored(memoryview(records.pop(0))[1:])
        return snapshot, [_entry(record) for record in records]

    def append(self, entry: Entry) -> None:
        """Add an entry; once this returns it survives a crash.

        Raises:
            OSError: cannot be written. ValueError: no registered entry.
        """
        for number, kind in ENTRIES.items():
            if kind is type(entry):
                self._log.append(bytes([number]), *parts_of(entry))
                return
        raise ValueError(f"{type(entry).__name__} is no registered entry of a journal")

    def snapshot(self, state: ServerSnapshot) -> None:
        """Have this state in place of all that is there, in one atomic write.

        Raises:
            OSError: cannot be written; the journal is as it was.
        """
        self._log.rewrite([self._opening, bytes([_SNAPSHOT]) + _stored(state)])


def _stored(state: ServerSnapshot) -> bytes:
    values = json.dumps(dict(state.values), allow_nan=False).encode()
    arrays = {name: np.ascontiguousarray(array) for name, array in state.arrays.items()}
    return _SIZE.pack(len(values)) + values + save(arrays)


def _restored(record: memoryview) -> ServerSnapshot:
    try:
        (size,) = _SIZE.unpack_from(record)
        values: dict[str, Any] = json.loads(bytes(record[_SIZE.size : _SIZE.size + size]))
        return ServerSnapshot(values, load(bytes(record[_SIZE.size + size :])))
    except (ValueError, struct.error, SafetensorError) as error:
        raise JournalError(
            f"the journal's snapshot was written by another version: {error}"
        ) from None


def _entry(record: bytes) -> Entry:
    if not record or record[0] not in ENTRIES:
        raise JournalError("the journal was written by another version: go on with that one")
    try:
        entry: Entry = decode(ENTRIES[record[0]], memoryview(record)[1:])
    except DecodeError as error:
        raise JournalError(f"the journal was written by another version: {error}") from None
    return entry
