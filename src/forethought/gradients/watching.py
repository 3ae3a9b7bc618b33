"""A fingerprint of every number that a pass computes, for each example: to compare two passes.

Numbers that a sum is formed from do not show all: behind a kink of a loss a last bit is hidden
until it is a whole contribution. So every value on the way forward is taken in, and every gradient
on the way back.
"""

from __future__ import annotations

from contextvars import ContextVar

import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ODD = 0x5851F42D4C957F2D


def bits(values: Tensor) -> Tensor:
    """The same memory as whole numbers: equal where every bit is, numbers or not."""
    values = values.detach().contiguous()
    if values.is_complex():
        values = torch.view_as_real(values)
    return values.view(_BITS[values.element_size()])


class Watch:
    """Takes in what passes over the examples compute.

    Attributes:
        marks: one fingerprint an example, int64: equal where all numbers are, up to the chance of
            2^-64 that others have the same.
    """

    def __init__(self, size: int) -> None:
        self.marks = torch.zeros(size, dtype=torch.int64)
        self.begin(size)

    def begin(self, width: int) -> None:
        """A pass over so many examples begins; what one before took in and did not keep is lost."""
        self._now = torch.zeros(width, dtype=torch.int64)
        self._number = 0

    def see(self, whole: Tensor, dim: int = 0) -> None:
        """A value, with the examples along ``dim``; its gradient too, once it is known."""
        self._number += 2
        number = self._number
        self._add(whole, dim, number)
        if whole.requires_grad:
            whole.register_hook(  # type: ignore[no-untyped-call]
                lambda gradient: self._add(gradient, dim, number + 1)
            )

    def keep(self, index: Tensor | None = None, count: int | None = None) -> None:
        """The pass is over: its first ``count`` examples are those of ``index``."""
        places = slice(None) if index is None else index
        self.marks[places] = self._now[:count]

    def _add(self, whole: Tensor, dim: int, number: int) -> None:
        if whole.layout is not torch.strided or not whole.numel():
            return
        rows = bits(whole.movedim(dim, 0)).flatten(1) if whole.dim() > 1 else bits(whole)[:, None]
        if len(rows) != len(self._now):
            return
        places = torch.arange(rows.shape[1], device=rows.device) * (2 * number + 1) * _ODD
        # Whole numbers modulo 2^64: in any order the same.
        self._now += (rows.long() * (places | 1)).sum(1).to(self._now.device) * (2 * number + 1)


WATCH: ContextVar[Watch | None] = ContextVar("WATCH", default=None)
# Which of how many examples the rows of a pass are: each keeps its random numbers at every place.
DRAWN_FOR: ContextVar[tuple[Tensor, int] | None] = ContextVar("DRAWN_FOR", default=None)
