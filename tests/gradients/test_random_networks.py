"""Random small networks against autograd, one example at a time."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from drawn import randn, reseed
from forethought.gradients import SlowGradientsWarning, clipped_sum
from forethought.gradients.sums import CHARGE

B = 4


class Complex(nn.Module):
    """A complex weight from real parts, on the Fourier transform of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.Parameter(randn(6, 6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.ifft(torch.fft.fft(x) @ torch.view_as_complex(self.pairs)).real


class Words(nn.Module):
    """A table that is used for words, which follow from the numbers, and as an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 6, padding_idx=1)

    def forward(self, x: Tensor) -> Tensor:
        words = (x.detach()[..., 0] * 3).long().remainder(5)
        return x + (self.table(words) @ self.table.weight.t()) @ self.table.weight


class Again(nn.Module):
    """A linear layer that is computed again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layer, self.reentrant = nn.Linear(6, 6), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.layer, x, use_reentrant=self.reentrant)


class Net(nn.Module):
    """A chain of layers on (batch, channels, length) values, some used again at the end."""

    def __init__(self, plan: list[str], again: list[int], frozen: list[int]) -> None:
        super().__init__()
        channels, layers = 4, []
        for kind in plan:
            layers.append(self.layer(kind, channels))
        self.layers = nn.ModuleList(layers)
        self.alone = False
        self.plan, self.again = plan, [i for i in again if i < len(plan)]
        for i in frozen:
            if i < len(plan):
                self.layers[i].requires_grad_(False)

    @staticmethod
    def layer(kind: str, n: int) -> nn.Module:
        made: dict[str, nn.Module] = {
            "conv": nn.Conv1d(n, n, 3, padding=1),
            "strided": nn.Conv1d(n, n, 2, stride=1, padding="same", bias=False),
            "grouped": nn.Conv1d(n, n, 3, padding=2, dilation=2, groups=2),
            "transposed": nn.ConvTranspose1d(n, n, 3, padding=1),
            "linear": nn.Linear(6, 6),
            "channels": nn.Linear(n, n),
            "group": nn.GroupNorm(2, n),
            "layer": nn.LayerNorm([n, 6]),
            "instance": nn.InstanceNorm1d(n, affine=True),
            "rms": nn.RMSNorm(6),
            "prelu": nn.PReLU(n),
            "rnn": nn.GRU(n, n, batch_first=True),
            "attention": nn.MultiheadAttention(n, 2, batch_first=True),
            "complex": Complex(),
            "words": Words(),
            "again": Again(reentrant=False),
            "reentrant": Again(reentrant=True),
            "normalised": nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
        }
        return made[kind]

    def step(self, i: int, x: Tensor) -> Tensor:
        layer, kind = self.layers[i], self.plan[i]
        if kind in ("channels", "rnn", "attention"):
            y = x.transpose(1, 2)
            if kind == "rnn":
                y = layer(y)[0]
            elif kind == "attention":
                y = layer(y, y, y, need_weights=False)[0]
            else:
                y = layer(y)
            return y.transpose(1, 2)
        return layer(x)

    def forward(self, x: Tensor) -> Tensor:
        if self.alone and bool((x > 50).any()):  # a record of its own way, and all others alone
            ones = torch.eye(6).to(x).expand(len(x), 6, 6)
            x = torch.linalg.solve(ones, x.clamp(-3, 3).mT).mT
        for i in range(len(self.layers)):
            x = x + torch.tanh(self.step(i, x))
        for i in self.again:
            x = torch.tanh(self.step(i, x)) * x
        return x


KINDS = [
    "conv", "strided", "grouped", "transposed", "linear", "channels", "group", "layer", "instance",
    "rms", "prelu", "rnn", "attention", "complex", "words", "again", "reentrant", "normalised",
]  # fmt: skip


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1) - targets.unsqueeze(1)).square().mean(1)


networks = given(
    st.lists(st.sampled_from(KINDS), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), max_size=3),
    st.lists(st.integers(1, 4), max_size=2),
    st.integers(0, 2**31),
)


@pytest.mark.slow
@networks
@settings(max_examples=20, deadline=None)
def test_a_record_that_sends_all_alone_moves_no_other(
    plan: list[str], again: list[int], frozen: list[int], seed: int
) -> None:
    reseed(seed)
    model = Net(plan, again, frozen).double()
    model.alone = True
    x, y = randn(B, 4, 6).double(), randn(B).double()
    _, norms = clipped_sum(model, loss, x, y, 1.0)
    x[0] = 100.0
    with pytest.warns(SlowGradientsWarning):
        _, beside = clipped_sum(model, loss, x, y, 1.0)
    torch.testing.assert_close(beside[1:], norms[1:], rtol=1e-6, atol=1e-12)


@pytest.mark.slow
@networks
@settings(max_examples=60, deadline=None)
def test_random_networks_equal_one_example_at_a_time(
    plan: list[str], again: list[int], frozen: list[int], seed: int
) -> None:
    reseed(seed)
    model = Net(plan, again, frozen).double()
    x, y = randn(B, 4, 6).double(), randn(B).double()
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    rows = []
    for i in range(B):
        model.zero_grad()
        # Torch's reentrant checkpoint needs an input with a gradient, and no autograd.grad.
        loss(model(x[i : i + 1].clone().requires_grad_()), y[i : i + 1]).sum().backward()
        found = [torch.zeros_like(p) if p.grad is None else p.grad for _, p in trained]
        rows.append(torch.cat([g.flatten() for g in found]))
    model.zero_grad()
    norms = torch.stack(rows).norm(dim=1)
    clip_norm = float(norms.median())
    bound = clip_norm * (1 - CHARGE)
    wanted = sum(row * min(1.0, bound / float(n)) for row, n in zip(rows, norms, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowGradientsWarning)
        gradients, got = clipped_sum(model, loss, x, y, clip_norm)
    torch.testing.assert_close(got, norms, rtol=1e-6, atol=0)
    found = torch.cat([gradients[n].flatten() for n, _ in trained])
    assert float((found - wanted).norm()) <= 1e-6 * float(wanted.norm())
