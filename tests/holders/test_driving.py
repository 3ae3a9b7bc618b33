"""The table of frames that are refused, against the real machines: no state changes.

What a server holds (its machine, its journal) and what a client holds (its ledger, its machine) is
compared before and after every hostile frame.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from forethought.exchange import events as on
from forethought.exchange.messages import (
    SERVER,
    Acknowledgement,
    Endpoint,
    Finished,
    Frame,
    Join,
    Model,
    Refusal,
    Update,
    seal,
)
from forethought.exchange.storage import ClientLedger, ServerJournal
from forethought.federated.client import ClientMachine
from forethought.federated.federation import Federation, Member
from forethought.federated.server import ServerMachine
from forethought.holders.driving import ClientDriver, ServerDriver
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Clip, Plan
from forethought.values.use import Optimizer, Schedule
from trials.storage import MemoryStorage

D, ROUNDS = 6, 3
KEYS = {
    place: Ed25519PrivateKey.from_private_bytes(bytes([place + 9]) * 32) for place in (-1, 0, 1)
}
RAW = {place: key.public_key().public_bytes_raw() for place, key in KEYS.items()}


def agreed(rounds: int = ROUNDS) -> Federation:
    plan = Plan(
        Mechanism(Rounds(1.0, rounds, Poisson(0.1)), adjacency="add-or-remove"),
        100,
        1e-5,
        clip=Clip(1.0),
        optimizer=Optimizer("sgd", 1.0, ()),
        schedule=Schedule("constant"),
    )
    members = tuple(Member(f"c{place}", public_key=RAW[place].hex()) for place in (0, 1))
    return Federation(members, (plan,), D, "none", rounds, server_key=RAW[SERVER].hex())


class Service:
    """A server's driver over memory, and what it sent."""

    def __init__(self, federation: Federation | None = None) -> None:
        self.federation = federation or agreed()
        self.storage = MemoryStorage()
        self.sent: list[tuple[int, Any]] = []
        journal = ServerJournal(self.storage, self.federation.run_id)
        self.machine = ServerMachine(self.federation, np.zeros(D, dtype=np.float32))
        keys = {place: RAW[place] for place in (0, 1)}
        endpoint = Endpoint(self.federation.run_id, SERVER, KEYS[SERVER], keys, D)
        self.driver = ServerDriver(
            self.machine,
            journal,
            endpoint,
            lambda to, message, frame: self.sent.append((to, message)),
            self.machine.snapshot,
            clock=lambda: 0.0,
        )
        self.driver.connected()

    def state(self) -> tuple[Any, ...]:
        snapshot = self.machine.snapshot()
        arrays = {name: (a.dtype.str, a.tobytes()) for name, a in snapshot.arrays.items()}
        return json.dumps(snapshot.values), arrays, self.storage.contents()

    def client(self, place: int, run: bytes | None = None) -> Endpoint:
        return Endpoint(run or self.federation.run_id, place, KEYS[place], {SERVER: RAW[-1]}, D)

    def give(self, place: int, message: Any) -> None:
        self.driver.received(self.client(place).seal(SERVER, message), place)


def update(round_: int = 0, base: int = 0, value: float = 0.5) -> Update:
    return Update(round_, base, np.full(D, value, dtype=np.float32))


def started() -> Service:
    service = Service()
    service.give(0, Join(0, -1))
    service.give(1, Join(0, -1))
    service.give(0, update())
    return service


GOOD = started().client(1).seal(SERVER, update())
OTHER = bytes(32)


def flipped(at: int) -> bytes:
    changed = bytearray(GOOD)
    changed[at] ^= 1
    return bytes(changed)


def raw(kind: int, payload: bytes, sender: int = 1, key: int = 1) -> bytes:
    frame = Frame(kind, started().federation.run_id, sender, SERVER, 0, 0, payload)
    return seal(frame, KEYS[key])


HOSTILE = {
    "truncated": (GOOD[:-10], "FrameError"),
    "oversized": (GOOD + bytes(10), "FrameError"),
    "lying length": (flipped(8), "FrameError"),
    "wrong version": (flipped(4), "FrameError"),
    "wrong kind": (raw(4, b""), "FrameError"),
    "unknown sender": (raw(2, b"", sender=7), "ForgeryError"),
    "forged sender": (raw(2, b"", sender=0), "ForgeryError"),
    "payload flipped": (flipped(-80), "ForgeryError"),
    "signature flipped": (flipped(-1), "ForgeryError"),
    "other run": (started().client(1, OTHER).seal(SERVER, update()), "FrameError"),
    "other shape": (
        Endpoint(started().federation.run_id, 1, KEYS[1], {}, D + 1).seal(
            SERVER, Update(0, 0, np.zeros(D + 1, dtype=np.float32))
        ),
        "FrameError",
    ),
    "shorter": (
        started().client(1).seal(SERVER, Update(0, 0, np.zeros(D - 1, dtype=np.float32))),
        "DecodeError",
    ),
    "other precision": (raw(2, b"d" + bytes(8 + 4 * D)), "DecodeError"),
    "NaN": (started().client(1).seal(SERVER, update(value=float("nan"))), "DecodeError"),
    "beyond any model": (started().client(1).seal(SERVER, update(value=3e38)), "DecodeError"),
    "beyond honest noise": (started().client(1).seal(SERVER, update(value=1e17)), "norm"),
    "a little beyond honest noise": (
        started().client(1).seal(SERVER, update(value=300.0)),
        "norm",
    ),
    "future base": (started().client(1).seal(SERVER, update(base=1)), "future"),
    "beyond the plan": (started().client(1).seal(SERVER, update(round_=ROUNDS)), "beyond plan"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_frame_changes_nothing_and_is_seen(name: str) -> None:
    data, code = HOSTILE[name]
    service = started()
    before, sent = service.state(), len(service.sent)
    service.driver.received(data, 1)
    assert service.state() == before
    assert service.driver.counts == {code: 1} and service.driver.alarms[0].code == code
    answers = service.sent[sent:]
    assert all(isinstance(message, Refusal) and to == 1 for to, message in answers)
    # Whoever signed it hears that it was refused, and does not send it for ever.
    assert len(answers) == (0 if code in ("FrameError", "ForgeryError") else 1)
    assert all(message.reason == "undecodable" for _, message in answers) or code != "DecodeError"
    service.give(1, update())  # and an honest update is still taken
    assert service.machine.version == 1


def test_another_members_good_frame_over_ones_own_connection_is_refused() -> None:
    service = started()
    before = service.state()
    service.driver.received(GOOD, 0)
    assert service.state() == before and service.driver.counts == {"ForgeryError": 1}
    sent = len(service.sent)
    service.driver.received(HOSTILE["NaN"][0], 0)
    assert service.state() == before and len(service.sent) == sent


def test_a_replay_is_acknowledged_again_and_not_applied() -> None:
    service = started()
    before, sent = service.state(), len(service.sent)
    for _ in range(3):
        service.give(0, update())
    assert service.state() == before and not service.driver.alarms
    answers = [message for _, message in service.sent[sent:]]
    assert all(isinstance(one, Acknowledgement) and one.round == 0 for one in answers)
    assert len(answers) == 3


def test_other_bytes_for_a_round_are_refused_with_an_alarm_also_after_a_restart() -> None:
    service = started()
    before = service.state()
    service.give(0, update(value=0.25))
    assert service.state() == before and service.driver.counts == {"conflict": 1}
    assert isinstance(service.sent[-1][1], Refusal) and service.sent[-1][1].reason == "conflict"
    again = Service()
    again.storage = MemoryStorage(service.storage.contents())
    journal = ServerJournal(again.storage, again.federation.run_id)
    start = np.zeros(D, dtype=np.float32)
    again.machine = ServerMachine.restored(again.federation, start, *journal.read())
    again.driver.machine, again.driver.journal = again.machine, journal
    assert again.state() == before
    again.give(0, update(value=0.25))
    assert again.driver.counts == {"conflict": 1}
    again.give(0, update())
    assert isinstance(again.sent[-1][1], Acknowledgement)


class Holder:
    """A client's driver over memory: what it sent, and what it was asked to compute."""

    def __init__(self) -> None:
        self.federation = agreed()
        self.storage = MemoryStorage()
        self.frames: list[bytes] = []
        self.asked: list[on.Compute] = []
        self.endpoint = Endpoint(self.federation.run_id, 0, KEYS[0], {SERVER: RAW[SERVER]}, D)
        self.ledger = ClientLedger(self.storage, self.endpoint, "data")
        self.machine = ClientMachine(self.federation, 0, self.ledger.read())
        self.driver = ClientDriver(
            self.machine,
            self.ledger,
            self.endpoint,
            lambda to, message, frame: self.frames.append(frame),
            self.asked.append,
            clock=lambda: 0.0,
        )
        self.driver.connected()
        self.server = Endpoint(self.federation.run_id, SERVER, KEYS[SERVER], {}, D)

    def told(self, message: Any) -> None:
        self.driver.received(self.server.seal(0, message), SERVER)

    def compute(self) -> None:
        work = self.asked[-1]
        vector = work.vector + np.float32(0.5)
        self.driver.handle(
            on.Computed(work.round, work.base, vector, work.round + 1, bytes(32), b"", 0.0)
        )


def model(base: int, round_: int = 0) -> Model:
    return Model(round_, base, np.full(D, base, dtype=np.float32))


def test_a_release_is_in_the_ledger_before_it_is_sent_and_stays_the_same_bytes() -> None:
    holder = Holder()
    order: list[str] = []
    append = holder.storage.append
    holder.storage.append = lambda *a: (order.append("written"), append(*a))[1]  # type: ignore[method-assign, func-returns-value]
    out = holder.driver.out
    holder.driver.out = lambda *a: (order.append("sent"), out(*a))[1]  # type: ignore[assignment, func-returns-value]
    holder.told(model(0))
    holder.compute()
    assert order == ["written", "sent"]
    first = holder.frames[-1]
    assert [first] == holder.ledger.frames()
    holder.driver.connected()
    assert holder.frames[-1] == first  # again, the same bytes
    assert isinstance(holder.server.run_id, bytes)
    holder.told(Acknowledgement(0, 0))
    holder.driver.connected()
    assert holder.frames[-1] != first


def test_an_update_that_is_not_in_the_ledger_cannot_be_sent() -> None:
    holder = Holder()
    with pytest.raises(RuntimeError, match="in the ledger"):
        holder.driver.frame(SERVER, update())


def test_a_hostile_server_gets_one_release_a_round_and_none_beyond_the_plan() -> None:
    """Old models, the same one again, and models for ever: the ledger holds the plan's updates."""
    holder = Holder()
    for base in range(10):
        for again in (base, base, max(0, base - 1)):
            asked = len(holder.asked)
            holder.told(model(again, min(base, holder.machine.updates)))
            if len(holder.asked) > asked:
                holder.compute()
    assert holder.ledger.read().updates == ROUNDS == len(holder.asked)
    restarted = ClientMachine(holder.federation, 0, holder.ledger.read())
    for base in range(20):
        effects = restarted.handle(on.Received(SERVER, model(base), 0.0))
        assert not any(isinstance(effect, on.Compute) for effect in effects)


@pytest.mark.parametrize(
    "message",
    [
        Model(0, 0, np.full(D, np.nan, dtype=np.float32)),
        Model(0, 0, np.zeros(D - 1, dtype=np.float32)),
        update(),
    ],
    ids=["NaN", "shape", "kind"],
)
def test_what_a_client_does_not_take_from_its_server(message: Any) -> None:
    holder = Holder()
    before = holder.storage.contents()
    holder.told(message)
    assert not holder.asked and holder.storage.contents() == before
    assert sum(holder.driver.counts.values()) == 1
    holder.told(model(0))
    assert len(holder.asked) == 1


def test_a_forged_server_is_not_believed() -> None:
    holder = Holder()
    stranger = Ed25519PrivateKey.generate()
    for message in (model(0), Acknowledgement(0, 0), Finished(0, 1, model(0).vector)):
        forged = Endpoint(holder.federation.run_id, SERVER, stranger, {}, D).seal(0, message)
        holder.driver.received(forged, SERVER)
    assert not holder.asked and holder.driver.done is None
    assert holder.driver.counts == {"ForgeryError": 3}


def test_a_heartbeat_of_a_client_that_has_the_newest_model_costs_none() -> None:
    service = Service()
    service.give(0, Join(0, -1))
    assert isinstance(service.sent[-1][1], Model)
    sent = len(service.sent)
    for _ in range(3):
        service.give(0, Join(0, 0))
    assert len(service.sent) == sent
    service.give(0, Join(0, -1))  # its process was started again
    assert isinstance(service.sent[-1][1], Model)
