"""Clip every contribution and add them up, so that the computed sum keeps the bound C.

The theorem and its proof are in docs/gradients.md, "The sum in floating point". Here its three
conditions are met: norms are proven upper bounds, factors are made from them by the numbers of one
contribution alone, and the error of the sum is bounded before the sum is formed, which decides how
it is formed: float32 products where their bound suffices, in blocks of so many terms, else float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forethought.gradients import clipping
from forethought.gradients.precision import Limits, Measured, block_lengths
from forethought.gradients.rounding import (
    CHARGE,
    MASS,
    NARROW,
    OWN,
    RECORDS,
    exactly,
)
from forethought.gradients.terms import BoundedTerm, Bounds, Term, bounded, mass_of


def clip_and_sum(
    terms: dict[str, Term],
    trained: Mapping[str, Tensor],
    clip_norm: float,
    clip: clipping.ClippingRule = clipping.flat,
    round_size: int | None = None,
    count: int | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """The sum over contributions of their clipped gradients, and the norms before clipping.

    Args:
        terms: parameter name → its gradients; emptied, so that nothing is held longer than needed.
        trained: the parameters by name, or what has their shapes and types, in the same order.
        clip_norm: C, by which one contribution more or less moves the result at most.
        clip: how norms become factors.
        round_size: contributions of the whole round, where several calls are added up.
        count: how many of the contributions count, the first ones; the others fill up a block and
            repeat these. None: all.

    Returns:
        Sums in float64 in the parameters' shapes; norms (upper bounds), shape (contributions,),
        float32, or float64 where a parameter is. A contribution that is not finite adds zero.

    Raises:
        ValueError: more contributions than ``round_size``, or a round of more than 2^20.
    """
    ready = weighed(terms, trained, clip_norm, clip, round_size, count)
    sums = {}
    with exactly(ready.norms.device.type):
        for name, row, length in zip(ready.names, ready.factors, ready.lengths, strict=True):
            found = ready.held.pop(0).summed(row, length)
            sums[name] = found.view(trained[name].shape)
    return sums, ready.norms


@dataclass(frozen=True)
class Weighed:
    """What a clipped sum is formed from.

    Attributes:
        names: of the parameters. held: their terms.
        factors: shape (parameters, contributions). lengths: of float32 blocks; None: in float64.
        norms: before clipping, as they are handed over.
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
    clip: clipping.ClippingRule,
    round_size: int | None,
    count: int | None = None,
) -> Weighed:
    """Everything of :func:`clip_and_sum` but the sums; the same arguments, and the same errors."""
    names = tuple(terms)
    first = next(iter(trained.values()))
    precise = any(p.dtype == torch.float64 for p in trained.values())
    with exactly(first.device.type):
        held = [bounded(terms.pop(name)) for name in names]
        measured = Measured([term.bounds() for term in held], names)
        rows = len(measured.found[0].norms)
        real = rows if count is None else count
        share = _share(real, round_size)
        greatest = float(measured.norms.total.max())
        if not math.isfinite(greatest):
            held, measured = _settled(held, measured)
        # Rounding a factor to float32 moves it by less than the margin.
        bound = clip_norm * (1 - CHARGE) * (1 if precise else NARROW)
        if clip is clipping.flat and measured.masses is None and math.isfinite(greatest):
            row = clipping.flat_factors(measured.norms, bound)
            factors, largest = row.expand_as(measured.norms.by_parameter), 1.0
        else:
            factors = clipping.factors(
                measured.norms, bound, clip, measured.masses, MASS * clip_norm
            )
            largest = max(1.0, float(factors.max()))
        factors = factors if precise else factors.float()
        missing = factors.shape[1] - real
        if missing:
            factors = torch.cat([factors[:, :real], factors.new_zeros(len(held), missing)], 1)
        limits = Limits(clip_norm, clip_norm * (CHARGE / 2) * OWN * share, largest, precise)
        lengths = block_lengths(held, factors, measured, limits)
    total = measured.norms.total[:real]
    if not precise:
        # A norm beyond float32 is still a number.
        limit = torch.finfo(torch.float32).max
        if not greatest < limit:
            total = torch.where(total < math.inf, total.clamp(max=limit), total)
        total = total.float()
    return Weighed(names, held, factors[:, :rows], lengths, total)


def _settled(held: list[BoundedTerm], measured: Measured) -> tuple[list[BoundedTerm], Measured]:
    """Measure what overflowed float32 in float64, and set to zero what is no number."""
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
            f"round_size is the number of contributions of the whole round, at least the {size} "
            f"of this call, not {round_size}"
        )
    if whole > RECORDS:
        raise ValueError(
            f"a round of {whole} contributions is more than the {RECORDS} for which the sum keeps "
            "its bound in floating point; make the expected batch smaller"
        )
    return size / whole


def _replaced(bounds: Bounds, index: Tensor, better: Sequence[Bounds]) -> Bounds:
    norms = bounds.norms.index_copy(0, index, torch.cat([one.norms for one in better]))
    masses, reach = bounds.masses, bounds.reach
    if masses is not None:
        masses = masses.index_copy(0, index, torch.cat([mass_of(one) for one in better]))
    known = [one.reach for one in better if one.reach is not None]
    if reach is not None and len(known) == len(better):
        reach = reach.index_copy(0, index, torch.cat(known))
    return Bounds(norms, masses, reach)
