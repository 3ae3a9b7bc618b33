"""Tables, declared or not: read in pieces, and encoded without a view of the whole."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.data.columns import (
    CODES,
    MOST_CATEGORIES,
    Category,
    Column,
    Encoder,
    Number,
    Outside,
    PlainNumber,
    SuspiciousDataWarning,
    TableSchema,
    UndeclaredError,
)
from forethought.data.dataset import (
    Dataset,
    Declared,
    Labels,
    Split,
    cannot_split,
    is_number,
    label_column,
    limited,
    places,
    share_held_out,
    split_hashes,
    told_apart,
)
from forethought.data.files import DataError, Kind, Table, TableFormat, named, read, written
from forethought.values.caveats import Caveat
from forethought.values.checks import meant

# Checks that find out what a file or column really is, with a remedy for each case.
#
# The checks run on the owner's machine only. Their findings go into an error or a warning for the
# owner, and into no result.


_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_STARTS = {
    b"PK\x03\x04": "an Excel workbook or another zip archive: save its sheet as CSV (UTF-8)",
    b"\xd0\xcf\x11\xe0": "an old Excel workbook: save its sheet as CSV (UTF-8)",
    b"PAR1": "a Parquet file: write it as CSV, or as npz",
    b"<": "a web page: save the table itself as CSV",
    b"{": "JSON: write it as CSV, or as npz",
    b"[": "JSON: write it as CSV, or as npz",
}
# Undeclared numbers are not rescaled: numbers above this dominate all other features.
LARGE = 100.0
_DATE = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}([ T]\d{1,2}:\d{2}.*)?")
# Units of measurements, and no other letters, which would match codes such as 2B.
_UNITS = (
    r"%|‰|€|\$|£|[kmµ]?g|[kcmµ]?m|m?l|d?l|mm ?hg|bpm|kg/m[2²]|[mg]+/dl|[mµ]?mol/l|y(ea)?rs?|days?"
)
_NUMBER_AND_MORE = re.compile(rf"[-+€$£]?\d[\d.,' ]*\s*({_UNITS})?", re.IGNORECASE)
_TO_NUMBERS = "turn them into numbers, such as days since a fixed day, or drop the column"
_PLAIN = "write plain numbers with a decimal point and nothing else"
_NO_WORDS = (
    (_DATE, "dates", _TO_NUMBERS),
    (_NUMBER_AND_MORE, "numbers with something around them", _PLAIN),
)


def require_text(path: Path, content: bytes) -> str:
    """Decode the content as UTF-8 text.

    Raises:
        DataError: another kind of file, or another encoding; the message says what to save it as.
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
            f"{path} is no UTF-8 text (byte {error.start} does not fit): save it as 'CSV UTF-8'"
        ) from None
    if "\0" in text:
        raise DataError.unexpected(path, "a zero byte", "text")
    return text


def unknown_column(path: Path, names: list[str], wanted: str, purpose: str) -> DataError:
    """The error for a missing column, with a hint from the names in the first line."""
    line = ",".join(names)
    for separator, word in _SEPARATORS.items():
        if separator in line and wanted in (part.strip() for part in line.split(separator)):
            return DataError(
                f"{path}: separated by {word}, not by commas: save it with them, and decimal points"
            )
    shown = ", ".join(names[:20])
    hint = ""
    if near := meant(wanted, names):
        hint = f".{near}"
    elif names[0].startswith("#") or sum(map(bool, names)) == 1:
        hint = ". The first line must hold the names: remove what is above it"
    elif any(re.fullmatch(r"[-+]?\d+(\.\d+)?", name) for name in names):
        hint = (
            ". In a file without a line of names (header = false, which forethought init writes) "
            "the columns are called by number, from 0"
        )
    return DataError(
        f"{path}: found the columns {shown}, expected one named {wanted!r}, {purpose}{hint}"
    )


def require_words(path: Path, name: str, words: list[str]) -> None:
    """Refuse a column of categories that holds dates, or numbers with other characters.

    Args:
        words: the different entries, sorted.

    Raises:
        DataError: the message names the column, shows an entry, and says what to do.
    """
    if not any(words):
        raise DataError(
            f"{path}: column {name!r} is empty: remove it (a comma at the end of each line?)"
        )
    if len(words) < 3:
        return
    for form, found, remedy in _NO_WORDS:
        if sum(bool(form.fullmatch(word)) for word in words) > len(words) / 2:
            raise DataError(f"{path}: column {name} holds {found}, such as {words[-1]!r}: {remedy}")


def require_small(path: Path, name: str, numbers: NDArray[np.float32]) -> None:
    """Refuse an undeclared column of large numbers, which would dominate all others in clipping.

    Warns if a number that stands for "missing" would be read as a measurement.

    Raises:
        DataError: the message names the column and says how to declare its range.
    """
    low = numbers.min(initial=np.inf)
    others = numbers[numbers != low] if float(low) in CODES else numbers[:0]
    coded = bool(len(others)) and others.min() >= 0
    large = (np.abs(numbers) > LARGE).any() and np.isfinite(numbers).all()
    if large:
        found, such = f"numbers beyond {LARGE:g}", "[0, 1000]"
        if coded:  # which may stand for a missing value
            found = f"{low:g} and nothing else below 0"
            such = f'{{range = [0, 1000], missing = "middle", codes = [{low:g}]}}'
        raise DataError(
            f"{path}: column {name} holds {found}: declare its range under [data.columns], such as "
            f'{name} = {such}, or {name} = "drop". forethought init {path.name} writes them all'
        )
    if coded and (others != others[0]).any():
        warnings.warn(
            f"{path}: column {name} holds {low:g} in {int((numbers == low).sum())} rows and "
            "nothing else below 0: if that stands for a missing value, fill or drop it beforehand",
            SuspiciousDataWarning,
            stacklevel=5,
        )


_SAMPLE, _START = 500, 1 << 16  # entries that decide a column's kind; bytes read for its names


# The schema of a text without declarations: which columns hold numbers, and which hold words.


@dataclass(frozen=True)
class _Text:
    """A text with the names of its columns, from its first lines.

    Args:
        names: of its columns; numbers from 0 if it has none.
        header: True if its first line holds the names.
        label: the name of the label's column.
    """

    path: Path
    names: list[str]
    header: bool
    label: str

    @classmethod
    def of(cls, path: Path, label: str) -> _Text:
        """Read the first lines.

        Args:
            label: a name, or a number if the file has no names.

        Raises:
            DataError: no text, an empty file, no such column, or names although the label is a
                number.
        """
        first, second = _first_lines(path)
        # A line that holds the label's number among other numbers is a record, unless it counts
        # the columns, as pandas does.
        counted = [str(number) for number in range(len(first))]
        numbers = [entry for entry in first if is_number(entry)]
        place = is_number(label) and abs(float(label)) <= len(first)
        header = label in first and not (place and numbers != counted[: len(numbers)])
        names = first if header else counted
        at = _place(path, names if place else first, label, "the label")
        different = not numbers and len(set(first)) == len(first)
        if not header and different and any(map(is_number, second)):
            raise DataError(
                f"{path}: its first line looks like column names ({', '.join(first[:8])}): "
                f"give the label by its name, such as {first[at]!r}, not by its number {label}"
            )
        count = 0 if header and not second else 1
        if len(first) < 2 or not count:
            found = f"{count} examples in {len(first)} columns"
            raise DataError.unexpected(path, found, "at least one and two")
        return cls(path, names, header, names[at])

    def pieces(self) -> Iterator[pl.DataFrame]:
        """Yield its rows as strings, with missing entries as empty strings."""
        for frame in Table(self.path, "csv", TableFormat(header=self.header)).pieces():
            frame.columns = self.names
            yield frame.select(pl.all().fill_null(""))

    def resolved(self, aside: Aside) -> Aside:
        """The label, split_by and site columns by name, if some are given by number."""
        places: dict[str, Any] = {"label": self.label}
        for option, purpose in (("split_by", "to split by"), ("site", "to deal records out by")):
            wanted = getattr(aside, option)
            if wanted is not None:
                places[option] = self.names[_place(self.path, self.names, wanted, purpose)]
                if places[option] == self.label:
                    raise DataError(f"{self.path}: {option} names the label's column {wanted!r}")
        return replace(aside, **places)

    def columns(self, aside: Aside) -> dict[str, Column]:
        """The kind of each feature column: numbers as they are, or the words that it holds.

        Raises:
            DataError: words that are dates or contain numbers, or too many different words.
        """
        words: dict[str, dict[str, str]] = {}  # of several ways to write a word, one is kept
        numeric: set[str] = set()
        for frame in self.pieces():
            if len(frame) and not words and not numeric:
                features = [name for name in self.names if name not in aside.names]
                numeric = {name for name in features if _mostly_numbers(frame[name])}
                words = {name: {} for name in features if name not in numeric}
            for name, found in words.items():
                texts = frame[name].str.strip_chars().unique().sort()
                found |= zip(written(texts), texts, strict=True)
                if len(found) > MOST_CATEGORIES:
                    many = f"more than {MOST_CATEGORIES} different words in column {name}"
                    wanted = "numbers, or fewer categories: drop a column of identifiers"
                    raise DataError.unexpected(self.path, many, wanted)
            if not words and numeric:
                break
        columns: dict[str, Column] = dict.fromkeys(numeric, PlainNumber())
        for name, found in words.items():
            require_words(self.path, name, kinds := sorted(found.values()))
            columns[name] = Category("middle", words=tuple(kinds), lenient=True)
        return {name: columns[name] for name in self.names if name in columns}


def _mostly_numbers(entries: pl.Series) -> bool:
    """True if most entries of an evenly spaced sample are numbers."""
    sample = entries.gather_every(max(1, len(entries) // _SAMPLE)).str.strip_chars()
    numbers = sample.cast(pl.Float64, strict=False)
    return len(numbers) - numbers.null_count() > len(sample) / 2


def _first_lines(path: Path) -> tuple[list[str], list[str]]:
    """The entries of the first two non-empty lines; the second is empty if there is only one.

    Raises:
        DataError: no text, or an empty file.
    """
    start = read(path, _START)
    end = start.rfind(b"\n") + 1 if len(start) == _START else len(start)
    text = require_text(path, start[: end or len(start)])
    lines = csv.reader(StringIO(text, newline=None), skipinitialspace=True)
    rows = list(islice(([entry.strip() for entry in row] for row in lines if row), 2))
    if not rows:
        raise DataError.unexpected(path, "an empty file", "comma-separated values")
    return rows[0], rows[1] if len(rows) > 1 else []


def _place(path: Path, names: list[str], wanted: str, purpose: str) -> int:
    """The index of a column that is given by name or by number."""
    if wanted in names:
        return names.index(wanted)
    try:
        number = int(wanted)
    except ValueError:
        raise unknown_column(path, names, wanted, purpose) from None
    if not -len(names) <= number < len(names):
        raise DataError.unexpected(path, f"{len(names)} columns", f"one numbered {number}")
    return number % len(names)


# One reader: every column has a kind, declared or inferred above; pieces are encoded one by one.


@dataclass(frozen=True)
class Aside:
    """Columns that are no features, by name; in a file without names by number, from 0.

    Args:
        label: column of the target.
        split_by: column whose equal entries stay in one part of the split, such as a person.
        site: column of the client of a federation that holds a record.
        person: column of the person of a row; all rows of a person are then one record
            (:func:`forethought.data.of_persons`).
        labels: columns of several labels, instead of ``label``.
    """

    label: str
    split_by: str | None = None
    site: str | None = None
    person: str | None = None
    labels: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """The label's column, or the columns of several labels."""
        return self.labels or (self.label,)

    @property
    def names(self) -> set[str]:
        """The names of all columns that are no features."""
        return {*self.targets, *filter(None, (self.split_by, self.site, self.person))}


COLUMN_KINDS = Caveat(
    "preparation-from-data", "whether a column holds numbers or words was decided by its entries"
)
COLUMNS = Caveat("declared-shape", "the columns, their ranges and their categories")
MEASURED = Caveat(
    "preparation-from-data",
    "ranges and categories of columns and what the target can be, taken from the file by its owner",
)


def load_table(
    name: str,
    path: Path,
    kind: Kind,
    schema: TableSchema | None,
    aside: Aside,
    declared: Declared,
    test: Path | None,
    holdout: float | None,
) -> Dataset:
    """Load a table by its declaration, or by what its text seems to hold; features are float32.

    Without a declaration, a column is numeric if most entries of a sample are numbers; then all
    must be. Otherwise each different word is a category with a feature of its own, which is 1 where
    the word stands. The file is read in pieces, in about twice the memory of its features.

    Args:
        name: of the source.
        path, kind: the file.
        schema: the declaration of its columns; None: inferred from the text.
        aside: label and other columns that are no features.
        declared: the classes, or that it is a regression.
        test: a separate file for the test part.
        holdout: share held out if there is no ``test``.

    Raises:
        DataError: columns that are missing or not declared, entries that no declaration covers,
            no declared classes, or a damaged file.
    """
    if not aside.label and not aside.labels:
        number = ", or give its number (−1 for the last) if the file has no line of names"
        raise DataError(
            f"{path}: which column is the label? Name it with label={'' if schema else number}"
        )
    reader = (
        _inferred(path, aside) if schema is None else _declared(path, kind, schema, aside, declared)
    )
    encoder, aside = reader.encoder, reader.aside
    if declared.features not in (None, len(encoder.titles)):
        found = f"{len(encoder.titles)} features"
        raise DataError.unexpected(path, found, f"the declared {declared.features}")
    outside = Outside()
    share = 0.0 if test else share_held_out(holdout)
    rows = reader.read(path, share, outside)
    labels = None
    if not aside.labels:
        seen = rows.aside[aside.label] if schema is None else np.array([])
        labels = Labels(path, np.asarray(seen), declared)
    targets = reader.targets(path, rows.aside, labels, outside)
    train, held = Split(rows.stay, targets[~rows.held]), Split(rows.out, targets[rows.held])
    if share and not (len(train) and len(held)):
        raise cannot_split(len(targets), share, f"{path}: ")
    reader.require_whole_persons(path, rows.aside)
    reader.require_sizes(path, rows)
    if test is not None:
        others = reader.read(test, 0.0, outside)
        held = Split(others.stay, reader.targets(test, others.aside, labels, outside))
        reader.require_sizes(test, others)
    classes = len(aside.labels) if labels is None else labels.classes
    if labels is not None and labels.names is not None:
        encoder = replace(encoder, classes=labels.names)

    def told(name: str | None, part: NDArray[np.bool_]) -> NDArray[np.str_] | None:
        return None if name is None else np.array(named(path, rows.aside[name]))[part]

    owners = told(aside.person or aside.site, ~rows.held)
    caveats, notes, norm = declared.caveats, ["numbers as they are in the file, not rescaled"], None
    if schema is None:
        assert labels is not None
        words = any(isinstance(kind, Category) for _, kind in encoder.columns)
        caveats += (*labels.caveats, COLUMN_KINDS)
        caveats += (Caveat("categories-from-data"),) if words else ()
    else:
        remedy = (
            "correct [data.columns] where it is wrong, from what you know and not from these counts"
        )
        outside.tell(path, len(train) + len(held), remedy)
        # A declaration written by init read the data, and so did the classes in it.
        caveats = (MEASURED,) if schema.measured else (*caveats, COLUMNS)
        notes, norm = ["numbers scaled from their declared ranges to [-1, 1]"], encoder.usual_norm
        notes += ["records without a label left out"] if schema.missing_label == "drop" else []
    loaded = Dataset(
        *(name, train, held, classes, tuple(notes), caveats, owners, encoder),
        feature_norm=norm,
        test_persons=told(aside.person or aside.split_by, rows.held),
    )
    if schema is None or aside.person is None or owners is None:
        return loaded
    return limited(loaded, owners, schema.records_per_person)


class _Rows(NamedTuple):
    """A file's rows: features of the training part (``stay``) and of the test part (``out``).

    ``held`` is true for rows of the test part, (N,); ``aside`` has :attr:`Aside.names` of all rows.
    """

    stay: NDArray[np.float32]
    out: NDArray[np.float32]
    held: NDArray[np.bool_]
    aside: pl.DataFrame


@dataclass(frozen=True)
class _Reader:
    """A reader of files that have the same columns.

    Args:
        encoder: encodes a row as features.
        aside: columns that are no features, by name.
        pieces: yields a file in pieces, with the known column names.
        inferred: True if nothing of the file is declared.
    """

    encoder: Encoder
    aside: Aside
    pieces: Callable[[Path], Iterator[pl.DataFrame]]
    inferred: bool = False

    def read(self, path: Path, share: float, outside: Outside) -> _Rows:
        """Encode a file's rows and hold out a share of them (0: none).

        Raises:
            DataError: an entry that its column does not cover.
        """
        parts, hashes, aside = [], [], []
        first = 0
        for frame in self.pieces(path):
            parts.append(self.encoder.encode(frame, str(path), first, outside))
            if share:
                hashes.append(split_hashes(self._identities(frame, path)))
            aside.append(frame.select(sorted(self.aside.names)))
            first += len(frame)
        held = np.zeros(first, bool)
        if share:
            all_hashes = np.concatenate(hashes)
            alone = self.aside.split_by is None  # with split_by, equal hashes are one person's
            held = places(told_apart(all_hashes) if alone else all_hashes[:, 0]) < share
        whole = np.concatenate(parts)
        del parts  # so that at most twice the features are in memory
        return _Rows(whole[~held], whole[held], held, pl.concat(aside))

    def require_whole_persons(self, path: Path, rows: pl.DataFrame) -> None:
        """Refuse a split that may put rows of one person on both sides."""
        person, split_by = self.aside.person, self.aside.split_by
        if person is None or split_by is None:
            return
        both = rows.select(written(rows[name]) for name in {person, split_by})
        if both.n_unique() > both[person].n_unique():
            raise UndeclaredError(
                f"{path}: a person has several values of {split_by}, and would be on both sides of "
                "the split: leave split_by out"
            )

    def require_sizes(self, path: Path, rows: _Rows) -> None:
        """Refuse undeclared numbers too large to leave unscaled; warn of missing-value codes."""
        for name, kind, span in self.encoder.spans:
            if isinstance(kind, PlainNumber):
                numbers = np.concatenate([rows.stay[:, span], rows.out[:, span]])
                require_small(path, name, numbers)

    def targets(
        self, path: Path, rows: pl.DataFrame, labels: Labels | None, outside: Outside
    ) -> NDArray[np.int64] | NDArray[np.float32]:
        """The classes or values of the rows, or several labels if ``labels`` is None.

        Raises:
            DataError: a label that is missing, or that is not among the known ones.
        """
        if labels is None:
            names = self.aside.labels
            return np.stack([label_column(str(path), name, rows[name]) for name in names], axis=1)
        if labels.names is None and not self.inferred:
            return self.encoder.targets(rows, str(path), outside)
        return labels.encode(path, rows[self.aside.label])

    def _identities(self, frame: pl.DataFrame, path: Path) -> list[bytes]:
        if self.aside.split_by is not None:
            return [name.encode() for name in named(path, frame[self.aside.split_by])]
        # Whole numbers too large for float64 are spelled as the floats that they become beside a
        # fraction or a missing entry.
        texts = frame.select(
            written(one.cast(pl.Float64) if one.dtype.is_numeric() else one).fill_null("")
            for one in frame.select(frame.columns if self.inferred else sorted(frame.columns))
        )
        # The separator is in no text then, so that a row's text is its own.
        text = pl.all().str.replace_all("\x1b", "\x1b\x1b", literal=True)
        text = text.str.replace_all("\x1f", "\x1b_", literal=True)
        joined = texts.select(pl.concat_str(text, separator="\x1f").cast(pl.Binary))
        return joined.to_series().to_list()


def _inferred(path: Path, aside: Aside) -> _Reader:
    """A reader for texts with the same columns as this one, without declarations."""
    text = _Text.of(path, aside.label)
    by_name = text.resolved(aside)

    def pieces(file: Path) -> Iterator[pl.DataFrame]:
        own = text if file == path else _Text.of(file, aside.label)
        if sorted(own.names) != sorted(text.names):
            found, wanted = ", ".join(own.names[:20]), ", ".join(text.names)
            raise DataError.unexpected(file, f"the columns {found}", f"those of training: {wanted}")
        return own.pieces()

    form = TableFormat(header=text.header)
    encoder = Encoder(tuple(text.columns(by_name).items()), by_name.label, form=form)
    return _Reader(encoder, by_name, pieces, inferred=True)


def _declared(
    path: Path, kind: Kind, schema: TableSchema, aside: Aside, declared: Declared
) -> _Reader:
    """A reader for tables whose columns are all declared.

    Raises:
        UndeclaredError: declarations that contradict each other, or that are missing.
    """
    if declared.classes is None and declared.task not in ("regression", "multilabel"):
        raise UndeclaredError(
            f'{path}: declare the target: classes = ["no", "yes"], or task = "regression" with '
            'target_range = [low, high], or task = "multilabel" with a list of columns as label'
        )
    if declared.task != "regression" and schema.target_range is not None:
        raise UndeclaredError(f"{path}: target_range goes with a regression, not with classes")
    if declared.task == "regression" and schema.target_range is None:
        raise UndeclaredError(
            f"{path}: a regression needs target_range = [low, high], which scales its targets"
        )
    if schema.person is not None:
        aside = replace(aside, person=schema.person, split_by=aside.split_by or schema.person)
    columns = schema.parsed()
    roles: list[tuple[str | None, str]] = [(name, "a label") for name in aside.targets]
    roles += (aside.site, "the site"), (aside.person, "the person"), (aside.split_by, "split_by")
    for name, purpose in roles:
        if name in columns and columns[name].titles(name):
            raise UndeclaredError(
                f"{path}: {name!r} is {purpose} and a feature at once: drop it in [data.columns]"
            )
    if {*aside.targets} & {aside.person, aside.site}:
        raise UndeclaredError(f"{path}: {aside.label!r} is the label and the person at once")

    words = tuple(str(each).strip() for each in declared.classes or ())
    target: Column = Category(words=words) if words else Number()

    def pieces(file: Path) -> Iterator[pl.DataFrame]:
        known = 0
        for number, frame in enumerate(Table(file, kind, schema.form).pieces()):
            if not number:
                _require_declared(file, frame.columns, aside.names, {*columns})
            for label in aside.targets if schema.missing_label == "drop" else ():
                frame = frame.filter(~target.absent(frame[label], schema.form.decimal))
            known += len(frame)
            if len(frame):
                yield frame
        if not known:
            raise DataError(f"{file}: no record has a label in {', '.join(aside.targets)}")

    encoder = Encoder(
        tuple((name, found) for name, found in columns.items() if name not in aside.names),
        None if aside.labels else aside.label,
        aside.labels or None,
        schema.target_range,
        schema.form,
        bool(aside.labels),
    )
    if not encoder.titles:
        raise UndeclaredError(f"{path}: every column is dropped: there is nothing to learn from")
    return _Reader(encoder, aside, pieces)


def _require_declared(path: Path, names: list[str], aside: set[str], declared: set[str]) -> None:
    for wanted in aside - {*names}:
        raise unknown_column(path, names, wanted, "as the job says")
    extra = [each for each in names if each not in declared | aside]
    if extra:
        gone = ", ".join(sorted(declared - {*names})[:20])
        raise UndeclaredError(
            f"{path}: not declared: {', '.join(extra[:20])}: say in [data.columns] what each "
            'is, or "drop". forethought init writes the table for you to correct'
            f"{gone and '. Declared, and not in the table: ' + gone}"
        )
