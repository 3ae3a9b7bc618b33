"""From a job with a [gossip] to its shares, its simulation and what it will spend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forethought.gossip.clipping import Trust
from forethought.gossip.compression import Compression
from forethought.gossip.gossip import Gossip, Member, digest_of
from forethought.gossip.graphs import Graph, make, read
from forethought.gossip.mixing import Mixing, given
from forethought.holders.simulator import GraphTimes
from forethought.holders.times import Factors, Hiccups, Outage, Way, read_trace
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
from forethought.jobs.job import GossipSection, Job, JobError
from forethought.jobs.request import Request
from forethought.planning.defaults import longest_rate
from forethought.planning.holders import GossipPlan, mixings, predict_gossip, undisturbed
from forethought.values.mechanism import Budget
from forethought.values.plan import Plan

if TYPE_CHECKING:
    from forethought.holders.simulate import SimulatedRun


# From a job with a ``[gossip]`` to the gossip, its shares and a simulation's times.


# The paper's cases: how much slower a worker is, and what batch and step size are multiplied by.
HICCUP, LARGE = 2.0, 2.0


@dataclass(frozen=True)
class Gossiping(Dealt):
    """A job's gossip, ready to be simulated or run.

    Args:
        gossip: what everybody agrees on. times: of a simulation.
    """

    gossip: Gossip
    times: GraphTimes


def gossip_of(request: Request, data_dir: Path | None = None) -> Gossiping:
    """Load a job's data, deal it out, and plan every worker's part.

    Raises:
        JobError: no ``[gossip]``, or one without workers.
        ValueError: what data, planner, graph or gossip refuse.
    """
    section = gossip_section(request.job)
    held = deal(request, section, data_dir)
    gossip = agreed_gossip(
        request.job,
        held.sizes,
        held.shared.layout.size,
        held.shared.architecture,
        request.folder,
        held.loaded.noise_borne,
    )
    plans = tuple(held.loaded.with_caveats(plan) for plan in gossip.plans)
    gossip = replace(gossip, plans=plans, start=digest_of(held.shared.read()))
    times = times_of(section, gossip, held.speeds, request.folder)
    return Gossiping(**vars(held), gossip=gossip, times=times)


def simulate_gossip(
    gossiping: Gossiping,
    out: Path | None = None,
    *,
    resume: bool = False,
    workers: int = 0,
    engine: str = "processes",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[SimulatedRun, float]:
    """Simulate a job's gossip with real training.

    Returns:
        The run, and the virtual seconds that SYNC takes for as many rounds.
    """
    from forethought.holders.simulate import simulate, synchronous_seconds

    require_no_payer(gossiping.loaded.request.job)
    gossip = gossiping.gossip
    shares, options = gossiping.simulation([gossip.plan(k) for k in range(gossip.workers)])
    run = simulate(
        gossiping.shared.model,
        shares,
        gossip,
        gossiping.times,
        out=out,
        resume=resume,
        workers=workers,
        engine=engine,
        progress=progress,
        **options,
    )
    return run, synchronous_seconds(gossip, gossiping.times)


def gossip_section(job: Job) -> GossipSection:
    """A job's ``[gossip]``. Raises JobError where there is none."""
    if job.gossip is None:
        raise JobError("the job has no [gossip]: say at least workers = 8")
    return job.gossip


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
    if section.rule == "asynchronous":
        lead = _half_of_the_longest(lead, parameters)
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
        stagger=section.stagger,
        clock=section.clock,
        seed=section.seed,
    )


def _half_of_the_longest(lead: Plan, parameters: int) -> Plan:
    """The plan with steps of at most half of what SYNC bears, where the planner chose them.

    A gradient that is a round old bears η times the curvature below 1; a fresh one below 2.
    """
    chosen = lead.assumed
    if chosen is None or "step size" not in chosen.chosen:
        return lead
    most = longest_rate(lead, parameters, chosen.feature_norm) / 2
    if lead.optimizer.learning_rate <= most:
        return lead
    return lead.with_(use=replace(lead.use, optimizer=replace(lead.optimizer, learning_rate=most)))


def times_of(
    section: GossipSection, gossip: Gossip, speeds: Sequence[float], folder: Path | None = None
) -> GraphTimes:
    """The duration of everything in a simulation: records over speed, messages by size.

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
    return GraphTimes(
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
    """The compression of a job. Raises JobError: words that say nothing."""
    words = section.compression
    kind, colon, share = words.partition(":")
    try:
        return Compression(kind, float(share) if colon else None)
    except ValueError as problem:
        raise JobError(
            f"compression = {words!r}: say 'none', 'bf16', or 'top-k:0.1' ({problem})"
        ) from None


def budgets_of(job: Job, sizes: Sequence[int]) -> list[Budget]:
    """The budget of every worker. Raises JobError: no budget."""
    section = gossip_section(job)
    return [budget_of(job, section, worker, size) for worker, size in enumerate(sizes)]


# What a job's gossip would spend, and on which graph it is quickest, tried on a public proxy.


# A graph is good enough where the average model comes so close to SYNC's accuracy.
WITHIN = 0.01


@dataclass(frozen=True)
class Tried:
    """One graph and mixing on public data, means over the repeats.

    Args:
        graph, mixing: their kinds; "all" and "allreduce" for SYNC.
        accuracy: of the average model at the end. worst: of the worst worker's.
        seconds: virtual, until the average model's accuracy (its mean over the repeats) first came
            within ``WITHIN`` of SYNC's last; None: never. whole: until the end.
        error: standard error of its accuracy less SYNC's: from how the repeats differ, or from the
            number of held-out records, as if both erred independently, where that is more.
    """

    graph: str
    mixing: str
    accuracy: float
    worst: float
    seconds: float | None
    whole: float
    error: float


@dataclass(frozen=True)
class GossipRehearsal:
    """SYNC and every graph on data that nobody has to protect; the quickest good one first.

    Args:
        source: of the data. synchronous: SYNC itself. tried: graphs, as they rank.
        repeats, records: what the accuracies rest on: runs of each, held-out records of a run.
    """

    source: str
    synchronous: Tried
    tried: tuple[Tried, ...]
    repeats: int
    records: int

    @property
    def chosen(self) -> Tried | None:
        """The graph that came within reach of SYNC in the least time; None: none did."""
        best = self.tried[0]
        return None if best.seconds is None else best

    @property
    def certain(self) -> bool:
        """True if the chosen graph comes within ``WITHIN`` of SYNC at the end even where its
        accuracy is two standard errors less than was seen."""
        best, least = self.chosen, self.synchronous.accuracy - WITHIN
        return best is not None and best.accuracy - 2 * best.error >= least

    @property
    def alike(self) -> tuple[Tried, ...]:
        """Graphs that would be the quickest as well as the chosen one if their accuracies were two
        standard errors better: those that never came so far, but may."""
        least = self.synchronous.accuracy - WITHIN
        return tuple(
            one
            for one in self.tried
            if one.seconds is None and one.accuracy + 2 * one.error >= least
        )


def plan_job(gossiping: Gossiping, observers: Sequence[str] = ()) -> GossipPlan:
    """The costs of a job's gossip.

    Args:
        observers: names of distant workers who tell each other what they see.

    Raises:
        JobError: an observer that is no worker. NetworkViewError: see
            :func:`~forethought.planning.holders.predict_gossip`.
    """
    names = [member.name for member in gossiping.gossip.members]
    for name in observers:
        if name not in names:
            raise JobError(
                f"--observer {name!r} is no worker of this gossip; there are {names[:20]}"
            )
    sizes = [len(part) for part in gossiping.parts]
    budgets = budgets_of(gossiping.loaded.request.job, sizes)
    places = [names.index(name) for name in observers]
    return predict_gossip(gossiping.gossip, budgets, gossiping.times, places)


def rehearse(
    gossiping: Gossiping,
    proxy: str | None = None,
    repeats: int = 1,
    data_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> GossipRehearsal:
    """Simulate the gossip on every graph, whole, on a public proxy of its data; and SYNC.

    Every worker gets as many records as its own plan is for, dealt at random: label skew is not
    rehearsed.

    Args:
        proxy: a named public data set of the same shape; None or ``"synthetic"`` draws one.
        repeats: each with its own records, first weights, batches and noise.

    Raises:
        ValueError: a proxy of another shape, or with too few records.
    """
    own = gossiping.gossip
    sync = replace(own.with_allreduce(), start="")
    others = [replace(own, mixing=mixing, start="") for mixing in mixings(own)]
    runs: list[list[SimulatedRun]] = [[] for _ in range(1 + len(others))]
    for repeat in range(repeats):
        train, records = _trainer(gossiping, proxy, repeat, data_dir)
        for place, gossip in enumerate([sync, *others]):
            runs[place].append(train(gossip))
            if progress is not None:
                progress(repeat * len(runs) + place + 1, repeats * len(runs))
    target = float(np.mean([run.accuracy or 0.0 for run in runs[0]])) - WITHIN
    tried = [
        _tried(gossip.mixing.graph.kind, gossip.mixing.kind, found, target, runs[0], records)
        for gossip, found in zip(others, runs[1:], strict=True)
    ]
    return GossipRehearsal(
        proxy or SYNTHETIC,
        replace(_tried("all", "allreduce", runs[0], target, runs[0], records), error=0.0),
        tuple(sorted(tried, key=lambda one: (_or_never(one.seconds), -one.accuracy))),
        repeats,
        records,
    )


def _trainer(
    gossiping: Gossiping, proxy: str | None, repeat: int, data_dir: Path | None
) -> tuple[Callable[[Gossip], SimulatedRun], int]:
    """Train a gossip on the repeat's records, the same for every graph; how many are held out."""
    import torch

    from forethought.holders.simulate import simulate
    from forethought.rounds.randomness import Seeds

    loaded = gossiping.loaded
    job = loaded.request.job
    sizes = [len(part) for part in gossiping.parts]
    shares, test = public_shares(loaded, proxy, sizes, repeat, data_dir)

    def train(gossip: Gossip) -> SimulatedRun:
        torch.manual_seed(repeat)
        return simulate(
            job.build_model(loaded.dataset),
            shares,
            gossip,
            undisturbed(gossiping.times) if gossip.rule == "allreduce" else gossiping.times,
            test=test,
            seeds=Seeds(repeat, repeat),
            micro_batch=job.run.micro_batch,
        )

    return train, 0 if test is None else len(test[0])


def _tried(
    graph: str,
    mixing: str,
    runs: Sequence[SimulatedRun],
    target: float,
    sync: Sequence[SimulatedRun],
    records: int,
) -> Tried:
    accuracy = float(np.mean([run.accuracy or 0.0 for run in runs]))
    whole = float(np.mean([run.simulated.seconds for run in runs]))
    reached = _first(runs, target)
    if reached is None and accuracy >= target:
        reached = whole  # by the exchanges after the last update
    worst = float(np.mean([min(run.each, default=math.nan) for run in runs]))
    error = standard_error(
        [run.accuracy or 0.0 for run in runs], [run.accuracy or 0.0 for run in sync], records
    )
    return Tried(graph, mixing, accuracy, worst, reached, whole, error)


def standard_error(ours: Sequence[float], theirs: Sequence[float], records: int) -> float:
    """Of the difference of two mean accuracies of paired runs; see :class:`Tried`."""
    count = len(ours)
    spread = 0.0
    if count > 1:
        differences = [one - other for one, other in zip(ours, theirs, strict=True)]
        spread = float(np.std(differences, ddof=1)) / math.sqrt(count)
    drawn = sum(float(np.mean(found)) * (1 - float(np.mean(found))) for found in (ours, theirs))
    return max(spread, math.sqrt(drawn / max(1, records * count)))


def _first(runs: Sequence[SimulatedRun], target: float) -> float | None:
    """The time at which the mean of the runs' accuracies, taken at the same counts, is the
    target."""
    for points in zip(*(run.accuracies for run in runs), strict=False):
        if np.mean([accuracy for _, _, accuracy in points]) >= target:
            return float(np.mean([seconds for seconds, _, _ in points]))
    return None


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
