"""A member's ledger that was set back, facing a server that hides what it has."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forethought.exchange import events as on
from forethought.exchange.messages import SERVER, Model
from forethought.exchange.storage import LedgerError
from forethought.jobs import members as jobs
from forethought.jobs.job import from_file
from forethought.training.folder import RunFolderBusyError

JOB = """
[data]
source = "digits"
[budget]
epsilon = 4.0
[training]
rounds = 6
batch = 60
[run]
noise_seed = 1
[federation]
clients = 2
exchanged = "gradients"
"""


@pytest.mark.slow
def test_a_restored_ledger_releases_nothing_whatever_the_server_says(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    request, keys = from_file(path), tmp_path / "keys"
    jobs.make_everybody(request, "federation", keys)
    mine, out = keys / "client-0", tmp_path / "out"
    size = jobs.Membership.load(mine, "federation").agreed.parameters
    asked_for: list[int] = []

    def member(base: int) -> Any:
        """One process of the client, whose server sends one model and claims to have nothing."""

        def carry(make: Any, compute: Any) -> Any:
            asked: list[on.Compute] = []
            driver = make(lambda to, message, frame: None, asked.append)
            weights = np.full(size, base, dtype=np.float32)
            driver.handle(on.Received(SERVER, Model(0, base, weights), 0.0))
            while asked:
                asked_for.append(asked[0].round)
                driver.handle(compute(asked.pop(0)))
            return driver

        return jobs.take_part_in_job(request, mine, out, carry=carry)

    assert member(0).updates == 1
    shutil.copytree(out, tmp_path / "backup")
    assert member(1).updates == 2  # after a restart it goes on
    shutil.rmtree(out)
    shutil.copytree(tmp_path / "backup", out)
    with pytest.raises(LedgerError, match="another folder"):
        member(2)
    assert asked_for == [0, 1]
    # Without the count, which is beside the keys, nothing but the server could tell.
    for kept in mine.glob("released-*"):
        kept.unlink()
    assert member(2).updates == 2 and asked_for == [0, 1, 1]


def test_a_member_takes_part_once_at_a_time_whatever_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    request, keys = from_file(path), tmp_path / "keys"
    jobs.make_everybody(request, "federation", keys)
    mine, sent = keys / "client-0", list[int]()
    size = jobs.Membership.load(mine, "federation").agreed.parameters

    def member(out: str, meanwhile: Any = None) -> Any:
        """A process of the client that is sent the first model, after what happens meanwhile."""

        def carry(make: Any, compute: Any) -> Any:
            asked: list[on.Compute] = []
            driver = make(lambda to, message, frame: sent.append(message.round), asked.append)
            if meanwhile is not None:
                meanwhile()
            first = Model(0, 0, np.zeros(size, dtype=np.float32))
            driver.handle(on.Received(SERVER, first, 0.0))
            while asked:
                driver.handle(compute(asked.pop(0)))
            return driver

        return jobs.take_part_in_job(request, mine, tmp_path / out, carry=carry)

    def again() -> None:
        with pytest.raises(RunFolderBusyError, match="with these keys"):
            member("two")

    assert member("one", again).updates == 1
    assert sent == [0]
    assert not (tmp_path / "two").exists() and not [*mine.glob("*.busy")]


def test_a_folder_for_the_count_is_there_before_anything_is_released(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    request, keys, missing = from_file(path), tmp_path / "keys", tmp_path / "not-mounted"
    jobs.make_everybody(request, "federation", keys)

    def carry(make: Any, compute: Any) -> Any:
        raise AssertionError("it would have connected")

    given: dict[str, Any] = {"carry": carry, "witness": missing}
    with pytest.raises(FileNotFoundError, match="no such folder"):
        jobs.take_part_in_job(request, keys / "client-0", tmp_path / "out", **given)
    assert not missing.exists()
