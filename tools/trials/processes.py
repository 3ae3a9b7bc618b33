"""One worker's process in a trial of kills: a real engine, a tiny model, and a log of its events.

Every event is in the log, with the digest of all effects so far, before any of its effects happens:
so whatever a process did before it was killed can be played again, and compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import distributed

from forethought.exchange.keys import Keys
from forethought.exchange.messages import Update, Vector, decode, encode
from forethought.exchange.storage import LedgerState
from forethought.gossip import events as on
from forethought.gossip.compression import Compression
from forethought.gossip.gossip import Gossip, GossipError, Member, Rule, digest_of
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing, Named
from forethought.gossip.worker import Effects, Machine
from forethought.holders import taking_part
from forethought.holders.cluster import WorkerActor, cluster
from forethought.holders.grpc import PeerRoster, SiteLinks
from forethought.holders.links import Links, Pace, PeersError, TeamLinks
from forethought.holders.simulator import Result, worker
from forethought.holders.taking_part import Share, take_part
from forethought.holders.trainer import ClientTrainer, SharedModel
from forethought.rounds.contributions import default_loss
from forethought.rounds.randomness import Seeds
from forethought.rounds.records import TensorRecords
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Plan
from forethought.values.use import Optimizer
from trials.recorded import Recorded

ENGINES = ("ray", "sites", "torchrun")
RECORDS, FEATURES, CLASSES = 24, 4, 2
ROSTER, OUTCOME, EVENTS = "roster.json", "outcome.json", "events"
# A worker's exit status when it ended with a reason that it says, and not by itself.
REFUSED = 3
_HEAD = struct.Struct("<dqqI32s")
# Where everybody waits, one who was killed holds up the others until it has started and met them
# again: on a busy machine that takes longer than one group's making may.
PACE = Pace(exchange=0.01, answer=0.3, patience=1.5, meet=30.0, quiet=90.0, linger=20.0)
WAITING = replace(PACE, quiet=200.0)
Watch = Callable[[Machine], Machine]


def possible(engine: str, rule: str) -> str | None:
    """Why an engine cannot drive a rule; None: it can."""
    if engine not in ENGINES:
        return f"engine {engine!r}: say one of {', '.join(ENGINES)}"
    if rule not in get_args(Rule):
        return f"rule {rule!r}: say one of {', '.join(get_args(Rule))}"
    if (engine == "torchrun") != (rule == "allreduce"):
        return "the engine torchrun carries the rule 'allreduce', and the others carry the others"
    return None


@dataclass(frozen=True)
class Setting:
    """What all processes of a trial have in common.

    Args:
        folder: each worker has one of its own in it. engine: "ray", "sites" (gRPC), or "torchrun".
        seed: of records, noise and matchings; the moments of the kills follow it as far as
            processes follow any order.
        workers, rounds: K and R; each worker plans twice R.
        rule, compression: of the gossip. port: where torchrun's processes meet.
        gradient: seconds that a gradient takes more. features: of a record; a model has two
            weights for each.
    """

    folder: Path
    engine: str
    seed: int
    workers: int = 4
    rounds: int = 100
    rule: Rule = "asynchronous"
    compression: str = "none"
    port: int = 0
    gradient: float = 0.02
    features: int = FEATURES

    def own(self, me: int) -> Path:
        """A worker's folder."""
        return self.folder / f"worker-{me}"

    @property
    def start(self) -> Vector:
        """The first weights of all."""
        return np.zeros((self.features + 1) * CLASSES, dtype=np.float32)

    def gossip(self) -> Gossip:
        """What all agree on; between sites with the roster's keys in it."""
        planned = self.rounds * (2 if self.rule == "asynchronous" else 1)
        mechanism = Mechanism(Rounds(1.0, planned, Poisson(0.5)))
        plan = Plan(mechanism, RECORDS, 1e-3, optimizer=Optimizer("sgd", 0.5, ()))
        kind, _, share = self.compression.partition(":")
        mixing: Named = "matchings" if self.rule == "asynchronous" else "metropolis"
        made = Gossip(
            tuple(Member(f"worker-{k}") for k in range(self.workers)),
            (plan,),
            Mixing(mixing, make("complete", self.workers), self.seed),
            len(self.start),
            self.shared().architecture,
            self.rounds,
            start=digest_of(self.start),
            rule=self.rule,
            compression=Compression(kind, float(share) if share else None),
            settle=200 if kind == "top-k" else 30,  # few changes a message, slow agreement
        )
        if self.engine == "sites":
            return PeerRoster.load(self.folder / ROSTER).with_keys(made)
        return made

    def shared(self) -> SharedModel:
        """The model of all, with the first weights."""
        model = torch.nn.Linear(self.features, CLASSES)
        shared = SharedModel(model)
        shared.write(self.start)
        return shared

    def share(self, me: int) -> Share:
        """A worker's records: two overlapping clouds; nothing of it is private."""
        draw = np.random.default_rng([self.seed, me])
        targets = draw.integers(0, CLASSES, RECORDS)
        inputs = draw.standard_normal((RECORDS, self.features)) + targets[:, None]
        records = TensorRecords(
            torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(targets)
        )
        seeds = Seeds(self.seed, self.seed).part(me)
        return Share(records, default_loss(records.targets), seeds=seeds)


class Logged:
    """A worker whose events are in a file before their effects happen.

    Args:
        machine: the worker. path: of one life's log. begun: what its ledger held at the beginning.
    """

    def __init__(self, machine: Machine, path: Path, begun: LedgerState) -> None:
        self._machine = Recorded(machine)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._write(_begun_bytes(begun))

    def _write(self, event: bytes) -> None:
        machine = self._machine
        ended = int(machine.finished is not None)
        digest = bytes.fromhex(machine.digest)
        head = _HEAD.pack(time.monotonic(), machine.updates, ended, len(event), digest)
        os.write(self._file, head + event)

    @property
    def updates(self) -> int:
        """How many were committed."""
        return self._machine.updates

    @property
    def finished(self) -> str | None:
        """Why it ended; None: it has not."""
        return self._machine.finished

    @property
    def weights(self) -> Vector:
        """The worker's model."""
        return self._machine.weights

    def handle(self, event: on.Event) -> Effects:
        """What an event leads to."""
        effects = self._machine.handle(event)
        self._write(self._machine.events.pop())
        return effects


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log.

    Args:
        seconds: of ``time.monotonic``, which all processes of a machine share.
        updates: of the worker then. ended: 1 when it had finished.
        digest: of all effects so far. event: as bytes; of the first line, see :func:`begun_of`.
    """

    seconds: float
    updates: int
    ended: int
    digest: bytes
    event: bytes


def lines_of(data: bytes) -> Iterator[Line]:
    """The lines of a log; the last one may have been cut off by a kill."""
    at = 0
    while at + _HEAD.size <= len(data):
        seconds, updates, ended, length, digest = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if at + length > len(data):
            return
        yield Line(seconds, updates, ended, digest, data[at : at + length])
        at += length


def _begun_bytes(begun: LedgerState) -> bytes:
    frames = [encode(one) for one in begun.outgoing]
    head = struct.pack("<qI", begun.updates, len(frames))
    return head + b"".join(struct.pack("<I", len(one)) + one for one in frames)


def begun_of(event: bytes) -> LedgerState:
    """What a worker's ledger held when a life began, from the first line of its log."""
    updates, count = struct.unpack_from("<qI", event)
    at, outgoing = 12, []
    for _ in range(count):
        (length,) = struct.unpack_from("<I", event, at)
        outgoing.append(decode(Update, memoryview(event)[at + 4 : at + 4 + length]))
        at += 4 + length
    return LedgerState(updates, outgoing=tuple(outgoing))


def live(
    setting: Setting,
    me: int,
    life: int,
    watch: Watch | None = None,
    here: WorkerActor | None = None,
) -> None:
    """One life of one worker: from its folder to its end, or until somebody kills it.

    Args:
        life: how often it has begun before. watch: puts something between worker and driver.
        here: of an actor.
    """
    torch.set_num_threads(1)
    gossip, folder = setting.gossip(), setting.own(me)
    folder.mkdir(parents=True, exist_ok=True)

    def logged(
        agreed: Gossip, place: int, first: Vector, begun: LedgerState | None = None
    ) -> Machine:
        begun = LedgerState() if begun is None else begun
        made = Logged(worker(agreed, place, first, begun), folder / f"{EVENTS}-{life}", begun)
        return made if watch is None else watch(made)

    keys = None
    if setting.engine == "sites":
        keys = Keys.load(setting.folder / f"keys-{me}")
        links = _sites(gossip, PeerRoster.load(setting.folder / ROSTER))
    elif here is not None:
        links = _actors(gossip, me, here)
    else:
        links = _team(setting, me)
    compute = ClientTrainer.compute

    def slowly(self: ClientTrainer, round: int, weights: Vector) -> Result:
        time.sleep(setting.gradient)
        return compute(self, round, weights)

    # This process does nothing else.
    ClientTrainer.compute = slowly  # type: ignore[method-assign]
    taking_part.worker = logged
    try:
        took = take_part(
            gossip,
            me,
            setting.shared(),
            setting.share(me),
            folder,
            links,
            keys=keys,
            pace=PACE if gossip.rule == "asynchronous" else WAITING,
        )
    except (PeersError, GossipError) as error:
        _leave(folder, {"error": str(error)})
        raise SystemExit(REFUSED) from None
    outcome: dict[str, Any] = {
        "reason": took.drove.reason,
        "updates": took.updates,
        "stated": None if took.statement is None else len(took.statement.mechanism),
        "alarms": dict(took.drove.counts),
        "weights": took.weights.tolist(),
    }
    _leave(folder, outcome)


def _leave(folder: Path, outcome: dict[str, Any]) -> None:
    part = folder / f".{OUTCOME}.part"
    part.write_text(json.dumps(outcome), encoding="utf-8")
    part.replace(folder / OUTCOME)


def _sites(gossip: Gossip, roster: PeerRoster) -> Callable[[Keys], Links]:
    return lambda keys: SiteLinks(gossip, roster, keys, back_off=(0.05, 0.5))


def _actors(gossip: Gossip, me: int, here: WorkerActor) -> Callable[[Keys], Links]:
    return lambda keys: here.links(gossip, me)


def _team(setting: Setting, me: int) -> Callable[[Keys], Links]:
    def joined(keys: Keys) -> Links:
        distributed.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{setting.port}",
            rank=me,
            world_size=setting.workers,
        )
        return TeamLinks()

    return joined


@contextlib.contextmanager
def prepared(engine: str, seed: int, **changes: Any) -> Iterator[Setting]:
    """A setting with folder, store or keys, which are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="forethought-kills-"))
    try:
        setting = Setting(folder, engine, seed, **changes)
        if engine == "sites":
            _roster(setting)
        elif engine == "torchrun":
            (port,) = _free_ports(1)
            setting = replace(setting, port=port)
        else:
            # An actor takes seconds to begin: gradients are slower, so that others still work then.
            setting = replace(setting, gradient=max(setting.gradient, 0.1))
        with cluster(None, setting.workers) if engine == "ray" else contextlib.nullcontext():
            yield setting
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _roster(setting: Setting) -> None:
    made = [
        Keys.make(setting.folder / f"keys-{k}", f"worker-{k}").identity
        for k in range(setting.workers)
    ]
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(len(made))]
    PeerRoster.of(made, addresses).save(setting.folder / ROSTER)


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return found
