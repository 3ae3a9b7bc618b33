"""The statistics that can be released beside training; each is an immutable value.

A kind of statistic defines its tally, a vector of whole numbers that is summed over all records
without rounding; the distance by which one record moves it; and the results computed from the tally
with noise. Columns, ranges, categories and bins are declared: none of them is taken from the
records.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from forethought.statistics.table import Flags, TableRows, spelled, word
from forethought.values.checks import one_of, real, reals, settle, whole
from forethought.values.mechanism import Adjacency
from forethought.values.serialisation import plain

Array = NDArray[np.float64]
# A number in [−1, 1] is rounded to a multiple of 1/STEPS, each record by itself.
STEPS = 1 << 20
MOST_CATEGORIES = 10_000
# The two-sided 95 % quantile of the standard normal distribution.
NORMAL = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """One number of a result, with two 95 % intervals.

    Args:
        name: name of the number, such as a category.
        value: the number with noise.
        low, high: interval for the exact number of these records; it covers the noise only.
        sampled_low, sampled_high: interval for the population from which the records are drawn
            independently; it covers noise and sampling.
    """

    name: str
    value: float
    low: float
    high: float
    sampled_low: float
    sampled_high: float


Condition = str | tuple[str, ...] | tuple[float, float]


def _condition(name: str, value: Any) -> Condition:
    if isinstance(value, str):
        return value
    parts = tuple(value) if isinstance(value, list | tuple | np.ndarray) else ()
    if parts and all(isinstance(part, str) for part in parts):
        return parts
    if len(parts) == 2 and not any(isinstance(part, str) for part in parts):
        low, high = (real(f"where {name}", part) for part in parts)
        if low < high:
            return low, high
    raise ValueError(
        f'where {name} = {value!r}: a word, several words as ["A", "B"], or numbers from and below '
        'as [18, 65]; for a single number its word, as "1"'
    )


def _conditions(where: Any) -> tuple[tuple[str, Condition], ...]:
    pairs = tuple(where.items()) if isinstance(where, Mapping) else where
    if not isinstance(pairs, list | tuple) or any(
        not isinstance(pair, list | tuple) or len(pair) != 2 for pair in pairs
    ):
        raise ValueError(f'where = {where!r}: declare conditions by column, such as {{"sex": "F"}}')
    named = ((str(name), _condition(name, value)) for name, value in pairs)
    found = tuple(sorted(named, key=lambda one: one[0]))
    for (name, _), (after, _) in pairwise(found):
        if name == after:
            raise ValueError(f"where has two conditions on {name!r}: give each column one")
    return found


@dataclass(frozen=True, kw_only=True)
class Statistic(ABC):
    """One statistic of declared columns.

    Args:
        name: name of the release, unique in a request; default: kind, columns and filter.
        where: a filter, column → a word, several words, or numbers [from, below); only records that
            meet all of its conditions count.
        missing: "refuse" a record without an entry, or "skip" it, so that it does not count.
        weight: relative share of the request's budget.
        noise_multiplier: noise multiplier of the statistic, instead of a share of a budget.

    Raises:
        ValueError, TypeError: a wrong declaration.
    """

    name: str = ""
    where: Any = ()
    missing: Literal["refuse", "skip"] = "refuse"
    weight: float = 1.0
    noise_multiplier: float | None = None
    #: Name of the kind in a ``[[statistics]]`` section.
    kind: ClassVar[str]
    #: Unit of the expected error; "{column}" is replaced by the column's name.
    unit: ClassVar[str]
    #: The arguments that name columns.
    reads: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        one_of("missing", self.missing, ("refuse", "skip"))
        settle(self, where=_conditions(self.where), weight=real("weight", self.weight, above=0))
        if (sigma := self.noise_multiplier) is not None:
            settle(self, noise_multiplier=real("noise_multiplier", sigma, above=0))
        for what in self.reads:
            if not isinstance(getattr(self, what), str) or not getattr(self, what):
                raise ValueError(f"{what} is the name of a column, not {getattr(self, what)!r}")
        self._check()
        if not isinstance(self.name, str) or not (self.name or self.called).isprintable():
            raise ValueError(f"the name of a statistic is one line of text, not {self.name!r}")
        settle(self, name=self.name or self.called)

    @property
    def called(self) -> str:
        """Kind, columns and filter in words."""
        about = f"{self.kind} of {', '.join(self.columns)}" if self.columns else self.kind
        shown = [
            f"{name} {value if isinstance(value, str) else list(value)}"
            for name, value in self.where
        ]
        return f"{about} where {' and '.join(shown)}" if shown else about

    @property
    def all_count(self) -> bool:
        """True if every record counts; the number of counted records is then public."""
        return not self.where and (self.missing == "refuse" or not self.reads)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the statistic, without those of ``where``."""
        return tuple(getattr(self, what) for what in self.reads)

    @property
    def size(self) -> int:
        """Length of the tally."""
        return 1

    @abstractmethod
    def reach(self, adjacency: Adjacency) -> float:
        """The distance (L2 norm) by which one record can move the tally.

        Under add-or-remove and zero-out it is the largest norm of a record's vector. Under
        replace-one it is the largest distance of two such vectors, or of one and the zero vector of
        a record that a filter leaves out.
        """

    @property
    def entry(self) -> int:
        """The most by which one record changes a single number of the tally, in absolute value."""
        return math.ceil(self.reach("zero-out"))

    @abstractmethod
    def tally(self, rows: TableRows) -> Array:
        """The sum of the records' vectors: whole numbers, exact in float64, shape (size,)."""

    @abstractmethod
    def estimates(self, noised: Array, std: float, examples: int) -> tuple[Estimate, ...]:
        """The result, computed from a tally with noise.

        Args:
            noised: the tally with noise, shape (size,).
            std: standard deviation of the noise on each of its numbers.
            examples: number of records, which is public.
        """

    @abstractmethod
    def expected(self, std: float, examples: int) -> float:
        """The error, in :attr:`unit`, below which all of the result's errors lie with 95 %.

        With a filter, it is the error of a result in which all records count. For curves and AUC it
        is that of synthetic records, which the kind's docstring describes; otherwise it is exact.
        """

    def _check(self) -> None:  # noqa: B027 (most kinds have something to check, a count has not)
        """Check the declaration and normalise its values."""

    def kept(self, rows: TableRows) -> Flags:
        """True for each record that meets ``where``; shape (records,)."""
        found = np.ones(len(rows), dtype=bool)
        for name, value in self.where:
            if isinstance(value, tuple) and not isinstance(value[0], str):
                numbers = rows.numbers(name, self.missing)
                found &= (numbers >= value[0]) & (numbers < value[1])
            else:
                words = [spelled(one) for one in ((value,) if isinstance(value, str) else value)]
                found &= np.isin(rows.words(name, self.missing).astype(str), words)
        return found

    def to_dict(self) -> dict[str, Any]:
        """The statistic as a ``[[statistics]]`` section; :func:`statistic` is the inverse."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        values["where"] = dict(self.where)
        return {"kind": self.kind, **plain({k: v for k, v in values.items() if v is not None})}


def ranged(value: Any) -> tuple[float, float]:
    if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str) or len(value) != 2:
        raise ValueError(
            f"range = {value!r}: declare it as [lowest, highest], if the column is of numbers"
        )
    low, high = reals("range", value)
    if not low < high:
        raise ValueError(f"range is two numbers, the smaller one first, not [{low:g}, {high:g}]")
    # Beyond these widths a record's whole number would be NaN, which no noise hides.
    real("the width of range", high - low, above=1e-300)
    return low, high


@dataclass(frozen=True, kw_only=True)
class OfColumn(Statistic):
    """A statistic of one column."""

    column: str = ""
    reads: ClassVar[tuple[str, ...]] = ("column",)


@dataclass(frozen=True, kw_only=True)
class OfRange(OfColumn):
    """A statistic of the numbers of one column, within a declared range."""

    range: Any = None

    def _check(self) -> None:
        settle(self, range=ranged(self.range))


def means(share: float, noise: float, count: float = math.inf, of_count: float = 0.0) -> Array:
    """The ends of the means m in [−1, 1] that fit a released mean of numbers in [−1, 1].

    They are those whose distance |share − m| is within 95 % of the chance of both kinds of noise,
    and of drawing ``count`` records with the largest variance 1 − m² of that mean: the intervals of
    Wilson (1927) for a share, and of Fieller (1954) for a ratio.

    Args:
        share: the released mean. noise: standard deviation of its noise.
        count: number of records that it is a mean of; inf: of the mean of these records.
        of_count: standard deviation of the noise on ``count``, as a share of it.

    Returns:
        The lower and the upper end, shape (2,).
    """
    # A mean within the ends is nearer to every m, so moving it there keeps more of them.
    share = max(-1.0, min(1.0, share))
    near, counted = (one * one for one in (NORMAL * noise, NORMAL * of_count))
    drawn = NORMAL**2 / count
    scale = 1 - counted + drawn
    if counted >= 1:  # the count may be 0
        return np.array([-1.0, 1.0])
    off = near * scale + counted * (share**2 - drawn) + drawn * (1 - share**2) + drawn**2
    reach = math.sqrt(max(0.0, off))
    return np.clip([(share - reach) / scale, (share + reach) / scale], -1, 1)


def _middle(low: float, high: float) -> tuple[float, float]:
    """Middle and half width of a range."""
    return low / 2 + high / 2, high / 2 - low / 2


def _summed(
    name: str, value: float, std: float, examples: int, low: float = 0.0, high: float = 1.0
) -> Estimate:
    """A sum, with normal noise, over all ``examples`` of numbers from ``low`` to ``high``."""
    middle, half = _middle(low, high)
    far = means((value / examples - middle) / half, std / half / examples, examples)
    far = examples * (middle + half * far)
    ends = value - NORMAL * std, value + NORMAL * std
    least, most = min(ends[0], far[0]), max(ends[1], far[1])
    ends = np.clip([*ends, least, most], examples * low, examples * high)
    return Estimate(name, value, *map(float, ends))


@dataclass(frozen=True, kw_only=True)
class Count(Statistic):
    """The number of records for which ``where`` holds."""

    kind: ClassVar[str] = "count"
    unit: ClassVar[str] = "records"
    reads: ClassVar[tuple[str, ...]] = ()

    def reach(self, adjacency: Adjacency) -> float:
        return 1.0

    def tally(self, rows: TableRows) -> Array:
        return np.array([float(self.kept(rows).sum())])

    def estimates(self, noised: Array, std: float, examples: int) -> tuple[Estimate, ...]:
        return (_summed(self.name, float(noised[0]), std, examples),)

    def expected(self, std: float, examples: int) -> float:
        return NORMAL * std


@dataclass(frozen=True, kw_only=True)
class Accuracy(Statistic):
    """The share of records whose prediction equals their label.

    Args:
        prediction, label: columns of words or whole numbers.
    """

    prediction: str = "prediction"
    label: str = "label"
    kind: ClassVar[str] = "accuracy"
    unit: ClassVar[str] = "share of the records"
    reads: ClassVar[tuple[str, ...]] = ("prediction", "label")

    def _check(self) -> None:
        if not self.all_count:
            raise ValueError(
                'accuracy is over all records: without where, and with missing = "refuse"'
            )

    def reach(self, adjacency: Adjacency) -> float:
        return 1.0

    def tally(self, rows: TableRows) -> Array:
        found = [rows.words(name, self.missing) for name in self.columns]
        return np.array([float((found[0] == found[1]).sum())])

    def estimates(self, noised: Array, std: float, examples: int) -> tuple[Estimate, ...]:
        name, *hits = astuple(_summed(self.name, float(noised[0]), std, examples))
        return (Estimate(name, *(one / examples for one in hits)),)

    def expected(self, std: float, examples: int) -> float:
        return NORMAL * std / examples


@dataclass(frozen=True, kw_only=True)
class Sum(OfRange):
    """The sum of a column; numbers beyond the range count as its ends.

    Args:
        column: a column of numbers.
        range: lowest and highest number, declared.
    """

    kind: ClassVar[str] = "sum"
    unit: ClassVar[str] = "{column}"

    @property
    def _step(self) -> float:
        return float(max(map(abs, self.range))) / STEPS

    def reach(self, adjacency: Adjacency) -> float:
        low, high = (float(np.rint(end / self._step)) for end in self.range)
        if adjacency == "replace-one":
            return max(high, 0.0) - min(low, 0.0)
        return max(abs(low), abs(high))

    def tally(self, rows: TableRows) -> Array:
        numbers = rows.numbers(self.column, self.missing)[self.kept(rows)]
        steps = np.rint(np.clip(numbers, *self.range) / self._step)
        return np.array([steps[~np.isnan(steps)].sum()])

    def estimates(self, noised: Array, std: float, examples: int) -> tuple[Estimate, ...]:
        # A record that a filter leaves out adds 0.
        low, high = min(self.range[0], 0.0), max(self.range[1], 0.0)
        value, std = float(noised[0]) * self._step, std * self._step
        return (_summed(self.name, value, std, examples, low, high),)

    def expected(self, std: float, examples: int) -> float:
        return NORMAL * std * self._step


@dataclass(frozen=True, kw_only=True)
class Mean(OfRange):
    """The mean of a column; numbers beyond the range count as its ends.

    If every record counts, only the sum around the middle of the range is released with noise.
    Otherwise the number of counted records is released with noise too, and the mean is the ratio.

    Args:
        column: a column of numbers.
        range: lowest and highest number, declared.
    """

    kind: ClassVar[str] = "mean"
    unit: ClassVar[str] = "{column}"

    @property
    def size(self) -> int:
        return 1 if self.all_count else 2

    def reach(self, adjacency: Adjacency) -> float:
        own = float(STEPS) if self.all_count else math.hypot(STEPS, STEPS // 2)
        # Two records differ only in the first number, by at most 2·STEPS; a record and the zero
        # vector differ by at most `own`.
        return max(own, 2.0 * STEPS) if adjacency == "replace-one" else own

    @property
    def entry(self) -> int:
        return STEPS

    def tally(self, rows: TableRows) -> Array:
        middle, half = _middle(*self.range)
        numbers = rows.numbers(self.column, self.missing)[self.kept(rows)]
        numbers = numbers[~np.isnan(numbers)]
        steps = np.rint((np.clip(numbers, *self.range) - middle) / half * STEPS)
        total = steps.clip(-STEPS, STEPS).sum()
        return np.array([total, len(numbers) * (STEPS // 2)])[: self.size]

    def estimates(self, noised: Array, std: float, examples: int) -> tuple[Estimate, ...]:
        middle, half = _middle(*self.range)
        count, off = float(examples), 0.0
        if not self.all_count:
            count = max(1.0, 2 * float(noised[1]) / STEPS)
            off = 2 * std / STEPS / count
        share, spread = float(noised[0]) / STEPS / count, std / STEPS / count
        value = middle + half * max(-1.0, min(1.0, share))
        near, far = means(share, spread, math.inf, off), means(share, spread, count, off)
        return (Estimate(self.name, value, *map(float, middle + half * np.append(near, far))),)

    def expected(self, std: float, examples: int) -> float:
        # With a filter, this is the error of a mean at the middle of the range over all records.
        return NORMAL * _middle(*self.range)[1] * std / STEPS / examples


@dataclass(frozen=True, kw_only=True)
class Histogram(OfColumn):
    """Numbers of records by category, or by bins of equal width.

    Args:
        column: a column of words or numbers.
        categories: the words that are counted; "1", "1.0" and "true" are the same word.
        other: True counts all other words together.
        range: lowest and highest number, divided into ``bins``; numbers beyond it count in the
            first and the last bin. A histogram has categories or a range.
        bins: number of bins of a range.
    """

    categories: Any = ()
    other: bool = False
    range: Any = None
    bins: int = 10
    kind: ClassVar[str] = "histogram"
    unit: ClassVar[str] = "records"

    def _check(self) -> None:
        if isinstance(self.categories, str) or not isinstance(self.categories, Iterable):
            raise ValueError(f"categories = {self.categories!r}: declare them as a list of words")
        words = tuple(map(word, self.categories))
        if not isinstance(self.other, bool | np.bool_):
            raise TypeError(f"other must be true or false, not {self.other!r}")
        settle(self, categories=words, other=bool(self.other))
        if bool(words) == (self.range is not None):
            raise ValueError("a histogram has either categories or a range with bins")
        if self.bins != Histogram.bins if words else self.other:
            raise ValueError("other= goes with categories, bins= goes with a range: drop it")
        if len(set(map(spelled, words))) < len(words) or len(words) > MOST_CATEGORIES:
            text = f"categories are at most {MOST_CATEGORIES} different words"
            raise ValueError(f'{text}; "1", "1.0" and "true" are the same one')
        if not all(map(spelled, words)):
            raise ValueError("categories: an empty word stands for a missing entry: drop it")
        if self.range is not None:
            settle(self, range=ranged(self.range))
        whole("bins", self.bins, most=MOST_CATEGORIES)

    @property
    def size(self) -> int:
        return len(self.categories) + self.other if self.categories else self.bins

    def reach(self, adjacency: Adjacency) -> float:
        # A replacement lowers one count by 1 and raises another by 1.
        return math.sqrt(2) if adjacency == "replace-one" and self.size > 1 else 1.0

    @property
    def _names(self) -> tuple[str, ...]:
        if self.categories:
            return (*self.categories, *(["other"] if self.other else []))
        low, high = self.range
        # So many digits show every edge to a hundredth of a bin's width.
        fine = math.log10(max(abs(low), abs(high)) / (high - low) * self.bins) - math.log10(2000)
        edges, digits = np.linspace(low, high, self.bins + 1), min(17, 6 + max(0, math.ceil(fine)))
        return tuple(f"[{a:.{digits}g}, {b:.{digits}g})" for a, b in pairwise(edges))

    def tally(self, rows: TableRows) -> Array:
        kept = self.kept(rows)
        if not self.categories:
            return binned(self, rows, self.column, kept)
        words = rows.words(self.column, self.missing)[kept]
        # Each word is in one bin, the last one if it is not declared; a missing entry, "", in none.
        place = {one: i for i, one in enumerate(map(spelled, self.categories))}
        rest = len(self.categories)
        found = [place.get(one, rest) for one in words if one]
        return np.bincount(found, minlength=rest + 1)[: self.size].astype(np.float64)

    def estimates(self, noised: Array, std: float, examples: int) -> tuple[Estimate, ...]:
        return tuple(
            _summed(name, float(value), std, examples)
            for name, value in zip(self._names, noised, strict=True)
        )

    def expected(self, std: float, examples: int) -> float:
        return std * largest(self.size)


def largest(count: int) -> float:
    """The 95 % quantile of the largest absolute value of ``count`` standard normal numbers."""
    return float(-ndtri(-math.expm1(math.log(0.95) / count) / 2))


def binned(of: Any, rows: TableRows, column: str, kept: Flags) -> Array:
    """Numbers of records in bins of equal width, shape (bins,); NaN is not counted.

    Args:
        of: a statistic with ``range`` and ``bins``.
        kept: the records that are counted, shape (records,).
    """
    numbers, (low, high) = rows.numbers(column, of.missing)[kept], of.range
    inside = np.clip(numbers[~np.isnan(numbers)], low, high)
    near = rows.on_edge(column, low, high, of.bins)
    place = np.floor((inside - low) / (high - low) * of.bins + near).astype(np.int64)
    place = place.clip(0, of.bins - 1)
    return np.bincount(place, minlength=of.bins).astype(np.float64)
