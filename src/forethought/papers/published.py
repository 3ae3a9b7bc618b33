"""The five papers as data: claims, errors, tables beside our results, and a verdict on each item.

``papers.toml`` beside this file is written by hand; ``tables.json`` is made from the committed
results of the repository's experiments (``python tools/papers.py``).
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

Verdict = Literal["works", "corrected", "left out"]


@dataclass(frozen=True)
class Item:
    """One item of a paper.

    Args:
        what: the algorithm, statement, parameter, figure or table.
        verdict: "works", "corrected" or "left out".
        where: ``module:name`` below forethought, or a command in backquotes.
        note: the reason, or the extent.
    """

    what: str
    verdict: Verdict
    where: str = ""
    note: str = ""


@dataclass(frozen=True)
class PaperTable:
    """A printed table beside our results.

    Args:
        number: number of the table.
        command: the command that prints our results again.
        text: the table in Markdown.
        source: the committed file from which it was taken.
        start: the line or the rows at which it was found in ``source``.
    """

    number: str
    command: str
    text: str
    source: str
    start: str


@dataclass(frozen=True)
class Paper:
    """One paper.

    Args:
        name: number of the paper.
        title: title of the paper.
        page: the page of the documentation about it.
        claims: its claims in a sentence.
        wrong: where it is wrong or loose, and by how much.
        tables, items: all its tables and items.
    """

    name: str
    title: str
    page: str
    claims: str
    wrong: tuple[str, ...]
    tables: tuple[PaperTable, ...]
    items: tuple[Item, ...]

    def table(self, number: str) -> PaperTable:
        """A table by its number.

        Raises:
            ValueError: there is no such table.
        """
        for found in self.tables:
            if found.number == number:
                return found
        known = ", ".join(found.number for found in self.tables)
        raise ValueError(f"no table {number!r} of paper {self.name} stands beside ours: {known} do")


@cache
def papers() -> dict[str, Paper]:
    """All papers by their number, ``"000"`` to ``"004"``."""
    folder = files("forethought.papers")
    told = tomllib.loads((folder / "papers.toml").read_text(encoding="utf-8"))
    texts = json.loads((folder / "tables.json").read_text(encoding="utf-8"))
    for name, own in told.items():
        own["wrong"] = tuple(own["wrong"])
        own["tables"] = tuple(
            PaperTable(number, command, texts[name][number], source, start)
            for number, source, start, command in own["tables"]
        )
        own["items"] = tuple(Item(*item) for item in own["items"])
    return {name: Paper(name, **own) for name, own in told.items()}


def paper(name: str) -> Paper:
    """A paper by its number.

    Raises:
        ValueError: there is no such paper.
    """
    found = papers()
    if name not in found:
        raise ValueError(f"no paper {name!r}: there are {', '.join(found)}")
    return found[name]
