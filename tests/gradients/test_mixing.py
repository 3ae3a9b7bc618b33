from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from drawn import randn, reseed
from forethought.gradients import check_model, clipped_sum, replace_mixing_layers


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 48, 3, padding=1), nn.BatchNorm2d(48), nn.Flatten(), nn.LazyLinear(2)
    )


def test_batch_normalisation_is_refused_with_its_replacement() -> None:
    with pytest.raises(ValueError, match=r"\(BatchNorm2d\): use nn.GroupNorm\(16,"):
        check_model(network())


def test_replacing_keeps_shapes_values_and_modes() -> None:
    model = network()
    nn.init.uniform_(model[1].weight)
    weight, bias = model[1].weight, model[1].bias
    assert replace_mixing_layers(model) is model
    check_model(model)
    assert isinstance(model[1], nn.GroupNorm) and model[1].training
    assert model[1].weight is weight and model[1].bias is bias
    x, y = randn(4, 3, 5, 5), torch.tensor([0, 1, 0, 1])
    model(x)
    sums, _ = clipped_sum(model, lambda o, t: F.cross_entropy(o, t, reduction="none"), x, y, 1.0)
    assert sums["1.weight"].shape == (48,)


@pytest.mark.parametrize("channels", [2, 3, 6, 8, 16, 20, 64])
def test_a_vector_normalised_inside_one_example_still_tells_examples_apart(channels: int) -> None:
    """Groups of one value are always zero, groups of two always one up, one down."""
    reseed(0)
    layer = replace_mixing_layers(nn.Sequential(nn.BatchNorm1d(channels)))[0]
    with torch.no_grad():
        outputs = layer(randn(200, channels))
    assert outputs.std(0).min() > 0.5
    per_group = channels // layer.num_groups
    assert per_group >= min(8, channels)
    assert layer(randn(5, channels, 4)).shape == (5, channels, 4)


def test_a_single_feature_cannot_be_normalised_by_itself() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    with pytest.raises(ValueError, match=r"1 \(BatchNorm1d\): use"):
        check_model(model)
    with pytest.raises(ValueError, match="public range"):
        replace_mixing_layers(model)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(6),
        nn.BatchNorm3d(5, affine=False),
        nn.SyncBatchNorm(4),
        nn.BatchNorm1d(6, track_running_stats=False).eval(),
        nn.InstanceNorm2d(4, track_running_stats=True),
        nn.Embedding(4, 3, max_norm=1.0),
        nn.Embedding(4, 3, scale_grad_by_freq=True),
        nn.EmbeddingBag(4, 3, max_norm=1.0),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_every_mixing_layer_is_refused_and_replaced(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(2, 2), copy.deepcopy(layer))
    with pytest.raises(ValueError, match="replace_mixing_layers"):
        check_model(model)
    check_model(replace_mixing_layers(model))


class Placed(nn.Module):
    """Adds a row for each place, which all examples look up alike."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.rows, self.how = nn.Parameter(torch.ones(50, 3)), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.embedding(torch.tensor([0, 0, 1]), self.rows, **self.how).sum(0)


@pytest.mark.parametrize("how", [{"scale_grad_by_freq": True}, {"max_norm": 1.0}])
def test_a_table_that_all_look_up_alike_is_refused_as_in_a_lane(how: dict[str, Any]) -> None:
    loss = nn.MSELoss(reduction="none")
    records = torch.zeros(4, 3), torch.ones(4, 3)
    clipped_sum(Placed(), lambda *both: loss(*both).sum(1), *records, 1.0)
    with pytest.raises(ValueError, match=next(iter(how))):
        clipped_sum(Placed(**how), lambda *both: loss(*both).sum(1), *records, 1.0)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm2d(4).eval(),
        nn.InstanceNorm2d(4),
        nn.GroupNorm(2, 4),
        nn.LayerNorm(4),
        nn.LSTM(3, 4),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_keep_examples_apart_are_accepted(layer: nn.Module) -> None:
    check_model(nn.Sequential(nn.Linear(2, 2), layer))


def test_a_shared_layer_stays_shared_and_a_bare_one_is_returned() -> None:
    norm = nn.BatchNorm1d(4)
    model = nn.ModuleDict({"a": norm, "b": nn.Sequential(norm)})
    replace_mixing_layers(model)
    assert model["a"] is model["b"][0] and isinstance(model["a"], nn.GroupNorm)
    assert isinstance(replace_mixing_layers(nn.BatchNorm2d(8)), nn.GroupNorm)


def test_what_is_no_trainable_module_is_refused() -> None:
    with pytest.raises(TypeError, match="Module"):
        check_model("model")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="requires_grad"):
        check_model(nn.Linear(2, 2).requires_grad_(False))
