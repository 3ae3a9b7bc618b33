"""A loop of one's own: the same rounds as forethought.train, and nothing that is not one."""

from __future__ import annotations

import copy
import io
import warnings
from array import array
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

import forethought as ft
from drawn import randn, reseed, stream
from forethought.accounting.verification import verify
from forethought.errors import DeferredError, RoundError
from forethought.ledger.book import Account
from forethought.ledger.store import create
from forethought.rounds.randomness import Batches

EXAMPLES = 120


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = stream(0)
    inputs = randn(EXAMPLES, 5, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def network(dropout: float = 0.0) -> nn.Module:
    reseed(1)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 2))


def plan(rounds: int = 12, sigma: float = 1.0, rate: float = 0.25, **options: Any) -> ft.Plan:
    mechanism = ft.Mechanism(ft.Rounds(sigma, rounds, ft.Poisson(rate)))
    return ft.Plan(mechanism, EXAMPLES, 1e-5, **options)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


criterion = nn.CrossEntropyLoss(reduction="none")
SEEDS = {"seed": 3, "noise_seed": 4}


def loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    the_plan: ft.Plan,
    loss: Callable[..., Any] = criterion,
    records: Any = None,
) -> ft.Run:
    loader, optimizer = ft.private(model, optimizer, records or data(), the_plan, **SEEDS)
    for _ in range(loader.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
    return optimizer.finish()


def own_means(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda outputs, targets: function(outputs, targets, reduction="none").mean(1)


# A criterion with torch's default, and the loss of each example that it stands for.
MEANS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "function": (F.cross_entropy, criterion),
    "cross entropy": (nn.CrossEntropyLoss(), criterion),
    "smoothed": (
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(label_smoothing=0.1, reduction="none"),
    ),
    "MSE": (nn.MSELoss(), own_means(F.mse_loss)),
    "L1": (nn.L1Loss(), own_means(F.l1_loss)),
    "smooth L1": (nn.SmoothL1Loss(), own_means(F.smooth_l1_loss)),
    "Huber": (nn.HuberLoss(), own_means(F.huber_loss)),
    "BCE": (nn.BCEWithLogitsLoss(), own_means(F.binary_cross_entropy_with_logits)),
    "sum of two": (
        lambda outputs, targets: (
            F.cross_entropy(outputs, targets) / 2 + 0.1 * F.mse_loss(outputs, outputs.detach() + 1)
        ),
        lambda outputs, targets: (
            criterion(outputs, targets) / 2
            + 0.1 * own_means(F.mse_loss)(outputs, outputs.detach() + 1)
        ),
    ),
}


@pytest.mark.thinned
@pytest.mark.parametrize("name", MEANS)
def test_torchs_mean_of_a_loss_is_the_loss_of_each_example(name: str) -> None:
    mean, each = MEANS[name]
    inputs, labels = data()
    whole = name in ("function", "cross entropy", "smoothed", "sum of two")
    records = inputs, labels if whole else F.one_hot(labels, 2).float()
    mine, theirs = network(), network()
    optimizers = [torch.optim.SGD(model.parameters(), 0.5) for model in (mine, theirs)]
    loop(mine, optimizers[0], plan(3), mean, records)
    loop(theirs, optimizers[1], plan(3), each, records)
    # Noise is bound to its sum: another last bit of it would be other noise.
    assert torch.equal(weights(mine), weights(theirs))
    assert not torch.equal(weights(mine), weights(network()))


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("column", ["outputs", "targets"])
def test_a_column_beside_flat_values_is_one_value_an_example(
    noise_by_round: None, reduction: str, column: str
) -> None:
    found = []
    for loss in (nn.MSELoss(reduction=reduction), lambda one, other: (one - other).square()):
        reseed(1)
        layers = [nn.Linear(5, 1)] + [nn.Flatten(0)] * (column == "targets" or bool(found))
        model = nn.Sequential(*layers)
        wanted = data()[0][:, 0]
        records = data()[0], wanted[:, None] if column == "targets" and not found else wanted
        loop(model, torch.optim.SGD(model.parameters(), 0.1), plan(3), loss, records)
        found.append(weights(model))
    torch.testing.assert_close(found[0], found[1])


def absolute(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs - F.one_hot(targets, 2)).abs().sum(1) + 0.5 * outputs.square().mean(1)


@pytest.mark.thinned
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("loss", [criterion, absolute])
@pytest.mark.parametrize("kind", ["examples", "groups"])
def test_the_weights_are_those_of_train_to_the_last_bit(
    dropout: float, loss: Callable[..., Any], kind: str
) -> None:
    use: dict[str, Any] = {
        "optimizer": ft.Optimizer("adam", 0.05, ()),
        "averaging": ft.Averaging("none"),
    }
    if kind == "groups":
        mechanism = ft.Mechanism(ft.Rounds(1.0, 6, ft.Poisson(0.25), "group"))
        the_plan = ft.Plan(mechanism, EXAMPLES, 1e-5, groups=4, **use)
    else:
        the_plan = plan(**use)
    mine, theirs = network(dropout), network(dropout)
    own = loop(mine, torch.optim.Adam(mine.parameters(), 0.05), the_plan, loss)
    run = ft.train(theirs, data(), the_plan, loss=loss, **SEEDS)
    assert torch.equal(weights(mine), weights(theirs))
    assert not torch.equal(weights(mine), weights(network(dropout)))
    assert own.transcript.to_values() == run.transcript.to_values()
    assert own.statement.epsilon == run.statement.epsilon
    assert own.statement.releases == run.statement.releases


def test_without_an_optimizer_it_is_the_plans_with_its_step_sizes_and_average() -> None:
    the_plan = plan(
        optimizer=ft.Optimizer("sgd", 0.3),
        schedule=ft.Schedule("cosine", warmup=3),
        averaging=ft.Averaging("tail", fraction=0.5),
    )
    mine, theirs = network(), network()
    loop(mine, None, the_plan)
    ft.train(theirs, data(), the_plan, **SEEDS)
    assert torch.equal(weights(mine), weights(theirs))


def test_the_statement_is_of_the_plan_and_can_be_verified(tmp_path: Path) -> None:
    model, the_plan = network(), plan()
    loader, optimizer = ft.private(model, None, data(), the_plan)
    for inputs, targets in loader:
        criterion(model(inputs), targets).backward()
        optimizer.step()
    run = optimizer.finish(tmp_path / "run")
    assert optimizer.rounds_done == len(loader) == 4
    text = run.statement.to_markdown()
    assert "stopped after 4 of 12 rounds" in text
    assert "training loop, its owner's own code" in text
    assert run.statement.mechanism == the_plan.mechanism
    stored = ft.Statement.load(tmp_path / "run" / "statement.json")
    verify(stored, ft.Plan.load(tmp_path / "run" / "plan.json"))
    assert not (tmp_path / "run" / "checkpoint").exists()
    again = network()
    ft.private(again, None, data(), the_plan)  # another model starts anew
    model.load_state_dict(run.model.state_dict())
    _, second = ft.private(model, None, data(), the_plan)
    assert "trained before" in second._rounds.statement.to_markdown()


def test_a_torch_scheduler_and_hooks_work_as_on_any_optimizer() -> None:
    def run() -> tuple[list[float], list[int]]:
        model = network()
        seen: list[float] = []
        hooked: list[int] = []
        optimizer: Any = torch.optim.SGD(model.parameters(), 1.0, momentum=0.5)
        loader, optimizer = ft.private(model, optimizer, data(), plan())
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, 3 * len(loader))
        optimizer.register_step_post_hook(lambda *_: hooked.append(1))
        for _ in range(loader.epochs):
            for batch in loader:
                optimizer.zero_grad()
                criterion(model(batch[0]), batch[1]).backward()
                optimizer.step()
                seen.append(scheduler.get_last_lr()[0])
                scheduler.step()
        restored = torch.optim.SGD(model.parameters(), 1.0)
        restored.load_state_dict(optimizer.state_dict())
        assert restored.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
        assert repr(optimizer).startswith("private SGD")
        return seen, hooked

    model = network()
    plain = torch.optim.SGD(model.parameters(), 1.0, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(plain, 1.0, 12)
    expected = []
    for _ in range(12):
        expected.append(scheduler.get_last_lr()[0])
        plain.step()
        if len(expected) < 12:
            scheduler.step()
    seen, hooked = run()
    assert seen == expected and len(hooked) == 12


class Named(Dataset):
    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        inputs, targets = data()
        return {"left": inputs[index, :2], "right": inputs[index, 2:], "labels": targets[index]}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        reseed(2)
        self.layer = nn.Linear(5, 2)

    def forward(self, left: torch.Tensor, *, right: torch.Tensor, squash: bool = False) -> Any:
        outputs = self.layer(torch.cat([left, right], 1))
        return {"logits": torch.tanh(outputs) if squash else outputs}


def test_records_may_be_dicts_and_come_from_a_loader() -> None:
    inputs, targets = data()
    by_name = {"left": inputs[:, :2], "right": inputs[:, 2:], "labels": targets}
    found = []
    for records in (Named(), DataLoader(Named(), batch_size=7, shuffle=True), by_name):
        model, the_plan = TwoInputs(), plan(5)
        optimizer: Any = torch.optim.SGD(model.parameters(), 0.5)
        loader, optimizer = ft.private(model, optimizer, records, the_plan, **SEEDS)
        for batch in loader:
            batch = {name: part.to("cpu", non_blocking=True) for name, part in batch.items()}
            outputs = model(batch["left"], right=batch["right"], squash=True)
            F.cross_entropy(outputs["logits"], batch["labels"], reduction="none").backward()
            optimizer.step()
        optimizer.finish()
        found.append(weights(model))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert not torch.equal(found[0], weights(TwoInputs()))

    def loss(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(outputs["logits"], labels, reduction="none")

    one, two = TwoInputs(), TwoInputs()
    ft.train(one, by_name, plan(5), loss=loss, **SEEDS)
    ft.train(two, Named(), plan(5), loss=loss, **SEEDS)
    assert torch.equal(weights(one), weights(two))


def test_a_loader_gives_its_data_set_and_its_way_of_collating() -> None:
    def collate(records: list[Any]) -> Any:
        inputs, targets = zip(*records, strict=True)
        return torch.stack(inputs) * 2, torch.stack(targets)

    one, two = network(), network()
    doubled = DataLoader(TensorDataset(*data()), collate_fn=collate)
    loop(one, torch.optim.SGD(one.parameters(), 0.1), plan(4), records=doubled)
    inputs, targets = data()
    loop(two, torch.optim.SGD(two.parameters(), 0.1), plan(4), records=(inputs * 2, targets))
    assert torch.equal(weights(one), weights(two))


def test_several_rows_of_one_record_are_refused() -> None:
    """Each row would be clipped by itself, and a record would say more than the sensitivity."""

    def collate(records: list[Any]) -> Any:
        inputs, targets = zip(*records, strict=True)
        return torch.stack(inputs * 2), torch.stack(targets * 2)

    model = network()
    doubled = DataLoader(TensorDataset(*data()), collate_fn=collate)
    loader, optimizer = ft.private(model, None, doubled, plan(), seed=1)
    before, (inputs, targets) = weights(model), next(iter(loader))
    criterion(model(inputs), targets).backward()
    with pytest.raises(ValueError, match="several rows"):
        optimizer.step()
    assert torch.equal(weights(model), before) and optimizer.rounds_done == 0


def test_what_a_collate_fn_adds_for_nothing_may_have_any_length() -> None:
    def collate(records: list[Any]) -> Any:
        inputs, targets = zip(*records, strict=True)
        return {"x": torch.stack(inputs), "bounds": torch.arange(7), "label": torch.stack(targets)}

    one, two = network(), network()
    for model, records in ((one, DataLoader(TensorDataset(*data()), collate_fn=collate)), (two, 0)):
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        loader, optimizer = ft.private(model, sgd, records or data(), plan(3), **SEEDS)
        for batch in loader:
            inputs, targets = (batch["x"], batch["label"]) if records else batch
            criterion(model(inputs), targets).backward()
            optimizer.step()
    assert torch.equal(weights(one), weights(two))


def test_a_batch_is_where_the_round_needs_it() -> None:
    _, loader, _ = opened()
    inputs, targets = next(iter(loader))
    assert inputs.cuda(None, non_blocking=True) is inputs and targets.cuda(device=None) is targets
    assert inputs.to(torch.float16) is not inputs


class Bare(nn.Module):
    """Takes its first argument by position alone."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, inputs: Any, /, shift: Any = None, *, scale: Any = None) -> Any:
        return self.network(inputs) + shift[:, None]


def test_an_argument_without_a_name_is_not_lost() -> None:
    models = Bare(), Bare()
    for model in models:
        sgd = torch.optim.SGD(model.parameters(), 0.1)
        loader, optimizer = ft.private(model, sgd, data(), plan(3), **SEEDS)
        for inputs, y in loader:
            outputs = model(inputs, y) if model is models[0] else model(inputs, shift=y)
            criterion(outputs, y).backward()
            optimizer.step()
    assert torch.equal(*map(weights, models)) and not torch.equal(weights(model), weights(Bare()))


def test_an_argument_without_a_name_beside_one_without_a_place_is_refused() -> None:
    model = Bare()
    loader, optimizer = ft.private(model, None, data(), plan(3), seed=1)
    inputs, targets = next(iter(loader))
    criterion(model(inputs, scale=targets), targets).backward()
    with pytest.raises(DeferredError, match="arguments by position"):
        optimizer.step()


class Counted(Dataset[Any]):
    """Records that count how often one is read."""

    def __init__(self) -> None:
        self.inputs, self.targets = data()
        self.reads = 0

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return self.inputs[index], self.targets[index]


def test_a_part_of_the_outputs_is_the_same_loss_in_every_round() -> None:
    """A loss that is the same as before is not tried on further records again."""
    model, records = network(), Counted()
    loader, optimizer = ft.private(model, None, records, plan(3, rate=1.0), seed=1)
    reads = []
    for _ in range(loader.epochs):
        inputs, targets = next(iter(loader))
        before = records.reads
        criterion(model(inputs)[:, :2], targets).backward()
        optimizer.step()
        reads.append(records.reads - before)
    assert reads[0] > reads[1] == reads[2] == EXAMPLES


def test_a_loss_may_look_at_the_inputs_too() -> None:
    reseed(0)
    model = nn.Sequential(nn.Linear(5, 2), nn.Linear(2, 5))
    other = copy.deepcopy(model)
    loader, optimizer = ft.private(
        model, torch.optim.SGD(model.parameters(), 0.1), data(), plan(4), **SEEDS
    )
    for inputs, _ in loader:
        F.mse_loss(model(inputs), inputs, reduction="none").sum(1).backward()
        optimizer.step()
    optimizer.finish()
    use = {"optimizer": ft.Optimizer("sgd", 0.1, ()), "averaging": ft.Averaging("none")}
    the_plan = plan(4, **use)
    inputs, _ = data()
    ft.train(other, (inputs, inputs), the_plan, **SEEDS)
    assert torch.allclose(weights(model), weights(other), atol=1e-6)


# What a batch does not tell.

QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "item": lambda x, loss: loss.item(),
    "float": lambda x, loss: float(loss),
    "decision": lambda x, loss: bool(loss),
    "comparison": lambda x, loss: 1 if loss < 1 else 0,
    "list": lambda x, loss: x.tolist(),
    "array": lambda x, loss: np.asarray(x),
    "size": lambda x, loss: x.size(0),
    "shape": lambda x, loss: x.shape[0],
    "length": lambda x, loss: len(x),
    "rows": lambda x, loss: list(x),
    "printed": lambda x, loss: f"{loss:.3f}",
    "written": lambda x, loss: x.__setitem__(0, 1.0),
    "attribute": lambda x, loss: setattr(x, "grad", None),
    "index": lambda x, loss: [1, 2][loss],
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_batch_tells_no_number(name: str) -> None:
    model = network()
    loader, _ = ft.private(model, None, data(), plan())
    inputs, targets = next(iter(loader))
    loss = criterion(model(inputs), targets)
    with pytest.raises(DeferredError, match="private batch"):
        QUESTIONS[name](inputs, loss)
    assert "private batch" in f"{loss!r} {inputs}"


def test_no_record_is_read_before_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop sees batches before their records are drawn."""
    drawn: list[int] = []
    draw = Batches.__call__
    monkeypatch.setattr(Batches, "__call__", lambda s, r: (drawn.append(r.index), draw(s, r))[1])
    model = network()
    loader, optimizer = ft.private(model, None, data(), plan())
    for number, (inputs, targets) in enumerate(loader):
        loss = criterion(model(inputs), targets)
        loss.backward()
        assert len(drawn) == number
        optimizer.step()
        assert len(drawn) == number + 1


# What is refused.


def opened(**options: Any) -> tuple[nn.Module, Any, Any]:
    model = network()
    loader, optimizer = ft.private(
        model, torch.optim.SGD(model.parameters(), 0.1), data(), plan(**options)
    )
    return model, loader, optimizer


def second_loss(model: nn.Module, loader: Any, optimizer: Any) -> None:
    """One whole round, and the loss of the next one."""
    batches = iter(loader)
    for number in range(2):
        inputs, targets = next(batches)
        criterion(model(inputs), targets).backward()
        if number == 0:
            optimizer.step()


def test_a_step_needs_a_batch_and_one_loss() -> None:
    model, loader, optimizer = opened()
    with pytest.raises(RoundError, match="without a batch"):
        optimizer.step()
    inputs, targets = next(iter(loader))
    with pytest.raises(RoundError, match="without a loss"):
        optimizer.step()
    loss = criterion(model(inputs), targets)
    loss.backward()
    with pytest.raises(RoundError, match="second backward"):
        loss.backward()
    with pytest.raises(RoundError, match="closure"):
        optimizer.step(lambda: 0.0)
    optimizer.step()
    with pytest.raises(RoundError, match="without a batch"):
        optimizer.step()
    with pytest.raises(RoundError, match="earlier batch"):
        loss.backward()
    assert optimizer.rounds_done == 1


def test_a_loss_that_was_refused_is_stated_anew() -> None:
    """A cell of a notebook is corrected and runs again."""
    model, loader, optimizer = opened(rounds=4)
    wrongs = [nn.CrossEntropyLoss(reduction="sum"), lambda outputs, targets: 1 / 0]
    for loss in (*wrongs, criterion):
        refused = loss is not criterion
        expected = pytest.raises((ValueError, ZeroDivisionError)) if refused else nullcontext()
        with expected:
            for inputs, targets in loader:
                loss(model(inputs), targets).backward()
                optimizer.step()
    assert optimizer.rounds_done == len(optimizer.finish().transcript) == 4


def penalise(model: Any) -> None:
    (3 * model[0].weight.square().sum()).backward()


def give(model: Any) -> None:
    model[0].weight.grad = torch.ones_like(model[0].weight)


@pytest.mark.parametrize(
    ("before", "after"), [(penalise, None), (give, None), (None, give), (None, penalise)]
)
def test_a_gradient_that_would_be_lost_is_refused(before: Any, after: Any) -> None:
    model, loader, optimizer = opened()
    inputs, targets = next(iter(loader))
    loss = criterion(model(inputs), targets)
    if before:
        before(model)
        with pytest.raises(RoundError, match="no round gave"):
            loss.backward()
    else:
        loss.backward()
        after(model)
        with pytest.raises(RoundError, match="no round gave"):
            optimizer.step()
    assert optimizer.rounds_done == 0
    optimizer.zero_grad()
    criterion(model(inputs), targets).backward()
    optimizer.step()  # what it released stays in .grad, and is not a stranger's
    inputs, targets = next(iter(loader))
    criterion(model(inputs), targets).backward()
    optimizer.step()


def test_a_gradient_that_is_added_to_the_last_rounds_is_refused() -> None:
    model, loader, optimizer = opened()
    inputs, targets = next(iter(loader))
    criterion(model(inputs), targets).backward()
    optimizer.step()
    inputs, targets = next(iter(loader))
    penalise(model)  # into what the round left in .grad
    with pytest.raises(RoundError, match="no round gave"):
        criterion(model(inputs), targets).backward()


@pytest.mark.parametrize("name", ["param_groups", "state", "defaults"])
def test_what_the_optimizer_would_not_get_is_refused(name: str) -> None:
    _, _, optimizer = opened()
    with pytest.raises(RoundError, match="would be lost"):
        setattr(optimizer, name, [])
    assert getattr(optimizer, name) != []


class Noting(nn.Linear):
    """Has a state that is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


def test_a_state_that_no_folder_holds_is_named(tmp_path: Path) -> None:
    model = Noting(5, 2)
    with pytest.raises(TypeError, match="get_extra_state"):
        ft.train(model, data(), plan(), out=tmp_path / "one")
    loader, optimizer = ft.private(model, None, data(), plan(), seed=1)
    inputs, targets = next(iter(loader))
    criterion(model(inputs), targets).backward()
    optimizer.step()
    with pytest.raises(TypeError, match="get_extra_state"):
        optimizer.finish(out=tmp_path / "two")
    assert not any(tmp_path.glob("two/*"))
    assert len(optimizer.finish().transcript) == 1


def test_a_public_gradient_is_added_in_a_hook() -> None:
    moved = []
    for size in (0.0, 2.0):
        model, loader, optimizer = opened(rounds=1, sigma=0.0, rate=1.0)

        def add(*_: Any, size: float = size, model: Any = model) -> None:
            model[0].weight.grad += size

        optimizer.register_step_pre_hook(add)
        for inputs, targets in loader:
            criterion(model(inputs), targets).backward()
            optimizer.step()
        moved.append(model[0].weight.detach().clone())
    assert torch.allclose(moved[0] - moved[1], torch.tensor(0.2), atol=1e-6)


def test_an_optimizer_of_a_loop_is_not_copied() -> None:
    _, _, optimizer = opened()
    with pytest.raises(RoundError, match="copied or pickled"):
        copy.deepcopy(optimizer)
    with pytest.raises(RoundError, match="copied or pickled"):
        torch.save(optimizer, io.BytesIO())


def longer(model: Any) -> None:
    if len(model) == 4:
        model.append(nn.Linear(2, 2))


def frozen(model: Any) -> None:
    model[0].requires_grad_(False)


@pytest.mark.parametrize("change", [longer, frozen])
def test_other_weights_than_at_first_need_a_run_of_their_own(change: Callable[[Any], None]) -> None:
    model, loader, optimizer = opened()
    optimizer.register_step_post_hook(lambda *_: change(model))
    second_loss(model, loader, optimizer)
    with pytest.raises(ValueError, match="plan of its"):
        optimizer.step()
    assert len(optimizer.finish().transcript) == 1


def test_weights_of_a_loop_that_did_not_end_are_named() -> None:
    model, loader, optimizer = opened(rounds=4)
    start = copy.deepcopy(model)
    batches = iter(loader)
    for _ in range(2):
        inputs, targets = next(batches)
        criterion(model(inputs), targets).backward()
        optimizer.step()
    found = {}
    for name, begun in {"start": start, "copy": copy.deepcopy(model)}.items():
        caveats = ft.train(begun, data(), plan(2)).statement.caveats
        found[name] = [one.detail for one in caveats if one.code == "trained-before"]
    assert found["start"] == []
    assert "did not end" in found["copy"][0]
    with pytest.raises(ValueError, match="another private loop"):
        ft.private(model, None, data(), plan())
    assert not any(one.code == "trained-before" for one in optimizer.finish().statement.caveats)
    caveats = ft.train(model, data(), plan(2)).statement.caveats
    (named,) = (one.detail for one in caveats if one.code == "trained-before")
    assert "did not end" not in named


# Losses that are zero where outputs are the targets, and which look at the batch.
MIXING: dict[str, Callable[[Any, Any], Any]] = {
    "sorted": lambda z, y: (z.sort(0).values - y.sort(0).values).square().sum(1),
    "by a mean": lambda z, y: (z - y).square().sum(1) * z.mean(0)[0],
    "over a deviation": lambda z, y: (z / z.std(0) - y).square().sum(1),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MIXING)
def test_a_loss_of_outputs_like_the_targets_may_not_look_at_the_batch(name: str) -> None:
    model = network()
    inputs, labels = data()
    records = inputs, F.one_hot(labels, 2).float()
    loader, optimizer = ft.private(model, None, records, plan())
    outputs, targets = (lambda x, y: (model(x), y))(*next(iter(loader)))
    MIXING[name](outputs, targets).backward()
    with pytest.raises(ValueError, match="whole batch"):
        optimizer.step()
    assert optimizer.rounds_done == 0


def test_gradients_are_not_accumulated_over_batches() -> None:
    model, loader, _ = opened()
    batches = iter(loader)
    inputs, targets = next(batches)
    criterion(model(inputs), targets).backward()
    with pytest.raises(RoundError, match="micro_batch"):
        next(batches)


LOSSES: dict[str, tuple[Callable[[Any, Any, Any, Any], Any], str]] = {
    "weighted mean": (
        lambda m, x, y, o: nn.CrossEntropyLoss(torch.tensor([1.0, 3.0]))(m(x), y),
        "one value per example",
    ),
    "older mean": (
        lambda m, x, y, o: F.cross_entropy(m(x), y, reduce=True, size_average=True),
        "one value per example",
    ),
    "mean over several targets": (
        lambda m, x, y, o: F.cross_entropy(
            m(x).unsqueeze(2).repeat(1, 1, 2), y.unsqueeze(1).repeat(1, 2)
        ),
        "one value per example",
    ),
    "its mean": (lambda m, x, y, o: criterion(m(x), y).mean(), "one value per example"),
    "sum": (lambda m, x, y, o: criterion(m(x), y).sum(), "one value per example"),
    "penalty": (
        lambda m, x, y, o: criterion(m(x), y) + m[0].weight.square().sum(),
        "weight_decay",
    ),
    "two calls": (lambda m, x, y, o: criterion(m(x), y) + criterion(m(x), y), "2 calls"),
    "no call": (lambda m, x, y, o: x.sum(1), "0 calls"),
    "another model": (lambda m, x, y, o: criterion(o(x), y), "0 calls|1 calls"),
    "a part of it": (lambda m, x, y, o: criterion(m[3](m[2](m[1](m[0](x)))), y), "0 calls"),
    "prepared": (lambda m, x, y, o: criterion(m(x * 2), y), "move what is done"),
    "shared": (lambda m, x, y, o: criterion(m(x, torch.ones(2)), y), "move what is done"),
    "in a loop": (lambda m, x, y, o: sum(m(x)), "added up in"),
    "of a distribution": (
        lambda m, x, y, o: -torch.distributions.Categorical(logits=m(x)).log_prob(y),
        "let the model",
    ),
    "in two parts": (lambda m, x, y, o: criterion(*m(x), y), "parts by number"),
    "without a gradient": (lambda m, x, y, o: criterion(torch.no_grad()(m)(x), y), "no_grad"),
    "all without": (lambda m, x, y, o: torch.no_grad()(criterion)(m(x), y), "no_grad"),
    "the hardest": (lambda m, x, y, o: criterion(m(x), y).topk(3)[0], "one example by"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_a_round_cannot_compute_is_refused_and_nothing_is_released(name: str) -> None:
    model, loader, optimizer = opened()
    before, other = weights(model), network()
    inputs, targets = next(iter(loader))
    wrong, words = LOSSES[name]
    with pytest.raises((ValueError, TypeError, AttributeError), match=words):
        wrong(model, inputs, targets, other).backward()
        optimizer.step()
    assert torch.equal(weights(model), before) and optimizer.rounds_done == 0
    assert len(optimizer._rounds._private.transcript) == 0


IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "a method": lambda z, y: z.div_(10),
    "of the targets": lambda z, y: y.zero_(),
    "a function": lambda z, y: torch.relu_(z),
    "inplace=": lambda z, y: F.relu(z, inplace=True),
    "out=": lambda z, y: torch.mul(z, 2, out=torch.empty(2)),
    "out= of a method": lambda z, y: z.mul(2, out=torch.empty(2)),
    "into another": lambda z, y: torch.zeros(()).add_(y),
    "an item of another": lambda z, y: torch.zeros(2).__setitem__(0, y),
    "a hook": lambda z, y: z.register_hook(torch.neg),
    "its gradient": lambda z, y: z.retain_grad(),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_acts_in_place_on_a_batch_is_refused(name: str) -> None:
    model, loader, _ = opened()
    inputs, targets = next(iter(loader))
    outputs = model(inputs)
    with pytest.raises(DeferredError, match=r"z = z\.div"):
        IN_PLACE[name](outputs, targets)
    outputs.requires_grad_()
    outputs /= 10


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return -gradient


def weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        weight = outputs.softmax(-1)[..., 0]
    return weight * criterion(outputs, targets)


def judged(trained: bool) -> Callable[..., Any]:
    """Weighted by another network, which may keep its gradients on where it is called without."""
    reseed(5)
    judge = nn.Linear(2, 1).requires_grad_(trained)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            weight = judge(outputs).sigmoid()[..., 0]
        return weight * criterion(outputs, targets)

    return loss


ALIKE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "a network under no_grad": (judged(True), judged(False)),
    "no_grad": (weighted, lambda z, y: z.softmax(-1)[..., 0].detach() * criterion(z, y)),
    "a custom function": (
        lambda z, y: criterion(Turned.apply(z), y),
        lambda z, y: -criterion(z, y),
    ),
    "by a tensor": (
        lambda z, y: criterion(z / torch.tensor([2.0, 4.0]), y),
        lambda z, y: criterion(z * torch.tensor([0.5, 0.25]), y),
    ),
    "by a value": (
        lambda z, y: criterion(z / z.exp(), y),
        lambda z, y: criterion(torch.div(z, z.exp()), y),
    ),
}


@pytest.mark.thinned
@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.filterwarnings("ignore::forethought.errors.SlowGradientsWarning")
def test_a_stated_loss_has_the_gradient_that_torch_gives_it(name: str) -> None:
    found = []
    for loss in (*ALIKE[name], criterion):
        model = network()
        loop(model, torch.optim.SGD(model.parameters(), 1.0), plan(2), loss)
        found.append(weights(model))
    torch.testing.assert_close(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


def test_a_round_runs_in_the_modes_of_its_models_call() -> None:
    found = []
    for evaluated, after in ((True, True), (True, False), (False, False)):
        model = network(0.9)
        sgd = torch.optim.SGD(model.parameters(), 1.0)
        loader, optimizer = ft.private(model, sgd, data(), plan(2), **SEEDS)
        for inputs, targets in loader:
            model[2].train(not evaluated)
            loss = criterion(model(inputs), targets)
            model[2].train(not after)
            loss.backward()
            optimizer.step()
            assert model[2].training is not after
        found.append(weights(model))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2])


class WithLoss(nn.Module):
    """Computes its loss itself, as detection models do: a dict of them, added up."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        outputs = self.body(inputs)
        losses = {"hit": criterion(outputs, targets), "size": outputs.square().mean(1)}
        return sum(losses.values())


def test_a_model_may_compute_its_loss_itself(noise_by_round: None) -> None:
    inside, outside = WithLoss(network()), network()
    loader, optimizer = ft.private(
        inside, torch.optim.SGD(inside.parameters(), 0.1), data(), plan(), **SEEDS
    )
    for inputs, targets in loader:
        inside(inputs, targets).backward()
        optimizer.step()
    loader, optimizer = ft.private(
        outside, torch.optim.SGD(outside.parameters(), 0.1), data(), plan(), **SEEDS
    )
    for inputs, targets in loader:
        outputs = outside(inputs)
        (criterion(outputs, targets) + outputs.square().mean(1)).backward()
        optimizer.step()
    torch.testing.assert_close(weights(inside), weights(outside))
    assert not torch.equal(weights(inside), weights(network()))


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("how", [False, True])
def test_a_round_runs_under_the_autocast_of_its_models_call(how: bool, enabled: bool) -> None:
    """The standard loop of mixed precision, whose scaler does nothing."""
    seen: set[tuple[bool, torch.dtype]] = set()
    model, scaler = network(), torch.amp.GradScaler("cpu", enabled=enabled)
    model[-1].register_forward_hook(
        lambda m, i, o: seen.add((torch.is_autocast_enabled("cpu"), (o @ torch.ones(2, 2)).dtype))
    )
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    loader, optimizer = ft.private(model, sgd, data(), plan(), **SEEDS)
    for inputs, targets in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how):
            loss = criterion(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert seen == {(how, torch.bfloat16 if how else torch.float32)}
    assert not scaler.is_enabled() and scaler.scale(torch.ones(1)) == 1.0
    assert not torch.equal(weights(model), weights(network()))
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("change", ["weights", "data", "frozen", "buffer"])
def test_a_model_that_was_changed_is_refused(change: str) -> None:
    model = nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2).eval())
    loader, optimizer = ft.private(
        model, torch.optim.SGD(model.parameters(), 0.1), data(), plan(), seed=1
    )
    second_loss(model, loader, optimizer)
    if change == "weights":
        with torch.no_grad():
            model[0].weight[0, 0] += 1e-6
    elif change == "data":
        model[0].bias.data[0] = 0.0
    elif change == "frozen":
        model[0].bias.requires_grad_(False)
    else:
        model[1].running_mean += 1
    with pytest.raises(RoundError, match="since the last"):
        optimizer.step()
    assert optimizer.rounds_done == 1


def another_weight(model: Any) -> None:
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())


def another_module(model: Any) -> None:
    model[0] = copy.deepcopy(model[0])


def assigned(model: Any) -> None:
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)


@pytest.mark.parametrize("change", [another_weight, another_module, assigned])
@pytest.mark.parametrize("planned", [False, True])
def test_a_parameter_in_anothers_place_is_refused(
    change: Callable[[Any], None], planned: bool
) -> None:
    model = network()
    sgd = None if planned else torch.optim.SGD(model.parameters(), 0.1)
    loader, optimizer = ft.private(model, sgd, data(), plan(), seed=1)
    batches = iter(loader)
    inputs, targets = next(batches)
    criterion(model(inputs), targets).backward()
    optimizer.step()
    inputs, targets = next(batches)
    loss = criterion(model(inputs), targets)
    change(model)
    with pytest.raises(RoundError, match=r"0\.weight.* another Parameter"):
        model(inputs)
    loss.backward()
    with pytest.raises(RoundError, match=r"0\.weight.* another Parameter"):
        optimizer.step()
    assert optimizer.rounds_done == 1


@pytest.mark.parametrize("frozen", [False, True])
def test_a_call_with_other_weights_than_the_models_is_refused(frozen: bool) -> None:
    model = network()
    model[0].requires_grad_(not frozen)
    loader, optimizer = ft.private(model, None, data(), plan(), seed=1)
    inputs, targets = next(iter(loader))
    own = dict(model.named_parameters())
    zeros = {name: torch.zeros_like(p) for name, p in own.items() if p.requires_grad != frozen}
    with pytest.raises(RoundError, match="functional_call"):
        torch.func.functional_call(model, zeros, (inputs,))
    torch.func.functional_call(model, own, (inputs,))
    criterion(model(inputs), targets).backward()
    optimizer.step()
    assert optimizer.rounds_done == 1


class Keeping(nn.Linear):
    """Keeps tensors and arrays that are neither parameters nor buffers."""

    def __init__(self) -> None:
        super().__init__(5, 2)
        self.kept, self.row, self.several = torch.zeros(3), array("d", [0.0]), [torch.zeros(2)]
        self.numbers = np.zeros(2)


def raw(model: nn.Module) -> torch.Tensor:
    """A gradient without noise, as a loop's own code can compute it."""
    inputs, targets = data()
    value = criterion(nn.functional.linear(inputs, model.weight), targets).sum()
    return torch.autograd.grad(value, model.weight)[0]


def into_state(model: Keeping, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state[model.weight]["momentum_buffer"].add_(raw(model))


def into_new_state(model: Keeping, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state[model.weight]["kept"] = raw(model)


def into_a_number(model: Keeping, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state[model.weight]["kept"] = float(raw(model)[0, 0])


def into_a_loaded_state(model: Keeping, optimizer: torch.optim.Optimizer) -> None:
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["momentum_buffer"] += raw(model)
    optimizer.load_state_dict(state)


def into_a_tensor(model: Keeping, _: torch.optim.Optimizer) -> None:
    model.kept[0] = raw(model)[0, 0]


def into_a_new_tensor(model: Keeping, _: torch.optim.Optimizer) -> None:
    model.new = raw(model)


def into_a_list(model: Keeping, _: torch.optim.Optimizer) -> None:
    model.several.append(raw(model))


def into_an_array(model: Keeping, _: torch.optim.Optimizer) -> None:
    model.row.append(float(raw(model)[0, 0]))


def into_numpy(model: Keeping, _: torch.optim.Optimizer) -> None:
    model.numbers[0] = float(raw(model)[0, 0])


@pytest.mark.parametrize(
    "carry",
    [
        *(into_state, into_new_state, into_a_loaded_state, into_a_tensor, into_a_new_tensor),
        *(into_a_list, into_an_array, into_numpy, into_a_number),
    ],
)
def test_raw_gradients_are_not_carried_past_a_round(carry: Callable[..., None]) -> None:
    model = Keeping()
    sgd = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    loader, optimizer = ft.private(model, sgd, data(), plan(), seed=1)
    second_loss(model, loader, optimizer)
    carry(model, optimizer)
    with pytest.raises(RoundError, match="changed since the"):
        optimizer.step()
    assert optimizer.rounds_done == 1


def test_what_belongs_to_a_loop_changes_between_steps() -> None:
    """Schedulers, hooks behind a step, and evaluation of a model that keeps nothing."""
    model = Keeping()
    adam = torch.optim.Adam(model.parameters(), 0.1)
    loader, optimizer = ft.private(model, adam, data(), plan(), seed=1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=20)

    def average(own: torch.optim.Optimizer, *_: Any) -> None:
        own.state.setdefault("means", {})["all"] = model.weight.detach().sum(0)

    adam.register_step_post_hook(average)
    for inputs, targets in loader:
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()
        scheduler.step()
        model(data()[0])
    assert optimizer.finish().statement.private


class Wrapped(torch.optim.Optimizer):
    """Hands another optimizer's state on, without hooks of its own, as accelerate's does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.param_groups, self.step = inner.param_groups, inner.step  # type: ignore[method-assign]


class Passing(torch.optim.Optimizer):
    """Hands another optimizer's attributes on, its hooks too."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()


def test_an_optimizer_may_hand_on_anothers_steps() -> None:
    one, two = network(), network()
    loop(one, Passing(torch.optim.SGD(one.parameters(), 0.5)), plan(3))
    loop(two, torch.optim.SGD(two.parameters(), 0.5), plan(3))
    assert torch.equal(weights(one), weights(two))


def test_optimizers_that_do_not_fit_are_refused() -> None:
    model, stranger = network(), network()
    cases: list[tuple[Any, type[Exception], str]] = [
        (torch.optim.SGD(stranger.parameters(), 0.1), ValueError, "not the model's"),
        (torch.optim.SGD(model[0].parameters(), 0.1), ValueError, "does not have 3.weight"),
        (torch.optim.LBFGS(model.parameters()), ValueError, "inside its step"),
        (torch.optim.SparseAdam(model.parameters()), ValueError, "sparse gradients"),
        ("adam", TypeError, "one of torch's"),
        (SimpleNamespace(_optimizer_step_post_hooks={}), TypeError, "one of torch's"),
        (Wrapped(torch.optim.SGD(model.parameters(), 0.1)), TypeError, "accelerate prepares"),
    ]
    for optimizer, kind, words in cases:
        with pytest.raises(kind, match=words):
            ft.private(model, optimizer, data(), plan())
    _, optimizer = ft.private(model, None, data(), plan())
    with pytest.raises(TypeError, match="one of torch's"):
        ft.private(model, optimizer, data(), plan())
    with pytest.raises(RoundError, match="cannot be added"):
        optimizer.add_param_group({"params": stranger.parameters()})


def test_there_are_as_many_rounds_as_planned_and_then_a_statement() -> None:
    model, loader, optimizer = opened(rounds=5)
    with pytest.raises(RoundError, match="nothing was released"):
        optimizer.finish()
    sizes = []
    for _ in range(loader.epochs):
        sizes.append(0)
        for inputs, targets in loader:
            criterion(model(inputs), targets).backward()
            optimizer.step()
            sizes[-1] += 1
    assert sizes == [4, 1]
    with pytest.raises(RoundError, match="5 rounds are"):
        iter(loader)
    kind = type(model)
    run = optimizer.finish()
    assert type(model) is nn.Sequential and kind is not nn.Sequential
    assert len(run.transcript) == 5
    with pytest.raises(RoundError, match="finished"):
        optimizer.finish()
    with pytest.raises(RoundError, match="finished"):
        iter(loader)


def halve_a_weight(model: Any) -> None:
    with torch.no_grad():
        model[0].weight /= 2


def look_again(model: Any) -> None:
    model(data()[0])


@pytest.mark.parametrize("after", [None, halve_a_weight, look_again])
def test_what_changes_after_the_last_round_is_said_or_refused(
    after: Callable[[Any], None] | None,
) -> None:
    """Other weights may follow from released ones; statistics of records do not."""
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, momentum=0.5), nn.Linear(4, 2))
    mechanism = ft.Mechanism(ft.Rounds(1.0, 2, ft.Poisson(0.25), "group"))
    grouped = ft.Plan(mechanism, EXAMPLES, 1e-5, groups=4)
    loader, optimizer = ft.private(model, None, data(), grouped)
    for inputs, targets in loader:
        criterion(model(inputs), targets).backward()
        optimizer.step()
    if after is not None:
        after(model)
    if after is look_again:
        with pytest.raises(RoundError, match="running_mean"):
            optimizer.finish()
        model[1].reset_running_stats()
    run = optimizer.finish()
    assert ("after the last round" in run.statement.to_markdown()) == (after is halve_a_weight)
    verify(run.statement, run.plan)


@pytest.mark.parametrize("late", [False, True])
def test_a_run_that_could_not_be_written_is_finished_elsewhere(
    late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "file").touch()
    url = f"sqlite:///{tmp_path / 'books.db'}"
    book = create(url, actor="owner")
    book.open_account(Account("records", ft.Budget(50.0, 1e-4)))
    model = network()
    averaged = plan(3, averaging=ft.Averaging("tail"))
    ledger = ft.Ledger(url, "records")
    loader, optimizer = ft.private(model, None, data(), averaged, ledger=ledger)
    for inputs, targets in loader:
        criterion(model(inputs), targets).backward()
        optimizer.step()
    with monkeypatch.context() as patched:
        if late:
            patched.setattr("forethought.training.folder.RunFolder.save_results", full)
        with pytest.raises(OSError, match="No space" if late else "first"):
            optimizer.finish(tmp_path / ("first" if late else "file/first"))
    with pytest.raises(RoundError, match="no further rounds"):
        next(iter(loader))
    run = optimizer.finish(tmp_path / "second")
    (held,) = book.reservations("records")
    assert (held.status, held.released) == ("settled", 3)
    assert "after the last round" not in run.statement.to_markdown()
    verify(ft.Statement.load(tmp_path / "second" / "statement.json"), averaged)
    with pytest.raises(RoundError, match="finished"):
        optimizer.finish(tmp_path / "third")


@pytest.mark.parametrize(("by", "named"), [(4, True), (1, False), (2.0, False)])
def test_a_loss_that_is_divided_by_a_number_of_pieces_is_named(by: Any, named: bool) -> None:
    model, loader, _ = opened()
    inputs, targets = next(iter(loader))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        (criterion(model(inputs), targets) / by).backward()
    assert ["divided by 4" in str(one.message) for one in told] == [True] * named


@pytest.mark.parametrize("where", ["before the release", "after it"])
def test_a_round_that_fails_ends_the_run_and_what_was_released_is_stated(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C inside a step: a beginning of the plan was released, and all of it counts."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    model, loader, optimizer = opened()
    second_loss(model, loader, optimizer)
    at = ("forethought.rounds.private_sum.PrivateSum.add", "torch.optim.SGD.step")
    with monkeypatch.context() as patched:
        patched.setattr(at[where == "after it"], interrupted)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
    assert type(model) is nn.Sequential
    for action in (optimizer.step, lambda: iter(loader)):
        with pytest.raises(RoundError, match="round 1 failed"):
            action()
    run = optimizer.finish()
    count = 1 + (where == "after it")
    assert len(run.transcript) == count
    assert f"stopped after {count} of 12 rounds" in run.statement.to_markdown()
    assert run.statement.mechanism == run.plan.mechanism


def test_a_first_round_that_fails_leaves_nothing_to_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model, loader, optimizer = opened()
    inputs, targets = next(iter(loader))
    criterion(model(inputs), targets).backward()
    with monkeypatch.context() as patched:
        patched.setattr("forethought.rounds.private_sum.PrivateSum.add", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            optimizer.step()
    with pytest.raises(RoundError, match="nothing was released"):
        optimizer.finish()


def test_a_model_is_in_one_loop_at_a_time() -> None:
    model, _, _ = opened()
    with pytest.raises(ValueError, match="another private loop"):
        ft.private(model, None, data(), plan())


def test_a_copy_or_a_file_of_the_model_is_of_its_own_class() -> None:
    model, loader, _ = opened()
    next(iter(loader))
    twin = copy.deepcopy(model)
    assert type(twin) is nn.Sequential
    kept = io.BytesIO()
    torch.save(model, kept)
    kept.seek(0)
    assert type(torch.load(kept, weights_only=False)) is nn.Sequential
    assert torch.equal(model(data()[0]), twin(data()[0]))  # tensors go through
    assert repr(model) == repr(twin)


def test_labels_and_features_that_do_not_fit_are_named_before_a_release() -> None:
    inputs, targets = data()
    model = network()
    loader, optimizer = ft.private(model, None, (inputs, targets * 2 - 1), plan())
    x, y = next(iter(loader))
    criterion(model(x), y).backward()
    with pytest.raises(ValueError, match="labels in data"):
        optimizer.step()
    assert optimizer.rounds_done == 0
    inputs[3] = float("nan")
    model = network()
    loader, optimizer = ft.private(model, None, (inputs, targets), plan())
    x, y = next(iter(loader))
    criterion(model(x), y).backward()
    with pytest.warns(ft.errors.NonFiniteRecordsWarning, match="1 of 120"):
        optimizer.step()


def test_persons_are_one_record_in_groups_only() -> None:
    inputs, targets = data()
    persons = np.arange(EXAMPLES) // 2
    records = ft.data.of_persons(inputs.numpy(), targets.numpy(), persons, records_per_person=2)
    budget = ft.Budget(3.0, 1e-5)
    model = network()
    one = ft.plan(data=records, model=model, budget=budget, epochs=2, person_as="contribution")
    with pytest.raises(ValueError, match='person_as="group"'):
        ft.private(model, None, records, one)
    rows = ft.plan(data=records, model=model, budget=budget, epochs=2, person_as="group")
    loader, optimizer = ft.private(model, None, records, rows)
    for x, y in loader:
        criterion(model(x), y).backward()
        optimizer.step()
    assert optimizer.finish().statement.group == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::forethought.errors.SlowGradientsWarning")
def test_a_function_inside_the_loss_keeps_nothing_of_the_records() -> None:
    """It sees each example by itself, as any loss does, and what it kept is put back."""
    kept: list[Any] = []

    class Spy(Turned):
        @staticmethod
        def forward(value: torch.Tensor) -> torch.Tensor:
            kept.append(value.tolist())
            return value.clone()

    model = network()
    loader, optimizer = ft.private(model, None, data(), plan(1, rate=0.1), **SEEDS)
    for inputs, targets in loader:
        (criterion(model(inputs), targets) + 0 * Spy.apply(targets.double())).backward()
        optimizer.step()
    assert kept == [] and optimizer.rounds_done == 1


def test_a_layer_that_begins_to_mix_examples_ends_the_run_unreleased() -> None:
    model = nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2).eval())
    loader, optimizer = ft.private(model, None, data(), plan())
    before, number = weights(model), 0
    with pytest.raises(ValueError, match="BatchNorm"):
        for inputs, targets in loader:
            model.train()
            criterion(model(inputs), targets).backward()
            optimizer.step()
            number += 1
    assert number == 0 and torch.equal(weights(model), before)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_rounds_to_nothing_is_one(fused: bool) -> None:
    """Torch's fused kernels, the default of transformers' Trainer, do not count their writes."""
    reseed(0)
    inputs, labels = randn(40, 5).to(torch.bfloat16), torch.arange(40) % 2
    model = nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 2)).to(torch.bfloat16)
    plan = ft.plan(examples=40, budget=ft.Budget(8.0, 1e-5), rounds=3, batch=8)
    steps = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0, fused=fused)
    loader, optimizer = ft.private(model, steps, (inputs, labels), plan)
    for x, y in loader:
        F.cross_entropy(model(x), y, reduction="none").backward()
        optimizer.step()
    assert optimizer.rounds_done > 0
