"""Copies side by side give what each copy gives alone; anything unknown is left to the loop."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from drawn import rand, randn, reseed
from forethought.models import build
from forethought.utility.perturbing import side_by_side

GREY, COLOUR = (1, 28, 28), (3, 32, 32)
COPIES = 3


def copies_of(model: nn.Module) -> dict[str, Tensor]:
    reseed(1)
    return {
        name: p.detach() + 0.1 * randn(COPIES, *p.shape)
        for name, p in model.named_parameters()
        if p.requires_grad
    }


def strided() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding="valid", bias=False), nn.SiLU()),
        nn.Dropout(0.5),
        nn.Conv2d(4, 8, 3, groups=2, dilation=2, padding=1),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(8 * 7 * 7, 5, bias=False),
    )


MODELS = {
    "linear": lambda: (build("linear", inputs=GREY, classes=10), GREY),
    "mlp": lambda: (build("mlp", inputs=(20,), classes=4, hidden=[16, 8], seed=0), (20,)),
    "lenet5": lambda: (build("lenet5", inputs=GREY, classes=10, seed=0), GREY),
    "lenet5-relu": lambda: (
        build("lenet5", inputs=GREY, classes=10, activation="relu", pooling="max", seed=0),
        GREY,
    ),
    "cnn": lambda: (build("cnn", inputs=COLOUR, classes=10, seed=0), COLOUR),
    "tempered-cnn": lambda: (build("tempered-cnn", inputs=GREY, classes=10, seed=0), GREY),
    "strided": lambda: (strided(), COLOUR),
}


@pytest.mark.parametrize("name", MODELS)
def test_each_copy_is_what_it_is_alone(name: str) -> None:
    model, shape = MODELS[name]()
    model.eval()
    inputs = rand(7, *shape)
    stacked = side_by_side(model, inputs[:2])
    assert stacked is not None
    weights = copies_of(model)
    with torch.no_grad():
        found = stacked(weights, inputs)
        for copy in range(COPIES):
            own = {key: values[copy] for key, values in weights.items()}
            wanted = functional_call(model, own, (inputs,))
            torch.testing.assert_close(found[copy], wanted, rtol=1e-4, atol=1e-5)


def test_frozen_parameters_stay_the_models_own() -> None:
    model = build("mlp", inputs=(20,), classes=4, hidden=8, seed=0)
    model[1].weight.requires_grad_(False)
    stacked = side_by_side(model, rand(2, 20))
    assert stacked is not None
    weights = copies_of(model)
    assert "1.weight" not in weights
    inputs = rand(5, 20)
    with torch.no_grad():
        wanted = functional_call(model, {k: v[2] for k, v in weights.items()}, (inputs,))
        torch.testing.assert_close(stacked(weights, inputs)[2], wanted)


class Doubled(nn.Linear):
    """A subclass that does something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 3))
    model[0].register_forward_hook(lambda module, args, out: out + 1)
    return model


@pytest.mark.parametrize(
    "model",
    [
        Doubled(6, 3),
        nn.Sequential(Doubled(6, 3)),
        nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3)),
        nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 3)),
        hooked(),
    ],
    ids=["module", "subclass", "layer norm", "tokens", "hook"],
)
def test_unknown_layers_are_left_to_the_loop(model: nn.Module) -> None:
    assert side_by_side(model, rand(2, 6)) is None


def test_a_wrong_rule_is_caught_before_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    # The planted fault: an activation that is taken for the identity.
    from forethought.utility import perturbing as module

    monkeypatch.setitem(module.RULES, nn.ReLU, lambda _layer, values, *_: values)
    model = nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 3))
    assert module.side_by_side(model, randn(8, 6)) is None
