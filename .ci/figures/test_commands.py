"""A page that reports a measured figure names, in the same section, the command that prints it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOLD = (
    "adaptive_noise",
    "correlated_noise",
    "defaults",
    "federated",
    "general_framework",
    "gossip",
)
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "api"),
    *(
        ROOT / "experiments" / name / "README.md"
        for name in (*TOLD, "gossip_processes", "proactive_dp")
    ),
]
FIGURE = re.compile(
    r"\d(?:\s*±\s*[\d.]+)?\s(?:%|ms|µs|s|seconds?|minutes?|hours?|GB|MB|points|×)(?!\w)"
    r"|\d\s*±\s*\d|\[\d+\.\d+, \d+\.\d+\]"
)
PROGRAM = (
    r"(?:[A-Z_]+=\S+\s+)*(?:\.venv/bin/|nice\s+)?(?:python|forethought|make|torchrun|pytest|\.ci/)"
)
COMMAND = re.compile(rf"`{PROGRAM}|^(?:\$ )?{PROGRAM}", re.M)
# Figures that nothing measured: what they are instead.
ALLOWED = {
    ("gradients.md", "The sum in floating point"): "a bound that is proven, and a planted fault",
    ("utility_graph.md", "What is admissible"): "arithmetic of tolerances",
}


def sections(text: str) -> list[tuple[str, str]]:
    """Headings with what stands below them; a part of a section may lean on its opening words."""
    found, opening = [], ""
    for part in re.split(r"(?m)^(?=##+ )", text):
        heading = part.splitlines()[0].lstrip("# ") if part.strip() else ""
        if not part.startswith("###"):
            opening = part
            found.append((heading, part))
        else:
            found.append((heading, opening + part))
    return found


def without_a_command(text: str) -> list[tuple[str, str]]:
    """Headings of sections with a figure and no command, with the first such figure's line."""
    missing = []
    for heading, part in sections(text):
        own = part[part.rfind("### ") :] if "### " in part else part
        prose = re.sub(r"```.*?```", "", own, flags=re.S)
        lines = [line for line in prose.splitlines() if FIGURE.search(line)]
        if lines and not COMMAND.search(part):
            missing.append((heading, lines[0]))
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_sections_with_figures_name_a_command(page: Path) -> None:
    found = without_a_command(page.read_text(encoding="utf-8"))
    missing = [row for row in found if (page.name, row[0]) not in ALLOWED]
    assert not missing, f"name the command that prints these figures: {missing}"


def test_a_figure_without_a_command_is_found() -> None:
    planted = "# A page\n\n## Speed\n\nIt takes 12 s on one core.\n"
    assert without_a_command(planted) == [("Speed", "It takes 12 s on one core.")]
    assert not without_a_command(planted + "`python benchmarks/speed.py` prints it.\n")
    table = "## Accuracy\n\n| a | 91.2 ± 0.3 |\n"
    assert without_a_command(table)
    assert not without_a_command("## Accuracy\n\n`make accuracy`\n\n### Small\n\n91.2 ± 0.3\n")


def test_what_is_allowed_is_still_there() -> None:
    for name, heading in ALLOWED:
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert heading in dict(without_a_command(text))
