from __future__ import annotations

import pytest
import torch

import forethought as ft
from forethought.training.optimizers import NAMES, make_optimizer
from forethought.values.use import Optimizer


class Mine(torch.optim.SGD):
    pass


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(3))]


def test_options_and_step_size_arrive() -> None:
    optimizer = make_optimizer(Optimizer("adam", 0.03, (("betas", [0.8, 0.9]),)), parameters())
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.param_groups[0]["lr"] == 0.03
    assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)


def test_own_optimizer_by_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim, "Mine", Mine, raising=False)
    assert isinstance(make_optimizer(Optimizer("torch.optim:Mine"), parameters()), Mine)


def test_sgd_and_adam_are_known() -> None:
    assert {"sgd", "adam", "adamw", "rmsprop", "adagrad"} <= set(NAMES)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (Optimizer("sdg"), "did you mean 'sgd'"),
        (Optimizer("lbfgs"), "without noise"),
        (Optimizer("sparseadam"), "sparse gradients"),  # noised sums are dense
        (Optimizer("torch.optim:SparseAdam"), "sparse gradients"),
        (Optimizer("sgd", 0.1, (("momentun", 0.9),)), "no option 'momentun'"),
        (Optimizer("nowhere:Thing"), "cannot be loaded"),
        (Optimizer("torch:Tensor", options=()), "not a subclass"),
    ],
)
def test_wrong_optimizers_are_refused(optimizer: Optimizer, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_optimizer(optimizer, parameters())


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sgd", {"momentum": 1.0}, "momentum of sgd must be .* below 1"),
        ("sgd", {"momentum": "much"}, "momentum of sgd must be a number"),
        ("adam-bc", {"floor": -1.0}, "floor of adam-bc must be .* above 0"),
        ("adam-bc", {"floor": float("nan")}, "floor of adam-bc must be .* above 0"),
        ("adam-bc", {"betas": (0.9,)}, "betas of adam-bc must be two numbers"),
        ("adamw", {"betas": (0.9, 1.0)}, "betas of adamw must be .* below 1"),
    ],
)
@pytest.mark.parametrize("rate", [None, 0.1])
def test_options_out_of_range_are_refused_when_the_run_is_planned(
    name: str, options: dict[str, object], message: str, rate: float | None
) -> None:
    budget = ft.Budget(2.0, 1e-4)
    with pytest.raises((TypeError, ValueError), match=message):
        ft.plan(
            examples=60,
            budget=budget,
            rounds=2,
            optimizer=name,
            options=options,
            learning_rate=rate,
        )
