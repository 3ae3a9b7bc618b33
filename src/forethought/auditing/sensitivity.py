"""The distance by which one record moves a sum, for planted and the user's neighbouring batches.

The planted neighbours are the worst known ones for each way of clipping; the accountant's claim
must bound their distance. With the user's model and loss, whole batches that differ in one record
are summed at initial, trained and random weights. A further check finds changes of the model
itself, because values of a record that stay in the model would affect later rounds.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils._pytree import tree_map

from forethought.accounting.tradeoff import tradeoff
from forethought.auditing import canaries
from forethought.auditing.verdict import Finding
from forethought.gradients.batches import bits
from forethought.gradients.clipped import numbers_behind
from forethought.gradients.sums import flat
from forethought.rounds.contributions import Gradients, Loss
from forethought.rounds.records import Records, content
from forethought.training.run import train
from forethought.values.mechanism import Examples, FullBatch, Mechanism, Rounds
from forethought.values.plan import Clip, Plan
from forethought.values.use import Averaging

# Entries that torch itself keeps in a module's dictionary; buffers and parameters are read by name.
_OWN = frozenset(nn.Module().__dict__) - {"training"}


def state_of(model: nn.Module) -> dict[str, Any]:
    """Every buffer and plain attribute by its full name, as values that can be compared."""
    found: dict[str, Any] = {}
    for name, buffer in model.named_buffers():
        found[f"buffer {name}"] = _frozen(buffer)
    for place, module in model.named_modules():
        for name, value in module.__dict__.items():
            if name not in _OWN and not isinstance(value, nn.Module | nn.Parameter):
                where = f"{place}.{name}" if place else name
                found[f"attribute {where}"] = _frozen(value)
    return found


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names of entries that are new, missing or different."""
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def _frozen(value: Any, depth: int = 0) -> Any:
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), content(value))
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, bool | int | float | complex | str | bytes | type(None)):
        return repr(value)
    if depth < 4:
        if isinstance(value, Mapping):
            return tuple((repr(key), _frozen(inner, depth + 1)) for key, inner in value.items())
        if isinstance(value, list | tuple):
            return tuple(_frozen(inner, depth + 1) for inner in value)
        if isinstance(value, set | frozenset):
            return tuple(sorted(repr(inner) for inner in value))
    return id(value)


Array = NDArray[np.float64]
_found = partial(Finding, "sensitivity")

# Tolerance for the rounding of single-precision sums: for each record of a batch, and a constant.
ROUNDING, LEAST = 3e-7, 1e-4
# The plan's clipping norm is multiplied by this, so that every gradient is clipped.
BINDING = 1e-2
TRAINING_ROUNDS = 10


def full_batch(plan: Plan, examples: int, clip: Clip | None = None, rounds: int = 1) -> Plan:
    """A plan with all records in every round and without noise, which releases the exact sums."""
    (clipping,) = {part.clipping for part in plan.mechanism}
    parts = Rounds(0.0, rounds, FullBatch(), clipping)
    return plan.with_(
        mechanism=Mechanism(parts, adjacency=plan.mechanism.adjacency),
        examples=examples,
        clip=clip or plan.clip,
        budget=None,
    )


def claimed_distance(plan: Plan) -> float:
    """The accounted distance by which one record moves a full batch's sum, in units of C.

    At noise multiplier 1 the trade-off function of one full batch is that of N(0, 1) against
    N(distance, 1).
    """
    (silent,) = full_batch(plan, plan.examples).mechanism
    loud = replace(silent, noise_multiplier=1.0)
    return tradeoff(Mechanism(loud, adjacency=plan.mechanism.adjacency)).gaussian_mu()


def planted_distance(plan: Plan) -> float:
    """The distance, in units of C, by which a record moves a sum of others that oppose it."""
    adjacency, examples = plan.mechanism.adjacency, 12
    clip = plan.clip if plan.clip.rule in ("flat", "automatic") else Clip(plan.clip.norm)
    rest = np.full(examples - 1, -1, dtype=np.int64)
    others = [np.r_[rest, -canaries.LARGE] if adjacency == "replace-one" else rest]
    if adjacency == "zero-out" and plan.groups is None:
        others.append(np.r_[rest, 0])
    first = _planted_sum(plan, clip, np.r_[rest, canaries.LARGE])
    moves = [abs(first - _planted_sum(plan, clip, other)) for other in others]
    return max(math.inf if math.isnan(move) else move for move in moves) / plan.clip.norm


def _planted_sum(plan: Plan, clip: Clip, weight: NDArray[np.int64]) -> float:
    records = canaries.CanaryRecords(weight * 0, weight, 1e3 * clip.norm, canaries.ROWS)
    # One seed for all sums, so that the other records are in the same groups.
    (seen,), _ = canaries.kept(
        full_batch(plan, len(weight), clip), records, lambda total: total[0], seed=0
    )
    return float(seen)


def planted_sensitivity(plan: Plan) -> Finding:
    """The finding about the worst known neighbours, against the accounted distance."""
    moved, claimed = planted_distance(plan), claimed_distance(plan)
    seen, beyond = f"the sum moves by {moved:.4g} C", moved > claimed * (1 + LEAST)
    reason = f"One record moves a sum by {moved:.3g} C, where {claimed:.3g} C is accounted."
    return _found("planted neighbours", seen, f"{claimed:.4g} C", reason, violated=beyond)


@dataclass(frozen=True)
class _TakenRecords:
    """Records in memory: inputs of any structure and targets, as training takes them."""

    data: tuple[Any, Any]
    size: int

    def some(self, chosen: NDArray[np.int64]) -> _TakenRecords:
        """The chosen records."""
        at = torch.from_numpy(chosen)
        own = tree_map(lambda leaf: leaf[at.to(leaf.device)], self.data)
        return _TakenRecords(own, len(chosen))

    def with_one(self, place: int, source: int, way: Callable[[Any], Any]) -> _TakenRecords:
        """The record at ``place`` replaced by another, whose inputs are altered."""

        def put(leaf: Any, way: Callable[[Any], Any]) -> Any:
            new = leaf.clone()
            new[place] = way(leaf[source])
            return new

        inputs = tree_map(partial(put, way=way), self.data[0])
        targets = tree_map(partial(put, way=WAYS[0]), self.data[1])
        return _TakenRecords((inputs, targets), self.size)


# Replacements of one record's values: another record's, larger ones, zeros, random ones.
WAYS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda row: row,
    lambda row: row * 1000 if row.is_floating_point() else row,
    lambda row: row * 30 if row.is_floating_point() else row,
    lambda row: torch.zeros_like(row),
    lambda row: (
        torch.randn_like(row) if row.is_floating_point() else row.flip(0) if row.dim() else row
    ),
)


def _total(
    model: nn.Module, loss: Loss, plan: Plan, batch: _TakenRecords, clip: Clip, seed: int = 0
) -> Array:
    """The sum of clipped contributions over all parameters, in units of C."""
    own: Any = SimpleNamespace(model=lambda: model, data=batch.data, loss=loss)
    short = full_batch(plan, batch.size, clip)
    (found,), _ = canaries.kept(short, own, lambda total: total / clip.norm, seed=seed)
    return np.asarray(found)


def model_sensitivity(
    model: nn.Module,
    records: Records,
    plan: Plan,
    loss: Loss,
    sizes: canaries.CheckSizes,
    generator: np.random.Generator,
) -> list[Finding]:
    """Findings about neighbouring batches with the user's model, and about changes of the model.

    Args:
        model: the user's model; it is copied. records: the user's records.
        plan: the claim. loss: one value for each record.
        sizes: of the batches and number of neighbours. generator: of the audit's own choices.

    Raises:
        ValueError: a model that training refuses.
    """
    wanted = math.ceil(max(part.sampling.expected_batch(plan.examples) for part in plan.mechanism))
    size = max(2, min(len(records), wanted, sizes.batch or wanted))
    chosen = generator.choice(len(records), size, replace=False)
    batch = _TakenRecords(canaries.taken(records, np.asarray(chosen, dtype=np.int64)), size)
    worst: dict[str, tuple[float, str]] = {}
    changed: list[str] = []
    for weights, case in _cases(model, batch, plan, loss):
        before, total = state_of(case), partial(_total, case, loss, plan)
        for kind, distance in _distances(total, plan, batch, sizes, generator):
            # A sum that is no number tells of one record whatever noise is added to it.
            moved = math.inf if math.isnan(distance) else distance
            if moved > worst.get(kind, (0.0, ""))[0]:
                worst[kind] = (moved, weights)
        changed += changes(before, state_of(case))
    slack, of = LEAST + ROUNDING * size, f"in a batch ({size:,} records)"
    mixed = "the examples of a batch are not kept apart in this model or loss"
    loose, less = "clipping does not hold in this model", 1.0 if plan.groups is None else 2.0
    # Kind of distance → its limit, name, and the beginning and the cause in the sentence about it.
    kinds = {
        "one": (1.0, "one record's contribution", "One record's contribution has length", loose),
        "gone": (less, f"a record less {of}", "Without one record a batch's sum moves by", mixed),
        "replaced": (2.0, f"a record replaced {of}", "One replaced record moves a sum by", mixed),
    }
    found = []
    for kind, (limit, name, says, cause) in kinds.items():
        if kind not in worst:
            continue
        moved, weights = worst[kind]
        where = f"{moved:.5g} C, at {weights} weights"
        text = f"{says} {moved:.5g} C at {weights} weights, where {limit:g} C is allowed: {cause}."
        beyond = moved > limit * (1 + slack)
        found.append(_found(name, where, f"{limit:g} C", text, violated=beyond))
    found += _bits(model, batch, plan, loss)
    names = ", ".join(dict.fromkeys(changed))
    reason = f"The model keeps something of the records that it saw: {names} changed."
    kept, seen = "buffers and attributes after private passes", names or "unchanged"
    return [*found, _found(kept, seen, "unchanged", reason, violated=bool(changed))]


def _bits(model: nn.Module, batch: _TakenRecords, plan: Plan, loss: Loss) -> list[Finding]:
    """The finding about the bits of all numbers that are computed for a record, in smaller batches.

    They must not change: at a kink of the loss, a last bit can change a whole contribution.
    """
    chosen, size = plan.round(0), batch.size
    if not isinstance(chosen.contribution, Examples) or chosen.augmentation is not None:
        return []
    blocks = Gradients(loss, flat).blocks(chosen)
    copied = copy.deepcopy(model)

    def numbers(count: int) -> list[torch.Tensor]:
        few, wanted = tree_map(lambda leaf: leaf[:count], batch.data)
        return numbers_behind(copied, loss, few, wanted, blocks, size)

    whole = numbers(size)
    differing = sum(
        int((bits(few) != bits(many[: size - gone])).sum())
        for gone in range(1, min(4, size))
        for few, many in zip(numbers(size - gone), whole, strict=True)
    )
    reason = (
        "A record's gradient has other last bits in a batch of another size: behind a kink of "
        "the loss one record then moves the contributions of others."
    )
    seen = f"{differing} numbers differ" if differing else "the same"
    what = "bits of a record among fewer others"
    return [_found(what, seen, "the same", reason, violated=bool(differing))]


def _cases(
    model: nn.Module, batch: _TakenRecords, plan: Plan, loss: Loss
) -> Iterator[tuple[str, nn.Module]]:
    """Copies of the user's model at several sets of weights, each with the name of its weights."""
    yield "initial", copy.deepcopy(model)
    randomised = copy.deepcopy(model)
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in randomised.parameters():
            # Parameters that start at zero, such as gates and heads, become non-zero.
            spread = float(parameter.detach().float().square().mean().sqrt()) or 1.0
            noise = torch.randn(parameter.shape, generator=source, dtype=torch.float64)
            parameter.add_((spread * noise).to(parameter.device, parameter.dtype))
    yield "random", randomised
    trained = copy.deepcopy(model)
    run = full_batch(plan, batch.size, _fixed(plan.clip), TRAINING_ROUNDS)
    options: dict[str, Any] = {"diagnostics": False, "log_every": TRAINING_ROUNDS, "seed": 0}
    train(trained, batch.data, run.with_(averaging=Averaging("none")), loss=loss, **options)
    if all(bool(torch.isfinite(p).all()) for p in trained.parameters()):
        yield "trained", trained


def _fixed(clip: Clip) -> Clip:
    return Clip(clip.norm) if clip.rule == "quantile" else clip


def _distances(
    total: Callable[..., Array],
    plan: Plan,
    batch: _TakenRecords,
    sizes: canaries.CheckSizes,
    generator: np.random.Generator,
) -> Iterator[tuple[str, float]]:
    own, size = _fixed(plan.clip), batch.size
    binding = replace(own, norm=own.norm * BINDING)
    for index in generator.choice(size, min(size, sizes.neighbours), replace=False):
        yield "one", float(np.linalg.norm(total(batch.some(np.array([index])), binding)))
    whole = {clip.norm: total(batch, clip) for clip in (binding, own)}
    for turn in range(sizes.neighbours):
        place, source = (int(i) for i in generator.choice(size, 2, replace=False))
        other = batch.with_one(place, source, WAYS[turn % len(WAYS)])
        clip = own if turn == 0 else binding
        yield "replaced", float(np.linalg.norm(total(other, clip) - whole[clip.norm]))
    # Random layers draw other numbers for a batch of another size, and the sums are then no
    # neighbours.
    again = total(batch, binding, seed=1)
    if plan.groups is None and not np.array_equal(again, whole[binding.norm]):
        return
    less = total(batch.some(np.arange(size - 1)), binding)
    yield "gone", float(np.linalg.norm(less - whole[binding.norm]))
