"""Finished rows of an experiment, in a file that grows, so that nothing is run twice."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path


def kept(path: Path) -> list[dict[str, str]]:
    """The rows so far; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def keep(path: Path, fields: Sequence[str], found: Iterable[tuple[object, ...]]) -> None:
    """Write more rows behind them."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(fields)
        writer.writerows(found)
