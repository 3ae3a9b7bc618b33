"""Which example each part of a tensor belongs to.

Inside a model the batch may be any dimension, and may be folded together with others (windows,
heads, frames, sequence-first layouts). Sizes alone do not tell: a sequence can be as long as the
batch. So layouts are found by running the model on two small batches and looking at what moved.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Dimension ``dim`` holds ``before`` × batch × ``after``; 0 stands for "all the rest"."""

    dim: int
    before: int = 1
    after: int = 1

    def fits(self, tensor: Tensor, batch: int) -> bool:
        """Whether a tensor of a batch of this size can have this layout."""
        if self.dim >= tensor.dim() or tensor.shape[self.dim] % batch:
            return False
        known = max(self.before, 1) * max(self.after, 1)
        each = tensor.shape[self.dim] // batch
        return each % known == 0 and (0 in (self.before, self.after) or each == known)

    def batch_first(self, tensor: Tensor, batch: int) -> Tensor:
        """Shape (B, …): the batch in front; a folded rest stays as one dimension in its place."""
        if self.before == self.after == 1:
            return tensor.movedim(self.dim, 0) if self.dim else tensor
        each = tensor.shape[self.dim] // batch
        before = self.before or each // self.after
        shape = tensor.shape
        apart = tensor.reshape(
            *shape[: self.dim], before, batch, each // before, *shape[self.dim + 1 :]
        )
        front = apart.movedim(self.dim + 1, 0)
        return front.flatten(self.dim + 1, self.dim + 2)

    @property
    def folded(self) -> bool:
        """Whether one example has several entries along ``dim``."""
        return self.before != 1 or self.after != 1


def find(three: Tensor, two: Tensor, *, tolerance: float) -> list[Layout]:
    """Layouts under which ``two`` (examples 2, 1) agrees with ``three`` (examples 0, 1, 2)."""
    if three.dim() != two.dim():
        return []
    moved = [d for d in range(three.dim()) if three.shape[d] != two.shape[d]]
    if len(moved) != 1:
        return []
    dim = moved[0]
    each, rest = divmod(three.shape[dim], 3)
    if rest or two.shape[dim] != 2 * each:
        return []
    if each == 1:
        candidates = [Layout(dim)]
    else:
        # Batch slowest, batch fastest, then anything between.
        candidates = [Layout(dim, 1, 0), Layout(dim, 0, 1)]
        candidates += [
            Layout(dim, before, each // before) for before in range(2, each) if each % before == 0
        ]
    return [layout for layout in candidates if _agree(layout, three, two, tolerance)]


def _agree(layout: Layout, three: Tensor, two: Tensor, tolerance: float) -> bool:
    expected = layout.batch_first(three, 3)[[2, 1]]
    found = layout.batch_first(two, 2)
    return close(found, expected, tolerance)


def close(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Equal up to a share of the largest entry."""
    if found.shape != expected.shape:
        return False
    if not found.is_floating_point():
        return torch.equal(found, expected)
    wide_found, wide_expected = found.double(), expected.double()
    limit = tolerance * max(float(wide_expected.abs().max()), 0.0) if found.numel() else 0.0
    return bool(((wide_found - wide_expected).abs() <= limit).all())
