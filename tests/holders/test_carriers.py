"""What every carrier of a federation's frames must do: gRPC's connections, and Flower's messages.

`trials.carriers` says what is judged. Flower's environment is made under build, which takes PyPI;
without it these tests are skipped.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from trials.carriers import ENGINES, EngineMissingError, flower_python, run_carrier

pytestmark = pytest.mark.slow


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "flower":
        try:
            flower_python()
        except EngineMissingError as error:
            pytest.skip(str(error))
    return str(request.param)


@pytest.mark.parametrize("rule", ["synchronous", "asynchronous"])
def test_killed_at_any_moment_every_update_is_applied_exactly_once(
    engine: str, rule: str, tmp_path: Path
) -> None:
    rounds, blows = (250, 9) if engine == "grpc" else (25, 4)
    found = run_carrier(engine, rule, tmp_path, rounds=rounds, blows=blows)
    assert found.killed + found.stopped >= 3


def test_frames_of_twelve_million_bytes_arrive(engine: str, tmp_path: Path) -> None:
    run_carrier(engine, "synchronous", tmp_path, parameters=3_000_000, rounds=2)
