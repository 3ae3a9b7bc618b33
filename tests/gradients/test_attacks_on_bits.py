"""Records whose gradients turn on a last bit: one more of them moves a sum by no more than C.

A row of a product may have other bits where there are more rows, or at another place among them.
Where a loss has a kink, a last bit is a whole contribution. The records here are made for the
machine that runs the tests, from the bits that the product itself has at both places; where blocks
followed from the batch, they moved its sum by several C.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from forethought.gradients import SlowGradientsWarning, Term, Use, clipped_sum, sums
from forethought.gradients.batches import Blocks, planned
from forethought.gradients.vmap_mode import RULES
from forethought.rounds.contributions import Addition, DealtBatch, Gradients, example_gradients
from forethought.rounds.records import TensorRecords
from forethought.values.mechanism import FullBatch
from forethought.values.plan import Clip, Examples, Round

C = 1.0
Place = tuple[int, int]  # which row, of how many


def absolute(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.squeeze(-1) - targets).abs()


def at(model: nn.Linear, record: torch.Tensor, place: Place) -> float:
    row, rows = place
    x = torch.zeros(rows, model.in_features)
    x[row] = record
    with torch.no_grad():
        return float(model(x)[row, 0])


def crafted(here: Place, there: Place) -> tuple[nn.Linear, torch.Tensor, float]:
    """A model, a record, and a target between its outputs at two places."""
    draws = np.random.default_rng(here[1])
    best: tuple[float, nn.Linear, torch.Tensor, float] | None = None
    for width in (512, 123, 33):
        model = nn.Linear(width, 1, bias=False)
        model.weight.data = torch.from_numpy(draws.standard_normal((1, width))).float()
        for record in torch.from_numpy(draws.standard_normal((100, width))).float():
            one, other = at(model, record, here), at(model, record, there)
            if other > one and (best is None or (other - one) / abs(one) > best[0]):
                between = np.nextafter(np.float32(one), np.float32(np.inf))
                best = ((other - one) / abs(one), model, record, float(between))
    if best is None:
        pytest.skip("this machine's products have the same bits at both places")
    return best[1:]


def moved(before: tuple, after: tuple, model: nn.Module, micro_batch: int | None) -> float:
    """How far the sum of a round is from that of another, in units of C."""
    count = len(before[0])
    chosen = Round(
        0, 0, count, FullBatch(), Examples(), Clip(C), C, 1.0, 1.0, "gaussian", float(count)
    )
    how = Gradients(absolute, sums.flat, micro_batch)
    found = []
    for x, y in (before, after):
        ((name, weight),) = model.named_parameters()
        into = {name: torch.zeros_like(weight, dtype=torch.float64)}
        batch = DealtBatch(np.arange(len(x)), None, len(x))
        example_gradients(Addition(into, model, TensorRecords(x, y), batch, chosen, how))
        found.append(into[name])
    return float((found[1] - found[0]).norm()) / C


def records(record: torch.Tensor, target: float, count: int, places: range) -> tuple:
    y = torch.full((count,), 1e6)
    y[places] = target
    return record.expand(count, -1).clone(), y


@pytest.mark.parametrize("count", [19, 67, 259, 1027])
def test_a_record_more_in_one_call(count: int) -> None:
    model, record, target = crafted((count - 1, count), (count - 1, count + 1))
    every = records(record, target, count + 1, range(count - 3, count))
    assert moved((every[0][:-1], every[1][:-1]), every, model, None) <= 1.0


@pytest.mark.parametrize(("micro_batch", "count"), [(50, 1000), (5, 400)])
def test_a_record_more_in_front_of_micro_batches(micro_batch: int, count: int) -> None:
    model, record, target = crafted((micro_batch - 1, micro_batch), (0, micro_batch))
    every = records(record, target, count + 1, range(micro_batch, count + 1, micro_batch))
    assert moved((every[0][1:], every[1][1:]), every, model, micro_batch) <= 1.0


class Branching(nn.Module):
    """A linear model that does, for large inputs, what no example can do beside others."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x[..., 0].sum() > 1000):
            x = x + torch.func.grad(lambda v: (v * 0.0).sum())(torch.ones(()))
        return self.inner(x)


def test_one_example_that_cannot_run_beside_others_does_not_move_them() -> None:
    """The others would go one at a time because of it: with other bits than they had."""
    model, record, target = crafted((3, 64), (0, 1))
    x, y = records(record, target, 64, range(64))
    rare = torch.cat([x, record.new_full((1, record.numel()), 2000.0)]), torch.cat([y, y[:1]])
    with pytest.raises(ValueError, match="micro_batch=1"):
        moved((x, y), rare, Branching(model), None)
    assert moved((x, y), rare, Branching(model), 1) <= 1.0


class Writing(nn.Module):
    """A linear model that writes, for large inputs, into a tensor made for all examples at once."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x[..., 0].sum() > 1000):
            kept = torch.zeros(x.shape[-1])
            kept.add_(x.flatten())
        return self.inner(x)


def soft(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.squeeze(-1) - targets).tanh()


@pytest.mark.parametrize("fails", ["rule", "shared"])
def test_one_example_that_sends_all_another_way_does_not_move_them(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that fails, or a tensor shared by the examples: what no made-up example meets."""
    draws = np.random.default_rng(9)
    x = torch.from_numpy(draws.standard_normal((40, 7))).float()
    y, rare = torch.zeros(40), x.clone()
    rare[3] = 2000.0
    linear = nn.Linear(7, 1)
    model = Writing(linear) if fails == "shared" else nn.Sequential(linear, nn.LayerNorm(1))
    if fails == "rule":
        rule = RULES[F.linear]

        def gradients(use: Use) -> Iterator[tuple[str, Term]]:
            if float(use.saved["input"].max()) > 1000:
                raise RuntimeError("too large")
            yield from rule.gradients(use)

        monkeypatch.setitem(RULES, F.linear, replace(rule, gradients=gradients))
    used = planned(40, 6)
    clipped_sum(model, soft, x, y, C, blocks=used)
    with pytest.raises(ValueError, match="micro_batch=1"):
        clipped_sum(model, soft, rare, y, C, blocks=used)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowGradientsWarning)
        one = Blocks((1,))
        after, _ = clipped_sum(
            model, soft, torch.cat([rare[3:4], x]), y[:1].expand(41), C, blocks=one
        )
        alone, _ = clipped_sum(model, soft, rare[3:4], y[:1], C, blocks=one)
        before, _ = clipped_sum(model, soft, x, y, C, blocks=one)
    assert all(torch.equal(after[name] - before[name], alone[name]) for name in after)
