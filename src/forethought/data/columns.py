"""Columns as their owner declares them: how each becomes features, with no look at private data.

A number is scaled from its declared range to [−1, 1] and clipped to it, a category becomes one
feature a declared word, a date becomes a place in its range and a season. What a missing entry
means is declared as well. So nothing about the encoding depends on a record, and the norm of an
encoded record has a bound that is known beforehand (:attr:`Column.bound`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import date
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.data.error import DataError

Missing = Literal["refuse", "middle", "category"]
POLICIES: tuple[str, ...] = (*get_args(Missing), "drop-column")
# What people write where there is no value.
MISSING_WORDS = ("", "?", "-", "na", "n/a", "nan", "null", "none", "missing", ".", "#n/a")
_MOST_CATEGORIES = 1000
# Days are counted from here.
EPOCH = date(2000, 1, 1)
CENTURY = (date(1950, 1, 1), date(2049, 12, 31))
YEAR = 365.2425


class UndeclaredError(DataError):
    """A declaration that cannot be used, or an entry that none covers."""


@dataclass
class Outside:
    """Counts, for the operator alone, of entries that a declaration had to bend.

    Args:
        clipped: column → numbers beyond its range. unknown: column → words that were not declared.
        missing: column → entries that were missing.
    """

    clipped: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)

    def note(self, kind: dict[str, int], name: str, count: int) -> None:
        """Add to one of the three."""
        if count:
            kind[name] = kind.get(name, 0) + count


@dataclass(frozen=True)
class Column:
    """One column of a table; the kinds below say how it is read.

    Args:
        missing: what a missing entry means: an error, the middle of the range (all features 0), or
            a category of its own (one more feature, 1 where the entry is missing).
        codes: numbers that stand for a missing entry, such as −999.
    """

    missing: Missing = "refuse"
    codes: tuple[float, ...] = ()
    kind: ClassVar[str] = ""

    def titles(self, name: str) -> tuple[str, ...]:
        """Names of the features it becomes."""
        own = self._titles(name)
        return (*own, f"{name} missing") if own and self.missing == "category" else own

    @property
    def bound(self) -> float:
        """Largest norm that its features can have."""
        raise NotImplementedError

    def absent(self, entries: pl.Series) -> pl.Series:
        """Whether each entry counts as missing."""
        return _absent(entries, self.codes)

    def _titles(self, name: str) -> tuple[str, ...]:
        raise NotImplementedError

    def _features(
        self, where: str, name: str, entries: pl.Series, absent: pl.Series, outside: Outside
    ) -> list[NDArray[np.float32]]:
        raise NotImplementedError

    def _plain(self, entries: pl.Series) -> NDArray[np.float64] | None:
        """The entries, where each is a finite number and nothing else is to be asked of them."""
        return None

    def _scaled(
        self, name: str, numbers: NDArray[np.float64], outside: Outside
    ) -> NDArray[np.float32]:
        raise NotImplementedError

    def to_value(self) -> Any:
        """As a job file writes it."""
        raise NotImplementedError

    def encode(
        self, where: str, name: str, entries: pl.Series, first: int, outside: Outside
    ) -> NDArray[np.float32]:
        """Features of the column, float32, (entries, features).

        Args:
            where: the file, for messages. name: the column's. first: the number of the first entry.
            outside: counts what was bent.

        Raises:
            UndeclaredError: an entry that the declaration does not cover; names it.
        """
        plain = self._plain(entries)
        if plain is not None:
            return self._scaled(name, plain, outside)[:, None]
        absent = self.absent(entries)
        count = int(absent.sum())
        if count and self.missing == "refuse" and self._titles(name):
            row = first + int(absent.arg_true()[0])
            raise UndeclaredError(
                f"{where}: found nothing in column {name}, example {row}: say what a missing entry "
                f'means, as in {name} = {{…, missing = "middle"}} (or "category"), or drop the '
                "column"
            )
        outside.note(outside.missing, name, count)
        features = self._features(where, name, entries, absent, outside)
        if features and self.missing == "category":
            features.append(absent.cast(pl.Float32).to_numpy())
        if not features:
            return np.empty((len(entries), 0), np.float32)
        return np.stack(features, axis=1, dtype=np.float32)


@dataclass(frozen=True)
class Number(Column):
    """A number with a public range, scaled to [−1, 1] and clipped.

    Args:
        low, high: the range. decimal: what separates the fraction.
        log: whether log(1 + x − low) is scaled, not x: amounts and counts, of which most are small
            against what is possible, would lie together at one end.
    """

    low: float = 0.0
    high: float = 1.0
    decimal: str = "."
    log: bool = False
    kind: ClassVar[str] = "range"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise UndeclaredError(
                f"a range is two numbers, the smaller one first, not [{self.low}, {self.high}]"
            )
        if self.log and not math.isfinite(self.high - self.low):
            raise UndeclaredError(f"[{self.low}, {self.high}] is too wide for its logarithm")
        if self.scale[1] < np.finfo(np.float64).tiny:
            raise UndeclaredError(f"[{self.low}, {self.high}] is too narrow to tell numbers apart")

    @property
    def bound(self) -> float:
        return 1.0

    @property
    def scale(self) -> tuple[float, float]:
        """What is subtracted from the number, or from its logarithm, and what it is divided by."""
        if self.log:
            half = math.log1p(self.high - self.low) / 2
            return half, half
        # Halved before they are subtracted: a range of any two doubles has no overflow.
        return self.low / 2 + self.high / 2, self.high / 2 - self.low / 2

    def _titles(self, name: str) -> tuple[str, ...]:
        return (name,)

    def to_value(self) -> Any:
        found: dict[str, Any] = {"range": [self.low, self.high]}
        if self.log:
            found["log"] = True
        return _table(found, self)

    def _features(
        self, where: str, name: str, entries: pl.Series, absent: pl.Series, outside: Outside
    ) -> list[NDArray[np.float32]]:
        numbers = as_numbers(where, name, entries, absent, self.decimal)
        scaled = self._scaled(name, numbers, outside)
        return [np.where(np.isnan(numbers), np.float32(0), scaled)]

    def _plain(self, entries: pl.Series) -> NDArray[np.float64] | None:
        if self.decimal != "." or self.codes or self.missing == "category":
            return None
        if entries.dtype != pl.String and not entries.dtype.is_numeric():
            return None
        # One pass over a column of numbers; whatever else there is, the slow way looks at.
        values = entries.cast(pl.Float64, strict=False)
        if values.null_count():
            return None
        numbers = values.to_numpy()
        return numbers if math.isfinite(float(numbers.sum())) else None

    def _scaled(
        self, name: str, numbers: NDArray[np.float64], outside: Outside
    ) -> NDArray[np.float32]:
        inside = np.clip(numbers, self.low, self.high)
        outside.note(outside.clipped, name, int(((inside != numbers) & ~np.isnan(numbers)).sum()))
        if self.log:
            inside = np.log1p(inside - self.low)
        middle, half = self.scale
        inside -= middle
        inside /= half
        return np.clip(inside, -1.0, 1.0, out=inside).astype(np.float32)


@dataclass(frozen=True)
class Plain(Column):
    """A number as it is in the file; only where nothing is declared.

    Args:
        decimal: what separates the fraction.
    """

    decimal: str = "."
    kind: ClassVar[str] = "plain"

    @property
    def bound(self) -> float:
        return math.inf

    def _titles(self, name: str) -> tuple[str, ...]:
        return (name,)

    def to_value(self) -> Any:
        return "plain"

    def _features(
        self, where: str, name: str, entries: pl.Series, absent: pl.Series, outside: Outside
    ) -> list[NDArray[np.float32]]:
        return [as_numbers(where, name, entries, absent, self.decimal).astype(np.float32)]


@dataclass(frozen=True)
class Category(Column):
    """One of some words; each has a feature that is 1 where it stands.

    Args:
        words: the declared words. other: whether a word that was not declared has a feature as
            well; else it is refused.
        lenient: whether a word that was not declared is none of the known ones, all zero.
    """

    words: tuple[str, ...] = ()
    other: bool = False
    lenient: bool = False
    kind: ClassVar[str] = "categories"

    def __post_init__(self) -> None:
        if not self.words or len(set(self.words)) < len(self.words):
            raise UndeclaredError(
                f"categories are one or more different words, not {list(self.words)!r}"
            )
        if len(self.words) > _MOST_CATEGORIES:
            raise UndeclaredError(
                f"{len(self.words)} categories: at most {_MOST_CATEGORIES}; drop a column of names"
            )

    @property
    def bound(self) -> float:
        return 1.0

    def _titles(self, name: str) -> tuple[str, ...]:
        own = tuple(f"{name}={word}" for word in self.words)
        return (*own, f"{name} other") if self.other else own

    def absent(self, entries: pl.Series) -> pl.Series:
        # A declared word is that word, even where others would take it for a missing entry.
        return _absent(entries, self.codes) & ~self._known(_words(entries))

    def _known(self, words: pl.Series) -> pl.Series:
        return words.is_in(list(self.words)).fill_null(False)

    def to_value(self) -> Any:
        found: dict[str, Any] = {"categories": list(self.words)}
        if self.other:
            found["other"] = True
        if self.lenient:
            found["lenient"] = True
        return _table(found, self)

    def _features(
        self, where: str, name: str, entries: pl.Series, absent: pl.Series, outside: Outside
    ) -> list[NDArray[np.float32]]:
        words = _words(entries)
        strange = ~self._known(words) & ~absent
        count = int(strange.sum())
        outside.note(outside.unknown, name, count)
        if count and not (self.other or self.lenient):
            row = int(strange.arg_true()[0])
            raise UndeclaredError(
                f"{where}: found {words[row]!r} in column {name}, expected one of "
                f"{', '.join(self.words[:20])}: declare it, or write other = true"
            )
        found = [
            (words == word).fill_null(False).cast(pl.Float32).to_numpy() for word in self.words
        ]
        if self.other:
            found.append(strange.cast(pl.Float32).to_numpy())
        return found


@dataclass(frozen=True)
class Date(Column):
    """A day: its place between two public days, from −1 to 1, and its season (sine and cosine).

    Args:
        first, last: the days; by default 1950 to 2049. form: how days are written, as for
            ``strptime``; by default YYYY-MM-DD, with or without a time behind it.
    """

    first: date = CENTURY[0]
    last: date = CENTURY[1]
    form: str | None = None
    kind: ClassVar[str] = "date"

    def __post_init__(self) -> None:
        if not self.first < self.last:
            raise UndeclaredError(
                f"a range of days is two days, the earlier one first, not "
                f"[{self.first}, {self.last}]"
            )

    @property
    def bound(self) -> float:
        return math.sqrt(2.0)

    def _titles(self, name: str) -> tuple[str, ...]:
        return (name, f"{name} sine of the year", f"{name} cosine of the year")

    def to_value(self) -> Any:
        found: dict[str, Any] = {"date": [self.first.isoformat(), self.last.isoformat()]}
        if self.form is not None:
            found["format"] = self.form
        return _table(found, self)

    def _features(
        self, where: str, name: str, entries: pl.Series, absent: pl.Series, outside: Outside
    ) -> list[NDArray[np.float32]]:
        if entries.dtype == pl.Date or entries.dtype == pl.Datetime:
            days = entries.cast(pl.Date)
        elif self.form is None:
            words = _words(entries).str.slice(0, 10)
            days = words.str.to_date("%Y-%m-%d", strict=False)
        else:
            days = _words(entries).str.to_date(self.form, strict=False)
        wrong = days.is_null() & ~absent
        if wrong.any():
            row = int(wrong.arg_true()[0])
            raise UndeclaredError(
                f"{where}: found {entries[row]!r} in column {name}, expected a day such as "
                f"{self.first:{self.form or '%Y-%m-%d'}}: say how days are written with "
                f'{name} = {{date = ["{self.first}", "{self.last}"], format = "%d.%m.%Y"}}'
            )
        beyond = ((days < self.first) | (days > self.last)).fill_null(False)
        outside.note(outside.clipped, name, int(beyond.sum()))
        number = (days - EPOCH).dt.total_days().cast(pl.Float64).to_numpy()
        low, high = ((day - EPOCH).days for day in (self.first, self.last))
        place = np.clip((2 * number - low - high) / (high - low), -1.0, 1.0)
        angle = 2 * math.pi * number / YEAR
        found = [place, np.sin(angle), np.cos(angle)]
        return [np.where(np.isnan(part), 0.0, part).astype(np.float32) for part in found]


@dataclass(frozen=True)
class Dropped(Column):
    """No feature."""

    kind: ClassVar[str] = "drop"

    @property
    def bound(self) -> float:
        return 0.0

    def _titles(self, name: str) -> tuple[str, ...]:
        return ()

    def to_value(self) -> Any:
        return "drop"

    def _features(
        self, where: str, name: str, entries: pl.Series, absent: pl.Series, outside: Outside
    ) -> list[NDArray[np.float32]]:
        return []


def as_numbers(
    where: str, name: str, entries: pl.Series, absent: pl.Series, decimal: str
) -> NDArray[np.float64]:
    """Entries as float64, NaN where absent.

    Raises:
        UndeclaredError: an entry that is no finite number.
    """
    if entries.dtype == pl.String:
        text = entries.str.strip_chars()
        if decimal != ".":
            text = text.str.replace_all(decimal, ".", literal=True)
        values = text.cast(pl.Float64, strict=False)
    else:
        values = entries.cast(pl.Float64, strict=False)
    wrong = ~values.is_finite().fill_null(False) & ~absent
    if wrong.any():
        row = int(wrong.arg_true()[0])
        raise UndeclaredError(
            f"{where}: found {entries[row]!r} in column {name}, expected a finite number"
        )
    numbers: NDArray[np.float64] = values.to_numpy().astype(np.float64)
    hidden = absent.to_numpy()
    return np.where(hidden, np.nan, numbers) if hidden.any() else numbers


def _absent(entries: pl.Series, codes: tuple[float, ...]) -> pl.Series:
    absent = entries.is_null()
    if entries.dtype == pl.String:
        absent = absent | entries.str.strip_chars().str.to_lowercase().is_in(list(MISSING_WORDS))
    elif entries.dtype.is_float():
        absent = absent | entries.is_nan().fill_null(False)
    if codes:
        numbers = (
            entries.str.strip_chars().cast(pl.Float64, strict=False)
            if entries.dtype == pl.String
            else entries.cast(pl.Float64, strict=False)
        )
        absent = absent | numbers.is_in(list(codes))
    return absent.fill_null(True)


def _words(entries: pl.Series) -> pl.Series:
    text = entries if entries.dtype == pl.String else entries.cast(pl.String)
    return text.str.strip_chars()


def _table(found: dict[str, Any], column: Column) -> dict[str, Any]:
    if column.missing != "refuse":
        found["missing"] = column.missing
    if column.codes:
        found["codes"] = list(column.codes)
    return found
