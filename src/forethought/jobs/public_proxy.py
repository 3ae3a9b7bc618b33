"""Rehearsals of a job on a public proxy of its data: a named public data set, or synthetic data.

Rehearsals and utility graphs train without a privacy budget, so they run on a proxy of the private
data's shape. Of the private data itself they use only its shape, classes and size.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forethought.accounting import exact
from forethought.accounting.adaptive import NegativeBinomialTrials
from forethought.accounting.interval import at_least, at_most
from forethought.data import Dataset
from forethought.data.sources import BUNDLED
from forethought.data.synthetic import like
from forethought.federated.federation import Federation
from forethought.gossip.gossip import Gossip
from forethought.holders.simulate import SimulatedRun, simulate
from forethought.jobs.holders import Agreed, Holders
from forethought.jobs.job import JobError, JobRequest, ModelSection
from forethought.jobs.load import Loaded, load_job
from forethought.options import keys
from forethought.planning.alternatives import plan_tuning
from forethought.planning.defaults import noise_to_signal
from forethought.planning.holders import mixings, undisturbed
from forethought.planning.solve import PlanError
from forethought.rounds.randomness import Seeds
from forethought.utility.graph import UtilityGraph
from forethought.utility.perturbing import utility_graph
from forethought.utility.rehearsal import Measure, Rehearsal, SyntheticSource
from forethought.utility.rehearsal import rehearse as rehearse_plan
from forethought.values.plan import Plan
from forethought.values.serialisation import plain

SYNTHETIC = "synthetic"
# Default clip norms and noise multipliers of a utility graph.
CLIP_NORMS = (0.01, 0.03, 0.1, 0.3, 1.0)
NOISE_MULTIPLIERS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


def rehearse_job(
    loaded: Loaded,
    plan: Plan,
    proxy: str | None,
    repeats: int,
    data_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    relation: str | None = None,
) -> Rehearsal:
    """Run a job's plan on a public proxy of its data.

    Args:
        proxy: a named public data set; None or ``"synthetic"`` draws data of the job's shape.
        repeats: number of runs.
        relation: declared relation of a named proxy to the private data.

    Raises:
        JobError: the job protects persons. ValueError: a proxy of another shape, or too small.
    """

    loaded.require_rows("a public proxy")
    private = loaded.dataset
    if plan.preparation is not None:  # a public table keeps its declared ranges
        plan = plan.remade(preparation=plan.preparation.unmeasured)
    source: SyntheticSource | Dataset
    if proxy in (None, SYNTHETIC):
        source = SyntheticSource(private.shape, private.classes, plan.examples)
    else:
        source = _public(loaded, proxy, plan.examples, data_dir)
    build = partial(loaded.request.job.build_model, private)
    return rehearse_plan(
        plan,
        build,
        source,
        repeats=repeats,
        loss=loaded.loss,
        relation=relation,  # type: ignore[arg-type]  # rehearse refuses another
        progress=progress,
    )


def utility_of(
    loaded: Loaded,
    proxy: str | None,
    settings: Mapping[str, Any],
    data_dir: Path | None = None,
    leaks: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> UtilityGraph:
    """The utility graph of a job's model on a public proxy of its data.

    Args:
        proxy: a named public data set; ``"synthetic"`` draws one of the job's shape; None uses
            the private data itself, which needs ``leaks``.
        settings: clip_norms, noise_multipliers, draws, batch, epochs, optimizer, seed.
        leaks: accept that a graph from the private data reveals something about them.

    Raises:
        JobError: the private data without ``leaks``, or a job that protects persons.
    """
    loaded.require_rows("a public proxy")
    private = loaded.dataset
    if proxy is None:
        if not leaks:
            raise JobError(
                "a utility graph trains without noise: give --public-proxy NAME, or synthetic; "
                "with --leaks accept it takes the job's own, and what that shows is in no ε"
            )
        data, source = private, "private"
    else:
        data = _public(loaded, proxy, len(private.train), data_dir)
        source = SYNTHETIC if proxy == SYNTHETIC else "public"
    own, test = data.train, data.test
    return utility_graph(
        partial(loaded.request.job.build_model, private),
        (own.inputs, own.targets),
        source=source,  # type: ignore[arg-type]
        leaks="accept" if leaks else None,
        test=None if test is None else (test.inputs, test.targets),
        progress=progress,
        **settings,
    )


# Comparison of several models for one job, before any privacy budget is spent.


@dataclass(frozen=True)
class ComparedModel:
    """A model for a job.

    Args:
        name: as in ``[model] name``. parameters: number of trained weights. plan: its plan.
        noise_to_signal: noise-to-signal ratio of its weights, from public numbers.
        rehearsal: of the plan on public data.
    """

    name: str
    parameters: int
    plan: Plan
    noise_to_signal: float
    rehearsal: Rehearsal


@dataclass(frozen=True)
class Comparison:
    """A comparison of models, each with its own plan within the same budget.

    Args:
        candidates: the models, the best in the rehearsal first.
        of_trial: ε of one trial of a private search with as many trials on average, within the same
            budget; None: no such search can be planned.
    """

    candidates: tuple[ComparedModel, ...]
    of_trial: float | None

    @property
    def alike(self) -> tuple[ComparedModel, ...]:
        """The models within two standard errors of the best one, which is included."""
        best = self.candidates[0].rehearsal
        found = []
        for one in self.candidates:
            own = one.rehearsal
            error = standard_error(best.accuracies, own.accuracies, own.test_examples, best.measure)
            if best.predicted - own.predicted <= 2 * error:
                found.append(one)
        return tuple(found)

    @property
    def chosen(self) -> ComparedModel:
        """The smallest of the models that are alike; it is the easiest to explain."""
        return min(self.alike, key=lambda one: one.parameters)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return {
            "chosen": self.chosen.name,
            "alike": [one.name for one in self.alike],
            "epsilon_of_a_trial": self.of_trial,
            "models": plain(self.candidates),
        }

    def text(self) -> str:
        """The models and the chosen one, in sentences."""
        lead = self.candidates[0].rehearsal
        of, form = "" if lead.measure == "accuracy" else f"{lead.measure} ", lead.form
        lines = [
            f"{one.name}: {of}{one.rehearsal.predicted:{form}} "
            f"({at_least(one.rehearsal.run_interval[0], form)} to "
            f"{at_most(one.rehearsal.run_interval[1], form)}), {one.parameters:,} weights, noise "
            f"{one.noise_to_signal:.2g} of the signal"
            for one in self.candidates
        ]
        others = [one.name for one in self.alike if one is not self.chosen]
        why = (
            f"{' and '.join(others)} cannot be told from it, and it has fewer weights"
            if others
            else "the others are worse by more than two standard errors"
        )
        lines += [
            f"Always saying {lead.saying}: {of}{lead.baseline:{form}}. {len(lead.accuracies)} "
            f"runs each on {lead.source}, of the very plans; nothing private was spent.",
            f"Take {self.chosen.name}: {why}.",
        ]
        if lead.relation == SYNTHETIC:
            lines.append(
                "Synthetic data show how much each model suffers from the noise, not which shapes "
                "the private data have: a public table of the same columns decides better "
                "(--public-proxy csv:FILE)."
            )
        if self.of_trial is not None:
            lines.append(
                f"Choosing on the private records instead has a price: in a private search over "
                f"{len(self.candidates)} trials in the mean (forethought tune) the same budget "
                f"leaves ε = {at_most(self.of_trial)} to each."
            )
        return "\n".join(lines)


def compare_models(
    request: JobRequest,
    names: Sequence[str],
    proxy: str | None = None,
    repeats: int = 5,
    data_dir: Path | None = None,
    relation: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Plan a job with each of several models, and rehearse every plan on the same public data.

    Args:
        names: of models, as in ``[model]``; the job's own model keeps its options.
        proxy, repeats, relation: as for :func:`rehearse_job`.

    Raises:
        JobError: fewer than two models, or labels of which a record may have several.
        ValueError: no such model.
    """
    names = tuple(dict.fromkeys(names))
    if len(names) < 2:
        raise JobError("give two models or more to compare, such as --models linear,mlp")
    found, tuned = [], None
    linear = {name: None for name, option in keys("training").items() if option.row.linear}
    for place, name in enumerate(names):
        job = request.job
        own = job.model if job.model.name == name else ModelSection(name=name)
        job = (job if own.linear else job.with_("training", **linear)).model_copy(
            update={"model": own}
        )
        loaded = load_job(replace(request, job=job), data_dir)
        if loaded.dataset.multilabel:
            raise JobError(
                "compare needs one label a record: train each model on public data instead, and "
                "compare the reports"
            )
        plan = loaded.plan()

        def done(count: int, of: int, before: int = place) -> None:
            if progress is not None:
                progress(before * of + count, len(names) * of)

        rehearsal = rehearse_job(loaded, plan, proxy, repeats, data_dir, done, relation)
        noise = noise_to_signal(plan, loaded.parameters)
        found.append(ComparedModel(name, loaded.parameters, plan, noise, rehearsal))
        tuned = tuned or _of_a_trial(loaded, plan, len(names))
    found.sort(key=lambda one: -one.rehearsal.predicted)
    return Comparison(tuple(found), tuned)


def _of_a_trial(loaded: Loaded, plan: Plan, trials: int) -> float | None:
    """ε of one trial of a private search with ``trials`` trials on average; None: not possible."""
    drawn = NegativeBinomialTrials.of_mean(trials, shape=0)
    rates = [{"learning_rate": plan.optimizer.learning_rate}]
    try:
        tuned = plan_tuning(loaded.plan_request(), trials=drawn, candidates=rates)[0]
    except PlanError:
        return None
    return exact.epsilon(tuned.mechanism, tuned.delta).upper


# Whole federations and gossips on public data.


def public_shares(
    loaded: Loaded,
    proxy: str | None,
    sizes: Sequence[int],
    repeat: int,
    data_dir: Path | None = None,
) -> tuple[list[tuple[Any, Any]], tuple[Any, Any] | None]:
    """Public data in place of a job's, divided at random among holders, and held-out records.

    Args:
        proxy: a named public data set; None or ``"synthetic"`` draws one for every ``repeat``.
        sizes: number of records of each holder.

    Raises:
        ValueError: a proxy of another shape, or with too few records.
    """
    private, records = loaded.dataset, sum(sizes)
    data = _public(loaded, proxy, records, data_dir, repeat)
    classes = private.classes or data.classes
    if data.shape != private.shape or data.classes != classes or len(data.train) < records:
        raise ValueError(
            f"the public proxy {proxy!r} has {len(data.train):,} records of shape {data.shape} "
            f"in {data.classes} classes; {records:,} of {private.shape} in {classes} are needed: "
            "choose another, or 'synthetic'"
        )
    order = np.random.default_rng(repeat).permutation(len(data.train))[: sum(sizes)]
    parts = np.split(order, np.cumsum(sizes)[:-1])
    shares = [(data.train.inputs[part], data.train.targets[part]) for part in parts]
    return shares, None if data.test is None else (data.test.inputs, data.test.targets)


# Keys of [data] that go with files, and not with a named data set.
_OF_FILES = ("label", "task", "classes", "split_by")


def _public(
    loaded: Loaded, proxy: str | None, records: int, data_dir: Path | None, seed: int = 0
) -> Dataset:
    """Public data in place of a job's: a named set, a table like the job's own, or drawn."""
    private, job = loaded.dataset, loaded.request.job
    if proxy is None or proxy == SYNTHETIC:
        return like(private.shape, private.classes or 2, records, seed=seed)
    left = {} if ":" in proxy else dict.fromkeys(_OF_FILES)
    public = job.with_("data", source=proxy, test=None, **left)
    found, encoder = public.load_data(data_dir), private.encoder
    pairs = product(job.files(data_dir), public.files(data_dir))
    if any(own.samefile(other) for own, other in pairs):
        raise JobError(
            f"{proxy} is the job's own {'table' if job.table(data_dir) else 'file'}, and what a "
            "rehearsal on it shows is in no ε: name a public one, or synthetic"
        )
    own, other = private.train.inputs, found.train.inputs
    own = own[:, : other.shape[1]] if encoder is not None else own  # a basis stands behind these
    if job.data.source not in BUNDLED and np.array_equal(own, other):
        words = (
            f"{proxy} holds the job's own records, and what a rehearsal on them shows is in no ε: "
            "name a public one, or synthetic"
        )
        if ":" not in proxy:  # the job's own files in the place of a named set's
            raise JobError(f"{words}. Files under the name of a public set may be anybody's")
        warnings.warn(words, stacklevel=3)
    return found if encoder is None or encoder.basis is None else found.with_basis(encoder.basis)


@dataclass(frozen=True)
class FederatedRehearsal:
    """Accuracies of the federation on public data.

    Args:
        source: of the data. accuracies: of each repeat, in [0, 1]. seconds: virtual time of each.
    """

    source: str
    accuracies: tuple[float, ...]
    seconds: tuple[float, ...]

    @property
    def predicted(self) -> float:
        """The mean accuracy."""
        return float(np.mean(self.accuracies))

    def text(self) -> str:
        """The accuracy to expect, in words."""
        least, most = min(self.accuracies), max(self.accuracies)
        return (
            f"rehearsed on {self.source}: accuracy {self.predicted:.1%} ({least:.1%} to "
            f"{most:.1%}), as good a prediction as that data resembles the real"
        )


# A graph is good enough if its average model's accuracy is at most this far below SYNC's.
WITHIN = 0.01


@dataclass(frozen=True)
class Tried:
    """The results of one graph and mixing on public data, as means over the repeats.

    Args:
        graph, mixing: their kinds; "all" and "allreduce" for SYNC.
        accuracy: of the average model at the end. worst: of the worst worker's model.
        seconds: virtual time until the average model's accuracy (its mean over the repeats) first
            came within ``WITHIN`` of SYNC's final one; None: never. whole: until the end.
        error: standard error of its accuracy minus SYNC's: the larger one of that from the
            differences between repeats, and that from the number of held-out records, as if both
            erred independently.
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
    """The results of SYNC and every graph on public data.

    Args:
        source: of the data. synchronous: of SYNC. tried: of the graphs, the quickest one within
            ``WITHIN`` first.
        repeats, records: number of runs of each graph, and of held-out records of a run.
    """

    source: str
    synchronous: Tried
    tried: tuple[Tried, ...]
    repeats: int
    records: int

    @property
    def chosen(self) -> Tried | None:
        """The graph that came within ``WITHIN`` of SYNC in the least time; None: none did."""
        best = self.tried[0]
        return None if best.seconds is None else best

    @property
    def certain(self) -> bool:
        """True if the chosen graph's final accuracy minus two standard errors is within reach.

        Within reach means at most ``WITHIN`` below SYNC's.
        """
        best, least = self.chosen, self.synchronous.accuracy - WITHIN
        return best is not None and best.accuracy - 2 * best.error >= least

    @property
    def alike(self) -> tuple[Tried, ...]:
        """The graphs that would be within reach only with two standard errors more accuracy.

        Any of them could be the quickest as well as the chosen one.
        """
        least = self.synchronous.accuracy - WITHIN
        return tuple(
            one
            for one in self.tried
            if one.seconds is None and one.accuracy + 2 * one.error >= least
        )


def rehearse(
    held: Holders,
    proxy: str | None = None,
    repeats: int = 1,
    data_dir: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> FederatedRehearsal | GossipRehearsal:
    """Simulate a job's whole federation, or its gossip with SYNC and every graph, on public data.

    Every holder gets as many records as its own plan has, drawn at random: label skew and other
    differences between holders are not rehearsed.

    Args:
        proxy: a named public data set of the same shape; None or ``"synthetic"`` draws one.
        repeats: number of repeats, each with its own records, first weights, batches and noise.

    Raises:
        ValueError: a proxy of another shape, or with too few records.
    """
    own = held.agreed
    tried: list[Agreed] = [own]
    if isinstance(own, Gossip):
        sync = replace(own.with_allreduce(), start="")
        tried = [sync, *(replace(own, mixing=mixing, start="") for mixing in mixings(own))]
    runs: list[list[SimulatedRun]] = [[] for _ in tried]
    job, records = held.loaded.request.job, 0
    sizes = [plan.examples for plan in own.own_plans]
    for repeat in range(repeats):
        shares, test = public_shares(held.loaded, proxy, sizes, repeat, data_dir)
        records = 0 if test is None else len(test[0])
        for place, one in enumerate(tried):
            torch.manual_seed(repeat)
            run = simulate(
                job.build_model(held.loaded.dataset),
                shares,
                one,
                undisturbed(held.times) if one.rule == "allreduce" else held.times,
                test=test,
                seeds=Seeds(repeat, repeat),
                micro_batch=job.run.micro_batch,
                fused=held.fused,
            )
            runs[place].append(run)
            if progress is not None:
                progress(repeat * len(runs) + place + 1, repeats * len(runs))
    source = proxy or SYNTHETIC
    if isinstance(own, Federation):
        accuracies = (math.nan if run.accuracy is None else run.accuracy for run in runs[0])
        seconds = tuple(run.simulated.seconds for run in runs[0])
        return FederatedRehearsal(source, tuple(accuracies), seconds)
    target = float(np.mean([run.accuracy or 0.0 for run in runs[0]])) - WITHIN
    others = [_tried(found, target, runs[0], records) for found in runs[1:]]
    others.sort(key=lambda one: (one.seconds is None, one.seconds or 0.0, -one.accuracy))
    lead = _tried(runs[0], target, runs[0], records)
    lead = replace(lead, graph="all", mixing="allreduce", error=0.0)
    return GossipRehearsal(source, lead, tuple(others), repeats, records)


def _tried(
    runs: Sequence[SimulatedRun], target: float, sync: Sequence[SimulatedRun], records: int
) -> Tried:
    own, theirs = ([run.accuracy or 0.0 for run in each] for each in (runs, sync))
    accuracy = float(np.mean(own))
    whole = float(np.mean([run.simulated.seconds for run in runs]))
    reached = _first(runs, target)
    if reached is None and accuracy >= target:
        reached = whole  # reached in the exchanges after the last update
    worst = float(np.mean([min(run.each, default=math.nan) for run in runs]))
    error = standard_error(own, theirs, records)
    mixing = runs[0].gossip.mixing
    return Tried(mixing.graph.kind, mixing.kind, accuracy, worst, reached, whole, error)


def standard_error(
    ours: Sequence[float], theirs: Sequence[float], records: int, measure: Measure = "accuracy"
) -> float:
    """The standard error of the difference of two mean accuracies, or R², of paired runs.

    It is the larger of two estimates, see :class:`Tried`. A record adds p(1 − p) to the variance of
    an accuracy p, 4R²(1 − R²)² to that of R² (Olkin and Finn 1995, "Correlations redux").

    Args:
        records: number of held-out records of a run.
    """
    count = len(ours)
    spread = 0.0
    if count > 1:
        differences = [one - other for one, other in zip(ours, theirs, strict=True)]
        spread = float(np.std(differences, ddof=1)) / math.sqrt(count)
    means = [float(np.mean(found)) for found in (ours, theirs)]
    if measure == "accuracy":
        drawn = sum(mean * (1 - mean) for mean in means)
    else:
        drawn = sum(4 * max(0.0, mean) * (1 - mean) ** 2 for mean in means)
    return max(spread, math.sqrt(drawn / max(1, records * count)))


def _first(runs: Sequence[SimulatedRun], target: float) -> float | None:
    """The mean time at which the runs' mean accuracy first reaches the target; None: never."""
    for points in zip(*(run.accuracies for run in runs), strict=False):
        if np.mean([accuracy for _, _, accuracy in points]) >= target:
            return float(np.mean([seconds for seconds, _, _ in points]))
    return None
