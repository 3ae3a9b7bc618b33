"""Curves as SVG inside a page: drawn to be read without a network, hovered, and printed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from html import escape

WIDTH, HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 12, 44
Points = Sequence[tuple[float, float]]


def percent(value: float) -> str:
    """A share in words."""
    return f"{value:.1%}"


def short(value: float) -> str:
    """A number of three digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def curve(
    points: Points,
    x: str,
    y: str,
    *,
    shown: Callable[[float], str] = short,
    marked: Callable[[float], str] | None = None,
    reference: Points = (),
    reference_name: str = "",
    lowest: float | None = None,
    highest: float | None = None,
) -> str:
    """One curve with axes; hovering shows the nearest point, and so does a table for readers.

    Args:
        points: (x, y), by growing x. x, y: what the axes are. shown: how a value of y is written;
            marked: that of a point, if otherwise.
        reference: a second, dotted line, such as blind guessing. reference_name: what it is.
        lowest, highest: ends of the vertical axis; by default those of the values.
    """
    every = [*points, *reference]
    across = (min(a for a, _ in every), max(a for a, _ in every))
    up = _ends([b for _, b in every], lowest, highest)
    to_x = _scale(across, (_LEFT, WIDTH - _RIGHT))
    to_y = _scale(up, (HEIGHT - _BOTTOM, _TOP))
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(y)} against {escape(x)}" tabindex="0">'
    ]
    for tick in _ticks(*up):
        at = to_y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>')
        parts.append(
            f'<text class="tick" x="{_LEFT - 8}" y="{at + 4}">{escape(shown(tick))}</text>'
        )
    for tick in _ticks(*across):
        parts.append(
            f'<text class="tick middle" x="{to_x(tick)}" y="{HEIGHT - _BOTTOM + 18}">'
            f"{escape(short(tick))}</text>"
        )
    parts.append(
        f'<text class="axis" x="{(_LEFT + WIDTH - _RIGHT) / 2}" y="{HEIGHT - 6}">{escape(x)}</text>'
    )
    if reference:
        parts.append(f'<path class="reference" d="{_path(reference, to_x, to_y)}"/>')
        a, b = reference[len(reference) * 2 // 3]
        parts.append(
            f'<text class="tick start" x="{to_x(a) + 6}" y="{to_y(b) + 14}">'
            f"{escape(reference_name)}</text>"
        )
    parts.append(f'<path class="line" d="{_path(points, to_x, to_y)}"/>')
    marked = marked or shown
    marks = [
        [round(to_x(a), 2), round(to_y(b), 2), f"{x} {short(a)}: {marked(b)}"] for a, b in points
    ]
    parts.append(f'<circle class="dot" r="4" cx="{marks[-1][0]}" cy="{marks[-1][1]}"/>')
    parts.append('<text class="tip" x="0" y="0"></text></svg>')
    found = "".join(parts)
    return found.replace("<svg ", f"<svg data-points='{escape(json.dumps(marks), quote=True)}' ", 1)


def dots(found: int, blind: int, words: str) -> str:
    """A hundred records as dots: ``found`` of them filled, ``blind`` of these with a cross.

    Args:
        words: what the picture says, for those who do not see it.
    """
    parts = [
        '<svg class="dots" viewBox="0 0 410 106" role="img" '
        'aria-labelledby="dots-title dots-words">'
        f'<title id="dots-title">{found} of 100 dots are filled</title>'
        f'<desc id="dots-words">{escape(words)}</desc>'
    ]
    for number in range(100):
        # Column by column, so that what is found is one block from the left.
        x, y = 13 + 20.2 * (number // 5), 13 + 20 * (number % 5)
        kind = "found" if number < found else "missed"
        parts.append(f'<circle class="{kind}" r="7.5" cx="{x:.1f}" cy="{y}"/>')
        if number < blind:
            parts.append(f'<path class="blind" d="M{x - 3.5:.1f} {y - 3.5} l7 7 m0 -7 l-7 7"/>')
    return "".join(parts) + "</svg>"


def _path(points: Points, to_x: Callable[[float], float], to_y: Callable[[float], float]) -> str:
    return "M" + " L".join(f"{to_x(a):.2f} {to_y(b):.2f}" for a, b in points)


def _scale(ends: tuple[float, float], place: tuple[float, float]) -> Callable[[float], float]:
    low, high = ends
    span = (high - low) or 1.0
    return lambda value: round(place[0] + (value - low) / span * (place[1] - place[0]), 2)


def _ends(
    values: Sequence[float], lowest: float | None, highest: float | None
) -> tuple[float, float]:
    low, high = min(values), max(values)
    room = 0.05 * (high - low or abs(high) or 1.0)
    return (low - room if lowest is None else lowest, high + room if highest is None else highest)


def _ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers between two ends."""
    rough = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * unit for unit in (1, 2, 5, 10) if power * unit >= rough)
    first = math.ceil(low / step - 1e-9)
    found = []
    while first * step <= high + 1e-9 * step:
        found.append(round(first * step, 12))
        first += 1
    return found
