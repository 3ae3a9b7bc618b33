"""Pages to learn from and how-to pages run as they are written."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest

pytest.importorskip("torch")

from zoo.oracle import with_torchvision

from forethought.cli import main

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((*DOCS.glob("learn/*.md"), *DOCS.glob("how_to/*.md")))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)


def command(line: str) -> int:
    """The exit status of a line that a reader types."""
    program, *words = shlex.split(line, comments=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [program, *words])
        try:
            runpy.run_path(words[0]) if program == "python" else main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of every block but those that only show something."""
    return [(kind, text) for kind, text in BLOCK.findall(page.read_text("utf-8")) if kind != "text"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem
)
def test_a_page_runs_as_it_is_written(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "__main__"}
    for kind, text in blocks(page):
        named = re.match(r"# (\w+\.\w+)\n", text)
        if named:
            Path(named[1]).write_text(text, encoding="utf-8")
        elif kind == "python":
            if "import lightning" in text:
                with_torchvision()
            exec(compile(text, page.name, "exec"), scope)
        else:
            assert kind == "", f"{page.name} has a block of {kind} without a file's name"
            for line in text.splitlines():
                assert command(line) == 0, line


def test_pages_are_of_one_screen() -> None:
    """A how-to page answers one question: at most 350 words and twelve lines of a block."""
    for page in DOCS.glob("how_to/*.md"):
        assert len(page.read_text("utf-8").split()) <= 350, page.name


def test_every_page_is_in_one_of_four_parts() -> None:
    listed = (DOCS.parent / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    parts = re.findall(r"^  - ([\w ]+):$", listed, re.M)
    assert parts == ["Learn", "Do", "Look up", "Understand"]
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert pages == set(re.findall(r": (\S+\.md)$", listed, re.M))
