"""A client takes weights and timing from the server, and nothing else."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machines import D, federation, from_server, model, of, plan, sent, vector

import forethought as ft
from forethought.exchange import events as on
from forethought.exchange.messages import (
    SERVER,
    Acknowledgement,
    Finished,
    Join,
    Leave,
    Refusal,
    Update,
)
from forethought.exchange.storage import LedgerState
from forethought.federated.client import ClientMachine
from forethought.federated.federation import Delay, Federation, FederationError
from forethought.federated.server import ServerMachine
from forethought.federated.statements import Policy


def computed(asked: on.Compute, now: float = 0.0) -> on.Computed:
    return on.Computed(
        asked.round, asked.base, vector(*(asked.round + 1.0,) * D), asked.round + 1, b"", b"s", now
    )


def test_a_plan_beyond_the_policy_is_refused_before_anything_is_sent() -> None:
    agreed = federation()
    spent = ft.account(agreed.plan(0), delta=1e-3).guarantee
    ClientMachine(agreed, 0, policy=Policy(spent * 1.01, 1e-3))
    with pytest.raises(FederationError, match="the policy allows"):
        ClientMachine(agreed, 0, policy=Policy(spent * 0.99, 1e-3))


def test_an_update_is_committed_before_it_is_sent_and_sent_until_it_is_answered() -> None:
    machine = ClientMachine(federation(), 0)
    (asked,) = machine.handle(from_server(model(0, 1, 2, 3, 4)))
    assert isinstance(asked, on.Compute) and asked.round == 0 and asked.base == 0
    commit, send = machine.handle(computed(asked))
    assert isinstance(commit, on.Commit) and isinstance(send, on.Send)
    assert commit.release.update is send.message
    for now in (1.0, 9.0):
        again = machine.handle(on.Woken(now))
        assert sent(again, Update) == [send.message]
        assert [join.round for join in sent(again, Join)] == [1]
    assert machine.handle(from_server(Acknowledgement(0, 0))) == [on.Acknowledged(0)]
    assert not sent(machine.handle(on.Woken(20.0)), Update)


def test_one_model_is_computed_on_once_whatever_the_server_repeats() -> None:
    machine = ClientMachine(federation(), 0)
    (asked,) = machine.handle(from_server(model(0)))
    assert not machine.handle(from_server(model(0)))  # while it computes
    machine.handle(computed(asked))
    assert not machine.handle(from_server(model(0)))  # afterwards
    (later,) = machine.handle(from_server(model(1)))
    assert isinstance(later, on.Compute) and later.round == 1
    assert not machine.handle(from_server(model(0)))  # an old one


def test_a_restarted_client_goes_on_from_its_ledger() -> None:
    first = ClientMachine(federation(), 0)
    (asked,) = first.handle(from_server(model(0)))
    (commit, send) = first.handle(computed(asked))
    state = LedgerState(1, 1, b"s", 0, (commit.release.update,), base=0)
    again = ClientMachine(federation(), 0, state)
    effects = again.handle(on.Connected(0.0))
    assert sent(effects, Update) == [send.message]
    assert not again.handle(from_server(model(0)))
    (later,) = again.handle(from_server(model(1)))
    assert later.round == 1


def test_nothing_is_computed_beyond_the_plan() -> None:
    machine = ClientMachine(federation(rounds=2), 0)
    for base in range(2):
        (asked,) = machine.handle(from_server(model(base)))
        machine.handle(computed(asked))
    effects = machine.handle(from_server(model(2)))
    assert not of(effects, on.Compute)
    assert [leave.reason for leave in sent(effects, Leave)] == ["plan used up"]


@pytest.mark.parametrize(
    "message", [model(0, round=1), Acknowledgement(0, 0), Finished(3, 2, vector())]
)
def test_a_ledger_that_was_set_back_stops_for_ever(message: object) -> None:
    machine = ClientMachine(federation(), 0)
    effects = machine.handle(from_server(message))
    assert [alarm.code for alarm in of(effects, on.Alarm)] == ["ledger set back"]
    assert machine.handle(from_server(model(5))) == []
    assert machine.handle(on.Woken(1e9)) == []


def test_a_model_of_another_shape_or_precision_is_refused() -> None:
    machine = ClientMachine(federation(), 0)
    wrong = (np.zeros(D + 1, np.float32), np.zeros(D), np.zeros((1, D), np.float32))
    for values in wrong:
        from forethought.exchange.messages import Model

        effects = machine.handle(from_server(Model(0, 0, values)))
        assert [alarm.code for alarm in of(effects, on.Alarm)] == ["model"]
        assert machine.weights is None


def test_messages_of_others_and_answers_out_of_place_change_nothing() -> None:
    machine = ClientMachine(federation(), 0)
    assert of(machine.handle(on.Received(1, model(0), 0.0)), on.Alarm)
    assert of(machine.handle(from_server(Join(0, 0))), on.Alarm)
    assert machine.handle(from_server(Refusal(4, 0, "late"))) == []
    assert of(machine.handle(computed(on.Compute(0, 0, vector()))), on.Alarm)
    assert machine.updates == 0 and machine.weights is None


def test_a_refused_update_is_not_sent_again_and_stays_spent() -> None:
    machine = ClientMachine(federation(), 0)
    (asked,) = machine.handle(from_server(model(0)))
    machine.handle(computed(asked))
    assert machine.handle(from_server(Refusal(0, 0, "late"))) == [on.Acknowledged(0)]
    assert machine.updates == 1 and not sent(machine.handle(on.Woken(1.0)), Update)


def test_an_owner_can_end_it() -> None:
    machine = ClientMachine(federation(), 0)
    effects = machine.handle(on.Stopped(0.0))
    assert sent(effects, Leave) and of(effects, on.Done)
    assert machine.handle(from_server(model(0))) == []


@pytest.mark.parametrize(("most", "ahead"), [(0, 1), (1, 2), (3, 4)])
def test_asynchronously_it_runs_ahead_as_far_as_the_delay_permits(most: int, ahead: int) -> None:
    agreed = federation(1, 8, rule="asynchronous", delay=Delay("constant", most))
    machine = ClientMachine(agreed, 0)
    effects = machine.handle(from_server(model(0, 1, 1, 1, 1)))
    rounds = 0
    while of(effects, on.Compute):
        rounds += 1
        effects = machine.handle(computed(of(effects, on.Compute)[0]))
    assert rounds == ahead
    (asked,) = machine.handle(from_server(model(1)))
    assert asked.round == ahead and asked.base == 1


def test_own_steps_go_down_along_the_gradient() -> None:
    # Algorithm 4 prints + η̄U, which climbs.
    agreed = federation(2, 8, rule="asynchronous")
    machine = ClientMachine(agreed, 0)
    (asked,) = machine.handle(from_server(model(0, 1, 1, 1, 1)))
    machine.handle(computed(asked))
    size = plan().optimizer.learning_rate / 2  # half of the weight is the other client's
    assert machine.weights is not None
    assert machine.weights.tolist() == [1 - size] * D
    assert math.isclose(asked.vector[0], 1.0)  # the received one is as it was


class Wired:
    """A server and its clients, and what is between them."""

    def __init__(self, terms: Federation) -> None:
        self.clients = [ClientMachine(terms, place) for place in range(len(terms.members))]
        self.machines = {SERVER: ServerMachine(terms, vector()), **dict(enumerate(self.clients))}
        self.entries: list[Any] = []
        self.alarms: list[str] = []
        self.ended: set[int] = set()
        self.wire: deque[tuple[int, int, object]] = deque()

    def do(self, who: int, event: on.Event) -> None:
        for effect in self.machines[who].handle(event):
            match effect:
                case on.Send():
                    self.wire.append((who, effect.to, effect.message))
                case on.Append():
                    self.entries.append(effect.entry)
                case on.Compute():
                    found = computed(effect, event.now)
                    self.do(who, replace(found, vector=vector(*(0.01,) * D)))
                case on.Alarm():
                    self.alarms.append(effect.code)
                case on.Done():
                    self.ended.add(who)

    def deliver(self, now: float, until: int = 4) -> list[object]:
        """What is on its way, and what follows from it, until the server has so many models."""
        seen: list[object] = []
        while self.wire and self.machines[SERVER].version < until:
            sender, to, message = self.wire.popleft()
            seen.append(message)
            self.do(to, on.Received(sender, message, now))
        return seen


def test_a_server_restored_from_a_backup_ends_clients_with_a_line_within_a_minute() -> None:
    """Its journal ends at model 1; the clients have model 2, which it signed itself."""
    terms = federation(clients=2, rounds=4)
    world = Wired(terms)
    for who in world.machines:
        world.do(who, on.Connected(0.0))
    world.deliver(0.0, until=2)
    for sender, to, message in list(world.wire):
        if sender == SERVER:
            world.do(to, on.Received(SERVER, message, 0.0))
    world.wire.clear()
    assert [client.base for client in world.clients] == [2, 2]
    first = [entry for entry in world.entries if entry.base == 0]
    world.machines[SERVER] = ServerMachine.restored(terms, vector(), None, first)
    assert world.machines[SERVER].version == 1
    now, last = 0.0, []
    while len(world.ended) < 2 and now < 100:
        now += terms.resend
        for place in range(2):
            world.do(place, on.Woken(now))
        last = world.deliver(now)
    assert now <= 60 and world.ended == {0, 1}
    assert world.alarms.count("server set back") == 2 and "journal set back" in world.alarms
    # What they released last was refused and not answered: it is sent for the newest journal.
    assert {one.round for one in last if isinstance(one, Update)} >= {2}
    assert [client.updates for client in world.clients] == [3, 3]


def test_a_few_older_models_are_messages_out_of_order() -> None:
    client = ClientMachine(federation(), 0)
    for base in (2, 1, 1, 1, 1, 1, 1):
        assert not of(client.handle(from_server(model(base), 10.0)), on.Done)
