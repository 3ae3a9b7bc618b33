"""Each record's vector of a private statistic, a function of that record alone."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from forethought.preparation import LIKELY, REACH, WITHIN, Preparation, Statistic
from forethought.rounds.records import Records
from forethought.rounds.sampling import Indices


def features_of(inputs: Tensor, count: int) -> Tensor:
    """Inputs as (records, features, values of each) in float64: channels hold several values.

    Raises:
        ValueError: inputs of another number of features or channels.
    """
    if inputs.dim() < 2 or inputs.shape[1] != count:
        raise ValueError(
            f"the preparation is for {count} features or channels, the inputs have shape "
            f"{tuple(inputs.shape)}: dimension 1 holds them"
        )
    return inputs.double().reshape(len(inputs), count, -1)


def unit(values: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Values where the bounds are −1 and 1; what lies beyond counts as the bound."""
    low, high = bounds
    return ((values - low) * (2 / (high - low)) - 1).clamp(-1, 1)


class Vectors:
    """Records whose inputs are the vectors of a statistic.

    Args:
        records: the private ones. preparation: what is asked of them. statistic: which of it.
        centre: of norms, what was released before: the point from which they are taken.
    """

    def __init__(
        self,
        records: Records,
        preparation: Preparation,
        statistic: Statistic,
        centre: tuple[float, ...] = (),
    ) -> None:
        self._records, self._asked, self._statistic = records, preparation, statistic
        self._centre = centre

    def __len__(self) -> int:
        return len(self._records)

    def take(self, indices: Indices) -> tuple[Any, Any]:
        inputs, targets = self._records.take(indices)
        if inputs is None:
            return None, None
        return self.of(inputs, targets).cpu(), targets

    def of(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Shape (records, length), float64; not a number where a feature is none.

        Raises:
            ValueError: inputs or targets that are not what was declared.
        """
        asked = self._asked
        if self._statistic == "classes":
            if targets.is_floating_point() or targets.dim() != 1:
                raise ValueError("class counts need one whole number a record as its target")
            known = torch.arange(asked.classes or 0)
            return (targets.cpu().unsqueeze(1) == known).double()
        if self._statistic == "means":
            flat = features_of(inputs.flatten(1), asked.features or 0).squeeze(2)
            assert asked.reach is not None
            # A record of zeros stays one; what is not finite counts as nothing in the sum.
            shortened: Tensor = flat * (asked.reach / flat.norm(dim=1, keepdim=True)).clamp(max=1)
            return shortened
        if self._statistic == "norms":
            flat = features_of(inputs.flatten(1), asked.features or 0).squeeze(2)
            assert asked.reach is not None
            centre = torch.tensor(self._centre, dtype=torch.float64, device=flat.device)
            left = (flat - centre).norm(dim=1, keepdim=True) * (REACH / asked.reach / LIKELY)
            limit = math.log(WITHIN)
            # A record at the centre, whose logarithm is infinite, counts as the nearest one.
            logarithm: Tensor = left.log().clamp(-limit, limit)
            return logarithm
        values = features_of(inputs, asked.features or 0)
        assert asked.bounds is not None
        scaled = unit(values, asked.bounds)
        if self._statistic == "moments":
            return torch.cat([scaled.mean(2), scaled.square().mean(2)], 1)
        bins = ((scaled + 1) * (asked.bins / 2)).floor().clamp(0, asked.bins - 1)
        found = torch.stack([(bins == at).double().mean(2) for at in range(asked.bins)], 2)
        missing = values.isnan().any(2)
        found[missing] = torch.nan
        return found.flatten(1)

    def digest(self, key: bytes) -> str:
        return self._records.digest(key)
