"""Simulate a gossip on one computer, with real training: from shares to statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forethought.accounting.statement import Statement
from forethought.gossip.gossip import GOSSIP, Gossip, GossipError
from forethought.gossip.simulator import Simulated, Simulator, average
from forethought.gossip.statements import worker_statement
from forethought.gossip.worker import Machine
from forethought.gradients import check_model
from forethought.holders.simulated import Progress, Simulation, simulation
from forethought.holders.trainer import SharedModel
from forethought.holders.work import NoTraining, no_gradients
from forethought.holders.workers import PROCESSES
from forethought.rounds.losses import Loss
from forethought.rounds.randomness import Seeds
from forethought.rounds.transcript import Transcript
from forethought.simulation.times import Times
from forethought.training.run import NOT_COVERED_TEST
from forethought.values.serialisation import plain

# Points of a curve of accuracies.
POINTS = 40


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
    engine: str = PROCESSES,
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
        engine: of these: "processes", "ray", or "ray:ADDRESS" of a cluster that runs.
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
    plans = [gossip.plan(k) for k in range(gossip.workers)]
    with simulation(
        shared,
        shares,
        plans,
        gossip,
        GOSSIP,
        loss=loss,
        test=test,
        seeds=seeds,
        out=out,
        resume=resume,
        engine=engine,
        micro_batch=micro_batch,
    ) as running:
        run = _run(gossip, running, times, workers, progress)
        running.finish(
            [Path("workers", member.name) for member in gossip.members],
            {GOSSIP: gossip.to_json()},
            run.statements,
            run.transcripts,
            run.summary(),
        )
    return run


def synchronous_seconds(gossip: Gossip, times: Times) -> float:
    """Virtual seconds that SYNC takes for R rounds of everybody; nothing is trained."""
    other = gossip.with_allreduce()
    start = np.zeros(gossip.parameters, dtype=np.float32)
    idle = NoTraining(1, no_gradients(gossip.parameters))
    alone = Times(times.compute, times.way, times.straggling, (), times.seed, times.factors)
    return Simulator(other, start, idle, alone).run().seconds


def _run(
    gossip: Gossip, running: Simulation, times: Times, workers: int, progress: Progress | None
) -> SimulatedGossip:
    test = running.test
    accuracies: list[tuple[float, int, float]] = []

    def looked(count: int, seconds: float, machines: list[Machine]) -> None:
        accuracy = running.accuracy(average(machines))
        if accuracy is not None:
            accuracies.append((seconds, count, accuracy))

    done = Simulator(
        gossip,
        running.start,
        running.trainers(workers, gradients=True),
        times,
        committed=running.committing(progress, gossip.total),
        looked=None if test is None else looked,
        every=max(1, gossip.total // POINTS),
        timeline=True,
    ).run()
    each = [running.accuracy(model) for model in done.models]
    randomness, transcripts = running.randomness, running.transcripts

    def stated(worker: int, transcript: Transcript) -> Statement | None:
        if not len(transcript):
            return None
        return worker_statement(
            gossip,
            worker,
            transcript=transcript,
            randomness=randomness,
            not_covered=() if test is None else (NOT_COVERED_TEST,),
        )

    running.shared.write(done.weights)
    return SimulatedGossip(
        gossip,
        done,
        tuple(stated(k, made) for k, made in enumerate(transcripts)),
        tuple(accuracies),
        running.accuracy(done.weights),
        tuple(one for one in each if one is not None),
        transcripts,
    )
