"""A(DP)²SGD (Xu, Zhang and Wang, Algorithm 1): gradients and averaging run concurrently.

A gradient is taken at the weights that the worker had when the computation began. Meanwhile
exchanges change its weights; the noised update is subtracted from the weights of the time when it
is ready. In an exchange both sides send their vectors, and each moves by the mixing's weight times
the difference *of the sent vectors*: so the sum over all workers is preserved, whatever happened in
between, and no worker waits for an answer. If two workers disagree about who is living, both ignore
the exchange; a message that is lost, or later than ``window`` steps, moves one side only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from forethought.exchange.events import Send
from forethought.exchange.messages import Vector
from forethought.exchange.storage import LedgerState
from forethought.gossip import events as on
from forethought.gossip.compression import Link
from forethought.gossip.events import ANSWER, LAST, Hello, Known, Message, Weights
from forethought.gossip.gossip import Gossip
from forethought.gossip.worker import UNIT, Effects, Machine, moved

# The most times that a returning worker asks for a neighbour's weights.
ASKS = 40


@dataclass(slots=True)
class _Sent:
    """One exchange as sent: the own vector, count and share of the own excess; the neighbours whose
    answers are pending (worker → weight); and under "top-k" the replicas that they have."""

    vector: Vector
    count: int
    share: float
    sources: dict[int, float]
    there: dict[int, Vector] = field(default_factory=dict)


@dataclass(slots=True)
class _Return:
    """The state of a returning worker: neighbours that have not answered, neighbours that can give
    their weights, if any has answered, and the number of requests for weights."""

    unsure: set[int]
    ready: set[int] = field(default_factory=set)
    heard: bool = False
    asked: int = 0


class AsynchronousWorker(Machine):
    """One worker's decisions; see the module and :class:`~forethought.gossip.worker.OwnReleases`.

    Args:
        gossip, me, weights, ledger: see :class:`~forethought.gossip.worker.OwnReleases`.
    """

    def __init__(
        self, gossip: Gossip, me: int, weights: Vector, ledger: LedgerState | None = None
    ) -> None:
        super().__init__(gossip, me, weights, ledger)
        self.step = -1
        self._sent: dict[int, _Sent] = {}
        self._early: dict[int, dict[int, Weights]] = {}
        self._lost: set[int] = set()
        self._living: frozenset[int] | None = None
        # Under "top-k": for each link, the vector that each end has reconstructed of the other.
        self._links: dict[int, Link] | None = None
        if gossip.compression.kind == "top-k":
            near = gossip.mixing.graph.neighbours(me)
            self._links = {other: Link(weights, gossip.window) for other in near}
        self._plain = gossip.mixing.drawn and gossip.compression.exact and not gossip.trust.hostile
        # Exchanges until the next gradient begins.
        self._pause = 0
        self._return: _Return | None = None
        self._pending: on.GradientDone | None = None
        # Exchanges until the end, once the end is known, and the neighbours that announced it.
        self._left: int | None = None
        self._enders: set[int] = set()

    def known(self, worker: int) -> int:
        """The number of a neighbour's updates that this worker knows of."""
        return self._known.get(worker, 0)

    def _handled(self, event: on.Event) -> Effects:
        if isinstance(event, on.Mix):
            return self._mix(event.step)
        if isinstance(event, on.GradientDone):
            return self._computed(event)
        if isinstance(event, on.PeerLost):
            self._lost.add(event.peer)
            return self._changed()
        if isinstance(event, on.PeerBack):
            self._lost.discard(event.peer)
            if self._return is not None and not self._return.ready:
                self._return.unsure.add(event.peer)
            return self._changed()
        if isinstance(event, on.Started):
            return self._started(bool(event.returning))
        return [on.Alarm("event", f"{type(event).__name__} is for another rule")]

    # ---- start and return

    def _started(self, returning: bool) -> Effects:
        if not returning and not self.own.updates:
            return self._next()
        self._sent.clear()
        self._early.clear()
        self._return = _Return(set(self.gossip.mixing.graph.neighbours(self.me)) - self._lost)
        return self._ask()

    def _ask(self) -> Effects:
        """Send Hello to the neighbours that have not answered."""
        back = self._return
        if back is None:
            return []
        if back.unsure:
            hello = Hello(self.own.updates, self.step, 0)
            return [Send(other, hello) for other in sorted(back.unsure)]
        if back.ready and back.asked < ASKS:
            # One at a time, in turn: a neighbour that said it is ready may still not answer.
            back.asked += 1
            one = sorted(back.ready)[(back.asked - 1) % len(back.ready)]
            return [Send(one, Hello(self.own.updates, self.step, 1))]
        if not back.heard:
            return []  # no neighbour can confirm the number of releases, so none follows
        # Either no neighbour is ready, since all return at once, or those that are ready did not
        # send their weights: continue with the stored weights.
        self._return = None
        return self._next()

    def _heard(self, sender: int, message: Known | Weights) -> Effects:
        """Handle a neighbour's report of the updates that it knows of this worker."""
        if message.known > self.own.updates:
            return self._set_back(sender, message.known)
        back = self._return
        if back is None:
            return []
        back.heard = True
        if isinstance(message, Weights):
            back.unsure.discard(sender)
            if back.unsure:
                back.ready.add(sender)
                return []
            # Replace, do not average: the own weights are old and would set the others back.
            self.own.take(message)
            self._return = None
            return self._next()
        if sender not in back.unsure:
            return []
        back.unsure.discard(sender)
        if message.ready:
            back.ready.add(sender)
        return [] if back.unsure else self._ask()

    # ---- gradients

    def _next(self) -> Effects:
        if self._return is not None or self._left is not None:
            return []
        if self._pending is not None:
            done, self._pending = self._pending, None
            return self._computed(done)
        return self.own.begin()

    def _computed(self, done: on.GradientDone) -> Effects:
        if self._left is not None:
            return []  # not released: it costs nothing
        if self._return is not None:
            self._pending = done
            return []
        effects = self.own.release(done, self.step)
        self._pause = self.gossip.pause
        return effects if self._pause else effects + self._next()

    # ---- exchanges

    def meet(self, other: AsynchronousWorker, step: int) -> bool:
        """Do both sides of a pair's exchange ``step`` at once, for a driver that has both workers.

        The result has the same bits as if each handled a :class:`~forethought.gossip.events.Mix`
        and then the other's message, with nothing in between; it has no effects. False: nothing was
        done, since one of the two has more to do than average; the driver then sends events.
        """
        one, two = self.own, other.own
        mine, its = one.held, two.held
        if not (
            self._only_averages(step)
            and other._only_averages(step)
            and self._known.get(other.me, 0) <= two.updates
            and other._known.get(self.me, 0) <= one.updates
            and (one.judged is mine or one.judge())
            and (two.judged is its or two.judge())
        ):
            return False
        self.step = other.step = step
        self._known[other.me], other._known[self.me] = two.updates, one.updates
        # Each side computes its own difference, as with messages, since a difference of 0 is
        # signed.
        one.move(its, mine, 0.5, one.share)
        two.move(mine, its, 0.5, two.share)
        one.judged, two.judged = one.held, two.held  # a mean's norm is at most the larger of both
        nearer = moved(one.count, two.count, 0.5)
        one.count += nearer
        two.count -= nearer
        if one.complete:
            self._ends(self.gossip.settle)
        if two.complete:
            other._ends(self.gossip.settle)
        return True

    def _only_averages(self, step: int) -> bool:
        """True if exchange ``step`` can only move this worker towards its partner."""
        if self._sent:
            self._forget(step)
        return (
            self._plain
            and self.finished is None
            and self._left is None
            and self._return is None
            and self._living is None
            and not self._pause
            and not self._early
            and step > self.step
        )

    def _mix(self, step: int) -> Effects:
        if step <= self.step:
            return [on.Alarm("step", f"exchange {step} came after {self.step}")]
        self.step = step
        if self._return is not None:
            return self._ask()
        if self._left is not None:
            if not self._left:
                return self._end("counted")
            self._left -= 1
        elif self.gossip.trust.hostile and self.own.complete:
            # The count was complete before this worker was ``near``, so no exchange ended it.
            self._ends(self.gossip.settle)
        self._forget(step)
        targets, sources = self._rows(step, self._living)
        effects = self._tell(step, targets, dict(sources))
        if self._early:
            waiting = self._early.pop(step, {})
            self._early = {later: held for later, held in self._early.items() if later > step}
            for sender, message in waiting.items():
                effects += self._average(sender, message)
        if self._pause:
            self._pause -= 1
            if not self._pause:
                effects += self._next()
        return effects

    def _forget(self, step: int) -> None:
        """Delete exchanges that are too old for their answers to count."""
        while self._sent and (oldest := next(iter(self._sent))) <= step - self.gossip.window:
            del self._sent[oldest]

    def _tell(self, step: int, targets: tuple[int, ...], sources: dict[int, float]) -> Effects:
        own, compression = self.own, self.gossip.compression
        left = -1 if self._left is None else self._left
        sent = self._sent[step] = _Sent(own.held, own.count, own.share, sources)
        if self._links is None:
            if targets or sources:
                sent.vector = compression.received(own.held)
            return [
                Send(other, own.message(step, self._known.get(other, 0), left, sent.vector))
                for other in targets
            ]
        effects: Effects = []
        for other in targets:
            link = self._links[other]
            of, heard = link.of, link.heard
            change, sent.there[other] = link.change(step, own.held, compression)
            message = own.message(step, self._known.get(other, 0), left, change)
            effects.append(Send(other, replace(message, of=of, heard=heard)))
        return effects

    def _received(self, sender: int, message: Message) -> Effects:
        if self.finished is not None:
            return self._last_words(sender, message)
        if isinstance(message, Hello):
            return self._answer(sender, message)
        if isinstance(message, Known):
            return self._heard(sender, message)
        if refusal := self.own.refusal(sender, message):
            return [on.Alarm("weights", refusal)]
        self._hear(sender, message.round)
        if message.known > self.own.updates:
            return self._heard(sender, message)
        if message.base == LAST and self._believed(sender):
            self.own.take(message)
            return self._end("neighbour")
        if message.base < 0:
            return self._heard(sender, message)
        if self._return is not None:
            return []
        if self._links is not None:
            link = self._links[sender]
            found = link.received(message.base, message.of, message.heard, message.vector)
            if found is None:
                return []
            message = replace(message, vector=found)
            if refusal := self.own.refusal(sender, message):
                return [on.Alarm("weights", refusal)]
        if message.base > self.step:
            if message.base <= self.step + self.gossip.window:
                self._early.setdefault(message.base, {})[sender] = message
            return []
        return self._average(sender, message)

    def _last_words(self, sender: int, message: Message) -> Effects:
        """The last weights of a worker that has ended, for any that still exchanges."""
        ended = isinstance(message, Weights) and message.base == LAST
        if ended or isinstance(message, Known) or self.finished == "ledger set back":
            return []
        return [Send(sender, self.own.message(LAST, self._known.get(sender, 0)))]

    def _answer(self, sender: int, message: Hello) -> Effects:
        self._hear(sender, message.round)
        # ``known`` includes earlier messages: after a ledger was set back, the Hello says fewer.
        known = self._known.get(sender, 0)
        ready = self._return is None
        if message.wanted and ready:
            return [Send(sender, self.own.message(ANSWER, known))]
        return [Send(sender, Known(self.own.updates, self.step, known, int(ready)))]

    def _average(self, sender: int, message: Weights) -> Effects:
        sent = self._sent.get(message.base)
        weight = None if sent is None else sent.sources.pop(sender, None)
        if sent is None or weight is None:
            return []
        own = self.own
        received, mine = message.vector, sent.there.get(sender, sent.vector)
        part = weight * self.gossip.compression.consensus_step
        if self.gossip.trust.hostile:
            received = self.gossip.trust.admit(mine, received)
        own.move(received, mine, part, sent.share)
        count = message.count
        if self.gossip.trust.hostile:
            # Honest counts are close to each other; a hostile count could end the run early.
            count = min(max(count, sent.count - UNIT), sent.count + UNIT)
        own.count += moved(sent.count, count, weight)
        if message.left >= 0 and self._believed(sender):
            self._ends(message.left)
        elif own.complete:
            self._ends(self.gossip.settle)
        return [] if sent.sources else [on.Mixed(message.base)]

    # ---- end

    def _believed(self, sender: int) -> bool:
        """True if a neighbour's message may end the run: two must say so if one may be hostile."""
        self._enders.add(sender)
        if not self.gossip.trust.hostile:
            return True
        near = set(self.gossip.mixing.graph.neighbours(self.me)) - self._lost
        return len(self._enders) >= min(2, len(near)) and self.own.near

    def _ends(self, steps: int) -> None:
        self._left = steps if self._left is None else min(steps, self._left)

    def _end(self, reason: str) -> Effects:
        self._sent.clear()
        self._early.clear()
        return super()._end(reason)

    def _changed(self) -> Effects:
        """Adapt to a neighbour that was lost or is back: exchange with the living only, and stop
        waiting for the lost ones' answers."""
        self._matrices.clear()
        self._living = frozenset(range(self.gossip.workers)) - self._lost if self._lost else None
        for sent in self._sent.values():
            for other in self._lost & sent.sources.keys():
                del sent.sources[other]
        if self._return is None:
            return []
        self._return.unsure -= self._lost
        self._return.ready -= self._lost
        return self._ask()
