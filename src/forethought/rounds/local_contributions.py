"""Local updates as contributions: each group's weight change, clipped as one vector.

What enters the sum is w₀ − w: descending along the released mean goes where the groups went.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from forethought.gradients import Dense
from forethought.gradients.sums import clip_and_sum
from forethought.local.alone import OneByOne
from forethought.local.stacked import SideBySide, side_by_side
from forethought.rounds.contributions import (
    Batch,
    Contributor,
    Gradients,
    GroupGradients,
    accumulate,
)
from forethought.rounds.randomness import Stream
from forethought.rounds.records import Records
from forethought.rounds.sampling import Indices
from forethought.values.contributions import Contribution, LocalUpdates
from forethought.values.plan import Round

# Bytes of weight changes that are held until they are clipped.
MOST_BYTES = 2**26


class GroupUpdates:
    """Each group's weight change by its own algorithm, clipped.

    Args:
        gradients: computes the update of a single plain step of size 1, which is a mean gradient.
    """

    def __init__(self, gradients: Contributor | None = None) -> None:
        self._gradients = gradients or GroupGradients()

    def deal(self, kind: Contribution, indices: Indices, chosen: Round, stream: Stream) -> Batch:
        return self._gradients.deal(kind, indices, chosen, stream)

    def add(
        self,
        into: Mapping[str, torch.Tensor],
        model: torch.nn.Module,
        records: Records,
        batch: Batch,
        chosen: Round,
        how: Gradients,
    ) -> torch.Tensor:
        kind = chosen.contribution
        assert isinstance(kind, LocalUpdates)
        if kind.local.is_gradient:
            return self._gradients.add(into, model, records, batch, chosen, how)
        device = next(iter(into.values())).device
        norms = torch.zeros(batch.count, dtype=torch.float64, device=device)
        # One seed a group, whatever the groups hold.
        seeds = torch.randint(2**62, (batch.count,)).tolist()
        # Sorted: the order in which a batch was drawn could tell of the records of other groups.
        members = [np.sort(batch.indices[batch.member_of == g]) for g in range(batch.count)]
        together = side_by_side(model, how.loss, kind.local, batch.round_size) and _plain(records)
        if together:
            run = SideBySide(model, how.loss, kind.local, how.micro_batch)
            for first in range(0, batch.count, run.lanes):
                which = slice(first, first + run.lanes)
                updates = _stacked(run, records, members[which], seeds[which])
                if updates is not None:
                    norms[which] = _added(into, updates, chosen, how, batch)
            return norms
        alone = OneByOne(model, how.loss, kind.local, how.micro_batch)
        filled = [group for group, own in enumerate(members) if len(own)]  # others add zero
        most = max(1, MOST_BYTES // (8 * sum(part.numel() for part in into.values())))
        for first in range(0, len(filled), most):
            some = filled[first : first + most]
            found = [alone.update(*records.take(members[g]), seeds[g]) for g in some]
            rows = {name: torch.stack([one[name] for one in found]) for name in found[0]}
            norms[some] = _added(into, rows, chosen, how, batch)
        return norms


def _plain(records: Records) -> bool:
    """True if inputs and targets are one tensor each."""
    inputs, targets = records.take(np.zeros(1, dtype=np.int64))
    return isinstance(inputs, torch.Tensor) and isinstance(targets, torch.Tensor)


def _stacked(
    run: SideBySide, records: Records, members: list[Indices], seeds: list[int]
) -> dict[str, torch.Tensor] | None:
    together = np.concatenate(members)
    if not len(together):
        return None
    ends = np.cumsum([len(own) for own in members])
    groups = [torch.arange(end - len(own), end) for own, end in zip(members, ends, strict=True)]
    inputs, targets = records.take(together)
    return run.updates(inputs, targets, groups, seeds)


def _added(
    into: Mapping[str, torch.Tensor],
    updates: Mapping[str, torch.Tensor],
    chosen: Round,
    how: Gradients,
    batch: Batch,
) -> torch.Tensor:
    """Clip weight changes, shape (groups, *shape) each, and add them; their norms."""
    of_one_kind = len({value.dtype for value in updates.values()}) == 1
    if chosen.clip.rule == "per-layer" or not of_one_kind:
        terms: dict[str, Any] = {name: Dense(-value) for name, value in updates.items()}
        kinds = {name: value[0] for name, value in updates.items()}
        sums, norms = clip_and_sum(terms, kinds, chosen.clip_norm, how.rule, batch.round_size)
    else:
        # The rule is about the norm of the whole, so the whole is one term: a fifth of the calls.
        whole = torch.cat([value.flatten(1) for value in updates.values()], 1).neg_()
        found, norms = clip_and_sum(
            {"": Dense(whole)}, {"": whole[0]}, chosen.clip_norm, how.rule, batch.round_size
        )
        pieces = torch.split(found[""], [value[0].numel() for value in updates.values()])
        sums = {
            name: piece.view(value.shape[1:])
            for (name, value), piece in zip(updates.items(), pieces, strict=True)
        }
    accumulate(into, sums)
    return norms.double()
