"""Where torch's own batching rules are wrong: the engine must not lean on them.

Found by comparing torch.vmap with a loop over torch's own samples of 702 operators, and over every
pair of shapes below for functions of two tensors. ``test_rules_of_two_tensors`` repeats the latter
and says when torch has changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from adversaries.attack import Attack, Attacks, Run, classify, head, withstand
from torch import Tensor
from torch.nn import functional as F

from drawn import randn, reseed

attack = Attacks()


def definite(x: Tensor) -> Tensor:
    """Four by four, far from singular, with the example's batch of one in front."""
    return x[:, :4, None] * x[:, None, 4:] + 20 * torch.eye(4)


def shifting(shift: Callable[[Tensor], Tensor]) -> Any:
    """A model that scales its logits by what ``shift`` makes of an example."""
    model = Run(lambda self, x: self.head(x) * (1 + shift(x).sum()), head=head())
    return model, classify


@attack("apart")
def solving_with_one_matrix_and_several_columns() -> Any:
    return shifting(lambda x: torch.linalg.solve(definite(x), x.view(4, 2)))


@attack("apart")
def solving_from_the_right() -> Any:
    return shifting(lambda x: torch.linalg.solve(definite(x), x.view(2, 4), left=False))


@attack("apart")
def solving_with_a_shared_matrix() -> Any:
    return shifting(lambda x: torch.linalg.solve(4 * torch.eye(4), x.view(1, 4, 2)))


@attack("apart")
def solving_without_checks() -> Any:
    return shifting(lambda x: torch.linalg.solve_ex(definite(x), x.view(4, 2))[0])


@attack("apart")
def least_squares() -> Any:
    return shifting(lambda x: torch.linalg.lstsq(definite(x), x.view(4, 2)).solution)


@attack("apart")
def solving_with_factors() -> Any:
    def shift(x: Tensor) -> Tensor:
        return torch.linalg.lu_solve(*torch.linalg.lu_factor(definite(x)[0]), x.view(1, 4, 2))

    return shifting(shift)


@attack("apart")
def rolling_a_number() -> Any:
    return shifting(lambda x: x.mean().roll(1))


@attack("apart")
def rolling_a_number_by_the_function() -> Any:
    return shifting(lambda x: torch.roll(x.mean(), 1))


@attack("apart")
def filling_with_a_number() -> Any:
    return shifting(lambda x: torch.zeros(3).index_fill(0, torch.tensor([1]), x.mean()))


@attack("apart")
def filling_in_place_with_a_number() -> Any:
    return shifting(lambda x: torch.zeros_like(x).index_fill_(1, torch.tensor([1]), x.mean()))


@attack("apart")
def solving_for_parameters() -> Any:
    model = Run(
        lambda self, x: self.head(x) * torch.linalg.solve(definite(x), self.side).sum(),
        head=head(),
        side=randn(4, 2),
    )
    return model, classify


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("attack", attack.parameters())
def test_batching_rule(attack: Attack) -> None:
    withstand(attack)


def numbers(*shape: int) -> Tensor:
    return randn(shape, dtype=torch.float64)


def matrices(lead: tuple[int, ...]) -> Tensor:
    half = numbers(*lead, 4, 4)
    return half @ half.mT + 3 * torch.eye(4, dtype=torch.float64)


def rows(lead: tuple[int, ...]) -> Tensor:
    return numbers(*lead, 4)


def counts(values: Tensor, below: int = 3) -> Tensor:
    return values.abs().long() % below


Maker = Callable[[tuple[int, ...]], Tensor]
PAIRS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Maker]] = {
    "solve": (torch.linalg.solve, matrices),
    "solve from the right": (lambda a, b: torch.linalg.solve(a, b, left=False), matrices),
    "lstsq": (lambda a, b: torch.linalg.lstsq(a, b).solution, matrices),
    "lu_solve": (lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b), matrices),
    "solve_triangular": (
        lambda a, b: torch.linalg.solve_triangular(a.triu(), b, upper=True),
        matrices,
    ),
    "cholesky_solve": (lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(a)), matrices),
    "matmul": (torch.matmul, matrices),
    "linear": (F.linear, matrices),
    "tensordot": (lambda a, b: torch.tensordot(a, b, 1), matrices),
    "cdist": (torch.cdist, matrices),
    "attention mask": (lambda a, b: F.scaled_dot_product_attention(a, a, a, b), matrices),
    "vecdot": (torch.linalg.vecdot, rows),
    "cosine_similarity": (F.cosine_similarity, rows),
    "inner": (torch.inner, rows),
    "kron": (torch.kron, rows),
    "prelu": (F.prelu, rows),
    "where": (lambda a, b: torch.where(a > 0, a, b), rows),
    "atan2": (torch.atan2, rows),
    "copy_": (lambda a, b: a.clone().copy_(b), rows),
    "add_": (lambda a, b: a.clone().add_(b), rows),
    "masked_fill": (lambda a, b: a.masked_fill(b > 0, 1.0), rows),
    "gather": (lambda a, b: torch.gather(a, 0, counts(b, 1)), rows),
    "take": (lambda a, b: torch.take(a, counts(b)), rows),
    "take_along_dim": (lambda a, b: torch.take_along_dim(a, counts(b), -1), rows),
    "searchsorted": (lambda a, b: torch.searchsorted(a.sort(-1).values, b).double(), rows),
    "index": (lambda a, b: a[..., counts(b)], rows),
    "index_put": (lambda a, b: a.index_put((counts(b, 1),), b.sum()), rows),
}
WRONG = {"solve", "solve from the right", "lstsq", "lu_solve"}
SIDES = [(), (4,), (1,), (3,), (4, 2), (4, 4), (3, 4), (1, 4), (1, 4, 2), (3, 4, 2), (4, 4, 4)]


def compared(function: Callable[[Tensor, Tensor], Tensor], make: Maker) -> tuple[int, int]:
    """How many forms vmap runs, and in how many of them it differs from a loop."""
    ran = wrong = 0
    for lead in [(), (1,), (3,), (4,), (1, 1), (3, 1)]:
        for side in SIDES:
            for dims in ((0, 0), (0, None), (None, 0)):
                first = [make(lead) for _ in range(3)]
                second = [numbers(*side) for _ in range(3)]
                if dims[0] is None:
                    first = first[:1] * 3
                if dims[1] is None:
                    second = second[:1] * 3
                one = torch.stack(first) if dims[0] == 0 else first[0]
                two = torch.stack(second) if dims[1] == 0 else second[0]
                try:
                    want = torch.stack([function(a, b) for a, b in zip(first, second, strict=True)])
                    got = torch.vmap(function, in_dims=dims)(one, two)
                except (RuntimeError, IndexError, ValueError):
                    continue
                ran += 1
                same = got.shape == want.shape and torch.allclose(got, want, equal_nan=True)
                wrong += not same
    return ran, wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_rules_of_two_tensors(name: str) -> None:
    reseed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ran, wrong = compared(*PAIRS[name])
    assert ran
    if name in WRONG:
        assert wrong, "torch has mended this rule: the engine need not go around it any more"
    else:
        assert not wrong, f"torch's batching rule mixes examples in {wrong} of {ran} forms"
