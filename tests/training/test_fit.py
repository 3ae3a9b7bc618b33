"""Records, model and loss that do not go together are told apart in the user's words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import forethought as ft
from forethought.training import records
from forethought.training.records import NonFiniteRecordsWarning

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 3)).astype(np.float32)
Y = RANDOM.integers(2, size=60)
PLAN = ft.plan(examples=60, budget=ft.Budget(2.0, 1e-4), batch=20, rounds=2)


@pytest.mark.parametrize(
    ("data", "outputs", "message"),
    [
        ((X, 2 * Y - 1), 2, r"go from -1 to 1.*classes 0 to 1.*write −1 as 0"),
        ((X, Y + 5), 2, r"go from 5 to 6.*subtract 5"),
        ((X, 2 * Y), 2, r"go from 0 to 2.*give the model 3 outputs"),
        ((X.astype(int), Y), 2, r"whole numbers: give them as inputs\.float\(\)"),
        ((X, Y[:, None]), 2, r"targets\.squeeze"),
        (list(zip(X, Y[:, None], strict=True)), 2, r"targets\.squeeze"),
        ((X, np.eye(2, dtype=int)[Y]), 2, r"targets\.argmax"),
        ((X[:, :2], Y), 2, r"does not take one record of data, inputs of shape \(2,\)"),
        ((X, Y.astype(np.float32)), 2, r"for classes give whole numbers"),
        ((X, np.where(Y, np.nan, 1.0).astype(np.float32)), 1, "targets in data are not finite"),
    ],
)
def test_what_does_not_fit_is_said_before_anything_is_released(
    data: tuple[np.ndarray, np.ndarray], outputs: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ft.train(nn.Linear(3, outputs), data, PLAN)


def test_images_with_channels_last_are_told_torchs_order() -> None:
    images = RANDOM.normal(size=(60, 4, 4, 3)).astype(np.float32)
    with pytest.raises(ValueError, match="channels first"):
        ft.train(nn.Sequential(nn.Conv2d(3, 2, 4), nn.Flatten()), (images, Y), PLAN)


def test_binary_cross_entropy_of_whole_numbers_is_told_the_remedy() -> None:
    with pytest.raises(ValueError, match="takes decimals"):
        ft.train(nn.Linear(3, 1), (X, Y[:, None]), PLAN, loss=nn.BCEWithLogitsLoss())


@pytest.mark.parametrize("examples", [X, torch.from_numpy(X), [60], True])
def test_a_number_of_records_is_one_whole_number(examples: object) -> None:
    with pytest.raises(TypeError, match="examples must be"):
        ft.plan(examples=examples, budget=ft.Budget(2.0, 1e-4), epochs=1)


class Adapted(nn.Module):
    """A frozen layer of low precision with a trained one of full precision behind it."""

    def __init__(self, last: torch.dtype) -> None:
        super().__init__()
        self.base = nn.Linear(3, 3).to(torch.bfloat16).requires_grad_(False)
        self.last = nn.Linear(3, 2)
        self.between = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.base(x).to(self.between))


def test_inputs_have_the_precision_of_the_weights_that_they_meet() -> None:
    for given in (X, torch.from_numpy(X).bfloat16()):
        run = ft.train(Adapted(torch.float32), (given, Y), PLAN, test=(given[:5], 1 - Y[:5]))
        assert run.accuracy is not None
    with pytest.raises(ValueError, match="precision"):
        ft.train(Adapted(torch.bfloat16), (X, Y), PLAN)


def test_held_out_records_are_looked_at_too() -> None:
    with pytest.raises(ValueError, match="record of test"):
        ft.train(nn.Linear(3, 2), (X, Y), PLAN, test=(X[:5, :2], Y[:5]))
    with pytest.raises(ValueError, match="labels in test"):
        ft.train(nn.Linear(3, 2), (X, Y), PLAN, test=(X[:2] + 1, np.array([0, 9])))
    with pytest.raises(ValueError, match="targets in test"):
        ft.train(nn.Linear(3, 2), (X, Y), PLAN, test=(X[:5] + 1, Y[:5].astype(np.float32)))


def test_labels_of_records_that_are_read_one_by_one_are_looked_at_when_they_are() -> None:
    listed = list(zip(X, 2 * Y, strict=True))
    with pytest.raises(ValueError, match="labels in data"):
        ft.train(nn.Linear(3, 2), listed, PLAN, seed=1)
    ft.train(nn.Linear(3, 3), listed, PLAN, seed=1)


class Whitened(nn.Linear):
    """Divides each row by its spread, of which a row of zeros has none."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x / x.std(1, keepdim=True))


def test_weights_and_outputs_that_are_not_finite_are_not_passed_over_in_silence() -> None:
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, float("inf"))
    with pytest.raises(ValueError, match="weight is not"):
        ft.train(model, (X, Y), PLAN)
    with pytest.warns(NonFiniteRecordsWarning, match="outputs on"):
        run = ft.train(Whitened(3, 2), (X, Y), PLAN)
    assert run.history[-1].non_finite == 0


@pytest.mark.parametrize("piece", [1, 9, 1 << 20])  # numbers that are added at a time
def test_features_that_are_not_finite_are_not_passed_over_in_silence(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_NUMBERS", piece)
    holes = X.copy()
    holes[3, 1], holes[7, 0], holes[7, 2] = np.nan, np.inf, np.nan
    with pytest.warns(NonFiniteRecordsWarning, match="2 of 60"):
        run = ft.train(nn.Linear(3, 2), (holes, Y), PLAN)
    assert np.isfinite(run.model.weight.detach().numpy()).all()
