"""The server's side of one secure round: collects, relays, adds up, takes the masks off.

Honest but curious by assumption: it follows these steps and may keep all it sees. It goes on to the
next step when every client has answered, or when its patience is at an end and enough have; with
fewer than the threshold the first step waits on, and any other loses the round, revealing nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from forethought.federated.secure_aggregation.shamir import combine

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
            elif type(message) is kind:
                try:
                    answers[sender] = self._checked(message)
                except ValueError as error:
                    return [Alarm("secure-malformed", f"client {sender}: {error}")]
                self.numbers[sender] = message.round
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
        return self._verify is None or self._verify(sender, content, message.signature)

    def _checked(self, message: Any) -> Any:
        match message:
            case MaskKeys():
                return pieces(message.keys, KEYS_BYTES, 1)[0], message.signature
            case MaskShares():
                found = pieces(message.sealed, SEALED_BYTES, len(message.clients))
                return dict(zip(map(int, message.clients), found, strict=True))
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
        shares = self._answers[MaskShares]
        deliveries: dict[int, Any] = {}
        for client in sorted(shares):
            senders = [other for other in sorted(shares) if other != client]
            try:
                sealed = b"".join(shares[other][client] for other in senders)
            except KeyError:
                return self._lose("a client left another out of its shares")
            clients = _integers(senders)
            deliveries[client] = MaskDelivery(0, self.round, self.attempt, clients, sealed)
        return self._next(now, deliveries)

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
        revealed = self._answers[Unmasking]
        for client in sorted(self._answers[MaskShares]):
            shares = {points[who]: given[client] for who, given in revealed.items()}
            secret = combine(shares, self.settings.threshold)
            if client in masked:
                masks.add_mask(total, secret, -1, bits)
                continue
            if masks.public_key(secret) != keys[client][32:]:
                return self._lose(f"the shares of client {client}'s key do not give its key")
            for other in masked:  # undo what the others masked with the one that dropped out
                low, high = min(client, other), max(client, other)
                purpose = about(self._run_id, self.round, low, high) + b"mask"
                key = masks.agree(secret, keys[other][32:], purpose)
                masks.add_mask(total, key, -1 if other < client else 1, bits)
        self.total = total & mask(bits)
        self._step = len(self._steps)
        return [Done(OPENED)]


def _integers(clients: Any) -> Any:
    return np.array(list(clients), dtype=np.int64)
