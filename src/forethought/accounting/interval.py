"""An interval that is certified to hold the true value, and how its ends are printed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from typing import Any

from forethought.values.serialisation import plain


@dataclass(frozen=True)
class Interval:
    """The true value is at least ``lower`` and at most ``upper``, both proven.

    ``reason`` says in words why the ends are further apart than was asked for; None: they are not.
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
        """Both ends, as they are stored."""
        return {"lower": plain(self.lower), "upper": plain(self.upper)}

    @property
    def relative_width(self) -> float:
        """(upper − lower)/upper; 0 when both ends are equal."""
        return 0.0 if self.upper == self.lower else (self.upper - self.lower) / self.upper


def bisected(
    below: Callable[[float], bool], low: float, high: float, relative: float = 0.0, steps: int = 200
) -> tuple[float, float]:
    """The bracket, narrowed by halves, of the place where ``below`` stops being true.

    Args:
        below: true at ``low``, not at ``high``; what it says of the ends is taken as known.
        relative: how wide the bracket may be, beside its high end. steps: at most.
    """
    for _ in range(steps):
        middle = 0.5 * (low + high)
        if not low < middle < high or high - low <= relative * high:
            break
        low, high = (middle, high) if below(middle) else (low, middle)
    return low, high


def warn_if_hollow(delta: float, examples: int | None, group: int = 1) -> None:
    """Warn of a promise that hardly is one: a large δ, or more records together than there are.

    Args:
        examples: in the data; None: not known. group: records protected together.

    Warns:
        UserWarning: says what to choose.
    """
    most = min(0.01, 1 / (examples or 1))
    if delta > most:
        warnings.warn(
            f"δ = {delta:g} promises little: with so large a δ whole records may be published, "
            f"one in {1 / delta:.3g}. Choose δ well below "
            "one over the number of records",
            stacklevel=2,
        )
    if examples is not None and group > examples:
        warnings.warn(
            f"{group:,} records protected together are more than the {examples:,} of the data: a "
            "group is as many as one person may have",
            stacklevel=2,
        )


def warn_if_wide(found: Interval) -> str | None:
    """Warn where the ends of an ε are further apart than was asked for; the words, or None.

    For whatever is chosen by the upper end: what is spent may be less.
    """
    if found.reason is None:
        return None
    words = (
        f"certified is only that ε is at least {at_least(found.lower)} and at most "
        f"{at_most(found.upper)}, the end that all is chosen by: less may be spent, since "
        f"{found.reason}"
    )
    warnings.warn(words, stacklevel=3)
    return words


def at_most(value: float, form: str = ".4g") -> str:
    """``value`` as text that is not below it: how an upper bound is printed.

    Args:
        value: ε, δ, a detection rate, a cost. form: a format of kind "g", "f" or "%".

    >>> at_most(1.31918), at_most(0.0554, ".0%")
    ('1.32', '6%')
    """
    return _outward(value, form, 1)


def at_least(value: float, form: str = ".4g") -> str:
    """``value`` as text that is not above it: how a lower bound is printed."""
    return _outward(value, form, -1)


def _outward(value: float, form: str, side: int) -> str:
    text = format(value, form)
    if not math.isfinite(value):
        return text
    kind, places = form[-1], int(form.strip(",").lstrip(".")[:-1])
    # The shortest decimal that is this number: 1e-05 is no more than it says.
    exact = Decimal(repr(float(value)))

    def holds(shown: str) -> bool:
        number = Decimal(shown.rstrip("%").replace(",", ""))
        return (number - exact * (100 if kind == "%" else 1)) * side >= 0

    # So many digits that nothing is rounded but where it is wanted.
    with localcontext(Context(prec=1500, Emax=2000, Emin=-2000)) as exactly:
        if holds(text):
            return text
        rounding = ROUND_CEILING if side > 0 else ROUND_FLOOR
        if kind == "g":
            rounded = Context(prec=max(1, places), rounding=rounding).create_decimal(exact)
        else:
            exactly.rounding = rounding
            rounded = exact.quantize(Decimal(1).scaleb(-places - 2 * (kind == "%")))
        # As floating-point numbers are written, unless none is near enough.
        text = format(float(rounded), form)
        return text if math.isfinite(float(rounded)) and holds(text) else format(rounded, form)
