"""Time of a reservation and of its settlement in a book that has grown, on SQLite and PostgreSQL.

python benchmarks/ledger.py            # behind 10,000 entries, and behind none
python benchmarks/ledger.py --smoke    # behind 20

Seconds of the clock, of one process that nobody else writes beside: both databases have each change
on the disk before it returns, so the disk has a part in it. The charge is priced once before. A
settlement returns the new total, whose ε takes most of its time; "total" is that alone.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from forethought.ledger.book import Account, Book, Charge
from forethought.ledger.store import create
from trials.ledger import BUDGET, DATA, ENGINES, charge_for, impossible, place


def times(book: Book, charge: Charge, runs: int) -> dict[str, list[float]]:
    """Seconds of each call."""
    found: dict[str, list[float]] = {"reserve": [], "settle": [], "total": []}
    for run in range(runs):
        begun = time.perf_counter()
        number = book.reserve(DATA, charge).number
        found["reserve"].append(time.perf_counter() - begun)
        book.begin(number, f"run {run}")
        begun = time.perf_counter()
        book.settle(number, 1 + run % 4)
        found["settle"].append(time.perf_counter() - begun)
        begun = time.perf_counter()
        book.total(DATA)
        found["total"].append(time.perf_counter() - begun)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    entries, runs = (20, 5) if arguments.smoke else (10_000, 200)
    print("| database | entries before | call | median, ms | 95 % below, ms |")
    print("| --- | --- | --- | --- | --- |")
    for engine in ENGINES:
        if engine == "postgresql" and (reason := impossible()):
            print(f"| {engine} | | {reason} | | |")
            continue
        with (
            place(engine) as (url, _),
            contextlib.closing(create(url("book"), actor="benchmark")) as book,
        ):
            book.open_account(Account(DATA, BUDGET))
            charge, _ = charge_for(100_000)
            for before in (0, entries):
                for _ in range(before - len(book.entries())):
                    book.reserve(DATA, charge)
                here = len(book.entries())
                for call, seconds in times(book, charge, runs).items():
                    middle, high = statistics.median(seconds), sorted(seconds)[-(runs // 20) - 1]
                    print(
                        f"| {engine} | {here:,} | {call} | {1e3 * middle:.2f} | {1e3 * high:.2f} |"
                    )


if __name__ == "__main__":
    main()
