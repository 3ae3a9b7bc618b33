"""Simulated federations and gossips of every rule: the very same events, effects and last weights.

All numbers are sums and halves of
small ones, so that they are the same on every machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

import forethought as ft
from forethought.federated.federation import Delay, Federation, Robust, ServerOptimizer
from forethought.federated.federation import Member as Client
from forethought.gossip.compression import Compression
from forethought.gossip.gossip import Gossip, Member, Trust
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing
from forethought.holders.simulator import GraphSimulator as Graph
from forethought.holders.simulator import GraphTimes, Hiccups, NoTraining, Outage, Times, Way, Work
from forethought.holders.simulator import StarSimulator as Star

D, COUNT = 4, 5
START = np.zeros(D, dtype=np.float32)
SPEEDS = (1.0, 1.5, 2.25, 1.0, 4.0)
WAY = Way(0.125, 4096.0)
# Fields that are younger than the digests, and what they hold where nobody asks for more.
LATER = {"life": 0, "part": 0, "parts": 1, "place": -1, "sampling": None}


def nearer(work: Work) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A quarter of the way to a point of the holder's own."""
    own = np.arange(D, dtype=np.float32) + np.float32(work.client)
    return np.float32(0.25) * (work.weights - own)


def stepped(work: Work) -> np.ndarray[Any, np.dtype[np.float32]]:
    return work.weights - nearer(work)


def plan(rounds: int) -> ft.Plan:
    mechanism = ft.Mechanism(ft.Rounds(1.0, rounds, ft.Poisson(0.5)))
    return ft.Plan(mechanism, 40, 1e-3, clip=ft.Clip(64.0), optimizer=ft.Optimizer("sgd", 0.5, ()))


def federation(**changes: Any) -> Federation:
    members = tuple(Client(f"c{place}", weight=1.0 + place % 2) for place in range(COUNT))
    known: dict[str, Any] = {"rule": "synchronous", "local_rounds": 1} | changes
    if known["rule"] != "synchronous":
        known.setdefault("exchanged", "gradients")
    return Federation(members, (plan(8),), D, "test", 8, **known)


def gossip(graph: str = "complete", mixing: str = "matchings", **changes: Any) -> Gossip:
    members = tuple(Member(f"w{place}") for place in range(COUNT))
    mixed = Mixing(mixing, make(graph, COUNT), 3)
    return Gossip(members, (plan(14),), mixed, D, "test", 10, **changes)


class Log:
    """A digest of all that machines are told, and of all that they want."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def take(self, *values: Any) -> None:
        for value in values:
            self._hash.update(said(value))

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]


class Watched:
    """A machine whose events and effects are taken down."""

    def __init__(self, machine: Any, name: str, log: Log) -> None:
        self._machine, self._name, self._log = machine, name, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def handle(self, event: Any) -> Any:
        effects = list(self._machine.handle(event))
        self._log.take(self._name, event, *effects)
        return effects


def said(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if is_dataclass(value):
        told = [(field.name, getattr(value, field.name)) for field in fields(value)]
        parts = [said(one) for name, one in told if name not in LATER or LATER[name] != one]
        return b"(%s)" % b",".join(parts)
    if hasattr(value, "vector"):
        return said(value.vector)
    return repr(value).encode()


def logged(simulator: Any, machines: list[Any]) -> str:
    log = Log()
    machines[:] = [Watched(machine, str(place), log) for place, machine in enumerate(machines)]
    if hasattr(simulator, "server"):
        simulator.server = Watched(simulator.server, "server", log)
    done = simulator.run()
    log.take(done.weights, done.seconds, done.updates, done.rounds, done.busy, done.messages)
    log.take(done.sent_bytes, done.alarms, done.timeline)
    return log.digest


AWAY = (Outage(1, 2.0, 6.0), Outage(3, 3.0, 4.0))
STARS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "synchronous": ({}, {}, "9423e9c143b697fe"),
    "gradients": ({"exchanged": "gradients"}, {"way": WAY}, "4913ccc5e81dfaba"),
    "local rounds": ({"local_rounds": (1, 1, 2)}, {"way": WAY}, "e5beba221564a238"),
    "cohort": (
        {"cohort": 3, "exchanged": "gradients"},
        {"factors": Hiccups(COUNT)},
        "0f8a4783c8523cfe",
    ),
    "deadline": ({"deadline": 3.0}, {"outages": AWAY}, "098e6c156143db27"),
    "median": ({"robust": Robust("median")}, {}, "a60fbfad5e694f60"),
    "momentum": ({"server": ServerOptimizer("avgm", momentum=0.5)}, {}, "db9ae4fc9f3d07c3"),
    "cadence": ({"cadence": 2.0}, {}, "220ffc1156580179"),
    "asynchronous": ({"rule": "asynchronous"}, {"way": WAY}, "ed5c2a04b1b437a9"),
    "away": ({"rule": "asynchronous", "absence": 3.0}, {"outages": AWAY}, "9de0ff2dcf09d4f6"),
    "published": (
        {"rule": "published", "delay": Delay("constant", 1)},
        {"way": WAY},
        "ed5c2a04b1b437a9",
    ),
}
GRAPHS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "asynchronous": ({}, {}, "7791ce9f9c675b61"),
    "ring": ({"graph": "ring"}, {"way": WAY, "factors": Hiccups(COUNT)}, "49eece45384abb48"),
    "away": ({}, {"outages": AWAY, "exchange": 0.5}, "9ac792d2163498aa"),
    "deadline": ({}, {"deadline": 9.0}, "555652892c692b4a"),
    "trust": ({"trust": Trust(1.0, 1e6), "momentum": 0.5}, {"way": WAY}, "8e09b6924680eee4"),
    "bf16": ({"compression": Compression("bf16", None)}, {"way": WAY}, "caa017972504b52c"),
    "top-k": ({"compression": Compression("top-k", 0.5)}, {"way": WAY}, "a62fbd65cffc4dbd"),
    "clock": ({"clock": "all", "pause": 1}, {}, "76b0af905c583cfd"),
    "synchronous": (
        {"rule": "synchronous", "mixing": "metropolis"},
        {"way": WAY},
        "e030a86710c819ed",
    ),
    "tracking": (
        {"rule": "synchronous", "mixing": "metropolis", "tracking": True},
        {"outages": AWAY},
        "42e89e9593ee5cf3",
    ),
    "allreduce": ({"rule": "allreduce"}, {"way": WAY}, "15fa946a0ea73058"),
}


@pytest.mark.parametrize("name", STARS)
def test_a_federation_goes_as_it_went(name: str) -> None:
    changes, times, digest = STARS[name]
    agreed = federation(**changes)
    vector = nearer if agreed.exchanged == "gradients" else stepped
    trainers = NoTraining(agreed.local_rounds, vector)
    one = Star(agreed, START, trainers, Times(SPEEDS, **times), timeline=True)
    assert logged(one, one.clients) == digest


@pytest.mark.parametrize("name", GRAPHS)
def test_a_gossip_goes_as_it_went(name: str) -> None:
    changes, times, digest = GRAPHS[name]
    one = Graph(
        gossip(**changes), START, NoTraining(1, nearer), GraphTimes(SPEEDS, **times), timeline=True
    )
    assert logged(one, one.machines) == digest
