"""Simulate a gossip on one computer, with real training: from shares to statements."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forethought.accounting.assumptions import Randomness
from forethought.accounting.statement import Statement
from forethought.exchange.events import Release
from forethought.exchange.messages import Vector
from forethought.gossip.gossip import GOSSIP, Gossip, GossipError
from forethought.gossip.simulator import Simulated, Simulator, average
from forethought.gossip.statements import worker_statement
from forethought.gossip.worker import Machine
from forethought.gradients import check_model
from forethought.holders.recorded import RECORD, Recorded, begun
from forethought.holders.trainer import Holder, SharedModel, released
from forethought.holders.work import NoTraining, Trainers, no_gradients
from forethought.holders.workers import InProcess, Workers
from forethought.rounds.losses import Loss, check_loss, default_loss
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import Records, as_records, blank
from forethought.rounds.transcript import TRANSCRIPT, Transcript
from forethought.serialisation import plain
from forethought.simulation.times import Times
from forethought.training.fit import require_fit
from forethought.training.folder import KEYS, PLAN, locked, wipe
from forethought.training.metrics import evaluate
from forethought.training.run import NOT_COVERED_TEST

SUMMARY = "simulation.json"
# Points of a curve of accuracies.
POINTS = 40
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SimulatedGossip:
    """A finished simulation.

    Args:
        gossip: what was agreed. simulated: what the workers came to.
        statements: of each worker against its neighbours; None: it released nothing.
        accuracies: (virtual second, updates, accuracy of the average model).
        accuracy: of the average model, on the test records. each: of every worker's own.
        transcripts: what each worker released.
    """

    gossip: Gossip
    simulated: Simulated
    statements: tuple[Statement | None, ...]
    accuracies: tuple[tuple[float, int, float], ...]
    accuracy: float | None
    each: tuple[float, ...]
    transcripts: tuple[Transcript, ...]

    def summary(self) -> dict[str, Any]:
        """The outcome, JSON-ready: virtual seconds, and what each worker spent."""
        gossip, done = self.gossip, self.simulated
        budgets = [gossip.plan(k).budget for k in range(gossip.workers)]
        return {
            "accuracy": self.accuracy,
            "worst": min(self.each, default=None),
            "seconds": done.seconds,
            "disagreement": done.disagreement,
            "exchanges": done.exchanges,
            "messages": done.messages,
            "megabytes": done.sent_bytes / 1e6,
            "workers": [
                {
                    "name": gossip.members[k].name,
                    "epsilon": 0.0 if one is None else plain(one.guarantee),
                    "budget": None if budget is None else budget.epsilon,
                    "rounds": int(done.rounds[k]),
                    "busy": float(done.busy[k]),
                    "accuracy": self.each[k] if self.each else None,
                    "ended": done.reasons[k],
                }
                for k, (one, budget) in enumerate(zip(self.statements, budgets, strict=True))
            ],
            "accuracies": [list(row) for row in self.accuracies],
            "timeline": [list(row) for row in done.timeline],
            "alarms": [list(row) for row in done.alarms],
        }


def simulate(
    model: torch.nn.Module,
    shares: Sequence[object],
    gossip: Gossip,
    times: Times,
    *,
    loss: Loss | None = None,
    test: object | None = None,
    seeds: Seeds | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    workers: int = 0,
    micro_batch: int | None = None,
    progress: Progress | None = None,
) -> SimulatedGossip:
    """Train a gossip in virtual time; the model carries the average weights afterwards.

    The result depends neither on ``workers`` nor on interruptions. Gradients are computed on one
    thread, so that no rounding depends on their number.

    Args:
        model: of all workers, with the weights that they begin with.
        shares: each worker's records, in the forms of ``ft.train``.
        gossip: what they agree on; a plan for each share.
        times: how long everything takes, in virtual seconds; a
            :class:`~forethought.gossip.simulator.Pace` says more.
        loss: one value per example. test: held-out records.
        seeds: of all workers; a seeded simulation is not private, and its statements say so.
        out: folder that keeps what is needed to go on after an interruption, and the results.
        resume: go on in ``out``. workers: processes that compute; 0: this one.
        micro_batch: examples whose gradients are held at once.
        progress: called with updates so far and the count at which all stop.

    Raises:
        GossipError, ValueError: shares that do not fit their plans, or a model that cannot be.
        RunFolderExistsError: ``out`` is not empty. CheckpointError: nothing to resume, or another
            gossip. SimulationError: it waits for something that never comes.
    """
    if len(shares) != gossip.workers:
        raise GossipError(f"{len(shares)} shares for {gossip.workers} workers: give one each")
    check_model(model)
    shared = SharedModel(model)
    gossip.require(shared.architecture, shared.read())
    first = next(iter(shared.parameters.values()))
    records = [as_records(share, first.dtype, first.device) for share in shares]
    held_out = None if test is None else as_records(test, first.dtype, first.device, "test")
    chosen = default_loss(blank(records[0])[1]) if loss is None else loss
    for one in records:
        require_fit(model, chosen, one)
    check_loss(model, chosen, records[0])
    with contextlib.ExitStack() as held:
        folder = None if out is None else Path(out)
        if folder is not None:
            held.enter_context(locked(folder))
        secrets, start = begun(folder, resume, gossip, GOSSIP, shared.read(), seeds or Seeds())
        shared.write(start)
        holders = [
            Holder(gossip.plan(k), one, chosen, secrets.of(k), micro_batch)
            for k, one in enumerate(records)
        ]

        def make(states: dict[int, bytes]) -> Trainers:
            if not workers:
                return InProcess(shared, holders, gradients=True, states=states)
            pool = Workers(workers, shared, holders, gradients=True, states=states)
            return held.enter_context(pool)

        trainers = make({}) if folder is None else Recorded(folder, make)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        held.callback(torch.set_num_threads, threads)
        observer = _Observer(gossip, shared, chosen, held_out, progress)
        done = Simulator(
            gossip,
            start,
            trainers,
            times,
            committed=observer.committed,
            looked=None if held_out is None else observer.looked,
            every=max(1, gossip.total // POINTS),
            timeline=True,
        ).run()
        run = observer.judged(done, secrets)
        shared.write(done.weights)
        if folder is not None:
            _finish(folder, run, shared)
    return run


def synchronous_seconds(gossip: Gossip, times: Times) -> float:
    """Virtual seconds that SYNC takes for R rounds of everybody; nothing is trained."""
    other = gossip.with_allreduce()
    start = np.zeros(gossip.parameters, dtype=np.float32)
    idle = NoTraining(1, no_gradients(gossip.parameters))
    alone = Times(times.compute, times.way, times.straggling, (), times.seed, times.factors)
    return Simulator(other, start, idle, alone).run().seconds


class _Observer:
    """What is noted while a simulation runs."""

    def __init__(
        self,
        gossip: Gossip,
        shared: SharedModel,
        loss: Loss,
        test: Records | None,
        progress: Progress | None,
    ) -> None:
        self.gossip, self.shared, self.loss, self.test = gossip, shared, loss, test
        self.progress = progress
        self.states: dict[int, bytes] = {}
        self.accuracies: list[tuple[float, int, float]] = []
        self.count = 0

    def committed(self, worker: int, release: Release) -> None:
        self.states[worker] = release.state
        self.count += 1
        if self.progress is not None:
            self.progress(min(self.count, self.gossip.total), self.gossip.total)

    def looked(self, count: int, seconds: float, machines: list[Machine]) -> None:
        accuracy = self.measured(average(machines))
        if accuracy is not None:
            self.accuracies.append((seconds, count, accuracy))

    def measured(self, weights: Vector) -> float | None:
        if self.test is None:
            return None
        parts = self.shared.layout.views(torch.from_numpy(np.array(weights)))
        return evaluate(self.shared.model, parts, self.loss, self.test)[1]

    def judged(self, done: Simulated, secrets: Secrets) -> SimulatedGossip:
        randomness = Randomness(
            seeded_sampling=secrets.seeded_sampling, seeded_noise=secrets.seeded_noise
        )
        each = [self.measured(model) for model in done.models]
        workers = range(self.gossip.workers)
        transcripts = tuple(released(self.states.get(worker, b"")) for worker in workers)
        return SimulatedGossip(
            self.gossip,
            done,
            tuple(self._stated(k, made, randomness) for k, made in enumerate(transcripts)),
            tuple(self.accuracies),
            self.measured(done.weights),
            tuple(one for one in each if one is not None),
            transcripts,
        )

    def _stated(
        self, worker: int, transcript: Transcript, randomness: Randomness
    ) -> Statement | None:
        if not len(transcript):
            return None
        return worker_statement(
            self.gossip,
            worker,
            transcript=transcript,
            randomness=randomness,
            not_covered=(NOT_COVERED_TEST,) if self.test is not None else (),
        )


def _finish(folder: Path, run: SimulatedGossip, shared: SharedModel) -> None:
    from safetensors.torch import save_file

    save_file(shared.model.state_dict(), str(folder / "model.safetensors"))
    agreed = run.gossip.to_json()
    for worker, statement in enumerate(run.statements):
        if statement is not None:
            own = folder / "workers" / run.gossip.members[worker].name
            own.mkdir(parents=True, exist_ok=True)
            plan, done = run.gossip.plan(worker), run.transcripts[worker]
            files = {PLAN: plan.to_json(), TRANSCRIPT: done.to_json(), GOSSIP: agreed}
            statement.save(own, files)
    text = json.dumps(run.summary(), indent=2)
    (folder / SUMMARY).write_text(text, encoding="utf-8")
    wipe(folder / KEYS)
    (folder / RECORD).unlink(missing_ok=True)
