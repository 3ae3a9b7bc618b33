"""Pages for people from elsewhere: their code and ours, run as it stands on the page."""

from __future__ import annotations

import importlib.util
import io
import re
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import pytest

pytest.importorskip("torch")
PAGE = Path(__file__).parents[1] / "docs" / "coming_from.md"
RIVALS = ("opacus", "diffprivlib")


def blocks(part: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    section = text.split(f"## From {part}")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.S)


def rival(code: str) -> str | None:
    return next((name for name in RIVALS if f"from {name}" in code), None)


def ran(codes: list[str]) -> str:
    scope: dict[str, object] = {}
    out = io.StringIO()
    with redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for code in codes:
            exec(compile(code, str(PAGE), "exec"), scope)
    return out.getvalue()


@pytest.mark.parametrize("part", ["Opacus", "diffprivlib"])
def test_our_code_on_the_page_runs(part: str) -> None:
    said = ran([code for code in blocks(part) if rival(code) is None])
    assert "differentially private for one record" in said


@pytest.mark.slow
@pytest.mark.parametrize("part", ["Opacus", "diffprivlib"])
def test_their_code_on_the_page_runs(part: str) -> None:
    if importlib.util.find_spec(part.lower()) is None:
        pytest.skip(f"{part} is not installed: it has dependencies of its own")
    first, *rest = blocks(part)
    theirs = [code for code in rest if rival(code) == part.lower()]
    assert len(theirs) == 1
    assert float(ran([first, *theirs])) > 0


def test_both_loops_train_alike_but_for_the_lines_that_are_named() -> None:
    """The loop's body is the same, letter by letter."""
    bodies = [
        re.search(r"    for x, y in loader:\n(?:        .*\n)+", code)
        for code in blocks("Opacus")
        if "for x, y" in code
    ]
    assert len(bodies) == 2 and all(bodies)
    assert bodies[0] and bodies[1] and bodies[0][0] == bodies[1][0]
