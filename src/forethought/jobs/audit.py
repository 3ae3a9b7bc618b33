"""Audit what a path names: a job, a plan or a run folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forethought.jobs.load import Loaded, load_job
from forethought.jobs.request import JOB_NAME, from_file, resumed
from forethought.plans import Plan

if TYPE_CHECKING:
    from forethought.auditing.verdict import Audit

PLAN = "plan.json"


@dataclass(frozen=True)
class Audited:
    """An audit, the plan that it was of, and where its files belong."""

    audit: Audit
    plan: Plan
    folder: Path


def audit(
    path: Path,
    *,
    data_dir: Path | None = None,
    out: Path | None = None,
    level: str = "standard",
    false_alarm: float | None = None,
    seed: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audited:
    """Audit a job file, a plan file or a run folder.

    A job, and a run folder with its job, is audited with its own model and data; a plan by itself
    on planted models only.

    Args:
        path: job.toml, plan.json or a run folder.
        out: where the files belong; default: the run folder, or runs/NAME-audit.
        level, false_alarm, seed, progress: as in :func:`forethought.audit`.

    Raises:
        ValueError: no such job, plan or run; a model that training refuses.
        OSError: a file that cannot be read.
    """
    from forethought.auditing.audit import FALSE_ALARM
    from forethought.auditing.audit import audit as audited

    plan, loaded, problem = read_run(path, data_dir)
    model: Any = None
    data: Any = None
    loss: Any = None
    if loaded is not None:
        model, data, loss = loaded.model, loaded.data, loaded.loss
    found = audited(
        plan,
        model,
        data,
        loss=loss,
        level=level,
        false_alarm=FALSE_ALARM if false_alarm is None else false_alarm,
        seed=seed,
        progress=progress,
    )
    if problem:
        found = replace(found, notes=(*found.notes, problem))
    folder = out or (path if path.is_dir() else Path("runs") / f"{path.stem}-audit")
    return Audited(found, plan, folder)


def read_run(path: Path, data_dir: Path | None) -> tuple[Plan, Loaded | None, str]:
    """The plan, the job's data and model where there is one, and what was missing."""
    if path.is_dir():
        if not (path / PLAN).is_file():
            raise ValueError(f"{path} is no run folder: there is no {PLAN} in it")
        plan = Plan.load(path / PLAN)
        if not (path / JOB_NAME).is_file():
            return plan, None, f"{path} holds no {JOB_NAME}: its model and data are not known"
        return plan, load_job(resumed(path), data_dir), ""
    if path.suffix == ".json":
        return Plan.load(path), None, ""
    loaded = load_job(from_file(path), data_dir)
    return loaded.plan(), loaded, ""


def save(audited: Audited) -> tuple[Path, Path | None]:
    """Write audit.json and, where games were played, the figure; returns their paths."""
    audited.folder.mkdir(parents=True, exist_ok=True)
    path = audited.folder / "audit.json"
    audited.audit.save(path)
    return path, audited.folder / "audit.png" if audited.audit.attack else None
