"""From rows of a table to features and targets, the same for training and for new records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.data.columns import (
    POLICIES,
    Column,
    Outside,
    UndeclaredError,
    as_numbers,
    column,
)
from forethought.data.files import DataError
from forethought.data.reading import AS_USUAL, TableFormat
from forethought.values.serialisation import exact_keys

SCHEMA = "forethought/encoder/1"


@dataclass(frozen=True)
class TableSchema:
    """The owner's declaration of a table, so that no record decides how it is read.

    Args:
        columns: column → what it is, in the forms of a job file's ``[data.columns]``.
        missing: what a missing entry means where a column does not say.
        target_range: lowest and highest value to regress on; targets are scaled to [−1, 1].
        measured: whether any of it was taken from the private file, as ``forethought init`` does;
            the Statement then says that this is outside the guarantee.
        form: how a text is written.
        person: the column that says whose row it is; then a record is a person, and every
            guarantee is about persons. records_per_person: how many rows of one are kept at most.

    Raises:
        DataError: a declaration that cannot be used; names the column.
    """

    columns: Mapping[str, Any]
    missing: str = "refuse"
    target_range: tuple[float, float] | None = None
    measured: bool = False
    form: TableFormat = AS_USUAL
    person: str | None = None
    records_per_person: int = 4

    def __post_init__(self) -> None:
        if self.missing not in POLICIES:
            raise UndeclaredError(
                f"missing = {self.missing!r}: the choice is {', '.join(POLICIES)}"
            )
        if not self.columns:
            raise UndeclaredError("[data.columns] declares nothing: name every column in it")
        if self.target_range is not None:
            low, high = self.target_range
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise UndeclaredError(
                    f"target_range is two numbers, the smaller one first, not [{low}, {high}]"
                )
            object.__setattr__(self, "target_range", (float(low), float(high)))
        self.parsed()

    def parsed(self) -> dict[str, Column]:
        """The columns as values."""
        return {
            name: column(name, value, missing=self.missing, decimal=self.form.decimal)
            for name, value in self.columns.items()
        }


@dataclass(frozen=True)
class Encoder:
    """The way from a table to features, and the meaning of a model's outputs.

    Args:
        columns: names and kinds of the columns that become features, in their order.
        label: the target's column. classes: what it says, class 0 first; None for a regression.
            Of several labels: None, and the names of their columns.
        multilabel: whether ``classes`` are labels, of which a record has several or none.
        target_range: of a regression whose targets are scaled to [−1, 1]; None: as they are.
        form: how a text is written.
    """

    columns: tuple[tuple[str, Column], ...]
    label: str | None = None
    classes: tuple[str, ...] | None = None
    target_range: tuple[float, float] | None = None
    form: TableFormat = AS_USUAL
    multilabel: bool = False

    @property
    def titles(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(title for name, kind in self.columns for title in kind.titles(name))

    @property
    def bound(self) -> float:
        """Largest norm that an encoded record can have."""
        return math.sqrt(math.fsum(kind.bound**2 for _, kind in self.columns))

    @property
    def usual_norm(self) -> float | None:
        """Root mean square norm of records spread evenly over what is declared; None: no ranges."""
        total = math.fsum(kind.usual_square for _, kind in self.columns)
        return math.sqrt(total) if 0 < total < math.inf else None

    def encode(
        self, frame: pl.DataFrame, where: str, first: int = 0, outside: Outside | None = None
    ) -> NDArray[np.float32]:
        """Features, float32, (rows, features).

        Args:
            frame: has the columns by name; others are left alone.
            where: the file, for messages. first: number of the first row.
            outside: counts what a declaration had to bend.

        Raises:
            DataError: a column is not there, or an entry that its declaration does not cover.
        """
        lacking = [name for name, kind in self.columns if kind.titles(name)]
        lacking = [name for name in lacking if name not in frame.columns]
        if lacking:
            raise DataError.unexpected(
                where, f"the columns {', '.join(frame.columns[:20])}", f"also {', '.join(lacking)}"
            )
        noted = Outside() if outside is None else outside
        features = np.empty((len(frame), len(self.titles)), np.float32)
        at = 0
        for name, kind in self.columns:
            width = len(kind.titles(name))
            if width:
                found = kind.encode(where, name, frame[name], first, noted)
                features[:, at : at + width] = found
                at += width
        return features

    def targets(self, frame: pl.DataFrame, where: str, outside: Outside) -> NDArray[np.float32]:
        """Values to regress on, scaled to [−1, 1] where a range is declared and clipped to it."""
        label = self.label or ""
        entries = frame[label]
        values = as_numbers(where, label, entries, entries.is_null(), self.form.decimal)
        if np.isnan(values).any():
            row = int(np.isnan(values).argmax())
            raise DataError.unexpected(where, f"no label in example {row}", "a number")
        if self.target_range is None:
            return values.astype(np.float32)
        low, high = self.target_range
        outside.note(outside.clipped, label, int(((values < low) | (values > high)).sum()))
        scaled = (np.clip(values, low, high) - (low / 2 + high / 2)) / (high / 2 - low / 2)
        return np.clip(scaled, -1, 1).astype(np.float32)

    def restored(self, outputs: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """A regression's outputs in the unit of its targets."""
        values = outputs.astype(np.float64)
        if self.target_range is None:
            return values
        low, high = self.target_range
        return values * (high / 2 - low / 2) + (low / 2 + high / 2)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "schema": SCHEMA,
            "columns": [[name, kind.to_value()] for name, kind in self.columns],
            "label": self.label,
            "classes": None if self.classes is None else list(self.classes),
            "target_range": None if self.target_range is None else list(self.target_range),
            "format": asdict(self.form),
            "multilabel": self.multilabel,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Encoder:
        """The inverse of :meth:`to_dict`.

        Raises:
            ValueError: keys missing or unknown, or another schema.
        """
        keys = ("schema", "columns", "label", "classes", "target_range", "format", "multilabel")
        exact_keys("encoder", values, keys)
        if values["schema"] != SCHEMA:
            raise DataError(
                f"an encoder of schema {values['schema']!r}; this version reads {SCHEMA}"
            )
        form = TableFormat(**values["format"])
        classes, limits = values["classes"], values["target_range"]
        return cls(
            tuple(
                (name, column(name, value, decimal=form.decimal))
                for name, value in values["columns"]
            ),
            values["label"],
            None if classes is None else tuple(classes),
            None if limits is None else (float(limits[0]), float(limits[1])),
            form,
            values["multilabel"],
        )

    def with_classes(self, classes: Sequence[Any]) -> Encoder:
        """The same with what the classes are called."""
        return replace(self, classes=tuple(_called(label) for label in classes))


def _called(label: Any) -> str:
    """A class as a person writes it: 1, not 1.0."""
    number = isinstance(label, float | np.floating)
    return str(int(label)) if number and float(label).is_integer() else str(label)
