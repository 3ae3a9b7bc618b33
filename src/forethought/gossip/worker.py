"""The common part of all workers: releases that their ledger counts, and frames that they refuse.

**Formal guarantee.** Whatever neighbours send, a worker asks its trainer for round i of its own
plan exactly once and in order (i = 0, 1, 2, … from its ledger), never beyond its plan; every
release is committed before anything that depends on it is sent; and a worker whose neighbours know
of more releases than its ledger does makes none any more. So what its neighbours see is
post-processing of a prefix of its plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from forethought.exchange.events import Acknowledged, Alarm, ClientRelease, Commit
from forethought.exchange.messages import Update, Vector
from forethought.exchange.storage import LedgerState
from forethought.gossip import events as on
from forethought.gossip.compression import mixed
from forethought.gossip.events import Weights
from forethought.gossip.gossip import Gossip, GossipError, NeighbourError
from forethought.gossip.mixing import Living
from forethought.gossip.steps import OwnSteps

# The global count of updates, known to every worker without a server.
#
# Every worker holds a number: an update adds :data:`UNIT` to its own, and numbers are averaged
# together with the weights. Averaging keeps their sum, so a worker's number times the number of
# workers is the global count, up to what the mixing has not brought round yet. Whole numbers, so
# that nothing is lost to rounding.
UNIT = 1 << 20
# Of its own rounds, the last ones that a worker leaves out when others say that all is done.
LOST = 2


def moved(own: int, other: int, weight: float) -> int:
    """The change of ``own`` towards ``other``; exactly the negative for the other side."""
    return round(weight * (other - own))


Effects = list[on.Effect]
_FLOAT = np.dtype(np.float32)


class Machine(Protocol):
    """A worker as its driver sees it."""

    @property
    def updates(self) -> int:
        """The number of committed updates."""
        ...

    @property
    def finished(self) -> str | None:
        """The reason of the end; None: it has not ended."""
        ...

    def handle(self, event: on.Event) -> Effects:
        """The effects of an event."""
        ...

    @property
    def weights(self) -> Vector:
        """The worker's model, float32, shape (parameters,)."""
        ...


class OwnReleases:
    """One worker's own releases, and what it holds after them.

    Args:
        gossip: what was agreed. me: the worker's place in its members.
        weights: the first ones, the same for all.
        ledger: what was released before.

    Raises:
        GossipError: weights of another length, or a ledger of another gossip.

    Attributes:
        held: what is exchanged, float32, shape (coordinates,); replaced, never written to.
        updates: how many were committed. count: see :data:`UNIT`.
        judged: what was held when nobody could refuse it; None: not asked for.
        computing: whether a gradient is under way.
        share: of the own excess that was not passed on yet; see :meth:`move`.
        sent: of a worker that waits: exchange → what it told its neighbours there, of the last
            releases in its ledger.
    """

    def __init__(
        self, gossip: Gossip, me: int, weights: Vector, ledger: LedgerState | None = None
    ) -> None:
        self.gossip, self.me = gossip, me
        if len(weights) != gossip.parameters:
            raise GossipError(
                f"first weights of {len(weights)} parameters, the model has {gossip.parameters}"
            )
        self.held: Vector = weights
        if gossip.tracking:
            self.held = np.concatenate([weights, np.zeros_like(weights)])
        self.updates, self.count, self.computing = 0, 0, False
        self.limit = gossip.updates(me)
        self._steps = OwnSteps(gossip, me)
        # What the own weights have of the own updates beyond a K-th of each: share times _fresh.
        self._fresh: Vector | None = None
        self.share = 1.0
        # Differences are shortened where they are averaged.
        self._bare = replace(gossip.trust, difference=None)
        self._shortest = 0.5 * self._bare.largest**2
        self._shape = self.held.shape
        self._most = 2 * gossip.total * UNIT
        self._workers, self._enough = gossip.workers, gossip.total * UNIT
        # Where a neighbour may be hostile nobody's word costs more than so many rounds.
        self._least = min(self.limit, gossip.rounds) - LOST if gossip.trust.hostile else 0
        self.judged: Vector | None = None
        self._missing = gossip.in_ledger - gossip.coordinates
        self._averages = gossip.point == "average" and gossip.rule == "asynchronous"
        self._beyond = np.float32(1 - 1 / gossip.workers)
        self.sent: dict[int, Vector] = {}
        if ledger is not None and ledger.updates:
            if not ledger.outgoing or len(ledger.outgoing[-1].vector) != gossip.in_ledger:
                raise GossipError("this ledger holds no weights of this gossip: take the right one")
            own = gossip.coordinates
            self.updates, self.held = ledger.updates, ledger.outgoing[-1].vector[:own]
            # Where all come back at once these sum to what was made; else a neighbour says more.
            self.count = self.updates * UNIT
            for one in ledger.outgoing:
                for before, sent in enumerate(one.vector[own:].reshape(-1, own)):
                    if before <= one.base:
                        self.sent[one.base - before] = sent

    @property
    def weights(self) -> Vector:
        """The worker's model, float32, shape (parameters,)."""
        return self.held[: self.gossip.parameters]

    @property
    def point(self) -> Vector:
        """The point at which a gradient is taken, float32, shape (parameters,): see
        ``Gossip.point``."""
        if self._fresh is None:
            return self.weights
        rest: Vector = self._fresh * np.float32(-self.share)
        rest += self.held
        return rest[: self.gossip.parameters]

    def move(self, received: Vector, sent: Vector, weight: float, share: float) -> None:
        """Add what an exchange changed; see :func:`~forethought.gossip.compression.mixed`.

        The other side has as much of the own updates as anybody else, on average: of an excess x
        beyond a K-th, it is −x/(K − 1) there, and the exchange takes weight · x · K/(K − 1) away.

        Args:
            share: of the own excess when the own side was sent.
        """
        self.held = mixed(self.held, sent, received, weight)
        left = self.share - weight * share * self._workers / (self._workers - 1)
        self.share = left if left > 0 else 0.0

    def take(self, message: Weights) -> None:
        """Have a neighbour's weights in place of the own, as far from them as is trusted."""
        self.held, self.count = self.gossip.trust.admit(self.held, message.vector), message.count
        self._fresh = None

    def begin(self) -> Effects:
        """Ask for the next private round; nothing where one is under way, or the plan is used."""
        if self.computing or self.updates >= self.limit:
            return []
        self.computing = True
        return [on.ComputeGradient(self.updates, self.point)]

    def release(
        self, done: on.GradientDone, step: int, sent: Sequence[Vector] = (), whole: int = 1
    ) -> Effects:
        """Step along what a trainer brought, and commit it.

        Args:
            step: of the exchanges, for the record.
            sent: what neighbours were told there and in the exchanges before, the newest first, of
                a worker that may have to say it again.
            whole: how many of the last releases the ledger keeps with their vectors.
        """
        if not self.computing or done.round != self.updates:
            return [Alarm("trainer", f"update {done.round} was not asked for")]
        self.computing = False
        before = self.held
        self.held = self._steps.step(before, done.round, done.vector, self._progress())
        if self._averages:
            excess = self.held - before
            excess *= self._beyond
            # Who met nobody since the last update sees that one from now on: left out for longer,
            # all of them would be taken at one point, and together go that many times too far.
            if self._fresh is not None and self.share < 1:
                excess += self._fresh * np.float32(self.share)
            self._fresh, self.share = excess, 1.0
        self.updates += 1
        self.count += UNIT
        kept = self.held
        if sent or self._missing:
            missing = self._missing - self.gossip.coordinates * len(sent)
            kept = np.concatenate([self.held, *sent, np.zeros(missing, np.float32)])
        update = Update(done.round, step, kept)
        made = ClientRelease(done.round, step, done.rounds, done.input_hash, done.state, update)
        effects: Effects = [Commit(made)]
        if done.round >= whole:
            effects.append(Acknowledged(done.round - whole))  # the newest are enough to go on
        return effects

    def _progress(self) -> float | None:
        """The share of all updates that were made, by this worker's number; None: not asked for."""
        if self.gossip.clock == "own":
            return None
        return min(1.0, max(0.0, self.count * self._workers / self._enough))

    @property
    def complete(self) -> bool:
        """True if all updates that all workers are to make were made, by this worker's number."""
        return self.count * self._workers >= self._enough and self.near

    @property
    def near(self) -> bool:
        """True if this worker may end by what others say: a lie costs no more than the rest."""
        return self.updates >= self._least

    def judge(self) -> bool:
        """True if nobody can refuse what this worker says now; kept in ``judged``."""
        if not (self._short(self.held) and abs(self.count) <= self._most):
            return False
        self.judged = self.held
        return True

    def _short(self, vector: Vector) -> bool:
        """True if a vector is surely one that is taken."""
        # A comparison with NaN is false; whatever is not surely short is judged exactly. Half of
        # the largest square leaves room for the rounding of a few million means of short vectors.
        return (
            vector.dtype is _FLOAT
            and vector.shape == self._shape
            and float(vector.dot(vector)) <= self._shortest
        )

    def refusal(self, sender: int, message: Weights) -> str | None:
        """The reason why a neighbour's weights are refused, in words; None: they are not."""
        if not self._short(message.vector):
            if message.vector.dtype != np.float32:
                return f"worker {sender} sent {message.vector.dtype}, not float32"
            try:
                self._bare.admit(self.held, message.vector, f"worker {sender}")
            except NeighbourError as error:
                return str(error)
        # Exchanges that overlap may push an honest number below 0 for a while.
        if abs(message.count) > self._most:
            return f"worker {sender} says a count that cannot be"
        return None

    def message(
        self, step: int, known: int, left: int = -1, vector: Vector | None = None
    ) -> Weights:
        """The worker's message in an exchange; see :class:`Weights`.

        Args:
            vector: what stands for the weights, compressed; None: the weights themselves.
        """
        told = self.held if vector is None else vector
        return Weights(self.updates, step, known, self.count, left, told)


class Releasing:
    """The common part of all workers' machines.

    Args:
        gossip, me, weights, ledger: see :class:`OwnReleases`.

    Attributes:
        own: its releases. finished: why it ended; None: it has not.
    """

    def __init__(
        self, gossip: Gossip, me: int, weights: Vector, ledger: LedgerState | None = None
    ) -> None:
        self.gossip, self.me = gossip, me
        self.own = OwnReleases(gossip, me, weights, ledger)
        self.finished: str | None = None
        # What others know of this worker is in their messages; this is what it knows of them.
        self._known: dict[int, int] = {}
        self._matrices: dict[int, tuple[tuple[int, ...], dict[int, float]]] = {}

    @property
    def updates(self) -> int:
        """The number of committed updates."""
        return self.own.updates

    @property
    def weights(self) -> Vector:
        """The worker's model, float32, shape (parameters,)."""
        return self.own.weights

    def _rows(self, step: int, living: Living = None) -> tuple[tuple[int, ...], dict[int, float]]:
        """To whom this worker sends in an exchange, and whose weights it takes, and how much.

        The matrices of a period are kept: fractions are slow.
        """
        mixing = self.gossip.mixing
        place = step if mixing.drawn else step % mixing.period
        found = self._matrices.get(place)
        if found is None:
            row = mixing.weights(place, self.me, living)
            sources = {other: float(part) for other, part in row.items() if other != self.me}
            found = (mixing.receivers(place, self.me, living), sources)
            if not mixing.drawn:
                self._matrices[place] = found
        return found

    def _hear(self, peer: int, updates: int) -> None:
        """So many updates of a neighbour were heard of."""
        self._known[peer] = max(self._known.get(peer, 0), updates)

    def _set_back(self, sender: int, known: int) -> Effects:
        """A neighbour knows of more updates than the own ledger: the end."""
        text = (
            f"worker {sender} knows of {known} updates of this worker, its ledger has "
            f"{self.own.updates}: the ledger was set back. Nothing more is released; restore the "
            "newest ledger"
        )
        return [Alarm("ledger set back", text), *self._end("ledger set back")]

    def _end(self, reason: str) -> Effects:
        self.finished = reason
        return [on.WorkerFinished(self.own.weights, reason)]
