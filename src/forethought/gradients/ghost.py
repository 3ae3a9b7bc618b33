"""Inner products of sums of outer products, from the factors alone (ghost norms).

⟨Σ_t a_t ⊗ x_t, Σ_s b_s ⊗ y_s⟩ = Σ_ts (a_t·b_s)(x_t·y_s): nothing of the parameter's size is formed.
A left factor may be one-hot, as in an embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forethought.gradients.rounding import (
    SLACK,
    gamma,
    gram,
    gram_product,
    in_chunks,
    lengths,
    roundings,
    square_sums,
    tiny,
)
from forethought.gradients.trees import sum_dtype


def wide(values: Tensor) -> Tensor:
    """In the precision of norms and sums."""
    kind = values.dtype
    return values if kind in (torch.float32, torch.float64) else values.to(sum_dtype(kind))


@dataclass
class OneHot:
    """Rows that are unit vectors: ``index`` (B, T) of their ones, out of ``size``."""

    index: Tensor
    size: int

    def dense(self, like: Tensor) -> Tensor:
        hot = torch.nn.functional.one_hot(self.index, self.size)
        return hot.to(like.dtype)


Left = Tensor | OneHot
Block = tuple[Left, Tensor]


def joined(blocks: Sequence[Block]) -> list[Block]:
    """The same sum with all dense blocks as one, and all one-hot blocks as one."""
    dense = [(left, right) for left, right in blocks if isinstance(left, Tensor)]
    hot = [(left, right) for left, right in blocks if isinstance(left, OneHot)]
    result: list[Block] = []
    if dense:
        lefts, rights = zip(*dense, strict=True)
        result.append((torch.cat(lefts, 1), torch.cat(rights, 1)))
    if hot:
        index = torch.cat([left.index for left, _ in hot], 1)
        result.append((OneHot(index, hot[0][0].size), torch.cat([r for _, r in hot], 1)))
    return result


def lengths_of(left: Left, right: Tensor) -> tuple[Tensor, Tensor]:
    """Upper bounds of the norms of the rows l_t and r_t, shape (B, T) each."""
    other = lengths(wide(right))
    return (torch.ones_like(other) if isinstance(left, OneHot) else lengths(wide(left))), other


def row_sums(left: OneHot, right: Tensor) -> Tensor:
    """Squared norms, (B,): rounded, but upper bounds for the row sums as they were rounded."""
    # ‖Σ_t e_{i(t)} ⊗ h_t‖² is the sum over distinct rows i of ‖Σ_{t: i(t)=i} h_t‖².
    batch, _, n = right.shape
    key = left.index + left.size * torch.arange(batch, device=right.device).unsqueeze(1)
    rows, place = torch.unique(key, return_inverse=True)
    sums = right.new_zeros(rows.numel(), n).index_add_(0, place.flatten(), right.reshape(-1, n))
    squares = square_sums(sums)
    owner = torch.div(rows, left.size, rounding_mode="floor")
    return squares.new_zeros(batch).index_add_(0, owner, squares)


def inner(one: Block, other: Block) -> Tensor:
    """The inner product of each example, float64, shape (B,)."""
    (left, right), (lefts, rights) = one, other
    if isinstance(left, Tensor) and isinstance(lefts, OneHot):
        return inner(other, one)
    right, rights = wide(right), wide(rights)
    cells = right.shape[1] * rights.shape[1]
    if isinstance(left, Tensor) and isinstance(lefts, Tensor):
        return in_chunks(_dense_inner, wide(left), right, wide(lefts), rights, cells=cells)
    assert isinstance(left, OneHot)
    products = gram(right, rights)
    if isinstance(lefts, OneHot):
        match = left.index.unsqueeze(2) == lefts.index.unsqueeze(1)
        return gram_product(products, match)
    index = left.index.unsqueeze(1).expand(-1, lefts.shape[1], -1)
    return gram_product(products, torch.gather(wide(lefts), 2, index).mT)


def gram_measures(left: Tensor, right: Tensor) -> Tensor:
    """Of Σ_t l_t ⊗ r_t for each example, float64, shape (B, 4), from two Gram matrices.

    The computed squared norm; upper bounds of Σ_t ‖l_t‖‖r_t‖, of the longest row on either side,
    and of Σ_t ‖l_t‖ + ‖r_t‖.
    """
    one, other = gram(left, left), gram(right, right)
    sides = []
    for products, values in ((one, left), (other, right)):
        # Sums of squares: nothing cancels on the diagonal.
        count, kind = values.shape[2], values.dtype
        squares = products.diagonal(dim1=1, dim2=2).double()
        squares = squares * (1 + 2 * gamma(roundings(count) + 4, kind)) + count * tiny(kind)
        sides.append(squares.sqrt_().mul_(SLACK))
    first, second = sides
    return torch.stack(
        [
            gram_product(one, other),
            (first * second).sum(1).mul_(SLACK),
            torch.maximum(first, second).amax(1),
            (first + second).sum(1),
        ],
        1,
    )


def _dense_inner(left: Tensor, right: Tensor, lefts: Tensor, rights: Tensor) -> Tensor:
    return gram_product(gram(left, lefts), gram(right, rights))
