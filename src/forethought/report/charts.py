"""Curves as SVG inside a page: drawn to be read without a network, hovered, and printed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from html import escape

from forethought.accounting.interval import at_most

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


def scale(value: float, examples: Sequence[tuple[float, str]]) -> str:
    """A value on a logarithmic line from 0.1 to 100, published ones below it."""
    low, high, middle = 0.1, 100.0, 74
    ends = (math.log(low), math.log(high))
    to_x = _scale(ends, (20, 740))

    def place(epsilon: float) -> float:
        return to_x(math.log(min(max(epsilon, low), high)))

    shown = at_most(value, ".3g") + ("" if value <= high else ", beyond the scale")
    parts = [
        f'<svg class="scale" viewBox="0 0 760 {middle + 20 + 19 * len(examples)}" role="img" '
        f'aria-label="ε = {shown} on a scale from 0.1 to 100">'
        '<defs><linearGradient id="strength"><stop offset="0" stop-color="#009E73"/>'
        '<stop offset=".45" stop-color="#E69F00"/><stop offset=".8" stop-color="#D55E00"/>'
        f'</linearGradient></defs><rect x="20" y="{middle - 6}" width="720" height="8" rx="4" '
        'fill="url(#strength)"/>'
    ]
    for tick in (0.1, 0.3, 1, 3, 10, 30, 100):
        parts.append(
            f'<text class="tick middle" x="{place(tick)}" y="{middle - 12}">{tick:g}</text>'
        )
    at = place(value)
    anchor = "start" if at < 120 else "end" if at > 640 else "middle"
    parts.append(
        f'<path class="here" d="M{at} {middle - 8} l-7 -14 h14 z"/>'
        f'<text class="here {anchor}" x="{at}" y="{middle - 40}">this model: ε = {shown}</text>'
    )
    for number, (epsilon, name) in enumerate(sorted(examples)):
        x, y = place(epsilon), middle + 22 + 19 * number
        side = ("end", -6) if x > 420 else ("start", 6)
        parts.append(
            f'<line class="grid" x1="{x}" x2="{x}" y1="{middle + 2}" y2="{y - 4}"/>'
            f'<circle class="example" r="3" cx="{x}" cy="{y - 4}"/>'
            f'<text class="tick {side[0]}" x="{x + side[1]}" y="{y}">{escape(name)}: '
            f"ε = {epsilon:g}</text>"
        )
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
