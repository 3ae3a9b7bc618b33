"""A model that computes its own loss, as those of Hugging Face do, trains like any other."""

from __future__ import annotations

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
