"""Contributions of every kind, clipped and added to a round's sum, and per-example losses.

A kind of contribution is a value of :data:`forethought.values.plan.CONTRIBUTIONS`; a new one is a
frozen dataclass there and a function from an :class:`Addition` to norms in :data:`CONTRIBUTORS`.
"""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from forethought.gradients import BatchDims, ClippingRule, Dense, clipped_sum
from forethought.gradients.batches import (
    Blocks,
    batch_size,
    call,
    even_parts,
    filled,
    mapped,
    planned,
)
from forethought.gradients.boundary import ExternalState, ModuleState, Refused, shards_of, turns
from forethought.gradients.clipped import cross_entropy_slope, placed, rows_alike, separable
from forethought.gradients.passes import check_loss as compare_losses
from forethought.gradients.sums import (
    CHARGE,
    Ones,
    Outer,
    Term,
    TermBounds,
    clip_and_sum,
    flat,
    lengths,
)
from forethought.rounds.local_updates import OneByOne, SideBySide, side_by_side
from forethought.rounds.randomness import Indices, Stream, assign_groups
from forethought.rounds.records import PIECE, Records, TensorRecords, blank
from forethought.values import mechanism
from forethought.values.plan import Round, Statistics

# A clipping norm that leaves gradients unclipped: the group's own norm is applied afterwards.
UNBOUNDED = 1e30
# Bytes of vectors, or weight changes, that are held at once until they are clipped.
_MOST_BYTES = 2**26


@dataclass(frozen=True)
class DealtBatch:
    """A round's batch, divided into contributions.

    Args:
        indices: record numbers, int64, shape (batch,). If each record is one contribution, only
            the first ``count`` of them count.
        member_of: the contribution of each record, shape (batch,); None: each record is one.
        count: number of contributions, empty ones included.
        whole: number of contributions of the whole round, if this is a part of it; None: this is
            all of it.
        draws: one random number for each record, (batch,), from which its altered copies follow;
            None: no copies are made.
    """

    indices: Indices
    member_of: Indices | None
    count: int
    whole: int | None = None
    draws: Draws | None = None

    @property
    def round_size(self) -> int:
        """The number of contributions of the whole round, which share the charge for rounding."""
        return self.count if self.whole is None else self.whole

    def some(self, places: NDArray[Any], member_of: Indices | None, count: int) -> DealtBatch:
        """The records at some places of the batch, as ``count`` contributions of the same round."""
        draws = None if self.draws is None else self.draws[places]
        return DealtBatch(self.indices[places], member_of, count, self.round_size, draws)


@dataclass(frozen=True)
class Gradients:
    """The settings of the computation of gradients, on which the guarantee does not depend.

    Args:
        loss: one value per example. rule: turns norms into factors.
        micro_batch: the most examples whose gradients are held at once; None: any number.
        batch_dims: the batch dimensions of the model, as its owner declares.
        processes: number of processes that compute a round together, each its share.
    """

    loss: Loss
    rule: ClippingRule
    micro_batch: int | None = None
    batch_dims: BatchDims | None = None
    processes: int = 1

    def blocks(self, chosen: Round) -> Blocks:
        """The numbers of rows that passes of the round may have, from the plan and not the draw."""
        drawn = chosen.sampling.expected_batch(chosen.examples) / self.processes
        fixed = isinstance(
            chosen.sampling, mechanism.FullBatch | mechanism.WithoutReplacement | mechanism.Shuffled
        )
        most = None if self.micro_batch is None else _at_once(self.micro_batch, chosen)
        return planned(drawn, 0.0 if fixed else math.sqrt(drawn), most)


@dataclass(frozen=True)
class Addition:
    """Contributions that are about to be added to a round's sum.

    Args:
        into: name → the sum of a parameter's gradients so far, float64.
        model: at the round's weights.
        records: all of the data. batch: the records to add.
        round: the round. how: the computation of gradients.
    """

    into: Mapping[str, Tensor]
    model: torch.nn.Module
    records: Records
    batch: DealtBatch
    round: Round
    how: Gradients

    def taken(self, places: Indices) -> tuple[Any, Any, int]:
        """Inputs and targets of some records of the batch, and the number of copies of each.

        Args:
            places: of the records in the batch.
        """
        inputs, targets = self.records.take(self.batch.indices[places])
        how = self.round.augmentation
        if how is None or self.batch.draws is None:
            return inputs, targets, 1
        rows = isinstance(self.round.contribution, mechanism.Persons)
        return *augmented(inputs, targets, self.batch.draws[places], how, rows), how.copies

    def clipped(
        self, terms: dict[str, Term], like: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The clipped sum of contributions that are given as terms by parameter, and the norms."""
        norm, share = self.round.clip_norm, self.batch.round_size
        return clip_and_sum(terms, like, norm, self.how.rule, share)

    def group_sum(
        self, members: Indices, bound: float, rule: ClippingRule, round_size: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The clipped mean gradient of some records as one group, and its norm, (1,)."""
        inputs, targets, _ = self.taken(members)  # the mean over all copies, as many of each record
        groups = torch.zeros(batch_size(inputs, targets), dtype=torch.int64)
        model, loss, share = self.model, self.how.loss, round_size
        return clipped_sum(model, loss, inputs, targets, bound, groups, clip=rule, round_size=share)

    def no_norms(self) -> Tensor:
        """Zero for every contribution, float64, shape (contributions,)."""
        device = next(iter(self.into.values())).device
        return torch.zeros(self.batch.count, dtype=torch.float64, device=device)


def _at_once(most: int, chosen: Round) -> int:
    """The number of records whose copies are at most ``most`` examples; at least one record."""
    copies = 1 if chosen.augmentation is None else chosen.augmentation.copies
    return max(1, most // copies)


def example_gradients(addition: Addition) -> Tensor:
    """Add each record's clipped gradient; returns the norms before clipping."""
    batch, how = addition.batch, addition.how
    size, blocks = len(batch.indices), how.blocks(addition.round)
    piece = max(size, 1) if how.micro_batch is None else blocks.sizes[-1]
    norms = []
    for start in range(0, size, piece):
        inputs, targets, copies = addition.taken(np.arange(start, min(start + piece, size)))
        sums, found = clipped_sum(
            addition.model,
            how.loss,
            placed(inputs, how.batch_dims),
            targets,
            addition.round.clip_norm,
            clip=how.rule,
            round_size=batch.round_size,
            batch_dims=how.batch_dims,
            copies=copies,
            blocks=blocks,
            counted=max(batch.count - start, 0),
        )
        accumulate(addition.into, sums)
        norms.append(found)
    return norms[0] if len(norms) == 1 else torch.cat(norms)


def linear_example_gradients(addition: Addition) -> Tensor:
    """Add each record's clipped gradient for a linear model; returns the norms before clipping."""
    model, records, batch = addition.model, addition.records, addition.batch
    norm, rule = addition.round.clip_norm, addition.how.rule
    sums, norms = linear_sums(model, records, batch.indices, norm, rule, batch.round_size)
    accumulate(addition.into, sums)
    return norms


def group_gradients(addition: Addition) -> Tensor:
    """Add each group's clipped mean gradient, group by group; returns the norms before clipping."""
    batch, how, chosen = addition.batch, addition.how, addition.round
    norms = addition.no_norms()
    for group in range(batch.count):
        members = np.flatnonzero(batch.member_of == group)
        if not len(members):
            continue  # contributes zero
        most = len(members) if how.micro_batch is None else _at_once(how.micro_batch, chosen)
        if len(members) > most:
            norms[group] = _long_group(addition, members, most)
            continue
        sums, norm = addition.group_sum(members, chosen.clip_norm, how.rule, batch.round_size)
        accumulate(addition.into, sums)
        norms[group] = norm[0]
    return norms


def _long_group(addition: Addition, members: Indices, piece: int) -> Tensor:
    """Add the clipped mean gradient of a group that is too long for one pass; returns its norm."""
    mean = {name: torch.zeros_like(part) for name, part in addition.into.items()}
    for start in range(0, len(members), piece):
        some = members[start : start + piece]
        sums, norm = addition.group_sum(some, UNBOUNDED, flat, 1)
        if not bool(torch.isfinite(norm).all()):
            return norm[0]
        share = len(some) / len(members)
        accumulate(mean, {name: share * part.double() for name, part in sums.items()})
    terms: dict[str, Term] = {name: Dense(part.unsqueeze(0)) for name, part in mean.items()}
    trained = {name: p for name, p in addition.model.named_parameters() if p.requires_grad}
    sums, norm = addition.clipped(terms, trained)
    accumulate(addition.into, sums)
    return norm[0]


# Local updates: each group's weight change by a local algorithm, clipped as one vector.
#
# The contribution is w₀ − w, so that a descent step along the released mean moves the weights as
# the groups did. The update of a single plain step of size 1 is a mean gradient, and is computed as
# one.


def group_updates(addition: Addition) -> Tensor:
    """Add each group's clipped weight change; returns the norms before clipping."""
    model, records, batch, how = addition.model, addition.records, addition.batch, addition.how
    kind = addition.round.contribution
    assert isinstance(kind, mechanism.LocalUpdates)
    if kind.local.is_gradient:
        return group_gradients(addition)
    norms = addition.no_norms()
    # One seed for each group, independent of the records in the groups.
    seeds = torch.randint(2**62, (batch.count,)).tolist()
    # Sorted, because the order of the drawn batch could depend on records of other groups.
    members = [np.sort(batch.indices[batch.member_of == g]) for g in range(batch.count)]
    if side_by_side(model, how.loss, kind.local, batch.round_size) and _plain(records):
        run = SideBySide(model, how.loss, kind.local, how.micro_batch)
        for first in range(0, batch.count, run.lanes):
            which = slice(first, first + run.lanes)
            together, sizes = np.concatenate(members[which]), [len(own) for own in members[which]]
            if len(together):
                groups = torch.split(torch.arange(len(together)), sizes)
                updates = run.updates(*records.take(together), groups, seeds[which])
                norms[which] = _added(addition, updates)
        return norms
    alone = OneByOne(model, how.loss, kind.local, how.micro_batch)
    filled = [group for group, own in enumerate(members) if len(own)]  # empty groups add zero
    most = max(1, _MOST_BYTES // (8 * sum(part.numel() for part in addition.into.values())))
    for first in range(0, len(filled), most):
        some = filled[first : first + most]
        found = [alone.update(*records.take(members[g]), seeds[g]) for g in some]
        rows = {name: torch.stack([one[name] for one in found]) for name in found[0]}
        norms[some] = _added(addition, rows)
    return norms


def _plain(records: Records) -> bool:
    """True if inputs and targets of the records are one tensor each."""
    inputs, targets = records.take(np.zeros(1, dtype=np.int64))
    return isinstance(inputs, Tensor) and isinstance(targets, Tensor)


def _added(addition: Addition, updates: Mapping[str, Tensor]) -> Tensor:
    """Clip weight changes, shape (groups, *shape) each, and add them; returns their norms."""
    of_one_kind = len({value.dtype for value in updates.values()}) == 1
    if addition.round.clip.rule == "per-layer" or not of_one_kind:
        terms: dict[str, Term] = {name: Dense(-value) for name, value in updates.items()}
        kinds = {name: value[0] for name, value in updates.items()}
        sums, norms = addition.clipped(terms, kinds)
    else:
        # The rule needs the norm of the whole only, so one term suffices: a fifth of the calls.
        whole = torch.cat([value.flatten(1) for value in updates.values()], 1).neg_()
        found, norms = addition.clipped({"": Dense(whole)}, {"": whole[0]})
        pieces = torch.split(found[""], [value[0].numel() for value in updates.values()])
        each = zip(updates.items(), pieces, strict=True)
        sums = {name: piece.view(value.shape[1:]) for (name, value), piece in each}
    accumulate(addition.into, sums)
    return norms.double()


# Sums of the records' own vectors: the contributions of a private statistic.

# The name of the single parameter that stands for a statistic's sum.
STATISTIC = "statistic"


def unclipped(norm: float) -> float:
    """The clipping norm that leaves vectors of this norm unclipped, in spite of the charge."""
    return norm / (1 - CHARGE) * (1 + 2.0**-10)


def record_vectors(addition: Addition) -> Tensor:
    """Add each record's clipped inputs (float64 vectors or :class:`Ones`); returns the norms."""
    parameter = torch.nn.Parameter(torch.zeros_like(addition.into[STATISTIC]))
    piece = max(1, _MOST_BYTES // (8 * parameter.numel()))
    norms = []
    for start in range(0, len(addition.batch.indices), piece):
        vectors, _ = addition.records.take(addition.batch.indices[start : start + piece])
        term = vectors if isinstance(vectors, Ones) else Dense(vectors)
        sums, found = addition.clipped({STATISTIC: term}, {STATISTIC: parameter})
        accumulate(addition.into, sums)
        norms.append(found)
    return torch.cat(norms)


CONTRIBUTORS: dict[type, Callable[[Addition], Tensor]] = {
    mechanism.Examples: example_gradients,
    mechanism.Groups: group_gradients,
    mechanism.LinearExamples: linear_example_gradients,
    mechanism.LocalUpdates: group_updates,
    mechanism.Persons: example_gradients,  # records that are persons: training arranges them so
    Statistics: record_vectors,
}
"""Kind of contribution → function that clips and adds; it returns norms before clipping,
(contributions,)."""


def dealt(
    kind: mechanism.Contribution, indices: Indices, chosen: Round, stream: Stream
) -> DealtBatch:
    """The batch divided into contributions; groups are drawn by the round's own randomness."""
    if kind.groups is None:
        return DealtBatch(indices, None, len(indices))
    member_of = assign_groups(len(indices), kind.groups, stream.at(chosen.index))
    return DealtBatch(indices, member_of, kind.groups)


def accumulate(into: Mapping[str, torch.Tensor], sums: Mapping[str, torch.Tensor]) -> None:
    """Add sums by parameter to ``into``.

    Raises:
        ValueError: names or shapes differ from the parameters that the sum was opened for.
    """
    if sums.keys() != into.keys():
        raise ValueError(
            "the model's trainable parameters are not those that the private sum was opened for: "
            f"{sorted(sums.keys() ^ into.keys())}. Train what is frozen, unfrozen or added later "
            "in a run of its own, with a plan of its own"
        )
    for name, gradient in sums.items():
        if gradient.shape != into[name].shape:
            raise ValueError(
                f"parameter {name!r} has shape {tuple(gradient.shape)}, the private sum was opened "
                f"for {tuple(into[name].shape)}"
            )
        into[name].add_(gradient)


def part_of(batch: DealtBatch, indices: Indices) -> DealtBatch:
    """The contributions of some records of a batch.

    Raises:
        ValueError: records that are not in the batch, a record twice, or a part of a group only.
    """
    places = _places(batch.indices, indices)
    if batch.member_of is None:
        return batch.some(places, None, len(indices))
    members = batch.member_of[places]
    chosen = np.unique(members)
    if np.isin(batch.member_of, chosen).sum() != len(indices):
        raise ValueError("a group is one contribution: add all of its records together")
    return batch.some(places, np.searchsorted(chosen, members), len(chosen))


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


# Altered copies of a batch's images, drawn by the round's own random numbers.
#
# Every record of a batch has one 64-bit number of the run's stream, drawn for the whole batch
# before it is divided among processes and pieces. The alterations of its copies are a function of
# that number. So a copy does not depend on the rest of the batch or on the number of processes, and
# a continued run makes the same copies. Each copy is made of its own image alone, by indexing and,
# for crops, by torch's ``grid_sample``.


Draws = NDArray[np.uint64]

# Numbers that a copy of an image may need: one each for mirror and flip, two for a shift, three for
# a crop, always in this order.
_NUMBERS = 8


def augmented(
    inputs: Any, targets: Any, draws: Draws, how: mechanism.Augmentation, rows: bool = False
) -> tuple[Tensor, Any]:
    """``how.copies`` altered copies of every record, one record's after the other.

    Args:
        inputs: images (B, channels, height, width); of persons (B, rows, channels, …), where each
            row is altered by itself.
        targets: tensors with the records in dimension 0.
        draws: one number of the round's stream for each record, (B,).
        how: the kinds of alterations and the number of copies.
        rows: True if the records are persons.

    Returns:
        Inputs and targets with B · copies records.

    Raises:
        ValueError: inputs that are no images, see :func:`require_images`.
    """
    require_images(inputs, how, rows)
    size, each = len(inputs), inputs.shape[1] if rows else 1
    copies = inputs.repeat_interleave(how.copies, 0)
    images = copies.flatten(0, 1) if rows else copies
    chance = torch.from_numpy(uniform(draws, how.copies * each)).to(images.device)
    altered = _moved(images, chance, how)
    if "crop" in how.kinds:
        altered = _cropped(altered, chance[:, 4:7].to(images.dtype), how.least)
    repeated = mapped(targets, lambda leaf: leaf.repeat_interleave(how.copies, 0))
    return altered.view(size * how.copies, *inputs.shape[1:]), repeated


def require_images(
    inputs: Any, how: mechanism.Augmentation, rows: bool = False, dims: BatchDims | None = None
) -> None:
    """Refuse records that cannot be altered as images.

    Raises:
        ValueError: not one floating-point tensor of images with the channels first, images smaller
            than a shift, or a model with declared batch dimensions.
    """
    if dims is not None:
        raise ValueError("augment= goes with batches of images: drop batch_dims=, or augment=")
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        kind = str(inputs.dtype) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(f"augment= alters images, one floating-point tensor, not {kind}: drop it")
    shape = tuple(inputs.shape[2:] if rows else inputs.shape[1:])
    if len(shape) != 3 or min(shape[1:]) < 2:
        last = len(shape) == 3 and shape[-1] < 2
        hint = "put the channels first" if last else "drop it, or reshape the inputs"
        raise ValueError(
            f"augment= alters images of shape (channels, height, width), not {shape}: {hint}"
        )
    if shape[-1] <= 4 < shape[0]:
        raise ValueError(
            f"images of shape {shape} look as if their channels came last: augment= needs "
            "(channels, height, width)"
        )
    if "shift" in how.kinds and _farthest(how, *shape[1:]) >= min(shape[1:]):
        raise ValueError(
            f"augment= cannot shift images of {shape[1]} × {shape[2]} by {how.pixels} pixels: give "
            "pixels below the shorter side"
        )


def _farthest(how: mechanism.Augmentation, height: int, width: int) -> int:
    return max(1, min(height, width) // 8) if how.pixels is None else how.pixels


def uniform(draws: Draws, each: int) -> NDArray[np.float64]:
    """Numbers in [0, 1), shape (records · each, _NUMBERS): SplitMix64 (Steele et al. 2014)."""
    steps = np.arange(1, each * _NUMBERS + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = draws[:, None] + steps
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return ((state >> np.uint64(11)) * 2.0**-53).reshape(-1, _NUMBERS)


def _moved(images: Tensor, chance: Tensor, how: mechanism.Augmentation) -> Tensor:
    """Images mirrored, flipped and shifted; every pixel is a pixel of its own image."""
    height, width = images.shape[-2:]
    far = _farthest(how, height, width) if "shift" in how.kinds else 0
    down = _along(height, chance[:, 2], chance[:, 1], far, "flip" in how.kinds)
    across = _along(width, chance[:, 3], chance[:, 0], far, "mirror" in how.kinds)
    which = torch.arange(len(images), device=images.device)
    picked = images.movedim(1, -1)[which[:, None, None], down[:, :, None], across[:, None, :]]
    return picked.movedim(-1, 1).contiguous()


def _along(side: int, moved: Tensor, turned: Tensor, far: int, turns: bool) -> Tensor:
    """The source place of each pixel along one side of its image, shape (images, side)."""
    offset = (moved * (2 * far + 1)).long() - far
    place = torch.arange(side, device=moved.device) + offset[:, None]
    place = torch.where(place < 0, -1 - place, place)  # reflected, with the edge pixel repeated
    place = torch.where(place >= side, 2 * side - 1 - place, place)
    return torch.where((turned < 0.5)[:, None] & turns, side - 1 - place, place)


def _cropped(images: Tensor, chance: Tensor, least: float) -> Tensor:
    """Random windows, enlarged bilinearly; their sides are a share from ``least`` to 1."""
    share = least + (1 - least) * chance[:, 0]
    axes = []
    for side, place in zip(images.shape[-2:], (chance[:, 1], chance[:, 2]), strict=True):
        middle = (2 * place - 1) * (1 - share)
        # grid_sample's own coordinates: from −1 to 1, edge to edge.
        at = (2 * torch.arange(side, device=images.device, dtype=images.dtype) + 1) / side - 1
        axes.append(middle[:, None] + share[:, None] * at)
    down, across = axes
    shape = (len(images), *images.shape[-2:])
    grid = torch.stack((across[:, None, :].expand(shape), down[:, :, None].expand(shape)), -1)
    return F.grid_sample(images, grid, padding_mode="border", align_corners=False)


# Records on which a loss is tried; passes in lanes fill fewer than 16 up.
_TRIED = 8


def check_loss(
    model: torch.nn.Module,
    loss: Loss,
    records: Records,
    dims: BatchDims | None = None,
    contribution: mechanism.Contribution = mechanism.Examples(),  # noqa: B008 (frozen)
    augmentation: mechanism.Augmentation | None = None,
) -> None:
    """Refuse models and losses that cannot be trained privately, before anything is released.

    They are tried on made-up records, so that the outcome reveals nothing about private records.

    Args:
        records: their form is used, not their values.
        dims: the batch dimensions of the model, if its owner declares them.
        contribution: the kind of contribution; groups are tried as one group, local updates are
            run once.
        augmentation: of the records, which must then be images.

    Raises:
        ValueError: a loss without one value for each example, labels (N, 1) that it does not take,
            the errors of :func:`clipped_sum`, or an algorithm that does not run or returns no
            weight change.
    """
    if dims is not None and contribution.clipping == "group":
        raise ValueError("batch_dims= goes with clipped examples: a group is a batch of its own")
    inputs, targets = blank(records)
    if augmentation is not None:
        require_images(inputs, augmentation, isinstance(contribution, mechanism.Persons), dims)
    with undisturbed(model, loss), explained_targets():
        if isinstance(contribution, mechanism.LocalUpdates) and not contribution.local.is_gradient:
            OneByOne(model, loss, contribution.local).update(inputs, targets, 0)
            return
        if contribution.clipping == "group":
            groups = torch.zeros(batch_size(inputs, targets), dtype=torch.int64)
            clipped_sum(model, loss, inputs, targets, 1.0, groups)
            return
        clipped_sum(model, loss, placed(inputs, dims), targets, 1.0, batch_dims=dims)
        if dims is None and shards_of(model) is None:
            inputs, targets = blank(records, _TRIED)
            _refuse_mixing(model, loss, inputs, _unequal(targets))
            _tell_mixing(model, _unequal(inputs))


# Words of torch's errors about targets that a loss does not take, and the remedy.
_TARGETS = {
    "multi-target": "takes one label a record: give targets of shape (N, 1) as targets.squeeze(-1)",
    "class probabilities": "takes numbers of classes: give one-hot targets as targets.argmax(-1)",
    "can't be cast to": "takes decimals: give targets.float()",
}


@contextmanager
def explained_targets() -> Iterator[None]:
    """Tell the remedy where a loss does not take the targets, such as labels (N, 1) of a table."""
    try:
        yield
    except RuntimeError as error:
        remedy = next((_TARGETS[word] for word in _TARGETS if word in str(error)), None)
        if remedy is None:
            raise
        raise ValueError(f"the loss {remedy} ({error})") from error


def _unequal(made_up: Any, seed: int = 0) -> Any:
    """Made-up records that differ, since equal ones are equal to their mean.

    They hold fixed numbers between 0 and 1, which are probabilities too, or the whole number 0,
    which is a class and an index of any model.
    """
    generator = torch.Generator().manual_seed(seed)

    def some(leaf: Tensor) -> Tensor:
        made = 0.05 + 0.9 * torch.rand(leaf.shape, generator=generator)
        return made.to(leaf) if leaf.is_floating_point() else leaf

    return mapped(made_up, some)


def _refuse_mixing(model: torch.nn.Module, loss: Loss, inputs: Any, targets: Any) -> None:
    """Refuse a loss that gives one of several unequal outputs another value than it has alone."""
    try:
        with torch.random.fork_rng(devices=[]):
            with torch.no_grad():
                # Others than the targets, whose distance would be zero for any loss.
                outputs = _unequal(call(model, inputs), seed=1)
            each = [mapped((outputs, targets), itemgetter(slice(i, i + 1))) for i in range(_TRIED)]
            values, again = (torch.cat([loss(*one).reshape(1) for one in each]) for _ in range(2))
        # At random, or by what it saw before.
        if not torch.allclose(values, again, 0, 0, equal_nan=True):
            return
    except Exception:  # a loss or a model of another form was tried above
        return
    try:
        compare_losses(loss, lambda: outputs, targets, values)
    except Refused as reason:
        raise ValueError(str(reason)) from None


def _tell_mixing(model: torch.nn.Module, inputs: Any) -> None:
    """Warn of a model that gives a record clearly other outputs if another record is beside it."""

    def first(count: int) -> Any:
        return mapped(inputs, itemgetter(slice(count)))

    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = [call(model, first(count)) for count in (1, 2, 2)]
    except Exception:  # a model that is made for one record
        return
    for every in zip(*map(torch.utils._pytree.tree_leaves, found), strict=False):
        if not all(isinstance(x, Tensor) and x.is_floating_point() and x.ndim for x in every):
            continue
        alone, paired, again = every
        drawn = not torch.equal(paired, again)  # at random
        if drawn or not alone.numel() or alone.shape != paired[:1].shape:
            continue
        if not (alone - paired[:1]).abs().max() <= 0.05 * paired.abs().max():
            warnings.warn(
                "the model gives an example other outputs beside another one (a mean over the "
                "batch, batch_first=False), and it is trained on each example alone: let its "
                "layers treat examples separately, or say which dimension has them (batch_dims=)",
                stacklevel=5,
            )
            return


# Passes over records that leave no trace in a model, and losses with one value per example.


@contextmanager
def undisturbed(model: torch.nn.Module, loss: object = None) -> Iterator[None]:
    """A context that restores buffers, attributes and modes of all modules at its end.

    A forward pass may write values of the records, without noise, into them, and into objects,
    closures and generators that the model or the loss can reach. The context restores these, too.

    Raises:
        ValueError: a reachable object that cannot be restored, such as an iterator.
    """
    with turns:
        before = ModuleState(model.named_modules())
        try:
            surroundings = ExternalState(model.modules(), model, loss)
        except Refused as reason:
            raise ValueError(str(reason)) from None
        try:
            yield
        finally:
            surroundings.restore()
            with torch.no_grad():
                before.restore()


def mixing_layers(model: torch.nn.Module) -> list[tuple[str, _BatchNorm]]:
    """(name, layer) of batch normalisation in training mode, which normalises by its batch."""
    layers = ((n, m) for n, m in model.named_modules() if isinstance(m, _BatchNorm))
    return [(name, layer) for name, layer in layers if layer.training]


Loss = Callable[[Any, Any], torch.Tensor]


@separable(cross_entropy_slope)
def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy of logits (batch, classes, …) with labels, shape (batch, …)."""
    return F.cross_entropy(outputs, targets, reduction="none")


@separable()
def squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Squared error summed over all dimensions but the batch, shape (batch,).

    Outputs (batch, 1) are compared with targets (batch,).

    Raises:
        ValueError: outputs and targets of different shapes.
    """
    if outputs.shape != targets.shape and outputs.numel() == targets.numel():
        outputs = outputs.reshape(targets.shape)
    if outputs.shape != targets.shape:
        raise ValueError(
            f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} must have one "
            "shape for squared error: for classes give whole numbers (targets.long()), for "
            "anything else give loss="
        )
    squares = (outputs - targets).square()
    return squares.flatten(1).sum(1) if targets.ndim > 1 else squares


@separable()
def label_cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean binary cross entropy over labels, (batch,); outputs and targets are (batch, labels)."""
    values = F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    return values.flatten(1).mean(1)


# Losses whose mean over a batch is the mean of each example's own loss, with weights as factors.
_WEIGHTED = frozenset({F.binary_cross_entropy, F.binary_cross_entropy_with_logits})
# Losses whose mean divides by the sum of the weights in the batch.
_CLASSES = frozenset({F.cross_entropy, F.nll_loss})
# Losses of outputs and targets of one shape.
ALIKE = _WEIGHTED | {F.huber_loss, F.l1_loss, F.mse_loss, F.smooth_l1_loss}
_MEANS = ALIKE | _CLASSES
# torch's modules of these losses.
_CRITERIA = (
    *(torch.nn.BCELoss, torch.nn.BCEWithLogitsLoss, torch.nn.CrossEntropyLoss, torch.nn.NLLLoss),
    *(torch.nn.HuberLoss, torch.nn.L1Loss, torch.nn.MSELoss, torch.nn.SmoothL1Loss),
)


def is_mean(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> bool:
    """True if a call is a torch loss whose mean over the batch is that of each example's loss."""
    if function not in _MEANS or kwargs.get("reduction") != "mean":
        return False
    return function in _WEIGHTED or kwargs.get("weight") is None


def own_mean(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The loss of each example, (batch,): the mean over its own values, not over the batch."""
    values = of_alike(function, *args, **kwargs)
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def of_alike(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A loss of outputs and targets, brought to one shape if these are (B, …, 1) and (B, …).

    torch would broadcast them to (B, …, B), with every output beside every target.
    """
    if len(args) > 1 and all(isinstance(one, Tensor) for one in args[:2]):
        one, other, *rest = args
        if one.shape == (*other.shape, 1):
            one = one.squeeze(-1)
        elif other.shape == (*one.shape, 1):
            other = other.squeeze(-1)
        args = (one, other, *rest)
    return function(*args, **kwargs)


def of_each(loss: Loss) -> Loss:
    """A torch loss with a mean over the batch as a loss of each example; others unchanged.

    The mean over a batch would divide by the number of drawn records, which is private.
    """
    if loss is F.cross_entropy:
        return cross_entropy
    if any(loss is one for one in _MEANS):
        return functools.partial(own_mean, loss, reduction="none")
    if not isinstance(loss, _CRITERIA):
        return loss
    classes = isinstance(loss, torch.nn.CrossEntropyLoss | torch.nn.NLLLoss)
    if loss.reduction != "mean":
        return loss if classes else functools.partial(of_alike, loss)
    if classes and loss.weight is not None:
        return loss  # refused: its mean divides by the weights of a batch
    criterion = copy.copy(loss)
    criterion.reduction = "none"
    return criterion if classes else functools.partial(own_mean, criterion)


def no_loss(outputs: Any, targets: Any) -> Tensor:
    """The loss of contributions that are not computed from one."""
    raise TypeError("statistics, and linear models with a slope, have no loss")


def default_loss(targets: Any) -> Loss:
    """Cross entropy for labels, squared error for floating-point targets.

    Raises:
        TypeError: targets that are no tensor, which need ``loss=``.
    """
    if not isinstance(targets, torch.Tensor):
        kind = type(targets).__name__
        raise TypeError(f"targets of type {kind} have no default loss: give loss=")
    return squared_error if targets.is_floating_point() else cross_entropy


def correct(outputs: Any, targets: Any) -> int | None:
    """The number of correctly predicted labels; None if it is not classification."""
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return None
    if targets.is_floating_point() or (outputs.ndim, targets.ndim) != (2, 1):
        return None
    return int((outputs.argmax(1) == targets).sum())


# Clipped gradients of a linear model: one product with the matrix of all records.


# The most rows of one product.
ROWS = 1 << 12

Slope = Callable[[Tensor, Tensor], Tensor]
"""(outputs (B, k), targets (B, …)) → the derivative of each record's loss, (B, k), row by row."""


class LinearModel(torch.nn.Module):
    """A linear model X @ weight with the derivative of its loss by the outputs.

    Args:
        inputs, outputs: the weight's shape; it starts at zero, in float64.
        slope: the derivative of the loss. Row b of its result must depend on row b of its arguments
            only.
    """

    def __init__(self, inputs: int, outputs: int, slope: Slope) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(inputs, outputs, dtype=torch.float64))
        self.slope = slope
        self._blocks: dict[int, Blocks] = {}

    def forward(self, features: Tensor) -> Tensor:
        return features @ self.weight

    def slopes(self, features: Tensor, targets: Tensor, examples: int) -> Tensor:
        """The derivative of every record's loss by its outputs, (B, k).

        It is computed in blocks whose length follows from the number of all records, so that a
        record's bits do not depend on the size of the batch.

        Args:
            examples: number of records from which the batch is drawn.

        Raises:
            ValueError: the slope does not return a derivative for each output.
        """
        blocks = self._blocks.get(examples)
        if blocks is None:
            blocks = self._blocks[examples] = self._tried(even_parts(examples, ROWS), targets)
        found = []
        for start, end, rows in blocks.cut(len(features)):
            part, wanted = filled((features, targets), start, end, rows)
            found.append(self._sloped(part @ self.weight, wanted)[: end - start])
        return found[0] if len(found) == 1 else torch.cat(found)

    def _sloped(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found = self.slope(outputs, targets)
        if not isinstance(found, Tensor) or found.shape != outputs.shape or found.is_complex():
            given = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"the slope must be a real tensor of the outputs' shape {tuple(outputs.shape)}, "
                f"not {given}"
            )
        return found

    def _tried(self, blocks: Blocks, targets: Tensor) -> Blocks:
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(self.weight.shape, generator=generator).to(self.weight)
        for tried in (blocks, *blocks.others()):
            size = tried.sizes[0]
            rows = torch.randn(size, len(weight), generator=generator).to(weight)
            wanted = torch.zeros((size, *targets.shape[1:])).to(targets)

            def compute(rows: Tensor, wanted: Tensor = wanted) -> Tensor:
                outputs = rows @ weight
                return torch.cat([outputs, self._sloped(outputs, wanted)], 1)

            if size == 1 or rows_alike(compute, rows):
                return tried
        return Blocks((1,))


class LinearRecords(TensorRecords):
    """Records of a linear model: a float64 matrix, whose row norms are computed once.

    Args:
        features: shape (N, d), finite. targets: one row for each record.

    Raises:
        ValueError: features that are no matrix, or another number of targets.
    """

    def __init__(self, features: Tensor, targets: Tensor) -> None:
        if features.ndim != 2 or not targets.ndim or len(features) != len(targets):
            raise ValueError(
                "a linear model needs a matrix of features and one target a row: shapes "
                f"{tuple(features.shape)} and {tuple(targets.shape)}"
            )
        # Filled up to whole blocks once, not in every round.
        count, blocks = len(features), even_parts(len(features), ROWS)
        rows = sum(size for _, _, size in blocks.cut(count))
        self.filled = filled((features.double(), targets), 0, count, rows)
        self.features, targets = (leaf[:count] for leaf in self.filled)
        super().__init__(self.features, targets)
        self.lengths = torch.cat([lengths(part) for part in torch.split(self.features, PIECE)])

    def some(self, indices: Indices) -> tuple[Tensor, Tensor, Tensor]:
        """Features, targets and proven norms of the rows; without a copy if it is all of them."""
        if len(indices) == len(self.features):  # each record once, in any order: it is a sum
            return self.features, self.targets, self.lengths
        rows = torch.from_numpy(indices)
        return self.features[rows], self.targets[rows], self.lengths[rows]


@dataclass
class MeasuredOuter(Outer):
    """x_b ⊗ s_b in the shape of a linear model's weight, with known norms of x_b.

    ``measured``: proven upper bounds of ‖x_b‖, shape (B,).
    """

    measured: Tensor | None = None

    def bounds(self) -> TermBounds:
        left, _ = self.blocks[0]
        if self.measured is None or not isinstance(left, Tensor):
            return super().bounds()
        slopes = lengths(left[:, 0])
        return TermBounds(slopes * self.measured, None, slopes + self.measured)


def linear_sums(
    model: torch.nn.Module,
    records: Any,
    indices: Indices,
    clip_norm: float,
    rule: ClippingRule,
    round_size: int,
) -> tuple[dict[str, Tensor], Tensor]:
    """The clipped sum of a linear model's gradients, and their norms.

    Args:
        model: a :class:`LinearModel`. records: :class:`LinearRecords`.
        indices: of the batch. clip_norm: C. rule: turns norms into factors.
        round_size: contributions of the whole round.

    Returns:
        "weight" → float64, shape (d, k); norms before clipping, shape (batch,), float64.

    Raises:
        TypeError: another model, or other records. ValueError: slopes of another shape.
    """
    if not isinstance(model, LinearModel) or not isinstance(records, LinearRecords):
        raise TypeError(
            "a plan of linear examples sums over a LinearModel and LinearRecords, not "
            f"{type(model).__name__} and {type(records).__name__}"
        )
    features, targets, measured = records.some(indices)
    with torch.no_grad():
        whole = len(indices) == len(records)
        rows, wanted = records.filled if whole else (features, targets)
        slopes = model.slopes(rows, wanted, len(records))[: len(features)]
        block = (slopes.double().unsqueeze(1), features.unsqueeze(1))
        terms: dict[str, Term] = {"weight": MeasuredOuter([block], True, measured)}
        return clip_and_sum(terms, {"weight": model.weight}, clip_norm, rule, round_size)
