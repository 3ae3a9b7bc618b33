"""The house stands as docs/architecture.md draws it: layers and names."""

from __future__ import annotations

import ast
import graphlib
import itertools
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "forethought"
FILES = sorted(SOURCE.rglob("*.py"))

# Words that do not say what a thing is, and those that other words have replaced.
FORBIDDEN = {
    *("helper", "helpers", "manager", "util", "utils"),
    *("beside", "keeper", "said", "standin", "wish", "wishes"),
}


def names_of(tree: ast.AST) -> Iterator[str]:
    """Every name that a file gives to something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


@cache
def parsed(path: Path) -> ast.Module:
    """The file's tree, once for all tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def words(name: str) -> set[str]:
    """``_lastKeeper_of`` → last, keeper, of."""
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


def test_names_say_what_things_are() -> None:
    found = {
        f"{path.relative_to(SOURCE)}: {name}"
        for path in FILES
        for name in (path.stem, *names_of(parsed(path)))
        if words(name) & FORBIDDEN
    }
    assert sorted(found) == []
    assert not {path.stem for path in FILES} & {"base", "common", "misc"}


# File names that several rooms have for the same thing: what each of them does for it.
SHARED_SUBJECTS = {
    *("account", "audit", "plan", "train"),  # a verb: its values, its work, its command, its page
    *("client", "server"),  # of a federation: its machine, its masks, its process
    "decentralised",  # who sees what in a gossip, and the paper's calculator of it
    "events",  # what a machine takes and gives: a client's and a server's, a worker's
    "holders",  # several holders: their plans, jobs, commands, audits
    "networks",  # models, and the estimators that fit one
    "page",  # an HTML page
    "records",  # of a data set: access to them, and whether they fit a run
    "statements",  # a client's, a worker's
}


def test_a_name_has_one_meaning() -> None:
    """No two classes share a name, and files do only where they are about the same thing."""
    classes: dict[str, list[str]] = {}
    stems: dict[str, list[str]] = {}
    for path in FILES:
        stems.setdefault(path.stem, []).append(str(path.relative_to(SOURCE)))
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    # A federation's and a gossip's Member are one thing: who takes part, as all have agreed.
    several = {name: places for name, places in classes.items() if len(places) > 1}
    assert several.keys() <= {"Member"}, several
    twins = {stem: places for stem, places in stems.items() if len(places) > 1}
    assert twins.keys() - {"__init__"} == SHARED_SUBJECTS, twins


def test_docstrings_begin_with_the_thing() -> None:
    """A noun or a verb tells a reader at once what is there; a question word makes them wait."""
    questions = {"What", "How", "Where", "Which", "Who", "Whose", "When", "Why", "Whether"}
    found = [
        f"{path.relative_to(SOURCE)}: {text.splitlines()[0]}"
        for path in FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if (text := ast.get_docstring(node)) and text.split(maxsplit=1)[0] in questions
    ]
    assert found == []


def test_the_picture_shows_every_room() -> None:
    """docs/architecture.md names all rooms, and in the order that the contract holds."""
    drawn = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("```")[1]
    rooms = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    rooms = {name for name in rooms if not name.startswith("_")}
    places = {name: re.search(rf"(?m)^  {name}(\.py|/)", drawn) for name in rooms}
    assert sorted(name for name, place in places.items() if place is None) == []
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = contract["tool"]["importlinter"]["contracts"][0]["layers"]
    at = [
        [place.start() for name in re.findall(r"\w+", layer) if (place := places.get(name))]
        for layer in layers
    ]
    for upper, lower in itertools.pairwise([found for found in at if found]):
        assert max(upper) < max(lower)


@pytest.fixture
def lint_imports() -> str:
    program = Path(sys.executable).with_name("lint-imports")
    if not program.is_file():
        pytest.skip("import-linter is not installed: make test installs it")
    return str(program)


def test_a_room_imports_from_rooms_below_it_only(lint_imports: str, tmp_path: Path) -> None:
    """Planted faults: an upward import and torch in the accountant are noticed."""
    shutil.copytree(SOURCE, tmp_path / "src" / "forethought")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)

    def kept() -> str:
        done = subprocess.run(
            [lint_imports, "--no-cache"],
            cwd=tmp_path,
            env={"PYTHONPATH": str(tmp_path / "src"), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return "kept" if done.returncode == 0 else done.stdout + done.stderr

    assert kept() == "kept"
    for room, line, broken in (
        ("gradients/passes.py", "from forethought.training import run", "Imports point downward"),
        ("accounting/exact.py", "import torch", "never load torch"),
        ("jobs/load.py", "from forethought.report import terminal", "Nobody but commands"),
    ):
        path = tmp_path / "src" / "forethought" / room
        text = path.read_text(encoding="utf-8")
        path.write_text(f"{text}\n\n{line}\n", encoding="utf-8")
        assert broken in kept()
        path.write_text(text, encoding="utf-8")


def circle(package: str) -> list[str]:
    """Modules that import each other in a circle, in functions and for types too; [] is none.

    A package may name what it holds for type checkers, and load it by name.
    """
    grimp = pytest.importorskip("grimp", reason="import-linter is not installed")
    whole = grimp.build_graph(package, cache_dir=None)
    lazy = grimp.build_graph(package, cache_dir=None, exclude_type_checking_imports=True)
    tables = {name for name in whole.modules if whole.find_children(name)}
    imports = {
        name: (lazy if name in tables else whole).find_modules_directly_imported_by(name)
        for name in whole.modules
    }
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_modules_import_each_other_in_a_circle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert circle("forethought") == []
    planted = tmp_path / "looped"
    planted.mkdir()
    for name, text in (
        ("__init__", ""),
        ("one", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from looped import two"),
        ("two", "def later():\n    from looped.one import anything\n"),
    ):
        (planted / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert set(circle("looped")) == {"looped.one", "looped.two"}


def test_of_a_thinned_test_a_third_of_the_cases_is_quick(request: pytest.FixtureRequest) -> None:
    found = [
        plugin.pytest_collection_modifyitems
        for plugin in request.config.pluginmanager.get_plugins()
        if str(getattr(plugin, "__file__", "")) == str(Path(__file__).with_name("conftest.py"))
    ]
    marked: list[str] = []

    class Case:
        def __init__(self, nodeid: str, marks: tuple[str, ...]) -> None:
            self.nodeid, self.marks = nodeid, marks

        def get_closest_marker(self, name: str) -> object:
            return name if name in self.marks else None

        def add_marker(self, mark: pytest.MarkDecorator) -> None:
            marked.append(f"{self.nodeid} {mark.name}")

    cases = [Case(f"test_a.py::test_many[{k}]", ("thinned",)) for k in range(300)]
    alone, plain = Case("test_a.py::test_one", ("thinned",)), Case("test_b.py::test_b[1]", ())
    found[0]([*cases, alone, plain])
    assert 170 < len(marked) < 230 and all(one.endswith(" slow") for one in marked)
    assert not any("[0]" in one or "test_one" in one or "test_b" in one for one in marked)
