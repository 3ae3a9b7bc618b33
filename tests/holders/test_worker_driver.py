from __future__ import annotations

import threading
import time

import numpy as np
import pytest

pytest.importorskip("torch")

from order import AGAIN, simulated
from threads import Crew, MemoryLinks, Switchboard, toward
from workers import gossip, vector

from forethought.exchange.messages import PROOF_BYTES
from forethought.exchange.storage import ClientLedger, MemberWitness
from forethought.gossip.compression import Compression
from forethought.gossip.events import Hello, Known, Weights
from forethought.holders.links import Arrived, Pace, PeersError, WorkerDriver, WorkerOutcome
from forethought.holders.simulator import worker
from trials.recorded import Recorded, replayed
from trials.storage import MemoryStorage, UnsignedEndpoint


def outcomes(crew: Crew) -> list[WorkerOutcome]:
    found = [crew.outcomes[k] for k in sorted(crew.outcomes)]
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


def test_all_workers_finish_together_near_the_common_target():
    agreed = gossip(workers=4, rounds=20, settle=15)
    crew = Crew(agreed, vector(), [toward(k, 0.004) for k in range(4)])
    crew.start()
    crew.join()
    for one in outcomes(crew):
        assert one.reason in ("counted", "neighbour")
        assert one.averaged > 0
    total = sum(machine.updates for machine in crew.recorded)
    assert 0.5 * agreed.total <= total
    models = np.array([machine.weights for machine in crew.recorded])
    assert np.abs(models.mean(0) - 1.5).max() < 1.2  # their targets go from 0 to 3
    assert np.ptp(models, axis=0).max() < 0.5


def test_what_a_real_driver_did_is_what_the_same_events_give():
    agreed = gossip(workers=3, rounds=8)
    crew = Crew(agreed, vector(), [toward(k, 0.003) for k in range(3)])
    crew.start()
    crew.join()
    outcomes(crew)
    for k, machine in enumerate(crew.recorded):
        assert len(machine.events) > 10
        assert replayed(worker(agreed, k, vector()), machine.events) == machine.digest


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("rule", "kind", "graph", "compression"),
    [
        ("asynchronous", "matchings", "complete", Compression()),
        ("asynchronous", "metropolis", "ring", Compression()),
        ("asynchronous", "exponential", "exponential", Compression()),
        ("asynchronous", "matchings", "ring", Compression("bf16")),
        ("asynchronous", "matchings", "complete", Compression("top-k", 0.4)),
        ("synchronous", "metropolis", "ring", Compression()),
        ("synchronous", "matchings", "complete", Compression("top-k", 0.4)),
    ],
)
def test_a_simulation_of_the_same_order_comes_to_the_same_transcripts(
    rule, kind, graph, compression
):
    agreed = gossip(workers=4, rounds=8, rule=rule, kind=kind, graph=graph, compression=compression)
    computes = [toward(k, 0.002 * (k + 1)) for k in range(4)]
    crew = Crew(agreed, vector(), computes)
    crew.start()
    crew.join()
    outcomes(crew)
    orders = [machine.events for machine in crew.recorded]
    again = simulated(agreed, vector(), orders, [toward(k) for k in range(4)])
    assert [one.digest for one in again] == [one.digest for one in crew.recorded]
    for one, other in zip(again, crew.recorded, strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)


def test_a_simulation_of_the_order_after_a_loss_comes_to_the_same_transcripts():
    agreed = gossip(workers=3, rounds=20, settle=5)
    pace = Pace(0.002, 0.2, 1.0, 30.0, 1.0, 2.0)
    crew = Crew(agreed, vector(), [toward(k, 0.01) for k in range(3)], pace)
    crew.start()
    while crew.recorded[0].updates < 5:
        time.sleep(0.005)
    crew.board.cut.add(2)
    while 2 not in crew.drivers[0].lost:
        time.sleep(0.005)
    crew.board.cut.clear()
    crew.join()
    outcomes(crew)
    orders = [machine.events for machine in crew.recorded]
    again = simulated(agreed, vector(), orders, [toward(k) for k in range(3)])
    assert [one.digest for one in again] == [one.digest for one in crew.recorded]


@pytest.mark.parametrize(
    "compression", [Compression(), Compression("bf16"), Compression("top-k", 0.4)]
)
def test_a_simulation_of_the_order_after_a_restart_comes_to_the_same_transcripts(
    compression, tmp_path
):
    agreed = gossip(workers=3, rounds=30, settle=5, compression=compression)
    pace = Pace(0.002, 0.2, 0.5, 30.0, 1.0, 2.0)
    ledgers = [ClientLedger(MemoryStorage(), UnsignedEndpoint(b"r" * 32, k), "") for k in range(3)]
    computes = [toward(k, 0.01) for k in range(3)]
    crew = Crew(agreed, vector(), computes, pace, ledgers)
    crew.start()
    while crew.recorded[2].updates < 5:
        time.sleep(0.005)
    crew.stops[2].set()  # nothing of it is left but its ledger
    crew.threads[2].join()
    while 2 not in crew.drivers[0].lost:
        time.sleep(0.005)
    before = crew.recorded[2]
    again = Recorded(worker(agreed, 2, vector(), ledgers[2].read()))
    ways = MemoryLinks(crew.board, 2)
    left = MemberWitness(tmp_path, b"r" * 32, 2)
    driver = WorkerDriver(
        again, agreed, 2, ways, computes[2],
        pace=pace, ledger=ledgers[2], returning=True, witness=left,
    )  # fmt: skip
    driver.run()
    assert left.count() == again.updates
    crew.join()
    assert again.updates > before.updates >= 5
    assert again.updates == ledgers[2].read().updates
    orders = [machine.events for machine in crew.recorded[:2]]
    orders.append([*before.events, AGAIN, *again.events])
    played = simulated(agreed, vector(), orders, [toward(k) for k in range(3)])
    real = [*crew.recorded[:2], again]
    assert [one.digest for one in played] == [one.digest for one in real]
    for one, other in zip(played, real, strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)


def test_a_slow_worker_holds_nobody_up():
    agreed = gossip(workers=4, rounds=10, plans=(gossip(rounds=40).plans[0],))
    speeds = [0.01, 0.01, 0.01, 0.3]
    crew = Crew(agreed, vector(), [toward(1, seconds) for seconds in speeds])
    crew.start()
    crew.join()
    outcomes(crew)
    fast = [machine.updates for machine in crew.recorded[:3]]
    assert crew.recorded[3].updates < min(fast)
    assert max(machine.updates for machine in crew.recorded) <= 42


def test_first_rounds_are_staggered_by_place():
    """Between a worker's first gradient and its second is at least its share of a gradient."""
    spans: list[list[tuple[float, float]]] = [[] for _ in range(4)]

    def timed(place):
        compute = toward(1, 0.1)

        def measured(round, weights):
            begin = time.monotonic()
            found = compute(round, weights)
            spans[place].append((begin, time.monotonic()))
            return found

        return measured

    crew = Crew(gossip(workers=4, rounds=4), vector(), [timed(place) for place in range(4)])
    crew.start()
    crew.join()
    outcomes(crew)
    for place, made in enumerate(spans):
        first, second = made[:2]
        assert second[0] - first[1] >= 0.1 * place / 4


@pytest.mark.slow
def test_a_cut_worker_is_lost_and_the_others_go_on_and_agree():
    agreed = gossip(workers=4, rounds=30, settle=20)
    pace = Pace(0.002, 0.2, 1.0, 30.0, 1.0, 2.0)
    crew = Crew(agreed, vector(), [toward(k, 0.02) for k in range(4)], pace)
    crew.start()
    while crew.recorded[0].updates < 5:
        time.sleep(0.01)
    crew.board.cut.add(3)
    while not all(3 in crew.drivers[k].lost for k in range(3)):
        time.sleep(0.01)
    before = crew.recorded[0].updates
    crew.join()
    for k in range(3):
        assert outcomes(crew)[k].reason is not None
    assert crew.recorded[0].updates > before
    # Plans are never exceeded, whatever happens.
    assert all(machine.updates <= agreed.updates(0) for machine in crew.recorded)
    models = np.array([machine.weights for machine in crew.recorded[:3]])
    assert np.ptp(models, axis=0).max() < 0.5


def test_a_worker_whose_trainer_fails_ends_with_its_error():
    agreed = gossip(workers=2, rounds=5)

    def broken(round: int, weights: object) -> object:
        if round == 2:
            raise OSError("no more data")
        return toward(0, 0.05)(round, weights)

    crew = Crew(agreed, vector(), [toward(0, 0.01), broken], Pace(0.002, 0.1, 1.0, 30.0, 0.5, 0.5))
    crew.start()
    crew.join()
    assert isinstance(crew.outcomes[1], OSError)
    assert isinstance(
        crew.outcomes[0], WorkerOutcome
    )  # its own plan is used up, and nothing is heard
    assert crew.recorded[0].updates == agreed.updates(0)


def test_a_deadline_ends_all():
    agreed = gossip(workers=3, rounds=400)
    pace = Pace(0.002, 0.2, 5.0, 30.0, 60.0, 20.0, deadline=0.5)
    crew = Crew(agreed, vector(), [toward(1, 0.02)] * 3, pace)
    crew.start()
    crew.join()
    assert {one.reason for one in outcomes(crew)} <= {"stopped", "neighbour"}
    assert all(machine.updates < 100 for machine in crew.recorded)
    assert sum(machine.updates for machine in crew.recorded) > 0


def test_a_worker_that_comes_back_when_all_are_gone_keeps_what_it_released():
    agreed = gossip(workers=2, rounds=5)
    pace = Pace(0.002, 0.1, 1.0, 0.3, 0.5, 0.5)
    ways = MemoryLinks(Switchboard(2), 0)
    machine = worker(agreed, 0, vector())
    back = WorkerDriver(machine, agreed, 0, ways, toward(1), pace=pace, returning=True).run()
    assert back.reason is None and back.rounds == 0 and list(back.counts) == ["alone"]
    with pytest.raises(PeersError, match="the others run"):
        WorkerDriver(machine, agreed, 0, ways, toward(1), pace=pace).run()


def test_a_neighbour_that_lives_and_says_nothing_holds_nobody_who_comes_back():
    agreed, board = gossip(workers=3, rounds=50), Switchboard(3)
    pace = Pace(exchange=0.002, answer=0.1, patience=0.5, quiet=5.0, linger=0.1)

    def answers(came: Arrived) -> None:
        if isinstance(came.message, Hello):  # and lies about how far it is
            board.deliver[0](Arrived(1, Known(0, 2**63 - 1, 0, 0)))

    board.deliver[1], board.deliver[2] = answers, lambda came: None
    machine = Recorded(worker(agreed, 0, vector()))
    driver = WorkerDriver(
        machine, agreed, 0, MemoryLinks(board, 0), toward(1), pace=pace, returning=True
    )
    until = time.monotonic() + 300
    driver.run(lambda: machine.updates >= 2 or time.monotonic() > until)
    assert machine.updates >= 2
    assert driver.drove.counts["silent"] == 1


def test_of_what_one_neighbour_sends_a_bounded_number_waits():
    """Until all neighbours are met nothing is handled: one could fill the memory meanwhile."""
    agreed, board = gossip(workers=3, rounds=50), Switchboard(3)

    class Flooded(MemoryLinks):
        def start(self, deliver):
            super().start(deliver)
            for _ in range(5000):
                deliver(Arrived(1, None))
            deliver(Arrived(2, None))

    board.deliver[1] = board.deliver[2] = lambda came: None
    machine = Recorded(worker(agreed, 0, vector()))
    pace = Pace(exchange=0.002, answer=0.1, linger=0.1)
    driver = WorkerDriver(machine, agreed, 0, Flooded(board, 0), toward(1), pace=pace)
    until = time.monotonic() + 300
    driver.run(lambda: machine.updates >= 2 or time.monotonic() > until)
    alarms = [text for _, text in driver.drove.alarms]
    assert driver.drove.counts["stranger"] < 100 and "worker 2" in alarms[-1]


# A neighbour's signatures on its counts, as links hand them over.
SIGNED = {count: bytes([count]) * PROOF_BYTES for count in (3, 5)}


def test_what_was_heard_of_a_neighbour_is_known_to_the_next_life(tmp_path):
    agreed = gossip(workers=2, rounds=50)
    pace = Pace(0.002, 0.1, 5.0, 30.0, 5.0, 0.1)

    def life(*messages: Weights | Hello) -> list[object]:
        """Worker 0 lives until it has answered the messages of worker 1."""
        board, told = Switchboard(2), []
        board.deliver[1] = told.append
        heard = {1: MemberWitness(tmp_path, b"r" * 32, 1)}
        machine = worker(agreed, 0, vector())
        ways = MemoryLinks(board, 0)
        driver = WorkerDriver(machine, agreed, 0, ways, toward(1, 0.01), pace=pace, heard=heard)
        stop = threading.Event()
        thread = threading.Thread(target=driver.run, args=(stop.is_set,))
        thread.start()
        until = time.monotonic() + 300
        while not told and time.monotonic() < until:
            time.sleep(0.005)
        told.clear()
        for message in messages:
            board.deliver[0](Arrived(1, message, SIGNED[message.round]))
        while time.monotonic() < until:
            if [one for one in told if isinstance(one.message, Known)]:
                break
            time.sleep(0.005)
        stop.set()
        thread.join()
        found = [one.message for one in told]
        return [(one.known, one.proof) for one in found if isinstance(one, Known)]

    first = life(Weights(5, 0, 0, 0, -1, vector()), Hello(5, -1, 0))
    assert first == [(5, SIGNED[5])]
    # Killed and started again; its neighbour's ledger was set back meanwhile. What the neighbour
    # signed before is shown to it, not what it signs now.
    assert life(Hello(3, -1, 0)) == [(5, SIGNED[5])]


def test_rules_that_wait_name_whom_they_lost():
    agreed = gossip(workers=3, rounds=50, rule="synchronous", kind="metropolis")
    pace = Pace(0.002, 0.2, 1.0, 30.0, 0.5, 5.0)
    crew = Crew(agreed, vector(), [toward(1, 0.02)] * 3, pace)
    crew.start()
    while crew.recorded[0].updates < 3:
        time.sleep(0.01)
    crew.board.cut.add(2)
    crew.join()
    assert any(isinstance(one, PeersError) for one in crew.outcomes.values())
    assert all("lost" in str(one) for one in crew.outcomes.values() if isinstance(one, PeersError))


def test_synchronous_workers_come_to_the_same_bits_as_their_events():
    agreed = gossip(workers=4, rounds=12, graph="ring", rule="synchronous", kind="metropolis")
    crew = Crew(agreed, vector(), [toward(k) for k in range(4)])
    crew.start()
    crew.join()
    assert [one.reason for one in outcomes(crew)] == ["rounds"] * 4
    assert [machine.updates for machine in crew.recorded] == [12] * 4


@pytest.mark.parametrize("name", ["exchange", "answer", "patience", "deadline"])
def test_a_pace_is_made_of_seconds(name):
    with pytest.raises(ValueError, match=f"{name} is a number"):
        Pace(**{name: -1.0})
