"""Ways in which private data or the noise once got out beside the accounted releases."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import forethought as ft
from drawn import randn, reseed
from forethought.accounting.interval import at_most
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import Seeds
from forethought.rounds.records import TensorRecords
from forethought.training import folder as checkpoints
from forethought.training.execution import Execution, Interrupted
from forethought.training.folder import (
    Checkpoint,
    CheckpointError,
    ReleasedRounds,
    RunFolderBusyError,
    RunSecrets,
    RunSummary,
    UnfinishedRun,
    fingerprint,
    locked,
    wipe,
)
from forethought.training.metrics import Event
from forethought.training.records import CoincidingRecordsError
from forethought.training.run import train
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Clip, Plan, Privacy, Round, Transcript, TranscriptError
from forethought.values.use import Optimizer

EXAMPLES = 60


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(EXAMPLES, 4))
    return inputs, (inputs[:, 0] > 0).astype(np.int64)


def plan(rounds: int = 20, sigma: float = 1.0, **options: Any) -> Plan:
    return Plan(Mechanism(Rounds(sigma, rounds, Poisson(0.2))), EXAMPLES, 1e-5, **options)


def stop_at(last: int, how: int = signal.SIGINT) -> Any:
    def stop(event: Event) -> None:
        if event.round == last:
            os.kill(os.getpid(), how)

    return stop


def stopped(out: Path, how: int = signal.SIGINT, **options: Any) -> Path:
    with pytest.raises(Interrupted):
        train(nn.Linear(4, 2), data(), plan(), out=out, progress=stop_at(8, how), **options)
    return out


# Keys and checkpoints.


def test_the_keys_are_in_one_file_only(tmp_path: Path) -> None:
    out = stopped(tmp_path / "run", test=data(1), checkpoint_every=2)
    keys = RunSecrets.read(out / "checkpoint")
    assert (out / "checkpoint" / "keys").stat().st_mode & 0o777 == 0o600
    for secret in (keys.secrets.noise, keys.secrets.sampling, keys.identity):
        holders = [
            path.name
            for path in out.rglob("*")
            if path.is_file()
            and (secret in path.read_bytes() or secret.hex().encode() in path.read_bytes())
        ]
        assert holders == ["keys"]


def test_the_key_file_is_wiped_in_place(tmp_path: Path) -> None:
    out = stopped(tmp_path / "run")
    kept = tmp_path / "the same blocks"
    os.link(out / "checkpoint" / "keys", kept)
    assert len(kept.read_bytes().strip(b"\0")) > 64
    train(nn.Linear(4, 2), data(), plan(), out=out, resume=True)
    assert not (out / "checkpoint").exists()
    assert not kept.read_bytes().strip(b"\0")
    wipe(tmp_path / "nothing there")


def test_seeds_are_in_no_file_of_a_finished_run(tmp_path: Path) -> None:
    seed, noise_seed = 271828182845904, 314159265358979
    train(nn.Linear(4, 2), data(), plan(), out=tmp_path / "run", seed=seed, noise_seed=noise_seed)
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert str(seed).encode() not in content and str(noise_seed).encode() not in content


def test_a_lost_state_is_no_new_start(tmp_path: Path) -> None:
    out = stopped(tmp_path / "run")
    (out / "checkpoint" / "state.safetensors").unlink()
    with pytest.raises(CheckpointError, match="8 rounds were"):
        train(nn.Linear(4, 2), data(), plan(), out=out, resume=True)


def test_lost_keys_are_no_new_start(tmp_path: Path) -> None:
    out = stopped(tmp_path / "run")
    (out / "checkpoint" / "keys").unlink()
    with pytest.raises(CheckpointError, match="keys of the"):
        train(nn.Linear(4, 2), data(), plan(), out=out, resume=True)


def test_a_damaged_checkpoint_is_noticed(tmp_path: Path) -> None:
    out = stopped(tmp_path / "run")
    path = out / "checkpoint" / checkpoints.STATE
    content = bytearray(path.read_bytes())
    content[-3] ^= 1  # a bit of a weight
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="checksum"):
        train(nn.Linear(4, 2), data(), plan(), out=out, resume=True)


def test_sigterm_stops_like_ctrl_c(tmp_path: Path) -> None:
    out = stopped(tmp_path / "run", signal.SIGTERM)
    assert Checkpoint.read(out / "checkpoint").round == 8
    assert train(nn.Linear(4, 2), data(), plan(), out=out, resume=True).history[-1].round == 20


@pytest.mark.slow
def test_the_second_sigterm_ends_at_once() -> None:
    code = (
        "import os, signal, time\n"
        "from forethought.training.execution import InterruptGuard\n"
        "with InterruptGuard() as guard:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print(guard.requested, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(600)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "True\n" and done.returncode == -signal.SIGTERM


def test_plan_json_is_the_plan(tmp_path: Path) -> None:
    out = stopped(tmp_path / "run")
    shutil.copytree(out, tmp_path / "copy")
    run = train(nn.Linear(4, 2), data(), out=out, resume=True)
    assert run.plan == plan() and run.history[-1].round == 20
    with pytest.raises(CheckpointError, match="the plan changed"):
        train(nn.Linear(4, 2), data(), plan(clip=Clip(2.0)), out=tmp_path / "copy", resume=True)
    values = json.loads((tmp_path / "copy" / "plan.json").read_text())
    values["schema"] = "forethought/plan/99"
    (tmp_path / "copy" / "plan.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match="forethought/plan/99"):
        train(nn.Linear(4, 2), data(), out=tmp_path / "copy", resume=True)
    with pytest.raises(TypeError, match=r"forethought\.Plan"):
        train(nn.Linear(4, 2), data())


def test_a_run_that_is_under_way_names_its_process(tmp_path: Path) -> None:
    out, seen = tmp_path / "run", []

    def looked(event: Event) -> None:
        if event.round == 8:
            seen.append(UnfinishedRun.load(out).process)
            raise OSError

    with pytest.raises(OSError):
        train(nn.Linear(4, 2), data(), plan(), out=out, progress=looked)
    assert seen == [os.getpid()] and UnfinishedRun.load(out).process is None
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for left in (str(gone.pid), "", "0", "9" * 30, "no number"):
        (out / ".lock").write_text(left)
        assert UnfinishedRun.load(out).process is None, left
    shutil.rmtree(out / "checkpoint")
    with pytest.raises(ValueError, match="has no checkpoint"):
        UnfinishedRun.load(out)


def test_the_plan_of_a_killed_run_is_not_that_of_an_edited_plan_json(tmp_path: Path) -> None:
    """Rounds of little noise were released, and none of them would be in the statement."""
    out = tmp_path / "run"

    def killed(event: Event) -> None:
        if event.round == 8:
            raise OSError

    with pytest.raises(OSError):
        train(nn.Linear(4, 2), data(), plan(), out=out, progress=killed)
    spent = UnfinishedRun.load(out).spent
    plan(sigma=9.0).save(out / "plan.json")
    assert UnfinishedRun.load(out).spent == spent
    with pytest.raises(CheckpointError, match="the plan changed"):
        train(nn.Linear(4, 2), data(), out=out, resume=True)
    plan().save(out / "plan.json")
    assert train(nn.Linear(4, 2), data(), out=out, resume=True).plan == plan()


@pytest.mark.skipif(sys.platform != "linux", reason="names of any bytes")
def test_a_folder_whose_model_could_not_be_read_back_is_refused_first(tmp_path: Path) -> None:
    out = tmp_path / os.fsdecode(b"run\xff")
    with pytest.raises(ValueError, match=r"must be UTF-8"):
        train(nn.Linear(4, 2), data(), plan(), out=out)
    assert not out.exists()


@pytest.mark.parametrize("name", ["metrics.csv", "diagnostics.csv", "transcript.json", "plan.json"])
@pytest.mark.parametrize("content", [b"null", b"\xff", b"x" * 200_000])
def test_a_damaged_file_of_a_finished_run_is_named(
    tmp_path: Path, name: str, content: bytes
) -> None:
    train(nn.Linear(4, 2), data(), plan(1), out=tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"metrics\.csv|transcript\.json|plan\.json"):
        train(nn.Linear(4, 2), data(), out=tmp_path / "run", resume=True)


def test_a_run_ends_whole_after_others_were_in_its_folder(tmp_path: Path) -> None:
    """As file servers put folders of their own everywhere."""
    out = tmp_path / "run"

    def meddle(event: Event) -> None:
        if event.round == 2:
            (out / "checkpoint" / "@thumbs").mkdir()
            (out / "plan.json").unlink()

    run = train(nn.Linear(4, 2), data(), plan(), out=out, progress=meddle)
    assert Plan.load(out / "plan.json") == run.plan
    assert ft.Statement.load(out / "statement.json") == run.statement
    assert not (out / "checkpoint").exists()


@pytest.mark.parametrize("rows", ["1,2,3", "x,2", "1,two"])
def test_figures_that_are_none_are_not_reported(tmp_path: Path, rows: str) -> None:
    train(nn.Linear(4, 2), data(), plan(1), out=tmp_path / "run")
    (tmp_path / "run" / "metrics.csv").write_text(f"round,epsilon\n{rows}\n")
    with pytest.raises(CheckpointError, match="is damaged"):
        RunSummary.load(tmp_path / "run")


def test_two_runs_in_one_folder_are_one_line(tmp_path: Path) -> None:
    with locked(tmp_path / "run"), pytest.raises(RunFolderBusyError, match=str(os.getpid())):
        train(nn.Linear(4, 2), data(), plan(), out=tmp_path / "run")
    train(nn.Linear(4, 2), data(), plan(), out=tmp_path / "run")
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_folder_stays_its_runs_where_the_lock_is_deleted(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with locked(out):
        (out / ".lock").unlink()
        with pytest.raises(RunFolderBusyError), locked(out):
            pass
    with locked(out):
        pass
    assert not out.exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_runs_lock_is_free_again(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with locked(tmp_path / "run"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with locked(tmp_path / "run"):
        assert (tmp_path / "run" / ".lock").exists()


# The same run, or none.


@pytest.mark.parametrize("record", [0, 511, 512, 513, 4095, 4096, 9_999])
def test_every_record_is_hashed(record: int) -> None:
    inputs = randn(10_000, 3)
    targets = torch.zeros(10_000, dtype=torch.int64)
    before = TensorRecords(inputs, targets).digest(b"k" * 32)
    blanked = inputs.clone()
    blanked[record] = 0
    assert TensorRecords(blanked, targets).digest(b"k" * 32) != before


def test_hashing_is_fast() -> None:
    """A gigabyte takes a few seconds at most, even on a busy machine."""
    records = TensorRecords(torch.zeros(20_000, 1_000), torch.zeros(20_000, dtype=torch.int64))
    begun = time.process_time()
    records.digest(b"k" * 32)
    assert time.process_time() - begun < 0.08 * 12


def weighted(weight: float, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return weight * nn.functional.cross_entropy(outputs, targets, reduction="none")


def closure(weight: float, table: torch.Tensor) -> Any:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        each = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return weight * each * table[targets]

    return loss


class Weighted:
    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return weighted(self.weight, outputs, targets)

    def method(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return weighted(self.weight, outputs, targets)


@pytest.mark.parametrize(
    "make",
    [
        lambda w: functools.partial(weighted, w),
        lambda w: closure(w, torch.ones(2)),
        lambda w: closure(1.0, torch.tensor([1.0, w])),
        lambda w: Weighted(w),
        lambda w: Weighted(w).method,
        lambda w: nn.CrossEntropyLoss(torch.tensor([1.0, w]), reduction="none"),
        lambda w: lambda outputs, targets, factor=w: factor * outputs.sum(1),
        lambda w: functools.partial(functools.partial(weighted), w),
    ],
)
def test_what_a_loss_closes_over_is_part_of_it(make: Any) -> None:
    assert fingerprint(make(1.0)) == fingerprint(make(1.0))
    assert fingerprint(make(1.0)) != fingerprint(make(2.0))


class _Described:
    __module__ = property(lambda self: "of an object")  # type: ignore[assignment]
    factor = 1.0


def test_what_keeps_a_descriptor_under_module_is_hashed_too() -> None:
    held = _Described()
    before = fingerprint(held, wide=True)
    held.factor = 2.0
    assert fingerprint(held, wide=True) != before


def test_the_places_of_functions_in_a_set_are_no_part_of_a_loss() -> None:
    def made() -> Any:
        return lambda outputs: outputs

    held = made(), made()  # both alive, in two places
    assert fingerprint({held[0]}) == fingerprint({held[1]})


def test_another_closure_is_not_resumed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(
            nn.Linear(4, 2),
            data(),
            plan(),
            loss=functools.partial(weighted, 1.0),
            out=out,
            progress=stop_at(8),
        )
    with pytest.raises(CheckpointError, match="loss changed"):
        train(
            nn.Linear(4, 2),
            data(),
            plan(),
            loss=functools.partial(weighted, 2.0),
            out=out,
            resume=True,
        )


def test_a_count_beyond_the_checkpoint_needs_the_same_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = stopped(tmp_path / "run")
    monkeypatch.setattr("forethought.training.folder.__version__", "99.0")
    shutil.copytree(out, tmp_path / "repeats")
    releases = ReleasedRounds(tmp_path / "repeats" / "checkpoint")
    releases.note(8, bytes(32))
    releases.close()
    with pytest.raises(CheckpointError, match=r"forethought was .*, is 99\.0"):
        train(nn.Linear(4, 2), data(), out=tmp_path / "repeats", resume=True)
    # A newer library continues an older run where nothing has to be repeated.
    assert train(nn.Linear(4, 2), data(), out=out, resume=True).history[-1].round == 20


# Held-out records and earlier training.


def test_the_training_data_is_no_held_out_data() -> None:
    with pytest.raises(CoincidingRecordsError, match="the 60 records"):
        train(nn.Linear(4, 2), data(), plan(2), test=data())
    inputs, targets = data()
    with pytest.raises(CoincidingRecordsError, match="31 of the"):
        others = data(1)
        mixed = (
            np.concatenate([inputs[:31], others[0][31:]]),
            np.concatenate([targets[:31], others[1][31:]]),
        )
        train(nn.Linear(4, 2), data(), plan(2), test=mixed)


def test_some_coinciding_records_are_named() -> None:
    inputs, targets = data()
    others = data(1)
    mixed = np.concatenate([inputs[:5], others[0]]), np.concatenate([targets[:5], others[1]])
    run = train(nn.Linear(4, 2), data(), plan(2), test=mixed)
    assert any("equal to records" in str(use) for use in run.statement.not_covered)
    run = train(nn.Linear(4, 2), data(), plan(2), test=others)
    assert not any("equal to records" in str(use) for use in run.statement.not_covered)


def test_records_of_few_values_may_coincide_by_chance() -> None:
    generator = np.random.default_rng(0)

    def few(size: int) -> tuple[np.ndarray, np.ndarray]:
        return generator.integers(2, size=(size, 2)).astype(float), generator.integers(2, size=size)

    train(nn.Linear(2, 2), few(EXAMPLES), plan(2), test=few(30))


def test_equal_rows_of_a_table_are_no_copies_but_copies_are_found() -> None:
    generator = np.random.default_rng(2)
    pool, kinds = generator.normal(size=(50, 2)), generator.integers(2, size=50)

    def rows(size: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = generator.integers(50, size=size)
        return pool[chosen], kinds[chosen]

    inputs, targets = rows(EXAMPLES)
    train(nn.Linear(2, 2), (inputs, targets), plan(2), test=rows(30))
    copies = inputs[:30], targets[:30]
    with pytest.raises(CoincidingRecordsError, match="30 of the"):
        train(nn.Linear(2, 2), (inputs, targets), plan(2), test=copies)


def before(run: Any) -> list[str]:
    return [str(use) for use in run.statement.not_covered if "trained before" in str(use)]


def test_a_model_that_was_trained_before_is_named(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    first = train(model, data(), plan(3), out=tmp_path / "first")
    assert not before(first)
    spent = at_most(first.statement.epsilon.upper)
    second = train(model, data(), plan(2), out=tmp_path / "second")
    assert spent in before(second)[0]
    third = train(model, data(2), plan(2))
    assert spent in before(third)[0] and "then" in before(third)[0]
    # A copy is recognised by its weights.
    copy = nn.Linear(4, 2)
    copy.load_state_dict(model.state_dict())
    assert before(train(copy, data(), plan(2)))
    assert not before(train(nn.Linear(4, 2), data(), plan(2)))


def test_a_part_of_a_model_that_was_trained_before_is_named() -> None:
    body = nn.Linear(4, 2)
    spent = at_most(train(body, data(), plan(3)).statement.epsilon.upper)
    wrapped = nn.Sequential(nn.Identity(), body)
    assert before(train(wrapped, data(), plan(2)))[0].count(spent) == 1
    layer = nn.Linear(4, 4)
    other = train(nn.Sequential(layer, nn.Linear(4, 2)), data(), plan(4)).statement
    assert at_most(other.epsilon.upper) in before(train(layer, data(4), plan(2)))[0]
    both = before(train(nn.Sequential(layer, body), data(), plan(2)))[0]
    assert spent in both and at_most(other.epsilon.upper) in both
    # Frozen layers keep what they learned; those that never were trained learned nothing.
    still = nn.Linear(4, 4).requires_grad_(False)
    train(nn.Sequential(still, nn.Linear(4, 2)), data(), plan(2))
    assert not before(train(nn.Sequential(still, nn.Linear(4, 2)), data(), plan(2)))
    mixed = nn.Sequential(layer.requires_grad_(False), nn.Linear(4, 2))
    assert before(train(mixed, data(), plan(2)))
    # What is said of the whole begins with what is said of the frozen layer, which says it once.
    assert before(train(mixed, data(), plan(2)))[0].count(at_most(other.epsilon.upper)) == 1


def broken_off(event: Any) -> None:
    if event.round == 2:
        raise KeyError


def test_a_part_of_a_model_whose_training_was_broken_off_is_named() -> None:
    layer = nn.Linear(4, 4)
    with pytest.raises(KeyError):
        train(nn.Sequential(layer, nn.Linear(4, 2)), data(), plan(3), progress=broken_off)
    assert "did not end" in before(train(nn.Sequential(layer, nn.Linear(4, 2)), data(), plan(2)))[0]


def test_a_model_whose_training_was_broken_off_is_named() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(KeyError):
        train(model, data(), plan(3), progress=broken_off)
    second = train(model, data(), plan(2))
    assert "did not end" in before(second)[0]
    third = before(train(model, data(), plan(2)))[0]
    assert "did not end; then" in third and at_most(second.statement.epsilon.upper) in third


def test_a_model_from_a_run_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(nn.Linear(4, 2), data(), plan(3), out=tmp_path / "first")
    # As in another process, which remembers nothing.
    monkeypatch.setattr("forethought.training.folder._weights", {})
    copy = nn.Linear(4, 2)
    copy.load_state_dict(first.model.state_dict())
    again = train(copy, data(), plan(2), out=tmp_path / "second")
    assert "in first" in before(again)[0]
    assert at_most(first.statement.epsilon.upper) in before(again)[0]


# What ran is what was accounted.


def half_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Round, "noise_std", property(lambda self: self.noise_multiplier * self.clip_norm / 2)
    )


def one_release_unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Transcript.to_values

    def forgetful(self: Transcript) -> Any:
        values = honest(self)
        values["rounds"][-1]["count"] -= 1
        return values

    def finish(self: PrivateRounds, *rest: Any) -> Any:
        noised = done(self, *rest)
        if rest[0].index == 19:
            self.transcript = Transcript.from_values(forgetful(self.transcript))
        return noised

    done = PrivateRounds._finish
    monkeypatch.setattr(PrivateRounds, "_finish", finish)


def another_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Privacy.round

    def larger(self: Privacy, *rest: Any) -> Round:
        return replace(honest(self, *rest), sampling=Poisson(0.3))

    monkeypatch.setattr(Privacy, "round", larger)


@pytest.mark.parametrize("fault", [half_the_noise, one_release_unwritten, another_sampling])
def test_a_run_that_is_not_the_accounted_one_writes_no_statement(
    fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(TranscriptError, match="statement is written"):
        train(nn.Linear(4, 2), data(), plan(), out=tmp_path / "run")
    assert not (tmp_path / "run" / "statement.json").exists()
    assert not (tmp_path / "run" / "model.safetensors").exists()


# Seeds, noise and what no theorem covers.


def test_seeded_noise_is_not_private_and_seeded_batches_are_not_amplified() -> None:
    whole = train(nn.Linear(4, 2), data(), plan(5)).statement
    noise = train(nn.Linear(4, 2), data(), plan(5), noise_seed=1).statement
    assert not noise.private and "seed" in noise.sentences()[0]
    batches = train(nn.Linear(4, 2), data(), plan(5), seeds=Seeds(sampling=20261121)).statement
    assert batches.private and batches.epsilon.upper > 2 * whole.epsilon.upper


def test_noise_on_a_grid_needs_no_floating_point_assumption(tmp_path: Path) -> None:
    chosen = plan(20, noise="grid")
    plain = train(nn.Linear(4, 2), data(), plan(20)).statement
    run = train(nn.Linear(4, 2), data(), chosen, out=tmp_path / "run")
    assert any("floating-point" in text for text in map(str, plain.assumptions))
    assert not any("floating-point" in text for text in map(str, run.statement.assumptions))
    assert run.statement.epsilon == plain.epsilon
    out = tmp_path / "stopped"
    with pytest.raises(Interrupted):
        train(nn.Linear(4, 2), data(), chosen, out=out, progress=stop_at(8))
    assert train(nn.Linear(4, 2), data(), out=out, resume=True).plan.noise == "grid"


def test_a_noise_that_hides_nothing_is_refused() -> None:
    begun = time.monotonic()
    with pytest.raises(ValueError, match="1e-06 protects nothing"):
        train(nn.Linear(4, 2), data(), plan(sigma=1e-6))
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("name", ["lbfgs", "torch.optim:LBFGS"])
def test_an_optimizer_that_looks_at_the_loss_is_refused_before_the_first_round(name: str) -> None:
    events: list[Event] = []
    with pytest.raises(ValueError, match="evaluates the loss"):
        train(
            nn.Linear(4, 2),
            data(),
            plan(optimizer=Optimizer(name, 0.1, ())),
            progress=events.append,
        )
    assert not events


def test_options_are_one_value_or_by_name() -> None:
    one = train(
        nn.Linear(4, 2),
        data(),
        plan(2),
        execution=Execution(micro_batch=3, log_every=1),
        seeds=Seeds(1, 2),
    )
    assert len(one.history) == 2
    with pytest.raises(ValueError, match="micro_batch is said"):
        train(nn.Linear(4, 2), data(), plan(2), execution=Execution(), micro_batch=3)
    with pytest.raises(TypeError, match="unknown option 'speed'"):
        train(nn.Linear(4, 2), data(), plan(2), speed=3)  # type: ignore[call-arg]
    assert ft.Execution is Execution and ft.Seeds is Seeds


# A pass over private records leaves nothing in the model.


class Remembers(nn.Module):
    """Keeps what it saw, in a buffer, an attribute and a list; as evaluation mode allows."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(4))
        self.last: torch.Tensor | None = None
        self.all: list[float] = []
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            self.seen += x.sum(0)
            self.last = x
            self.all.append(float(x.sum()))
            self.count += 1
        return self.linear(x)


def test_displayed_losses_and_evaluation_leave_nothing_in_the_model() -> None:
    model = Remembers()
    train(model, data(), plan(3), test=data(1), log_every=1)
    assert not model.seen.any() and model.last is None and model.all == [] and not model.count


def test_checks_before_the_first_round_read_no_private_values() -> None:
    # What a pass notes down is put back, so it has to cry out.
    class Looks(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if bool(x.any()):
                raise AssertionError("a private value was read")
            return super().forward(x)

    from forethought.training.run import opened_task

    inputs, targets = data()
    opened_task(Looks(4, 2), (inputs + 7, targets), None, plan(), None, Execution())


class Remembering:
    """A loss that weighs what it sees by what it saw."""

    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        values = nn.functional.cross_entropy(outputs, targets, reduction="none") * self.scale
        if not torch.is_grad_enabled():
            self.scale = 0.5 * self.scale + 0.5 * float(values.mean())
        return values


@pytest.mark.slow
def test_displayed_losses_and_evaluation_leave_nothing_in_the_loss() -> None:
    """A batch's mean in the loss would reach the next round's contributions without noise."""
    weights = []
    for shown in (True, False):
        reseed(0)
        model, loss = nn.Linear(4, 2), Remembering()
        found = train(
            model, data(), plan(4), loss=loss, test=data(1) if shown else None,
            log_every=1, diagnostics=shown, seed=0, noise_seed=0,
        )  # fmt: skip
        assert loss.scale == 1.0
        weights.append(found.model.weight.detach().clone())
    assert torch.equal(*weights)


def test_a_loss_that_needs_the_batch_is_refused_before_the_first_round() -> None:
    from forethought.training.run import opened_task

    def contrastive(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        pairs = (outputs + 1) @ (outputs + 1).T
        return nn.functional.cross_entropy(pairs, torch.arange(len(pairs)), reduction="none")

    with pytest.raises(ValueError, match="whole batch"):
        opened_task(nn.Linear(4, 2), data(), None, plan(), contrastive, Execution())
