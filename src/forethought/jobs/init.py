"""A first job file from a look at a table, on its owner's machine, for the owner to correct.

Whatever it writes was taken from private records: the file says so, the job carries
``columns_measured = true``, and a Statement names it, until the owner has put what they know in its
place. Ranges are rounded outward to 1, 2 or 5 times a power of ten.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl

from forethought.data import DataError, TableFormat
from forethought.data.columns import MISSING_WORDS
from forethought.data.reading import Kind, Table, kind_of
from forethought.data.suspicions import require_text
from forethought.jobs.toml import toml_key, toml_value

_MOST_WORDS = 30
_CODES = (-9.0, -99.0, -999.0, -9999.0)
_FORMS = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%Y%m%d")
_ENOUGH = 0.95
# What a quantity can be at all, whoever is in the file.
_KNOWN = {"age": [0, 120], "bmi": [10, 80]}
_NAMES: dict[str, tuple[re.Pattern[str], str]] = {
    "zip": (
        re.compile(r"(^|_)(zip|zipcode|postcode|postal|plz|cp)($|_|code)", re.IGNORECASE),
        "a postal code? As a number it says nothing: drop it, or list regions as categories",
    ),
    "id": (
        re.compile(r"(^|_)(id|ids|mrn|ssn|uuid|guid|nr|number|identifier)$", re.IGNORECASE),
        "an identifier? It belongs to one person; to keep a person's records on one side of the "
        "split, say split_by under [data]",
    ),
}
_HEAD = """\
# Written by forethought init, which read {name} on this machine. Nothing left it.
#
# Ranges and categories below were taken from that file and rounded. That is a use of private
# records which no ε covers. Put in their place what you know without the file (what an age, a dose,
# a ward can be at all), then set columns_measured = false: from then on they are declared by you.
"""


@dataclass
class _Seen:
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
        self.rows += len(entries)
        text = entries.cast(pl.String).str.strip_chars()
        absent = text.is_null() | text.str.to_lowercase().is_in(list(MISSING_WORDS))
        self.missing += int(absent.sum())
        present = text.filter(~absent)
        if not self.many:
            self.words |= set(present.unique().to_list())
            self.many = len(self.words) > 20 * _MOST_WORDS
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
        return self.rows - self.missing


def job_for(path: Path, label: str | Sequence[str] | None = None) -> str:
    """The text of a job file for a table.

    Args:
        path: CSV with any usual separator, Parquet or Excel.
        label: the column to predict, or several labels of 1 and 0; none: the last column, with a
            question.

    Raises:
        DataError: damaged, or no such column.
    """
    kind, form = _form(path)
    seen: dict[str, _Seen] = {}
    for frame in Table(path, kind, form).pieces():
        for name in frame.columns:
            seen.setdefault(name, _Seen()).add(frame[name], form.decimal)
    if len(seen) < 2:
        raise DataError.unexpected(path, f"{len(seen)} columns", "at least two")
    labels = (label,) if isinstance(label, str) else tuple(label or ())
    for each in labels:
        if each not in seen:
            raise DataError.unexpected(
                path, f"the columns {', '.join(seen)}", f"one named {each!r}"
            )
    targets = tuple(dict.fromkeys(labels)) or (list(seen)[-1],)
    question = "" if labels else "  # is this the column to predict?"
    lines = [_HEAD.format(name=path.name), "[data]", f"source = {toml_value(f'{kind}:{path}')}"]
    if len(targets) > 1:
        lines += [f"label = {toml_value(targets)}", 'task = "multilabel"']
    else:
        lines += [f"label = {toml_value(targets[0])}{question}", *_target(seen[targets[0]])]
    for key, value, usual in (
        ("separator", form.separator, ","),
        ("decimal", form.decimal, "."),
        ("encoding", form.encoding, "utf-8"),
    ):
        if value != usual:
            lines.append(f"{key} = {toml_value(value)}")
    lines += ["columns_measured = true", "", "[data.columns]"]
    for name, column in seen.items():
        if name not in targets:
            value, why = _column(name, column)
            lines.append(f"{toml_key(name)} = {toml_value(value)}  # {why}")
    lines += ["", "[budget]", "epsilon = 3.0", ""]
    return "\n".join(lines)


def _target(seen: _Seen) -> list[str]:
    if seen.missing:
        raise DataError(
            f"{seen.missing} records have no label: leave them out of the file, or choose another "
            "label"
        )
    if seen.many or len(seen.words) > _MOST_WORDS:
        if seen.numbers < seen.rows:
            raise DataError(
                "the label holds more than thirty different words: choose another column with "
                "--label"
            )
        low, high = _outward(seen.low, seen.high, seen.whole)
        return ['task = "regression"', f"target_range = {toml_value([low, high])}"]
    words: list[Any] = sorted(seen.words, key=_order)
    if len(words) < 2:
        raise DataError("the label is the same in every record: choose another with --label")
    return [f"classes = {toml_value(words)}  # class 0 first"]


def _order(word: str) -> tuple[int, float, str]:
    try:
        return (0, float(word), word)
    except ValueError:
        return (1, 0.0, word)


def _column(name: str, seen: _Seen) -> tuple[Any, str]:
    """What a job says of a column, and why."""
    if not seen.present:
        return "drop", "empty"
    for pattern, why in _NAMES.values():
        if pattern.search(name):
            return "drop", why
    for form, count in seen.days.items():
        if count >= _ENOUGH * seen.present and (seen.numbers < seen.present or form == "%Y%m%d"):
            first, last = seen.years[0] // 10 * 10, seen.years[1] // 10 * 10 + 9
            day = {"date": [date(first, 1, 1).isoformat(), date(last, 12, 31).isoformat()]}
            if form != "%Y-%m-%d":
                day["format"] = form  # type: ignore[assignment]
            return _with_missing(day, seen, "middle"), "days; the decades were taken from the file"
    if seen.numbers >= _ENOUGH * seen.present:
        return _number(name, seen)
    if seen.many or len(seen.words) > _MOST_WORDS:
        unique = len(seen.words) >= seen.present
        return "drop", "different in every record" if unique else "more than thirty words"
    words = {"categories": sorted(seen.words), "other": True}
    return _with_missing(words, seen, "category"), "categories found in the file"


def _number(name: str, seen: _Seen) -> tuple[Any, str]:
    low, code = seen.low, None
    if low in _CODES and 0 <= seen.second < math.inf:
        low, code = seen.second, seen.low
    if seen.whole and len(seen.words) == seen.present > 50 and not seen.many:
        return "drop", "a different whole number in every record: a running number?"
    known = _KNOWN.get(name.lower())
    if known and known[0] <= low and seen.high <= known[1]:
        value: dict[str, Any] = {"range": known}
        why = "what it can be at all; correct it if you know better"
    else:
        value = {"range": list(_outward(low, seen.high, seen.whole))}
        why = "rounded from the file: declared by you once you have corrected it"
    if code is not None:
        value["codes"] = [int(code)]
        value["missing"] = "middle"
        why += f"; does {code:g} stand for a missing value?"
    found = _with_missing(value, seen, "middle")
    return found["range"] if set(found) == {"range"} else found, why


def _with_missing(value: dict[str, Any], seen: _Seen, policy: str) -> dict[str, Any]:
    return value | {"missing": policy} if seen.missing and "missing" not in value else value


def _outward(low: float, high: float, whole: bool) -> tuple[float, float]:
    first = 0.0 if low >= 0 else -_nice(-low)
    last = _nice(high) if high > 0 else 0.0
    if first == last:
        last = first + 1.0
    return (int(first), int(last)) if whole or last >= 10 else (first, last)


def _nice(value: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is not below it."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= value)


def _form(path: Path) -> tuple[Kind, TableFormat]:
    """Which kind of file it is, and how a text is written."""
    if not path.is_file():
        raise DataError(f"no file {path}")
    kind = kind_of(path)
    if kind != "csv":
        return kind, TableFormat()
    with path.open("rb") as file:
        start = file.read(1 << 16)
    encoding = _encoding(path, start)
    lines = start.decode(encoding, errors="ignore").splitlines()[:50]
    counts: Callable[[str], int] = lambda mark: lines[0].count(mark) if lines else 0  # noqa: E731
    separator = max((",", ";", "\t", "|"), key=counts)
    fractions = re.compile(r"(^|[;\t|])\s*-?\d+,\d+\s*($|[;\t|])")
    comma = separator != "," and any(fractions.search(line) for line in lines[1:])
    return kind, TableFormat(separator, "," if comma else ".", encoding)


def _encoding(path: Path, start: bytes) -> str:
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    if start.startswith((b"\x1f\x8b", b"\xfd7zXZ", b"BZh")):
        return "utf-8"
    try:
        start[: start.rfind(b"\n") + 1].decode("utf-8-sig")
    except UnicodeDecodeError:
        return "cp1252"
    require_text(path, start[: start.rfind(b"\n") + 1])
    return "utf-8"
