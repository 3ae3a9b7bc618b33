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

**Hashes** of records or of persons are 16 bytes each and keyed too. They find matches that a
fingerprint cannot find: a part, a superset, another data set about the same persons. With n hashes
in a book, two different entries have one hash with probability below n²/2¹²⁹.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from blake3 import blake3

from forethought.data.files import with_entries, written
from forethought.values.serialisation import write_secret

KEY_BYTES, HASH_BYTES = 32, 16
_NUMBERS = 1024
# Records that are expanded at a time: 2 MB of numbers, which fit into the processor's cache.
_BLOCK = 1024
Kind = Literal["record", "person"]


def new_key(path: Path) -> None:
    """Create an owner-only file with a new key. Raises OSError: it exists, or cannot be made."""
    write_secret(path, secrets.token_bytes(KEY_BYTES))


def _key(key: bytes, purpose: str) -> bytes:
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        raise ValueError(f"the book's key must be {KEY_BYTES} bytes")
    return blake3(key, derive_key_context=f"forethought 2026 ledger identity {purpose}").digest()


def fingerprint(key: bytes, records: Iterable[bytes]) -> str:
    """The fingerprint of records in any order: 64 hexadecimal digits, for a book's entry.

    Args:
        key: 32 bytes, the book's.
        records: each as bytes (:func:`contents`).
    """
    own, total, count = _key(key, "fingerprint"), np.zeros(_NUMBERS, dtype="<u2"), 0
    records = iter(records)
    while block := list(islice(records, _BLOCK)):
        drawn = b"".join([blake3(one, key=own).digest(length=2 * _NUMBERS) for one in block])
        numbers = np.frombuffer(drawn, "<u2").reshape(len(block), _NUMBERS)
        total += numbers.sum(axis=0, dtype=np.uint16)
        count += len(block)
    return blake3(count.to_bytes(16, "little", signed=True) + total.tobytes()).hexdigest()


def hashes(key: bytes, entries: Iterable[bytes | str], kind: Kind = "person") -> list[bytes]:
    """Keyed hashes of the different records or persons of a data set, sorted, 16 bytes each.

    Args:
        entries: one of each row: a record's bytes, or the name of its person.
        kind: records and persons with equal content have different hashes.
    """
    own = _key(key, kind)
    texts = {one.encode() if isinstance(one, str) else one for one in entries}
    return sorted(blake3(one, key=own).digest(length=HASH_BYTES) for one in texts)


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


def _plain(entry: object) -> str:
    return entry.hex() if isinstance(entry, bytes) else str(entry)


def contents(frame: pl.DataFrame, leave_out: Iterable[str] = ()) -> list[bytes]:
    """Every row of a table as bytes: equal for equal entries, for any order of the columns.

    Numbers are compared by value, whether written as "1", "1.0" or 1; words without spaces around
    them; all missing entries are equal. How exact a column's type is does not matter. Lists, fields
    and bytes are compared as they are.

    Args:
        leave_out: columns that do not identify records, such as a running number.

    Raises:
        TypeError: ``frame`` is no frame of polars, or holds objects of Python.
    """
    if not isinstance(frame, pl.DataFrame):
        raise TypeError(f"give a frame of polars (pl.from_pandas), not {type(frame).__name__}")
    parts = []
    for name in sorted(set(frame.columns) - set(leave_out)):
        entries = frame[name]
        if entries.dtype == pl.Object:
            raise TypeError(f"column {name!r} holds objects of Python: write them as text")
        if entries.dtype.is_nested() or entries.dtype == pl.Binary:
            rows = [json.dumps(row, sort_keys=True, default=_plain) for row in entries.to_list()]
            entries = pl.Series(name, rows, pl.String).set(entries.is_null(), None)
        words = written(with_entries(entries.to_frame())[name])
        numbers = words.cast(pl.Float64, strict=False)
        # Written again: a float32 has other digits in float64 than in a text.
        if ((numbers.cast(pl.Float32) == numbers) & (numbers.floor() != numbers)).any():
            numbers = written(numbers).cast(pl.Float64)
        value = numbers.fill_null(np.nan).to_numpy() + 0.0
        # Whole numbers from 2⁵³ on, such as long identifiers, can be distinguished only as words.
        exact = pl.Series(np.abs(value) < 2**53)
        bits = pl.Series(value.view(np.int64)).cast(pl.String)
        # The length before each word separates it from the next one without ambiguity.
        sized = words.str.len_bytes().cast(pl.String) + ":" + words
        entry = ("n" + bits).zip_with(exact, "w" + sized).fill_null("-")
        parts.append((f"{len(name.encode())}:{name}=" + entry).alias(name))
    if not parts:
        return [b""] * len(frame)
    together = pl.DataFrame(parts).select(pl.concat_str(pl.all(), separator=";"))
    return [row.encode() for row in together.to_series().to_list()]
