"""Drives the machines of a federation or of a gossip through virtual time, on one computer.

The result follows from what was agreed, first weights, trainers and times alone: not from the
number of processes that compute, nor from how fast they are. Nothing is signed, stored or lost
here, but for what machines that are away miss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.exchange import events
from forethought.exchange.messages import SERVER, Vector
from forethought.exchange.storage import LedgerState
from forethought.federated.client import ClientMachine
from forethought.federated.federation import Federation
from forethought.federated.server import Average, ServerMachine
from forethought.gossip import events as on
from forethought.gossip.asynchronous import AsynchronousWorker
from forethought.gossip.gossip import Gossip, Rule
from forethought.gossip.messages import Weights
from forethought.gossip.synchronous import AllReduceWorker, SynchronousWorker
from forethought.gossip.worker import Effects, Machine
from forethought.holders.times import OVERHEAD, Agenda, LogNormal, SimulationError, Times
from forethought.holders.work import Trainers, Work
from forethought.values.checks import real

# What happens. None of those up to _WAKE reaches a client that is away.
_TO_SERVER, _MESSAGE, _COMPUTED, _WAKE, _WAKE_SERVER, _BACK, _GONE = range(7)
_MIX, _REDUCED, _DEADLINE = range(7, 10)
# Exchanges without a single update, after which nothing is to be expected any more.
_PATIENCE = 10_000
# Of a median computation, from one exchange to the next. What the others' noise adds to where a
# gradient is taken falls with it: docs/gossip.md has the figures for a half, a quarter, an eighth.
_EXCHANGE = 1 / 8

Committed = Callable[[int, events.Release], None]
MACHINES: dict[Rule, Callable[[Gossip, int, Vector, LedgerState | None], Machine]] = {
    "asynchronous": AsynchronousWorker,
    "synchronous": SynchronousWorker,
    "allreduce": AllReduceWorker,
}


def worker(gossip: Gossip, me: int, weights: Vector, ledger: LedgerState | None = None) -> Machine:
    """The worker of the gossip's rule; see :class:`~forethought.gossip.worker.Releases`."""
    return MACHINES[gossip.rule](gossip, me, weights, ledger)


@dataclass(frozen=True)
class GraphTimes(Times):
    """Times of a gossip: when exchanges begin, and when all is over, as well.

    Args:
        exchange: seconds from one exchange to the next, of the asynchronous rule; None: an eighth
            of the median computation, or what a message takes, if that is more.
        deadline: virtual second at which everybody stops; None: by the count alone.
    """

    exchange: float | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        for name in ("exchange", "deadline"):
            if getattr(self, name) is not None:
                real(name, getattr(self, name), above=0)


@dataclass(frozen=True)
class Simulated:
    """The outcome of a simulation.

    Args:
        weights: the model that is reported; of a gossip the average of all workers' models.
        seconds: virtual, until the last model was there, or the last worker had ended.
        updates: of every holder, int64, shape (holders,). rounds: private rounds of every holder.
        busy: seconds that each holder computed. messages, sent_bytes: in all.
        alarms: (code, text), of a gossip (worker, code, text).
        timeline: (holder, begin, end) of every computation, if kept.
    """

    weights: Vector
    seconds: float
    updates: NDArray[np.int64]
    rounds: NDArray[np.int64]
    busy: NDArray[np.float64]
    messages: int
    sent_bytes: int
    alarms: tuple[tuple[Any, ...], ...]
    timeline: tuple[tuple[int, float, float], ...]


@dataclass(frozen=True)
class SimulatedStar(Simulated):
    """The outcome of a federation's simulation.

    Args:
        version: how many models there were. applied: of the updates, those that the server applied.
        versions: virtual second of every model.
    """

    version: int
    applied: NDArray[np.int64]
    versions: tuple[float, ...]


@dataclass(frozen=True)
class SimulatedGraph(Simulated):
    """The outcome of a gossip's simulation.

    Args:
        models: each worker's own. reasons: why each ended. exchanges: steps.
    """

    models: tuple[Vector, ...]
    reasons: tuple[str, ...]
    exchanges: int

    @property
    def disagreement(self) -> float:
        """Root mean squared distance of the workers' models from their average."""
        squares = [float(np.sum((model - self.weights) ** 2)) for model in self.models]
        return math.sqrt(math.fsum(squares) / len(squares))


class _Simulator:
    """Virtual time, outages, durations and counts: the common part of both simulations."""

    def __init__(
        self,
        words: str,
        count: int,
        trainers: Trainers,
        times: Times,
        committed: Committed | None,
        timeline: bool,
    ) -> None:
        if len(times.compute) != count:
            raise ValueError(f"times for {len(times.compute)} {words} {count}")
        self.trainers, self.times = trainers, times
        self._committed = committed
        self._agenda = Agenda()
        self._factor = LogNormal(times.straggling, [times.seed, 0])
        self._jitter = LogNormal(times.way.jitter, [times.seed, 1])
        self._waits_for_time = bool(times.way.latency or times.way.bandwidth or times.way.jitter)
        self._rounds = np.zeros(count, dtype=np.int64)
        self._busy = np.zeros(count)
        # When a client is through with the parts of an update that it was asked for.
        self._through: dict[int, float] = {}
        self._timeline: list[tuple[int, float, float]] | None = [] if timeline else None
        self._alarms: list[tuple[Any, ...]] = []
        self._away: set[int] = set()
        self._done = False
        self._messages = self._bytes = 0
        # Heartbeats, or exchanges, since anything else happened; after so many nothing will.
        self._idle, self._patience = 0, _PATIENCE

    def _to_the_end(self) -> None:
        agenda = self._agenda
        for outage in self.times.outages:
            agenda.add(outage.begin, _GONE, outage.machine)
            if math.isfinite(outage.end):
                agenda.add(outage.end, _BACK, outage.machine)
        self._start()
        while not self._done:
            if not len(agenda) or self._idle > self._patience:
                raise SimulationError(self._stuck())
            self._happens(*agenda.next())

    def _start(self) -> None:
        raise NotImplementedError

    def _stuck(self) -> str:
        raise NotImplementedError

    def _happens(self, kind: int, machine: int, what: Any) -> None:
        raise NotImplementedError

    def _returns(self, machine: int, at: float) -> float:
        """The end of the outage in which a machine is at a time; the time itself: there is none."""
        outages = self.times.outages
        ends = [o.end for o in outages if o.machine == machine and o.begin <= at < o.end]
        return max(ends, default=at)

    def _goes_on(self, machine: int, what: object) -> None:
        """A computation of somebody who is away goes on where it stopped."""
        back = self._returns(machine, self._agenda.now)
        if math.isfinite(back):
            self._agenda.add(back, _COMPUTED, machine, what)

    def _train(self, work: Work, asked: Any, size: float = 1.0, wait: float = 0.0) -> None:
        """Begin a computation.

        Args:
            size: its records over those of a mean one. wait: before it, in its own durations.
        """
        times, holder = self.times, work.client
        seconds = times.compute[holder] * self._factor()
        if times.factors is not None:
            seconds *= times.factors(holder, work.round)
        seconds *= size
        begin = self._agenda.now + seconds * wait
        if work.parts > 1:
            seconds /= work.parts
            begin = max(begin, self._through.get(holder, begin))
            self._through[holder] = begin + seconds
        self._busy[holder] += seconds
        if self._timeline is not None:
            self._timeline.append((holder, begin, begin + seconds))
        self.trainers.begin(work)
        if work.part == work.parts - 1:
            self._agenda.add(begin + seconds, _COMPUTED, holder, asked)

    def _commit(self, holder: int, release: events.Release) -> None:
        self._rounds[holder] = release.rounds
        if self._committed is not None:
            self._committed(holder, release)

    def _seconds(self, size: int) -> float:
        """The duration of a message."""
        return self.times.way.seconds(size) * self._jitter() if self._waits_for_time else 0.0

    def _counts(self) -> dict[str, Any]:
        return {
            "seconds": self._agenda.now,
            "rounds": self._rounds,
            "busy": self._busy,
            "messages": self._messages,
            "sent_bytes": self._bytes,
            "alarms": tuple(self._alarms),
            "timeline": tuple(self._timeline or ()),
        }


class StarSimulator(_Simulator):
    """One simulation of a federation.

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
        committed: Committed | None = None,
        versions: Callable[[int, float, Vector], None] | None = None,
        timeline: bool = False,
    ) -> None:
        members = len(federation.members)
        words = "clients, the federation has"
        super().__init__(words, members, trainers, times, committed, timeline)
        self.federation = federation
        self.server = ServerMachine(federation, weights, average)
        self.clients = [ClientMachine(federation, client) for client in range(members)]
        self._versions = versions
        self._varies = [len(plan.mechanism.rounds) > 1 for plan in federation.plans]
        self._models: list[float] = []
        # Without outages nothing is lost, so nothing need be said again.
        self._loses = bool(times.outages)
        self._patience = 1000 + 100 * members

    def run(self) -> SimulatedStar:
        """To the last model.

        Raises:
            SimulationError: the federation waits for something that never comes.
        """
        self._to_the_end()
        if not math.isfinite(self._agenda.now):
            raise SimulationError("virtual time is not finite")
        return SimulatedStar(
            weights=self.server.reported,
            version=self.server.version,
            updates=np.array([machine.updates for machine in self.clients]),
            applied=self.server.applied.copy(),
            versions=tuple(self._models),
            **self._counts(),
        )

    def _start(self) -> None:
        self._serve(self.server.handle(events.Connected(0.0)))
        for client, machine in enumerate(self.clients):
            self._act(client, machine.handle(events.Connected(0.0)))

    def _stuck(self) -> str:
        return (
            f"model {self.server.version} waits for updates that never come: give a deadline or an "
            "absence"
        )

    def _happens(self, kind: int, machine: int, what: Any) -> None:
        # The commonest first: a million clients go through here thousands of times.
        now = self._agenda.now
        if machine in self._away and kind <= _WAKE:
            if kind == _COMPUTED:
                self._goes_on(machine, what)
        elif kind == _TO_SERVER:
            self._serve(self.server.handle(events.Received(machine, what, now)))
        elif kind == _MESSAGE:
            self._act(machine, self.clients[machine].handle(events.Received(SERVER, what, now)))
        elif kind == _COMPUTED:
            self._idle = 0
            self._computed(machine, what)
        elif kind == _WAKE_SERVER:
            self._serve(self.server.handle(events.Woken(now)))
        elif kind == _WAKE:
            self._idle += 1
            self._act(machine, self.clients[machine].handle(events.Woken(now)))
        elif kind == _BACK:
            self._away.discard(machine)
            self._act(machine, self.clients[machine].handle(events.Connected(now)))
        else:
            self._away.add(machine)

    def _computed(self, client: int, asked: events.Compute) -> None:
        found, now = self.trainers.result(client), self._agenda.now
        self._act(client, self.clients[client].handle(found.answer(asked, now)))

    def _act(self, client: int, effects: list[events.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, events.Send):
                self._send(_TO_SERVER, client, effect.message)
            elif isinstance(effect, events.Compute):
                varies = self._varies[self.federation.members[client].plan]
                place = effect.planned
                size = self._size(client, place) if varies else 1.0
                if effect.sampling is not None:
                    plan = self.federation.plan(client)
                    size *= effect.sampling.expected_batch(plan.examples) / plan.batch
                about = place, effect.base, effect.model, effect.part, effect.parts, effect.sampling
                self._train(Work(client, *about), effect, size)
            elif isinstance(effect, events.Commit):
                self._commit(client, effect.release)
            elif isinstance(effect, events.Wake):
                machine = self.clients[client]
                if self._loses or effect.at in (machine.held_until, machine.part_at):
                    self._agenda.add(effect.at, _WAKE, client)
            elif isinstance(effect, events.Alarm):
                self._alarms.append((effect.code, effect.text))

    def _serve(self, effects: list[events.Effect]) -> None:
        version = self.server.version
        if version > len(self._models):
            now = self._agenda.now
            self._models += [now] * (version - len(self._models))
            if self._versions is not None:
                self._versions(version, now, self.server.reported)
        for effect in effects:
            if isinstance(effect, events.Send):
                self._send(_MESSAGE, effect.to, effect.message)
            elif isinstance(effect, events.Wake):
                self._agenda.add(effect.at, _WAKE_SERVER, SERVER)
            elif isinstance(effect, events.Alarm):
                self._alarms.append((effect.code, effect.text))
            elif isinstance(effect, events.Done):
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
        if client not in self._away:
            self._agenda.add(self._agenda.now + self._seconds(size), kind, client, message)


class GraphSimulator(_Simulator):
    """One simulation of a gossip.

    Args:
        gossip: what was agreed. weights: the first ones of all, float32, shape (parameters,).
        trainers: compute the noised means. times: how long everything takes; :class:`GraphTimes`
            say when exchanges begin and when all stop, too.
        committed: called with worker and release for every release.
        looked: called with the global count, virtual second and workers, after every ``every``
            updates.
        every: see there. timeline: whether to keep every computation's times.

    Raises:
        ValueError: times for another number of workers.
    """

    def __init__(
        self,
        gossip: Gossip,
        weights: Vector,
        trainers: Trainers,
        times: Times,
        *,
        committed: Committed | None = None,
        looked: Callable[[int, float, list[Machine]], None] | None = None,
        every: int = 1,
        timeline: bool = False,
    ) -> None:
        count = gossip.workers
        words = "workers, the gossip has"
        super().__init__(words, count, trainers, times, committed, timeline)
        self.gossip = gossip
        paced = times if isinstance(times, GraphTimes) else GraphTimes(**vars(times))
        self._size = gossip.compression.size(gossip.coordinates)
        self.exchange = paced.exchange or max(
            median(times.compute) * _EXCHANGE, times.way.seconds(OVERHEAD + self._size)
        )
        self.deadline = paced.deadline
        self.machines: list[Machine] = [worker(gossip, k, weights) for k in range(count)]
        self._looked, self._every = looked, every
        self._loses = gossip.rule == "asynchronous"
        self._meets = self._loses and gossip.mixing.drawn
        self._reduced: dict[int, Vector] = {}
        self._reasons: dict[int, str] = {}
        self._gone = {o.machine for o in times.outages if not math.isfinite(o.end)}
        self._updates = self._step = 0

    def run(self) -> SimulatedGraph:
        """To the end of the last worker.

        Raises:
            SimulationError: they wait for something that never comes.
        """
        self._to_the_end()
        return SimulatedGraph(
            weights=average(self.machines),
            models=tuple(machine.weights for machine in self.machines),
            updates=np.array([machine.updates for machine in self.machines]),
            reasons=tuple(self._reasons.get(k, "away") for k in range(len(self.machines))),
            exchanges=self._step,
            **self._counts(),
        )

    def _start(self) -> None:
        if self.deadline is not None:
            self._agenda.add(self.deadline, _DEADLINE, 0)
        for k, machine in enumerate(self.machines):
            self._act(k, machine.handle(on.Started()))
        if self._loses:
            self._agenda.add(0.0, _MIX, 0)

    def _stuck(self) -> str:
        return (
            f"after {self._updates} updates of {self.gossip.total} nothing is to come: somebody "
            "waits for a worker that is away; give a deadline, or use the rule 'asynchronous'"
        )

    def _happens(self, kind: int, machine: int, what: Any) -> None:
        # The commonest first: ten thousand workers go through here hundreds of times.
        if kind == _MIX:
            self._mix()
        elif kind == _MESSAGE:
            if machine not in self._away:
                self._act(machine, self.machines[machine].handle(what))
        elif kind == _COMPUTED:
            self._computed(machine, what)
        elif kind == _REDUCED:
            self._act(machine, self.machines[machine].handle(what))
        elif kind == _GONE:
            self._away.add(machine)
            self._look_for_the_end()
            self._tell(machine, on.PeerLost(machine))
        elif kind == _BACK:
            self._away.discard(machine)
            self._tell(machine, on.PeerBack(machine))
            if self._loses:
                self._act(machine, self.machines[machine].handle(on.Started(1)))
        else:
            for k, one in enumerate(self.machines):
                self._act(k, one.handle(on.Stop()))

    def _look_for_the_end(self) -> None:
        """Everybody has ended, but for those who are away for ever."""
        ended = self._reasons.keys() | (self._gone & self._away)
        self._done = len(ended) == len(self.machines)

    def _tell(self, machine: int, event: on.Event) -> None:
        """Neighbours notice; a returning worker is told who else is away."""
        back = isinstance(event, on.PeerBack)
        for other in self.gossip.mixing.graph.neighbours(machine):
            if other not in self._away:
                self._act(other, self.machines[other].handle(event))
            if back:
                seen = on.PeerLost(other) if other in self._away else on.PeerBack(other)
                self._act(machine, self.machines[machine].handle(seen))

    def _mix(self) -> None:
        step, self._step = self._step, self._step + 1
        self._idle += 1
        event = on.Mix(step)
        met = self._meet(step)
        for k, machine in enumerate(self.machines):
            if k not in met and k not in self._away:
                self._act(k, machine.handle(event))
        self._agenda.add(self._agenda.now + self.exchange, _MIX, 0)

    def _meet(self, step: int) -> set[int]:
        """The workers that were done with an exchange at once, where events would come to the very
        same.

        Whoever is away has a partner that was told so, and draws its matchings without it.
        """
        met: set[int] = set()
        if not self._meets or self._waits_for_time or not self._agenda.alone:
            return met
        for pair in self.gossip.mixing.matching(step):
            one, other = self.machines[pair[0]], self.machines[pair[1]]
            # A machine that somebody listens to, or another one in its place, is handed events.
            if (
                type(one) is AsynchronousWorker
                and type(other) is AsynchronousWorker
                and one.meet(other, step)
            ):
                met.update(pair)
        self._messages += len(met)
        self._bytes += len(met) * (OVERHEAD + self._size)
        return met

    def _computed(self, machine: int, asked: on.ComputeGradient) -> None:
        if machine in self._away:
            self._goes_on(machine, asked)
            return
        found = self.trainers.result(machine)
        self._act(machine, self.machines[machine].handle(found.gradient(asked.round)))

    def _act(self, machine: int, effects: Effects) -> None:
        # The commonest first; what only a real driver has to act on falls through.
        for effect in effects:
            if isinstance(effect, on.Send):
                self._send(machine, effect)
            elif isinstance(effect, on.Commit):
                self._updates += 1
                self._idle = 0
                self._commit(machine, effect.release)
                if self._looked is not None and self._updates % self._every == 0:
                    self._looked(self._updates, self._agenda.now, self.machines)
            elif isinstance(effect, on.ComputeGradient):
                wait = 0.0 if effect.round else self.gossip.waits(machine)
                self._train(Work(machine, effect.round, machine, effect), effect, wait=wait)
            elif isinstance(effect, (on.Mixed, on.Acknowledged)):
                continue
            elif isinstance(effect, on.AllReduce):
                self._reduce(machine, effect)
            elif isinstance(effect, on.Finished):
                self._reasons[machine] = effect.reason
                self._look_for_the_end()
            else:
                self._alarms.append((machine, effect.code, effect.text))

    def _reduce(self, machine: int, effect: on.AllReduce) -> None:
        self._reduced[machine] = effect.vector
        count = len(self.machines)
        if len(self._reduced) < count:
            return
        total = np.zeros(len(effect.vector))
        for k in range(count):
            total += self._reduced[k]
        mean = (total / count).astype(np.float32)
        self._reduced.clear()
        # A ring: 2(K − 1) messages one after the other, each with a K-th of the vector.
        hops, size = 2 * (count - 1), OVERHEAD + -(-mean.nbytes // count)
        self._messages += hops * count
        self._bytes += hops * count * size
        at = self._agenda.now + hops * self.times.way.seconds(size)
        for k in range(count):
            self._agenda.add(at, _REDUCED, k, on.Reduced(effect.round, mean))

    def _send(self, machine: int, effect: on.Send) -> None:
        message, size = effect.message, OVERHEAD
        if isinstance(message, Weights):
            size += self._size if message.base >= 0 else message.vector.nbytes
        self._messages += 1
        self._bytes += size
        now, seconds = self._agenda.now, self._seconds(size)
        if not self._loses:
            # Whoever waits for everybody needs every message: one that is away gets it when back.
            back = self._returns(effect.to, now + seconds)
            if not math.isfinite(back):
                return
            if back > now + seconds:
                seconds = max(seconds, back - now)
        elif self._away and (machine in self._away or effect.to in self._away):
            return
        self._agenda.add(now + seconds, _MESSAGE, effect.to, on.Received(machine, message))


def average(machines: Sequence[Machine]) -> Vector:
    """The average of all workers' models, in float64, rounded once."""
    total = np.zeros(len(machines[0].weights))
    for machine in machines:
        total += machine.weights
    return (total / len(machines)).astype(np.float32)
