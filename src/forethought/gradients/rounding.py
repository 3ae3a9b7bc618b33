"""Constants of the theorem that a sum of contributions keeps its bound in floating point.

docs/gradients.md, "The sum in floating point", states and proves it. In short: contributions are
clipped to (1 − r)·C, whatever the batch the computed sum is within r·C/2 of the exact sum of the
computed contributions, so neighbouring batches differ by at most (1 − r)·C + 2·r·C/2 = C.

Error bounds are those of Higham, *Accuracy and Stability of Numerical Algorithms* (2002), Section
3.1 and 4.2: a sum of products in which no term meets more than n roundings is off by at most
γ_n = n·u/(1 − n·u) times the sum of the absolute products, in any order, with or without fused
operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from forethought.turns import turns

CHARGE = 5 * 2.0**-9
"""r: the share of the clipping norm set aside for rounding, just under 1 %, whatever the batch."""

MASS = 2.0**10
"""A contribution's absolute mass Σ_t ‖g_t‖‖x_t‖ is held below MASS·C: see ``clipping.factors``."""

NARROW = 1 - 2.0**-22
"""Room for rounding a factor to float32."""

RECORDS = 1 << 20
"""The most contributions a round may have: up to here float64 always keeps the promise."""

SLACK = 1 + 2.0**-40
"""More than what a few float64 operations on a bound can take from it."""

# What other sums of float64 numbers (micro-batches, ranks) may add to the error of one round.
OWN = 1 - 2.0**-7


_UNIT = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
_TINY = {torch.float32: 2.0**-126, torch.float64: 2.0**-1022}


def unit(dtype: torch.dtype) -> float:
    """u, half the distance from 1 to the next number."""
    return _UNIT[dtype]


def gamma(roundings: float, dtype: torch.dtype) -> float:
    """γ_n = n·u/(1 − n·u), with a little more for the arithmetic that uses it; inf if n·u ≥ 1/2."""
    part = (roundings + 2) * unit(dtype)
    return part / (1 - part) if part < 0.5 else float("inf")


def tiny(dtype: torch.dtype) -> float:
    """The most that underflow loses in one operation: subnormal numbers may be flushed to zero."""
    return _TINY[dtype]


# Where torch may be told to make float32 products of less, TF32 or bfloat16 (torch 2.9 and later).
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
    """No autocast, no history, and float32 products that are float32 (no TF32, no bfloat16).

    The precision is the process's: nobody gives up what another still computes with.
    """
    with turns, _exactly(kind):
        yield


def _exactly(kind: str) -> AbstractContextManager[None]:
    if _PRODUCTS:
        exact = all(products.fp32_precision in _EXACT for products in _PRODUCTS)
    else:
        exact = torch.get_float32_matmul_precision() == "highest"
    if exact and not torch.is_autocast_enabled(kind):
        return torch.no_grad()
    return _plainly(kind)


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
                if products.fp32_precision != precision:  # not what a wider setting says
                    products.fp32_precision = precision


# An inner product, and a float32 norm, are taken over so many numbers at a time.
RUN = 1 << 10
SHORT_RUN = 1 << 8
# The norms of so few numbers are taken in float64 at once. A row's length decides, and not how
# many rows there are.
SMALL = 1 << 6


def roundings(count: int, length: int = RUN) -> int:
    """The most that one of ``count`` terms meets, added in blocks of ``length``, block by block."""
    return min(count, length) + math.ceil(count / length)


def square_sums(values: Tensor) -> Tensor:
    """Upper bounds of Σ v² over the last dimension, float64."""
    return lengths(values).square_().mul_(SLACK)


def lengths(values: Tensor) -> Tensor:
    """Upper bounds of the norms along the last dimension, float64."""
    count, kind = values.shape[-1], values.dtype
    if kind == torch.float64 or count <= SMALL:
        norms: Tensor = torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64)
        norms.mul_(1 + gamma(count + 16, torch.float64) + 2.0**-45)
        # Squares of float32 numbers do not underflow in float64.
        return norms if kind == torch.float32 else norms.add_(math.sqrt(count * tiny(kind)))
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
    # A norm is off by half as much as its square. A square that underflows may be lost whole.
    most = gamma(run + 16, kind) / 2 + 2.0**-40
    return norms.mul_(1 + most).add_(math.sqrt(count * tiny(kind)))


def in_blocks(total: int, length: int, part: Callable[[int, int], Tensor]) -> Tensor:
    """Σ part(start, end) over blocks of ``length``, added one after the other."""
    result = part(0, min(length, total))
    for start in range(length, total, length):
        result += part(start, min(start + length, total))
    return result


def product_in_blocks(one: Tensor, other: Tensor, length: int) -> Tensor:
    """one @ other, shapes (m, T), (T, n), over blocks of ``length`` added one after the other."""
    total = other.shape[0]
    result = one[:, :length] @ other[:length]
    if total > length:
        # One buffer: memory that is new for every block costs as much as the products.
        part = torch.empty_like(result)
        for start in range(length, total, length):
            end = start + length
            torch.mm(one[:, start:end], other[start:end], out=part)
            result += part
    return result


def gram(one: Tensor, other: Tensor) -> Tensor:
    """Inner products ⟨one_t, other_s⟩, shapes (B, T, n), (B, S, n) → (B, T, S)."""
    return in_blocks(
        one.shape[2], RUN, lambda at, to: torch.bmm(one[..., at:to], other[..., at:to].mT)
    )


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


def gram_product(one: Tensor, other: Tensor) -> Tensor:
    """Σ_ts one[t,s]·other[t,s] per example, float64, for two matrices (B, T, S).

    Rows are added in their own precision, then in float64: no more than S + 1 roundings of it.
    """
    # An elementwise product is several times faster here than a batched dot product.
    return (one * other).sum(2).double().sum(1)
