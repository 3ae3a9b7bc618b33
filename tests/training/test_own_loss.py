"""A model that computes its own loss, as those of Hugging Face do, trains like any other."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import forethought as ft
from drawn import randint, randn, reseed


class OwnLoss(nn.Module):
    """The loss is the mean over the batch that the model is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.layer(x[:, :4])
        return logits, F.cross_entropy(logits, x[:, 4].long())


def own(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return outputs[1]


def data() -> tuple[Tensor, Tensor]:
    reseed(0)
    y = randint(0, 3, (64,))
    return torch.cat([randn(64, 4), y.unsqueeze(1).float()], 1), y


@pytest.mark.filterwarnings("ignore")
def test_a_loss_of_the_models_own_trains() -> None:
    plan = ft.plan(examples=64, budget=ft.Budget(epsilon=8.0, delta=1e-3), epochs=2)
    model = OwnLoss()
    before = model.layer.weight.detach().clone()
    ft.train(model, data(), plan, loss=own, test=None)
    assert not torch.equal(model.layer.weight, before)


@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_is_a_mean_over_the_batch_is_refused() -> None:
    plan = ft.plan(examples=64, budget=ft.Budget(epsilon=8.0, delta=1e-3), epochs=2)
    x, y = data()
    with pytest.raises(ValueError, match="value per example"):
        ft.train(nn.Linear(5, 3), (x, y), plan, loss=lambda o, t: F.cross_entropy(o, t))


@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_takes_the_mean_of_its_batch_away_is_refused() -> None:
    """Alone each example is its own mean, so that nothing is left of it."""
    plan = ft.plan(examples=64, budget=ft.Budget(epsilon=8.0, delta=1e-3), epochs=2)

    def centred(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs - outputs.mean(0), targets, reduction="none")

    with pytest.raises(ValueError, match="sees the whole"):
        ft.train(nn.Linear(5, 3), data(), plan, loss=centred)


class Standardised(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x - x.mean(0)) / (x.std(0, correction=0) + 1e-5))


def test_a_model_that_standardises_by_its_batch_is_told() -> None:
    plan = ft.plan(examples=64, budget=ft.Budget(epsilon=8.0, delta=1e-3), rounds=1, parameters=18)
    with pytest.warns(UserWarning, match="beside another one"):
        ft.train(Standardised(5, 3), data(), plan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ft.train(nn.Sequential(nn.Linear(5, 3), nn.Dropout()), data(), plan)


# torch's criteria, whose mean over a batch is taken apart; columns of one number.


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("outputs", ["column", "flat"])
@pytest.mark.parametrize("targets", ["column", "flat"])
@pytest.mark.parametrize("loss", [nn.MSELoss(), F.mse_loss, nn.MSELoss(reduction="none")])
def test_a_column_of_targets_is_a_target_a_record(
    noise_by_round: None, outputs: str, targets: str, loss: Any
) -> None:
    """The same weights as of the plain squared error of flat outputs and targets."""
    plan = ft.plan(examples=64, budget=ft.Budget(epsilon=8.0, delta=1e-3), epochs=2)
    x, _ = data()
    y = x[:, 0] + 1
    found = []
    for shape, how, wanted in (("flat", None, y), (outputs, loss, y)):
        reseed(1)
        layer = nn.Linear(5, 1)
        model = nn.Sequential(layer, nn.Flatten(0)) if shape == "flat" else nn.Sequential(layer)
        wanted = y[:, None] if how is not None and targets == "column" else y
        ft.train(model, (x, wanted), plan, loss=how, seed=1, noise_seed=2)
        found.append(layer.weight.detach())
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.filterwarnings("ignore")
def test_torchs_criteria_train_as_their_values_an_example_do() -> None:
    plan = ft.plan(examples=64, budget=ft.Budget(epsilon=8.0, delta=1e-3), epochs=2)
    found = []
    for loss in (None, nn.CrossEntropyLoss(), F.cross_entropy):
        reseed(1)
        model = nn.Linear(5, 3)
        ft.train(model, data(), plan, loss=loss, seed=1, noise_seed=2)
        found.append(model.weight.detach())
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])
    weighted = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0]))
    for wrong in (weighted, nn.NLLLoss(torch.ones(3)), nn.CrossEntropyLoss(reduction="sum")):
        with pytest.raises(ValueError, match="value per example"):
            ft.train(nn.Linear(5, 3), data(), plan, loss=wrong)
