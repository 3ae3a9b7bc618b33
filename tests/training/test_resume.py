"""Killing and resuming is exact, and a resumed run is the same run or none."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from forethought.gradients import BatchDims
from forethought.rounds.randomness import BoundNoise
from forethought.training.execution import Interrupted
from forethought.training.folder import Checkpoint, CheckpointError, ReleasedRounds, RunFolder
from forethought.training.metrics import Event
from forethought.training.run import train
from forethought.values.checks import RunFolderExistsError
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Clip, Plan


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_run_killed_at_random_ends_exactly_like_one_that_was_not(tmp_path: Path) -> None:
    """Model, metrics, statement and every repeated round agree to the last bit."""
    script = Path(__file__).with_name("killed_runs.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "1"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    scenarios = json.loads(done.stdout)
    assert len(scenarios) == 8
    for found in scenarios:
        assert found["statuses"] == [0, 0], (found, done.stderr)
        assert found["differing rounds"] == [], found
        assert found["same files"], found
    assert sum(found["kills"] for found in scenarios) >= 12
    assert sum(found["repeats"] for found in scenarios) >= 12


EXAMPLES = 60


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(EXAMPLES, 4))
    return inputs, (inputs[:, 0] > 0).astype(np.int64)


def plan(**options: Any) -> Plan:
    return Plan(Mechanism(Rounds(1.0, 20, Poisson(0.2))), EXAMPLES, 1e-5, **options)


def other_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(2 * outputs, targets, reduction="none")


@pytest.fixture(name="stopped")
def interrupted_run(tmp_path: Path) -> Path:
    """A run of 20 rounds that died after 11, with a checkpoint of 8."""

    def die(event: Event) -> None:
        if event.round == 11:
            raise PowerCut

    out = tmp_path / "run"
    with pytest.raises(PowerCut):
        train(
            nn.Linear(4, 2),
            data(),
            plan(),
            test=data(1),
            out=out,
            checkpoint_every=8,
            progress=die,
        )
    assert ReleasedRounds.peek(out / "checkpoint") == dict.fromkeys(range(11), 1)
    return out


class PowerCut(Exception):  # noqa: N818 (an event that is simulated, not an error)
    pass


def test_unseeded_runs_resume_to_one_end(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "copy")
    ends = [
        train(nn.Linear(4, 2), data(), plan(), test=data(1), out=folder, resume=True)
        for folder in (stopped, tmp_path / "copy")
    ]
    assert torch.equal(ends[0].model.weight, ends[1].model.weight)
    assert ends[0].history == ends[1].history
    # Rounds 9 to 11 were released twice, and were the same release both times.
    assert ends[0].statement.mechanism == plan().mechanism


def test_a_half_written_file_of_a_killed_run_is_gone_after_it_goes_on(stopped: Path) -> None:
    left = [stopped / ".model.safetensors.1.part", stopped / "checkpoint" / ".state.1.part"]
    for path in left:
        path.write_bytes(b"half")
    train(nn.Linear(4, 2), data(), plan(), test=data(1), out=stopped, resume=True)
    assert not any(path.exists() for path in left)


def with_a_hook() -> nn.Module:
    model = nn.Linear(4, 2)
    model.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    return model


@pytest.mark.parametrize(
    "make",
    [
        with_a_hook,
        lambda: nn.utils.spectral_norm(nn.Linear(4, 2)),
        lambda: nn.utils.weight_norm(nn.Linear(4, 2)),
    ],
    ids=["a hook", "spectral norm", "weight norm"],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_model_with_hooks_is_the_same_when_it_is_made_again(
    make: Callable[[], nn.Module], tmp_path: Path
) -> None:
    """Torch numbers all hooks of a process, and these hooks leave tensors in their modules."""

    def die(event: Event) -> None:
        if event.round == 3:
            raise PowerCut

    with pytest.raises(PowerCut):
        train(make(), data(), plan(), out=tmp_path / "run", checkpoint_every=2, progress=die)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run = train(make(), data(), plan(), out=tmp_path / "run", resume=True)
    assert run.statement.mechanism == plan().mechanism


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": data(9)}, "data"),
        ({"plan": plan(clip=Clip(2.0))}, "plan"),
        ({"model": nn.Linear(4, 2, bias=False)}, "model"),
        ({"model": nn.Sequential(nn.Linear(4, 2))}, "model"),
        ({"loss": other_loss}, "loss"),
        ({"test": data(9)}, "held-out data"),
        ({"test": None}, "held-out data"),
    ],
)
def test_another_run_is_refused(stopped: Path, changes: dict[str, Any], said: str) -> None:
    """Repeating noise on other data would reveal the difference."""
    given: dict[str, Any] = {"model": nn.Linear(4, 2), "data": data(), "plan": plan()}
    given = {"test": data(1), **given, **changes}
    called: list[Event] = []
    with pytest.raises(CheckpointError, match=f"{said} changed since"):
        train(
            given.pop("model"),
            given.pop("data"),
            given.pop("plan"),
            out=stopped,
            resume=True,
            progress=called.append,
            **given,
        )
    assert not called


def test_one_changed_value_is_another_data_set(stopped: Path) -> None:
    inputs, targets = data()
    inputs[17, 2] = np.nextafter(np.float32(inputs[17, 2]), np.float32(9))
    with pytest.raises(CheckpointError, match="data changed"):
        train(nn.Linear(4, 2), (inputs, targets), plan(), test=data(1), out=stopped, resume=True)


@pytest.mark.parametrize(
    ("name", "other", "said"),
    [
        ("noise", "07" * 32, "keys changed"),  # rounds 9 to 11 would get other noise
        ("seeded_noise", True, "keys changed"),
        ("identity", "07", "is damaged"),
    ],
)
def test_a_run_goes_on_with_its_own_keys_alone(
    name: str, other: object, said: str, stopped: Path
) -> None:
    path = stopped / "checkpoint" / "keys"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: other}))
    with pytest.raises(CheckpointError, match=said):
        train(nn.Linear(4, 2), data(), plan(), test=data(1), out=stopped, resume=True)


def test_a_link_that_is_turned_leads_a_run_into_no_other_folder(
    stopped: Path, tmp_path: Path
) -> None:
    other, link = stopped, tmp_path / "newest"
    before = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}
    link.symlink_to(tmp_path / "own")

    def turn(event: Event) -> None:
        if event.round == 5:
            link.unlink()
            link.symlink_to(other)

    run = train(nn.Linear(4, 2), data(), plan(), out=link, checkpoint_every=2, progress=turn)
    assert run.folder == tmp_path / "own" and (run.folder / "statement.json").is_file()
    assert before == {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}


def test_rounds_are_not_repeated_under_other_rounding(stopped: Path) -> None:
    with pytest.raises(CheckpointError, match="micro_batch was None,"):
        train(
            nn.Linear(4, 2), data(), plan(), test=data(1), out=stopped, resume=True, micro_batch=3
        )


def test_the_machine_may_change_when_nothing_is_repeated(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if event.round == 8:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train(nn.Linear(4, 2), data(), plan(), out=tmp_path / "run", progress=stop)
    run = train(nn.Linear(4, 2), data(), plan(), out=tmp_path / "run", resume=True, micro_batch=3)
    assert run.history[-1].round == 20


def test_a_release_is_on_disk_before_its_noise_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = BoundNoise.at
    found: list[int] = []

    def at(self: BoundNoise, bound: bytes) -> np.random.Generator:
        content = (tmp_path / "run" / "checkpoint" / "released").read_bytes()
        assert content.endswith(len(found).to_bytes(8, "little") + bound)
        found.append(len(content))
        return drawn(self, bound)

    monkeypatch.setattr(BoundNoise, "at", at)
    train(nn.Linear(4, 2), data(), plan(), out=tmp_path / "run")
    assert found == [40 * done for done in range(1, 21)]


def test_a_torn_release_is_none(stopped: Path) -> None:
    """Killed inside the write, before the noise: the next one is written behind the last whole."""
    path = stopped / "checkpoint" / "released"
    path.write_bytes(path.read_bytes() + bytes(17))
    run = train(nn.Linear(4, 2), data(), plan(), test=data(1), out=stopped, resume=True)
    assert run.statement.mechanism == plan().mechanism


@pytest.mark.parametrize("damage", ["gone", "short", "another entry"])
def test_a_list_of_releases_that_lost_what_the_checkpoint_saw_is_refused(
    damage: str, stopped: Path
) -> None:
    """Else a round that comes out otherwise would be counted as released for the first time."""
    path = stopped / "checkpoint" / "released"
    entries = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "short":
        path.write_bytes(entries[: 7 * 40])
    else:
        path.write_bytes(entries[: 3 * 40 + 8] + bytes(32) + entries[4 * 40 :])
    with pytest.raises(CheckpointError, match="released lists"):
        train(nn.Linear(4, 2), data(), plan(), test=data(1), out=stopped, resume=True)


def test_what_came_after_the_checkpoint_may_be_missing(stopped: Path) -> None:
    """As after a power failure: those rounds are released, and counted, again."""
    path = stopped / "checkpoint" / "released"
    path.write_bytes(path.read_bytes()[: 8 * 40])
    run = train(nn.Linear(4, 2), data(), plan(), test=data(1), out=stopped, resume=True)
    assert run.statement.mechanism == plan().mechanism


def test_other_declared_dimensions_are_another_run(tmp_path: Path) -> None:
    def die(event: Event) -> None:
        if event.round == 11:
            raise PowerCut

    first = {"batch_dims": BatchDims(0, 0)}
    with pytest.raises(PowerCut):
        train(nn.Linear(4, 2), data(), plan(), out=tmp_path, progress=die, **first)
    with pytest.raises(CheckpointError, match="batch_dims changed"):
        train(nn.Linear(4, 2), data(), plan(), out=tmp_path, resume=True)


def test_a_first_checkpoint_exists_before_the_first_round(tmp_path: Path) -> None:
    out, found = tmp_path / "run", []

    def look(event: Event) -> None:
        found.append(Checkpoint.read(out / "checkpoint").round)

    train(nn.Linear(4, 2), data(), plan(), out=out, progress=look)
    assert set(found) == {0}


def test_a_run_that_died_before_it_began_starts_afresh(stopped: Path) -> None:
    for name in ("state.safetensors", "released"):
        (stopped / "checkpoint" / name).unlink()
    run = train(nn.Linear(4, 2), data(), plan(), test=data(1), out=stopped, resume=True)
    assert run.history[0].round == 1


def test_a_folder_that_was_only_set_up_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint" / ".probe").write_bytes(b"")
    run = train(nn.Linear(4, 2), data(), plan(), out=tmp_path / "run")
    assert run.history[-1].round == 20


def test_a_file_with_the_name_of_checkpoints_is_somebodys_own(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("")
    with pytest.raises(RunFolderExistsError, match="not empty"):
        RunFolder(tmp_path).require_free(overwrite=False)


def test_what_was_released_before_the_first_round_is_told(tmp_path: Path) -> None:
    """A full disk was once told as if nothing private had been read."""
    folder = RunFolder(tmp_path)
    (folder.checkpoint / ".probe").mkdir(parents=True)  # nothing can be written in its place
    with pytest.raises(OSError, match="begin anew"):
        folder.reserve(1)
    (tmp_path / "prepared.json").write_text("{}")
    with pytest.raises(OSError, match=r"is spent.*--resume"):
        folder.reserve(1)
    with pytest.raises(RunFolderExistsError, match="is spent"):
        folder.require_free(overwrite=False)


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="run to resume"):
        train(nn.Linear(4, 2), data(), plan(), out=tmp_path / "nowhere", resume=True)


def test_a_finished_run_is_not_resumed_under_another_plan(tmp_path: Path) -> None:
    train(nn.Linear(4, 2), data(), plan(), out=tmp_path / "run")
    with pytest.raises(CheckpointError, match="plan is not"):
        train(nn.Linear(4, 2), data(), plan(clip=Clip(2.0)), out=tmp_path / "run", resume=True)


SETS = """
import sys, torch, forethought as ft
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.kind = nn.Linear(4, 2), "relu"
    def forward(self, x):
        x = self.l(x)
        return torch.relu(x) + x if self.kind in {"relu", "gelu", "tanh", "silu"} else x

torch.manual_seed(0)
data = torch.zeros(64, 4), torch.zeros(64, dtype=torch.long)
plan = ft.plan(examples=64, model=Net(), shape=(4,), budget=ft.Budget(8.0, 1e-2), epochs=5)
again = sys.argv[2] == "again"

def stop(event):
    if event.round == 3:
        raise KeyboardInterrupt

try:
    ft.train(Net(), data, plan, out=sys.argv[1], checkpoint_every=1, resume=again,
             progress=None if again else stop)
except KeyboardInterrupt:
    pass
"""


@pytest.mark.slow
def test_a_set_of_words_in_the_model_is_the_same_in_another_process(tmp_path: Path) -> None:
    for seed, word in (("1", "begin"), ("2", "again")):
        command = [sys.executable, "-W", "ignore", "-c", SETS, str(tmp_path / "run"), word]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True)
