"""Records with known gradients, a recorder of noised sums, and the sizes of an audit's checks.

Record i of such a data set has the gradient weight·unit in coordinate ``index[i]`` and nothing
elsewhere; where a coin decides whether it is there, it is a canary. The model is one table of
numbers, one a coordinate. The recorder takes the place of the optimizer, keeps what it is given and
leaves the weights alone. Everything between the records and the optimizer is what an ordinary run
uses, for all of it goes through ``train``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from forethought.training.run import train
from forethought.values.checks import one_of
from forethought.values.mechanism import Mechanism, Rounds, Sampling
from forethought.values.plan import Plan
from forethought.values.use import Averaging, Optimizer, ReleaseUse, Schedule

# Kinds of rounds that one check looks at, evenly spread over a plan of more.
PARTS = 4
# A gradient of so many units is far above any clipping norm that a rule reaches.
LARGE = 10**6


@dataclass(frozen=True)
class CheckSizes:
    """Sizes of the checks, which an audit's level stands for.

    Args:
        hits: how often records take part in the dry run, at least.
        dry_rounds: most rounds of the dry run.
        population: most records of a dry run; a larger data set is scaled down at its rate.
        coordinates: that carry noise only. noise_rounds: rounds in which they are looked at.
        canaries: membership games in one training. attack_cells: most canaries times rounds.
        directed_games: trainings, where one training can play one game only.
        batch: most records of the batches whose sums are compared; 0 for the plan's own.
        neighbours: how many neighbouring batches at each set of weights.
        bounds: whether what the attack shows is also put in terms of ε; the verdict needs none.
    """

    hits: int
    dry_rounds: int
    population: int
    coordinates: int
    noise_rounds: int
    canaries: int
    attack_cells: int
    directed_games: int
    batch: int
    neighbours: int
    bounds: bool = True


# hits, dry rounds, population, coordinates, noise rounds, canaries, attack cells, directed games,
# batch, neighbours
LEVELS = {
    "quick": CheckSizes(10_000, 600, 20_000, 70_000, 8, 1_000, 300_000, 60, 128, 3),
    "standard": CheckSizes(40_000, 2_000, 200_000, 140_000, 12, 2_000, 4_000_000, 300, 0, 6),
    "thorough": CheckSizes(
        400_000, 10_000, 1_000_000, 400_000, 32, 20_000, 60_000_000, 3_000, 0, 20
    ),
}


def sizes_of(level: str) -> CheckSizes:
    """The sizes of a level by name. Raises ValueError for an unknown one."""
    one_of("level", level, tuple(LEVELS))
    return LEVELS[level]


def scaled(sampling: Sampling, examples: int, wanted: int) -> Sampling:
    """The same sampling of ``wanted`` instead of ``examples`` records, at the same rate."""
    if examples == wanted or sampling.known_examples() is None:
        return sampling
    return sampling.resized(sampling.expected_batch(examples) * wanted / examples, wanted)


def evenly(parts: list[Rounds]) -> list[Rounds]:
    """At most :data:`PARTS` of them, the first and the last included."""
    if len(parts) <= PARTS:
        return parts
    return [parts[round(i * (len(parts) - 1) / (PARTS - 1))] for i in range(PARTS)]


def with_parts(plan: Plan, parts: list[Rounds], examples: int) -> Plan:
    """The plan's clipping and grouping on other rounds and another number of records.

    Shares of the clip norm by parameter name do not fit a planted model: they are made even.
    """
    clip = replace(plan.clip, shares=None) if plan.clip.shares else plan.clip
    mechanism = Mechanism(*parts, adjacency=plan.mechanism.adjacency)
    return plan.with_(mechanism=mechanism, examples=examples, clip=clip, budget=None)


Watch = Callable[[list[torch.Tensor]], None]
_WATCHING: ContextVar[Watch | None] = ContextVar("watching", default=None)


class Recorder(torch.optim.Optimizer):
    """Hands every gradient it is given to the audit under way, and moves no weight."""

    def __init__(self, params: Iterable[Any], lr: float = 1.0) -> None:
        super().__init__(params, {"lr": lr})
        self._watch = _WATCHING.get()
        if self._watch is None:
            raise ValueError("the recorder is for audits: use forethought.audit")

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Record; never calls ``closure``."""
        assert self._watch is not None
        self._watch([p.grad for group in self.param_groups for p in group["params"]])


RECORDER = Optimizer(f"{__name__}:Recorder", 1.0, ())


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Recorders made inside hand their gradients to ``watch``, in the parameters' order."""
    token = _WATCHING.set(watch)
    try:
        yield
    finally:
        _WATCHING.reset(token)


def recorded_plan(plan: Plan) -> Plan:
    """The plan with the recorder as its optimizer; the releases are the same."""
    use = ReleaseUse(RECORDER, Schedule(), Averaging("none"))
    return plan.with_(use=use, budget=None)


def divisors(plan: Plan) -> Iterator[float]:
    """The divisor of each round's sum, from the mechanism alone: it is public."""
    for part in plan.mechanism:
        for _ in range(part.count):
            yield float(plan.groups or part.sampling.expected_batch(plan.examples))


class CanaryModel(nn.Module):
    """A table of ``rows`` numbers; for index i the outputs are (table[i], 0), shape (batch, 2)."""

    def __init__(self, rows: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 1, dtype=dtype)
        nn.init.zeros_(self.table.weight)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        """Outputs for whole numbers of shape (batch,)."""
        return F.pad(self.table(index), (0, 1))


def canary_loss(outputs: torch.Tensor, weights: torch.Tensor, unit: float) -> torch.Tensor:
    """weight·unit·table[i]: the gradient is weight·unit in coordinate i."""
    return outputs[:, 0] * weights * unit


@dataclass(frozen=True)
class CanaryRecords:
    """Records with known gradients.

    Args:
        index: int64, shape (records,): the coordinate of each.
        weight: int64, shape (records,): its gradient in units of ``unit``; 0 is a blank record.
        unit: length of the gradient of a record of weight 1.
        rows: coordinates in all; those that no record names carry noise only.
    """

    index: NDArray[np.int64]
    weight: NDArray[np.int64]
    unit: float
    rows: int

    @property
    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets."""
        return torch.from_numpy(self.index), torch.from_numpy(self.weight)

    @property
    def loss(self) -> Callable[[Any, Any], torch.Tensor]:
        """One value per record."""
        return partial(canary_loss, unit=self.unit)

    def model(self, dtype: torch.dtype = torch.float64) -> CanaryModel:
        """A fresh model that the records are for."""
        return CanaryModel(self.rows, dtype)


def watched_sums(plan: Plan, see: Callable[[int, NDArray[Any]], None]) -> Watch:
    """A watch that gives each round's number and noised *sum*, shape (rows,), to ``see``.

    The array is the run's own: what is to be kept must be copied.
    """
    scale = divisors(plan)
    count = iter(range(plan.rounds))

    def watch(gradients: list[torch.Tensor]) -> None:
        (table,) = gradients
        see(next(count), table.detach().cpu().numpy().reshape(-1) * next(scale))

    return watch


def observe(
    plan: Plan, records: CanaryRecords, see: Callable[[int, NDArray[Any]], None], **options: Any
) -> list[float]:
    """Train on such records and give every noised sum to ``see``.

    Args:
        plan: what to run; its optimizer is replaced by the recorder.
        options: of :func:`forethought.train`.

    Returns:
        The clip norm of each round.
    """
    plan = recorded_plan(plan)
    moving = plan.clip.rule == "quantile" or plan.clip.final is not None
    options |= {"loss": records.loss, "log_every": 1 if moving else plan.rounds}
    with watching(watched_sums(plan, see)):
        run = train(records.model(), records.data, plan, diagnostics=False, **options)
    return [row.clip_norm for row in run.history] if moving else [plan.clip.norm] * plan.rounds
