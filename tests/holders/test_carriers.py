"""What every carrier must do: of a federation's frames gRPC's connections and Flower's messages, of
a gossip's Ray's actors and gRPC's connections.

`trials.carriers` says what is judged. Flower's environment is made under build, which takes PyPI;
without it these tests are skipped.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from trials.carriers import (
    EngineMissingError,
    flower_python,
    run_carrier,
    run_links,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "flower":
        try:
            flower_python()
        except EngineMissingError as error:
            pytest.skip(str(error))
    return str(request.param)


@pytest.mark.parametrize(
    ("engine", "rule"),
    [
        pytest.param("grpc", "synchronous", marks=pytest.mark.repeated),
        ("grpc", "asynchronous"),
        ("flower", "synchronous"),
        pytest.param("flower", "asynchronous", marks=pytest.mark.repeated),
    ],
    indirect=["engine"],
)
def test_killed_at_any_moment_every_update_is_applied_exactly_once(
    engine: str, rule: str, tmp_path: Path
) -> None:
    # Of Flower, where a start takes seconds, one after the other, or all of them at once.
    rounds, blows = (250, 5) if engine == "grpc" else (16, 3)
    seed = 0 if engine == "grpc" else {"synchronous": 7, "asynchronous": 2}[rule]
    found = run_carrier(engine, rule, tmp_path, seed=seed, rounds=rounds, blows=blows)
    assert found.killed + found.stopped >= 3


@pytest.mark.parametrize(
    "engine", ["grpc", pytest.param("flower", marks=pytest.mark.repeated)], indirect=True
)
def test_frames_of_twelve_million_bytes_arrive(engine: str, tmp_path: Path) -> None:
    run_carrier(engine, "synchronous", tmp_path, parameters=3_000_000, rounds=2)


@pytest.fixture
def links(request: pytest.FixtureRequest) -> str:
    if request.param == "ray" and importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    return str(request.param)


@pytest.mark.parametrize(
    "links", ["ray", pytest.param("sites", marks=pytest.mark.repeated)], indirect=True
)
def test_links_of_a_graph_lose_and_double_nothing_whoever_is_killed_or_slow(links: str) -> None:
    """Killed, back, stopped for seconds: every event played again gives the same bits."""
    found = run_links(links, seed=5, blows=3)
    assert found.killed + found.stopped >= 2


@pytest.mark.parametrize(
    "links", [pytest.param("ray", marks=pytest.mark.repeated), "sites"], indirect=True
)
def test_links_of_a_graph_carry_frames_of_four_million_bytes(links: str) -> None:
    run_links(links, parameters=1_000_000, rounds=3)
