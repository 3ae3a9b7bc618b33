"""Sums of records' own vectors: the contributions of a private statistic."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from forethought.gradients import Dense
from forethought.gradients.sums import CHARGE, clip_and_sum
from forethought.rounds.contributions import Batch, Gradients, accumulate
from forethought.rounds.randomness import Stream
from forethought.rounds.records import Records
from forethought.rounds.sampling import Indices
from forethought.values.contributions import Contribution
from forethought.values.plan import Round

# The one parameter that a statistic's sum is laid out as.
STATISTIC = "statistic"
# Bytes of vectors held at once.
MOST_BYTES = 2**26


def unclipped(norm: float) -> float:
    """A clipping norm at which vectors of this norm are left alone, rounding charged."""
    return norm / (1 - CHARGE) * (1 + 2.0**-10)


class RecordVectors:
    """Each record's inputs, a vector in float64, are its contribution."""

    def deal(self, kind: Contribution, indices: Indices, chosen: Round, stream: Stream) -> Batch:
        return Batch(indices, None, len(indices))

    def add(
        self,
        into: Mapping[str, torch.Tensor],
        model: torch.nn.Module,
        records: Records,
        batch: Batch,
        chosen: Round,
        how: Gradients,
    ) -> torch.Tensor:
        parameter = torch.nn.Parameter(torch.zeros_like(into[STATISTIC]))
        piece = max(1, MOST_BYTES // (8 * parameter.numel()))
        norms = []
        for start in range(0, len(batch.indices), piece):
            vectors, _ = records.take(batch.indices[start : start + piece])
            sums, found = clip_and_sum(
                {STATISTIC: Dense(vectors)},
                {STATISTIC: parameter},
                chosen.clip_norm,
                how.rule,
                batch.round_size,
            )
            accumulate(into, sums)
            norms.append(found)
        return torch.cat(norms)
