"""One linear layer takes the direct way, and the result is that of one example at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from forethought.gradients import clipped_sum, direct


def cross_entropy(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


def one_at_a_time(model, loss, inputs, targets, clip_norm):
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(p) for name, p in trained.items()}
    norms = []
    for i in range(len(inputs)):
        value = loss(model(inputs[i : i + 1]), targets[i : i + 1]).sum()
        found = torch.autograd.grad(value, tuple(trained.values()))
        norm = torch.sqrt(sum(g.square().sum() for g in found))
        norms.append(norm)
        for name, gradient in zip(trained, found, strict=True):
            sums[name] += gradient * min(1.0, clip_norm / float(norm))
    return sums, torch.stack(norms)


@pytest.fixture
def calls(monkeypatch):
    """How often the direct way gave an answer."""
    answered = []
    terms = direct.terms

    def counted(*arguments):
        found = terms(*arguments)
        answered.append(found is not None)
        return found

    monkeypatch.setattr(direct, "terms", counted)
    return answered


def agree(model, loss, inputs, targets, clip_norm=0.7):
    for _ in range(2):  # the first call surveys
        sums, norms = clipped_sum(model, loss, inputs, targets, clip_norm)
    expected, true_norms = one_at_a_time(model, loss, inputs, targets, clip_norm)
    assert sums.keys() == expected.keys()
    torch.testing.assert_close(norms, true_norms, rtol=1e-6, atol=1e-12)
    for name in sums:
        torch.testing.assert_close(sums[name], expected[name], rtol=1e-5, atol=1e-12)


def data(*shape, classes=3, examples=12):
    torch.manual_seed(0)
    return torch.randn(examples, *shape, dtype=torch.float64), torch.arange(examples) % classes


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer(calls, bias):
    agree(nn.Linear(5, 3, bias=bias).double(), cross_entropy, *data(5))
    assert any(calls)


def test_a_flattened_linear_layer(calls):
    agree(nn.Sequential(nn.Flatten(), nn.Linear(20, 3)).double(), cross_entropy, *data(1, 4, 5))
    assert any(calls)


def test_a_frozen_weight_is_left_out(calls):
    model = nn.Linear(5, 3).double()
    model.weight.requires_grad_(False)
    agree(model, cross_entropy, *data(5))
    assert any(calls)


def test_a_loss_that_uses_the_weights_is_not_cut_short(calls):
    model = nn.Linear(5, 3).double()

    def ridge(outputs, targets):
        return cross_entropy(outputs, targets) + 0.1 * model.weight.square().sum()

    agree(model, ridge, *data(5))
    assert not any(calls)


def test_what_could_change_the_layer_is_watched(calls):
    hooked = nn.Linear(5, 3).double()
    hooked.register_forward_hook(lambda _module, _inputs, output: output * 2)
    inputs, targets = data(5)
    agree(hooked, cross_entropy, inputs, targets)

    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    agree(Doubled(5, 3).double(), cross_entropy, inputs, targets)
    weighted = nn.utils.parametrizations.weight_norm(nn.Linear(5, 3).double())
    agree(weighted, cross_entropy, inputs, targets)
    patched = nn.Linear(5, 3).double()
    patched.forward = lambda x: F.linear(x, patched.weight * 3, patched.bias)
    agree(patched, cross_entropy, inputs, targets)
    assert not calls


def test_a_forgotten_bias_is_caught(monkeypatch):
    terms = direct.terms

    def forgetful(layer, loss, inputs, targets, trained):
        found = terms(layer, loss, inputs, targets, trained)
        found["bias"] = found["bias"].__class__(torch.zeros_like(found["bias"].rows()))
        return found

    monkeypatch.setattr(direct, "terms", forgetful)
    with pytest.raises(AssertionError):
        agree(nn.Linear(5, 3).double(), cross_entropy, *data(5))
