"""Training in phases until an accuracy is reached or the budget is used up."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

import torch

from forethought.accounting import exact
from forethought.accounting.adaptive import (
    PHASES_ALONE,
    Filter,
    NextPhaseRule,
    Progress,
    filter_from_state,
    suited_filter,
)
from forethought.accounting.statement import About, Randomness, Statement, account
from forethought.data import Dataset as LoadedData
from forethought.rounds.losses import Loss
from forethought.rounds.preparation import require_unprepared
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.team import Team
from forethought.rounds.transcript import Payer, Transcript, TranscriptError
from forethought.training.execution import Execution, ShortForms, alone, settled
from forethought.training.folder import (
    KEYS,
    PHASES,
    RECORD,
    STATEMENT,
    Checkpoint,
    Checkpointer,
    CheckpointError,
    Keys,
    RunFolder,
    continued,
    environment,
    identity,
    locked,
    remember,
    replace_file,
    trained_before,
)
from forethought.training.metrics import Event, Metrics, evaluate, from_values, to_values
from forethought.training.records import (
    CoincidingRecordsError,
    uncentred,
    warn_of_another_model,
)
from forethought.training.run import (
    NOT_COVERED_DIAGNOSTICS,
    NOT_COVERED_TEST,
    TIME_AND_MEMORY,
    Run,
    Task,
    epsilon_at,
    folder_of,
    require_public,
    reserved,
    run_plan,
    settled_in,
    task_of,
)
from forethought.values.caveats import Caveat
from forethought.values.checks import one_of, real
from forethought.values.mechanism import Mechanism, Rounds
from forethought.values.plan import Plan

# Where a run in phases stands: which phases were begun, what came of them, what may follow.


STEERED, PUBLIC_TEST = Caveat("steered-by-held-out"), Caveat("public-test")


# The reason why there was no further phase → its words for a person.
ENDINGS = {"reached": "the wanted accuracy was reached", "used-up": "the budget was used up"}


@dataclass(frozen=True)
class PhaseRecord:
    """One phase: what was run, and the accuracy of the model after it; none while it runs."""

    rounds: Rounds
    accuracy: float | None = None
    history: tuple[Metrics, ...] = field(default=(), compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the history."""
        return {"rounds": self.rounds.to_dict(), "accuracy": self.accuracy}


@dataclass(frozen=True)
class PhasedRun(Run):
    """A run in phases.

    Args:
        phases: what was run, in order.
        reached: whether the wanted accuracy was.
        stopped: why there was no further phase, in words.
    """

    phases: tuple[PhaseRecord, ...] = ()
    reached: bool = False
    stopped: str = ""


class PhaseState:
    """The phases that were begun, and their outcomes."""

    def __init__(
        self, plan: Plan, wanted: float, decide_on: str, adaptive: bool, caveats: Sequence[Caveat]
    ) -> None:
        self.plan, self.wanted, self.decide_on = plan, wanted, decide_on
        self.caveats = tuple(caveats)
        self.randomness = Randomness()
        self.transcript = Transcript()
        self.phases: list[PhaseRecord] = []
        self.ending: str | None = None  # of ENDINGS
        self.filter: Filter | None = None
        if adaptive and plan.budget is not None:
            first = Mechanism(plan.mechanism.rounds[0], adjacency=plan.mechanism.adjacency)
            fits = exact.epsilon(first, plan.budget.delta).upper <= plan.budget.epsilon
            if fits:
                self.filter = suited_filter(plan.mechanism, plan.budget)
            if self.filter is None or self.filter.would_exceed(first):
                raise ValueError(
                    f"the first phase alone exceeds the budget of epsilon {plan.budget.epsilon}: "
                    "plan it with less of it, for example by forethought.plan_phases"
                )

    @property
    def running(self) -> bool:
        return bool(self.phases) and self.phases[-1].accuracy is None

    @property
    def total(self) -> int:
        return sum(phase.rounds.count for phase in self.phases)

    @property
    def rounds_before(self) -> int:
        return self.total - self.phases[-1].rounds.count

    def next(self, rule: NextPhaseRule | None) -> Rounds | None:
        parts = self.plan.mechanism.rounds
        if self.filter is None or rule is None or not self.phases:
            return parts[len(self.phases)] if len(self.phases) < len(parts) else None
        done = tuple((p.rounds, p.accuracy or 0.0) for p in self.phases)
        copy = filter_from_state(self.filter.state_dict())
        chosen = rule(Progress(self.plan.examples, self.wanted, done, copy))
        if chosen is not None and not isinstance(chosen, Rounds):
            raise TypeError(f"next_phase must return Rounds or None, not {chosen!r}")
        if chosen is not None and self.filter.would_exceed(chosen):
            return None
        return chosen

    def begin(self, rounds: Rounds) -> None:
        if self.filter is not None:
            self.filter.spend(rounds)
        self.phases.append(PhaseRecord(rounds))

    def finish(self, run: Run) -> None:
        before, epochs = self.rounds_before, 0.0
        if len(self.phases) > 1:
            epochs = self.phases[-2].history[-1].epoch
        rows = tuple(
            replace(row, round=row.round + before, epoch=row.epoch + epochs) for row in run.history
        )
        self.phases[-1] = PhaseRecord(self.phases[-1].rounds, run.accuracy, rows)
        if run.transcript is None:
            raise TranscriptError("a phase left no transcript: no statement is written")
        if run.transcript.again:
            raise TranscriptError(
                f"{run.transcript.again} rounds of a phase were released again with other sums, "
                "which phases that were decided within a budget do not account for: no statement "
                "is written. The phase's own folder has its own"
            )
        self.transcript.extend(run.transcript)

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of what was released."""
        return Mechanism(*(p.rounds for p in self.phases), adjacency=self.plan.mechanism.adjacency)

    @property
    def _words(self) -> str:
        return "" if self.ending is None else ENDINGS[self.ending]

    def statement(self, diagnostics: bool) -> Statement:
        uses: list[Any] = [use for use in self.plan.not_covered if use != PHASES_ALONE]
        uses += (*self.caveats, TIME_AND_MEMORY)
        if self.decide_on == "held-out":
            uses += [NOT_COVERED_TEST, STEERED]
        if diagnostics:
            uses.append(NOT_COVERED_DIAGNOSTICS)
        if self.decide_on == "public":
            uses.append(PUBLIC_TEST)
        ran = f"it stopped after {len(self.phases)} of them because {self._words}"
        if self.filter is None:
            uses.append(Caveat("phases-fixed", ran))
            return account(self.plan.with_(not_covered=tuple(uses)), randomness=self.randomness)
        uses.append(Caveat("phases-by-results", ran))
        return account(
            self.plan.with_(mechanism=self.mechanism, not_covered=tuple(uses)),
            randomness=self.randomness,
            accountant=self.filter.details(),
        )

    def history(self, statement: Statement) -> tuple[Metrics, ...]:
        """All rows, with the ε that holds for everything up to them."""
        rows = [row for phase in self.phases for row in phase.history]
        spent = epsilon_at(statement, sorted({row.round for row in rows}))
        return tuple(replace(row, epsilon=spent[row.round]) for row in rows)

    def result(
        self, model: torch.nn.Module, folder: RunFolder | None, diagnostics: bool
    ) -> PhasedRun:
        """The whole run.

        Raises:
            TranscriptError: what was released is not what is accounted.
        """
        plan = self.plan
        if self.filter is not None:
            plan = plan.with_(
                mechanism=self.mechanism, not_covered=(*plan.not_covered, PHASES_ALONE)
            )
        statement = self.statement(diagnostics)
        # Phases fixed in advance are all accounted; a run may have stopped after some.
        self.transcript.require(statement.mechanism, stopped=self.filter is None)
        statement = statement.of_run(self.transcript.releases())
        return PhasedRun(
            model,
            statement,
            self.history(statement),
            plan,
            None if folder is None else folder.path,
            self.transcript,
            tuple(replace(p, accuracy=p.accuracy or 0.0) for p in self.phases),
            self.ending == "reached",
            self._words,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that must be the same when a run is resumed."""
        return {
            "accuracy": self.wanted,
            "decide_on": self.decide_on,
            "accounting": "fixed in advance" if self.filter is None else "filter",
        }

    def checkpoint(self) -> Checkpoint:
        """The state, for the run folder."""
        return Checkpoint(len(self.phases), {}, self.to_values())

    def to_values(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "plan": self.plan.to_dict(),
            "caveats": [caveat.to_dict() for caveat in self.caveats],
            "transcript": self.transcript.to_values(),
            "ending": self.ending,
            "filter": None if self.filter is None else self.filter.state_dict(),
            "phases": [{**p.to_dict(), "history": to_values(p.history)} for p in self.phases],
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        self.caveats = tuple(Caveat.from_dict(row) for row in values["caveats"])
        self.transcript = Transcript.from_values(values["transcript"])
        self.ending = values["ending"]
        if values["filter"] is not None:
            self.filter = filter_from_state(values["filter"])
        self.phases = [
            _phase_of(row, tuple(from_values(row["history"]))) for row in values["phases"]
        ]


def _phase_of(row: Mapping[str, Any], history: tuple[Metrics, ...] = ()) -> PhaseRecord:
    return PhaseRecord(Rounds.from_dict(row["rounds"]), row["accuracy"], history)


# Train in phases until an accuracy is reached or the budget is used up.
#
# Source: van Dijk et al., "Proactive DP", Appendix E, Figure 15. The accuracy after a phase is a
# function of what was released, even on public records, so whether there is a further phase depends
# on earlier outputs. **Formal guarantee**, one of two:
#
# - *Phases fixed in advance* (a plan of several parts). Only the time of stopping depends on
#   results; what a stopped run releases is a function of what the full one would have released. The
#   exact ε of the full sequence holds, whenever it stops.
# - *Phases chosen by results* (``next_phase``). A Rényi filter with the plan's budget, set before
#   the first round, is charged before each phase, and a phase that does not fit is not run. Its
#   budget is the guarantee (Feldman and Zrnic 2021, Theorem 4.3).
#
# Both hold for the records that are trained on. Held-out records that steer the run are used
# without noise, and the Statement names them.


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
    ledger: Payer | None = None,
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
        model, data, loss, files, about, ledger, execution, diagnostics, short: as in
            :func:`forethought.train`. The ledger reserves all phases, and those that were not run
            return.
        plan: with several parts, each a phase: see :func:`forethought.plan_phases`. With
            ``next_phase`` its first part is the first phase, its budget that of the filter, and
            the rest only what is foreseen.
        accuracy: in (0, 1]: stop after the first phase that reaches it.
        test: records that accuracy is measured on. Default: those of a
            ``forethought.data.Dataset``.
        decide_on: whether these are ``"public"`` or private ``"held-out"`` ones; the latter are
            named in the Statement as not covered.
        next_phase: a rule that chooses the next phase by results, or returns None to stop; for
            example :func:`forethought.planning.search.next_by_shortfall`. Totals then go
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
    folder = folder_of(out, files, resume, overwrite)
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
    if test is None and not (isinstance(data, LoadedData) and data.test is not None):
        raise TypeError("train_until needs test=, records that accuracy is measured on")
    if next_phase is not None and plan.budget is None:
        raise ValueError("next_phase= needs a plan with a budget, which the filter keeps")
    if ledger is not None and next_phase is not None:
        raise ValueError(
            "a ledger reserves what a run can release before it begins, and next_phase= decides "
            "that by results: plan the phases in advance with forethought.plan_phases"
        )
    with contextlib.ExitStack() as held:
        held.enter_context(locked(None if folder is None else folder.path))
        paid = reserved(held, ledger, plan, folder, resume, overwrite, Team())
        task = task_of(model, data, test, plan, loss, execution)
        _require_labels(task)
        warn_of_another_model(task.plan, model, data)
        if decide_on == "public":
            require_public(task.caveats, "test", "decide_on='held-out'")
        earlier = () if resume else trained_before(model, None if folder is None else folder.path)
        caveats = (*task.caveats, *earlier)
        state = PhaseState(task.plan, wanted, decide_on, next_phase is not None, caveats)
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
            paid=paid,
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
                state.ending = "used-up"
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
            state.ending = "reached"
        if checkpointer is not None:
            checkpointer.write(state.checkpoint())
    if folder is not None:
        RunFolder(_place(folder, len(state.phases) - 1)).load_model(model)
    result = state.result(model, folder, task.diagnostics)
    statement = replace(result.statement, about=task.about)
    result = replace(result, statement=settled_in(task, statement, state.total))
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
        paid_before=state.rounds_before,
    )


def _place(folder: RunFolder, index: int) -> Path:
    return folder.path / PHASES / f"{index + 1:02d}"


def _begun(path: Path) -> bool:
    """True if there is anything of a phase's run to continue."""
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
        "phases": [phase.to_dict() for phase in result.phases],
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
        tuple(map(_phase_of, record["phases"])),
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
