"""One client's side of one secure round: Bonawitz et al. 2017, Figure 4, as a sans-IO machine.

Its keys live for one round. It masks one sum, answers one list of survivors, and reveals of another
client either the share of its mask or the share of its key, never both. A restarted client does not
go on: it has dropped out of the round, which the protocol allows for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from forethought.exchange.events import Alarm, Effect, Received, Send
from forethought.exchange.messages import SERVER
from forethought.federated.secure_aggregation import masks
from forethought.federated.secure_aggregation.messages import (
    KEYS_BYTES,
    SEALED_BYTES,
    SHARE_BYTES,
    SIGNATURE_BYTES,
    MaskDelivery,
    MaskedSum,
    MaskKeys,
    MaskRoster,
    MaskShares,
    Survivors,
    Unmasking,
    attempted,
    committed,
    no_part,
    pieces,
    signed,
)
from forethought.federated.secure_aggregation.ring import Ring, mask, pack, words
from forethought.federated.secure_aggregation.settings import (
    SecureAggregation,
    SecureAggregationError,
)
from forethought.federated.secure_aggregation.shamir import split

Entropy = Callable[[int], bytes]
Sign = Callable[[bytes], bytes]
# (client, content, signature) → whether it is that client's.
Verify = Callable[[int, bytes, bytes], bool]


class _NewcomerError(SecureAggregationError):
    """A roster with a client that the sum was not masked with at first."""


class _SealError(SecureAggregationError):
    """Shares that do not open: their sender, or whoever says so, does not keep to the protocol."""

    def __init__(self, sender: int, error: ValueError) -> None:
        super().__init__(f"the shares of client {sender}: {error}")
        self.sender = sender


class Participant:
    """One round of one client.

    Args:
        settings: what the cohort agreed on.
        run_id: 32 bytes of the federation. round: the global round, that is the model's version.
        me: the client's place in the roster.
        entropy: n → n secret uniform bytes; the machine's only randomness.
        sign, verify: of the roster's signatures. None: keys are taken as the server relays them,
            which an honest server does.
        number: of the client's own update. attempt: at this round.
        within: a roster with anybody else is refused; None: any will do.

    Attributes:
        opened: whether it revealed shares; then the round's sum is not masked again.
        masked_with: the roster behind whose masks the sum left; None: it did not leave.
    """

    def __init__(
        self,
        settings: SecureAggregation,
        run_id: bytes,
        round: int,
        me: int,
        entropy: Entropy,
        sign: Sign | None = None,
        verify: Verify | None = None,
        number: int = 0,
        attempt: int = 0,
        within: frozenset[int] | None = None,
    ) -> None:
        self.settings, self.round, self.me = settings, round, me
        self.number, self.attempt, self._within = number, attempt, within
        self._entropy, self._verify = entropy, verify
        run_id = self._run_id = attempted(run_id, attempt)
        self._sealing, self._masking, self._own = (entropy(masks.KEY_BYTES) for _ in range(3))
        keys = masks.public_key(self._sealing) + masks.public_key(self._masking)
        content = signed(run_id, round, me, keys)
        self._keys = MaskKeys(number, round, attempt, keys, b"" if sign is None else sign(content))
        self._roster: dict[int, bytes] = {}
        self._held: dict[int, tuple[bytes, bytes]] = {}
        self._elements: Ring | None = None
        self._masked: MaskedSum | None = None
        self._answered: tuple[tuple[int, ...], Unmasking] | None = None
        self._last: Any = self._keys

    def begin(self) -> list[Effect]:
        """Send the round's keys."""
        return self._say(self._keys)

    def again(self) -> list[Effect]:
        """Send the last message once more, as after a lost connection."""
        return [Send(SERVER, self._last)]

    @property
    def opened(self) -> bool:
        """True if it revealed shares."""
        return self._answered is not None

    @property
    def masked_with(self) -> frozenset[int] | None:
        """The roster behind whose masks the sum left; None: it did not leave."""
        return None if self._masked is None else frozenset(self._roster)

    def _say(self, message: Any) -> list[Effect]:
        self._last = message
        return [Send(SERVER, message)]

    def contribute(self, elements: Ring) -> list[Effect]:
        """Give the noised sum, as ring elements; it leaves as soon as the masks are agreed on.

        Raises:
            SecureAggregationError: a second sum for one round: their difference would be exposed.
        """
        if self._elements is not None:
            raise SecureAggregationError(
                f"round {self.round} has its sum: a second one under the same masks would expose "
                "the difference of both"
            )
        self._elements = elements
        return self._mask_if_ready()

    def handle(self, event: Received) -> list[Effect]:
        """Take a message of the server; what does not belong leaves the state as it was."""
        message = event.message
        of = (getattr(message, "base", None), getattr(message, "attempt", None))
        if event.sender != SERVER or of != (self.round, self.attempt):
            return [Alarm("secure-stray", f"round {self.round}: a message of another round")]
        steps: dict[type, Callable[[Any], list[Effect]]] = {
            MaskRoster: self._on_roster,
            MaskDelivery: self._on_delivery,
            Survivors: self._on_survivors,
        }
        step = steps.get(type(message))
        if step is None:
            return [Alarm("secure-kind", f"{type(message).__name__} is not for a participant")]
        try:
            return step(message)
        except ValueError as error:
            alarm: list[Effect] = [Alarm("secure-refused", f"round {self.round}: {error}")]
            if isinstance(error, _SealError):
                accused = _integers([error.sender])
                return [
                    *alarm,
                    *self._say(MaskShares(self.number, self.round, self.attempt, accused, b"")),
                ]
            if not isinstance(error, _NewcomerError):
                return alarm
            return [*alarm, *self._say(no_part(self.number, self.round, self.attempt))]

    def _on_roster(self, message: MaskRoster) -> list[Effect]:
        clients = _clients(message.clients)
        if self._roster:
            if tuple(self._roster) != clients:
                raise SecureAggregationError("a second roster for one round")
            return []
        if self.me not in clients or len(clients) < self.settings.threshold:
            raise SecureAggregationError(
                f"a roster of {len(clients)} clients, of which {self.settings.threshold} are needed"
            )
        if len(clients) > self.settings.clients:
            raise SecureAggregationError(
                f"a roster of {len(clients)} clients, the federation asks {self.settings.clients}"
            )
        if self._within is not None and not self._within.issuperset(clients):
            raise _NewcomerError(
                "its sum left behind the masks of other clients before: with somebody new it could "
                "be opened twice, and its noise would count once"
            )
        keys = pieces(message.keys, KEYS_BYTES, len(clients))
        roster = dict(zip(clients, keys, strict=True))
        if roster[self.me] != self._keys.keys:
            raise SecureAggregationError("the roster has other keys for this client than its own")
        if self._verify is not None:
            signatures = pieces(message.signatures, SIGNATURE_BYTES, len(clients))
            for client, signature in zip(clients, signatures, strict=True):
                content = signed(self._run_id, self.round, client, roster[client])
                if not self._verify(client, content, signature):
                    raise SecureAggregationError(f"the keys of client {client} are not its own")
        points = {client: place + 1 for place, client in enumerate(clients)}
        needed = self.settings.threshold
        of_key = split(self._masking, list(points.values()), needed, self._entropy)
        of_own = split(self._own, list(points.values()), needed, self._entropy)
        sealed, others = [], []
        for client, point in points.items():
            shares = (of_own[point], of_key[point])
            if client == self.me:
                self._held[client] = shares
                continue
            key = self._agreed(self._sealing, roster[client][:32], self.me, client, b"seal")
            about = self._about(self.me, client)
            sealed.append(masks.seal(key, b"".join(shares), about))
            others.append(client)
        self._roster = roster
        commitment = committed(self._run_id, self.me, self._own)
        clients, content = _integers(others), b"".join([*sealed, commitment])
        return self._say(MaskShares(self.number, self.round, self.attempt, clients, content))

    def _on_delivery(self, message: MaskDelivery) -> list[Effect]:
        senders = _clients(message.clients)
        if not self._roster or self.me in senders or not set(senders) <= set(self._roster):
            raise SecureAggregationError("shares that do not go with the roster")
        if len(senders) + 1 < self.settings.threshold:
            raise SecureAggregationError(
                f"shares of {len(senders) + 1} clients, of which {self.settings.threshold} are "
                "needed"
            )
        if len(self._held) > 1:
            return []
        held = dict(self._held)
        for client, sealed in zip(
            senders, pieces(message.sealed, SEALED_BYTES, len(senders)), strict=True
        ):
            key = self._agreed(self._sealing, self._roster[client][:32], client, self.me, b"seal")
            try:
                content = masks.unseal(key, sealed, self._about(client, self.me))
            except ValueError as error:
                raise _SealError(client, error) from None
            held[client] = (content[:SHARE_BYTES], content[SHARE_BYTES:])
        self._held = held
        return self._mask_if_ready()

    def _mask_if_ready(self) -> list[Effect]:
        if self._elements is None or len(self._held) < 2:
            return []
        if self._masked is None:
            bits, hidden = self.settings.bits, self._elements.copy()
            masks.add_mask(hidden, self._own, 1, bits)
            for client in self._held:
                if client != self.me:
                    low, high = min(client, self.me), max(client, self.me)
                    key = self._agreed(self._masking, self._roster[client][32:], low, high, b"mask")
                    masks.add_mask(hidden, key, 1 if self.me < client else -1, bits)
            content = words(pack(hidden & mask(bits), bits))
            self._masked = MaskedSum(self.number, self.round, self.attempt, content)
        return self._say(self._masked)

    def _on_survivors(self, message: Survivors) -> list[Effect]:
        survivors = _clients(message.clients)
        if self._answered is not None:
            if self._answered[0] != survivors:
                raise SecureAggregationError("a second list of survivors for one round")
            return self._say(self._answered[1])
        if self._masked is None or not set(survivors) <= set(self._held):
            raise SecureAggregationError("survivors that never masked")
        if len(survivors) < self.settings.threshold:
            raise SecureAggregationError(
                f"only {len(survivors)} clients survived, {self.settings.threshold} are agreed on: "
                "their noise would not be enough, so nothing is revealed"
            )
        known = sorted(self._held)
        chosen = [self._held[client][0 if client in survivors else 1] for client in known]
        content = b"".join(chosen)
        answer = Unmasking(self.number, self.round, self.attempt, _integers(known), content)
        self._answered = (survivors, answer)
        return self._say(answer)

    def _agreed(self, private: bytes, public: bytes, one: int, other: int, use: bytes) -> bytes:
        return masks.agree(private, public, self._about(one, other) + use)

    def _about(self, one: int, other: int) -> bytes:
        return about(self._run_id, self.round, one, other)


def about(run_id: bytes, round: int, one: int, other: int) -> bytes:
    """The purpose of a key or a seal between two clients."""
    return run_id + b"".join(value.to_bytes(8, "big") for value in (round, one, other))


def _integers(clients: Sequence[int]) -> Any:
    return np.array(clients, dtype=np.int64)


def _clients(values: Any) -> tuple[int, ...]:
    clients = tuple(int(value) for value in values)
    if any(after <= before for before, after in pairwise(clients)):
        raise SecureAggregationError("a list of clients that is not in ascending order")
    return clients
