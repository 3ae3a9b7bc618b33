"""A look at a column of a private table, for its owner alone: ``forethought init`` takes it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import polars as pl

# What people write where there is no value.
MISSING_WORDS = ("", "?", "-", "na", "n/a", "nan", "null", "none", "missing", ".", "#n/a")
MOST_WORDS = 30
_FORMS = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%Y%m%d")
_ENOUGH = 0.95


@dataclass
class Seen:
    """What one column holds, gathered piece by piece."""

    rows: int = 0
    missing: int = 0
    numbers: int = 0
    low: float = math.inf
    second: float = math.inf
    high: float = -math.inf
    whole: bool = True
    words: set[str] = field(default_factory=set)
    many: bool = False
    days: dict[str, int] = field(default_factory=dict)
    years: tuple[int, int] = (9999, 1)

    def add(self, entries: pl.Series, decimal: str) -> None:
        """Look at a piece of the column."""
        self.rows += len(entries)
        text = entries.cast(pl.String).str.strip_chars()
        absent = text.is_null() | text.str.to_lowercase().is_in(list(MISSING_WORDS))
        self.missing += int(absent.sum())
        present = text.filter(~absent)
        if not self.many:
            self.words |= set(present.unique().to_list())
            self.many = len(self.words) > 20 * MOST_WORDS
        plain = present.str.replace_all(decimal, ".", literal=True) if decimal != "." else present
        numbers = plain.cast(pl.Float64, strict=False).drop_nulls()
        numbers = numbers.filter(numbers.is_finite())
        self.numbers += len(numbers)
        if len(numbers):
            kinds = numbers.unique().sort()
            lows = sorted({self.low, self.second, *kinds[:2].to_list()})
            self.low, self.second = lows[0], lows[1] if len(lows) > 1 else math.inf
            self.high = max(self.high, float(kinds[-1]))
            self.whole &= bool((kinds == kinds.round()).all())
        for form in _FORMS:
            days = present.str.slice(0, 10).str.to_date(form, strict=False).drop_nulls()
            if len(days):
                self.days[form] = self.days.get(form, 0) + len(days)
                found = days.dt.year()
                first, last = int(found.min()), int(found.max())  # type: ignore[arg-type]
                self.years = (min(self.years[0], first), max(self.years[1], last))

    @property
    def present(self) -> int:
        """How many entries are not missing."""
        return self.rows - self.missing

    @property
    def several(self) -> bool:
        """Whether there are more different entries than categories should be."""
        return self.many or len(self.words) > MOST_WORDS

    def mostly(self, count: int) -> bool:
        """Whether so many entries are nearly all that are not missing."""
        return count >= _ENOUGH * self.present
