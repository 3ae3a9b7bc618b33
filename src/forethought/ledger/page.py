"""The auditor's page: reservations of a data set, their authors and purposes, and their total.

It is one file of HTML with no script, no fonts and no network access; its curve is SVG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from forethought.accounting.interval import at_least, at_most
from forethought.ledger.book import Book, Charge, Entry, Reservation, Total
from forethought.ledger.chain import charge_from
from forethought.ledger.history import Point, history

# The largest number of points of the curve; and its position in the picture.
MOST_POINTS = 400
WIDTH, HEIGHT = 720, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 14, 34


def in_plain_words(charge: Charge) -> str:
    """A charge in words: rounds, noise, batches."""
    mechanism, parts = charge.mechanism, []
    for part in list(mechanism)[:4]:
        rate = getattr(part.sampling, "rate", None)
        batches = part.sampling.kind.replace("-", " ") if rate is None else f"rate {rate:.3g}"
        word = "round" if part.count == 1 else "rounds"
        parts.append(f"{part.count:,} {word}, σ {part.noise_multiplier:.4g}, {batches}")
    more = len(list(mechanism)) - len(parts)
    words = "; ".join([*parts, *([f"and {more} more parts"] if more > 0 else [])])
    found = charge.selection
    return words if found is None else f"best of {found.trials.mean:.3g} trials (mean): {words}"


def _at_once(book: Book, data: str) -> tuple[Total, Sequence[Reservation], Sequence[Entry]]:
    """An account's total and reservations, and the entries, of one moment if others let it be."""
    entries = [*book.entries()]
    for _ in range(5):  # others may write without a pause
        total, reservations = book.total(data), book.reservations(data)
        if not (newer := book.entries(entries[-1].number if entries else 0)):
            break
        entries += newer
    return total, reservations, entries


def account_page(book: Book, data: str) -> str:
    """The page of one data set, for an auditor. Raises BookError: no such account."""
    account, (total, reservations, entries) = book.account(data), _at_once(book, data)
    problems = book.verify(total.head)
    points = history(entries, data).points
    budget = account.budget
    refused = [
        entry for entry in entries if entry.kind == "refuse" and entry.values["data"] == data
    ]
    unit = "person, with all of their records" if account.unit == "person" else "record"
    facts = [
        ("Spent, as an upper bound", f"ε {at_most(total.epsilon)}"),
        ("Budget", f"ε {budget.epsilon:g}"),
        ("At δ", at_most(budget.delta, ".3g")),
        ("Left for one more release", f"ε {at_least(total.left)}"),
        ("Reservations", f"{len(reservations):,}"),
        ("Refused", f"{len(refused):,}"),
    ]
    cells = "".join(f"<div><dt>{escape(a)}</dt><dd>{escape(b)}</dd></div>" for a, b in facts)
    until = "" if account.until is None else f", until {account.until}"
    body = [
        f"<h1>{escape(data)}</h1>",
        f'<p class="soft">One budget for all that is learned from it. It protects one {unit} '
        f"({escape(account.adjacency)}); opened {escape(account.opened)}{until}.</p>",
        f'<dl class="facts">{cells}</dl>',
        _verdict(problems, total.head, len(entries)),
        "<h2>The total over time</h2>",
        "<p>Every reservation is charged in full when it is made, before its run reads a record. "
        "What a run did not release can return when it is settled, so the line may fall.</p>",
        _curve(points, budget.epsilon),
        "<h2>Reservations</h2>",
        _reservations(reservations, points, entries),
    ]
    if len(total.by_part) > 1:
        body += ["<h2>Partitions</h2>", _parts(total.by_part)]
    body += ["<h2>Refused</h2>", _refusals(refused)]
    body += ["<h2>Records that are known</h2>", _registered(entries, data)]
    body += ["<h2>Decisions of owners</h2>", _decisions(entries, {r.number for r in reservations})]
    return _page(f"{data} · ledger", body)


def index_page(book: Book) -> str:
    """All accounts of a book, with links to their pages."""
    rows = []
    for account in book.accounts():
        total = book.total(account.data)
        name = escape(account.data)
        rows.append(
            [
                f'<a href="/accounts/{quote(account.data, safe="")}">{name}</a>',
                _number(f"{at_most(total.epsilon)}"),
                _number(f"{account.budget.epsilon:g}"),
                _number(at_most(account.budget.delta, ".3g")),
                escape(account.until or "no end"),
            ]
        )
    heads = ("Data set", "ε spent", "ε of the budget", "δ", "Until")
    table = _table("Accounts of this book", heads, rows, "No account yet.")
    return _page("Ledger", ["<h1>Ledger</h1>", table])


def _verdict(problems: Sequence[str], head: str, count: int) -> str:
    if problems:
        rows = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
        return f'<p class="over"><strong>The book does not verify:</strong></p><ul>{rows}</ul>'
    return (
        f'<p class="good"><strong>The book verifies:</strong> all {count:,} entries are chained, '
        f"and their sums are right.</p><p>Head, to compare with statements: <code>{escape(head)}"
        "</code></p>"
    )


def _reservations(
    rows: Sequence[Reservation], points: Sequence[Point], entries: Sequence[Entry]
) -> str:
    after = {point.number: point.epsilon for point in points}
    then = {
        int(entry.values["reservation"]): after[entry.number]
        for entry in entries
        if entry.kind == "reserve" and entry.number in after
    }
    made = []
    for one in rows:
        planned = one.charge.rounds
        released = f"{one.released:,}" if one.released is not None else f"{one.mark:,} at most"
        if one.released is not None and one.released < one.mark:
            released += f" (mark {one.mark:,})"  # any more rounds may have been released
        part = "" if one.charge.partition is None else f" · {one.charge.partition}"
        group = "" if one.charge.group == 1 else f" · groups of {one.charge.group}"
        made.append(
            [
                str(one.number),
                *_when_and_who(one.at, one.by),
                escape(one.purpose or "not said"),
                escape(in_plain_words(one.charge) + part + group),
                escape(one.status),
                _number(f"{released} of {planned:,}"),
                _number(at_most(then[one.number]) if one.number in then else ""),
            ]
        )
    heads = ("No.", "When (UTC)", "By", "Purpose", "Plan", "Status", "Released", "Total ε then")
    return _table("Oldest first; an active one has not been settled", heads, made, "None yet.")


def _parts(by_part: Mapping[str, float]) -> str:
    rows = [
        [escape(name or "all records"), _number(at_most(value))]
        for name, value in sorted(by_part.items())
    ]
    return _table("ε of what touched the records of each part", ("Part", "ε"), rows, "None.")


def _refusals(entries: Sequence[Entry]) -> str:
    rows = [
        [
            *_head(entry, entry.number),
            escape(str(entry.values.get("purpose") or "not said")),
            escape(in_plain_words(charge_from(entry.values["charge"]))),
            _number(at_least(float(entry.values["left"]))),
        ]
        for entry in entries
    ]
    heads = ("Entry", "When (UTC)", "By", "Purpose", "Plan", "ε left then")
    return _table("What did not fit; nothing was charged for it", heads, rows, "None.")


def _registered(entries: Sequence[Entry], data: str) -> str:
    reasons = {
        e.values["entry"]: f"taken out by {e.values['actor']}: {e.values['reason']}"
        for e in entries
        if e.kind == "forget"
    }
    rows = [
        [
            *_head(entry, entry.number),
            escape(entry.values["partition"] or "all records"),
            _number(f"{entry.values['new']:,}"),
            f"<code>{escape(str(entry.values.get('fingerprint', ''))[:16])}</code>",
            escape(reasons.get(entry.number, "")),
        ]
        for entry in entries
        if entry.kind in ("partition", "records") and entry.values["data"] == data
    ]
    heads = ("Entry", "When (UTC)", "By", "Part", "New", "Fingerprint begins", "Decision")
    caption = "Keyed hashes, by which the same records are noticed elsewhere"
    none = "None: no run said by which key records are recognised."
    return _table(caption, heads, rows, none)


def _decisions(entries: Sequence[Entry], numbers: set[int]) -> str:
    rows = [
        [
            *_head(entry, entry.values["reservation"]),
            _number(f"{int(entry.values['rounds']):,}"),
            escape(str(entry.values["reason"])),
        ]
        for entry in entries
        if entry.kind == "end" and entry.values["reservation"] in numbers
    ]
    heads = ("Reservation", "When (UTC)", "By", "Rounds charged", "Reason")
    caption = "Reservations that were ended, since their runs were gone"
    return _table(caption, heads, rows, "None: every run that ended settled itself.")


def _head(entry: Entry, number: int) -> list[str]:
    return [str(number), *_when_and_who(entry.values["at"], entry.values["actor"])]


def _when_and_who(at: object, actor: object) -> list[str]:
    return [escape(str(at).replace("T", " ")[:16]), escape(str(actor))]


def _number(text: str) -> str:
    return f"\0{escape(text)}"


def _table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], none: str) -> str:
    """A table, or a paragraph if it has no rows.

    Cells are HTML; those of :func:`_number` are aligned as numbers.
    """
    if not rows:
        return f"<p>{none}</p>"
    numeric = [any(cell.startswith("\0") for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [f'<th scope="row">{row[0]}</th>']
        for head, cell in zip(heads[1:], row[1:], strict=True):
            plain = cell.removeprefix("\0")
            kind = ' class="number"' if plain != cell else ""
            cells.append(f'<td{kind} data-name="{escape(head, quote=True)}">{plain}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    above = "".join(
        f'<th scope="col"{" class=number" if right else ""}>{escape(head)}</th>'
        for head, right in zip(heads, numeric, strict=True)
    )
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{above}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table>"
    )


def _curve(points: Sequence[Point], limit: float) -> str:
    """The total as steps over the entries, with a line for the budget."""
    if not points:
        return "<p>Nothing was reserved yet.</p>"
    step = max(1, -(-len(points) // MOST_POINTS))
    # Of neighbouring points that share a place, the highest is shown.
    shown = [
        max(points[at : at + step], key=lambda point: point.epsilon)
        for at in range(0, len(points), step)
    ]
    shown[-1] = points[-1]
    top = 1.08 * max(limit, *(point.epsilon for point in shown))
    wide, high = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM

    def x(place: float) -> float:
        return round(_LEFT + wide * place / len(shown), 1)

    def y(value: float) -> float:
        return round(_TOP + high * (1 - value / top), 1)

    path = f"M{x(0)} {y(0)}"
    for place, point in enumerate(shown):
        path += f" V{y(point.epsilon)} H{x(place + 1)}"
    lines = []
    for tick in (0.0, limit / 2, limit):
        kind = "limit" if tick == limit else "grid"
        at = y(tick)
        lines.append(
            f'<line class="{kind}" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at}" y2="{at}"/>'
            f'<text x="{_LEFT - 8}" y="{at + 4}" text-anchor="end">{tick:.3g}</text>'
        )
    first, last = points[0].at[:10], points[-1].at[:10]
    words = (
        f"The total ε rose to {at_most(points[-1].epsilon)} of {limit:g} in {len(points)} entries, "
        f"from {first} to {last}"
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(words)}">'
        f"{''.join(lines)}"
        f'<text x="{_LEFT + 6}" y="{y(limit) - 6}">budget</text>'
        f'<path class="line" d="{path}"/>'
        f'<text x="{_LEFT}" y="{HEIGHT - 8}">{escape(first)}</text>'
        f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 8}" text-anchor="end">{escape(last)}</text>'
        f'</svg><p class="soft">{escape(words)}.</p>'
    )


def _page(title: str, body: Sequence[str]) -> str:
    style = files(__package__).joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


# The same content in a few lines of text.


def shown(book: Book, data: str) -> tuple[str, dict[str, Any]]:
    """The present state of an account as text for people, and as JSON values.

    Raises BookError: no such account.
    """
    account, (total, reservations, entries) = book.account(data), _at_once(book, data)
    budget, apart = account.budget, ("data", "charge")
    more = history(entries, data).more(reservations[-1].charge) if reservations else None
    end = "" if account.until is None else f", until {account.until}"
    lines = [
        f"{data}: ε {at_most(total.epsilon)} of {budget.epsilon:g} is spent at δ "
        f"{budget.delta:g} ({account.unit}, {account.adjacency}{end})",
        f"  left: one more release of ε {at_least(total.left)}",
    ]
    if more is not None:
        last = reservations[-1]
        words = {0: "no more run", 1: "about 1 more run"}.get(more, f"about {more:,} more runs")
        lines[-1] += f", or {words} like the last one ({in_plain_words(last.charge)})"
    for part, epsilon in sorted(total.by_part.items()):
        if part:
            lines.append(f"  {part}: ε {at_most(epsilon)}")
    for one in reservations:
        planned = one.charge.rounds
        done = f"{one.released:,}" if one.released is not None else f"at most {one.mark:,}"
        purpose = f", {one.purpose}" if one.purpose else ""
        lines.append(
            f"  {one.number:>4}  {one.at[:10]}  {one.status:<8}  {one.by}{purpose}: "
            f"{done} of {planned:,} rounds"
        )
    lines.append(f"  head: {total.head}")
    values = {
        "account": asdict(account),
        "total": asdict(total),
        "more_like_the_last": more,
        "reservations": [
            {
                **{name: value for name, value in vars(one).items() if name not in apart},
                "rounds": one.charge.rounds,
                "partition": one.charge.partition,
            }
            for one in reservations
        ],
    }
    return "\n".join(lines), values
