"""Planted records and a recorder of noised sums, so that an audit sees a run through ``train``.

Record i of a planted data set has the gradient weight·unit in coordinate ``index[i]`` and nothing
elsewhere. The model is one table of numbers, one a coordinate; the recorder takes the place of the
optimizer, keeps what it is given and leaves the weights alone. Everything between the records and
the optimizer is what an ordinary run uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from forethought.training.run import Run, train
from forethought.values.plan import Plan
from forethought.values.use import Averaging, Optimizer, Schedule, Use

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
    use = Use(RECORDER, Schedule(), Averaging("none"))
    return plan.with_(use=use, budget=None)


def divisors(plan: Plan) -> Iterator[float]:
    """The divisor of each round's sum, from the mechanism alone: it is public."""
    for part in plan.mechanism:
        for _ in range(part.count):
            yield float(plan.groups or part.sampling.expected_batch(plan.examples))


class PlantedModel(nn.Module):
    """A table of ``rows`` numbers; for index i the outputs are (table[i], 0), shape (batch, 2)."""

    def __init__(self, rows: int, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 1, dtype=dtype)
        nn.init.zeros_(self.table.weight)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        """Outputs for whole numbers of shape (batch,)."""
        return F.pad(self.table(index), (0, 1))


def planted_loss(outputs: torch.Tensor, weights: torch.Tensor, unit: float) -> torch.Tensor:
    """weight·unit·table[i]: the gradient is weight·unit in coordinate i."""
    return outputs[:, 0] * weights * unit


@dataclass(frozen=True)
class PlantedRecords:
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
        return partial(planted_loss, unit=self.unit)

    def model(self, dtype: torch.dtype = torch.float64) -> PlantedModel:
        """A fresh model that the records are for."""
        return PlantedModel(self.rows, dtype)


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
    plan: Plan,
    records: PlantedRecords,
    see: Callable[[int, NDArray[Any]], None],
    *,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> Run:
    """Train on planted records and give every noised sum to ``see``.

    Args:
        plan: what to run; its optimizer is replaced by the recorder.
        options: of :func:`forethought.train`.
    """
    plan = recorded_plan(plan)
    with watching(watched_sums(plan, see)):
        return train(
            records.model(dtype),
            records.data,
            plan,
            loss=records.loss,
            diagnostics=False,
            log_every=options.pop("log_every", plan.rounds),
            **options,
        )
