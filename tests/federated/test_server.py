"""What the server refuses changes nothing; what it accepts is applied once, in every order."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from machines import D, federation, joined, of, plan, sent, update, vector

import forethought as ft
from forethought.exchange import events as on
from forethought.exchange.messages import (
    Acknowledgement,
    Finished,
    Join,
    Leave,
    Model,
    Refusal,
    Update,
)
from forethought.exchange.storage import Accepted
from forethought.federated.federation import Delay, FederationError, Member, Robust
from forethought.federated.server import ServerMachine

START = vector(1, 1, 1, 1)


def state(machine: ServerMachine) -> tuple[Any, dict[str, bytes]]:
    found = machine.snapshot()
    return found.values, {name: array.tobytes() for name, array in found.arrays.items()}


def server(**changes: Any) -> ServerMachine:
    return joined(ServerMachine(federation(**changes), START.copy()))


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (Update(0, 0, np.zeros(D + 1, np.float32)), "shape"),
        (Update(0, 0, np.zeros(D)), "shape"),
        (Update(0, 0, vector(np.nan, 0, 0, 0)), "norm"),
        (Update(0, 0, vector(np.inf, 0, 0, 0)), "norm"),
        (Update(0, 0, vector(3e38, 0, 0, 0)), "norm"),
        (Update(0, 0, vector(1e6, 0, 0, 0)), "norm"),
        (Update(3, 0, vector()), "beyond plan"),
        (Update(-1, 0, vector()), "beyond plan"),
        (Update(0, 1, vector()), "future"),
    ],
)
@pytest.mark.parametrize("rule", ["synchronous", "asynchronous"])
def test_what_is_refused_changes_nothing(one: Update, reason: str, rule: str) -> None:
    machine = server(rule=rule)
    before = state(machine)
    effects = update(machine, 1, one)
    assert [refusal.reason for refusal in sent(effects, Refusal)] == [reason]
    assert of(effects, on.Alarm) and not of(effects, on.Append)
    assert state(machine) == before


def test_a_sender_outside_the_roster_is_an_alarm() -> None:
    machine = server()
    before = state(machine)
    for client in (-1, 3, 99):
        assert [a.code for a in of(update(machine, client, Update(0, 0, vector())), on.Alarm)] == [
            "unknown"
        ]
    assert state(machine) == before


def test_a_replay_is_acknowledged_again_and_other_bytes_are_a_conflict() -> None:
    machine = server(rule="asynchronous")
    update(machine, 0, Update(0, 0, vector(1, 0, 0, 0)))
    before = state(machine)
    again = update(machine, 0, Update(0, 0, vector(1, 0, 0, 0)))
    assert sent(again, Acknowledgement) and not of(again, on.Append)
    other = update(machine, 0, Update(0, 0, vector(0, 1, 0, 0)))
    assert [refusal.reason for refusal in sent(other, Refusal)] == ["conflict"]
    assert [alarm.code for alarm in of(other, on.Alarm)] == ["conflict"]
    assert state(machine) == before


def test_an_update_is_in_the_journal_before_it_is_acknowledged() -> None:
    effects = update(server(), 0, Update(0, 0, START))
    kinds = [type(effect) for effect in effects[:2]]
    assert kinds == [on.Append, on.Send] and isinstance(effects[0].entry, Accepted)


def test_a_round_is_the_mean_by_weight() -> None:
    members = (Member("a", weight=1.0), Member("b", weight=3.0))
    machine = server(clients=2, members=members)
    update(machine, 1, Update(0, 0, vector(2, 1, 1, 1)))
    effects = update(machine, 0, Update(0, 0, vector(1, 0, 1, 1)))
    assert machine.version == 1
    assert machine.rule.model.tolist() == [1.75, 0.75, 1.0, 1.0]
    assert [m.base for m in sent(effects, Model)] == [1, 1]


@pytest.mark.parametrize("unit", ["rounds", "examples"])
@pytest.mark.parametrize("longest", [6, 3])
def test_steps_fall_to_the_end_of_the_run_where_plans_are_shorter(unit: str, longest: int) -> None:
    plans = tuple(plan(n, schedule=ft.Schedule("cosine", unit=unit)) for n in (2, longest))
    members = tuple(Member(f"c{client}", client > 0) for client in range(5))
    agreed = federation(
        rounds=6,
        members=members,
        plans=plans,
        exchanged="gradients",
        cohort=2 if longest < 6 else None,
    )
    machine = joined(ServerMachine(agreed, vector()))
    made, steps = [0] * 5, []
    while not machine.finished:
        before = machine.rule.model
        for client in list(machine.rule.recipients()):
            update(machine, client, Update(made[client], machine.version, vector(1, 0, 0, 0)))
            made[client] += 1
        steps.append(float((before - machine.rule.model)[0]))
    assert len(steps) == 6 and steps[0] == pytest.approx(0.5)
    assert all(one >= later > 0 for one, later in itertools.pairwise(steps))


def test_a_deadline_closes_with_what_came_and_late_updates_are_refused() -> None:
    machine = server(deadline=10.0)
    assert not of(machine.handle(on.Woken(11.0)), on.Append)  # nobody's update is no model
    update(machine, 2, Update(0, 0, vector(1, 1, 1, 0.5)), 12.0)
    effects = machine.handle(on.Woken(13.0))
    assert of(effects, on.Append) and machine.version == 1
    late = update(machine, 0, Update(0, 0, vector()), 14.0)
    assert [r.reason for r in sent(late, Refusal)] == ["late"] and not of(late, on.Alarm)


def test_a_cohort_is_asked_and_nobody_else() -> None:
    machine = server(clients=5, cohort=2)
    asked = list(machine.rule.recipients())
    assert len(asked) == 2
    others = [client for client in range(5) if client not in asked]
    effects = update(machine, others[0], Update(0, 0, vector()))
    assert [r.reason for r in sent(effects, Refusal)] == ["future"]
    assert not sent(machine.handle(on.Received(others[0], Join(0, -1), 0.0)), Model)
    assert sent(machine.handle(on.Received(asked[0], Join(0, -1), 0.0)), Model)


def test_those_who_leave_are_not_waited_for() -> None:
    machine = server()
    update(machine, 0, Update(0, 0, START))
    update(machine, 1, Update(0, 0, START))
    effects = machine.handle(on.Received(2, Leave(0, 0, "stopped"), 0.0))
    assert machine.version == 1 and of(effects, on.Append)
    assert 2 not in list(machine.rule.recipients())


@pytest.mark.parametrize("rule", ["synchronous", "asynchronous", "published"])
def test_who_left_and_begins_again_takes_part_from_there_on(rule: str) -> None:
    machine = server(rounds=5, rule=rule)
    entries = []

    def handle(client: int, message: Any) -> Any:
        effects = machine.handle(on.Received(client, message, 0.0))
        entries.extend(effect.entry for effect in of(effects, on.Append))
        return effects

    for client in range(3):
        handle(client, Join(0, -1))
    handle(2, Leave(0, 0, "stopped"))
    for client in (0, 1):
        handle(client, Update(0, 0, START))
    assert machine.version == 1 and machine.left == {2}
    handle(2, Join(0, 0))  # of before it left, late
    assert machine.left == {2}
    handle(2, Join(0, -1))
    assert not machine.left
    if rule == "synchronous":  # the round that goes on has asked others
        for client in (0, 1):
            handle(client, Update(1, 1, START))
    now = machine.version
    assert now == (2 if rule == "synchronous" else 1) and 2 in list(machine.rule.recipients())
    # It is waited for again.
    for client in (0, 1):
        handle(client, Update(now, now, START))
    assert machine.version == now
    handle(2, Update(0, now, START))
    assert machine.version == now + 1
    again = ServerMachine.restored(machine.federation, START.copy(), None, entries)
    assert again.version == now + 1 and again.left == machine.left
    np.testing.assert_array_equal(again.rule.weights, machine.rule.weights)
    # Who has used its plan up stays away.
    handle(2, Leave(5, now, "plan used up"))
    assert not of(handle(2, Join(5, -1)), on.Append) and machine.left == {2}


@pytest.mark.parametrize("rule", ["synchronous", "asynchronous", "published"])
def test_a_goodbye_that_comes_late_leaves_out_nobody_who_began_again(rule: str) -> None:
    machine = server(rounds=5, rule=rule)
    entries = []

    def handle(client: int, message: Any, at: Any = None) -> None:
        effects = (at or machine).handle(on.Received(client, message, 0.0))
        entries.extend(effect.entry for effect in of(effects, on.Append))

    for client in range(3):
        handle(client, Join(0, -1, 10))
    # Its next process was heard of first: the goodbye is of the one before.
    handle(2, Join(0, -1, 11))
    handle(2, Leave(0, 0, "stopped", 10))
    assert not machine.left
    # The goodbye was first: the next process takes it back, with or without a model, and nothing
    # does that was said before it.
    handle(2, Leave(0, 0, "stopped", 11))
    for late in (Join(0, -1, 11), Join(0, 0, 11), Join(0, -1, 10)):
        handle(2, late)
        assert machine.left == {2}
    snapshot = machine.snapshot()
    for restored in (
        ServerMachine.restored(machine.federation, START.copy(), None, entries),
        ServerMachine.restored(machine.federation, START.copy(), snapshot, []),
    ):
        handle(2, Join(0, 0, 11), restored)
        assert restored.left == {2}
        handle(2, Join(0, 0, 12), restored)
        assert not restored.left


def test_a_clock_that_was_set_back_is_said_once() -> None:
    machine = server(rounds=5)

    def alarms(client: int, message: Any) -> list[str]:
        effects = machine.handle(on.Received(client, message, 0.0))
        return [alarm.text for alarm in of(effects, on.Alarm)]

    for client in range(3):
        assert not alarms(client, Join(0, -1, 10))
    # Its owner ends a client that was killed, on a computer whose clock is behind.
    (said,) = alarms(2, Leave(0, 0, "stopped", 4))
    assert "c2 speaks as an earlier process" in said and not machine.left
    assert not alarms(2, Leave(0, 0, "stopped", 5))
    # A client that said goodbye begins again there.
    assert not alarms(1, Leave(0, 0, "stopped", 10))
    (said,) = alarms(1, Join(0, -1, 4))
    assert "c1 speaks as an earlier process" in said and machine.left == {1}
    assert not alarms(1, Join(0, 0, 4)) and not alarms(1, Join(0, -1, 10))
    assert not alarms(1, Join(0, -1, 11)) and not machine.left


def test_who_left_hears_of_the_last_model_too() -> None:
    machine = server(clients=2, rounds=1)
    machine.handle(on.Received(1, Leave(1, 0, "plan used up"), 0.0))
    effects = update(machine, 0, Update(0, 0, START))
    assert [e.to for e in of(effects, on.Send) if isinstance(e.message, Finished)] == [0, 1]


def test_the_last_round_ends_it_and_everybody_hears() -> None:
    machine = server(clients=2, rounds=1)
    update(machine, 0, Update(0, 0, START))
    effects = update(machine, 1, Update(0, 0, START))
    assert machine.finished and len(sent(effects, Finished)) == 2 and of(effects, on.Done)
    assert sent(machine.handle(on.Received(0, Join(1, 0), 0.0)), Finished)
    assert [r.reason for r in sent(update(machine, 0, Update(0, 0, vector(1, 0, 0, 0))), Refusal)]


def test_updates_in_any_order_give_the_same_model() -> None:
    rounds = [(c, r) for c in range(2) for r in range(2)]
    for order in itertools.permutations(rounds):
        machine = server(clients=2, rounds=2, rule="asynchronous", delay=Delay("constant", 3))
        for client, round in order:
            update(machine, client, Update(round, 0, vector(client + 1, 0, 0, 0)))
        assert machine.finished
        # Two updates of each, by half of a step of 0.5.
        assert machine.rule.model.tolist() == [1 - 0.25 * (2 + 4), 1, 1, 1]


def test_a_new_model_waits_for_every_round_below_it() -> None:
    machine = server(clients=2, rounds=3, rule="published")
    update(machine, 0, Update(0, 0, vector(1, 0, 0, 0)))
    update(machine, 0, Update(1, 0, vector(1, 0, 0, 0)))
    assert machine.version == 0
    effects = update(machine, 1, Update(0, 0, vector(1, 0, 0, 0)))
    assert machine.version == 1 and len(sent(effects, Model)) == 2
    # v_1 has the later round of the quick client in it: 3 steps of 0.5/2.
    assert machine.rule.model[0] == 1 - 3 * 0.25


def test_a_round_too_far_ahead_of_its_model_is_refused() -> None:
    machine = server(clients=2, rounds=4, rule="asynchronous", delay=Delay("constant", 1))
    effects = update(machine, 0, Update(2, 0, vector()))
    assert [r.reason for r in sent(effects, Refusal)] == ["future"]


def test_an_absent_client_is_not_waited_for_until_it_is_back() -> None:
    machine = server(clients=2, rounds=3, rule="asynchronous", absence=10.0)
    update(machine, 0, Update(0, 0, vector()), 11.0)
    effects = machine.handle(on.Woken(12.0))
    assert machine.absent == {1} and machine.version == 1 and of(effects, on.Append)
    update(machine, 0, Update(1, 1, vector()), 13.0)
    assert machine.version == 2
    machine.handle(on.Received(1, Join(0, 0), 14.0))
    assert not machine.absent
    # Waited for from here on: what it missed is not owed.
    update(machine, 1, Update(0, 2, vector()), 15.0)
    update(machine, 0, Update(2, 2, vector()), 16.0)
    assert machine.version == 3


def test_the_published_rule_waits_for_ever() -> None:
    machine = server(clients=2, rounds=3, rule="published")
    update(machine, 0, Update(0, 0, vector()), 1.0)
    machine.handle(on.Woken(1e9))
    assert machine.version == 0
    with pytest.raises(FederationError, match="waits for everyone"):
        federation(rule="published", absence=1.0)


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        *(("synchronous", kind) for kind in ("mean", "trimmed", "median", "norm-bound")),
        *(("asynchronous", kind) for kind in ("mean", "norm-bound")),
    ],
)
def test_a_snapshot_at_any_place_gives_the_same_bits(rule: str, kind: str) -> None:
    robust = Robust(kind, bound=0.5 if kind == "norm-bound" else None)
    agreed = federation(4, 3, rule=rule, robust=robust, delay=Delay("constant", 3))
    generator = np.random.default_rng(0)
    machine = joined(ServerMachine(agreed, START.copy()))
    entries, snapshots = [], []
    for round in range(3):
        for client in range(4):
            values = (generator.normal(size=D) / 4).astype(np.float32)
            if rule == "synchronous":
                values += machine.rule.model
            one = Update(round, machine.version if rule == "synchronous" else 0, values)
            effects = update(machine, client, one)
            entries += [effect.entry for effect in of(effects, on.Append)]
            snapshots.append((len(entries), machine.snapshot()))
    assert machine.finished and len(entries) == 12
    for count, snapshot in [(0, None), *snapshots]:
        again = ServerMachine.restored(agreed, START.copy(), snapshot, entries[count:])
        assert state(again) == state(machine)
        assert again.rule.weights.tobytes() == machine.rule.weights.tobytes()
