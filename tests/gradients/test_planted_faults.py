"""Faults planted in the engine: the comparison with one example at a time must catch each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from adversaries import test_backward, test_batching_rules, test_state
from adversaries.attack import withstand
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import oracle
from zoo.oracle import assert_isolated, compare

from drawn import randn, reseed
from forethought.gradients import boundary, clipped_sum, sums, vmap_mode
from forethought.gradients.boundary import ExternalState, ModuleState


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


class Block(nn.Module):
    """Every kind of ruled layer, (B, 4, 8) → 3 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.group = nn.GroupNorm(2, 4)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.memory = nn.LSTM(8, 6, batch_first=True)
        self.matrix = nn.Parameter(randn(6, 6))
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.table(x.abs().long().clamp(max=8)).mean(2)
        x = self.group(self.norm(self.conv(x)))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head((self.memory(x)[0] @ self.matrix).flatten(1))


def subject() -> tuple[nn.Module, Tensor, Tensor]:
    reseed(0)
    return Block(), randn(4, 4, 8), torch.tensor([0, 1, 2, 1])


@contextmanager
def caught() -> Iterator[None]:
    with pytest.raises(AssertionError):
        yield


def test_without_a_fault_nothing_is_caught() -> None:
    model, x, y = subject()
    compare(model, loss, x, y, wide=True)
    assert_isolated(model, loss, x, y)


@pytest.mark.parametrize(
    "name", ["linear", "matmul", "embedding", "layer_norm", "group_norm", "conv1d"]
)
def test_a_rule_that_is_off_by_half_a_thousandth(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, y = subject()
    rules = {f: rule for f, rule in vmap_mode.RULES.items() if rule.name == name}
    own = next(iter(rules.values())).gradients

    def off(use: Any) -> Any:
        return own(dataclasses.replace(use, gradient=use.gradient * 1.0005))

    for function, rule in rules.items():
        monkeypatch.setitem(vmap_mode.RULES, function, dataclasses.replace(rule, gradients=off))
    with caught():
        compare(model.double(), loss, x.double(), y, 1e-6)


def test_sums_that_are_off_by_half_a_thousandth_in_one_tensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x, y = subject()

    def off(*args: Any, **kwargs: Any) -> Any:
        got, norms = clipped_sum(*args, **kwargs)
        got["norm.bias"] = got["norm.bias"] * 1.0005
        return got, norms

    monkeypatch.setattr(oracle, "clipped_sum", off)
    with caught():
        compare(model, loss, x, y, wide=True)


def test_a_contribution_that_is_cut_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = subject()
    own = sums.clip_and_sum

    def late(terms: Any, trained: Any, bound: float, *rest: Any) -> Any:
        return own(terms, trained, bound * 1.05, *rest)

    monkeypatch.setattr("forethought.gradients.clipped.clip_and_sum", late)
    with caught():
        compare(model, loss, x, y, wide=True)


def test_a_saved_value_of_the_next_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong vmap rule: the gradient of example b meets the input of b + 1."""
    model, x, y = subject()
    own = vmap_mode.in_front
    monkeypatch.setattr(vmap_mode, "in_front", lambda *given: own(*given).roll(1, 0))
    with caught():
        compare(model, loss, x, y, wide=True)


def test_a_whole_batch_function_that_mixes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, y = subject()
    function = F.scaled_dot_product_attention
    own = vmap_mode.PHYSICAL[function]

    def mixing(lanes: Any, *args: Any, **kwargs: Any) -> Any:
        result = own(lanes, *args, **kwargs)
        whole, dim = boundary.physical(result)
        with boundary.outside():
            whole = whole + 0.01 * whole.mean(dim, keepdim=True)
        return boundary.lane(whole, dim, lanes.level)

    monkeypatch.setitem(vmap_mode.PHYSICAL, function, mixing)
    with caught():
        compare(model, loss, x, y, wide=True)
    with caught():
        assert_isolated(model.double(), loss, x.double(), y, scale=30.0, rtol=1e-6)


def test_state_kept_across_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModuleState, "restore", lambda self: None)
    monkeypatch.setattr(ExternalState, "restore", lambda self: None)
    for name in ("number_in_an_attribute", "number_in_an_object", "number_in_a_closure"):
        with caught():
            withstand(test_state.attack[name])


def test_backward_hooks_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vmap_mode, "hooked", lambda *_, **__: None)
    with caught():
        withstand(test_backward.attack["hook_of_a_parameter"])


def test_hooks_on_saved_tensors_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary, "_refuse_saving_hooks", lambda message: None)
    with caught():
        withstand(test_backward.attack["hooks_on_saved_tensors"])


def test_a_vmap_rule_of_the_users_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vmap_mode, "call", lambda lanes, kind, args, own: own(kind, *args))
    with caught():
        withstand(test_backward.attack["own_function_with_a_mixing_vmap_rule"])


def test_a_batching_rule_of_torch_taken_at_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (torch.roll, Tensor.roll):
        for table in (vmap_mode.HANDLERS, vmap_mode.ALWAYS, vmap_mode.PHYSICAL):
            monkeypatch.delitem(table, function, raising=False)
    with caught():
        withstand(test_batching_rules.attack["rolling_a_number"])
