"""A client: it holds its own plan and ledger, and takes only weights and timing from the server.

**Formal guarantee.** Whatever the server sends, the machine asks its trainer for update i exactly
once and in order (i = 0, 1, 2, … from its ledger), never beyond its plan, and every update is in
the ledger before it is sent. The bytes that are sent for update i never change. So the client has
released exactly the updates in its ledger, which are a prefix of its plan.
"""

from __future__ import annotations

import json
import math

import numpy as np

from forethought.exchange import events as on
from forethought.exchange import messages
from forethought.exchange.storage import LedgerState
from forethought.federated.federation import Federation
from forethought.federated.own_model import OwnModel
from forethought.federated.sizes import text_of
from forethought.federated.statements import Policy
from forethought.federated.steps import step_size
from forethought.values.mechanism import Rounds, Sampling, updates_of

Effects = list[on.Effect]

# If a server sends only models older than an earlier one, at least this many over at least this
# many seconds, the cause is not a delay: its journal was set back.
OLDER, OLDER_SECONDS = 6, 45.0


class ClientMachine:
    """One client's decisions; see the module.

    Args:
        federation: the members' agreement. me: the client's place in its members.
        ledger: state of the client's ledger; None: nothing was released before.
        policy: the most that the client allows; checked here, before anything is connected.
        life: number of this process, larger than that of any earlier process, such as the time: so
            a late :class:`~forethought.exchange.messages.Leave` of an earlier process does not
            apply to this one. 0: none.

    Raises:
        FederationError: the plan exceeds the policy.

    Attributes:
        base: version of the newest global model; -1 before the first.
        updates: number of committed updates.
        held_until: the time at which updates that wait for the cadence are sent; None: none waits,
            or this process has no model yet.
    """

    def __init__(
        self,
        federation: Federation,
        me: int,
        ledger: LedgerState | None = None,
        policy: Policy | None = None,
        life: int = 0,
    ) -> None:
        # If sizes are chosen by results: the guard that chooses, and the state that it reads.
        self._sizes = federation.guard(me)
        self._state, self._chosen, self._used_up = b"", "", False
        if policy is not None:
            policy.require(federation, me)
        ledger = ledger or LedgerState()
        self.federation, self.me, self._life = federation, me, life
        self.updates = ledger.updates
        self._newest: on.HasVector | None = None
        self.base = -1
        self._last = ledger.base
        self._limit = federation.updates(me)
        if self._sizes is not None:
            self._state, self._chosen = ledger.state, ledger.begun
        # Number of places in the plan that are done: updates, and those that a phase left out.
        self._place = self.updates
        if federation.phases:
            self._place = updates_of(federation.local_rounds, ledger.rounds)
        self._outgoing = {update.round: update for update in ledger.outgoing}
        # Number of updates that others may know of: with a cadence, those before the ones that wait
        # for it. Whether an earlier process had sent what is outgoing is in no ledger.
        self._shown = self.updates
        if federation.cadence is not None:
            self._shown = min(self._outgoing, default=self.updates)
        self._computing = False
        self._halted = False
        self._now = self._begun = 0.0  # the present update's beginning
        self.held_until: float | None = None
        # Older models received since the newest one: their number, and the time of the first.
        self._older = (0, 0.0)
        self._asynchronous = federation.rule != "synchronous"
        # Number of parts of the present update that were asked for; version that it began with.
        self._parts, self._origin = 0, -1

    @property
    def weights(self) -> messages.Vector | None:
        """The newest global model with the client's own steps since; None before the first."""
        return None if self._newest is None else self._newest.vector

    def handle(self, event: on.Event) -> Effects:
        """The effects of an event."""
        if self._halted:
            return []
        self._now = event.now
        # Parts that are due come before the event, so that they do not use a model it brings.
        effects: Effects = []
        while (at := self.part_at) is not None and self._now >= at:
            effects.append(self._ask())
        if effects and self.part_at is not None and not isinstance(event, on.Connected | on.Woken):
            effects.append(on.Wake(self.part_at))
        if self.held_until is not None and event.now >= self.held_until:
            effects += self._let_go()
            if isinstance(event, on.Woken):
                return [*effects, on.Wake(event.now + self.federation.resend)]
        return [*effects, *self._handled(event)]

    @property
    def part_at(self) -> float | None:
        """The time at which the next part of the present update begins, on the newest model; None:
        no part is left to begin."""
        federation = self.federation
        if not self._computing or self._parts > federation.refreshes or federation.cadence is None:
            return None
        return self._begun + self._parts * federation.cadence / (federation.refreshes + 1)

    def _ask(self) -> on.Effect:
        """The request for the next part of the present update."""
        assert self._newest is not None
        part, self._parts = self._parts, self._parts + 1
        parts = self.federation.refreshes + 1
        place = self._place if self.federation.phases else -1
        sampling: Sampling | None = None
        if self._chosen:
            sampling = Rounds.from_dict(json.loads(self._chosen)).sampling
        about = part, parts, place, sampling
        return on.Compute(self.updates, self._origin, self._newest, *about)

    def _handled(self, event: on.Event) -> Effects:
        if isinstance(event, on.Received):
            if event.sender != messages.SERVER:
                return [on.Alarm("sender", f"a message from {event.sender}, not the server")]
            return self._received(event.message)
        if isinstance(event, on.Computed):
            return self._computed(event)
        if isinstance(event, on.Connected | on.Woken):
            join = messages.Join(self._shown, self.base, self._life)
            joined = [on.Send(messages.SERVER, join), *self._sent(0, self._shown)]
            times = event.now + self.federation.resend, self.held_until, self.part_at
            joined += [on.Wake(at) for at in times if at is not None]
            return [*joined, self._no_more()] if self._used_up else joined
        if isinstance(event, on.Stopped):
            self._halted = True
            return [self._leave("stopped"), on.Done("stopped by its owner")]
        return []

    def _leave(self, reason: str) -> on.Effect:
        return on.Send(messages.SERVER, messages.Leave(self._shown, self.base, reason, self._life))

    def _sent(self, begin: int, end: int) -> Effects:
        """Send the updates from ``begin`` to ``end`` that were not answered."""
        ready = (one for at, one in self._outgoing.items() if begin <= at < end)
        return [on.Send(messages.SERVER, one) for one in ready]

    def _received(self, message: object) -> Effects:
        if isinstance(message, messages.Model):
            return self._model(message)
        if isinstance(message, messages.Acknowledgement | messages.Refusal):
            return self._answered(message)
        if isinstance(message, messages.Finished):
            if message.round > self.updates:
                return self._rolled_back(message.round)
            self._halted = True
            self._newest, self.base = message, message.base
            return [on.Done("finished")]
        return [on.Alarm("kind", f"a server does not send {type(message).__name__}")]

    def _model(self, model: messages.Model) -> Effects:
        if model.round > self.updates:
            return self._rolled_back(model.round)
        # Finiteness was checked when the frame was opened; a contribution computed from values that
        # are not finite is replaced by zero.
        vector = model.vector
        if vector.shape != (self.federation.parameters,) or vector.dtype != np.float32:
            return [on.Alarm("model", "a model of another shape or precision")]
        if model.base < self.base:
            return self._old(model)
        self._older = (0, 0.0)
        if model.base == self.base and self._asynchronous:
            return []  # the client already has this model, with its own steps on it
        self.base, self._newest = model.base, model
        return self._next()

    def _old(self, model: messages.Model) -> Effects:
        count, since = self._older
        self._older = count + 1, since if count else self._now
        if count + 1 < OLDER or self._now - self._older[1] < OLDER_SECONDS:
            return []
        self._halted = True
        text = (
            f"the server sends model {model.base} after {self.base}: its journal was set back. "
            "Restore its newest journal, and start this client again; its own ledger is whole"
        )
        return [on.Alarm("server set back", text), on.Done("server set back")]

    def _rolled_back(self, applied: int) -> Effects:
        # The ledger lacks these releases, so the client would release their rounds a second time.
        self._halted = True
        text = (
            f"the server has {applied} updates of this client, its ledger has {self.updates}: the "
            "ledger was set back. Nothing more is released; restore the newest ledger"
        )
        return [on.Alarm("ledger set back", text), on.Done("ledger set back")]

    def _answered(self, answer: messages.Acknowledgement | messages.Refusal) -> Effects:
        if answer.round >= self.updates:
            if isinstance(answer, messages.Acknowledgement):
                return self._rolled_back(answer.round + 1)
            return []
        if isinstance(answer, messages.Refusal) and answer.reason == "conflict":
            return self._rolled_back(answer.round + 1)
        if isinstance(answer, messages.Refusal) and answer.reason == "future":
            return []  # keep the update: a server that lacks its model has an older journal
        if isinstance(answer, messages.Acknowledgement) and answer.base >= self.base:
            self._older = (0, 0.0)
        if self._outgoing.pop(answer.round, None) is None:
            return []
        effects: Effects = [on.Acknowledged(answer.round)]
        if isinstance(answer, messages.Refusal) and answer.reason not in ("late", "twice"):
            effects.append(
                on.Alarm("refused", f"update {answer.round} was refused: {answer.reason}")
            )
        return effects

    def _next(self) -> Effects:
        """Begin the next update if the plan, the ledger and the delay allow it."""
        cadence = self.federation.cadence
        if cadence is not None and self.held_until is None and self._shown < self.updates:
            # This process is new: what it found in its ledger leaves as if it was computed now.
            self.held_until = self._now + cadence
            return [on.Wake(self.held_until)]
        if self._computing or self.held_until is not None or self._newest is None:
            return []
        # The place in the plan of the next update, given the newest model's phase.
        federation, due = self.federation, self._place
        if federation.phases:
            due = max(due, federation.begins(federation.phase(self.base)))
        if not self._asynchronous:
            if self.base <= self._last:
                return []  # a repeated request: the computed update is sent until it is answered
        elif not federation.permits(self.base, due):
            return []
        if self.updates >= self._limit:
            if self._asynchronous:
                return []
            return [self._leave("plan used up")]
        if federation.phases:
            places = federation.places(self.me)
            if not any(due in own for own in places):
                return [] if any(own.stop > due for own in places) else [self._no_more()]
            self._place = due
        asked: Effects = []
        if self._sizes is not None:
            if not self._chosen:
                chosen = self._sizes.next(self.updates, self._state)
                if chosen is None:
                    return [self._no_more()]
                self._chosen = text_of(chosen)
            asked.append(on.Begin(self.updates, self._chosen))
        self._computing = True
        self._begun, self._parts, self._origin = self._now, 0, self.base
        asked.append(self._ask())
        return asked if self.part_at is None else [*asked, on.Wake(self.part_at)]

    def _no_more(self) -> on.Effect:
        """Leave because the plan is used up, which only this client knows; repeated to the end."""
        self._used_up = True
        return self._leave("plan used up")

    def _computed(self, done: on.Computed) -> Effects:
        if not self._computing or done.round != self.updates:
            return [on.Alarm("trainer", f"update {done.round} was not asked for")]
        self._computing = False
        update = messages.Update(done.round, done.base, done.vector)
        self._outgoing[done.round] = update
        self.updates += 1
        self._place += 1
        if self._sizes is not None:
            self._state, self._chosen = done.state, ""
        self._last = done.base
        release = on.ClientRelease(
            done.round, done.base, done.rounds, done.input_hash, done.state, update
        )
        own = self.base == done.base or self.federation.refreshes > 0
        if self._asynchronous and self._newest is not None and own:
            size = step_size(self.federation, self.me, done.round)
            self._newest = OwnModel(self._newest, done.vector, size)
        cadence = self.federation.cadence
        if cadence is None:
            return [on.Commit(release), *self._let_go()]
        beats = max(1, math.ceil((self._now - self._begun) / cadence))
        self.held_until = self._begun + beats * cadence
        return [on.Commit(release), on.Wake(self.held_until)]

    def _let_go(self) -> Effects:
        """Send what was held back, and begin the next update."""
        first, self._shown, self.held_until = self._shown, self.updates, None
        return [*self._sent(first, self.updates), *self._next()]
