"""Tables of pages show what the experiments that they name have committed, to the digits shown."""

from __future__ import annotations

import re
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
