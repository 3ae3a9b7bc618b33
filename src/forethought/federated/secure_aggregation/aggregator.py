"""The server's side of one secure round: collects, relays, adds up, takes the masks off.

Honest but curious by assumption: it follows these steps and may keep all it sees. It goes on to the
next step when every client has answered, or when its patience is at an end and enough have; with
fewer than the threshold the first step waits on, and any other loses the round, revealing nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from forethought.exchange.events import Alarm, Done, Effect, Received, Send, Wake, Woken
from forethought.federated.secure_aggregation import masks
from forethought.federated.secure_aggregation.messages import (
    KEYS_BYTES,
    SEALED_BYTES,
    SHARE_BYTES,
    MaskDelivery,
    MaskedSum,
    MaskKeys,
    MaskRoster,
    MaskShares,
    Survivors,
    Unmasking,
    attempted,
    committed,
    pieces,
    signed,
    takes_no_part,
)
from forethought.federated.secure_aggregation.participant import Verify, about
from forethought.federated.secure_aggregation.ring import Ring, mask, unpack_words
from forethought.federated.secure_aggregation.settings import (
    SecureAggregation,
    SecureAggregationError,
)
from forethought.federated.secure_aggregation.shamir import opened

OPENED, LOST = "secure-opened", "secure-lost"


class Aggregator:
    """One round of the server.

    Args:
        settings: what the cohort agreed on.
        run_id: 32 bytes of the federation. round: the global round.
        clients: the cohort, places in the roster; those that are missing have dropped out.
        size: length of the summed vector.
        attempt: at this round; another one has other keys.
        verify: of the roster's signatures; None: clients look at them alone.

    Attributes:
        total: the survivors' sum in the ring, once the machine is done.
        survivors: who is in it, ascending.
        numbers: client → number of the own update that it masked.
        gone: clients that are not waited for. asked: the cohort, ascending.
        refused: clients that said they take no part.
        liars: clients that certainly did not keep to the protocol. blamed: pairs of clients, of
            whom one says that the other did not, or whose share of the other's secret is false.
        roster: whose keys everybody was told, from then on.
    """

    def __init__(
        self,
        settings: SecureAggregation,
        run_id: bytes,
        round: int,
        clients: Sequence[int],
        size: int,
        attempt: int = 0,
        verify: Verify | None = None,
    ) -> None:
        self.settings, self.round, self.size = settings, round, size
        self.attempt, self._verify = attempt, verify
        self.total: Ring | None = None
        self.survivors: tuple[int, ...] = ()
        self._run_id = attempted(run_id, attempt)
        self.asked = tuple(sorted(clients))
        if not settings.threshold <= len(self.asked) <= settings.clients:
            raise SecureAggregationError(
                f"a cohort of {len(self.asked)}, secure aggregation is set for {settings.clients} "
                f"of which {settings.threshold} stay"
            )
        self.numbers: dict[int, int] = {}
        self.gone: frozenset[int] = frozenset()
        self.refused: set[int] = set()
        self.liars: set[int] = set()
        self.blamed: set[frozenset[int]] = set()
        self._committed: dict[int, bytes] = {}
        self.roster: tuple[int, ...] = ()
        self._told: dict[int, Any] = {}
        self._due = 0.0
        self._steps: list[tuple[type, Callable[[float], list[Effect]]]] = [
            (MaskKeys, self._send_roster),
            (MaskShares, self._deliver),
            (MaskedSum, self._ask_to_unmask),
            (Unmasking, self._open),
        ]
        self._answers: dict[type, dict[int, Any]] = {kind: {} for kind, _ in self._steps}
        self._step = 0

    def begin(self, now: float) -> list[Effect]:
        """Wait for keys."""
        return self._wait(now)

    @property
    def done(self) -> bool:
        """True if the round was opened or lost."""
        return self._step >= len(self._steps)

    def handle(self, event: Received | Woken) -> list[Effect]:
        """Take a message, or the end of a step's patience."""
        if self.done:
            return []
        kind, advance = self._steps[self._step]
        answers, due = self._answers[kind], self._expected()
        alarms: list[Effect] = []
        if isinstance(event, Woken):
            if event.now < self._due:
                return [Wake(self._due)]
        else:
            message, sender = event.message, event.sender
            of = (getattr(message, "base", None), getattr(message, "attempt", None))
            if of != (self.round, self.attempt) or sender not in due or sender in answers:
                return []  # late, doubled or of another round: nothing to learn from it
            if takes_no_part(message):
                self.refused.add(sender)
            elif kind is MaskedSum and isinstance(message, MaskShares) and not message.sealed:
                self.refused.add(sender)
                alarms += self._blame(sender, map(int, message.clients))
            elif type(message) is kind:
                try:
                    answers[sender] = self._checked(message)
                except ValueError as error:
                    return [Alarm("secure-malformed", f"client {sender}: {error}")]
                self.numbers[sender] = int(getattr(message, "round", 0))
                if isinstance(message, MaskKeys) and not self._signed(sender, message):
                    del answers[sender]
                    self.refused.add(sender)
                    text = f"the keys of client {sender} are not signed by it: it is left out"
                    alarms.append(Alarm("secure-unsigned", text))
            else:
                return []
            due = self._expected()
            if len(answers) < len(due):
                return alarms
        if len(answers) < self.settings.threshold and not self._step:
            return [*alarms, *self._wait(event.now)]
        if len(answers) < self.settings.threshold:
            few = f"{len(answers)} of {self.settings.threshold} clients needed"
            return [*alarms, *self._lose(few)]
        return [*alarms, *advance(event.now)]

    def _expected(self) -> tuple[int, ...]:
        if self._step == 0:
            due = set(self.asked) - self.gone
        else:
            due = set(self._answers[self._steps[self._step - 1][0]])
        return tuple(sorted(due - self.refused))

    def _signed(self, sender: int, message: MaskKeys) -> bool:
        content = signed(self._run_id, self.round, sender, message.keys)
        return self._verify is None or bool(self._verify(sender, content, message.signature))

    def _checked(self, message: Any) -> Any:
        match message:
            case MaskKeys():
                return pieces(message.keys, KEYS_BYTES, 1)[0], message.signature
            case MaskShares():
                found = pieces(message.sealed[:-32], SEALED_BYTES, len(message.clients))
                given = dict(zip(map(int, message.clients), found, strict=True))
                return given, message.sealed[-32:]
            case MaskedSum():
                return unpack_words(message.content, self.settings.bits, self.size)
            case _:
                found = pieces(message.shares, SHARE_BYTES, len(message.clients))
                return dict(zip(map(int, message.clients), found, strict=True))

    def _next(self, now: float, messages: dict[int, Any]) -> list[Effect]:
        self._step += 1
        self._told = messages
        return [*(Send(client, one) for client, one in messages.items()), *self._wait(now)]

    def again(self, client: int) -> list[Effect]:
        """Say once more what a client was told last, as after a lost connection."""
        if client in self._told:
            return [Send(client, self._told[client])]
        return []

    def _wait(self, now: float) -> list[Effect]:
        self._due = now + self.settings.patience
        return [Wake(self._due)]

    def _lose(self, why: str) -> list[Effect]:
        self._step = len(self._steps)
        return [Alarm(LOST, f"round {self.round}: {why}; nothing was revealed"), Done(LOST)]

    def _send_roster(self, now: float) -> list[Effect]:
        keys = dict(sorted(self._answers[MaskKeys].items()))
        self.roster = tuple(keys)
        roster = MaskRoster(
            0,
            self.round,
            self.attempt,
            _integers(keys),
            b"".join(found for found, _ in keys.values()),
            b"".join(signature for _, signature in keys.values()),
        )
        return self._next(now, dict.fromkeys(keys, roster))

    def _deliver(self, now: float) -> list[Effect]:
        alarms: list[Effect] = []
        shares: dict[int, dict[int, bytes]] = {}
        for client, (given, commitment) in self._answers[MaskShares].items():
            if set(given) == set(self.roster) - {client}:
                shares[client], self._committed[client] = given, commitment
                continue
            self.liars.add(client)
            self.refused.add(client)
            text = f"client {client} left another out of its shares: it is left out"
            alarms.append(Alarm("secure-liar", text))
        self._answers[MaskShares] = shares
        if len(shares) < self.settings.threshold:
            return [*alarms, *self._lose(f"{len(shares)} clients shared with everybody")]
        deliveries: dict[int, Any] = {}
        for client in sorted(shares):
            senders = [other for other in sorted(shares) if other != client]
            sealed = b"".join(shares[other][client] for other in senders)
            clients = _integers(senders)
            deliveries[client] = MaskDelivery(0, self.round, self.attempt, clients, sealed)
        return [*alarms, *self._next(now, deliveries)]

    def _blame(self, client: int, others: Iterable[int]) -> list[Effect]:
        """One of two does not keep to the protocol, and it cannot be told which."""
        alarms: list[Effect] = []
        for other in others:
            self.blamed.add(frozenset((client, other)))
            text = f"client {client} says that the shares of client {other} are no good: one lies"
            alarms.append(Alarm("secure-blamed", text))
        return alarms

    def _ask_to_unmask(self, now: float) -> list[Effect]:
        self.survivors = tuple(sorted(self._answers[MaskedSum]))
        message = Survivors(0, self.round, self.attempt, _integers(self.survivors))
        return self._next(now, dict.fromkeys(self.survivors, message))

    def _open(self, _now: float) -> list[Effect]:
        masked, bits = self._answers[MaskedSum], self.settings.bits
        keys = {client: found for client, (found, _) in self._answers[MaskKeys].items()}
        points = {client: place + 1 for place, client in enumerate(sorted(keys))}
        total = np.zeros(self.size, np.uint64)
        for elements in masked.values():
            total += elements
        alarms: list[Effect] = []
        revealed: dict[int, dict[int, bytes]] = {}
        for client, given in self._answers[Unmasking].items():
            if set(given) == set(self._answers[MaskShares]):
                revealed[client] = given
                continue
            self.liars.add(client)
            text = f"client {client} left another out of what it reveals"
            alarms.append(Alarm("secure-liar", text))
        if len(revealed) < self.settings.threshold:
            return [*alarms, *self._lose(f"{len(revealed)} clients revealed all that they hold")]
        for client in sorted(self._answers[MaskShares]):
            shares = {points[who]: given[client] for who, given in revealed.items()}

            def right(secret: bytes, client: int = client) -> bool:
                if client in masked:
                    return committed(self._run_id, client, secret) == self._committed[client]
                return bool(masks.public_key(secret) == keys[client][32:])

            secret, false = opened(shares, self.settings.threshold, right)
            who = sorted(keys)
            alarms += [e for point in sorted(false) for e in self._blame(who[point - 1], [client])]
            if secret is None:
                what = "mask" if client in masked else "key"
                if len(revealed) > self.settings.threshold:  # else one false share explains it
                    others = revealed.keys() - {client}
                    self.blamed |= {frozenset((client, other)) for other in others}
                lost = self._lose(f"the shares of client {client}'s {what} do not give its {what}")
                return [*alarms, *lost]
            if client in masked:
                masks.add_mask(total, secret, -1, bits)
                continue
            for other in masked:  # undo what the others masked with the one that dropped out
                low, high = min(client, other), max(client, other)
                purpose = about(self._run_id, self.round, low, high) + b"mask"
                key = masks.agree(secret, keys[other][32:], purpose)
                masks.add_mask(total, key, -1 if other < client else 1, bits)
        self.total = total & mask(bits)
        self._step = len(self._steps)
        return [*alarms, Done(OPENED)]


def _integers(clients: Any) -> Any:
    return np.array(list(clients), dtype=np.int64)
