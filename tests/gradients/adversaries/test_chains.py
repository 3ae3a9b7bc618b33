"""Chains of linear layers take a way of their own: it must see what breaks the chain."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from adversaries.attack import D, classify, vectors
from torch import Tensor, nn
from torch.nn import functional as F
from zoo.oracle import assert_isolated, compare, perturb

from drawn import randn, reseed
from forethought.gradients import clipped_sum

Chain = Callable[[], nn.Sequential]
CHAINS: dict[str, Chain] = {}


def chain(make: Chain) -> Chain:
    CHAINS[make.__name__] = make
    return make


def layers(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, D), *between, nn.Linear(D, 3))


for activation in (
    nn.Identity(), nn.ReLU(), nn.ReLU(inplace=True), nn.Tanh(), nn.Sigmoid(), nn.GELU("tanh"),
    nn.SiLU(inplace=True), nn.Softplus(2.0), nn.ELU(0.5, inplace=True), nn.LeakyReLU(0.2),
    nn.PReLU(), nn.Hardtanh(), nn.Softmax(1), nn.Softmax(0), nn.LogSoftmax(0), nn.Softmin(0),
    nn.Flatten(0, 0), nn.Flatten(1), nn.LayerNorm(D), nn.Threshold(0.1, 0.3, inplace=True),
    nn.Softshrink(), nn.Mish(), nn.Dropout(0.0), nn.AlphaDropout(0.0), nn.CELU(),
):  # fmt: skip
    CHAINS[repr(activation)] = lambda activation=activation: layers(activation)


@chain
def without_bias() -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False))


@chain
def nested() -> nn.Sequential:
    return nn.Sequential(nn.Sequential(nn.Linear(D, 5), nn.Tanh()), nn.Sequential(nn.Linear(5, 3)))


@chain
def one_layer_twice() -> nn.Sequential:
    layer = nn.Linear(D, D)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(D, 3))


@chain
def one_weight_twice() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, D), nn.Linear(D, 3))
    model[2].weight = model[0].weight
    return model


@chain
def views_of_one_weight() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, D), nn.Linear(D, 3))
    model[2].weight = nn.Parameter(model[0].weight.data.t())
    return model


@chain
def frozen_in_front() -> nn.Sequential:
    model = layers(nn.Tanh())
    model[0].requires_grad_(False)
    return model


@chain
def frozen_behind() -> nn.Sequential:
    model = layers(nn.Tanh())
    model[2].requires_grad_(False)
    return model


@chain
def only_a_bias_is_trained() -> nn.Sequential:
    model = layers(nn.Tanh())
    model.requires_grad_(False)
    model[0].bias.requires_grad_(True)
    return model


@chain
def a_weight_that_is_made() -> nn.Sequential:
    model = layers(nn.Tanh())
    torch.nn.utils.parametrizations.weight_norm(model[0])
    return model


@chain
def with_a_forward_hook() -> nn.Sequential:
    model = layers(nn.Tanh())
    model[1].register_forward_hook(lambda module, inputs, outputs: outputs + 3 * outputs.mean(0))
    return model


@chain
def with_a_hook_in_front() -> nn.Sequential:
    model = layers(nn.Tanh())
    model.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 3 * inputs[0].mean(0),))
    return model


@chain
def with_a_forward_of_its_own() -> nn.Sequential:
    model = layers(nn.Tanh())
    model[1].forward = lambda x: torch.tanh(x + 3 * x.mean(0))
    return model


@chain
def with_a_subclass() -> nn.Sequential:
    class Mixed(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + 3 * x.mean(0))

    return nn.Sequential(Mixed(D, D), nn.Tanh(), nn.Linear(D, 3))


@chain
def with_another_call() -> nn.Sequential:
    class Called(nn.Sequential):
        def __call__(self, x: Tensor) -> Any:
            return super().__call__(x + 3 * x.mean(0))

    return Called(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, 3))


@chain
def activation_in_front_in_place() -> nn.Sequential:
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(D, 3))


def centred(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs + 3 * outputs.mean(0) - 1).square().sum(1)


LOSSES: dict[str, Any] = {
    "module": nn.CrossEntropyLoss(reduction="none"),
    "smoothed": nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1),
    "weighted": nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]), reduction="none"),
    "function": classify,
}


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHAINS)
def test_chain(name: str) -> None:
    reseed(0)
    model, (x, y) = CHAINS[name](), vectors()
    for loss in LOSSES.values():
        for _ in range(2):
            compare(model, loss, x, y)
            perturb(model, 0.1)
            assert_isolated(model, loss, x, y, scale=50.0)


@pytest.mark.filterwarnings("ignore")
def test_an_activation_in_place_leaves_the_records_alone() -> None:
    model, (x, y) = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(D, 3)), vectors()
    given = x.clone()
    for _ in range(3):
        clipped_sum(model, classify, x, y, 1.0)
        assert torch.equal(x, given)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shape", [(5, D), (1, D), (2, 3, D)])
def test_a_chain_over_more_dimensions(shape: tuple[int, ...]) -> None:
    model = layers(nn.Tanh())
    x = randn(6, *shape)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.flatten(1).square().sum(1)

    for _ in range(3):
        compare(model, loss, x, torch.zeros(6))
        assert_isolated(model, loss, x, torch.zeros(6), scale=50.0)


@pytest.mark.filterwarnings("ignore")
def test_a_chain_under_autocast() -> None:
    model, (x, y) = layers(nn.Tanh()), vectors()
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            compare(model, classify, x, y, 5e-2)


@pytest.mark.filterwarnings("ignore")
def test_a_chain_whose_class_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        return torch.tanh(x + 3 * x.mean(0))

    model, (x, y) = layers(nn.Tanh()), vectors()
    clipped_sum(model, classify, x, y, 1.0)
    monkeypatch.setattr(nn.Tanh, "forward", forward)
    for _ in range(2):
        compare(model, classify, x, y)
        assert_isolated(model, classify, x, y, scale=50.0)


@pytest.mark.filterwarnings("ignore")
def test_a_chain_whose_loss_changes_its_mind() -> None:
    model, (x, y) = layers(nn.Tanh()), vectors()
    mixes = False

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return centred(outputs, targets) if mixes else outputs.square().sum(1)

    for _ in range(3):
        compare(model, loss, x, y)
    mixes = True
    for _ in range(2):
        compare(model, loss, x, y)
        assert_isolated(model, loss, x, y, scale=50.0)


class Remembering:
    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        values = classify(outputs, targets) * self.scale
        self.scale = 0.5 * self.scale + 0.5 * float(values.detach().mean())
        return values


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("examples", [1, 2, 6])
@pytest.mark.parametrize("body", [nn.Tanh, nn.Mish])
def test_nothing_that_a_loss_remembers_outlives_the_call(
    examples: int, body: type[nn.Module]
) -> None:
    """Whatever a call leaves behind tells the next one of this one's records."""
    model, loss = layers(body()), Remembering()
    x, y = vectors()
    x, y = x[:1].repeat(examples, 1), y[:1].repeat(examples)  # all lanes agree
    for _ in range(3):
        with contextlib.suppress(ValueError):
            clipped_sum(model, loss, x, y, 1.0)
        assert loss.scale == 1.0


@pytest.mark.filterwarnings("ignore")
def test_a_parameter_of_the_loss_is_no_parameter_of_the_model() -> None:
    model, (x, y) = layers(nn.Tanh()), vectors()

    def decayed(outputs: Tensor, targets: Tensor) -> Tensor:
        return classify(outputs, targets) + model[0].weight.square().sum()

    norms = [clipped_sum(model, decayed, x, y, 1.0)[1] for _ in range(3)]
    for i in range(len(x)):
        model.zero_grad()
        decayed(model(x[i : i + 1]), y[i : i + 1]).sum().backward()
        wanted = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
        for found in norms:
            assert float(found[i]) == pytest.approx(float(wanted), rel=1e-4)
    model.zero_grad(set_to_none=True)


@pytest.mark.filterwarnings("ignore")
def test_normalising_rows_in_the_loss_stays_apart() -> None:
    model, (x, y) = layers(nn.Tanh()), vectors()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return classify(F.normalize(outputs, dim=1) * 5, targets)

    for _ in range(3):
        compare(model, loss, x, y)
        assert_isolated(model, loss, x, y, scale=50.0)
