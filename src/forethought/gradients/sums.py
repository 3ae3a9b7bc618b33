"""Clip every contribution and add them up, so that the computed sum keeps the bound C.

The theorem and its proof are in docs/gradients.md, "The sum in floating point". Here its three
conditions are met: norms are proven upper bounds, factors are made from them by the numbers of one
contribution alone, and the error of the sum is bounded before the sum is formed, which decides how
it is formed: float32 products where their bound suffices, in blocks of so many terms, else float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from forethought.gradients import clipping
from forethought.gradients.rounding import (
    CHARGE,
    MASS,
    OWN,
    RECORDS,
    exactly,
    tiny,
)
from forethought.gradients.terms import BoundedTerm, Bounds, Term, bounded

# Blocks shorter than the last cost more than a product in float64.
BLOCKS = (2048, 1024, 512, 256, 192, 128, 96, 64)
# Far from the largest float32, so that nothing on the way to a sum overflows.
LARGE = 2.0**120
# Room for rounding a factor to float32.
NARROW = 1 - 2.0**-22


def clip_and_sum(
    terms: dict[str, Term],
    trained: Mapping[str, nn.Parameter],
    clip_norm: float,
    clip: clipping.ClippingRule = clipping.flat,
    round_size: int | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """The sum over contributions of their clipped gradients, and the norms before clipping.

    Args:
        terms: parameter name → its gradients; emptied, so that nothing is held longer than needed.
        trained: the parameters by name, in the same order.
        clip_norm: C, by which one contribution more or less moves the result at most.
        clip: how norms become factors.
        round_size: contributions of the whole round, where several calls are added up.

    Returns:
        Sums in float64 in the parameters' shapes; norms (upper bounds), shape (contributions,),
        float32, or float64 where a parameter is. A contribution that is not finite adds zero.

    Raises:
        ValueError: more contributions than ``round_size``, or a round of more than 2^20.
    """
    names = tuple(terms)
    device = next(iter(trained.values())).device
    with exactly(device.type):
        held = [bounded(terms.pop(name)) for name in names]
        squares, masses, reach = _measured(held)
        share = _share(squares.shape[1], round_size)
        norms = clipping.Norms(names, squares.sqrt())
        precise = any(p.dtype == torch.float64 for p in trained.values())
        # Rounding a factor to float32 moves it by less than the margin.
        bound = clip_norm * (1 - CHARGE) * (1 if precise else NARROW)
        factors = clipping.factors(norms, bound, clip, masses, MASS * clip_norm)
        total = norms.total
        sound = total + masses.sum(0)
        if not math.isfinite(float(sound.max())):
            bad = ~torch.isfinite(sound)
            total = total.masked_fill(bad, math.inf)
            held = [bounded(term.without(bad)) for term in held]
            masses, reach = (values.masked_fill(bad, 0) for values in (masses, reach))
        if not precise:
            factors = factors.float().double()
        allowed = clip_norm * (CHARGE / 2) * OWN * share
        plan = _lengths(held, factors, masses, reach, allowed, precise)
        sums = {}
        for name, row, length in zip(names, factors, plan, strict=True):
            sums[name] = held.pop(0).summed(row, length).reshape(trained[name].shape)
    kind = torch.float64 if precise else torch.float32
    # A norm beyond float32 is still a number.
    limit = torch.finfo(kind).max
    return sums, torch.where(total < math.inf, total.clamp(max=limit), total).to(kind)


def _share(size: int, round_size: int | None) -> float:
    whole = size if round_size is None else round_size
    if not size <= whole:
        raise ValueError(
            f"round_size is the number of contributions of the whole round, at least the {size} "
            f"of this call, not {round_size}"
        )
    if whole > RECORDS:
        raise ValueError(
            f"a round of {whole} contributions is more than the {RECORDS} for which the sum keeps "
            "its bound in floating point; make the expected batch smaller"
        )
    return size / whole


def _measured(held: Sequence[BoundedTerm]) -> tuple[Tensor, Tensor, Tensor]:
    # Squared norms, masses and reach, shape (parameters, contributions) each.
    found = [term.bounds() for term in held]
    bad = ~torch.isfinite(torch.stack([bounds.masses for bounds in found]).sum(0))
    if bad.any():
        # Squares that overflow float32, or numbers that are not finite: float64 tells which.
        index = bad.nonzero().squeeze(1)
        for at, term in enumerate(held):
            if term.dtype == torch.float32:
                found[at] = _replaced(found[at], index, term.picked(index).bounds())
    zero = torch.zeros_like(found[0].squares)
    return (
        torch.stack([bounds.squares for bounds in found]),
        torch.stack([bounds.masses for bounds in found]),
        torch.stack([zero if bounds.reach is None else bounds.reach for bounds in found]),
    )


def _replaced(bounds: Bounds, index: Tensor, better: Bounds) -> Bounds:
    def put(old: Tensor | None, new: Tensor | None) -> Tensor | None:
        return old if old is None or new is None else old.index_copy(0, index, new)

    squares, masses, reach = (put(old, new) for old, new in zip(bounds, better, strict=True))
    assert squares is not None and masses is not None
    return Bounds(squares, masses, reach)


def _lengths(
    held: Sequence[BoundedTerm],
    factors: Tensor,
    masses: Tensor,
    reach: Tensor,
    allowed: float,
    precise: bool,
) -> list[int | None]:
    """How long float32 blocks may be, for each term; None adds in float64.

    Raises:
        ValueError: not even float64 keeps the error within ``allowed``.
    """
    # The absolute mass of each sum, a little more for this arithmetic.
    sizes = ((factors * masses).sum(1) * (1 + 2.0**-20)).tolist()
    reaches = (1 + reach.amax(1)).tolist()
    counts = [term.added for term in held]

    # Underflow: of a scaled number times what it is multiplied with, and of each product.
    def error(at: int, length: int | None) -> float:
        kind = torch.float64 if length is None else torch.float32
        underflow = tiny(kind) * counts[at] * held[at].breadth * 2 * reaches[at]
        return float(held[at].off(length) * sizes[at] + underflow)

    def errors(blocks: Sequence[int | None]) -> float:
        return math.hypot(*(error(at, length) for at, length in enumerate(blocks)))

    most = max(1.0, float(factors.max()))
    short = [
        not precise and term.dtype == torch.float32 and max(size, most * reach) < LARGE
        for term, size, reach in zip(held, sizes, reaches, strict=True)
    ]
    for length in (max(counts), *BLOCKS):
        blocks = [length if narrow else None for narrow in short]
        if errors(blocks) <= allowed:
            return blocks
    # The sums with the largest errors go to float64 until the others fit.
    length = BLOCKS[-1]
    by_error = sorted(range(len(held)), key=lambda at: error(at, length))
    blocks = [length if narrow else None for narrow in short]
    for at in reversed(by_error):
        blocks[at] = None
        if errors(blocks) <= allowed:
            return blocks
    raise ValueError(
        f"{max(counts)} products cannot be added within the rounding that is charged to the "
        "clipping norm; use smaller micro-batches, and pass the size of the round as round_size"
    )
