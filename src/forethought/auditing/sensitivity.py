"""The distance that one record moves a sum: neighbouring batches, planted ones and the user's own.

The planted neighbours are the worst that are known for each way of clipping; the accountant's own
claim bounds them. Through the user's model and loss, whole batches that differ in one record are
summed at the initial, at trained and at random weights; whether the model itself changed is looked
at, too, since what a record leaves in it moves the rounds to come.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.data import Dataset

from forethought.accounting.tradeoff import tradeoff
from forethought.auditing.effort import Effort
from forethought.auditing.module_state import changes, state_of
from forethought.auditing.planted import PlantedRecords, divisors, observe, recorded_plan, watching
from forethought.auditing.verdict import Finding, certain
from forethought.gradients.clipped import numbers_behind
from forethought.gradients.sums import flat
from forethought.gradients.vmap_mode import bits
from forethought.rounds.contributions import Gradients
from forethought.rounds.losses import Loss
from forethought.rounds.records import Records
from forethought.training.run import train
from forethought.values.contributions import Examples
from forethought.values.mechanism import Mechanism, Rounds
from forethought.values.plan import Clip, Plan
from forethought.values.samplings import FullBatch
from forethought.values.use import Averaging

Array = NDArray[np.float64]

# Rounding of single-precision sums, for each record of a batch and at least.
ROUNDING, LEAST = 3e-7, 1e-4
# Clipping norms are made so much smaller than the plan's that every gradient is clipped.
BINDING = 1e-2
TRAINING_ROUNDS = 10
LARGE = 10**6


def full_batch(plan: Plan, examples: int, clip: Clip | None = None, rounds: int = 1) -> Plan:
    """Every record in every round, without noise: sums as they are before noise is added."""
    (clipping,) = {part.clipping for part in plan.mechanism}
    parts = Rounds(0.0, rounds, FullBatch(), clipping)
    return plan.with_(
        mechanism=Mechanism(parts, adjacency=plan.mechanism.adjacency),
        examples=examples,
        clip=clip or plan.clip,
        budget=None,
    )


def claimed_distance(plan: Plan) -> float:
    """The distance that one record moves a full batch's sum by the accountant's own word, in units
    of C.

    At noise multiplier 1 the trade-off function of one full batch is that of N(0, 1) against
    N(distance, 1).
    """
    (clipping,) = {part.clipping for part in plan.mechanism}
    rounds = Rounds(1.0, 1, FullBatch(), clipping)
    claim = tradeoff(Mechanism(rounds, adjacency=plan.mechanism.adjacency))
    return claim.gaussian_mu()


def planted_distance(plan: Plan) -> float:
    """The distance that the last record moves the sum of a batch in which all others point
    against it."""
    adjacency, examples = plan.mechanism.adjacency, 12
    clip = plan.clip if plan.clip.rule in ("flat", "automatic") else Clip(plan.clip.norm)
    weight = np.full(examples, -1, dtype=np.int64)
    weight[-1] = LARGE
    replaced = weight.copy()
    replaced[-1] = -LARGE
    others = [replaced] if adjacency == "replace-one" else [weight[:-1]]
    if adjacency == "zero-out" and plan.groups is None:
        blank = weight.copy()
        blank[-1] = 0
        others.append(blank)
    first = _planted_sum(plan, clip, weight)
    return max(abs(first - _planted_sum(plan, clip, other)) for other in others) / plan.clip.norm


def _planted_sum(plan: Plan, clip: Clip, weight: NDArray[np.int64]) -> float:
    records = PlantedRecords(np.zeros_like(weight), weight, 1e3 * clip.norm, 1)
    kept: list[float] = []
    # One seed for all: the other records are dealt to the same groups.
    observe(
        full_batch(plan, len(weight), clip),
        records,
        lambda _index, total: kept.append(float(total[0])),
        seed=0,
    )
    return kept[0]


def planted_sensitivity(plan: Plan) -> Finding:
    """The worst known neighbours against the distance that is accounted."""
    moved, claimed = planted_distance(plan), claimed_distance(plan)
    return certain(
        "sensitivity",
        "planted neighbours",
        f"the sum moves by {moved:.4g} C",
        f"{claimed:.4g} C",
        moved > claimed * (1 + LEAST),
        f"One record moves a sum by {moved:.3g} C, where {claimed:.3g} C is accounted.",
    )


class _Batch(Dataset[Any]):
    """Records that were taken already, one after the other; inputs of any structure."""

    def __init__(self, inputs: Any, targets: Any, size: int) -> None:
        self._inputs, self._targets, self._size = inputs, targets, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        taken: tuple[Any, Any] = tree_map(lambda leaf: leaf[index], (self._inputs, self._targets))
        return taken


@dataclass(frozen=True)
class _Case:
    """The user's model at one set of weights, and what to sum."""

    weights: str
    model: nn.Module
    loss: Loss
    plan: Plan

    def total(self, inputs: Any, targets: Any, size: int, clip: Clip, seed: int = 0) -> Array:
        """The sum of clipped contributions over all parameters, in units of C."""
        plan = recorded_plan(full_batch(self.plan, size, clip))
        data: Any = (inputs, targets)
        if not (isinstance(inputs, torch.Tensor) and isinstance(targets, torch.Tensor)):
            data = _Batch(inputs, targets, size)
        kept: list[Array] = []
        (scale,) = divisors(plan)

        def see(gradients: list[torch.Tensor]) -> None:
            flat = [g.detach().cpu().double().numpy().reshape(-1) for g in gradients]
            kept.append(np.concatenate(flat) * (scale / clip.norm))

        with watching(see):
            train(self.model, data, plan, loss=self.loss, diagnostics=False, log_every=1, seed=seed)
        return kept[0]


def model_sensitivity(
    model: nn.Module,
    records: Records,
    plan: Plan,
    loss: Loss,
    effort: Effort,
    generator: np.random.Generator,
) -> list[Finding]:
    """Neighbouring batches through the user's model and loss, and what they leave in the model.

    Args:
        model: is copied. records: the user's. plan: the claim. loss: one value per record.

    Raises:
        ValueError: a model that training refuses.
    """
    wanted = math.ceil(max(part.sampling.expected_batch(plan.examples) for part in plan.mechanism))
    size = min(len(records), max(2, wanted), effort.batch or wanted)
    size = max(2, min(size, len(records)))
    chosen = generator.choice(len(records), size, replace=False)
    inputs, targets = records.take(np.asarray(chosen, dtype=np.int64))
    grouped = plan.groups is not None
    worst = {"one": (0.0, ""), "gone": (0.0, ""), "replaced": (0.0, "")}
    changed: list[str] = []
    for case in _cases(model, inputs, targets, size, plan, loss):
        before = state_of(case.model)
        for kind, moved in _distances(case, inputs, targets, size, effort, generator):
            if moved > worst[kind][0]:
                worst[kind] = (moved, case.weights)
        changed += changes(before, state_of(case.model))
    allowed = {"one": 1.0, "gone": 2.0 if grouped else 1.0, "replaced": 2.0}
    text = {
        "one": ("one record's contribution", "One record's contribution has length"),
        "gone": ("a record less in a batch", "Without one record a batch's sum moves by"),
        "replaced": ("a record replaced in a batch", "One replaced record moves a batch's sum by"),
    }
    found = []
    for kind, (moved, weights) in worst.items():
        if not weights:
            continue
        limit = allowed[kind]
        slack = LEAST + ROUNDING * size
        where = f"at {weights} weights"
        cause = (
            "clipping does not hold in this model"
            if kind == "one"
            else "the examples of a batch are not kept apart in this model or loss"
        )
        found.append(
            certain(
                "sensitivity",
                f"{text[kind][0]} ({size:,} records)" if kind != "one" else text[kind][0],
                f"{moved:.5g} C, {where}",
                f"{limit:g} C",
                moved > limit * (1 + slack),
                f"{text[kind][1]} {moved:.5g} C {where}, where {limit:g} C is allowed: {cause}.",
            )
        )
    found += _bits(model, inputs, targets, size, plan, loss)
    names = ", ".join(dict.fromkeys(changed))
    found.append(
        certain(
            "sensitivity",
            "buffers and attributes after private passes",
            names or "unchanged",
            "unchanged",
            bool(changed),
            f"The model keeps something of the records that it saw: {names} changed.",
        )
    )
    return found


def _bits(
    model: nn.Module, inputs: Any, targets: Any, size: int, plan: Plan, loss: Loss
) -> list[Finding]:
    """Every number that is computed of a record, among fewer others.

    Behind a kink of the loss a last bit is a whole contribution.
    """
    chosen = plan.round(0)
    if not isinstance(chosen.contribution, Examples) or chosen.augmentation is not None:
        return []
    blocks = Gradients(loss, flat).blocks(chosen)
    copied = copy.deepcopy(model)

    def numbers(count: int) -> list[torch.Tensor]:
        few, wanted = tree_map(lambda leaf: leaf[:count], (inputs, targets))
        return numbers_behind(copied, loss, few, wanted, blocks, size)

    whole = numbers(size)
    differing = sum(
        int((bits(few) != bits(many[: size - gone])).sum())
        for gone in range(1, min(4, size))
        for few, many in zip(numbers(size - gone), whole, strict=True)
    )
    return [
        certain(
            "sensitivity",
            "bits of a record among fewer others",
            f"{differing} numbers differ" if differing else "the same",
            "the same",
            bool(differing),
            "A record's gradient has other last bits in a batch of another size: behind a kink of "
            "the loss one record then moves the contributions of others.",
        )
    ]


def _cases(
    model: nn.Module, inputs: Any, targets: Any, size: int, plan: Plan, loss: Loss
) -> Iterator[_Case]:
    yield _Case("initial", copy.deepcopy(model), loss, plan)
    randomised = copy.deepcopy(model)
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in randomised.parameters():
            # Gates and heads that are zero at first are opened.
            spread = float(parameter.detach().float().square().mean().sqrt()) or 1.0
            noise = torch.randn(parameter.shape, generator=source, dtype=torch.float64)
            parameter.add_((spread * noise).to(parameter.device, parameter.dtype))
    yield _Case("random", randomised, loss, plan)
    trained = copy.deepcopy(model)
    clip = plan.clip if plan.clip.rule != "quantile" else Clip(plan.clip.norm)
    train(
        trained,
        (inputs, targets) if isinstance(inputs, torch.Tensor) else _Batch(inputs, targets, size),
        full_batch(plan, size, clip, TRAINING_ROUNDS).with_(averaging=Averaging("none")),
        loss=loss,
        diagnostics=False,
        log_every=TRAINING_ROUNDS,
        seed=0,
    )
    if all(bool(torch.isfinite(p).all()) for p in trained.parameters()):
        yield _Case("trained", trained, loss, plan)


def _distances(
    case: _Case,
    inputs: Any,
    targets: Any,
    size: int,
    effort: Effort,
    generator: np.random.Generator,
) -> Iterator[tuple[str, float]]:
    own = case.plan.clip if case.plan.clip.rule != "quantile" else Clip(case.plan.clip.norm)
    binding = replace(own, norm=own.norm * BINDING)

    def pick(leaf: Any, index: NDArray[np.int64]) -> Any:
        return leaf[torch.from_numpy(index).to(leaf.device)]

    for index in generator.choice(size, min(size, effort.neighbours), replace=False):
        one = np.array([index])
        alone = tree_map(lambda leaf, one=one: pick(leaf, one), (inputs, targets))
        yield "one", float(np.linalg.norm(case.total(alone[0], alone[1], 1, binding)))
    base = {clip.norm: case.total(inputs, targets, size, clip) for clip in (binding, own)}
    for turn, other in enumerate(
        _replacements(inputs, targets, size, effort.neighbours, generator)
    ):
        clip = own if turn == 0 else binding
        moved = case.total(*other, size, clip) - base[clip.norm]
        yield "replaced", float(np.linalg.norm(moved))
    # Random layers draw other numbers for a batch of another size: sums are then no neighbours.
    again = case.total(inputs, targets, size, binding, seed=1)
    if case.plan.groups is None and not np.array_equal(again, base[binding.norm]):
        return
    rest = np.arange(size - 1)
    less = tree_map(lambda leaf: pick(leaf, rest), (inputs, targets))
    moved = case.total(less[0], less[1], size - 1, binding) - base[binding.norm]
    yield "gone", float(np.linalg.norm(moved))


def _replacements(
    inputs: Any, targets: Any, size: int, count: int, generator: np.random.Generator
) -> Iterator[tuple[Any, Any]]:
    """Batches in which one record has another's values, larger ones, none, or random ones."""
    ways: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda row: row,
        lambda row: row * 1000 if row.is_floating_point() else row,
        lambda row: row * 30 if row.is_floating_point() else row,
        lambda row: torch.zeros_like(row),
        lambda row: (
            torch.randn_like(row) if row.is_floating_point() else row.flip(0) if row.dim() else row
        ),
    ]
    for turn in range(count):
        way = ways[turn % len(ways)]
        place, source = (int(i) for i in generator.choice(size, 2, replace=False))

        def swap(leaf: Any, place: int = place, source: int = source, way: Any = way) -> Any:
            new = leaf.clone()
            new[place] = way(leaf[source])
            return new

        def label(leaf: Any, place: int = place, source: int = source) -> Any:
            new = leaf.clone()
            new[place] = leaf[source]
            return new

        yield tree_map(swap, inputs), tree_map(label, targets)
