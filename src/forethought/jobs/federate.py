"""From a job with a [federation] to its shares, its simulation and what it will spend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forethought.federated.delay import Delay
from forethought.federated.federation import Federation, Member, Robust, ServerOptimizer
from forethought.federated.secure_aggregation.settings import (
    SecureAggregation,
    SecureAggregationError,
)
from forethought.federated.secure_aggregation.shared_noise import secured
from forethought.jobs.holders import (
    SYNTHETIC,
    holder_plan,
    named_speeds,
    public_records,
    reference_plan,
)
from forethought.jobs.job import FederationSection, Job, JobError
from forethought.jobs.load import (
    Loaded,
    arranged_for,
    count_of,
    dealt,
    load_job,
    module_of,
    require_possible,
)
from forethought.jobs.request import Request
from forethought.mechanism import Budget
from forethought.planning import defaults
from forethought.planning.courses import growing
from forethought.planning.federated import FederatedPlan, predict
from forethought.plans import Plan
from forethought.simulation.speeds import Way
from forethought.simulation.times import Times

if TYPE_CHECKING:
    from forethought.data import Dataset
    from forethought.federated.simulate import SimulatedRun
    from forethought.holders.trainer import SharedModel


# From a job with a ``[federation]`` to the federation, its shares and a simulation's times.


@dataclass(frozen=True)
class Federated:
    """A job's federation, ready to be simulated.

    Args:
        loaded: the job, its data set and model.
        shared: the model, its weights as one vector.
        federation: what everybody agrees on.
        parts: each client's record numbers. budgets: what each client asked for.
        speeds: records a second, against 1.
        times: of a simulation.
    """

    loaded: Loaded
    shared: SharedModel
    federation: Federation
    parts: tuple[np.ndarray[Any, np.dtype[np.int64]], ...]
    budgets: tuple[Budget, ...]
    speeds: tuple[float, ...]
    times: Times

    def share(self, client: int) -> Dataset:
        """One client's own records."""
        from forethought.data.synthetic import share_of

        return share_of(self.loaded.dataset, self.parts[client])


def federation_of(request: Request, data_dir: Path | None = None) -> Federated:
    """Load a job's data, deal it out, and plan every client's part.

    Raises:
        JobError: no ``[federation]``, or one without clients.
        ValueError: what data, planner or federation refuse.
    """
    from forethought.holders.trainer import SharedModel

    section = section_of(request.job)
    require_possible(request.job)
    loaded = load_job(request, data_dir)
    dataset = loaded.dataset
    clients = section.clients or (len(section.client) or None)
    how, _, column = section.shares.partition(":")
    if how == "column" and column and dataset.sites is None:
        raise JobError(f"shares = {section.shares!r}: the data has no column {column!r}")
    if clients is None and how != "column":
        raise JobError("[federation] needs clients = a number, or [[federation.client]] tables")
    generator = np.random.Generator(np.random.PCG64(section.seed))
    parts = tuple(dealt(dataset, clients, section.shares, generator))
    shared = SharedModel(module_of(loaded))
    speeds = speeds_of(section, len(parts))
    federation, budgets = agreed(
        request.job,
        [count_of(dataset, part) for part in parts],
        speeds,
        shared.layout.size,
        shared.architecture,
        loaded.noise_borne,
    )
    federation = replace(
        federation, plans=tuple(loaded.with_caveats(plan) for plan in federation.plans)
    )
    return Federated(
        loaded,
        shared,
        federation,
        parts,
        budgets,
        speeds,
        times_of(section, federation, speeds),
    )


def simulate_job(
    federated: Federated,
    out: Path | None = None,
    *,
    resume: bool = False,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[SimulatedRun, float]:
    """Simulate a job's federation with real training.

    Returns:
        The run, and the virtual seconds that synchronous rounds of the same number take where
        every client computes on the same share of its records.
    """
    from forethought.federated.simulate import simulate, synchronous_seconds
    from forethought.rounds.randomness import Seeds

    job, dataset = federated.loaded.request.job, federated.loaded.dataset
    test = None if dataset.test is None else (dataset.test.inputs, dataset.test.targets)
    own = [
        arranged_for(federated.loaded, federated.share(one), federated.federation.plan(one))
        for one in _members(federated)
    ]
    run = simulate(
        federated.shared.model,
        [one.data for one in own],
        federated.federation,
        federated.times,
        loss=own[0].loss,
        test=test,
        seeds=Seeds(job.run.seed, job.run.noise_seed),
        out=out,
        resume=resume,
        workers=workers,
        micro_batch=job.run.micro_batch,
        progress=progress,
    )
    section = section_of(job)
    if section.rule != "asynchronous":
        return run, synchronous_seconds(federated.federation, federated.times)
    # Sample sizes matched to speed hide how slow a client is: undo that.
    typical = float(np.median(federated.times.compute))
    middle = float(np.median(federated.speeds))
    equal = [typical * middle / speed for speed in federated.speeds]
    return run, synchronous_seconds(federated.federation, replace(federated.times, compute=equal))


def _members(federated: Federated) -> range:
    return range(len(federated.federation.members))


def section_of(job: Job) -> FederationSection:
    """A job's ``[federation]``. Raises JobError where there is none."""
    if job.federation is None:
        raise JobError("the job has no [federation]: say at least clients = 10")
    return job.federation


def speeds_of(section: FederationSection, clients: int) -> tuple[float, ...]:
    """Each client's records a second, against 1.

    Raises:
        JobError: a list of another length, or words that say nothing.
    """
    if section.client:
        return tuple(table.speed for table in section.client)
    return named_speeds(section.speeds, section.slow, section.slow_factor, clients, section.seed)


def agreed(
    job: Job,
    sizes: Sequence[int],
    speeds: Sequence[float],
    parameters: int,
    architecture: str,
    noise_borne: float | None = None,
) -> tuple[Federation, tuple[Budget, ...]]:
    """The federation of a job, and each client's budget; nothing private is read.

    Where the job leaves rounds, batch or step size open, they are chosen as for n·√K records: K
    clients' noised sums together have the signal of K·n records and √K times one client's noise.

    Args:
        sizes: records of each client, or persons where the job names them.
        speeds: see :func:`speeds_of`.
        parameters, architecture: of the model.
        noise_borne: norm of noise that its weights bear, where it could be tried.
    """
    section = section_of(job)
    require_possible(job)
    count = len(sizes)
    budgets = tuple(_budget(job, section, client, size) for client, size in enumerate(sizes))
    weights = section.rule == "synchronous" and section.secure is None
    exchanged = section.exchanged or ("weights" if weights else "gradients")
    typical = int(np.median(sizes))
    gradients = exchanged == "gradients"
    lead = reference_plan(job, budgets[0], typical, count, parameters, gradients, noise_borne)
    local = section.local_rounds or 1
    if section.local_epochs is not None:
        local = max(1, round(section.local_epochs * lead.examples / lead.mean_batch))
    rounds = section.rounds or max(1, round(lead.rounds / local))
    rate = lead.mean_batch / lead.examples
    typical_speed = float(np.median(speeds))
    plans: dict[tuple[int, int, Budget], int] = {}
    made: list[Plan] = []
    members: list[Member] = []
    for client, size in enumerate(sizes):
        batch = max(1, round(rate * size))
        if section.rule == "asynchronous":
            # Every client's round takes as long as that of the typical one.
            batch = min(size, max(1, round(rate * size * speeds[client] / typical_speed)))
        key = (size, batch, budgets[client])
        if key not in plans:
            plans[key] = len(made)
            found = holder_plan(job, lead, *key, rounds * local, parameters)
            made.append(growing(found, section.growth, local))
        name = section.client[client].name if section.client else f"client-{client}"
        weight = float(size if section.weights == "size" else 1)
        members.append(
            Member(name, plans[key], weight if section.rule == "synchronous" else float(batch))
        )
    federation = Federation(
        tuple(members),
        tuple(made),
        parameters,
        architecture,
        rounds,
        local,
        section.rule,
        exchanged,
        Delay(section.delay.kind, section.delay.most),
        section.cohort,
        section.deadline,
        section.absence,
        section.resend,
        ServerOptimizer(**section.server.model_dump()),
        Robust(**section.robust.model_dump()),
        lead.averaging,
        None,
        section.seed,
        cadence=section.cadence,
    )
    if section.secure is not None:
        federation = secured(federation, settings_of(section, count))
    return federation, budgets


def settings_of(section: FederationSection, clients: int) -> SecureAggregation:
    """``[federation] secure``: drop-outs, colluders and bits of a ring.

    Raises:
        JobError: unknown keys, or settings that cannot protect.
    """
    try:
        asked = {"clients": section.cohort or clients, **(section.secure or {})}
        return SecureAggregation(**asked)
    except TypeError:
        raise JobError(
            f"secure = {section.secure!r}: say at least one of dropouts, colluders, bits, patience"
        ) from None
    except SecureAggregationError as error:
        raise JobError(f"secure = {section.secure!r}: {error}") from None


def times_of(section: FederationSection, federation: Federation, speeds: Sequence[float]) -> Times:
    """How long everything takes in a simulation: records over speed, messages by size."""
    seconds = [
        section.record_seconds * federation.local_rounds * plan.epochs * plan.examples / plan.rounds
        for plan in federation.plans
    ]
    return Times(
        [seconds[m.plan] / speed for m, speed in zip(federation.members, speeds, strict=True)],
        Way(section.latency, section.bandwidth),
        section.straggling,
        seed=section.seed,
    )


def _budget(job: Job, section: FederationSection, client: int, size: int) -> Budget:
    own = section.client[client].epsilon if section.client else None
    epsilon = own or job.budget.epsilon
    if epsilon is None:
        raise JobError("a federation needs a budget: epsilon in [budget], or for each client")
    return Budget(epsilon, job.budget.delta or defaults.default_delta(size))


# What a job's federation would spend, send and take, and a rehearsal of it on a public proxy.


@dataclass(frozen=True)
class FederatedRehearsal:
    """Accuracies of the federation on data that nobody has to protect.

    Args:
        source: of the data. accuracies: of each repeat, in [0, 1]. seconds: virtual, of each.
    """

    source: str
    accuracies: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def predicted(self) -> float:
        """Mean accuracy."""
        return float(np.mean(self.accuracies))


def plan_job(federated: Federated) -> FederatedPlan:
    """The costs of a job's federation."""
    return predict(federated.federation, federated.budgets, federated.speeds, federated.times)


def rehearse(
    federated: Federated,
    proxy: str | None,
    repeats: int,
    data_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FederatedRehearsal:
    """Simulate a job's federation, whole, on a public proxy of its data.

    Every client gets as many records as its own plan is for, dealt at random: label skew and other
    differences between clients are not rehearsed.

    Args:
        proxy: a named public data set of the same shape; None or ``"synthetic"`` draws one.
        repeats: each with its own records, first weights, batches and noise.

    Raises:
        ValueError: a proxy of another shape, or with too few records.
    """
    from forethought.federated.simulate import simulate
    from forethought.rounds.randomness import Seeds

    job, private = federated.loaded.request.job, federated.loaded.dataset
    plans = map(federated.federation.plan, range(len(federated.parts)))
    sizes = [plan.examples for plan in plans]
    accuracies, seconds = [], []
    for repeat in range(repeats):
        data = public_records(federated.loaded, proxy, sum(sizes), repeat, data_dir)
        generator = np.random.default_rng(repeat)
        order = generator.permutation(len(data.train))[: sum(sizes)]
        parts = np.split(order, np.cumsum(sizes)[:-1])
        run = simulate(
            job.build_model(private),
            [(data.train.inputs[part], data.train.targets[part]) for part in parts],
            federated.federation,
            federated.times,
            test=None if data.test is None else (data.test.inputs, data.test.targets),
            seeds=Seeds(repeat, repeat),
        )
        accuracies.append(float("nan") if run.accuracy is None else run.accuracy)
        seconds.append(run.simulated.seconds)
        if progress is not None:
            progress(repeat + 1, repeats)
    return FederatedRehearsal(proxy or SYNTHETIC, tuple(accuracies), tuple(seconds))
