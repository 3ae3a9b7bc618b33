"""The table of additive models is what the committed rows say."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_says_what_was_run() -> None:
    run = runpy.run_path(str(ROOT / "experiments" / "additive" / "run.py"))
    text = run["PAGE"].read_text(encoding="utf-8")
    between = text.split(run["MARKS"][0])[1].split(run["MARKS"][1])[0]
    assert between.strip() == run["shown"](), "python experiments/additive/run.py --write"
    rows = run["read"]()
    known = {
        name for sets in (run["HELD"], run["LOOKED"]) for names in sets.values() for name in names
    }
    assert {row["table"] for row in rows} <= known
    assert len({(row["table"], row["seed"], row["arm"]) for row in rows}) == len(rows)
