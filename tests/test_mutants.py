"""Mutants find their places whatever files are called, and one that lives is told."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[1] / ".ci" / "mutants.py"
TEXT = """
class Ledger:
    def spend(self, price, limit):
        if self.spent + price > limit:
            raise ValueError("too much")
        self.spent += charge(price, scale=2)
        return [price, limit]

def spend(price):
    return price
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutants", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def changed(tool: ModuleType, folder: Path, where: str, piece: str, new: str) -> str:
    row = tool.Mutant("one", where, piece, new, "test_one")
    return ast.unparse(tool.Sources(folder).find(row).changed)


@pytest.mark.parametrize(
    ("piece", "new", "expected"),
    [
        ("self.spent+price > limit", "False", "if False:"),
        ("if self.spent + price > limit: ...", "pass", "pass"),
        ("if ... > limit: ...", "if ... > 9: ...", "if self.spent + price > 9:"),
        ("scale=2", "scale=3", "charge(price, scale=3)"),
        ("charge(price, ...)", "charge(0, ...)", "charge(0, scale=2)"),
        ("self.spent += ...", "self.spent = ...", "self.spent = charge(price, scale=2)"),
        ("charge(price, scale=2)", "price", "self.spent += price"),
        ("[price, ...]", "[...]", "return [limit]"),
    ],
)
def test_a_piece_is_found_by_its_structure_in_a_file_of_any_name(
    tool: ModuleType, tmp_path: Path, piece: str, new: str, expected: str
) -> None:
    (tmp_path / "one.py").write_text(TEXT)
    first = changed(tool, tmp_path, "Ledger.spend", piece, new)
    assert expected in first and first != ast.unparse(ast.parse(TEXT))
    (tmp_path / "one.py").unlink()
    (tmp_path / "room").mkdir()
    moved = TEXT.replace(
        "self.spent + price > limit", "(  # words\n  self.spent\n  + price) > limit"
    )
    (tmp_path / "room" / "other.py").write_text(f'"""A book."""\n\n{moved}')
    assert expected in changed(tool, tmp_path, "Ledger.spend", piece, new)


@pytest.mark.parametrize(
    ("where", "piece", "why"),
    [
        ("Ledger.spend", "price < limit", "0 times"),
        ("Ledger.spend", "price", "3 times"),
        ("Ledger.gone", "price", "no file"),
        ("spend", "price", r"2 times in spend \(one\.py, two\.py"),
    ],
)
def test_a_row_without_one_place_is_refused(
    tool: ModuleType, tmp_path: Path, where: str, piece: str, why: str
) -> None:
    (tmp_path / "one.py").write_text(TEXT)
    (tmp_path / "two.py").write_text("def spend(price):\n    return price\n")
    with pytest.raises(tool.UnboundError, match=why):
        changed(tool, tmp_path, where, piece, "0")
    assert "return 0" in changed(tool, tmp_path, "two.py::spend", "price", "0")
    (tmp_path / "two.py").write_text("def spend(amount):\n    return amount\n")
    assert "return 0" in changed(tool, tmp_path, "spend", "return price", "return 0")


LIVES = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("mutants", {tool!r})
mutants = sys.modules["mutants"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutants)
known = next(row for row in mutants.MUTANTS if row.name == "frame: another run taken")
planted = [
    known,
    mutants.replace(known, name="lives", changed=known.piece),
    mutants.replace(known, name="broken", changed="nobody_gave_me_a_name"),
    mutants.replace(known, name="nothing runs", tests="test_of_no_name"),
]
rows, wrong = mutants.bound(planted)
print(wrong)
print({{verdict.row.name: verdict.good for verdict in mutants.tried(rows)}})
"""


def test_a_mutant_that_lives_or_cannot_run_is_told() -> None:
    """Planted: a change that changes nothing, one that fails by itself, one that nobody tests."""
    done = subprocess.run(
        [sys.executable, "-c", LIVES.format(tool=str(TOOL))],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=TOOL.parents[1],
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "['UNBOUND no test is called test_of_no_name']"
    told = {"frame: another run taken": True, "lives": False, "broken": False}
    assert ast.literal_eval(next(line for line in lines if line.startswith("{"))) == (
        told | {"nothing runs": False}
    )
