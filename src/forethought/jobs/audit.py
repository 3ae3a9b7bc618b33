"""Audits and replays of a job, a plan or a run folder, by its path."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forethought.accounting.statement import plan_digest
from forethought.auditing.audit import FALSE_ALARM
from forethought.auditing.audit import audit as audited
from forethought.auditing.one_run import one_run as attacked
from forethought.auditing.replay import SECRET, Replay, interrupted, replaying
from forethought.auditing.verdict import Audit
from forethought.jobs.job import JOB_NAME, Job, from_file, resumed
from forethought.jobs.load import Loaded, load_job
from forethought.jobs.train import prepare, require_folder, run
from forethought.training.folder import KEYS, PLAN, RESERVATION, RunFolder, wipe
from forethought.values.plan import Plan
from forethought.values.serialisation import parse

AUDIT = "audit.json"
SEVERAL = "the job ran as on one machine: forethought.auditing.holders attacks what holders do"


@dataclass(frozen=True)
class Audited:
    """An audit, the plan that was audited, and the folder for its files."""

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
    one_run: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audited:
    """Audit a job file, a plan file or a run folder.

    A job, or a run folder with its job, is audited with its own model and data; a plan alone is
    audited on planted models only.

    Args:
        path: job.toml, plan.json or a run folder.
        out: folder for the files; default: the run folder, or runs/NAME-audit.
        level, false_alarm, seed, progress: as in :func:`forethought.audit`.
        one_run: attack one run instead, with canaries of this kind
            (:func:`forethought.auditing.one_run.one_run`).

    Raises:
        ValueError: no such job, plan or run; a model that training refuses.
        OSError: a file that cannot be read.
    """
    folder = _home(path, "audit" if one_run is None else "one-run", out)
    plan, loaded, problem = read_run(path, data_dir)
    given: dict[str, Any] = {"seed": seed, "progress": progress}
    if loaded is not None:
        given |= {"model": loaded.model, "data": loaded.dataset.records, "loss": loaded.loss}
    given["false_alarm"] = FALSE_ALARM if false_alarm is None else false_alarm
    if one_run is None:
        found = audited(plan, level=level, **given)
    else:
        found = attacked(plan, canaries=one_run, **given)  # type: ignore[arg-type]
    if problem:
        found = replace(found, notes=(*found.notes, problem))
    return Audited(found, plan, folder)


def replay(
    path: Path,
    *,
    rounds: int = 3,
    data_dir: Path | None = None,
    out: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audited:
    """Replay rounds against the slow reference (:mod:`forethought.auditing.replay`).

    For a job: its first rounds, run on its data in a temporary folder that is wiped afterwards,
    stopped before the last one and resumed. For a run folder whose run is not finished: the next
    rounds after its last checkpoint, on a copy of the folder with its keys. They are the releases
    that the run itself makes next, so no budget is spent; the copy is wiped, too. A ledger that
    the job names is not asked: what is replayed is not released.

    Args:
        path: job.toml, or a run folder. rounds: number of rounds.

    Raises:
        ValueError: a plan alone, or a finished run, whose keys are deleted.
    """
    if path.suffix == ".json":
        raise ValueError(f"{path} is a plan by itself: a replay needs a job or a run folder")
    source = RunFolder(path) if path.is_dir() else None
    if source is not None and not (source.checkpoint / KEYS).is_file():
        raise ValueError(
            f"{path} has no keys any more: they are wiped when a run ends. Replay its job "
            "(a run of its own, with the same plan), or a run that is not finished"
        )
    kept = _home(path, "replay", out)
    request = from_file(path) if source is None else resumed(path)
    job = request.job.model_copy(update={"ledger": None})  # nothing is released, or marked
    start, home = time.perf_counter(), Path(tempfile.mkdtemp(prefix="forethought-replay-"))
    folder, done = home / "run", 0
    try:
        if source is None:
            every = job.run.model_copy(update={"checkpoint_every": max(1, rounds // 2)})
            job = job.model_copy(update={"run": every})
        else:
            shutil.copytree(path, folder, ignore=shutil.ignore_patterns(RESERVATION))
        asked = prepare(
            replace(request, job=job), data_dir, resume=None if source is None else folder
        )
        rounds = min(rounds, asked.plan.rounds)

        def train(resume: bool, cut: Callable[[Any], None]) -> None:
            def told(event: Any) -> None:
                nonlocal done
                done += 1
                if progress is not None:
                    progress(min(done, rounds), rounds)
                cut(event)

            run(asked, folder, resume=resume, progress=told)

        with replaying() as found:
            interrupted(train, rounds, resumed=source is not None)
    finally:
        wipe(RunFolder(folder).checkpoint / KEYS)
        shutil.rmtree(home)
    seconds = time.perf_counter() - start
    return of_replay(found, asked.plan, kept, seconds, _note(job))


def of_replay(found: Replay, plan: Plan, folder: Path, seconds: float, note: str = "") -> Audited:
    """The findings of a replay as an audit of a run in ``folder``.

    Raises:
        ValueError: nothing was replayed; the message has the reason.
    """
    if not found.replayed:
        why = found.refusals[0] if found.refusals else "none of these rounds was run"
        raise ValueError(f"nothing was replayed: {why}")
    notes = (*found.refusals, SECRET, f"{found.replayed} releases were replayed", note)
    audit = Audit(tuple(found.findings()), 0.0, None, round(seconds, 2), tuple(filter(None, notes)))
    return Audited(audit, plan, folder)


def _home(path: Path, what: str, out: Path | None) -> Path:
    folder = out or (path if path.is_dir() else Path("runs") / f"{path.stem}-{what}")
    require_folder(folder, overwrite=True)  # before minutes are spent
    return folder


def read_run(path: Path, data_dir: Path | None) -> tuple[Plan, Loaded | None, str]:
    """The plan, the loaded job (None: there is none), and a note on what is not seen ("": none)."""
    if path.is_dir():
        if not (path / PLAN).is_file():
            raise ValueError(f"{path} is no run folder: there is no {PLAN} in it")
        plan = Plan.load(path / PLAN)
        if not (path / JOB_NAME).is_file():
            return plan, None, f"{path} holds no {JOB_NAME}: its model and data are not known"
        loaded = load_job(resumed(path), data_dir)
    elif path.suffix == ".json":
        return Plan.load(path), None, ""
    else:
        loaded = load_job(from_file(path), data_dir)
        plan = loaded.plan()
    return plan, loaded, _note(loaded.request.job)


def _note(job: Job) -> str:
    return SEVERAL if job.federation or job.gossip else ""


def save(audited: Audited) -> tuple[Path, Path | None]:
    """Write audit.json, which names the audited plan.

    Returns:
        Its path, and the path for the figure of the attack; None: there was no attack. Beside an
        audit.json that refutes the folder's run, audit-later.json.
    """
    audited.folder.mkdir(parents=True, exist_ok=True)
    path, plan = audited.folder / AUDIT, plan_digest(audited.plan.to_dict())
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        before = parse(path.read_text(encoding="utf-8"))
        if before["refuted"] is True and before["plan"] == plan and (path.parent / PLAN).is_file():
            path = audited.folder / "audit-later.json"  # nothing takes a refutation back
    audited.audit.save(path, plan)
    attack = audited.audit.attack
    return path, path.with_suffix(".png") if attack and attack.points else None
