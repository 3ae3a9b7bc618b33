from __future__ import annotations

import pytest
import torch

from forethought.plans import Optimizer
from forethought.training.optimizers import NAMES, make_optimizer


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
        (Optimizer("sgd", 0.1, (("momentun", 0.9),)), "no option 'momentun'"),
        (Optimizer("sgd", 0.1, (("momentum", -1.0),)), "momentum"),
        (Optimizer("nowhere:Thing"), "cannot be loaded"),
        (Optimizer("torch:Tensor", options=()), "not a subclass"),
    ],
)
def test_wrong_optimizers_are_refused(optimizer: Optimizer, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_optimizer(optimizer, parameters())
