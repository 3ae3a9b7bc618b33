"""The five papers as data: claims, errors, tables printed beside ours, and every item's fate.

``papers.toml`` beside this file is written by hand; ``tables.json`` is made from the rows that the
repository's experiments have committed (``python tools/papers.py``).
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
    """One thing of a paper.

    Args:
        what: algorithm, statement, parameter, figure or table. verdict: what became of it.
        where: ``module:name`` below forethought, or a command in backquotes. note: why, or how far.
    """

    what: str
    verdict: Verdict
    where: str = ""
    note: str = ""


@dataclass(frozen=True)
class PaperTable:
    """A printed table beside ours.

    Args:
        number: its number. command: what prints ours again. text: Markdown.
        source: the committed file that it was taken from. start: the line or the rows it was
            taken by.
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
        name: its number. title: its title. page: of the documentation, about what it became.
        claims: in a sentence. wrong: where it is wrong or loose, and by how much.
        tables, items: all of them.
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
            ValueError: no such table is committed.
        """
        for found in self.tables:
            if found.number == number:
                return found
        known = ", ".join(found.number for found in self.tables)
        raise ValueError(f"paper {self.name} has no table {number!r} with numbers: it has {known}")


@cache
def papers() -> dict[str, Paper]:
    """All papers by their number, ``"000"`` to ``"004"``."""
    folder = files("forethought.papers")
    told = tomllib.loads((folder / "papers.toml").read_text(encoding="utf-8"))
    texts = json.loads((folder / "tables.json").read_text(encoding="utf-8"))
    return {
        name: Paper(
            name,
            paper["title"],
            paper["page"],
            paper["claims"],
            tuple(paper["wrong"]),
            tuple(
                PaperTable(number, command, texts[name][number], source, start)
                for number, source, start, command in paper["tables"]
            ),
            tuple(Item(what, verdict, *rest) for what, verdict, *rest in paper["items"]),
        )
        for name, paper in told.items()
    }


def paper(name: str) -> Paper:
    """A paper by its number.

    Raises:
        ValueError: no such paper.
    """
    found = papers()
    if name not in found:
        raise ValueError(f"no paper {name!r}: there are {', '.join(found)}")
    return found[name]
