"""``experiments/full.py`` knows every experiment, and options that each one has."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def full() -> ModuleType:
    spec = importlib.util.spec_from_file_location("full_experiments", EXPERIMENTS / "full.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


def test_every_experiment_is_run_at_full_size_or_by_another_one() -> None:
    module = full()
    there = {
        str(path.relative_to(EXPERIMENTS))
        for path in EXPERIMENTS.glob("*/*.py")
        if "__main__" in path.read_text(encoding="utf-8")
    }
    known = {command.script for command in module.COMMANDS}
    assert there == known | set(module.BY_OTHERS)
    assert not known & set(module.BY_OTHERS)


def test_options_are_those_that_the_experiments_have() -> None:
    for command in full().COMMANDS:
        folder = (EXPERIMENTS / command.script).parent
        source = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
        options = [word for word in (*command.options, command.data) if word.startswith("--")]
        options += ["--estimate"] * command.estimates
        for option in options:
            assert f'"{option}"' in source, f"{command.name}: {option}"
        if command.kept and (EXPERIMENTS / command.kept).exists():
            rows, hours = full().kept_rows(command)
            assert rows and (hours > 0) == command.timed, command.name
        assert command.resumes or not command.kept, command.name


def test_what_is_unknown_of_an_experiment_is_said() -> None:
    module = full()
    hours, said = module.expected(module.Command("hospital/run.py"), EXPERIMENTS)
    assert hours is None and said == "nothing is known of its time"
    hours, said = module.expected(module.Command("hospital/run.py", minutes=30), EXPERIMENTS)
    assert hours == 0.5 and "by guess" in said


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """``full`` with a folder of its own and scripts that leave their names in ``ran``."""
    module = full()
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "DONE", tmp_path / "full.jsonl")
    code = "open({!r}, 'a').write('{} ')"
    for name in ("first", "second", "third"):
        path = str(tmp_path / "ran")
        (tmp_path / f"{name}.py").write_text(code.format(path, name), encoding="utf-8")
    return module


def ran(module: ModuleType) -> list[str]:
    path = module.HERE / "ran"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def test_the_shortest_is_run_first_and_what_does_not_fit_is_named(own: ModuleType, capsys) -> None:
    commands = [
        own.Command(f"{name}.py", (), "", minutes=minutes)
        for name, minutes in (("third", 90.0), ("second", 20.0), ("first", 10.0))
    ]
    out = own.run_all(commands, own.HERE, 1.0)
    assert ran(own) == ["first", "second"]
    assert [command.script for command in out] == ["third.py"]
    assert "left out: third.py: 1.50 h by guess" in capsys.readouterr().out
    assert set(own.finished()) == {"first.py", "second.py"}
    assert own.run_all(commands[:1], own.HERE, None) == [] and ran(own)[-1] == "third"


def test_time_that_is_left_goes_to_one_that_resumes(own: ModuleType) -> None:
    commands = [
        own.Command(f"{name}.py", (), "", resumes=resumes, kept="none.csv", minutes=90.0)
        for name, resumes in (("first", False), ("second", True), ("third", True))
    ]
    out = own.run_all(commands, own.HERE, 1.0)
    assert ran(own) == ["second"]
    assert [command.script for command in out] == ["first.py", "third.py"]


def test_rows_that_were_kept_before_count_with_their_own_seconds(own: ModuleType) -> None:
    (own.HERE / "rows.csv").write_text("seed,seconds\n0,1800\n1,5400\n", encoding="utf-8")
    command = own.Command("first.py", (), "", resumes=True, kept="rows.csv")
    used = own.run(command, own.HERE, None)
    assert used < 0.01
    assert own.finished()["first.py"] == pytest.approx(2 + used, abs=1e-3)


def test_rows_without_times_make_no_time(own: ModuleType) -> None:
    """Planted: a command that had nothing left to do must not count as taking a second."""
    (own.HERE / "rows.jsonl").write_text('{"seed": 0, "seconds": 70}\n', encoding="utf-8")
    command = own.Command("first.py", (), "", True, kept="rows.jsonl", timed=False)
    own.run(command, own.HERE, None)
    assert own.finished() == {"first.py": None}


def test_rows_of_one_s_own_earlier_calls_do_not_hide_the_time(own: ModuleType) -> None:
    command = own.Command("first.py", (), "", True, kept="rows.jsonl", timed=False)
    line = {"command": "first.py", "hours": 3.0, "ended": False, "date": "2026-01-01"}
    own.DONE.write_text(json.dumps(line) + "\n", encoding="utf-8")
    (own.HERE / "rows.jsonl").write_text('{"seed": 0}\n', encoding="utf-8")
    own.run(command, own.HERE, None)
    assert own.finished()["first.py"] == pytest.approx(3.0, abs=0.01)
