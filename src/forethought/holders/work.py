"""A simulation's updates: who computes them, as it asks for them. No torch in here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from forethought.exchange.events import Compute, Computed, HasVector
from forethought.exchange.messages import Vector
from forethought.gossip.events import GradientDone
from forethought.values.mechanism import LocalRounds, first_round


class HolderError(ValueError):
    """A model, records or a loss with which a holder cannot take part."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One update that a client computes.

    Args:
        client: who. round: place of its update in its plan. base: version of the weights.
        model: has the weights. part, parts, sampling: see
            :class:`~forethought.exchange.events.Compute`.
    """

    client: int
    round: int
    base: int
    model: HasVector
    part: int = 0
    parts: int = 1
    sampling: Any = None

    @property
    def weights(self) -> Vector:
        """float32, shape (parameters,); not to be written to."""
        return self.model.vector


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The outcome of a client's work; see :class:`forethought.exchange.events.Computed`."""

    vector: Vector
    rounds: int
    input_hash: bytes
    state: bytes

    def answer(self, asked: Compute, now: float) -> Computed:
        """The event that it is to a client's machine."""
        about = self.vector, self.rounds, self.input_hash, self.state
        return Computed(asked.round, asked.base, *about, now)

    def gradient(self, round: int) -> GradientDone:
        """The event that it is to a worker."""
        return GradientDone(round, self.vector, self.rounds, self.input_hash, self.state)


class Trainers(Protocol):
    """Computes the updates of all clients."""

    def begin(self, work: Work) -> None:
        """Take work on; it may be done now, later or elsewhere, of one client in this order."""
        ...

    def result(self, client: int) -> Result:
        """The outcome of a client's work; waits until it is done."""
        ...

    def done(self) -> dict[int, Result]:
        """The other outcomes that were computed and not asked for yet, by client."""
        ...


Rehearsed = Callable[[Work], Vector]


class NoTraining:
    """No data and no noise: for times, messages and memory, and for tests of the machines.

    Args:
        vector: from work to what is sent; default: the weights, or zeros in place of gradients.
        local_rounds: private rounds in an update.
    """

    def __init__(self, local_rounds: LocalRounds = 1, vector: Rehearsed | None = None) -> None:
        self._rounds, self._vector = local_rounds, vector
        self._works: dict[int, Work] = {}

    def begin(self, work: Work) -> None:
        self._works[work.client] = work

    def result(self, client: int) -> Result:
        work = self._works.pop(client)
        vector = work.weights if self._vector is None else self._vector(work)
        return Result(vector, first_round(self._rounds, work.round + 1), b"", b"")

    def done(self) -> dict[int, Result]:
        """Nothing: every update is made when it is asked for."""
        return {}


def no_gradients(parameters: int) -> Rehearsed:
    """Zeros, the same array every time."""
    zeros = np.zeros(parameters, dtype=np.float32)
    return lambda work: zeros
