"""Pages to learn from and how-to pages run as they are written, and show what a run prints.

A block of ``output`` after a block that runs is what that printed. ``…`` stands for anything, and a
line of it for lines that are left out. Percentages and seconds vary from run to run; nothing else.

    python tests/test_learning.py PAGE …      # writes what they print today into the pages
"""

from __future__ import annotations

import io
import os
import re
import runpy
import shlex
import sys
import tempfile
from contextlib import redirect_stdout
from difflib import SequenceMatcher
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("torch")

from forethought.cli import main

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((*DOCS.glob("learn/*.md"), *DOCS.glob("how_to/*.md"), DOCS / "large_models.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
# Percentages, seconds and files' hashes.
VARIES = re.compile(r"-?[\d.,]+(?=%| s\b)|[0-9a-f]{64}")


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


def run(page: Path) -> list[tuple[str, str]]:
    """Every block of output on a page, with what was printed in its place; all blocks are run."""
    scope: dict[str, object] = {"__name__": "__main__"}
    shown, printed = [], ""
    for kind, text in blocks(page):
        if kind == "output":
            shown.append((text, printed))
            continue
        named = re.match(r"# (\w+\.\w+)\n", text)
        if named:
            Path(named[1]).write_text(text, encoding="utf-8")
            continue
        with redirect_stdout(io.StringIO()) as out:
            if kind == "python":
                if "import lightning" in text or "from transformers" in text:
                    from zoo.oracle import with_torchvision

                    with_torchvision()
                exec(compile(text, page.name, "exec"), scope)
            else:
                assert kind == "", f"{page.name} has a block of {kind} without a file's name"
                for line in text.splitlines():
                    assert command(line) == 0, line
        printed = out.getvalue()
    return shown


def steady(line: str) -> str:
    """A line without what varies and without its spaces and frames."""
    return " ".join(re.sub(r"[─━┌┐└┘├┤┬┴┼┏┓┗┛┡┩╇┳┻]+", "", VARIES.sub("#", line)).split())


def missing(shown: str, printed: str) -> list[str]:
    """The lines of a block that were not printed, in their order."""
    rest = [steady(line) for line in printed.splitlines()]
    absent = []
    for line in filter(None, map(steady, shown.splitlines())):
        if line == "…":
            continue
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        found = next((n for n, one in enumerate(rest) if pattern.fullmatch(one)), None)
        if found is None:
            absent.append(line)
        else:
            rest = rest[found + 1 :]
    return absent


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # a warning of Lightning's own class stops other processes
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem
)
def test_a_page_runs_as_it_is_written(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "96")
    for shown, printed in run(page):
        assert not missing(shown, printed), printed


def test_a_line_that_is_not_printed_is_found() -> None:
    printed = "│ σ  │ 1.738 │\n  accuracy on 1,158 records 69.3% (66.5% to 72.0%)\nheld\n"
    assert missing("│ σ │ 1.738 │\n…\naccuracy on 1,158 records 70.1% (1% to 2%)\n", printed) == []
    assert missing("│ σ │ …\nheld\n", printed) == []
    assert missing("│ σ │ 1.739 │\n", printed) == ["│ σ │ 1.739 │"]
    assert missing("accuracy on 1,157 records 69.3% (66.5% to 72.0%)\n", printed)
    assert missing("held\n│ σ │ 1.738 │\n", printed)  # the other order


def test_pages_are_of_one_screen() -> None:
    """A how-to page answers one question, in at most 350 words."""
    for page in DOCS.glob("how_to/*.md"):
        assert len(page.read_text("utf-8").split()) <= 350, page.name


def test_every_page_is_in_one_of_four_parts() -> None:
    listed = (DOCS.parent / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    parts = re.findall(r"^  - ([\w ]+):$", listed, re.M)
    assert parts == ["Learn", "Do", "Look up", "Understand"]
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert pages == set(re.findall(r": (\S+\.md)$", listed, re.M))


class Reading(HTMLParser):
    """A page as it is read: its running text before each link to the glossary."""

    quiet = frozenset({"a", "code", "pre", "h1", "h2", "h3", "th"})

    def __init__(self) -> None:
        super().__init__()
        self.depth, self.parts = 0, [("", "")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.depth += tag in self.quiet
        if dict(attrs).get("class") == "term":
            self.parts.append((dict(attrs)["href"] or "", ""))

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag in self.quiet

    def handle_data(self, data: str) -> None:
        if not self.depth:
            target, text = self.parts[-1]
            self.parts[-1] = target, f"{text} {data}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_first_use_of_a_word_leads_to_the_glossary(page: Path) -> None:
    markdown = pytest.importorskip("markdown")
    hook = runpy.run_path(str(DOCS / "roles.py"))
    glossary = (DOCS / "glossary.md").read_text("utf-8")
    words = {
        "record": "record", "ε": "epsilon", "δ": "delta", "σ": "noise-multiplier",
        "clip norm": "clip-norm-c", "adjacency": "adjacency", "person": "person", "round": "round",
        "contribution": "contribution", "sampling": "sampling", "statement": "statement",
        "book": "book-ledger", "budget": "budget", "plan": "plan", "held-out": "held-out-records",
    }  # fmt: skip
    entries = {hook["anchor_of"](entry) for entry in re.findall(r"^\*\*(.+)\*\*$", glossary, re.M)}
    assert set(words.values()) <= entries
    html = markdown.markdown(page.read_text("utf-8"), extensions=["tables", "fenced_code"])
    reading = Reading()
    reading.feed(hook["linked"](html, hook["terms"](glossary), "../glossary.html"))
    targets = [target.partition("#")[2] for target, _ in reading.parts[1:]]
    assert set(targets) <= entries and len(targets) == len(set(targets))
    for word, anchor in words.items():
        first = targets.index(anchor) + 1 if anchor in targets else len(reading.parts)
        before = " ".join(text for _, text in reading.parts[:first])
        said = r"held-out records?" if word == "held-out" else rf"{word}s?"
        assert not re.search(rf"(?<![\w./-]){said}(?![\w./-])", before), (word, before[-80:])


def renewed(shown: str, printed: str) -> str:
    """The same selection of lines, as they are printed today."""
    lines = []
    for line in shown.splitlines():
        rest = [line] if "…" in line or not line.strip() else printed.splitlines()
        near = max(rest, key=lambda one: SequenceMatcher(None, steady(line), steady(one)).ratio())
        lines.append(near.rstrip())
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    os.environ["COLUMNS"] = "96"
    sys.path.insert(0, str(Path(__file__).parent / "gradients"))
    for written in [Path(name).resolve() for name in sys.argv[1:]]:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            found = run(written)
        whole = written.read_text("utf-8")
        for block, now in found:
            whole = whole.replace(f"```output\n{block}", f"```output\n{renewed(block, now)}")
        written.write_text(whole, encoding="utf-8")
