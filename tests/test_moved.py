"""Modules of 0.2 that have moved load under their former names, with a warning."""

from __future__ import annotations

import importlib
import sys

import pytest

from forethought.names import MOVED, RENAMED


@pytest.mark.parametrize("name", sorted(MOVED))
def test_a_former_name_holds_what_today_s_holds(name: str) -> None:
    sys.modules.pop(f"forethought.{name}", None)
    with pytest.warns(DeprecationWarning, match="is forethought"):
        former = importlib.import_module(f"forethought.{name}")
    today = importlib.import_module(f"forethought.{MOVED[name]}")
    renamed = RENAMED.get(name, {})
    public = [thing for thing in vars(today) if thing[0] != "_" and thing not in renamed]
    assert all(getattr(former, thing) is getattr(today, thing) for thing in public)
    assert all(getattr(former, old) is getattr(today, new) for old, new in renamed.items())
    del sys.modules[f"forethought.{name}"]


def test_no_module_stands_under_a_former_name_still() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("forethought.no_such_room")
