"""Links from a worker to its neighbours, detection of lost ones, and the driver of a worker.

The driver sends through :class:`Links`; a queue holds what arrives. A dead neighbour has no
connection; one that is stopped, or behind a broken line, has one but sends nothing, not even a
sign of life. :class:`Liveness` reports both alike: as lost, and later as back.

One thread drives the machine. Neighbours' messages, the trainer's results and those of an allreduce
arrive in one queue, and the order in which they leave it is the order of events. Gradients are
computed in another thread, so averaging goes on meanwhile. An asynchronous worker waits for nobody:
after ``answer`` seconds without an answer the next exchange begins, and a worker that is behind in
its steps continues at the newest step that it heard of.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median_high
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import distributed

from forethought.exchange.messages import Vector
from forethought.exchange.storage import ClientLedger, MemberWitness
from forethought.gossip import events as on
from forethought.gossip.events import Hello, Known, Weights
from forethought.gossip.gossip import Gossip, GossipError
from forethought.gossip.worker import Machine
from forethought.holders.driving import Alarms
from forethought.holders.simulator import Result

# Seconds between two signs of life, and of silence after which a neighbour counts as lost.
BEAT_EVERY, PATIENCE = 0.5, 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """A message that was checked on arrival.

    Args:
        proof: the sender's signature on its count of updates; b"" where frames are not signed.
    """

    sender: int
    message: Any
    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A refused frame of a neighbour, which changed nothing; ``text`` says who sent it, and why."""

    sender: int
    text: str


Deliver = Callable[[Arrived | RefusedMessage | BaseException], None]


Reduce = Callable[[int, Vector], Vector]


class Links(Protocol):
    """Connections to all neighbours of one worker; no method but ``close`` waits for others.

    Attributes:
        reduce: (round, vector) → its mean over all workers, for the rule "allreduce"; it waits for
            them. None: these links cannot reduce.
    """

    reduce: Reduce | None

    def start(self, deliver: Deliver) -> None:
        """Begin; what arrives, or an error that ends them, goes to ``deliver``, from any thread."""

    def send(self, to: int, message: Any) -> None:
        """Send a message; it is lost if there is no connection."""

    def heard(self, peer: int) -> float | None:
        """The time (``time.monotonic``) at which something last came from a neighbour.

        None: it has no connection now; it may have had one before.
        """

    def finish(self) -> None:
        """Tell the neighbours that this worker has finished; it still answers them."""

    def over(self, peer: int) -> bool:
        """True if a neighbour has said that it has finished."""

    def close(self, seconds: float) -> None:
        """End the links, after at most so many seconds for the last messages to be sent."""


class Liveness:
    """The lost neighbours, derived only from the times at which neighbours were heard.

    Args:
        peers: the neighbours. now: time of the start, at which all but the lost count as heard.
        patience: seconds of silence after which a neighbour is lost. lost: those at the start.

    Attributes:
        lost: neighbours that are lost now.
    """

    def __init__(
        self, peers: Iterable[int], now: float, patience: float = PATIENCE, lost: Iterable[int] = ()
    ) -> None:
        self.lost = set(lost)
        self._patience, self._looked = patience, now
        self._since = dict.fromkeys(peers, now)
        self._met: set[int] = set()

    def look(
        self, now: float, heard: Callable[[int], float | None]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(neighbours lost, neighbours back) since the last look."""
        # If this process itself slept, the silence says nothing about its neighbours.
        slept = now - self._looked > self._patience / 2
        self._looked = now
        lost, back = [], []
        for peer, since in self._since.items():
            at = heard(peer)
            if at is not None:
                self._met.add(peer)
            if slept and peer not in self.lost:
                self._since[peer] = since = now
            last = since if at is None else max(at, since)
            # A neighbour whose connection is gone is dead; one without any yet may start slowly.
            gone = at is None and peer in self._met
            silent = gone or now - last > self._patience
            if silent and peer not in self.lost:
                self.lost.add(peer)
                self._since[peer] = now  # only what comes later brings it back
                lost.append(peer)
            elif not silent and at is not None and at > since and peer in self.lost:
                self.lost.discard(peer)
                back.append(peer)
        return tuple(lost), tuple(back)


# Time between two looks for lost neighbours, as a share of patience.
_LOOKS = 0.1
# No run has so many steps: a larger number from a neighbour is ignored.
_LAST_STEP = 2**53
# Most arrivals of one neighbour that wait to be handled; more are lost, so that a hostile neighbour
# does not fill the memory.
_WAITING = 64

Compute: TypeAlias = Callable[[int, Vector], Result]


Stop: TypeAlias = Callable[[], bool]


class PeersError(ConnectionError):
    """A worker cannot take part, or has lost a worker that it must wait for."""


@dataclass(frozen=True)
class Pace:
    """The waiting times of a worker, in seconds; no privacy guarantee depends on them.

    Args:
        exchange: least time from one exchange to the next; None: half the duration of the worker's
            last gradient, between 2 ms and 1 s. The fastest worker sets the pace of all.
        answer: wait for the answer to an exchange, after which the next one may begin.
        patience: silence after which a neighbour counts as lost.
        meet: wait for all neighbours at the beginning; the worker then begins without the missing
            ones. A returning worker waits ``patience`` for all of them, and ``meet`` for any.
        quiet: time without news of any release. Under the rule "asynchronous" a worker whose plan
            is used up then stops: others may have died with rounds that the global count waits for.
            Under "synchronous" a worker then no longer waits for a lost one and fails.
        linger: wait for neighbours to finish after this worker has.
        deadline: time from the beginning after which nothing is released; None: only the count of
            updates ends the run.

    Raises:
        ValueError: a negative time.
    """

    exchange: float | None = None
    answer: float = 0.5
    patience: float = PATIENCE
    meet: float = 60.0
    quiet: float = 300.0
    linger: float = 60.0
    deadline: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value >= 0:
                raise ValueError(f"{name} is a number of seconds, not {value!r}")


@dataclass
class WorkerOutcome(Alarms):
    """The outcome of a worker.

    Args:
        reason: why it ended; None: it was stopped from outside and can go on from its ledger.
        exchanges: steps that it began. averaged: exchanges that were answered in full.
        rounds: its releases. seconds: from the first event to the last.
    """

    reason: str | None = None
    exchanges: int = 0
    averaged: int = 0
    rounds: int = 0
    seconds: float = 0.0


class WorkerDriver:
    """Drives one worker to its end.

    Args:
        machine: the worker. gossip: the agreement. me: the worker's place in it.
        links: to its neighbours. compute: (round, weights) → the round's noised mean; called in
            another thread, one call at a time.
        ledger: the worker's own; None: nothing is kept.
        pace: the waiting times. returning: True if the worker has released before.
        witness: its own count of updates, noted before anything is sent.
        heard: the witness of each neighbour's updates, noted before the worker is told: so a
            restarted worker, too, recognises a neighbour's ledger that was set back.

    Attributes:
        machine: see above. drove: the outcome so far. lost: the neighbours that are lost now.
    """

    def __init__(
        self,
        machine: Machine,
        gossip: Gossip,
        me: int,
        links: Links,
        compute: Compute,
        *,
        ledger: ClientLedger | None = None,
        pace: Pace | None = None,
        returning: bool = False,
        witness: MemberWitness | None = None,
        heard: Mapping[int, MemberWitness] | None = None,
    ) -> None:
        self.machine, self.drove = machine, WorkerOutcome()
        self._gossip, self._me = gossip, me
        self._ledger, self._links, self._returning = ledger, links, returning
        self._pace = pace or Pace()
        self._compute = compute
        self._witness, self._heard = witness, heard or {}
        self._peers = gossip.mixing.graph.neighbours(me)
        self._alive = Liveness(self._peers, time.monotonic(), self._pace.patience)
        self._queue = queue.SimpleQueue[Arrived | RefusedMessage | on.Event | BaseException]()
        self._room = {peer: threading.Semaphore(_WAITING) for peer in self._peers}
        self._step, self._open = -1, False
        self._steps: dict[int, int] = {}
        self._next_step = self._answers_until = 0.0
        self._work: queue.SimpleQueue[Callable[[], on.Event] | None] = queue.SimpleQueue()
        self._busy = False
        self._over = threading.Event()
        self._gradient = 0.1  # seconds of the last one
        self._rounds: dict[int, int] = {}
        # Since when each neighbour owes an answer to a Hello; those that count as lost for it.
        self._owed: dict[int, float] = {}
        self._silent: set[int] = set()
        # Neighbours' signatures on their counts, sent back to them as proof of each claim.
        self._proofs = {peer: kept.proof() for peer, kept in self._heard.items()}
        self._news = 0.0

    @property
    def lost(self) -> frozenset[int]:
        """The neighbours that are lost now."""
        return frozenset(self._alive.lost)

    def run(
        self, stop: Stop | None = None, look: Callable[[WorkerOutcome], None] | None = None
    ) -> WorkerOutcome:
        """Run to the end of the worker and of its neighbours, or until ``stop`` returns True.

        Args:
            look: called with the outcome so far, every 0.1 · ``patience`` seconds.

        Raises:
            PeersError: no neighbour was met, or one was lost under a rule that waits.
            Exception: an error in the trainer or in a write; a new process goes on from the ledger.
        """
        stop = stop or (lambda: False)
        worker = threading.Thread(target=self._working, name="gossip-work", daemon=True)
        worker.start()
        begin = time.monotonic()
        self._links.start(self._deliver)
        try:
            met = self._meet(stop)
            begin = self._news = time.monotonic()
            missing = [peer for peer in self._peers if self._links.heard(peer) is None]
            self._alive = Liveness(self._peers, begin, self._pace.patience, missing)
            if met:
                for peer in missing:
                    self._handle(on.PeerLost(peer))
                for peer, kept in self._heard.items():
                    if count := kept.count():
                        self._handle(on.Heard(peer, count))
                        self._rounds[peer] = count
                self._handle(on.Started(int(self._returning)))
                self._loop(stop, begin, look)
        finally:
            self.drove.seconds = time.monotonic() - begin
            self.drove.reason = self.machine.finished
            self.drove.rounds = self.machine.updates
            self._work.put(None)
            self._over.set()
            if self._busy:  # a computation that nobody will use; it is not released
                worker.join(self._pace.linger)
            self._links.close(5.0)
        return self.drove

    # ---- time

    def _meet(self, stop: Stop) -> bool:
        """Wait for the neighbours; True if the worker can begin."""
        begin, there = time.monotonic(), [True]
        until = begin + self._pace.meet
        # The others go on meanwhile, so a returning worker waits less long for missing neighbours.
        soon = begin + (self._pace.patience if self._returning else self._pace.meet)
        while (now := time.monotonic()) < until and not stop():
            there = [self._links.heard(peer) is not None for peer in self._peers]
            if all(there) or (any(there) and now >= soon):
                return True
            time.sleep(0.005)
        if stop() or any(there):
            return not stop()
        while not self._queue.empty():
            self._take(0.0)
        why = f": {self.drove.alarms[0][1]}" if self.drove.alarms else "; is anybody there?"
        why += " See that the others run, with the same roster, at the addresses in it"
        text = f"no neighbour was met in {self._pace.meet:g} s{why}"
        if not self._returning:
            raise PeersError(text)
        # It has released: its ledger still gets a statement, and it may return again.
        self.drove.alarm("alone", text)
        return False

    def _loop(self, stop: Stop, begin: float, look: Callable[[WorkerOutcome], None] | None) -> None:
        pace, patience = self._pace, self._pace.patience
        next_look, lingering = begin, None
        end = None if pace.deadline is None else begin + pace.deadline
        while not stop():
            now = time.monotonic()
            if now >= next_look:
                next_look = now + _LOOKS * patience
                self._look(now)
                self.drove.rounds = self.machine.updates
                if look is not None:
                    look(self.drove)
            if self.machine.finished is not None:
                if lingering is None:
                    lingering = now + pace.linger
                    self._links.finish()
                if now >= lingering or all(map(self._done, self._peers)):
                    return
                wake = min(next_look, lingering, now + 0.05)
            else:
                if (end is not None and now >= end) or self._hopeless(now):
                    self._handle(on.Stop())
                    continue
                wake = min(next_look, self._mix(now), now + 0.5)
                wake = wake if end is None else min(wake, end)
            self._take(max(0.0, wake - time.monotonic()))

    def _deliver(self, came: Arrived | RefusedMessage | BaseException) -> None:
        """Queue an arrival, from any thread."""
        if isinstance(came, BaseException) or self._room[came.sender].acquire(blocking=False):
            self._queue.put(came)

    def _take(self, seconds: float) -> None:
        """Handle the oldest arrival in the queue; wait at most so many seconds for one."""
        try:
            came = self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()
        except queue.Empty:
            return
        if isinstance(came, BaseException):
            raise came
        if isinstance(came, Arrived | RefusedMessage):
            self._room[came.sender].release()
        if isinstance(came, RefusedMessage):
            self.drove.alarm("refused", came.text)
        elif isinstance(came, Arrived):
            self._arrived(came)
        else:
            self._handle(came)

    def _look(self, now: float) -> None:
        lost, back = self._alive.look(now, self._links.heard)
        for peer in lost:
            self._handle(on.PeerLost(peer))
        for peer in back:
            self._handle(on.PeerBack(peer))
        if self._gossip.rule != "asynchronous":
            return  # under the other rules every worker waits anyway
        for peer, since in list(self._owed.items()):
            # A neighbour that is alive but never answers would block a returning worker for ever.
            if now - since > self._pace.patience and peer not in self._silent:
                self._silent.add(peer)
                text = f"worker {peer} does not say what it knows: taken for lost"
                self.drove.alarm("silent", text)
                self._handle(on.PeerLost(peer))

    def _done(self, peer: int) -> bool:
        # Under "synchronous" a lost neighbour that returns needs this worker's messages.
        gone = peer in self._alive.lost and self._gossip.rule != "synchronous"
        return self._links.over(peer) or gone

    def _hopeless(self, now: float) -> bool:
        used_up = self.machine.updates >= self._gossip.updates(self._me)
        if self._gossip.rule == "asynchronous":
            return used_up and now - self._news > self._pace.quiet
        waited = now - self._news
        if self._alive.lost and (self._gossip.rule == "allreduce" or waited > self._pace.quiet):
            again = "start it again, and this one, with the same folders"
            raise PeersError(
                f"worker {min(self._alive.lost)} is lost, and under the rule "
                f"{self._gossip.rule!r} everybody waits for everybody: "
                f"{again if self._gossip.rule == 'synchronous' else 'begin again'}, or use the "
                "rule 'asynchronous'"
            )
        return False

    # ---- exchanges

    def _mix(self, now: float) -> float:
        """Begin the next exchange if its time has come; returns the time of the next look."""
        if self._gossip.rule != "asynchronous":
            if now >= self._next_step:  # ask again for messages that were lost
                self._next_step = now + self._pace.patience / 2
                if self._step >= 0:
                    self._handle(on.Mix(self._step))
                self._step += 1
            return min(self._next_step, now + 0.5)
        # A worker that is behind jumps to the neighbours' step: their median, so that of three or
        # more no single neighbour can set it.
        others = [self._steps[peer] for peer in self._steps if peer not in self._alive.lost]
        reached = median_high(others) if others else -1
        due = max(self._next_step, self._answers_until) if self._open else self._next_step
        # Of two simultaneous exchanges each would apply half of the same difference.
        if now < due and (self._open or reached <= self._step):
            return due
        self._step = max(self._step + 1, reached)
        pace = self._gradient / 2 if self._pace.exchange is None else self._pace.exchange
        self._next_step, self._open = now + pace, False
        self._answers_until = now + self._pace.answer
        self.drove.exchanges += 1
        self._handle(on.Mix(self._step))
        return self._answers_until if self._open else self._next_step

    def _arrived(self, came: Arrived) -> None:
        message = came.message
        if not isinstance(message, Weights | Hello | Known):
            text = f"worker {came.sender} sent a {type(message).__name__}, which no worker says"
            self.drove.alarm("stranger", text)
            return
        if message.base < _LAST_STEP:
            self._steps[came.sender] = max(self._steps.get(came.sender, 0), message.base)
        if isinstance(message, Known) or (isinstance(message, Weights) and message.base < 0):
            self._owed.pop(came.sender, None)  # an answer
        if message.round > self._rounds.get(came.sender, -1):
            self._rounds[came.sender] = message.round
            self._news = time.monotonic()
            self._proofs[came.sender] = came.proof
            if came.sender in self._heard:
                self._heard[came.sender].note(message.round, came.proof)
        self._handle(on.PeerMessage(came.sender, message))

    # ---- what the worker wants

    def _handle(self, event: on.Event) -> None:
        waiting = False
        for effect in self.machine.handle(event):
            match effect:  # a WorkerFinished is read from machine.finished
                case on.Send():
                    self._say(effect.to, effect.message)
                    message = effect.message
                    waiting |= isinstance(message, Weights) and message.base == self._step
                case on.Commit():
                    if self._ledger is not None:
                        self._ledger.commit(effect.release)
                    if self._witness is not None:
                        self._witness.note(effect.release.round + 1)
                    self._news = time.monotonic()
                case on.Acknowledged():
                    if self._ledger is not None:
                        self._ledger.acknowledged(effect.round)
                case on.ComputeGradient():
                    self._begin(effect)
                case on.AllReduce():
                    self._begin_reduce(effect)
                case on.Mixed():
                    self.drove.averaged += 1
                    if effect.step == self._step:
                        self._open = waiting = False
                case on.Alarm():
                    self.drove.alarm(effect.code, effect.text)
        if waiting and isinstance(event, on.Mix):
            self._open = True

    def _say(self, to: int, message: Any) -> None:
        if isinstance(message, Weights | Known):
            message = replace(message, proof=self._proofs.get(to, b""))
        elif isinstance(message, Hello):
            self._owed.setdefault(to, time.monotonic())
        self._links.send(to, message)

    def _begin(self, asked: on.ComputeGradient) -> None:
        self._owed.clear()  # the worker no longer waits for answers
        for peer in sorted(self._silent - self._alive.lost):
            self._silent.discard(peer)
            self._handle(on.PeerBack(peer))

        def work() -> on.Event:
            begin = time.monotonic()
            found = self._compute(asked.round, asked.weights)
            self._gradient = min(max(time.monotonic() - begin, 0.004), 2.0)
            if not asked.round:  # the duration of a gradient is known only now
                self._over.wait(self._gradient * self._gossip.waits(self._me))
            return found.gradient(asked.round)

        self._work.put(work)

    def _begin_reduce(self, asked: on.AllReduce) -> None:
        reduce = self._links.reduce
        if reduce is None:
            raise PeersError("the rule 'allreduce' needs links that can reduce: use torchrun")
        self._work.put(lambda: on.Reduced(asked.round, reduce(asked.round, asked.vector)))

    def _working(self) -> None:
        """The loop of the computing thread."""
        while (work := self._work.get()) is not None:
            self._busy = True
            try:
                self._queue.put(work())
            except BaseException as error:
                self._queue.put(error)
                return
            finally:
                self._busy = False


@dataclass(frozen=True)
class Launched:
    """The worker of this process, as torchrun started it.

    Args:
        rank: its place. size: the number of processes.
    """

    rank: int
    size: int

    @classmethod
    def here(cls, environment: Mapping[str, str] | None = None) -> Launched:
        """Read rank and size from torchrun's environment variables.

        Raises:
            PeersError: torchrun did not start this process, or it started fewer than two.
        """
        given = os.environ if environment is None else environment
        names = ("RANK", "WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR")
        missing = [name for name in names if name not in given]
        try:
            rank, size, _ = (int(given[name]) for name in names[:3])
            _ = given["MASTER_ADDR"]
        except (KeyError, ValueError):
            raise PeersError(
                f"this process does not know which worker it is ({', '.join(missing or names)}): "
                "start it with torchrun, for example torchrun --nproc-per-node=4 ..."
            ) from None
        if not 0 <= rank < size or size < 2:
            raise PeersError(f"rank {rank} of {size}: gossip needs at least two workers")
        return cls(rank, size)

    def agree(self, gossip: Gossip, own: Vector) -> Vector:
        """Compare all processes' gossips; returns the first process's weights, to begin with.

        Args:
            gossip: of this process's job; its first weights are not compared.
            own: the first weights of this process, float32, shape (parameters,).

        Raises:
            GossipError: on every process; names the fields that differ from the first one's gossip.
            PeersError: models of different sizes, or not one process per worker.
        """
        if gossip.workers != self.size:
            raise PeersError(
                f"{self.size} processes for {gossip.workers} workers: start as many as it has"
            )
        held: list[Any] = [None] * self.size
        distributed.all_gather_object(held, (replace(gossip, start="").to_dict(), len(own)))
        gossips, lengths = zip(*held, strict=True)
        first = gossips[0]
        for rank, other in enumerate(gossips):
            names = sorted(first.keys() | other)
            if differs := [name for name in names if first.get(name) != other.get(name)]:
                raise GossipError(
                    f"process {rank} has another gossip than the first one: {', '.join(differs)} "
                    "differ; start all with the same job and data"
                )
        if len(set(lengths)) > 1:
            raise PeersError(f"models of {lengths} parameters: all processes train one model")
        weights: list[Any] = [np.ascontiguousarray(own, np.float32)]
        distributed.broadcast_object_list(weights, src=0)
        return weights[0]


def mean(round: int, vector: Vector) -> Vector:
    """The mean over all processes, float32: summed in float64 and rounded once.

    The sum is on GPUs if the backend is NCCL.

    Raises:
        PeersError: one of the workers is lost.
    """
    try:
        total = torch.from_numpy(vector.astype("float64"))
        if distributed.get_backend() == "nccl":
            total = total.cuda()
        distributed.all_reduce(total)
        found: Vector = (total / distributed.get_world_size()).to(torch.float32).cpu().numpy()
    except RuntimeError as error:
        raise PeersError(
            f"a worker was lost in round {round}, and under the rule 'allreduce' everybody "
            f"waits for everybody: begin again, or use the rule 'asynchronous' ({error})"
        ) from None
    return found


class TeamLinks:
    """Links that only reduce to means; see :class:`~forethought.holders.links.Links`.

    A lost worker shows as a mean that fails, so every neighbour always counts as heard.
    """

    reduce: Reduce | None = staticmethod(mean)

    def start(self, deliver: Deliver) -> None:
        """See Links."""

    def send(self, to: int, message: Any) -> None:
        """See Links."""

    def finish(self) -> None:
        """See Links."""

    def close(self, seconds: float) -> None:
        """See Links."""

    def heard(self, peer: int) -> float | None:
        """See Links."""
        return time.monotonic()

    def over(self, peer: int) -> bool:
        """See Links."""
        return True
