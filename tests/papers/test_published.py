"""Every place of the inventory exists, its tables are those that were committed, and little is left
out."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from forethought.papers.published import Item, Verdict, paper, papers

ROOT = Path(__file__).parents[2]
ITEMS = [(name, item) for name, one in papers().items() for item in one.items]


def exists(item: Item) -> bool:
    """Whether a module has the name, a command is one of ours, or a script lies where it says."""
    if not item.where.startswith("`"):
        module, _, names = item.where.partition(":")
        try:
            found = import_module(f"forethought.{module}")
            for name in names.split("."):
                found = getattr(found, name)
        except (ImportError, AttributeError):
            return False
        return True
    words = item.where.strip("`").split()
    if words[0] == "forethought":
        from forethought.cli import app

        return words[1] in {c.callback.__name__ for c in app.registered_commands if c.callback}
    if not (ROOT / "experiments").is_dir():
        pytest.skip("the experiments are not in this copy")
    return words[0] == "python" and (ROOT / words[1]).is_file()


@pytest.mark.parametrize("name", papers())
def test_every_place_exists(name: str) -> None:
    items = [item for item in paper(name).items if item.verdict != "left out"]
    assert [item for item in items if not exists(item)] == []


def test_a_place_that_is_not_there_is_noticed() -> None:
    item = next(item for _, item in ITEMS if item.where == "papers.convergence:staleness")
    assert exists(item)
    for where in ("papers.convergence:no_such", "no.such:name", "`forethought nothing`"):
        assert not exists(replace(item, where=where))


def test_what_is_left_out_is_little_and_has_its_reason() -> None:
    assert {item.verdict for _, item in ITEMS} <= set(get_args(Verdict))
    out = [item for _, item in ITEMS if item.verdict == "left out"]
    assert len(out) <= 5
    assert all(item.note and not item.where for item in out)
    assert all(item.note for _, item in ITEMS if item.verdict == "corrected" and "`" in item.where)
    named = [(name, item.what) for name, item in ITEMS]
    assert len(set(named)) == len(named) >= 155


def test_tables_and_pages_are_made_from_what_is_committed() -> None:
    if not (ROOT / "experiments").is_dir():
        pytest.skip("the experiments are not in this copy")
    made = import_module("papers")  # tools/papers.py
    assert made.stale() == [], "python tools/papers.py"
    text = "| a | 1 |\n| --- | --- |\n| x | 2 |\n| y | 3 |\n\nEnd\n\n# Next\n| a |\n"
    assert made.extract(text, "| y |") == "| a | 1 |\n| --- | --- |\n| y | 3 |"
    assert made.extract("# One\nwords\n\n" + text, "=# One").endswith("| y | 3 |")
    assert made.extract("# One\nwords\n# Two\nmore", "# One") == "words"


def test_a_table_is_found_by_its_number() -> None:
    assert "12.10881" in paper("000").table("7").text
    with pytest.raises(ValueError, match="no table '1'"):
        paper("000").table("1")
    with pytest.raises(ValueError, match="no paper"):
        paper("7")
