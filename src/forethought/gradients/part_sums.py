"""Clipped sums of several parts of a batch from what is worked out once for all of it.

Norms and factors are of one contribution each. Where the sum of all contributions may be formed in
float32 at once, so may a part's, and it is what the part decides by itself: every bound of
:mod:`.precision` grows with the number of products and with the masses, and what is allowed is the
same. Everywhere else each part is summed by itself, so that no part's bits follow from another's
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from forethought.gradients import clipping
from forethought.gradients.ghost import OneHot
from forethought.gradients.rounding import exactly
from forethought.gradients.sums import Weighed, clip_and_sum, weighed
from forethought.gradients.terms import Dense, Outer, Term


def clip_and_sum_parts(
    terms: dict[str, Term],
    trained: Mapping[str, Tensor],
    clip_norm: float,
    sizes: Sequence[int],
    clip: clipping.ClippingRule = clipping.flat,
) -> list[tuple[dict[str, Tensor], Tensor]]:
    """For each part of a batch, what :func:`.sums.clip_and_sum` returns.

    Args:
        terms, trained, clip_norm, clip: as there, of the whole batch.
        sizes: contributions of each part, one after the other; none is 0.

    Raises:
        ValueError: see :func:`.sums.clip_and_sum`.
    """
    whole = {name: _sliceable(term) for name, term in terms.items()}
    terms.clear()
    ends = list(accumulate(sizes))
    places = list(zip([0, *ends[:-1]], ends, strict=True))
    ready = weighed(dict(whole), trained, clip_norm, clip, None) if clip is clipping.flat else None
    if ready is None or not _at_once(ready):
        return [
            clip_and_sum(
                {name: _slice(term, start, end) for name, term in whole.items()},
                trained,
                clip_norm,
                clip,
            )
            for start, end in places
        ]
    found = []
    with exactly(ready.norms.device.type):
        for start, end in places:
            sums = {
                name: _slice(whole[name], start, end)
                .summed(row[start:end], length)
                .view(trained[name].shape)
                for name, row, length in zip(ready.names, ready.factors, ready.lengths, strict=True)
            }
            found.append((sums, ready.norms[start:end]))
    return found


def _at_once(ready: Weighed) -> bool:
    """Whether every sum is formed in one block, of numbers that all are finite."""
    return bool(torch.isfinite(ready.norms).all()) and all(
        term.dtype == torch.float64 if length is None else term.added <= length
        for term, length in zip(ready.held, ready.lengths, strict=True)
    )


def _sliceable(term: Term) -> Dense | Outer:
    return term if isinstance(term, Dense | Outer) else Dense(term.rows())


def _slice(term: Dense | Outer, start: int, end: int) -> Dense | Outer:
    """The term of some examples in a row, sharing memory."""
    if isinstance(term, Dense):
        return Dense(term.values[start:end])
    blocks = [
        (
            OneHot(left.index[start:end], left.size)
            if isinstance(left, OneHot)
            else left[start:end],
            right[start:end],
        )
        for left, right in term.blocks
    ]
    return Outer(blocks, term.transposed)
