"""The public scripts of examples/ported: at most five changed lines, and they run as they stand."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "ported"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "small")
MOST = 5
MARK = re.compile(r"# (was: \S|new$)")


def changed(text: str) -> int:
    """Lines with a mark."""
    return sum(bool(MARK.search(line)) for line in text.splitlines())


def marked(text: str, node: ast.stmt) -> bool:
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return any(MARK.search(line) for line in lines)


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_has_more_than_five_changed_lines(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text()
    assert 1 <= changed(text) <= MOST
    docstring = ast.get_docstring(ast.parse(text)) or ""
    assert " After " in docstring and re.search(r"\((Apache-2\.0|BSD-3-Clause|MIT)\)", docstring)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_statement_that_names_the_library_is_marked(name: str) -> None:
    """A line that calls forethought, or a name from it, cannot be one of the original's."""
    text = (FOLDER / f"{name}.py").read_text()
    tree = ast.parse(text)
    own = {"ft"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("forethought"):
            own |= {alias.name for alias in node.names}
    simple = (ast.Import, ast.ImportFrom, ast.Assign, ast.Expr, ast.Return)
    for node in ast.walk(tree):
        if isinstance(node, simple) and not isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            names |= {alias.asname or alias.name for alias in getattr(node, "names", [])}
            if names & own:
                assert marked(text, node), f"{name}.py:{node.lineno}"


def test_fifteen_scripts_stand_here() -> None:
    assert len(SCRIPTS) >= 15
    assert changed("a = 1  # new\n# was: b\nc  # was news\n") == 2


ARGUMENTS = {
    "pytorch_mnist": ["--epochs", "1"],
    "pytorch_rnn": ["--epochs", "1"],
    "opacus_mnist": ["-n", "1"],
    "lightning_mnist_torch": ["--epochs", "1"],
    "accelerate_nlp": ["--cpu"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_on_small_data_without_a_slow_path(name: str, tmp_path: Path) -> None:
    text = (FOLDER / f"{name}.py").read_text()
    for package in ("accelerate", "datasets", "lightning", "peft", "torchvision", "transformers"):
        if re.search(rf"^(from|import) {package}", text, re.M) and not find_spec(package):
            pytest.skip(f"{package} is not installed")
    command = [sys.executable, str(FOLDER / "small.py"), name, *ARGUMENTS.get(name, [])]
    how = {"MPLBACKEND": "agg", "CUDA_VISIBLE_DEVICES": "", "TQDM_DISABLE": "1"}
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, **how},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.strip()
    assert "SlowGradientsWarning" not in ran.stderr
