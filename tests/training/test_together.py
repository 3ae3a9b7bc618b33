"""Two gloo processes train one plan, and it is the run of one process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forethought.rounds.contributions import DealtBatch
from forethought.rounds.private_sum import Team, share_of

SCRIPT = Path(__file__).with_name("two_processes.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="needs torch.distributed with gloo",
)


def launch(*arguments: str, module: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", *(module or (str(SCRIPT),)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=ENVIRONMENT)


def two(cases: str, folder: Path, *stop: str) -> list[list[dict[str, Any]]]:
    """For each case what each of two processes found."""
    done = launch(cases, str(folder), *stop)
    assert done.returncode == 0, done.stderr[-3000:]
    return [
        [json.loads((folder / f"{case}-{rank}.json").read_text()) for rank in range(2)]
        for case in cases.split(",")
    ]


def one(cases: str, folder: Path) -> list[dict[str, Any]]:
    command = [sys.executable, str(SCRIPT), cases, str(folder)]
    subprocess.run(command, check=True, timeout=600, env=ENVIRONMENT)
    return [json.loads((folder / f"{case}-0.json").read_text()) for case in cases.split(",")]


@pytest.mark.slow
def test_two_processes_end_where_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same statement, same history; the same weights up to the rounding of the sums."""
    monkeypatch.setitem(ENVIRONMENT, "NOISE_BY_ROUND", "1")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    cases = "examples,empty slices,groups,quantile,grid,copies"
    pairs = zip(one(cases, tmp_path / "one"), two(cases, tmp_path / "two"), strict=True)
    for alone, (first, second) in pairs:
        assert first["digest"] == second["digest"]
        assert first["statement"] == second["statement"] == alone["statement"]
        assert first["history"] == second["history"] == alone["history"]
        assert np.abs(np.subtract(first["weights"], alone["weights"])).max() < 1e-5
        assert "rounds" not in second  # one process reports


@pytest.mark.slow
def test_a_team_is_replayed_in_each_of_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "REPLAY", "sound")
    (tmp_path / "sound").mkdir()
    for found in two("examples,groups,quantile,copies", tmp_path / "sound"):
        assert [one["replay"] for one in found] == [[12, False, []]] * 2
    monkeypatch.setitem(ENVIRONMENT, "REPLAY", "every slice is the whole batch")
    (tmp_path / "fault").mkdir()
    for found in two("examples", tmp_path / "fault"):
        assert [one["replay"][1] for one in found] == [True, True]


@pytest.mark.slow
def test_a_stopped_run_goes_on_in_two_processes_bit_for_bit(tmp_path: Path) -> None:
    for name in ("straight", "stopped", "again"):
        (tmp_path / name).mkdir()
    (straight,) = two("examples", tmp_path / "straight")
    (stopped,) = two("examples", tmp_path / "stopped", "5")
    assert [found["interrupted"] for found in stopped] == [5, 5]
    shutil.copytree(tmp_path / "stopped", tmp_path / "again", dirs_exist_ok=True)
    (resumed,) = two("examples", tmp_path / "stopped")
    assert {found["digest"] for found in (*straight, *resumed)} == {straight[0]["digest"]}
    assert resumed[0]["history"] == straight[0]["history"]
    # A run of two processes goes on in one: nothing has to be repeated.
    assert one("examples", tmp_path / "again")[0]["statement"] == straight[0]["statement"]


@pytest.mark.slow
def test_processes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    other, wrapped, sums = two("other data,wrapped,other sum", tmp_path)
    for refused, said in (
        (other, "process 1 has another data"),
        (wrapped, ".module"),
        (sums, "another sum each"),
    ):
        for found in refused:
            assert said in found["refused"] and "weights" not in found


@pytest.mark.slow
def test_the_command_line_runs_under_torchrun(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = launch(
        "train",
        "--demo",
        "--rounds",
        "4",
        "--out",
        str(out),
        "--json",
        module=("-m", "forethought"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["folder"] == str(out)  # said once
    assert (out / "statement.json").is_file() and not (out / "checkpoint").exists()
    wrong = launch("train", str(tmp_path / "nothing.toml"), module=("-m", "forethought"))
    assert wrong.returncode != 0


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("groups", [None, 1, 4])
def test_the_shares_of_a_team_are_the_batch(size: int, groups: int | None) -> None:
    indices = np.array([9, 4, 17, 3, 8])
    members = None if groups is None else np.array([0, 3, 3, 1, 0]) % groups
    batch = DealtBatch(indices, members, len(indices) if groups is None else groups)
    shares = [share_of(batch, Team(rank, size)) for rank in range(size)]
    assert sorted(np.concatenate([share.indices for share in shares])) == sorted(indices)
    assert sum(share.count for share in shares) == batch.count
    assert {share.round_size for share in shares} == {batch.count}
    if members is not None:
        own = [
            {int(i) for i in share.indices[share.member_of == group]}
            for share in shares
            for group in range(share.count)
        ]
        whole = [{int(i) for i in indices[members == group]} for group in range(batch.count)]
        assert sorted(map(sorted, own)) == sorted(map(sorted, whole))
