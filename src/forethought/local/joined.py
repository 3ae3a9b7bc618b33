"""Parameters end to end: an inner step is then a few calls of torch, not a few for each of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Joined:
    """Lays tensors of the parameters' shapes end to end.

    Args:
        parameters: of one type and device, else each stays by itself.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._shapes = [p.shape for p in parameters]
        self._sizes = [p.numel() for p in parameters]
        self._together = len({(p.dtype, p.device) for p in parameters}) == 1

    def join(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """A copy of the tensors as one vector, in a list; copies one by one where types differ."""
        if not self._together:
            return [tensor.clone() for tensor in tensors]
        return [torch.cat([tensor.flatten() for tensor in tensors])]

    def part(self, joined: Sequence[Tensor]) -> list[Tensor]:
        """The parts that :meth:`join` laid together, in the parameters' shapes, sharing memory."""
        if not self._together:
            return list(joined)
        pieces = torch.split(joined[0], self._sizes)
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]
