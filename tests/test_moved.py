"""Old paths: each gives the module at its new place, with a warning that names it."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import pytest

from forethought.moved import MOVED

CHECK = """
import importlib, sys, warnings
old, new = sys.argv[1:]
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    module = importlib.import_module(old)
assert module is importlib.import_module(new), module
messages = [str(w.message) for w in seen if issubclass(w.category, DeprecationWarning)]
assert f"{old} has moved to {new}" in messages, messages
"""


@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_is_the_new_module(old: str) -> None:
    sys.modules.pop(f"forethought.{old}", None)
    with pytest.warns(DeprecationWarning, match=f"has moved to forethought.{MOVED[old]}"):
        found = importlib.import_module(f"forethought.{old}")
    assert found is importlib.import_module(f"forethought.{MOVED[old]}")
    assert found.__name__ == f"forethought.{MOVED[old]}"
    assert found.__spec__ is not None
    assert found.__spec__.name == found.__name__


@pytest.mark.parametrize("old", ["running", "accounting.closed_form"])
def test_an_old_path_works_first_thing_in_a_process(old: str) -> None:
    arguments = [f"forethought.{old}", f"forethought.{MOVED[old]}"]
    subprocess.run([sys.executable, "-c", CHECK, *arguments], check=True, timeout=120)


def test_the_warning_points_at_the_import() -> None:
    sys.modules.pop("forethought.accounting.clt", None)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        import forethought.accounting.clt
    assert forethought.accounting.clt.__name__ == "forethought.published.clt"
    assert [w.filename for w in seen if "clt" in str(w.message)] == [__file__]


def test_names_of_the_former_renyi_module_are_forwarded() -> None:
    from forethought.accounting import renyi
    from forethought.accounting.renyi.curves import rdp

    with pytest.warns(DeprecationWarning, match="renyi.rdp has moved to"):
        assert renyi.rdp is rdp
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = renyi.nothing


def test_functions_that_moved_are_forwarded() -> None:
    from forethought.accounting import envelopes, statement, tradeoff, verification

    with pytest.warns(DeprecationWarning, match="has moved to forethought.accounting.envelopes"):
        assert tradeoff.upper_envelope is envelopes.upper_envelope
    with pytest.warns(DeprecationWarning, match=r"has moved to .*verification"):
        assert statement.verify is verification.verify
    for module in (tradeoff, statement):
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            _ = module.nothing


def test_other_unknown_modules_stay_unknown() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("forethought.nothing")
