"""A server's journal: its last snapshot and what it decided since, replayed bit for bit.

One record log. A snapshot takes the place of everything before it in one atomic write, so that a
crash leaves the old snapshot with its entries or the new one without any.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from forethought.exchange.codec import DecodeError, decode, encode, parts_of
from forethought.exchange.log import RecordLog
from forethought.exchange.storing import ENTRIES, Entry, ServerSnapshot, Storage

JOURNAL = "journal"
_OPENING, _SNAPSHOT = 254, 255
_SIZE = struct.Struct("<Q")


class JournalError(RuntimeError):
    """A journal that must not go on: of another run, or written by another version."""


@dataclass(frozen=True, slots=True)
class _Opening:
    run_id: bytes


class ServerJournal:
    """What a server decided; see :class:`~forethought.exchange.storing.Journal`.

    Args:
        storage: where, under the name "journal".
        run_id: 32 bytes.

    Raises:
        JournalError: it belongs to another run. LogError: it is damaged.
    """

    def __init__(self, storage: Storage, run_id: bytes) -> None:
        self._log = RecordLog(storage, JOURNAL)
        self._opening = bytes([_OPENING]) + encode(_Opening(run_id))
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
