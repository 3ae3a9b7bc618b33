"""The rules that wait: D-PSGD for the neighbours, SYNC for everybody, in every round.

D-PSGD (Lian et al. 2017): w ← Σ_j W[k, j] w_j − η u_k, the update being taken at the weights
before the exchange, which goes on meanwhile; with several exchanges a round, the later ones only
mix. SYNC (Xu, Zhang and Wang, Section 5): an allreduce
after every worker's step. A worker that dies holds everybody up: these are what A(DP)²SGD is
compared with.
"""

from __future__ import annotations

import numpy as np

from forethought.exchange.messages import Vector
from forethought.exchange.storing import LedgerState
from forethought.gossip import events as on
from forethought.gossip.events import Received, Send
from forethought.gossip.gossip import Gossip, GossipError
from forethought.gossip.messages import Weights
from forethought.gossip.worker import Effects, Releases


class SynchronousWorker:
    """One worker of D-PSGD; see the module.

    Args:
        gossip, me, weights, ledger: see :class:`~forethought.gossip.worker.Releases`.

    Raises:
        GossipError: a ledger that holds updates already.

    Attributes:
        own: its releases. step: the present exchange. finished: why it ended; None: it has not.
    """

    __slots__ = (
        "_before",
        "_got",
        "_matrices",
        "_replicas",
        "_sources",
        "_stepped",
        "finished",
        "gossip",
        "me",
        "own",
        "step",
    )

    def __init__(
        self, gossip: Gossip, me: int, weights: Vector, ledger: LedgerState | None = None
    ) -> None:
        _require_new(gossip, ledger)
        self.gossip, self.me = gossip, me
        self.own = Releases(gossip, me, weights)
        self.finished: str | None = None
        self.step = -1
        self._before: dict[int, Vector] = {}
        self._replicas = _Replicas(self.own.held) if gossip.compression.kind == "top-k" else None
        self._sources: dict[int, float] = {}
        self._got: dict[int, dict[int, Vector]] = {}
        self._matrices: dict[int, tuple[tuple[int, ...], dict[int, float]]] = {}
        self._stepped = False

    @property
    def updates(self) -> int:
        """How many were committed."""
        return self.own.updates

    @property
    def weights(self) -> Vector:
        """The worker's model, float32, shape (parameters,)."""
        return self.own.weights

    def handle(self, event: on.Event) -> Effects:
        """What an event leads to."""
        if self.finished is not None:
            return []
        if isinstance(event, Received):
            return self._received(event.sender, event.message)
        if isinstance(event, on.GradientDone):
            effects = self.own.release(event, self.step)
            self._stepped = self.own.updates > self.step // self.gossip.exchanges
            return effects + self._go_on()
        if isinstance(event, on.Started):
            return self._begin() if self.step < 0 else []
        if isinstance(event, on.Stop):
            return self._end("stopped")
        return []

    def _begin(self) -> Effects:
        """The next exchange: say what is held, and compute on it where a round begins."""
        self.step += 1
        round, exchange = divmod(self.step, self.gossip.exchanges)
        if round >= self.gossip.rounds:
            return self._end("rounds")
        mixing = self.gossip.mixing
        self._stepped = exchange > 0
        place = self.step if mixing.kind == "matchings" else self.step % mixing.period
        if mixing.kind == "matchings" or place not in self._matrices:
            row = mixing.weights(place, self.me)
            sources = {other: float(part) for other, part in row.items() if other != self.me}
            self._matrices[place] = (mixing.receivers(place, self.me), sources)
        receivers, self._sources = self._matrices[place]
        effects = self._say(receivers)
        return effects + (self._go_on() if exchange else self.own.begin())

    def _say(self, receivers: tuple[int, ...]) -> Effects:
        """To all receivers; and what each of them has of this worker is kept to compare with."""
        near = set(receivers) | set(self._sources)
        if self._replicas is None:
            told = self.gossip.compression.received(self.own.held) if near else self.own.held
            self._before = dict.fromkeys(near, told)
            message = self.own.message(self.step, 0, vector=told)
            return [Send(one, message) for one in receivers]
        effects: Effects = []
        for one in receivers:
            before = self._replicas.there(one)
            change = self.gossip.compression.change(self.own.held, before)
            self._before[one] = self._replicas.mine[one] = before + change
            effects.append(Send(one, self.own.message(self.step, 0, vector=change)))
        return effects

    def _received(self, sender: int, message: object) -> Effects:
        if not self.gossip.mixing.graph.joins(self.me, sender):
            return [on.Alarm("stranger", f"a message from worker {sender}, which is no neighbour")]
        if not isinstance(message, Weights):
            return []
        refusal = self.own.refusal(sender, message)
        if refusal is not None:
            return [on.Alarm("weights", refusal)]
        if not self.step <= message.base < self.gossip.rounds * self.gossip.exchanges:
            return []  # said twice; who need not wait for this worker may be many rounds ahead
        self._got.setdefault(message.base, {}).setdefault(sender, message.vector)
        return self._go_on()

    def _go_on(self) -> Effects:
        """To the next exchange, once the own step and all neighbours are there."""
        got = self._got.get(self.step, {})
        if not self._stepped or any(other not in got for other in self._sources):
            return []
        held = self.own.held
        pace = self.gossip.compression.consensus_step
        for other, weight in self._sources.items():
            before, theirs = self._before[other], got[other]
            if self._replicas is not None:
                theirs = self._replicas.theirs[other] = self._replicas.here(other) + theirs
            if self.gossip.trust.difference is not None:
                theirs = self.gossip.trust.admit(before, theirs)
            held = held + np.float32(weight * pace) * (theirs - before)
        self.own.held = held
        self._got.pop(self.step, None)
        return [on.Mixed(self.step), *self._begin()]

    def _end(self, reason: str) -> Effects:
        self.finished = reason
        return [on.Finished(self.own.weights, reason)]


class _Replicas:
    """Both ends of a worker's links under "top-k": what each has of the other, summed up."""

    __slots__ = ("_start", "mine", "theirs")

    def __init__(self, start: Vector) -> None:
        self._start = start
        self.mine: dict[int, Vector] = {}
        self.theirs: dict[int, Vector] = {}

    def there(self, other: int) -> Vector:
        """What ``other`` has of this worker."""
        return self.mine.get(other, self._start)

    def here(self, other: int) -> Vector:
        """What this worker has of ``other``."""
        return self.theirs.get(other, self._start)


class AllReduceWorker:
    """One worker of SYNC; see the module and :class:`SynchronousWorker`."""

    __slots__ = ("finished", "gossip", "me", "own")

    def __init__(
        self, gossip: Gossip, me: int, weights: Vector, ledger: LedgerState | None = None
    ) -> None:
        _require_new(gossip, ledger)
        self.gossip, self.me = gossip, me
        self.own = Releases(gossip, me, weights)
        self.finished: str | None = None

    @property
    def updates(self) -> int:
        """How many were committed."""
        return self.own.updates

    @property
    def weights(self) -> Vector:
        """The worker's model, float32, shape (parameters,)."""
        return self.own.weights

    def handle(self, event: on.Event) -> Effects:
        """What an event leads to."""
        if self.finished is not None:
            return []
        if isinstance(event, on.Started):
            return self.own.begin()
        if isinstance(event, on.GradientDone):
            effects = self.own.release(event, event.round)
            if self.own.updates > event.round:
                effects.append(on.AllReduce(event.round, self.own.held))
            return effects
        if isinstance(event, on.Reduced) and event.round == self.own.updates - 1:
            self.own.held = event.vector
            if self.own.updates >= self.gossip.rounds:
                return self._end("rounds")
            return self.own.begin()
        if isinstance(event, on.Stop):
            return self._end("stopped")
        return []

    def _end(self, reason: str) -> Effects:
        self.finished = reason
        return [on.Finished(self.own.weights, reason)]


def _require_new(gossip: Gossip, ledger: LedgerState | None) -> None:
    if ledger is not None and ledger.updates:
        raise GossipError(
            f"under the rule {gossip.rule!r} everybody waits for everybody: a worker that was lost "
            "cannot come back. Begin again with new plans, or use the rule 'asynchronous'"
        )
