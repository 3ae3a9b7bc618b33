"""The columns that statistics read, from tables in memory or in files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
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
        """A column as words; "" where an entry is missing. "1.0" becomes "1".

        Raises:
            DataError, UndeclaredError: as of :meth:`numbers`.
        """
        entries = self._entries(name)
        absent = self.declared.get(name, _AS_IT_IS).absent(entries, self.decimal)
        self._require(name, absent.to_numpy(), missing)
        if entries.dtype == pl.Boolean:
            entries = entries.cast(pl.Int8)
        text = entries.cast(pl.String).str.strip_chars().fill_null("")
        # Each entry by itself: no word may depend on another record.
        text = text.str.replace(r"^(-?\d+)\.0+$", "$1")
        return np.where(absent.to_numpy(), "", text.to_numpy())

    def _entries(self, name: str) -> pl.Series:
        if name not in self.frame.columns:
            near = suggestion(name, self.frame.columns)
            raise DataError(f"{self.where}: there is no column {name!r}: {near}")
        return self.frame[name]

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
        DataError: the records are no table, or columns have different lengths.
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
        return TableRows(pl.concat(pieces), str(path), declared, form.decimal)
    if not isinstance(records, pl.DataFrame | Mapping):
        raise TypeError(
            "records are a table's path, a polars frame or columns by name, not "
            f"{type(records).__name__}"
        )
    try:
        frame = pl.DataFrame(records)
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise DataError(f"the records are no table: {str(error).partition(chr(10))[0]}") from error
    return TableRows(frame, "the records", declared, form.decimal)
