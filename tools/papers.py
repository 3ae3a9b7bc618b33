"""Tables of the papers as package data, and their pages in the documentation, from committed rows.

python tools/papers.py          # writes tables.json, docs/papers/*.md, docs/papers_inventory.md
python tools/papers.py --check  # says what would change; exit status 1
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / "src" / "forethought" / "papers"


def extract(text: str, start: str) -> str:
    """A part of a page: rows of its tables that hold ``start``, where that is one; the first table
    below ``=start``; else from the line with it to the next heading or caption."""
    lines = text.splitlines()
    if start.startswith("|"):
        found: list[str] = []
        head: list[str] = []
        for at, line in enumerate(lines):
            if set(line) <= set("|- ") and "-" in line:
                head = [lines[at - 1], line]
            elif start in line:
                found += [*([""] if found and head else []), *head, line]
                head = []
        return "\n".join(found)
    first = next(at for at, line in enumerate(lines) if start.removeprefix("=") in line)
    if start.startswith("="):
        begun = next(at for at in range(first, len(lines)) if lines[at].startswith("|"))
        end = next(at for at in range(begun, len(lines) + 1) if not "".join(lines[at : at + 1]))
        return "\n".join(lines[begun:end])
    ends = (
        at
        for at in range(first + 1, len(lines))
        if lines[at].startswith(("#", "Table ")) and lines[at].strip()
    )
    part = lines[first : next(ends, len(lines))]
    return "\n".join(line for line in part if not line.startswith(("#", "!["))).strip()


def tables(told: dict[str, dict[str, list[list[str]]]]) -> dict[str, dict[str, str]]:
    """Paper → table → what the committed page has of it."""
    return {
        name: {
            number: "\n\n".join(
                extract((ROOT / one).read_text(encoding="utf-8"), part)
                for one, part in zip(source.split(" + "), start.split(" + "), strict=True)
            )
            for number, source, start, _ in paper["tables"]
        }
        for name, paper in told.items()
    }


def page(name: str, paper: dict[str, object], texts: dict[str, str]) -> str:
    """One paper's page."""
    listed: list[list[str]] = paper["tables"]  # type: ignore[assignment]
    wrong: list[str] = paper["wrong"]  # type: ignore[assignment]
    lines = [
        f"# {paper['title']}",
        "",
        f"Paper {name}. {paper['claims']}",
        "",
        f"How it is used: [{paper['page']}](../{paper['page']}). Every item, and where it is: "
        f"[inventory](../papers_inventory.md). `forethought papers {name}` prints this page.",
        "",
        "## Where it is wrong, and by how much",
        "",
        *(f"- {one}" for one in wrong),
        "",
        "What of this is computed is printed by `python docs/papers.py` or by the commands below.",
        "",
    ]
    shown: set[str] = set()
    for number, source, _, command in listed:
        if texts[number] in shown:
            continue
        shown.add(texts[number])
        same = [n for n, *_ in listed if texts[n] == texts[number]]
        title = "Table" if len(same) == 1 else "Tables"
        lines += [
            f"## {title} {', '.join(same)}",
            "",
            f"Printed beside ours, from `{source}`; `{command}` prints it again.",
            "",
            texts[number].replace("](../../docs/", "](../").replace("](../docs/", "](../"),
            "",
        ]
    return "\n".join(lines).rstrip("\n") + "\n"


def inventory(told: dict[str, dict[str, object]]) -> str:
    """The page of all items."""
    counted = [item[1] for paper in told.values() for item in paper["items"]]  # type: ignore[attr-defined]
    lines = [
        "# Inventory of the papers",
        "",
        f"{len(counted)} algorithms, statements, parameters, figures and tables of five papers: "
        + ", ".join(f"{counted.count(v)} {v}" for v in ("works", "corrected", "left out"))
        + ". *Works*: as printed. *Corrected*: it works, and differs where the paper is wrong or "
        "loose. A place is `module:name` below `forethought`, or a command. Made by "
        "`python tools/papers.py`; a test looks each place up.",
    ]
    for name, paper in told.items():
        lines += [
            "",
            f"## {name}: {paper['title']}",
            "",
            f"[Its page](papers/{name}.md).",
            "",
            "| item | verdict | where | note |",
            "| --- | --- | --- | --- |",
        ]
        for what, verdict, *rest in paper["items"]:  # type: ignore[attr-defined]
            where, note = (*rest, "", "")[:2]
            place = where if where.startswith("`") or not where else f"`{where}`"
            cells = (what, verdict, place, note)
            lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def made() -> dict[Path, str]:
    """Every file that is made, with its text."""
    told = tomllib.loads((HOME / "papers.toml").read_text(encoding="utf-8"))
    texts = tables(told)
    files = {HOME / "tables.json": json.dumps(texts, ensure_ascii=False, indent=1) + "\n"}
    for name, paper in told.items():
        files[ROOT / "docs" / "papers" / f"{name}.md"] = page(name, paper, texts[name])
    files[ROOT / "docs" / "papers_inventory.md"] = inventory(told)
    return files


def stale() -> list[str]:
    """Files that differ from what would be made."""
    return [
        str(path.relative_to(ROOT))
        for path, text in made().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


if __name__ == "__main__":
    if "--check" in sys.argv:
        print("\n".join(stale()))
        raise SystemExit(bool(stale()))
    for path, text in made().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
