from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drawn import randn, reseed, stream
from forethought.training import folder as checkpoints
from forethought.training.folder import Checkpoint, CheckpointError, ReleasedRounds, replace_file
from forethought.training.optimizers import (
    NAMES,
    AdamBC,
    make_optimizer,
    optimizer_state,
    restore_optimizer,
)
from forethought.training.run import train
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Plan
from forethought.values.use import Optimizer


def test_a_checkpoint_reads_back_exactly_and_is_private(tmp_path: Path) -> None:
    tensors = {"a/b": randn(3, 2), "c": torch.tensor(7)}
    values = {"x": [0.1 + 0.2, None, "é"], "y": {"z": True}}
    Checkpoint(12, tensors, values).write(tmp_path)
    back = Checkpoint.read(tmp_path)
    assert back.round == 12 and back.values == values
    assert all(torch.equal(back.tensors[name], tensors[name]) for name in tensors)
    path = tmp_path / checkpoints.STATE
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("content", [b"", b"garbage" * 10, b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / checkpoints.STATE).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"state\.safetensors holds no"):
        Checkpoint.read(tmp_path)


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_SCHEMA", "forethought/checkpoint/0")
    Checkpoint(1).write(tmp_path)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="another version"):
        Checkpoint.read(tmp_path)


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_every_release_is_kept_and_counted_once(tmp_path: Path) -> None:
    releases = ReleasedRounds(tmp_path)
    assert [releases.note(index, bytes([index] * 32)) for index in range(5)] == [1] * 5
    releases.close()
    again = ReleasedRounds(tmp_path)
    assert again.note(3, bytes([3] * 32)) == 1
    assert again.note(3, bytes([9] * 32)) == 2
    assert again.note(3, bytes([8] * 32)) == 3
    assert again.note(3, bytes([9] * 32)) == 3  # one of those that there were
    assert again.note(5, bytes([5] * 32)) == 1
    again.close()
    assert ReleasedRounds.peek(tmp_path) == {0: 1, 1: 1, 2: 1, 3: 3, 4: 1, 5: 1}
    assert (tmp_path / "released").stat().st_size == 40 * 8


NEEDS_TWO_DIMENSIONS = {"muon"}


class Counting(torch.optim.Optimizer):
    """Keeps numbers, and a tensor, where other optimizers keep only settings."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "k": 0, "sum": torch.zeros(())})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for group in self.param_groups:
            group["k"] += 1
            group["sum"] = group["sum"] + group["k"]
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"] / (group["k"] + float(group["sum"]) + self.steps))


class Wrapping(torch.optim.Optimizer):
    """Leaves its steps to an optimizer of its own."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        params = list(params)
        super().__init__(params, {"lr": lr})
        self.inner = torch.optim.SGD(params, lr=lr, momentum=0.9)

    def step(self, closure: Any = None) -> None:
        self.inner.step()


class Listing(torch.optim.SGD):
    """Keeps the weights and a function, neither of which is state."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        self.listed, self.function = list(params), torch.sqrt
        super().__init__(self.listed, lr)


class Following(torch.optim.SGD):
    """Moves weights of its own at every third step."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        params = list(params)
        super().__init__(params, lr)
        self.steps_made, self.slow = 0, [one.detach().clone() for one in params]

    def step(self, closure: Any = None) -> None:
        super().step()
        self.steps_made += 1
        if self.steps_made % 3 == 0:
            for one in self.slow:
                one.mul_(0.5).add_(1.0)


class Drawing(torch.optim.SGD):
    """Draws from a generator of its own."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.generator = torch.Generator()

    def step(self, closure: Any = None) -> None:
        torch.rand(1, generator=self.generator)
        super().step()


@pytest.fixture(autouse=True)
def _own_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Counting, Wrapping, Listing, Following, Drawing):
        monkeypatch.setattr(torch.optim, kind.__name__, kind, raising=False)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in sorted(set(NAMES) - NEEDS_TWO_DIMENSIONS)),
        ("nadam", torch.float64),  # keeps float32 numbers beside float64 weights
        ("torch.optim:Counting", torch.float32),
    ],
)
def test_every_optimizer_continues_exactly(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        reseed(0)
        model = nn.Linear(3, 2).to(dtype)
        return model, make_optimizer(Optimizer(name, 0.01, ()), model.parameters())

    def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, end: int) -> None:
        for index in range(first, end):
            generator = stream(index)
            for p in model.parameters():
                p.grad = randn(p.shape, generator=generator).to(dtype)
            if isinstance(optimizer, AdamBC):
                optimizer.expect_noise(0.1 * index)
            optimizer.step()

    straight, optimizer = make()
    steps(straight, optimizer, 0, 6)
    model, optimizer = make()
    steps(model, optimizer, 0, 3)
    tensors, values = optimizer_state(optimizer)
    Checkpoint(3, {**tensors}, values).write(tmp_path)
    saved = Checkpoint.read(tmp_path)
    weights = {n: p.clone() for n, p in model.state_dict().items()}
    resumed, optimizer = make()
    resumed.load_state_dict(weights)
    restore_optimizer(optimizer, saved.tensors, saved.values)
    steps(resumed, optimizer, 3, 6)
    for one, other in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_state_that_cannot_be_stored_is_named() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight]["history"] = [torch.zeros(2)]
    with pytest.raises(TypeError, match="keeps 'history' as"):
        optimizer_state(optimizer)


def test_a_run_whose_optimizer_no_checkpoint_holds_is_refused_before_it_begins(
    tmp_path: Path,
) -> None:
    data = torch.zeros(20, 3), torch.zeros(20, dtype=torch.int64)
    rounds = Mechanism(Rounds(1.0, 2, Poisson(0.5)))
    wrapped, listed, following, drawing = (
        Plan(rounds, 20, 1e-5, optimizer=Optimizer(f"torch.optim:{name}", 0.1, ()))
        for name in ("Wrapping", "Listing", "Following", "Drawing")
    )
    model = nn.Linear(3, 2)
    before = model.weight.clone()
    for plan, held in ((wrapped, "inner"), (following, "slow"), (drawing, "generator")):
        with pytest.raises(TypeError, match=f"keeps '{held}'"):
            train(model, data, plan, out=tmp_path / "run")
    assert torch.equal(model.weight, before) and not (tmp_path / "run").exists()
    train(model, data, wrapped)  # without a folder there is nothing to continue
    train(model, data, listed, out=tmp_path / "run")


def test_a_release_that_is_not_written_whole_is_not_made(tmp_path: Path) -> None:
    """A full disk takes a part of an entry: it is cut off again, and the release refused."""
    released = ReleasedRounds(tmp_path)
    released.note(0, b"a" * 32)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60, hard))
        for _ in range(2):  # a short write, and none at all
            with pytest.raises(OSError):
                released.note(1, b"b" * 32)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    released.note(2, b"c" * 32)
    released.close()
    assert ReleasedRounds.peek(tmp_path) == {0: 1, 2: 1}
