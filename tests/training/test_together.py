"""Two gloo processes train one plan, and it is the run of one process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

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


def two(cases: str, folder: Path) -> list[list[dict[str, Any]]]:
    """For each case what each of two processes found."""
    done = launch(cases, str(folder))
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


UNFIT = {
    "other data": "process 1 has another data",
    "other average": "process 1 has another plan",
    "other folder": "out= or resume=",
    "wrapped": ".module",
    "other sum": "another sum each",
}


class Ended(NamedTuple):
    """Ends of one run and of one that was stopped, and what was said of those that do not fit."""

    folder: Path
    straight: list[dict[str, Any]]
    stopped: list[dict[str, Any]]
    unfit: list[list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """All that can share two processes; most of their time they load torch."""
    folder = tmp_path_factory.mktemp("together")
    straight, stopped, *unfit = two(",".join(("examples", "examples:5", *UNFIT)), folder)
    return Ended(folder, straight, stopped, unfit)


@pytest.mark.slow
def test_processes_that_do_not_fit_are_refused(ended: Ended) -> None:
    for both, said in zip(ended.unfit, UNFIT.values(), strict=True):
        for found in both:
            assert said in found["refused"] and "weights" not in found


@pytest.mark.slow
def test_a_stopped_run_goes_on_in_two_processes_bit_for_bit(ended: Ended) -> None:
    straight, folder = ended.straight, ended.folder
    assert [found["interrupted"] for found in ended.stopped] == [5, 5]
    shutil.copytree(folder / "examples:5", folder / "again" / "examples")
    (resumed,) = two("examples:5", folder)
    assert {found["digest"] for found in (*straight, *resumed)} == {straight[0]["digest"]}
    assert resumed[0]["history"] == straight[0]["history"]
    # A run of two processes goes on in one: nothing has to be repeated.
    assert one("examples", folder / "again")[0]["statement"] == straight[0]["statement"]


@pytest.mark.slow
@pytest.mark.repeated
def test_a_team_is_replayed_in_each_of_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENVIRONMENT, "REPLAY", "1")
    *sound, fault = two("examples,groups,quantile,copies,every slice is the whole batch", tmp_path)
    for found in sound:
        assert [one["replay"] for one in found] == [[12, False, []]] * 2
    assert [one["replay"][1] for one in fault] == [True, True]


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


@pytest.mark.slow
def test_a_job_that_releases_before_it_trains_runs_under_torchrun(tmp_path: Path) -> None:
    """One process makes these releases, and every process has them."""
    job, out = tmp_path / "job.toml", tmp_path / "run"
    job.write_text(
        '[data]\nsource = "digits"\nstandardise = "private"\nbounds = [0.0, 1.0]\n'
        '[model]\nname = "linear"\n[budget]\nepsilon = 3.0\n[training]\nrounds = 3\n'
    )
    done = launch("train", str(job), "--out", str(out), module=("-m", "forethought"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert (out / "prepared.json").is_file() and (out / "statement.json").is_file()


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
