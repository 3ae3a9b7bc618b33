"""Clipped sums of several parts of one batch: one pass over all examples, a sum for each part.

Every part has the theorem of :func:`~forethought.gradients.clipped.clipped_sum`: its sum is formed
from its own examples' gradients by the same proven steps, and no lane sees another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from forethought.checks import real
from forethought.gradients import chain, clipping, trees
from forethought.gradients.blocks import MULTIPLES, Blocks, filled
from forethought.gradients.clipped import clipped_sum, computed
from forethought.gradients.part_sums import clip_and_sum_parts
from forethought.gradients.probing import probed
from forethought.gradients.trees import Loss

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
    blocks: Blocks | None = None,
) -> list[Sums]:
    """For each part of a batch, what :func:`~forethought.gradients.clipped.clipped_sum` returns.

    Args:
        model, loss, clip_norm, clip: as there. inputs, targets: of all parts, one after the other.
        sizes: examples of each part; 0 is a part without any.
        blocks: as there, of all parts together.

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
    some = [count for count in sizes if count]
    found: Iterator[Sums] = iter(())
    if size:
        compute = partial(computed, model, loss, trained, None, 1)
        if blocks is None:
            blocks = MULTIPLES
        else:
            blocks = probed(blocks, model, loss, (inputs, targets), trained, 1, compute)
        [*cut] = blocks.cut(size)
        if len(cut) > 1:  # more than were planned for: each part by itself
            ends = list(accumulate(sizes))
            pairs = zip([0, *ends[:-1]], ends, strict=True)
            return [
                clipped_sum(
                    model,
                    loss,
                    _part(inputs, *at),
                    _part(targets, *at),
                    bound,
                    clip=clip,
                    blocks=blocks,
                )
                for at in pairs
            ]
        rows = filled((inputs, targets), 0, size, cut[0][2])
        terms = compute(rows, size, blocks)
        if isinstance(terms, list):
            found = iter(chain.clipped_parts(terms, trained, some, bound, clip))
        else:
            found = iter(clip_and_sum_parts(terms, trained, bound, some, clip))
    nothing = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in trained.items()}
    empty = nothing, trees.zeros_for(next(iter(trained.values())), 0)
    return [next(found) if count else empty for count in sizes]


def _part(tree: Any, start: int, end: int) -> Any:
    return trees.mapped(tree, lambda leaf: leaf[start:end])
