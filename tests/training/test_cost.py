"""What training will take, before it is begun: beside what it takes."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import forethought as ft
from drawn import randn, reseed, stream
from forethought.gradients import SlowGradientsWarning, clipped
from forethought.gradients.batches import Blocks
from forethought.jobs import train as jobs_train
from forethought.training import cost as costs
from forethought.training.cost import peak

COUNT, FEATURES = 64, 40


class Deep(nn.Module):
    """Six layers that are alike between two that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 80)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(80, 80), nn.Tanh(), nn.LayerNorm(80)) for _ in range(6)
        )
        self.last = nn.Linear(80, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        for layer in self.layers:
            y = y + layer(y)
        return self.last(y)


def network() -> nn.Module:
    reseed(1)
    return Deep()


def table() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = randn(COUNT, FEATURES, generator=stream(0))
    return inputs, (inputs[:, 0] > 0).long()


def planned(**more: object) -> ft.Plan:
    given = {"examples": COUNT, "sampling": "full-batch", "rounds": 3, "optimizer": "adam"}
    return ft.plan(noise_multiplier=1.0, delta=1e-5, learning_rate=1e-3, **{**given, **more})


def wide() -> nn.Module:
    """Few weights and many values an example."""
    reseed(1)
    layers = [nn.Sequential(nn.Conv1d(32, 32, 3, padding=1), nn.Tanh()) for _ in range(4)]
    first = nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 32, 3, padding=1)
    return nn.Sequential(*first, nn.Sequential(*layers), nn.Flatten(), nn.Linear(32 * FEATURES, 3))


def taken(size: int, make: Callable[[], nn.Module] = network, **how: Any) -> float:
    """The allocator's peak while the real model trains on the real records."""
    model, data = make(), table()
    held = sum(p.nbytes for p in model.parameters())
    return held + peak(lambda: ft.train(model, data, planned(), micro_batch=size, **how))


def test_the_peak_is_that_of_the_tensors_that_lived_together() -> None:
    def run() -> None:
        first = torch.empty(1000, dtype=torch.float64)
        second = torch.empty(500, dtype=torch.float64)
        del first
        torch.empty(100, dtype=torch.float64)
        del second

    assert peak(run) == 12_000


@pytest.mark.slow
@pytest.mark.parametrize("size", [16, 64])
def test_memory_is_within_15_percent_of_what_training_takes(size: int) -> None:
    found = ft.cost(network(), table(), planned(), micro_batch=size)
    assert found.weights + found.each * size == pytest.approx(taken(size), rel=0.15)
    assert found.step > 0 and found.seconds == pytest.approx(3 * found.step)
    # 64 examples at least (tests/conftest.py) at each of two weights or one, three times each.
    assert found.tried == {16: 16 + 4 * 3 * 16, 64: 64 + 2 * 3 * 64}[size]


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True])
def test_what_an_example_takes_does_not_hang_on_the_micro_batch_asked(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 4 and 8 take the same, and a step of the weights may take more than either."""
    if large:
        monkeypatch.setattr(costs, "LARGE", 0.0)
    slope = (taken(64, wide) - taken(32, wide)) / 32
    for size in (4, 24):  # blocks of 4 and of 16
        found = ft.cost(wide(), table(), planned(), micro_batch=size)
        assert found.each == pytest.approx(slope, rel=0.15)
        wanted = taken(size, wide, diagnostics=False)
        assert found.memory - found.program == pytest.approx(wanted, rel=0.15)


@pytest.mark.slow
def test_a_processor_that_cuts_blocks_short_takes_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipped, "MOST_NUMBERS", 64 * 32 * FEATURES)  # of 64 examples
    data = tuple(torch.cat([part] * 3) for part in table())
    plan, model = planned(examples=3 * COUNT), wide()
    found = ft.cost(model, data, plan)
    assert found.micro_batch == 192 and found.block == 64
    assert found.tried == 64 + 2 * (2 * 64 + 16 + 32 + 48 + 64)
    held = sum(p.nbytes for p in model.parameters())
    wanted = held + peak(lambda: ft.train(model, data, plan, diagnostics=False))
    assert found.memory - found.program == pytest.approx(wanted, rel=0.15)


class Numbered(nn.Module):
    """Layers that are alike, taken by their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(FEATURES, FEATURES) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in range(3):
            x = self.layers[number](x)
        return x


@pytest.mark.slow
def test_a_large_model_that_does_not_run_with_fewer_layers_is_tried_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = ft.cost(Numbered(), table(), planned(), micro_batch=2)
    monkeypatch.setattr(costs, "LARGE", 0.0)
    found = ft.cost(Numbered(), table(), planned(), micro_batch=2)
    assert found.weights == pytest.approx(whole.weights, rel=0.15)


def test_without_weights_it_is_told_how_to_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "LARGE", 0.0)
    with pytest.raises(ValueError, match="repeated layers"):
        ft.cost(Numbered().to("meta"), table(), planned(), micro_batch=2)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["here", "meta"])
def test_a_large_model_is_counted_up_from_one_and_two_layers(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(costs, "LARGE", 0.0)
    model = network()
    before = copy.deepcopy(model.state_dict())
    if place == "meta":
        model = model.to("meta")
    found = ft.cost(model, [(torch.zeros(FEATURES), 0)] * COUNT, planned(), micro_batch=32)
    assert found.weights + found.each * 32 == pytest.approx(taken(32), rel=0.15)
    assert "s a round here" in found.text()
    if place == "here":
        assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


@pytest.mark.slow
def test_small_blocks_that_go_another_way_are_not_what_the_cost_is_read_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = []

    def probed(blocks: Blocks, *rest: Any) -> Blocks:
        """As on a processor whose short products have other bits at another place."""
        sizes.append(blocks.sizes[-1])
        if sizes[-1] >= 12:
            return blocks
        warnings.warn("one example at a time", SlowGradientsWarning, stacklevel=2)
        return Blocks((1,))

    monkeypatch.setattr(clipped, "probed", probed)
    found = ft.cost(network(), table(), planned(), micro_batch=64)
    assert {4, 8} <= set(sizes)  # they were tried
    assert found.weights + found.each * 64 == pytest.approx(taken(64), rel=0.15)


def test_what_fits_follows_from_the_line() -> None:
    one = costs.Cost(8e9, 1e8, 1e9, 5e8, 16, 100, 64.0, 1.0, 0.5)
    assert one.memory == 5e8 + 8e9 + 16e8
    assert one.largest(one.memory) == 16 and one.largest(one.memory - 1) == 15
    assert one.step == 33.0 and one.seconds == 3300.0
    assert one.largest(8e9) == 0 and one.shards(8e9) == 2
    assert one.shards(one.memory) == 1 and one.shards(2.4e9) is None
    there = replace(one, program=0.0)
    assert there.largest(5e9, 4) == 10  # (5 − 8/4 − 2) GB in examples of 0.1 GB
    assert f"micro_batch up to {there.largest(0.9 * 80e9):,}" in one.text(gpu_memory=80)
    assert "4 of them" in one.text(gpu_memory=5) and "does not fit" in one.text(gpu_memory=2)


def test_small_blocks_take_no_less_than_a_step_of_the_weights() -> None:
    one = costs.Cost(8e9, 1e8, 1e9, 5e8, 24, 100, 64.0, 1.0, 0.5, least=9e9, block=16)
    assert one.memory == 5e8 + 9.6e9
    assert replace(one, block=4).memory == 5e8 + 9e9
    assert one.largest(9.4e9) == 0 < one.largest(9.5e9) == 10


@pytest.mark.parametrize("memory", [float("inf"), float("nan"), "much"])
def test_memory_that_is_no_number_of_bytes_is_told(memory: Any) -> None:
    one = costs.Cost(8e9, 1e8, 1e9, 5e8, 16, 100, 64.0, 1.0, 0.5)
    for asked in (one.largest, one.shards, one.text):
        with pytest.raises((TypeError, ValueError), match="memory must be"):
            asked(memory)
    with pytest.raises(ValueError, match="gpu_memory"):
        one.text(-5.0)
    with pytest.raises(ValueError, match="shards"):
        one.largest(1e9, shards=0)


def test_a_model_that_cannot_train_is_refused_as_training_does() -> None:
    with pytest.raises(ValueError, match="nothing to train"):
        ft.cost(network().requires_grad_(False), table(), planned())
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        ft.cost("network", table(), planned())  # type: ignore[arg-type]
    inputs, targets = table()
    people = ft.data.of_persons(inputs.numpy(), targets.numpy(), [i // 2 for i in range(COUNT)], 2)
    own = ft.plan(data=people, noise_multiplier=1.0, delta=1e-5, rounds=2, batch=8,
                  person_as="contribution")  # fmt: skip
    for data, plan in (table(), planned()), (people, own):
        for door in ft.cost, ft.train:
            with pytest.raises(TypeError, match="loss must be"):
                door(network(), data, plan, loss=3)  # type: ignore[arg-type]


def test_an_example_that_takes_nothing_fits_as_often_as_there_is_room() -> None:
    one = costs.Cost(8e9, 0.0, 1e9, 0.0, 16, 100, 64.0, 1.0, 0.5)
    assert one.largest(7e9) == 0 < one.largest(9e9)
    assert one.shards(9e9) == 1 and one.shards(1e9) is None
    assert "it fits" in one.text(gpu_memory=80)


@pytest.mark.slow
def test_quantised_weights_are_counted_and_a_model_without_copies_is_told() -> None:
    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.kept = nn.Linear(FEATURES, 3), threading.Lock()
            packed = torch.ones(FEATURES, dtype=torch.uint8)
            self.scale = nn.Parameter(packed, requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(x * self.scale)

    model = Quantised()
    with pytest.raises(ValueError, match="cannot be copied"):
        ft.cost(model, table(), planned())
    model.kept = None
    assert ft.cost(model, table(), planned()).weights > 0


def test_a_plan_is_made_where_its_cost_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object, **more: object) -> None:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(jobs_train, "cost", full)
    run = SimpleNamespace(micro_batch=None)
    loaded: Any = SimpleNamespace(request=SimpleNamespace(job=SimpleNamespace(run=run)))
    loaded.model = loaded.loss = None
    loaded.dataset = SimpleNamespace(records=None)
    assert jobs_train.cost_of(loaded, planned()) is None
    with pytest.raises(RuntimeError, match="allocate"):
        jobs_train.cost_of(loaded, planned(), required=True)


@pytest.mark.slow
def test_plans_of_other_units_are_refused_or_arranged() -> None:
    with pytest.raises(ValueError, match="clip groups"):
        ft.cost(network(), table(), planned(clipping="group", groups=2))
    inputs, targets = table()
    people = ft.data.of_persons(inputs.numpy(), targets.numpy(), [i // 2 for i in range(COUNT)], 2)
    own = ft.plan(data=people, noise_multiplier=1.0, delta=1e-5, rounds=2, sampling="full-batch",
                  person_as="contribution", model=network)  # fmt: skip
    assert ft.cost(network(), people, own, micro_batch=8).each > 0


@pytest.mark.slow
def test_training_after_a_trial_compares_as_many_examples_as_before() -> None:
    clipped.COMPARED.set(256)
    costs.cost(network(), table(), planned())
    assert clipped.COMPARED.get() == 256


@pytest.mark.slow
def test_a_trial_leaves_what_torch_draws_next_as_it_was() -> None:
    model, before = network(), torch.get_rng_state()
    ft.cost(model, table(), planned())
    assert torch.equal(torch.get_rng_state(), before)
