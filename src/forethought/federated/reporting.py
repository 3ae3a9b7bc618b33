"""The average of the global models that a federation reports: that of training on one machine."""

from __future__ import annotations

import numpy as np
import torch

from forethought.exchange.messages import Vector
from forethought.federated.federation import Federation
from forethought.rounds.private_sum import Layout
from forethought.training.descent import IterateAverage


class ReportedAverage:
    """See :class:`forethought.federated.server.Average`.

    Args:
        federation: says which average. layout: of the model, tensor by tensor.
        weights: the first model.
    """

    def __init__(self, federation: Federation, layout: Layout, weights: Vector) -> None:
        self._newest = torch.from_numpy(np.array(weights, dtype=np.float32))
        parts = layout.views(self._newest)
        self._average = IterateAverage(federation.averaging, parts, federation.rounds)

    def update(self, version: int, weights: Vector) -> None:
        """Take in the model of a version."""
        self._newest.copy_(torch.from_numpy(np.array(weights)))
        self._average.update(version)

    @property
    def weights(self) -> Vector:
        """The average, float32, shape (parameters,)."""
        parts = [part.reshape(-1) for part in self._average.values.values()]
        return torch.cat(parts).numpy().astype(np.float32)

    def restore(self, weights: Vector) -> None:
        """Go on from this average."""
        flat = torch.from_numpy(np.array(weights, dtype=np.float32))
        start = 0
        for part in self._average.values.values():
            end = start + part.numel()
            part.copy_(flat[start:end].view_as(part))
            start = end
