"""Deterministic simulation of faults: one seed, one federation, everything that can go wrong.

Messages are dropped, doubled, late and out of order; machines crash at their writes and between
them, and come back from what was stored; ledgers are restored from backups; clocks jump; clients
are cut off. After a while the faults end, and the federation has to end too. What must hold
whatever happens is checked while it happens, and against a replay of everything that was made
durable.
(FoundationDB's way of testing: Zhou et al. 2021, "FoundationDB: a distributed unbundled
transactional key value store", Section 4.)

Frames are not signed here: a trial takes milliseconds. That frames cannot be forged is tested where
they are made. With a liar one member of five or the server says what it likes: see
:mod:`trials.lies`. What it says is judged at a door like that of real frames.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from blake3 import blake3

from forethought.exchange import events as on
from forethought.exchange.messages import (
    KINDS,
    MOST_NORM,
    SERVER,
    Acknowledgement,
    DecodeError,
    Update,
    encode,
    judged,
)
from forethought.exchange.storage import Accepted, ClientLedger, Entry, ServerJournal
from forethought.federated.client import ClientMachine
from forethought.federated.federation import Delay, Federation, Member
from forethought.federated.server import ServerMachine
from forethought.holders.simulator import Agenda
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Plan
from forethought.values.use import Optimizer
from trials import ViolationError, lies
from trials.storage import CrashError, MemoryStorage, UnsignedEndpoint

# Virtual seconds after which nothing more goes wrong, and the most that may happen in a trial.
QUIET, MOST_EVENTS = 60.0, 20_000
_TO_SERVER, _TO_CLIENT, _COMPUTED, _WAKE, _START, _CRASH, _BACKUP, _JUMP, _CUT, _HEAL = range(10)
# Length of a trial's vectors.
PARAMETERS = 3
# With a liar: members, and the updates of each; as many of an honest one may be lost.
MEMBERS, UPDATES, LOST = 5, 6, 2
_NUMBERS = {kind: number for number, kind in KINDS.items()}


@dataclass(frozen=True)
class Faults:
    """How often things go wrong.

    Args:
        drop, double: chance of a message. delay: mean virtual seconds of its way.
        crash_write: chance of a crash at a write. crashes: machines killed between events.
        backups: ledgers set back to an older content. jumps: of clocks. cuts: of a client's way.
        crash_at: (machine, number of its write, share of it that gets through): a crash there.
    """

    drop: float = 0.08
    double: float = 0.08
    delay: float = 0.5
    crash_write: float = 0.04
    crashes: int = 2
    backups: int = 0
    jumps: int = 2
    cuts: int = 1
    crash_at: tuple[int, int, float] | None = None


# Nothing goes wrong by chance.
CALM = Faults(drop=0, double=0, crash_write=0, crashes=0, backups=0, jumps=0, cuts=0)


@dataclass(frozen=True)
class Kinds:
    """What a trial is made of; tests put machines with planted bugs here."""

    client: Callable[..., ClientMachine] = ClientMachine
    server: Any = ServerMachine
    salted: bool = True
    journal: Any = ServerJournal


@dataclass
class Tally:
    """What happened in a trial."""

    events: int = 0
    crashes: int = 0
    restarts: int = 0
    accepted: int = 0
    lies: int = 0
    alarms: list[str] = field(default_factory=list)


@lru_cache(maxsize=512)
def trial_federation(
    rule: Any,
    clients: int,
    updates: int,
    cohort: bool,
    slack: bool,
    lost: bool,
    padded: bool = False,
    taking: tuple[tuple[int, ...], ...] | None = None,
) -> Federation:
    """``lost``: clients may stop for good, so that nobody may be waited for for ever.

    ``taking``: in two phases, and who takes part in which.
    """
    plan = Plan(
        Mechanism(Rounds(1.0, updates, Poisson(0.5))),
        20,
        1e-3,
        optimizer=Optimizer("sgd", 0.5, ()),
    )
    synchronous = rule == "synchronous"
    if lost and rule == "published":
        rule = "asynchronous"
    bounded = slack or lost
    return Federation(
        tuple(Member(f"client-{place}") for place in range(clients)),
        (plan,),
        PARAMETERS,
        "trial",
        updates,
        rule=rule,
        exchanged="weights" if synchronous else "gradients",
        delay=Delay("constant", 2) if slack else Delay(),
        cohort=max(1, clients - 1) if synchronous and cohort else None,
        deadline=15.0 if synchronous and bounded else None,
        absence=12.0 if rule == "asynchronous" and bounded else None,
        resend=3.0,
        cadence=2.0 if padded else None,
        phases=() if taking is None else (updates // 2, updates - updates // 2),
        taking=taking or (),
    )


class _Process:
    """One machine with its storage, while it lives and while it does not."""

    def __init__(self, me: int, storage: MemoryStorage) -> None:
        self.me, self.storage = me, storage
        self.machine: Any = None
        self.ledger: Any = None
        self.offset = 0.0
        self.life = 0
        self.halted = False
        self.backup: dict[str, bytes] | None = None


class Trial:
    """One trial.

    Args:
        seed: of everything. faults: how often things go wrong; default: drawn.
        kinds: the machines. liar: whether a client lies, or the server.
    """

    def __init__(
        self,
        seed: int,
        faults: Faults | None = None,
        kinds: Kinds | None = None,
        liar: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.leaves = random.Random(f"leaves {seed}")
        self.seed, self.kinds = seed, kinds or Kinds()
        if faults is None:
            faults = Faults(backups=self.random.random() < 0.25)
        self.faults = faults
        draw = self.random.random
        made = (
            self.random.choice(("synchronous", "asynchronous", "published")),
            MEMBERS if liar else self.random.randint(2, 4),
            UPDATES if liar else self.random.randint(2, 4),
            draw() < 0.5 and not liar,
            draw() < 0.4,
            bool(faults.backups) or liar,
            draw() < 0.2,
        )
        self.federation = trial_federation(*made, self._taking(made[1]))
        # Who lies (the server in every fifth trial), and how often.
        self.liar, self.lying = None, 0.0
        if liar:
            self.liar = self.random.choice((SERVER, *[self.random.randrange(MEMBERS)] * 4))
            self.lying = self.random.choice((0.3, 1.0))
        self.run_id = b"%032d" % seed
        self.agenda = Agenda()
        self.tally = Tally()
        self.server = _Process(SERVER, self._storage(SERVER))
        self.clients = [
            _Process(client, self._storage(client))
            for client in range(len(self.federation.members))
        ]
        self.start = np.full(PARAMETERS, 0.5, dtype=np.float32)
        # Everything the server made durable, in order; and since its last snapshot.
        self.history: list[Entry] = []
        self.since = 0
        self.contents: dict[tuple[int, int], set[bytes]] = {}
        self.released: dict[tuple[int, int], set[bytes]] = {}
        self.noise: dict[bytes, bytes] = {}
        # Client and place in its plan → the update that was computed there.
        self.rounds: dict[tuple[int, int], int] = {}
        self.acknowledged: set[tuple[int, int]] = set()
        self.cut: set[int] = set()
        self.restored_backup: set[int] = set()

    def _taking(self, clients: int) -> tuple[tuple[int, ...], ...] | None:
        """In every third trial two phases; the first client takes part in both."""
        draw = random.Random(f"phases {self.seed}")
        if draw.random() < 2 / 3:
            return None
        return ((0, 1), *(draw.choice(((0,), (1,), (0, 1))) for _ in range(clients - 1)))

    def run(self) -> Tally:
        """To the end.

        Raises:
            ViolationError: something that must never happen.
        """
        agenda, draw = self.agenda, self.random
        agenda.add(0.0, _START, SERVER)
        for client in self.clients:
            agenda.add(0.0, _START, client.me)
        faults = self.faults
        for kind, count in (
            (_CRASH, faults.crashes),
            (_JUMP, faults.jumps),
            (_CUT, faults.cuts),
            (_BACKUP, faults.backups),
        ):
            for _ in range(count):
                one = draw.randrange(len(self.clients)) if kind in (_CUT, _BACKUP) else None
                machine = draw.randint(SERVER, len(self.clients) - 1) if one is None else one
                agenda.add(draw.uniform(0, QUIET * 0.6), kind, machine)
        while len(agenda):
            kind, machine, what = agenda.next()
            self.tally.events += 1
            if self.tally.events > MOST_EVENTS:
                raise self._violation("it does not end")
            self._happens(kind, machine, what)
            server = self.server.machine
            ended = server is not None and server.finished
            if agenda.now > QUIET and server is not None and (ended or self._nobody_left()):
                break
            if self.liar == SERVER and agenda.now > 2 * QUIET:
                break  # nobody can make it end
        self._judge()
        return self.tally

    # ---- what happens

    def _happens(self, kind: int, me: int, what: Any) -> None:
        process = self._process(me)
        now = self.agenda.now + process.offset
        match kind:
            case 0 | 1:  # a message
                if process.machine is not None and self._open(kind, me, what):
                    self._deliver(process, kind, what, now)
            case 2:  # computed
                life, compute = what
                if process.machine is not None and life == process.life:
                    self._do(process, self._trained(me, compute, now))
            case 3:  # wake
                if self.liar is not None and self.random.random() < self.lying:
                    self._lie_unasked()
                if process.machine is not None and what == process.life:
                    self._do(process, on.Woken(now))
            case 4:  # start
                self._begin(process)
            case 5:  # crash, or goodbye before it
                self._goodbye(process, now)
                self._crash(process)
            case 6:  # backup restored
                if process.backup is not None and self.agenda.now < QUIET:
                    self._crash(process)
                    process.storage = self._storage(me, process.backup)
                    self.restored_backup.add(me)
            case 7:  # clock jump, there and sometimes back
                process.offset += self.random.choice((-30.0, 5.0, 100.0))
            case 8:
                self.cut.add(me)
                self.agenda.add(self.agenda.now + self.random.uniform(1, 20), _HEAL, me)
            case 9:
                self.cut.discard(me)
                if process.machine is not None:
                    self._do(process, on.Connected(now))

    def _goodbye(self, process: _Process, now: float) -> None:
        """A client says goodbye before it is killed, sometimes; its owner begins it again."""
        known = process.me != SERVER and process.machine is not None
        if known and self.leaves.random() < 0.5:
            was = process.halted
            self._do(process, on.Stopped(now))
            process.halted = was

    def _open(self, kind: int, me: int, what: tuple[int, bytes, bytes]) -> bool:
        client = what[0] if kind == _TO_SERVER else me
        return client not in self.cut

    def _deliver(self, process: _Process, kind: int, what: Any, now: float) -> None:
        sender, message, digest = what
        if sender == self.liar:
            message = self._opened(process, sender, message, now)
            if message is None:
                return
        if kind == _TO_CLIENT and isinstance(message, Acknowledgement):
            self.acknowledged.add((process.me, message.round))
        self._do(process, on.Received(sender, message, now, digest))

    def _opened(self, process: _Process, sender: int, message: Any, now: float) -> Any:
        """A liar's message, as it comes through the door; None: refused there.

        A server tells a client whose update was refused there, as its driver does.
        """
        given = {"round": message.round, "base": message.base}
        kind = type(message)
        try:
            if message.round < 0 or message.base < -1:
                raise DecodeError("neither is negative")
            payload = encode(message, ("round", "base"))
            return judged(_NUMBERS[kind], payload, PARAMETERS, lambda _: MOST_NORM, given)
        except DecodeError:
            return None

    def _lie_unasked(self) -> None:
        liar, draw = self._process(self.liar or 0), self.random
        if self.liar == SERVER:
            to, make = draw.randrange(MEMBERS), lies.of_server
            round, base = draw.randint(0, UPDATES), getattr(liar.machine, "version", 0)
        else:
            to, make = SERVER, lies.of_client
            round, base = getattr(liar.machine, "updates", 0), getattr(liar.machine, "base", 0)
        self._put(liar.me, to, make(draw, round, base, self.start))

    def _trained(self, me: int, compute: on.Compute, now: float) -> on.Computed:
        """A trainer that depends on secret, round and input weights alone, as the real one does."""
        hashed = blake3(compute.vector.tobytes()).digest()
        salt = hashed if self.kinds.salted else b""
        key = blake3(struct.pack("<qq", me, compute.round) + salt).digest()
        known = self.noise.setdefault(key, hashed)
        if known != hashed:
            raise self._violation(
                f"client {me} put the noise of round {compute.round} on two models"
            )
        place = compute.planned
        if not any(place in own for own in self.federation.places(me)):
            raise self._violation(
                f"client {me} computed place {place}: beyond its plan, or not in its phases"
            )
        at = self.rounds.setdefault((me, place), compute.round)
        if at != compute.round and me not in self.restored_backup:
            raise self._violation(f"client {me} computed place {place} for two updates")
        noise = np.frombuffer(key[:12], dtype=np.uint8).astype(np.float32).reshape(3, 4).sum(1)
        vector = noise / np.float32(2000)
        if self.federation.exchanged == "weights":
            vector = compute.vector + vector - np.float32(0.25)
        state = struct.pack("<q", compute.round)
        return on.Computed(compute.round, compute.base, vector, place + 1, hashed, state, now)

    def _do(self, process: _Process, event: Any) -> None:
        try:
            for effect in process.machine.handle(event):
                self._effect(process, effect)
        except CrashError:
            self._crash(process)

    def _effect(self, process: _Process, effect: on.Effect) -> None:
        now = self.agenda.now
        match effect:
            case on.Send():
                self._send(process, effect)
            case on.Commit():
                process.ledger.commit(effect.release)
                if self.random.random() < 0.3:
                    process.backup = process.storage.contents()
            case on.Acknowledged():
                process.ledger.acknowledged(effect.round)
            case on.Compute():
                seconds = self.random.expovariate(1.0)
                self.agenda.add(now + seconds, _COMPUTED, process.me, (process.life, effect))
            case on.Wake():
                at = max(effect.at - process.offset, now + 0.01)
                self.agenda.add(at, _WAKE, process.me, process.life)
            case on.Append():
                process.ledger.append(effect.entry)
                self.history.append(effect.entry)
            case on.Snapshot():
                process.ledger.snapshot(process.machine.snapshot())
                self.since = len(self.history)
            case on.Alarm():
                self.tally.alarms.append(effect.code)
            case on.Done():
                if process.me != SERVER:
                    process.halted = True

    def _send(self, process: _Process, effect: on.Send) -> None:
        message = effect.message
        if isinstance(message, Update):
            self._judge_release(process.me, message)
        elif isinstance(message, Acknowledgement):
            self._judge_acknowledgement(effect.to, message)
        if process.me == self.liar and self.random.random() < self.lying:
            message = lies.changed(self.random, message)
        self._put(process.me, effect.to, message)

    def _put(self, me: int, to: int, message: Any) -> None:
        """A message on its way."""
        digest = b""
        if isinstance(message, Update):
            digest = blake3(encode(message)).digest(length=16)
            self.contents.setdefault((me, message.round), set()).add(digest)
        if me == self.liar:
            self.tally.lies += 1
        to_server = to == SERVER
        client = me if to_server else to
        quiet = self.agenda.now > QUIET
        faults, draw = self.faults, self.random.random
        copies = 1
        if not quiet:
            if client in self.cut or draw() < faults.drop:
                return
            copies += draw() < faults.double
        kind = _TO_SERVER if to_server else _TO_CLIENT
        for _ in range(copies):
            seconds = 0.05 if quiet else self.random.expovariate(1 / faults.delay)
            self.agenda.add(self.agenda.now + seconds, kind, to, (me, message, digest))

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

    def _process(self, me: int) -> _Process:
        return self.server if me == SERVER else self.clients[me]

    def _crash(self, process: _Process) -> None:
        if process.machine is not None:
            self.tally.crashes += 1
        process.machine = process.ledger = None
        process.life += 1
        if not process.halted:
            self.agenda.add(self.agenda.now + self.random.uniform(0.1, 5), _START, process.me)

    def _begin(self, process: _Process) -> None:
        if process.machine is not None:
            return
        process.life += 1
        now = self.agenda.now + process.offset
        try:
            if process.me == SERVER:
                self._restart_server(process)
            else:
                process.ledger = ClientLedger(
                    process.storage,
                    UnsignedEndpoint(self.run_id, process.me),  # type: ignore[arg-type]
                    "",
                )
                process.machine = self.kinds.client(
                    self.federation, process.me, process.ledger.read(), life=process.life
                )
        except CrashError:
            self._crash(process)
            return
        self.tally.restarts += 1
        self._do(process, on.Connected(now))

    def _restart_server(self, process: _Process) -> None:
        process.ledger = self.kinds.journal(process.storage, self.run_id)
        snapshot, entries = process.ledger.read()
        if snapshot is None and self.since:
            raise self._violation("the server's snapshot was lost")
        # The last append may have been durable although the server crashed in it; a snapshot may
        # have taken in everything.
        known = len(self.history) - self.since
        if snapshot is not None and len(entries) < known:
            self.since += known
            known = 0
        if not known <= len(entries) <= known + 1:
            raise self._violation(
                f"the server made {known} entries durable and reads {len(entries)} back"
            )
        self.history += entries[known:]
        process.machine = self.kinds.server.restored(
            self.federation, self.start.copy(), snapshot, entries
        )

    # ---- what must hold

    def _judge_release(self, client: int, update: Update) -> None:
        if update.round >= self.federation.updates(client):
            raise self._violation(f"client {client} released round {update.round}: beyond its plan")
        found = self.released.setdefault((client, update.round), set())
        found.add(blake3(encode(update)).digest(length=16))
        if len(found) > 1 and client not in self.restored_backup:
            raise self._violation(
                f"client {client} released round {update.round} with two contents"
            )

    def _judge_acknowledgement(self, client: int, message: Acknowledgement) -> None:
        durable = any(
            isinstance(entry, Accepted) and (entry.client, entry.round) == (client, message.round)
            for entry in self.history
        )
        if not durable:
            raise self._violation(
                f"the server acknowledged round {message.round} of client {client}, which is not "
                "in its journal"
            )

    def _nobody_left(self) -> bool:
        """Whether every client has stopped for ever, all their ledgers set back."""
        return all(client.halted for client in self.clients)

    def _judge(self) -> None:
        if self.liar is not None:
            self._judge_beside_liar()
        if self.liar == SERVER:
            return
        server = self.server.machine
        if server is None or not (server.finished or self._nobody_left()):
            raise self._violation("the faults ended, and the federation did not")
        applied = [(e.client, e.round) for e in self.history if isinstance(e, Accepted)]
        self.tally.accepted = len(applied)
        if len(set(applied)) != len(applied):
            raise self._violation("an update was applied twice")
        if not self.acknowledged <= set(applied):
            raise self._violation("an update was acknowledged and not applied")
        if int(server.applied.sum()) != len(applied):
            raise self._violation("the server counts other updates than its journal")
        for entry in self.history:
            if isinstance(entry, Accepted):
                self._judge_entry(entry)
        again = ServerMachine.restored(self.federation, self.start.copy(), None, self.history)
        same = np.array_equal(again.rule.weights, server.rule.weights)
        if not same or again.version != server.version:
            raise self._violation("the journal gives other bits than the server that wrote it")

    def _judge_beside_liar(self) -> None:
        applied = {(e.client, e.round) for e in self.history if isinstance(e, Accepted)}
        for process in self.clients:
            if process.me == self.liar:
                continue
            made = len([1 for client, _ in self.released if client == process.me])
            kept = len([1 for client, _ in applied if client == process.me])
            if self.liar != SERVER and self.faults == CALM and kept < made - LOST:
                raise self._violation(f"{made - kept} updates of client {process.me} were lost")
            if self.liar != SERVER and self.faults == CALM and process.halted and kept < LOST:
                raise self._violation(f"client {process.me} was stopped by another one's lie")
        server = self.server.machine
        if self.liar != SERVER and server is not None:
            length = float(np.linalg.norm(server.rule.weights))
            if not length < 1e6:
                raise self._violation(f"the model was moved to a length of {length:.3g}")

    def _judge_entry(self, entry: Accepted) -> None:
        if entry.mark not in self.contents.get((entry.client, entry.round), ()):
            raise self._violation(
                f"the server applied a round {entry.round} that client {entry.client} never sent"
            )

    def _violation(self, what: str) -> ViolationError:
        return ViolationError(
            f"seed {self.seed} ({self.federation.rule}, {len(self.clients)} clients): {what}"
        )


def run_trials(
    first: int, count: int, report: Callable[[int], None] | None = None, liar: bool = False
) -> Tally:
    """Trials of consecutive seeds, added up.

    Args:
        liar: whether a member or the server lies; every fourth seed without other faults.

    Raises:
        ViolationError: names the seed that shows it again.
    """
    total = Tally()
    for seed in range(first, first + count):
        found = Trial(seed, CALM if liar and not seed % 4 else None, liar=liar).run()
        total.events += found.events
        total.crashes += found.crashes
        total.restarts += found.restarts
        total.accepted += found.accepted
        total.lies += found.lies
        total.alarms += found.alarms if liar else []
        if report is not None:
            report(seed - first + 1)
    return total
