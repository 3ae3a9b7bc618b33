"""Drives the machines of a federation through virtual time, on one computer.

The result follows from federation, first weights, trainers and times alone: not from the number of
processes that compute, nor from how fast they are. Nothing is signed, stored or lost here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forethought.exchange import events as on
from forethought.exchange.events import Commit, Compute, Computed, Received, Send
from forethought.exchange.messages import SERVER, Vector
from forethought.federated.client import ClientMachine
from forethought.federated.federation import Federation
from forethought.federated.server import Average, ServerMachine
from forethought.holders.work import Trainers, Work
from forethought.simulation.clock import Agenda
from forethought.simulation.speeds import LogNormal
from forethought.simulation.times import OVERHEAD, SimulationError, Times

_TO_SERVER, _TO_CLIENT, _COMPUTED, _WAKE, _WAKE_SERVER, _ON, _OFF = range(7)
# What comes before _WAKE_SERVER does not reach a client that is away.


@dataclass(frozen=True)
class Simulated:
    """The outcome of a simulation.

    Args:
        weights: the model that is reported. seconds: virtual, until the last model was there.
        version: how many models there were. updates: of every client, int64, shape (clients,).
        applied: of them, those that the server applied. rounds: private rounds of every client.
        busy: seconds that each client computed. messages, sent_bytes: in all.
        alarms: codes and texts. timeline: (client, begin, end) of every computation, if kept.
        versions: virtual second of every model.
    """

    weights: Vector
    seconds: float
    version: int
    updates: NDArray[np.int64]
    applied: NDArray[np.int64]
    rounds: NDArray[np.int64]
    busy: NDArray[np.float64]
    messages: int
    sent_bytes: int
    alarms: tuple[tuple[str, str], ...]
    timeline: tuple[tuple[int, float, float], ...]
    versions: tuple[float, ...]


class Simulator:
    """One simulation.

    Args:
        federation: what was agreed. weights: the first model, float32, shape (parameters,).
        trainers: compute the updates. times: how long everything takes.
        average: of the models, where the federation averages them.
        committed: called with client and release for every release, before it is sent.
        versions: called with version, virtual second and weights for every new model.
        timeline: whether to keep every computation's times.

    Raises:
        ValueError: times for another number of clients.
    """

    def __init__(
        self,
        federation: Federation,
        weights: Vector,
        trainers: Trainers,
        times: Times,
        *,
        average: Average | None = None,
        committed: Callable[[int, on.Release], None] | None = None,
        versions: Callable[[int, float, Vector], None] | None = None,
        timeline: bool = False,
    ) -> None:
        members = len(federation.members)
        if len(times.compute) != members:
            raise ValueError(
                f"times for {len(times.compute)} clients, the federation has {members} members"
            )
        self.federation, self.times, self.trainers = federation, times, trainers
        self.server = ServerMachine(federation, weights, average)
        self.clients = [ClientMachine(federation, client) for client in range(members)]
        self._committed, self._versions = committed, versions
        self._agenda = Agenda()
        self._factor = LogNormal(times.straggling, [times.seed, 0])
        self._jitter = LogNormal(times.way.jitter, [times.seed, 1])
        self._jittered = times.way.jitter > 0
        self._rounds = np.zeros(members, dtype=np.int64)
        self._busy = np.zeros(members)
        # When a client is through with the parts of an update that it was asked for.
        self._through: dict[int, float] = {}
        self._varies = [len(plan.mechanism.rounds) > 1 for plan in federation.plans]
        self._messages = self._bytes = 0
        self._alarms: list[tuple[str, str]] = []
        self._timeline: list[tuple[int, float, float]] | None = [] if timeline else None
        self._seconds: list[float] = []
        self._away: set[int] = set()
        # Without outages nothing is lost, so nothing need be said again.
        self._loses = bool(times.outages)
        # Heartbeats since anything else happened, and how many of them mean that nothing will.
        self._idle, self._patience = 0, 1000 + 100 * members
        self._done = False

    def run(self) -> Simulated:
        """To the last model.

        Raises:
            SimulationError: the federation waits for something that never comes.
        """
        agenda = self._agenda
        for outage in self.times.outages:
            agenda.add(outage.begin, _OFF, outage.machine)
            if math.isfinite(outage.end):
                agenda.add(outage.end, _ON, outage.machine)
        self._serve(self.server.handle(on.Connected(0.0)))
        for client, machine in enumerate(self.clients):
            self._act(client, machine.handle(on.Connected(0.0)))
        while not self._done:
            if not len(agenda) or self._idle > self._patience:
                raise SimulationError(
                    f"model {self.server.version} waits for updates that never come: give a "
                    "deadline or an absence"
                )
            kind, client, what = agenda.next()
            self._happens(kind, client, what)
        return self._result()

    def _happens(self, kind: int, client: int, what: object) -> None:
        # The commonest first: a million clients go through here thousands of times.
        agenda = self._agenda
        now = agenda.now
        if client in self._away and kind < _WAKE_SERVER:
            back = self._back(client, now)
            if kind == _COMPUTED and math.isfinite(back):  # it goes on where it stopped
                agenda.add(back, _COMPUTED, client, what)
        elif kind == _TO_SERVER:
            self._serve(self.server.handle(Received(client, what, now)))
        elif kind == _TO_CLIENT:
            self._act(client, self.clients[client].handle(Received(SERVER, what, now)))
        elif kind == _COMPUTED:
            self._idle = 0
            self._computed(client, what)
        elif kind == _WAKE_SERVER:
            self._serve(self.server.handle(on.Woken(now)))
        elif kind == _WAKE:
            self._idle += 1
            self._act(client, self.clients[client].handle(on.Woken(now)))
        elif kind == _ON:
            self._away.discard(client)
            self._act(client, self.clients[client].handle(on.Connected(now)))
        else:
            self._away.add(client)

    def _back(self, client: int, now: float) -> float:
        ends = [o.end for o in self.times.outages if o.machine == client and o.begin <= now < o.end]
        return max(ends, default=now)

    def _computed(self, client: int, what: object) -> None:
        if not isinstance(what, Compute):
            raise TypeError(f"a computation was expected, not {type(what).__name__}")
        now = self._agenda.now
        found = self.trainers.result(client)
        done = Computed(
            what.round,
            what.base,
            found.vector,
            found.rounds,
            found.input_hash,
            found.state,
            now,
        )
        self._act(client, self.clients[client].handle(done))

    def _act(self, client: int, effects: list[on.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(_TO_SERVER, client, effect.message)
            elif isinstance(effect, Compute):
                self._compute(client, effect)
            elif isinstance(effect, Commit):
                self._rounds[client] = effect.release.rounds
                if self._committed is not None:
                    self._committed(client, effect.release)
            elif isinstance(effect, on.Wake):
                machine = self.clients[client]
                if self._loses or effect.at in (machine.held_until, machine.part_at):
                    self._agenda.add(effect.at, _WAKE, client)
            elif isinstance(effect, on.Alarm):
                self._alarms.append((effect.code, effect.text))

    def _compute(self, client: int, asked: Compute) -> None:
        now = self._agenda.now
        seconds = self.times.compute[client] * self._factor()
        if self.times.factors is not None:
            seconds *= self.times.factors(client, asked.round)
        if self._varies[self.federation.members[client].plan]:
            seconds *= self._size(client, asked.round)
        begin = now
        if asked.parts > 1:
            seconds /= asked.parts
            begin = max(now, self._through.get(client, now))
            self._through[client] = begin + seconds
        self._busy[client] += seconds
        if self._timeline is not None:
            self._timeline.append((client, begin, begin + seconds))
        work = Work(client, asked.round, asked.base, asked.model, asked.part, asked.parts)
        self.trainers.begin(work)
        if asked.part == asked.parts - 1:
            self._agenda.add(begin + seconds, _COMPUTED, client, asked)

    def _serve(self, effects: list[on.Effect]) -> None:
        version = self.server.version
        if version > len(self._seconds):
            now = self._agenda.now
            self._seconds += [now] * (version - len(self._seconds))
            if self._versions is not None:
                self._versions(version, now, self.server.reported)
        for effect in effects:
            if isinstance(effect, Send):
                self._send(_TO_CLIENT, effect.to, effect.message)
            elif isinstance(effect, on.Wake):
                self._agenda.add(effect.at, _WAKE_SERVER, SERVER)
            elif isinstance(effect, on.Alarm):
                self._alarms.append((effect.code, effect.text))
            elif isinstance(effect, on.Done):
                self._done = True

    def _size(self, client: int, round: int) -> float:
        """An update's expected records over the mean of all updates of the client's plan."""
        plan, first = self.federation.plan(client), self.federation.first_round
        before = plan.privacy.examples_before
        own = before(first(round + 1)) - before(first(round))
        return own * self.federation.updates_of(plan) / before(plan.rounds)

    def _send(self, kind: int, client: int, message: object) -> None:
        vector = getattr(message, "vector", None)
        size = OVERHEAD + (0 if vector is None else vector.nbytes)
        self._messages += 1
        self._bytes += size
        if client in self._away:
            return
        way = self.times.way
        seconds = way.latency
        if way.bandwidth is not None:
            seconds += size / way.bandwidth
        if self._jittered:
            seconds *= self._jitter()
        self._agenda.add(self._agenda.now + seconds, kind, client, message)

    def _result(self) -> Simulated:
        if not math.isfinite(self._agenda.now):
            raise SimulationError("virtual time is not finite")
        return Simulated(
            self.server.reported,
            self._agenda.now,
            self.server.version,
            np.array([machine.updates for machine in self.clients]),
            self.server.applied.copy(),
            self._rounds,
            self._busy,
            self._messages,
            self._bytes,
            tuple(self._alarms),
            tuple(self._timeline or ()),
            tuple(self._seconds),
        )
