"""``experiments/full.py`` knows every experiment, and options that each one has."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

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
        if command.kept:
            rows, hours = full().kept_hours(command)
            assert rows and hours > 0, command.name


def test_what_is_unknown_of_an_experiment_is_said(capsys) -> None:
    module = full()
    assert module.estimate(module.Command("hospital/run.py"), EXPERIMENTS) == 0
    assert module.estimate(module.Command("hospital/run.py", minutes=30), EXPERIMENTS) == 0.5
    said = capsys.readouterr().out
    assert "nothing is known of its time" in said and "by guess" in said
