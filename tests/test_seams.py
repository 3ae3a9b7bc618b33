"""Tests look at a room from outside, and know an error by what it names.

Both figures may only fall: lower a ceiling when you have gone below it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "forethought"
# Accesses to names with an underscore of the library's modules and objects.
MOST_PRIVATE = 76
# Words of a text that an error's message is compared with, between two ``.*``.
MOST_WORDS = 3


def long_texts(tree: ast.AST) -> Iterator[str]:
    """``match=`` texts that are sentences."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "match":
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    pieces = re.split(r"\.\*|(?<!\\)\|", part.value)
                    if any(len(piece.split()) > MOST_WORDS for piece in pieces):
                        yield part.value


def defined_by(tree: ast.AST) -> set[str]:
    """Private names that a file gives to something."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.Attribute(attr=name, value=ast.Name(id="self"), ctx=ast.Store()):
                found.add(name)
    return {name for name in found if is_private(name)}


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


def private(tree: ast.AST, known: set[str]) -> Iterator[str]:
    """What a file uses of the library's private names; ``known`` are those."""
    known = known - defined_by(tree)
    foreign = {"self", "cls", "super"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
            if module.partition(".")[0] != "forethought":
                foreign |= names
            elif isinstance(node, ast.ImportFrom):
                yield from (alias.name for alias in node.names if is_private(alias.name))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if name in known and root(node) not in foreign:
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[what, ast.Constant(name), *_]):
                if name in known and root(what) not in foreign:
                    yield f"{ast.unparse(what)}.{name}"


def root(node: ast.AST) -> str:
    """``a`` of ``a.b(c).d``."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


@cache
def trees(folder: Path) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(folder.rglob("*.py"))}


@pytest.mark.slow
def test_errors_are_known_by_what_they_name() -> None:
    found = [
        f"{path.name}: {text}" for path, tree in trees(TESTS).items() for text in long_texts(tree)
    ]
    assert not found, "take the words that name what is wrong, at most three together"


@pytest.mark.slow
def test_tests_use_public_names() -> None:
    known: set[str] = set().union(*map(defined_by, trees(SOURCE).values()))
    found = [
        f"{path.name}: {one}" for path, tree in trees(TESTS).items() for one in private(tree, known)
    ]
    assert len(found) <= MOST_PRIVATE, found


def test_what_is_counted() -> None:
    planted = ast.parse(
        "import os\n"
        "from forethought.accounting import exact\n"
        "from forethought.data.files import _PIECE\n"
        "exact._enclose(1); os._exit(0); self._own; patch.setattr(exact, '_floor', 1)\n"
        "raises(ValueError, match='this is a sentence of words')\n"
        "raises(ValueError, match='epsilon must be.*above 0')\n"
    )
    known = {"_enclose", "_exit", "_floor", "_PIECE"}
    assert sorted(private(planted, known)) == ["_PIECE", "exact._enclose", "exact._floor"]
    assert list(long_texts(planted)) == ["this is a sentence of words"]
