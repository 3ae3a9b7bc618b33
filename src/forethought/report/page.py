"""HTML pages: the statement for a data-protection officer, and the report of a run.

Each page is one HTML file that needs no network, fonts or libraries. Its curves are SVG with
tooltips. The pages have a style for print, and an installed browser prints them to PDF, without a
window and without a network. A browser gives the same layout as on the screen, and most machines
have one; another layout engine would be a large dependency with a different layout.
"""

from __future__ import annotations

import html
import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

from forethought.accounting.accountants import EXACT, KNOWN_BATCHES
from forethought.accounting.interval import at_most
from forethought.accounting.statement import Statement, numbers, protected, rows, sought, told, unit
from forethought.auditing.verdict import SCHEMA as AUDIT_SCHEMA
from forethought.report.figures import column
from forethought.report.terminal import plan_rows
from forethought.values.checks import harmless
from forethought.values.mechanism import Rounds
from forethought.values.serialisation import parse, replaced, write_text
from forethought.values.signing import attested

if TYPE_CHECKING:
    from forethought.training.folder import RunSummary
    from forethought.training.metrics import Results
    from forethought.training.shapes import Shape, Shapes, Surface


# The width of a phone and of half a page, so that font sizes are true in both.
WIDTH, HEIGHT = 400, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 20, 12, 44
Points = Sequence[tuple[float, float]]


# Formats a share as a percentage with one decimal.
percent = "{:.1%}".format


def escape(text: str) -> str:
    """The text as HTML, of characters that a page may have."""
    return html.escape(harmless(text))


def short(value: float) -> str:
    """A number with three digits; from 1000 on with five, so that years differ."""
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.5g}" if abs(value) >= 999.5 else f"{value:.3g}"


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
    """One curve with axes as SVG; hovering shows the nearest point.

    Args:
        points: (x, y), by ascending x. x, y: names of the axes. shown: formats a value of y on the
            axis; marked: formats that of a point, by default like ``shown``.
        reference: a second, dotted line, such as blind guessing. reference_name: its label.
        lowest, highest: ends of the vertical axis; by default those of the values.
    """
    every = [*points, *reference]
    up = _ends([b for _, b in every], lowest, highest)
    chart = _Chart((min(every)[0], max(every)[0]), up, f"{y} against {x}", x, shown)
    if reference:
        chart.path("reference", reference)
        a, b = reference[len(reference) * 2 // 3]
        chart.text("tick start", chart.x(a) + 6, chart.y(b) + 14, reference_name)
    chart.path("line", points)
    marked = marked or shown
    return chart.hovered(points, [f"{x} {short(a)}: {marked(b)}" for a, b in points])


def _wide(words: str) -> int:
    """Pixels at the font's size: a wide letter, of Chinese for example, is as wide as high."""
    return sum(13 if east_asian_width(one) in "WF" or one in "MWmw" else 8 for one in words)


class _Figure:
    """An SVG figure as wide as a phone, drawn piece by piece.

    Args:
        kind: the class in page.css. told: the description. more: further attributes.
    """

    def __init__(self, kind: str, told: str, height: float = HEIGHT, more: str = "") -> None:
        box = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(told)}"'
        self.parts = [f'<svg class="{kind}" {box}{more}>']

    def __str__(self) -> str:
        return "".join(self.parts) + "</svg>"

    def text(self, kind: str, x: float, y: float, words: str) -> None:
        self.parts.append(f'<text class="{kind}" x="{x}" y="{y}">{escape(words)}</text>')

    def line(self, kind: str, x: tuple[float, float], y: tuple[float, float]) -> None:
        ends = f'x1="{x[0]}" x2="{x[1]}" y1="{y[0]}" y2="{y[1]}"'
        self.parts.append(f'<line class="{kind}" {ends}/>')

    def name(self, words: str, x: float, y: float, room: int) -> None:
        """A text that ends at a place, drawn narrower where it could be wider than ``room``."""
        shown = _cut(words)
        fit = f' textLength="{room}" lengthAdjust="spacingAndGlyphs"' if _wide(shown) > room else ""
        words = f"<title>{escape(words)}</title>{escape(shown)}"
        self.parts.append(f'<text class="tick" x="{x}" y="{y}"{fit}>{words}</text>')


class _Chart(_Figure):
    """A figure with a frame, axes and both scales.

    Args:
        across, up: ends of the horizontal and the vertical axis. told: the description.
        axis: name of the horizontal axis.
        shown, below: format a value on the vertical and on the horizontal axis.
    """

    def __init__(
        self,
        across: tuple[float, float],
        up: tuple[float, float],
        told: str,
        axis: str,
        shown: Callable[[float], str] = short,
        below: Callable[[float], str] = short,
    ) -> None:
        super().__init__("chart", told, more=' tabindex="0"')
        self.x = _scale(across, (_LEFT, WIDTH - _RIGHT))
        self.y = _scale(up, (HEIGHT - _BOTTOM, _TOP))
        for tick in _ticks(*up):
            at = self.y(tick)
            self.line("grid", (_LEFT, WIDTH - _RIGHT), (at, at))
            self.text("tick", _LEFT - 8, at + 4, shown(tick))
        for tick in _ticks(*across):
            self.text("tick middle", self.x(tick), HEIGHT - _BOTTOM + 18, below(tick))
        while _wide(axis) > WIDTH - _LEFT:
            axis = axis[:-2] + "…"  # the caption has all of it
        self.text("axis", (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6, axis)

    def path(self, kind: str, points: Points, end: str = "") -> None:
        drawn = " L".join(f"{self.x(a):.2f} {self.y(b):.2f}" for a, b in points)
        self.parts.append(f'<path class="{kind}" d="M{drawn}{end}"/>')

    def hovered(self, points: Points, words: Sequence[str]) -> str:
        """The complete figure, with the points that hovering shows, and what it says there."""
        marks = [(self.x(a), self.y(b), told) for (a, b), told in zip(points, words, strict=True)]
        self.parts.append(f'<circle class="dot" r="4" cx="{marks[-1][0]}" cy="{marks[-1][1]}"/>')
        self.parts.append('<text class="tip" x="0" y="0"></text>')
        data = escape(json.dumps(marks))
        return str(self).replace("<svg ", f"<svg data-points='{data}' ", 1)


def dots(found: int, blind: int, words: str) -> str:
    """A hundred records as dots: ``found`` of them filled, ``blind`` of these with a cross.

    Args:
        words: description of the figure, for screen readers.
    """
    parts = [
        '<svg class="dots" viewBox="0 0 410 106" role="img" '
        'aria-labelledby="dots-title dots-words">'
        f'<title id="dots-title">{found} of 100 dots are filled</title>'
        f'<desc id="dots-words">{escape(words)}</desc>'
    ]
    for number in range(100):
        # Column by column, so that the filled dots are one block from the left.
        x, y = 13 + 20.2 * (number // 5), 13 + 20 * (number % 5)
        kind = "found" if number < found else "missed"
        parts.append(f'<circle class="{kind}" r="7.5" cx="{x:.1f}" cy="{y}"/>')
        if number < blind:
            parts.append(f'<path class="blind" d="M{x - 3.5:.1f} {y - 3.5} l7 7 m0 -7 l-7 7"/>')
    return "".join(parts) + "</svg>"


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
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [round(number * step, 12) for number in numbers]


# Figures of an additive model: the curve of each column, and the surfaces of the largest pairs.


# Largest numbers of columns, of pairs, and of lines per figure; the others are in shapes.json.
_COLUMNS, _PAIRS, _LINES = 24, 6, 6
# Number of figures that are visible at first; a click shows the others.
_FIRST = 6
_BAR, _NAMES, _LONGEST = 24, 140, 18


def shape_figures(shapes: Shapes) -> list[str]:
    """A figure for each column, the one with the largest effect first, then for pairs."""
    found = []
    for shape in sorted(shapes.columns, key=lambda one: -one.reach)[:_COLUMNS]:
        drawn = _bars(shape, shapes) if shape.kind == "word" else _shape(shape, shapes)
        words = [f"{shape.column}: {shapes.unit}"]
        if shape.missing:
            lost = ", ".join(f"{value:+.2g}" for value in shape.missing[:_LINES])
            words.append(f"missing: {lost}")
        if shape.noise and not shape.clear:
            words.append("no more than noise alone would draw")
        if "word 1" in shape.places:  # as a run numbers words that are not declared
            words.append("words as in the job, not shown until columns_measured = false")
        found.append(_captioned(drawn, "; ".join(words)))
    for surface in shapes.pairs[:_PAIRS] if len(shapes.outputs) == 1 else ():
        one, two = surface.columns
        caption = (
            f"{one} (across) and {two} (up) together, beyond each alone: up to "
            f"{surface.reach:.2g} between two places; darker: further from 0, hatched: below"
            f"{'' if surface.clear else '; no more than noise alone would draw'}"
        )
        found.append(_captioned(_surface(surface, caption), caption))
    return found


def _captioned(drawn: str, words: str) -> str:
    return f"<figure>{drawn}<figcaption>{escape(words)}</figcaption></figure>"


def _when(place: object) -> float:
    """The place on an axis as a number; a day becomes a fractional year."""
    if isinstance(place, str):
        day = date.fromisoformat(place)
        return day.year + (day.timetuple().tm_yday - 1) / 366
    return float(place)  # type: ignore[arg-type]


def _reach_of(shape: Shape) -> tuple[float, float]:
    """The ends of the vertical axis for all lines and, for a single line, its noise band."""
    values = [value for row in shape.values for value in row]
    band = [1.96 * size for size in shape.noise]
    if band and len(shape.values) == 1:
        values += [v + s for v, b in zip(shape.values[0], band, strict=True) for s in (-b, b)]
    return _ends([*values, 0.0], None, None)


def _shape(shape: Shape, shapes: Shapes) -> str:
    """The curves of a column of numbers or days, one per output; a single one has a noise band."""
    x = [_when(place) for place in shape.places]
    days = shape.kind == "day"
    told = f"{shape.column}: from {min(shape.values[0]):+.2g} to {max(shape.values[0]):+.2g}"
    below = (lambda year: f"{year:.6g}") if days else short
    told, up = f"{told}, {shapes.unit}", _reach_of(shape)
    chart = _Chart((x[0], x[-1]), up, told, shape.column, below=below)
    first = list(zip(x, shape.values[0], strict=True))
    if shape.noise and len(shape.values) == 1:
        band = list(zip(first, shape.noise, strict=True))
        upper = [(a, b + 1.96 * s) for (a, b), s in band]
        lower = [(a, b - 1.96 * s) for (a, b), s in band]
        chart.path("band", [*upper, *reversed(lower)], " Z")
    chart.path("reference", [(x[0], 0.0), (x[-1], 0.0)])
    for number, row in enumerate(shape.values[:_LINES]):
        points = list(zip(x, row, strict=True))
        chart.path(f"line line-{number}", points)
        if len(shape.values) > 1:
            # Labels are at different places along the lines, so that they do not overlap.
            a, b = points[len(points) * (number + 1) // (_LINES + 1)]
            name = _cut(shapes.outputs[number])
            chart.text("tick start name", chart.x(a), chart.y(b) - 6, name)
    named = zip(first, shape.places, strict=True)
    return chart.hovered(
        first, [f"{place if days else short(a)}: {b:+.2f}" for (a, b), place in named]
    )


def _bars(shape: Shape, shapes: Shapes) -> str:
    """The bars of a column of words: one per word and output; a single output has a noise band."""
    lines = min(len(shape.values), _LINES)
    low, high = _reach_of(shape)
    step = _BAR if lines == 1 else 9 * lines + 9
    height = step * len(shape.places) + 34
    to_x = _scale((low, high), (_NAMES, WIDTH - _RIGHT))
    told = f"{shape.column}, {shapes.unit}: " + ", ".join(
        f"{place} {value:+.2g}" for place, value in zip(shape.places, shape.values[0], strict=True)
    )
    figure = _Figure("bars", told, height)
    for tick in _ticks(low, high):
        at = to_x(tick)
        figure.line("grid", (at, at), (4, height - 30))
        figure.text("tick middle", at, height - 12, short(tick))
    for number, place in enumerate(shape.places):
        top = 6 + step * number
        figure.name(str(place), _NAMES - 10, top + step / 2 + 1, _NAMES - 14)
        for line in range(lines):
            value = shape.values[line][number]
            left, right = sorted((to_x(0.0), to_x(value)))
            y, thick = (top, _BAR - 9) if lines == 1 else (top + 9 * line, 7)
            words = escape(f"{shapes.outputs[line]}, {place}: {value:+.2f}")
            box = f'x="{left}" width="{max(right - left, 1):.2f}" y="{y}" height="{thick}"'
            figure.parts.append(f'<rect class="bar bar-{line}" {box}><title>{words}</title></rect>')
            if shape.noise and lines == 1:
                half = 1.96 * shape.noise[number]
                figure.line("whisker", (to_x(value - half), to_x(value + half)), (y + 7, y + 7))
    return str(figure)


def _surface(surface: Surface, told: str) -> str:
    """The figure of a surface over two columns: cells that are darker further from 0."""
    rows = surface.values[0]
    every = [value for row in rows for value in row]
    most = max(map(abs, every)) or 1.0
    wide, tall = (WIDTH - _LEFT - _RIGHT) / len(rows), (HEIGHT - _TOP - _BOTTOM) / len(rows[0])
    figure = _Figure("cells", told, HEIGHT + 26)
    figure.parts.append(
        '<defs><pattern id="below" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><line class="hatch" x1="0" x2="0" y1="0" y2="6"/></pattern>'
        "</defs>"
    )
    across, up = ([_told(place) for place in places] for places in surface.places)
    for i, row in enumerate(rows):
        for j, value in enumerate(row):
            x, y = _LEFT + i * wide, HEIGHT - _BOTTOM - (j + 1) * tall
            box = f'x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}"'
            figure.parts.append(_cell(value, most, box, f"{across[i]}, {up[j]}: {value:+.2f}"))
    # The legend has the least and the largest value in their colours.
    for place, value in enumerate(sorted({min(every), max(every)})):
        x = _LEFT + 110 * place
        box = f'x="{x}" y="{HEIGHT + 6}" width="16" height="14"'
        figure.parts.append(_cell(value, most, box))
        figure.text("tick start", x + 22, HEIGHT + 18, f"{value:+.2g}")
    figure.text("tick start", _LEFT, HEIGHT - _BOTTOM + 18, across[0])
    figure.text("tick end", WIDTH - _RIGHT, HEIGHT - _BOTTOM + 18, across[-1])
    figure.name(up[0], _LEFT - 8, HEIGHT - _BOTTOM, _LEFT - 12)
    figure.name(up[-1], _LEFT - 8, _TOP + 10, _LEFT - 12)
    words = f"{_cut(surface.columns[0])} across, {_cut(surface.columns[1])} up"
    figure.text("axis", (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 6, words)
    return str(figure)


def _cell(value: float, most: float, box: str, words: str = "") -> str:
    """A cell of a surface: darker further from 0, hatched where negative."""
    share, title = abs(value) / most, f"<title>{escape(words)}</title>" if words else ""
    kind = "above" if value >= 0 else "under"
    hatch = f'<rect class="below" fill="url(#below)" {box}/>' if value < 0 and share > 0.1 else ""
    return f'<rect class="{kind}" fill-opacity="{share:.2f}" {box}>{title}</rect>{hatch}'


def _told(place: object) -> str:
    return str(place) if isinstance(place, str) else short(float(place))  # type: ignore[arg-type]


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def _shapes(shapes: Shapes) -> list[str]:
    """The section of a report with the curves of an additive model."""
    known = any(shape.noise for shape in shapes.columns)
    band = (
        " Around each stands how far noise alone moves it in 95 of 100 runs at most: where that "
        "reaches 0 there need be nothing."
        if known and len(shapes.outputs) == 1
        else ""
    )
    left = max(0, len(shapes.columns) - _COLUMNS)
    pairs = max(0, len(shapes.pairs) - (_PAIRS if len(shapes.outputs) == 1 else 0))
    rest = [f"{count} {what}" for count, what in ((left, "columns"), (pairs, "pairs")) if count]
    more = f" {' and '.join(rest)} more are in shapes.json." if rest else ""
    start = ", ".join(f"{value:.3g}" for value in shapes.intercept[:_LINES])
    pictures = shape_figures(shapes)
    first, others = (
        f'<div class="charts">{"".join(part)}</div>'
        for part in (pictures[:_FIRST], pictures[_FIRST:])
    )
    unseen = f"{len(pictures) - _FIRST} more pictures"
    return [
        f"<p>An answer is the sum of what its columns add, from {start} on, where each adds its "
        "mean over what was declared. They follow from the released weights and cost no privacy."
        f"{band}"
        f"{more} A curve says what the model does, not what causes what.</p>",
        first,
        # The others are in an element that opens on a click.
        f"<details><summary>{unseen}</summary>{others}</details>" if pictures[_FIRST:] else "",
    ]


# A statement and a report.


# Published ε of other releases, each for its own unit of protection.
PUBLISHED = (
    (1.0, "Wikimedia page views 2023, one reader and day"),
    (2.64, "Google mobility reports 2020, one user and day"),
    (9.98, "Israel's birth registry 2024, one birth"),
    (19.61, "United States census 2020 (redistricting), one person"),
)
_CURVE = 101


def statement_page(
    statement: Statement,
    title: str = "Privacy statement",
    audited: bool | None = None,
    signed: str | None = None,
) -> str:
    """The page for a data-protection officer: plain words first, then a technical annex.

    Args:
        audited: the result of audit.json beside the statement: True, the run was refuted; False, it
            was not. None: there is no audit of this plan.
        signed: fingerprint of the key whose signature beside the statement fits; None: none.
    """
    s = statement
    first, second, _ = s.sentences()
    body = [f"<h1>{escape(title)}</h1>", *_lead(s), *_head(s, first, second)]
    if s.breaks:
        body += ["<h2>Why there is no guarantee</h2>"]
        body.append(_list(f"{_capital(text)}: {text.kind.reason}." for text in s.breaks))
    body += [
        f"<h2>Who {'is' if s.private else 'would be'} protected, and against whom</h2>",
        _list(
            [
                f"Protected: {protected(s)}.",
                f"The attacker {s.adversary}.",
                *(f"{_capital(text)}." for text in s.facts),
            ]
        ),
        "<h2>What is not covered</h2>",
        _list(f"{_capital(text)}." for text in s.not_covered)
        if s.not_covered
        else "<p>No use of the data outside this promise was named.</p>",
        "<h2>What was checked, and by whom</h2>",
        '<div class="words">'
        f"{_table(('what', 'by whom', 'evidence'), _checks(s, audited, signed))}</div>",
        "<h2>What is believed</h2>",
        "<p>The promise rests on this, and no file shows it:</p>",
        _list(f"{_capital(told(s, text))}." for text in s.assumptions),
    ]
    if s.about is not None:
        body += ["<h2>What it is about</h2>", "<p>As its owner says:</p>"]
        body.append(_list(f"{what}: {text}" for what, text in s.about.lines()))
    if s.private:
        body += ["<h2>How strong it is</h2>", *_strength(s)]
    body += ["<h2>Technical annex</h2>", *_annex(s)]
    return _page(title, body)


def report_page(summary: RunSummary) -> str:
    """The report of a run as HTML: result and baseline, curves, plan, and statement in short."""
    s = summary.statement
    first, second, third = s.sentences()
    body = [f"<h1>Run {escape(summary.folder.resolve().name)}</h1>"]
    if summary.results is not None:
        # Warnings come first: a guarantee for a useless model helps nobody.
        body += [_warning(text) for text in summary.results.warnings()]
    body += _head(s, first, second)
    if summary.results is not None:
        body += ["<h2>What the model is worth</h2>", *_result(summary.results)]
    if summary.shapes is not None:
        body += ["<h2>What each column adds</h2>", *_shapes(summary.shapes)]
    pictures = _curves(summary)
    if pictures:
        body += ["<h2>How it went</h2>", f'<div class="charts">{"".join(pictures)}</div>']
    body += ["<h2>The plan</h2>", _table(("", ""), plan_rows(summary.plan), head=False)]
    if summary.too_wide:
        wide = _list(f"{one}." for one in summary.too_wide)
        body += ["<h3>Ranges much wider than need be</h3>", wide]
    body += ["<h2>The promise</h2>", f"<p>{escape(third)}</p>"]
    body += ["<h3>Not covered</h3>", _list(f"{text}." for text in s.not_covered)]
    body.append(
        '<p>The whole statement: <a href="statement.html">statement.html</a> for people, '
        "<code>statement.json</code> for <code>forethought account --verify</code>.</p>"
    )
    return _page(f"Run {summary.folder.resolve().name}", body)


def write_pages(summary: RunSummary) -> None:
    """Write ``report.html`` and ``statement.html`` into the run folder; signed ones are left."""
    write_statement(summary.folder, summary.statement)
    _write(summary.folder / "report.html", report_page(summary), summary.statement)


def write_statement(folder: Path, statement: Statement | None = None) -> Path:
    """Write ``statement.html`` for a statement, such as a client's or a worker's.

    A page that is there and signed is left as it is: with another one, as after an audit, the
    signature would be refused.

    Args:
        statement: None: the one in the folder.

    Returns:
        The path of the page.
    """
    statement = statement or Statement.load(folder / "statement.json")
    page, title = folder / "statement.html", f"Privacy statement of {folder.resolve().name}"
    text = statement_page(statement, title, _audited(folder, statement), _signed(folder, statement))
    _write(page, text, statement)
    return page


def _write(page: Path, text: str, statement: Statement) -> None:
    if not (page.exists() and _signed(page.parent, statement)):
        write_text(page, text)


def _audited(folder: Path, statement: Statement) -> bool | None:
    """True if the folder's audit.json refutes the run; None: there is none of the stated plan."""
    try:
        found = parse((folder / "audit.json").read_text(encoding="utf-8"))
        schema, plan, refuted = found["schema"], found["plan"], found["refuted"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    own = schema == AUDIT_SCHEMA and isinstance(plan, str) and plan == statement.plan
    return refuted if own and isinstance(refuted, bool) else None


def _signed(folder: Path, statement: Statement) -> str | None:
    """The fingerprint of the key that signed the statement in the folder; None: no valid one."""
    try:
        found = attested((folder / "statement.intoto.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
    return found.fingerprint if found.predicate == parse(statement.to_json()) else None


def _lead(s: Statement) -> list[str]:
    """The lead of a page: one sentence, one number and one figure; [] without a guarantee."""
    if not s.private:
        return []
    rate, power = s.attack[min(1, len(s.attack) - 1)]
    # Rounded up, since it is a bound, and never below blind guessing.
    blind = round(100 * rate)
    found = min(100, max(blind, math.ceil(100 * power - 1e-9)))
    units = f"{unit(s)}s" if s.group == 1 else f"groups of {s.group} {unit(s)}s"
    learned = "this model learned from" if s.releases else "such a model would learn from"
    if any(one.code == "statistics" for one in s.caveats):
        learned = "these statistics are about" if s.releases else "they would be about"
    # Else the presence of a record is known; only its content is hidden.
    finds = "finds" if s.adjacency == "add-or-remove" else "recognises, by what they say,"
    sentence = (
        f"Of 100 {units} that {learned}, even an attacker who knows all the others {finds} on "
        f"average at most {found}, if {blind} in 100 may be suspected wrongly; blind guessing "
        f"finds {blind}."
    )
    return [
        f'<p class="lead">{escape(sentence)}</p><figure>'
        f'<p class="number"><strong>{found} of 100</strong> found at most</p>'
        f"{dots(found, blind, sentence)}<figcaption>A hundred {units}. Filled: found on "
        f"average at most ({found}); with a cross: what blind guessing finds ({blind}). "
        "Rounded up.</figcaption></figure>"
    ]


def _checks(s: Statement, audited: bool | None, signed: str | None) -> list[tuple[str, str, str]]:
    """The rows (what, by whom, evidence) of all checks that were made or can be made."""
    verifier = "can be, by anyone: forethought account --verify"
    ran = "The rounds that ran are the rounds in this statement"
    nobody = "nobody: nothing is known to have run"
    plain = s.accountant["kind"] in (EXACT, KNOWN_BATCHES) and all(
        type(part) is Rounds and part.sampling.kind in ("poisson", "full-batch")
        for part in s.mechanism
    )
    files = "The files that it rests on are the run's own"
    model = None if s.about is None else s.about.model
    key = signed if s.signature is None else s.signature.fingerprint
    verdict = {None: "nobody, as far as this folder shows", False: "an audit: not refuted"}
    rows: list[tuple[object, str, str, str]] = [
        (s.releases, ran, "the run, before it wrote this", "its transcript, round by round"),
        (not s.releases, "What ran", nobody, "none: it is about a plan"),
        (
            True,
            "ε, δ and the table of attacks follow from the rounds",
            f"the run; {verifier}",
            "the rounds in statement.json",
        ),
        (
            plain and s.private and s.releases,
            "The same by a second program and another method",
            "can be, by anyone: tools/verify.py of the source code",
            "transcript.json and plan.json, which it needs",
        ),
        (s.evidence, files, verifier, ", ".join(s.evidence.files) if s.evidence else ""),
        (
            s.evidence is None and s.plan,
            "The plan beside it is the one that ran",
            verifier,
            f"{s.plan or '':.19}…",
        ),
        (model, "The model file is the one it is about", verifier, f"{model or '':.19}…"),
        (key, "Who stands behind it", f"{verifier} --public-key FILE", f"Ed25519 key {key}"),
        (
            True,
            "The code did what it says (an attempt to refute it)",
            verdict.get(audited, "an audit: REFUTED"),
            "no audit.json of this plan: forethought audit tries"
            if audited is None
            else "audit.json",
        ),
    ]
    return [(what, by, evidence) for there, what, by, evidence in rows if there]


def _head(s: Statement, first: str, second: str) -> list[str]:
    kind = "promise" if s.private else "promise broken"
    return [f'<div class="{kind}"><p>{escape(first)}</p><p>{escape(second)}</p></div>']


def _strength(s: Statement) -> list[str]:
    table = [(f"{rate:.1%}", at_most(power, ".2%")) for rate, power in s.attack]
    others = sorted([*PUBLISHED, (s.epsilon.upper, "this statement")])
    return [
        '<div class="pair"><div><p>Whatever test an attacker uses to tell '
        f"{escape(sought(s))}, this is the best they can do. Guessing blindly gives as many "
        "detections as false alarms.</p>",
        _table(("false alarms accepted", "detections, at most"), table),
        "</div><div><p>Smaller is stronger. What others promised in public protects other things "
        "in other settings and does not compare exactly:</p>",
        _table(("who, and for what", "ε"), [(name, at_most(e, ".4g")) for e, name in others]),
        "</div></div>",
    ]


def _annex(s: Statement) -> list[str]:
    told_by = [*numbers(s), ("who chose the numbers", s.hyperparameters)]
    released = [(name, f"{count:,}", str(noise)) for name, count, noise in rows(s.releases)]
    parts = ['<div class="pair">', _table(("", ""), told_by, head=False)]
    if released:
        parts.append(_table(("released", "times", "noise multiplier"), released))
    parts.append("</div>")
    parts.append(_list(f"Theorem: {text}" for text in s.theorems))
    parts.append(
        "<p><code>forethought account --verify statement.json</code> recomputes what follows from "
        "the mechanism in that file, and says what cannot be recomputed.</p>"
    )
    return parts


def _result(results: Results) -> list[str]:
    form, parts = ".3g" if results.task == "regression" else ".3f", []  # any unit, or shares
    # The baseline, which answers the class frequencies, is calibrated by definition.
    plain = {n: format(v, form) for n, v in results.baseline.items() if n != "calibration error"}
    figures = [
        (name, format(one.value, form), one.around(form).strip(" ()"), plain.get(name, ""))
        for name, one in results.figures.items()
    ]
    if results.weak and not results.warnings():
        parts.append(_warning(results.sentences()[-1]))
    if results.target is not None:
        parts.append(f"<p>Errors are in units of {escape(results.target)}.</p>")
    heads = ("figure", f"on {results.examples:,} held-out records", "95 % interval", "no model")
    parts.append(_table(heads, figures))
    if results.classes and len(results.classes) <= 20:
        table = [
            (name, *(f"{n:,}" for n in row), "" if recall is None else f"{recall:.1%}")
            for name, row, recall in zip(
                results.classes, results.confusion, results.recall, strict=True
            )
        ]
        columns = ("true class, taken for:", *results.classes, "found")
        title = "Which classes it takes for which"
        if results.task == "multilabel":
            title = "Which labels it finds"
            columns = ("label", "rightly not given", "wrongly given", "missed", "given", "found")
        parts += [f"<h3>{title}</h3>", _table(columns, table)]
        if results.classes[0] == "class 0":
            parts.append(
                "<p>Classes are numbered in the order of <code>job.toml</code>; their names stand "
                "here once their owner has declared them (columns_measured = false).</p>"
            )
    return parts


def _curves(summary: RunSummary) -> list[str]:
    found, delta = [], at_most(summary.statement.delta, ".3g")
    for name, title, shown, marked in (
        ("accuracy", "accuracy on held-out records, by likeliest answers", percent, None),
        ("epsilon", f"ε at δ = {delta}", short, lambda epsilon: at_most(epsilon, ".3g")),
    ):
        # Without noise ε is infinite and cannot be drawn.
        points = [one for one in column(summary.metrics, name) if math.isfinite(one[1])]
        if len(points) > 1:
            drawn = curve(points, "round", title, shown=shown, marked=marked)
            found.append(_captioned(drawn, title))
    attack = _attack(summary.statement)
    if attack:
        blind = [(a / 10, a / 10) for a in range(11)]
        drawn = curve(
            attack,
            "false alarms accepted",
            "detections, at most",
            shown=percent,
            marked=lambda power: at_most(power, ".1%"),
            reference=blind,
            reference_name="blind guessing",
            lowest=0.0,
            highest=1.0,
        )
        found.append(_captioned(drawn, "what an attacker can reach"))
    return found


def _attack(s: Statement) -> list[tuple[float, float]]:
    composed = s.way.composed
    if composed is None or not s.private:
        return []
    from forethought.accounting.tradeoff import tradeoff

    alarms = [number / (_CURVE - 1) for number in range(_CURVE)]
    # In one call, since a hundred points cost as much as one.
    missed = tradeoff(composed(s.mechanism), group=s.group)(alarms).tolist()
    return [(alarm, 1 - one) for alarm, one in zip(alarms, missed, strict=True)]


def _capital(text: object) -> str:
    return str(text)[:1].upper() + str(text)[1:]


def _warning(text: str) -> str:
    return f'<p class="warning">{escape(_capital(text))}.</p>'


def _list(texts: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def _table(heads: Sequence[str], body: Iterable[Sequence[str]], *, head: bool = True) -> str:
    cells = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    names = f"<thead><tr>{cells}</tr></thead>" if head else ""
    lines = (
        f'<tr><th scope="row">{escape(first)}</th>'
        f"{''.join(f'<td>{escape(text)}</td>' for text in rest)}</tr>"
        for first, *rest in body
    )
    return f'<div class="wide"><table>{names}<tbody>{"".join(lines)}</tbody></table></div>'


def _page(title: str, body: Iterable[str]) -> str:
    own = resources.files("forethought.report")
    style, script = (
        own.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    content = "".join(body)
    # A page without curves needs no script.
    moving = f"<script>{script}</script>" if 'class="chart"' in content else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head>"
        f"<body><main>{content}</main>{moving}</body></html>\n"
    )


# Print of a page to PDF.


BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
    *("chrome", "microsoft-edge", "brave-browser"),
)
_SECONDS = 180
_QUIET = ("sync", "background-networking", "component-update", "default-apps", "extensions", "gpu")


class PrintingError(ValueError):
    """A page cannot be printed on this machine; the message says what to do instead."""


def browser() -> str | None:
    """The path of a browser that can print without a window; None: there is none on the path."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def print_pdf(page: Path, pdf: Path) -> Path:
    """Print an HTML page to the file ``pdf``, which is replaced if it exists; returns its path.

    Raises:
        PrintingError: no browser, or one that fails.
    """
    program = browser()
    if program is None:
        raise PrintingError(
            f"no browser that prints by itself: install chromium, or print {page} from yours"
        )
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "page.pdf"
        command = [
            program,
            "--headless",
            # Chromium's sandbox does not start for root, for example in a container.
            *(["--no-sandbox"] if os.name == "posix" and os.geteuid() == 0 else []),
            "--no-first-run",
            *(f"--disable-{name}" for name in _QUIET),
            "--host-resolver-rules=MAP * ~NOTFOUND",  # the page needs no network
            f"--user-data-dir={folder}/profile",
            "--no-pdf-header-footer",
            f"--print-to-pdf={made}",
            page.resolve().as_uri(),
        ]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise PrintingError(f"{program} did not print {page} in {_SECONDS} seconds") from None
        if done.returncode or not made.is_file() or not made.read_bytes().startswith(b"%PDF"):
            raise PrintingError(
                f"{program} could not print {page}: open it in a browser and print it to a file"
            )
        with replaced(pdf) as file:
            file.write(made.read_bytes())
    return pdf
