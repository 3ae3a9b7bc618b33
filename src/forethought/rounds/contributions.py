"""The sum of a round from gradients of examples and of groups.

A kind of contribution is a value of :data:`forethought.values.plan.CONTRIBUTIONS`; a new one is a
frozen dataclass there and a :class:`Contributor`, registered in
:mod:`forethought.rounds.contributors`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from forethought.gradients import BatchDims, ClippingRule, Dense, Term, clipped_sum
from forethought.gradients.batches import Blocks, batch_size, planned
from forethought.gradients.clipped import placed
from forethought.gradients.sums import clip_and_sum, flat
from forethought.rounds.augmenting import Draws, augmented
from forethought.rounds.linear import linear_sums
from forethought.rounds.losses import Loss
from forethought.rounds.randomness import Stream
from forethought.rounds.records import Records
from forethought.rounds.sampling import Indices, assign_groups
from forethought.rounds.team import Team
from forethought.values.contributions import Contribution, Persons
from forethought.values.plan import Round
from forethought.values.samplings import FullBatch, Shuffled, WithoutReplacement

# A bound that no finite gradient in single precision meets: its group's is applied afterwards.
UNBOUNDED = 1e30


@dataclass(frozen=True)
class Batch:
    """A round's batch, dealt into contributions.

    Args:
        indices: record numbers, int64, shape (batch,).
        member_of: which contribution each record belongs to, shape (batch,).
        count: how many contributions there are, empty ones included.
        whole: how many the round has, where this is a part of it; None: this is all of it.
        draws: one random number a record, (batch,), that its altered copies follow from; None: no
            copies are made.
    """

    indices: Indices
    member_of: Indices | None
    count: int
    whole: int | None = None
    draws: Draws | None = None

    @property
    def round_size(self) -> int:
        """Contributions of the whole round: each may be rounded by its share of the charge."""
        return self.count if self.whole is None else self.whole


@dataclass(frozen=True)
class Gradients:
    """The computation of gradients: for whom the guarantee makes no difference.

    Args:
        loss: one value per example. rule: turns norms into factors.
        micro_batch: examples whose gradients are held at once; None: all of them.
        batch_dims: where the model has its examples, as its owner declares.
        processes: how many compute a round together, each its share.
    """

    loss: Loss
    rule: ClippingRule
    micro_batch: int | None = None
    batch_dims: BatchDims | None = None
    processes: int = 1

    def blocks(self, chosen: Round) -> Blocks:
        """The number of rows that passes of the round may have: the plan says so, not what was
        drawn."""
        drawn = chosen.sampling.expected_batch(chosen.examples) / self.processes
        fixed = isinstance(chosen.sampling, FullBatch | WithoutReplacement | Shuffled)
        most = None if self.micro_batch is None else _at_once(self.micro_batch, chosen)
        return planned(drawn, 0.0 if fixed else math.sqrt(drawn), most)


class Contributor(Protocol):
    """Computes one kind of contribution."""

    def deal(self, kind: Contribution, indices: Indices, chosen: Round, stream: Stream) -> Batch:
        """Say which record belongs to which contribution, by the round's own randomness."""
        ...

    def add(
        self,
        into: Mapping[str, torch.Tensor],
        model: torch.nn.Module,
        records: Records,
        batch: Batch,
        chosen: Round,
        how: Gradients,
    ) -> torch.Tensor:
        """Add clipped contributions to ``into`` (name → float64 tensor); returns their norms."""
        ...


class ExampleGradients:
    """Each record's gradient, clipped."""

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
        size, blocks = len(batch.indices), how.blocks(chosen)
        piece = max(size, 1) if how.micro_batch is None else blocks.sizes[-1]
        norms = []
        for start in range(0, size, piece):
            inputs, targets, copies = _taken(
                records, batch, np.arange(start, min(start + piece, size)), chosen
            )
            sums, found = clipped_sum(
                model,
                how.loss,
                placed(inputs, how.batch_dims),
                targets,
                chosen.clip_norm,
                clip=how.rule,
                round_size=batch.round_size,
                batch_dims=how.batch_dims,
                copies=copies,
                blocks=blocks,
            )
            accumulate(into, sums)
            norms.append(found)
        return norms[0] if len(norms) == 1 else torch.cat(norms)


class LinearExampleGradients:
    """Each record's gradient, clipped, where the model is a linear map of the record."""

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
        sums, norms = linear_sums(
            model, records, batch.indices, chosen.clip_norm, how.rule, batch.round_size
        )
        accumulate(into, sums)
        return norms


class GroupGradients:
    """Each group's mean gradient, clipped. Group by group: one group is the most that is held."""

    def deal(self, kind: Contribution, indices: Indices, chosen: Round, stream: Stream) -> Batch:
        count = kind.groups
        if count is None:
            raise TypeError(f"{kind!r} is not dealt into groups")
        member_of = assign_groups(len(indices), count, stream.at(chosen.index))
        return Batch(indices, member_of, count)

    def add(
        self,
        into: Mapping[str, torch.Tensor],
        model: torch.nn.Module,
        records: Records,
        batch: Batch,
        chosen: Round,
        how: Gradients,
    ) -> torch.Tensor:
        device = next(iter(into.values())).device
        norms = torch.zeros(batch.count, dtype=torch.float64, device=device)
        for group in range(batch.count):
            members = np.flatnonzero(batch.member_of == group)
            if not len(members):
                continue  # contributes zero
            most = len(members) if how.micro_batch is None else _at_once(how.micro_batch, chosen)
            if len(members) > most:
                norms[group] = self._long(into, model, records, members, chosen, how, batch)
                continue
            taken = _taken(records, batch, members, chosen)
            sums, norm = _one_group(
                model, taken, chosen.clip_norm, how.loss, how.rule, batch.round_size
            )
            accumulate(into, sums)
            norms[group] = norm[0]
        return norms

    def _long(
        self,
        into: Mapping[str, torch.Tensor],
        model: torch.nn.Module,
        records: Records,
        members: Indices,
        chosen: Round,
        how: Gradients,
        batch: Batch,
    ) -> torch.Tensor:
        # The mean of a group longer than what is held at once: piece by piece, then clipped.
        piece = _at_once(how.micro_batch or len(members), chosen)
        mean = {name: torch.zeros_like(part) for name, part in into.items()}
        for start in range(0, len(members), piece):
            some = members[start : start + piece]
            taken = _taken(records, batch, some, chosen)
            sums, norm = _one_group(model, taken, UNBOUNDED, how.loss, flat, 1)
            if not bool(torch.isfinite(norm).all()):
                return norm[0]
            share = len(some) / len(members)
            accumulate(mean, {name: share * part.double() for name, part in sums.items()})
        terms: dict[str, Term] = {name: Dense(part.unsqueeze(0)) for name, part in mean.items()}
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        sums, norm = clip_and_sum(terms, trained, chosen.clip_norm, how.rule, batch.round_size)
        accumulate(into, sums)
        return norm[0]


def _at_once(most: int, chosen: Round) -> int:
    """Records of which no more than so many examples are made, or a single record."""
    copies = 1 if chosen.augmentation is None else chosen.augmentation.copies
    return max(1, most // copies)


def _taken(records: Records, batch: Batch, places: Indices, chosen: Round) -> tuple[Any, Any, int]:
    """Inputs and targets of some records of a batch, and how many copies of each there are."""
    inputs, targets = records.take(batch.indices[places])
    how = chosen.augmentation
    if how is None or batch.draws is None:
        return inputs, targets, 1
    rows = isinstance(chosen.contribution, Persons)
    return *augmented(inputs, targets, batch.draws[places], how, rows), how.copies


def _one_group(
    model: torch.nn.Module,
    taken: tuple[Any, Any, int],
    bound: float,
    loss: Loss,
    clip: ClippingRule,
    round_size: int,
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    inputs, targets, _ = taken  # a group's mean over all copies: each record has as many
    groups = torch.zeros(batch_size(inputs, targets), dtype=torch.int64)
    return clipped_sum(
        model, loss, inputs, targets, bound, groups=groups, clip=clip, round_size=round_size
    )


def accumulate(into: Mapping[str, torch.Tensor], sums: Mapping[str, torch.Tensor]) -> None:
    """Add sums by parameter to ``into``.

    Raises:
        ValueError: about other parameters than those that the private sum was opened for.
    """
    if sums.keys() != into.keys():
        raise ValueError(
            "the model's trainable parameters are not those that the private sum was opened for: "
            f"{sorted(sums.keys() ^ into.keys())}"
        )
    for name, gradient in sums.items():
        if gradient.shape != into[name].shape:
            raise ValueError(
                f"parameter {name!r} has shape {tuple(gradient.shape)}, the private sum was opened "
                f"for {tuple(into[name].shape)}"
            )
        into[name].add_(gradient)


def part_of(batch: Batch, indices: Indices) -> Batch:
    """The contributions of some records of a batch.

    Raises:
        ValueError: records that are not in the batch, one twice, or a part of a contribution only.
    """
    places = _places(batch.indices, indices)
    draws = None if batch.draws is None else batch.draws[places]
    if batch.member_of is None:
        return Batch(indices, None, len(indices), batch.round_size, draws)
    members = batch.member_of[places]
    chosen = np.unique(members)
    if np.isin(batch.member_of, chosen).sum() != len(indices):
        raise ValueError("a group is one contribution: add all of its records together")
    dealt = np.searchsorted(chosen, members)
    return Batch(indices, dealt, len(chosen), batch.round_size, draws)


def share_of(batch: Batch, team: Team) -> Batch:
    """The contributions that one process of a team computes: every ``size``-th."""
    if team.size == 1:
        return batch
    draws = batch.draws
    if batch.member_of is None:
        every = slice(team.rank, None, team.size)
        own = batch.indices[every]
        return Batch(own, None, len(own), batch.round_size, None if draws is None else draws[every])
    mine = batch.member_of % team.size == team.rank
    count = len(range(team.rank, batch.count, team.size))
    members = batch.member_of[mine] // team.size
    own = batch.indices[mine]
    return Batch(own, members, count, batch.round_size, None if draws is None else draws[mine])


def _places(batch: Indices, indices: Indices) -> Indices:
    order = np.argsort(batch, kind="stable")
    at = np.searchsorted(batch, indices, sorter=order)
    inside = at < len(batch)
    if not inside.all() or (batch[order[np.minimum(at, len(batch) - 1)]] != indices).any():
        raise ValueError(
            "add only records of the round's batch: it was drawn by the plan's sampling, and the "
            "guarantee is about that"
        )
    places = order[at]
    if len(np.unique(places)) != len(places):
        raise ValueError("a record adds to a round once: its contribution would count twice")
    return places
