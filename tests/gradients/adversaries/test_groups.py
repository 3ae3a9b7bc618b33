"""Groups are lanes of several examples: inside they may mix, between them nothing may."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from adversaries.attack import D, Run, classify, head
from torch import Tensor, nn
from torch.nn import functional as F
from zoo.oracle import difference, length

from drawn import randint, randn, randperm, reseed
from forethought.gradients import clipped_sum

MODELS: dict[str, Any] = {
    "plain": lambda: nn.Sequential(nn.Linear(D, D), nn.Tanh(), head()),
    "batch norm": lambda: nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.Tanh(), head()),
    "centred": lambda: Run(
        lambda self, x: self.head(torch.tanh(self.body(x - x.mean(0)))),
        head=head(),
        body=nn.Linear(D, D),
    ),
    "branching": lambda: Run(
        lambda self, x: self.head(self.body(x) if bool(x.sum() > 0) else x),
        head=head(),
        body=nn.Linear(D, D),
    ),
    "functional batch norm": lambda: Run(
        lambda self, x: self.head(F.batch_norm(self.body(x), None, None, training=True)),
        head=head(),
        body=nn.Linear(D, D),
    ),
}


def alone(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    twin = copy.deepcopy(model)
    classify(twin(x), y).mean().backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in twin.named_parameters()
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [2, 5, 9])
def test_a_group_sees_its_own_records_only(name: str, size: int) -> None:
    """Uneven groups, the third of them larger; each against an ordinary pass over it alone."""
    reseed(0)
    model = MODELS[name]()
    groups = torch.tensor([k for k in range(3) for _ in range(size + (k == 2))])
    groups = groups[randperm(len(groups))]
    x, y = randn(len(groups), D), randint(0, 3, (len(groups),))
    before = copy.deepcopy(model.state_dict())
    wanted = [alone(model, x[groups == k], y[groups == k]) for k in range(3)]
    got, norms = clipped_sum(model, classify, x, y, 1e6, groups)
    torch.testing.assert_close(norms, torch.tensor([length(w) for w in wanted]), rtol=1e-4, atol=0)
    total = {key: sum(w[key].double() for w in wanted) for key in got}
    assert difference(got, total) <= 1e-4 * length(total)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), f"{key} was changed"

    clip_norm = float(norms.min()) / 2
    here, norms = clipped_sum(model, classify, x, y, clip_norm, groups)
    other = x.clone()
    other[groups.tolist().index(1)] = 30 * randn(D)
    there, moved = clipped_sum(model, classify, other, y, clip_norm, groups)
    torch.testing.assert_close(norms[[0, 2]], moved[[0, 2]], rtol=1e-4, atol=1e-7)
    assert difference(here, there) <= 2 * clip_norm * (1 + 1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", [2, 9])
def test_what_a_group_leaves_reaches_no_other(size: int) -> None:
    def forward(self: Run, x: Tensor) -> Tensor:
        y = self.head(x + self.memory[0])
        self.memory[0] = float(x.mean())
        return y

    groups = torch.arange(3).repeat(size)
    x, y = randn(3 * size, D), randint(0, 3, (3 * size,))
    model = Run(forward, head=head(), memory=[0.0])
    norms = []
    for scale in (1.0, 40.0):
        changed = x.clone()
        changed[0] *= scale
        try:
            norms.append(clipped_sum(model, classify, changed, y, 1.0, groups)[1])
        except ValueError:
            return
        assert model.memory == [0.0]
    torch.testing.assert_close(norms[0][1:], norms[1][1:], rtol=1e-4, atol=1e-7)
