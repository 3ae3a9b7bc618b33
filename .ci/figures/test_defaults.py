"""The page on defaults, and the one beside the results, say what the kept results say."""

from __future__ import annotations

import csv
import importlib.util
import re
import statistics
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "experiments" / "defaults"


def words(path: Path) -> str:
    """A file's text, however its lines are broken."""
    return " ".join(path.read_text(encoding="utf-8").split())


def told() -> str:
    """The text of the two pages that speak of the default plan."""
    return words(ROOT / "docs" / "defaults.md") + words(KEPT / "README.md")


def groups() -> dict[str, list[str]]:
    """The paragraphs under each heading of results.md."""
    found = {}
    for part in (KEPT / "results.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, *paragraphs = part.strip().split("\n\n")
        found[heading] = paragraphs
    return found


def test_the_page_has_the_summaries_that_the_command_wrote() -> None:
    page = told()
    written = groups()
    assert "Held out" in written
    for paragraphs in written.values():
        for paragraph in paragraphs[:-1]:  # the last is the table
            assert paragraph.split(": ", 1)[-1] in page or paragraph in page


def test_the_summary_is_that_of_the_rows() -> None:
    """Counted here from results.csv, and which sets are held out from the table alone."""
    with (KEPT / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for heading, (summary, *_, table) in groups().items():
        names = {line.split(" | ")[0].strip("| ") for line in table.splitlines()[2:]}
        own = [row for row in rows if row["data"] in names]
        assert len(own) == len(table.splitlines()) - 2, heading
        behind = [float(row["behind"]) for row in own]
        within = sum(gap <= 1.5 for gap in behind)
        assert summary.startswith(f"Within 1.5 points of the best in {within} of {len(own)} cases")
        assert f"median {statistics.median(behind):+.2f}, worst {max(behind):+.2f} " in summary
        assert all(f"{row['data']} at ε = " in summary for row in own if float(row["behind"]) > 1.5)


def test_the_page_has_the_rows_of_the_rehearsals() -> None:
    page = told()
    lines = (KEPT / "rehearsals.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if re.match(r"\| (linear|perceptron|convolutional),", line)]
    assert len(rows) >= 14 and all(" ".join(row.split()) in page for row in rows)


def test_the_page_has_the_rows_of_adult() -> None:
    page = told()
    lines = (KEPT / "adult.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if re.match(r"\| \d", line)]
    assert len(rows) == 4 and all(row in page for row in rows)


@pytest.fixture(scope="module")
def networks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("defaults_networks", KEPT / "networks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(KEPT))
    spec.loader.exec_module(module)
    sys.path.remove(str(KEPT))
    return module


def rows() -> list[dict[str, str]]:
    with (KEPT / "networks.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_has_the_summaries_of_the_rows(networks: ModuleType) -> None:
    """Counted here from networks.csv."""
    page, written = told(), words(KEPT / "networks.md")
    every = rows()
    assert every
    for sets in (networks.HELD_OUT, networks.NEW, networks.AGAIN):
        own = [row for row in every if row["data"] in sets.get(row["model"], ())]
        if not own:
            continue
        behind = [float(row["behind"]) for row in own]
        within = sum(gap <= 1.5 for gap in behind)
        start = f"Median {statistics.median(behind):+.2f} points behind; within 1.5 in {within} of "
        start += f"{len(own)} cases ("
        assert start in page and start in written
        for row in own:
            if float(row["behind"]) > 1.5:
                name = f"{row['model']} on {row['data']} at ε = {float(row['epsilon']):g}: "
                assert name + f"{float(row['behind']):.2f} ± {float(row['error']):.2f}" in page


def test_the_page_has_the_means_in_other_units() -> None:
    page = told()
    (mean,) = (
        line.strip("| ").split(" | ")
        for line in (KEPT / "network_units.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| mean")
    )
    for given, guessed in zip(mean[-6:-3], mean[-3:], strict=True):
        assert re.search(rf"{given} % [^%]*\({guessed} %", page), (given, guessed)


def test_no_set_is_held_out_and_looked_at(networks: ModuleType) -> None:
    sets = sys.modules["network_sets"]
    for model, held_out in sets.HELD_OUT.items():
        assert not set(held_out) & {*sets.LOOKED_AT[model], *sets.AGAIN.get(model, ())}
    assert {row["data"] for row in rows() if row["model"] == "mlp"} <= set(networks.names("mlp"))
