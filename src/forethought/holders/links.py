"""Ways from a worker to its neighbours, who of them is living, and who drives a worker over them.

Whoever drives a worker asks :class:`Links` to send, and finds what came in a queue. A neighbour
that is dead has no connection; one that is stopped, or behind a broken line, has one but says
nothing, not even its sign of life. :class:`Liveness` makes both the same: lost, and back.

One thread drives the machine; what comes from neighbours, the trainer's results and an allreduce's
arrive in one queue, and the order in which they leave it is the order of events. Gradients are
computed in a thread beside it, so averaging goes on meanwhile. Nobody is waited for: an exchange
that is not answered in ``answer`` seconds is followed by the next one, and whoever is behind in
its steps goes on with the newest that it heard of.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
from forethought.holders.simulator import Result

# Seconds between two signs of life, and after how many of silence a neighbour is taken for lost.
BEAT_EVERY, PATIENCE = 0.5, 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """A message that was judged when it came in.

    Args:
        proof: the sender's signature on its count; b"" where nobody signs.
    """

    sender: int
    message: Any
    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """Something that was no message; it changed nothing."""

    sender: int | None
    text: str


Deliver = Callable[[Arrived | RefusedMessage], None]


Reduce = Callable[[int, Vector], Vector]


class Links(Protocol):
    """Ways to all neighbours of one worker; nothing here waits for anybody.

    Attributes:
        reduce: the mean of a round's vector over all workers, which does wait, for the rule
            "allreduce"; None: these links cannot.
    """

    reduce: Reduce | None

    def start(self, deliver: Deliver) -> None:
        """Begin; what comes is handed to ``deliver``, from any thread."""
        ...

    def send(self, to: int, message: Any) -> None:
        """Put a message on its way; it is lost where there is no way."""
        ...

    def heard(self, peer: int) -> float | None:
        """The time at which something last came from a neighbour, of ``time.monotonic``.

        None: it has no connection; it may have had one.
        """
        ...

    def finish(self) -> None:
        """Tell the neighbours that this worker has finished; it still answers them."""
        ...

    def over(self, peer: int) -> bool:
        """True if a neighbour has said that it has finished."""
        ...

    def close(self, seconds: float) -> None:
        """Say the last word, let it go out for so long, and end."""
        ...


class Liveness:
    """The lost neighbours: a function of when they were heard, and of nothing else.

    Args:
        peers: the neighbours. now: of the start; all but the lost ones count as heard then.
        patience: seconds of silence after which one is lost. lost: who is at the start.

    Attributes:
        lost: who.
    """

    def __init__(
        self,
        peers: Iterable[int],
        now: float,
        patience: float = PATIENCE,
        lost: Iterable[int] = (),
    ) -> None:
        self.lost = set(lost)
        self._patience, self._looked = patience, now
        self._since = dict.fromkeys(peers, now)
        self._met: set[int] = set()

    def look(
        self, now: float, heard: Callable[[int], float | None]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(who was lost, who came back) since the last look."""
        # Whoever slept itself has heard nobody, and learns nothing from that.
        slept = now - self._looked > self._patience / 2
        self._looked = now
        lost, back = [], []
        for peer, since in self._since.items():
            at = heard(peer)
            if at is not None:
                self._met.add(peer)
            if slept:
                since = now
            last = since if at is None else max(at, since)
            # No connection any more is a death; none yet may be a slow start.
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


# Seconds between two looks at who is living, as a share of patience; and alarms that are kept.
_LOOKS, _KEPT = 0.1, 50


# No run comes to so many steps: beyond it a neighbour says anything.
_LAST_STEP = 2**53


Compute: TypeAlias = Callable[[int, Vector], Result]


Stop: TypeAlias = Callable[[], bool]


class PeersError(ConnectionError):
    """A worker that cannot take part, or that lost everybody it waits for."""


@dataclass(frozen=True)
class Pace:
    """The times of a worker, in seconds of this process; no guarantee depends on them.

    Args:
        exchange: from one exchange to the next, at least; None: half as long as the worker's last
            gradient took, between 2 ms and a second. The fastest worker sets the pace of all.
        answer: for an exchange, after which the next may begin without it.
        patience: of silence, after which a neighbour is taken for lost.
        meet: for all neighbours to be there at the beginning; then without the missing ones. A
            worker that comes back waits ``patience`` for all, and so long for any.
        quiet: without any release that is heard of, after which a worker whose plan is used up
            stops: others may have died with rounds that the global count waits for. Under the rule
            "synchronous", after which nobody waits any more for a worker that was lost.
        linger: for neighbours to finish, once this worker has.
        deadline: from the beginning, after which nothing more is released; None: the count alone.
    """

    exchange: float | None = None
    answer: float = 0.5
    patience: float = PATIENCE
    meet: float = 60.0
    quiet: float = 300.0
    linger: float = 60.0
    deadline: float | None = None

    def __post_init__(self) -> None:
        for name in ("exchange", "answer", "patience", "meet", "quiet", "linger", "deadline"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ValueError(f"{name} is a number of seconds, not {value!r}")


@dataclass
class WorkerOutcome:
    """The outcome of a worker.

    Args:
        reason: why it ended; None: it was stopped from outside and can go on from its ledger.
        exchanges: steps that it began. averaged: those that were answered in full.
        seconds: from the first event to the last. rounds: its releases.
        counts: alarms by code. alarms: (code, text), the last ones.
    """

    reason: str | None = None
    exchanges: int = 0
    averaged: int = 0
    rounds: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    alarms: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def alarm(self, code: str, text: str) -> None:
        """Something that an operator must see."""
        self.counts[code] += 1
        self.alarms.append((code, text))


class WorkerDriver:
    """Drives one worker to its end.

    Args:
        machine: the worker. gossip, me: whose. ledger: its own; None where nothing is kept.
        links: to its neighbours. compute: its next noised mean; called in a thread, one at a time.
        pace: see there. returning: whether the worker has released before.
        witness: its own count, noted before anything is sent. heard: of every neighbour's updates;
            noted before the worker is told, so that a neighbour's ledger that was set back is
            recognised by a worker that was started again, too.

    Attributes:
        machine: see above. drove: what became of it so far. lost: neighbours that are.
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
        self._queue: queue.SimpleQueue[Arrived | RefusedMessage | on.Event | BaseException] = (
            queue.SimpleQueue()
        )
        self._step, self._open = -1, False
        self._steps: dict[int, int] = {}
        self._next_step = self._answers_until = 0.0
        self._work: queue.SimpleQueue[Callable[[], on.Event] | None] = queue.SimpleQueue()
        self._busy = False
        self._over = threading.Event()
        self._gradient = 0.1  # seconds of the last one
        self._rounds: dict[int, int] = {}
        # Since when a neighbour owes an answer to a Hello, and who is taken for lost over it.
        self._owed: dict[int, float] = {}
        self._silent: set[int] = set()
        # Neighbours' signatures on their counts: shown to them with what is said of it.
        self._proofs = {peer: kept.proof() for peer, kept in self._heard.items()}
        self._news = 0.0

    @property
    def lost(self) -> frozenset[int]:
        """Neighbours that are not living now."""
        return frozenset(self._alive.lost)

    def run(
        self, stop: Stop | None = None, look: Callable[[WorkerOutcome], None] | None = None
    ) -> WorkerOutcome:
        """To the end of the worker and of its neighbours, or until ``stop`` says so.

        Args:
            look: called about as often as somebody is found lost.

        Raises:
            PeersError: no neighbour was met, or under a rule that waits one was lost.
            Exception: what went wrong in the trainer or in a write; a new process goes on from the
                ledger.
        """
        stop = stop or (lambda: False)
        worker = threading.Thread(target=self._working, name="gossip-work", daemon=True)
        worker.start()
        begin = time.monotonic()
        self._links.start(self._queue.put)
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
        """True if there is anybody to gossip with."""
        begin, there = time.monotonic(), [True]
        until = begin + self._pace.meet
        # The others go on meanwhile: whoever comes back waits for those only that may be living.
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
        text = f"no neighbour was met in {self._pace.meet:g} s{why}"
        if not self._returning:
            raise PeersError(text)
        # It has released: what its ledger holds is stated, and it may come back again.
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

    def _take(self, seconds: float) -> None:
        """Whatever comes in the next seconds, first of all what is there."""
        try:
            came = self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()
        except queue.Empty:
            return
        if isinstance(came, BaseException):
            raise came
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
            return  # everybody waits for everybody
        for peer, since in list(self._owed.items()):
            # Signs of life without an answer would hold a worker that is back for ever.
            if now - since > self._pace.patience and peer not in self._silent:
                self._silent.add(peer)
                text = f"worker {peer} does not say what it knows: taken for lost"
                self.drove.alarm("silent", text)
                self._handle(on.PeerLost(peer))

    def _done(self, peer: int) -> bool:
        # Under the rules that wait, whoever was lost needs what this worker has said.
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
        """Begin the next exchange if its time has come; when to look again."""
        if self._gossip.rule != "asynchronous":
            if now >= self._next_step:  # what was lost on its way is asked for again
                self._next_step = now + self._pace.patience / 2
                if self._step >= 0:
                    self._handle(on.Mix(self._step))
                self._step += 1
            return min(self._next_step, now + 0.5)
        # Whoever is behind goes on with the others; nobody alone can say how far they are.
        others = [self._steps[peer] for peer in self._steps if peer not in self._alive.lost]
        reached = median_high(others) if others else -1
        due = max(self._next_step, self._answers_until) if self._open else self._next_step
        # Two exchanges at once would both move by half of one difference.
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
            match effect:
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
                case _:
                    pass  # Finished: the machine says so itself
        if waiting and isinstance(event, on.Mix):
            self._open = True

    def _say(self, to: int, message: Any) -> None:
        if isinstance(message, Weights | Known):
            message = replace(message, proof=self._proofs.get(to, b""))
        elif isinstance(message, Hello):
            self._owed.setdefault(to, time.monotonic())
        self._links.send(to, message)

    def _begin(self, asked: on.ComputeGradient) -> None:
        self._owed.clear()  # nobody's answer is waited for any more
        for peer in sorted(self._silent - self._alive.lost):
            self._silent.discard(peer)
            self._handle(on.PeerBack(peer))

        def work() -> on.Event:
            begin = time.monotonic()
            found = self._compute(asked.round, asked.weights)
            self._gradient = min(max(time.monotonic() - begin, 0.004), 2.0)
            if not asked.round:  # nobody knew before how long one takes
                self._over.wait(self._gradient * self._gossip.waits(self._me))
            return found.gradient(asked.round)

        self._work.put(work)

    def _begin_reduce(self, asked: on.AllReduce) -> None:
        reduce = self._links.reduce
        if reduce is None:
            raise PeersError("the rule 'allreduce' needs links that can reduce: use torchrun")
        self._work.put(lambda: on.Reduced(asked.round, reduce(asked.round, asked.vector)))

    def _working(self) -> None:
        """The thread that computes."""
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
    """The worker that this process is.

    Args:
        rank, size: place and number.
    """

    rank: int
    size: int

    @classmethod
    def here(cls, environment: Mapping[str, str] | None = None) -> Launched:
        """As torchrun says.

        Raises:
            PeersError: it did not start this process.
        """
        given = os.environ if environment is None else environment
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        missing = [name for name in names if name not in given]
        try:
            rank, size, _ = (int(given.get(names[i], "")) for i in (0, 1, 3))
        except ValueError:
            raise PeersError(
                f"this process does not know which worker it is ({', '.join(missing or names)}): "
                "start it with torchrun, for example torchrun --nproc-per-node=4 ..."
            ) from None
        if not 0 <= rank < size or size < 2:
            raise PeersError(f"rank {rank} of {size}: gossip needs at least two workers")
        return cls(rank, size)

    def agree(self, gossip: Gossip, own: Vector) -> Vector:
        """The weights that everybody begins with: the first process's.

        Args:
            gossip: of this process's job; its first weights are not compared.
            own: what this process would begin with.

        Raises:
            GossipError: names what differs from the first process's gossip, on every process.
            PeersError: another architecture, or other workers than processes.
        """
        if gossip.workers != self.size:
            raise PeersError(
                f"{self.size} processes for {gossip.workers} workers: start as many as it has"
            )
        gossips: list[Any] = [None] * self.size
        lengths: list[Any] = [None] * self.size
        distributed.all_gather_object(gossips, replace(gossip, start="").to_dict())
        distributed.all_gather_object(lengths, len(own))
        for rank, other in enumerate(gossips):
            differs = sorted(
                name
                for name in gossips[0].keys() | other
                if gossips[0].get(name) != other.get(name)
            )
            if differs:
                raise GossipError(
                    f"process {rank} has another gossip than the first one: {', '.join(differs)} "
                    "differ; start all with the same job and data"
                )
        if len(set(lengths)) > 1:
            raise PeersError(
                f"the processes' models have {', '.join(map(str, lengths))} parameters: all "
                "workers train one model"
            )
        first: list[Any] = [np.ascontiguousarray(own, np.float32)]
        distributed.broadcast_object_list(first, src=0)
        found: Vector = first[0]
        return found


def mean(round: int, vector: Vector) -> Vector:
    """The mean over all processes, added up in float64 and rounded once; of NCCL where they have
    GPUs.

    Raises:
        PeersError: one of the workers is gone.
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
    """Links that carry means and nothing else; see :class:`~forethought.holders.links.Links`.

    Who is lost is told by a mean that fails, so everybody counts as heard.
    """

    reduce: Reduce | None = staticmethod(mean)

    def start(self, deliver: Deliver) -> None:
        """See Links."""

    def send(self, to: int, message: Any) -> None:
        """See Links."""

    def heard(self, peer: int) -> float | None:
        """See Links."""
        return time.monotonic()

    def finish(self) -> None:
        """See Links."""

    def over(self, peer: int) -> bool:
        """See Links."""
        return True

    def close(self, seconds: float) -> None:
        """See Links."""
