"""The networks of Xu et al. (2020, Table 2) and the AlexNet of van Dijk et al.: sizes, shapes."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

import published_networks
from drawn import rand, randn
from forethought.models import build
from forethought.models.networks import StandardisedConv2d
from forethought.models.zoo import PUBLISHED as ONCE_INSTALLED
from published_networks import Gate, Shuffle, norm

# Parameters, and megabytes (of 2^20 bytes) as Xu et al. print them; None: not theirs.
PUBLISHED = {
    "shufflenet": (887_582, None),
    "shufflenet-v2": (1_263_854, 4.82),
    "mobilenet-v2": (2_296_922, 8.76),
    "efficientnet-b0": (2_912_089, 11.11),
    "mobilenet": (3_217_226, 12.27),
    "googlenet": (6_166_250, 23.53),
    "resnext-29": (9_128_778, 34.82),
    "resnet-18": (11_173_962, 42.63),
    "senet-18": (11_260_354, 42.95),
    "vgg-19": (20_040_522, 76.45),
    "alexnet": (23_272_266, None),
}


def test_every_name_that_was_installed_is_counted() -> None:
    assert set(PUBLISHED) == set(ONCE_INSTALLED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_network(name):
    parameters, megabytes = PUBLISHED[name]
    with torch.device("meta"):
        model = build(name, inputs=(3, 32, 32), classes=10)
    found = sum(parameter.numel() for parameter in model.parameters())
    assert found == parameters
    if megabytes is not None:
        # GoogLeNet's is printed 0.01 too large.
        assert found * 4 / 2**20 == pytest.approx(megabytes, abs=0.011)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


def test_the_script_prints_them(capsys):
    runpy.run_path(str(Path(published_networks.__file__)), run_name="__main__")
    printed = capsys.readouterr().out
    assert all(f"| {name} | {count:,} | " in printed for name, (count, _) in PUBLISHED.items())
    assert "| lstm-512 | 43,154,944 | 164.62 |" in printed


@pytest.mark.parametrize(("name", "parameters"), [("wrn-16-4", 2_748_890), ("wrn-40-4", 8_949_210)])
def test_wide_networks_have_the_published_filters(name, parameters):
    """2.7 and 8.9 million (Zagoruyko and Komodakis 2016, Table 5), batch normalisation's included.

    What De et al. add: a gain and a bias for each filter, a norm for each stage's shortcut.
    """
    with torch.device("meta"):
        model = build(name, inputs=(3, 32, 32), classes=10)
    standardised = [m for m in model.modules() if isinstance(m, StandardisedConv2d)]
    added = sum(m.gain.numel() + m.bias.numel() for m in standardised)
    added += sum(2 * channels for channels in (16, 64, 128))
    assert sum(p.numel() for p in model.parameters()) - added == parameters
    assert len(standardised) == int(name.split("-")[1])
    assert all(m.num_groups == 16 for m in model.modules() if isinstance(m, nn.GroupNorm))
    assert model(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 10)


def test_filters_are_standardised():
    layer = StandardisedConv2d(3, 4, 3, 2)
    with torch.no_grad():
        layer.gain.copy_(torch.tensor([1.0, 2.0, 0.5, 1.0]))
        layer.weight[3] = 0.7  # a filter that is constant is zero, and has finite gradients
    rows = layer.standardised().flatten(1)
    torch.testing.assert_close(rows.mean(1), torch.zeros(4), atol=1e-7, rtol=0)
    torch.testing.assert_close(rows.norm(dim=1), torch.tensor([1.0, 2.0, 0.5, 0.0]))
    x = randn(2, 3, 8, 8)
    layer(x).sum().backward()
    assert layer(x).shape == (2, 4, 4, 4) and torch.isfinite(layer.weight.grad).all()


def test_the_acoustic_model_has_the_published_size():
    with torch.device("meta"):
        model = build("lstm-512", inputs=(21, 260), classes=32_000)
    found = sum(parameter.numel() for parameter in model.parameters())
    assert found == 43_154_944  # "over 43 million parameters"
    assert found * 4 / 2**20 == pytest.approx(164.62, abs=0.005)


def test_a_sequence_has_one_class_or_one_for_each_frame():
    x = rand(2, 5, 7)
    assert build("lstm-32", inputs=(5, 7), classes=3)(x).shape == (2, 3)
    each = build("lstm-32", inputs=(5, 7), classes=3, every_frame=True, seed=1)
    one = build("lstm-32", inputs=(5, 7), classes=3, seed=1)
    assert each(x).shape == (2, 3, 5)
    torch.testing.assert_close(each(x)[:, :, 2], one(x))


def test_an_image_is_read_row_by_row():
    model = build("lstm-32", inputs=(2, 4, 3), classes=3, seed=0)
    x = rand(1, 2, 4, 3)
    rows = torch.stack([torch.cat([x[0, 0, i], x[0, 1, i]]) for i in range(4)])
    torch.testing.assert_close(model(x), model(rows.unsqueeze(0)))


@pytest.mark.parametrize("channels", [8, 16, 24, 58, 116, 480, 512, 1280])
def test_no_group_is_so_small_that_a_single_pixel_is_normalised_away(channels):
    layer = norm(channels)
    assert layer.num_groups <= 32 and channels // layer.num_groups >= 4
    assert sum(p.numel() for p in layer.parameters()) == 2 * channels
    assert layer(randn(1, channels, 1, 1)).abs().max() > 0.1


def test_shuffle_deals_channels_out_and_gates_weigh_them():
    x = torch.arange(6.0).reshape(1, 6, 1, 1)
    assert Shuffle(2)(x).flatten().tolist() == [0, 3, 1, 4, 2, 5]
    gate = Gate(32)
    nn.init.zeros_(gate.gate[3].weight)
    nn.init.zeros_(gate.gate[3].bias)
    y = randn(2, 32, 3, 3)
    torch.testing.assert_close(gate(y), y / 2)


@pytest.mark.parametrize(
    ("name", "inputs", "options", "message"),
    [
        ("resnet-18", (30,), {}, "plain features use 'linear'"),
        ("vgg-19", (3, 4, 4), {}, "at least 8 pixels"),
        ("resnet18", (3, 32, 32), {}, "Did you mean 'resnet-18'"),
        ("resnet-18", (3, 32, 32), {"width": 0}, "width must be a number above 0"),
        ("shufflenet", (3, 32, 32), {"groups": 4}, "2 or 3 groups"),
        ("lstm-32", (30,), {}, r"\(frames, features\)"),
        ("lstm-32", (5, 30), {"cells": 0}, "cells must be a whole number"),
    ],
)
def test_mistakes_are_explained(name, inputs, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, inputs=inputs, classes=10, **options)
