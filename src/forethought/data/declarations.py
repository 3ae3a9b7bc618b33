"""What a job file says of a column, as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from forethought.data.columns import (
    CENTURY,
    POLICIES,
    Category,
    Column,
    Date,
    Dropped,
    Number,
    Plain,
    UndeclaredError,
)

_FORMS = (
    f'[0, 110] for a range, {{range = [10, 80], missing = "middle", log = true}}, {{categories = '
    f'["A", "B"], other = true}}, "date", {{date = ["2010-01-01", "2029-12-31"]}} or "drop"; '
    f"missing is one of {', '.join(POLICIES)}"
)


def column(name: str, value: Any, *, missing: str = "refuse", decimal: str = ".") -> Column:
    """A column from what a job file says of it.

    Args:
        name: the column's, for messages. value: see the forms in the error.
        missing: what a missing entry means where the column does not say.
        decimal: what separates the fraction in this file.

    Raises:
        UndeclaredError: not one of the forms.
    """
    try:
        return _column(value, missing, decimal)
    except UndeclaredError as error:
        raise UndeclaredError(f"column {name}: {error}") from None
    except (TypeError, ValueError, KeyError):
        raise UndeclaredError(f"column {name} = {value!r}: declare it as {_FORMS}") from None


def _column(value: Any, missing: str, decimal: str) -> Column:
    options = dict(value) if isinstance(value, Mapping) else {}
    policy = options.pop("missing", missing)
    codes = tuple(_real(code) for code in options.pop("codes", ()))
    if policy not in POLICIES:
        raise UndeclaredError(f"missing = {policy!r}: the choice is {', '.join(POLICIES)}")
    if policy == "drop-column" or value == "drop":
        return Dropped("category")
    common: dict[str, Any] = {"missing": policy, "codes": codes}
    if value == "plain":
        return Plain(**common, decimal=decimal)
    if value == "date":
        return Date(**common)
    if isinstance(value, Sequence) and not isinstance(value, str):
        text = all(isinstance(entry, str) for entry in value)
        options = {"categories": value} if text else {"range": value}
    found: Column
    if "range" in options:
        low, high = options.pop("range")
        log = _flag(options.pop("log", False))
        found = Number(**common, low=_real(low), high=_real(high), decimal=decimal, log=log)
    elif "categories" in options:
        words = tuple(_word(word) for word in options.pop("categories"))
        other, lenient = (_flag(options.pop(name, False)) for name in ("other", "lenient"))
        found = Category(**common, words=words, other=other, lenient=lenient)
    else:
        days, form = options.pop("date"), options.pop("format", None)
        first, last = CENTURY if days is True else (_day(day) for day in days)
        found = Date(**common, first=first, last=last, form=form)
    if options:
        raise UndeclaredError(f"unknown key {next(iter(options))!r}: the forms are {_FORMS}")
    return found


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    return float(value)


def _word(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(value)
    return str(value).strip()


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _day(value: Any) -> date:
    return value if isinstance(value, date) else date.fromisoformat(value)
