"""What a job's gossip would spend, and on which graph it is quickest, tried on a public proxy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from forethought.gossip.gossip import Gossip
from forethought.jobs.gossip import Gossiping, budgets_of
from forethought.jobs.job import JobError
from forethought.jobs.public_proxy import SYNTHETIC, public_records
from forethought.planning.gossip import GossipPlan, mixings, predict, undisturbed

if TYPE_CHECKING:
    from forethought.gossip.simulate import SimulatedGossip

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
        """Whether the chosen graph comes within ``WITHIN`` of SYNC at the end even where its
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
            :func:`~forethought.planning.gossip.predict`.
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
    return predict(gossiping.gossip, budgets, gossiping.times, places)


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
    runs: list[list[SimulatedGossip]] = [[] for _ in range(1 + len(others))]
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
) -> tuple[Callable[[Gossip], SimulatedGossip], int]:
    """Train a gossip on the repeat's records, the same for every graph; how many are held out."""
    import torch

    from forethought.gossip.simulate import simulate
    from forethought.rounds.randomness import Seeds

    loaded = gossiping.loaded
    job = loaded.request.job
    sizes = [len(part) for part in gossiping.parts]
    data = public_records(loaded, proxy, sum(sizes), repeat, data_dir)
    order = np.random.default_rng(repeat).permutation(len(data.train))[: sum(sizes)]
    parts = np.split(order, np.cumsum(sizes)[:-1])
    shares = [(data.train.inputs[part], data.train.targets[part]) for part in parts]
    test = None if data.test is None else (data.test.inputs, data.test.targets)

    def train(gossip: Gossip) -> SimulatedGossip:
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

    return train, 0 if data.test is None else len(data.test)


def _tried(
    graph: str,
    mixing: str,
    runs: Sequence[SimulatedGossip],
    target: float,
    sync: Sequence[SimulatedGossip],
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


def _first(runs: Sequence[SimulatedGossip], target: float) -> float | None:
    """When the mean of the runs' accuracies, which are taken at the same counts, is the target."""
    for points in zip(*(run.accuracies for run in runs), strict=False):
        if np.mean([accuracy for _, _, accuracy in points]) >= target:
            return float(np.mean([seconds for seconds, _, _ in points]))
    return None


def _or_never(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
