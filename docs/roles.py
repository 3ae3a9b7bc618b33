"""Hooks of the site: roles in docstrings become plain code, and words lead to the glossary.

The first use of a word of the glossary on a page becomes a link to it, in running text alone: not
in headings, code, tables' heads or other links. Its title is the definition.
"""

from __future__ import annotations

import html as escaping
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):\s*<code>(~?)((?:[\w]+\.)*)([\w]+)</code>")
GLOSSARY = "glossary.md"
# Pages that are made from docstrings, where every other word would be a link.
_PLAIN = "api/"
_ENTRY = re.compile(r"^\*\*(.+?)\*\*\n: ((?:.+\n?(?:  .+\n?)*))", re.M)
_HEADING = re.compile(r"<dt><strong>(.+?)</strong></dt>")
_TAG = re.compile(r"(<[^>]+>)")
_QUIET = ("a", "code", "pre", "h1", "h2", "h3", "h4", "th", "script", "style", "svg", "button")


@dataclass(frozen=True)
class Term:
    """A word of the glossary: how it stands in a text, where it is explained, and how."""

    spelling: re.Pattern[str]
    anchor: str
    meaning: str


def terms(text: str) -> list[Term]:
    """The words of the glossary's text, those that hold others first.

    ``ε (epsilon)`` and ``clip norm C`` are found as ε and clip norm; of ``book, ledger`` each by
    itself; nouns in the plural too.
    """
    found = []
    for heading, body in _ENTRY.findall(text):
        meaning = re.sub(r"[*`]", "", " ".join(body.split()))
        anchor = anchor_of(heading)
        for word in heading.split(", "):
            plain = re.sub(r" (\(\w+\)|C)$", "", word)
            if plain.startswith("noise multiplier"):
                found.append(Term(_spelt("noise multiplier"), anchor, meaning))
                plain = "σ"
            found.append(Term(_spelt(plain), anchor, meaning))
    return sorted(found, key=lambda term: -len(term.spelling.pattern))


def anchor_of(heading: str) -> str:
    """The id of an entry: its words in lower case, Latin letters where there are some."""
    return "-".join(re.findall(r"[a-z]+", heading.lower()))


def _spelt(word: str) -> re.Pattern[str]:
    if len(word) == 1:
        return re.compile(rf"(?<!\w){word}(?!\w)")
    return re.compile(rf"(?<![\w./-]){word}(?:s|es)?(?![\w/-]|\.\w)", re.IGNORECASE)


def linked(page: str, known: list[Term], glossary: str) -> str:
    """HTML of a page with the first use of each word as a link.

    Args:
        glossary: address of the glossary, from this page.
    """
    rest, depth, parts = list(known), 0, _TAG.split(page)
    for place, part in enumerate(parts):
        if part.startswith("<"):
            name = re.match(r"</?(\w+)", part)
            if name and name[1] in _QUIET and not part.endswith("/>"):
                depth += -1 if part.startswith("</") else 1
        elif depth == 0 and part.strip():
            parts[place] = _with_links(part, rest, glossary)
    return "".join(parts)


def _with_links(text: str, rest: list[Term], glossary: str) -> str:
    """A text with links; words that got one are taken out of ``rest``."""
    done: list[tuple[int, int, Term]] = []
    for term in tuple(rest):
        if term not in rest:
            continue  # another word of its entry has the link
        for match in term.spelling.finditer(text):
            if all(match.end() <= start or match.start() >= end for start, end, _ in done):
                done.append((*match.span(), term))
                rest[:] = [other for other in rest if other.anchor != term.anchor]
                break
    for start, end, term in sorted(done, key=lambda one: one[0], reverse=True):
        title = escaping.escape(term.meaning, quote=True)
        link = f'<a class="term" href="{glossary}#{term.anchor}" title="{title}">'
        text = f"{text[:start]}{link}{text[start:end]}</a>{text[end:]}"
    return text


def on_page_content(html: str, page: Any, config: Any, **_others: Any) -> str:
    """The page with every role replaced, a leading ``~`` showing the last name only, and linked."""

    def shown(match: re.Match[str]) -> str:
        short, path, name = match.groups()
        return f"<code>{name if short else path + name}</code>"

    html = _ROLE.sub(shown, html)
    where = page.file.src_uri
    known = terms((Path(config.docs_dir) / GLOSSARY).read_text("utf-8"))
    if where == GLOSSARY:
        return _HEADING.sub(lambda found: f'<dt id="{anchor_of(found[1])}">{found[0][4:]}', html)
    if where.startswith(_PLAIN):
        return html
    up = "../" * where.count("/")
    return linked(html, known, f"{up}glossary.html")
