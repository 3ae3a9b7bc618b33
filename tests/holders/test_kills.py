"""Workers as real processes, killed and stopped at random moments."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch.distributed")

from planted import CommitsLate, HearsAnotherMean, WaitsForTheDead

from trials import ViolationError
from trials.endings import EndingTrial, run_endings
from trials.kills import KillTrial, run_kills
from trials.processes import prepared

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("engine", [pytest.param("ray", marks=pytest.mark.repeated), "sites"])
def test_workers_that_are_killed_and_stopped_leave_the_others_going(engine):
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with prepared(engine, 3, rounds=390) as setting:
        found = KillTrial(setting, 3).run()
    assert found.killed + found.stopped >= 2 and found.releases > 4 * 20
    assert found.apart < 0.1


def test_a_kill_changes_no_bit_of_what_waiting_workers_come_to():
    found = run_kills(3, "sites", 2, rule="synchronous")
    assert found.killed + found.stopped >= 3 and found.settled == found.trials


def test_a_release_that_is_sent_before_it_is_in_the_ledger_is_found():
    # A kill must hit between both: most do, and of some thirty one will.
    with pytest.raises(ViolationError) as error:
        for seed in range(4):
            with prepared("sites", seed, rounds=540) as setting:
                KillTrial(setting, 8, CommitsLate).run()
    assert "whose ledger had" in str(error.value) or "set back" in str(error.value)


def test_a_survivor_that_waits_for_the_dead_is_found():
    with (
        prepared("sites", 1, rounds=500) as setting,
        pytest.raises(ViolationError, match="on after worker"),
    ):
        KillTrial(setting, 5, WaitsForTheDead, patience=8.0).run()


def test_all_of_sync_end_with_their_reason_when_one_is_killed():
    found = run_endings(2)
    assert found.trials == 2 and found.killed + found.stopped == 2 and found.releases > 8
    assert found.refused == found.killed <= found.ended


def test_a_worker_of_sync_that_takes_another_mean_is_found():
    with (
        prepared("torchrun", 1, rounds=300, rule="allreduce") as setting,
        pytest.raises(ViolationError, match="means of round"),
    ):
        EndingTrial(setting, 1, HearsAnotherMean).end()
