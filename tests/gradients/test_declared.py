"""Models whose batch is declared: right gradients, and a stop where that is not true."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drawn import randint, randn, reseed
from forethought.gradients import BatchDims, clipped_sum

B = 5


def classify(outputs: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


class TimeMajor(nn.Module):
    """Takes and gives (time, batch, n), counts its batch, and may mix it."""

    def __init__(self, mix: float = 0.0) -> None:
        super().__init__()
        self.layer, self.head, self.mix = nn.Linear(4, 6), nn.Linear(6, 3), mix

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(torch.tanh(self.layer(x)).mean(0, keepdim=True))
        return y + self.mix * y.mean(1, keepdim=True)


def last(outputs: Tensor, targets: Tensor) -> Tensor:
    return classify(outputs[:, 0], targets)


DIMS = BatchDims(inputs=1, outputs=1)


def test_a_declared_model_has_the_gradients_of_its_examples() -> None:
    reseed(0)
    model, x, y = TimeMajor().double(), randn(7, B, 4).double(), randint(0, 3, (B,))
    parameters = list(model.parameters())
    values = classify(model(x)[0], y)
    rows = [torch.autograd.grad(v, parameters, retain_graph=True) for v in values]
    norms = torch.stack([torch.cat([g.flatten() for g in row]).norm() for row in rows])
    clip_norm = float(norms.median())
    sums, found = clipped_sum(model, last, x, y, clip_norm, batch_dims=DIMS)
    torch.testing.assert_close(found, norms, rtol=1e-6, atol=0)
    for i, value in enumerate(sums.values()):
        wanted = sum(
            r[i] * min(1.0, clip_norm / float(n)) for r, n in zip(rows, norms, strict=True)
        )
        assert float((value - wanted).norm()) <= 3e-2 * clip_norm


def test_a_declared_table_may_have_sparse_gradients() -> None:
    reseed(0)
    tables = [nn.Embedding(6, 3, sparse=sparse) for sparse in (True, False)]
    tables[1].load_state_dict(tables[0].state_dict())
    words, y = randint(0, 6, (B,)), randint(0, 3, (B,))
    one, other = (clipped_sum(t, classify, words, y, 1.0, batch_dims=BatchDims()) for t in tables)
    assert torch.equal(one[0]["weight"], other[0]["weight"])
    assert torch.equal(one[1], other[1])


def test_a_declaration_that_is_not_true_stops_the_step() -> None:
    reseed(0)
    model, x, y = TimeMajor(mix=0.01), randn(7, B, 4), randint(0, 3, (B,))
    with pytest.raises(RuntimeError, match="mixes examples"):
        clipped_sum(model, last, x, y, 1.0, batch_dims=DIMS)


def test_examples_that_spoil_each_other_with_no_number_stop_the_step() -> None:
    class Spoilt(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x - 0 * x.mean(0))

    reseed(0)
    x, y = randn(2, 4), randint(0, 3, (2,))
    x[0, 0] = torch.inf
    with pytest.raises(RuntimeError, match="mixes examples"):
        for _ in range(60):  # the example that is computed alone is drawn at random
            clipped_sum(Spoilt(4, 3), classify, x, y, 1.0, batch_dims=BatchDims())


def test_what_a_statement_has_to_say() -> None:
    assert "declared" in DIMS.assumption and "inputs 1" in DIMS.assumption


def test_random_numbers_and_groups_are_refused() -> None:
    model, x, y = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), randn(B, 4), torch.ones(B)
    with pytest.raises(ValueError, match="dropout"):
        clipped_sum(model, classify, x, y.long(), 1.0, batch_dims=BatchDims())
    groups = torch.zeros(B, dtype=torch.long)
    with pytest.raises(ValueError, match="together"):
        clipped_sum(model, classify, x, y.long(), 1.0, groups, batch_dims=BatchDims())


def test_trees_of_inputs_have_a_dimension_each() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            return self.layer(first.mean(0) + second)

    reseed(0)
    model, y = Two(), randint(0, 3, (B,))
    inputs = {"first": randn(2, B, 4), "second": randn(B, 4)}
    dims = BatchDims(inputs={"first": 1, "second": 0})
    _, norms = clipped_sum(model, classify, inputs, y, 1.0, batch_dims=dims)
    moved = {"x": inputs["first"].mean(0) + inputs["second"]}

    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model.layer

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    _, wanted = clipped_sum(One(), classify, moved, y, 1.0)
    torch.testing.assert_close(norms, wanted, rtol=1e-4, atol=0)
