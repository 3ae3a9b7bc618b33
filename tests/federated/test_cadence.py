"""Padding to a cadence: when an update leaves says nothing of how long it took, up to a beat."""

from __future__ import annotations

import numpy as np
import pytest

from forethought.exchange import events as on
from forethought.exchange.messages import Join, Leave, Update
from forethought.exchange.storage import LedgerState
from forethought.federated.client import ClientMachine
from forethought.federated.federation import FederationError
from forethought.federated.statements import client_statement
from forethought.holders.simulator import (
    NoTraining,
    SimulatedStar,
    StarSimulator,
    Times,
    no_gradients,
)

from .machines import D, federation, from_server, model, of, sent, vector


def begun(rule: str = "synchronous") -> tuple[ClientMachine, on.Compute]:
    machine = ClientMachine(federation(rule=rule, cadence=10.0), 0)
    (compute,) = of(machine.handle(from_server(model(0), 3.0)), on.Compute)
    return machine, compute


def computed(asked: on.Compute, now: float) -> on.Computed:
    return on.Computed(asked.round, asked.base, vector(), asked.round + 1, b"", b"", now)


@pytest.mark.parametrize(("now", "due"), [(3.1, 13.0), (12.9, 13.0), (13.5, 23.0), (43.0, 43.0)])
def test_an_update_leaves_at_a_beat_and_is_in_the_ledger_before(now: float, due: float) -> None:
    machine, asked = begun()
    effects = machine.handle(computed(asked, now))
    assert len(of(effects, on.Commit)) == 1 and not sent(effects, Update)
    assert [wake.at for wake in of(effects, on.Wake)] == [due] == [machine.held_until]
    early = machine.handle(on.Woken(due - 1e-6))
    assert sent(early, Join) and not sent(early, Update)  # a heartbeat does not bring it along
    assert due in [wake.at for wake in of(early, on.Wake)]
    assert len(sent(machine.handle(on.Woken(due)), Update)) == 1
    assert machine.held_until is None


def test_the_next_update_begins_at_the_beat_not_when_the_last_one_was_ready() -> None:
    machine, asked = begun("asynchronous")
    assert not of(machine.handle(computed(asked, 7.0)), on.Compute)
    newer = machine.handle(from_server(model(1, *(0.0,) * D, round=1), 8.0))
    assert not of(newer, on.Compute)  # a model that comes meanwhile does not begin one either
    effects = machine.handle(on.Woken(13.0))
    assert len(sent(effects, Update)) == 1
    (following,) = of(effects, on.Compute)
    assert following.round == 1
    (wake,) = of(machine.handle(computed(following, 21.0)), on.Wake)
    assert wake.at == 23.0


@pytest.mark.parametrize("rule", ["synchronous", "asynchronous"])
def test_after_a_restart_nothing_tells_whether_the_batch_was_done(rule: str) -> None:
    """A client is killed within a beat: of a small batch the ledger has the update, of a large one
    it has nothing."""
    agreed, update = federation(rule=rule, cadence=10.0), Update(0, 0, vector(1, 1, 1, 1))
    left = []
    for ledger in (LedgerState(1, 1, b"", 0, (update,), 0), None):
        machine = ClientMachine(agreed, 0, ledger)
        events = [on.Connected(0.0), from_server(model(0), 0.5), on.Woken(5.0)]
        told = [(event.now, effect) for event in events for effect in machine.handle(event)]
        if ledger is None:
            (asked,) = of([effect for _, effect in told], on.Compute)
            machine.handle(on.Computed(asked.round, asked.base, update.vector, 1, b"", b"", 7.0))
        assert machine.held_until == 10.5
        for event in (on.Woken(9.0), on.Woken(10.5), on.Woken(15.0)):
            told += [(event.now, effect) for effect in machine.handle(event)]
        left.append(
            [
                (now, type(one.message), one.message.round, one.message.base)
                for now, one in told
                if isinstance(one, on.Send)
            ]
        )
    assert left[0] == left[1]
    assert next(row[0] for row in left[0] if row[1] is Update) == 10.5


def test_a_goodbye_within_a_beat_counts_what_was_sent() -> None:
    machine, asked = begun()
    machine.handle(computed(asked, 4.0))
    (goodbye,) = sent(machine.handle(on.Stopped(5.0)), Leave)
    assert goodbye.round == 0 and machine.updates == 1


def simulated(straggling: float, cadence: float | None, rule: str) -> SimulatedStar:
    agreed = federation(4, 6, rule=rule, cadence=cadence)
    gradients = None if rule == "synchronous" else no_gradients(D)
    times = Times([1.0, 1.5, 2.0, 2.5], straggling=straggling, seed=3)
    start = np.zeros(D, dtype=np.float32)
    return StarSimulator(agreed, start, NoTraining(vector=gradients), times).run()


@pytest.mark.parametrize("rule", ["synchronous", "asynchronous"])
def test_seen_from_outside_nothing_depends_on_how_long_batches_take(rule: str) -> None:
    even, uneven = (simulated(spread, 100.0, rule) for spread in (0.0, 0.5))
    assert not np.array_equal(even.busy, uneven.busy)
    assert even.versions == uneven.versions and even.seconds == uneven.seconds
    assert all(second % 100 == 0 for second in even.versions)
    # Without padding the times of the models follow the batches.
    plain = [simulated(spread, None, rule) for spread in (0.0, 0.5)]
    assert plain[0].versions != plain[1].versions
    assert even.messages == uneven.messages


def test_the_statement_says_what_is_left_of_the_times() -> None:
    padded = client_statement(federation(cadence=30.0), 0)
    (note,) = [note for note in padded.caveats if "times" in note.code]
    assert note.code == "padded-times" and note.detail == "30 seconds"
    plain = client_statement(federation(), 0)
    assert [note.code for note in plain.caveats if "times" in note.code] == ["arrival-times"]


def test_a_cadence_and_secure_aggregation_are_refused_together() -> None:
    with pytest.raises(FederationError, match="at no cadence"):
        federation(exchanged="gradients", cadence=5.0, secure={"clients": 3})
    with pytest.raises(ValueError, match="cadence"):
        federation(cadence=0.0)
