"""Synchronous rules: D-PSGD waits for the neighbours, SYNC for all workers, in every round.

D-PSGD (Lian et al. 2017): w ← Σ_j W[k, j] w_j − η u_k. The update is taken at the weights before
the exchange, and both run at the same time; with several exchanges per round, the later ones only
mix. SYNC (Xu, Zhang and Wang, Section 5): an allreduce after every worker's step. A worker that
dies stops all others; these rules are the baselines of A(DP)²SGD.

A D-PSGD worker that was killed can return. From its ledger it resends the message of its last
release's exchange; its neighbours resend the messages that it missed. Its next gradient is taken at
the same weights, bit for bit, as without the interruption. A worker keeps its messages until the
receiver's messages show that they are in the receiver's ledger. Under SYNC nothing is kept: after
an allreduce that lost a worker, none or only some of the workers have the mean.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from forethought.exchange.events import Send
from forethought.exchange.messages import Vector
from forethought.exchange.storage import LedgerState
from forethought.gossip import events as on
from forethought.gossip.events import Hello, Known, Weights
from forethought.gossip.gossip import Gossip, GossipError
from forethought.gossip.worker import Effects, Machine

# Releases that a ledger keeps with vectors: two neighbours are at most one round apart, and a
# returning worker resumes one round earlier.
_WHOLE = 3


class SynchronousWorker(Machine):
    """One worker of D-PSGD; see the module.

    Args:
        gossip, me, weights, ledger: see :class:`~forethought.gossip.worker.OwnReleases`; without a
            ledger no messages are kept for neighbours that return.

    Raises:
        GossipError: the ledger already has updates, and "top-k" compression or tracking needs a
            state that no ledger holds.

    Attributes:
        own: its releases. step: the current exchange.
        finished: the reason why it ended; None: it has not ended.
    """

    def __init__(
        self, gossip: Gossip, me: int, weights: Vector, ledger: LedgerState | None = None
    ) -> None:
        if gossip.compression.kind == "top-k" or gossip.tracking:
            _require_new(gossip, ledger, "what neighbours have of it, or tracked, is in no ledger")
        super().__init__(gossip, me, weights, ledger)
        self.step = -1
        # Neighbour → exchange → the message sent to it. Empty in a simulation, which loses nothing.
        self._keeps = ledger is not None
        self._kept: dict[int, dict[int, Weights]] = {}
        # The neighbours that have not answered a returning worker; None: it is not returning.
        self._unsure: set[int] | None = None
        self._before: dict[int, Vector] = {}
        # Most exchanges with a neighbour that one of the two can be ahead of the other. In a drawn
        # matching both wait for each other, so there it is one, or a round more after a return.
        self._far = gossip.workers + gossip.mixing.period + gossip.exchanges
        # Vectors sent in the last exchanges, newest first, if they may have to be sent again.
        returns = gossip.in_ledger > gossip.coordinates
        self._told: deque[Vector] = deque(maxlen=gossip.exchanges if returns else 0)
        # Under "top-k": each neighbour's replica of this worker, and this worker's replica of it.
        changes = gossip.compression.kind == "top-k"
        near = gossip.mixing.graph.neighbours(me) if changes else ()
        self._there = dict.fromkeys(near, self.own.held)
        self._here = dict.fromkeys(near, self.own.held)
        self._sources: dict[int, float] = {}
        self._got: dict[int, dict[int, Vector]] = {}
        self._stepped = False

    def _handled(self, event: on.Event) -> Effects:
        if isinstance(event, on.GradientDone):
            effects = self.own.release(event, self.step, self._told, _WHOLE)
            self._stepped = self.own.updates > self.step // self.gossip.exchanges
            return effects + self._go_on()
        if isinstance(event, on.Started):
            return self._started(bool(event.returning)) if self.step < 0 else []
        if isinstance(event, on.Mix):
            return self._ask()
        if isinstance(event, on.PeerBack):
            return self._ask(event.peer)
        return []

    # ---- start and return

    def _started(self, returning: bool) -> Effects:
        if not returning and not self.own.updates:
            return self._begin()
        self._unsure = set(self.gossip.mixing.graph.neighbours(self.me))
        return self._ask()

    def _ask(self, back: int | None = None) -> Effects:
        """Send Hello to the neighbours whose messages are missing, or to one that is back, since
        messages in transit may be lost."""
        base = max(self.step, 0)
        if self._unsure is not None:
            asked, base = self._unsure, max(self.own.sent, default=0)
        elif back is not None:
            asked = {back}
        else:
            asked = self._sources.keys() - self._got.get(self.step, {}).keys()
        hello = Hello(self.own.updates, base, 1)
        return [Send(one, hello) for one in sorted(asked)]

    def _answer(self, sender: int, hello: Hello) -> Effects:
        """Answer with the known number of the neighbour's updates and its missed messages."""
        known = self._known.get(sender, 0)
        self._hear(sender, hello.round)
        kept = self._kept.get(sender, {})
        again = [Send(sender, kept[step]) for step in sorted(kept) if step >= hello.base]
        return [Send(sender, Known(self.own.updates, self.step, known, 1)), *again]

    def _heard(self, sender: int, message: Known) -> Effects:
        self._hear(sender, message.round)
        if message.known > self.own.updates:
            return self._set_back(sender, message.known)
        if self._unsure is None:
            return []
        self._unsure.discard(sender)
        if self._unsure:
            return []
        self._unsure = None
        return self._resumed()

    def _resumed(self) -> Effects:
        """Resume after the last release: its step is done, its messages are sent again."""
        if not self.own.sent:
            return self._begin()
        for step, sent in self.own.sent.items():
            for one in self._rows(step)[0]:
                self._kept.setdefault(one, {})[step] = self.own.message(step, 0, vector=sent)
        self.step = max(self.own.sent)
        receivers, self._sources = self._rows(self.step)
        newest = sorted(self.own.sent, reverse=True)[: self.gossip.exchanges]
        self._told.extend(self.own.sent[step] for step in newest)
        told = self.own.sent[self.step]
        self._before = dict.fromkeys(set(receivers) | set(self._sources), told)
        self._stepped = True
        return [Send(one, self._kept[one][self.step]) for one in receivers] + self._go_on()

    # ---- exchanges

    def _begin(self) -> Effects:
        """Begin the next exchange: send the weights and, if a round begins, ask for a gradient."""
        self.step += 1
        round, exchange = divmod(self.step, self.gossip.exchanges)
        if round >= self.gossip.rounds:
            return self._end("rounds")
        self._stepped = exchange > 0
        receivers, self._sources = self._rows(self.step)
        effects = self._say(receivers)
        return effects + (self._go_on() if exchange else self.own.begin())

    def _say(self, receivers: tuple[int, ...]) -> Effects:
        """Send to all receivers, and keep each one's replica of this worker in ``_before``."""
        near = set(receivers) | set(self._sources)
        if not self._there:
            told = self.gossip.compression.received(self.own.held) if near else self.own.held
            self._told.appendleft(told)
            self._before = dict.fromkeys(near, told)
            message = self.own.message(self.step, 0, vector=told)
            for one in receivers:
                self._keep(one, message)
            return [Send(one, message) for one in receivers]
        effects: Effects = []
        for one in receivers:
            before = self._there[one]
            change = self.gossip.compression.change(self.own.held, before)
            self._before[one] = self._there[one] = before + change
            message = self.own.message(self.step, 0, vector=change)
            self._keep(one, message)
            effects.append(Send(one, message))
        return effects

    def _keep(self, one: int, message: Weights) -> None:
        """Keep a message while its receiver may need it. If the receiver never answers and the
        mixing draws no matchings, keep only as many as this worker can be ahead of it."""
        if not self._keeps:
            return
        kept = self._kept.setdefault(one, {})
        kept[message.base] = message
        least = (self._known.get(one, 0) - 1) * self.gossip.exchanges
        if not self.gossip.mixing.drawn:
            least = max(least, message.base - self._far)
        while kept and (oldest := next(iter(kept))) < least:
            del kept[oldest]

    def _received(self, sender: int, message: object) -> Effects:
        if isinstance(message, Hello):
            return self._answer(sender, message)
        if self.finished is not None:
            return []
        if isinstance(message, Known):
            return self._heard(sender, message)
        if not isinstance(message, Weights):
            return []
        if refusal := self.own.refusal(sender, message):
            return [on.Alarm("weights", refusal)]
        self._hear(sender, message.round)
        if not self.step <= message.base < self.gossip.rounds * self.gossip.exchanges:
            return []  # a repeated message; later exchanges are stored until their turn
        if sum(sender in got for got in self._got.values()) > self._far:
            return [on.Alarm("ahead", f"worker {sender} sends exchanges that it cannot be at yet")]
        self._got.setdefault(message.base, {}).setdefault(sender, message.vector)
        return self._go_on()

    def _go_on(self) -> Effects:
        """Mix and begin the next exchange, once the own step and all neighbours' messages exist."""
        got = self._got.get(self.step, {})
        if (
            self._unsure is not None
            or not self._stepped
            or any(other not in got for other in self._sources)
        ):
            return []
        held = self.own.held
        pace = self.gossip.compression.consensus_step
        if self._here:  # changes add up: each may be small, and their sum too large
            got = {other: self._here[other] + got[other] for other in self._sources}
            for other, whole in got.items():
                if refusal := self.own.refusal(other, self.own.message(self.step, 0, vector=whole)):
                    del self._got[self.step][other]
                    return [on.Alarm("weights", refusal)]
            self._here.update(got)
        for other, weight in self._sources.items():
            before, theirs = self._before[other], got[other]
            if self.gossip.trust.hostile:
                theirs = self.gossip.trust.admit(before, theirs)
            held = held + np.float32(weight * pace) * (theirs - before)
        self.own.held = held
        self._got.pop(self.step, None)
        return [on.Mixed(self.step), *self._begin()]


class AllReduceWorker(Machine):
    """One worker of SYNC; see the module and :class:`SynchronousWorker`.

    Raises:
        GossipError: the ledger already has updates.
    """

    def __init__(
        self, gossip: Gossip, me: int, weights: Vector, ledger: LedgerState | None = None
    ) -> None:
        _require_new(gossip, ledger, "whether all have the last mean is in no ledger")
        super().__init__(gossip, me, weights, ledger)

    def _handled(self, event: on.Event) -> Effects:
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
        return []

    def _received(self, sender: int, message: object) -> Effects:
        return []


def _require_new(gossip: Gossip, ledger: LedgerState | None, why: str) -> None:
    if ledger is not None and ledger.updates:
        compressed = f" with {gossip.compression.kind!r}" if not gossip.compression.exact else ""
        raise GossipError(
            f"under the rule {gossip.rule!r}{compressed} a worker that was lost cannot come back: "
            f"{why}. Begin again with new plans, or use the rule 'asynchronous'"
        )
