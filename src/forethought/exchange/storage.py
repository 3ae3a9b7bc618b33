"""Crash-safe storage: a client's ledger and its witness, a server's journal."""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from forethought.exchange import messages
from forethought.exchange.events import Begin, ClientRelease
from forethought.values.serialisation import sync_folder

# A log of records in order, each stored whole or not at all, which a machine reads after a crash.
#
# A record is written as its length, a checksum of that length, a checksum of the content, and the
# content; both checksums include the previous record's (a BLAKE3 chain), so that no record can be
# dropped, repeated or exchanged unnoticed. A crash can cut off only the last append: its partial
# record is discarded. Damage anywhere else stops the reader.


_LENGTH = struct.Struct("<Q")
_SUM_BYTES = 16
_HEAD_BYTES = _LENGTH.size + 2 * _SUM_BYTES
_START = b"forethought record log 1\n"


class LogError(ValueError):
    """A log that was damaged, or that belongs to another run."""


class RecordLog:
    """A growing list of records under one name of a storage.

    Args:
        storage: holds the log. name: the log's name in it.

    Raises:
        LogError: damaged in another way than by a crash during its last append.

    Attributes:
        size: the log's length in bytes.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        kept = storage.read(name) or b""
        self._found, self._chain, self.size = _records(kept, name)
        if self.size < len(kept):
            # Cut the torn tail off before anything is appended.
            storage.replace(name, kept[: self.size])

    def replay(self) -> list[bytes]:
        """The records that the log held when it was opened; a second call returns none."""
        found, self._found = self._found, []
        return found

    def append(self, *record: bytes | memoryview) -> None:
        """Append a record, given in parts; once this returns, the record survives a crash.

        Raises:
            OSError: it cannot be written.
        """
        written, chain = _written(record, self._chain)
        self._storage.append(self._name, written)
        self._chain, self.size = chain, self.size + len(written)

    def rewrite(self, records: Iterable[bytes]) -> None:
        """Replace all records by ``records``, in one atomic write.

        Raises:
            OSError: it cannot be written; the log is as it was.
        """
        parts, chain = [], _START
        for record in records:
            written, chain = _written((record,), chain)
            parts.append(written)
        whole = b"".join(parts)
        self._storage.replace(self._name, whole)
        self._chain, self.size = chain, len(whole)


def sums_of(
    chain: bytes, length: bytes, record: Iterable[bytes | memoryview]
) -> tuple[bytes, bytes]:
    of_length = blake3(chain + length).digest(length=_SUM_BYTES)
    state = blake3(key=blake3(of_length).digest())
    for part in record:
        state.update(part)
    return of_length, state.digest(length=_SUM_BYTES)


def _written(record: Sequence[bytes | memoryview], chain: bytes) -> tuple[bytes, bytes]:
    length = _LENGTH.pack(sum(map(len, record)))
    of_length, of_record = sums_of(chain, length, record)
    return b"".join((length, of_length, of_record, *record)), of_record


def _records(kept: bytes, name: str) -> tuple[list[bytes], bytes, int]:
    """(whole records, end of their chain, bytes that they take)."""
    view, at, chain = memoryview(kept), 0, _START
    found: list[bytes] = []
    while at + _HEAD_BYTES <= len(view):
        length_bytes = bytes(view[at : at + _LENGTH.size])
        sums = bytes(view[at + _LENGTH.size : at + _HEAD_BYTES])
        (length,) = _LENGTH.unpack(length_bytes)
        end = at + _HEAD_BYTES + length
        record = view[at + _HEAD_BYTES : min(end, len(view))]
        of_length, of_record = sums_of(chain, length_bytes, (record,))
        if sums[:_SUM_BYTES] != of_length:
            if not any(view[at + _LENGTH.size + _SUM_BYTES :]):
                break  # a crash came after the file had grown, before its content was written
            raise _damaged(name, len(found))
        if end > len(view):
            break
        if sums[_SUM_BYTES:] != of_record:
            if end == len(view):
                break
            raise _damaged(name, len(found))
        found.append(bytes(record))
        chain, at = of_record, end
    return found, chain, at


def _damaged(name: str, number: int) -> LogError:
    return LogError(
        f"{name} is damaged at record {number}, and not by a crash while it was written: restore "
        "it from a copy"
    )


# The machines' interface to storage: a client's ledger, a server's journal, and the named files of
# both.
#
# Protocols and plain values only. A crash may happen during any write; a reader then finds the old
# content or the new one, and at the end of an appended file at most a torn record, which is cut
# off.


class Storage(Protocol):
    """Byte strings under names."""

    def read(self, name: str) -> bytes | None:
        """The content under a name; None: there is none."""

    def replace(self, name: str, content: bytes) -> None:
        """Write the content whole or not at all; durable on return."""

    def append(self, name: str, content: bytes) -> None:
        """Add at the end; durable on return. A crash during it may leave a part of ``content``."""


@dataclass(frozen=True, slots=True, eq=False)
class LedgerState:
    """A client's state, as its ledger records it.

    Args:
        updates: number of committed updates. rounds: private rounds of the plan in them.
        state: the trainer's state after the last update.
        acknowledged: the server has all updates before this number.
        outgoing: updates that the server may not have, oldest first.
        base: version of the model that the last update was computed on; -1: there is none.
        begun: the round, as JSON, that was chosen for the next update; "": none was written.
    """

    updates: int = 0
    rounds: int = 0
    state: bytes = b""
    acknowledged: int = 0
    outgoing: tuple[messages.Update, ...] = ()
    base: int = -1
    begun: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Accepted:
    """The server applies this update, at this entry's place in the journal.

    Args:
        mark: 16 bytes by which the same update is recognised.
    """

    client: int
    round: int
    base: int
    vector: messages.Vector
    mark: bytes


@dataclass(frozen=True, slots=True)
class Closed:
    """A synchronous round ended with the updates that had arrived.

    Args:
        base: the round's version; -1 - version if no update of the round can arrive any more, so
            that the next round begins on the same model.
    """

    base: int


@dataclass(frozen=True, slots=True)
class Absent:
    """The server goes on without a client that sent nothing for too long."""

    client: int


@dataclass(frozen=True, slots=True)
class Returned:
    """A client that was absent is back."""

    client: int


@dataclass(frozen=True, slots=True)
class Left:
    """A client stopped for good. ``life``: number of the client process that reported it."""

    client: int
    life: int = 0
    LATER: ClassVar[str] = "life"


Entry: TypeAlias = Accepted | Closed | Absent | Returned | Left

# Number in a journal → class of the entry.
ENTRIES: dict[int, type] = {1: Accepted, 2: Closed, 3: Absent, 4: Returned, 5: Left}


@dataclass(frozen=True, slots=True, eq=False)
class ServerSnapshot:
    """A server's whole state.

    Args:
        values: JSON-serialisable. arrays: name → array.
    """

    values: Mapping[str, Any]
    arrays: Mapping[str, NDArray[np.generic]]


# Storage of a client's ledger and a server's journal, with two kinds of write.
#
# ``replace`` is atomic. ``append`` is durable once it returns; a crash during it can leave a torn
# tail, which :class:`RecordLog` recognises. Nothing else is written.


_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")


class FolderStorage:
    """Storage in one folder, a file for each name, readable by its owner only.

    Args:
        folder: made when missing. Only one process may use it at a time: the caller locks it.
        durable: False: no ``fsync``, so that a crash of the operating system may lose the last
            records.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, folder: Path, durable: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder, self._durable = folder, durable

    def read(self, name: str) -> bytes | None:
        """See :class:`~forethought.exchange.storage.Storage`.

        Raises:
            OSError: it cannot be read. ValueError: a name that is not permitted.
        """
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes) -> None:
        """See :class:`~forethought.exchange.storage.Storage`.

        Raises:
            OSError: it cannot be written; the old content is untouched. ValueError: the name.
        """
        path = self._path(name)
        part = path.with_name(f".{name}.part")
        try:
            _write(part, os.O_TRUNC, content, self._durable)
            part.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        self._sync()

    def append(self, name: str, content: bytes) -> None:
        """See :class:`~forethought.exchange.storage.Storage`.

        Raises:
            OSError: it cannot be written; a part may have been written. ValueError: the name.
        """
        path = self._path(name)
        new = not path.exists()
        _write(path, os.O_APPEND, content, self._durable)
        if new:
            self._sync()

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name here: small letters, digits, dots and dashes")
        return self.folder / name

    def _sync(self) -> None:
        """Make the folder's own entries durable."""
        if self._durable:
            sync_folder(self.folder)


def _write(path: Path, way: int, content: bytes, durable: bool) -> None:
    """Write into a file, opened in a way of ``os.open``; an error of the system names it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | way, 0o600)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            view = memoryview(content)
            while view:
                view = view[file.write(view) :]
            if durable:
                os.fsync(file.fileno())
    except OSError as error:
        error.filename = str(path)
        raise


# A client's ledger: all its releases, and the frames that are not acknowledged yet.
#
# A release and its outgoing frame are one record of a log, so that a crash leaves both or neither;
# the frame is signed before it is written, and the same bytes are sent until the server has them.
# Acknowledgements are written with the next release: if a crash loses one, a frame is sent again.


LEDGER = "ledger"
# A log is rewritten when its obsolete bytes exceed both this number and the bytes still needed.
_SLACK = 32 << 20
_ROUND = struct.Struct("<q")


class LedgerError(RuntimeError):
    """A ledger that must not be continued: another run or data, or two contents for one round."""


@dataclass(frozen=True, slots=True)
class _Opening:
    run_id: bytes
    client: int
    data: str


@dataclass(frozen=True, slots=True)
class _Released:
    """One release. Only the last keeps its ``state``; ``frame`` is kept until acknowledged.

    ``confirmed``: the rounds that were acknowledged since the previous release, 8 bytes each.
    """

    round: int
    base: int
    rounds: int
    input_hash: bytes
    digest: bytes
    state: bytes
    frame: bytes
    confirmed: bytes


_RECORDS: dict[int, type] = {0: _Opening, 1: _Released, 2: Begin}


class Allows(Protocol):
    """Checks releases against a budget; raises if one is not allowed."""

    def before(self, state: bytes, text: str) -> None:
        """Refuse a round that may not begin after the releases recorded in ``state``."""

    def after(self, state: bytes, text: str) -> None:
        """Refuse a last release of ``state`` that is not the one begun, or not allowed."""


class ClientLedger:
    """The permanent record of a client's releases.

    Args:
        storage: holds the ledger, under the name "ledger".
        endpoint: the client's; signs the outgoing frames.
        data: identifies the client's data: a digest keyed with the client's own secret.
        allows: called before a round begins and before its release is written; None: the plan
            alone determines the releases.
        ahead: called with a release's private rounds before it is written; None: no call.

    Raises:
        LedgerError: it belongs to another run, client or data. LogError: it is damaged.
    """

    def __init__(
        self,
        storage: Storage,
        endpoint: messages.Endpoint,
        data: str,
        allows: Allows | None = None,
        ahead: Callable[[int], None] | None = None,
    ) -> None:
        self._endpoint, self._allows, self._ahead = endpoint, allows, ahead
        self._begun = Begin(-1, "")
        self._log = RecordLog(storage, LEDGER)
        self._opening = _Opening(endpoint.run_id, endpoint.me, data)
        self._released: list[_Released] = []
        self._unconfirmed: set[int] = set()
        self._unwritten = b""
        self._stale = 0
        self._state = b""
        records = [_parsed(_RECORDS, one, LedgerError, LEDGER) for one in self._log.replay()]
        if not records:
            self._log.append(*_numbered(_RECORDS, self._opening))
        elif records[0] != self._opening:
            raise LedgerError(
                "this ledger is of another run, client or data set, and counts for ever: go on "
                "with what it belongs to, or take a new folder and add both statements up"
            )
        for record in records[1:]:
            if isinstance(record, _Released):
                self._take(record)
            elif isinstance(record, Begin):
                self._begun = record
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
            begun=self._pending,
        )

    @property
    def _pending(self) -> str:
        return self._begun.rounds if self._begun.round == len(self._released) else ""

    def begin(self, round: int, rounds: str) -> None:
        """Record the round of the next update, before the update begins.

        The same call again changes nothing.

        Args:
            round: number of the update. rounds: the round that it is accounted as, as JSON.

        Raises:
            LedgerError: not the next update, or it was begun with another round.
            BudgetExceededError: the round exceeds the budget; nothing is written.
            OSError: it cannot be written.
        """
        if round != len(self._released) or (self._pending and self._pending != rounds):
            raise LedgerError(
                f"update {round} cannot begin with {rounds}: the ledger holds "
                f"{len(self._released)} updates, the next one begun with "
                f"{self._pending or 'nothing'}"
            )
        if self._pending:
            return
        if self._allows is not None:
            self._allows.before(self._state, rounds)
        self._begun = Begin(round, rounds)
        self._log.append(*_numbered(_RECORDS, self._begun))

    def commit(self, release: ClientRelease) -> None:
        """Write a release and its signed frame in one atomic write.

        The same release again changes nothing.

        Raises:
            LedgerError: another content for a round, or a round out of order.
            OSError: it cannot be written.
        """
        frame = self._endpoint.seal(messages.SERVER, release.update)
        about = release.round, release.base, release.rounds, release.input_hash
        mark = blake3(frame).digest()
        new = _Released(*about, mark, release.state, frame, self._unwritten)
        due = len(self._released)
        if release.update.round != release.round:
            raise LedgerError(f"release {release.round} holds update {release.update.round}")
        if 0 <= release.round < due:
            if self._released[release.round].digest != new.digest:
                raise LedgerError(f"update {release.round} was released with another content")
            return
        if release.round != due or release.rounds <= self._rounds:
            raise LedgerError(
                f"update {release.round} after {release.rounds} private rounds cannot be released: "
                f"the ledger holds {due} updates of {self._rounds} rounds"
            )
        if self._allows is not None:
            if not self._pending:
                raise LedgerError(f"update {release.round} was never begun: it is not released")
            self._allows.after(release.state, self._pending)
        if self._ahead is not None:
            self._ahead(release.rounds)
        self._log.append(*_numbered(_RECORDS, new))
        self._unwritten = b""
        self._take(new)
        if self._stale > max(_SLACK, self._log.size - self._stale):
            self._rewrite()

    def acknowledged(self, round: int) -> None:
        """Note that the server has this update, so that its frame need not be kept.

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
        """The frames that the server may not have, oldest first; their bytes never change."""
        return [self._released[round].frame for round in sorted(self._unconfirmed)]

    def frame(self, round: int) -> bytes | None:
        """The outgoing frame of an update; None: it is acknowledged, or there is no such update."""
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
        *earlier, last = self._released
        records = [self._opening, *earlier, replace(last, state=self._state)]
        begun = [self._begun] if self._pending else []
        self._log.rewrite(b"".join(_numbered(_RECORDS, one)) for one in (*records, *begun))
        self._stale = 0

    def _update(self, frame: bytes) -> messages.Update:
        message = self._endpoint.reopen(frame, to=messages.SERVER)
        if not isinstance(message, messages.Update):
            raise LedgerError("the ledger holds a frame that is no update: restore it from a copy")
        return message


def counted(storage: Storage) -> list[int]:
    """Private rounds of the plan after each release of a ledger, read without its keys.

    Raises:
        LogError: it is damaged. LedgerError: another version wrote it.
    """
    # Not as a log that goes on: a record that another process is writing now must not be cut off.
    written, _, _ = _records(storage.read(LEDGER) or b"", LEDGER)
    records = [_parsed(_RECORDS, record, LedgerError, LEDGER) for record in written]
    return [record.rounds for record in records if isinstance(record, _Released)]


def _numbered(kinds: Mapping[int, type], value: object) -> list[bytes | memoryview]:
    """The parts of a record: the number of the value's class, then the value."""
    return [bytes([messages.number_of(value, kinds, "entry")]), *messages.parts_of(value)]


def _parsed(kinds: Mapping[int, type], record: bytes, refusal: type[Exception], name: str) -> Any:
    """The value of a record; its first byte is the number of its class."""
    if not record or record[0] not in kinds:
        raise refusal(f"the {name} was written by another version: go on with that one")
    try:
        return messages.decode(kinds[record[0]], memoryview(record)[1:])
    except messages.DecodeError as error:
        raise refusal(f"the {name} was written by another version: {error}") from None


# The number of updates that left a client, kept apart from its ledger and from its ledger's backup.
#
# A ledger restored from an old backup counts too few updates, and would release the missing rounds
# again. An honest server notices this; this file shows it without trust in the server, unless it
# was restored together with the ledger. It is written after the ledger and before anything is sent.
# It need not reach the disk at once: a lagging count is too small, but never wrong otherwise.


_DIGITS = 20


class MemberWitness:
    """The count of the updates that one member has released in one run.

    Args:
        folder: an existing folder, outside the ledger's folder and its backup. run_id: 32 bytes.
        member: its place in the roster.
    """

    def __init__(self, folder: Path, run_id: bytes, member: int) -> None:
        self.path = folder / f"released-{run_id.hex()[:16]}-{member}"

    def count(self) -> int:
        """The number of updates noted as having left the member; 0: none was noted.

        Raises:
            LedgerError: the count is damaged.
        """
        held = self._read()
        text, proof = held[:_DIGITS], held[_DIGITS:]
        whole = len(text) == _DIGITS and text.isdigit() and len(proof) in (0, messages.PROOF_BYTES)
        if held and not whole:
            raise LedgerError(
                f"{self.path} is no count of updates: it is damaged. Remove it only if the ledger "
                "was not restored from a backup"
            )
        return int(text or 0)

    def proof(self) -> bytes:
        """The proof of the member's count that was noted with it; b"": none was noted."""
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
                f"{left} updates have left this member, its ledger has {updates}: this is another "
                "folder, or the ledger was set back. Nothing more is released: give the folder of "
                "the newest ledger, or restore it; a new run has keys of its own"
            )

    def note(self, updates: int, proof: bytes = b"") -> None:
        """Note that ``updates`` updates are in the ledger and about to leave.

        Args:
            proof: of a neighbour's count: see :func:`~forethought.exchange.messages.proven`.

        Raises:
            OSError: it cannot be written; then nothing may be sent.
        """
        count = f"{updates:0{_DIGITS}d}".encode("ascii")
        _write(self.path, 0, count + proof, durable=False)


# A server's journal: its last snapshot and its decisions since then, replayed bit for bit.
#
# One record log. A snapshot replaces everything before it in one atomic write, so that a crash
# leaves either the old snapshot with its entries or the new one without entries.


JOURNAL = "journal"
_OPENING, _SNAPSHOT = 254, 255


class JournalError(RuntimeError):
    """A journal that must not be continued: of another run, or written by another version."""


@dataclass(frozen=True, slots=True)
class _JournalOpening:
    run_id: bytes


class ServerJournal:
    """A server's decisions, in order.

    Args:
        storage: holds the journal, under the name "journal".
        run_id: 32 bytes.

    Raises:
        JournalError: it belongs to another run. LogError: it is damaged.
    """

    def __init__(self, storage: Storage, run_id: bytes) -> None:
        self._log = RecordLog(storage, JOURNAL)
        self._opening = bytes([_OPENING]) + messages.encode(_JournalOpening(run_id))
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
        """The last snapshot (None: there is none) and the entries since; call it only once.

        Raises:
            JournalError: another version wrote it.
        """
        records, self._records = self._records[1:], []
        snapshot = None
        if records and records[0][0] == _SNAPSHOT:
            snapshot = _restored(memoryview(records.pop(0))[1:])
        return snapshot, [_parsed(ENTRIES, one, JournalError, JOURNAL) for one in records]

    def append(self, entry: Entry) -> None:
        """Add an entry; once this returns, the entry survives a crash.

        Raises:
            OSError: it cannot be written. ValueError: a class that is not in :data:`ENTRIES`.
        """
        self._log.append(*_numbered(ENTRIES, entry))

    def snapshot(self, state: ServerSnapshot) -> None:
        """Replace everything in the journal by this state, in one atomic write.

        Raises:
            OSError: it cannot be written; the journal is as it was.
        """
        self._log.rewrite([self._opening, bytes([_SNAPSHOT]) + _stored(state)])


def _stored(state: ServerSnapshot) -> bytes:
    values = json.dumps(dict(state.values), allow_nan=False).encode()
    arrays = {name: np.ascontiguousarray(array) for name, array in state.arrays.items()}
    return _LENGTH.pack(len(values)) + values + save(arrays)


def _restored(record: memoryview) -> ServerSnapshot:
    try:
        (size,) = _LENGTH.unpack_from(record)
        values: dict[str, Any] = json.loads(bytes(record[_LENGTH.size : _LENGTH.size + size]))
        return ServerSnapshot(values, load(bytes(record[_LENGTH.size + size :])))
    except (ValueError, struct.error, SafetensorError) as error:
        raise JournalError(
            f"the journal's snapshot was written by another version: {error}"
        ) from None
