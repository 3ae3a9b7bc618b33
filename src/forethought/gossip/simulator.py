"""Drives the workers of a gossip through virtual time, on one computer.

The result follows from gossip, first weights, trainers and surroundings alone: not from the number
of processes that compute, nor from how fast they are. Nothing is signed, stored or lost here, but
for what machines that are away miss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.events import Release
from forethought.exchange.messages import Vector
from forethought.gossip import events as on
from forethought.gossip.asynchronous import AsynchronousWorker
from forethought.gossip.gossip import Gossip
from forethought.gossip.machines import worker
from forethought.gossip.messages import Weights
from forethought.gossip.worker import Effects, Machine
from forethought.holders.work import Trainers, Work
from forethought.simulation.clock import Agenda
from forethought.simulation.speeds import LogNormal
from forethought.simulation.times import OVERHEAD, SimulationError, Times
from forethought.values.checks import real

_MESSAGE, _COMPUTED, _MIX, _REDUCED, _LOST, _BACK, _ON, _OFF, _DEADLINE = range(9)
# Exchanges without a single update, after which nothing is to be expected any more.
_PATIENCE = 10_000
# Of a median computation, from one exchange to the next. What the others' noise adds to where a
# gradient is taken falls with it: docs/gossip.md has the figures for a half, a quarter, an eighth.
_EXCHANGE = 1 / 8


@dataclass(frozen=True)
class Pace(Times):
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
        weights: the average of all workers' models. models: each worker's own.
        seconds: virtual, until the last worker had ended.
        updates: of every worker, int64, shape (workers,). rounds: private rounds of every worker.
        busy: seconds that each worker computed. reasons: why each ended.
        exchanges: steps. messages, sent_bytes: in all.
        alarms: (worker, code, text). timeline: (worker, begin, end) of computations, if kept.
    """

    weights: Vector
    models: tuple[Vector, ...]
    seconds: float
    updates: NDArray[np.int64]
    rounds: NDArray[np.int64]
    busy: NDArray[np.float64]
    reasons: tuple[str, ...]
    exchanges: int
    messages: int
    sent_bytes: int
    alarms: tuple[tuple[int, str, str], ...]
    timeline: tuple[tuple[int, float, float], ...]

    @property
    def disagreement(self) -> float:
        """Root mean squared distance of the workers' models from their average."""
        squares = [float(np.sum((model - self.weights) ** 2)) for model in self.models]
        return math.sqrt(math.fsum(squares) / len(squares))


class Simulator:
    """One simulation.

    Args:
        gossip: what was agreed. weights: the first ones of all, float32, shape (parameters,).
        trainers: compute the noised means. times: how long everything takes; a
            :class:`Pace` says when exchanges begin and when all stop, too.
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
        committed: Callable[[int, Release], None] | None = None,
        looked: Callable[[int, float, list[Machine]], None] | None = None,
        every: int = 1,
        timeline: bool = False,
    ) -> None:
        count = gossip.workers
        if len(times.compute) != count:
            raise ValueError(f"times for {len(times.compute)} workers, the gossip has {count}")
        self.gossip, self.trainers, self.times = gossip, trainers, times
        paced = times if isinstance(times, Pace) else Pace(**vars(times))
        self._size = gossip.compression.size(gossip.coordinates)
        self.exchange = paced.exchange or max(
            median(times.compute) * _EXCHANGE, times.way.seconds(OVERHEAD + self._size)
        )
        self.deadline = paced.deadline
        self.machines: list[Machine] = [worker(gossip, k, weights) for k in range(count)]
        self._committed, self._looked, self._every = committed, looked, every
        self._agenda = Agenda()
        self._factor = LogNormal(times.straggling, [times.seed, 0])
        self._jitter = LogNormal(times.way.jitter, [times.seed, 1])
        self._waits_for_time = bool(times.way.latency or times.way.bandwidth or times.way.jitter)
        self._loses = gossip.rule == "asynchronous"
        self._meets = self._loses and gossip.mixing.drawn
        self._rounds = np.zeros(count, dtype=np.int64)
        self._busy = np.zeros(count)
        self._timeline: list[tuple[int, float, float]] | None = [] if timeline else None
        self._alarms: list[tuple[int, str, str]] = []
        self._away: set[int] = set()
        self._reduced: dict[int, Vector] = {}
        self._reasons: dict[int, str] = {}
        self._gone = {o.machine for o in times.outages if not math.isfinite(o.end)}
        self._done = False
        self._messages = self._bytes = self._updates = self._step = self._idle = 0

    def run(self) -> Simulated:
        """To the end of the last worker.

        Raises:
            SimulationError: they wait for something that never comes.
        """
        agenda = self._agenda
        for outage in self.times.outages:
            agenda.add(outage.begin, _OFF, outage.machine)
            if math.isfinite(outage.end):
                agenda.add(outage.end, _ON, outage.machine)
        if self.deadline is not None:
            agenda.add(self.deadline, _DEADLINE, 0)
        for k, machine in enumerate(self.machines):
            self._act(k, machine.handle(on.Started()))
        if self.gossip.rule == "asynchronous":
            agenda.add(0.0, _MIX, 0)
        seconds = 0.0
        while not self._done:
            if not len(agenda) or self._idle > _PATIENCE:
                raise SimulationError(
                    f"after {self._updates} updates of {self.gossip.total} nothing is to come: "
                    "somebody waits for a worker that is away; give a deadline, or use the rule "
                    "'asynchronous'"
                )
            self._happens(*agenda.next())
            seconds = agenda.now
        return self._result(seconds)

    def _happens(self, kind: int, machine: int, what: object) -> None:
        # The commonest first: ten thousand workers go through here hundreds of times.
        if kind == _MIX:
            self._mix()
        elif kind == _MESSAGE:
            if machine not in self._away:
                self._act(machine, self.machines[machine].handle(what))  # type: ignore[arg-type]
        elif kind == _COMPUTED:
            self._computed(machine, what)
        elif kind == _REDUCED:
            self._act(machine, self.machines[machine].handle(what))  # type: ignore[arg-type]
        elif kind == _OFF:
            self._away.add(machine)
            self._look_for_the_end()
            self._tell(machine, on.PeerLost(machine))
        elif kind == _ON:
            self._away.discard(machine)
            self._tell(machine, on.PeerBack(machine))
            if self.gossip.rule == "asynchronous":
                self._act(machine, self.machines[machine].handle(on.Started(1)))
        elif kind == _DEADLINE:
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

    def _computed(self, machine: int, what: object) -> None:
        now = self._agenda.now
        if machine in self._away:  # it goes on where it stopped
            outages = self.times.outages
            ends = [o.end for o in outages if o.machine == machine and o.begin <= now < o.end]
            back = max(ends, default=now)
            if math.isfinite(back):
                self._agenda.add(back, _COMPUTED, machine, what)
            return
        if not isinstance(what, on.ComputeGradient):
            raise TypeError(f"a computation was expected, not {type(what).__name__}")
        found = self.trainers.result(machine)
        done = on.GradientDone(
            what.round, found.vector, found.rounds, found.input_hash, found.state
        )
        self._act(machine, self.machines[machine].handle(done))

    def _act(self, machine: int, effects: Effects) -> None:
        # The commonest first; what only a real driver has to act on falls through.
        for effect in effects:
            if isinstance(effect, on.Send):
                self._send(machine, effect)
            elif isinstance(effect, on.Commit):
                self._commit(machine, effect.release)
            elif isinstance(effect, on.ComputeGradient):
                self._compute(machine, effect)
            elif isinstance(effect, (on.Mixed, on.Acknowledged)):
                continue
            elif isinstance(effect, on.AllReduce):
                self._reduce(machine, effect)
            elif isinstance(effect, on.Finished):
                self._reasons[machine] = effect.reason
                self._look_for_the_end()
            else:
                self._alarms.append((machine, effect.code, effect.text))

    def _compute(self, machine: int, effect: on.ComputeGradient) -> None:
        now, times = self._agenda.now, self.times
        seconds = times.compute[machine] * self._factor()
        if times.factors is not None:
            seconds *= times.factors(machine, effect.round)
        self._busy[machine] += seconds
        begin = now if effect.round else now + seconds * self.gossip.waits(machine)
        if self._timeline is not None:
            self._timeline.append((machine, begin, begin + seconds))
        self.trainers.begin(Work(machine, effect.round, machine, effect))
        self._agenda.add(begin + seconds, _COMPUTED, machine, effect)

    def _commit(self, machine: int, release: Release) -> None:
        self._rounds[machine] = release.rounds
        self._updates += 1
        self._idle = 0
        if self._committed is not None:
            self._committed(machine, release)
        if self._looked is not None and self._updates % self._every == 0:
            self._looked(self._updates, self._agenda.now, self.machines)

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
        way, hops = self.times.way, 2 * (count - 1)
        size = OVERHEAD + -(-mean.nbytes // count)
        seconds = hops * way.seconds(size)
        self._messages += hops * count
        self._bytes += hops * count * size
        for k in range(count):
            self._agenda.add(
                self._agenda.now + seconds, _REDUCED, k, on.Reduced(effect.round, mean)
            )

    def _send(self, machine: int, effect: on.Send) -> None:
        message = effect.message
        size = OVERHEAD
        if isinstance(message, Weights):
            size += self._size if message.base >= 0 else message.vector.nbytes
        self._messages += 1
        self._bytes += size
        seconds = 0.0
        if self._waits_for_time:
            seconds = self.times.way.seconds(size) * self._jitter()
        received = on.Received(machine, message)
        if not self._loses:
            # Whoever waits for everybody needs every message: one that is away gets it when back.
            ends = [
                o.end
                for o in self.times.outages
                if o.machine == effect.to and o.begin <= self._agenda.now + seconds < o.end
            ]
            seconds = max([seconds, *(end - self._agenda.now for end in ends)])
            if not math.isfinite(seconds):
                return
        elif self._away and (machine in self._away or effect.to in self._away):
            return
        self._agenda.add(self._agenda.now + seconds, _MESSAGE, effect.to, received)

    def _result(self, seconds: float) -> Simulated:
        return Simulated(
            average(self.machines),
            tuple(machine.weights for machine in self.machines),
            seconds,
            np.array([machine.updates for machine in self.machines]),
            self._rounds,
            self._busy,
            tuple(self._reasons.get(k, "away") for k in range(len(self.machines))),
            self._step,
            self._messages,
            self._bytes,
            tuple(self._alarms),
            tuple(self._timeline or ()),
        )


def average(machines: Sequence[Machine]) -> Vector:
    """The average of all workers' models, in float64, rounded once."""
    total = np.zeros(len(machines[0].weights))
    for machine in machines:
        total += machine.weights
    return (total / len(machines)).astype(np.float32)
