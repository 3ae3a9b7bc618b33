"""Records in order, each there whole or not at all: what a machine reads back after a crash.

A record is written as its length, a checksum of that length, a checksum of the content, and the
content; both checksums continue those before them (BLAKE3 over the chain), so that no record can be
dropped, repeated or exchanged unnoticed. Only the last append can have been cut off by a crash:
what it left is forgotten. Damage anywhere else stops the reader.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from blake3 import blake3

from forethought.exchange.storing import Storage

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
