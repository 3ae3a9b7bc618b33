"""Groups are lanes of several examples: their mean gradient, alone, with batch normalisation."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drawn import randint, randn, randperm, reseed
from forethought.gradients import SlowGradientsWarning, clipped, clipped_sum
from forethought.gradients.batches import Blocks
from forethought.gradients.sums import Dense


def classify(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5),
        nn.BatchNorm1d(5, track_running_stats=False),
        nn.Linear(5, 3),
    )


def separate() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)
    )


def recurrent() -> nn.Module:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(6, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x.flatten(1, 2))[0][:, -1])

    return Net()


def means(model: nn.Module, x: Tensor, y: Tensor, groups: Tensor) -> list[dict[str, Tensor]]:
    """The oracle: an ordinary pass over each group, by a copy of the model."""
    found = []
    for group in groups.unique().tolist():
        twin, mine = copy.deepcopy(model), groups == group
        classify(twin(x[mine]), y[mine]).mean().backward()
        found.append({n: p.grad for n, p in twin.named_parameters() if p.grad is not None})
    return found


SIZES = {"pairs": [2, 2, 2], "unequal": [3, 5, 2, 3], "long": [9, 12], "one": [14]}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("make", [normalised, separate, recurrent])
def test_a_group_has_its_mean_gradient(make: Callable[[], Any], sizes: str) -> None:
    reseed(0)
    groups = torch.cat([torch.full((n,), i) for i, n in enumerate(SIZES[sizes])])
    groups = groups[randperm(len(groups))]
    model = make().double()
    x, y = randn(len(groups), 2, 6, 6).double(), randint(0, 3, (len(groups),))
    before = copy.deepcopy(model.state_dict())
    rows = means(model, x, y, groups)
    norms = torch.stack([torch.cat([g.flatten() for g in row.values()]).norm() for row in rows])
    clip_norm = float(norms.max()) * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowGradientsWarning)
        sums, found = clipped_sum(model, classify, x, y, clip_norm, groups)
    torch.testing.assert_close(found, norms, rtol=1e-6, atol=0)
    for name, value in sums.items():
        wanted = sum(row[name] for row in rows)
        torch.testing.assert_close(value, wanted, rtol=1e-6, atol=1e-7)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("size", [3, 9])
def test_a_group_does_not_see_another(size: int) -> None:
    reseed(0)
    groups = torch.arange(3).repeat_interleave(size)
    model = normalised()
    x, y = randn(len(groups), 2, 6, 6), randint(0, 3, (len(groups),))
    other = x.clone()
    other[0] = 100 * randn(2, 6, 6)
    sums, norms = clipped_sum(model, classify, x, y, 0.1, groups)
    moved, others = clipped_sum(model, classify, other, y, 0.1, groups)
    assert torch.equal(norms[1:], others[1:]) and not torch.equal(norms[0], others[0])
    squares = sum(float((sums[n] - moved[n]).square().sum()) for n in sums)
    assert 0 < squares <= 0.2**2


def test_a_group_that_keeps_what_it_saw_is_refused() -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.mean.mul_(0.9).add_(x.mean(0))
            return self.layer(x - self.mean)

    for size in (2, 10):
        groups = torch.arange(2).repeat_interleave(size)
        x, y = randn(2 * size, 4), randint(0, 3, (2 * size,))
        with pytest.raises(ValueError, match=r"mean|not theirs"):
            clipped_sum(Keeps(), classify, x, y, 1.0, groups)


@pytest.mark.parametrize("size", [2, 5])
def test_how_many_groups_there_are_changes_no_bit_of_one(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = clipped.contributions

    def varying(model: Any, loss: Any, batch: Any, trained: Any) -> dict[str, Any]:
        found = honest(model, loss, batch, trained)
        if batch.each == 1 or batch.lanes <= 16:
            return found
        return {n: Dense(term.rows() * (1 + 2**-22)) for n, term in found.items()}

    monkeypatch.setattr(clipped, "contributions", varying)
    reseed(0)
    model = separate()
    x, y = randn(20 * size, 2, 6, 6), randint(0, 3, (20 * size,))

    def norms(count: int, blocks: Blocks | None) -> Tensor:
        groups, some = torch.arange(count).repeat_interleave(size), count * size
        return clipped_sum(model, classify, x[:some], y[:some], 1.0, groups, blocks=blocks)[1]

    assert not torch.equal(norms(10, None), norms(20, None)[:10])  # sixteen lanes, and 32
    assert torch.equal(norms(10, Blocks((16, 32))), norms(20, Blocks((16, 32)))[:10])
