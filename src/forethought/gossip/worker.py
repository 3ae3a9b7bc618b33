"""The common part of all workers: releases that their ledger counts, and messages they refuse.

**Formal guarantee.** Whatever neighbours send, a worker asks its trainer for round i of its own
plan exactly once and in order (i = 0, 1, 2, … from its ledger), never beyond its plan. It commits
every release before it sends anything that depends on it. If a neighbour knows of more releases
than the worker's ledger has, the worker makes no more. So its neighbours see post-processing of a
prefix of its plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from forethought.exchange.events import Acknowledged, Alarm, ClientRelease, Commit
from forethought.exchange.messages import Update, Vector
from forethought.exchange.storage import LedgerState
from forethought.gossip import events as on
from forethought.gossip.compression import mixed
from forethought.gossip.events import Weights
from forethought.gossip.gossip import Gossip, GossipError, NeighbourError
from forethought.gossip.mixing import Living
from forethought.values.plan import step_sizes

# The global count of updates, known to every worker without a server.
#
# Every worker holds a number. An update adds :data:`UNIT` to it, and the workers average their
# numbers together with the weights. Averaging preserves the sum, so a worker's number times the
# number of workers is the global count (times UNIT), up to the disagreement that mixing has not
# removed yet. The numbers are integers, so rounding loses nothing.
UNIT = 1 << 20
# If a neighbour may be hostile: the most of its last rounds that a worker skips because others say
# that the run is complete.
LOST = 2


def moved(own: int, other: int, weight: float) -> int:
    """The change of ``own`` towards ``other``; exactly the negative for the other side."""
    return round(weight * (other - own))


Effects = list[on.Effect]
_FLOAT = np.dtype(np.float32)


class OwnReleases:
    """One worker's own releases, and its vector after them.

    Args:
        gossip: the agreement. me: the worker's index in its members.
        weights: the first weights, float32, shape (parameters,), the same for all workers.
        ledger: the earlier releases.

    Raises:
        GossipError: ``weights`` has another length, or the ledger is of another gossip.

    Attributes:
        held: the vector to exchange, float32, shape (coordinates,); replaced, never modified.
        updates: number of committed updates. count: see :data:`UNIT`.
        judged: the last ``held`` that :meth:`judge` accepted; None: none yet.
        computing: True while a gradient is being computed.
        share: fraction of the own excess that was not passed on yet; see :meth:`move`.
        sent: for the synchronous rule: exchange → the vector sent to neighbours in it, from the
            last releases in the ledger.
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
        plan = gossip.plan(me)
        # Workers that wait for each other take up no headroom: a schedule ends with what they make.
        plan = plan.remade(mechanism=plan.privacy.mechanism.first(self.limit))
        self._sizes, self._rounds = step_sizes(plan), plan.rounds
        self._weight, self._momentum = gossip.weight(me), np.float32(gossip.momentum)
        self._velocity: Vector | None = None
        self._last: Vector | None = None
        # The own weights contain share · _fresh more of the own updates than 1/K of each.
        self._fresh: Vector | None = None
        self.share = 1.0
        # No bound on differences here: they are clipped when they are averaged.
        self._bare = replace(gossip.trust, difference=None)
        self._shortest = 0.5 * self._bare.largest**2
        self._shape = self.held.shape
        self._most = 2 * gossip.total * UNIT
        self._workers, self._enough = gossip.workers, gossip.total * UNIT
        # If a neighbour may be hostile, others can end this worker only after so many updates.
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
            # If all workers return at once, these counts sum to the updates made; otherwise the
            # worker takes a neighbour's count.
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
        """Apply an exchange to ``held``; see :func:`~forethought.gossip.compression.mixed`.

        On average all other workers have an equal part of the own updates: if the own excess over
        1/K is x, each has −x/(K − 1), and the exchange removes weight · x · K/(K − 1) of x.

        Args:
            received: the neighbour's vector. sent: the own vector as sent; both (coordinates,).
            weight: of the neighbour. share: the own ``share`` when ``sent`` was sent.
        """
        self.held = mixed(self.held, sent, received, weight)
        left = self.share - weight * share * self._workers / (self._workers - 1)
        self.share = left if left > 0 else 0.0

    def take(self, message: Weights) -> None:
        """Replace the own weights by a neighbour's, clipped to the trusted distance."""
        self.held, self.count = self.gossip.trust.admit(self.held, message.vector), message.count
        self._fresh = None

    def begin(self) -> Effects:
        """Ask for the next private round, unless one is running or the plan is used up."""
        if self.computing or self.updates >= self.limit:
            return []
        self.computing = True
        return [on.ComputeGradient(self.updates, self.point)]

    def release(
        self, done: on.GradientDone, step: int, sent: Sequence[Vector] = (), whole: int = 1
    ) -> Effects:
        """Step along the trainer's noised mean, and commit the release.

        Args:
            done: the trainer's result. step: number of the current exchange, for the record.
            sent: the vectors sent in this exchange and those before, the newest first, if the
                worker may have to send them again.
            whole: number of the last releases that the ledger keeps with their vectors.
        """
        if not self.computing or done.round != self.updates:
            return [Alarm("trainer", f"update {done.round} was not asked for")]
        self.computing = False
        before = self.held
        self.held = self._stepped(done.round, done.vector)
        if self._averages:
            excess = self.held - before
            excess *= self._beyond
            # If the worker had no exchange since its last update, ``point`` includes that update
            # from now on. Otherwise all gradients would be taken at one point, and their steps
            # together would go too far by that factor.
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
            effects.append(Acknowledged(done.round - whole))  # the newest suffice to resume
        return effects

    def _stepped(self, round: int, mean: Vector) -> Vector:
        """A new vector, of coordinates: the own one after a step along a noised mean.

        ``"sgd"`` steps along the mean, or along its momentum. Gradient tracking (Nedić, Olshevsky
        and Shi 2017; DSGT) exchanges y besides w: y += u_new − u_old with every own update u, and
        w steps along y, whose average over the workers is that of all workers' newest updates.

        Args:
            round: of the update. mean: float32, shape (parameters,).
        """
        place = round
        if self.gossip.clock == "all":
            progress = min(1.0, max(0.0, self.count * self._workers / self._enough))
            place = int(progress * self._rounds)
        size = np.float32(self._sizes(place))
        if self._weight != 1:
            mean = np.multiply(mean, np.float32(self._weight))
        if not self.gossip.tracking:
            direction = mean
            if self._momentum:
                if self._velocity is not None:
                    direction = self._momentum * self._velocity + mean
                self._velocity = direction
            step: Vector = direction * size
            np.subtract(self.held, step, out=step)
            return step
        after, own = self.held.copy(), self.gossip.parameters
        weights, tracked = after[:own], after[own:]
        tracked += mean if self._last is None else mean - self._last
        self._last = mean
        weights -= size * tracked
        return after

    @property
    def complete(self) -> bool:
        """True if, by this worker's count, all K·R updates were made, and it may end (``near``)."""
        return self.count * self._workers >= self._enough and self.near

    @property
    def near(self) -> bool:
        """True if others may end this worker: a lie then costs at most its last rounds."""
        return self.updates >= self._least

    def judge(self) -> bool:
        """True if no neighbour can refuse this worker's message now; sets ``judged``."""
        if not (self._short(self.held) and abs(self.count) <= self._most):
            return False
        self.judged = self.held
        return True

    def _short(self, vector: Vector) -> bool:
        """True if a vector is certainly accepted: a fast sufficient test."""
        # A comparison with NaN is false. A vector that fails gets the exact test. The bound is half
        # of the largest square, which allows for the rounding of a few million means.
        return (
            vector.dtype is _FLOAT
            and vector.shape == self._shape
            and float(vector.dot(vector)) <= self._shortest
        )

    def refusal(self, sender: int, message: Weights) -> str | None:
        """The reason why a neighbour's message is refused, in words; None: it is accepted."""
        if not self._short(message.vector):
            if message.vector.dtype != np.float32:
                return f"worker {sender} sent {message.vector.dtype}, not float32"
            try:
                self._bare.admit(self.held, message.vector, f"worker {sender}")
            except NeighbourError as error:
                return str(error)
        # Overlapping exchanges may make an honest count negative for a while.
        if abs(message.count) > self._most:
            return f"worker {sender} says a count that cannot be"
        return None

    def message(
        self, step: int, known: int, left: int = -1, vector: Vector | None = None
    ) -> Weights:
        """The worker's message in an exchange; see :class:`Weights`.

        Args:
            vector: the compressed form of ``held`` to send; None: ``held`` itself.
        """
        told = self.held if vector is None else vector
        return Weights(self.updates, step, known, self.count, left, told)


class Machine(ABC):
    """A worker's decisions, and what is common to those of all rules.

    Args:
        gossip, me, weights, ledger: see :class:`OwnReleases`.

    Attributes:
        own: its releases. finished: the reason why it ended; None: it has not ended.
    """

    def __init__(
        self, gossip: Gossip, me: int, weights: Vector, ledger: LedgerState | None = None
    ) -> None:
        self.gossip, self.me = gossip, me
        self.own = OwnReleases(gossip, me, weights, ledger)
        self.finished: str | None = None
        # Neighbour → its updates that this worker knows of. The reverse is in their messages.
        self._known: dict[int, int] = {}
        self._matrices: dict[int, tuple[tuple[int, ...], dict[int, float]]] = {}

    def handle(self, event: on.Event) -> Effects:
        """Handle one event; returns the effects in the order in which to execute them."""
        if isinstance(event, on.PeerMessage):
            sender = event.sender
            if not self.gossip.mixing.graph.joins(self.me, sender):
                text = f"a message from worker {sender}, which is no neighbour"
                return [Alarm("stranger", text)]
            return self._received(sender, event.message)
        if self.finished is not None:
            return []
        if isinstance(event, on.Heard):
            self._hear(event.peer, event.updates)
            return []
        if isinstance(event, on.Stop):
            return self._end("stopped")
        return self._handled(event)

    @abstractmethod
    def _handled(self, event: on.Event) -> Effects:
        """Handle an event of a worker that has not finished."""

    @abstractmethod
    def _received(self, sender: int, message: on.Message) -> Effects:
        """Handle a neighbour's message, also after the end."""

    @property
    def updates(self) -> int:
        """The number of committed updates."""
        return self.own.updates

    @property
    def weights(self) -> Vector:
        """The worker's model, float32, shape (parameters,)."""
        return self.own.weights

    def _rows(self, step: int, living: Living = None) -> tuple[tuple[int, ...], dict[int, float]]:
        """The receivers of this worker in an exchange, and its sources (worker → weight).

        The rows of a period are cached, since fractions are slow.
        """
        mixing = self.gossip.mixing
        if mixing.drawn:
            other = mixing.partner(step, self.me, living)
            return ((), {}) if other is None else ((other,), {other: 0.5})
        place = step % mixing.period
        found = self._matrices.get(place)
        if found is None:
            row = mixing.weights(place, self.me, living)
            sources = {other: float(part) for other, part in row.items() if other != self.me}
            found = mixing.receivers(place, self.me, living), sources
            self._matrices[place] = found
        return found

    def _hear(self, peer: int, updates: int) -> None:
        """Record that a neighbour has made at least so many updates."""
        self._known[peer] = max(self._known.get(peer, 0), updates)

    def _set_back(self, sender: int, known: int) -> Effects:
        """End this worker: a neighbour knows of more updates than the own ledger has."""
        text = (
            f"worker {sender} knows of {known} updates, the ledger here has {self.own.updates}: "
            "it was set back. Nothing more is released; restore the newest ledger"
        )
        return [Alarm("ledger set back", text), *self._end("ledger set back")]

    def _end(self, reason: str) -> Effects:
        self.finished = reason
        return [on.WorkerFinished(self.own.weights, reason)]
