"""Columns of a text of which nothing is declared: what they hold is found out as they are read."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.data.columns import Category, Column, Plain
from forethought.data.dataset import fractions
from forethought.data.encoder import Encoder
from forethought.data.error import DataError
from forethought.data.files import DAMAGE
from forethought.data.labels import Labels
from forethought.data.reading import Table, TableFormat, opened_file
from forethought.data.seen import MISSING_WORDS
from forethought.data.suspicions import (
    require_small,
    require_text,
    require_words,
    unknown_column,
    warn_of_codes,
)

_MOST_CATEGORIES = 1000
# Entries that decide whether a column holds numbers, and bytes that are looked at for names.
_SAMPLE, _START = 500, 1 << 16


@dataclass(frozen=True)
class Opened:
    """A file whose columns are known by name.

    Args:
        path: of the file. names: of its columns, numbers from 0 where it has none.
        header: whether its first line holds them. label: the name of the label's column.
    """

    path: Path
    names: tuple[str, ...]
    header: bool
    label: str

    @classmethod
    def of(cls, path: Path, label: str) -> Opened:
        """Look at the first lines.

        Args:
            label: a name, or a number where the file has no names.

        Raises:
            DataError: no text, an empty file, no such column, or names where there should be none.
        """
        first, second = _first_lines(path)
        if label in first:
            if len(set(first)) < len(first):
                raise DataError.unexpected(path, "two columns of one name", "different names")
            found = cls(path, tuple(first), True, label)
        else:
            at = _place(path, first, label, "the label")
            if second and _looks_like_names(first, second):
                raise DataError(
                    f"{path}: its first line looks like column names ({', '.join(first[:8])}): "
                    f"give the label by its name, such as {first[at]!r}, not by its number {label}"
                )
            names = tuple(str(column) for column in range(len(first)))
            found = cls(path, names, False, names[at])
        if len(first) < 2 or (found.header and not second):
            raise DataError.unexpected(
                path,
                f"{0 if found.header and not second else 1} examples in {len(first)} columns",
                "at least one and two",
            )
        return found

    def place(self, wanted: str, purpose: str) -> str:
        """The name of a column that is given by name or by number."""
        return self.names[_place(self.path, list(self.names), wanted, purpose)]

    def aligned(self, other: Opened) -> Opened:
        """The same file, if its columns are those of another, whose label it takes.

        Raises:
            DataError: other columns.
        """
        if sorted(self.names) != sorted(other.names):
            found, wanted = ", ".join(self.names[:20]), ", ".join(other.names)
            raise DataError.unexpected(
                self.path, f"the columns {found}", f"those of training: {wanted}"
            )
        return replace(self, label=other.label)

    def read(
        self,
        no_features: set[str],
        *,
        identities: bool = False,
        split_by: str | None = None,
        site: str | None = None,
        like: Found | None = None,
    ) -> Found:
        """Everything in the file, piece by piece.

        Args:
            no_features: columns that are none. identities: whether records are to be told apart,
                by ``split_by`` or their whole content. site: the column that says who holds one.
            like: what was found in the training file, whose columns decide.

        Raises:
            DataError: a damaged file, or an entry that is no number where numbers are.
        """
        found = Found(self.path)
        known = {} if like is None else {column.name: column for column in like.columns}
        order = [name for name in self.names if name not in no_features]
        if like is not None:
            order = [column.name for column in like.columns]
        form = TableFormat(header=False)
        rows, skip = 0, int(self.header)
        for frame in Table(self.path, "csv", form).pieces():
            frame.columns = list(self.names)
            if skip:
                frame, skip = frame[1:], 0
            if not len(frame):
                continue
            frame = frame.select(pl.all().fill_null(""))
            if not found.columns:
                found.columns = [
                    known[name].again() if name in known else _Column.of(name, frame[name])
                    for name in order
                ]
            for column in found.columns:
                column.add(self.path, frame[column.name], rows)
            stripped = pl.all().str.strip_chars()
            kept = frame.select(pl.col(*{self.label, *({site} if site else ())}))
            kept = kept.select(stripped)
            found.add(kept[self.label].to_list(), kept[site].to_list() if site else [])
            if identities:
                one = pl.concat_str(pl.all().str.strip_chars_start(" "), separator="\x1f")
                if split_by is not None:
                    one = pl.col(split_by).str.strip_chars()
                own = frame.select(one.cast(pl.Binary)).to_series()
                found.fractions.append(fractions(own.to_list()))
            rows += len(frame)
        return found


@dataclass
class Found:
    """What a file holds: features column by column, labels, and who records belong to."""

    path: Path
    columns: list[_Column] = field(default_factory=list)
    fractions: list[NDArray[np.float64]] = field(default_factory=list)
    sites: list[str] = field(default_factory=list)
    _labels: list[NDArray[np.str_]] = field(default_factory=list)

    def add(self, labels: Sequence[str], sites: Sequence[str]) -> None:
        self._labels.append(np.array(labels))
        self.sites += sites

    @property
    def labels(self) -> NDArray[np.str_]:
        """As they are written, (N,)."""
        return np.concatenate(self._labels)

    @property
    def titles(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(title for column in self.columns for title in column.titles)

    @property
    def has_categories(self) -> bool:
        """Whether a column holds words."""
        return any(column.words is not None for column in self.columns)

    def settle(self) -> None:
        """Put words in order, once all are known.

        Raises:
            DataError: words that should be something else.
        """
        for column in self.columns:
            column.settle(self.path)

    def features(self, *parts: NDArray[np.bool_]) -> list[NDArray[np.float32]]:
        """All columns of the records in each part, float32, (N, features).

        Column by column, each of which is let go: what is held is the features and little else.

        Raises:
            DataError: numbers too large to be left unscaled.
        """
        width = len(self.titles)
        found = [np.empty((int(part.sum()), width), np.float32) for part in parts]
        at = 0
        for column in self.columns:
            own = column.taken()
            if column.words is None:
                require_small(self.path, column.name, own)
                warn_of_codes(self.path, column.name, own)
            for features, part in zip(found, parts, strict=True):
                column.into(features[:, at : at + len(column.titles)], own[part])
            at += len(column.titles)
        return found

    def encoder(self, label: str, labels: Labels) -> Encoder:
        """How new rows are read like these."""
        kinds: list[tuple[str, Column]] = [
            (column.name, Plain())
            if column.words is None
            else (column.name, Category(words=tuple(column.order), lenient=True))
            for column in self.columns
        ]
        encoder = Encoder(tuple(kinds), label)
        return encoder if labels.names is None else encoder.with_classes(labels.names)


@dataclass
class _Column:
    """One column, gathered piece by piece.

    Args:
        name: the column's. words: word → its number in the order of their coming; None: numbers.
        order: the words in the order of their features, once all are known; given: it was known
            before, from the training file, and other words are none of them.
    """

    name: str
    words: dict[str, int] | None
    order: list[str] = field(default_factory=list)
    given: bool = False
    pieces: list[NDArray[Any]] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, entries: pl.Series) -> _Column:
        """Whether it holds numbers, by evenly spread entries."""
        sample = entries.gather_every(max(1, len(entries) // _SAMPLE)).str.strip_chars()
        numbers = sample.cast(pl.Float64, strict=False)
        return cls(name, None if len(numbers) - numbers.null_count() > len(sample) / 2 else {})

    def again(self) -> _Column:
        """The same for another file."""
        words = None if self.words is None else {word: n for n, word in enumerate(self.order)}
        return _Column(self.name, words, list(self.order), given=True)

    @property
    def titles(self) -> list[str]:
        """Names of its features."""
        return [self.name] if self.words is None else [f"{self.name}={word}" for word in self.order]

    def add(self, path: Path, entries: pl.Series, first: int) -> None:
        """Take a piece; ``first`` is the number of its first record."""
        if self.words is None:
            self.pieces.append(self._numbers(path, entries, first))
            return
        stripped = entries.str.strip_chars()
        if not self.given:
            for word in stripped.unique().to_list():
                self.words.setdefault(word, len(self.words))
            if len(self.words) > _MOST_CATEGORIES:
                raise DataError.unexpected(
                    path,
                    f"more than {_MOST_CATEGORIES} different words in column {self.name}",
                    "numbers, or fewer categories: drop a column of identifiers",
                )
        codes = stripped.replace_strict(
            list(self.words), list(self.words.values()), default=-1, return_dtype=pl.Int32
        )
        self.pieces.append(codes.to_numpy())

    def _numbers(self, path: Path, entries: pl.Series, first: int) -> NDArray[np.float32]:
        values = entries.cast(pl.Float64, strict=False)
        if values.null_count():
            values = entries.str.strip_chars().cast(pl.Float64, strict=False)
        if values.null_count():
            row = int(values.is_null().arg_true()[0])
            missing = entries[row].strip().lower() in MISSING_WORDS
            remedy = ": fill or drop missing entries beforehand" if missing else ""
            raise DataError.unexpected(
                path,
                f"{entries[row]!r} in column {self.name}, example {first + row}",
                f"a number{remedy}",
            )
        with np.errstate(over="ignore"):  # what is too large is found infinite later
            numbers = values.to_numpy().astype(np.float32)
        _require_finite(path, self.name, numbers, first)
        return numbers

    def settle(self, path: Path) -> None:
        """Put the words in order, once all are known."""
        if self.words is None or self.given:
            return
        self.order = sorted(self.words)
        require_words(path, self.name, self.order)

    def taken(self) -> NDArray[Any]:
        """Numbers, or the words' numbers, of all records; its pieces are let go."""
        own = self.pieces[0] if len(self.pieces) == 1 else np.concatenate(self.pieces)
        self.pieces = []
        return own

    def into(self, features: NDArray[np.float32], own: NDArray[Any]) -> None:
        """Write features of these entries."""
        if self.words is None:
            features[:, 0] = own
            return
        for place, word in enumerate(self.order):
            features[:, place] = own == self.words[word]


def _require_finite(path: Path, name: str, numbers: NDArray[np.float32], first: int) -> None:
    if np.isfinite(numbers.sum(dtype=np.float64)):
        return
    row = int(np.flatnonzero(~np.isfinite(numbers))[0])
    raise DataError.unexpected(
        path,
        f"{numbers[row]} in example {first + row}, feature {name} (counted from 0)",
        "finite features",
    )


def _first_lines(path: Path) -> tuple[list[str], list[str]]:
    """The entries of the first two filled lines; the second is empty where there is none.

    Raises:
        DataError: no text, or nothing in it.
    """
    try:
        with opened_file(path) as file:
            start = file.read(_START)
    except DAMAGE as error:
        raise DataError.unexpected(
            path, f"a truncated or corrupt compressed file ({error})", "an intact one"
        ) from error
    end = start.rfind(b"\n") + 1 if len(start) == _START else len(start)
    text = require_text(path, start[: end or len(start)])
    rows: list[list[str]] = []
    try:
        for row in csv.reader(text.splitlines(), skipinitialspace=True):
            if row:
                rows.append([entry.strip() for entry in row])
            if len(rows) == 2:
                break
    except csv.Error as error:
        raise DataError.unexpected(path, f"no table ({error})", "comma-separated values") from error
    if not rows:
        raise DataError.unexpected(path, "an empty file", "comma-separated values")
    return rows[0], rows[1] if len(rows) > 1 else []


def _looks_like_names(first: list[str], second: list[str]) -> bool:
    """Words only, all different, above at least one number."""
    return (
        len(set(first)) == len(first)
        and not any(map(_is_number, first))
        and any(map(_is_number, second))
    )


def _is_number(entry: str) -> bool:
    try:
        float(entry)
    except ValueError:
        return False
    return True


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
