"""Per-example gradients in the form that is cheapest to hold.

A *term* is the gradient of one parameter for every example of a batch. It bounds the norm of each
from above, sums them with weights, and can be written out in full (``rows``), which costs batch ×
parameters and is done only where the cost model finds it cheaper.

All of it is arithmetic on stored numbers, and each number that comes out carries a bound on its own
rounding (:mod:`.rounding`): docs/gradients.md, "The sum in floating point".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from forethought.gradients.cost import rates
from forethought.gradients.ghost import (
    Block,
    Left,
    OneHot,
    gram_measures,
    inner,
    lengths_of,
    row_sums,
    wide,
)
from forethought.gradients.rounding import (
    SLACK,
    gamma,
    in_blocks,
    in_chunks,
    lengths,
    product_in_blocks,
    roundings,
    tiny,
)
from forethought.gradients.trees import sum_dtype

# So many terms of a float64 sum are added up at a time, fewer where they are long: what is
# converted to float64 then stays in the cache until it is added.
SLAB, SHORTEST_SLAB, SLAB_NUMBERS = 1 << 13, 1 << 6, 1 << 19
# A squared norm whose rounding may exceed this share of it is taken again in float64.
LOOSE = 2.0**-6


class Bounds(NamedTuple):
    """What is proven of a term, float64, shape (B,) each; not finite where the gradient is not.

    Attributes:
        norms: at least the norm ‖Σ_t l_t ⊗ r_t‖ of the exact gradient.
        masses: at least Σ_t ‖l_t‖‖r_t‖, to which the rounding of sums is relative. None: nothing
            cancels, and masses are the norms.
        reach: at least the norm of every l_t and r_t; None where no product is formed later.
    """

    norms: Tensor
    masses: Tensor | None = None
    reach: Tensor | None = None


def mass_of(bounds: Bounds) -> Tensor:
    """The masses, where they are the norms too."""
    return bounds.norms if bounds.masses is None else bounds.masses


class Term(Protocol):
    """The gradient of one parameter for each of B examples.

    A class of your own needs the first five methods and ``way``; one without the others is
    written out when its bounds are needed (:func:`bounded`).
    """

    def squared_norms(self) -> Tensor:
        """Upper bounds of the squared norms, shape (B,), float64."""

    def weighted(self, factors: Tensor) -> Tensor:
        """Σ_b factors[b]·gradient_b, in the parameter's shape, float64."""

    def rows(self) -> Tensor:
        """Shape (B, *parameter shape)."""

    def without(self, bad: Tensor) -> Term:
        """The same with the gradients of the examples in the mask ``bad`` set to zero."""

    def settled(self) -> Term:
        """The form that is cheapest to keep until the factors are known."""

    def way(self) -> str:
        """How the norm is taken, in a word or two."""


class BoundedTerm(Term, Protocol):
    """A term that says how exact it is."""

    @property
    def added(self) -> int:
        """How many products are added up in one entry of the weighted sum."""

    @property
    def breadth(self) -> int:
        """How many products one example's gradient consists of, at most, for underflow."""

    def off(self, length: int | None) -> float:
        """How far :meth:`summed` may be off, in units of Σ_b factors[b]·masses[b]."""

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the numbers it holds, float32 or float64."""

    def bounds(self) -> Bounds:
        """Norms and masses, proven."""

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        """The weighted sum, float64.

        Args:
            factors: shape (B,), float32 or float64.
            length: None adds in float64. Otherwise in float32, so many products at a time, and
                the partial sums one after the other.
        """

    def picked(self, index: Tensor) -> BoundedTerm:
        """The term of the examples ``index``, in float64."""


def bounded(term: Term) -> BoundedTerm:
    """The term itself where it says how exact it is, else written out."""
    if hasattr(term, "bounds") and hasattr(term, "summed"):
        return term  # type: ignore[return-value]
    return Dense(term.rows())


def zeroed(values: Tensor, bad: Tensor) -> Tensor:
    """A copy whose rows in the mask are zero: 0·inf would be NaN, so scaling is not enough."""
    mask = bad.view(-1, *(1,) * (values.dim() - 1))
    return values.masked_fill(mask, 0)


@dataclass
class Dense:
    """Gradients written out: ``values`` of shape (B, *parameter shape)."""

    values: Tensor

    @property
    def added(self) -> int:
        return self.values.shape[0]

    @property
    def breadth(self) -> int:
        return self.values[0].numel() if self.values.shape[0] else 0

    @property
    def dtype(self) -> torch.dtype:
        return sum_dtype(self.values.dtype)

    def off(self, length: int | None) -> float:
        if length is None:
            return gamma(self.added + 4, torch.float64)
        return gamma(roundings(self.added, length) + 4, torch.float32)

    def _flat(self) -> Tensor:
        return self.values.reshape(self.values.shape[0], -1)

    def bounds(self) -> Bounds:
        return Bounds(lengths(wide(self._flat())))

    def squared_norms(self) -> Tensor:
        return self.bounds().norms.square()

    def weighted(self, factors: Tensor) -> Tensor:
        return self.summed(factors.double(), None)

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        values = wide(self._flat())
        batch, size = values.shape
        if length is not None:
            narrow = factors.to(values.dtype)
            if batch <= length:
                return (narrow @ values).double().view(self.values.shape[1:])
            total = in_blocks(batch, length, lambda at, to: narrow[at:to] @ values[at:to])
            return total.double().view(self.values.shape[1:])
        total = torch.empty(size, dtype=torch.float64, device=values.device)
        # A few columns at a time: a copy of all in float64 would leave the cache.
        columns, factors = max(64, (1 << 18) // max(1, batch)), factors.double()
        for at in range(0, size, columns):
            few = values[:, at : at + columns].double()
            total[at : at + columns] = factors @ few
        return total.view(self.values.shape[1:])

    def rows(self) -> Tensor:
        return self.values

    def picked(self, index: Tensor) -> Dense:
        return Dense(self.values[index].double())

    def without(self, bad: Tensor) -> Dense:
        return Dense(zeroed(self.values, bad))

    def settled(self) -> Dense:
        return self

    def way(self) -> str:
        return "per-example"


@dataclass
class Separate(Dense):
    """Gradients that were computed one after the other; so are their norms."""

    def bounds(self) -> Bounds:
        return Bounds(torch.cat([Dense(row).bounds().norms for row in torch.split(self.values, 1)]))


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

    @property
    def added(self) -> int:
        return self.blocks[0][1].shape[0] * sum(right.shape[1] for _, right in self.blocks)

    @property
    def breadth(self) -> int:
        _, time, m, n = self._sizes
        return time * (n if self._hot and len(self.blocks) == 1 else m * n)

    @property
    def dtype(self) -> torch.dtype:
        kinds = {sum_dtype(right.dtype) for _, right in self.blocks}
        return torch.float64 if torch.float64 in kinds else torch.float32

    @property
    def _slab(self) -> int:
        _, _, m, n = self._sizes
        return min(SLAB, max(SHORTEST_SLAB, SLAB_NUMBERS // max(m, n)))

    @property
    def _hot(self) -> bool:
        return any(isinstance(left, OneHot) for left, _ in self.blocks)

    def off(self, length: int | None) -> float:
        # Rows of a table are added in float64, in any order; all else in blocks.
        hot = gamma(self.added + 4, torch.float64) if self._hot else 0.0
        if all(isinstance(left, OneHot) for left, _ in self.blocks):
            return hot
        kind = torch.float64 if length is None else torch.float32
        return max(hot, gamma(roundings(self.added, length or self._slab) + 6, kind))

    def _writing_wins(self) -> bool:
        batch, time, m, n = self._sizes
        if time == 1 and len(self.blocks) == 1:
            return False
        if self._hot:
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

    def bounds(self) -> Bounds:
        if len(self.blocks) == 1:
            left, right = self.blocks[0]
            if isinstance(left, Tensor) and right.shape[1] == 1:
                one, other = lengths(wide(left)), lengths(wide(right))
                return Bounds((one * other)[:, 0], None, (one + other)[:, 0])
        value, slack, masses, reach = self._measured()
        norms = (value.clamp(min=0) + slack).sqrt_().mul_(SLACK)
        if self.dtype == torch.float32:
            # Gradients that cancel over time: the bound would be much too high. One example's
            # own numbers decide, never the batch's.
            again = ~((slack <= LOOSE * value) & (value < math.inf)) & (masses > 2.0**-60)
            if again.any():
                index = again.nonzero().squeeze(1)
                for at in torch.split(index, 1):  # how many there are is no business of one of them
                    better = self.picked(at).bounds()
                    norms[at] = better.norms
                    masses[at] = mass_of(better)
        # Masses that overflow leave no number.
        return Bounds(torch.minimum(norms, masses) + masses * 0, masses, reach)

    def _measured(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # The squared norm as computed, the most that it can be off, masses and reach.
        kind, (_, time, m, n) = self.dtype, self._sizes
        left, right = self.blocks[0]
        if len(self.blocks) == 1 and isinstance(left, Tensor):
            measures = in_chunks(gram_measures, wide(left), wide(right), cells=time**2)
            value, masses, reach, reached = measures.unbind(1)
        else:
            known = [lengths_of(*block) for block in self.blocks]
            masses = torch.stack([(one * other).sum(1) for one, other in known]).sum(0) * SLACK
            reach = torch.stack([torch.maximum(*pair).amax(1) for pair in known]).amax(0)
            reached = torch.stack([one.sum(1) + other.sum(1) for one, other in known]).sum(0)
            if len(self.blocks) == 1 and isinstance(left, OneHot):
                value = row_sums(left, wide(right))
                # ‖computed sums of rows‖ is within γ_T·mass (and underflow) of the exact norm.
                off = gamma(time, kind) * masses + time * n * tiny(kind)
                return value, (2 * value.sqrt() + off) * off, masses, reach
            value = masses.new_zeros(())
            for i, one in enumerate(self.blocks):
                value = value + inner(one, one)
                for other in self.blocks[i + 1 :]:
                    value = value + 2 * inner(one, other)
        most = roundings(m) + roundings(n) + time + 8
        lost = 2 * tiny(kind) * (m + n + 2) * (reached + time).square()
        return value, gamma(most, kind) * masses.square() + lost, masses, reach

    def squared_norms(self) -> Tensor:
        return self.bounds().norms.square()

    def weighted(self, factors: Tensor) -> Tensor:
        return self.summed(factors.double(), None)

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        total: Tensor | None = None
        for left, right in self.blocks:
            part = self._block_sum(left, wide(right), factors, length)
            total = part if total is None else total.add_(part)
        assert total is not None  # an Outer has at least one block
        return total

    def _block_sum(self, left: Left, right: Tensor, factors: Tensor, length: int | None) -> Tensor:
        if isinstance(left, OneHot):
            scaled = right.double() * factors.double().view(-1, 1, 1)
            part = scaled.new_zeros(left.size, right.shape[2])
            part.index_add_(0, left.index.flatten(), scaled.flatten(0, 1))
            return part.t() if self.transposed else part
        kind = torch.float64 if length is None else right.dtype
        scale = factors.to(kind).view(-1, 1, 1)
        one, other = wide(left), right
        if self.transposed:
            one, other = other, one
        if length is not None and one.shape[1] == 1 and len(one) <= length:
            return ((one * scale)[:, 0].t() @ other[:, 0]).double()
        first = one.shape[2] <= other.shape[2]  # scale the narrower side
        if not (one.is_contiguous() and other.is_contiguous()):
            # Time first, as recurrent layers have it: flat without a copy.
            one, other, scale = (v.transpose(0, 1) for v in (one, other, scale))
        if length is not None:
            one, other = (one * scale, other) if first else (one, other * scale)
            one, other = one.flatten(0, 1).t(), other.flatten(0, 1)
            return product_in_blocks(one, other, length).double()
        weights = scale.expand(*other.shape[:2], 1).reshape(-1, 1)
        one, other = one.flatten(0, 1), other.flatten(0, 1)

        narrow, wider = (one, other) if first else (other, one)
        # One buffer: memory that is new for every slab costs as much as the products.
        many = wider.new_empty(min(self._slab, len(wider)), wider.shape[1], dtype=torch.float64)

        def slab(at: int, to: int) -> Tensor:
            few, rows = narrow[at:to].double() * weights[at:to], many[: to - at]
            rows.copy_(wider[at:to])
            return few.t() @ rows if first else rows.t() @ few

        return in_blocks(other.shape[0], self._slab, slab)

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

    def picked(self, index: Tensor) -> Outer:
        blocks: list[Block] = []
        for left, right in self.blocks:
            few = (
                OneHot(left.index[index], left.size)
                if isinstance(left, OneHot)
                else left[index].double()
            )
            blocks.append((few, right[index].double()))
        return Outer(blocks, self.transposed)

    def without(self, bad: Tensor) -> Outer:
        blocks = [
            (left if isinstance(left, OneHot) else zeroed(left, bad), zeroed(right, bad))
            for left, right in self.blocks
        ]
        return Outer(blocks, self.transposed)

    def settled(self) -> Term:
        return Dense(self.rows()) if self._writing_wins() else self

    def way(self) -> str:
        if self._hot:
            return "row sums" if len(self.blocks) == 1 else "ghost, tied"
        if self._sizes[1] == 1:
            return "product of norms"
        return "per-example" if self._writing_wins() else "ghost"


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
