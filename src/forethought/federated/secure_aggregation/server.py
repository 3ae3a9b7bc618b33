"""A server under secure aggregation: the ordinary machine, whose updates are means of opened sums.

It asks the clients to mask their sum for each model, opens the total, and has the base class accept
the mean as every survivor's update: the mean of equal vectors is that vector. A crash before that
loses the attempt, and the clients are asked again; a crash during it leaves some survivors' entries
in the journal, from which the round is closed with the same mean.

A client masks a version's sum with the clients of one roster only. So a later attempt asks the same
clients or some of them. Where fewer than ``threshold`` of them are left, the round is lost: the
next one begins on the same model.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable

import numpy as np

from forethought.exchange import events as on
from forethought.exchange.events import Alarm, Effect, Received, Send, Woken
from forethought.exchange.messages import Join, Leave, Model, Refusal, Update, Vector
from forethought.exchange.storage import Closed
from forethought.federated.federation import Federation
from forethought.federated.rules import Synchronous
from forethought.federated.secure_aggregation import protocol
from forethought.federated.secure_aggregation.client import settings_of
from forethought.federated.secure_aggregation.masking import from_ring
from forethought.federated.server import Average, ServerMachine
from forethought.values.plan import grid

_OF_THE_ROUND = (protocol.MaskKeys, protocol.MaskShares, protocol.MaskedSum, protocol.Unmasking)


class SecureServer(ServerMachine):
    """See the module.

    Args:
        federation: one with ``secure``. weights, average: see :class:`ServerMachine`.
        entropy: maps n to n random bytes, for the numbers of attempts; they are not secret.

    Attributes:
        verify: verifies signatures of the roster's members, so that a client with false keys
            excludes only itself; None: only the clients verify them.

    Raises:
        SecureAggregationError: the federation has no secure aggregation, or does not support it.
    """

    def __init__(
        self,
        federation: Federation,
        weights: Vector,
        average: Average | None = None,
        *,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        super().__init__(federation, weights, average)
        self.verify: protocol.Verify | None = None
        self.settings = settings_of(federation)
        self._entropy = entropy
        self._attempted: protocol.Aggregator | None = None
        self._begun = False
        # A version with the clients of its first roster, and one with those that refused.
        self._first: tuple[int, tuple[int, ...]] = (-1, ())
        self._unwilling: tuple[int, set[int]] = (-1, set())
        # Clients that violated the protocol, and pairs of which one client did.
        self._liars: set[int] = set()
        self._blamed: set[frozenset[int]] = set()
        chosen = federation.plan(0).round(0)
        self._step, _ = grid(chosen.noise_std, chosen.clip_norm, federation.parameters)

    def handle(self, event: on.Event) -> list[Effect]:
        """The effects of an event."""
        if isinstance(event, Received):
            if isinstance(event.message, _OF_THE_ROUND):
                return self._of_the_round(event)
            if isinstance(event.message, Update):
                text = f"client {event.sender} sent an update in the clear: it is not applied"
                return [Alarm("secure-clear", text)]
        effects: list[Effect] = []
        if not self._begun:
            self._begun = True
            effects += self._requesting(self.close(event.now), event.now)
        effects += self._inner(event)
        if isinstance(event, Woken) and self._attempted is not None:
            effects += self._judged(self._attempted.handle(event), event.now)
        if isinstance(event, Received) and isinstance(event.message, Join | Leave):
            effects += self._joined(event)
        return effects

    def _inner(self, event: on.Event) -> list[Effect]:
        """The base class's effects, with a mask request after every model that is sent."""
        return self._requesting(super().handle(event), event.now)

    def _requesting(self, effects: list[Effect], now: float) -> list[Effect]:
        found: list[Effect] = []
        for effect in effects:
            found.append(effect)
            if isinstance(effect, Send) and isinstance(effect.message, Model):
                found += self._attempt(now)
                if self._attempted is not None:
                    found.append(Send(effect.to, self._request()))
        return found

    def _attempt(self, now: float) -> list[Effect]:
        """Begin an attempt for the present version, unless one with these clients is running."""
        asked = self._asked()
        current = self._attempted
        if current is not None and (current.round, current.asked) == (self.version, asked):
            return []
        if len(asked) < self.settings.threshold:
            self._attempted = None
            few = f"{len(asked)} clients are left, of {self.settings.threshold} whose sum is opened"
            return [Alarm("secure-few", few)]
        self._attempted = protocol.Aggregator(
            self.settings,
            self.federation.run_id,
            self.version,
            asked,
            self.federation.parameters,
            attempt=int.from_bytes(self._entropy(7), "big"),
            verify=self.verify,
        )
        self._attempted.gone = self._gone()
        return self._attempted.begin(now)

    def _asked(self) -> tuple[int, ...]:
        """The present version's cohort, or those of it that are in the version's first roster."""
        rule = self.rule
        asked = tuple(range(len(self.federation.members)))
        if self.federation.cohort is not None and isinstance(rule, Synchronous):
            asked = rule.asked
        version, first = self._first
        return tuple(client for client in asked if client in first or version != self.version)

    def _excluded(self) -> set[int]:
        """Clients that are not asked any more: liars, and those in more than ``colluders`` pairs.

        A pair alone does not exclude anybody, since the accuser may lie: at least two are needed.
        """
        counted = Counter(client for pair in self._blamed for client in pair)
        least = max(1, self.settings.colluders)
        return self._liars | {client for client, times in counted.items() if times > least}

    def _gone(self) -> frozenset[int]:
        return self.left | self._excluded()

    def _stuck(self) -> bool:
        """True if some clients cannot mask this version again, and too few others are left."""
        version, refused = self._unwilling
        refused = refused if version == self.version else set()
        bound = self._first[0] == self.version
        left = set(self._asked()) - self._gone() - refused
        known = bound or bool(refused) or bool(self._excluded())
        return known and len(left) < self.settings.threshold

    def _lost(self, now: float) -> list[Effect]:
        """Give the present version up, since no sum of it can be opened, and begin the next."""
        self._attempted = None
        text = f"round {self.version}: no sum of it is opened that is any good; on to the next one"
        decided = self._requesting(self._decide(Closed(-1 - self.version), now), now)
        return [Alarm("secure-round-lost", text), *decided]

    def _request(self) -> protocol.MaskRequest:
        assert self._attempted is not None
        return protocol.MaskRequest(0, self._attempted.round, self._attempted.attempt)

    def _joined(self, event: Received) -> list[Effect]:
        """Handle a client that joined, returned or left."""
        client, begun = event.sender, list[Effect]()
        if isinstance(event.message, Join) and self.rule.expects(client):
            # A client that has computed already gets no model, so no request would follow one.
            begun = self._attempt(event.now)
        current = self._attempted
        if current is None or current.done:
            return begun
        current.gone = self._gone()
        if self._stuck():
            return [*begun, *self._lost(event.now)]
        few = len(set(current.asked) - self.left) < self.settings.threshold
        if few and isinstance(event.message, Leave) and self.federation.cohort is not None:
            return self._drawn_anew(event.now)
        asks = isinstance(event.message, Join) and client in current.asked
        again = [Send(client, self._request())] if asks else []
        return [*begun, *(current.again(client) or again)]

    def _drawn_anew(self, now: float) -> list[Effect]:
        """Ask another cohort on the same model, as too few clients of this one are left."""
        self._attempted = None
        effects = self._decide(Closed(self.version), now)
        if self.finished:
            return effects
        told: list[Effect] = [
            self._told(client) for client in self._asked() if client in self._present
        ]
        return [*effects, *(self._requesting(told, now) or self._attempt(now))]

    def _of_the_round(self, event: Received) -> list[Effect]:
        current, message = self._attempted, event.message
        if current is None:
            return []
        if self._unwilling[0] != self.version:
            self._unwilling = (self.version, set())
        if protocol.takes_no_part(message) and message.attempt == current.attempt:
            self._unwilling[1].add(event.sender)
        effects = self._judged(current.handle(event), event.now)
        if current is self._attempted and not current.roster and self._stuck():
            effects += self._lost(event.now)
        return effects

    def _judged(self, effects: list[Effect], now: float) -> list[Effect]:
        """The aggregator's effects, and the effects that follow from an opened or a lost sum."""
        current = self._attempted
        assert current is not None
        if current.roster and self._first[0] < current.round:
            self._first = (current.round, current.roster)
        self._liars |= current.liars
        self._blamed |= current.blamed
        kept: list[Effect] = [effect for effect in effects if not isinstance(effect, on.Done)]
        if len(kept) == len(effects):
            return kept
        if current.total is None:
            # Nothing was opened: every client masks its sum again, or answers that it cannot.
            self._attempted = None
            if self._stuck():
                return [*kept, *self._lost(now)]
            begun = self._attempt(now)
            if self._attempted is None:
                return [*kept, *begun]
            told = [Send(client, self._request()) for client in sorted(current.numbers)]
            return [*kept, *begun, *told]
        return [*kept, *self._opened(current, now)]

    def _opened(self, current: protocol.Aggregator, now: float) -> list[Effect]:
        federation = self.federation
        assert current.total is not None
        total = from_ring(current.total, self._step, self.settings.bits)
        divisor = sum(federation.plan(client).round(0).divisor for client in current.survivors)
        mean = (total / divisor).astype(np.float32)
        effects: list[Effect] = []
        for client in current.survivors:
            update = Update(current.numbers[client], current.round, mean)
            effects += self._inner(Received(client, update, now))
        for client, number in sorted(current.numbers.items()):
            if client not in current.survivors:
                effects.append(Send(client, Refusal(number, current.round, "late")))
        begun = isinstance(self.rule, Synchronous) and self.rule.begun
        if self.version == current.round and not begun:
            # The base class refused the mean, which honest noise cannot give, and the sum is not
            # opened again: only giving the round up lets the run continue.
            return [*effects, *self._lost(now)]
        # If the journal has some survivors' means, no others will arrive.
        return [*effects, *self._requesting(self.close(now), now)]
