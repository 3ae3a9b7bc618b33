"""The columns that statistics read, from tables in memory or in files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, time
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.data.columns import Column, PlainNumber, TableSchema, UndeclaredError, as_numbers
from forethought.data.dataset import kept
from forethought.data.files import AS_USUAL, DataError, Table, distinct, kind_of
from forethought.values.checks import suggestion

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
# A midnight's day; a whole number, or a time, without its fraction of zeros.
_ZEROS = re.compile(
    r"(\d{4}-\d\d-\d\d) 00:00:00(?:\.0+)?|(-?\d+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.0+"
)
# What strip_chars of polars takes away: str.strip() takes the separators of ASCII as well.
_BLANKS = "".join(c for c in map(chr, range(0x3001)) if c.isspace() and not "\x1c" <= c <= "\x1f")
_TRUTHS = {"true": "1", "false": "0"}

# How an entry is written must depend on that entry alone. A column's type does not: one more record
# can give all others another number of decimals, or make floats of whole numbers.


def word(entry: Any) -> str:
    """One entry as text; None is "", and True and False are "1" and "0".

    Raises:
        DataError: the entry is no word, number or time.
    """
    if entry is None:
        return ""
    if isinstance(entry, bool | np.bool_):
        return str(int(entry))
    if isinstance(entry, Decimal):
        whole, point, rest = f"{entry:f}".partition(".")
        return f"{whole}{point}{rest}".rstrip("0").rstrip(".") if point else whole
    if isinstance(entry, float | np.floating):
        number = float(entry) + 0.0  # −0 is 0
        with np.errstate(over="ignore"):
            single = np.float32(number)
        # A float32 has the same digits in float64.
        short = float(single) == number and not number.is_integer()
        return str(single if short else number)
    if not isinstance(entry, str | Real | date | time):
        raise DataError(
            f"found an entry of type {type(entry).__name__}: give words, numbers or times"
        )
    return str(entry)


def spelled(text: str) -> str:
    """A word in one spelling: "1.0" and "true" are "1", a midnight is its day."""
    text = text.strip(_BLANKS)
    if text[-1:] != "0":
        return _TRUTHS.get(text.lower(), text)
    found = _ZEROS.fullmatch(text)
    return text if found is None else found[1] or found[2]


@dataclass(frozen=True)
class TableRows:
    """Columns of a table by name, read according to their declarations.

    Args:
        frame: the columns.
        where: the file, for messages.
        declared: column → its declaration; other columns are read as plain numbers or words.
        decimal: the decimal mark of numbers in text.
    """

    frame: pl.DataFrame
    where: str
    declared: Mapping[str, Column]
    decimal: str = "."

    def __len__(self) -> int:
        return len(self.frame)

    def numbers(self, name: str, missing: str) -> Array:
        """A column as float64, shape (records,); NaN where an entry is missing.

        Args:
            missing: "refuse" or "skip".

        Raises:
            DataError: there is no such column, or an entry is no number.
            UndeclaredError: an entry is missing, and ``missing`` is "refuse".
        """
        entries = self._entries(name)
        if entries.dtype == pl.Boolean:
            entries = entries.cast(pl.Int8)
        absent = self.declared.get(name, _AS_IT_IS).absent(entries, self.decimal)
        values = as_numbers(self.where, name, entries, absent, self.decimal)
        self._require(name, np.isnan(values), missing)
        return values

    def words(self, name: str, missing: str) -> NDArray[np.object_]:
        """A column as words, in the spelling of :func:`spelled`; "" where an entry is missing.

        Raises:
            DataError: as of :meth:`numbers`, or a float beyond ±2⁵³, whose digits are not its own.
            UndeclaredError: as of :meth:`numbers`.
        """
        entries = self._entries(name)
        absent = self.declared.get(name, _AS_IT_IS).absent(entries, self.decimal).to_numpy()
        self._require(name, absent, missing)
        found = distinct(self.where, entries).to_list()
        own = {one: spelled(word(one)) for one in set(found)}
        return np.where(absent, "", np.array([own[one] for one in found], dtype=object))

    def of_persons(self, column: str, most: int) -> TableRows:
        """At most ``most`` rows of each person, chosen by a keyed hash as for training.

        Args:
            column: names the person of a row.

        Raises:
            DataError: there is no such column, a row has no person, or ``most`` is not from 1 to
                1000.
        """
        columns = [map(word, self._entries(name)) for name in self.frame.columns]
        texts = (map(spelled, row) for row in zip(*columns, strict=True))
        contents = ("\x1f".join(row).encode() for row in texts)
        mask = kept(contents, self.words(column, "skip").tolist(), most)
        return replace(self, frame=self.frame[np.flatnonzero(mask)])

    def _entries(self, name: str) -> pl.Series:
        if name not in self.frame.columns:
            near = suggestion(name, self.frame.columns)
            raise DataError(f"{self.where}: there is no column {name!r}: {near}")
        entries = self.frame[name]
        if entries.dtype.is_nested() or entries.dtype in (pl.Object, pl.Binary, pl.Duration):
            raise DataError(
                f"{self.where}: column {name} is of type {entries.dtype}: give words, numbers or "
                "times"
            )
        return entries

    def _require(self, name: str, absent: Flags, missing: str) -> None:
        if missing == "refuse" and absent.any():
            raise UndeclaredError(
                f"{self.where}: found nothing in column {name}, record {int(absent.argmax())}: "
                'with missing = "skip" the statistic leaves such records out'
            )


_AS_IT_IS = PlainNumber()


def rows(records: Any, names: Collection[str], schema: TableSchema | None = None) -> TableRows:
    """Read the named columns of a table; where a schema names persons, at most so many rows each.

    Args:
        records: a table (CSV, Parquet, Excel) or its path, a polars frame, column → entries, or
            rows that this function has returned.
        names: names of the columns; missing ones are reported when they are used.
        schema: the declared columns, as in a job file.

    Raises:
        OSError: the file does not exist.
        DataError: the records are no table, columns have different lengths, or a row has no person.
        TypeError: ``records`` is of another type.
    """
    if isinstance(records, TableRows):
        return records
    declared = {} if schema is None else schema.parsed()
    form = AS_USUAL if schema is None else schema.form
    person = None if schema is None else schema.person
    names = {*names, *filter(None, (person,))}
    if isinstance(records, str | Path):
        path = Path(records)
        path.stat()  # raises FileNotFoundError with the path
        records = Table(path, kind_of(path), form)
    where, pieces = "the records", iter([records])
    if isinstance(records, Table):
        where, pieces = str(records.path), records.pieces()
    elif isinstance(records, Mapping):
        try:
            found = {name: _one_by_one(one) for name, one in records.items() if name in names}
            # Of another column, only the length is read.
            found = found or {name: range(len(records[name])) for name in [*records][:1]}
            pieces = iter([pl.DataFrame(found)])
        except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
            first = str(error).partition("\n")[0]
            raise DataError(f"the records are no table: {first}") from error
    elif not isinstance(records, pl.DataFrame):
        raise TypeError(
            "records are a table's path, a polars frame or columns by name, not "
            f"{type(records).__name__}"
        )
    frame = pl.concat(
        piece[[name for name in piece.columns if name in names] or piece.columns[:1]]
        for piece in pieces
    )
    read = TableRows(frame, where, declared, form.decimal)
    if schema is None or person is None:
        return read
    return read.of_persons(person, schema.records_per_person)


def _one_by_one(entries: Any) -> Any:
    """Entries without a type of their own as text, unless all are words or all are floats."""
    kind = getattr(entries, "dtype", np.dtype(object))
    if isinstance(entries, str) or not isinstance(entries, Iterable) or kind != np.dtype(object):
        return entries
    held = list(entries)
    if {type(one) for one in held if one is not None} in ({str}, {float}):
        return held
    return pl.Series(map(word, held), dtype=pl.String)
