"""Tables of pages show what the experiments that they name have committed, to the digits shown."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
from bisect import bisect_left
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Page and section, and the results whose numbers its tables show. Other tables are held by tests of
# their own (the README's, experiments/defaults) or show means over rows, which no file holds.
HELD = {
    ("docs/adaptive_noise.md", "Schedules"): ("adaptive_noise/printed.md",),
    ("docs/adaptive_noise.md", "The default"): ("adaptive_noise/constants.md",),
    ("docs/estimators.md", "Beside diffprivlib"): ("estimators/results.md",),
    ("docs/ledger_theorems.md", "Measured"): ("ledger/results.csv",),
    ("experiments/adaptive_noise/README.md", "Table 3 again"): ("adaptive_noise/results.md",),
    ("experiments/adaptive_noise/README.md", "Subsampled rounds"): ("adaptive_noise/printed.md",),
    ("experiments/adaptive_noise/README.md", "Noise that follows the gradient"): (
        "adaptive_noise/printed.md",
    ),
    ("experiments/correlated_noise/README.md", "Measured"): ("correlated_noise/results.csv",),
    ("experiments/federated/README.md", "Experiments"): ("federated/tables.md",),
    ("experiments/gossip/README.md", "The paper's table and figures"): (
        *("gossip/table.md", "gossip/falling.md", "gossip/choosing.md", "gossip/real.jsonl"),
    ),
    ("experiments/gossip/README.md", "Beyond the paper"): ("gossip/beyond.md",),
}
# Pages on the papers, and the rooms whose committed rows hold every figure in their tables: as they
# are, as means over seeds, or as a command prints them from the rows. A section that shows what no
# row holds is named with what does.
PAPERS = {
    "docs/proactive_dp.md": "proactive_dp",
    "docs/general_framework.md": "general_framework",
    "docs/gossip.md": "gossip",
    "docs/adaptive_noise.md": "adaptive_noise",
    "experiments/proactive_dp/README.md": "proactive_dp",
    "experiments/general_framework/README.md": "general_framework",
    "experiments/gossip/README.md": "gossip",
    "experiments/adaptive_noise/README.md": "adaptive_noise",
    "experiments/federated/README.md": "federated",
}
CALCULATOR = "-m forethought calculator --examples 10000 --json"
BY_COMMAND = {
    ("docs/proactive_dp.md", "The calculators"): (
        f"{CALCULATOR} --epochs 5 --noise-multiplier 19.29962",
        f"{CALCULATOR} --epochs 5 --epsilon 0.1",
        f"{CALCULATOR} --epochs 5 --epsilon 0.1 --power 0.5",
        f"{CALCULATOR} --epochs 2 --epsilon 2 --noise-multiplier 4 --after 26:1923",
    ),
    ("docs/proactive_dp.md", "Samples that grow or shrink"): ("experiments/proactive_dp/sizes.py",),
    ("experiments/general_framework/README.md", "When do groups beat examples?"): (
        "experiments/general_framework/combinations.py",
        "experiments/general_framework/combinations.py --large",
    ),
    ("experiments/general_framework/README.md", "The paper's tables"): (
        "experiments/general_framework/table3.py",
    ),
}
ELSEWHERE = {
    ("docs/general_framework.md", "Speed"): "ratios of seconds, by the benchmark that it names",
    ("docs/gossip.md", "Graphs and mixing"): "test_gossip.py, digit for digit",
    ("docs/gossip.md", "Simulation"): "seconds and five runs, by the benchmark that it names",
    (
        "experiments/federated/README.md",
        "Figures beside their goals",
    ): "a test or a benchmark a row",
}
SHOWN = re.compile(r"(?<![\w.])\d[\d,]*\.\d+(?:e-?\d+)?(?![\w.])")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@cache
def committed(names: tuple[str, ...]) -> tuple[float, ...]:
    """Every number in these results, sorted."""
    found: set[float] = set()
    for name in names:
        text = (ROOT / "experiments" / name).read_text(encoding="utf-8")
        if name.endswith(".md"):
            text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
        found |= {float(number) for number in NUMBER.findall(text)}
    return tuple(sorted(found))


def is_there(shown: str, known: tuple[float, ...]) -> bool:
    """Whether one of the numbers, or a hundred times it, rounds to what is shown."""
    mantissa, _, power = shown.replace(",", "").partition("e")
    decimals = len(mantissa.partition(".")[2])
    half = 0.5 * 10.0 ** (int(power or 0) - decimals) * 1.001
    for scale in (1, 100):
        value, near = float(f"{mantissa}e{power or 0}") / scale, half / scale
        at = bisect_left(known, value - near)
        if at < len(known) and known[at] <= value + near:
            return True
    return False


def missing(text: str, known: tuple[float, ...]) -> list[str]:
    """Rows of the tables of a text with a number that none of the known ones rounds to."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if not all(is_there(one, known) for one in SHOWN.findall(row))]


def section(page: str, heading: str) -> str:
    """What stands below a heading of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.split(r"(?m)^## ", text.partition(f"## {heading}\n")[2])[0]


@pytest.mark.parametrize(("place", "names"), HELD.items(), ids=[" ".join(place) for place in HELD])
def test_tables_show_what_was_committed(place: tuple[str, str], names: tuple[str, ...]) -> None:
    text, known = section(*place), committed(names)
    assert SHOWN.search(text), "no table with figures is there"
    assert not missing(text, known), f"not in {', '.join(names)}"
    # Every digit of the table moved: most of its rows are noticed.
    rows = [row for row in text.splitlines() if row.startswith("|") and SHOWN.search(row)]
    moved = [SHOWN.sub(lambda one: one[0][:-1] + str((int(one[0][-1]) + 3) % 10), r) for r in rows]
    assert len(missing("\n".join(moved), known)) >= 0.7 * len(rows)


def sections_with_figures(page: str) -> list[str]:
    """Headings of a page's sections that have a table with figures."""
    text = (ROOT / page).read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^## (.+)$", text)
    return [
        heading
        for heading in headings
        if any(
            line.startswith("|") and SHOWN.search(line)
            for line in section(page, heading).splitlines()
        )
    ]


@cache
def means(room: str) -> tuple[float, ...]:
    """Means and deviations over the seeds of every cell of a room, and differences of the means of
    cells that differ in their noise alone."""
    cells: dict[str, list[float]] = {}
    for path in (ROOT / "experiments" / room).glob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if "seed" in row.get("cell", {}):
                cell = {name: value for name, value in row["cell"].items() if name != "seed"}
                cells.setdefault(json.dumps([path.name, cell]), []).extend(
                    row.get("accuracies") or [row["accuracy"]]
                )
    found: set[float] = set()
    alike: dict[str, list[float]] = {}
    for name, values in cells.items():
        mean = statistics.fmean(values)
        found |= {mean, *([statistics.stdev(values)] if len(values) > 1 else [])}
        path, cell = json.loads(name)
        cell.pop("kind", None)
        cell.pop("size", None)
        alike.setdefault(json.dumps([path, cell]), []).append(mean)
    for same in alike.values():
        found |= {abs(a - b) for a in same for b in same}
    return tuple(sorted(found))


@cache
def printed(commands: tuple[str, ...]) -> tuple[float, ...]:
    """Every number that these commands print without any data."""
    found: set[float] = set()
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command.split()],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        found |= {float(n) for n in NUMBER.findall(re.sub(r"(?<=\d),(?=\d{3})", "", done.stdout))}
    return tuple(sorted(found))


def rows_of(room: str) -> tuple[str, ...]:
    """Every committed result of a room of experiments."""
    found = (ROOT / "experiments" / room).iterdir()
    return tuple(
        sorted(
            f"{room}/{path.name}"
            for path in found
            if path.suffix in (".md", ".jsonl", ".csv") and path.name != "README.md"
        )
    )


@pytest.mark.parametrize("page", PAPERS)
def test_every_table_of_the_papers_pages_has_its_rows(page: str) -> None:
    rows = {*committed(rows_of(PAPERS[page])), *means(PAPERS[page])}
    orphans = {}
    for heading in sections_with_figures(page):
        if (page, heading) in ELSEWHERE:
            continue
        known = tuple(sorted({*rows, *printed(BY_COMMAND.get((page, heading), ()))}))
        if lost := missing(section(page, heading), known):
            orphans[heading] = lost
    assert not orphans, "commit the rows, or name what holds the section"


def test_what_is_held_elsewhere_is_still_there() -> None:
    for page, heading in (*ELSEWHERE, *BY_COMMAND):
        assert heading in sections_with_figures(page)


def test_a_figure_without_a_row_is_noticed() -> None:
    known = committed(rows_of("proactive_dp"))
    assert missing("| 0.15007 | 370 | 12.10881 | 87.654321 |", known)
    assert not missing("| 0.15007 | 370 | 12.10881 |", known)
