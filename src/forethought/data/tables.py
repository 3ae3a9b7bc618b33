"""Tables of comma-separated values: numbers as they are, words one-hot."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forethought.caveats import Caveat
from forethought.data.dataset import DataError, Dataset, Split, finite, held_out
from forethought.data.files import read
from forethought.data.labels import Declared, Labels
from forethought.data.suspicions import (
    require_small,
    require_text,
    require_words,
    unknown_column,
    warn_of_codes,
)

if TYPE_CHECKING:  # it loads polars
    from forethought.data.encoder import Encoder

_MOST_CATEGORIES = 1000
_MISSING = ("", "?", "-", "na", "n/a", "nan", "null", "none", "missing", ".")
COLUMN_KINDS = Caveat(
    "preparation-from-data", "whether a column holds numbers or words was decided by its entries"
)


@dataclass(frozen=True)
class Aside:
    """Columns that are no features, by name; in a file without names by number, from 0.

    Args:
        label: the target's. labels: those of several, in place of one.
        split_by: keeps a person's records on one side of the split.
        site: which client of a federation holds a record. person: whose row it is; all rows of a
            person are then one record (:mod:`forethought.data.persons`).
    """

    label: str
    split_by: str | None = None
    site: str | None = None
    person: str | None = None
    labels: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """All of them."""
        found = (self.label, self.split_by, self.site, self.person, *self.labels)
        return {name for name in found if name}


def load_csv(
    name: str,
    path: Path,
    test: Path | None,
    holdout: float | None,
    aside: Aside,
    declared: Declared | None = None,
) -> Dataset:
    """Features from every column but the label's; words become one column a category.

    A column is numeric when most of its entries are numbers (500 of them, evenly spread, decide for
    a long column); then all of them must be. Otherwise each different word is a category, with a
    column of its own that is 1 where the word stands.

    Args:
        aside: columns that are no features; the label's number may be −1 for the last column.
        declared: what the user says of labels and features.

    Raises:
        DataError: a file is damaged, a line has too few or too many entries, a number is missing or
            not finite, or the label's column is unknown.
    """
    if not aside.label:
        raise DataError(
            f"{path}: which column is the label? Name it with label=, or give its number "
            "(−1 for the last) if the file has no line of names"
        )
    declared = declared or Declared()
    label, split_by, site = aside.label, aside.split_by, aside.site
    columns, names, at = _read(path, label)
    no_features = {at}
    identities: Iterable[bytes] = map(_content, zip(*columns, strict=True))
    if split_by is not None:
        by = _place(path, names, split_by, "to split by")
        if by == at:
            raise DataError(f"{path}: split_by names the label's column {split_by!r}")
        no_features.add(by)
        identities = (entry.strip().encode() for entry in columns[by])
    sites: NDArray[np.str_] | None = None
    if site is not None:
        place = _place(path, names, site, "to deal records out by")
        if place == at:
            raise DataError(f"{path}: site names the label's column {site!r}")
        no_features.add(place)
        sites = np.array([entry.strip() for entry in columns[place]])
    labels = Labels(path, np.array(columns[at]), declared)
    encoders = [
        _Column(path, names[index], column)
        for index, column in enumerate(columns)
        if index not in no_features
    ]
    width = sum(len(encoder.titles) for encoder in encoders)
    if declared.features not in (None, width):
        raise DataError.unexpected(path, f"{width} features", f"the declared {declared.features}")
    splits = []
    for file in [path] if test is None else [path, test]:
        if file is not path:
            columns = _aligned(file, names, *_read(file, label)[:2])
        rest = [column for index, column in enumerate(columns) if index not in no_features]
        parts = [
            encoder.encode(file, column) for encoder, column in zip(encoders, rest, strict=True)
        ]
        inputs = np.concatenate(parts, axis=1, dtype=np.float32)
        finite(file, inputs, [title for encoder in encoders for title in encoder.titles])
        splits.append(Split(inputs, labels.encode(file, np.array(columns[at]))))
    notes = ("numbers as they are in the file, not rescaled",)
    caveats = (*declared.caveats, *labels.caveats, COLUMN_KINDS)
    if any(encoder.categories is not None for encoder in encoders):
        caveats = (*caveats, Caveat("categories-from-data"))
    if test is None:
        held = held_out(splits[0], holdout, identities)
        splits = [splits[0].at(~held), splits[0].at(held)]
        sites = None if sites is None else sites[~held]
    encoder = _encoder(encoders, names[at], labels)
    return Dataset(name, splits[0], splits[1], labels.classes, notes, caveats, sites, encoder)


def _encoder(columns: list[_Column], label: str, labels: Labels) -> Encoder:
    """How new rows are read like these."""
    from forethought.data.columns import Category, Column, Plain
    from forethought.data.encoder import Encoder

    kinds: list[tuple[str, Column]] = [
        (column.name, Plain())
        if column.categories is None
        else (column.name, Category(words=tuple(column.categories), lenient=True))
        for column in columns
    ]
    encoder = Encoder(tuple(kinds), label)
    return encoder if labels.names is None else encoder.with_classes(labels.names)


def _content(row: tuple[str, ...]) -> bytes:
    return "\x1f".join(row).encode()


class _Column:
    """How one column of the training file is read, and the titles of the features it becomes."""

    def __init__(self, path: Path, name: str, entries: list[str]) -> None:
        self.name = name
        self.categories: dict[str, int] | None = None
        if _is_numeric(entries):
            self.titles = [name]
            return
        words = sorted({entry.strip() for entry in entries})
        require_words(path, name, words)
        if len(words) > _MOST_CATEGORIES:
            raise DataError.unexpected(
                path,
                f"{len(words)} different words in column {name}",
                f"numbers, or at most {_MOST_CATEGORIES} categories: drop a column of identifiers",
            )
        self.categories = {word: number for number, word in enumerate(words)}
        self.titles = [f"{name}={word}" for word in words]

    def encode(self, path: Path, entries: list[str]) -> NDArray[np.float32]:
        """Features of the column: (N, 1) for numbers, (N, categories) of 0 and 1 for words."""
        if self.categories is None:
            try:
                with np.errstate(over="ignore"):  # what is too large is found infinite below
                    numbers = np.fromiter(map(float, entries), np.float32, len(entries))
            except ValueError:
                row = next(row for row, entry in enumerate(entries) if not _is_number(entry))
                missing = entries[row].strip().lower() in _MISSING
                remedy = ": fill or drop missing entries beforehand" if missing else ""
                raise DataError.unexpected(
                    path,
                    f"{entries[row]!r} in column {self.name}, example {row}",
                    f"a number{remedy}",
                ) from None
            require_small(path, self.name, numbers)
            warn_of_codes(path, self.name, numbers)
            return numbers.reshape(-1, 1)
        # A category that only the test file has is none of the known ones: all zero.
        known = self.categories
        places = np.array([known.get(entry.strip(), -1) for entry in entries])
        return np.asarray(places[:, None] == np.arange(len(known)), np.float32)


def _is_numeric(entries: list[str]) -> bool:
    # Evenly spread entries of a long column decide as well as all of them would.
    sample = entries if len(entries) < 1000 else entries[:: len(entries) // 500]
    return sum(map(_is_number, sample)) > len(sample) / 2


def _is_number(entry: str) -> bool:
    try:
        float(entry)
    except ValueError:
        return False
    return True


def _read(path: Path, label: str) -> tuple[list[list[str]], list[str], int]:
    """Columns as strings, their names, and which of them is the label."""
    text = require_text(path, read(path))
    try:
        rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if row]
    except csv.Error as error:
        raise DataError.unexpected(path, f"no table ({error})", "comma-separated values") from error
    if not rows:
        raise DataError.unexpected(path, "an empty file", "comma-separated values")
    first = [entry.strip() for entry in rows[0]]
    names, at = _names(path, first, label)
    body = rows[1:] if names is first else rows
    if body is rows and len(rows) > 1 and _looks_like_names(first, rows[1]):
        raise DataError(
            f"{path}: its first line looks like column names ({', '.join(first[:8])}): give the "
            f"label by its name, such as {first[at]!r}, not by its number {label}"
        )
    for number, row in enumerate(body, start=len(rows) - len(body)):
        if len(row) != len(names):
            raise DataError.unexpected(
                path, f"{len(row)} entries in line {number + 1}", f"{len(names)} as in the first"
            )
    if not body or len(names) < 2:
        raise DataError.unexpected(
            path, f"{len(body)} examples in {len(names)} columns", "at least one and two"
        )
    return [list(column) for column in zip(*body, strict=True)], names, at


def _looks_like_names(first: list[str], second: list[str]) -> bool:
    """Words only, all different, above at least one number."""
    return (
        len(set(first)) == len(first)
        and not any(map(_is_number, first))
        and any(map(_is_number, second))
    )


def _names(path: Path, first: list[str], label: str) -> tuple[list[str], int]:
    """Column names and the label's place; the first line itself when it holds the names."""
    if label in first:
        if len(set(first)) < len(first):
            raise DataError.unexpected(path, "two columns of one name", "different names")
        return first, first.index(label)
    at = _place(path, first, label, "the label")
    return [str(column) for column in range(len(first))], at


def _place(path: Path, names: list[str], wanted: str, purpose: str) -> int:
    """Where a column is that is given by name or by number."""
    if wanted in names:
        return names.index(wanted)
    try:
        number = int(wanted)
    except ValueError:
        raise unknown_column(path, names, wanted, purpose) from None
    if not -len(names) <= number < len(names):
        raise DataError.unexpected(path, f"{len(names)} columns", f"one numbered {number}")
    return number % len(names)


def _aligned(
    path: Path, names: list[str], columns: list[list[str]], found: list[str]
) -> list[list[str]]:
    """The test file's columns in the order of the training file's."""
    if sorted(found) != sorted(names):
        raise DataError.unexpected(
            path, f"the columns {', '.join(found[:20])}", f"those of training: {', '.join(names)}"
        )
    return [columns[found.index(name)] for name in names]
