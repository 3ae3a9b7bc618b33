"""Examples arranged in lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from forethought.gradients import trees
from forethought.gradients.blocks import MULTIPLES, Blocks

# Groups of so many examples run one after the other.
LONG = 8


@dataclass(frozen=True)
class Batch:
    """Examples arranged in lanes.

    Attributes:
        inputs, targets: all examples in front. members: (lanes, examples a lane), which examples
            each lane has; None: every example is a lane.
        copies: a lane's examples, which then lie one after the other, are altered copies of one
            record, and not a group that may mix.
        real: how many of the lanes count; the others, which repeat these, fill up a block.
            None: all. blocks: the sizes of passes of a part of the lanes.
    """

    inputs: Any
    targets: Any
    members: Tensor | None = None
    copies: bool = False
    real: int | None = None
    blocks: Blocks = MULTIPLES

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        if self.members is not None:
            return len(self.members)
        return trees.batch_size(self.inputs, self.targets)

    @property
    def count(self) -> int:
        """How many of the lanes are not there to fill up."""
        return self.lanes if self.real is None else self.real

    @property
    def each(self) -> int:
        """Examples in a lane."""
        return 1 if self.members is None else self.members.shape[1]

    @property
    def mixing(self) -> bool:
        """Whether the examples of a lane may see each other."""
        return self.members is not None and not self.copies

    def some(self, index: Tensor | None) -> tuple[Any, Any]:
        """Inputs and targets of some lanes, shapes (lanes, examples a lane, …)."""
        members = self.members
        if members is None and index is not None:
            members = index.unsqueeze(1)
        elif members is not None and index is not None:
            members = members[index]

        def arranged(leaf: Tensor) -> Tensor:
            if members is None:
                return leaf.unsqueeze(1)
            if self.copies and index is None:
                return leaf.view(*members.shape, *leaf.shape[1:])
            picked = leaf.index_select(0, members.flatten().to(leaf.device))
            return picked.view(*members.shape, *leaf.shape[1:])

        return trees.mapped(self.inputs, arranged), trees.mapped(self.targets, arranged)
