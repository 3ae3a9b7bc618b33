"""Exchanges that the simulator does at once are those that events would have made, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import forethought as ft
from forethought.gossip import events as on
from forethought.gossip.asynchronous import AsynchronousWorker
from forethought.gossip.events import LAST, Weights
from forethought.gossip.gossip import Gossip, Member
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing
from forethought.holders.simulator import (
    GraphSimulator,
    GraphTimes,
    Hiccups,
    NoTraining,
    Outage,
    SimulatedGraph,
    Work,
    slow_ones,
)

D, ROUNDS = 7, 12


def gossip(workers: int = 6, graph: str = "complete", **agreed: Any) -> Gossip:
    mechanism = ft.Mechanism(ft.Rounds(1.0, round(1.5 * ROUNDS), ft.Poisson(0.5)))
    plan = ft.Plan(mechanism, 40, 1e-3, optimizer=ft.Optimizer("sgd", 0.5, ()))
    return Gossip(
        tuple(Member(f"worker-{k}") for k in range(workers)),
        (plan,),
        Mixing("matchings", make(graph, workers), 3),
        D,
        "meeting",
        ROUNDS,
        **agreed,
    )


def drawn(work: Work) -> np.ndarray[Any, Any]:
    """A mean that depends on the point where it is taken; its first coordinate is 0."""
    noise = np.random.default_rng([work.client, work.round]).standard_normal(D)
    mean = (noise + work.weights).astype(np.float32)
    mean[0] = 0
    return mean


def broken(work: Work) -> np.ndarray[Any, Any]:
    """One worker's third mean is not finite, another's is huge."""
    mean = drawn(work)
    if work.round == 3 and work.client < 2:
        mean = mean + np.float32([np.nan, 1e19][work.client])
    return mean


ALIKE = (1.0,) * 6
# What differs from one case to the next: the gossip, the pace, and what is trained.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "steady": ({}, {"compute": ALIKE}, drawn),
    "straggling": ({}, {"compute": ALIKE, "straggling": 0.3}, drawn),
    "odd": ({"workers": 5}, {"compute": ALIKE[:5], "straggling": 0.3}, drawn),
    "ring": ({"graph": "ring"}, {"compute": ALIKE, "straggling": 0.3}, drawn),
    "case I": ({}, {"compute": ALIKE, "factors": Hiccups(6, 2.0)}, drawn),
    "case II": ({}, {"compute": slow_ones(6, 1, 10.0), "straggling": 0.1}, drawn),
    "own point": ({"point": "own"}, {"compute": ALIKE, "straggling": 0.3}, drawn),
    "pause": ({"pause": 2}, {"compute": ALIKE, "straggling": 0.3}, drawn),
    "momentum": ({"momentum": 0.9}, {"compute": ALIKE, "straggling": 0.3}, drawn),
    "tracking": ({"tracking": True}, {"compute": ALIKE, "straggling": 0.3}, drawn),
    "no window": ({"window": 1, "settle": 0}, {"compute": ALIKE, "straggling": 0.3}, drawn),
    "deadline": ({}, {"compute": ALIKE, "straggling": 0.3, "deadline": 7.3}, drawn),
    "outages": (
        {},
        {
            "compute": ALIKE,
            "straggling": 0.3,
            "outages": (Outage(1, 2.2, 5.1), Outage(4, 6.3, float("inf"))),
        },
        drawn,
    ),
    "outages on a ring": (
        {"graph": "ring"},
        {"compute": ALIKE, "straggling": 0.3, "outages": (Outage(1, 2.2, 5.1), Outage(2, 2.2, 4))},
        drawn,
    ),
    "seldom": ({}, {"compute": ALIKE, "exchange": 2.0}, drawn),
    "broken": ({}, {"compute": ALIKE, "straggling": 0.3, "deadline": 20.0}, broken),
}


def simulated(case: str) -> tuple[SimulatedGraph, list[Any]]:
    """What came of a case; every release's bytes, and what every worker knows at the end."""
    agreed, pace, mean = CASES[case]
    start = np.linspace(-1, 1, D).astype(np.float32)
    start[0] = -0.0
    states: list[Any] = []
    simulator = GraphSimulator(
        gossip(**agreed),
        start,
        NoTraining(1, mean),
        GraphTimes(**pace),
        committed=lambda worker, made: states.append((worker, made.update.vector.tobytes())),
        timeline=True,
    )
    found = simulator.run()
    for machine in simulator.machines:
        assert isinstance(machine, AsynchronousWorker)
        own = machine.own
        state = {name: getattr(machine, name) for name in ("step", "_known", "_left", "finished")}
        states.append({**state, "count": own.count, "share": own.share, "updates": own.updates})
    return found, states


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("case", CASES)
def test_an_exchange_at_once_is_that_of_events(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    meet, met = AsynchronousWorker.meet, [0, 0]

    def counted(self: AsynchronousWorker, other: AsynchronousWorker, step: int) -> bool:
        done = meet(self, other, step)
        met[done] += 1
        return done

    monkeypatch.setattr(AsynchronousWorker, "meet", counted)
    found, states = simulated(case)
    assert met[True] > 20 if case != "seldom" else met[False] > 20, met
    monkeypatch.setattr(AsynchronousWorker, "meet", lambda *_: False)
    by_events, other_states = simulated(case)
    assert [model.tobytes() for model in found.models] == [
        model.tobytes() for model in by_events.models
    ]
    assert states == other_states
    for name in ("weights", "updates", "rounds", "busy"):
        assert getattr(found, name).tobytes() == getattr(by_events, name).tobytes(), name
    for name in ("seconds", "reasons", "exchanges", "messages", "sent_bytes", "alarms", "timeline"):
        assert getattr(found, name) == getattr(by_events, name), name


@pytest.mark.parametrize(
    "event", [on.Stop(), on.PeerLost(2), on.Started(1), on.Heard(1, 5), on.Mix(7)]
)
def test_whoever_has_more_to_do_is_handed_events(event: on.Event) -> None:
    agreed, start = gossip(), np.ones(D, dtype=np.float32)
    one, other = (AsynchronousWorker(agreed, k, start) for k in range(2))
    one.handle(event)
    for pair in ((one, other), (other, one)):
        assert not pair[0].meet(pair[1], 5)
    assert other.step == -1


def test_whoever_was_told_that_all_is_over_is_handed_events() -> None:
    agreed, start = gossip(), np.ones(D, dtype=np.float32)
    one, other = (AsynchronousWorker(agreed, k, start) for k in range(2))
    one.handle(on.PeerMessage(1, Weights(0, LAST, 0, 0, -1, start)))
    assert one.finished == "neighbour"
    assert not one.meet(other, 5)
