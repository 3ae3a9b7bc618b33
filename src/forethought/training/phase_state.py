"""Where a run in phases stands: which phases were begun, what came of them, what may follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch

from forethought.accounting import exact
from forethought.accounting.adaptive import (
    PHASES_ALONE,
    Filter,
    filter_details,
    filter_from_state,
    suited_filter,
)
from forethought.accounting.assumptions import Randomness
from forethought.accounting.statement import Statement, account
from forethought.caveats import Caveat
from forethought.mechanism import Mechanism, Rounds
from forethought.plans import Plan
from forethought.rounds.transcript import Transcript, TranscriptError
from forethought.training.checkpoint import Checkpoint
from forethought.training.folder import RunFolder
from forethought.training.loop import epsilon_at
from forethought.training.metrics import Metrics, from_values, to_values
from forethought.training.progress import NextPhaseRule, Progress
from forethought.training.run import NOT_COVERED_DIAGNOSTICS, NOT_COVERED_TEST, TIME_AND_MEMORY, Run

STEERED, PUBLIC_TEST = Caveat("steered-by-held-out"), Caveat("public-test")


class Ending(Enum):
    """Why there was no further phase."""

    REACHED = "reached"
    USED_UP = "used-up"

    @property
    def words(self) -> str:
        """What a person reads."""
        return {
            Ending.REACHED: "the wanted accuracy was reached",
            Ending.USED_UP: "the budget was used up",
        }[self]


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


@dataclass
class Phase:
    """One phase that was begun; without an accuracy it has not ended."""

    rounds: Rounds
    accuracy: float | None = None
    history: tuple[Metrics, ...] = ()


class PhaseState:
    """Which phases were begun, and what came of them."""

    def __init__(
        self, plan: Plan, wanted: float, decide_on: str, adaptive: bool, caveats: Sequence[Caveat]
    ) -> None:
        self.plan, self.wanted, self.decide_on = plan, wanted, decide_on
        self.caveats = tuple(caveats)
        self.randomness = Randomness()
        self.transcript = Transcript()
        self.phases: list[Phase] = []
        self.ending: Ending | None = None
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
        self.phases.append(Phase(rounds))

    def finish(self, run: Run) -> None:
        before, epochs = self.rounds_before, 0.0
        if len(self.phases) > 1:
            epochs = self.phases[-2].history[-1].epoch
        self.phases[-1].history = tuple(
            replace(row, round=row.round + before, epoch=row.epoch + epochs) for row in run.history
        )
        self.phases[-1].accuracy = run.accuracy
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
        """What was released."""
        return Mechanism(*(p.rounds for p in self.phases), adjacency=self.plan.mechanism.adjacency)

    @property
    def _words(self) -> str:
        return "" if self.ending is None else self.ending.words

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
            accountant=filter_details(self.filter),
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
            tuple(PhaseRecord(p.rounds, p.accuracy or 0.0) for p in self.phases),
            self.ending is Ending.REACHED,
            self._words,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """What must be the same when a run is resumed."""
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
            "ending": None if self.ending is None else self.ending.value,
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
        self.caveats = tuple(Caveat.from_dict(row) for row in values["caveats"])
        self.transcript = Transcript.from_values(values["transcript"])
        self.ending = None if values["ending"] is None else Ending(values["ending"])
        if values["filter"] is not None:
            self.filter = filter_from_state(values["filter"])
        self.phases = [
            Phase(
                Rounds.from_dict(row["rounds"]), row["accuracy"], tuple(from_values(row["history"]))
            )
            for row in values["phases"]
        ]
