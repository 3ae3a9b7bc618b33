"""Random numbers: no record's data decides what another record draws."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from adversaries.attack import B, Run, classify, head, vectors
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients import clipped_sum


def uneven(draw: Callable[[Any, int], Any]) -> Callable[..., Tensor]:
    """A model that draws once or thrice, as its example has it."""

    def forward(self: Run, x: Tensor) -> Tensor:
        count = 1 if bool(x.mean() > 0) else 3
        return self.head(x * draw(self, count))

    return forward


OWN: dict[str, Callable[[], Run]] = {
    "numpy": lambda: Run(
        uneven(lambda self, n: float(self.numbers.random(n).mean())),
        head=head(),
        numbers=np.random.default_rng(0),
    ),
    "torch": lambda: Run(
        uneven(lambda self, n: torch.rand(n, generator=self.numbers).mean()),
        head=head(),
        numbers=torch.Generator().manual_seed(0),
    ),
    "python": lambda: Run(
        uneven(lambda self, n: sum(self.numbers.random() for _ in range(n)) / n),
        head=head(),
        numbers=random.Random(0),
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OWN)
def test_a_generator_of_the_models_own_is_where_it_was_for_every_example(kind: str) -> None:
    """Its seed is no secret: an example that draws more must not move what others draw."""
    x, y = vectors()
    for record in range(B):
        other = x.clone()
        other[record] = -3 * x[record]
        norms = []
        for inputs in (x, other):
            torch.manual_seed(0)
            try:
                norms.append(clipped_sum(OWN[kind](), classify, inputs, y, 0.01)[1])
            except ValueError as refusal:
                assert "numbers" in str(refusal) or "generator" in str(refusal).lower()
                return
        rest = [i for i in range(B) if i != record]
        torch.testing.assert_close(norms[0][rest], norms[1][rest], rtol=1e-4, atol=1e-7)


def masks(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum(1)


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def parting(x: Tensor) -> Tensor:
    return x * 1.0 if bool(x.mean() > 0) else x * 2.0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", [lambda x: x, parting, Same.apply], ids=["lanes", "parts", "loop"])
def test_every_example_draws_a_dropout_mask_of_its_own(way: Any) -> None:
    """Two equal masks of 64 numbers among 16 have a probability of 120/2^64."""

    def forward(self: Run, x: Tensor) -> Tensor:
        # Row i of the weight is example i's, so that each mask shows in the gradient.
        mask = F.dropout(torch.ones(1, 64), 0.5)
        return mask * (way(x)[:, :16] @ self.rows)

    x = torch.cat([torch.eye(16), torch.eye(16) * torch.tensor([1.0, -3.0]).repeat(8)[:, None]], 1)
    model = Run(forward, rows=torch.ones(16, 64))
    gradients, _ = clipped_sum(model, masks, x, torch.zeros(16), 1e9)
    drawn = {tuple(row.ne(0).tolist()) for row in gradients["rows"]}
    assert len(drawn) == 16


@pytest.mark.filterwarnings("ignore")
def test_a_seed_from_the_data_reaches_nobody_else() -> None:
    def forward(self: Run, x: Tensor) -> Tensor:
        x = F.dropout(x, 0.5)
        torch.manual_seed(int(x.abs().sum() * 1000) % 1000)
        return self.head(F.dropout(x, 0.2))

    model = Run(forward, head=head())
    x, y = vectors()
    after = []
    for scale in (1.0, 7.0):
        torch.manual_seed(0)
        inputs = x.clone()
        inputs[2] *= scale
        clipped_sum(model, classify, inputs, y, 0.1)
        after.append(torch.rand(3))
    assert torch.equal(after[0], after[1]), "the generator's state tells of a record"


def test_two_passes_draw_differently() -> None:
    model = Run(lambda self, x: self.head(F.dropout(x, 0.5)), head=head())
    x, y = vectors()
    norms = [clipped_sum(model, classify, x, y, 0.1)[1] for _ in range(2)]
    assert not torch.equal(norms[0], norms[1])


def test_a_mean_over_masks_is_that_of_ordinary_dropout() -> None:
    """E[mask/(1 − p)] = 1: 4,000 masks' mean is within 6 standard errors (false alarm < 1e-7)."""
    model = Run(lambda self, x: F.dropout(x, 0.5) * self.weight, weight=torch.ones(8))
    torch.manual_seed(1)
    gradients, _ = clipped_sum(model, masks, torch.ones(4000, 8), torch.zeros(4000), 1e9)
    assert float((gradients["weight"] / 4000 - 1).abs().max()) < 6 / 4000**0.5
