"""What every test of the gradients is held to."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import left_as_found

NAMES = left_as_found.Namespaces()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fails a test that leaves torch, numpy, the environment or the library other than before."""
    NAMES.look()
    before = left_as_found.settings()
    yield
    if any(left_as_found.differing(before)):
        gc.collect()  # torch 2.8: a checkpoint that failed ends with the last of its traceback
    if left := [*left_as_found.differing(before), *NAMES.changed()]:
        pytest.fail(f"the test left behind: {'; '.join(left)}")
