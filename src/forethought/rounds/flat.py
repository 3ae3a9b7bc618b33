"""A model's trainable parameters laid end to end: the vector that is summed and noised."""

from __future__ import annotations

from collections.abc import Mapping

import torch


class Layout:
    """The place of each parameter in the flat vector.

    Args:
        parameters: name → trainable parameter, in the order of the vector.

    Raises:
        ValueError: nothing to train, or parameters on several devices.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        if not parameters:
            raise ValueError("there is no parameter with requires_grad=True: nothing to train")
        devices = {p.device for p in parameters.values()}
        if len(devices) > 1:
            raise ValueError(f"the parameters lie on several devices: {sorted(map(str, devices))}")
        self.names = tuple(parameters)
        self.shapes = tuple(p.shape for p in parameters.values())
        self.dtypes = tuple(p.dtype for p in parameters.values())
        self.device = devices.pop()
        self._lengths = [p.numel() for p in parameters.values()]
        self.size = sum(self._lengths)

    def zeros(self, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """A flat vector of zeros."""
        return torch.zeros(self.size, dtype=dtype, device=self.device)

    def views(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """Name → the parameter's part of a flat vector, in its shape, sharing memory."""
        pieces = torch.split(vector, self._lengths)
        return {
            name: piece.view(shape)
            for name, piece, shape in zip(self.names, pieces, self.shapes, strict=True)
        }
