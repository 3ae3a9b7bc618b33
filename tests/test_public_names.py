"""The public surface: every listed name exists, rooms are attributes, nothing heavy is loaded."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import forethought as ft

ROOMS = ("accounting", "convex", "data", "errors", "estimators", "gradients", "statistics")


@pytest.mark.parametrize("name", ft.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(ft, name) is not None
    assert name in dir(ft)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_are_attributes_and_keep_what_they_list(room: str) -> None:
    module = getattr(ft, room)
    assert module.__name__ == f"forethought.{room}"
    for name in getattr(module, "__all__", ()):
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError):
        _ = module.no_such_name


# Signals between two files of one room, or of the command line.
INTERNAL = {"RefusedError", "ReplayError", "UnresolvedError", "UsageError"}


def test_errors_are_of_the_kinds_that_their_room_says() -> None:
    kinds = (
        *(ValueError, RuntimeError, ArithmeticError, ConnectionError),
        *(KeyboardInterrupt, UserWarning),
    )
    for name in ft.errors.__all__:
        error = getattr(ft.errors, name)
        assert issubclass(error, kinds)
        assert error.__doc__


def test_editors_know_the_former_name_of_an_error() -> None:
    with pytest.warns(DeprecationWarning, match="PeersError"):
        assert ft.errors.StoreError is ft.errors.PeersError
    stub = Path(ft.errors.__file__).with_suffix(".pyi").read_text("utf-8")
    assert "PeersError as StoreError" in stub
    assert set(ft.errors.__all__) <= set(dir(ft.errors))


def test_every_exception_is_collected() -> None:
    source = Path(ft.__file__).parent
    found = {
        name
        for path in source.rglob("*.py")
        for name in re.findall(
            r"^class ([A-Z]\w*(?:Error|Warning|Interrupted))\(", path.read_text("utf-8"), re.M
        )
    }
    assert found - INTERNAL == set(ft.errors.__all__) - {"Interrupted"}


def test_every_public_name_is_in_the_reference() -> None:
    pages = Path(__file__).parents[1] / "docs" / "api"
    shown = {
        line.removeprefix("::: forethought.")
        for page in pages.glob("*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("::: ")
    }
    names = {name for name in ft.__all__ if name not in (*ROOMS, "__version__")}
    assert names - {name.rpartition(".")[2] for name in shown} == set()
    assert {f"errors.{name}" for name in ft.errors.__all__} <= shown
    errors = set(ft.errors.__all__)
    assert {f"data.{name}" for name in ft.data.__all__ if name not in errors} <= shown
    assert {f"convex.{name}" for name in ft.convex.__all__ if name != "schedules"} <= shown
    public = {name for name, value in vars(ft.gradients).items() if callable(value)}
    assert {f"gradients.{name}" for name in public if name[0] != "_"} <= shown


LIGHT = """
import sys
import forethought as ft
assert "numpy" not in sys.modules and "torch" not in sys.modules
ft.epsilon(ft.Mechanism(ft.Rounds(1.0, 1, ft.FullBatch())), 1e-5)
ft.plan(examples=1000, budget=ft.Budget(1.0, 1e-5), epochs=2)
ft.account(ft.Mechanism(ft.Rounds(1.0, 1, ft.FullBatch())), 1e-5).to_markdown()
ft.accounting, ft.errors.StatementError
assert "torch" not in sys.modules
"""


def test_accounting_and_planning_never_load_torch() -> None:
    subprocess.run([sys.executable, "-c", LIGHT], check=True, timeout=600)
