"""Simulate several holders on one computer, with real training: from shares to statements.

An event in virtual time costs microseconds; training takes nearly all of the time. So a simulation
that was interrupted begins anew, and reads the updates that it had computed from its record. A
crash can damage only the last entry of that record.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from forethought.accounting.statement import Randomness, Statement
from forethought.exchange.events import ClientRelease
from forethought.exchange.messages import Model, Update, Vector, decode, encode
from forethought.exchange.storage import FolderStorage, RecordLog
from forethought.federated.federation import Federation, FederationError
from forethought.federated.rules import Synchronous
from forethought.federated.secure_aggregation.masking import SecureAggregation
from forethought.federated.secure_aggregation.protocol import secure_sum
from forethought.federated.secure_aggregation.shared_noise import require_room
from forethought.federated.sizes import released
from forethought.federated.steps import Moments, moved
from forethought.gossip.gossip import Gossip
from forethought.gossip.worker import Machine
from forethought.gradients import check_model
from forethought.holders import simulator
from forethought.holders.fused import LAW, Asked, Cohort, cohorts, require_fusible, simulated_times
from forethought.holders.simulator import rehearsed
from forethought.holders.topology import Agreed, made_plan, statement_of
from forethought.holders.trainer import Holder, ReportedAverage, SharedModel
from forethought.holders.workers import PROCESSES, InProcess, Workers, address_of
from forethought.rounds.contributions import Loss, check_loss, default_loss
from forethought.rounds.private_sum import input_hash
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import Records, blank
from forethought.training.folder import (
    KEYS,
    PLAN,
    CheckpointError,
    RunSecrets,
    locked,
    untied,
    wipe,
)
from forethought.training.metrics import evaluate
from forethought.training.records import require_fit
from forethought.training.run import NOT_COVERED_TEST
from forethought.values.checks import RunFolderExistsError, function, require_only
from forethought.values.plan import TRANSCRIPT, Transcript, grid
from forethought.values.serialisation import plain

SUMMARY, START = "simulation.json", "start.npy"
# The record of updates, and of a simulation whose cohorts' sums are fused.
RECORD, FUSED = "updates", "fused-updates"
# Approximate number of points of an accuracy curve.
POINTS = 40


Progress = Callable[[int, int], None]


@dataclass
class Simulation:
    """Holders that are ready to compute, and the state of their releases so far.

    Attributes:
        agreed: the federation or the gossip.
        shared: the model of all. loss: one value per example. test: held-out records.
        folder: where results are kept; None: nothing is kept. holders: one for each share.
        start: the weights that all begin with. secrets: of all holders.
        workers: processes that compute; 0: this one. engine: starts these processes.
        progress: see :func:`simulate`. held: contexts that are left when the simulation ends.
        accuracies: see :class:`SimulatedRun`; of about :data:`POINTS` of the models.
    """

    agreed: Agreed
    shared: SharedModel
    loss: Loss
    test: Records | None
    folder: Path | None
    holders: Sequence[Holder]
    start: Vector
    secrets: Secrets
    workers: int
    engine: str
    progress: Progress | None
    held: contextlib.ExitStack
    accuracies: list[tuple[Any, ...]] = field(default_factory=list)
    _states: dict[int, bytes] = field(default_factory=dict)
    _count: int = 0

    def trainers(self, sums: bool = False) -> simulator.Trainers:
        """Make the trainers, with a record if there is a folder; torch then uses one thread.

        Args:
            sums: True gives noised sums; see :class:`~forethought.holders.trainer.Holder`.
        """

        def make(states: dict[int, bytes]) -> Computing:
            holders = self.holders
            if sums:
                holders = [replace(one, gradients="sums") for one in holders]
            if not self.workers:
                return InProcess(self.shared, holders, states=states)
            known = self.shared, holders, states
            return self.held.enter_context(Workers(self.workers, *known, self.engine))

        return self.recorded(make)

    def recorded(self, make: Make, name: str = RECORD) -> simulator.Trainers:
        """Give trainers a record if there is a folder; torch then uses one thread.

        Args:
            make: makes the trainers, given the states from which holders continue.
            name: of the record.
        """
        made = make({}) if self.folder is None else Recorded(self.folder, make, self.shared, name)
        self.held.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        return made

    def committed(self, holder: int, release: ClientRelease | simulator.Result) -> None:
        """Note a holder's release, and call ``progress``."""
        self._states[holder] = release.state
        self._count += 1
        if self.progress is not None:
            most = self.agreed.total
            self.progress(min(self._count, most), most)

    def accuracy(self, weights: Vector) -> float | None:
        """The accuracy on the held-out records; None without such records."""
        if self.test is None:
            return None
        parts = self.shared.layout.views(torch.from_numpy(np.array(weights)))
        return evaluate(self.shared.model, parts, self.loss, self.test)[1]

    @property
    def every(self) -> int:
        """The number of models, or of updates of a gossip, from one noted accuracy to the next."""
        star = isinstance(self.agreed, Federation)
        return max(1, (self.agreed.rounds if star else self.agreed.total) // POINTS)

    def of_version(self, version: int, seconds: float, weights: Vector) -> None:
        """Note the accuracy of a federation's new model, if it is due."""
        if version % self.every == 0:
            self._note(weights, seconds)

    def of_workers(self, count: int, seconds: float, workers: list[Machine]) -> None:
        """Note the accuracy of the workers' average at a count of updates."""
        self._note(simulator.average(workers), seconds, count)

    def _note(self, weights: Vector, *at: float) -> None:
        if (accuracy := self.accuracy(weights)) is not None:
            self.accuracies.append((*at, accuracy))

    @property
    def transcripts(self) -> tuple[Transcript, ...]:
        """The releases of each holder."""
        return tuple(released(self._states.get(k, b"")) for k in range(len(self.holders)))

    def statement(self, holder: int, transcript: Transcript) -> Statement | None:
        """The statement of a holder's releases; None if it released nothing."""
        if not len(transcript):
            return None
        looked = () if self.test is None else (NOT_COVERED_TEST,)
        seeded = Randomness(self.secrets.seeded_noise, self.secrets.seeded_sampling)
        return statement_of(self.agreed, holder, transcript, seeded, looked)

    def finish(self, run: SimulatedRun) -> None:
        """Write the results to the folder, if there is one, and remove what resuming needed."""
        folder, agreed = self.folder, self.agreed
        if folder is None:
            return
        from safetensors.torch import save_file

        save_file(untied(self.shared.model.state_dict()), str(folder / "model.safetensors"))
        kept = {agreed.file: agreed.to_json()}
        for place, (name, statement, made) in enumerate(
            zip(agreed.names, run.statements, run.transcripts, strict=True)
        ):
            if statement is not None:
                plan = made_plan(agreed, place, made)
                own = folder / f"{agreed.MEMBER}s" / name
                own.mkdir(parents=True, exist_ok=True)
                statement.save(own, {PLAN: plan.to_json(), TRANSCRIPT: made.to_json(), **kept})
        (folder / SUMMARY).write_text(json.dumps(run.summary(), indent=2), encoding="utf-8")
        wipe(folder / KEYS)
        for name in (RECORD, FUSED):
            (folder / name).unlink(missing_ok=True)


# The beginning of a simulation: new, or resumed from the folder of an interrupted one.


def keys_and_start(
    folder: Path | None, resume: bool, agreed: Agreed, weights: Vector, seeds: Seeds
) -> tuple[Secrets, Vector]:
    """Secrets and first weights: new ones, or those of the resumed simulation.

    Args:
        folder: of the simulation; None: nothing is kept. agreed: the federation or the gossip.
        weights: the first ones of a new simulation.

    Raises:
        ValueError: ``resume`` without a folder. RunFolderExistsError: the folder is not empty.
        CheckpointError: nothing to resume, or the folder has another federation or gossip.
    """
    if folder is None:
        if resume:
            raise ValueError("resume=True goes on in out=: give out")
        return Secrets.draw(seeds), weights
    name = agreed.file
    if resume:
        # The agreement is written last, and the keys are wiped at the end.
        if not ((folder / name).exists() and (folder / KEYS).exists()):
            raise CheckpointError(
                f"{folder} holds no simulation that was interrupted: choose another folder"
            )
        if type(agreed).load(folder / name) != agreed:
            raise CheckpointError(
                f"the {agreed.CALLED} of {folder} is another one: go on with the job it began with"
            )
        start: Vector = np.load(folder / START, allow_pickle=False)
        return RunSecrets.read(folder).secrets, start
    if (folder / name).exists() or (folder / RECORD).exists() or (folder / FUSED).exists():
        way = "go on with resume (--resume), or " if (folder / KEYS).exists() else "it has ended; "
        raise RunFolderExistsError(f"{folder} holds a simulation: {way}choose another folder")
    require_only(folder, KEYS, START)  # these, where it was killed before the agreement was there
    keys = RunSecrets.draw(seeds)
    keys.write(folder)
    np.save(folder / START, weights)
    agreed.save(folder / name)
    return keys.secrets, weights


# The record of updates, from which an interrupted simulation is resumed.
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class _KeptUpdate:
    client: int
    round: int
    base: int
    rounds: int
    input_hash: bytes
    state: bytes
    vector: Vector


Computing: TypeAlias = InProcess | Cohort
Make: TypeAlias = Callable[[dict[int, bytes]], Computing]


class Recorded:
    """Trainers that record each update; see :class:`forethought.holders.simulator.Trainers`.

    Args:
        folder: of the simulation's record.
        make: makes the trainers, given the states from which clients continue.
        shared: the model of all.
        name: of the record. A record of another name belongs to another kind of simulation.

    Raises:
        CheckpointError: the folder holds a record of another name.
    """

    def __init__(self, folder: Path, make: Make, shared: SharedModel, name: str = RECORD) -> None:
        for other in {RECORD, FUSED} - {name}:
            if (folder / other).exists():
                raise CheckpointError(
                    f"{folder} holds a simulation that was begun "
                    f"{'with' if other == FUSED else 'without'} fused = true: go on with it so"
                )
        self._log = RecordLog(FolderStorage(folder, durable=False), name)
        # Client and round → an outcome that is in the record, and was not requested yet.
        self._known: dict[tuple[int, int], simulator.Result] = {}
        states: dict[int, bytes] = {}
        for record in self._log.replay():
            for part in _split(record):
                found: _KeptUpdate = decode(_KeptUpdate, part)
                vector = np.array(found.vector, dtype=np.float32)
                one = simulator.Result(vector, found.rounds, found.input_hash, found.state)
                self._known[found.client, found.round] = one
                states[found.client] = found.state
        self.trainers = make(states)
        self._folder, self._shared = folder, shared
        self._works: dict[int, simulator.Work] = {}

    def begin(self, work: simulator.Work) -> None:
        """Begin the work, unless its result is in the record.

        Raises:
            CheckpointError: that result was computed on other weights.
        """
        self._works[work.client] = work
        known = self._known.get((work.client, work.round))
        if known is None:
            self.trainers.begin(work)
        elif work.parts == 1:  # parts of an update are on weights of their own
            self._shared.write(work.weights)
            if input_hash(self._shared.model) != known.input_hash:
                raise CheckpointError(
                    f"{self._folder} began with other times (speeds, latency, outages), and so "
                    "with other models: go on with the job that it began with"
                )

    def result(self, client: int) -> simulator.Result:
        """The outcome of a client's work: from the record, or computed and then recorded."""
        place = client, self._works[client].round
        if place not in self._known:
            # All results that were computed together are one record. A resumed simulation computes
            # all of them again or none, so it computes them together again, and to the same bits.
            parts = []
            for one, done in self.trainers.together().items():
                of = self._works[one]
                self._known[one, of.round] = done
                about = one, of.round, of.base, done.rounds, done.input_hash, done.state
                parts.append(encode(_KeptUpdate(*about, done.vector)))
            self._log.append(b"".join(_LENGTH.pack(len(part)) + part for part in parts))
        del self._works[client]
        return self._known.pop(place)


def _split(record: bytes) -> Iterator[memoryview]:
    view, at = memoryview(record), 0
    while at < len(view):
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        yield view[at : at + length]
        at += length


@dataclass(frozen=True)
class SimulatedRun:
    """A finished simulation of a federation or a gossip.

    Args:
        agreed: the federation or the gossip. simulated: the outcome of the machines.
        statements: of each client against the server, or of each worker against its neighbours;
            None: it released nothing.
        accuracies: (virtual second, accuracy on the test records) of a federation's models;
            (virtual second, updates, accuracy) of the average of a gossip's models.
        accuracy: of the reported model; None without test records.
        transcripts: the releases of each holder.
        each: accuracy of every worker's own model.
        fused: True if one private sum replaced each cohort's: no client has a statement.
    """

    agreed: Any
    simulated: Any
    statements: tuple[Statement | None, ...]
    accuracies: tuple[tuple[Any, ...], ...]
    accuracy: float | None
    transcripts: tuple[Transcript, ...]
    each: tuple[float, ...] = ()
    fused: bool = False

    @property
    def federation(self) -> Federation:
        """The federation that clients agreed on."""
        return self.agreed

    @property
    def gossip(self) -> Gossip:
        """The gossip that workers agreed on."""
        return self.agreed

    def summary(self) -> dict[str, Any]:
        """The outcome as values for JSON: virtual seconds, and each holder's ε spent."""
        done = self.simulated
        star = isinstance(self.agreed, Federation)
        found: dict[str, Any] = {"fused": LAW} if self.fused else {}
        found["accuracy"] = self.accuracy
        if star:
            found |= {"seconds": done.seconds, "models": done.version}
        else:
            found |= {"worst": min(self.each, default=None), "seconds": done.seconds}
            found |= {"disagreement": done.disagreement, "exchanges": done.exchanges}
        found |= {"messages": done.messages, "megabytes": done.sent_bytes / 1e6}
        places = range(len(self.agreed.members))
        found[f"{self.agreed.MEMBER}s"] = [self._holder(place, star) for place in places]
        rows = {"accuracies": self.accuracies, "timeline": done.timeline, "alarms": done.alarms}
        return found | {name: list(map(list, some)) for name, some in rows.items()}

    def _holder(self, place: int, star: bool) -> dict[str, Any]:
        done, one = self.simulated, self.statements[place]
        unstated = None if self.fused else 0.0
        budget = self.agreed.plan(place).budget
        found = {
            "name": self.agreed.members[place].name,
            "epsilon": unstated if one is None else plain(one.guarantee),
            "budget": None if budget is None else budget.epsilon,
            "rounds": int(done.rounds[place]),
        }
        busy = {"busy": float(done.busy[place])}
        if star:
            counts = {name: int(getattr(done, name)[place]) for name in ("updates", "applied")}
            return {**found, **counts, **busy}
        own = self.each[place] if self.each else None
        return {**found, **busy, "accuracy": own, "ended": done.reasons[place]}


def simulate(
    model: torch.nn.Module,
    shares: Sequence[object],
    federation: Federation | Gossip,
    times: simulator.Times,
    *,
    loss: Loss | None = None,
    test: object | None = None,
    seeds: Seeds | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    workers: int = 0,
    engine: str = PROCESSES,
    micro_batch: int | None = None,
    fused: bool = False,
    progress: Progress | None = None,
) -> SimulatedRun:
    """Train a federation or a gossip in virtual time; ``model`` then has the reported weights.

    The result depends neither on ``workers`` nor on interruptions. Gradients are computed on one
    thread, so that no rounding depends on the number of threads.

    Args:
        model: of all holders, with the weights that they begin with.
        shares: each holder's records, in the forms of ``ft.train``.
        federation: the federation or gossip that they agree on; it has a plan for each share.
        times: the durations, in virtual seconds; for a gossip,
            :class:`~forethought.holders.simulator.GraphTimes` has more.
        loss: one value per example. test: held-out records.
        seeds: of all holders; a seeded simulation is not private, and its statements say so.
        out: folder for the results, and for what is needed to resume after an interruption.
        resume: continue the simulation in ``out``. workers: processes that compute; 0: this one.
        engine: of these processes: "processes", "ray", or "ray:ADDRESS" of a running cluster.
        micro_batch: number of examples whose gradients are in memory at once.
        fused: draw one private sum per cohort, whose noise has the summed variance of its clients'
            noises. The global models have exactly the same law, at nearly the cost of one machine.
            No client's own noise is drawn, so no client has a statement.
        progress: called with the number of updates so far and the largest possible number.

    Raises:
        FederationError, GossipError, ValueError: the shares do not fit their plans, the model
            cannot be trained, or ``fused`` would change the law of the global models.
        RunFolderExistsError: ``out`` is not empty. CheckpointError: nothing to resume, or
            ``out`` has another federation or gossip. SimulationError: no event is left before the
            end.
    """
    function("loss", loss)
    function("progress", progress)
    count = len(federation.members)
    address_of(engine)  # refuses an unknown one, also where no process would be started
    if engine != PROCESSES and not workers:
        raise ValueError(
            f"engine {engine!r} starts the processes that workers= (--workers) counts: give their "
            "number, or leave the engine out"
        )
    if len(shares) != count:
        raise federation.REFUSAL(
            f"{len(shares)} shares for {count} {federation.MEMBER}s: give one each"
        )
    if fused:
        if not isinstance(federation, Federation):
            raise FederationError("fused = true makes one sum of a federation's cohorts")
        require_fusible(federation, times)
    # One process reads all records, so nothing is compared; and the run's name, from which noise
    # follows, stays that of simulations that were begun before there was an encoding.
    federation = replace(federation, encoding="")
    check_model(model)
    shared = SharedModel(model)
    if isinstance(federation, Gossip):
        federation.require(shared.architecture, shared.read())
    records = [shared.records(share) for share in shares]
    held_out = None if test is None else shared.records(test, "test")
    chosen = default_loss(blank(records[0])[1]) if loss is None else loss
    tried: dict[object, object] = {}
    for one in records:
        require_fit(model, chosen, one, tried=tried)
    check_loss(model, chosen, records[0])
    folder = None if out is None else Path(out)
    with contextlib.ExitStack() as held:
        if folder is not None:
            held.enter_context(locked(folder))
        secrets, start = keys_and_start(folder, resume, federation, shared.read(), seeds or Seeds())
        shared.write(start)
        holders = [
            Holder.of(federation, k, one, chosen, secrets.of(k), micro_batch)
            for k, one in enumerate(records)
        ]
        known = federation, shared, chosen, held_out, folder, holders, start, secrets
        running = Simulation(*known, workers, engine, progress, held)
        run = _run(running, times, fused)
        running.finish(run)
    return run


def synchronous_seconds(agreed: Federation | Gossip, times: simulator.Times) -> float:
    """Virtual seconds of as many synchronous rounds, in which every holder waits for all others.

    Nothing is trained: only the machines run, and every holder computes for as long as ``times``
    says. For a gossip the rounds are those of SYNC, without outages.
    """
    if isinstance(agreed, Gossip):
        alone = simulator.Times(
            times.compute, times.way, times.straggling, (), times.seed, times.factors
        )
        return simulator.rehearsed_graph(agreed.with_allreduce(), alone).seconds
    mean = replace(agreed.robust, kind="mean", bound=None)
    other = replace(agreed, absence=None, refreshes=0, robust=mean)
    return rehearsed(replace(other, rule="synchronous", exchanged="weights"), times).seconds


def _run(running: Simulation, times: simulator.Times, fused: bool) -> SimulatedRun:
    agreed = running.agreed
    done: simulator.SimulatedStar | simulator.SimulatedGraph
    each: list[float | None] = []
    watched: dict[str, Any] = {"committed": running.committed, "timeline": True}
    if isinstance(agreed, Gossip):
        looked = None if running.test is None else running.of_workers
        watched |= {"looked": looked, "every": running.every}
        trained = agreed, running.start, running.trainers(), times
        done = simulator.GraphSimulator(*trained, **watched).run()
        each = [running.accuracy(model) for model in done.models]
    elif fused:
        asked = cohorts(agreed)
        timed = simulated_times(agreed, times, asked)
        done = _locked(agreed, running, timed, _fused(agreed, running, asked))
    elif agreed.secure is not None:
        done = _locked(agreed, running, rehearsed(agreed, times), _securely(agreed, running))
        done = replace(done, rounds=np.array([len(made) for made in running.transcripts]))
    else:
        average = ReportedAverage.of(agreed, running.shared.layout, running.start)
        versions = None if running.test is None else running.of_version
        watched |= {"average": average, "versions": versions}
        done = simulator.StarSimulator(
            agreed, running.start, running.trainers(), times, **watched
        ).run()
    running.shared.write(done.weights)
    transcripts = running.transcripts
    return SimulatedRun(
        agreed,
        done,
        tuple(running.statement(k, made) for k, made in enumerate(transcripts)),
        tuple(running.accuracies),
        running.accuracy(done.weights),
        transcripts,
        tuple(one for one in each if one is not None),
        fused,
    )


def _locked(
    federation: Federation,
    running: Simulation,
    timed: simulator.SimulatedStar,
    models: Iterator[Vector],
) -> simulator.SimulatedStar:
    """Train in lockstep, round by round; the times are those of machines without training."""
    average = ReportedAverage.of(federation, running.shared.layout, running.start)
    reported = running.start
    for version, (seconds, model) in enumerate(zip(timed.versions, models, strict=True), 1):
        if average is not None:
            average.update(version, model)
        reported = model if average is None else average.weights
        running.of_version(version, seconds, reported)
    return replace(timed, weights=reported)


def _fused(federation: Federation, running: Simulation, asked: Sequence[Asked]) -> Iterator[Vector]:
    """The models of rounds with one private sum each."""

    def make(states: dict[int, bytes]) -> Computing:
        brought = running.shared, running.holders, federation, asked, running.secrets
        return running.held.enter_context(Cohort(*brought, running.workers, running.engine))

    trainers = running.recorded(make, FUSED)
    weights, moments = running.start, Moments()
    count, most = 0, sum(len(clients) for clients, _ in asked)
    for version, (clients, _) in enumerate(asked):
        trainers.begin(simulator.Work(0, version, version, Model(version, version, weights)))
        change = trainers.result(0).vector.astype(np.float64)
        weights = moved(federation.server, moments, weights, change)
        count += len(clients)
        if running.progress is not None:
            running.progress(count, most)
        yield weights


def _securely(federation: Federation, running: Simulation) -> Iterator[Vector]:
    """The models of rounds behind real masks, with the bits of a server that opens them.

    Nobody is lost on the way, so noise may change with the round where all clients make all rounds.
    """
    settings = SecureAggregation.from_dict(federation.secure or {})
    settings.require(federation)
    require_room(federation, settings)
    trainers, rule = running.trainers(sums=True), Synchronous(federation, running.start)
    made = [0] * len(federation.members)
    while not rule.finished:
        version, asked, sums, divisor = rule.version, rule.asked, {}, 0.0
        model = Model(version, version, rule.model)
        for client in asked:
            trainers.begin(simulator.Work(client, made[client], version, model))
        for client in asked:
            found, own = trainers.result(client), federation.plan(client).round(made[client])
            sums[client] = found.vector.view(np.float64)
            divisor += own.divisor
            step, _ = grid(own.noise_std, own.clip_norm, federation.parameters)
            running.committed(client, found)
            made[client] += 1
        opened, _ = secure_sum(settings, sums, step, round=version, run_id=federation.run_id)
        mean = (opened / divisor).astype(np.float32)
        for client in asked:
            rule.apply(client, Update(made[client] - 1, version, mean))
        rule.advance()
        yield rule.model
