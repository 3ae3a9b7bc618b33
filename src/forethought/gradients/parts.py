"""Clipped sums of several parts of one batch: one pass over all examples, a sum for each part.

Every part has the theorem of :func:`~forethought.gradients.clipped.clipped_sum`: its sum is formed
from its own examples' gradients by the same proven steps, and no lane sees another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from forethought.gradients import chain, clipping, trees
from forethought.gradients.batch import Batch
from forethought.gradients.once import Once
from forethought.gradients.passes import contributions
from forethought.gradients.sums import clip_and_sum
from forethought.gradients.terms import Dense, OneHot, Outer, Term
from forethought.gradients.trees import Loss
from forethought.mechanism import real

Sums = tuple[dict[str, Tensor], Tensor]


def clipped_sums(
    model: nn.Module,
    loss: Loss,
    inputs: Any,
    targets: Any,
    clip_norm: float,
    sizes: Sequence[int],
    *,
    clip: clipping.ClippingRule = clipping.flat,
) -> list[Sums]:
    """For each part of a batch, what :func:`~forethought.gradients.clipped.clipped_sum` returns.

    Args:
        model, loss, clip_norm, clip: as there. inputs, targets: of all parts, one after the other.
        sizes: examples of each part; 0 is a part without any.

    Raises:
        ValueError: sizes that do not add up to the batch, and what ``clipped_sum`` refuses.
    """
    bound = real("clip_norm", clip_norm, above=0)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ValueError("the model has no parameter with requires_grad=True: nothing to train")
    inputs, targets = trees.detached(inputs), trees.detached(targets)
    size = trees.batch_size(inputs, targets)
    if sum(sizes) != size or min(sizes, default=0) < 0:
        raise ValueError(f"parts of {list(sizes)} examples are not the {size} of the batch")
    uses = chain.uses_of(model, loss, inputs, targets, trained) if size else None
    terms: dict[str, Term] = {}
    if uses is None and size:
        terms = contributions(model, loss, Batch(inputs, targets), trained)
    found: list[Sums] = []
    start = 0
    for count in sizes:
        end = start + count
        if not count:
            nothing = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in trained.items()}
            found.append((nothing, trees.zeros_for(next(iter(trained.values())), 0)))
        elif uses is not None:
            own = [
                Once(use.inputs[start:end], use.gradients[start:end], use.weight, use.bias)
                for use in uses
            ]
            found.append(chain.clipped(own, trained, count, bound, clip, None))
        else:
            found.append(clip_and_sum(_between(terms, start, end), trained, bound, clip, None))
        start = end
    return found


def _between(terms: Mapping[str, Term], start: int, end: int) -> dict[str, Term]:
    return {name: _slice(term, start, end) for name, term in terms.items()}


def _slice(term: Term, start: int, end: int) -> Term:
    """The term of some examples in a row, sharing memory."""
    match term:
        case Dense():
            return Dense(term.values[start:end])
        case Outer():
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
        case _:
            return Dense(term.rows()[start:end])
