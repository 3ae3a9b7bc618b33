"""Trying a job out on a public proxy of its data: a named public data set, or synthetic data.

Rehearsals and utility graphs train without paying for it, so they run on a proxy of the private
data's shape. What they read of the private data itself is its shape, classes and size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forethought.jobs.load import Loaded
from forethought.plans import Plan

if TYPE_CHECKING:
    from forethought.data import Dataset
    from forethought.utility.graph import UtilityGraph
    from forethought.utility.rehearsal import Rehearsal

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
    from forethought.utility.rehearsal import rehearse
    from forethought.utility.rehearsal_records import synthetic

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
