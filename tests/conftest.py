"""What every test may ask for."""

from __future__ import annotations

import gc
import os
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import left_as_found

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# One thread a worker: the suite already runs one worker a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Ray's processes let all others go first, unless told otherwise: beside other tests they stood.
os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with real data and reference values beside the project; skips without it."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("the folder ../shared with real data and reference values is not here")
    return folder


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Every test draws the same numbers, whatever ran before it."""
    if drawn := sys.modules.get("drawn"):
        drawn.reseed(0)


NAMES = left_as_found.Namespaces()
# Rooms whose tests are held to it.
ROOMS = frozenset({"gradients", "rounds", "data", "models", "simulation", "exchange"})


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves torch, numpy, the environment or the library other than before."""
    if ROOMS.isdisjoint(request.path.relative_to(Path(__file__).parent).parts):
        yield
        NAMES.stale = True
        return
    NAMES.look()
    before = left_as_found.settings()
    yield
    if any(left_as_found.differing(before)):
        gc.collect()  # torch 2.8: a checkpoint that failed ends with the last of its traceback
    if left := [*left_as_found.differing(before), *NAMES.changed()]:
        pytest.fail(f"the test left behind: {'; '.join(left)}")


@pytest.fixture(autouse=True)
def blocks_compared_briefly(request: pytest.FixtureRequest) -> Iterator[None]:
    """Blocks are compared on 64 made-up examples, but where they are what is tested.

    Training compares 256 of them for each new model before it goes in blocks: a third of the time
    of tests that train small ones.
    """
    gradients = sys.modules.get("forethought.gradients.clipped")
    if gradients is None or "gradients" in request.path.parts:
        yield
        return
    token = gradients.COMPARED.set(64)
    yield
    gradients.COMPARED.reset(token)


@pytest.fixture
def noise_by_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that follows from secret and round alone, so that sums compare behind it.

    For tests that compare how a sum is computed; what the library draws never does this.
    """
    from forethought.rounds.private_sum import PrivateRounds
    from forethought.rounds.randomness import BoundNoise

    monkeypatch.setattr(PrivateRounds, "_about", lambda _, chosen: chosen.index.to_bytes(32, "big"))
    monkeypatch.setattr(BoundNoise, "bind", lambda _, about, _sum: about[31::-1])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Leave out what begins when the time of .ci/run is over; the summary says how much it was."""
    if time.time() > float(os.environ.get("CI_END", "inf")):
        pytest.skip("the time of .ci/run is over")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a thinned test the first case is quick, and about a third of the others; the rest is slow.

    A case is chosen by its name: of every third one in order, some argument would have one value.
    """
    begun = set()
    for item in items:
        if item.get_closest_marker("thinned") is not None:
            function = item.nodeid.partition("[")[0]
            if function in begun and zlib.crc32(item.nodeid.encode()) % 3:
                item.add_marker(pytest.mark.slow)
            begun.add(function)


SLOW = pytest.StashKey[int]()
LEFT_OUT = "slow tests left out"


def pytest_deselected(items: list[pytest.Item]) -> None:
    config = items[0].config
    held = getattr(config, "workeroutput", None)
    count = sum("slow" in item.keywords for item in items)
    if held is not None:
        held[LEFT_OUT] = count
    else:
        config.stash[SLOW] = count


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Every worker leaves out the same tests."""
    node.config.stash[SLOW] = getattr(node, "workeroutput", {}).get(LEFT_OUT, 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if count := config.stash.get(SLOW, 0):
        terminalreporter.write_line(f"{count} slow tests were left out: `make test-all` runs them")
    if failed := os.environ.get("FAILED_BEFORE"):
        terminalreporter.write_line(f"steps of .ci/run that failed before these tests: {failed}")
    if left := os.environ.get("LEFT_BEFORE"):
        terminalreporter.write_line(f"steps of .ci/run for which there was no time: {left}")
