"""Groups as lanes of several examples: a group's mean gradient is one contribution.

Batch and mixed clipping. Inside a group the examples may see each other (batch normalisation is
allowed there); between groups the isolation is that of lanes.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from forethought.checks import whole


def group_numbers(groups: Tensor, size: int, group_count: int | None) -> int:
    """How many groups there are.

    Raises:
        TypeError: not one integer an example. ValueError: numbers out of range.
    """
    if groups.dtype != torch.long or tuple(groups.shape) != (size,):
        raise TypeError(
            f"groups must be a LongTensor of shape ({size},), one group number per example, not "
            f"{groups.dtype} of shape {tuple(groups.shape)}"
        )
    highest = int(groups.max()) if size else -1
    count = highest + 1 if group_count is None else whole("group_count", group_count)
    if size and (int(groups.min()) < 0 or highest >= count):
        raise ValueError(
            f"group numbers must lie in 0 … {count - 1}, not {int(groups.min())} … {highest}"
        )
    return count


def by_size(groups: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Groups with equally many examples: their numbers, and their examples (groups, examples)."""
    numbers, sizes = torch.unique(groups, return_counts=True)
    order = torch.argsort(groups, stable=True)
    starts = sizes.cumsum(0) - sizes
    for size in sizes.unique().tolist():
        same = sizes == size
        yield numbers[same], order[starts[same].unsqueeze(1) + torch.arange(size)]
