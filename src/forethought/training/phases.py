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
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from safetensors.torch import load_file

from forethought import gradients
from forethought.accounting import exact
from forethought.accounting.adaptive import PHASES_ALONE, filter_details
from forethought.accounting.renyi.filter import RenyiFilter, best_order
from forethought.accounting.statement import Statement, account
from forethought.caveats import Caveat
from forethought.mechanism import Mechanism, Rounds, one_of, real
from forethought.plans import Plan
from forethought.rounds.losses import Loss, default_loss
from forethought.rounds.randomness import SECRET_BYTES
from forethought.rounds.records import as_records
from forethought.training.checkpoint import Checkpoint, CheckpointError, replace_file
from forethought.training.datasets import opened, with_caveats
from forethought.training.folder import MODEL, PHASES, PLAN, RECORD, STATEMENT, RunFolder
from forethought.training.identity import identity, require_same
from forethought.training.metrics import Event, Metrics, evaluate, from_values, to_values
from forethought.training.progress import NextPhaseRule, Progress
from forethought.training.run import (
    NOT_COVERED_DIAGNOSTICS,
    NOT_COVERED_TEST,
    TIME_AND_MEMORY,
    Run,
    train,
)
from forethought.training.search import derived

DecideOn = Literal["held-out", "public"]
RECORD_SCHEMA = "forethought/phases/1"
# Rows of the history for each phase.
ROWS = 10

STEERED, PUBLIC_TEST = Caveat("steered-by-held-out"), Caveat("public-test")
REACHED, USED_UP = "the wanted accuracy was reached", "the budget was used up"


@dataclass(frozen=True)
class PhaseRecord:
    """One phase: what was run, and the accuracy of the model after it."""

    rounds: Rounds
    accuracy: float


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
    micro_batch: int | None = None,
    device: str | torch.device | None = None,
    seed: int | None = None,
    noise_seed: int | None = None,
    checkpoint_every: int | None = None,
    diagnostics: bool = True,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[Event], None] | None = None,
) -> PhasedRun:
    """Train phase after phase until ``accuracy`` is reached or the budget is used up.

    Each phase starts from the reported (averaged) model of the one before, with a fresh optimizer.

    Args:
        model, data, loss, files, micro_batch, device, checkpoint_every, diagnostics: as in
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
        seed, noise_seed: each phase derives its own from them.
        resume, overwrite: as in :func:`forethought.train`.
        progress: called after every round. ε is left out: it does not grow with the rounds.

    Returns:
        The run, its model that of the last phase.

    Raises:
        ValueError, TypeError: arguments that do not fit, before any private step.
        RunFolderExistsError, CheckpointError, OSError, Interrupted: as :func:`forethought.train`.
    """
    wanted = real("accuracy", accuracy, above=0, most=1)
    one_of("decide_on", decide_on, get_args(DecideOn))
    if not isinstance(plan, Plan):
        raise TypeError(f"plan must be a forethought.Plan, not {type(plan).__name__}")
    data, test, found = opened(data, test)
    plan = with_caveats(plan, found)
    if test is None:
        raise TypeError("train_until needs test=, records that accuracy is measured on")
    if next_phase is not None and plan.budget is None:
        raise ValueError("next_phase= needs a plan with a budget, which the filter keeps")
    if resume and (out is None or overwrite):
        raise ValueError("resume=True continues the run in out=: give out, without overwrite")
    if files and out is None:
        raise ValueError("files are kept in the run folder: give out=")
    fingerprint = _checked(model, data, test, plan, loss)
    state = _State(
        plan, wanted, decide_on, next_phase is not None, seed is not None or noise_seed is not None
    )
    folder = None if out is None else RunFolder(out)
    if resume and folder is not None and folder.finished:
        return _read_back(folder, model, state)
    keeper = None
    if folder is not None:
        keeper = _Keeper(folder, fingerprint)
        state = keeper.start(state, files or {}, resume=resume, overwrite=overwrite)
    options: dict[str, Any] = {
        "loss": loss,
        "test": test,
        "micro_batch": micro_batch,
        "device": device,
        "checkpoint_every": checkpoint_every,
        "diagnostics": diagnostics,
    }
    # Before the first round: a mechanism that no theorem covers is refused here.
    exact.epsilon(plan.mechanism, plan.delta)
    while not state.stopped:
        if not state.running:
            chosen = state.next(next_phase)
            if chosen is None:
                state.stopped = USED_UP
                break
            state.begin(chosen)
            if keeper is not None:
                keeper.write(state)
        index = len(state.phases) - 1
        if keeper is not None and index:
            model.load_state_dict(load_file(keeper.phase(index - 1) / MODEL))
        part = Mechanism(state.phases[-1].rounds, adjacency=plan.mechanism.adjacency)
        before, total = state.rounds_before, max(len(plan.mechanism), state.total)
        run = train(
            model,
            data,
            plan.with_(mechanism=part),
            out=None if keeper is None else keeper.phase(index),
            resume=keeper is not None and keeper.begun(index),
            seed=derived(seed, index),
            noise_seed=derived(noise_seed, index),
            log_every=max(1, math.ceil(len(part) / ROWS)),
            progress=None if progress is None else _shifted(progress, before, total),
            **options,
        )
        state.finish(run)
        if run.accuracy is not None and run.accuracy >= wanted:
            state.stopped = REACHED
        if keeper is not None:
            keeper.write(state)
    if keeper is not None:
        model.load_state_dict(load_file(keeper.phase(len(state.phases) - 1) / MODEL))
    result = state.result(model, folder, diagnostics)
    if keeper is not None:
        keeper.finish(state, result)
    return result


def phases_of(path: str | Path) -> tuple[Plan, float] | None:
    """The plan and the wanted accuracy of a run in phases, finished or not; None for any other."""
    folder = RunFolder(path)
    if folder.has_checkpoint:
        saved = Checkpoint.read(folder.checkpoint).values
        if "settings" not in saved:
            return None
        return Plan.from_dict(saved["plan"]), float(saved["settings"]["accuracy"])
    if folder.finished and (folder.path / RECORD).is_file():
        record = json.loads((folder.path / RECORD).read_text(encoding="utf-8"))
        return Plan.load(folder.path / PLAN), float(record["accuracy"])
    return None


@dataclass
class _Phase:
    rounds: Rounds
    accuracy: float | None = None
    history: tuple[Metrics, ...] = ()


class _State:
    """Which phases were begun, and what came of them."""

    def __init__(
        self, plan: Plan, wanted: float, decide_on: str, adaptive: bool, seeded: bool
    ) -> None:
        self.plan, self.wanted, self.decide_on = plan, wanted, decide_on
        self.seeded = seeded
        self.phases: list[_Phase] = []
        self.stopped = ""
        self.filter: RenyiFilter | None = None
        if adaptive and plan.budget is not None:
            first = Mechanism(plan.mechanism.rounds[0], adjacency=plan.mechanism.adjacency)
            fits = exact.epsilon(first, plan.budget.delta).upper <= plan.budget.epsilon
            if fits:
                order = best_order(plan.mechanism, plan.budget.delta)
                self.filter = RenyiFilter(plan.budget, plan.mechanism.adjacency, (order,))
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
        copy = RenyiFilter.from_state(self.filter.state_dict())
        chosen = rule(Progress(self.plan.examples, self.wanted, done, copy))
        if chosen is not None and not isinstance(chosen, Rounds):
            raise TypeError(f"next_phase must return Rounds or None, not {chosen!r}")
        if chosen is not None and self.filter.would_exceed(chosen):
            return None
        return chosen

    def begin(self, rounds: Rounds) -> None:
        if self.filter is not None:
            self.filter.spend(rounds)
        self.phases.append(_Phase(rounds))

    def finish(self, run: Run) -> None:
        before, epochs = self.rounds_before, 0.0
        if len(self.phases) > 1:
            epochs = self.phases[-2].history[-1].epoch
        self.phases[-1].history = tuple(
            replace(row, round=row.round + before, epoch=row.epoch + epochs) for row in run.history
        )
        self.phases[-1].accuracy = run.accuracy

    @property
    def mechanism(self) -> Mechanism:
        """What was released."""
        return Mechanism(*(p.rounds for p in self.phases), adjacency=self.plan.mechanism.adjacency)

    def statement(self, diagnostics: bool) -> Statement:
        uses: list[Any] = [use for use in self.plan.not_covered if use != PHASES_ALONE]
        uses.append(TIME_AND_MEMORY)
        if self.decide_on == "held-out":
            uses += [NOT_COVERED_TEST, STEERED]
        if diagnostics:
            uses.append(NOT_COVERED_DIAGNOSTICS)
        if self.decide_on == "public":
            uses.append(PUBLIC_TEST)
        ran = f"it stopped after {len(self.phases)} of them because {self.stopped}"
        if self.filter is None:
            uses.append(Caveat("phases-fixed", ran))
            return account(self.plan.with_(not_covered=tuple(uses)), seeded=self.seeded)
        uses.append(Caveat("phases-by-results", ran))
        return account(
            self.plan.with_(mechanism=self.mechanism, not_covered=tuple(uses)),
            seeded=self.seeded,
            accountant=filter_details(self.filter),
        )

    def history(self) -> tuple[Metrics, ...]:
        """All rows, with the ε that holds for everything up to them."""
        rows = [row for phase in self.phases for row in phase.history]
        if self.filter is not None:
            return tuple(replace(row, epsilon=self.filter.budget.epsilon) for row in rows)
        if any(part.noise_multiplier == 0 for part in self.plan.mechanism):
            return tuple(replace(row, epsilon=math.inf) for row in rows)
        spent = exact.epsilon_curve(
            self.plan.mechanism, self.plan.delta, [row.round for row in rows]
        )
        return tuple(
            replace(row, epsilon=found.upper) for row, found in zip(rows, spent, strict=True)
        )

    def result(
        self, model: torch.nn.Module, folder: RunFolder | None, diagnostics: bool
    ) -> PhasedRun:
        plan = self.plan
        if self.filter is not None:
            plan = plan.with_(
                mechanism=self.mechanism, not_covered=(*plan.not_covered, PHASES_ALONE)
            )
        return PhasedRun(
            model,
            self.statement(diagnostics),
            self.history(),
            plan,
            None if folder is None else folder.path,
            tuple(PhaseRecord(p.rounds, p.accuracy or 0.0) for p in self.phases),
            self.stopped == REACHED,
            self.stopped,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
        return {
            "accuracy": self.wanted,
            "decide_on": self.decide_on,
            "accounting": "fixed in advance" if self.filter is None else "filter",
        }

    def to_values(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "plan": self.plan.to_dict(),
            "seeded": self.seeded,
            "stopped": self.stopped,
            "filter": None if self.filter is None else self.filter.state_dict(),
            "phases": [
                {
                    "rounds": phase.rounds.to_dict(),
                    "accuracy": phase.accuracy,
                    "history": to_values(phase.history),
                }
                for phase in self.phases
            ],
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        self.seeded = self.seeded or values["seeded"]
        self.stopped = values["stopped"]
        if values["filter"] is not None:
            self.filter = RenyiFilter.from_state(values["filter"])
        self.phases = [
            _Phase(
                Rounds.from_dict(row["rounds"]), row["accuracy"], tuple(from_values(row["history"]))
            )
            for row in values["phases"]
        ]


class _Keeper:
    """Keeps a run in phases in its folder: the state at the top, each phase's run below it."""

    def __init__(self, folder: RunFolder, fingerprint: Callable[[bytes], dict[str, str]]) -> None:
        self.folder, self._fingerprint = folder, fingerprint
        self._fixed: dict[str, Any] = {}

    def phase(self, index: int) -> Path:
        return self.folder.path / PHASES / f"{index + 1:02d}"

    def begun(self, index: int) -> bool:
        """Whether there is anything of a phase's run to continue."""
        path = self.phase(index)
        return (path / "checkpoint").is_dir() or (path / STATEMENT).is_file()

    def start(
        self, state: _State, files: Mapping[str, str], *, resume: bool, overwrite: bool
    ) -> _State:
        if resume and self.folder.has_checkpoint:
            saved = Checkpoint.read(self.folder.checkpoint).values
            if "settings" not in saved:
                raise CheckpointError(
                    f"{self.folder.path} holds a run that is not in phases: resume it with "
                    "forethought.train"
                )
            _require(saved["settings"], state.settings, self.folder.path)
            key = bytes.fromhex(saved["key"])
            require_same(saved["identity"], self._fingerprint(key))
            self._fixed = {"key": saved["key"], "identity": saved["identity"]}
            state.restore(saved)
            return state
        begun = (self.folder.path / PHASES).exists()
        if resume and (begun or not self.folder.checkpoint.is_dir()):
            raise CheckpointError(f"there is no run to resume in {self.folder.path}")
        # Without a state nothing was released: a resumed run that died before it starts afresh.
        self.folder.begin(overwrite=overwrite or resume)
        key = os.urandom(SECRET_BYTES)
        self._fixed = {"key": key.hex(), "identity": self._fingerprint(key)}
        self.write(state)
        self.folder.keep(files)
        self.folder.save_plan(state.plan)
        return state

    def write(self, state: _State) -> None:
        """Replace the state on disk."""
        values = {**state.to_values(), **self._fixed}
        Checkpoint(len(state.phases), {}, values).write(self.folder.checkpoint)

    def finish(self, state: _State, result: PhasedRun) -> None:
        """Write the results, the statement last; then forget the secrets and the phases' runs."""
        record = {
            "schema": RECORD_SCHEMA,
            **state.settings,
            "reached": result.reached,
            "stopped": result.stopped,
            "phases": [
                {"rounds": p.rounds.to_dict(), "accuracy": p.accuracy} for p in result.phases
            ],
        }
        self.folder.save_plan(result.plan)
        text = json.dumps(record, indent=2) + "\n"
        replace_file(self.folder.path / RECORD, text.encode())
        self.folder.save_results(result.model.state_dict(), result.history, result.statement)
        self.folder.erase_secrets()
        self.folder.erase_phases()


def _read_back(folder: RunFolder, model: torch.nn.Module, state: _State) -> PhasedRun:
    path = folder.path / RECORD
    if not path.is_file():
        raise CheckpointError(f"the finished run in {folder.path} was not made in phases")
    record = json.loads(path.read_text(encoding="utf-8"))
    _require({name: record[name] for name in state.settings}, state.settings, folder.path)
    plan = Plan.load(folder.path / PLAN)
    if state.filter is None and plan != state.plan:
        raise CheckpointError(f"cannot resume: the plan is not that of the run in {folder.path}")
    folder.erase_phases()  # what a kill during the end of the run may have left
    folder.erase_secrets()
    model.load_state_dict(load_file(folder.path / MODEL))
    return PhasedRun(
        model,
        Statement.load(folder.path / STATEMENT),
        folder.load_history(),
        plan,
        folder.path,
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


def _checked(
    model: torch.nn.Module, data: object, test: object, plan: Plan, loss: Loss | None
) -> Callable[[bytes], dict[str, str]]:
    """Refuse what no phase could run on; what recognises the run again, under a key."""
    gradients.check_model(model)
    first = next(p for p in model.parameters() if p.requires_grad)
    records = as_records(data, first.dtype, first.device)
    if len(records) != plan.examples:
        raise ValueError(
            f"the plan is for {plan.examples} examples, the data has {len(records)}: the "
            "guarantee depends on it. Make the plan with examples=len(data)"
        )
    held_out = as_records(test, first.dtype, first.device, "test")
    chosen = default_loss(records.take(np.arange(1))[1]) if loss is None else loss
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    if evaluate(model, parameters, chosen, held_out)[1] is None:
        raise ValueError("test has no labels: there is no accuracy to run until")
    return lambda key: identity(model, records, held_out, plan, chosen, key)


def _shifted(progress: Callable[[Event], None], before: int, total: int) -> Callable[[Event], None]:
    def shifted(event: Event) -> None:
        progress(replace(event, round=event.round + before, rounds=total, epsilon=None))

    return shifted
