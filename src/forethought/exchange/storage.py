"""The storage of a machine that survives a crash: logs, files, folders."""

from __future__ import annotations

import contextlib
import os
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from forethought.exchange.events import Release
from forethought.exchange.messages import Update, Vector

# Records in order, each there whole or not at all: what a machine reads back after a crash.
#
# A record is written as its length, a checksum of that length, a checksum of the content, and the
# content; both checksums continue those before them (BLAKE3 over the chain), so that no record can
# be dropped, repeated or exchanged unnoticed. Only the last append can have been cut off by a
# crash: what it left is forgotten. Damage anywhere else stops the reader.


_LENGTH = struct.Struct("<Q")
_SUM_BYTES = 16
_HEAD_BYTES = _LENGTH.size + 2 * _SUM_BYTES
_START = b"forethought record log 1\n"


class LogError(ValueError):
    """A log that was damaged, or that belongs to another run."""


class RecordLog:
    """A growing list of records in one name of a storage.

    Args:
        storage: where. name: under which name.

    Raises:
        LogError: damaged in another way than by a crash during its last append.

    Attributes:
        size: bytes that are kept.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage, self._name = storage, name
        kept = storage.read(name) or b""
        self._found, self._chain, self.size = _records(kept, name)
        if self.size < len(kept):
            # Cut the torn tail off before anything is put behind it.
            storage.replace(name, kept[: self.size])

    def replay(self) -> list[bytes]:
        """The records that were there when the log was opened, once; they are let go then."""
        found, self._found = self._found, []
        return found

    def append(self, *record: bytes | memoryview) -> None:
        """Put a record (its parts) behind the others; once this returns it survives a crash.

        Raises:
            OSError: cannot be written.
        """
        written, chain = _written(record, self._chain)
        self._storage.append(self._name, written)
        self._chain, self.size = chain, self.size + len(written)

    def rewrite(self, records: Iterable[bytes]) -> None:
        """Have ``records`` in place of all that is there, in one atomic write.

        Raises:
            OSError: cannot be written; the log is as it was.
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
            if not any(view[at:]):
                break  # the file had grown, its content had not arrived
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


# What machines need of storage: a client's ledger, a server's journal, and named files below both.
#
# Protocols and plain values only. A crash may come at every write; what a reader finds afterwards
# is the old content or the new one, and at the end of an appended file at most a torn record, which
# is cut off.


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
    """A client's state, as its ledger says.

    Args:
        updates: how many were committed. rounds: private rounds of the plan in them.
        state: the trainer's, of the last one. acknowledged: updates that the server surely has.
        outgoing: those it may not have, oldest first.
        base: version of the model that the last one was computed on; -1: there is none.
        begun: with which round the next update was begun; "": it was not, or needs no such word.
    """

    updates: int = 0
    rounds: int = 0
    state: bytes = b""
    acknowledged: int = 0
    outgoing: tuple[Update, ...] = ()
    base: int = -1
    begun: str = ""


class Ledger(Protocol):
    """A client's releases, for ever."""

    def read(self) -> LedgerState:
        """The client's state."""
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
    """A synchronous round ended with what had come.

    Args:
        base: its version; -1 - version where nothing of it can come any more, so that the next
            round begins on the same model.
    """

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
    """A client stopped for good. ``life``: of the process that said so."""

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
        values: JSON-ready. arrays: name → array.
    """

    values: Mapping[str, Any]
    arrays: Mapping[str, NDArray[np.generic]]


class Journal(Protocol):
    """A server's decisions, in order."""

    def read(self) -> tuple[ServerSnapshot | None, Sequence[Entry]]:
        """The last snapshot and the entries since."""
        ...

    def append(self, entry: Entry) -> None:
        """Add an entry; durable on return."""
        ...

    def snapshot(self, state: ServerSnapshot) -> None:
        """Begin again from this state, atomically."""
        ...


# Where a client's ledger and a server's journal are kept: two kinds of write, one of them atomic.
#
# ``replace`` is seen whole or not at all. ``append`` is durable once it returns; a crash during it
# can leave a torn tail, which :mod:`forethought.exchange.storage` recognises. Nothing else is
# written.


_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")


class FolderStorage:
    """Storage in one folder, a file for each name, readable by its owner only.

    Args:
        folder: made when missing. One process at a time: lock it.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder

    def read(self, name: str) -> bytes | None:
        """See :class:`~forethought.exchange.storage.Storage`.

        Raises:
            OSError: cannot be read.
        """
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes) -> None:
        """See :class:`~forethought.exchange.storage.Storage`.

        Raises:
            OSError: cannot be written; the old content is untouched.
        """
        path = self._path(name)
        part = path.with_name(f".{name}.part")
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            _write(descriptor, content)
            part.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        _sync_folder(self.folder)

    def append(self, name: str, content: bytes) -> None:
        """See :class:`~forethought.exchange.storage.Storage`.

        Raises:
            OSError: cannot be written; a part of it may have been.
        """
        path = self._path(name)
        new = not path.exists()
        _write(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), content)
        if new:
            _sync_folder(self.folder)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name here: small letters, digits, dots and dashes")
        return self.folder / name


def _write(descriptor: int, content: bytes) -> None:
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
