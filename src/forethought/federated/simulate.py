"""Simulate a federation on one computer, with real training: from shares to statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forethought.accounting.statement import Statement
from forethought.exchange.messages import Model, Vector
from forethought.exchange.storage import FolderStorage
from forethought.federated.federation import FEDERATION, Federation, FederationError
from forethought.federated.fused import LAW, Cohort, cohorts, course, require_fusible
from forethought.federated.reporting import ReportedAverage
from forethought.federated.secure_checkpoint import RELEASED, STATE
from forethought.federated.secure_training import train_securely
from forethought.federated.server_optimizers import Moments, moved
from forethought.federated.simulator import Simulated, Simulator
from forethought.federated.statements import client_statement
from forethought.gradients import check_model
from forethought.holders.recorded import FUSED
from forethought.holders.simulated import Progress, Simulation, simulation
from forethought.holders.trainer import SharedModel
from forethought.holders.work import NoTraining, Trainers, Work, no_gradients
from forethought.holders.workers import PROCESSES
from forethought.rounds.losses import Loss
from forethought.rounds.randomness import Seeds
from forethought.rounds.transcript import Transcript
from forethought.simulation.times import Times
from forethought.training.run import NOT_COVERED_TEST
from forethought.values.serialisation import plain


@dataclass(frozen=True)
class SimulatedRun:
    """A finished simulation.

    Args:
        federation: what was agreed. simulated: what the machines came to.
        statements: of each client against the server; None: it released nothing.
        accuracies: (virtual second, accuracy on the test records) of the models.
        accuracy: of the reported model; None without test records.
        transcripts: what each client released.
        fused: one private sum stood for each cohort: there is no statement of any client.
    """

    federation: Federation
    simulated: Simulated
    statements: tuple[Statement | None, ...]
    accuracies: tuple[tuple[float, float], ...]
    accuracy: float | None
    transcripts: tuple[Transcript, ...]
    fused: bool = False

    def summary(self) -> dict[str, Any]:
        """The outcome, JSON-ready: virtual seconds, and what each client spent."""
        federation, done = self.federation, self.simulated
        budgets = [federation.plan(client).budget for client in range(len(federation.members))]
        unstated = None if self.fused else 0.0
        marked = {"fused": LAW} if self.fused else {}
        return {
            **marked,
            "accuracy": self.accuracy,
            "seconds": done.seconds,
            "models": done.version,
            "messages": done.messages,
            "megabytes": done.sent_bytes / 1e6,
            "clients": [
                {
                    "name": federation.members[client].name,
                    "epsilon": unstated if one is None else plain(one.guarantee),
                    "budget": None if budget is None else budget.epsilon,
                    "rounds": int(done.rounds[client]),
                    "updates": int(done.updates[client]),
                    "applied": int(done.applied[client]),
                    "busy": float(done.busy[client]),
                }
                for client, (one, budget) in enumerate(zip(self.statements, budgets, strict=True))
            ],
            "accuracies": [list(pair) for pair in self.accuracies],
            "timeline": [list(row) for row in done.timeline],
            "alarms": [list(row) for row in done.alarms],
        }


def simulate(
    model: torch.nn.Module,
    shares: Sequence[object],
    federation: Federation,
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
    fused: bool = False,
    progress: Progress | None = None,
) -> SimulatedRun:
    """Train a federation in virtual time; the model carries the reported weights afterwards.

    The result depends neither on ``workers`` nor on interruptions. Gradients are computed on one
    thread, so that no rounding depends on their number.

    Args:
        model: of all clients. shares: each client's records, in the forms of ``ft.train``.
        federation: what they agree on; a plan for each share.
        times: how long everything takes, in virtual seconds.
        loss: one value per example. test: held-out records.
        seeds: of all clients; a seeded simulation is not private, and its statements say so.
        out: folder that keeps what is needed to go on after an interruption, and the results.
        resume: go on in ``out``. workers: processes that compute; 0: this one.
        engine: of these: "processes", "ray", or "ray:ADDRESS" of a cluster that runs.
        micro_batch: examples whose gradients are held at once.
        fused: one private sum a cohort, whose noise has the variance of all its clients' noises
            together: exactly the law of the global models, at nearly the cost of one machine. No
            client's own noise is drawn, so there is no statement of any client.
        progress: called with updates so far and the most there can be.

    Raises:
        FederationError, ValueError: shares that do not fit their plans, or a model that cannot be;
            ``fused`` where global models would have another law.
        RunFolderExistsError: ``out`` is not empty. CheckpointError: nothing to resume, or another
            federation. SimulationError: it waits for something that never comes.
    """
    if len(shares) != len(federation.members):
        raise FederationError(
            f"{len(shares)} shares for {len(federation.members)} members: give one each"
        )
    if fused:
        require_fusible(federation, times)
    check_model(model)
    shared = SharedModel(model)
    plans = [federation.plan(client) for client in range(len(federation.members))]
    with simulation(
        shared,
        shares,
        plans,
        federation,
        FEDERATION,
        loss=loss,
        test=test,
        seeds=seeds,
        out=out,
        resume=resume,
        engine=engine,
        micro_batch=micro_batch,
    ) as running:
        if fused:
            run = _fused(federation, running, times, workers, progress)
        elif federation.secure is not None:
            run = _securely(federation, running, times, progress)
        else:
            run = _run(federation, running, times, workers, progress)
        running.finish(
            [Path("clients", member.name) for member in federation.members],
            {FEDERATION: federation.to_json()},
            run.statements,
            run.transcripts,
            run.summary(),
            (STATE, RELEASED, FUSED),
        )
    return run


def synchronous_seconds(federation: Federation, times: Times) -> float:
    """Virtual seconds that synchronous rounds of the same number take, everybody waiting for all.

    Nothing is trained: only the machines run. Every client computes as long as ``times`` say.
    """
    other = replace(
        federation,
        rule="synchronous",
        exchanged="weights",
        absence=None,
        averaging=replace(federation.averaging, kind="none"),
        robust=replace(federation.robust, kind="mean", bound=None),
        parameters=1,
    )
    start = np.zeros(1, dtype=np.float32)
    return Simulator(other, start, NoTraining(other.local_rounds), times).run().seconds


def rehearsed(federation: Federation, times: Times) -> Simulated:
    """The machines in virtual time without training: seconds, messages and megabytes."""
    start = np.zeros(federation.parameters, dtype=np.float32)
    gradients = federation.exchanged == "gradients"
    vector = no_gradients(federation.parameters) if gradients else None
    bare = replace(federation, averaging=replace(federation.averaging, kind="none"))
    return Simulator(bare, start, NoTraining(federation.local_rounds, vector), times).run()


def _run(
    federation: Federation,
    running: Simulation,
    times: Times,
    workers: int,
    progress: Progress | None,
) -> SimulatedRun:
    members, test, start = range(len(federation.members)), running.test, running.start
    average = _average(federation, running)
    accuracies = _Accuracies(federation, running)
    done = Simulator(
        federation,
        start,
        running.trainers(
            workers, federation.local_rounds, gradients=federation.exchanged == "gradients"
        ),
        times,
        average=average,
        committed=running.committing(
            progress, sum(federation.updates(client) for client in members)
        ),
        versions=None if test is None else accuracies,
        timeline=True,
    ).run()
    running.shared.write(done.weights)
    randomness, transcripts = running.randomness, running.transcripts

    def stated(client: int, transcript: Transcript) -> Statement | None:
        if not len(transcript):
            return None
        own = client_statement(federation, client, transcript=transcript, randomness=randomness)
        return own if test is None else replace(own, caveats=(*own.caveats, NOT_COVERED_TEST))

    return SimulatedRun(
        federation,
        done,
        tuple(stated(client, made) for client, made in enumerate(transcripts)),
        tuple(accuracies.found),
        running.accuracy(done.weights),
        transcripts,
    )


class _Accuracies:
    """Notes the accuracy of some forty models, as they come."""

    def __init__(self, federation: Federation, running: Simulation) -> None:
        self.found: list[tuple[float, float]] = []
        self._running, self._every = running, max(1, federation.rounds // 40)

    def __call__(self, version: int, seconds: float, weights: Vector) -> None:
        if version % self._every == 0:
            accuracy = self._running.accuracy(weights)
            if accuracy is not None:
                self.found.append((seconds, accuracy))


def _average(federation: Federation, running: Simulation) -> ReportedAverage | None:
    if federation.averaging.kind == "none":
        return None
    return ReportedAverage(federation, running.shared.layout, running.start)


def _fused(
    federation: Federation,
    running: Simulation,
    times: Times,
    workers: int,
    progress: Progress | None,
) -> SimulatedRun:
    """Rounds of one private sum each; their times are those of the machines without training."""
    asked = cohorts(federation)
    timed = course(federation, times, asked)

    def make(states: dict[int, bytes]) -> Trainers:
        cohort = Cohort(
            running.shared,
            running.holders,
            federation,
            asked,
            running.secrets,
            workers,
            running.engine,
        )
        return running.until_the_end(cohort)

    trainers = running.recorded(make, FUSED)
    average, accuracies = _average(federation, running), _Accuracies(federation, running)
    weights, moments = running.start, Moments()
    count, most = 0, int(timed.updates.sum())
    for version, (seconds, (clients, _)) in enumerate(zip(timed.versions, asked, strict=True)):
        trainers.begin(Work(0, version, version, Model(version, version, weights)))
        change = trainers.result(0).vector.astype(np.float64)
        weights = moved(federation.server, moments, weights, change)
        if average is not None:
            average.update(version + 1, weights)
        accuracies(version + 1, seconds, weights if average is None else average.weights)
        count += len(clients)
        if progress is not None:
            progress(count, most)
    reported = weights if average is None else average.weights
    running.shared.write(reported)
    return SimulatedRun(
        federation,
        replace(timed, weights=reported),
        (None,) * len(federation.members),
        tuple(accuracies.found),
        running.accuracy(reported),
        running.transcripts,
        fused=True,
    )


def _securely(
    federation: Federation, running: Simulation, times: Times, progress: Progress | None
) -> SimulatedRun:
    """Rounds behind real masks; their times are those of the machines without training."""
    folder = running.folder
    trained = train_securely(
        running.shared,
        running.holders,
        federation,
        progress=progress,
        storage=None if folder is None else FolderStorage(folder),
    )
    rounds = np.array([len(transcript) for transcript in trained.transcripts])
    done = replace(rehearsed(federation, times), weights=trained.weights, rounds=rounds)
    statements = tuple(
        client_statement(
            federation,
            client,
            "secure-server",
            transcript=transcript,
            randomness=running.randomness,
        )
        for client, transcript in enumerate(trained.transcripts)
    )
    accuracy = running.accuracy(trained.weights)
    return SimulatedRun(federation, done, statements, (), accuracy, tuple(trained.transcripts))
