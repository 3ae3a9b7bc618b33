"""The simulator: virtual seconds, who is away, and the ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from workers import D, gossip, plan

import forethought as ft
from forethought.gossip.gossip import Gossip
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing
from forethought.holders.simulator import (
    GraphSimulator,
    GraphTimes,
    Hiccups,
    NoTraining,
    Outage,
    SimulatedGraph,
    SimulationError,
    Times,
    Trace,
    Way,
    Work,
    average,
    slow_ones,
)

K, ROUNDS = 8, 60
TARGET = np.array([3.0, -1.0, 2.0], dtype=np.float32)


def pull(work: Work) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The gradient of a quadratic whose minimum differs from worker to worker around TARGET."""
    own = TARGET + np.float32(work.client - (K - 1) / 2)
    return np.float32(0.2) * (work.weights - own)


def agreed(
    rule: str = "asynchronous", rounds: int = ROUNDS, cap: int = 90, **changes: Any
) -> Gossip:
    return gossip(K, rounds, rule=rule, plans=(plan(cap),), **changes)


def run(one: Gossip, times: Times | None = None, deadline: float | None = None) -> SimulatedGraph:
    times = times or Times([1.0] * K)
    start = np.zeros(D, dtype=np.float32)
    paced = GraphTimes(**vars(times), exchange=0.5, deadline=deadline)
    return GraphSimulator(one, start, NoTraining(1, pull), paced).run()


def test_one_slow_worker_holds_up_only_those_who_wait() -> None:
    """Case II: 60 rounds take 600 s where all wait; elsewhere the others make up for it."""
    slow = Times(slow_ones(K, 1, 10.0))
    waiting, alone = run(agreed("allreduce"), slow), run(agreed(), slow)
    assert waiting.seconds == pytest.approx(600)
    assert waiting.seconds / alone.seconds > 8
    assert alone.updates.sum() == pytest.approx(K * ROUNDS, rel=0.03)
    assert alone.updates[-1] <= 7
    assert alone.updates.max() <= 72
    assert set(alone.reasons) == {"counted"}
    for one in (waiting, alone):
        assert one.weights == pytest.approx(TARGET, abs=0.6)
    # D-PSGD waits as well: a slow worker's neighbours for it, theirs for them.
    assert run(agreed("synchronous"), slow).seconds > 500


def test_a_random_worker_twice_as_slow_doubles_sync_alone() -> None:
    times = Times([1.0] * K, factors=Hiccups(K, 2.0, 1))
    assert run(agreed("allreduce"), times).seconds == pytest.approx(2 * ROUNDS)
    assert run(agreed(), times).seconds < 1.4 * ROUNDS


def test_traces_are_gone_through_again_and_again() -> None:
    times = Times([1.0] * K, factors=Trace(((1.0, 3.0), (2.0, 2.0))))
    assert run(agreed("allreduce"), times).seconds == pytest.approx(ROUNDS * 2.5)


def test_no_worker_exceeds_its_plan_and_all_stop_at_a_deadline() -> None:
    """With plans of 62 rounds the fast ones cannot make up for the slow one: 480 is not reached."""
    slow = Times(slow_ones(K, 1, 10.0))
    one = run(agreed(cap=62), slow, deadline=100.0)
    assert one.updates.tolist() == [62] * 7 + [9]
    assert one.seconds == 100
    assert set(one.reasons) == {"stopped"}


def test_without_a_deadline_the_slow_one_is_waited_for_and_the_end_comes() -> None:
    one = run(agreed(cap=62), Times(slow_ones(K, 1, 10.0)))
    assert 470 < one.updates.sum() <= 480
    assert one.seconds > 300


def test_what_never_ends_is_said() -> None:
    times = Times([1.0] * K, outages=(Outage(0, 5.0),))
    with pytest.raises(SimulationError, match="give a deadline"):
        run(agreed("synchronous"), times)
    # Without a server the living go on, and stop when they have made their share.
    one = run(agreed(cap=60), times)
    assert one.updates[1:].tolist() == [60] * 7


def test_a_computation_may_last_for_ten_thousand_exchanges() -> None:
    assert run(agreed(rounds=1, cap=1), Times([6000.0] * K)).updates.any()


def test_an_outage_is_of_a_machine_that_is_there() -> None:
    with pytest.raises(ValueError, match="outage of machine"):
        run(agreed(), Times([1.0] * K, outages=(Outage(K, 1.0),)))


@pytest.mark.parametrize("rule", ["asynchronous", "synchronous"])
def test_outages_that_overlap_are_one(rule: str) -> None:
    def after(*outages: Outage) -> SimulatedGraph:
        return run(agreed(rule, 30), Times([1.0] * K, Way(0.1), outages=outages))

    one = after(Outage(2, 3.5, 14.5), Outage(5, 8.0, 9.0))
    parts = Outage(2, 9.5, 14.5), Outage(2, 3.5, 8.0), Outage(5, 8.0, 9.0), Outage(2, 4.0, 10.0)
    several = after(*parts)
    assert several.updates.tolist() == one.updates.tolist()
    assert (several.seconds, several.messages) == (one.seconds, one.messages)
    assert several.weights.tobytes() == one.weights.tobytes()


@pytest.mark.parametrize("graph", ["complete", "ring", "hypercube"])
@pytest.mark.parametrize("kind", ["matchings", "metropolis"])
def test_workers_that_fail_and_come_back_do_no_harm(graph: str, kind: str) -> None:
    times = Times(
        [1.0] * K,
        Way(0.1, 1000.0, 0.3),
        straggling=0.4,
        outages=(Outage(2, 10.0, 30.0), Outage(5, 20.5, 22.0), Outage(6, 40.0)),
    )

    one = run(agreed(mixing=Mixing(kind, make(graph, K))), times)
    assert one.updates.max() <= 90
    assert one.updates[6] < 50
    assert one.reasons[6] == "away"
    assert set(one.reasons[:6]) <= {"counted", "neighbour"}
    # What a failing worker held is lost from the sum; the others stay near the minimum.
    assert np.delete(np.array(one.models), 6, 0).mean(0) == pytest.approx(TARGET, abs=1.2)


@pytest.mark.parametrize("rule", ["asynchronous", "synchronous", "allreduce"])
def test_the_same_again_is_the_same_to_the_bit(rule: str) -> None:
    times = Times([1.0] * K, Way(0.1, 1000.0, 0.3), straggling=0.5)
    one, again = run(agreed(rule), times), run(agreed(rule), times)
    assert one.weights.tobytes() == again.weights.tobytes()
    assert (one.seconds, one.messages, one.sent_bytes) == (
        again.seconds,
        again.messages,
        again.sent_bytes,
    )


def test_messages_take_their_time() -> None:
    """A ring of 8: 14 messages of 0.01 s and an eighth of the vector each, after every round."""
    one = run(agreed("allreduce", 5), Times([1.0] * K, Way(0.01, 1e6)))
    assert one.seconds == pytest.approx(5 * (1 + 14 * (0.01 + (256 + 2) / 1e6)), rel=1e-6)
    # Mixing goes on beside the gradients: latency does not slow a worker down.
    late = run(agreed(), Times([1.0] * K, Way(0.4)))
    assert late.seconds == pytest.approx(run(agreed()).seconds, abs=6)
    assert late.weights == pytest.approx(TARGET, abs=0.6)


def test_times_for_others_are_refused() -> None:
    with pytest.raises(ValueError, match="for 3 workers"):
        run(agreed(), Times([1.0] * 3))


def bowl(step: float, rule: str = "asynchronous", **changes: Any) -> tuple[float, list[int]]:
    """Distance from the minimum after 40 rounds of 16 workers of equal speed that begin together,
    on a quadratic of curvature 1; and their updates."""
    plans = (plan(80, optimizer=ft.Optimizer("sgd", step, ())),)
    one = gossip(16, 40, rule=rule, plans=plans, **changes)
    trainers = NoTraining(1, lambda work: work.weights)
    done = GraphSimulator(one, np.ones(D, dtype=np.float32), trainers, GraphTimes([1.0] * 16)).run()
    return float(np.abs(done.weights).max()), done.updates.tolist()


def test_a_stagger_settles_where_lockstep_diverges() -> None:
    assert bowl(1.2, "allreduce")[0] < 1e-20
    assert bowl(1.2, stagger=False)[0] > 1
    far, updates = bowl(1.2)
    assert far < 0.01
    assert sum(updates) == pytest.approx(16 * 40, rel=0.02)
    assert max(updates) - min(updates) <= 3
    # Below 1 lockstep settles as well; at the own weights it is SYNC, and the default leaves it so.
    assert bowl(0.6, stagger=False)[0] < 1e-4
    assert bowl(1.2, point="own") == bowl(1.2, point="own", stagger=False)
    assert bowl(1.2, point="own")[0] < 1e-20


def test_a_worker_waits_by_its_place_once() -> None:
    one = gossip(4, 3, plans=(plan(9),))
    trainers, times = NoTraining(1, lambda work: work.weights), GraphTimes([1.0, 1.0, 1.0, 2.0])
    start = np.zeros(D, dtype=np.float32)
    spans = GraphSimulator(one, start, trainers, times, timeline=True).run().timeline
    first = {worker: (begin, end) for worker, begin, end in reversed(spans)}
    assert first == {0: (0, 1), 1: (0.25, 1.25), 2: (0.5, 1.5), 3: (1.5, 3.5)}
    assert [begin for worker, begin, _ in spans if worker == 1][:3] == [0.25, 1.25, 2.25]


def test_a_schedule_by_the_count_of_all_ends_with_the_run() -> None:
    """Plans have 90 rounds, of which 60 are made: a cosine over the own ones never comes to 0."""

    def last_steps(clock: str) -> float:
        falling = plan(90, schedule=ft.Schedule("cosine"), optimizer=ft.Optimizer("sgd", 0.1, ()))
        one = gossip(K, ROUNDS, plans=(falling,), clock=clock, settle=0)
        seen: list[np.ndarray[Any, np.dtype[np.float32]]] = []
        trainers = NoTraining(1, lambda work: np.ones(D, dtype=np.float32))
        GraphSimulator(
            one,
            np.zeros(D, dtype=np.float32),
            trainers,
            GraphTimes([1.0] * K),
            looked=lambda count, seconds, machines: seen.append(average(machines)),
            every=K,
        ).run()
        return float(np.abs(seen[-1] - seen[-2]).max())

    assert last_steps("all") < 0.001
    assert last_steps("own") > 0.02
