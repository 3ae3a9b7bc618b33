"""From a job with a ``[gossip]`` to the gossip, its shares and a simulation's times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forethought.gossip.clipping import Trust
from forethought.gossip.compression import Compression
from forethought.gossip.gossip import Gossip, Member, digest_of
from forethought.gossip.graphs import Graph, make, read
from forethought.gossip.mixing import Mixing, given
from forethought.gossip.simulator import Pace
from forethought.jobs.gossip_section import GossipSection
from forethought.jobs.holders import holder_plan, named_speeds, reference_plan
from forethought.jobs.job import Job, JobError
from forethought.jobs.load import Loaded, load_job
from forethought.jobs.members import arranged_for, count_of, dealt, module_of, require_possible
from forethought.jobs.request import Request
from forethought.mechanism import Budget
from forethought.planning import defaults
from forethought.plans import Plan
from forethought.simulation.speeds import Hiccups, Outage, Way, read_trace
from forethought.simulation.times import Factors

if TYPE_CHECKING:
    from forethought.data import Dataset
    from forethought.gossip.simulate import SimulatedGossip
    from forethought.holders.trainer import SharedModel

# The paper's cases: how much slower a worker is, and what batch and step size are multiplied by.
HICCUP, SLOW, LARGE = 2.0, 10.0, 2.0


@dataclass(frozen=True)
class Gossiping:
    """A job's gossip, ready to be simulated or run.

    Args:
        loaded: the job, its data set and model.
        shared: the model, its weights as one vector.
        gossip: what everybody agrees on.
        parts: each worker's record numbers.
        speeds: records a second, against 1. times: of a simulation.
    """

    loaded: Loaded
    shared: SharedModel
    gossip: Gossip
    parts: tuple[np.ndarray[Any, np.dtype[np.int64]], ...]
    speeds: tuple[float, ...]
    times: Pace

    def share(self, worker: int) -> Dataset:
        """One worker's own records."""
        from forethought.data.shares import share_of

        return share_of(self.loaded.dataset, self.parts[worker])


def gossip_of(request: Request, data_dir: Path | None = None) -> Gossiping:
    """Load a job's data, deal it out, and plan every worker's part.

    Raises:
        JobError: no ``[gossip]``, or one without workers.
        ValueError: what data, planner, graph or gossip refuse.
    """
    from forethought.holders.trainer import SharedModel

    section = gossip_section(request.job)
    require_possible(request.job)
    loaded = load_job(request, data_dir)
    dataset = loaded.dataset
    count = section.workers or (len(section.worker) or None)
    how, _, column = section.shares.partition(":")
    if how == "column" and column and dataset.sites is None:
        raise JobError(f"shares = {section.shares!r}: the data has no column {column!r}")
    if count is None and how != "column":
        raise JobError("[gossip] needs workers = a number, or [[gossip.worker]] tables")
    generator = np.random.Generator(np.random.PCG64(section.seed))
    parts = tuple(dealt(dataset, count, section.shares, generator))
    shared = SharedModel(module_of(loaded))
    speeds = worker_speeds(section, len(parts))
    gossip = agreed_gossip(
        request.job,
        [count_of(dataset, part) for part in parts],
        shared.layout.size,
        shared.architecture,
        request.folder,
        loaded.noise_borne,
    )
    gossip = replace(
        gossip,
        plans=tuple(loaded.with_caveats(plan) for plan in gossip.plans),
        start=digest_of(shared.read()),
    )
    times = times_of(section, gossip, speeds, request.folder)
    return Gossiping(loaded, shared, gossip, parts, speeds, times)


def simulate_gossip(
    gossiping: Gossiping,
    out: Path | None = None,
    *,
    resume: bool = False,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[SimulatedGossip, float]:
    """Simulate a job's gossip with real training.

    Returns:
        The run, and the virtual seconds that SYNC takes for as many rounds.
    """
    from forethought.gossip.simulate import simulate, synchronous_seconds
    from forethought.rounds.randomness import Seeds

    loaded, gossip = gossiping.loaded, gossiping.gossip
    job, dataset = loaded.request.job, loaded.dataset
    test = None if dataset.test is None else (dataset.test.inputs, dataset.test.targets)
    own = [arranged_for(loaded, gossiping.share(k), gossip.plan(k)) for k in range(gossip.workers)]
    run = simulate(
        gossiping.shared.model,
        [one.data for one in own],
        gossip,
        gossiping.times,
        loss=own[0].loss,
        test=test,
        seeds=Seeds(job.run.seed, job.run.noise_seed),
        out=out,
        resume=resume,
        workers=workers,
        micro_batch=job.run.micro_batch,
        progress=progress,
    )
    return run, synchronous_seconds(gossip, gossiping.times)


def gossip_section(job: Job) -> GossipSection:
    """A job's ``[gossip]``. Raises JobError where there is none."""
    if job.gossip is None:
        raise JobError("the job has no [gossip]: say at least workers = 8")
    return job.gossip


def worker_speeds(section: GossipSection, workers: int) -> tuple[float, ...]:
    """Each worker's records a second, against 1. Raises JobError: a list of another length."""
    if section.worker:
        return tuple(table.speed for table in section.worker)
    slow, factor = (1, SLOW) if section.case == "II" else (section.slow, section.slow_factor)
    return named_speeds(section.speeds, slow, factor, workers, section.seed)


def mixing_of(section: GossipSection, workers: int, folder: Path | None = None) -> Mixing:
    """The graph and the mixing that a job names.

    Args:
        folder: where its files are.

    Raises:
        GraphError, MixingError: a graph or a matrix that cannot be. OSError: no such file.
    """
    graph: Graph
    if section.edges is not None:
        graph = read((folder or Path()) / section.edges)
    else:
        graph = make(section.graph, workers, degree=section.degree, seed=section.seed)
    if section.matrix is not None:
        return given(graph, (folder or Path()) / section.matrix)
    return Mixing(section.mixing, graph, section.seed)


def agreed_gossip(
    job: Job,
    sizes: Sequence[int],
    parameters: int,
    architecture: str,
    folder: Path | None = None,
    noise_borne: float | None = None,
) -> Gossip:
    """The gossip of a job; nothing private is read.

    Where the job leaves rounds, batch or step size open, they are chosen as for n·√K records: K
    workers' noised sums together have the signal of K·n records and √K times one worker's noise.

    Args:
        sizes: records of each worker, or persons where the job names them.
        parameters, architecture: of the model.
        folder: where the job's files are.
        noise_borne: norm of noise that the model's weights bear, where it could be tried.

    Raises:
        JobError: too little data for a worker, or samples whose sizes change.
    """
    section = gossip_section(job)
    if job.training.size_schedule != "constant":
        raise JobError(
            "[training] size_schedule: a gossip's workers make different numbers of rounds in the "
            "same time, and mixing weighs them alike, so that sizes would drift apart; leave it "
            "out, or train as a federation"
        )
    count = len(sizes)
    budgets = budgets_of(job, sizes)
    typical = int(np.median(sizes))
    lead = reference_plan(job, budgets[0], typical, count, parameters, True, noise_borne)
    rounds = section.rounds or lead.rounds
    rate = lead.mean_batch / lead.examples
    if section.case == "III":
        rate = min(1.0, LARGE * rate)
        faster = replace(lead.optimizer, learning_rate=LARGE * lead.optimizer.learning_rate)
        lead = lead.with_(use=replace(lead.use, optimizer=faster))
    own_rounds = rounds
    if section.rule == "asynchronous":
        own_rounds = max(rounds, round(section.headroom * rounds))
    plans: dict[tuple[int, int, Budget], int] = {}
    made: list[Plan] = []
    members: list[Member] = []
    for worker, size in enumerate(sizes):
        name = section.worker[worker].name if section.worker else f"worker-{worker}"
        if rate * size < 1:
            raise JobError(
                f"worker {name!r} has too little data for its rate: {size} records at {rate:.3g} "
                "give a batch of less than one; raise [training] batch, or leave the worker out"
            )
        key = (size, min(size, round(rate * size)), budgets[worker])
        if key not in plans:
            plans[key] = len(made)
            made.append(holder_plan(job, lead, *key, own_rounds, parameters))
        members.append(Member(name, plans[key]))
    return Gossip(
        tuple(members),
        tuple(made),
        mixing_of(section, count, folder),
        parameters,
        architecture,
        rounds,
        rule=section.rule,
        exchanges=section.exchanges,
        weights=section.weights,
        momentum=section.momentum,
        tracking=section.tracking,
        trust=Trust(section.difference, section.largest),
        compression=compression_of(section),
        window=section.window,
        settle=section.settle,
        point=section.point,
        pause=section.pause,
        seed=section.seed,
    )


def times_of(
    section: GossipSection, gossip: Gossip, speeds: Sequence[float], folder: Path | None = None
) -> Pace:
    """How long everything takes in a simulation: records over speed, messages by size.

    Raises:
        JobError: an outage of somebody who is not there.
    """
    seconds = [
        section.record_seconds * plan.epochs * plan.examples / plan.rounds for plan in gossip.plans
    ]
    names = [member.name for member in gossip.members]
    outages = []
    for row in section.outage:
        if row.worker not in names:
            raise JobError(f"[[gossip.outage]]: no worker {row.worker!r}; there are {names[:20]}")
        end = {} if row.end is None else {"end": row.end}
        outages.append(Outage(names.index(row.worker), row.begin, **end))
    return Pace(
        [seconds[m.plan] / speed for m, speed in zip(gossip.members, speeds, strict=True)],
        Way(section.latency, section.bandwidth),
        section.straggling,
        tuple(outages),
        section.seed,
        _factors(section, gossip.workers, folder),
        section.exchange,
        section.deadline,
    )


def _factors(section: GossipSection, workers: int, folder: Path | None) -> Factors | None:
    if section.trace is not None:
        return read_trace((folder or Path()) / section.trace)
    factor = HICCUP if section.case == "I" else section.hiccup
    return None if factor == 1 else Hiccups(workers, factor, section.seed)


def compression_of(section: GossipSection) -> Compression:
    """What ``compression`` says. Raises JobError: words that say nothing."""
    words = section.compression
    kind, colon, share = words.partition(":")
    try:
        return Compression(kind, float(share) if colon else None)
    except ValueError as problem:
        raise JobError(
            f"compression = {words!r}: say 'none', 'bf16', or 'top-k:0.1' ({problem})"
        ) from None


def budgets_of(job: Job, sizes: Sequence[int]) -> list[Budget]:
    """What every worker may spend. Raises JobError: no budget."""
    section = gossip_section(job)
    return [_budget(job, section, worker, size) for worker, size in enumerate(sizes)]


def _budget(job: Job, section: GossipSection, worker: int, size: int) -> Budget:
    own = section.worker[worker].epsilon if section.worker else None
    epsilon = own or job.budget.epsilon
    if epsilon is None:
        raise JobError("a gossip needs a budget: epsilon in [budget], or for each worker")
    return Budget(epsilon, job.budget.delta or defaults.default_delta(size))
