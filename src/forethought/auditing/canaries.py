"""Records with known gradients, a recorder of noised sums, and the sizes of an audit's checks.

Record i of such a data set has the gradient weight[i]·unit in coordinate ``index[i]`` and zero
elsewhere. A record whose presence a coin decides is a canary. The model is one table of numbers,
one for each coordinate. The recorder takes the place of the optimizer: it records the gradients
that it gets and does not change the weights. All code between the records and the optimizer is that
of an ordinary run, because the audit calls ``train``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from forethought.rounds.records import Records
from forethought.training.run import train
from forethought.values.checks import one_of, whole
from forethought.values.mechanism import Mechanism, Rounds, Sampling
from forethought.values.plan import Plan
from forethought.values.use import Averaging, Optimizer, ReleaseUse, Schedule

# The most parts of a plan that one check tests; they are evenly spread over the plan.
PARTS = 4
# A gradient of so many units is far above every clipping norm that a rule reaches.
LARGE = 10**6
# The least number of rows of a table, because gradients are tried on a few rows first.
ROWS = 32


@dataclass(frozen=True)
class CheckSizes:
    """The sizes of the checks at one level of an audit.

    Args:
        hits: wanted participations of records in the run without noise.
        dry_rounds: most rounds of the run without noise.
        population: most records of the run without noise; a larger data set is scaled down at the
            same rate.
        coordinates: number of coordinates with noise only.
        noise_rounds: number of rounds in which their noise is tested.
        canaries: most membership games in one training.
        attack_cells: most canaries times rounds.
        directed_games: number of trainings, if one training can play only one game.
        batch: most records of the batches whose sums are compared; 0: the plan's batch.
        neighbours: number of neighbouring batches at each set of weights.
        bounds: True to express the attack's results as ε, too; the verdict does not need it.
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
    """The sizes of a level by name. Raises ValueError for an unknown name."""
    one_of("level", level, tuple(LEVELS))
    return LEVELS[level]


def scaled(sampling: Sampling, examples: int, wanted: int) -> Sampling:
    """The same sampling of ``wanted`` instead of ``examples`` records, at the same rate."""
    if examples == wanted or sampling.known_examples() is None:
        return sampling
    return sampling.resized(sampling.expected_batch(examples) * wanted / examples, wanted)


def taken(records: Records, indices: NDArray[np.int64]) -> tuple[Any, Any]:
    """Inputs and targets as training takes them; a Dataset's several inputs come in a list."""
    inputs, targets = records.take(indices)
    return tuple(inputs) if isinstance(inputs, list) else inputs, targets


def choices(seed: int | None) -> np.random.Generator:
    """An audit's own random choices. Raises TypeError, ValueError: no whole number from 0."""
    return np.random.default_rng(None if seed is None else whole("seed", seed, least=0))


def evenly(parts: list[Rounds]) -> list[Rounds]:
    """At most :data:`PARTS` of the parts, evenly spread, the first and the last included."""
    if len(parts) <= PARTS:
        return parts
    return [parts[round(i * (len(parts) - 1) / (PARTS - 1))] for i in range(PARTS)]


def with_parts(plan: Plan, parts: list[Rounds], examples: int) -> Plan:
    """The plan with other rounds and another number of records; clipping and grouping stay.

    Shares of the clip norm by parameter name do not fit a planted model, so they become equal.
    """
    clip = replace(plan.clip, shares=None)
    mechanism = Mechanism(*parts, adjacency=plan.mechanism.adjacency)
    return plan.with_(mechanism=mechanism, examples=examples, clip=clip, budget=None)


# It gets the gradients in the parameters' order.
Watch = Callable[[list[torch.Tensor]], None]
_WATCHING: ContextVar[Watch | None] = ContextVar("watching", default=None)


class Recorder(torch.optim.Optimizer):
    """An optimizer that hands every gradient to the running audit, and changes no weight.

    Raises:
        ValueError: no audit is running.
    """

    def __init__(self, params: Iterable[Any], lr: float = 1.0) -> None:
        super().__init__(params, {"lr": lr})
        self._watch = _WATCHING.get()
        if self._watch is None:
            raise ValueError("the recorder is for audits: use forethought.audit")

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Record the gradients; ``closure`` is not called."""
        assert self._watch is not None
        self._watch([p.grad for group in self.param_groups for p in group["params"]])


RECORDER = Optimizer(f"{__name__}:Recorder", 1.0, ())


@contextmanager
def holding(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """A context in which a context variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def recorded_plan(plan: Plan) -> Plan:
    """The plan with the recorder as its optimizer; the releases are the same."""
    use = ReleaseUse(RECORDER, Schedule(), Averaging("none"))
    return plan.with_(use=use, budget=None)


def divisors(plan: Plan) -> Iterator[float]:
    """The divisor of each round's sum; it follows from the mechanism alone, so it is public."""
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


@dataclass(frozen=True)
class CanaryRecords:
    """Records with known gradients.

    Args:
        index: the coordinate of each record, int64, shape (records,).
        weight: its gradient in units of ``unit``, int64, shape (records,); 0 is a blank record.
        unit: length of the gradient of a record of weight 1.
        rows: number of coordinates; those without a record carry noise only.
    """

    index: NDArray[np.int64]
    weight: NDArray[np.int64]
    unit: float
    rows: int

    @property
    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets, as ``train`` takes them."""
        return torch.from_numpy(self.index), torch.from_numpy(self.weight)

    @property
    def loss(self) -> Callable[[Any, Any], torch.Tensor]:
        """The loss weight·unit·table[i]: its gradient is weight·unit in coordinate i."""
        return lambda outputs, weights: outputs[:, 0] * weights * self.unit

    def model(self, dtype: torch.dtype = torch.float64) -> CanaryModel:
        """A new model for these records."""
        return CanaryModel(self.rows, dtype)


def kept(
    plan: Plan, records: CanaryRecords, keep: Callable[[NDArray[Any]], Any], **options: Any
) -> tuple[list[Any], list[float]]:
    """Train, and keep something of every noised *sum*.

    Args:
        plan: the plan to run; the recorder replaces its optimizer.
        records: these, or anything with a model(), data and a loss.
        keep: function of a round's noised sum, (parameters,), float64.
        options: of :func:`forethought.train`.

    Returns:
        The results of ``keep``, and the clip norm of each round.
    """
    plan, scale = recorded_plan(plan), divisors(plan)
    found: list[Any] = []

    def watch(gradients: list[torch.Tensor]) -> None:
        flat = [g.detach().cpu().double().numpy().reshape(-1) for g in gradients]
        found.append(keep(np.concatenate(flat) * next(scale)))

    moving = plan.clip.rule == "quantile" or plan.clip.final is not None
    options |= {"loss": records.loss, "log_every": 1 if moving else plan.rounds}
    with holding(_WATCHING, watch):
        run = train(records.model(), records.data, plan, diagnostics=False, **options)
    norms = [row.clip_norm for row in run.history] if moving else [plan.clip.norm] * plan.rounds
    return found, norms
