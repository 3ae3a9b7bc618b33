"""Client and server machines under secure aggregation: lost messages, crashes, clear updates."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from forethought.exchange import events as on
from forethought.exchange.messages import SERVER, Join, Leave, Update
from forethought.exchange.storage import LedgerState
from forethought.federated.federation import Federation, FederationError, Member
from forethought.federated.rules import cohort_of
from forethought.federated.secure_aggregation.client import SecureClient
from forethought.federated.secure_aggregation.masking import (
    SecureAggregation,
    SecureAggregationError,
    to_ring,
)
from forethought.federated.secure_aggregation.protocol import (
    SEALED_BYTES,
    Aggregator,
    MaskedSum,
    MaskKeys,
    MaskRequest,
    MaskShares,
    Participant,
    Unmasking,
    takes_no_part,
)
from forethought.federated.secure_aggregation.server import SecureServer
from forethought.federated.secure_aggregation.shared_noise import secured
from forethought.federated.server import ServerMachine
from forethought.federated.statements import Policy, client_statement
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Clip, Plan, grid, step_sizes
from forethought.values.use import Averaging

CLIENTS, SIZE, ROUNDS = 5, 7, 6


def agreed(**changes) -> Federation:
    plan = Plan(Mechanism(Rounds(2.0, ROUNDS, Poisson(0.5))), 40, 1e-5, averaging=Averaging("none"))
    members = tuple(Member(f"c{i}") for i in range(CLIENTS))
    plain = Federation(members, (plan,), SIZE, "", ROUNDS, exchanged="gradients")
    return replace(secured(plain, SecureAggregation(CLIENTS, 1, 1, patience=10.0)), **changes)


def in_cohorts() -> Federation:
    plain = replace(agreed(), secure=None, cohort=4)
    return secured(plain, SecureAggregation(4, 1, 0, patience=10.0))


class World:
    """All machines, what was committed and journalled, and a network that a test disturbs."""

    def __init__(self, seed: int, federation: Federation | None = None) -> None:
        self.federation = federation or agreed()
        self.random = random.Random(seed)
        one = self.federation.plan(0).round(0)
        self.step, _ = grid(one.noise_std, one.clip_norm, SIZE)
        self.divisor = one.divisor
        self.entries: list = []
        self.ledgers: dict[int, list] = {c: [] for c in range(CLIENTS)}
        self.alarms: list[str] = []
        self.texts: list[str] = []
        self.wire: deque = deque()
        self.seen: list = []
        self.done: set[int] = set()
        # What a client that lies says in place of a message; None: nothing.
        self.lies: Callable[[int, object], object] = lambda _sender, message: message
        self.now = 0.0
        self.start = np.zeros(SIZE, np.float32)
        self.clients: dict[int, SecureClient] = {}
        self.server = self._server()
        self._do(SERVER, self.server.handle(on.Connected(0.0)))
        for client in range(CLIENTS):
            self.restart(client)

    def _server(self) -> SecureServer:
        return SecureServer.restored(self.federation, self.start, None, self.entries)

    def crash_server(self) -> None:
        self.wire = deque(item for item in self.wire if item[0] != SERVER and item[1] != SERVER)
        self.server = self._server()
        self._do(SERVER, self.server.handle(on.Connected(self.now)))
        for client in range(CLIENTS):
            self._do(client, self.clients[client].handle(on.Connected(self.now)))

    def restart(self, client: int) -> None:
        kept = self.ledgers[client]
        state = LedgerState(len(kept), len(kept), b"", 0, (), kept[-1].base if kept else -1)
        self.wire = deque(item for item in self.wire if client not in item[:2])
        made = SecureClient(
            self.federation,
            client,
            state,
            elements=lambda number: self._elements(client, number),
            entropy=self.random.randbytes,
        )
        self.clients[client] = made
        self._do(client, made.handle(on.Connected(self.now)))

    def sum_of(self, client: int, number: int) -> np.ndarray:
        generator = np.random.default_rng([client, number])
        return generator.integers(-(2**20), 2**20, SIZE) * self.step

    def _elements(self, client: int, number: int) -> np.ndarray:
        return to_ring(self.sum_of(client, number), self.step, 48)

    def _do(self, who: int, effects: list) -> None:
        for effect in effects:
            match effect:
                case on.Send():
                    self.wire.append((who, effect.to, effect.message))
                case on.Commit():
                    assert effect.release.round == len(self.ledgers[who])
                    self.ledgers[who].append(effect.release)
                case on.Append():
                    self.entries.append(effect.entry)
                case on.Compute():
                    mean = self.sum_of(who, effect.round) / self.divisor
                    found = on.Computed(
                        effect.round, effect.base, mean.astype(np.float32), effect.round + 1,
                        bytes(32), b"", self.now,
                    )  # fmt: skip
                    self._do(who, self.clients[who].handle(found))
                case on.Alarm():
                    self.alarms.append(effect.code)
                    self.texts.append(effect.text)
                case on.Done():
                    self.done.add(who)

    def step_once(self) -> None:
        """Deliver a message, or let time pass where there is none."""
        if not self.wire:
            self.now += 11.0
            self._do(SERVER, self.server.handle(on.Woken(self.now)))
            if not self.wire:
                for client, machine in self.clients.items():
                    if client not in self.done:
                        self._do(client, machine.handle(on.Woken(self.now)))
            return
        sender, to, message = self.wire.popleft()
        if sender != SERVER and (message := self.lies(sender, message)) is None:
            return
        self.seen.append((sender, message))
        event = on.Received(sender, message, self.now)
        machine = self.server if to == SERVER else self.clients[to]
        self._do(to, machine.handle(event))

    def run(self, most: int = 20_000) -> None:
        for _ in range(most):
            if self.server.finished:
                return
            self.step_once()
        raise AssertionError(f"stuck at version {self.server.version}: {self.alarms[-5:]}")


def sums_of(world: World) -> dict[int, list]:
    """The entries of every version whose sum was opened."""
    found: dict[int, list] = {}
    for entry in world.entries:
        if hasattr(entry, "vector"):
            found.setdefault(entry.base, []).append(entry)
    return found


def expected(world: World) -> np.ndarray:
    """The model from the journal's means; every mean is checked against the ledgers' sums."""
    weights, sizes = np.zeros(SIZE, np.float32), world.federation.plan(0)
    by_base: dict[int, list] = {}
    for entry in world.entries:
        if type(entry).__name__ == "Accepted":
            by_base.setdefault(entry.base, []).append(entry)
    step = step_sizes(sizes)
    for base in sorted(by_base):
        mean = by_base[base][0].vector
        weights = (weights - step(base) * mean.astype(np.float64)).astype(np.float32)
    return weights


def test_the_models_are_those_of_the_opened_sums() -> None:
    world = World(0)
    world.run()
    assert world.server.version == ROUNDS
    for base in range(ROUNDS):
        sums = [world.sum_of(client, base) for client in range(CLIENTS)]
        wanted = (sum(sums) / (CLIENTS * world.divisor)).astype(np.float32)
        got = [e.vector for e in world.entries if getattr(e, "base", None) == base]
        assert len(got) == CLIENTS and all(np.array_equal(one, wanted) for one in got)
    assert np.allclose(world.server.reported, expected(world), atol=1e-6)
    # No update ever crossed the network in the clear, and every release is in a ledger.
    assert not any(isinstance(message, Update) for _, message in world.seen)
    assert all(len(kept) == ROUNDS for kept in world.ledgers.values())
    while world.wire:
        world.step_once()
    assert not world.alarms
    assert world.done == {SERVER, *range(CLIENTS)}


def test_a_cohort_is_summed_and_nobody_else_is_asked() -> None:
    world = World(0, in_cohorts())
    world.run()
    asked = [
        cohort_of(world.federation, base, np.arange(CLIENTS, dtype=np.int64))
        for base in range(ROUNDS)
    ]
    assert len(set(asked)) > 1 and {len(cohort) for cohort in asked} == {4}
    numbers = dict.fromkeys(range(CLIENTS), 0)
    for base, cohort in enumerate(asked):
        entries = [entry for entry in world.entries if entry.base == base]
        assert [entry.client for entry in entries] == list(cohort)
        sums = [world.sum_of(client, numbers[client]) for client in cohort]
        wanted = (sum(sums) / (4 * world.divisor)).astype(np.float32)
        assert all(np.array_equal(entry.vector, wanted) for entry in entries)
        for client in cohort:
            numbers[client] += 1
    assert {client: len(kept) for client, kept in world.ledgers.items()} == numbers
    assert not any(isinstance(message, Update) for _, message in world.seen)


def test_who_left_stays_away_behind_masks() -> None:
    """It has no masks for the round that goes on: taken back, it could keep it shut for ever."""
    world = World(0)
    world._do(3, world.clients[3].handle(on.Stopped(0.0)))
    world._do(SERVER, world.server.handle(on.Received(3, Leave(0, -1, "stopped"), 0.0)))
    world.restart(3)
    world.run()
    assert world.server.left == {3} and world.server.version == ROUNDS and not world.ledgers[3]


def test_a_cohort_that_too_many_left_is_drawn_anew() -> None:
    world = World(0, in_cohorts())
    first = cohort_of(world.federation, 0, np.arange(CLIENTS, dtype=np.int64))
    for client in first[:2]:
        world._do(client, world.clients[client].handle(on.Stopped(0.0)))
    world.run()
    # Three are left, of whom a sum is opened: the fifth, who was not asked at first, is among them.
    assert world.server.version == ROUNDS
    left = set(range(CLIENTS)) - set(first[:2])
    summed = [entry for entry in world.entries if hasattr(entry, "vector")]
    assert {entry.client for entry in summed} == left and len(summed) == 3 * ROUNDS
    # One more that goes leaves too few to hide among: nothing is opened any more.
    world = World(0, in_cohorts())
    for client in range(3):
        world._do(client, world.clients[client].handle(on.Stopped(0.0)))
    for _ in range(500):
        world.step_once()
    assert "secure-few" in world.alarms and not world.server.version


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("seed", "cohorts"), [(s, False) for s in range(25)] + [(s, True) for s in range(8)]
)
def test_crashes_and_losses_never_clear_a_single_sum(seed: int, cohorts: bool) -> None:
    """Clients and server die at random; what is applied is a sum of enough clients, once each."""
    world = World(seed, in_cohorts() if cohorts else None)
    for _ in range(6):
        for _ in range(world.random.randrange(5, 90)):
            if not world.server.finished:
                world.step_once()
        if world.random.random() < 0.4:
            world.crash_server()
        else:
            world.restart(world.random.randrange(CLIENTS))
    world.run()  # no crash stops it for good
    assert world.server.version == ROUNDS
    assert not any(isinstance(message, Update) for _, message in world.seen)
    opened: dict[int, set[int]] = {}
    for entry in world.entries:
        if type(entry).__name__ != "Accepted":
            continue
        seen = opened.setdefault(entry.base, set())
        assert entry.client not in seen
        seen.add(entry.client)
        kept = world.ledgers[entry.client][entry.round]
        assert kept.base == entry.base
    for base in opened:
        vectors = [
            e.vector
            for e in world.entries
            if getattr(e, "base", None) == base and hasattr(e, "vector")
        ]
        assert all(np.array_equal(vectors[0], one) for one in vectors)
    for client, kept in world.ledgers.items():
        assert [release.round for release in kept] == list(range(len(kept)))
        assert len(kept) <= ROUNDS
        # One sum of a client is opened at most once: one answer a version and attempt.
        answered = [m.base for who, m in world.seen if who == client and isinstance(m, Unmasking)]
        attempts = {
            (m.base, m.attempt)
            for who, m in world.seen
            if who == client and isinstance(m, Unmasking)
        }
        assert len(attempts) == len(set(answered))
    restored = ServerMachine.restored(world.federation, world.start, None, world.entries)
    assert np.array_equal(restored.reported, world.server.reported)


def test_one_client_that_drops_out_each_round_stops_nobody() -> None:
    world = World(1)
    rounds = 0
    while not world.server.finished and rounds < 20_000:
        rounds += 1
        if world.wire and isinstance(world.wire[0][2], MaskedSum) and world.wire[0][0] == 2:
            world.wire.popleft()
            continue
        world.step_once()
    assert world.server.finished
    clients = {entry.client for entry in world.entries if hasattr(entry, "client")}
    assert clients == {0, 1, 3, 4}
    assert len(world.ledgers[2]) == ROUNDS  # released, and counted, all the same


def test_updates_in_the_clear_and_second_unmaskings_are_refused() -> None:
    world = World(2)
    vector = np.zeros(SIZE, np.float32)
    found = world.server.handle(on.Received(1, Update(0, 0, vector), 0.0))
    assert [effect.code for effect in found] == ["secure-clear"]
    world.run()
    again = world.clients[0].handle(on.Received(SERVER, MaskRequest(0, ROUNDS - 1, 7), 0.0))
    assert again[0].code == "secure-again"
    assert [effect.message.keys for effect in again[1:]] == [b""]  # nothing else leaves
    wrong = world.clients[0].handle(on.Received(SERVER, Join(0, 0), 0.0))
    assert [effect.code for effect in wrong] == ["kind"]


def reached(world: World, done) -> None:
    """Go on until something is true."""
    for _ in range(5000):
        if done():
            return
        world.step_once()
    raise AssertionError(world.alarms[-5:])


def masked_by(world: World, client: int) -> list[MaskedSum]:
    return [m for who, m in world.seen if who == client and isinstance(m, MaskedSum)]


def test_a_sum_is_masked_with_one_roster_or_a_part_of_it() -> None:
    """A server that lies asks for a sum once more, each time with other clients.

    Each opened sum would have fresh noise of the others' and the same of this client's.
    """
    federation = in_cohorts()
    world = World(5, federation)
    asked = world.server.rule.asked
    victim, outsider = asked[0], next(c for c in range(CLIENTS) if c not in asked)
    reached(world, lambda: masked_by(world, victim))
    first = masked_by(world, victim)[0]

    def attempt(number: int, clients: tuple[int, ...]) -> list:
        """What the victim answers to another attempt of this version with these clients."""
        aggregator = Aggregator(
            world.server.settings, federation.run_id, 0, clients, SIZE, attempt=number
        )
        aggregator.begin(0.0)
        said: list = []
        waiting = {}
        for client in clients:
            if client == victim:
                machine = world.clients[victim]
                effects = machine.handle(on.Received(SERVER, MaskRequest(0, 0, number), 0.0))
            else:  # the server plays the others
                other = Participant(
                    world.server.settings, federation.run_id, 0, client, attempt=number,
                    entropy=world.random.randbytes,
                )  # fmt: skip
                other.contribute(np.zeros(SIZE, np.uint64))
                machine, effects = other, other.begin()
            waiting[client] = machine
            for effect in effects:
                if isinstance(effect, on.Send):
                    said.append((client, effect.message))
        heard = []
        while said:
            client, message = said.pop(0)
            if client == victim:
                heard.append(message)
            for effect in aggregator.handle(on.Received(client, message, 0.0)):
                if isinstance(effect, on.Send):
                    for answer in waiting[effect.to].handle(
                        on.Received(SERVER, effect.message, 0.0)
                    ):
                        if isinstance(answer, on.Send):
                            said.append((effect.to, answer.message))
        return ["no part" if takes_no_part(one) else type(one) for one in heard]

    others = tuple(sorted({*asked[:3], outsider}))
    assert attempt(71, others) == [MaskKeys, "no part"]
    assert attempt(72, tuple(sorted({*asked[:2], outsider}))) == [MaskKeys, "no part"]
    # With some of the first ones, as after drop-outs, it goes on, and is opened once.
    assert MaskedSum in attempt(73, asked[:3])
    assert attempt(74, asked[:3]) == ["no part"]
    assert first.base == 0


def test_a_round_that_can_not_be_opened_any_more_is_lost_and_no_other() -> None:
    """Everybody has revealed what it holds when the server dies: nobody masks that sum again."""
    world = World(6)
    reached(world, lambda: sum(isinstance(m, Unmasking) for _, m in world.seen) == 3)
    world.crash_server()
    world.run()
    assert world.alarms.count("secure-round-lost") == 1
    bases = {entry.base for entry in world.entries if hasattr(entry, "vector")}
    assert bases == set(range(1, ROUNDS)) and world.server.version == ROUNDS
    restored = ServerMachine.restored(world.federation, world.start, None, world.entries)
    assert np.array_equal(restored.reported, world.server.reported)


def test_one_client_with_false_keys_costs_itself_only() -> None:
    world = World(7)
    world.server.verify = lambda client, _content, signature: client != 1
    world.run()
    assert "secure-unsigned" in world.alarms and "secure-round-lost" not in world.alarms
    clients = {entry.client for entry in world.entries if hasattr(entry, "client")}
    assert clients == {0, 2, 3, 4}


def flipped(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 1
    return bytes(changed)


def to_all(message):
    sealed = bytearray(message.sealed)
    for start in range(0, len(sealed) - 32, SEALED_BYTES):
        sealed[start + 5] ^= 1
    return replace(message, sealed=bytes(sealed))


def without_the_last(message):
    sealed = message.sealed[: -32 - SEALED_BYTES] + message.sealed[-32:]
    return replace(message, clients=message.clients[:-1], sealed=sealed)


def complaint(message):
    accused = np.array([0], dtype=np.int64)
    return MaskShares(message.round, message.base, message.attempt, accused, b"")


# What client 1 says in place of a message of some kind: rounds that it may cost.
LIES = {
    "shares that open for nobody": (MaskShares, to_all, 0),
    "shares that do not open for one": (
        MaskShares, lambda m: replace(m, sealed=flipped(m.sealed, 5)), 0,
    ),
    "nothing for one": (MaskShares, without_the_last, 0),
    "too few bytes": (MaskShares, lambda m: replace(m, sealed=m.sealed[:40]), 0),
    "another mask than it shared": (
        MaskShares, lambda m: replace(m, sealed=flipped(m.sealed, -1)), 1,
    ),
    "a false complaint": (MaskedSum, complaint, 0),
    "a false share": (Unmasking, lambda m: replace(m, shares=flipped(m.shares, 70)), 0),
    "no share of one": (
        Unmasking, lambda m: replace(m, clients=m.clients[:-1], shares=m.shares[:-32]), 0,
    ),
    "keys too short": (MaskKeys, lambda m: replace(m, keys=m.keys[:-1]), 0),
    "no keys": (MaskKeys, lambda m: None, 0),
    "no sum": (MaskedSum, lambda m: None, 0),
    "no shares": (Unmasking, lambda m: None, 0),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_one_liar_of_five_stops_nobody_and_is_named(lie: str) -> None:
    kind, instead, cost = LIES[lie]
    world = World(8)
    world.lies = lambda sender, message: (
        instead(message) if sender == 1 and isinstance(message, kind) else message
    )
    world.run()
    assert world.server.version == ROUNDS
    summed = sums_of(world)
    assert len(summed) == ROUNDS - cost
    for entries in summed.values():
        assert len(entries) >= world.server.settings.threshold
        sums = [world.sum_of(entry.client, entry.round) for entry in entries]
        wanted = (sum(sums) / (len(entries) * world.divisor)).astype(np.float32)
        assert all(np.array_equal(entry.vector, wanted) for entry in entries)
    if not lie.startswith("no "):
        assert any("client 1" in text for text in world.texts if "secure" not in text)


@pytest.mark.parametrize("half", [0, 32])
def test_a_key_of_small_order_stops_nobody(half: int) -> None:
    world = World(0)

    def lies(sender: int, message: object) -> object:
        if sender != 1 or not isinstance(message, MaskKeys) or not message.keys:
            return message
        return replace(message, keys=message.keys[:half] + bytes(32) + message.keys[half + 32 :])

    world.lies = lies
    world.run()
    assert world.server.version == ROUNDS
    assert any("client 1" in text and "X25519" in text for text in world.texts)


@pytest.mark.thinned
@pytest.mark.parametrize("seed", range(40))
def test_a_liar_among_crashes_costs_few_rounds(seed: int) -> None:
    """Client 1 lies at random, in every way; in half of the runs machines die beside it."""
    crashes = 3 * (seed % 2)
    world = World(seed)
    kinds = [LIES[name] for name in sorted(LIES)]

    def lies(sender: int, message):
        if sender == 1 and world.random.random() < 0.4:
            ways = [instead for kind, instead, _ in kinds if isinstance(message, kind)]
            if ways and getattr(message, "sealed", b"x") and getattr(message, "keys", b"x"):
                return world.random.choice(ways)(message)
        return message

    world.lies = lies
    for _ in range(crashes):
        for _ in range(world.random.randrange(5, 90)):
            if not world.server.finished:
                world.step_once()
        if world.random.random() < 0.5:
            world.crash_server()
        else:
            world.restart(world.random.randrange(CLIENTS))
    world.run()
    assert world.server.version == ROUNDS
    summed = sums_of(world)
    # A client that dies beside the liar, or a server in the middle of a round, may cost that round.
    assert len(summed) >= ROUNDS - 2 - crashes
    for entries in summed.values():
        sums = [world.sum_of(entry.client, entry.round) for entry in entries]
        wanted = (sum(sums) / (len(entries) * world.divisor)).astype(np.float32)
        assert np.allclose(entries[0].vector, wanted, rtol=1e-6)
    for client in range(CLIENTS):
        answered = [m for who, m in world.seen if who == client and isinstance(m, Unmasking)]
        attempts = {(m.base, m.attempt) for m in answered}
        assert len(attempts) == len({base for base, _ in attempts})


def test_what_does_not_fit_is_refused() -> None:
    plain = replace(agreed(), secure=None)
    with pytest.raises(SecureAggregationError, match="no secure aggregation"):
        SecureClient(plain, 0, elements=lambda number: np.zeros(1, np.uint64))
    with pytest.raises(SecureAggregationError, match="leave the deadline"):
        SecureServer(agreed(deadline=5.0), np.zeros(SIZE, np.float32))
    # Its noise moves with its norm, and a client that missed a round would add that of another.
    whole = agreed()
    falling = whole.plan(0).remade(clip=Clip(1.0, final=0.1))
    with pytest.raises(SecureAggregationError, match="miss rounds"):
        SecureServer(replace(whole, plans=(falling,)), np.zeros(SIZE, np.float32))


@pytest.mark.parametrize("written", range(1, CLIENTS))
def test_a_server_that_died_in_the_middle_of_writing_goes_on_with_the_same_mean(
    written: int,
) -> None:
    world = World(3)
    while world.server.version < 1:
        world.step_once()
    whole = [entry.vector for entry in world.entries]
    assert len(whole) == CLIENTS
    world.entries = world.entries[:written]
    world.crash_server()
    assert world.server.version == 1
    # The mean of some equal vectors is that of all, but for the last bit.
    assert np.allclose(world.server.rule.model, expected(world), rtol=1e-6)
    world.run()
    assert np.array_equal(world.entries[0].vector, whole[0])


def test_a_policy_says_whether_it_rests_on_secure_aggregation() -> None:
    federation = agreed()
    behind = client_statement(federation, 0, "secure-server").guarantee
    alone = client_statement(federation, 0).guarantee
    middle = (behind + alone) / 2
    with pytest.raises(FederationError, match="policy allows"):
        Policy(middle, 1e-5).require(federation, 0)
    Policy(middle, 1e-5, secure=True).require(federation, 0)
    with pytest.raises(FederationError, match="policy allows"):
        Policy(behind / 2, 1e-5, secure=True).require(federation, 0)
