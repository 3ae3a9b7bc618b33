"""Numbers and words from outside: what they must be, and an error in the user's words."""

from __future__ import annotations

import math


def real(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> float:
    """``value`` as a finite float inside the bounds, or an error in the user's words.

    Raises:
        TypeError: not a number. ValueError: not finite, or outside the bounds.
    """
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    number = float(value)
    if (
        not math.isfinite(number)
        or (above is not None and not number > above)
        or (least is not None and not number >= least)
        or (below is not None and not number < below)
        or (most is not None and not number <= most)
    ):
        bounds = (("above", above), ("at least", least), ("below", below), ("at most", most))
        wanted = " and ".join(f"{word} {bound}" for word, bound in bounds if bound is not None)
        raise ValueError(f"{name} must be a finite number {wanted}, not {value!r}")
    return number


def whole(name: str, value: object, *, least: int = 1, most: int | None = None) -> int:
    """``value`` as an integer inside the bounds, or an error in the user's words.

    Raises:
        TypeError: not a whole number. ValueError: outside the bounds.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    number = int(value.__index__())
    if number < least or (most is not None and number > most):
        bounds = f"at least {least}" + ("" if most is None else f" and at most {most}")
        raise ValueError(f"{name} must be {bounds}, not {number}")
    return number


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a word that is not in ``allowed``, naming the choices."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")
