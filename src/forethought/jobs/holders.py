"""Many holders in a job: plans, speeds, and trying it out on a public proxy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forethought.jobs.job import Job, JobError
from forethought.jobs.load import Loaded, asked_of
from forethought.mechanism import Budget
from forethought.optimizers import kind_of
from forethought.plans import Plan
from forethought.simulation.speeds import lognormal_speeds, slow_ones

if TYPE_CHECKING:
    from forethought.data import Dataset
    from forethought.utility.graph import UtilityGraph
    from forethought.utility.rehearsal import Rehearsal


# What a job's federation and its gossip have in common: many holders' plans and speeds.


def named_speeds(
    speeds: Sequence[float] | str | None, slow: int, factor: float, holders: int, seed: int
) -> tuple[float, ...]:
    """Each holder's records a second, against 1.

    Args:
        speeds: a list, or "lognormal:σ"; None: all alike but for ``slow`` of them.
        slow: how many take ``factor`` times as long. seed: of what is drawn.

    Raises:
        JobError: a list of another length, or words that say nothing.
    """
    match speeds:
        case None:
            return tuple(1 / s for s in slow_ones(holders, slow, factor))
        case str() as words:
            kind, _, sigma = words.partition(":")
            try:
                spread = float(sigma)
            except ValueError:
                spread = -1.0
            if kind != "lognormal" or spread < 0:
                raise JobError(f"speeds = {words!r}: say a list, or 'lognormal:0.5'")
            return tuple(lognormal_speeds(holders, spread, seed))
        case listed:
            if len(listed) != holders:
                raise JobError(f"{len(listed)} speeds for {holders} holders: give one each")
            return tuple(float(speed) for speed in listed)


def reference_plan(
    job: Job,
    budget: Budget,
    size: int,
    clients: int,
    parameters: int,
    gradients: bool,
    noise_borne: float | None = None,
) -> Plan:
    """What one machine would do whose signal and noise are those of all clients together.

    Args:
        noise_borne: norm of noise that the model's weights bear, from which step size and batch
            follow; see :mod:`forethought.planning.plan_request`.
    """
    from forethought.planning.solve import plan

    asked = asked_of(job, round(size * clients**0.5), parameters)
    changes: dict[str, Any] = {"budget": budget, "delta": None, "noise_borne": noise_borne}
    if asked.batch is not None:
        changes["batch"] = max(1, round(asked.batch * clients**0.5))
    if gradients and asked.options is None and kind_of(asked.optimizer).descends:
        changes["options"] = {"momentum": 0.0}  # the server steps along each gradient by itself
    return plan(asked.with_(**changes))


def holder_plan(
    job: Job, lead: Plan, size: int, batch: int, budget: Budget, rounds: int, parameters: int
) -> Plan:
    """One client's plan: its own noise for its own budget, everything else as agreed."""
    from forethought.planning.solve import plan

    asked = asked_of(job, size, parameters)
    return plan(
        asked.with_(
            budget=budget,
            delta=None,
            batch=batch,
            rounds=rounds,
            epochs=None,
            learning_rate=lead.optimizer.learning_rate,
            schedule=lead.schedule,
            averaging=lead.averaging,
            options=dict(lead.optimizer.options),
        )
    )


# Trying a job out on a public proxy of its data: a named public data set, or synthetic data.
#
# Rehearsals and utility graphs train without paying for it, so they run on a proxy of the private
# data's shape. What they read of the private data itself is its shape, classes and size.


SYNTHETIC = "synthetic"
# Clip norms and noise that a utility graph tries when none are given.
UTILITY_GRID = {
    "clip_norms": (0.01, 0.03, 0.1, 0.3, 1.0),
    "noise_multipliers": (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
}


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
        relation: how a named proxy stands to the private data, as declared.
    """
    from forethought.utility.rehearsal import rehearse, synthetic

    loaded.require_rows("a public proxy")
    private = loaded.dataset
    shape = private.train.inputs.shape[1:]
    return rehearse(
        plan,
        lambda: loaded.request.job.build_model(private),
        synthetic(shape, private.classes or 2, plan.examples)
        if proxy in (None, SYNTHETIC)
        else _named(loaded, str(proxy), data_dir),
        repeats=repeats,
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
        proxy: a named public data set; ``"synthetic"`` draws one of the job's shape; None takes
            the private data itself, which needs ``leaks``.
        settings: clip_norms, noise_multipliers, draws, batch, epochs, optimizer, seed.
    """
    from forethought.data.synthetic import like
    from forethought.utility.perturbing import utility_graph

    loaded.require_rows("a public proxy")
    private = loaded.dataset
    if proxy is None:
        data, source = private, "private"
    elif proxy == SYNTHETIC:
        shape = private.train.inputs.shape[1:]
        data, source = like(shape, private.classes or 2, len(private.train)), "synthetic"
    else:
        data, source = _named(loaded, proxy, data_dir), "public"
    test = data.test
    return utility_graph(
        lambda: loaded.request.job.build_model(private),
        (data.train.inputs, data.train.targets),
        source=source,  # type: ignore[arg-type]
        leaks="accept" if leaks else None,
        test=None if test is None else (test.inputs, test.targets),
        progress=progress,
        **settings,
    )


def public_records(
    loaded: Loaded, proxy: str | None, records: int, repeat: int, data_dir: Path | None = None
) -> Dataset:
    """Public data in the place of a job's, to deal out to several holders.

    Args:
        proxy: a named public data set; None or ``"synthetic"`` draws one for every ``repeat``.
        records: how many are needed.

    Raises:
        ValueError: a proxy of another shape, or with too few records.
    """
    private = loaded.dataset
    shape = private.train.inputs.shape[1:]
    if proxy in (None, SYNTHETIC):
        from forethought.data.synthetic import like

        return like(shape, private.classes or 2, records, seed=repeat)
    from forethought.data import load

    data = load(str(proxy), folder=data_dir, features=loaded.request.job.data.features)
    found = data.train.inputs.shape[1:]
    if found != shape or data.classes != private.classes or len(data.train) < records:
        raise ValueError(
            f"the public proxy {proxy!r} has {len(data.train):,} records of shape {tuple(found)} "
            f"in {data.classes} classes; {records:,} of {tuple(shape)} in {private.classes} are "
            "needed: choose another, or 'synthetic'"
        )
    return data


def _named(loaded: Loaded, name: str, data_dir: Path | None) -> Dataset:
    job = loaded.request.job
    data = job.data.model_copy(update={"source": name, "test": None})
    return job.model_copy(update={"data": data}).load_data(data_dir)
