"""Committed tables that a command prints within seconds are what it prints now."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import forethought as ft

ROOT = Path(__file__).parents[2]


def printed(script: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), *words],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize("room", ["general_framework", "proactive_dp"])
def test_the_tables_of_a_paper_are_what_its_script_prints(room: str) -> None:
    folder = ROOT / "experiments" / room
    assert printed(folder / "tables.py") == (folder / "tables.md").read_text("utf-8").strip()


@pytest.mark.parametrize("name", ["gradients", "gradients_two_threads"])
def test_the_page_on_gradients_has_the_kept_ratios(name: str) -> None:
    kept = ROOT / "benchmarks" / f"{name}.json"
    tables = printed(ROOT / "benchmarks" / "gradients.py", "--print", str(kept))
    assert tables in (ROOT / "docs" / "gradients.md").read_text("utf-8")


def test_the_page_on_gradients_says_what_a_wrong_way_costs() -> None:
    kept = ROOT / "benchmarks" / "kernels.json"
    said = printed(ROOT / "benchmarks" / "kernels.py", "--print", str(kept))
    assert said in (ROOT / "docs" / "gradients.md").read_text("utf-8")


def test_the_page_on_the_papers_ends_with_what_its_script_prints() -> None:
    page = (ROOT / "docs" / "papers.md").read_text("utf-8").strip()
    assert page.endswith(printed(ROOT / "docs" / "papers.py"))


def test_the_page_on_budgets_says_what_attackers_reach() -> None:
    """Percent of members found at 1 % false alarms, in the plans that the page names."""
    page = (ROOT / "docs" / "how_to" / "choose_a_budget.md").read_text("utf-8")
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) % \|$", page, re.M)
    assert len(rows) == 3
    for epsilon, percent in rows:
        plan = ft.plan(examples=10_000, epochs=20, budget=ft.Budget(float(epsilon), 1e-5))
        assert f"succeeds at most {percent}% of" in ft.account(plan).sentences()[1]
