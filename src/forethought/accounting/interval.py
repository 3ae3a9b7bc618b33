"""Certified intervals of a true value, and the outward rounding of their printed ends."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from typing import Any

from forethought.values.serialisation import plain


@dataclass(frozen=True)
class Interval:
    """An interval that provably encloses a true value.

    Args:
        lower, upper: the ends; the true value is at least ``lower`` and at most ``upper``.
        reason: the reason why the interval is wider than requested; None if it is not.

    Raises:
        ValueError: an end is NaN, or ``lower`` is above ``upper``.
    """

    lower: float
    upper: float
    reason: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if math.isnan(self.lower) or math.isnan(self.upper) or self.lower > self.upper:
            raise ValueError(f"no interval: lower {self.lower}, upper {self.upper}")

    def __format__(self, form: str) -> str:
        """``[lower, upper]``, both ends rounded outward."""
        if not form:
            return repr(self)
        return f"[{at_least(self.lower, form)}, {at_most(self.upper, form)}]"

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper

    def to_dict(self) -> dict[str, Any]:
        """Both ends, ready for JSON."""
        return {"lower": plain(self.lower), "upper": plain(self.upper)}

    @property
    def relative_width(self) -> float:
        """(upper − lower)/upper; 0 if both ends are equal."""
        return 0.0 if self.upper == self.lower else (self.upper - self.lower) / self.upper


def bisected(
    below: Callable[[float], bool], low: float, high: float, relative: float = 0.0, steps: int = 200
) -> tuple[float, float]:
    """Bisection: a narrower bracket (low, high) of the point where ``below`` becomes false.

    Args:
        below: a predicate that is true at ``low`` and false at ``high``; it is not evaluated there.
        low, high: the bracket at the start.
        relative: the bracket may be this wide, relative to its high end.
        steps: largest number of bisections.
    """
    for _ in range(steps):
        middle = 0.5 * (low + high)
        if not low < middle < high or high - low <= relative * high:
            break
        low, high = (middle, high) if below(middle) else (low, middle)
    return low, high


def reached(
    below: Callable[[float], bool], low: float, high: float, most: float = math.inf, **fine: Any
) -> tuple[float, float]:
    """:func:`bisected`, after ``high`` was doubled while ``below`` is true there.

    Args:
        below, low, high: as of :func:`bisected`, but ``below`` may be true at ``high``.
        most: where doubling ends; if ``below`` is true there, the result is (``most``, ∞).
        fine: ``relative`` and ``steps`` of :func:`bisected`.
    """
    while below(high):
        low, high = high, min(most, 2 * high)
        if low == high or math.isinf(high):
            return low, math.inf
    return bisected(below, low, high, **fine)


def warn_if_hollow(delta: float, examples: int | None, group: int = 1) -> None:
    """Warn of a guarantee with little meaning: a large δ, or a group larger than the data.

    Args:
        delta: δ of the guarantee.
        examples: number of records in the data; None if unknown.
        group: number of records that are protected together.

    Warns:
        UserWarning: δ is above min(0.01, 1/examples), or ``group`` above ``examples``.
    """
    most = min(0.01, 1 / (examples or 1))
    if delta > most:
        warnings.warn(
            f"δ = {delta:g} promises little: with so large a δ whole records may be published, "
            f"one in {1 / delta:.3g}. Choose δ well below "
            "one over the number of records",
            stacklevel=1,  # one place, so that planner and command tell it once
        )
    if examples is not None and group > examples:
        warnings.warn(
            f"{group:,} records protected together are more than the {examples:,} of the data: a "
            "group is as many as one person may have",
            stacklevel=2,
        )


def warn_if_wide(found: Interval) -> str | None:
    """Warn if the interval of ε is wider than requested: the true cost may be below its upper end.

    Returns:
        The text of the warning; None if there is none.

    Warns:
        UserWarning: ``found`` has a reason.
    """
    if found.reason is None or found.lower == found.upper:
        return None
    words = (
        f"certified is only that ε is at least {at_least(found.lower)} and at most "
        f"{at_most(found.upper)}, the end that all is chosen by: less may be spent, since "
        f"{found.reason}"
    )
    warnings.warn(words, stacklevel=3)
    return words


def at_most(value: float, form: str = ".4g") -> str:
    """An upper bound as text: ``value`` rounded up.

    Args:
        value: ε, δ, a detection rate, a cost.
        form: a format of kind "g", "f" or "%".

    >>> at_most(1.31918), at_most(0.0554, ".0%")
    ('1.32', '6%')
    """
    return _outward(value, form, 1)


def at_least(value: float, form: str = ".4g") -> str:
    """A lower bound as text: ``value`` rounded down; ``form`` as in :func:`at_most`."""
    return _outward(value, form, -1)


def first_to_last(values: Sequence[float], form: str) -> str:
    """The first and the last number of a run's parts; one number where they are equal."""
    first, last = format(values[0], form), format(values[-1], form)
    return first if first == last else f"{first} to {last}"


def _outward(value: float, form: str, side: int) -> str:
    text = format(value, form)
    if not math.isfinite(value):
        return text
    kind, places = form[-1], int(form.strip(",").lstrip(".")[:-1])
    # The shortest decimal that reads back as this number, so 1e-05 is exactly 1e-05.
    exact = Decimal(repr(float(value)))

    def holds(shown: str) -> bool:
        number = Decimal(shown.rstrip("%").replace(",", ""))
        return (number - exact * (100 if kind == "%" else 1)) * side >= 0

    # Enough digits that only the wanted rounding happens.
    with localcontext(Context(prec=1500, Emax=2000, Emin=-2000)) as exactly:
        if holds(text):
            return text
        rounding = ROUND_CEILING if side > 0 else ROUND_FLOOR
        if kind == "g":
            rounded = Context(prec=max(1, places), rounding=rounding).create_decimal(exact)
        else:
            exactly.rounding = rounding
            rounded = exact.quantize(Decimal(1).scaleb(-places - 2 * (kind == "%")))
        # Format it as a floating-point number, unless the nearest one is on the wrong side.
        text = format(float(rounded), form)
        return text if math.isfinite(float(rounded)) and holds(text) else format(rounded, form)
