"""Hostile numbers in every kind of layer: one record's must neither exceed C nor reach another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from adversaries.attack import Run
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from zoo.oracle import CHARGED, difference, length

from drawn import randn, reseed
from forethought.gradients import clipped_sum

T, D = 6, 8
LAYERS: dict[str, Callable[[], nn.Module]] = {}


def layer(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Add a model of (B, T, D) → (B, anything)."""
    LAYERS[make.__name__] = make
    return make


def through(body: nn.Module, forward: Callable[[nn.Module, Tensor], Tensor]) -> nn.Module:
    return Run(
        lambda self, x: self.head(forward(self.body, x).flatten(1)),
        body=body,
        head=nn.LazyLinear(3),
    )


@layer
def linear() -> nn.Module:
    return through(nn.Linear(D, D), lambda body, x: torch.tanh(body(x)))


@layer
def linear_without_squashing() -> nn.Module:
    return through(nn.Linear(D, 64), lambda body, x: body(x))


@layer
def convolution() -> nn.Module:
    return through(nn.Conv1d(T, 16, 3, padding=1), lambda body, x: F.relu(body(x)))


@layer
def grouped_convolution() -> nn.Module:
    return through(nn.Conv2d(1, 4, 3, 2, groups=1), lambda body, x: body(x.unsqueeze(1)))


@layer
def transposed_convolution() -> nn.Module:
    return through(nn.ConvTranspose1d(T, 4, 3, 2), lambda body, x: body(x))


@layer
def layer_norm() -> nn.Module:
    return through(nn.LayerNorm(D), lambda body, x: body(x))


@layer
def group_norm() -> nn.Module:
    return through(nn.GroupNorm(2, T), lambda body, x: body(x))


@layer
def embedding() -> nn.Module:
    def forward(body: nn.Module, x: Tensor) -> Tensor:
        return body(x.nan_to_num().clamp(-3, 3).long() + 3) * x.mean(2, keepdim=True).unsqueeze(3)

    return through(nn.Embedding(7, 4), forward)


@layer
def long_short_term_memory() -> nn.Module:
    return through(nn.LSTM(D, 5, batch_first=True), lambda body, x: body(x)[0])


@layer
def gated_recurrent_unit() -> nn.Module:
    return through(nn.GRU(D, 5, batch_first=True, bidirectional=True), lambda body, x: body(x)[0])


@layer
def attention() -> nn.Module:
    def forward(body: nn.Module, x: Tensor) -> Tensor:
        return body(x, x, x, need_weights=False)[0]

    return through(nn.MultiheadAttention(D, 2, batch_first=True), forward)


@layer
def encoder_layer() -> nn.Module:
    body = nn.TransformerEncoderLayer(D, 2, 16, 0.0, batch_first=True)
    return through(body, lambda body, x: body(x))


@layer
def weight_norm() -> nn.Module:
    body = torch.nn.utils.parametrizations.weight_norm(nn.Linear(D, D))
    return through(body, lambda body, x: body(x))


@layer
def exponential_of_a_parameter() -> nn.Module:
    return Run(lambda self, x: (x @ self.log.exp()).flatten(1), log=randn(D, D) - 1)


@layer
def tied_and_transposed() -> nn.Module:
    def forward(self: Run, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(F.linear(x, self.weight)), self.weight.t()).flatten(1)

    return Run(forward, weight=randn(5, D))


@layer
def used_with_both_signs() -> nn.Module:
    """Two uses of one weight that cancel almost: the norm is of the sum, not of the parts."""

    def forward(self: Run, x: Tensor) -> Tensor:
        other = F.linear(x * (1 + 2e-7), self.weight)
        return (F.linear(x, self.weight) - other).flatten(1) + 1e-3 * self.head(x).flatten(1)

    return Run(forward, weight=randn(32, D), head=nn.Linear(D, 32))


@layer
def scale_of_every_element() -> nn.Module:
    return Run(lambda self, x: (x * self.scale + self.shift).flatten(1), scale=torch.ones(T, 1),
               shift=torch.zeros(D))  # fmt: skip


@layer
def bilinear() -> nn.Module:
    return through(nn.Bilinear(D, D, 4), lambda body, x: body(x, x.flip(1)))


@layer
def checkpointed() -> nn.Module:
    def forward(body: nn.Module, x: Tensor) -> Tensor:
        return checkpoint(lambda h: torch.tanh(body(h)), x, use_reentrant=False)

    return through(nn.Linear(D, D), forward)


@layer
def branching() -> nn.Module:
    def forward(body: nn.Module, x: Tensor) -> Tensor:
        return body(x) if bool(x.sum() > 0) else body(x * 2)

    return through(nn.Linear(D, D), forward)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


@layer
def one_at_a_time() -> nn.Module:
    return through(nn.Linear(D, D), lambda body, x: Doubled.apply(body(x)))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    weights = torch.cos(torch.arange(outputs.shape[1], dtype=outputs.dtype))
    return (outputs * weights).sum(1) + 0.01 * outputs.square().sum(1)


def ready(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    reseed(4)
    model = LAYERS[name]()
    x = randn(5, T, D)
    model(x)  # lazy layers
    return model, x, torch.zeros(5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize("name", LAYERS)
def test_a_poisoned_record_reaches_no_other(name: str, poison: float) -> None:
    model, x, y = ready(name)
    clip_norm = 0.5
    rest = [0, 1, 3, 4]
    less, norms = clipped_sum(model, loss, x[rest], y[rest], clip_norm)
    bad = x.clone()
    bad[2, 1, 3] = poison
    got, seen = clipped_sum(model, loss, bad, y, clip_norm)
    assert all(bool(torch.isfinite(value).all()) for value in got.values())
    torch.testing.assert_close(seen[rest], norms, rtol=1e-4, atol=1e-7)
    allowed = clip_norm if bool(torch.isfinite(seen[2])) else 0.0
    assert difference(got, less) <= allowed + 1e-5


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYERS)
def test_one_contribution_never_exceeds_c(name: str) -> None:
    model, x, y = ready(name)
    for scale in (1e-30, 1e-12, 1.0, 1e6, 1e12, 1e18, 1e30):
        for clip_norm in (1e-12, 1e-4, 1.0, 1e6):
            for record in (0, 3):
                one = slice(record, record + 1)
                got, norms = clipped_sum(model, loss, x[one] * scale, y[one], clip_norm)
                assert length(got) <= clip_norm, (scale, clip_norm)
                # Where nothing cancels or overflows, no more is taken away than must be.
                if scale == 1.0 and name != "used_with_both_signs":
                    least = min(clip_norm, float(norms[0]))
                    assert length(got) >= least * (1 - CHARGED)


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LAYERS)
def test_a_norm_is_never_below_the_gradient_that_leaves(name: str) -> None:
    """With C just above the norm reported nothing is clipped, so the sum is the gradient."""
    model, x, y = ready(name)
    for scale in (1e-6, 1.0, 1e3, 1e8):
        for record in range(3):
            one = slice(record, record + 1)
            _, norms = clipped_sum(model, loss, x[one] * scale, y[one], 1.0)
            if not 0 < float(norms[0]) < math.inf:
                continue
            clip_norm = float(norms[0]) * 1.001
            got, _ = clipped_sum(model, loss, x[one] * scale, y[one], clip_norm)
            assert length(got) <= clip_norm
