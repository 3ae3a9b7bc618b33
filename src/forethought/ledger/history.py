"""The total of an account over time, recomputed from the entries of its book."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forethought.ledger.book import BookError, Charge, Entry
from forethought.ledger.chain import sum_of
from forethought.ledger.totals import Sums, TotalRule


@dataclass(frozen=True)
class Point:
    """The total ε after an entry. number, at: those of the entry."""

    number: int
    at: str
    epsilon: float


@dataclass(frozen=True)
class History:
    """The charges to one account over time.

    Args:
        rule: the account's rule.
        sums: partition → charges; "" for charges to all records.
        points: the total after each entry that changed it.
    """

    rule: TotalRule
    sums: dict[str, Sums]
    points: tuple[Point, ...]

    def more(self, charge: Charge) -> int:
        """The number of charges like this one that still fit."""
        return self.rule.more(sum_of(self.rule, self.sums, charge.partition), charge)


def history(entries: Iterable[Entry], data: str, head: str | None = None) -> History:
    """The history of an account, from the costs in the book's entries.

    Args:
        entries: of the whole book, oldest first.
        head: hash of the last entry to count; None: all.

    Raises:
        BookError: no such account, or no entry with that hash.
    """
    rule: TotalRule | None = None
    charged: dict[int, tuple[str, Sums]] = {}
    sums: dict[str, Sums] = {}
    points, seen = [], head is None
    for entry in entries:
        values = entry.values
        number = int(values.get("reservation", 0))
        if entry.kind == "account" and values["account"]["data"] == data:
            rule = TotalRule.from_dict(values["rule"])
            sums[""] = rule.nothing
        elif entry.kind == "reserve" and values["data"] == data and rule is not None:
            charged[number] = (values["charge"]["partition"] or "", rule.nothing)
        if rule is not None and number in charged and "costs" in values:
            part, before = charged[number]
            now: Sums = tuple(values["costs"])
            held = sums.get(part, rule.nothing)
            sums[part] = tuple(a + b - c for a, b, c in zip(held, now, before, strict=True))
            charged[number] = (part, now)
            total = rule.total_epsilon(sum_of(rule, sums))
            points.append(Point(entry.number, values["at"], total))
        if entry.hash == head:
            seen = True
            break
    if rule is None:
        raise BookError(f"the book has no account of {data!r}")
    if not seen:
        raise BookError(f"no entry has the hash {head}: the book was set back, or is another one")
    return History(rule, sums, tuple(points))
