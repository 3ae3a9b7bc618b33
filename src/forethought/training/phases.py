"""Train in phases until an accuracy is reached or the budget is used up.

Source: van Dijk et al., "Proactive DP", Appendix E, Figure 15. The accuracy after a phase is a
function of what was released, even on public records, so whether there is a further phase depends
on earlier outputs. **Formal guarantee**, one of two:

- *Phases fixed in advance* (a plan of several parts). Only the time of stopping depends on
  results; what a stopped run releases is a function of what the full one would have released. The
  exact ε of the full sequence holds, whenever it stops.
- *Phases chosen by results* (``next_phase``). A Rényi filter with the plan's budget, set before
  the first round, is charged before each phase, and a phase that does not fit is not run. Its
  budget is the guarantee (Feldman and Zrnic 2021, Theorem 4.3).

Both hold for the records that are trained on. Held-out records that steer the run are used without
noise, and the Statement names them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import torch

from forethought.accounting import exact
from forethought.accounting.about import About
from forethought.accounting.assumptions import Randomness
from forethought.accounting.statement import Statement
from forethought.checks import one_of, real
from forethought.data import Dataset as LoadedData
from forethought.mechanism import Mechanism, Rounds
from forethought.plans import Plan
from forethought.preparing.paid import require_unprepared
from forethought.rounds.losses import Loss
from forethought.rounds.randomness import Secrets, Seeds
from forethought.training.centring import uncentred
from forethought.training.checkpoint import Checkpoint, CheckpointError, replace_file
from forethought.training.checkpointer import Checkpointer, continued
from forethought.training.coincidence import CoincidingRecordsError
from forethought.training.datasets import opened, usual_loss, with_caveats
from forethought.training.execution import Execution, ShortForms, settled
from forethought.training.folder import PHASES, RECORD, STATEMENT, RunFolder
from forethought.training.identity import environment, identity
from forethought.training.keys import KEYS, Keys
from forethought.training.lock import locked
from forethought.training.metrics import Event, evaluate
from forethought.training.other_model import warn_of_another_model
from forethought.training.persons import arranged
from forethought.training.phase_state import Ending, PhasedRun, PhaseRecord, PhaseState
from forethought.training.progress import NextPhaseRule
from forethought.training.provenance import remember, trained_before
from forethought.training.run import Task, opened_task, require_public, run_plan
from forethought.training.together import alone

DecideOn = Literal["held-out", "public"]
RECORD_SCHEMA = "forethought/phases/1"
# Rows of the history for each phase.
ROWS = 10


def train_until(
    model: torch.nn.Module,
    data: object,
    plan: Plan,
    *,
    accuracy: float,
    test: object | None = None,
    decide_on: DecideOn = "held-out",
    next_phase: NextPhaseRule | None = None,
    loss: Loss | None = None,
    out: str | Path | None = None,
    files: Mapping[str, str] | None = None,
    about: About | None = None,
    execution: Execution | None = None,
    seeds: Seeds | None = None,
    diagnostics: bool = True,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[Event], None] | None = None,
    **short: Unpack[ShortForms],
) -> PhasedRun:
    """Train phase after phase until ``accuracy`` is reached or the budget is used up.

    Each phase starts from the reported (averaged) model of the one before, with a fresh optimizer.

    Args:
        model, data, loss, files, about, execution, diagnostics, short: as in
            :func:`forethought.train`.
        plan: with several parts, each a phase: see :func:`forethought.plan_phases`. With
            ``next_phase`` its first part is the first phase, its budget that of the filter, and
            the rest only what is foreseen.
        accuracy: in (0, 1]: stop after the first phase that reaches it.
        test: records that accuracy is measured on. Default: those of a
            ``forethought.data.Dataset``.
        decide_on: whether these are ``"public"`` or private ``"held-out"`` ones; the latter are
            named in the Statement as not covered.
        next_phase: a rule that chooses the next phase by results, or returns None to stop; for
            example :func:`forethought.planning.phase_plans.next_by_shortfall`. Totals then go
            through a Rényi filter at the order that suits the foreseen plan best.
        out: run folder. A killed run can be resumed from it; what a phase may release is charged
            and on disk before the phase begins.
        seeds: each phase derives its own from them.
        resume, overwrite: as in :func:`forethought.train`.
        progress: called after every round. ε is left out: it does not grow with the rounds.

    Returns:
        The run, its model that of the last phase.

    Raises:
        ValueError, TypeError: arguments that do not fit, before any private step.
        RunFolderExistsError, CheckpointError, OSError, Interrupted: as :func:`forethought.train`.
    """
    alone("train_until")
    execution, seeds = settled(execution, seeds, **short)
    wanted = real("accuracy", accuracy, above=0, most=1)
    one_of("decide_on", decide_on, get_args(DecideOn))
    if resume and (out is None or overwrite):
        raise ValueError("resume=True continues the run in out=: give out, without overwrite")
    if files and out is None:
        raise ValueError("files are kept in the run folder: give out=")
    folder = None if out is None else RunFolder(out)
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a forethought.Plan, not {type(plan).__name__}")
    if plan.records_per_person > 1:
        raise ValueError(
            "phases promise something to single records: make the plan with "
            "person_as='contribution', where a person is one record"
        )
    plan = uncentred(plan)
    require_unprepared(plan, "train_until")
    if decide_on == "public" and isinstance(data, LoadedData) and test is None:
        raise CoincidingRecordsError(
            "decide_on='public' with the data's own test part: it is as private as the rest. Give "
            "public records as test=, or say decide_on='held-out', which the Statement names"
        )
    loss = loss or usual_loss(data)
    given = data
    data, test, found = opened(data, test)
    plan = with_caveats(plan, found)
    if test is None:
        raise TypeError("train_until needs test=, records that accuracy is measured on")
    if next_phase is not None and plan.budget is None:
        raise ValueError("next_phase= needs a plan with a budget, which the filter keeps")
    with locked(None if folder is None else folder.path):
        records = arranged(data, plan, loss)
        wrapped = records.wrapped(model)
        task = opened_task(wrapped, records.data, test, plan, records.loss, execution)
        _require_labels(task)
        warn_of_another_model(plan, model, given)
        if decide_on == "public":
            require_public(task.caveats, "test", "decide_on='held-out'")
        earlier = () if resume else trained_before(model, None if folder is None else folder.path)
        caveats = (*task.caveats, *earlier)
        state = PhaseState(plan, wanted, decide_on, next_phase is not None, caveats)
        if resume and folder is not None and folder.finished:
            return _read_back(folder, model, state)
        task = replace(
            task,
            folder=folder,
            files=files or {},
            about=about,
            seeds=seeds,
            diagnostics=diagnostics,
            resume=resume,
            overwrite=overwrite,
            progress=progress,
        )
        result = replace(_run(task, state, next_phase), model=model)
    remember(result.model, result.statement)
    return result


def _run(task: Task, state: PhaseState, next_phase: NextPhaseRule | None) -> PhasedRun:
    model, folder = task.model, task.folder
    keys = Keys.draw(task.seeds)
    checkpointer = None
    if folder is not None:
        checkpointer, keys, seeds = _kept(task, state, keys, folder)
        task = replace(task, seeds=seeds)
    own = Secrets.draw(task.seeds)  # a seed that is given when resuming counts too
    state.randomness = Randomness(
        keys.secrets.seeded_noise or own.seeded_noise,
        keys.secrets.seeded_sampling or own.seeded_sampling,
        state.plan.noise == "grid",
    )
    # Before the first round: a mechanism that no theorem covers is refused here.
    exact.epsilon(state.plan.mechanism, state.plan.delta)
    while state.ending is None:
        if not state.running:
            chosen = state.next(next_phase)
            if chosen is None:
                state.ending = Ending.USED_UP
                break
            state.begin(chosen)
            if checkpointer is not None:
                checkpointer.write(state.checkpoint())
        index = len(state.phases) - 1
        if folder is not None and index:
            RunFolder(_place(folder, index - 1)).load_model(model)
        run = run_plan(_phase_task(task, state, index))
        state.finish(run)
        if run.accuracy is not None and run.accuracy >= state.wanted:
            state.ending = Ending.REACHED
        if checkpointer is not None:
            checkpointer.write(state.checkpoint())
    if folder is not None:
        RunFolder(_place(folder, len(state.phases) - 1)).load_model(model)
    result = state.result(model, folder, task.diagnostics)
    result = replace(result, statement=replace(result.statement, about=task.about))
    if folder is not None:
        result = _finish(folder, state, result)
    return result


def _kept(
    task: Task, state: PhaseState, keys: Keys, folder: RunFolder
) -> tuple[Checkpointer, Keys, Seeds]:
    """Begin or continue the top folder of a run in phases; a continued state is restored.

    The seeds that later phases derive theirs from are kept in it, for its owner only, until the run
    ends: a job in a run folder has none.
    """
    seeds = task.seeds
    begun = None
    if task.resume:
        started = (folder.path / PHASES).exists()
        if started and not folder.has_checkpoint:
            raise CheckpointError(f"there is no run to resume in {folder.path}")
        begun = continued(folder, state.plan)
    saved = None
    if begun is not None:
        _, saved, keys = begun
        if "settings" not in saved.values:
            raise CheckpointError(
                f"{folder.path} holds a run that is not in phases: resume it with forethought.train"
            )
        _require(saved.values["settings"], state.settings, folder.path)
        if seeds == Seeds():
            seeds = Seeds(*saved.values.get("seeds", ()))
    named = identity(task.model, task.records, task.held_out, task.loss, keys.identity)
    place = environment(task.model, task.execution.micro_batch)
    kept = {"seeds": [seeds.sampling, seeds.noise]}
    checkpointer = Checkpointer(folder, state.plan, keys, named, place, {}, kept)
    if saved is None:
        overwrite = task.overwrite or task.resume
        checkpointer.begin(state.checkpoint, task.files, overwrite=overwrite)
    else:
        checkpointer.resume(saved)
        state.restore(saved.values)
    checkpointer.close()  # each phase counts its own rounds
    return checkpointer, keys, seeds


def _phase_task(task: Task, state: PhaseState, index: int) -> Task:
    rounds = state.phases[-1].rounds
    part = Mechanism(rounds, adjacency=state.plan.mechanism.adjacency)
    total = max(len(state.plan.mechanism), state.total)
    path = None if task.folder is None else _place(task.folder, index)
    every = max(1, math.ceil(len(part) / ROWS))
    return replace(
        task,
        plan=state.plan.with_(mechanism=part),
        folder=None if path is None else RunFolder(path),
        files={},
        execution=replace(task.execution, log_every=every),
        seeds=task.seeds.part(index),
        resume=path is not None and _begun(path),
        overwrite=False,
        progress=(
            None if task.progress is None else _shifted(task.progress, state.rounds_before, total)
        ),
        caveats=(),
    )


def _place(folder: RunFolder, index: int) -> Path:
    return folder.path / PHASES / f"{index + 1:02d}"


def _begun(path: Path) -> bool:
    """Whether there is anything of a phase's run to continue."""
    return (path / "checkpoint").is_dir() or (path / STATEMENT).is_file()


def phases_of(path: str | Path) -> tuple[Plan, float] | None:
    """The plan and the wanted accuracy of a run in phases, finished or not; None for any other."""
    folder = RunFolder(path)
    if folder.has_checkpoint and (folder.checkpoint / KEYS).exists():
        saved = Checkpoint.read(folder.checkpoint).values
        if "settings" not in saved:
            return None
        return Plan.from_dict(saved["plan"]), float(saved["settings"]["accuracy"])
    if folder.finished and (folder.path / RECORD).is_file():
        record = json.loads((folder.path / RECORD).read_text(encoding="utf-8"))
        return folder.plan(), float(record["accuracy"])
    return None


def _finish(folder: RunFolder, state: PhaseState, result: PhasedRun) -> PhasedRun:
    """Write the results, the statement last; then forget the secrets and the phases' runs."""
    record = {
        "schema": RECORD_SCHEMA,
        **state.settings,
        "reached": result.reached,
        "stopped": result.stopped,
        "phases": [{"rounds": p.rounds.to_dict(), "accuracy": p.accuracy} for p in result.phases],
    }
    folder.save_plan(result.plan)
    replace_file(folder.path / RECORD, (json.dumps(record, indent=2) + "\n").encode())
    statement = folder.save_results(
        result.model.state_dict(), result.history, result.statement, state.transcript
    )
    folder.erase_secrets()
    folder.erase_phases()
    return replace(result, statement=statement)


def _read_back(folder: RunFolder, model: torch.nn.Module, state: PhaseState) -> PhasedRun:
    path = folder.path / RECORD
    if not path.is_file():
        raise CheckpointError(f"the finished run in {folder.path} was not made in phases")
    record = json.loads(path.read_text(encoding="utf-8"))
    _require({name: record[name] for name in state.settings}, state.settings, folder.path)
    plan = folder.plan()
    if state.filter is None and plan != state.plan:
        raise CheckpointError(f"cannot resume: the plan is not that of the run in {folder.path}")
    folder.erase_phases()  # what a kill during the end of the run may have left
    folder.erase_secrets()
    folder.load_model(model)
    return PhasedRun(
        model,
        Statement.load(folder.path / STATEMENT),
        folder.load_history(),
        plan,
        folder.path,
        folder.transcript(),
        tuple(
            PhaseRecord(Rounds.from_dict(row["rounds"]), row["accuracy"])
            for row in record["phases"]
        ),
        record["reached"],
        record["stopped"],
    )


def _require(saved: Mapping[str, Any], present: Mapping[str, Any], folder: Path) -> None:
    changed = [
        f"{name} was {saved[name]!r}, is {present[name]!r}"
        for name in saved
        if saved[name] != present[name]
    ]
    if changed:
        raise CheckpointError(f"cannot resume the run in {folder}: {'; '.join(changed)}")


def _require_labels(task: Task) -> None:
    """Refuse held-out records that no accuracy can be measured on."""
    parameters = {name: p.detach() for name, p in task.model.named_parameters()}
    if (
        task.held_out is None
        or evaluate(task.model, parameters, task.loss, task.held_out)[1] is None
    ):
        raise ValueError("test has no labels: there is no accuracy to run until")


def _shifted(progress: Callable[[Event], None], before: int, total: int) -> Callable[[Event], None]:
    def shifted(event: Event) -> None:
        progress(replace(event, round=event.round + before, rounds=total, epsilon=None))

    return shifted
