"""The columns that statistics read, from tables in memory or in files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.data.columns import Column, PlainNumber, TableSchema, UndeclaredError, as_numbers
from forethought.data.dataset import kept
from forethought.data.files import (
    AS_USUAL,
    DataError,
    Table,
    distinct,
    kind_of,
    one_by_one,
    written,
)
from forethought.data.files import spelled as spelled
from forethought.data.files import word as word
from forethought.values.checks import suggestion

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


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
        absent = self.declared.get(name, _AS_IT_IS).absent(entries, self.decimal)
        values = as_numbers(self.where, name, entries, absent, self.decimal)
        self._require(name, np.isnan(values), missing)
        return values

    def on_edge(self, name: str, low: float, high: float, bins: int) -> float:
        """The distance from an edge, in widths of a bin, within which a number is on the edge.

        29 / 100 · 100 is below 29 in doubles. Far from zero, and in a column of single precision,
        rounding moves numbers further.
        """
        held = np.float32 if self._entries(name).dtype == pl.Float32 else np.float64
        spacing = float(np.spacing(held(max(abs(low), abs(high)))))
        return min(0.5, max(1e-9, 4 * spacing / (high - low) * bins))

    def words(self, name: str, missing: str) -> NDArray[np.object_]:
        """A column as words, in the spelling of :func:`written`; "" where an entry is missing.

        Raises:
            DataError: as of :meth:`numbers`, or a float beyond ±2⁵³, whose digits are not its own.
            UndeclaredError: as of :meth:`numbers`.
        """
        entries = self._entries(name)
        absent = self.declared.get(name, _AS_IT_IS).absent(entries, self.decimal)
        self._require(name, absent.to_numpy(), missing)
        return written(distinct(self.where, entries)).set(absent, "").to_numpy()

    def of_persons(self, column: str, most: int) -> TableRows:
        """At most ``most`` rows of each person, chosen by a keyed hash as for training.

        Args:
            column: names the person of a row.

        Raises:
            DataError: there is no such column, a row has no person, or ``most`` is not from 1 to
                1000.
        """
        columns = [written(self._entries(name)).fill_null("") for name in self.frame.columns]
        contents = ("\x1f".join(row).encode() for row in zip(*columns, strict=True))
        mask = kept(contents, self.words(column, "skip").tolist(), most)
        return replace(self, frame=self.frame[np.flatnonzero(mask)])

    def _entries(self, name: str) -> pl.Series:
        if name not in self.frame.columns:
            near = suggestion(name, self.frame.columns)
            raise DataError(f"{self.where}: there is no column {name!r}: {near}")
        entries = self.frame[name]
        if entries.dtype.is_nested() or entries.dtype in (pl.Object, pl.Binary, pl.Duration):
            text = f"{self.where}: column {name} is of type {entries.dtype}"
            raise DataError(f"{text}: give words, numbers or times")
        return entries.cast(pl.String) if entries.dtype in (pl.Categorical, pl.Enum) else entries

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
            found = {name: one_by_one(one) for name, one in records.items() if name in names}
            # Of another column, only the length is read.
            found = found or {name: range(len(records[name])) for name in [*records][:1]}
            pieces = iter([pl.DataFrame(found)])
        except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
            first = str(error).partition("\n")[0]
            raise DataError(f"the records are no table: {first}") from error
    elif not isinstance(records, pl.DataFrame):
        text = "records are a table's path, a polars frame or columns by name"
        raise TypeError(f"{text}, not {type(records).__name__}")
    frame = pl.concat(
        piece[[name for name in piece.columns if name in names] or piece.columns[:1]]
        for piece in pieces
    )
    read = TableRows(frame, where, declared, form.decimal)
    if schema is None or person is None:
        return read
    return read.of_persons(person, schema.records_per_person)
