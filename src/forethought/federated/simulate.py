"""Simulate a federation on one computer, with real training: from shares to statements."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forethought.accounting.assumptions import Randomness
from forethought.accounting.statement import Statement
from forethought.exchange import events as on
from forethought.exchange.messages import Vector
from forethought.exchange.storage import FolderStorage
from forethought.federated.federation import FEDERATION, Federation, FederationError
from forethought.federated.reporting import ReportedAverage
from forethought.federated.secure_checkpoint import RELEASED, STATE
from forethought.federated.secure_training import train_securely
from forethought.federated.simulator import Simulated, Simulator
from forethought.federated.statements import client_statement
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
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SimulatedRun:
    """A finished simulation.

    Args:
        federation: what was agreed. simulated: what the machines came to.
        statements: of each client against the server; None: it released nothing.
        accuracies: (virtual second, accuracy on the test records) of the models.
        accuracy: of the reported model; None without test records.
        transcripts: what each client released.
    """

    federation: Federation
    simulated: Simulated
    statements: tuple[Statement | None, ...]
    accuracies: tuple[tuple[float, float], ...]
    accuracy: float | None
    transcripts: tuple[Transcript, ...]

    def summary(self) -> dict[str, Any]:
        """The outcome, JSON-ready: virtual seconds, and what each client spent."""
        federation, done = self.federation, self.simulated
        budgets = [federation.plan(client).budget for client in range(len(federation.members))]
        return {
            "accuracy": self.accuracy,
            "seconds": done.seconds,
            "models": done.version,
            "messages": done.messages,
            "megabytes": done.sent_bytes / 1e6,
            "clients": [
                {
                    "name": federation.members[client].name,
                    "epsilon": 0.0 if one is None else plain(one.guarantee),
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
    micro_batch: int | None = None,
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
        micro_batch: examples whose gradients are held at once.
        progress: called with updates so far and the most there can be.

    Raises:
        FederationError, ValueError: shares that do not fit their plans, or a model that cannot be.
        RunFolderExistsError: ``out`` is not empty. CheckpointError: nothing to resume, or another
            federation. SimulationError: it waits for something that never comes.
    """
    if len(shares) != len(federation.members):
        raise FederationError(
            f"{len(shares)} shares for {len(federation.members)} members: give one each"
        )
    check_model(model)
    shared = SharedModel(model)
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
        secrets, start = begun(
            folder, resume, federation, FEDERATION, shared.read(), seeds or Seeds()
        )
        shared.write(start)
        holders = [
            Holder(federation.plan(c), one, chosen, secrets.of(c), micro_batch)
            for c, one in enumerate(records)
        ]
        if federation.secure is not None:
            storage = None if folder is None else FolderStorage(folder)
            run = _securely(
                federation, holders, times, shared, chosen, held_out, secrets, progress, storage
            )
            if folder is not None:
                _finish(folder, run, shared)
            return run
        gradients = federation.exchanged == "gradients"

        def make(states: dict[int, bytes]) -> Trainers:
            if not workers:
                return InProcess(
                    shared, holders, federation.local_rounds, gradients=gradients, states=states
                )
            pool = Workers(
                workers,
                shared,
                holders,
                federation.local_rounds,
                gradients=gradients,
                states=states,
            )
            return held.enter_context(pool)

        trainers = make({}) if folder is None else Recorded(folder, make)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        held.callback(torch.set_num_threads, threads)
        run = _run(federation, start, trainers, times, shared, chosen, held_out, secrets, progress)
        if folder is not None:
            _finish(folder, run, shared)
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
    start: Vector,
    trainers: Trainers,
    times: Times,
    shared: SharedModel,
    loss: Loss,
    test: Records | None,
    secrets: Secrets,
    progress: Progress | None,
) -> SimulatedRun:
    members = range(len(federation.members))
    states: dict[int, bytes] = {}
    most = sum(federation.updates(client) for client in members)
    count = 0
    accuracies: list[tuple[float, float]] = []

    def committed(client: int, release: on.Release) -> None:
        nonlocal count
        states[client] = release.state
        count += 1
        if progress is not None:
            progress(count, most)

    def measured(weights: Vector) -> float | None:
        if test is None:
            return None
        parts = shared.layout.views(torch.from_numpy(np.array(weights)))
        return evaluate(shared.model, parts, loss, test)[1]

    looked = max(1, federation.rounds // 40)

    def versions(version: int, seconds: float, weights: Vector) -> None:
        if version % looked == 0:
            accuracy = measured(weights)
            if accuracy is not None:
                accuracies.append((seconds, accuracy))

    average = None
    if federation.averaging.kind != "none":
        average = ReportedAverage(federation, shared.layout, start)
    done = Simulator(
        federation,
        start,
        trainers,
        times,
        average=average,
        committed=committed,
        versions=None if test is None else versions,
        timeline=True,
    ).run()
    shared.write(done.weights)
    randomness = Randomness(
        seeded_sampling=secrets.seeded_sampling, seeded_noise=secrets.seeded_noise
    )

    transcripts = tuple(released(states.get(client, b"")) for client in members)

    def stated(client: int, transcript: Transcript) -> Statement | None:
        if not len(transcript):
            return None
        own = client_statement(federation, client, transcript=transcript, randomness=randomness)
        return own if test is None else replace(own, caveats=(*own.caveats, NOT_COVERED_TEST))

    return SimulatedRun(
        federation,
        done,
        tuple(stated(client, made) for client, made in enumerate(transcripts)),
        tuple(accuracies),
        measured(done.weights),
        transcripts,
    )


def _securely(
    federation: Federation,
    holders: Sequence[Holder],
    times: Times,
    shared: SharedModel,
    loss: Loss,
    test: Records | None,
    secrets: Secrets,
    progress: Progress | None,
    storage: FolderStorage | None,
) -> SimulatedRun:
    """Rounds behind real masks; their times are those of the machines without training."""
    trained = train_securely(shared, holders, federation, progress=progress, storage=storage)
    rounds = np.array([len(transcript) for transcript in trained.transcripts])
    done = replace(rehearsed(federation, times), weights=trained.weights, rounds=rounds)
    randomness = Randomness(
        seeded_sampling=secrets.seeded_sampling, seeded_noise=secrets.seeded_noise
    )
    statements = tuple(
        client_statement(
            federation, client, "secure-server", transcript=transcript, randomness=randomness
        )
        for client, transcript in enumerate(trained.transcripts)
    )
    accuracy = None
    if test is not None:
        parts = shared.layout.views(torch.from_numpy(np.array(trained.weights)))
        accuracy = evaluate(shared.model, parts, loss, test)[1]
    return SimulatedRun(federation, done, statements, (), accuracy, tuple(trained.transcripts))


def _finish(folder: Path, run: SimulatedRun, shared: SharedModel) -> None:
    from safetensors.torch import save_file

    save_file(shared.model.state_dict(), str(folder / "model.safetensors"))
    agreed = run.federation.to_json()
    for client, statement in enumerate(run.statements):
        if statement is not None:
            own = folder / "clients" / run.federation.members[client].name
            own.mkdir(parents=True, exist_ok=True)
            plan, released = run.federation.plan(client), run.transcripts[client]
            files = {PLAN: plan.to_json(), TRANSCRIPT: released.to_json(), FEDERATION: agreed}
            statement.save(own, files)
    text = json.dumps(run.summary(), indent=2)
    (folder / SUMMARY).write_text(text, encoding="utf-8")
    wipe(folder / KEYS)
    for state in (RECORD, STATE, RELEASED):
        (folder / state).unlink(missing_ok=True)
