"""One secure round: the messages between participants and aggregator, and both machines.

``base`` is the version of the round's model, ``attempt`` distinguishes the attempts at one round,
and ``round`` is the number of the client's own update. A field of bytes holds pieces of fixed
length, concatenated, one for each client of the message's list of clients, in its order.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.events import Alarm, Done, Effect, Received, Send, Wake, Woken
from forethought.exchange.messages import SERVER, Framed, Integers, register
from forethought.federated.secure_aggregation import masking
from forethought.federated.secure_aggregation.masking import SecureAggregationError

KEYS_BYTES, SIGNATURE_BYTES, SHARE_BYTES = 64, 64, 32
# Two shares and the 16-byte tag of AES-GCM.
SEALED_BYTES = 2 * SHARE_BYTES + 16


@dataclass(frozen=True, slots=True, eq=False)
class OfAttempt(Framed):
    """Base class of this module's messages; see the module for the fields."""

    attempt: int


@dataclass(frozen=True, slots=True, eq=False)
class MaskRequest(OfAttempt):
    """The server begins an attempt to sum the updates on its model."""


@dataclass(frozen=True, slots=True, eq=False)
class MaskKeys(OfAttempt):
    """A client's fresh public keys for this attempt: 32 bytes for sealing, 32 for masking.

    Args:
        keys: empty if the client takes no part in the attempt, so that the server need not wait.
        signature: Ed25519, by the client's own key, over :func:`signed`; empty where nothing is
            signed.
    """

    keys: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, eq=False)
class MaskRoster(OfAttempt):
    """The keys of all clients of the attempt with their signatures, relayed by the server."""

    clients: Integers
    keys: bytes
    signatures: bytes


@dataclass(frozen=True, slots=True, eq=False)
class MaskShares(OfAttempt):
    """A client's sealed shares, one for every other client of the roster.

    Args:
        clients: the recipients of the shares. sealed: the shares, then :func:`committed`; empty if
            the message is a complaint instead: the shares from ``clients`` cannot be unsealed.
    """

    clients: Integers
    sealed: bytes


@dataclass(frozen=True, slots=True, eq=False)
class MaskDelivery(OfAttempt):
    """The sealed shares from other clients to the recipient; all of them mask pairwise."""

    clients: Integers
    sealed: bytes


@dataclass(frozen=True, slots=True, eq=False)
class MaskedSum(OfAttempt):
    """A masked noised sum: ring elements, packed, in whole 64-bit words."""

    content: Integers


@dataclass(frozen=True, slots=True, eq=False)
class Survivors(OfAttempt):
    """The clients whose masked sums arrived: these are summed, the others dropped out."""

    clients: Integers


@dataclass(frozen=True, slots=True, eq=False)
class Unmasking(OfAttempt):
    """One share for each client that masked: of its own mask if it survived, else of its key."""

    clients: Integers
    shares: bytes


_KINDS = MaskKeys, MaskRoster, MaskShares, MaskDelivery, MaskedSum, Survivors, Unmasking
for _number, _kind in enumerate((*_KINDS, MaskRequest), start=32):
    register(_number, _kind)


def committed(run_id: bytes, client: int, own: bytes) -> bytes:
    """A client's commitment to its own mask: 32 bytes of SHA-256, which do not reveal the mask."""
    return sha256(b"forethought own mask\n" + run_id + client.to_bytes(8, "big") + own).digest()


def no_part(round: int, base: int, attempt: int) -> MaskKeys:
    """The message of a client that takes no part, or no further part, in an attempt."""
    return MaskKeys(round, base, attempt, b"", b"")


def takes_no_part(message: object) -> bool:
    """True if the message says that its sender takes no part in the attempt."""
    return isinstance(message, MaskKeys) and not message.keys


def signed(run_id: bytes, round: int, client: int, keys: bytes) -> bytes:
    """The bytes that a client signs for its keys."""
    head = b"forethought mask keys\n" + run_id
    return head + round.to_bytes(8, "big") + client.to_bytes(8, "big") + keys


def attempted(run_id: bytes, attempt: int) -> bytes:
    """The 32-byte name of one attempt, which separates its keys and seals from other attempts'."""
    number = attempt.to_bytes(8, "big", signed=True)  # a server may say any
    return sha256(b"forethought attempt\n" + run_id + number).digest()


def pieces(content: bytes, size: int, clients: Sequence[int] | Integers) -> dict[int, bytes]:
    """Split ``content`` into a piece of ``size`` bytes for each client, in their order.

    Raises:
        ValueError: another length.
    """
    if len(content) != size * len(clients):
        raise ValueError(f"{len(content)} bytes where {len(clients)} pieces of {size} belong")
    return {int(client): content[k * size : (k + 1) * size] for k, client in enumerate(clients)}


# One client's side of one secure round: Bonawitz et al. 2017, Figure 4, as a sans-IO machine.
#
# Its keys are used for one round only. It masks one sum and answers one list of survivors. For each
# client it reveals either its share of that client's own mask or its share of that client's mask
# key, never both. A restarted client does not continue the round: it counts as dropped out.


Entropy = Callable[[int], bytes]
Sign = Callable[[bytes], bytes]
# (client, content, signature) → True if the signature on the content is that client's.
Verify = Callable[[int, bytes, bytes], bool]


class Participant:
    """One client's machine for one attempt at one round.

    Args:
        settings: the cohort's secure aggregation.
        run_id: 32 bytes of the federation. round: the global round, that is the model's version.
        me: the client's place in the roster.
        entropy: n → n secret uniform bytes; the machine's only randomness.
        sign, verify: sign and verify the signatures on keys. None: the client trusts the keys as
            the server relays them, which is safe only with an honest server.
        number: number of the client's own update. attempt: number of the attempt at this round.
        within: the permitted clients; a roster with any other client is refused; None: no limit.

    Attributes:
        survivors: the clients for whose sum it revealed shares, after which the round's sum is not
            masked again; (): it revealed none.
        masked_with: the roster with which the sent sum was masked; None: no sum was sent.
    """

    def __init__(
        self,
        settings: masking.SecureAggregation,
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
        self.attempt, self._within = attempt, within
        self._entropy, self._verify = entropy, verify
        self._head = number, round, attempt
        run_id = self._run_id = attempted(run_id, attempt)
        self._about = partial(about, run_id, round)
        self._sealing, self._masking, self._own = (entropy(masking.KEY_BYTES) for _ in range(3))
        keys = masking.public_key(self._sealing) + masking.public_key(self._masking)
        content = signed(run_id, round, me, keys)
        self._keys = MaskKeys(*self._head, keys, b"" if sign is None else sign(content))
        self._roster: dict[int, bytes] = {}
        self._held: dict[int, tuple[bytes, bytes]] = {}
        self._elements: masking.Ring | None = None
        self._masked: MaskedSum | None = None
        self.masked_with: frozenset[int] | None = None
        self.survivors: tuple[int, ...] = ()
        self._last: Any = self._keys

    def begin(self) -> list[Effect]:
        """Send the round's keys."""
        return self._say(self._keys)

    def again(self) -> list[Effect]:
        """Send the last message again, for example after a lost connection."""
        return [Send(SERVER, self._last)]

    def _say(self, message: Any) -> list[Effect]:
        self._last = message
        return [Send(SERVER, message)]

    def contribute(self, elements: masking.Ring) -> list[Effect]:
        """Give the noised sum, as ring elements; it is sent as soon as the masks are agreed on.

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
        """Handle a message of the server; an invalid message leaves the state unchanged."""
        message = event.message
        if event.sender != SERVER or not _is_of(message, self.round, self.attempt):
            return [Alarm("secure-stray", f"round {self.round}: a message of another round")]
        try:
            match message:
                case MaskRoster():
                    return self._on_roster(message)
                case MaskDelivery():
                    return self._on_delivery(message)
                case Survivors():
                    return self._on_survivors(message)
        except ValueError as error:
            return self._refused(str(error))
        return [Alarm("secure-kind", f"{type(message).__name__} is not for a participant")]

    def _refused(self, text: str) -> list[Effect]:
        return [Alarm("secure-refused", f"round {self.round}: {text}")]

    def _on_roster(self, message: MaskRoster) -> list[Effect]:
        clients = _clients(message.clients)
        if self._roster:
            if tuple(self._roster) != clients:
                raise SecureAggregationError("a second roster for one round")
            return []
        least, most = self.settings.threshold, self.settings.clients
        if self.me not in clients or not least <= len(clients) <= most:
            raise SecureAggregationError(
                f"a roster of {len(clients)} clients, not of {least} to {most} with this one"
            )
        if self._within is not None and not self._within.issuperset(clients):
            alarm = self._refused(
                "its sum left behind the masks of other clients before: with somebody new it could "
                "be opened twice, and its noise would count once"
            )
            return alarm + self._say(no_part(*self._head))
        roster = pieces(message.keys, KEYS_BYTES, clients)
        if roster[self.me] != self._keys.keys:
            raise SecureAggregationError("the roster has other keys for this client than its own")
        if self._verify is not None:
            signatures = pieces(message.signatures, SIGNATURE_BYTES, clients)
            for client, signature in signatures.items():
                content = signed(self._run_id, self.round, client, roster[client])
                if not self._verify(client, content, signature):
                    raise SecureAggregationError(f"the keys of client {client} are not its own")
        points = list(range(1, len(clients) + 1))
        of_key = masking.split(self._masking, points, least, self._entropy)
        of_own = masking.split(self._own, points, least, self._entropy)
        sealed = []
        for point, client in enumerate(clients, 1):
            shares = of_own[point], of_key[point]
            if client == self.me:
                self._held[client] = shares
                continue
            pair = self._about(self.me, client)
            key = masking.agree(self._sealing, roster[client][:32], pair + b"seal")
            sealed.append(masking.seal(key, b"".join(shares), pair))
        self._roster = roster
        others = _integers(client for client in clients if client != self.me)
        content = b"".join([*sealed, committed(self._run_id, self.me, self._own)])
        return self._say(MaskShares(*self._head, others, content))

    def _on_delivery(self, message: MaskDelivery) -> list[Effect]:
        senders = _clients(message.clients)
        if not self._roster or self.me in senders or not set(senders) <= set(self._roster):
            raise SecureAggregationError("shares that do not go with the roster")
        count, needed = len(senders) + 1, self.settings.threshold
        if count < needed:
            raise SecureAggregationError(f"shares of {count} clients, of which {needed} are needed")
        if len(self._held) > 1:
            return []
        held = dict(self._held)
        for client, sealed in pieces(message.sealed, SEALED_BYTES, senders).items():
            pair = self._about(client, self.me)
            key = masking.agree(self._sealing, self._roster[client][:32], pair + b"seal")
            try:
                content = masking.unseal(key, sealed, pair)
            except ValueError as error:
                complaint = MaskShares(*self._head, _integers([client]), b"")
                alarm = self._refused(f"the shares of client {client}: {error}")
                return alarm + self._say(complaint)
            held[client] = (content[:SHARE_BYTES], content[SHARE_BYTES:])
        self._held = held
        return self._mask_if_ready()

    def _mask_if_ready(self) -> list[Effect]:
        if self._elements is None or len(self._held) < 2:
            return []
        if self._masked is None:
            bits, hidden = self.settings.bits, self._elements.copy()
            masking.add_mask(hidden, self._own, 1, bits)
            for client in self._held.keys() - {self.me}:
                public = self._roster[client][32:]
                _mask_pair(hidden, self._about, self._masking, public, self.me, client, bits)
            content = masking.pack(hidden & masking.mask(bits), bits)
            self._masked = MaskedSum(*self._head, content)
            self.masked_with = frozenset(self._roster)
        return self._say(self._masked)

    def _on_survivors(self, message: Survivors) -> list[Effect]:
        survivors = _clients(message.clients)
        if self.survivors:
            if self.survivors != survivors:
                raise SecureAggregationError("a second list of survivors for one round")
            return self.again()
        if self._masked is None or not set(survivors) <= set(self._held):
            raise SecureAggregationError("survivors that never masked")
        if len(survivors) < self.settings.threshold:
            raise SecureAggregationError(
                f"only {len(survivors)} clients survived: too little noise, so nothing is revealed"
            )
        known = sorted(self._held)
        content = b"".join(self._held[client][client not in survivors] for client in known)
        self.survivors = survivors
        return self._say(Unmasking(*self._head, _integers(known), content))


def about(run_id: bytes, round: int, one: int, other: int) -> bytes:
    """The bytes that identify a key or a seal between two clients: run, round and pair."""
    return run_id + b"".join(value.to_bytes(8, "big") for value in (round, one, other))


def _mask_pair(
    into: masking.Ring,
    about: Callable[[int, int], bytes],
    private: bytes,
    public: bytes,
    me: int,
    other: int,
    bits: int,
) -> None:
    """Add in place the mask that the client ``me`` shares with ``other``, with its sign."""
    key = masking.agree(private, public, about(min(me, other), max(me, other)) + b"mask")
    masking.add_mask(into, key, 1 if me < other else -1, bits)


def _is_of(message: Any, round: int, attempt: int) -> bool:
    """True if the message is of this attempt at this round."""
    ours = isinstance(message, OfAttempt)
    return ours and (message.base, message.attempt) == (round, attempt)


def _clients(values: Integers) -> tuple[int, ...]:
    clients = tuple(values.tolist())
    if any(after <= before for before, after in pairwise((-1, *clients))):
        raise SecureAggregationError("a list of clients that is not in ascending order")
    return clients


def _integers(clients: Iterable[int]) -> Integers:
    return np.array(list(clients), dtype=np.int64)


# The server's side of one secure round: it collects, relays, adds up, and removes the masks.
#
# It is assumed honest but curious: it follows these steps and may keep all that it sees. It goes on
# to the next step when every client has answered, or when its patience is over and enough clients
# have. With fewer than the threshold the first step keeps waiting; any other step ends the round as
# lost, and nothing is revealed.


OPENED, LOST = "secure-opened", "secure-lost"


class Aggregator:
    """The server's machine for one attempt at one round.

    Args:
        settings: the cohort's secure aggregation.
        run_id: 32 bytes of the federation. round: the global round.
        clients: the cohort, places in the roster; clients that do not answer have dropped out.
        size: length of the summed vector.
        attempt: number of the attempt at this round; each attempt has its own keys.
        verify: verifies the signatures on keys; None: only the clients verify them.

    Attributes:
        total: the survivors' sum in the ring, once the round was opened; None: it was not.
        survivors: the clients in the sum, ascending.
        numbers: client → number of its update that it masked.
        gone: clients that are not waited for. asked: the cohort, ascending.
        refused: clients that take no further part in the attempt.
        liars: clients that certainly violated the protocol. blamed: pairs of clients of which one
            accuses the other, or gave a false share of the other's secret.
        roster: the clients whose keys were sent to the cohort; () before that.
    """

    def __init__(
        self,
        settings: masking.SecureAggregation,
        run_id: bytes,
        round: int,
        clients: Sequence[int],
        size: int,
        attempt: int = 0,
        verify: Verify | None = None,
    ) -> None:
        self.settings, self.round, self.size = settings, round, size
        self.attempt, self._verify = attempt, verify
        self.total: masking.Ring | None = None
        self.survivors: tuple[int, ...] = ()
        self._run_id = attempted(run_id, attempt)
        self._head = 0, round, attempt
        self._about = partial(about, self._run_id, round)
        self.asked = tuple(sorted(clients))
        if not settings.threshold <= len(self.asked) <= settings.clients:
            raise SecureAggregationError(
                f"a cohort of {len(self.asked)}, secure aggregation is set for {settings.clients} "
                f"of which {settings.threshold} stay"
            )
        self.numbers: dict[int, int] = {}
        self.gone: frozenset[int] = frozenset()
        self.refused: set[int] = set()
        # Clients that sent something malformed: nobody waits for a better message of theirs.
        self._waived: set[int] = set()
        self.liars: set[int] = set()
        self.blamed: set[frozenset[int]] = set()
        self._committed: dict[int, bytes] = {}
        self.roster: tuple[int, ...] = ()
        self._told: dict[int, Any] = {}
        self._due = 0.0
        self._steps: list[tuple[type[OfAttempt], Callable[[float], list[Effect]]]] = [
            (MaskKeys, self._send_roster),
            (MaskShares, self._deliver),
            (MaskedSum, self._ask_to_unmask),
            (Unmasking, self._open),
        ]
        self._answers: dict[type, dict[int, Any]] = {kind: {} for kind, _ in self._steps}
        self._step = 0

    def begin(self, now: float) -> list[Effect]:
        """Wait for the answers of a step, of the keys at first."""
        self._due = now + self.settings.patience
        return [Wake(self._due)]

    @property
    def done(self) -> bool:
        """True if the sum was opened or the round was lost."""
        return self._step >= len(self._steps)

    def handle(self, event: Received | Woken) -> list[Effect]:
        """Handle a message, or the end of a step's patience."""
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
            ours = _is_of(message, self.round, self.attempt)
            if not ours or sender not in due or sender in answers:
                return []  # late, duplicated or of another round: ignored
            if takes_no_part(message):
                self.refused.add(sender)
            elif kind is MaskedSum and isinstance(message, MaskShares) and not message.sealed:
                self.refused.add(sender)
                # Only clients of the round: a list of others could be of any length.
                alarms += self._blame(
                    sender, sorted({*self.roster}.intersection(message.clients.tolist()))
                )
            elif type(message) is kind:
                try:
                    answers[sender] = self._checked(message)
                except ValueError as error:
                    alarms.append(Alarm("secure-malformed", f"client {sender}: {error}"))
                    self._waived.add(sender)
                self.numbers[sender] = message.round
                if isinstance(message, MaskKeys) and not self._signed(sender, message):
                    answers.pop(sender, None)
                    self.refused.add(sender)
                    text = f"the keys of client {sender} are not signed by it: it is left out"
                    alarms.append(Alarm("secure-unsigned", text))
            else:
                return []
            if not set(self._expected()) - self._waived <= answers.keys():
                return alarms
        if len(answers) < self.settings.threshold:
            few = f"{len(answers)} of {self.settings.threshold} clients needed"
            return [*alarms, *(self._lose(few) if self._step else self.begin(event.now))]
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
                keys = pieces(message.keys, KEYS_BYTES, [0])[0]
                for half in (keys[:32], keys[32:]):  # with one of small order nobody could agree
                    masking.agree(bytes(range(32)), half, b"")
                return keys, message.signature
            case MaskShares():
                given = pieces(message.sealed[:-32], SEALED_BYTES, message.clients)
                return given, message.sealed[-32:]
            case MaskedSum():
                return masking.unpack(message.content, self.settings.bits, self.size)
            case _:
                return pieces(message.shares, SHARE_BYTES, message.clients)

    def _next(self, now: float, messages: dict[int, Any]) -> list[Effect]:
        self._step += 1
        self._told = messages
        return [*(Send(client, one) for client, one in messages.items()), *self.begin(now)]

    def again(self, client: int) -> list[Effect]:
        """Send a client its last message again, for example after a lost connection."""
        return [Send(client, self._told[client])] if client in self._told else []

    def _lose(self, why: str) -> list[Effect]:
        self._step = len(self._steps)
        return [Alarm(LOST, f"round {self.round}: {why}; nothing was revealed"), Done(LOST)]

    def _send_roster(self, now: float) -> list[Effect]:
        keys = dict(sorted(self._answers[MaskKeys].items()))
        self.roster = tuple(keys)
        found, signatures = map(b"".join, zip(*keys.values(), strict=True))
        roster = MaskRoster(*self._head, _integers(keys), found, signatures)
        return self._next(now, dict.fromkeys(keys, roster))

    def _deliver(self, now: float) -> list[Effect]:
        alarms: list[Effect] = []
        shares: dict[int, dict[int, bytes]] = {}
        for client, (given, commitment) in self._answers[MaskShares].items():
            if set(given) == set(self.roster) - {client}:
                shares[client], self._committed[client] = given, commitment
                continue
            self.refused.add(client)
            alarms.append(self._lied(client, "its shares: it is left out"))
        self._answers[MaskShares] = shares
        if len(shares) < self.settings.threshold:
            return [*alarms, *self._lose(f"{len(shares)} clients shared with everybody")]
        deliveries: dict[int, Any] = {}
        for client in sorted(shares):
            senders = [other for other in sorted(shares) if other != client]
            sealed = b"".join(shares[other][client] for other in senders)
            deliveries[client] = MaskDelivery(*self._head, _integers(senders), sealed)
        return [*alarms, *self._next(now, deliveries)]

    def _lied(self, client: int, what: str) -> Effect:
        self.liars.add(client)
        return Alarm("secure-liar", f"client {client} left another out of {what}")

    def _blame(self, client: int, others: Iterable[int]) -> list[Effect]:
        """Note pairs of clients of which one violates the protocol, without knowing which."""
        alarms: list[Effect] = []
        for other in others:
            self.blamed.add(frozenset((client, other)))
            text = f"client {client} says that the shares of client {other} are no good: one lies"
            alarms.append(Alarm("secure-blamed", text))
        return alarms

    def _ask_to_unmask(self, now: float) -> list[Effect]:
        self.survivors = tuple(sorted(self._answers[MaskedSum]))
        message = Survivors(*self._head, _integers(self.survivors))
        return self._next(now, dict.fromkeys(self.survivors, message))

    def _open(self, _now: float) -> list[Effect]:
        masked, bits = self._answers[MaskedSum], self.settings.bits
        keys = {client: found for client, (found, _) in self._answers[MaskKeys].items()}
        total = np.zeros(self.size, np.uint64)
        for elements in masked.values():
            total += elements
        alarms: list[Effect] = []
        revealed: dict[int, dict[int, bytes]] = {}  # by the point of who reveals
        for point, client in enumerate(self.roster, 1):
            given = self._answers[Unmasking].get(client)
            if given is not None and given.keys() == self._answers[MaskShares].keys():
                revealed[point] = given
            elif given is not None:
                alarms.append(self._lied(client, "what it reveals"))
        if len(revealed) < self.settings.threshold:
            return [*alarms, *self._lose(f"{len(revealed)} clients revealed all that they hold")]
        suspects: set[int] = set()
        for client in sorted(self._answers[MaskShares]):
            shares = {point: given[client] for point, given in revealed.items()}

            def right(secret: bytes, client: int = client) -> bool:
                if client in masked:
                    return committed(self._run_id, client, secret) == self._committed[client]
                return bool(masking.public_key(secret) == keys[client][32:])

            secret, false = masking.opened(shares, self.settings.threshold, right, suspects)
            suspects |= false
            for point in sorted(false):
                alarms += self._blame(self.roster[point - 1], [client])
            if secret is None:
                what = "mask" if client in masked else "key"
                if len(revealed) > self.settings.threshold:  # else one false share explains it
                    others = {self.roster[point - 1] for point in revealed} - {client}
                    self.blamed |= {frozenset((client, other)) for other in others}
                lost = self._lose(f"the shares of client {client}'s {what} do not give its {what}")
                return [*alarms, *lost]
            if client in masked:
                masking.add_mask(total, secret, -1, bits)
                continue
            for other in masked:  # cancel the others' masks with the client that dropped out
                _mask_pair(total, self._about, secret, keys[other][32:], client, other, bits)
        self.total = total & masking.mask(bits)
        self._step = len(self._steps)
        return [*alarms, Done(OPENED)]


# One secure round in memory: participants and aggregator with messages that may get lost.


# (sender, message) → True if the message is lost; its sender then drops out of the round.
Lost = Callable[[int, Any], bool]


def secure_sum(
    settings: masking.SecureAggregation,
    sums: Mapping[int, NDArray[np.float64]],
    step: float,
    *,
    round: int = 0,
    run_id: bytes = bytes(32),
    lost: Lost = lambda _sender, _message: False,
    entropy: Callable[[int], bytes] = secrets.token_bytes,
) -> tuple[NDArray[np.float64], tuple[int, ...]]:
    """The sum of the surviving clients, shape (parameters,), and these clients, ascending.

    Args:
        settings: the cohort's secure aggregation.
        sums: client → its noised sum, as ``noise="grid"`` released it, (parameters,).
        step: of the grid, the same for all: :func:`forethought.values.plan.grid`.
        round: the global round. run_id: 32 bytes.
        lost: True for a message that does not arrive; its sender has then dropped out.
        entropy: n → n secret uniform bytes.

    Raises:
        SecureAggregationError: fewer than the threshold stayed, so nothing was revealed; or the
            sums have different lengths.
        ValueError: a sum that is not on the grid.
    """
    sizes = {len(vector) for vector in sums.values()}
    if len(sizes) != 1:
        raise SecureAggregationError(f"sums of different lengths: {sorted(sizes)}")
    server = Aggregator(settings, run_id, round, list(sums), sizes.pop())
    clients = {client: Participant(settings, run_id, round, client, entropy) for client in sums}
    waiting: deque[tuple[int, Send]] = deque()
    gone: set[int] = set()

    def take(sender: int, effects: Sequence[Any]) -> None:
        waiting.extend((sender, effect) for effect in effects if isinstance(effect, Send))

    take(SERVER, server.begin(0.0))
    for client, vector in sums.items():
        take(client, clients[client].begin())
        take(client, clients[client].contribute(masking.to_ring(vector, step, settings.bits)))
    now = 0.0
    while not server.done:
        if not waiting:
            now += 1e6  # no further answer will come: let the step's patience run out
            take(SERVER, server.handle(Woken(now)))
            if not waiting:
                break  # too few clients sent keys
            continue
        sender, effect = waiting.popleft()
        if sender in gone or effect.to in gone:
            continue
        if sender != SERVER and lost(sender, effect.message):
            gone.add(sender)
            continue
        event = Received(sender, effect.message, now)
        receiver = server if effect.to == SERVER else clients[effect.to]
        take(effect.to, receiver.handle(event))
    if server.total is None:
        raise SecureAggregationError(
            f"round {round} is lost: more than {settings.dropouts} of {settings.clients} clients "
            "dropped out, so nothing was revealed"
        )
    return masking.from_ring(server.total, step, settings.bits), server.survivors
