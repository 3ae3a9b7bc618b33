"""Per-example gradients in the form that is cheapest to hold.

A *term* is the gradient of one parameter for every example of a batch. It can say the squared
norm of each, sum them with weights, and be written out in full (``rows``), which costs batch ×
parameters and is done only where the cost model finds it cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from forethought.gradients.cost import rates
from forethought.gradients.trees import sum_dtype


class Term(Protocol):
    """The gradient of one parameter for each of B examples."""

    def squared_norms(self) -> Tensor:
        """Shape (B,)."""

    def weighted(self, factors: Tensor) -> Tensor:
        """Σ_b factors[b]·gradient_b, in the parameter's shape."""

    def rows(self) -> Tensor:
        """Shape (B, *parameter shape)."""

    def without(self, bad: Tensor) -> Term:
        """The same with the gradients of the examples in the mask ``bad`` set to zero."""

    def settled(self) -> Term:
        """The form that is cheapest to keep until the factors are known."""

    def way(self) -> str:
        """How the norm is taken, in a word or two."""


def zeroed(values: Tensor, bad: Tensor) -> Tensor:
    """A copy whose rows in the mask are zero: 0·inf would be NaN, so scaling is not enough."""
    mask = bad.view(-1, *(1,) * (values.dim() - 1))
    return values.masked_fill(mask, 0)


def floor(values: Tensor) -> float:
    """What flushing small squares to zero can hide in a sum of squares over one example."""
    count = values[0].numel() if values.shape[0] else 0
    return count * torch.finfo(values.dtype).tiny


def wide(values: Tensor) -> Tensor:
    """In the precision of norms and sums."""
    kind = values.dtype
    return values if kind in (torch.float32, torch.float64) else values.to(sum_dtype(kind))


@dataclass
class Dense:
    """Gradients written out: ``values`` of shape (B, *parameter shape)."""

    values: Tensor

    def squared_norms(self) -> Tensor:
        flat = wide(self.values).reshape(self.values.shape[0], -1)
        squares: Tensor = torch.linalg.vector_norm(flat, dim=1).square_()
        return squares.add_(floor(flat))

    def weighted(self, factors: Tensor) -> Tensor:
        values = wide(self.values)
        total = factors.to(values.dtype) @ values.reshape(values.shape[0], -1)
        return total.view(values.shape[1:])

    def rows(self) -> Tensor:
        return self.values

    def without(self, bad: Tensor) -> Dense:
        return Dense(zeroed(self.values, bad))

    def settled(self) -> Dense:
        return self

    def way(self) -> str:
        return "per-example"


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


@dataclass
class Outer:
    """Σ_t left_t ⊗ right_t per example, as in every linear map and embedding.

    ``blocks``: pairs of left (B, T, m), or :class:`OneHot`, and right (B, T, n); several blocks
    (T may differ) are summed, which is how tied and reused weights come out exact.
    ``transposed``: the parameter has the shape (n, m).
    """

    blocks: Sequence[Block]
    transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Of the parameter."""
        _, _, m, n = self._sizes
        return (n, m) if self.transposed else (m, n)

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        left, right = self.blocks[0]
        m = left.size if isinstance(left, OneHot) else left.shape[2]
        return right.shape[0], sum(b.shape[1] for _, b in self.blocks), m, right.shape[2]

    def _writing_wins(self) -> bool:
        batch, time, m, n = self._sizes
        if time == 1 and len(self.blocks) == 1:
            return False
        if any(isinstance(left, OneHot) for left, _ in self.blocks):
            return False
        rate = rates(self.blocks[0][1].device)
        width = self.blocks[0][1].element_size()
        written, held = m * n * width, time * (m + n) * width
        gram = time * time
        ghost = 2 * gram * (m + n) * rate.product + 4 * gram * width * rate.move
        # Written once, read for the norm, read for the sum; thin products run at a fraction.
        thin = 2 * time * m * n * rate.product * min(4.0, 16 / time)
        writing = 3 * written * rate.move + thin
        return 4 * written <= 5 * held and batch * writing < batch * ghost

    def squared_norms(self) -> Tensor:
        if len(self.blocks) == 1:
            return _square(*self.blocks[0])
        total = torch.zeros((), device=self.blocks[0][1].device)
        for i, one in enumerate(self.blocks):
            total = total + _square(*one)
            for other in self.blocks[i + 1 :]:
                total = total + 2 * _cross(one, other)
        return total.clamp(min=0)

    def weighted(self, factors: Tensor) -> Tensor:
        total: Tensor | None = None
        for left, right in self.blocks:
            right = wide(right)
            scale = factors.to(right.dtype).view(-1, 1, 1)
            if isinstance(left, OneHot):
                part = right.new_zeros(left.size, right.shape[2])
                part.index_add_(0, left.index.flatten(), (right * scale).flatten(0, 1))
                part = part.t() if self.transposed else part
            else:
                one, other = wide(left), right
                # Scale the narrower side.
                if one.shape[2] <= other.shape[2]:
                    one = one * scale
                else:
                    other = other * scale
                first, second = (other, one) if self.transposed else (one, other)
                if not (first.is_contiguous() and second.is_contiguous()):
                    # Time first, as recurrent layers have it: flat without a copy.
                    first, second = first.transpose(0, 1), second.transpose(0, 1)
                part = first.flatten(0, 1).t() @ second.flatten(0, 1)
            total = part if total is None else total.add_(part)
        assert total is not None  # an Outer has at least one block
        return total

    def rows(self) -> Tensor:
        total: Tensor | None = None
        for left, right in self.blocks:
            right = wide(right)
            one = left.dense(right) if isinstance(left, OneHot) else wide(left)
            first, second = (right, one) if self.transposed else (one, right)
            part = torch.bmm(first.transpose(1, 2), second)
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    def without(self, bad: Tensor) -> Outer:
        blocks = [
            (left if isinstance(left, OneHot) else zeroed(left, bad), zeroed(right, bad))
            for left, right in self.blocks
        ]
        return Outer(blocks, self.transposed)

    def settled(self) -> Term:
        return Dense(self.rows()) if self._writing_wins() else self

    def way(self) -> str:
        if any(isinstance(left, OneHot) for left, _ in self.blocks):
            return "row sums" if len(self.blocks) == 1 else "ghost, tied"
        if self._sizes[1] == 1:
            return "product of norms"
        return "per-example" if self._writing_wins() else "ghost"


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


def _square(left: Left, right: Tensor) -> Tensor:
    right = wide(right)
    if isinstance(left, OneHot):
        return _row_sums(left, right)
    left = wide(left)
    if right.shape[1] == 1:
        one, other = (torch.linalg.vector_norm(v, dim=(1, 2)).square_() for v in (left, right))
        squares: Tensor = one.add_(floor(left)).mul_(other.add_(floor(right)))
        return squares
    return in_chunks(_gram_square, left, right, cells=right.shape[1] ** 2)


def _gram_square(left: Tensor, right: Tensor) -> Tensor:
    return gram_product(torch.bmm(left, left.mT), torch.bmm(right, right.mT))


def gram_product(one: Tensor, other: Tensor) -> Tensor:
    """Σ_ts one[t,s]·other[t,s] per example, rounded upwards, for two Gram matrices (B, T, T).

    Where the gradients of different t cancel, the sum is small against its diagonal and only as
    exact as that; 16 units in the last place of the diagonal cover it, so that a norm is never
    underestimated by rounding.
    """
    trace, traces = (g.diagonal(dim1=1, dim2=2) for g in (one, other))
    slack = (trace * traces).sum(1) * (16 * torch.finfo(one.dtype).eps)
    lost = torch.finfo(one.dtype).tiny * one.shape[1]
    slack = slack + lost * (trace.sum(1) + traces.sum(1))
    # An elementwise product is several times faster here than a batched dot product.
    return (one * other).sum((1, 2)).clamp(min=0) + slack


def in_chunks(
    function: Callable[..., Tensor], *tensors: Tensor, cells: int, limit: int = 1 << 22
) -> Tensor:
    """``function`` over slices of the batch so that about ``limit`` cells exist at a time."""
    size = tensors[0].shape[0]
    step = max(1, limit // max(1, cells))
    if step >= size:
        return function(*tensors)
    parts = [function(*(t[at : at + step] for t in tensors)) for at in range(0, size, step)]
    return torch.cat(parts)


def _row_sums(left: OneHot, right: Tensor) -> Tensor:
    # ‖Σ_t e_{i(t)} ⊗ h_t‖² is the sum over distinct rows i of ‖Σ_{t: i(t)=i} h_t‖².
    batch, _, n = right.shape
    key = left.index + left.size * torch.arange(batch, device=right.device).unsqueeze(1)
    rows, place = torch.unique(key, return_inverse=True)
    sums = right.new_zeros(rows.numel(), n).index_add_(0, place.flatten(), right.reshape(-1, n))
    squares = sums.square().sum(1) + n * torch.finfo(right.dtype).tiny
    owner = torch.div(rows, left.size, rounding_mode="floor")
    return right.new_zeros(batch).index_add_(0, owner, squares)


def _cross(one: Block, other: Block) -> Tensor:
    # ⟨Σ_t a_t ⊗ x_t, Σ_s b_s ⊗ y_s⟩ = Σ_ts (a_t·b_s)(x_t·y_s)
    (left, right), (lefts, rights) = one, other
    right, rights = wide(right), wide(rights)
    inner = torch.bmm(right, rights.mT)
    if isinstance(left, OneHot) and isinstance(lefts, OneHot):
        match = left.index.unsqueeze(2) == lefts.index.unsqueeze(1)
        return (inner * match).sum((1, 2))
    if isinstance(lefts, OneHot):
        return _cross(other, one)
    if isinstance(left, OneHot):
        picked = torch.gather(
            wide(lefts), 2, left.index.unsqueeze(1).expand(-1, lefts.shape[1], -1)
        )
        return (inner * picked.mT).sum((1, 2))
    return (inner * torch.bmm(wide(left), wide(lefts).mT)).sum((1, 2))


def sums_to(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Reduce (B, …) per example to (B, *shape): the reverse of broadcasting ``shape``."""
    extra = values.dim() - 1 - len(shape)
    dims = [*range(1, 1 + extra)]
    dims += [
        1 + extra + i
        for i, size in enumerate(shape)
        if size == 1 and values.shape[1 + extra + i] != 1
    ]
    total = wide(values)
    total = total.sum(dims) if dims else total
    return total.reshape(values.shape[0], *shape)


def numel(shape: Sequence[int]) -> int:
    """Number of elements of a shape."""
    return math.prod(shape)
