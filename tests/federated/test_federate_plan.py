"""`forethought federate plan`: costs a client, other splits, secure aggregation, rehearsal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import forethought as ft
from forethought.cli import app
from forethought.federated.federation import Federation, Member
from forethought.holders.simulator import Times, Way
from forethought.planning.holders import megabytes, predict, predicted_seconds

JOB = """
[data]
source = "digits"
[budget]
epsilon = 8.0
delta = 1e-4
[federation]
clients = 5
rounds = 6
slow = 1
"""
BUDGET = ft.Budget(2.0, 1e-5)


def command(tmp_path: Path, text: str, *flags: str) -> dict:
    job = tmp_path / "job.toml"
    job.write_text(text)
    result = CliRunner().invoke(app, ["federate", "plan", str(job), "--json", *flags])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def federation(**options) -> Federation:
    plan = ft.plan(examples=600, budget=BUDGET, batch=50, rounds=24, parameters=100)
    members = tuple(Member(f"c{i}") for i in range(4))
    return Federation(members, (plan,), 100, "", options.pop("rounds", 24), **options)


def test_the_command_gives_a_row_a_client_and_a_federation(tmp_path: Path) -> None:
    found = command(tmp_path, JOB, "--save", str(tmp_path / "federation.json"))
    assert len(found["clients"]) == 5
    for row in found["clients"]:
        assert 7 < row["epsilon"] <= 8
        assert row["outsider_epsilon"] < row["epsilon"]
        assert row["rounds"] == 6 and row["secure_epsilon"] is None
    assert [row["speed"] for row in found["clients"]] == [1, 1, 1, 1, 0.1]
    assert Federation.load(tmp_path / "federation.json").to_dict() == found["federation"]


@pytest.mark.slow
def test_secure_aggregation_keeps_the_budget_against_the_server(tmp_path: Path) -> None:
    found = command(tmp_path, JOB + "secure = {dropouts = 1, colluders = 1}\n")
    for row in found["clients"]:
        assert row["secure_epsilon"] <= 8 * (1 + 1e-6) < row["epsilon"]
    shown = CliRunner().invoke(app, ["federate", "plan", str(tmp_path / "job.toml")])
    assert "secure server" in shown.output
    refused = CliRunner().invoke(
        app, ["federate", "plan", str(tmp_path / "job.toml"), "--public-proxy", "digits"]
    )
    assert refused.exit_code != 0


@pytest.mark.slow
def test_a_rehearsal_simulates_on_a_public_proxy(tmp_path: Path) -> None:
    found = command(tmp_path, JOB, "--rehearse", "--repeats", "1")
    assert 0.2 < found["rehearsal"]["accuracies"][0] <= 1
    job = tmp_path / "job.toml"
    flags = ["--rehearse", "--public-proxy", "breast-cancer"]
    result = CliRunner().invoke(app, ["federate", "plan", str(job), *flags])
    assert result.exit_code != 0


def test_splits_have_the_same_epsilon_and_other_costs() -> None:
    whole = federation()
    found = predict(whole, [BUDGET] * 4, [1.0] * 4, Times([1.0, 1.0, 1.0, 5.0]))
    assert [split.local_rounds for split in found.splits] == [1, 12, 24]
    assert [split.rounds * split.local_rounds for split in found.splits] == [24] * 3
    assert found.splits[0].megabytes == pytest.approx(12 * found.splits[1].megabytes)
    # The slow client sets the pace, and a way without latency takes no time.
    assert [split.seconds for split in found.splits] == pytest.approx([120.0] * 3)
    assert found.seconds == 120.0
    assert all("theorem" not in note.lower() for note in found.notes)


def test_times_count_messages_by_their_real_size() -> None:
    whole = replace(federation(), parameters=1_000_000)
    slow = predicted_seconds(whole, Times([1.0] * 4, Way(0.0, 1e6)))
    # Each round a model comes and an update goes, 4 MB each at 1 MB/s, besides a second's work.
    assert slow == pytest.approx(24 * 9, rel=0.05)
    assert megabytes(whole, 24) == pytest.approx(24 * 8, rel=0.01)


@pytest.mark.slow
def test_long_runs_are_scaled_up_from_their_beginning() -> None:
    plan = ft.plan(examples=600, budget=BUDGET, batch=50, rounds=20_000, parameters=100)
    whole = replace(federation(), plans=(plan,), rounds=20_000)
    assert predicted_seconds(whole, Times([1.0] * 4)) == pytest.approx(20_000)
