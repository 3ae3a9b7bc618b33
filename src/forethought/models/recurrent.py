"""Networks for sequences: the bidirectional LSTM of acoustic models, and smaller ones like it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn


class FrameClassifier(nn.Module):
    """Recurrent layers over a sequence of frames, a linear projection, and a class.

    Args:
        features: numbers a frame. classes: outputs.
        cells: of each direction of each layer. layers: how many. projection: hidden units behind.
        every_frame: whether each frame has a class, outputs of shape (batch, classes, frames), or
            only the one in the middle, outputs of shape (batch, classes).
    """

    def __init__(
        self,
        features: int,
        classes: int,
        cells: int,
        layers: int,
        projection: int,
        every_frame: bool = False,
    ) -> None:
        super().__init__()
        self.every_frame = every_frame
        self.recurrent = nn.LSTM(features, cells, layers, batch_first=True, bidirectional=True)
        self.projection = nn.Linear(2 * cells, projection)
        self.output = nn.Linear(projection, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames = x if x.dim() == 3 else x.transpose(1, 2).flatten(2)
        states, _ = self.recurrent(frames)
        if not self.every_frame:
            # Both directions have seen all of the context there, as in acoustic models.
            states = states[:, frames.shape[1] // 2]
        y: torch.Tensor = self.output(self.projection(states))
        return y.transpose(1, 2) if self.every_frame else y


def lstm(
    inputs: tuple[int, ...],
    classes: int,
    cells: int,
    layers: int = 6,
    projection: int | None = None,
    every_frame: bool = False,
) -> nn.Module:
    """A bidirectional LSTM over frames (Xu et al. 2020, Section 5.1 and Appendix B).

    With 512 cells, 260 features and 32,000 classes it is theirs: 43,154,944 parameters, 164.62 MB.

    Args:
        inputs: (frames, features), or an image, whose rows are the frames.
        cells: of each direction of each layer. projection: by default half as many as cells.
        every_frame: see :class:`FrameClassifier`.
    """
    if len(inputs) not in (2, 3):
        raise ValueError(
            f"an LSTM takes sequences of shape (frames, features), or images row by row, not "
            f"{inputs}: for plain features use 'linear' or 'mlp'"
        )
    features = inputs[1] if len(inputs) == 2 else inputs[0] * inputs[2]
    sizes = {"cells": cells, "layers": layers, "projection": projection or max(1, cells // 2)}
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {size!r}")
    return FrameClassifier(features, classes, every_frame=every_frame, **sizes)


#: Name → the same six layers with other numbers of cells a direction; 512 are the paper's.
PRESETS: dict[str, Callable[..., nn.Module]] = {
    f"lstm-{cells}": partial(lstm, cells=cells) for cells in (32, 128, 512)
}
