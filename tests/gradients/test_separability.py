"""The trusted base, row by row: one example is changed, all other rows stay, bit for bit."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drawn import randint, randn, reseed
from forethought.gradients import Dense, Outer, Term, Use, clipped_sum
from forethought.gradients.batches import LaneBatch
from forethought.gradients.passes import contributions
from forethought.gradients.vmap_mode import RULES

# Sixteen and more: for fewer rows a matrix product takes another kernel.
B, CHANGED = 16, 5


class Run(nn.Module):
    """A model from a function of (module, x), with named submodules and parameters."""

    def __init__(self, forward: Any, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)
        self.function = forward

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def attention(m: Any, x: Tensor) -> Tensor:
    return m.layer(x).mean(1)


def recurrent(m: Any, x: Tensor) -> Tensor:
    return m.layer(x)[0][:, -1]


def looked_up(m: Any, x: Tensor) -> Tensor:
    y = F.embedding(torch.arange(6), m.table) + x
    return m.layer(y).mean(1)


def normed(m: Any, x: Tensor) -> Tensor:
    return F.linear(x, m.weight / m.weight.norm(dim=1, keepdim=True)).mean(1)


def branched(m: Any, x: Tensor) -> Tensor:
    return m.layer(x).mean(1) if bool(x.isfinite().all()) else m.layer(x * 2).mean(1)


def masked(m: Any, x: Tensor) -> Tensor:
    return m.layer(x)[(x.sum(2) > -1e9)].mean(0, keepdim=True)


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * 3 * x.square()


def own_function(m: Any, x: Tensor) -> Tensor:
    return m.head(_Cube.apply(m.layer(x))).mean(1)


def sequence() -> Tensor:
    return randn(B, 6, 8)


CASES: dict[str, Any] = {
    "linear": (lambda: nn.Sequential(nn.Linear(8, 9), nn.GELU(), nn.Linear(9, 3)), (B, 8)),
    "linear over time": (
        lambda: nn.Sequential(nn.Linear(8, 9), nn.Tanh(), nn.Flatten(), nn.Linear(54, 3)),
        (B, 6, 8),
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.GroupNorm(2, 16),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 16, 3, groups=4),
            nn.ConvTranspose2d(16, 4, 2, stride=2),
            nn.Flatten(),
            nn.Linear(576, 3),
        ),
        (B, 3, 8, 8),
    ),
    "normalisation": (
        lambda: nn.Sequential(
            nn.LayerNorm(8), nn.InstanceNorm1d(6, affine=True), nn.RMSNorm(8), nn.PReLU(6),
            nn.BatchNorm1d(6).eval(), nn.Flatten(), nn.Linear(48, 3),
        ),
        (B, 6, 8),
    ),
    "attention": (
        lambda: Run(attention, layer=nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)),
        (B, 6, 8),
    ),
    "lstm": (lambda: Run(recurrent, layer=nn.LSTM(8, 5, 2, batch_first=True)), (B, 6, 8)),
    "gru": (lambda: Run(recurrent, layer=nn.GRU(8, 5, batch_first=True)), (B, 6, 8)),
    "shared look-up": (
        lambda: Run(looked_up, table=randn(40, 8), layer=nn.Linear(8, 3)),
        (B, 6, 8),
    ),
    "derived weight": (lambda: Run(normed, weight=randn(3, 8)), (B, 6, 8)),
    "branch": (lambda: Run(branched, layer=nn.Linear(8, 3)), (B, 6, 8)),
    "mask": (lambda: Run(masked, layer=nn.Linear(8, 3)), (B, 6, 8)),
    "own function": (
        lambda: Run(own_function, layer=nn.Linear(8, 5), head=nn.Linear(5, 3)),
        (B, 6, 8),
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(8, 9), nn.Dropout(0.4), nn.Linear(9, 3)),
        (B, 8),
    ),
}  # fmt: skip


def classify(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs[:, :3], targets, reduction="none")


@pytest.mark.parametrize("name", CASES)
def test_other_rows_stay_bit_for_bit(name: str) -> None:
    reseed(0)
    make, shape = CASES[name]
    model, x, y = make(), randn(shape), randint(0, 3, (B,))
    other = x.clone()
    other[CHANGED] = 100 * randn(shape[1:])
    trained = dict(model.named_parameters())
    found = []
    for inputs in (x, other):
        reseed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("error", category=UserWarning)
            terms = contributions(model, classify, LaneBatch(inputs, y), trained)
        found.append((terms, {name: term.rows() for name, term in terms.items()}))
    keep = [i for i in range(B) if i != CHANGED]
    changed = 0
    for parameter in trained:
        (terms, rows), (others, moved) = found
        assert torch.equal(rows[parameter][keep], moved[parameter][keep])
        squares = (t[parameter].squared_norms() for t in (terms, others))
        one, two = (values[keep] for values in squares)
        assert torch.equal(one, two)
        changed += not torch.equal(rows[parameter][CHANGED], moved[parameter][CHANGED])
    assert changed  # otherwise nothing was tested


def _mixes(use: Use) -> Iterator[tuple[str, Term]]:
    gradient = use.gradient + 1e-6 * use.gradient.mean(0)
    yield "weight", Outer([(gradient.flatten(1, -2), use.saved["input"].flatten(1, -2))])
    yield "bias", Dense(use.gradient.flatten(1, -2).sum(1))


def test_a_rule_that_mixes_a_millionth_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    known = RULES[F.linear]
    monkeypatch.setitem(RULES, F.linear, replace(known, gradients=_mixes))
    with pytest.raises(AssertionError):
        test_other_rows_stay_bit_for_bit("attention")


@pytest.mark.parametrize("name", CASES)
def test_the_released_sum_moves_by_twice_the_bound_at_most(name: str) -> None:
    reseed(0)
    make, shape = CASES[name]
    model, x, y = make(), randn(shape), randint(0, 3, (B,))
    other = x.clone()
    other[CHANGED] = 100 * randn(shape[1:])
    sums = []
    for inputs in (x, other):
        reseed(1)
        found, _ = clipped_sum(model, classify, inputs, y, 0.01)
        sums.append(torch.cat([value.flatten() for value in found.values()]))
    assert float((sums[0] - sums[1]).norm()) <= 2 * 0.01
