from __future__ import annotations

import inspect
import math
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from drawn import rand
from forethought.models import build, names
from forethought.models.networks import TemperedSigmoid
from forethought.models.zoo import MODELS


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "inputs", "parameters"),
    [
        ("linear", (1, 28, 28), 7_850),
        ("linear", (81, 7, 7), 39_700),
        ("mlp", (30,), 30 * 128 + 128 + 1_290),
        ("lenet5", (1, 28, 28), 61_706),  # LeCun et al. 1998, with full connections in layer C3
        ("cnn", (3, 32, 32), 131_466),
        ("cnn", (1, 28, 28), 130_890),
        ("tempered-cnn", (1, 28, 28), 26_010),  # Papernot et al. 2021, Table 1
        ("gabor-cnn", (1, 28, 28), 8_650),
        ("tempered-cnn", (81, 7, 7), 33_066),
        ("tempered-cnn", (3, 32, 32), 37_274),
    ],
)
def test_parameters_and_outputs(name, inputs, parameters):
    model = build(name, inputs=inputs, classes=10, seed=0)
    assert count(model) == parameters
    assert model(rand(4, *inputs)).shape == (4, 10)


def test_cnn_is_the_network_of_the_paper():
    layers = list(build("cnn", inputs=(3, 32, 32), classes=10))
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [32, 64, 64, 128]
    assert all(
        (layer.kernel_size, layer.stride, layer.padding) == ((3, 3), (1, 1), (1, 1))
        for layer in convolutions
    )
    kinds = [type(layer).__name__ for layer in layers]
    assert kinds == ["Conv2d", "ReLU", "AvgPool2d"] * 3 + [
        "Conv2d",
        "ReLU",
        "AdaptiveAvgPool2d",
        "Flatten",
        "Linear",
    ]


@pytest.mark.parametrize("name", ["lenet5", "cnn", "tempered-cnn"])
@pytest.mark.parametrize("side", [(12, 12), (13, 17), (14, 15), (29, 31), (32, 48)])
def test_convolutional_models_take_any_size(name, side):
    assert build(name, inputs=(2, *side), classes=3)(rand(2, 2, *side)).shape == (2, 3)


def small(name: str, seed: int) -> nn.Module:
    """A model of the zoo; those with a width, an eighth as wide."""
    wide = "width" in inspect.signature(MODELS[name]).parameters
    options = {"width": 0.125} if wide else {"cells": 8} if name.startswith("lstm") else {}
    return build(name, inputs=(1, 28, 28), classes=10, seed=seed, **options)


def test_every_name_builds():
    for name in names():
        assert small(name, 0)(rand(2, 1, 28, 28)).shape == (2, 10)


def test_no_model_mixes_examples():
    for name in names():
        model = small(name, 1)
        batch = rand(3, 1, 28, 28)
        torch.testing.assert_close(model(batch)[1:2], model(batch[1:2]), atol=1e-5, rtol=1e-4)


def test_seed_makes_weights_reproducible_and_spares_the_global_generator():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, two, other = (build("mlp", inputs=(8,), classes=2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(one[1].weight, two[1].weight)
    assert not torch.equal(one[1].weight, other[1].weight)


def test_linear_starts_at_zero_and_may_have_one_output():
    model = build("linear", inputs=(5,), classes=2, outputs=1)
    assert model(rand(3, 5)).tolist() == [[0.0]] * 3
    assert count(build("linear", inputs=(5,), classes=2, outputs=1, bias=False)) == 5
    with pytest.raises(ValueError, match="the 3 classes"):
        build("linear", inputs=(5,), classes=3, outputs=1)


def test_tempered_sigmoid():
    z = torch.linspace(-4, 4, 33, dtype=torch.float64)
    torch.testing.assert_close(TemperedSigmoid()(z), torch.tanh(z))
    expected = torch.tensor([3 / (1 + math.exp(-0.5 * value)) - 1.2 for value in z.tolist()])
    torch.testing.assert_close(TemperedSigmoid(3, 0.5, 1.2)(z).float(), expected)
    with pytest.raises(ValueError, match="constant"):
        TemperedSigmoid(scale=0)
    with pytest.raises(TypeError, match="scale"):
        build("tempered-cnn", inputs=(1, 28, 28), classes=10, scale="two")


def test_options_reach_the_model():
    model = build("mlp", inputs=(4,), classes=2, hidden=[7, 5], activation="tanh")
    assert [type(layer) for layer in model][1:] == [
        nn.Linear,
        nn.Tanh,
        nn.Linear,
        nn.Tanh,
        nn.Linear,
    ]
    assert isinstance(
        build("lenet5", inputs=(1, 28, 28), classes=2, pooling="max")[2], nn.MaxPool2d
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gabor-cnn", {"pooling": 0}, "pooling must be"),
        ("lenet", {}, "Did you mean 'lenet5'"),
        ("Linear", {}, "Did you mean 'linear'"),
        ("zzz", {}, "models are linear, mlp"),
        ("linear", {"output": 1}, "Did you mean 'outputs'"),
        ("mlp", {"activation": "rellu"}, "Did you mean 'relu'"),
        ("mlp", {"hidden": [0]}, "hidden must be"),
        ("mlp", {"hidden": 0.5}, "hidden must be"),
        ("lenet5", {"pooling": "mean"}, "'average' or 'max'"),
        ("no_such_module:net", {}, "importing no_such_module failed with ModuleNotFoundError"),
        ("math:sqroot", {}, "Did you mean 'sqrt'"),
        ("json:dumps", {}, "called with inputs=, classes="),
        (":net", {}, "module:function"),
    ],
)
def test_mistakes_are_explained(name, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, inputs=(1, 28, 28), classes=10, **options)


def test_shapes_that_a_model_cannot_take():
    with pytest.raises(ValueError, match="features use 'linear'"):
        build("cnn", inputs=(30,), classes=2)
    with pytest.raises(ValueError, match="least 12 pixels"):
        build("lenet5", inputs=(1, 8, 8), classes=10)
    with pytest.raises(ValueError, match="one example's shape"):
        build("linear", inputs=(0, 3), classes=2)
    with pytest.raises(ValueError, match="classes"):
        build("linear", inputs=(3,), classes=0)


def test_a_model_of_ones_own_in_the_working_directory(tmp_path: Path, monkeypatch):
    (tmp_path / "my_zoo_for_test.py").write_text(
        "from torch import nn\n"
        "def net(inputs, classes, width=3):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(inputs[0], width),"
        " nn.Linear(width, classes))\n"
        "def wrong(inputs, classes):\n"
        "    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    model = build("my_zoo_for_test:net", inputs=(6,), classes=2, width=4)
    assert count(model) == 6 * 4 + 4 + 4 * 2 + 2
    with pytest.raises(TypeError, match="returned int, not"):
        build("my_zoo_for_test:wrong", inputs=(6,), classes=2)
    assert sys.path == before
    del sys.modules["my_zoo_for_test"]


def test_networks_that_were_installed_once_are_found_where_their_file_is(
    tmp_path: Path, monkeypatch
):
    tools = Path(__file__).parents[2] / "tools"
    monkeypatch.delitem(sys.modules, "published_networks", raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if Path(path) != tools])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no longer installed"):
        build("resnet-18", inputs=(3, 8, 8), classes=2)
    file = tools / "published_networks.py"
    (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    with torch.device("meta"):
        assert count(build("mobilenet-v2", inputs=(3, 32, 32), classes=10)) == 2_296_922
    monkeypatch.delitem(sys.modules, "published_networks")


def test_a_module_that_fails_to_import_says_why(tmp_path: Path, monkeypatch):
    (tmp_path / "broken_zoo_for_test.py").write_text("raise RuntimeError('out of cheese')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="RuntimeError: out of"):
        build("broken_zoo_for_test:net", inputs=(6,), classes=2)


def test_a_gabor_cnn_starts_with_scores_of_zero_and_filters_of_every_direction():
    model = build("gabor-cnn", inputs=(1, 28, 28), classes=10, seed=3)
    first, last = model[0], model[-1]
    assert isinstance(first, nn.Conv2d)
    assert isinstance(last, nn.Linear)
    rays = first.weight.detach().flatten(1)
    torch.testing.assert_close(rays.norm(dim=1), torch.ones(16))
    assert rays.mean(1).abs().max() < 1e-6, "they see no brightness"
    flipped = first.weight.detach().flip(2, 3).flatten(1)
    signs = torch.tensor([1.0, -1.0] * 8)[:, None]  # ridges are even, edges odd
    torch.testing.assert_close(flipped, rays * signs, atol=1e-5, rtol=0)
    # The wave's length and the window's width: the accuracies were measured with these.
    ridge, edge = first.weight.detach()[:2, 0, 3]
    expected = torch.tensor([-0.1431, -0.1784, 0.1298, 0.3834, 0.1298, -0.1784, -0.1431])
    torch.testing.assert_close(ridge, expected, atol=1e-4, rtol=0)
    expected = torch.tensor([-0.0294, 0.1929, 0.3234, 0.0, -0.3234, -0.1929, 0.0294])
    torch.testing.assert_close(edge, expected, atol=1e-4, rtol=0)
    # A turn by a right angle is the direction a quarter of the list away.
    turned = torch.rot90(first.weight.detach(), -1, (2, 3)).flatten(1)
    torch.testing.assert_close((turned[:8] * rays[8:]).sum(1).abs(), torch.ones(8))
    assert not model(rand(2, 1, 28, 28)).any()
    assert all(p.requires_grad for p in model.parameters())
    for wrong in ({"kernel": 4}, {"pooling": 29}, {"filters": 5}):
        with pytest.raises(ValueError, match=r"kernel|pooling|pairs"):
            build("gabor-cnn", inputs=(1, 28, 28), classes=10, **wrong)


def test_what_a_gabor_cnn_s_last_layer_sees_has_one_norm_and_no_mean():
    model = build("gabor-cnn", inputs=(3, 16, 20), classes=4, strength=2.0)
    torch.testing.assert_close(model[0].weight.flatten(1).norm(dim=1), torch.ones(16))
    seen = model[:-2](rand(5, 3, 16, 20))
    assert seen.shape == (5, 16, 4, 5)
    assert seen.mean((2, 3)).abs().max() < 1e-6
    norms = seen.flatten(1).norm(dim=1)
    torch.testing.assert_close(norms, torch.full((5,), 2.0), rtol=0.02, atol=0)
    assert torch.isfinite(model[:-2](torch.zeros(1, 3, 16, 20))).all()
