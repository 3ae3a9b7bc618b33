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
    uses: Sequence[Once], clip_norm: float, round_size: int | None
) -> tuple[dict[str, Tensor], Tensor] | None:
    """As :func:`.sums.clip_and_sum` with flat clipping; None where that must be asked.

    Args:
        uses: each parameter in one of them; float32.
    """
    size = len(uses[0].inputs)
    found = _scaled(uses, clip_norm, size, max(size, round_size or size))
    if found is None:
        return None
    norms, scaled = found
    with exactly(norms.device.type):
        return _summed(uses, scaled, slice(None)), norms


def clip_and_sum_once_parts(
    uses: Sequence[Once], clip_norm: float, sizes: Sequence[int]
) -> list[tuple[dict[str, Tensor], Tensor]] | None:
    """The same for each of several parts of a batch, one after the other; none of them is empty.

    What holds for the longest part's sum holds for shorter ones: each bound grows with the length.
    None where one part by itself might be formed in another way.
    """
    found = _scaled(uses, clip_norm, max(sizes), max(sizes))
    if found is None:
        return None
    norms, scaled = found
    parts, start = [], 0
    with exactly(norms.device.type):
        for size in sizes:
            part = slice(start, start + size)
            parts.append((_summed(uses, scaled, part), norms[part]))
            start += size
    return parts


def _scaled(
    uses: Sequence[Once], clip_norm: float, size: int, whole: int
) -> tuple[Tensor, list[Tensor]] | None:
    """Norms, float32, and every use's clipped gradients of its outputs.

    Args:
        size: of the longest sum that is formed. whole: contributions of the round that it is of.
    """
    # B contributions of at most C, whose products meet at most B + 4 roundings each.
    products = sum(use.inputs.shape[1] * use.gradients.shape[1] for use in uses)
    lost = tiny(torch.float32) * size * products * SAFE
    off = gamma(size + 4, torch.float32) * size * clip_norm + lost
    allowed = clip_norm * (CHARGE / 2) * OWN * size / whole
    if off > allowed or not SMALLEST < clip_norm < SAFE:
        return None
    with exactly(uses[0].inputs.device.type):
        squares: Tensor | None = None
        longest = 0.0
        for use in uses:
            long, slope = lengths(use.inputs), lengths(use.gradients)
            longest = max(longest, float(long.max()))
            squared = long.square_() if use.weight is not None else long.zero_()
            squared = squared.add_(1.0) if use.bias is not None else squared
            squared.mul_(slope.square_())
            squares = squared if squares is None else squares.add_(squared)
        assert squares is not None  # a chain has a layer
        norms = squares.sqrt_()
        if not longest < SAFE or not float(norms.max()) < SAFE:  # or they are no numbers
            return None
        bound = clip_norm * (1 - CHARGE) * NARROW * (1 - 2.0**-40)
        factors = torch.clamp(bound / norms, max=1.0).float().unsqueeze(1)
        return norms.float(), [use.gradients * factors for use in uses]


def _summed(uses: Sequence[Once], scaled: Sequence[Tensor], part: slice) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}
    for use, clipped in zip(uses, scaled, strict=True):
        few = clipped[part]
        if use.weight is not None:
            sums[use.weight] = (few.t() @ use.inputs[part]).double()
        if use.bias is not None:
            sums[use.bias] = few.sum(0).double()
    return sums
