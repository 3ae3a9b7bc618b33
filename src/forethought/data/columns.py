"""Columns as their owner declares them: how each becomes features, without private data."""

from __future__ import annotations

import math
import re
import sys
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import product
from typing import Any, ClassVar, Literal, Self, TypeVar, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.data.basis import Basis, Curves, OnnxNodes
from forethought.data.files import (
    AS_USUAL,
    LABEL_NEEDED,
    NO_ENTRY,
    DataError,
    TableFormat,
    finite,
    spelled,
    written,
)
from forethought.values.checks import reals, settle
from forethought.values.serialisation import Stored, build
from forethought.values.serialisation import entries as fields_of

# A summary of a column of a private table, for its owner only; ``forethought init`` makes it.


# Words that people write where a value is missing.
MISSING_WORDS = ("", "?", "-", "na", "n/a", "nan", "null", "none", "missing", ".", "#n/a")
MOST_WORDS = 30
_FORMS = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%Y%m%d")
_ENOUGH = 0.95
# The number of rows that are checked for repeated values; the mean letters an entry above which a
# column is text; the share of equal neighbours above which a file is sorted by persons; the ratio
# of a high to a middle number above which numbers are skewed; the largest number of different
# numbers that may be codes.
LOOKED, _SENTENCE, _IN_RUNS, _SKEWED, _FEW = 200_000, 40, 0.2, 12.0, 10
_LONGEST = 80  # letters of an entry in a message


@dataclass
class Seen:
    """A summary of one column's content, gathered piece by piece."""

    rows: int = 0
    missing: int = 0
    #: The words that stand for a missing entry, and "" where there is none at all.
    blanks: set[str] = field(default_factory=set)
    numbers: int = 0
    low: float = math.inf
    second: float = math.inf
    high: float = -math.inf
    whole: bool = True
    words: dict[str, int] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    many: bool = False
    days: dict[str, int] = field(default_factory=dict)
    ends: tuple[date, date] = (date.max, date.min)
    length: int = 0
    #: Hashes of the first entries, and the first numbers, of all pieces together.
    kept: pl.Series = field(default_factory=lambda: pl.Series(dtype=pl.UInt64))
    sample: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    rising: bool = True
    last: float = -math.inf

    def add(self, entries: pl.Series, decimal: str) -> None:
        """Add a piece of the column to the summary.

        Args:
            decimal: the decimal separator of the file.
        """
        self.rows += len(entries)
        text = entries.cast(pl.String).str.strip_chars()
        absent = text.is_null() | text.str.to_lowercase().is_in(list(MISSING_WORDS))
        self.missing += int(absent.sum())
        self.blanks |= set(text.filter(absent).fill_null("").unique().to_list())
        present = text.filter(~absent)
        self.length += int(present.str.len_chars().sum())
        if not self.many:
            pairs = pl.DataFrame({"one": written(entries).filter(~absent), "as": present})
            # Of several ways to write a word, one is shown.
            for one, word, count in pairs.group_by("one").agg(pl.min("as"), pl.len()).rows():
                word = self.shown.setdefault(one, word)
                self.words[word] = self.words.get(word, 0) + count
            self.many = len(self.words) > 20 * MOST_WORDS
        self.kept.append(present.head(LOOKED - len(self.kept)).hash())
        numbers = _pointed(present, decimal).drop_nulls()
        numbers = numbers.filter(numbers.is_finite())
        self.numbers += len(numbers)
        if len(numbers):
            kinds = numbers.unique().sort()
            lows = sorted({self.low, self.second, *kinds[:2].to_list()})
            self.low, self.second = lows[0], lows[1] if len(lows) > 1 else math.inf
            self.high = max(self.high, float(kinds[-1]))
            self.whole &= bool((kinds == kinds.round()).all())
            values = numbers.to_numpy()
            self.rising &= bool((np.diff(values, prepend=self.last) > 0).all())
            self.last = float(values[-1])
            self.sample = np.append(self.sample, values[: LOOKED - len(self.sample)])
        for form in _FORMS:
            days = _days(present, form).drop_nulls()
            if len(days):
                self.days[form] = self.days.get(form, 0) + len(days)
                first, last = self.ends
                self.ends = min(first, days.min()), max(last, days.max())  # type: ignore[assignment,type-var]

    @property
    def present(self) -> int:
        """The number of entries that are not missing."""
        return self.rows - self.missing

    @property
    def several(self) -> bool:
        """True if there are more different entries than a column of categories should have."""
        return self.many or len(self.words) > MOST_WORDS

    @property
    def text(self) -> bool:
        """True if the entries are sentences rather than words."""
        return self.length > _SENTENCE * self.present

    @property
    def repeats(self) -> float:
        """The mean number of rows with the same value, among the first rows; 1: all differ."""
        return len(self.kept) / self.kept.n_unique() if len(self.kept) else 1.0

    @property
    def in_runs(self) -> bool:
        """True if rows with the same value stand together more often than by chance.

        In a random order, two neighbours are equal as often as two rows drawn at random: Σ p².
        """
        looked, same = len(self.kept), int((self.kept == self.kept.shift(1)).sum())
        shares = self.kept.value_counts()["count"].to_numpy() / max(1, looked)
        return same > _IN_RUNS * looked and same > 5 * float(np.square(shares).sum()) * looked

    @property
    def step(self) -> int:
        """The greatest common divisor of the whole numbers among the first rows; else 1."""
        whole = self.whole and len(self.sample)
        return int(np.gcd.reduce(self.sample.astype(np.int64))) if whole else 1

    @property
    def running(self) -> bool:
        """True if the column looks like a running number.

        Its whole numbers rise from row to row; or all differ, although they lie so close together
        that random numbers would repeat (in 99 of 100 tables).
        """
        if not self.whole or not self.mostly(self.numbers):
            return False
        close = 10 * (self.high - self.low) <= len(self.kept) ** 2
        return self.present > 5 and (self.rising or (self.repeats == 1 and close))

    @property
    def skewed(self) -> bool:
        """True if most numbers are small and a few many times larger, as with amounts."""
        if not len(self.sample) or self.low < 0:
            return False
        middle, high = np.quantile(self.sample - self.low, [0.5, 0.99])
        return bool(high > max(0, _SKEWED * middle) and len(np.unique(self.sample)) > MOST_WORDS)

    def mostly(self, count: int) -> bool:
        """True if ``count`` entries are nearly all that are not missing."""
        return count >= _ENOUGH * self.present


# Kinds of columns, whose encodings depend on no private data.
#
# A number is scaled from its declared range to [−1, 1] and clipped to it. A category becomes one
# feature for each declared word. A date becomes a position in its range and a season. The meaning
# of a missing entry is declared as well. So no encoding depends on a record, and the norm of an
# encoded record has a bound that is known beforehand (:attr:`Column.bound`).
#
# The class of a kind of column holds all that depends on the kind; :func:`register` adds it to
# :data:`KINDS`. docs/adding_a_column.md shows an example from beginning to end.


Common = Mapping[str, Any]  # the options that all kinds of columns have: ``missing`` and ``codes``
Floats = NDArray[np.float32]
Features = list[Floats]
Drawn = tuple[NDArray[Any], pl.Series]
Missing = Literal["refuse", "middle", "category"]
POLICIES: tuple[str, ...] = (*get_args(Missing), "drop-column")
MOST_CATEGORIES = 1000
# Dates are counted in days from here.
EPOCH = date(2000, 1, 1)
CENTURY = (date(1950, 1, 1), date(2049, 12, 31))
YEAR = 365.2425
# Numbers that often stand for a missing one; and the ranges that a quantity can have in any file.
CODES = (-9.0, -99.0, -999.0, -9999.0)
_KNOWN = {"age": [0, 120], "bmi": [10, 80]}
# Names of columns that carry no usable value, and why.
_NAMES = (
    (
        re.compile(r"(^|_)(zip|zipcode|postcode|postal|plz|cp)($|_|code)", re.IGNORECASE),
        "a postal code? As a number it says nothing: drop it, or list regions as categories",
    ),
    (
        re.compile(r"(^|_)(id|ids|mrn|ssn|uuid|guid|nr|number|identifier)$", re.IGNORECASE),
        "an identifier? It belongs to one person; to keep a person's records on one side of the "
        "split, say split_by under [data]",
    ),
)


class UndeclaredError(DataError):
    """A declaration that cannot be used, or an entry that no declaration covers."""


class SuspiciousDataWarning(UserWarning):
    """Data that can be used, but probably should not be used as they are."""


@dataclass
class Outside:
    """Counts of entries that do not fit their declaration, for the operator only.

    Args:
        clipped: column → number of entries outside its range.
        unknown: column → number of entries that were not declared.
        first: number of the first row of the piece that is being read, for messages.
    """

    clipped: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    first: int = 0

    def tell(self, where: object, rows: int, remedy: str) -> None:
        """Warn the owner, on their machine, where the declarations do not fit a table."""
        kinds = {
            "outside the declared range, clipped to it": self.clipped,
            "words that are not declared": self.unknown,
        }
        found = [
            f"{name}: {count} of {rows} {what}"
            for what, kind in kinds.items()
            for name, count in (+kind).items()
        ]
        if found:
            warnings.warn(
                f"{where}: {'; '.join(found[:10])}. For your eyes only; {remedy}",
                SuspiciousDataWarning,
                stacklevel=5,
            )


@dataclass(frozen=True)
class Written:
    """A column in an ONNX graph, by the names of its tensors; each has one value a row.

    Args:
        features: float32, without the feature of a missing entry.
        absent: boolean, true where the entry is missing; None: no entry can be missing.
        refused: boolean, one for each reason to refuse an entry; true where it is refused.
    """

    features: tuple[str, ...] = ()
    absent: str | None = None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column(ABC):
    """One column of a table; its subclasses below say how it is read.

    Args:
        missing: meaning of a missing entry: an error ("refuse"), the middle of the range, where
            all features are 0 ("middle"), or a category of its own, with one more feature that is
            1 where the entry is missing ("category").
        codes: numbers that stand for a missing entry, such as −999.
    """

    missing: Missing = "refuse"
    codes: tuple[float, ...] = ()
    #: Name of the kind, and the key in a job file that declares a column of it.
    kind: ClassVar[str]
    #: The way a job file writes it, for messages.
    form: ClassVar[str]
    #: Largest Euclidean norm that the features of an entry can have.
    bound: ClassVar[float]
    #: Mean square norm of the features, if entries are spread evenly over the declared values.
    usual_square: ClassVar[float]
    #: True if the first feature is a position in a declared range, −1 to 1, which a basis can take.
    ranged: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def declared(cls, value: Any, options: dict[str, Any], common: Common, decimal: str) -> Self:
        """The column of a declaration in a job file.

        Args:
            value: the value of the key :attr:`kind`; True where the declaration is that word alone.
            options: the other keys; the method removes those that it uses.
            common: ``missing`` and ``codes``.
            decimal: the decimal separator of the file.

        Raises:
            TypeError, ValueError: the declaration has another form.
            UndeclaredError: numbers or words out of range.
        """

    @classmethod
    @abstractmethod
    def proposed(cls, name: str, seen: Seen) -> tuple[Any, str] | None:
        """The declaration that ``forethought init`` writes, and its reason; None: another kind."""

    @abstractmethod
    def describe(self) -> str:
        """A description of an entry, in words."""

    def titles(self, name: str) -> tuple[str, ...]:
        """Names of the features that the column becomes."""
        own = self._titles(name)
        return (*own, f"{name} missing") if own and self.missing == "category" else own

    def absent(self, entries: pl.Series, decimal: str = ".") -> pl.Series:
        """True for each entry that counts as missing.

        Args:
            decimal: the decimal separator, where entries are compared with ``codes``.
        """
        absent = entries.is_null()
        if entries.dtype == pl.String:
            words = entries.str.strip_chars().str.to_lowercase()
            absent = absent | words.is_in(list(MISSING_WORDS))
        elif entries.dtype.is_float():
            absent = absent | entries.is_nan().fill_null(False)
        if self.codes:
            coded = _pointed(entries, decimal).is_in(self._coded)
            # Text that is no number is no code; the encoding of the entry refuses it.
            absent = absent | coded.fill_null(False)
        return absent.fill_null(True)

    @property
    def _coded(self) -> list[float]:
        """The codes as they are, and as float32, which is near its code and not equal to it."""
        return [*self.codes, *np.asarray(self.codes, np.float32).tolist()]

    def _titles(self, name: str) -> tuple[str, ...]:
        """Names of the features, without that of a missing entry; by default the column's."""
        return (name,)

    @abstractmethod
    def _features(
        self, where: str, name: str, entries: pl.Series, absent: pl.Series, outside: Outside
    ) -> Features:
        """The features, without that of a missing entry; 0 where ``absent``."""

    def _at_once(self, name: str, entries: pl.Series, outside: Outside) -> Floats | None:
        """The only feature, if every entry is simple enough for a fast path; else None."""
        return None

    @abstractmethod
    def to_value(self) -> Any:
        """The declaration as a job file writes it; :func:`column` reads it back."""

    def to_dict(self) -> Any:
        """The declaration, for an encoder's file."""
        return self.to_value()

    @abstractmethod
    def to_onnx(self, graph: OnnxNodes, name: str) -> Written:
        """The encoding as ONNX, which cannot stop at an invalid entry and marks it instead.

        Inputs are numbers as float64, NaN where missing; words as text without spaces around them;
        days as float64, counted from 2000-01-01.
        """

    @abstractmethod
    def drawn(self, generator: np.random.Generator, count: int) -> Drawn:
        """Random entries, uniform over the declared values, for ONNX and as a table's column."""

    def spread(self, count: int) -> pl.Series:
        """Entries at even distances over the declared values, for a plot; empty if there are none.

        Args:
            count: number of entries of a number or a day; a category gives each word once.
        """
        return pl.Series([], dtype=pl.Float64)

    def _of_number(
        self, graph: OnnxNodes, value: str, *features: str, codes: Sequence[float] = ()
    ) -> Written:
        """Features of a number or a day in ONNX: 0 where it is missing, refused if infinite."""
        absent = graph.add("IsNaN", value)
        for code in codes:
            absent = graph.add("Or", absent, graph.add("Equal", value, graph.constant(code)))
        zero = graph.constant(0.0, np.float32)
        shown = (
            graph.add("Where", absent, zero, graph.cast(feature, np.float32))
            for feature in features
        )
        return Written(tuple(shown), absent, (graph.add("IsInf", value),))

    def encode(
        self, where: str, name: str, entries: pl.Series, first: int, outside: Outside
    ) -> Floats:
        """Features of the column, float32, (entries, features).

        Args:
            where: the file, for messages.
            name: the column's name.
            first: the number of the first entry.
            outside: counts the entries that do not fit the declaration.

        Raises:
            UndeclaredError: an entry that the declaration does not cover; the message names it.
        """
        simple = self._at_once(name, entries, outside)
        if simple is not None:
            return simple[:, None]
        absent = self.absent(entries, getattr(self, "decimal", "."))
        if absent.any() and self.missing == "refuse" and self._titles(name):
            row = first + int(absent.arg_true()[0]) + 1
            raise UndeclaredError(
                f"{where}: found nothing in column {name}, example {row}: give an entry, or train "
                f'with {name} = {{…, missing = "middle"}} (or "category", or "drop")'
            )
        outside.first = first
        features = self._features(where, name, entries, absent, outside)
        if features and self.missing == "category":
            features.append(absent.cast(pl.Float32).to_numpy())
        if not features:
            return np.empty((len(entries), 0), np.float32)
        return np.stack(features, axis=1, dtype=np.float32)


KINDS: dict[str, type[Column]] = {}
_Kind = TypeVar("_Kind", bound=type[Column])


def register(kind: _Kind) -> _Kind:
    """Make a kind of column known to job files, to ``forethought init`` and to exports.

    Raises:
        TypeError: the class lacks a member that every kind needs, or its name is taken.
    """
    wanted = "kind", "form", "bound", "usual_square"
    lacking = sorted(kind.__abstractmethods__) + [one for one in wanted if not hasattr(kind, one)]
    if lacking:
        raise TypeError(f"the kind of column {kind.__name__} does not say {', '.join(lacking)}")
    if KINDS.setdefault(kind.kind, kind) is not kind:
        raise TypeError(f"there is a kind of column {kind.kind!r} already")
    return kind


@register
@dataclass(frozen=True)
class Number(Column):
    """A number with a public range, scaled to [−1, 1] and clipped.

    Args:
        low, high: the range.
        decimal: the decimal separator.
        log: True to scale log(1 + x − low), not x. Without it, amounts and counts, of which most
            are small compared with the range, would lie together at one end.
    """

    low: float = 0.0
    high: float = 1.0
    decimal: str = "."
    log: bool = False
    kind: ClassVar[str] = "range"
    form: ClassVar[str] = '[0, 110] for a range, {range = [10, 80], missing = "middle", log = true}'
    bound: ClassVar[float] = 1.0
    usual_square: ClassVar[float] = 1 / 3
    ranged: ClassVar[bool] = True

    @classmethod
    def declared(cls, value: Any, options: dict[str, Any], common: Common, decimal: str) -> Self:
        low, high = (float(_typed(end, int, float)) for end in value)
        log = _typed(options.pop("log", False), bool)
        return cls(**common, low=low, high=high, decimal=decimal, log=log)

    @classmethod
    def proposed(cls, name: str, seen: Seen) -> tuple[Any, str] | None:
        if not seen.mostly(seen.numbers):
            return None
        low, code = seen.low, None
        if low in CODES and 0 <= seen.second < math.inf:
            low, code = seen.second, seen.low
        known = _KNOWN.get(name.lower())
        value: dict[str, Any] = {"range": known}
        why = "what it can be at all; correct it if you know better"
        if not (known and known[0] <= low and seen.high <= known[1]):
            value = {"range": list(outward(low, seen.high, seen.whole))}
            why = "rounded from the file: declared by you once you have corrected it"
        if seen.skewed and code is None and not known:
            value["log"] = True
            why += "; most are small, so their logarithm is taken"
        if seen.whole and len(seen.words) <= _FEW:
            kinds = ", ".join(f'"{word}"' for word in sorted(seen.words, key=lambda w: (len(w), w)))
            why += f"; codes, not amounts? Then {{categories = [{kinds}]}}"
        if odd := seen.present - seen.numbers:
            why += f"; mend what is no finite number ({odd:,} of the entries): training refuses it"
        if code is not None:
            value |= {"codes": [int(code)], "missing": "middle"}
            why += f"; does {code:g} stand for a missing value?"
        found = _or_missing(value, seen, "middle")
        return found["range"] if set(found) == {"range"} else found, why

    def describe(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"

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
    def scale(self) -> tuple[float, float]:
        """The shift and the divisor that scale the number, or its logarithm, to [−1, 1]."""
        if self.log:
            half = math.log1p(self.high - self.low) / 2
            return half, half
        # Halved before the subtraction, so that a range of any two doubles cannot overflow.
        return self.low / 2 + self.high / 2, self.high / 2 - self.low / 2

    def to_value(self) -> Any:
        return _table({"range": [self.low, self.high]}, self, "log")

    def _features(
        self, where: str, name: str, entries: pl.Series, absent: pl.Series, outside: Outside
    ) -> Features:
        numbers = as_numbers(where, name, entries, absent, self.decimal, outside.first)
        return [np.where(np.isnan(numbers), np.float32(0), self._scaled(name, numbers, outside))]

    def to_onnx(self, graph: OnnxNodes, name: str) -> Written:
        value = graph.input(name, np.float64, f"{self.describe()}; NaN: missing")
        inside = _between(graph, value, self.low, self.high)
        if self.log:
            inside = graph.add("Sub", inside, graph.constant(self.low))
            # Of smaller numbers x, log(1 + x) is x in single precision, and 1 + x is too rounded.
            if self.high - self.low > 1e-8:
                inside = graph.add("Log", graph.add("Add", inside, graph.constant(1.0)))
        middle, half = map(graph.constant, self.scale)
        scaled = graph.add("Div", graph.add("Sub", inside, middle), half)
        scaled = _between(graph, scaled, -1.0, 1.0)
        return self._of_number(graph, value, scaled, codes=self._coded)

    def drawn(self, generator: np.random.Generator, count: int) -> Drawn:
        values = generator.uniform(self.low, self.high, count)
        return values, pl.Series(values)

    def spread(self, count: int) -> pl.Series:
        middle, half = self.scale
        values = middle + half * np.linspace(-1, 1, count)
        values = self.low + np.expm1(values) if self.log else values
        return pl.Series(np.clip(values, self.low, self.high))

    def _at_once(self, name: str, entries: pl.Series, outside: Outside) -> Floats | None:
        if self.decimal != "." or self.codes or self.missing == "category":
            return None
        if entries.dtype != pl.String and not entries.dtype.is_numeric():
            return None
        # For a column of finite numbers; the general method handles all others.
        values = entries.cast(pl.Float64, strict=False)
        known = values.is_finite().fill_null(False).all()
        return self._scaled(name, values.to_numpy(), outside) if known else None

    def _scaled(self, name: str, numbers: NDArray[np.float64], outside: Outside) -> Floats:
        inside = np.clip(numbers, self.low, self.high)
        outside.clipped[name] += int(((inside != numbers) & ~np.isnan(numbers)).sum())
        if self.log:
            inside = np.log1p(inside - self.low)
        middle, half = self.scale
        inside -= middle
        inside /= half
        return np.clip(inside, -1.0, 1.0, out=inside).astype(np.float32)


@register
@dataclass(frozen=True)
class PlainNumber(Column):
    """A number as it is in the file, used only where no columns are declared."""

    kind: ClassVar[str] = "plain"
    form: ClassVar[str] = ""  # a job file cannot declare it
    bound: ClassVar[float] = math.inf
    usual_square: ClassVar[float] = math.inf

    @classmethod
    def declared(cls, value: Any, options: dict[str, Any], common: Common, decimal: str) -> Self:
        return cls()

    @classmethod
    def proposed(cls, name: str, seen: Seen) -> tuple[Any, str] | None:
        return None

    def describe(self) -> str:
        return "a number"

    def to_value(self) -> Any:
        return "plain"

    def _features(
        self, where: str, name: str, entries: pl.Series, absent: pl.Series, outside: Outside
    ) -> Features:
        return [self.encode(where, name, entries, 0, outside)[:, 0]]

    def encode(
        self, where: str, name: str, entries: pl.Series, first: int, outside: Outside
    ) -> Floats:
        values = _pointed(entries, ".")
        if values.null_count():
            row = int(values.is_null().arg_true()[0])
            entry = "" if entries[row] is None else str(entries[row])
            missing = entry.strip().lower() in MISSING_WORDS
            found = f"{_shown(entry)} in column {name}, example {first + row + 1}"
            wanted = f"a number{': fill or drop missing entries beforehand' if missing else ''}"
            raise UndeclaredError.unexpected(where, found, wanted)
        with np.errstate(over="ignore"):
            numbers = values.to_numpy().astype(np.float32)
        finite(where, numbers[:, None], [name], first)
        return numbers[:, None]

    def to_onnx(self, graph: OnnxNodes, name: str) -> Written:
        value = graph.cast(graph.input(name, np.float64, self.describe()), np.float32)
        return self._of_number(graph, value, value)

    def drawn(self, generator: np.random.Generator, count: int) -> Drawn:
        values = generator.uniform(-3.0, 3.0, count)
        return values, pl.Series(values)


@register
@dataclass(frozen=True)
class Category(Column):
    """One of some words; each word has a feature that is 1 where the entry is that word.

    Args:
        words: the declared words; "7", "7.0" and " 7" are one, and so are "1" and "true".
        other: True to give all undeclared words one more feature; else they are refused.
        lenient: True to encode an undeclared word as all zeros instead of refusing it.
    """

    words: tuple[str, ...] = ()
    other: bool = False
    lenient: bool = False
    kind: ClassVar[str] = "categories"
    form: ClassVar[str] = '{categories = ["A", "B"], other = true}'
    bound: ClassVar[float] = 1.0
    usual_square: ClassVar[float] = 1.0

    @classmethod
    def declared(cls, value: Any, options: dict[str, Any], common: Common, decimal: str) -> Self:
        words = tuple(str(_typed(word, str, int, float)).strip() for word in value)
        other, lenient = (_typed(options.pop(n, False), bool) for n in ("other", "lenient"))
        return cls(**common, words=words, other=other, lenient=lenient)

    @classmethod
    def proposed(cls, name: str, seen: Seen) -> tuple[Any, str] | None:
        numbers = seen.mostly(seen.numbers)
        if seen.several or (numbers and len(seen.words) > 2):
            return None
        if seen.text:
            return "drop", "free text, of which nothing is copied into this file"
        words: dict[str, Any] = {"categories": sorted(seen.words)}
        words |= {} if numbers else {"other": True}  # a number besides the two is a mistake
        return _or_missing(words, seen, "category"), "categories found in the file"

    def describe(self) -> str:
        return f"one of {', '.join(self.words)}" + (", or another word" if self.other else "")

    def __post_init__(self) -> None:
        spelled = written(pl.Series(self.words, dtype=pl.String))
        if not self.words or spelled.n_unique() < len(self.words):
            raise UndeclaredError(
                "categories are one or more different words, not "
                f'{list(self.words)!r} ("7" and "7.0" are one)'
            )
        if len(self.words) > MOST_CATEGORIES:
            raise UndeclaredError(
                f"{len(self.words)} categories: at most {MOST_CATEGORIES}; drop a column of names"
            )

    def _titles(self, name: str) -> tuple[str, ...]:
        own = tuple(f"{name}={word}" for word in self.words)
        return (*own, f"{name} other") if self.other else own

    def absent(self, entries: pl.Series, decimal: str = ".") -> pl.Series:
        # A declared word keeps its meaning, even if it usually marks a missing entry.
        declared = _words(entries, self.words).is_in(list(self.words))
        return super().absent(entries, decimal) & ~declared

    def to_value(self) -> Any:
        return _table({"categories": list(self.words)}, self, "other", "lenient")

    def _features(
        self, where: str, name: str, entries: pl.Series, absent: pl.Series, outside: Outside
    ) -> Features:
        words = _words(entries, self.words)
        strange = ~words.is_in(list(self.words)) & ~absent
        outside.unknown[name] += int(strange.sum())
        if strange.any() and not (self.other or self.lenient):
            entry = str(entries[int(strange.arg_true()[0])]).strip()
            raise UndeclaredError(
                f"{where}: found {_shown(entry)} in column {name}, expected one of "
                f"{', '.join(self.words[:20])}: declare it, or write other = true"
            )
        found = [(words == word).cast(pl.Float32).to_numpy() for word in self.words]
        if self.other:
            found.append(strange.cast(pl.Float32).to_numpy())
        return found

    def to_onnx(self, graph: OnnxNodes, name: str) -> Written:
        value = graph.input(name, str, f"{self.describe()}, without spaces around it")
        places = {one: n for n, word in enumerate(self.words) for one in _spellings(word)}
        number = _looked_up(graph, value, places, -1)
        unknown = graph.add("Less", number, graph.constant(0, np.int64))
        # All spellings, since ONNX lower-cases text only where a locale is installed.
        spellings = {
            "".join(letters)
            for word in MISSING_WORDS
            for letters in product(*((letter.lower(), letter.upper()) for letter in word))
        }
        for code in self.codes:
            spellings |= _spellings(str(int(code)) if code.is_integer() else repr(code))
        named = _looked_up(graph, value, dict.fromkeys(sorted(spellings), 1), 0)
        absent = graph.add("And", unknown, graph.cast(named, np.bool_))
        strange = graph.add("And", unknown, graph.add("Not", absent))
        found = [
            graph.cast(graph.add("Equal", number, graph.constant(n, np.int64)), np.float32)
            for n in range(len(self.words))
        ]
        if self.other:
            found.append(graph.cast(strange, np.float32))
        refused = () if self.other or self.lenient else (strange,)
        return Written(tuple(found), absent, refused)

    def drawn(self, generator: np.random.Generator, count: int) -> Drawn:
        words = generator.choice(np.array(self.words, dtype=object), count)
        return words, pl.Series(words.tolist(), dtype=pl.String)

    def spread(self, count: int) -> pl.Series:
        another = "another word"
        while another in self.words:
            another += "…"
        return pl.Series([*self.words, *([another] if self.other else [])], dtype=pl.String)


@register
@dataclass(frozen=True)
class Date(Column):
    """A day: its position between two public days, from −1 to 1, and its season (sine and cosine).

    Args:
        first, last: the days; by default 1950 to 2049.
        written: the format of days, as for ``strptime``; by default YYYY-MM-DD. Behind this and
            the other usual forms of ten characters a time may stand, which is passed over. With
            %y, a day behind the last one is a century older if that lies in the range.
    """

    first: date = CENTURY[0]
    last: date = CENTURY[1]
    written: str | None = None
    kind: ClassVar[str] = "date"
    form: ClassVar[str] = '"date", {date = ["2010-01-01", "2029-12-31"]}'
    bound: ClassVar[float] = math.sqrt(2.0)
    usual_square: ClassVar[float] = 1 / 3 + 1  # the position's, and sine and cosine together
    ranged: ClassVar[bool] = True

    @classmethod
    def declared(cls, value: Any, options: dict[str, Any], common: Common, decimal: str) -> Self:
        first, last = CENTURY if value is True else map(_day, value)
        form = options.pop("format", None)
        form = None if form is None else _typed(form, str)
        return cls(**common, first=first, last=last, written=form)

    @classmethod
    def proposed(cls, name: str, seen: Seen) -> tuple[Any, str] | None:
        for form, count in seen.days.items():
            # A sheet's times of day are all of one day.
            if seen.ends[0] == seen.ends[1] or not seen.mostly(count):
                continue
            if seen.numbers < seen.present or form == "%Y%m%d":
                first, last = (end.year // 10 * 10 for end in seen.ends)
                days = [f"{max(1, first):04}-01-01", f"{last + 9:04}-12-31"]
                day: dict[str, Any] = {"date": days}
                if form != "%Y-%m-%d":
                    day["format"] = form
                why = "days; the decades were taken from the file"
                return _or_missing(day, seen, "middle"), why
        return None

    def describe(self) -> str:
        return f"a day from {self.first} to {self.last}"

    def __post_init__(self) -> None:
        if not self.first < self.last:
            raise UndeclaredError(
                f"a range has the earlier one first, not [{self.first}, {self.last}]"
            )

    def _titles(self, name: str) -> tuple[str, ...]:
        return (name, f"{name} sine of the year", f"{name} cosine of the year")

    def to_value(self) -> Any:
        found: dict[str, Any] = {"date": [self.first.isoformat(), self.last.isoformat()]}
        return _table(found if self.written is None else {**found, "format": self.written}, self)

    def _features(
        self, where: str, name: str, entries: pl.Series, absent: pl.Series, outside: Outside
    ) -> Features:
        if entries.dtype in (pl.Date, pl.Datetime):
            days = entries.dt.date()  # of the clock in its time zone; a cast gives London's
        else:
            form = self.written or _FORMS[0]
            days = _days(written(entries), form)
            if entries.dtype == pl.String:  # the one spelling of a midnight is without its time
                days = days.fill_null(_days(entries.str.strip_chars(), form))
            if "%y" in (self.written or ""):
                # 45 is 2045 to the parser; the declared range may say that it is 1945.
                older = days.dt.offset_by("-100y")
                days = days.zip_with((days <= self.last) | (older < self.first), older)
        wrong = days.is_null() & ~absent
        if wrong.any():
            row = int(wrong.arg_true()[0])
            raise UndeclaredError(
                f"{where}: found {_shown(entries[row])} in column {name}, expected a day such as "
                f"{self.first:{self.written or '%Y-%m-%d'}}: say how days are written with "
                f'{name} = {{date = ["{self.first}", "{self.last}"], format = "%d.%m.%Y"}}'
            )
        beyond = ((days < self.first) | (days > self.last)).fill_null(False)
        outside.clipped[name] += int(beyond.sum())
        number = (days - EPOCH).dt.total_days().cast(pl.Float64).to_numpy()
        low, high = ((day - EPOCH).days for day in (self.first, self.last))
        place = np.clip((2 * number - low - high) / (high - low), -1.0, 1.0)
        angle = 2 * math.pi * number / YEAR
        found = [place, np.sin(angle), np.cos(angle)]
        return [np.where(np.isnan(part), 0.0, part).astype(np.float32) for part in found]

    def to_onnx(self, graph: OnnxNodes, name: str) -> Written:
        about = f"{self.describe()}, as days since {EPOCH}; NaN: missing"
        value = graph.input(name, np.float64, about)
        low, high = (float((day - EPOCH).days) for day in (self.first, self.last))
        twice = graph.add("Mul", value, graph.constant(2.0))
        shifted = graph.add("Sub", twice, graph.constant(low + high))
        place = graph.add("Div", shifted, graph.constant(high - low))
        # Whole years do not change the season, and single precision could not hold them.
        turned = graph.add("Div", value, graph.constant(YEAR))
        of_year = graph.add("Sub", turned, graph.add("Floor", turned))
        angle = graph.add("Mul", of_year, graph.constant(2 * math.pi))
        single, place = graph.cast(angle, np.float32), _between(graph, place, -1.0, 1.0)
        season = graph.add("Sin", single), graph.add("Cos", single)
        return self._of_number(graph, value, place, *season)

    def drawn(self, generator: np.random.Generator, count: int) -> Drawn:
        first, last = ((day - EPOCH).days for day in (self.first, self.last))
        days = generator.integers(first, last, count, endpoint=True)
        return days.astype(np.float64), pl.Series([EPOCH + timedelta(int(day)) for day in days])

    def spread(self, count: int) -> pl.Series:
        first, last = ((day - EPOCH).days for day in (self.first, self.last))
        days = np.linspace(first, last, count).round()
        return pl.Series([EPOCH + timedelta(int(day)) for day in days])


@register
@dataclass(frozen=True)
class Dropped(Column):
    """A column that is left out: it has no features."""

    kind: ClassVar[str] = "drop"
    form: ClassVar[str] = '"drop"'
    bound: ClassVar[float] = 0.0
    usual_square: ClassVar[float] = 0.0

    @classmethod
    def declared(cls, value: Any, options: dict[str, Any], common: Common, decimal: str) -> Self:
        if value is not True:
            raise TypeError(value)
        return cls("category")

    @classmethod
    def proposed(cls, name: str, seen: Seen) -> tuple[Any, str] | None:
        if not seen.present:
            return "drop", "empty"
        if NO_ENTRY.issuperset(seen.words):
            return "drop", f"{next(iter(seen.words))[1:-1]}: no number, word or day"
        if len(seen.words) == 1 and not seen.missing:
            return "drop", "the same in every record"
        if seen.running:
            return "drop", "a different whole number in every record: a running number?"
        return next((("drop", why) for how, why in _NAMES if how.search(name)), None)

    def describe(self) -> str:
        return "anything"

    def _titles(self, name: str) -> tuple[str, ...]:
        return ()

    def to_value(self) -> Any:
        return "drop"

    def _features(
        self, where: str, name: str, entries: pl.Series, absent: pl.Series, outside: Outside
    ) -> Features:
        return []

    def to_onnx(self, graph: OnnxNodes, name: str) -> Written:
        return Written()

    def drawn(self, generator: np.random.Generator, count: int) -> Drawn:
        return np.zeros(count), pl.Series([None] * count)


def column(name: str, value: Any, *, missing: str = "refuse", decimal: str = ".") -> Column:
    """The column that a job file declares.

    Args:
        name: the column's name, for messages.
        value: the declaration; the error lists its forms.
        missing: meaning of a missing entry, if the declaration has none.
        decimal: the decimal separator of the file.

    Raises:
        UndeclaredError: the declaration has none of the forms.
    """
    try:
        return _column(value, missing, decimal)
    except UndeclaredError as error:
        raise UndeclaredError(f"column {name}: {error}") from None
    except (TypeError, ValueError, KeyError):
        raise UndeclaredError(f"column {name} = {value!r}: declare it as {_forms()}") from None


def _forms() -> str:
    *most, last = (kind.form for kind in KINDS.values() if kind.form)
    return f"{', '.join(most)} or {last}; missing is one of {', '.join(POLICIES)}"


def _column(value: Any, missing: str, decimal: str) -> Column:
    options = dict(value) if isinstance(value, Mapping) else {}
    policy = options.pop("missing", missing)
    codes = reals("code", options.pop("codes", ()))
    _require_policy(policy)
    if policy == "drop-column":
        return Dropped("category")
    if isinstance(value, str):
        options = {value: True}
    elif isinstance(value, Sequence):
        text = all(isinstance(entry, str) for entry in value)
        options = {Category.kind if text else Number.kind: value}
    (kind,) = KINDS.keys() & options
    common = {"missing": policy, "codes": codes}
    found = KINDS[kind].declared(options.pop(kind), options, common, decimal)
    if options:
        raise UndeclaredError(f"unknown key {next(iter(options))!r}: the forms are {_forms()}")
    return found


def _require_policy(policy: str, allowed: Sequence[str] = POLICIES) -> None:
    if policy not in allowed:
        raise UndeclaredError(f"missing = {policy!r}: the choice is {', '.join(allowed)}")


def _typed(value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(value)
    return value


def _day(value: Any) -> date:
    if isinstance(value, datetime):  # as TOML has them
        return value.date()
    return value if isinstance(value, date) else date.fromisoformat(value)


def proposal(name: str, seen: Seen) -> tuple[Any, str]:
    """The declaration proposed for a column, from a summary of it, and its reason.

    The kinds are asked in turn; the one that was registered last comes first.
    """
    for kind in reversed(KINDS.values()):
        found = kind.proposed(name, seen)
        if found is not None:
            return found
    unique = len(seen.words) >= seen.present
    return "drop", "different in every record" if unique else "more than thirty words"


def _or_missing(value: dict[str, Any], seen: Seen, policy: str) -> dict[str, Any]:
    return value | {"missing": policy} if seen.missing and "missing" not in value else value


def outward(low: float, high: float, whole: bool) -> tuple[float, float]:
    """A range around the numbers from ``low`` to ``high``, little wider than needed.

    The ends are multiples of a step: the largest of 1, 2, 5 times a power of ten that is at most
    a tenth of ``high − low`` (of whole numbers, at least 1). A range that begins near 0 begins at
    0.
    """
    if high / 2 - low / 2 < np.finfo(np.float64).tiny:  # too narrow to be read
        high = low + max(1.0, math.ulp(low))
        return (int(low), int(high)) if whole else (low, high)
    most = (high - low) / 10
    most = most if math.isfinite(most) else high / 10 - low / 10
    power = 10.0 ** math.floor(math.log10(most))
    step = max(each * power for each in (1.0, 2.0, 5.0) if each * power <= most)
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step) * step, math.ceil(high / step) * step
    if 0 <= first <= 2 * step:
        first = 0.0
    # Rounded, so that a multiple of a fractional step is written without rounding digits.
    digits, most = max(0, -math.floor(math.log10(step))), sys.float_info.max
    first, last = (round(min(max(end, -most), most), digits) for end in (first, last))
    return (int(first), int(last)) if whole or (last >= 10 and step >= 1) else (first, last)


def _between(graph: OnnxNodes, value: str, low: float, high: float) -> str:
    return graph.add("Clip", value, graph.constant(low), graph.constant(high))


def _spellings(word: str) -> set[str]:
    """The usual ways to write a word that are one to :func:`written`."""
    one = spelled(word)
    found = {word, one}
    if re.fullmatch(r"-?\d+", one):
        found |= {f"{one}.0", *(("-0", "-0.0") if one == "0" else ())}
    truth = {"1": "true", "0": "false"}.get(one)
    return found | ({truth, truth.title(), truth.upper()} if truth else set())


def _looked_up(graph: OnnxNodes, value: str, table: dict[str, int], default: int) -> str:
    options: dict[str, Any] = {"keys_strings": list(table), "values_int64s": list(table.values())}
    options["default_int64"] = default
    return graph.add("LabelEncoder", value, domain="ai.onnx.ml", **options)


def as_numbers(
    where: str, name: str, entries: pl.Series, absent: pl.Series, decimal: str, first: int = 0
) -> NDArray[np.float64]:
    """Entries as float64, NaN where absent; ``first`` is the number of the first row.

    Raises:
        UndeclaredError: an entry is no finite number.
    """
    values = _pointed(entries, decimal)
    wrong = ~values.is_finite().fill_null(False) & ~absent
    if wrong.any():
        row = int(wrong.arg_true()[0])
        raise UndeclaredError(
            f"{where}: found {_shown(entries[row])} in column {name}, expected a finite number"
            f"{'' if decimal == '.' else f' with {decimal!r} before its fraction, and no point'} "
            f"(example {first + row + 1})"
        )
    return np.where(absent.to_numpy(), np.nan, values.to_numpy().astype(np.float64))


def _shown(entry: object) -> str:
    """An entry for a message; only the start of a long one."""
    text = repr(entry)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _pointed(entries: pl.Series, decimal: str) -> pl.Series:
    """Entries as Float64; missing where they are no numbers, as days and times are."""
    entries = entries.cast(pl.String) if entries.dtype.is_temporal() else entries
    if entries.dtype == pl.String:
        entries = entries.str.strip_chars()
        if decimal != ".":
            # A point would then be between thousands: 1.234 is no number a little above one.
            entries = entries.str.replace_all(".", "?", literal=True)
            entries = entries.str.replace_all(decimal, ".", literal=True)
    return entries.cast(pl.Float64, strict=False)


def _words(entries: pl.Series, declared: Sequence[str]) -> pl.Series:
    """Entries in one spelling, or as they are declared; missing ones are empty."""
    known = written(pl.Series(declared, dtype=pl.String))
    return written(entries).fill_null("").replace(dict(zip(known, declared, strict=True)))


def _days(words: pl.Series, form: str) -> pl.Series:
    """Words as days, null where they are none; a time may stand behind those of ``_FORMS``.

    A year has all of its digits where the form says so: 1/2/20 is no day of the year 20.
    """
    if form in _FORMS:
        words = words.str.replace(r"(?s)[\sT]+(\d{1,2}(:.*)?)?$", "")
    if "%Y" in form:
        words = words.str.extract(r"(.*\d{8}.*)" if form == "%Y%m%d" else r"(.*\d{4}.*)")
    return words.str.to_date(form, strict=False)


def _table(found: dict[str, Any], column: Column, *flags: str) -> dict[str, Any]:
    found |= {flag: True for flag in flags if getattr(column, flag)}
    if column.missing != "refuse":
        found["missing"] = column.missing
    if column.codes:
        found["codes"] = list(column.codes)
    return found


# From rows of a table to features and targets, in the same way for training and for new records.


@dataclass(frozen=True)
class TableSchema:
    """The owner's declaration of a table, so that no record decides how it is read.

    Args:
        columns: column → its declaration, in the forms of a job file's ``[data.columns]``.
        missing: meaning of a missing entry where a column's declaration has none.
        missing_label: "drop" leaves out rows without a label; each row is decided by itself.
        target_range: lowest and highest target of a regression; targets are scaled to [−1, 1].
        measured: True if a part of the declaration was taken from the private file, as
            ``forethought init`` does; the Statement then says that this is outside the guarantee.
        form: the format of a text table.
        person: the column that names the person of a row. With it, a record is a person, and
            every guarantee is about persons.
        records_per_person: the largest number of rows of a person that are kept.

    Raises:
        DataError: a declaration cannot be used; the message names the column.
    """

    columns: Mapping[str, Any]
    missing: str = "refuse"
    missing_label: Literal["refuse", "drop"] = "refuse"
    target_range: tuple[float, float] | None = None
    measured: bool = False
    form: TableFormat = AS_USUAL
    person: str | None = None
    records_per_person: int = 4

    def __post_init__(self) -> None:
        _require_policy(self.missing, get_args(Missing))
        if not self.columns:
            raise UndeclaredError("[data.columns] declares nothing: name every column in it")
        if self.target_range is not None:
            low, high = map(float, self.target_range)
            try:
                Number(low=low, high=high)
            except UndeclaredError as error:
                raise UndeclaredError(f"target_range: {error}") from None
            settle(self, target_range=(low, high))
        self.parsed()

    def parsed(self) -> dict[str, Column]:
        """The declared columns as :class:`Column` objects, by name."""
        found = {
            name: column(name, value, missing=self.missing, decimal=self.form.decimal)
            for name, value in self.columns.items()
        }
        for name, kind in found.items():
            if not kind.form:
                raise UndeclaredError(f"column {name}: declare it as {_forms()}")
        return found


# A declared range is reported if it is at least so many times wider than the range of its numbers.
WIDER = 4


@dataclass(frozen=True)
class Encoder(Stored):
    """The encoding of a table as features, and the meaning of a model's outputs.

    Args:
        columns: names and kinds of the columns that become features, in order.
        label: the column of the target.
        classes: the labels of the classes, class 0 first; None for a regression. If there are
            several label columns, ``label`` is None and these are the names of the columns.
        multilabel: True if ``classes`` are labels of which a record can have several or none.
        target_range: of a regression whose targets are scaled to [−1, 1]; None: not scaled.
        form: the format of a text table.
        basis: functions of the encoded numbers, which are added as features; None: none.
    """

    SCHEMA: ClassVar[str] = "forethought/encoder/1"
    CALLED: ClassVar[str] = "encoder"
    LATER: ClassVar[tuple[str, ...]] = ("basis",)

    columns: tuple[tuple[str, Column], ...]
    label: str | None = None
    classes: tuple[str, ...] | None = None
    target_range: tuple[float, float] | None = None
    form: TableFormat = AS_USUAL
    multilabel: bool = False
    basis: Basis | Curves | None = None

    @property
    def titles(self) -> tuple[str, ...]:
        """Names of the features."""
        own = tuple(title for name, kind in self.columns for title in kind.titles(name))
        return own if self.basis is None else (*own, *self.basis.titles(own))

    @property
    def spans(self) -> Iterator[tuple[str, Column, slice]]:
        """Name and kind of each column, and the places of its features."""
        at = 0
        for name, kind in self.columns:
            first, at = at, at + len(kind.titles(name))
            yield name, kind, slice(first, at)

    @property
    def numbers(self) -> tuple[int, ...]:
        """Indices of the features that are positions in a declared range."""
        return tuple(span.start for _, kind, span in self.spans if kind.ranged)

    @property
    def bound(self) -> float:
        """Largest Euclidean norm that an encoded record can have."""
        more = 0.0 if self.basis is None else self.basis.bound
        return math.hypot(more, math.sqrt(math.fsum(kind.bound**2 for _, kind in self.columns)))

    @property
    def usual_norm(self) -> float | None:
        """Root mean square norm of records even over the declared values; None: 0 or unbounded."""
        total = math.fsum(kind.usual_square for _, kind in self.columns)
        total += 0.0 if self.basis is None else self.basis.usual_square
        return math.sqrt(total) if 0 < total < math.inf else None

    def too_wide(self) -> tuple[str, ...]:
        """A sentence for each number whose released range is a small part of its declared range."""
        ranges = getattr(self.basis, "ranges", ())
        ranged = [(name, kind) for name, kind in self.columns if kind.ranged]
        found = []
        for (name, kind), (low, high) in zip(ranged, ranges, strict=False):
            if high - low > 2 / WIDER:
                continue
            steps = 2**10  # a power of two, since released ends are multiples of one
            places = [round((end + 1) * steps / 2) for end in (low, high)]
            values = kind.spread(steps + 1)[places].to_list()
            ends = " to ".join(f"{v:.7g}" if isinstance(v, float) else str(v) for v in values)
            found.append(
                f"{name}: {kind.describe()} is declared; most lie from {ends}, "
                "as far as the noise shows: a range nearer to that would do"
            )
        return tuple(found)

    def encode(
        self, frame: pl.DataFrame, where: str, first: int = 0, outside: Outside | None = None
    ) -> Floats:
        """Features, float32, (rows, features).

        Args:
            frame: has the columns by name; other columns are ignored.
            where: the file, for messages.
            first: number of the first row.
            outside: counts the entries that do not fit their declaration.

        Raises:
            DataError: a column is missing, or a declaration does not cover an entry.
        """
        held, form, hint = frame.columns, self.form, ""
        lacking = [name for name, kind in self.columns if name not in held and kind.titles(name)]
        if lacking:
            if any(name in one for name in lacking for one in held):
                hint = (
                    f". Separator {form.separator!r}, encoding {form.encoding!r}, as in training?"
                )
            gone, there = ", ".join(lacking), ", ".join(held[:20])
            raise DataError(f"{where}: missing are the columns {gone}; it has {there}{hint}")
        noted = Outside() if outside is None else outside
        count = sum(len(kind.titles(name)) for name, kind in self.columns)
        features = np.empty((len(frame), count), np.float32)
        for name, kind, span in self.spans:
            if kind.titles(name):
                features[:, span] = kind.encode(where, name, frame[name], first, noted)
        return features if self.basis is None else self.basis.of(features)

    def targets(self, frame: pl.DataFrame, where: str, outside: Outside) -> Floats:
        """Targets of a regression, float32, (rows,); with a range, clipped and scaled to [−1, 1].

        Raises:
            DataError: an entry is missing or no finite number.
        """
        label = self.label or ""
        entries = frame[label]
        absent = Number().absent(entries)
        if absent.any():
            row = int(absent.arg_true()[0])
            raise DataError.unexpected(where, f"no label in example {row + 1}", LABEL_NEEDED)
        values = as_numbers(where, label, entries, absent, self.form.decimal)
        if self.target_range is None:
            return values.astype(np.float32)
        low, high = self.target_range
        return Number(low=low, high=high)._scaled(label, values, outside)

    def restored(self, outputs: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """A regression's outputs in the unit of its targets, clipped to the declared range."""
        values = outputs.astype(np.float64)
        if self.target_range is None:
            return values
        low, high = self.target_range
        middle, half = Number(low=low, high=high).scale
        return np.clip(values * half + middle, low, high)

    def _values(self) -> dict[str, Any]:
        return {"format" if name == "form" else name: v for name, v in fields_of(self).items()}

    @classmethod
    def _keys(cls) -> set[str]:
        return super()._keys() - {"form"} | {"format"}

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> Self:
        form = TableFormat(**values.pop("format"))
        if values["basis"] is not None:
            kind = Curves if "pieces" in values["basis"] else Basis
            values["basis"] = build(kind, values["basis"])
        columns = [
            (name, column(name, value, decimal=form.decimal)) for name, value in values["columns"]
        ]
        for name in ("classes", "target_range"):
            values[name] = None if values[name] is None else tuple(values[name])
        return cls(**{**values, "columns": tuple(columns)}, form=form)
