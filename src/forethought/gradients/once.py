"""Clip and add the gradients of linear layers that each example uses once: a few operations.

The general way (:mod:`.sums`) with everything left out that does not occur here: the gradient of a
layer is one outer product g xᵀ (and g for the bias), so ‖∇‖² = ‖g‖²(‖x‖² + 1), nothing cancels, and
no mass exceeds C. The same theorem holds by the same bounds; where they are not met at once
(long sums, numbers near the ends of float32, nothing finite), the general way decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forethought.gradients.clipping import Norms, flat_factors
from forethought.gradients.precision import even
from forethought.gradients.rounding import CHARGE, NARROW, OWN, exactly, gamma, lengths, tiny

# Between these no underflow or overflow matters.
SMALLEST, SAFE = 2.0**-60, 2.0**40


@dataclass(frozen=True)
class Once:
    """One layer's use: inputs (B, m), gradients of its outputs (B, n), names of its parameters."""

    inputs: Tensor
    gradients: Tensor
    weight: str | None
    bias: str | None


def clip_and_sum_once(
    uses: Sequence[Once], clip_norm: float, round_size: int | None, count: int | None = None
) -> tuple[dict[str, Tensor], Tensor] | None:
    """As :func:`.sums.clip_and_sum` with flat clipping; None where that must be asked.

    Args:
        uses: each parameter in one of them; float32.
        count: how many of the rows count, the first ones; None: all.
    """
    count = len(uses[0].inputs) if count is None else count
    with exactly(uses[0].inputs.device.type):
        found = _scaled(uses, clip_norm, count, max(count, round_size or count), count)
        if found is None:
            return None
        norms, scaled = found
        return _summed(uses, scaled, None), norms


def clip_and_sum_once_parts(
    uses: Sequence[Once], clip_norm: float, sizes: Sequence[int]
) -> list[tuple[dict[str, Tensor], Tensor]] | None:
    """The same for each of several parts of a batch, one after the other; none of them is empty.

    What holds for the longest part's sum holds for shorter ones: each bound grows with the length.
    None where one part by itself might be formed in another way.
    """
    parts, start = [], 0
    with exactly(uses[0].inputs.device.type):
        found = _scaled(uses, clip_norm, max(sizes), max(sizes), sum(sizes))
        if found is None:
            return None
        norms, scaled = found
        for size in sizes:
            part = slice(start, start + size)
            parts.append((_summed(uses, scaled, part), norms[part]))
            start += size
    return parts


def _scaled(
    uses: Sequence[Once], clip_norm: float, size: int, whole: int, count: int
) -> tuple[Tensor, list[Tensor]] | None:
    """Norms, float32, and every use's clipped gradients of its outputs.

    The factors are those of the general way, to the bit: which way a sum takes may follow from the
    other records, and a factor must not.

    Args:
        size: of the longest sum that is formed. whole: contributions of the round that it is of.
        count: how many rows count, the first ones; the factor of the others is 0.
    """
    # B contributions of at most C, whose products meet at most B + 4 roundings each.
    rows = uses[0].inputs.shape[0]
    products = sum(use.inputs.shape[1] * use.gradients.shape[1] for use in uses)
    lost = tiny(torch.float32) * rows * products * SAFE
    off = gamma(rows + 4, torch.float32) * size * clip_norm + lost
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
    if not longest < SAFE or not float(norms.total.max()) < SAFE:  # or they are no numbers
        return None
    factors = flat_factors(norms, clip_norm * (1 - CHARGE) * NARROW).float()
    if factors.shape[0] > count:
        factors = factors[:rows]
        factors[count:] = 0.0
    column = factors.unsqueeze(1)
    return norms.total[:count].float(), [use.gradients * column for use in uses]


def _summed(
    uses: Sequence[Once], scaled: Sequence[Tensor], part: slice | None
) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    for use, clipped in zip(uses, scaled, strict=True):
        few, inputs = (clipped, use.inputs) if part is None else (clipped[part], use.inputs[part])
        if use.weight is not None:
            sums[use.weight] = (few.t() @ inputs).double()
        if use.bias is not None:
            sums[use.bias] = few.sum(0).double()
    return sums
