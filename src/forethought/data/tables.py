"""Tables, declared or not: read in pieces, encoded without a look at the whole."""

from __future__ import annotations

import csv
import difflib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.data.columns import (
    MISSING_WORDS,
    Category,
    Column,
    Encoder,
    Outside,
    Plain,
    TableSchema,
    UndeclaredError,
)
from forethought.data.dataset import (
    Dataset,
    Declared,
    Labels,
    Split,
    below,
    falls_out,
    fractions,
    kept,
    label_column,
    share_held_out,
)
from forethought.data.files import DAMAGE, DataError
from forethought.data.reading import Kind, Table, TableFormat, opened_file
from forethought.values.caveats import Caveat

# What a table probably is when it cannot be what it seems: the remedy for each.
#
# Looked at on the owner's machine only; what is found goes into an error or a warning for the owner
# and into no result.


_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_STARTS = {
    b"PK\x03\x04": "an Excel workbook or another zip archive: save its sheet as CSV (UTF-8)",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook: save its sheet as CSV (UTF-8)",
    b"PAR1": "a Parquet file: write it as CSV, or as npz",
    b"<": "a web page: save the table itself as CSV",
    b"{": "JSON: write it as CSV, or as npz",
    b"[": "JSON: write it as CSV, or as npz",
}
# Undeclared numbers are not rescaled: from about here on they drown all other features.
LARGE = 100.0
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d{1,2}:\d{2}.*)?")
# Units that measurements come with; not any letters, which would take codes such as 2B for one.
_UNITS = (
    r"%|‰|€|\$|£|[kmµ]?g|[kcmµ]?m|m?l|d?l|mm ?hg|bpm|kg/m[2²]|[mg]+/dl|[mµ]?mol/l|y(ea)?rs?|days?"
)
_NUMBER_AND_MORE = re.compile(rf"[-+€$£]?\d[\d.,' ]*\s*({_UNITS})?", re.IGNORECASE)
# What people write for "missing" where there are no negative values otherwise.
_MISSING = (-9.0, -99.0, -999.0, -9999.0)


class SuspiciousDataWarning(UserWarning):
    """Data that can be used and probably should not be used as they are."""


def require_text(path: Path, content: bytes) -> str:
    """The content as UTF-8 text.

    Raises:
        DataError: some other kind of file, or another encoding; says what to save it as.
    """
    for start, kind in _STARTS.items():
        if content.lstrip()[: len(start)] == start and start in content[:64]:
            raise DataError(f"{path} is no table of comma-separated values but looks like {kind}")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is written in UTF-16: save it as CSV in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is no UTF-8 text (byte {error.start} does not fit): save it as CSV in UTF-8, "
            "which spreadsheets call 'CSV UTF-8'"
        ) from None
    if "\0" in text:
        raise DataError.unexpected(path, "a zero byte", "text")
    return text


def unknown_column(path: Path, names: list[str], wanted: str, purpose: str) -> DataError:
    """The error for a column that is not there, with what the first line looks like."""
    line = ",".join(names)
    for separator, word in _SEPARATORS.items():
        if separator in line and wanted in (part.strip() for part in line.split(separator)):
            return DataError(
                f"{path}: its entries are separated by {word}, not by commas: save it with commas "
                "(and decimal points)"
            )
    shown = ", ".join(names[:20])
    near = difflib.get_close_matches(
        wanted.strip().lower(), [name.strip().lower() for name in names], 1, 0.7
    )
    hint = ""
    if near:
        close = next(name for name in names if name.strip().lower() == near[0])
        hint = f". Did you mean {close!r}?"
    elif names[0].startswith("#") or sum(map(bool, names)) == 1:
        hint = ". The first line must hold the names: remove what is above it"
    elif any(re.fullmatch(r"[-+]?\d+(\.\d+)?", name) for name in names):
        hint = ". In a file without a line of names the columns are called by number, from 0"
    return DataError(
        f"{path}: found the columns {shown}, expected one named {wanted!r}, {purpose}{hint}"
    )


def require_words(path: Path, name: str, words: list[str]) -> None:
    """Refuse a column that would become categories and holds dates, or numbers with something.

    Args:
        words: the different entries.

    Raises:
        DataError: names the column, shows one entry, and says what to do.
    """
    if not any(words):
        raise DataError(
            f"{path}: column {name or 'without a name'} is empty: remove it (a comma at the end of "
            "each line makes one)"
        )
    if len(words) < 3:
        return
    most = len(words) / 2
    if sum(bool(_DATE.fullmatch(word)) for word in words) > most:
        raise DataError(
            f"{path}: column {name} holds dates, such as {words[-1]!r}: turn them into numbers, "
            "such as days since a fixed day, or drop the column"
        )
    if sum(bool(_NUMBER_AND_MORE.fullmatch(word)) for word in words) > most:
        raise DataError(
            f"{path}: column {name} holds numbers with something around them, such as "
            f"{words[-1]!r}: write plain numbers with a decimal point and nothing else"
        )


def require_small(path: Path, name: str, numbers: NDArray[np.float32]) -> None:
    """Refuse an undeclared column of large numbers: it would drown all others under the clipping.

    Raises:
        DataError: names the column and how to declare its range.
    """
    if not (np.abs(numbers) > LARGE).any() or not np.isfinite(numbers).all():
        return
    kinds = np.unique(numbers)
    if float(kinds[0]) in _MISSING and kinds[1] >= 0:
        code = f"{kinds[0]:g}"
        raise DataError(
            f"{path}: column {name} holds {code} and nothing else below 0: if that stands for a "
            f"missing value, say so under [data.columns]: {name} = {{range = [0, 100], missing = "
            f'"middle", codes = [{code}]}} with its true range'
        )
    raise DataError(
        f"{path}: column {name} holds numbers beyond {LARGE:g}: declare its range under "
        f"[data.columns], such as {name} = [0, 1000], so that it is scaled without a look at the "
        f'data, or {name} = "drop". forethought init {path.name} writes the whole table'
    )


def warn_of_codes(path: Path, name: str, numbers: NDArray[np.float32]) -> None:
    """Warn where a number that stands for "missing" would be taken for a measurement."""
    if not len(numbers) or float(numbers.min()) not in _MISSING:
        return
    kinds = np.unique(numbers)
    if len(kinds) > 2 and float(kinds[0]) in _MISSING and kinds[1] >= 0:
        count = int((numbers == kinds[0]).sum())
        warnings.warn(
            f"{path}: column {name} holds {kinds[0]:g} in {count} rows and nothing else below 0: "
            "if that stands for a missing value, fill or drop it beforehand",
            SuspiciousDataWarning,
            stacklevel=6,
        )


# Columns of a text of which nothing is declared: what they hold is found out as they are read.


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
    """The content of a file: features column by column, labels, and whose the records are."""

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
        """True if a column holds words."""
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
        """The encoder that reads new rows like these."""
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
        """True if it holds numbers, by evenly spread entries."""
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
    """The place of a column that is given by name or by number."""
    if wanted in names:
        return names.index(wanted)
    try:
        number = int(wanted)
    except ValueError:
        raise unknown_column(path, names, wanted, purpose) from None
    if not -len(names) <= number < len(names):
        raise DataError.unexpected(path, f"{len(names)} columns", f"one numbered {number}")
    return number % len(names)


# Tables of comma-separated values: numbers as they are, words one-hot.


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
            person are then one record (:mod:`forethought.data.dataset`).
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

    A column is numeric when most of its first entries are numbers; then all of them must be.
    Otherwise each different word is a category, with a column of its own that is 1 where the word
    stands. The file is read in pieces, in about twice the memory of its features.

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
    opened = Opened.of(path, aside.label)
    no_features = {opened.label}
    places: dict[str, str] = {}
    for option, column, purpose in (
        ("split_by", aside.split_by, "to split by"),
        ("site", aside.site, "to deal records out by"),
    ):
        if column is not None:
            places[option] = opened.place(column, purpose)
            if places[option] == opened.label:
                raise DataError(f"{path}: {option} names the label's column {column!r}")
            no_features.add(places[option])
    split_by, site = places.get("split_by"), places.get("site")
    found = opened.read(no_features, identities=test is None, split_by=split_by, site=site)
    found.settle()
    labels = Labels(path, found.labels, declared)
    if declared.features not in (None, len(found.titles)):
        raise DataError.unexpected(
            path, f"{len(found.titles)} features", f"the declared {declared.features}"
        )
    targets = labels.encode(path, found.labels)
    everything = np.ones(len(targets), bool)
    if test is None:
        held = below(np.concatenate(found.fractions), holdout)
        stay, out = found.features(~held, held)
        train, rest = Split(stay, targets[~held]), Split(out, targets[held])
    else:
        held = ~everything
        train = Split(found.features(everything)[0], targets)
        other = Opened.of(test, aside.label).aligned(opened).read(no_features, like=found)
        wanted = labels.encode(test, other.labels)
        rest = Split(other.features(np.ones(len(wanted), bool))[0], wanted)
    notes = ("numbers as they are in the file, not rescaled",)
    caveats = (*declared.caveats, *labels.caveats, COLUMN_KINDS)
    if found.has_categories:
        caveats = (*caveats, Caveat("categories-from-data"))
    sites = None if site is None else np.array(found.sites)[~held]
    encoder = found.encoder(opened.label, labels)
    return Dataset(name, train, rest, labels.classes, notes, caveats, sites, encoder)


# Tables whose every column is declared: read in pieces, encoded without a look at the whole.


COLUMNS = Caveat("declared-shape", "the columns, their ranges and their categories")
MEASURED = Caveat(
    "preparation-from-data",
    "ranges and categories of columns and what the target can be, taken from the file by its owner",
)


def load_declared(
    name: str,
    path: Path,
    kind: Kind,
    schema: TableSchema,
    aside: Aside,
    declared: Declared,
    test: Path | None,
    holdout: float | None,
) -> Dataset:
    """A table by its declaration, float32, in about the memory of its features.

    Args:
        name: of the source. path, kind: the file. schema: what its columns are.
        aside: label and other columns that are no features.
        declared: the classes, or that it is a regression. test: a file of its own for testing.
        holdout: share held out where there is none.

    Raises:
        DataError: columns that are not declared or not there, entries that no declaration covers,
            no declared classes, or a damaged file.
    """
    if declared.classes is None and declared.task not in ("regression", "multilabel"):
        raise UndeclaredError(
            f'{path}: with declared columns the target is declared as well: classes = ["no", '
            '"yes"], or task = "regression" with target_range = [low, high], or task = '
            '"multilabel" with a list of columns as label'
        )
    if declared.task != "regression" and schema.target_range is not None:
        raise UndeclaredError(f"{path}: target_range goes with a regression, not with classes")
    if declared.task == "regression" and schema.target_range is None:
        raise UndeclaredError(
            f"{path}: a regression on a declared table needs target_range = [low, high]: targets "
            "are scaled by it, and no record decides it"
        )
    columns = schema.parsed()
    for column, purpose in (
        *((label, "a label") for label in aside.labels or (aside.label,)),
        (aside.site, "the site"),
        (aside.person, "the person"),
    ):
        if column in columns and columns[column].titles(column):
            raise UndeclaredError(
                f"{path}: {column!r} is {purpose} and a feature at once: take it out of "
                "[data.columns]"
            )
    if {aside.label, *aside.labels} & {aside.person, aside.site}:
        raise UndeclaredError(f"{path}: {aside.label!r} is the label and the person at once")
    encoder = Encoder(
        tuple((key, value) for key, value in columns.items() if key not in aside.names),
        aside.label,
        target_range=schema.target_range,
        form=schema.form,
    )
    if not encoder.titles:
        raise UndeclaredError(f"{path}: every column is dropped: there is nothing to learn from")
    if declared.features not in (None, len(encoder.titles)):
        raise DataError.unexpected(
            path, f"{len(encoder.titles)} features", f"the declared {declared.features}"
        )
    if declared.classes is not None:
        encoder = encoder.with_classes(declared.classes)
    if aside.labels:
        encoder = replace(encoder, label=None, classes=aside.labels, multilabel=True)
    labels = None if aside.labels else Labels(path, np.array([]), declared)
    classes = len(aside.labels) if labels is None else labels.classes
    reader = _Reader(encoder, labels, aside, kind, schema, set(columns))
    outside = Outside()
    if test is None:
        train, held, names = reader.split(path, holdout, outside)
    else:
        train, _, names = reader.split(path, 0.0, outside)
        held = reader.split(test, 0.0, outside)[0]
    _tell(path, outside, len(train) + len(held))
    notes = ("numbers scaled from their declared ranges to [-1, 1]",)
    # What init wrote was not declared without a look at the data: nor were its classes.
    caveats = (MEASURED,) if schema.measured else (*declared.caveats, COLUMNS)
    if aside.person is None:
        return Dataset(
            name,
            train,
            held,
            classes,
            notes,
            caveats,
            names,
            encoder,
            feature_norm=encoder.usual_norm,
        )
    assert names is not None
    most = schema.records_per_person
    mask = kept(train, names.tolist(), most)
    return Dataset(
        name,
        train.at(mask),
        held,
        classes,
        notes,
        caveats,
        encoder=encoder,
        persons=names[mask],
        records_per_person=most,
        feature_norm=encoder.usual_norm,
    )


@dataclass(frozen=True)
class _Reader:
    encoder: Encoder
    labels: Labels | None
    aside: Aside
    kind: Kind
    schema: TableSchema
    known: set[str]

    def split(
        self, path: Path, holdout: float | None, outside: Outside
    ) -> tuple[Split, Split, NDArray[np.str_] | None]:
        """The parts that stay and that are held out (0: none), and whose or where what stays is."""
        share = 0.0 if holdout == 0.0 else share_held_out(holdout)
        parts: tuple[list[Split], list[Split]] = ([], [])
        sites: list[NDArray[np.str_]] = []
        first = 0
        for frame in Table(path, self.kind, self.schema.form).pieces():
            if not first:
                self._check(path, frame.columns)
            whole = Split(
                self.encoder.encode(frame, str(path), first, outside),
                self._targets(frame, path, outside),
            )
            out = falls_out(self._identities(frame), share, len(frame))
            for part, chosen in zip(parts, (~out, out), strict=True):
                if chosen.any():
                    part.append(whole.at(chosen))
            wanted = self.aside.person or self.aside.site
            if wanted is not None:
                named = frame[wanted].cast(pl.String).str.strip_chars().fill_null("")
                sites.append(np.array(named.to_list())[~out])
            first += len(frame)
        if share and not (parts[0] and parts[1]):
            raise DataError(
                f"{path}: {first} examples cannot be split with holdout {share}: one part would be "
                "empty. Choose another holdout, or give a test file"
            )
        return _joined(parts[0]), _joined(parts[1]), np.concatenate(sites) if sites else None

    def _check(self, path: Path, names: list[str]) -> None:
        for wanted in self.aside.names - set(names):
            raise DataError.unexpected(
                path, f"the columns {', '.join(names[:20])}", f"one named {wanted!r}"
            )
        extra = [each for each in names if each not in self.known | self.aside.names]
        if extra:
            raise UndeclaredError(
                f"{path}: not declared: {', '.join(extra[:20])}: say in [data.columns] what each "
                'is, or "drop". forethought init writes the table for you to correct'
            )

    def _targets(
        self, frame: pl.DataFrame, path: Path, outside: Outside
    ) -> NDArray[np.int64] | NDArray[np.float32]:
        if self.labels is None:
            columns = [
                label_column(str(path), name, frame[name].cast(pl.String).fill_null("").to_list())
                for name in self.aside.labels
            ]
            return np.stack(columns, axis=1)
        if self.labels.classes is None:
            return self.encoder.targets(frame, str(path), outside)
        entries = frame[self.aside.label].cast(pl.String).fill_null("")
        known = {str(name).strip(): number for number, name in enumerate(self.labels.names or ())}
        places = entries.str.strip_chars().replace_strict(
            list(known), list(known.values()), default=None, return_dtype=pl.Int64
        )
        if not places.null_count():
            return places.to_numpy()
        return self.labels.encode(path, np.array(entries.to_list()))  # written in another way

    def _identities(self, frame: pl.DataFrame) -> list[bytes]:
        if self.aside.split_by is not None:
            one = pl.col(self.aside.split_by).cast(pl.String).str.strip_chars().fill_null("")
        else:
            text = [pl.col(name).cast(pl.String).fill_null("") for name in sorted(frame.columns)]
            one = pl.concat_str(text, separator="\x1f")
        found: list[bytes] = frame.select(one.cast(pl.Binary)).to_series().to_list()
        return found


def _joined(parts: list[Split]) -> Split:
    if not parts:
        return Split(np.empty((0, 0), np.float32), np.empty(0, np.float32))
    if len(parts) == 1:
        return parts[0]
    inputs = np.concatenate([part.inputs for part in parts])
    return Split(inputs, np.concatenate([part.targets for part in parts]))


def _tell(path: Path, outside: Outside, rows: int) -> None:
    """Tell the owner, on their machine, where the declarations do not fit the table."""
    found = [
        f"{name}: {count} of {rows} {what}"
        for kind, what in (
            (outside.clipped, "outside the declared range, clipped to it"),
            (outside.unknown, "words that are not declared"),
        )
        for name, count in kind.items()
    ]
    if found:
        warnings.warn(
            f"{path}: {'; '.join(found[:10])}. For your eyes only; correct [data.columns] where it "
            "is wrong, from what you know and not from these counts",
            SuspiciousDataWarning,
            stacklevel=5,
        )
