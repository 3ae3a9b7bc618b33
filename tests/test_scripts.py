"""Scripts outside src use names and arguments that the library has: most of them run in no test."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("benchmarks", "experiments", "tools", "examples", ".ci")
SCRIPTS = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def lookup(module: str, names: list[str]) -> object:
    """What a dotted name of the library stands for; a submodule counts."""
    found: Any = importlib.import_module(module)
    for name in names:
        if not hasattr(found, name) and hasattr(found, "__path__"):
            importlib.import_module(f"{found.__name__}.{name}")
        found = getattr(found, name)
    return found


def imported(tree: ast.AST) -> dict[str, tuple[str, list[str]]]:
    """Name in a script → module of the library, and the name there."""
    names: dict[str, tuple[str, list[str]]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("forethought"):
            for one in node.names:
                names[one.asname or one.name] = (str(node.module), [one.name])
        elif isinstance(node, ast.Import):
            for one in node.names:
                if one.name.partition(".")[0] == "forethought":
                    whole = one.name if one.asname else "forethought"
                    names[one.asname or "forethought"] = (whole, [])
    return names


def dotted(node: ast.expr) -> list[str]:
    """``a.b.c`` as its parts; empty for anything else."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return [*before, node.attr]
    return []


def faults(source: str) -> Iterator[str]:
    """Uses of the library that would fail when they are reached."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    names = imported(tree)
    for name, (module, parts) in names.items():
        try:
            lookup(module, parts)
        except (ImportError, AttributeError) as error:
            if "forethought" in str(error):  # and not a package that is not installed
                yield f"{name}: {error}"
    own = {
        node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        parts = dotted(node.func if isinstance(node, ast.Call) else node)
        if not parts or parts[0] not in names.keys() - own:
            continue
        module, before = names[parts[0]]
        try:
            found = lookup(module, [*before, *parts[1:]])
        except (ImportError, AttributeError) as error:
            if isinstance(error, AttributeError) or "forethought" in str(error):
                yield f"line {node.lineno}: {error}"
        else:
            if isinstance(node, ast.Call) and (fault := misfit(found, node)):
                yield f"line {node.lineno}: {'.'.join(parts)}: {fault}"


def misfit(called: Any, node: ast.Call) -> str:
    """What a call's arguments have against the signature; empty where they fit or nobody knows."""
    try:
        signature = inspect.signature(called)
    except (ValueError, TypeError):
        return ""
    places = [one for one in node.args if not isinstance(one, ast.Starred)]
    words = [word.arg for word in node.keywords if word.arg]
    whole = len(places) == len(node.args) and len(words) == len(node.keywords)
    try:
        (signature.bind if whole else signature.bind_partial)(*places, **dict.fromkeys(words))
    except TypeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_use_what_the_library_has(path: Path) -> None:
    found = list(faults(path.read_text(encoding="utf-8")))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "from forethought.holders.cluster import NotThere",
        "import forethought as ft; ft.not_there",
        "import forethought as ft; ft.plan.not_there()",
        "import forethought as ft; ft.Clip(1.0, nothing=2)",
        "import forethought as ft; ft.epsilon()",
        "from forethought import gossip; gossip.not_there.either",
    ],
)
def test_a_use_that_would_fail_is_found(line: str) -> None:
    assert list(faults(line))
