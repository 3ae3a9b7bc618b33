"""From a job with a [federation] to its shares, its simulation and what it will spend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forethought.federated.federation import Federation, Member, Robust, ServerOptimizer
from forethought.federated.secure_aggregation.masking import (
    SecureAggregation,
    SecureAggregationError,
)
from forethought.federated.secure_aggregation.shared_noise import secured
from forethought.holders.times import Times, Way
from forethought.jobs.holders import (
    SYNTHETIC,
    Dealt,
    budget_of,
    deal,
    holder_plan,
    public_shares,
    reference_plan,
    require_no_payer,
)
from forethought.jobs.job import FederationSection, Job, JobError
from forethought.jobs.load import require_possible
from forethought.jobs.request import Request
from forethought.planning.holders import FederatedPlan, predict
from forethought.planning.plan_request import growing
from forethought.values.mechanism import Budget, first_round, updates_of
from forethought.values.plan import Plan

if TYPE_CHECKING:
    from forethought.holders.simulate import SimulatedRun


# From a job with a ``[federation]`` to the federation, its shares and a simulation's times.


@dataclass(frozen=True)
class Federated(Dealt):
    """A job's federation, ready to be simulated.

    Args:
        federation: what everybody agrees on.
        budgets: what each client asked for.
        times: of a simulation.
    """

    federation: Federation
    budgets: tuple[Budget, ...]
    times: Times


def federation_of(request: Request, data_dir: Path | None = None) -> Federated:
    """Load a job's data, deal it out, and plan every client's part.

    Raises:
        JobError: no ``[federation]``, or one without clients.
        ValueError: what data, planner or federation refuse.
    """
    section = section_of(request.job)
    held = deal(request, section, data_dir)
    federation, budgets = agreed(
        request.job,
        held.sizes,
        held.speeds,
        held.shared.layout.size,
        held.shared.architecture,
        held.loaded.noise_borne,
    )
    plans = tuple(held.loaded.with_caveats(plan) for plan in federation.plans)
    federation = replace(federation, plans=plans)
    times = times_of(section, federation, held.speeds)
    return Federated(**vars(held), federation=federation, budgets=budgets, times=times)


def simulate_job(
    federated: Federated,
    out: Path | None = None,
    *,
    resume: bool = False,
    workers: int = 0,
    engine: str = "processes",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[SimulatedRun, float]:
    """Simulate a job's federation with real training.

    Returns:
        The run, and the virtual seconds that synchronous rounds of the same number take where
        every client computes on the same share of its records.
    """
    from forethought.holders.simulate import simulate, synchronous_seconds

    require_no_payer(federated.loaded.request.job)
    job, federation = federated.loaded.request.job, federated.federation
    section = section_of(job)
    plans = [federation.plan(client) for client in range(len(federation.members))]
    shares, options = federated.simulation(plans)
    run = simulate(
        federated.shared.model,
        shares,
        federation,
        federated.times,
        out=out,
        resume=resume,
        workers=workers,
        engine=engine,
        fused=section.fused,
        progress=progress,
        **options,
    )
    if section.rule != "asynchronous":
        return run, synchronous_seconds(federated.federation, federated.times)
    # Sample sizes matched to speed hide how slow a client is: undo that.
    typical = float(np.median(federated.times.compute))
    middle = float(np.median(federated.speeds))
    equal = [typical * middle / speed for speed in federated.speeds]
    return run, synchronous_seconds(federated.federation, replace(federated.times, compute=equal))


def section_of(job: Job) -> FederationSection:
    """A job's ``[federation]``. Raises JobError where there is none."""
    if job.federation is None:
        raise JobError("the job has no [federation]: say at least clients = 10")
    return job.federation


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
        speeds: see :func:`forethought.jobs.holders.speeds_of`.
        parameters, architecture: of the model.
        noise_borne: norm of noise that its weights bear, where it could be tried.
    """
    section = section_of(job)
    require_possible(job)
    count = len(sizes)
    budgets = tuple(budget_of(job, section, client, size) for client, size in enumerate(sizes))
    weights = section.rule == "synchronous" and section.secure is None
    exchanged = section.exchanged or ("weights" if weights else "gradients")
    typical = int(np.median(sizes))
    gradients = exchanged == "gradients"
    lead = reference_plan(job, budgets[0], typical, count, parameters, gradients, noise_borne)
    local = section.local_rounds or 1
    if section.local_epochs is not None:
        local = max(1, round(section.local_epochs * lead.examples / lead.mean_batch))
    fewest = updates_of(local, lead.rounds)
    nearest = min(fewest, fewest + 1, key=lambda n: abs(first_round(local, n) - lead.rounds))
    rounds = section.rounds or max(1, nearest)
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
            found = holder_plan(job, lead, *key, first_round(local, rounds), parameters)
            made.append(growing(found, section.growth, local if isinstance(local, int) else 1))
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
        section.delay.value,
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
        refreshes=section.refreshes,
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
    """The duration of everything in a simulation: records over speed, messages by size."""
    seconds = [
        section.record_seconds * plan.epochs * plan.examples / federation.updates_of(plan)
        for plan in federation.plans
    ]
    return Times(
        [seconds[m.plan] / speed for m, speed in zip(federation.members, speeds, strict=True)],
        Way(section.latency, section.bandwidth),
        section.straggling,
        seed=section.seed,
    )


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
    from forethought.holders.simulate import simulate
    from forethought.rounds.randomness import Seeds

    job, private = federated.loaded.request.job, federated.loaded.dataset
    plans = map(federated.federation.plan, range(len(federated.parts)))
    sizes = [plan.examples for plan in plans]
    accuracies, seconds = [], []
    for repeat in range(repeats):
        shares, test = public_shares(federated.loaded, proxy, sizes, repeat, data_dir)
        run = simulate(
            job.build_model(private),
            shares,
            federated.federation,
            federated.times,
            test=test,
            seeds=Seeds(repeat, repeat),
            fused=section_of(job).fused,
        )
        accuracies.append(float("nan") if run.accuracy is None else run.accuracy)
        seconds.append(run.simulated.seconds)
        if progress is not None:
            progress(repeat + 1, repeats)
    return FederatedRehearsal(proxy or SYNTHETIC, tuple(accuracies), tuple(seconds))
