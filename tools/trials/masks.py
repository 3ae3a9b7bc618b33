"""A hostile server over masks: honest clients, and a server that says what it likes to open a sum.

The server runs the protocol, and beside it attempts of its own at the same sums, with other cohorts
and with other lists of survivors for each client; it changes what it says, and says old things
again. It may be in league with as many clients as the settings count as colluders. Clients crash.
After a while it stops lying, and the federation has to end.

What must hold whatever it says (Bonawitz et al. 2017, and the proof in
:mod:`forethought.federated.secure_aggregation.client`) is checked at every word of a client: a
version's sum leaves behind the masks of one roster or of a part of it, under keys that are the
others' own; shares are revealed once a version, for one list of survivors that is long enough, of
each client one secret; no two sums with one client in them can be opened for one version.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from blake3 import blake3

from forethought.exchange import events as on
from forethought.exchange.messages import SERVER, Model, Update
from forethought.exchange.storage import LedgerState
from forethought.federated.federation import Federation, Member
from forethought.federated.secure_aggregation.client import SecureClient
from forethought.federated.secure_aggregation.masking import SecureAggregation, to_ring
from forethought.federated.secure_aggregation.protocol import (
    Aggregator,
    MaskDelivery,
    MaskedSum,
    MaskKeys,
    MaskRequest,
    MaskRoster,
    MaskShares,
    Survivors,
    Unmasking,
    pieces,
)
from forethought.federated.secure_aggregation.server import SecureServer
from forethought.federated.secure_aggregation.shared_noise import secured
from forethought.holders.simulator import Agenda
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Plan, grid
from trials import ViolationError

CLIENTS, SIZE, ROUNDS = 5, 2, 2
# Virtual seconds after which the server lies no more; events of a trial at most.
QUIET, MOST_EVENTS = 60.0, 20_000
_DELIVER, _WAKE, _ATTACK, _CRASH = range(4)
_OF_CLIENTS = (MaskKeys, MaskShares, MaskedSum, Unmasking)
_OF_SERVER = (MaskRequest, MaskRoster, MaskDelivery, Survivors)
SIGNATURE, KEYS = 64, 64


@dataclass(frozen=True)
class Kinds:
    """What a trial is made of; tests put machines with planted bugs here."""

    client: Callable[..., SecureClient] = SecureClient
    server: Callable[..., SecureServer] = SecureServer


@dataclass
class Tally:
    """What happened in a trial."""

    events: int = 0
    crashes: int = 0
    lies: int = 0
    attacks: int = 0
    opened: int = 0
    alarms: list[str] = field(default_factory=list)


@lru_cache(maxsize=4)
def mask_federation(colluders: int, cohort: bool) -> Federation:
    """Five clients, of whose sums each may miss one."""
    plan = Plan(Mechanism(Rounds(2.0, ROUNDS, Poisson(0.5))), 40, 1e-5)
    plan = plan.with_(averaging=replace(plan.averaging, kind="none"))
    members = tuple(Member(f"client-{place}") for place in range(CLIENTS))
    asked = CLIENTS - 1 if cohort else None
    plain = Federation(members, (plan,), SIZE, "", ROUNDS, exchanged="gradients", cohort=asked)
    return secured(plain, SecureAggregation(asked or CLIENTS, 1, colluders, patience=5.0))


class MaskTrial:
    """One trial.

    Args:
        seed: of everything. kinds: the machines.
    """

    def __init__(self, seed: int, kinds: Kinds | None = None) -> None:
        self.seed, self.random = seed, random.Random(f"masks {seed}")
        self.kinds, draw = kinds or Kinds(), self.random
        cohort = draw.random() < 0.3
        self.federation = mask_federation(0 if cohort else draw.randrange(2), cohort)
        self.settings = SecureAggregation.from_dict(self.federation.secure or {})
        self.traitor = draw.randrange(CLIENTS) if self.settings.colluders else None
        self.lying = draw.choice((0.05, 0.3))
        one = self.federation.plan(0).round(0)
        self.step, _ = grid(one.noise_std, one.clip_norm, SIZE)
        self.agenda, self.tally = Agenda(), Tally()
        self.ledgers: dict[int, list[on.ClientRelease]] = {client: [] for client in range(CLIENTS)}
        self.clients: dict[int, SecureClient] = {}
        self.waking: dict[int, float] = {}
        # Every word of the server to a client, to say again; its own attempts beside the protocol.
        self.said: list[Any] = []
        self.beside: list[Aggregator] = []
        # What clients said: keys with client, version and attempt; by client and version the first
        # roster and the lists that were answered; who revealed for a list; who revealed of a key.
        self.keys: dict[bytes, tuple[int, int, int]] = {}
        self.rosters: dict[tuple[int, int], frozenset[int]] = {}
        self.lists: dict[tuple[int, int], set[tuple[int, tuple[int, ...]]]] = defaultdict(set)
        self.revealed: dict[tuple[int, int, tuple[int, ...]], set[int]] = defaultdict(set)
        self.secrets: dict[tuple[bytes, str], set[int]] = defaultdict(set)
        self.server = self.kinds.server(
            self.federation, np.zeros(SIZE, np.float32), entropy=draw.randbytes
        )
        self.server.verify = self._verify

    def run(self) -> Tally:
        """To the end.

        Raises:
            ViolationError: something that must never happen.
        """
        draw, agenda = self.random, self.agenda
        self._serve(self.server.handle(on.Connected(0.0)))
        for client in range(CLIENTS):
            self._begin(client)
        for _ in range(draw.randint(1, 4)):
            agenda.add(draw.uniform(0, 20), _ATTACK, SERVER)
        if draw.random() < 0.3:
            agenda.add(draw.uniform(0, 20), _CRASH, draw.randrange(CLIENTS))
        while not self.server.finished:
            kind, machine, what = agenda.next()
            self.tally.events += 1
            if self.tally.events > MOST_EVENTS or agenda.now > 100 * QUIET:
                raise self._violation("the server lies no more, and the federation does not end")
            self._happens(kind, machine, what)
        return self.tally

    @property
    def _quiet(self) -> bool:
        return self.agenda.now > QUIET

    def _happens(self, kind: int, machine: int, what: Any) -> None:
        now = self.agenda.now
        if kind == _WAKE:
            if self.waking.get(machine) != now:
                return  # another time was asked for since
            del self.waking[machine]
        if kind == _CRASH:
            self.tally.crashes += 1
            self._begin(machine)
        elif kind == _ATTACK:
            self._attack()
        elif kind == _WAKE and machine == SERVER:
            self._serve(self.server.handle(on.Woken(now)))
            for one in self.beside:
                self._say(one.handle(on.Woken(now)), patient=True)
        elif kind == _WAKE:
            self._do(machine, self.clients[machine].handle(on.Woken(now)))
        elif machine == SERVER:
            self._serve(self.server.handle(on.Received(what[0], what[1], now)))
            for one in self.beside:
                self._say(one.handle(on.Received(what[0], what[1], now)), patient=True)
        else:
            self._do(machine, self.clients[machine].handle(on.Received(SERVER, what[1], now)))

    # ---- clients

    def _begin(self, client: int) -> None:
        kept = self.ledgers[client]
        state = LedgerState(len(kept), len(kept), b"", 0, (), kept[-1].base if kept else -1)
        self.clients[client] = machine = self.kinds.client(
            self.federation,
            client,
            state,
            elements=lambda number: to_ring(
                np.full(SIZE, (client + 1) * (number + 1)) * self.step, self.step, 48
            ),
            entropy=self.random.randbytes,
            sign=lambda content: self._signature(client, content),
            verify=self._verify,
        )
        self._do(client, machine.handle(on.Connected(self.agenda.now)))

    def _signature(self, client: int, content: bytes) -> bytes:
        return blake3(content + b"%d of %d" % (client, self.seed)).digest(length=SIGNATURE)

    def _verify(self, client: int, content: bytes, signature: bytes) -> bool:
        return signature == self._signature(client, content)

    def _do(self, client: int, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case on.Send():
                    self._judge(client, effect.message)
                    self._put(client, SERVER, effect.message)
                case on.Commit():
                    self.ledgers[client].append(effect.release)
                case on.Compute():
                    vector = np.zeros(SIZE, np.float32)
                    about = effect.round, effect.base, vector, effect.round + 1, bytes(32), b""
                    found = on.Computed(*about, self.agenda.now)
                    self._do(client, self.clients[client].handle(found))
                case on.Wake():
                    self._wake(client, effect.at)
                case on.Alarm():
                    self.tally.alarms.append(effect.code)

    # ---- the server, and what it makes of its words

    def _serve(self, effects: list[Any]) -> None:
        self._say(effects)
        self.beside = [one for one in self.beside if one.round == self.server.version]

    def _say(self, effects: list[Any], patient: bool = False) -> None:
        for effect in effects:
            match effect:
                case on.Send():
                    message = effect.message
                    if isinstance(message, _OF_SERVER):
                        self.said.append(message)
                        if not self._quiet and self.random.random() < self.lying:
                            message = self._lie(message)
                    self._put(SERVER, effect.to, message)
                case on.Wake():
                    self._wake(SERVER, effect.at)
                case on.Done() if effect.reason == "secure-opened":
                    self.tally.opened += patient

    def _wake(self, machine: int, at: float) -> None:
        """Wake a machine then; of several times only the earliest matters."""
        at = max(at, self.agenda.now + 0.01)
        if at < self.waking.get(machine, at + 1):
            self.waking[machine] = at
            self.agenda.add(at, _WAKE, machine)

    def _put(self, sender: int, to: int, message: Any) -> None:
        seconds = 0.05 if self._quiet else self.random.expovariate(1 / 0.2)
        self.agenda.add(self.agenda.now + seconds, _DELIVER, to, (sender, message))

    def _attack(self) -> None:
        """An attempt of its own at the present sum, with a cohort of its own; and old words."""
        if self._quiet:
            return
        draw = self.random
        self.tally.attacks += 1
        size = draw.randint(self.settings.threshold, self.settings.clients)
        group = sorted(draw.sample(range(CLIENTS), size))
        number = draw.choice((draw.randrange(1 << 50), *(one.attempt for one in self.beside)))
        attempt = Aggregator(
            self.settings,
            self.federation.run_id,
            self.server.version,
            group,
            SIZE,
            number,
            self._verify,
        )
        self.beside.append(attempt)
        self._say(attempt.begin(self.agenda.now))
        request = MaskRequest(0, self.server.version, number)
        for client in group:
            self._put(SERVER, client, request)
        for _ in range(draw.randrange(6)):
            self.tally.lies += 1
            self._put(SERVER, draw.randrange(CLIENTS), draw.choice(self.said or [request]))
        if draw.random() < 0.5:
            self.agenda.add(self.agenda.now + draw.uniform(0, 10), _ATTACK, SERVER)

    def _lie(self, message: Any) -> Any:
        """One of its words with something in it that is not true."""
        self.tally.lies += 1
        draw = self.random
        if isinstance(message, MaskRequest):
            return replace(message, base=max(0, message.base + draw.choice((-1, 0, 1))))
        clients = [int(one) for one in message.clients]
        kind = draw.randrange(4)
        if kind == 0 and len(clients) > 1:  # somebody is left out
            place = draw.randrange(len(clients))
            return self._without(message, place)
        if kind == 1 and isinstance(message, Survivors):  # somebody more
            more = sorted({*clients, draw.randrange(CLIENTS)})
            return replace(message, clients=np.array(more, dtype=np.int64))
        if kind == 2 and isinstance(message, MaskRoster):  # its own keys in place of somebody's
            place = draw.randrange(len(clients))
            found = [*pieces(message.keys, KEYS, clients).values()]
            found[place] = draw.choice(list(self.keys) or [found[place]])
            return replace(message, keys=b"".join(found))
        if kind == 3 and not isinstance(message, Survivors):
            content = message.keys if isinstance(message, MaskRoster) else message.sealed
            at = draw.randrange(max(1, len(content)))
            turned = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] if content else b""
            name = "keys" if isinstance(message, MaskRoster) else "sealed"
            return replace(message, **{name: turned})
        return replace(message, base=message.base + 1)

    def _without(self, message: Any, place: int) -> Any:
        clients = np.delete(message.clients, place)
        changed: dict[str, Any] = {"clients": clients}
        count = len(message.clients)
        names = {MaskRoster: ("keys", "signatures"), MaskDelivery: ("sealed",)}
        for name in names.get(type(message), ()):
            content = getattr(message, name)
            found = pieces(content, len(content) // count, range(count))
            changed[name] = b"".join(one for at, one in found.items() if at != place)
        return replace(message, **changed)

    # ---- what must hold

    def _judge(self, client: int, message: Any) -> None:
        if isinstance(message, Update | Model):
            raise self._violation(f"client {client} sent a {type(message).__name__} in the clear")
        if not isinstance(message, _OF_CLIENTS):
            return
        version = message.base
        if isinstance(message, MaskKeys) and message.keys:
            of = (client, version, message.attempt)
            if self.keys.setdefault(message.keys, of) != of:
                raise self._violation(f"client {client} has the same keys in two attempts")
        if isinstance(message, MaskedSum):
            self._judge_sum(client, version)
        if isinstance(message, Unmasking):
            self._judge_unmasking(client, version, message)

    def _judge_sum(self, client: int, version: int) -> None:
        part = self.clients[client]._participant
        assert part is not None and part.masked_with is not None
        first = self.rosters.setdefault((client, version), part.masked_with)
        if not part.masked_with <= first:
            raise self._violation(
                f"client {client} masked version {version} with {sorted(part.masked_with)}, with "
                f"{sorted(first)} before: the roster leaves the first one's set"
            )
        for other, keys in part._roster.items():
            if other != self.traitor and self.keys.get(keys) != (other, version, part.attempt):
                raise self._violation(f"client {client} took keys of client {other} for its own")

    def _judge_unmasking(self, client: int, version: int, message: Unmasking) -> None:
        part = self.clients[client]._participant
        assert part is not None and part.survivors
        survivors = part.survivors
        if len(survivors) < self.settings.threshold:
            raise self._violation(f"client {client} revealed shares for {len(survivors)} survivors")
        found = self.lists[client, version]
        found.add((message.attempt, survivors))
        if len(found) > 1:
            raise self._violation(f"client {client} revealed shares of version {version} twice")
        of = (version, message.attempt, survivors)
        self.revealed[of].add(client)
        for other in map(int, message.clients):
            which = "mask" if other in survivors else "key"
            self.secrets[part._roster[other], which].add(client)
            both = [self.secrets[part._roster[other], one] for one in ("mask", "key")]
            if other != self.traitor and all(self._enough(who) for who in both):
                raise self._violation(f"both secrets of client {other} can be opened")
        opened = [
            (attempt, kept)
            for (base, attempt, kept), who in self.revealed.items()
            if base == version and self._enough(who)
        ]
        for one, (attempt, kept) in enumerate(opened):
            for other, others in opened[:one]:
                if same := set(kept) & set(others) - {self.traitor}:
                    raise self._violation(
                        f"the sum of client {min(same)} in version {version} can be opened twice, "
                        f"with {kept} and with {others} (attempts {attempt % 997}, {other % 997})"
                    )

    def _enough(self, who: set[int]) -> bool:
        """True if so many honest clients, and all who are in league, open something."""
        return len(who - {self.traitor}) + (self.traitor is not None) >= self.settings.threshold

    def _violation(self, what: str) -> ViolationError:
        kind = "a cohort" if self.federation.cohort else f"{self.settings.colluders} colluders"
        return ViolationError(f"seed {self.seed} ({kind}): {what}")


def run_trials(
    first: int, count: int, report: Callable[[int], None] | None = None, liars: bool = True
) -> Tally:
    """Trials of consecutive seeds, added up.

    Raises:
        ViolationError: names the seed that shows it again.
    """
    total = Tally()
    for seed in range(first, first + count):
        found = MaskTrial(seed).run()
        for name in ("events", "crashes", "lies", "attacks", "opened"):
            setattr(total, name, getattr(total, name) + getattr(found, name))
        if report is not None:
            report(seed - first + 1)
    return total
