"""Clip every contribution and add them up, so that the computed sum keeps the bound C.

A per-example gradient is held in the form that is cheapest (:class:`Term`), with a bound of its
rounding.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, reduce
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from forethought.gradients.batches import UNIT, in_a_row, repeated, sum_dtype, zeros_for
from forethought.gradients.boundary import turns
from forethought.values.checks import real
from forethought.values.plan import Clip

# The cost model: seconds that a way of computing norms takes, from its operations and bytes.
#
# The rates are round figures of typical hardware (two cores with AVX-512; a data-centre GPU), not
# measured in a run: they only have to put the ways in order.


@dataclass(frozen=True)
class Rates:
    """Seconds per unit of work on one kind of device."""

    product: float  # a floating-point operation in a batched matrix product
    move: float  # a byte read or written by an elementwise pass
    rows: float  # a byte of per-example gradient written by a grouped convolution


CPU = Rates(product=1 / 120e9, move=1 / 20e9, rows=1 / 3e9)
CUDA = Rates(product=1 / 10e12, move=1 / 1.0e12, rows=1 / 60e9)


def rates(device: torch.device) -> Rates:
    """The rates of a device."""
    return CUDA if device.type == "cuda" else CPU


# Error bounds are those of Higham, *Accuracy and Stability of Numerical Algorithms* (2002), Section
# 3.1 and 4.2: a sum of products in which each term is rounded at most n times is off by at most
# γ_n = n·u/(1 − n·u) times the sum of the absolute products, in any order, with or without fused
# operations.

SLACK = 1 + 2.0**-40
"""A factor that covers the rounding of a few float64 operations on a bound."""

# u, the unit roundoff: half the distance from 1 to the next larger number.
_UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
# The largest error of one operation by underflow: subnormals may be flushed to zero.
_TINY = {torch.float32: 2.0**-126, torch.float64: 2.0**-1022}


def gamma(roundings: float, dtype: torch.dtype) -> float:
    """γ_n = n·u/(1 − n·u) with n two larger, for the arithmetic that uses it; inf if n·u ≥ 1/2."""
    part = (roundings + 2) * _UNIT[dtype]
    return part / (1 - part) if part < 0.5 else float("inf")


# The settings that let torch compute float32 products in TF32 or bfloat16 (torch 2.9 and later).
_PRODUCTS: tuple[Any, ...] = tuple(
    products
    for products in (
        getattr(torch.backends.mkldnn, "matmul", None),
        getattr(torch.backends.mkldnn, "conv", None),
        torch.backends.cuda.matmul,
    )
    if hasattr(products, "fp32_precision")
)
_EXACT = ("none", "ieee")


@contextmanager
def exactly(kind: str) -> Iterator[None]:
    """Compute without autocast and autograd, and with true float32 products (no TF32, no bfloat16).

    The precision is a setting of the whole process: threads take turns, so that none changes it
    while another computes.

    Args:
        kind: the device type, as "cpu" or "cuda".
    """
    with turns:
        if _PRODUCTS:
            exact = all(products.fp32_precision in _EXACT for products in _PRODUCTS)
        else:
            exact = torch.get_float32_matmul_precision() == "highest"
        exact = exact and not torch.is_autocast_enabled(kind)
        with torch.no_grad() if exact else _plainly(kind):
            yield


@contextmanager
def _plainly(kind: str) -> Iterator[None]:
    with torch.no_grad(), torch.autocast(kind, enabled=False):
        if not _PRODUCTS:
            precision = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("highest")
            try:
                yield
            finally:
                torch.set_float32_matmul_precision(precision)
            return
        before = [products.fp32_precision for products in _PRODUCTS]
        for products in _PRODUCTS:
            products.fp32_precision = "ieee"
        try:
            yield
        finally:
            for products, precision in zip(_PRODUCTS, before, strict=True):
                products.fp32_precision = "none"
                if products.fp32_precision != precision:  # "none" would follow the global setting
                    products.fp32_precision = precision


# Inner products, and float32 norms of at most RUN numbers, are taken over RUN numbers at a time;
# longer float32 norms over SHORT_RUN.
RUN = 1 << 10
SHORT_RUN = 1 << 8
# CACHED float32 numbers stay in the cache; a product of fewer than FEW_ROWS rows is slow.
CACHED, FEW_ROWS = 1 << 17, 1 << 7
# Norms of at most SMALL numbers are computed in float64. The length of a row decides, not the
# number of rows.
SMALL = 1 << 6


def roundings(count: int, length: int = RUN) -> int:
    """The most roundings of any of ``count`` terms that are added in blocks of ``length``."""
    return min(count, length) + math.ceil(count / length)


def lengths(values: Tensor) -> Tensor:
    """Upper bounds of the norms along the last dimension, float64."""
    count, kind = values.shape[-1], values.dtype
    if kind == torch.float64 or count <= SMALL:
        norms: Tensor = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64)
        norms.mul_(1 + gamma(count + 16, torch.float64) + 2.0**-45)
        # Squares of float32 numbers do not underflow in float64.
        return norms if kind == torch.float32 else norms.add_(math.sqrt(count * _TINY[kind]))
    if count <= RUN:
        run = count
        norms = torch.linalg.vector_norm(values, dim=-1).double()
    else:
        run, whole = SHORT_RUN, count - count % SHORT_RUN
        runs = values[..., :whole].view(*values.shape[:-1], -1, SHORT_RUN)
        squares = torch.linalg.vector_norm(runs, dim=-1).double().square_().sum(-1)
        if whole < count:
            rest = torch.linalg.vector_norm(values[..., whole:], dim=-1)
            squares += rest.double().square_()
        norms = squares.sqrt_()
    # A norm's relative error is half that of its square. A square that underflows may become zero.
    most = gamma(run + 16, kind) / 2 + 2.0**-40
    return norms.mul_(1 + most).add_(math.sqrt(count * _TINY[kind]))


def in_blocks(total: int, length: int, part: Callable[[int, int], Tensor]) -> Tensor:
    """Σ part(start, end) over blocks of ``length``, added one after the other."""
    result = part(0, min(length, total))
    for start in range(length, total, length):
        result += part(start, min(start + length, total))
    return result


# oneDNN computes products with a matrix of at least MANY numbers on x86 processors that Intel has
# not made, where it is faster than MKL, which torch takes for float32. The number of rows on the
# left does not decide, so that a row has the same bits in every block; nor does the clock, so that
# a run has the same bits when it is resumed. A clipped sum, whose rows are no records, is left to
# torch below LEAST_PRODUCTS multiplications.
MANY, LEAST_PRODUCTS = 1 << 15, 1 << 22


def _product(one: Tensor, other: Tensor, bias: Tensor | None) -> Tensor:
    """oneDNN's product of a matrix and a transposed one, plus the bias."""
    return torch.ops.mkldnn._linear_pointwise(one, other, bias, "none", [], "")


def _onednn_is_faster() -> bool:
    try:
        with Path("/proc/cpuinfo").open("rb") as told:
            if b"GenuineIntel" in told.read(1 << 12) or not torch._C.has_mkl:
                return False
        ones = torch.ones(2, 3, dtype=torch.float32, device="cpu")
        _product(ones, ones, None)
    except (OSError, AttributeError, RuntimeError):  # not Linux; an operator of torch's own
        return False
    return True


BY_ONEDNN = _onednn_is_faster()


def _plain(value: Tensor) -> bool:
    # The operator takes the memory of a tensor as it is: only of ordinary ones is that the value.
    return (
        value.dtype == torch.float32
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and type(value) in (Tensor, torch.nn.Parameter)
    )


def _large(one: Tensor, other: Tensor) -> bool:
    """True if oneDNN takes one @ other; ``other`` or its transpose has to be without gaps."""
    return (
        BY_ONEDNN
        and other.numel() >= MANY
        and _plain(one)
        and _plain(other)
        and other.dim() == 2
        and one.shape[-1] == other.shape[0]
        and (other.is_contiguous() or other.t().is_contiguous())
        and bool(torch.backends.mkldnn.enabled)
    )


def matmul(one: Tensor, other: Tensor) -> Tensor:
    """one @ other of two matrices."""
    watched = torch.is_grad_enabled() and (one.requires_grad or other.requires_grad)
    if watched or not _large(one, other):
        return one @ other
    return _product(one, other.t(), None)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return fast_linear(gradient, ctx.saved_tensors[0].t(), None), None, None


def fast_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear by oneDNN, or by torch where oneDNN is slower or does not know the form.

    The weight and the bias need no gradient.
    """
    known = x.dim() >= 2 and weight.dim() == 2 and _large(x, weight.t())
    if not known or (bias is not None and not (bias.shape == weight.shape[:1] and _plain(bias))):
        return F.linear(x, weight, bias)
    if bias is not None:
        # The operator reads n numbers in a row from where the bias begins, whatever its strides.
        bias = bias.contiguous()
    return _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]


def product_in_blocks(
    one: Tensor, other: Tensor, length: int, result: Tensor | None = None
) -> Tensor:
    """one @ other as float64, shapes (m, T), (T, n): products over ``length`` of T, added in turn.

    The products are in the precision of ``one``. They are written into ``result``, if it is given.
    """
    (rows, total), columns = one.shape, other.shape[1]
    if result is None:
        result = one.new_empty(rows, columns, dtype=torch.float64)
    fast = rows * other.numel() >= LEAST_PRODUCTS and _large(one, other)
    if fast and not one.is_contiguous():
        # oneDNN's operator copies its first matrix into rows: let that be the smaller one.
        if other.numel() < one.numel():
            return product_in_blocks(other.t(), one.t(), length, result.t()).t()
        one = one.contiguous()
    # On the CPU a few rows at a time are still in the cache when they are converted; other devices
    # take all at once. One buffer: new memory for every block costs as much as the products.
    step = max(FEW_ROWS, CACHED // max(1, columns)) if one.device.type == "cpu" else max(1, rows)
    buffer = one.new_empty(min(step, rows), columns) if total > length and not fast else None
    for at in range(0, rows, step):
        few = one[at : at + step]
        sums = (matmul if fast else torch.mm)(few[:, :length], other[:length])
        for start in range(length, total, length):
            left, right = few[:, start : start + length], other[start : start + length]
            if buffer is None:
                sums += matmul(left, right)
            else:
                sums += torch.mm(left, right, out=buffer[: len(few)])
        result[at : at + step] = sums
    return result


def gram(one: Tensor, other: Tensor) -> Tensor:
    """Inner products ⟨one_t, other_s⟩, shapes (B, T, n), (B, S, n) → (B, T, S)."""
    return in_blocks(
        one.shape[2], RUN, lambda at, to: torch.bmm(one[..., at:to], other[..., at:to].mT)
    )


def in_chunks(function: Callable[..., Tensor], *tensors: Tensor, cells: int) -> Tensor:
    """``function`` over slices of the batch, so that about 2^22 cells exist at a time.

    Args:
        cells: numbers that ``function`` holds for one example.
    """
    size = tensors[0].shape[0]
    step = max(1, (1 << 22) // max(1, cells))
    if step >= size:
        return function(*tensors)
    parts = [function(*(t[at : at + step] for t in tensors)) for at in range(0, size, step)]
    return torch.cat(parts)


def gram_product(one: Tensor, other: Tensor) -> Tensor:
    """Σ_ts one[t,s]·other[t,s] per example, float64, for two matrices (B, T, S).

    Each row is added in its own precision, with at most S + 1 roundings; then rows in float64.
    """
    # An elementwise product is several times faster here than a batched dot product.
    return (one * other).sum(2).double().sum(1)


# The shortest side of a block of a Gram matrix.
SHORTEST_SIDE = 32


# Inner products of sums of outer products, from the factors alone (ghost norms).
#
# ⟨Σ_t a_t ⊗ x_t, Σ_s b_s ⊗ y_s⟩ = Σ_ts (a_t·b_s)(x_t·y_s): no tensor of the parameter's size is
# formed. A left factor may be one-hot, as in an embedding.


def wide(values: Tensor) -> Tensor:
    """The values in the precision of norms and sums, float32 or float64."""
    kind = values.dtype
    return values if kind in (torch.float32, torch.float64) else values.to(sum_dtype(kind))


@dataclass
class OneHot:
    """Rows that are unit vectors of length ``size``, with their ones at ``index`` (B, T)."""

    index: Tensor
    size: int

    def __getitem__(self, index: Tensor | slice) -> OneHot:
        return OneHot(self.index[index], self.size)

    def double(self) -> OneHot:
        return self  # ones are exact in every precision

    def dense(self, like: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(self.index, self.size).to(like.dtype)


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
    """Squared norms of Σ_t l_t ⊗ r_t, (B,): upper bounds for the row sums as computed (rounded)."""
    # ‖Σ_t e_{i(t)} ⊗ h_t‖² is the sum over distinct rows i of ‖Σ_{t: i(t)=i} h_t‖².
    batch, _, n = right.shape
    key = left.index + left.size * torch.arange(batch, device=right.device).unsqueeze(1)
    rows, place = torch.unique(key, return_inverse=True)
    sums = right.new_zeros(rows.numel(), n).index_add_(0, place.flatten(), right.reshape(-1, n))
    squares = lengths(sums).square_().mul_(SLACK)
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


def diagonal_norms(squares: Tensor, width: int, cells: int = 1) -> Tensor:
    """Upper bounds of norms, float64, from their squares on a Gram matrix's diagonal.

    Nothing cancels there. Each square is a sum over ``cells`` of products of ``width`` numbers.
    """
    kind = squares.dtype
    # A copy: the squares of float64 numbers are the matrix's own.
    exact = squares.double() * (1 + 2 * gamma(roundings(width) + cells + 3, kind))
    return exact.add_(width * cells * _TINY[kind]).sqrt_().mul_(SLACK)


def gram_measures(left: Tensor, right: Tensor) -> Tensor:
    """Four numbers about Σ_t l_t ⊗ r_t for each example, float64, (B, 4), from two Gram matrices.

    They are the squared norm as computed, and upper bounds of Σ_t ‖l_t‖‖r_t‖, of the longest row on
    either side, and of Σ_t ‖l_t‖ + ‖r_t‖.
    """
    pairs = left, right
    count, value = left.shape[1], left.new_zeros(left.shape[0], dtype=torch.float64)
    step = max(SHORTEST_SIDE, -(-count // 4)) if left.device.type == "cpu" else count
    squares: list[list[Tensor]] = [[], []]
    # A Gram matrix is symmetric: blocks off the diagonal are computed once and counted twice.
    for at in range(0, count, step):
        for to in range(at, count, step):
            one, other = (gram(v[:, at : at + step], v[:, to : to + step]) for v in pairs)
            value += gram_product(one, other) * (1 if to == at else 2)
            if to == at:
                for found, products in zip(squares, (one, other), strict=True):
                    found.append(products.diagonal(dim1=1, dim2=2))
    first, second = (
        diagonal_norms(torch.cat(parts, 1), values.shape[2])
        for parts, values in zip(squares, pairs, strict=True)
    )
    return torch.stack(
        [
            value,
            (first * second).sum(1).mul_(SLACK),
            torch.maximum(first, second).amax(1),
            (first + second).sum(1),
        ],
        1,
    )


def _dense_inner(left: Tensor, right: Tensor, lefts: Tensor, rights: Tensor) -> Tensor:
    return gram_product(gram(left, lefts), gram(right, rights))


# Per-example gradients in the form that is cheapest to hold.
#
# A *term* holds the gradient of one parameter for every example of a batch. It gives upper bounds
# of their norms and their weighted sum. It can also write the gradients out in full (``rows``),
# which costs batch × parameters; this is done only if the cost model finds it cheaper.
#
# Every computed number has a bound on its rounding error: docs/gradients.md, "The sum in floating
# point".


# A float64 sum adds at most SLAB terms at a time, and fewer long ones, down to SHORTEST_SLAB, for
# about SLAB_NUMBERS numbers: numbers that are converted to float64 stay in the cache until added.
SLAB, SHORTEST_SLAB, SLAB_NUMBERS = 1 << 13, 1 << 6, 1 << 19
# A squared norm is computed again in float64 if its error bound exceeds this share of it.
LOOSE = 2.0**-6


class TermBounds(NamedTuple):
    """The proven bounds of a term, float64, shape (B,) each; not finite where the gradient is not.

    Attributes:
        norms: upper bounds of the norm ‖Σ_t l_t ⊗ r_t‖ of the exact gradient.
        masses: upper bounds of Σ_t ‖l_t‖‖r_t‖, to which the rounding error of sums is relative.
            None: nothing cancels, and the masses are the norms.
        reach: upper bounds of the norms of all l_t and r_t; None if no product is formed later.
    """

    norms: Tensor
    masses: Tensor | None = None
    reach: Tensor | None = None


def mass_of(bounds: TermBounds) -> Tensor:
    """The masses of the bounds; these are the norms if ``masses`` is None."""
    return bounds.norms if bounds.masses is None else bounds.masses


class Term(Protocol):
    """The gradient of one parameter for each of B examples.

    A class of your own needs these six methods. A term without the methods of :class:`BoundedTerm`
    is written out when its bounds are needed (:func:`bounded`).
    """

    def squared_norms(self) -> Tensor:
        """Upper bounds of the squared norms, shape (B,), float64."""

    def weighted(self, factors: Tensor) -> Tensor:
        """Σ_b factors[b]·gradient_b, in the parameter's shape, float64."""

    def rows(self) -> Tensor:
        """The gradients written out, shape (B, *parameter shape)."""

    def without(self, bad: Tensor) -> Term:
        """The term with the gradients of the examples in the mask ``bad``, (B,), set to zero."""

    def settled(self) -> Term:
        """The form that is cheapest to keep until the factors are known."""

    def way(self) -> str:
        """The name of the way in which the norm is computed, in a word or two."""


class BoundedTerm(Term, Protocol):
    """A term with bounds on its norms and on the rounding error of its sum.

    The library's terms derive from it; any class with these methods is treated alike.
    """

    @property
    def added(self) -> int:
        """The number of products that are added up in one entry of the weighted sum."""

    @property
    def breadth(self) -> int:
        """The most products that form one example's gradient: each may underflow."""

    def off(self, length: int | None) -> float:
        """A bound on the error of :meth:`summed`, relative to Σ_b factors[b]·masses[b]."""

    @property
    def dtype(self) -> torch.dtype:
        """The precision of its norms and sums, float32 or float64."""

    def bounds(self) -> TermBounds:
        """Proven upper bounds of norms and masses."""

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        """The weighted sum, float64.

        Args:
            factors: shape (B,), float32 or float64.
            length: None adds in float64. A number adds in float32, ``length`` products at a time,
                and then the partial sums one after the other.
        """

    def picked(self, index: Tensor) -> BoundedTerm:
        """The term of the examples ``index``, in float64."""

    def squared_norms(self) -> Tensor:
        return self.bounds().norms.square()

    def weighted(self, factors: Tensor) -> Tensor:
        return self.summed(factors.double(), None)

    def settled(self) -> Term:
        return self


def bounded(term: Term) -> BoundedTerm:
    """The term itself if it is a :class:`BoundedTerm`, else its gradients written out."""
    if hasattr(term, "bounds") and hasattr(term, "summed"):
        return term  # type: ignore[return-value]
    return Dense(term.rows())


def bounds_of(
    term: BoundedTerm, value: Tensor, slack: Tensor, masses: Tensor, reach: Tensor, at_once: int
) -> TermBounds:
    """The bounds from squared norms as computed, ``value``, and their error bounds, ``slack``.

    All have shape (B,). If the parts of a gradient nearly cancel, its bound would be much too high:
    it is computed again in float64, ``at_once`` examples together. Only an example's own numbers
    decide on this, never those of other examples.
    """
    norms = (value.clamp(min=0) + slack).sqrt_().mul_(SLACK)
    if term.dtype == torch.float32:
        again = ~((slack <= LOOSE * value) & (value < math.inf)) & (masses > 2.0**-60)
        if again.any():
            for at in torch.split(again.nonzero().squeeze(1), at_once):
                better = term.picked(at).bounds()
                norms[at] = better.norms
                masses[at] = mass_of(better)
    # A mass that is not finite makes the norm not a number.
    return TermBounds(torch.minimum(norms, masses) + masses * 0, masses, reach)


def zeroed(values: Tensor, bad: Tensor) -> Tensor:
    """A copy with the rows in the mask ``bad`` set to zero (scaling by 0 turns inf into NaN)."""
    return values.masked_fill(bad.view(-1, *(1,) * (values.dim() - 1)), 0)


@dataclass
class Dense(BoundedTerm):
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

    def bounds(self) -> TermBounds:
        return TermBounds(lengths(wide(self._flat())))

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        values = wide(self._flat())
        batch, size = values.shape
        if length is not None:
            narrow = factors.to(values.dtype)
            total = in_blocks(batch, length, lambda at, to: narrow[at:to] @ values[at:to])
            return total.double().view(self.values.shape[1:])
        total = torch.empty(size, dtype=torch.float64, device=values.device)
        # A few columns at a time: a float64 copy of all would not fit into the cache.
        columns, factors = max(64, (1 << 18) // max(1, batch)), factors.double()
        for at in range(0, size, columns):
            few = values[:, at : at + columns].double()
            total[at : at + columns] = factors @ few
        return total.view(self.values.shape[1:])

    def rows(self) -> Tensor:
        return self.values

    def picked(self, index: Tensor) -> Dense:
        return Dense(self.values[index].double())

    def some(self, part: slice) -> Dense:
        """The term of a slice of the examples, sharing memory."""
        return Dense(self.values[part])

    def without(self, bad: Tensor) -> Dense:
        return Dense(zeroed(self.values, bad))

    def way(self) -> str:
        return "per-example"


@dataclass
class Ones(BoundedTerm):
    """Rows of zeros and ones, of length ``size``, with T ones at the different ``places`` (B, T).

    ``known``, float64, (B,): 1, or a number that is not finite for a row that is not known.
    """

    places: Tensor
    size: int
    known: Tensor

    dtype = torch.float64

    @property
    def added(self) -> int:
        return len(self.places)

    @property
    def breadth(self) -> int:
        return self.places.shape[1]

    def off(self, length: int | None) -> float:
        return gamma(self.added + 4, torch.float64)

    def bounds(self) -> TermBounds:
        return TermBounds(self.known * math.sqrt(self.breadth) * (1 + 2.0**-45))

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        weights = (factors.double() * self.known).repeat_interleave(self.breadth)
        return torch.bincount(self.places.flatten(), weights, self.size)

    def rows(self) -> Tensor:
        rows = self.known.new_zeros(self.added, self.size)
        return rows.scatter_(1, self.places, self.known.unsqueeze(1).expand_as(self.places))

    def picked(self, index: Tensor) -> Ones:
        return Ones(self.places[index], self.size, self.known[index])

    def without(self, bad: Tensor) -> Ones:
        return replace(self, known=zeroed(self.known, bad))

    def way(self) -> str:
        return "counted"


@dataclass
class Separate(Dense):
    """Gradients that were computed one after the other; their norms are, too."""

    def bounds(self) -> TermBounds:
        return TermBounds(
            torch.cat([Dense(row).bounds().norms for row in torch.split(self.values, 1)])
        )


@dataclass
class Outer(BoundedTerm):
    """Σ_t left_t ⊗ right_t per example, as in every linear map and embedding.

    Args:
        blocks: pairs of left (B, T, m), or :class:`OneHot`, and right (B, T, n). Several blocks
            (T may differ) are summed, so that tied and reused weights are exact.
        transposed: the parameter has the shape (n, m).
    """

    blocks: Sequence[Block]
    transposed: bool = False

    def __post_init__(self) -> None:
        # A map of no rows adds nothing to others.
        self.blocks = [block for block in self.blocks if block[1].shape[1]] or self.blocks[:1]

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the parameter."""
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
        # Rows for one-hot factors are added in float64, in any order; all else in blocks.
        hot = gamma(self.added + 4, torch.float64) if self._hot else 0.0
        if all(isinstance(left, OneHot) for left, _ in self.blocks):
            return hot
        kind = torch.float64 if length is None else torch.float32
        return max(hot, gamma(roundings(self.added, length or self._slab) + 6, kind))

    def _writing_wins(self) -> bool:
        batch, time, m, n = self._sizes
        if time <= 1 or self._hot:
            return False
        rate = rates(self.blocks[0][1].device)
        width = self.blocks[0][1].element_size()
        written, held = m * n * width, time * (m + n) * width
        gram = time * time
        ghost = 2 * gram * (m + n) * rate.product + 4 * gram * width * rate.move
        # Written once, read for the norm, read for the sum. Products with few rows run at a
        # fraction of the rate.
        thin = 2 * time * m * n * rate.product * min(4.0, 16 / time)
        writing = 3 * written * rate.move + thin
        return 4 * written <= 5 * held and batch * writing < batch * ghost

    def bounds(self) -> TermBounds:
        if len(self.blocks) == 1:
            left, right = self.blocks[0]
            if not right.shape[1]:
                return TermBounds(right.new_zeros(len(right), dtype=torch.float64))
            if right.shape[1] == 1:
                one, other = lengths_of(left, right)
                return TermBounds((one * other)[:, 0], None, (one + other)[:, 0])
        return bounds_of(self, *self._measured(), at_once=1)

    def _measured(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # The squared norm as computed, a bound on its error, the masses and the reach.
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
                off = gamma(time, kind) * masses + time * n * _TINY[kind]
                return value, (2 * value.sqrt() + off) * off, masses, reach
            value = masses.new_zeros(())
            for i, one in enumerate(self.blocks):
                value = value + inner(one, one)
                for other in self.blocks[i + 1 :]:
                    value = value + 2 * inner(one, other)
        most = roundings(m) + roundings(n) + time + 8
        lost = 2 * _TINY[kind] * (m + n + 2) * (reached + time).square()
        return value, gamma(most, kind) * masses.square() + lost, masses, reach

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        parts = (self._block_sum(left, wide(right), factors, length) for left, right in self.blocks)
        return reduce(Tensor.add_, parts)

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
        first = one.shape[2] <= other.shape[2]  # scale the narrower side
        if not (one.is_contiguous() and other.is_contiguous()):
            # Recurrent layers have time in the first dimension: put it there, to flatten without a
            # copy.
            one, other, scale = (v.transpose(0, 1) for v in (one, other, scale))
        if length is not None:
            one, other = (one * scale, other) if first else (one, other * scale)
            one, other = one.flatten(0, 1).t(), other.flatten(0, 1)
            return product_in_blocks(one, other, length)
        weights = scale.expand(*other.shape[:2], 1).reshape(-1, 1)
        one, other = one.flatten(0, 1), other.flatten(0, 1)

        narrow, wider = (one, other) if first else (other, one)
        # One buffer: new memory for every slab costs as much as the products.
        double = wider.dtype == torch.float64
        size = 0 if double else min(self._slab, len(wider))
        many = wider.new_empty(size, wider.shape[1], dtype=torch.float64)

        def slab(at: int, to: int) -> Tensor:
            few = narrow[at:to].double() * weights[at:to]
            rows = wider[at:to] if double else many[: to - at].copy_(wider[at:to])
            return few.t() @ rows if first else rows.t() @ few

        return in_blocks(other.shape[0], self._slab, slab)

    def rows(self) -> Tensor:
        def written(left: Left, right: Tensor) -> Tensor:
            one = left.dense(right) if isinstance(left, OneHot) else wide(left)
            first, second = (right, one) if self.transposed else (one, right)
            return torch.bmm(first.transpose(1, 2), second)

        return reduce(Tensor.add_, (written(left, wide(right)) for left, right in self.blocks))

    def picked(self, index: Tensor) -> Outer:
        some = self.some(index)
        return replace(some, blocks=[(left.double(), r.double()) for left, r in some.blocks])

    def some(self, index: Tensor | slice) -> Outer:
        """The term of some examples; a slice shares memory."""
        return replace(self, blocks=[(left[index], right[index]) for left, right in self.blocks])

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
        if self._sizes[1] <= 1:
            return "product of norms"
        return "per-example" if self._writing_wins() else "ghost"


# The place of a gradient in its parameter: the whole parameter, one view of it, or several views.
#
# ``weight.t()``, one third of a packed projection, a reshaped kernel: all are strided views of the
# parameter, and their gradients belong at the same strided places.


# A strided view of a parameter: size, stride, and offset in elements from its first one.
Geometry = tuple[tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True)
class Slot:
    """A parameter, or the part of it that a call used."""

    name: str
    shape: tuple[int, ...]
    geometry: Geometry | None = None


def slot(value: Tensor, parameters: dict[int, str]) -> Slot | None:
    """The slot of ``value``; None if it is no trained parameter and no supported view of one.

    Args:
        parameters: ``id`` of each trained parameter → its name.
    """
    name = parameters.get(id(value))
    if name is not None:
        return Slot(name, tuple(value.shape))
    base = value._base if value._is_view() else None
    if base is None:
        return None
    name = parameters.get(id(base))
    plain = base.is_contiguous() and value.dtype == base.dtype and not value.is_neg()
    if name is None or not plain or not _apart(value):
        return None
    offset = int(value.storage_offset()) - int(base.storage_offset())
    return Slot(name, tuple(base.shape), (tuple(value.shape), value.stride(), offset))


def _apart(view: Tensor) -> bool:
    """True if no two numbers of a view share a place; windows that overlap do, as of unfold."""
    reach = 0
    for step, count in sorted(zip(view.stride(), view.shape, strict=True)):
        if count > 1 and step <= reach:
            return False
        reach += step * (count - 1)
    return True


def _into(shape: tuple[int, ...], view: Geometry, rows: Tensor) -> Tensor:
    """Rows of a view of a parameter as rows of the whole parameter, of this shape."""
    whole = rows.new_zeros(rows.shape[0], *shape)
    size, stride, offset = view
    place = (rows.shape[0], *size), (whole[0].numel(), *stride), offset
    whole.as_strided(*place).copy_(rows)
    return whole


class _Several(BoundedTerm):
    """The common methods of terms that consist of several terms, the first of each part."""

    parts: Sequence[Any]

    @property
    def terms(self) -> list[BoundedTerm]:
        """The terms of all parts."""
        return [part[0] for part in self.parts]

    @property
    def added(self) -> int:
        return sum(term.added for term in self.terms)

    @property
    def breadth(self) -> int:
        return sum(term.breadth for term in self.terms)

    @property
    def dtype(self) -> torch.dtype:
        kinds = {term.dtype for term in self.terms}
        return torch.float64 if torch.float64 in kinds else torch.float32

    def off(self, length: int | None) -> float:
        # Several parts are added in float64.
        most, count = max(term.off(length) for term in self.terms), len(self.parts)
        return most + gamma(count + 2, torch.float64) if count > 1 else most

    def way(self) -> str:
        return ", ".join(dict.fromkeys(term.way() for term in self.terms))


@dataclass
class Moved(_Several):
    """Terms of parts of a parameter that do not overlap: their squared norms add.

    Attributes:
        parts: each term, and a function that puts its gradients at their places in the parameter:
            rows of the term's shape → rows of the parameter's shape, any number of them.
    """

    parts: Sequence[tuple[BoundedTerm, Callable[[Tensor], Tensor]]]

    def bounds(self) -> TermBounds:
        found = [term.bounds() for term in self.terms]
        if len(found) == 1:  # at other places: same numbers, same norms
            return found[0]
        norms = torch.stack([bounds.norms for bounds in found])
        masses = torch.stack([mass_of(bounds) for bounds in found])
        known = [bounds.reach for bounds in found if bounds.reach is not None]
        return TermBounds(
            torch.linalg.vector_norm(norms, dim=0) * SLACK,
            masses.sum(0) * SLACK,
            torch.stack(known).amax(0) if known else None,
        )

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        sums = ((term.summed(factors, length).unsqueeze(0), move) for term, move in self.parts)
        return reduce(Tensor.add_, (move(row)[0] for row, move in sums))

    def rows(self) -> Tensor:
        return reduce(torch.add, (move(term.rows()) for term, move in self.parts))

    def _changed(self, change: Callable[[BoundedTerm], Term]) -> Moved:
        return Moved([(bounded(change(term)), move) for term, move in self.parts])

    def picked(self, index: Tensor) -> Moved:
        return self._changed(lambda term: term.picked(index))

    def without(self, bad: Tensor) -> Moved:
        return self._changed(lambda term: term.without(bad))

    def settled(self) -> Moved:
        return self._changed(lambda term: term.settled())


@dataclass
class SplitTerms(_Several):
    """Terms of lanes that ran in separate passes: (term, indices of the lanes, rows of the pass).

    The further rows of a pass repeat its lanes in turn, and fill up its block.
    """

    parts: Sequence[tuple[BoundedTerm, Tensor, int]]
    size: int

    def _joined(self, values: Sequence[Tensor]) -> Tensor:
        whole = values[0].new_zeros(self.size, *values[0].shape[1:])
        for (_, index, _), value in zip(self.parts, values, strict=True):
            whole[index.to(value.device)] = value[: len(index)].to(whole.dtype)
        return whole

    def bounds(self) -> TermBounds:
        found = [term.bounds() for term in self.terms]
        reach = [torch.zeros_like(b.norms) if b.reach is None else b.reach for b in found]
        return TermBounds(
            self._joined([bounds.norms for bounds in found]),
            self._joined([mass_of(bounds) for bounds in found]),
            self._joined(reach),
        )

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        def part(term: BoundedTerm, index: Tensor, width: int) -> Tensor:
            own = factors[index.to(factors.device)]
            return term.summed(torch.cat([own, own.new_zeros(width - len(own))]), length)

        return reduce(Tensor.add_, (part(*one) for one in self.parts))

    def rows(self) -> Tensor:
        return self._joined([term.rows() for term in self.terms])

    def picked(self, index: Tensor) -> SplitTerms:
        found: list[tuple[BoundedTerm, Tensor, int]] = []
        for term, mine, _ in self.parts:
            # Places of the picked examples among these lanes, and in the result.
            inside = mine.to(index.device).unsqueeze(1) == index.unsqueeze(0)
            places, wanted = inside.nonzero(as_tuple=True)
            if len(places):
                found.append((term.picked(places), wanted, len(places)))
        return SplitTerms(found, len(index))

    def without(self, bad: Tensor) -> SplitTerms:
        def part(term: BoundedTerm, index: Tensor, width: int) -> BoundedTerm:
            every = index[repeated(len(index), width)].to(bad.device)
            return bounded(term.without(bad[every]))

        return SplitTerms([(part(*one), *one[1:]) for one in self.parts], self.size)


class Unused(BoundedTerm):
    """The gradient of a parameter that the loss does not depend on."""

    added, breadth, dtype = 1, 1, torch.float64

    def __init__(self, size: int, parameter: Tensor) -> None:
        self._size, self._parameter = size, parameter

    def bounds(self) -> TermBounds:
        return TermBounds(
            torch.zeros(self._size, dtype=torch.float64, device=self._parameter.device)
        )

    def off(self, length: int | None) -> float:
        return 0.0

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        return torch.zeros_like(self._parameter, dtype=torch.float64)

    def rows(self) -> Tensor:
        return zeros_for(self._parameter, self._size, *self._parameter.shape)

    def picked(self, index: Tensor) -> Unused:
        return Unused(index.numel(), self._parameter)

    def without(self, bad: Tensor) -> Unused:
        return self

    def way(self) -> str:
        return "unused"


@lru_cache(maxsize=1024)
def _overlap(shape: tuple[int, ...], parts: tuple[Geometry, ...]) -> bool:
    count = torch.Size(shape).numel()
    hits = torch.zeros(count, dtype=torch.int32)
    places = torch.arange(count)
    for part in parts:
        hits[places.as_strided(*part).flatten()] += 1
    return bool((hits > 1).any())


def combine(uses: Iterable[tuple[Slot, Term]]) -> Term:
    """One term of a parameter from the terms of all its uses in a pass."""
    uses = list(uses)
    if len(uses) == 1 and uses[0][0].geometry is None:
        return uses[0][1]
    by_place: dict[Slot, list[Term]] = defaultdict(list)
    for place, term in uses:
        by_place[place].append(term)
    terms: list[Term] = []
    for place, same in by_place.items():
        merged = _merge(same)
        if place.geometry is not None:
            merged = Moved([(bounded(merged), partial(_into, place.shape, place.geometry))])
        terms.append(merged)
    if len(terms) == 1:
        return terms[0]
    shape = next(iter(by_place)).shape
    known = tuple(place.geometry for place in by_place if place.geometry is not None)
    if len(known) == len(by_place) and not _overlap(shape, known):
        return Moved([part for term in terms if isinstance(term, Moved) for part in term.parts])
    return _sum(terms)


def _merge(terms: list[Term]) -> Term:
    if len(terms) == 1:
        return terms[0]
    outers = [term for term in terms if isinstance(term, Outer)]
    if len(outers) == len(terms) and len({term.transposed for term in outers}) == 1:
        blocks = [block for term in outers for block in term.blocks]
        return Outer(joined(blocks), outers[0].transposed)
    return _sum(terms)


def _sum(terms: list[Term]) -> Dense:
    return Dense(reduce(torch.add, (term.rows() for term in terms)))


# Per-example weight gradients of convolutions, without holding every patch.


# Examples that go through a grouped convolution together on the CPU.
EXAMPLES = 32


@dataclass(frozen=True)
class Window:
    """Kernel size, stride, padding and dilation, one number for each spatial dimension."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def cells(self) -> int:
        """The number of positions of a kernel."""
        return math.prod(self.size)


@dataclass
class Convolved(BoundedTerm):
    """The weight gradient of a convolution for each example.

    Attributes:
        image: the inputs, (B·several, C_in, *space).
        gradient: the gradients of the outputs, (B·several, C_out, *output space).
        groups: of the convolution.
        several: number of images of one example, which are next to each other.
    """

    image: Tensor
    gradient: Tensor
    window: Window
    groups: int = 1
    several: int = 1

    @property
    def _batch(self) -> int:
        return self.gradient.shape[0] // self.several

    @property
    def _shape(self) -> tuple[int, ...]:
        channels = self.image.shape[1] // self.groups
        return (self.gradient.shape[1], channels, *self.window.size)

    def _ghost_wins(self) -> bool:
        if self.several > 1:
            return False
        # Of one example: the batch's size must change no way, or its numbers would hang on others.
        rate, width = rates(self.image.device), self.image.element_size()
        time = math.prod(self.gradient.shape[2:])
        pixels = math.prod(
            n + 2 * p for n, p in zip(self.image.shape[2:], self.window.padding, strict=True)
        )
        written = math.prod(self._shape) * width
        sides = pixels * self.image.shape[1], time * self.gradient.shape[1]
        grams = pixels * sides[0] + time * sides[1]
        # Measured: a cell's share of the Gram matrix, the matrix itself, and the sides' norms.
        moved = self.groups * (3.5 * self.window.cells * time**2 + 6 * pixels**2) + 10 * sum(sides)
        ghost = 2 * grams * rate.product + moved * width * rate.move
        # What takes more memory than both sides has to be much faster.
        gain = 2.5 if written > width * sum(sides) else 1
        return ghost < written * (rate.rows + 2 * rate.move) * gain

    @property
    def _positions(self) -> int:
        return self.several * math.prod(self.gradient.shape[2:])

    @property
    def added(self) -> int:
        return self._batch * self._positions

    @property
    def breadth(self) -> int:
        return self._positions * math.prod(self._shape)

    @property
    def dtype(self) -> torch.dtype:
        return sum_dtype(self.gradient.dtype)

    def off(self, length: int | None) -> float:
        if self._written is not None:
            return self._written.off(length)
        if self._images(length):
            return gamma(roundings(self.added, length or 1) + 4, torch.float32)
        most = self._few() * self._positions + math.ceil(self.gradient.shape[0] / self._few())
        return gamma(most + 4, torch.float64)

    def _images(self, length: int | None) -> int:
        # The number of images that torch's convolution may add up in float32 at a time; 0: none. On
        # devices other than the CPU it may use Winograd's algorithm, for which no such bound holds.
        if length is None or self.gradient.device.type != "cpu":
            return 0
        few = min(length // self._positions, len(self.gradient))
        return few if few * self._patch_numbers >= FEW_PATCHES else 0

    def _few(self) -> int:
        # The number of images in one float64 product: about 2^17 numbers, a megabyte.
        return max(1, (1 << 17) // max(1, self._patch_numbers))

    @property
    def _patch_numbers(self) -> int:
        # Of one image.
        positions = math.prod(self.gradient.shape[2:])
        return positions * self.image.shape[1] * self.window.cells

    @cached_property
    def _written(self) -> Dense | None:
        # The gradients are written out once, so that norms and sum are of the same numbers. What
        # is not written out has one image an example.
        return None if self._ghost_wins() else Dense(self.rows())

    @property
    def stored(self) -> tuple[Tensor, ...]:
        """The numbers that norm and sum are formed of, with the examples in dimension 0."""
        return (self.image, self.gradient) if self._written is None else (self._written.values,)

    def bounds(self) -> TermBounds:
        if self._written is not None:
            return self._written.bounds()
        kind, groups = self.dtype, self.groups
        image, gradient = wide(self.image), wide(self.gradient)
        image = self._padded(image)
        image = image.reshape(-1, image.shape[1] // groups, *image.shape[2:])
        gradient = gradient.reshape(-1, gradient.shape[1] // groups, *gradient.shape[2:])
        pixels = math.prod(image.shape[2:])
        found = in_chunks(self._pixel_gram, image, gradient, cells=pixels**2)
        value, masses = found[:, :2].view(-1, groups, 2).sum(1).unbind(1)
        reach = found[:, 2].view(-1, groups).amax(1)
        most = roundings(image.shape[1]) + self.window.cells + roundings(gradient.shape[1])
        slack = gamma(most + self._positions + 8, kind) * masses.square()
        slack += 2 * _TINY[kind] * (self.breadth + 1) * (1 + reach).square() * self._positions**2
        return bounds_of(self, value, slack, masses, reach, at_once=len(masses))

    def _pixel_gram(self, image: Tensor, gradient: Tensor) -> Tensor:
        # ⟨patch_t, patch_s⟩ = Σ over the kernel's cells of ⟨pixel_{t+cell}, pixel_{s+cell}⟩
        space, out = image.shape[2:], gradient.shape[2:]
        flat, grads = image.flatten(2), gradient.flatten(2)
        pixels = gram(flat.mT, flat.mT).view(-1, *space, *space)
        outputs = gram(grads.mT, grads.mT)
        for number, cell in enumerate(product(*(range(n) for n in self.window.size))):
            steps = zip(cell, self.window.dilation, self.window.stride, out, strict=True)
            where = [slice(at * d, at * d + s * (n - 1) + 1, s) for at, d, s, n in steps]
            part = pixels[(slice(None), *where, *where)]
            if not number:
                total = part.clone(memory_format=torch.contiguous_format)
            else:
                total += part
        total = total.view_as(outputs)
        patches = diagonal_norms(total.diagonal(dim1=1, dim2=2), image.shape[1], self.window.cells)
        sides = diagonal_norms(outputs.diagonal(dim1=1, dim2=2), gradient.shape[1])
        masses = (patches * sides).sum(1) * (1 + 2.0**-30)
        reach = torch.maximum(patches, sides).amax(1)
        return torch.stack([gram_product(total, outputs), masses, reach], 1)

    def _weight_gradient(self, image: Tensor, gradient: Tensor, groups: int) -> Tensor:
        weight = image.new_empty(gradient.shape[1], image.shape[1] // groups, *self.window.size)
        dims = len(self.window.size)
        window = (self.window.stride, self.window.padding, self.window.dilation)
        rest = False, [0] * dims, groups, (False, True, False)
        backward = torch.ops.aten.convolution_backward
        return backward(gradient, image, weight, None, *window, *rest)[1]

    def summed(self, factors: Tensor, length: int | None) -> Tensor:
        if self._written is not None:
            return self._written.summed(factors, length)
        image, gradient = wide(self.image), wide(self.gradient)
        scale = factors.double().view(-1, *(1,) * (gradient.dim() - 1))
        count = gradient.shape[0]
        if few := self._images(length):
            gradient = gradient * scale.to(gradient.dtype)
            return in_blocks(
                count,
                few,
                lambda at, to: self._weight_gradient(image[at:to], gradient[at:to], self.groups),
            ).double()
        return self._products(image, gradient, scale)

    def _products(self, image: Tensor, gradient: Tensor, scale: Tensor) -> Tensor:
        # The weighted sum in float64, as products of patches.
        groups, count, place = self.groups, gradient.shape[0], 2 + len(self.window.size)
        each = math.prod(gradient.shape[2:])
        patches = self._patches(self._padded(image))
        # (groups, C_in / groups, *kernel, B, *output space)
        patches = patches.view(count, groups, -1, *patches.shape[2:]).movedim(0, place)

        def part(at: int, to: int) -> Tensor:
            few = patches.narrow(place, at, to - at)
            # One copy, into the order and the precision that the product needs.
            right = few.new_empty(few.shape, dtype=torch.float64).copy_(few)
            left = (gradient[at:to].double() * scale[at:to]).reshape(to - at, groups, -1, each)
            left = left.permute(1, 2, 0, 3).flatten(2)
            return torch.bmm(left, right.view(groups, -1, left.shape[2]).mT)

        return in_blocks(count, self._few(), part).reshape(self._shape)

    def picked(self, index: Tensor) -> BoundedTerm:
        if self._written is not None:  # the same numbers as are added, overflow included
            return self._written.picked(index)
        image, gradient = self.image[index].double(), self.gradient[index].double()
        return Convolved(image, gradient, self.window, self.groups)

    def _few_channels(self) -> bool:
        # Measured: with up to about 8 input channels, patches of a few examples at a time (they
        # stay in cache) beat a grouped convolution, and often the ordinary weight gradient.
        return self.groups == 1 and self.image.shape[1] <= 8 and self.image.device.type == "cpu"

    def _padded(self, image: Tensor) -> Tensor:
        padding = [side for p in reversed(self.window.padding) for side in (p, p)]
        return F.pad(image, padding) if any(padding) else image

    def _patches(self, image: Tensor) -> Tensor:
        # A view (B, C_in, *kernel, *output space) of the padded image.
        window, dims, out = self.window, len(self.window.size), self.gradient.shape[2:]
        for at in range(dims):
            reach = (out[at] - 1) * window.stride[at] + 1
            image = image.unfold(2 + at, reach, window.dilation[at])
            image = image.narrow(2 + at, 0, window.size[at])
        steps = [slice(None), slice(None), *(slice(None),) * dims]
        steps += [slice(None, None, s) for s in window.stride]
        return image[tuple(steps)]

    def _patch_rows(self) -> Tensor:
        image, gradient = wide(self.image), wide(self.gradient).flatten(2)
        patches = self._patches(self._padded(image))
        count, cells = gradient.shape[0], image.shape[1] * self.window.cells
        rows = gradient.new_empty(count, gradient.shape[1], cells)
        step = max(1, (1 << 18) // max(1, cells * gradient.shape[2]))
        for at in range(0, count, step):
            few = gradient[at : at + step]
            matrix = patches[at : at + step].reshape(few.shape[0], cells, -1)
            torch.bmm(few, matrix.mT, out=rows[at : at + step])
        return rows

    def _by_example(self, rows: Tensor) -> Tensor:
        if self.several == 1:
            return rows.view(self._batch, *self._shape)
        return rows.view(self._batch, self.several, *self._shape).sum(1)

    def rows(self) -> Tensor:
        if self._few_channels():
            return self._by_example(self._patch_rows())
        image, gradient = wide(self.image), wide(self.gradient)
        # The convolution copies its operands into its own layouts, so take a few images at a time.
        count, each = gradient.shape[0], self._shape[0]
        if count <= EXAMPLES or gradient.device.type != "cpu":
            return self._by_example(self._grouped(image, gradient))
        rows = gradient.new_empty(count * each, *self._shape[1:])
        for at in range(0, count, EXAMPLES):
            few = slice(at, at + EXAMPLES)
            rows[at * each : (at + EXAMPLES) * each] = self._grouped(image[few], gradient[few])
        return self._by_example(rows)

    def _grouped(self, image: Tensor, gradient: Tensor) -> Tensor:
        count = gradient.shape[0]
        image = image.reshape(1, -1, *image.shape[2:])
        gradient = gradient.reshape(1, -1, *gradient.shape[2:])
        return self._weight_gradient(image, gradient, count * self.groups)

    def without(self, bad: Tensor) -> Convolved:
        mask = bad.repeat_interleave(self.several)
        return replace(self, image=zeroed(self.image, mask), gradient=zeroed(self.gradient, mask))

    def settled(self) -> Term:
        if (pointwise := self._pointwise()) is not None:
            return pointwise.settled()
        return self if self._ghost_wins() else Dense(self.rows())

    def way(self) -> str:
        if (pointwise := self._pointwise()) is not None:
            return pointwise.way()
        if self._ghost_wins():
            return "ghost, pixel Gram"
        return "per-example, " + ("patches" if self._few_channels() else "batch as groups")

    def _pointwise(self) -> Term | None:
        # A kernel of one cell without padding is a linear map of pixels.
        if self.window.cells > 1 or any(self.window.padding) or max(self.groups, self.several) > 1:
            return None
        steps = tuple(slice(None, None, s) for s in self.window.stride)
        image = self.image[(slice(None), slice(None), *steps)]
        spaces = zip(image.shape[2:], self.gradient.shape[2:], strict=True)
        if any(one != other for one, other in spaces):
            return None
        flat, shape = Outer([(self.gradient.flatten(2).mT, image.flatten(2).mT)]), self._shape
        return Moved([(flat, lambda rows: rows.reshape(rows.shape[0], *shape))])


# Constants of the theorem that a sum of contributions keeps its bound in floating point.
#
# docs/gradients.md, "The sum in floating point", states and proves it. In short: contributions are
# clipped to (1 − r)·C, and for every batch the computed sum is within r·C/2 of the exact sum of the
# computed contributions. So neighbouring batches differ by at most (1 − r)·C + 2·r·C/2 = C.


CHARGE = 5 * 2.0**-9
"""r: the share of the clipping norm reserved for rounding, just under 1 %, for every batch."""

MASS = 2.0**10
"""A contribution's absolute mass Σ_t ‖g_t‖‖x_t‖ is kept at most MASS·C: see :func:`factors`."""

NARROW = 1 - 2.0**-22
"""A margin for rounding a factor to float32."""

RECORDS = 1 << 20
"""The most contributions of a round: up to this number a float64 sum always keeps the bound."""

# The share of the charge that a call may use; the rest is for the float64 sums of several calls
# (micro-batches, processes).
OWN = 1 - 2.0**-7


# Clipping rules: from the norms of contributions to the factors that bound them.
#
# A rule sees norms only, never a gradient. Its factors are capped so that no scaled contribution
# exceeds the clipping norm. The rest is the rule's own part: it is given the norms of all
# contributions, and must form each one's factor from that one's norms. A rule that looks at others
# (their mean, their rank) lets one record move what all others add, and no bound holds.


@dataclass(frozen=True)
class Norms:
    """Norms before clipping.

    Attributes:
        names: the parameters, in the order of the rows of ``by_parameter``.
        by_parameter: the L2 norm of each parameter's gradient, shape (parameters, contributions).
    """

    names: tuple[str, ...]
    by_parameter: Tensor

    @cached_property
    def total(self) -> Tensor:
        """The L2 norm over all parameters, shape (contributions,)."""
        # torch's norm along the first dimension takes six times as long.
        return self.by_parameter.square().sum(0).sqrt_()


# Smaller factors are set to zero.
LEAST = 2.0**-120

Sums = tuple[dict[str, Tensor], Tensor]
"""Parameter name → clipped sum, float64, and the norms before clipping, shape (contributions,)."""

ClippingRule = Callable[[Norms, float], Tensor]
"""(norms, clip_norm) → factors, shape (contributions,) or (parameters, contributions).

Each factor must follow from the norms of its own contribution alone.
"""


def flat(norms: Norms, clip_norm: float) -> Tensor:
    """min(1, C/‖g‖) (Abadi et al. 2016, Algorithm 1)."""
    return (clip_norm / norms.total).clamp(max=1.0)


def automatic(gamma: float = 0.01) -> ClippingRule:
    """C/(‖g‖ + gamma): every contribution is normalised (Bu et al. 2022, AUTO-S)."""
    gamma = real("gamma", gamma, above=0)

    def rule(norms: Norms, clip_norm: float) -> Tensor:
        return clip_norm / (norms.total + gamma)

    return rule


def per_layer(shares: Mapping[str, float] | None = None) -> ClippingRule:
    """Every parameter tensor is clipped to its own share of C, shape (parameters, contributions).

    Args:
        shares: parameter name → share of C; the squares sum to at most 1 (a plan's ``Clip`` checks
            it), so the whole stays within C. None gives each of n parameters 1/√n.

    Raises:
        ValueError: by the rule, if the shares do not name exactly the trainable parameters.
    """

    def rule(norms: Norms, clip_norm: float) -> Tensor:
        names = norms.names
        own = dict.fromkeys(names, len(names) ** -0.5) if shares is None else shares
        if missing := set(own) ^ set(names):
            raise ValueError(
                "per-layer shares must name exactly the trainable parameters: missing "
                f"{sorted(missing & set(names))}, unknown {sorted(missing & set(own))}"
            )
        limit = clip_norm * norms.by_parameter.new_tensor([own[n] for n in names]).unsqueeze(1)
        return (limit / norms.by_parameter).clamp(max=1.0)

    return rule


def rule(clip: Clip) -> ClippingRule:
    """The function that a plan's :class:`forethought.values.plan.Clip` names.

    ``"quantile"`` clips flat; its clipping norm moves between rounds, see :func:`next_clip_norm`.
    """
    if clip.rule == "automatic":
        return automatic(clip.gamma)
    if clip.rule == "per-layer":
        return per_layer(None if clip.shares is None else dict(clip.shares))
    return flat


def _margin(table: Tensor) -> float:
    # Norms of n parameters are added with n roundings, and a few more follow.
    return 1 + 2 * (32 + table.shape[0]) * _UNIT[table.dtype]


def flat_factors(norms: Norms, clip_norm: float) -> Tensor:
    """One row of the result of :func:`factors` for :func:`flat`, if every norm is finite."""
    scaled = norms.total.reciprocal().mul_(clip_norm / _margin(norms.by_parameter))
    return torch.threshold_(scaled.clamp_(max=1.0), LEAST, 0.0)


def factors(
    norms: Norms,
    clip_norm: float,
    chosen: ClippingRule = flat,
    masses: Tensor | None = None,
    most: float = math.inf,
) -> Tensor:
    """The factors by which the gradients are multiplied, shape (parameters, contributions).

    Non-finite contributions get 0. The factors of the rule ``chosen`` are capped at C/‖g‖ over the
    whole contribution, with a margin for the rounding of this arithmetic: if ``norms`` are upper
    bounds, no scaled contribution has a norm above C. A contribution's factors depend on its own
    norms and masses only (if the rule does so).

    Args:
        clip_norm: C. chosen: the clipping rule.
        masses: absolute masses Σ_t ‖g_t‖‖x_t‖ of the gradients, in the shape of ``by_parameter``.
            A contribution is also scaled down until its mass is at most ``most``, because the
            rounding error of a sum is relative to the mass.

    Raises:
        ValueError: the rule returned factors of another shape.
    """
    table, total = norms.by_parameter, norms.total
    raw = chosen(norms, clip_norm)
    if raw.shape not in (table.shape, table.shape[1:]):
        raise ValueError(
            f"a clipping rule must answer one factor per contribution (and parameter), shape "
            f"{tuple(table.shape[1:])} or {tuple(table.shape)}, not {tuple(raw.shape)}"
        )
    scaled = raw.to(table.dtype).nan_to_num(nan=0.0, posinf=1.0, neginf=0.0).clamp_(min=0.0)
    margin = _margin(table)
    finite = total < math.inf  # false for NaN, too
    if scaled.dim() == 1:  # ‖f·g‖ = f·‖g‖
        scaled = torch.minimum(scaled, (clip_norm / margin) / total)
        if masses is not None:
            scaled = torch.minimum(scaled, most / torch.linalg.vector_norm(masses, dim=0))
        scaled = torch.where(finite, scaled, 0.0)
    else:
        after = torch.linalg.vector_norm(scaled * torch.nan_to_num(table), dim=0)
        cap = (clip_norm / (after * margin)).clamp(max=1.0)
        if masses is not None:
            heavy = torch.linalg.vector_norm(scaled * torch.nan_to_num(masses), dim=0)
            cap = torch.minimum(cap, most / heavy)
        scaled = torch.where(finite, scaled * cap, 0.0)
    # Factors below LEAST could not be rounded to float32 with a small relative error.
    return torch.threshold(scaled, LEAST, 0.0).expand_as(table)


def centred_count_below(norms: Tensor, clip_norm: float) -> float:
    """Σ (1[‖g‖ ≤ C] − 1/2), the quantile rule's count: one contribution moves it by at most 1/2.

    A norm that is not finite counts as at most C, because its gradient was set to zero.
    """
    return float(((norms <= clip_norm) | ~torch.isfinite(norms)).sum()) - norms.numel() / 2


def noised_fraction_below(
    norms: Tensor,
    clip_norm: float,
    count_noise: float,
    expected: float,
    generator: torch.Generator | None = None,
) -> float:
    """Noised share of contributions whose norm is at most C: the quantile rule's second release.

    The released sum is Σ (1[‖g‖ ≤ C] − 1/2) + N(0, σ_b²), which one contribution moves by at most
    1/2 (Andrew et al. 2021, Section 2.2; Theorem 1 accounts for it). Non-finite norms count as
    at most C, because their gradients were set to zero.

    Args:
        norms: shape (contributions,), before clipping; an empty tensor also gets noise.
        clip_norm: C.
        count_noise: σ_b, standard deviation of the noise on the sum.
        expected: expected number of contributions, a constant of the plan (never ``len(norms)``,
            which is private under Poisson sampling).
        generator: of the noise; None: torch's default generator.

    Raises:
        TypeError, ValueError: numbers out of range.
    """
    real("clip_norm", clip_norm, above=0)
    real("count_noise", count_noise, least=0)
    real("expected", expected, above=0)
    centred = centred_count_below(norms, clip_norm)
    device = generator.device if generator is not None else "cpu"
    noise = torch.randn((), generator=generator, device=device, dtype=torch.float64)
    return (centred + count_noise * float(noise)) / expected + 0.5


def next_clip_norm(clip_norm: float, fraction: float, quantile: float, rate: float) -> float:
    """C·exp(−rate·(fraction − quantile)): the geometric update (Andrew et al. 2021, Section 2.1).

    Args:
        fraction: the noised share of contributions whose norm is at most C. It is clamped to
            [0, 1], which is post-processing, so that the noise of one round cannot move C too far.
    """
    real("clip_norm", clip_norm, above=0)
    real("fraction", fraction)
    clamped = min(max(fraction, 0.0), 1.0)
    return float(clip_norm * math.exp(-rate * (clamped - quantile)))


def quantile_update(
    clip: Clip,
    norms: Tensor,
    clip_norm: float,
    expected: float,
    generator: torch.Generator | None = None,
) -> tuple[float, float]:
    """The noised fraction and the next C of a plan's quantile rule after one round.

    Args:
        clip: a Clip with ``rule="quantile"``. norms: shape (contributions,), of the whole round.
        clip_norm: C of this round. expected: expected contributions a round.
        generator: the noise generator.

    Raises:
        ValueError: ``clip`` has another rule.
    """
    if clip.count_noise is None:
        raise ValueError(f"only the clip rule 'quantile' adapts C, not {clip.rule!r}")
    fraction = noised_fraction_below(norms, clip_norm, clip.count_noise, expected, generator)
    return fraction, next_clip_norm(clip_norm, fraction, clip.quantile, clip.quantile_rate)


# The certificate that the rounding error of a sum stays within the charge; it sets the precision.
#
# Before anything is added, the error of every term's sum is bounded from the masses of its
# contributions and the number of roundings. Float32 products are used if the bounds of all terms
# together suffice, in blocks as long as possible; the terms that do not fit are added in float64.


# Blocks shorter than the last length cost more than a product in float64.
BLOCKS = (2048, 1024, 512, 256, 192, 128, 96, 64)
# Measured: a convolution's call costs as much as a float64 product of so many numbers of patches.
FEW_PATCHES = 1 << 15
# Far below the largest float32, so that no intermediate result of a sum overflows.
LARGE = 2.0**120
# More than the norm of any row of finite float32 numbers.
BEYOND = 2.0**160


class Measured:
    """Bounds of all terms: norms by parameter, and masses and reach if a term has them."""

    def __init__(self, found: Sequence[TermBounds], names: tuple[str, ...]) -> None:
        self.found = found
        self.norms = Norms(names, even([bounds.norms for bounds in found]))
        self.masses: Tensor | None = None
        if any(bounds.masses is not None for bounds in found):
            self.masses = even([mass_of(bounds) for bounds in found])

    def reach(self) -> list[float]:
        """The largest reach of each term over all contributions; 0 for a term without."""
        # A square beyond float32 gives an infinite bound; the numbers themselves are below 2^128.
        known = (0.0 if b.reach is None else float(b.reach.max()) for b in self.found)
        return [min(reach, BEYOND) for reach in known]

    def weighted_masses(self, factors: Tensor) -> list[float]:
        """Upper bounds of Σ_b factors[b]·masses[b] of each term, over finite contributions."""
        each = self.norms.by_parameter if self.masses is None else self.masses
        bad = ~torch.isfinite(self.norms.total)
        weighted = (factors * each).masked_fill(bad, 0.0).sum(1)
        # A margin for the rounding of this arithmetic.
        return (weighted * (1 + 2.0**-20)).tolist()


def even(found: Sequence[Tensor]) -> Tensor:
    """A table of the rows, padded with zeros to a multiple of ``UNIT`` columns.

    Vectorised loops then compute all columns by the same instructions.
    """
    table = torch.stack(list(found))
    missing = -table.shape[1] % UNIT
    return torch.nn.functional.pad(table, (0, missing)) if missing else table


def block_lengths(
    held: Sequence[BoundedTerm],
    factors: Tensor,
    measured: Measured,
    allowed: float,
    largest: float,
    most: float,
    precise: bool,
) -> list[int | None]:
    """The length of float32 blocks that keep the error in bounds, for each term; None: float64.

    Args:
        allowed: the largest allowed error of all sums together.
        largest: upper bound of every factor.
        most: upper bound of every term's mass; ∞ if they have to be weighed.
        precise: True if everything is added in float64 anyway.

    Raises:
        ValueError: not even float64 keeps the error within ``allowed``.
    """
    reach, longest = measured.reach(), max(1, *(term.added for term in held))
    # Underflow of a scaled number, times the number it is multiplied with, and of each product.
    small = [
        2 * term.added * term.breadth * (1 + far) for term, far in zip(held, reach, strict=True)
    ]

    def lost(at: int, length: int | None) -> float:
        return _TINY[torch.float64 if length is None else torch.float32] * small[at]

    def narrow(masses: Sequence[float]) -> list[bool]:
        """True for each term that cannot overflow in float32."""
        return [
            not precise and term.dtype == torch.float32 and max(mass, largest * far) < LARGE
            for term, mass, far in zip(held, masses, reach, strict=True)
        ]

    blocks = [longest if in_float32 else None for in_float32 in narrow([most] * len(held))]
    off = max(term.off(length) for term, length in zip(held, blocks, strict=True))
    if off * most + sum(lost(*block) for block in enumerate(blocks)) <= allowed:
        return blocks
    masses = measured.weighted_masses(factors)

    def error(at: int, length: int | None) -> float:
        return held[at].off(length) * masses[at] + lost(at, length)

    def fits(blocks: Sequence[int | None]) -> bool:
        return math.hypot(*(error(*block) for block in enumerate(blocks))) <= allowed

    for length in (longest, *BLOCKS):
        blocks = [length if in_float32 else None for in_float32 in narrow(masses)]
        if fits(blocks):
            return blocks
    # The sums with the largest errors go to float64 until the others fit.
    for at in sorted(range(len(held)), key=lambda at: error(at, BLOCKS[-1]))[::-1]:
        blocks[at] = None
        if fits(blocks):
            return blocks
    raise ValueError(
        f"{longest} products cannot be added within the rounding that is charged to the clipping "
        "norm; use smaller micro-batches, and pass the size of the round as round_size"
    )


# The clipped sum of linear layers that each example uses once, in a few operations.
#
# This is the general way (:func:`clip_and_sum`) without the steps that are not needed here: the
# gradient of a layer is one outer product g xᵀ (and g for the bias), so ‖∇‖² = ‖g‖²(‖x‖² + 1),
# nothing cancels, and no mass exceeds C. The same theorem holds by the same bounds. If these are
# not met at once (long sums, numbers near the ends of float32, non-finite numbers), the general way
# decides. A sum of few products that is too long for float32 is formed in float64.


# Between these, underflow and overflow do not matter.
SMALLEST, SAFE = 2.0**-60, 2.0**40
# Up to so many products and inputs, a float64 sum costs less than the general way.
FEW_PRODUCTS, FEW_INPUTS = 1 << 23, 5 << 18


@dataclass(frozen=True)
class SingleUseLinear:
    """The one use of a linear layer by every example.

    Attributes:
        inputs: shape (B, …, m). gradients: of the layer's outputs, (B, …, n).
        weight, bias: names of the parameters; None if not trained.
    """

    inputs: Tensor
    gradients: Tensor
    weight: str | None
    bias: str | None


def clip_and_sum_once(
    uses: Sequence[SingleUseLinear],
    clip_norm: float,
    round_size: int | None,
    count: int | None = None,
    sizes: Sequence[int] | None = None,
) -> list[Sums] | None:
    """:func:`.sums.clip_and_sum` with flat clipping; None if that function must be used instead.

    Args:
        uses: float32; each parameter is in exactly one of them.
        count: only the first ``count`` rows count; None: all.
        sizes: of non-empty parts of the batch, for a sum of each. The bounds of the longest part's
            sum hold for shorter ones, because each bound grows with the length. Then None also
            means that a part by itself might be summed in another way. None: one sum of all.
    """
    count = len(uses[0].inputs) if count is None else count
    longest = count if sizes is None else max(sizes)
    whole, parts = round_size or longest, [slice(None)] if sizes is None else in_a_row(sizes)
    with exactly(uses[0].inputs.device.type):
        # With more rows than the round has, the general way raises the error.
        ways = (torch.float32, torch.float64) if sizes is None else (torch.float32,)
        for dtype in ways if longest <= whole else ():
            found = _scaled(uses, clip_norm, longest, whole, count, dtype)
            if found is not None:
                norms, scaled = found
                return [(_summed(uses, scaled, part, dtype), norms[part]) for part in parts]
        return None


def _scaled(
    uses: Sequence[SingleUseLinear],
    clip_norm: float,
    size: int,
    whole: int,
    count: int,
    dtype: torch.dtype,
) -> tuple[Tensor, list[Tensor]] | None:
    """Norms, float32, and every use's clipped gradients of its outputs; None if bounds fail.

    The factors are those of the general way, bit for bit: the other records may decide in which way
    a sum is formed, but they must not change a factor.

    Args:
        size: contributions of the longest sum. whole: contributions of its round.
        count: only the first ``count`` rows count; the factor of the others is 0.
        dtype: the precision in which the sums are formed.
    """
    # B contributions of norm at most C. Each product is rounded at most B + 4 times; four of these
    # roundings are of factors and gradients, in float32.
    rows = uses[0].inputs.shape[0]
    products = sum(use.inputs.shape[1] * use.gradients.shape[1] for use in uses)
    widened = sum(use.inputs.numel() for use in uses)
    if dtype == torch.float64 and (rows * products > FEW_PRODUCTS or widened > FEW_INPUTS):
        return None
    lost = _TINY[torch.float32] * rows * products * SAFE
    rounded = gamma(4, torch.float32) + gamma(rows, dtype)
    off = rounded * size * clip_norm + lost
    allowed = clip_norm * (CHARGE / 2) * OWN * size / whole
    if off > allowed or not SMALLEST < clip_norm < SAFE:
        return None
    found: list[Tensor] = []
    longest = 0.0
    for use in uses:
        long, slope = lengths(use.inputs), lengths(use.gradients)
        longest = max(longest, float(long.max()))
        found += [long * slope] * (use.weight is not None) + [slope] * (use.bias is not None)
    norms = Norms((), even(found))
    if not longest < SAFE or not float(norms.total.max()) < SAFE:  # true for NaN, too
        return None
    factors = flat_factors(norms, clip_norm * (1 - CHARGE) * NARROW).float()
    if factors.shape[0] > count:
        factors = factors[:rows]
        factors[count:] = 0.0
    column = factors.unsqueeze(1)
    return norms.total[:count].float(), [use.gradients * column for use in uses]


def _summed(
    uses: Sequence[SingleUseLinear], scaled: Sequence[Tensor], part: slice, dtype: torch.dtype
) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    for use, clipped in zip(uses, scaled, strict=True):
        few, inputs = clipped[part].to(dtype), use.inputs[part]
        if use.weight is not None and dtype == torch.float64:
            total = few.new_zeros(few.shape[1], inputs.shape[1])
            # Converted to float64 while it is in the cache.
            step = max(FEW_ROWS, CACHED // max(1, inputs.shape[1]))
            for at in range(0, len(few), step):
                total.addmm_(few[at : at + step].t(), inputs[at : at + step].double())
            sums[use.weight] = total
        elif use.weight is not None:
            sums[use.weight] = product_in_blocks(few.t(), inputs, len(inputs))
        if use.bias is not None:
            sums[use.bias] = few.sum(0).double()
    return sums


# Clip every contribution and add them up, so that the computed sum keeps the bound C.
#
# The theorem and its proof are in docs/gradients.md, "The sum in floating point". Its three
# conditions hold here: norms are proven upper bounds; a contribution's factors depend on its own
# numbers only; and the error of the sum is bounded before the sum is formed. This bound decides
# between blocks of float32 products and float64.


def clip_and_sum(
    terms: dict[str, Term],
    trained: Mapping[str, Tensor],
    clip_norm: float,
    clip: ClippingRule = flat,
    round_size: int | None = None,
    count: int | None = None,
    keep: Callable[[str, Tensor], Tensor] | None = None,
) -> Sums:
    """The sum over contributions of their clipped gradients, and the norms before clipping.

    Args:
        terms: parameter name → its gradients; emptied by the call, to free memory early.
        trained: the parameters by name, or tensors of their shapes and types, in the same order.
        clip_norm: C, the most by which adding or removing one contribution moves the result.
        clip: the rule that turns norms into factors.
        round_size: contributions of the whole round, if the results of several calls are added up.
            None: this call is the whole round.
        count: only the first ``count`` contributions count; the others fill up a block and repeat
            these. None: all.
        keep: ``(name, sum)`` → the part of a parameter's sum to keep; None: all of it.

    Returns:
        Sums in float64 in the parameters' shapes; norms (upper bounds), shape (contributions,),
        float32, or float64 where a parameter is. A contribution that is not finite adds zero.

    Raises:
        ValueError: more contributions than ``round_size``, a round of more than 2^20, a clipping
            rule whose factors have another shape, or a sum that float64 cannot form exactly enough.
    """
    ready = weighed(terms, trained, clip_norm, clip, round_size, count)
    sums = {}
    with exactly(ready.norms.device.type):
        for name, row, length in zip(ready.names, ready.factors, ready.lengths, strict=True):
            found = ready.held.pop(0).summed(row, length).view(trained[name].shape)
            sums[name] = found if keep is None else keep(name, found)
    return sums, ready.norms


@dataclass(frozen=True)
class Weighed:
    """The terms, factors and block lengths from which a clipped sum is formed.

    Attributes:
        names: of the parameters. held: their terms.
        factors: shape (parameters, contributions).
        lengths: of float32 blocks, for each parameter; None: in float64.
        norms: before clipping, as :func:`clip_and_sum` returns them.
    """

    names: tuple[str, ...]
    held: list[BoundedTerm]
    factors: Tensor
    lengths: list[int | None]
    norms: Tensor


def weighed(
    terms: dict[str, Term],
    trained: Mapping[str, Tensor],
    clip_norm: float,
    clip: ClippingRule,
    round_size: int | None,
    count: int | None = None,
) -> Weighed:
    """The steps of :func:`clip_and_sum` before the sums; same arguments, same errors."""
    names = tuple(terms)
    first = next(iter(trained.values()))
    precise = any(p.dtype == torch.float64 for p in trained.values())
    with exactly(first.device.type):
        held = [bounded(terms.pop(name)) for name in names]
        measured = Measured([term.bounds() for term in held], names)
        rows = len(measured.found[0].norms)
        real = rows if count is None else count
        share = _share(max(real, 1), round_size)  # a sum of zeros has no error
        greatest = float(measured.norms.total.max())
        if not math.isfinite(greatest):
            held, measured = _settled(held, measured)
        # Rounding a factor to float32 moves it by less than the margin.
        bound = clip_norm * (1 - CHARGE) * (1 if precise else NARROW)
        if clip is flat and measured.masses is None and math.isfinite(greatest):
            row = flat_factors(measured.norms, bound)
            scaling, largest = row.expand_as(measured.norms.by_parameter), 1.0
        else:
            scaling = factors(measured.norms, bound, clip, measured.masses, MASS * clip_norm)
            largest = max(1.0, float(scaling.max()))
        scaling = scaling if precise else scaling.float()
        missing = scaling.shape[1] - real
        if missing:
            scaling = torch.cat([scaling[:, :real], scaling.new_zeros(len(held), missing)], 1)
        allowed = clip_norm * (CHARGE / 2) * OWN * share
        # Without cancellation no mass exceeds its contribution's norm, which is at most C.
        most = scaling.shape[1] * clip_norm if measured.masses is None else math.inf
        lengths = block_lengths(held, scaling, measured, allowed, largest, most, precise)
    total = measured.norms.total[:real]
    if not precise:
        # A finite norm beyond float32 must stay finite.
        limit = torch.finfo(torch.float32).max
        if not greatest < limit:
            total = torch.where(total < math.inf, total.clamp(max=limit), total)
        total = total.float()
    return Weighed(names, held, scaling[:, :rows], lengths, total)


def _settled(held: list[BoundedTerm], measured: Measured) -> tuple[list[BoundedTerm], Measured]:
    """Measure non-finite contributions again in float64; set those that stay so to zero."""
    names = measured.norms.names
    index = (~torch.isfinite(measured.norms.total)).nonzero().squeeze(1)
    found = [
        _replaced(bounds, index, [term.picked(at).bounds() for at in torch.split(index, 1)])
        if term.dtype == torch.float32
        else bounds
        for bounds, term in zip(measured.found, held, strict=True)
    ]
    measured = Measured(found, names)
    bad = ~torch.isfinite(measured.norms.total[: len(found[0].norms)])
    if bad.any():
        held = [bounded(term.without(bad)) for term in held]
        measured.found = [
            b if b.reach is None else b._replace(reach=b.reach.masked_fill(bad, 0)) for b in found
        ]
        if measured.masses is not None:
            measured.masses = measured.masses.nan_to_num(nan=0.0, posinf=0.0)
    return held, measured


def _share(size: int, round_size: int | None) -> float:
    whole = size if round_size is None else round_size
    if not size <= whole:
        raise ValueError(
            f"round_size is of the whole round, at least the {size} of this call, not {round_size}"
        )
    if whole > RECORDS:
        raise ValueError(
            f"a round of {whole} contributions is more than the {RECORDS} for which the sum keeps "
            "its bound in floating point; make the expected batch smaller"
        )
    return size / whole


def _replaced(bounds: TermBounds, index: Tensor, better: Sequence[TermBounds]) -> TermBounds:
    norms = bounds.norms.index_copy(0, index, torch.cat([one.norms for one in better]))
    masses, reach = bounds.masses, bounds.reach
    if masses is not None:
        masses = masses.index_copy(0, index, torch.cat([mass_of(one) for one in better]))
    known = [one.reach for one in better if one.reach is not None]
    if reach is not None and len(known) == len(better):
        reach = reach.index_copy(0, index, torch.cat(known))
    return TermBounds(norms, masses, reach)


# Clipped sums of several parts of a batch, with norms and factors computed once for all parts.
#
# Norms and factors belong to one contribution each. If the sum of all contributions may be formed
# in float32 in one block, so may the sum of each part, and the part by itself would decide the
# same: every bound of the certificate grows with the number of products and with the masses, and
# the allowed error is the same. Otherwise each part is clipped and summed by itself, so that its
# bits do not depend on another part's numbers.


def clip_and_sum_parts(
    terms: dict[str, Term],
    trained: Mapping[str, Tensor],
    clip_norm: float,
    sizes: Sequence[int],
    clip: ClippingRule = flat,
) -> list[Sums]:
    """The result of :func:`.sums.clip_and_sum` for each part of a batch.

    Args:
        terms, trained, clip_norm, clip: as for ``clip_and_sum``, of the whole batch.
        sizes: contributions of each part, one after the other; none is 0.

    Raises:
        ValueError: see :func:`.sums.clip_and_sum`.
    """
    whole = {
        name: term if isinstance(term, Dense | Outer) else Dense(term.rows())
        for name, term in terms.items()
    }
    terms.clear()
    ready = weighed(dict(whole), trained, clip_norm, clip, None) if clip is flat else None
    if ready is None or not _at_once(ready):
        each: Iterator[dict[str, Term]] = (
            {name: term.some(at) for name, term in whole.items()} for at in in_a_row(sizes)
        )
        return [clip_and_sum(part, trained, clip_norm, clip) for part in each]
    found = []
    with exactly(ready.norms.device.type):
        for at in in_a_row(sizes):
            sums = {}
            for name, row, length in zip(ready.names, ready.factors, ready.lengths, strict=True):
                part = whole[name].some(at).summed(row[at], length)
                sums[name] = part.view(trained[name].shape)
            found.append((sums, ready.norms[at]))
    return found


def _at_once(ready: Weighed) -> bool:
    """True if all norms are finite, and no sum needs a higher precision or several blocks."""
    return bool(torch.isfinite(ready.norms).all()) and all(
        term.dtype == torch.float64 if length is None else term.added <= length
        for term, length in zip(ready.held, ready.lengths, strict=True)
    )
