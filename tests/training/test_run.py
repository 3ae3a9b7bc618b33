"""Training from end to end: what is released, kept, refused."""

from __future__ import annotations

import csv
import errno
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from forethought.accounting.exact import epsilon
from forethought.gradients import BatchDims
from forethought.rounds.randomness import GaussianNoise
from forethought.training.execution import Interrupted
from forethought.training.folder import RunFolderExistsError
from forethought.training.metrics import Event
from forethought.training.run import train
from forethought.values.mechanism import (
    CyclicPoisson,
    FullBatch,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Sampling,
    Shuffled,
    WithoutReplacement,
)
from forethought.values.plan import Clip, Plan
from forethought.values.use import Averaging, Optimizer, Schedule

EXAMPLES = 200


def data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(EXAMPLES, 6))
    return inputs, (inputs[:, 0] + inputs[:, 1] > 0).astype(np.int64)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(6, 2)


def plan(
    rounds: int = 30,
    sampling: Sampling = Poisson(0.2),  # noqa: B008 (frozen)
    noise: float = 1.0,
    **options: Any,
) -> Plan:
    clipping = "example" if options.get("groups") is None else "group"
    adjacency = "zero-out" if isinstance(sampling, Shuffled) else "add-or-remove"
    mechanism = Mechanism(Rounds(noise, rounds, sampling, clipping), adjacency=adjacency)
    return Plan(mechanism, EXAMPLES, 1e-5, **options)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_model_learns_and_comes_with_its_statement() -> None:
    run = train(
        network(), data(), plan(150, noise=0.8), test=data(1), seed=0, noise_seed=0, log_every=30
    )
    assert run.accuracy is not None and run.accuracy > 0.85
    assert run.history[-1].round == 150
    assert run.history[-1].epsilon == run.statement.epsilon.upper
    epsilons = [row.epsilon for row in run.history]
    assert epsilons == sorted(epsilons)
    assert run.statement.mechanism == run.plan.mechanism


@pytest.mark.thinned
@pytest.mark.usefixtures("noise_by_round")
@pytest.mark.parametrize(
    "options",
    [
        {"sampling": Poisson(0.2)},
        {"sampling": WithoutReplacement(40, EXAMPLES)},
        {"sampling": Shuffled(60, EXAMPLES)},
        {"sampling": RandomAllocation(5)},
        {"sampling": CyclicPoisson(0.5, 4)},
        {"sampling": FullBatch()},
        {"groups": 1},
        {"groups": 3},
        {"clip": Clip(1.0, "automatic")},
        {"clip": Clip(1.0, "per-layer")},
        {"clip": Clip(1.0, "quantile", count_noise=10.0)},
        {"optimizer": Optimizer("adam", 0.01, ())},
        {"optimizer": Optimizer("rmsprop", 0.01, ())},
        {"optimizer": Optimizer("adagrad", 0.1, ())},
        {"averaging": Averaging("tail")},
        {"averaging": Averaging("none")},
        {"schedule": Schedule("cosine", warmup=3)},
    ],
    ids=str,
)
def test_every_plan_runs_and_micro_batches_change_nothing(options: dict[str, Any]) -> None:
    chosen = plan(12, **options)
    whole = train(network(), data(), chosen, seed=1, noise_seed=2)
    parts = train(network(), data(), chosen, seed=1, noise_seed=2, micro_batch=7)
    torch.testing.assert_close(weights(whole.model), weights(parts.model), rtol=1e-4, atol=1e-5)
    assert not torch.equal(weights(whole.model), weights(network()))


def test_a_plan_of_several_rounds_uses_each_ones_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    scales: list[float] = []
    honest = GaussianNoise.add_to

    def spy(self: GaussianNoise, vector: torch.Tensor, std: float, generator: Any) -> None:
        scales.append(std)
        honest(self, vector, std, generator)

    monkeypatch.setattr(GaussianNoise, "add_to", spy)
    mechanism = Mechanism(Rounds(2.0, 3, Poisson(0.1)), Rounds(1.0, 2, FullBatch()))
    train(network(), data(), Plan(mechanism, EXAMPLES, 1e-5, clip=Clip(0.5)))
    assert scales == [1.0, 1.0, 1.0, 0.5, 0.5]


def test_the_quantile_rule_pays_for_its_count(monkeypatch: pytest.MonkeyPatch) -> None:
    scales: list[float] = []
    monkeypatch.setattr(GaussianNoise, "add_to", lambda self, v, std, g: scales.append(std))
    clip = Clip(0.5, "quantile", count_noise=2.0)
    run = train(network(), data(), plan(3, clip=clip), log_every=1)
    expected = [(1 - 4.0**-2) ** -0.5 * row.clip_norm for row in run.history]
    assert scales == pytest.approx(expected)
    assert len({row.clip_norm for row in run.history}) == 3


def test_empty_batches_still_release_noise() -> None:
    run = train(network(), data(), plan(5, Poisson(1e-5)), log_every=1, seed=5)
    assert not torch.equal(weights(run.model), weights(network()))
    assert all(row.loss is None and row.clipped is None for row in run.history)


def test_seeds_decide_everything_and_entropy_otherwise() -> None:
    def trained(**seeds: int) -> torch.Tensor:
        return weights(train(network(), data(), plan(3), **seeds).model)  # type: ignore[arg-type]

    assert torch.equal(trained(seed=1, noise_seed=2), trained(seed=1, noise_seed=2))
    assert not torch.equal(trained(seed=1, noise_seed=2), trained(seed=1, noise_seed=3))
    assert not torch.equal(trained(seed=1, noise_seed=2), trained(seed=2, noise_seed=2))
    assert not torch.equal(trained(), trained())


@pytest.mark.parametrize("seeds", [{"seed": 1}, {"noise_seed": 1}])
def test_the_statement_says_that_a_run_was_seeded(seeds: dict[str, int]) -> None:
    plain = train(network(), data(), plan(2)).statement
    seeded = train(network(), data(), plan(2), **seeds).statement  # type: ignore[arg-type]
    assert any("seed" in text for text in (*seeded.breaks, *seeded.facts))
    assert "seed" not in plain.to_markdown()


def test_side_outputs_are_named_or_not_made() -> None:
    def told(**options: Any) -> str:
        run = train(network(), data(), plan(2), **options)
        return " ".join(map(str, run.statement.not_covered))

    assert "private batches" in told() and "held-out" not in told()
    assert "held-out" in told(test=data(1))
    assert told(diagnostics=False) == "how long the run took and how much memory it used"
    run = train(network(), data(), plan(2), diagnostics=False)
    assert all(row.loss is row.clipped is row.non_finite is None for row in run.history)


def test_non_finite_contributions_are_counted_and_harmless() -> None:
    inputs, targets = data()
    inputs[3] = np.nan
    with pytest.warns(UserWarning, match="not finite"):
        run = train(network(), (inputs, targets), plan(4, FullBatch()))
    assert run.history[-1].non_finite == 4
    assert torch.isfinite(weights(run.model)).all()


def test_the_caller_keeps_modes_gradients_and_torch_randomness() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    model[1].eval()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(model, data(), plan(3), test=data(1), micro_batch=None)
    model[1].train()
    assert model.training and model[0].training
    assert all(p.grad is None for p in model.parameters())
    torch.manual_seed(5)
    assert torch.equal(torch.rand(3), expected)


class Pairs(Dataset[Any]):
    def __init__(self) -> None:
        self.inputs, self.targets = data()

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return self.inputs[index], int(self.targets[index])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


def test_arrays_tensors_and_datasets_are_one() -> None:
    inputs, targets = data()
    forms = [
        (inputs, targets),
        (torch.from_numpy(inputs), torch.from_numpy(targets)),
        torch.utils.data.TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets)),
        Pairs(),
    ]
    found = [weights(train(network(), form, plan(3), seed=0, noise_seed=0).model) for form in forms]
    for other in found[1:]:
        assert torch.equal(found[0], other)


def test_floating_targets_are_regressed() -> None:
    inputs, _ = data()
    model = nn.Linear(6, 1)
    chosen = plan(200, noise=0.3, optimizer=Optimizer(learning_rate=0.3))
    held, _ = data(1)
    run = train(model, (inputs, inputs[:, 2]), chosen, test=(held, held[:, 2]), log_every=50)
    assert run.history[-1].test_loss is not None and run.history[-1].test_loss < 0.2
    assert run.accuracy is None


def test_progress_tells_every_round() -> None:
    events: list[Event] = []
    run = train(network(), data(), plan(7), test=data(1), log_every=3, progress=events.append)
    assert [event.round for event in events] == list(range(1, 8))
    assert {event.rounds for event in events} == {7}
    assert events[0].epsilon is None and events[2].epsilon == run.history[0].epsilon
    last = events[-1]
    assert None not in (last.loss, last.accuracy, last.epsilon, last.clipped, last.non_finite)


def test_the_run_folder_is_complete_and_holds_no_secret(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = train(network(), data(), plan(), test=data(1), out=out, files={"job.toml": "x = 1\n"})
    names = {path.name for path in out.iterdir()}
    assert names == {
        "plan.json",
        "statement.json",
        "statement.md",
        "model.safetensors",
        "metrics.csv",
        "diagnostics.csv",
        "transcript.json",
        "job.toml",
    }
    assert Plan.load(out / "plan.json") == run.plan
    assert json.loads((out / "statement.json").read_text())["epsilon"]
    with (out / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert "loss" not in rows[0] and "clipped" not in rows[0]
    assert float(rows[-1]["accuracy"]) == run.accuracy
    assert (out / "diagnostics.csv").stat().st_mode & 0o077 == 0
    assert run.folder == out


def test_tied_weights_are_saved_and_resumed(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(6, 6)
            self.two = nn.Linear(6, 6)
            self.two.weight = self.one.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(torch.tanh(self.one(x)))

    run = train(Tied(), data(), plan(4), out=tmp_path / "run", checkpoint_every=1)
    back = train(Tied(), data(), plan(4), out=tmp_path / "run", resume=True)
    assert torch.equal(weights(run.model), weights(back.model))


def test_a_used_folder_is_refused_resumed_or_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = train(network(), data(), plan(3), out=out)
    for name in ("notes.txt", "model.json"):  # the latter only of a job's run
        (out / name).write_text("mine")
    (out / "audit.json").write_text("{}")
    (out / "audit-later.json").write_text("")
    with pytest.raises(RunFolderExistsError, match=r"--resume.*--overwrite"):
        train(network(), data(), plan(3), out=out)
    again = train(nn.Linear(6, 2), data(), plan(3), out=out, resume=True)
    assert torch.equal(weights(again.model), weights(first.model))
    assert again.history == first.history and again.statement == first.statement
    other = train(network(), data(), plan(4), out=out, overwrite=True)
    assert other.history[-1].round == 4
    assert (out / "notes.txt").read_text() == (out / "model.json").read_text() == "mine"
    # They were of the run before.
    assert not (out / "audit.json").exists() and not (out / "audit-later.json").exists()


def test_a_folder_without_room_is_free_once_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patched:
        patched.setattr("forethought.training.folder.RunFolder.reserve", full)
        with pytest.raises(OSError, match="no room"):
            train(network(), data(), plan(3), out=tmp_path / "run")
    assert train(network(), data(), plan(4), out=tmp_path / "run").history[-1].round == 4


@pytest.mark.parametrize("group", [1, 3])
def test_replacing_an_interrupted_run_says_what_it_has_spent(tmp_path: Path, group: int) -> None:
    out, asked = tmp_path / "run", plan(6).with_(records_per_person=group)

    def stop(event: Event) -> None:
        if event.round == 2:
            raise Interrupted(out, 2)

    with pytest.raises(Interrupted):
        train(network(), data(), asked, out=out, progress=stop, checkpoint_every=1)
    spent = epsilon(asked.mechanism.first(2), asked.delta, group).upper
    with pytest.raises(RunFolderExistsError) as refused:
        train(network(), data(), asked, out=out)
    said = re.search(r"(\d+) of its 6 rounds .* ε = ([\d.]+) at", str(refused.value))
    assert said and int(said[1]) == 2 and float(said[2]) == pytest.approx(spent, rel=2e-3)
    assert float(said[2]) >= spent


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunFolderExistsError, match="is a file"):
        train(network(), data(), plan(3), out=tmp_path / "run")


@pytest.mark.parametrize("problem", ["read-only", "full"])
def test_a_folder_that_takes_nothing_fails_before_the_first_round(
    problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Event] = []
    if problem == "full":

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        message = "No space left"
    else:
        if os.geteuid() == 0:
            monkeypatch.setattr(Path, "mkdir", _refuse)
        else:
            tmp_path.chmod(0o500)
        message = "ermission"
    with pytest.raises(OSError, match=message):
        train(network(), data(), plan(3), out=tmp_path / "run", progress=called.append)
    tmp_path.chmod(0o700)
    assert not called
    assert not list(tmp_path.rglob("state.safetensors"))


def _refuse(self: Path, *args: Any, **options: Any) -> None:
    raise PermissionError(13, "Permission denied")


def test_ctrl_c_finishes_the_round_and_leaves_a_run_to_resume(tmp_path: Path) -> None:
    out, rounds = tmp_path / "run", []

    def stop(event: Event) -> None:
        rounds.append(event.round)
        if event.round == 11:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    model = network()
    with pytest.raises(Interrupted, match="after 11 rounds") as caught:
        train(model, data(), plan(), out=out, progress=stop, seed=1, noise_seed=2)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert caught.value.folder == out and caught.value.rounds == 11
    assert rounds[-1] == 11 and signal.getsignal(signal.SIGINT) is before
    assert (out / "checkpoint" / "state.safetensors").stat().st_mode & 0o077 == 0
    resumed = train(nn.Linear(6, 2), data(), plan(), out=out, resume=True)
    straight = train(network(), data(), plan(), seed=1, noise_seed=2)
    assert torch.equal(weights(resumed.model), weights(straight.model))
    assert resumed.history == straight.history


def test_ctrl_c_without_a_folder_says_that_nothing_was_kept() -> None:
    def stop(event: Event) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="no run folder"):
        train(network(), data(), plan(), progress=stop)


def test_batch_normalisation_is_refused_with_the_fix() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="GroupNorm"):
        train(model, data(), plan())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"data": (np.zeros((10, 6)), np.zeros(10, int))}, ValueError, "plan is for 200 examples"),
        ({"data": (np.zeros((10, 6)), np.zeros(9, int))}, ValueError, "one row a record"),
        ({"data": (np.zeros((0, 6)), np.zeros(0, int))}, ValueError, "no records"),
        ({"data": np.zeros((200, 6))}, TypeError, "pair"),
        ({"data": Stream()}, TypeError, "map-style"),
        ({"data": (np.array([["a"]] * 200), np.zeros(200))}, TypeError, "numbers"),
        ({"plan": "plan"}, TypeError, "Plan"),
        ({"model": "model"}, TypeError, "Module"),
        ({"model": nn.Linear(6, 2, device="meta")}, ValueError, "no weights yet"),
        ({"micro_batch": 0}, ValueError, "micro_batch"),
        ({"checkpoint_every": 1.5}, TypeError, "checkpoint_every"),
        ({"log_every": 0}, ValueError, "log_every"),
        ({"resume": True}, ValueError, "give out"),
        ({"files": {"a": "b"}}, ValueError, "give out"),
        ({"loss": lambda o, t: o.sum()}, ValueError, "one value per example"),
        ({"loss": "cross_entropy"}, TypeError, "loss must be"),
        ({"loss": nn.CrossEntropyLoss}, TypeError, "loss must be"),
        ({"loss": 0}, TypeError, "loss must be"),
        ({"about": {"data": "Ward 3"}}, TypeError, "must be a"),
        ({"ledger": "sqlite:///book.db"}, TypeError, "ledger is a"),
        ({"ledger": ""}, TypeError, "ledger is a"),
        ({"seed": -1}, ValueError, "seed"),
        (
            {
                "data": (np.zeros((200, 6)), np.zeros((200, 2))),
                "test": (np.ones((9, 6)), np.zeros((9, 2))),
                "plan": plan(schedule=Schedule("drops", decay=0.5)),
            },
            ValueError,
            "no labels",
        ),
        ({"plan": plan(optimizer=Optimizer("sdg"))}, ValueError, "did you mean"),
        ({"plan": plan(optimizer=Optimizer("sgd", 1e300))}, ValueError, "learning_rate must be"),
        ({"plan": plan(clip=Clip(1e300))}, ValueError, "clip_norm must be"),
    ],
)
def test_bad_input_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    given: dict[str, Any] = {"model": network(), "data": data(), "plan": plan(), **changes}
    called: list[Event] = []
    with pytest.raises(error, match=message):
        train(
            given.pop("model"),
            given.pop("data"),
            given.pop("plan"),
            progress=called.append,
            **given,
        )
    assert not called


def test_progress_that_cannot_be_called_is_refused_before_a_round() -> None:
    model = network()
    before = weights(model)
    with pytest.raises(TypeError, match="progress must be"):
        train(model, data(), plan(), progress=True)  # type: ignore[arg-type]
    assert torch.equal(weights(model), before)


def test_files_cannot_take_the_runs_own_names_and_an_earlier_run_survives(tmp_path: Path) -> None:
    given = {"out": tmp_path, "test": data(1)}
    train(network(), data(), plan(), **given)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    odd: list[tuple[dict[str, Any], str]] = [
        *(({name: ""}, "plain name") for name in ("plan.json", "a/b.txt", "checkpoint")),
        ({"job.toml": 3}, "must be a text"),
    ]
    for files, says in odd:
        with pytest.raises(ValueError, match=says):
            train(network(), data(), plan(), files=files, overwrite=True, **given)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_loss_with_weights_of_its_own_is_refused() -> None:
    class Scaled(nn.CrossEntropyLoss):
        def __init__(self) -> None:
            super().__init__(reduction="none")
            self.scale = nn.Parameter(torch.ones(()))

    loss = Scaled()
    with pytest.raises(ValueError, match="loss has weights"):
        train(network(), data(), plan(), loss=loss)
    train(network(), data(), plan(), loss=loss.requires_grad_(False))  # such as a frozen teacher


class TimeMajor(nn.Module):
    """A recurrent model as its owner has it: time first, examples second."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNN(2, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[0] == 3, "time comes first"
        return self.head(self.cell(x)[0])


def last_step(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs[:, -1], targets, reduction="none")


def test_a_declared_batch_form_is_an_assumption_of_the_statement() -> None:
    inputs, targets = data()
    shaped = inputs.reshape(EXAMPLES, 3, 2)
    held, answers = data(1)
    dims = BatchDims(inputs=1, outputs=1)
    run = train(
        TimeMajor(),
        (shaped, targets),
        plan(6),
        loss=last_step,
        batch_dims=dims,
        test=(held.reshape(EXAMPLES, 3, 2), answers),
        log_every=2,
    )
    assert any("inputs 1, outputs 1" in str(text) for text in run.statement.assumptions)
    assert run.history[-1].test_loss is not None and run.history[-1].loss is not None
    with pytest.raises(ValueError, match="clipped examples"):
        train(TimeMajor(), (shaped, targets), plan(6, groups=2), loss=last_step, batch_dims=dims)
    with pytest.raises(AssertionError, match="time comes first"):
        train(TimeMajor(), (shaped, targets), plan(6), loss=last_step)
