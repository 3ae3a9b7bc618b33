"""The columns that statistics read, from tables in memory or in files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.data.columns import Column, PlainNumber, TableSchema, UndeclaredError, as_numbers
from forethought.data.files import AS_USUAL, DataError, Table, kind_of
from forethought.values.checks import suggestion

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
# From here on a float stands for several whole numbers.
_EXACT = 2.0**53

_WHOLE = re.compile(r"^(-?\d+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.0+$")
_MIDNIGHT = re.compile(r"^(\d{4}-\d\d-\d\d) 00:00:00$")
_TRUTHS = {"true": "1", "false": "0"}

# How an entry is written must depend on that entry alone. A column's type does not: one more record
# can give all others another number of decimals, or make floats of whole numbers.


def word(entry: Any) -> str | None:
    """One entry as text; None stays None, and True and False are "1" and "0".

    Raises:
        DataError: the entry is no word, number or time.
    """
    if entry is None:
        return None
    if isinstance(entry, bool | np.bool_):
        return str(int(entry))
    if isinstance(entry, Decimal):
        whole, point, rest = f"{entry:f}".partition(".")
        return f"{whole}{point}{rest}".rstrip("0").rstrip(".") if point else whole
    if not isinstance(entry, str | Real | date | time):
        raise DataError(
            f"found an entry of type {type(entry).__name__}: give words, numbers or times"
        )
    return str(entry)


def spelled(text: str) -> str:
    """A word in one spelling: "1.0" and "true" are "1", a midnight is its day."""
    text = _WHOLE.sub(r"\1", text.strip())
    return _TRUTHS.get(text.lower(), _MIDNIGHT.sub(r"\1", text))


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
        entries, decimal = self._entries(name), self.decimal
        if entries.dtype == pl.Boolean:
            entries = entries.cast(pl.Int8)
        absent = self.declared.get(name, _AS_IT_IS).absent(entries, decimal)
        if entries.dtype.is_decimal():
            entries, decimal = pl.Series(map(word, entries), dtype=pl.String), "."
        values = as_numbers(self.where, name, entries, absent, decimal)
        self._require(name, np.isnan(values), missing)
        return values

    def words(self, name: str, missing: str) -> NDArray[np.object_]:
        """A column as words, in the spelling of :func:`spelled`; "" where an entry is missing.

        Raises:
            DataError: as of :meth:`numbers`, or a float beyond ±2⁵³, whose digits are not its own.
            UndeclaredError: as of :meth:`numbers`.
        """
        entries = self._entries(name)
        absent = self.declared.get(name, _AS_IT_IS).absent(entries, self.decimal)
        self._require(name, absent.to_numpy(), missing)
        if entries.dtype.is_float():
            if ((entries.abs() >= _EXACT) & entries.is_finite()).any():
                raise DataError(
                    f"{self.where}: column {name} has numbers beyond 2^53 as floats, which cannot "
                    "tell them apart: give the column as text"
                )
            entries = pl.Series(map(word, entries.to_numpy()), dtype=pl.String)
        elif entries.dtype.is_decimal():
            entries = pl.Series(map(word, entries), dtype=pl.String)
        text = entries.cast(pl.String).fill_null("").to_list()
        own = {one: spelled(one) for one in set(text)}
        return np.where(absent.to_numpy(), "", np.array([own[one] for one in text], dtype=object))

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
    """Read the named columns of a table.

    Args:
        records: path of a table (CSV, Parquet, Excel), a polars frame, or column → entries.
        names: names of the columns; missing ones are reported when they are used.
        schema: the declared columns, as in a job file.

    Raises:
        OSError: the file does not exist.
        DataError: the records are no table, columns have different lengths, or a column of an
            Excel sheet mixes numbers with text.
        TypeError: ``records`` is of another type.
    """
    declared = {} if schema is None else schema.parsed()
    form = AS_USUAL if schema is None else schema.form
    if isinstance(records, str | Path):
        path = Path(records)
        path.stat()  # raises FileNotFoundError with the path
        pieces = []
        for piece in Table(path, kind_of(path), form).pieces():
            found = [name for name in piece.columns if name in names]
            pieces.append(piece.select(found or piece.columns[:1]))
            if kind_of(path) == "excel":
                _require_unmixed(piece, found, path)
        return TableRows(pl.concat(pieces), str(path), declared, form.decimal)
    if not isinstance(records, pl.DataFrame | Mapping):
        raise TypeError(
            "records are a table's path, a polars frame or columns by name, not "
            f"{type(records).__name__}"
        )
    try:
        if isinstance(records, Mapping):
            records = {
                name: _one_by_one(entries) if name in names else entries
                for name, entries in records.items()
            }
        frame = pl.DataFrame(records)
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise DataError(f"the records are no table: {str(error).partition(chr(10))[0]}") from error
    return TableRows(frame, "the records", declared, form.decimal)


def _one_by_one(entries: Any) -> Any:
    """Entries without a type of their own as text, unless all are words or all are floats."""
    kind = getattr(entries, "dtype", np.dtype(object))
    if isinstance(entries, str) or not isinstance(entries, Iterable) or kind != np.dtype(object):
        return entries
    held = list(entries)
    if {type(one) for one in held if one is not None} in ({str}, {float}):
        return held
    return pl.Series(map(word, held), dtype=pl.String)


def _require_unmixed(piece: pl.DataFrame, names: Iterable[str], path: Path) -> None:
    # Beside text, a sheet's numbers are read as text of nine decimals.
    for name in names:
        text = piece[name].dtype == pl.String
        if text and piece[name].cast(pl.Float64, strict=False).is_finite().any():
            raise DataError(
                f"{path}: column {name} mixes numbers with text: save the sheet as CSV, and read "
                "that"
            )
