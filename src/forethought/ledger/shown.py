"""An account in a few lines: what is spent, what is left, and what that can still buy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from forethought.accounting.interval import at_least, at_most
from forethought.ledger.book import Book
from forethought.ledger.history import history
from forethought.ledger.page import in_plain_words


@dataclass(frozen=True)
class Shown:
    """An account as it stands. text: for people. values: JSON-ready."""

    text: str
    values: dict[str, Any]


def shown(book: Book, data: str) -> Shown:
    """An account as it stands, in words and values. Raises BookError: no such account."""
    account, total = book.account(data), book.total(data)
    reservations = book.reservations(data)
    budget, more = account.budget, None
    if reservations:
        more = history(book.entries(), data).more(reservations[-1].charge)
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
        "total": {**asdict(total), "by_part": dict(total.by_part)},
        "more_like_the_last": more,
        "reservations": [
            {
                **{name: getattr(one, name) for name in ("number", "status", "by", "purpose")},
                **{name: getattr(one, name) for name in ("run", "mark", "released", "at")},
                "rounds": one.charge.rounds,
                "partition": one.charge.partition,
            }
            for one in reservations
        ],
    }
    return Shown("\n".join(lines), values)
