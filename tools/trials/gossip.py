"""Deterministic simulation of faults: one seed, one gossip, everything that can go wrong.

Messages are dropped, doubled, late and out of order; workers crash at their writes and between
them, and come back from what was stored; ledgers are restored from backups; workers are cut off,
and notice of it comes late. After a while the faults end, at a deadline all stop. What must hold
whatever happens is checked while it happens, and against a replay of every worker's events.
(FoundationDB's way of testing: Zhou et al. 2021, Section 4.)

Frames are not signed here: a trial takes milliseconds. That frames cannot be forged is tested where
they are made. With a liar one worker of five says what it likes, of itself and of others: see
:mod:`trials.lies`. What its frames cannot say is refused at a door like that of real ones.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from blake3 import blake3

from forethought.exchange import events as common
from forethought.exchange.messages import KINDS, DecodeError, Update, encode, judged
from forethought.exchange.storage import ClientLedger, LedgerState
from forethought.gossip import events as on
from forethought.gossip.asynchronous import AsynchronousWorker
from forethought.gossip.events import Hello, Known, Weights
from forethought.gossip.gossip import Gossip, Member, Trust
from forethought.gossip.graphs import Kind, make
from forethought.gossip.mixing import Mixing
from forethought.holders.simulator import Agenda
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Plan
from forethought.values.use import Optimizer
from trials import ViolationError, lies
from trials.recorded import Recorded, replayed
from trials.storage import CrashError, MemoryStorage, UnsignedEndpoint

PARAMETERS = 3
# Virtual seconds after which nothing more goes wrong, and at which all stop.
QUIET, DEADLINE = 40.0, 80.0
_MESSAGE, _COMPUTED, _MIX, _START, _CRASH, _BACKUP, _CUT, _HEAL, _NOTICE, _STOP = range(10)
# With a liar: how far a neighbour's word moves a worker, the rounds that each makes on average, and
# virtual seconds without an answer, after which a driver takes a neighbour for lost.
DIFFERENCE, ROUNDS, SILENCE = 1.0, 12, 5.0
_NUMBERS = {kind: number for number, kind in KINDS.items()}


@dataclass(frozen=True)
class Faults:
    """How often things go wrong.

    Args:
        drop, double: chance of a message. delay: mean virtual seconds of its way.
        crash_write: chance of a crash at a write. crashes: workers killed between events.
        backups: ledgers set back to an older content. cuts: of a worker's ways.
        crash_at: (worker, number of its write, share of it that gets through): a crash there.
    """

    drop: float = 0.08
    double: float = 0.08
    delay: float = 0.3
    crash_write: float = 0.04
    crashes: int = 2
    backups: int = 0
    cuts: int = 1
    crash_at: tuple[int, int, float] | None = None


# Nothing goes wrong by chance.
CALM = Faults(drop=0, double=0, crash_write=0, crashes=0, backups=0, cuts=0)


@dataclass
class Tally:
    """What happened in a trial."""

    events: int = 0
    crashes: int = 0
    releases: int = 0
    exchanges: int = 0
    lies: int = 0
    alarms: list[str] = field(default_factory=list)


class _Process:
    """One worker with its storage, while it lives and while it does not."""

    def __init__(self, me: int, storage: MemoryStorage) -> None:
        self.me, self.storage = me, storage
        self.machine: Recorded | None = None
        self.own: AsynchronousWorker | None = None
        self.ledger: Any = None
        self.begun = LedgerState()
        self.life = 0
        self.starts = 0
        self.halted = False
        self.backup: dict[str, bytes] | None = None
        # Neighbours who know of more releases than the ledger that was set back.
        self.witnesses: dict[int, tuple[int, int]] = {}
        # Since when a neighbour owes an answer, as the driver sees it.
        self.owed: dict[int, float] = {}
        # When it came back, while it has not gone on since.
        self.back: float | None = None


class Trial:
    """One trial.

    Args:
        seed: of everything. faults: how often things go wrong; default: drawn.
        kind: the worker; tests put one with a planted bug here.
        liar: whether one of five workers lies.
    """

    def __init__(
        self,
        seed: int,
        faults: Faults | None = None,
        kind: type[AsynchronousWorker] = AsynchronousWorker,
        liar: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.seed, self.kind = seed, kind
        draw = self.random.random
        self.faults = faults or Faults(backups=int(draw() < 0.4))
        self.gossip = _gossip(self.random, liar)
        # Who lies, and how often: now and then, or whenever it says something.
        self.liar = self.random.randrange(self.gossip.workers) if liar else None
        self.lying = self.random.choice((0.3, 1.0)) if liar else 0.0
        # What it never says, so that whoever asks for it waits.
        self.unsaid = self.random.choice((None, None, Known, Weights)) if liar else None
        # The most updates that each worker has ever signed for.
        self.signed = [0] * self.gossip.workers
        self.agenda, self.tally = Agenda(), Tally()
        self.processes = [_Process(me, self._storage(me)) for me in range(self.gossip.workers)]
        self.start = np.full(PARAMETERS, 0.5, dtype=np.float32)
        self.noise: dict[bytes, bytes] = {}
        # (worker, round) → contents that somebody else was sent something of.
        self.seen: dict[tuple[int, int], set[bytes]] = {}
        self.contents: dict[int, dict[int, bytes]] = {}
        self.restored: set[int] = set()
        self.cut: set[int] = set()
        self.step = 0

    def run(self) -> Tally:
        """To the end.

        Raises:
            ViolationError: something that must never happen.
        """
        agenda, draw, faults = self.agenda, self.random, self.faults
        for process in self.processes:
            agenda.add(0.0, _START, process.me)
        agenda.add(0.0, _MIX, 0)
        agenda.add(DEADLINE, _STOP, 0)
        for kind, count in (
            (_CRASH, faults.crashes),
            (_CUT, faults.cuts),
            (_BACKUP, faults.backups),
        ):
            for _ in range(count):
                agenda.add(draw.uniform(1, QUIET * 0.7), kind, draw.randrange(self.gossip.workers))
        while len(agenda) and agenda.now <= DEADLINE + 20:
            self.tally.events += 1
            self._happens(*agenda.next())
        for process in self.processes:
            self._judge_end(process)
        return self.tally

    # ---- what happens

    def _happens(self, kind: int, me: int, what: Any) -> None:  # noqa: C901
        process = self.processes[me]
        match kind:
            case 0:  # a message
                if me not in self.cut and what.sender not in self.cut:
                    if what.sender != self.liar:
                        self._arrived(process, what)
                    elif (opened := self._opened(me, what)) is not None:
                        self._arrived(process, opened)
            case 1:  # computed
                life, compute = what
                if process.machine is not None and life == process.life:
                    self._do(process, self._trained(me, compute))
            case 2:
                step, self.step = self.step, self.step + 1
                for one in self.processes:
                    # Drivers pace themselves: one may be a step behind now and then.
                    if self.random.random() < 0.95:
                        self._do(one, on.Mix(step))
                    self._look(one)
                self._lie_unasked()
                self.agenda.add(self.agenda.now + 0.5, _MIX, 0)
            case 3:
                self._begin(process)
            case 4:
                self._crash(process)
            case 5:
                if process.backup is not None and not process.halted:
                    self._set_back(process)
            case 6:
                self.cut.add(me)
                self._notice(me, away=True)
                self.agenda.add(self.agenda.now + self.random.uniform(1, 10), _HEAL, me)
            case 7:
                self.cut.discard(me)
                self._notice(me, away=False)
                self._do(process, on.Started(1))
            case 8:
                other, event = what
                # News of an earlier state is old.
                away = other in self.cut or self.processes[other].machine is None
                if away == isinstance(event, on.PeerLost) and me not in self.cut:
                    if away:  # whoever is gone cannot say what it knows
                        process.witnesses.pop(other, None)
                    self._do(process, event)
            case _:
                for one in self.processes:
                    self._do(one, on.Stop())

    def _notice(self, me: int, away: bool) -> None:
        """Neighbours hear of it, each at its own time; and so does it of them."""
        event = on.PeerLost(me) if away else on.PeerBack(me)
        for other in self.gossip.mixing.graph.neighbours(me):
            later = self.agenda.now + self.random.expovariate(2.0)
            self.agenda.add(later, _NOTICE, other, (me, event))
            if not away:
                gone = other in self.cut or self.processes[other].machine is None
                seen = on.PeerLost(other) if gone else on.PeerBack(other)
                self.agenda.add(later, _NOTICE, me, (other, seen))

    def _arrived(self, process: _Process, what: common.Received) -> None:
        if isinstance(what.message, Known) or (
            isinstance(what.message, Weights) and what.message.base < 0
        ):
            process.owed.pop(what.sender, None)
        self._do(process, what)

    def _look(self, process: _Process) -> None:
        """What a driver does about a neighbour that owes it an answer."""
        for peer, since in list(process.owed.items()):
            if self.agenda.now - since > SILENCE:
                process.witnesses.pop(peer, None)
                self._do(process, on.PeerLost(peer))

    # ---- the liar

    def _lie_unasked(self) -> None:
        liar = None if self.liar is None else self.processes[self.liar]
        if liar is None or liar.own is None or self.random.random() > self.lying:
            return
        if self.unsaid is not None:
            return
        to = self.random.choice(self.gossip.mixing.graph.neighbours(liar.me))
        message = lies.of_worker(self.random, liar.own.updates, self.step, liar.own.own.held)
        self.tally.lies += 1
        self.agenda.add(self.agenda.now + 0.05, _MESSAGE, to, on.PeerMessage(liar.me, message))

    def _opened(self, me: int, what: common.Received) -> common.Received | None:
        """A liar's message, as it comes through the door; None: refused there."""
        message, kind = what.message, type(what.message)
        given = {"round": message.round, "base": message.base}
        if message.round < 0 or message.base < getattr(kind, "LEAST_BASE", -1):
            return None
        if getattr(message, "known", 0) > self.signed[me]:
            return None  # it can show no signature on so many
        try:
            largest, length = self.gossip.trust.largest, self.gossip.coordinates
            payload = encode(message, ("round", "base"))
            found = judged(_NUMBERS[kind], payload, length, lambda _: largest, given)
        except DecodeError:
            return None
        return on.PeerMessage(what.sender, found)

    def _trained(self, me: int, compute: on.ComputeGradient) -> on.GradientDone:
        """A trainer that depends on secret, round and weights alone, as the real one does."""
        hashed = blake3(compute.weights.tobytes()).digest()
        key = blake3(struct.pack("<qq", me, compute.round) + hashed).digest()
        noise = np.frombuffer(key[:12], dtype=np.uint8).astype(np.float32).reshape(3, 4).sum(1)
        state = struct.pack("<q", compute.round)
        vector = noise / np.float32(2000)
        return on.GradientDone(compute.round, vector, compute.round + 1, hashed, state)

    def _do(self, process: _Process, event: on.Event) -> None:
        if process.machine is None:
            return
        try:
            for effect in process.machine.handle(event):
                self._effect(process, effect)
                if process.machine is None:
                    return
        except CrashError:
            self._crash(process)

    def _effect(self, process: _Process, effect: on.Effect) -> None:
        match effect:
            case on.Send():
                self._send(process, effect)
            case on.ComputeGradient():
                if effect.round >= self.gossip.updates(process.me):
                    raise self._violation(
                        f"worker {process.me} computes round {effect.round}: beyond its plan"
                    )
                process.owed.clear()
                process.back = None
                later = self.agenda.now + self.random.expovariate(1.0)
                self.agenda.add(later, _COMPUTED, process.me, (process.life, effect))
            case on.Commit():
                self._commit(process, effect.release)
            case on.Acknowledged():
                process.ledger.acknowledged(effect.round)
            case on.Mixed():
                self.tally.exchanges += 1
            case on.Alarm():
                self.tally.alarms.append(effect.code)
            case on.WorkerFinished() if effect.reason == "ledger set back":
                process.halted = True

    def _commit(self, process: _Process, release: common.ClientRelease) -> None:
        for other, (life, known) in process.witnesses.items():
            there = self.processes[other]
            if there.life == life and other not in self.cut and known > release.round:
                raise self._violation(
                    f"worker {process.me}, whose ledger was set back, releases round "
                    f"{release.round} again: worker {other} knew of {known}"
                )
        process.ledger.commit(release)
        self.tally.releases += 1
        self.contents.setdefault(process.me, {})[release.round] = _digest(release.update)
        if self.random.random() < 0.3:
            process.backup = process.storage.contents()

    def _send(self, process: _Process, effect: common.Send) -> None:
        durable = process.ledger.read().updates
        message = effect.message
        self.signed[process.me] = max(self.signed[process.me], message.round)
        if isinstance(message, Hello):
            process.owed.setdefault(effect.to, self.agenda.now)
        if message.round > durable:
            raise self._violation(
                f"worker {process.me} speaks of {message.round} updates, its ledger has {durable}"
            )
        if isinstance(message, Weights):
            self._saw(process.me, message.round)
        quiet, faults, draw = self.agenda.now > QUIET, self.faults, self.random.random
        copies = 1
        if not quiet:
            if draw() < faults.drop:
                return
            copies += draw() < faults.double
        if process.me == self.liar and draw() < self.lying:
            self.tally.lies += 1
            if isinstance(message, Known) and self.unsaid is Weights:
                message = replace(message, ready=1)
            else:
                message = lies.changed(self.random, message)
        if process.me == self.liar and type(message) is self.unsaid:
            if self.unsaid is Known or message.base >= 0:
                return
            message = Known(max(message.round, 0), 0, 0, 1)  # "ask me again"
        received = on.PeerMessage(process.me, message)
        for _ in range(copies):
            seconds = 0.05 if quiet else self.random.expovariate(1 / faults.delay)
            self.agenda.add(self.agenda.now + seconds, _MESSAGE, effect.to, received)

    def _saw(self, me: int, rounds: int) -> None:
        """What is sent depends on all releases so far: each may have one content only."""
        for round in range(rounds):
            found = self.seen.setdefault((me, round), set())
            found.add(self.contents[me][round])
            if len(found) > 1 and me not in self.restored:
                raise self._violation(f"worker {me} released round {round} with two contents")

    # ---- life and death

    def _storage(self, me: int, contents: dict[str, bytes] | None = None) -> MemoryStorage:
        planned = self.faults.crash_at

        def fault(number: int, length: int) -> int | None:
            if planned is not None and planned[:2] == (me, number):
                return round(planned[2] * length)
            if self.agenda.now > QUIET or self.random.random() >= self.faults.crash_write:
                return None
            return self.random.choice((0, length, self.random.randrange(length + 1)))

        return MemoryStorage(contents, fault)

    def _crash(self, process: _Process) -> None:
        if process.machine is None:
            return
        self.tally.crashes += 1
        self._judge_replay(process)
        process.machine = process.own = process.ledger = None
        process.life += 1
        self._notice(process.me, away=True)
        if not process.halted:
            later = self.agenda.now + self.random.uniform(0.1, 5)
            self.agenda.add(later, _START, process.me)

    def _set_back(self, process: _Process) -> None:
        """The worker dies, and its ledger is what it was some time ago."""
        self._crash(process)
        process.storage = self._storage(process.me, process.backup)
        self.restored.add(process.me)

    def _begin(self, process: _Process) -> None:
        if process.machine is not None or process.halted:
            return
        me = process.me
        try:
            process.ledger = ClientLedger(
                process.storage,
                UnsignedEndpoint(b"%032d" % self.seed, me),  # type: ignore[arg-type]
                "",
            )
            process.begun = process.ledger.read()
        except CrashError:
            self.agenda.add(self.agenda.now + 1, _START, me)
            return
        process.own = self.kind(self.gossip, me, self.start, process.begun)
        process.machine = Recorded(process.own)
        process.starts += 1
        if process.begun.outgoing:
            # A crash in its write may have left it durable.
            last = process.begun.outgoing[-1]
            self.contents.setdefault(me, {})[last.round] = _digest(last)
        process.witnesses = {
            other: (self.processes[other].life, known)
            for other in self.gossip.mixing.graph.neighbours(me)
            if other != self.liar and (known := self._known(other, me)) > process.begun.updates
        }
        process.owed.clear()
        process.back = self.agenda.now
        self._notice(me, away=False)
        self._do(process, on.Started(int(process.starts > 1)))

    def _known(self, me: int, other: int) -> int:
        """How many updates of another worker one knows of."""
        held = self.processes[me].own
        return 0 if held is None else held.known(other)

    # ---- what must hold

    def _judge_replay(self, process: _Process) -> None:
        machine = process.machine
        if machine is None:
            return
        again = self.kind(self.gossip, process.me, self.start, process.begun)
        if replayed(again, machine.events) != machine.digest:
            raise self._violation(f"worker {process.me} does otherwise on the same events")

    def _judge_end(self, process: _Process) -> None:
        if process.me == self.liar:
            return
        if process.machine is None:
            if not process.halted:
                raise self._violation(f"worker {process.me} never came back")
            return
        self._judge_replay(process)
        if process.machine.finished is None:
            raise self._violation(f"worker {process.me} did not end")
        rounds = process.ledger.read().updates
        if rounds > self.gossip.plan(process.me).rounds:
            raise self._violation(f"worker {process.me} made {rounds} updates: beyond its plan")
        if not np.isfinite(process.machine.weights).all():
            raise self._violation(f"worker {process.me} ends with weights that are not finite")
        if self.liar is not None:
            self._judge_beside_liar(process, rounds)

    def _judge_beside_liar(self, process: _Process, rounds: int) -> None:
        length = float(np.linalg.norm(process.machine.weights))
        if length > DIFFERENCE * self.step:
            raise self._violation(f"worker {process.me} was moved to a length of {length:.3g}")
        reason = process.machine.finished
        waited = 0.0 if process.back is None else DEADLINE - max(process.back, QUIET)
        near = set(self.gossip.mixing.graph.neighbours(process.me)) - {self.liar}
        asked = any(not self.processes[other].halted for other in near)
        if reason == "stopped" and rounds < ROUNDS - 2 and waited > 6 * SILENCE and asked:
            raise self._violation(f"worker {process.me} came back and never went on")
        if reason == "ledger set back":
            if process.me not in self.restored:
                raise self._violation(f"worker {process.me} was stopped by a lie about its ledger")
        elif reason != "stopped" and rounds < ROUNDS - 2:
            raise self._violation(
                f"worker {process.me} ended by {reason!r} after {rounds} of {ROUNDS} rounds"
            )
        if process.starts == 1 and self.faults == CALM and rounds < ROUNDS - 2:
            raise self._violation(f"worker {process.me} made {rounds} of {ROUNDS} rounds")

    def _violation(self, what: str) -> ViolationError:
        return ViolationError(f"seed {self.seed} ({self.gossip.workers} workers): {what}")


def run_trials(
    first: int, count: int, report: Callable[[int], None] | None = None, liar: bool = False
) -> Tally:
    """Trials of consecutive seeds, added up.

    Args:
        liar: whether one worker of five lies; every fourth seed without other faults.

    Raises:
        ViolationError: names the seed that shows it again.
    """
    total = Tally()
    for seed in range(first, first + count):
        found = Trial(seed, CALM if liar and not seed % 4 else None, liar=liar).run()
        total.events += found.events
        total.crashes += found.crashes
        total.releases += found.releases
        total.exchanges += found.exchanges
        total.lies += found.lies
        total.alarms += found.alarms
        if report is not None:
            report(seed - first + 1)
    return total


def _gossip(draw: random.Random, liar: bool) -> Gossip:
    workers = 5 if liar else draw.randint(2, 5)
    graphs: tuple[Kind, ...] = ("complete", "ring") if workers > 2 else ("complete",)
    graph = draw.choice(graphs)
    rounds = ROUNDS if liar else draw.randint(3, 8)
    mechanism = Mechanism(Rounds(1.0, rounds + draw.randint(0, 3), Poisson(0.5)))
    plan = Plan(mechanism, 20, 1e-3, optimizer=Optimizer("sgd", 0.5, ()))
    return Gossip(
        tuple(Member(f"worker-{k}") for k in range(workers)),
        (plan,),
        Mixing(draw.choice(("matchings", "metropolis")), make(graph, workers)),
        PARAMETERS,
        "trial",
        rounds,
        settle=3,
        pause=draw.choice((0, 0, 2)),
        tracking=draw.random() < 0.2,
        trust=Trust(DIFFERENCE) if liar else Trust(),
    )


def _digest(update: Update) -> bytes:
    return blake3(encode(update)).digest(length=16)
