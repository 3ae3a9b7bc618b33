"""A data set's identity: a keyed fingerprint of its records, and hashes of its persons.

**The fingerprint** is LtHash (Bellare and Micciancio 1997; lthash16 with 1,024 numbers, Lewi, Kim,
Maykov and Weis 2019): BLAKE3 with the book's key turns every record into 1,024 numbers below 2¹⁶,
and the fingerprint is their sum modulo 2¹⁶, number by number. So the order of records does not
matter, repeated records count repeatedly, and adding or removing records takes time for these
records only. Two different multisets with one fingerprint give a short non-zero integer vector (the
differences of the records' counts) in the kernel of a matrix that is random if BLAKE3 is a random
function: the short-integer-solution problem of dimension 1,024 modulo 2¹⁶, whose best known attacks
cost more than 2²⁰⁰ steps, even with the key. A sum of 256 bits would not suffice: with many records
to choose from, a holder of the key finds collisions by Wagner's (2002) tree in 2³¹ steps. Since 2¹⁶
equal records vanish from the sum, the number of records is a part of the name. Without the key, a
fingerprint is a random number, which cannot confirm a guessed record.

**Hashes** of records or of persons are 16 bytes each, keyed too, and stored sorted with their
counts. They find matches that a fingerprint cannot find: a part, a superset, another data set about
the same persons. With n hashes in a book, two different entries have one hash with probability
below n²/2¹²⁹.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from blake3 import blake3
from numpy.typing import NDArray

KEY_BYTES, HASH_BYTES = 32, 16
_NUMBERS = 1024
# Records that are expanded at a time: 2 MB of numbers, which fit into the processor's cache.
_BLOCK = 1024
Kind = Literal["record", "person"]


def new_key(path: Path) -> None:
    """Create an owner-only file with a new key. Raises OSError: it exists, or cannot be made."""
    with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(secrets.token_bytes(KEY_BYTES))


def _key(key: bytes, purpose: str) -> bytes:
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise ValueError(f"the book's key must be {KEY_BYTES} bytes")
    return blake3(key, derive_key_context=f"forethought 2026 ledger identity {purpose}").digest()


@dataclass(frozen=True)
class Fingerprint:
    """The sum of all records' numbers; by default that of no records.

    Args:
        state: 2,048 bytes: 1,024 numbers of two bytes, low byte first.
        count: number of records in it.
    """

    state: bytes = bytes(2 * _NUMBERS)
    count: int = 0

    def __post_init__(self) -> None:
        if len(self.state) != 2 * _NUMBERS:
            raise ValueError(f"a fingerprint has {2 * _NUMBERS} bytes, not {len(self.state)}")

    @property
    def name(self) -> str:
        """64 hexadecimal digits, for people and for a book's entry."""
        return blake3(self.count.to_bytes(16, "little", signed=True) + self.state).hexdigest()

    def added(self, key: bytes, records: Iterable[bytes]) -> Fingerprint:
        """The fingerprint with these records added.

        Args:
            key: 32 bytes, the book's.
            records: each as bytes (:func:`contents`).
        """
        return self + fingerprint(key, records)

    def __add__(self, other: Fingerprint) -> Fingerprint:
        """The fingerprint of both data sets together; disjoint parts can be hashed separately."""
        return Fingerprint((self._numbers + other._numbers).tobytes(), self.count + other.count)

    @property
    def _numbers(self) -> NDArray[np.uint16]:
        return np.frombuffer(self.state, "<u2")


def fingerprint(key: bytes, records: Iterable[bytes]) -> Fingerprint:
    """The fingerprint of records, which can come in any order."""
    own, total, count = _key(key, "fingerprint"), np.zeros(_NUMBERS, dtype="<u2"), 0
    records = iter(records)
    while block := list(islice(records, _BLOCK)):
        drawn = b"".join([blake3(one, key=own).digest(length=2 * _NUMBERS) for one in block])
        numbers = np.frombuffer(drawn, "<u2").reshape(len(block), _NUMBERS)
        total += numbers.sum(axis=0, dtype=np.uint16)
        count += len(block)
    return Fingerprint(total.tobytes(), count)


@dataclass(frozen=True, eq=False)
class Hashes:
    """The different records or persons of a data set, and the number of rows of each.

    Args:
        found: sorted hashes, shape (different,), 16 bytes each.
        times: number of rows of each, shape (different,).
    """

    found: NDArray[Any]
    times: NDArray[np.int64] = field(repr=False)

    def __len__(self) -> int:
        """The number of different records or persons."""
        return len(self.found)

    @property
    def rows(self) -> int:
        """The number of all rows."""
        return int(self.times.sum())

    @property
    def group(self) -> int:
        """The largest number of rows of one: the ``group`` that a charge must cover."""
        return int(self.times.max(initial=0))

    def listed(self) -> list[bytes]:
        """The hashes as bytes, for a book."""
        held = self.found.tobytes()
        return [held[at : at + HASH_BYTES] for at in range(0, len(held), HASH_BYTES)]

    def __add__(self, other: Hashes) -> Hashes:
        """The hashes of both data sets together; rows of equal ones add up."""
        found, place = np.unique(np.concatenate([self.found, other.found]), return_inverse=True)
        times = np.bincount(place, np.concatenate([self.times, other.times]), len(found))
        return Hashes(found, times.astype(np.int64))


def hashes(key: bytes, entries: Iterable[bytes | str], kind: Kind = "person") -> Hashes:
    """Keyed hashes of one entry a row: a record's bytes, or the name of its person.

    Args:
        kind: records and persons with equal content have different hashes.
    """
    own = _key(key, kind)
    texts = (one.encode() if isinstance(one, str) else one for one in entries)
    held = b"".join([blake3(one, key=own).digest(length=HASH_BYTES) for one in texts])
    found, times = np.unique(np.frombuffer(held, _HASH), return_counts=True)
    return Hashes(found, times.astype(np.int64))


# NumPy's sortable 16 bytes. Only tobytes reads them, so that trailing zeros are never dropped.
_HASH = "S16"


@dataclass(frozen=True)
class Overlap:
    """A comparison of two data sets, in different records or persons.

    Args:
        of, other: number in the first, and in the second data set.
        shared: number in both.
    """

    of: int
    other: int
    shared: int

    @property
    def kind(self) -> Literal["same", "superset", "part", "overlapping", "disjoint"]:
        """The first data set's relation to the second.

        For "superset" and "part", 19 of 20 suffice, so that a superset with some records removed is
        found too.
        """
        if self.shared == self.of == self.other:
            return "same"
        if not self.shared:
            return "disjoint"
        if 20 * self.shared >= 19 * self.other and self.of >= self.other:
            return "superset"
        return "part" if 20 * self.shared >= 19 * self.of else "overlapping"

    def words(self, other: str, unit: str = "record") -> str:
        """The comparison in words, such as "this looks like a superset of 'x': 12,000 of …"."""
        shown = f"{self.shared:,} of the {self.other:,} {unit}s of {other!r} are among {self.of:,}"
        return {
            "same": f"this is {other!r} under another name: all {self.of:,} {unit}s are the same",
            "superset": f"this looks like a superset of {other!r}: {shown}",
            "part": f"this looks like a part of {other!r}: {shown}",
            "overlapping": f"this shares {unit}s with {other!r}: {shown}",
            "disjoint": f"this shares no {unit} with {other!r}",
        }[self.kind]


def contents(frame: pl.DataFrame, leave_out: Iterable[str] = ()) -> list[bytes]:
    """Every row of a table as bytes: equal for equal entries, for any order of the columns.

    Numbers are compared by value, whether written as "1", "1.0" or 1; words without spaces around
    them; all missing entries are equal.

    Args:
        leave_out: columns that do not identify records, such as a running number.
    """
    left_out = set(leave_out)
    parts = []
    for name in sorted(set(frame.columns) - left_out):
        entries = frame[name]
        if entries.dtype == pl.Boolean:
            entries = entries.cast(pl.Int8)
        words = entries.cast(pl.String).str.strip_chars()
        numbers = entries if entries.dtype.is_numeric() else words
        value = numbers.cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy() + 0.0
        # Whole numbers from 2⁵³ on, such as long identifiers, can be distinguished only as words.
        exact = pl.Series(np.abs(value) < 2**53)
        bits = pl.Series(value.view(np.int64)).cast(pl.String)
        # The length before each word separates it from the next one without ambiguity.
        sized = words.str.len_bytes().cast(pl.String) + ":" + words
        written = ("n" + bits).zip_with(exact, "w" + sized).fill_null("-")
        parts.append((f"{len(name.encode())}:{name}=" + written).alias(name))
    if not parts:
        return [b""] * len(frame)
    together = pl.DataFrame(parts).select(pl.concat_str(pl.all(), separator=";"))
    return [row.encode() for row in together.to_series().to_list()]
