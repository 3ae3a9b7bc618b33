"""Private sums of several holders on one model: one pass over all their examples.

Every sum keeps its own batch, clipping, noise and transcript; only the forward and backward passes
are shared. Where that cannot be, each holder's contributions are added by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from forethought.gradients.batches import together
from forethought.gradients.clipped import clipped_sums
from forethought.gradients.sums import Sums
from forethought.rounds.private_sum import PrivateSum, RoundError, input_hash
from forethought.rounds.records import Records, TensorRecords
from forethought.rounds.sampling import Indices
from forethought.turns import turns
from forethought.values.contributions import Examples


def add_together(
    sums: Sequence[PrivateSum], model: torch.nn.Module, records: Sequence[Records]
) -> None:
    """Add every holder's whole batch to its own sum, at the model's present weights.

    Args:
        sums: one of each holder, none of them added to. records: each holder's data.

    Raises:
        RoundError: a sum that was added to before, or data of another size.
    """
    if len(sums) != len(records):
        raise RoundError(f"{len(sums)} sums and the data of {len(records)} holders")
    if len(sums) == 1 or not _alike(sums, records):
        for one, own in zip(sums, records, strict=True):
            one.add(model, own)
        return
    hashed = input_hash(model)
    try:
        batches = [one._taken(hashed, model, own) for one, own in zip(sums, records, strict=True)]
        found = _computed(sums, model, records, batches)
    except BaseException:
        for one in sums:
            one._spoil()
        raise
    for one, (parts, norms) in zip(sums, found, strict=bool(found)):
        one._took(parts, norms)


@turns
def _computed(
    sums: Sequence[PrivateSum],
    model: torch.nn.Module,
    records: Sequence[Records],
    batches: Sequence[Indices],
) -> Sequence[Sums]:
    taken = [own.take(indices) for own, indices in zip(records, batches, strict=True)]
    full = [pair for pair in taken if pair[0] is not None]
    if not full:
        return ()
    lead = sums[0].rounds
    lead.seed_model(sums[0].round.index)
    return clipped_sums(
        model,
        lead.loss,
        torch.cat([inputs for inputs, _ in full]),
        torch.cat([targets for _, targets in full]),
        sums[0].round.clip_norm,
        [len(indices) for indices in batches],
        clip=lead.rule,
        blocks=together(one.rounds.blocks(one.round) for one in sums),
    )


def _alike(sums: Sequence[PrivateSum], records: Sequence[Records]) -> bool:
    """True if one pass gives every holder exactly what it would compute by itself."""
    lead = sums[0].rounds
    return all(
        isinstance(one.round.contribution, Examples)
        and one.round.augmentation is None
        and one.round.clip_norm == sums[0].round.clip_norm
        and one.round.clip == sums[0].round.clip
        and one.rounds.loss is lead.loss
        and one.rounds.whole_batches
        and one.rounds.layout.names == lead.layout.names
        and isinstance(own, TensorRecords)
        and own.inputs.shape[1:] == _inputs(records[0])
        for one, own in zip(sums, records, strict=True)
    )


def _inputs(records: Records) -> torch.Size | None:
    return records.inputs.shape[1:] if isinstance(records, TensorRecords) else None
