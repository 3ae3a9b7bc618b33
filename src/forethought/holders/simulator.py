"""Run the machines of a federation or a gossip in virtual time on one computer, and time them.

The result depends only on the agreement, the first weights, the trainers and the times. It depends
neither on the number of processes that compute nor on their speed. Nothing is signed or stored
here, and a message is lost only if a machine is away. Straggling is lognormal (as measured in data
centres and among phones) or a constant factor; a network is a latency and a bandwidth. Random
numbers are drawn from public seeds, in blocks and in the order of the requests, so simulations with
the same order of requests get the same numbers. This module does not import torch.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forethought.exchange import events
from forethought.exchange.events import Compute, Computed, HasVector
from forethought.exchange.messages import SERVER, Vector
from forethought.exchange.storage import LedgerState
from forethought.federated.client import ClientMachine
from forethought.federated.federation import Federation
from forethought.federated.server import Average, ServerMachine
from forethought.gossip import events as on
from forethought.gossip.asynchronous import AsynchronousWorker
from forethought.gossip.events import GradientDone, Weights
from forethought.gossip.gossip import Gossip, Rule
from forethought.gossip.graphs import written_rows
from forethought.gossip.synchronous import AllReduceWorker, SynchronousWorker
from forethought.gossip.worker import Effects, Machine
from forethought.values.checks import optional, real, reals, whole
from forethought.values.mechanism import LocalRounds, first_round


class Agenda:
    """The queue of future events, in virtual seconds.

    Attributes:
        now: the time of the last event.
    """

    __slots__ = ("_entries", "_order", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._order = 0
        self._entries: list[tuple[float, int, int, int, Any]] = []

    def __len__(self) -> int:
        """The number of future events."""
        return len(self._entries)

    @property
    def alone(self) -> bool:
        """True if no other event has the present time."""
        return not self._entries or self._entries[0][0] > self.now

    def holds(self, kind: int, without: Container[int]) -> bool:
        """True if an event of a kind is to come, of a machine that is not in ``without``."""
        return any(entry[2] == kind and entry[3] not in without for entry in self._entries)

    def add(self, at: float, kind: int, machine: int, what: Any = None) -> None:
        """Schedule an event of a machine; one whose time has passed happens at once."""
        self._order += 1
        at = at if at > self.now else self.now
        heapq.heappush(self._entries, (at, self._order, kind, machine, what))

    def next(self) -> tuple[int, int, Any]:
        """Go to the next event; returns its kind, machine and content.

        Raises:
            IndexError: there is no further event.
        """
        self.now, _, kind, machine, what = heapq.heappop(self._entries)
        return kind, machine, what


BLOCK = 4096


@dataclass(frozen=True)
class Way:
    """A network: a message of b bytes takes ``latency`` + b / ``bandwidth`` seconds.

    Args:
        latency: seconds. bandwidth: bytes per second; None: no limit.
        jitter: σ of a lognormal factor with median 1 on the whole duration; 0: none.

    Raises:
        ValueError: a negative latency or jitter, or a bandwidth that is not positive.
    """

    latency: float = 0.0
    bandwidth: float | None = None
    jitter: float = 0.0

    def __post_init__(self) -> None:
        real("latency", self.latency, least=0)
        real("jitter", self.jitter, least=0)
        optional(real, "bandwidth", self.bandwidth, above=0)

    def seconds(self, size: float) -> float:
        """The duration of a message of ``size`` bytes, without the jitter."""
        return self.latency + (size / self.bandwidth if self.bandwidth else 0.0)


@dataclass(frozen=True)
class Outage:
    """An interval, from ``begin`` to ``end`` (seconds), in which a machine is off the network.

    It computes nothing in that time.
    """

    machine: int
    begin: float
    end: float = math.inf

    def __post_init__(self) -> None:
        whole("machine", self.machine, least=0)
        if not real("begin", self.begin, least=0) < self.end:
            raise ValueError("an outage must end after it began")


def _apart(outages: Iterable[Outage]) -> list[Outage]:
    """Each machine's outages, with those that overlap or touch joined to one."""
    found: list[Outage] = []
    for one in sorted(outages, key=lambda o: (o.machine, o.begin)):
        if found and found[-1].machine == one.machine and one.begin <= found[-1].end:
            before = found.pop()
            one = replace(before, end=max(before.end, one.end))
        found.append(one)
    return found


class LogNormal:
    """A source of lognormal factors with median 1.

    Args:
        sigma: standard deviation of the logarithm; 0: every factor is 1.
        seed: public seed.
    """

    def __init__(self, sigma: float, seed: int | Sequence[int]) -> None:
        self._sigma = real("sigma", sigma, least=0)
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._left: list[float] = []

    def __call__(self) -> float:
        """The next factor."""
        if not self._sigma:
            return 1.0
        if not self._left:
            self._left = np.exp(self._sigma * self._generator.standard_normal(BLOCK)).tolist()
        return self._left.pop()


def slow_ones(machines: int, slow: int, factor: float, seconds: float = 1.0) -> tuple[float, ...]:
    """Seconds per unit of work of each machine; the last ``slow`` ones take ``factor`` times more.

    Raises:
        ValueError: more slow machines than machines, or a factor that is not positive.
    """
    machines, slow = whole("machines", machines), whole("slow", slow, least=0)
    if slow > machines:
        raise ValueError(f"{slow} of {machines} machines cannot be slow")
    real("factor", factor, above=0)
    return (seconds,) * (machines - slow) + (seconds * factor,) * slow


def lognormal_speeds(machines: int, sigma: float, seed: int) -> list[float]:
    """Seconds per unit of work of each machine, lognormal with median 1."""
    draw = LogNormal(sigma, [seed, 1])
    return [draw() for _ in range(whole("machines", machines))]


@dataclass(frozen=True)
class Hiccups:
    """One machine, drawn anew, takes longer in every round (Xu, Zhang and Wang, Case I).

    The factor depends only on seed, machine and round, so the same rounds are slow under every
    rule of waiting.

    Args:
        machines: their number. factor: on the slow machine's seconds. seed: public seed.
    """

    machines: int
    factor: float = 2.0
    seed: int = 0

    def __call__(self, machine: int, round: int) -> float:
        """The factor on a machine's seconds in its round."""
        digest = hashlib.blake2b(f"hiccup {self.seed} {round}".encode(), digest_size=8).digest()
        slow = int.from_bytes(digest, "little") % self.machines
        return self.factor if machine == slow else 1.0


@dataclass(frozen=True)
class Trace:
    """Measured factors: each machine goes through its row cyclically.

    Args:
        rows: one per machine, with one factor per round; machine k takes row k modulo their number.

    Raises:
        ValueError: no rows, an empty row, or a factor that is not positive.
    """

    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.rows or not all(self.rows):
            raise ValueError("a trace needs a row of at least one number for some machine")
        for row in self.rows:
            for factor in row:
                real("a factor of a trace", factor, above=0)

    def __call__(self, machine: int, round: int) -> float:
        """The factor on a machine's seconds in its round."""
        row = self.rows[machine % len(self.rows)]
        return row[round % len(row)]


def read_trace(path: str | Path) -> Trace:
    """Read a trace from a text file: one line per machine, one factor per round, # for comments.

    Raises:
        ValueError: a line contains something else than numbers. OSError: there is no such file.
    """
    rows = []
    for number, line, words in written_rows(path):
        try:
            rows.append(tuple(float(word) for word in words))
        except ValueError:
            raise ValueError(
                f"{path}, line {number}: {line.strip()!r} are no numbers; write one factor a round"
            ) from None
    return Trace(tuple(rows))


Factors = Callable[[int, int], float]


# Bytes of a frame without its vector.
OVERHEAD = 256


class SimulationError(RuntimeError):
    """A simulation cannot go on: no event is left, and it has not ended."""


@dataclass(frozen=True)
class Times:
    """The durations in a simulation.

    Args:
        compute: each machine's seconds for one update; for a mean one if sample sizes change.
        way: the network that every message takes.
        straggling: σ of a lognormal factor on every single computation.
        outages: the intervals in which machines are away; they may overlap.
        factors: (machine, round) → the factor on its seconds; None: 1.
        seed: public seed of all these random numbers.

    Raises:
        ValueError: seconds or a σ that are negative or not finite.
    """

    compute: Sequence[float]
    way: Way = Way()
    straggling: float = 0.0
    outages: tuple[Outage, ...] = ()
    seed: int = 0
    factors: Factors | None = None

    def __post_init__(self) -> None:
        reals("seconds of an update", self.compute, least=0)
        real("straggling", self.straggling, least=0)


# The trainers, which compute a simulation's updates on request.
class HolderError(ValueError):
    """A holder cannot take part with this model, these records or this loss."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One update that a client computes.

    Args:
        client: its place. round: index of its update in its plan. base: version of the weights.
        model: holds the weights. part, parts, sampling: see
            :class:`~forethought.exchange.events.Compute`.
    """

    client: int
    round: int
    base: int
    model: HasVector
    part: int = 0
    parts: int = 1
    sampling: Any = None

    @classmethod
    def of(cls, client: int, asked: Compute) -> Work:
        """The work that a client's machine asks for."""
        about = asked.base, asked.model, asked.part, asked.parts, asked.sampling
        return cls(client, asked.planned, *about)

    @property
    def weights(self) -> Vector:
        """The weights, float32, shape (parameters,); read-only."""
        return self.model.vector


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The outcome of a client's work; see :class:`forethought.exchange.events.Computed`."""

    vector: Vector
    rounds: int
    input_hash: bytes
    state: bytes

    def answer(self, asked: Compute, now: float) -> Computed:
        """The event that tells a client's machine this result."""
        about = self.vector, self.rounds, self.input_hash, self.state
        return Computed(asked.round, asked.base, *about, now)

    def gradient(self, round: int) -> GradientDone:
        """The event that tells a worker this result."""
        return GradientDone(round, self.vector, self.rounds, self.input_hash, self.state)


class Trainers(Protocol):
    """Computes the updates of all clients."""

    def begin(self, work: Work) -> None:
        """Accept work; it may be done now, later or elsewhere, in this order for each client."""

    def result(self, client: int) -> Result:
        """Wait for a client's work and return its outcome."""


Rehearsed = Callable[[Work], Vector]


class NoTraining:
    """Trainers without data and noise: to measure times, messages and memory, and for tests.

    Args:
        local_rounds: private rounds in an update.
        vector: from work to the vector that is sent; default: the work's weights.
    """

    def __init__(self, local_rounds: LocalRounds = 1, vector: Rehearsed | None = None) -> None:
        self._rounds, self._vector = local_rounds, vector
        self._works: dict[int, Work] = {}

    def begin(self, work: Work) -> None:
        self._works[work.client] = work

    def result(self, client: int) -> Result:
        work = self._works.pop(client)
        vector = work.weights if self._vector is None else self._vector(work)
        return Result(vector, first_round(self._rounds, work.round + 1), b"", b"")


def no_gradients(parameters: int) -> Rehearsed:
    """A function that returns zeros, always the same array, as a gradient."""
    zeros = np.zeros(parameters, dtype=np.float32)
    return lambda work: zeros


# The simulators: they drive the machines of a federation or of a gossip through virtual time.


# Kinds of events. Those up to _WAKE do not reach a client that is away.
_TO_SERVER, _MESSAGE, _COMPUTED, _WAKE, _WAKE_SERVER, _BACK, _GONE = range(7)
_MIX, _REDUCED, _DEADLINE = range(7, 10)
# After so many exchanges without an update, the simulation is taken for stuck.
_PATIENCE = 10_000
# Time between two exchanges, as a share of the median computation. A smaller share reduces the
# noise of other workers in the point of a gradient: docs/gossip.md has the figures for 1/2 to 1/8.
_EXCHANGE = 1 / 8

Committed = Callable[[int, events.ClientRelease], None]
MACHINES: dict[Rule, Callable[[Gossip, int, Vector, LedgerState | None], Machine]] = {
    "asynchronous": AsynchronousWorker,
    "synchronous": SynchronousWorker,
    "allreduce": AllReduceWorker,
}


def worker(gossip: Gossip, me: int, weights: Vector, ledger: LedgerState | None = None) -> Machine:
    """Create the gossip rule's worker; see :class:`~forethought.gossip.worker.OwnReleases`."""
    return MACHINES[gossip.rule](gossip, me, weights, ledger)


@dataclass(frozen=True)
class GraphTimes(Times):
    """The durations in a gossip: those of :class:`Times`, its exchanges' and its deadline.

    Args:
        exchange: seconds from one exchange to the next, under the asynchronous rule; None: an
            eighth of the median computation, or the duration of a message if that is longer.
        deadline: virtual second at which all workers stop; None: only the count of updates stops
            them.

    Raises:
        ValueError: a value that is not positive.
    """

    exchange: float | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("exchange", "deadline"):
            optional(real, name, getattr(self, name), above=0)


@dataclass(frozen=True)
class Simulated:
    """The outcome of a simulation.

    Args:
        weights: the reported model; of a gossip the average of all workers' models.
        seconds: virtual seconds until the last model existed, or the last worker had ended.
        updates: of every holder, int64, shape (holders,). rounds: private rounds, likewise.
        busy: seconds that each holder computed. messages, sent_bytes: totals.
        alarms: (code, text); of a gossip (worker, code, text).
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
        version: number of models. applied: number of each client's updates that the server applied.
        versions: virtual second of every model.
    """

    version: int
    applied: NDArray[np.int64]
    versions: tuple[float, ...]


@dataclass(frozen=True)
class SimulatedGraph(Simulated):
    """The outcome of a gossip's simulation.

    Args:
        models: of each worker. reasons: why each ended. exchanges: number of steps.
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
    """The common part of both simulators: virtual time, outages, durations and counts."""

    def __init__(
        self,
        agreed: Federation | Gossip,
        trainers: Trainers,
        times: Times,
        committed: Committed | None,
        timeline: bool,
    ) -> None:
        count = len(agreed.members)
        if (given := len(times.compute)) != count:
            raise ValueError(f"times for {given} {agreed.MEMBER}s, the {agreed.CALLED} has {count}")
        self.trainers, self.times, self._outages = trainers, times, _apart(times.outages)
        if (last := max((one.machine for one in self._outages), default=0)) >= count:
            raise ValueError(f"an outage of machine {last}, and there are {count}, from 0")
        self._committed = committed
        self._agenda = Agenda()
        self._factor = LogNormal(times.straggling, [times.seed, 0])
        self._jitter = LogNormal(times.way.jitter, [times.seed, 1])
        self._waits_for_time = bool(times.way.latency or times.way.bandwidth or times.way.jitter)
        self._rounds = np.zeros(count, dtype=np.int64)
        self._busy = np.zeros(count)
        # When each client has finished the parts of an update that were requested so far.
        self._through: dict[int, float] = {}
        self._timeline: list[tuple[int, float, float]] | None = [] if timeline else None
        self._alarms: list[tuple[Any, ...]] = []
        self._away: set[int] = set()
        self._done = False
        self._messages = self._bytes = 0
        # Heartbeats, or exchanges, since any other event; after _patience of them nothing follows.
        self._idle, self._patience = 0, _PATIENCE
        for outage in self._outages:
            self._agenda.add(outage.begin, _GONE, outage.machine)
            if math.isfinite(outage.end):
                self._agenda.add(outage.end, _BACK, outage.machine)

    def _to_the_end(self) -> None:
        agenda = self._agenda
        while not self._done:
            if self._idle > self._patience and agenda.holds(_COMPUTED, self._away):
                self._idle = 0  # somebody computes for longer than all these waits
            if not len(agenda) or self._idle > self._patience:
                raise SimulationError(self._stuck())
            self._happens(*agenda.next())

    def _stuck(self) -> str:
        raise NotImplementedError

    def _happens(self, kind: int, machine: int, what: Any) -> None:
        raise NotImplementedError

    def _returns(self, machine: int, at: float) -> float:
        """The end of the machine's outage at a time; the time itself if there is none."""
        away = (o.end for o in self._outages if o.machine == machine and o.begin <= at < o.end)
        return next(away, at)

    def _goes_on(self, machine: int, what: object) -> None:
        """Postpone the end of a computation to the return of a machine that is away."""
        back = self._returns(machine, self._agenda.now)
        if math.isfinite(back):
            self._agenda.add(back, _COMPUTED, machine, what)

    def _train(self, work: Work, asked: Any, size: float = 1.0, wait: float = 0.0) -> None:
        """Begin a computation.

        Args:
            size: its number of records relative to a mean update's.
            wait: before it begins, as a multiple of its duration.
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

    def _commit(self, holder: int, release: events.ClientRelease) -> None:
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
        federation: the agreement. weights: the first model, float32, shape (parameters,).
        trainers: compute the updates. times: the durations.
        average: of the models, if the federation averages them.
        committed: called with client and release for every release, before it is sent.
        versions: called with version, virtual second and weights for every new model.
        timeline: True keeps the times of every computation.

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
        super().__init__(federation, trainers, times, committed, timeline)
        self.federation, members = federation, len(federation.members)
        self.server = ServerMachine(federation, weights, average)
        self.clients = [ClientMachine(federation, client) for client in range(members)]
        self._versions = versions
        self._varies = [len(plan.mechanism.rounds) > 1 for plan in federation.plans]
        self._models: list[float] = []
        # Without outages no message is lost, so none need be sent again.
        self._loses = bool(times.outages)
        self._patience = 1000 + 100 * members

    def run(self) -> SimulatedStar:
        """Run until the last model.

        Raises:
            SimulationError: no event is left before the end, or virtual time is not finite.
        """
        self._serve(self.server.handle(events.Connected(0.0)))
        for client, machine in enumerate(self.clients):
            self._act(client, machine.handle(events.Connected(0.0)))
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

    def _stuck(self) -> str:
        first = self._alarms[0][1] if self._alarms else "give a deadline or an absence"
        return f"model {self.server.version} waits for updates that never come: {first}"

    def _happens(self, kind: int, machine: int, what: Any) -> None:
        # The most frequent kinds come first: a million clients pass here thousands of times.
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
            found = self.trainers.result(machine)
            self._act(machine, self.clients[machine].handle(found.answer(what, now)))
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

    def _act(self, client: int, effects: list[events.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, events.Send):
                self._send(_TO_SERVER, client, effect.message)
            elif isinstance(effect, events.Compute):
                varies = self._varies[self.federation.members[client].plan]
                plan = self.federation.plan(client)
                size = self.federation.relative_size(plan, effect.planned) if varies else 1.0
                if effect.sampling is not None:
                    size *= effect.sampling.expected_batch(plan.examples) / plan.batch
                self._train(Work.of(client, effect), effect, size)
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
        gossip: the agreement. weights: every worker's first weights, float32, shape (parameters,).
        trainers: compute the noised means. times: the durations; :class:`GraphTimes` also has
            those of exchanges and the deadline.
        committed: called with worker and release for every release.
        looked: called with the global count, virtual second and workers, after every ``every``
            updates.
        every: see ``looked``. timeline: True keeps the times of every computation.

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
        super().__init__(gossip, trainers, times, committed, timeline)
        self.gossip, count = gossip, gossip.workers
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
        self._gone = {o.machine for o in self._outages if not math.isfinite(o.end)}
        self._updates = self._step = 0

    def run(self) -> SimulatedGraph:
        """Run until the last worker has ended.

        Raises:
            SimulationError: no event is left before the end.
        """
        if self.deadline is not None:
            self._agenda.add(self.deadline, _DEADLINE, 0)
        for k, machine in enumerate(self.machines):
            self._act(k, machine.handle(on.Started()))
        if self._loses:
            self._agenda.add(0.0, _MIX, 0)
        self._to_the_end()
        return SimulatedGraph(
            weights=average(self.machines),
            models=tuple(machine.weights for machine in self.machines),
            updates=np.array([machine.updates for machine in self.machines]),
            reasons=tuple(self._reasons.get(k, "away") for k in range(len(self.machines))),
            exchanges=self._step,
            **self._counts(),
        )

    def _stuck(self) -> str:
        return (
            f"after {self._updates} updates of {self.gossip.total} nothing is to come: somebody "
            "waits for a worker that is away; give a deadline, or use the rule 'asynchronous'"
        )

    def _happens(self, kind: int, machine: int, what: Any) -> None:
        # The most frequent kinds come first: ten thousand workers pass here hundreds of times.
        if kind == _MIX:
            self._mix()
        elif kind == _MESSAGE:
            if machine not in self._away:
                self._act(machine, self.machines[machine].handle(what))
        elif kind == _COMPUTED and machine in self._away:
            self._goes_on(machine, what)
        elif kind == _COMPUTED:
            found = self.trainers.result(machine)
            self._act(machine, self.machines[machine].handle(found.gradient(what.round)))
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
        """Note whether all workers have ended, except those that are away for ever."""
        ended = self._reasons.keys() | (self._gone & self._away)
        self._done = len(ended) == len(self.machines)

    def _tell(self, machine: int, event: on.Event) -> None:
        """Tell a worker's neighbours an event; a returning worker learns which of them are away."""
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
        """Exchange directly between pairs of workers where events would give the same result.

        Returns the workers that did. The partner of a worker that is away was told so, and draws
        its matchings without it.
        """
        met: set[int] = set()
        if not self._meets or self._waits_for_time or not self._agenda.alone:
            return met
        for pair in self.gossip.mixing.matching(step):
            one, other = self.machines[pair[0]], self.machines[pair[1]]
            # A subclass or a substitute may observe its events, so it gets them.
            if (
                type(one) is AsynchronousWorker
                and type(other) is AsynchronousWorker
                and one.meet(other, step)
            ):
                met.update(pair)
        self._messages += len(met)
        self._bytes += len(met) * (OVERHEAD + self._size)
        return met

    def _act(self, machine: int, effects: Effects) -> None:
        # The most frequent effects come first; those for real drivers only have no action here.
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
            elif isinstance(effect, on.WorkerFinished):
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
        # A ring allreduce: 2(K − 1) successive messages, each with 1/K of the vector.
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
            # A worker that waits for others needs every message: it gets them after its outage.
            back = self._returns(effect.to, now + seconds)
            if not math.isfinite(back):
                return
            if back > now + seconds:
                seconds = max(seconds, back - now)
        elif self._away and (machine in self._away or effect.to in self._away):
            return
        self._agenda.add(now + seconds, _MESSAGE, effect.to, on.PeerMessage(machine, message))


def average(machines: Sequence[Machine]) -> Vector:
    """The average of all workers' models, float32: computed in float64 and rounded once."""
    total = np.zeros(len(machines[0].weights))
    for machine in machines:
        total += machine.weights
    return (total / len(machines)).astype(np.float32)


def rehearsed(federation: Federation, times: Times) -> SimulatedStar:
    """Run a federation in virtual time without training, for its seconds, messages and bytes."""
    start = np.zeros(federation.parameters, dtype=np.float32)
    gradients = federation.exchanged == "gradients"
    vector = no_gradients(federation.parameters) if gradients else None
    bare = replace(federation, averaging=replace(federation.averaging, kind="none"))
    return StarSimulator(bare, start, NoTraining(federation.local_rounds, vector), times).run()


def rehearsed_graph(gossip: Gossip, times: Times) -> SimulatedGraph:
    """Run a gossip in virtual time without training, for its seconds, messages and bytes."""
    start = np.zeros(gossip.parameters, dtype=np.float32)
    idle = NoTraining(1, no_gradients(gossip.parameters))
    return GraphSimulator(gossip, start, idle, times).run()
