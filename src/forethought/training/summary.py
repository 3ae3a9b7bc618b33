"""The content of a run folder, as plain values that reports are drawn from."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forethought.accounting.exact import epsilon
from forethought.accounting.statement import Statement
from forethought.rounds.transcript import Transcript
from forethought.training.metrics import Results
from forethought.values.mechanism import Mechanism
from forethought.values.plan import Plan


@dataclass(frozen=True)
class RunSummary:
    """A finished run.

    Args:
        folder: the run folder.
        plan: what was run. statement: what was guaranteed.
        metrics: the rows of metrics.csv, as text.
        figures: the pictures in the folder.
        results: what the model is worth on held-out records, where a job measured it.
    """

    folder: Path
    plan: Plan
    statement: Statement
    metrics: tuple[Mapping[str, str], ...]
    figures: tuple[Path, ...]
    results: Results | None = None

    @classmethod
    def load(cls, folder: Path) -> RunSummary:
        """Read a finished run folder.

        Raises:
            ValueError: the folder holds no finished run.
        """
        if not (folder / "statement.json").is_file():
            raise ValueError(f"{folder} holds no finished run: there is no statement.json in it")
        path = folder / "metrics.csv"
        if not path.is_file():
            raise ValueError(f"{folder} is not complete: its metrics.csv is gone")
        with path.open(encoding="utf-8", newline="") as file:
            metrics = tuple(csv.DictReader(file))
        return cls(
            folder,
            Plan.load(folder / "plan.json"),
            Statement.load(folder / "statement.json"),
            metrics,
            tuple(sorted((folder / "figures").glob("*.png"))),
            Results.load(folder / "results.json"),
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "folder": str(self.folder),
            "plan": self.plan.to_dict(),
            "statement": json.loads(self.statement.to_json()),
            "metrics": [dict(row) for row in self.metrics],
            "figures": [str(path) for path in self.figures],
            "results": None if self.results is None else json.loads(self.results.to_json()),
        }


@dataclass(frozen=True)
class UnfinishedRun:
    """A run that was interrupted, as far as it came.

    Args:
        folder: the run folder. plan: what it began to run.
        released: rounds that may have been released.
        spent: certified upper end of ε of these at the plan's δ; None for a run in phases, whose
            plan says what all of them cost.
        last: the last row of its history, without what was taken on private batches.
    """

    folder: Path
    plan: Plan
    released: int
    spent: float | None
    last: Mapping[str, float | int]

    @classmethod
    def load(cls, folder: Path) -> UnfinishedRun:
        """Read an interrupted run folder; nothing in it is changed.

        Raises:
            ValueError: the folder holds no interrupted run, or a damaged one.
        """
        from forethought.training.folder import PHASES, Checkpoint, ReleasedRounds, RunFolder
        from forethought.training.metrics import PUBLIC, from_values

        run = RunFolder(folder)
        if not run.has_checkpoint or not (folder / "plan.json").is_file():
            raise ValueError(
                f"{folder} holds no run: there is no statement.json or plan.json in it"
            )
        plan, saved = Plan.load(folder / "plan.json"), Checkpoint.read(run.checkpoint).values
        phases = saved.get("phases")
        times = ReleasedRounds.peek(run.checkpoint)
        if phases is None:
            history = saved["history"]
            released = max(times, default=-1) + 1
        else:
            history = [row for phase in phases for row in phase["history"]]
            released = sum(
                phase["rounds"]["count"] for phase in phases if phase["accuracy"] is not None
            )
            if phases and phases[-1]["accuracy"] is None:
                current = RunFolder(folder / PHASES / f"{len(phases):02d}")
                released += max(ReleasedRounds.peek(current.checkpoint), default=-1) + 1
        spent = None
        if phases is None:
            spent = 0.0
            if released:
                spent = epsilon(_released(plan, times, released), plan.delta).upper
        last = from_values(history[-1:])
        values = {name: getattr(last[0], name) for name in PUBLIC} if last else {}
        public = {name: value for name, value in values.items() if value is not None}
        return cls(folder, plan, released, spent, public)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "folder": str(self.folder),
            "finished": False,
            "plan": self.plan.to_dict(),
            "released": self.released,
            "spent": self.spent,
            "last": dict(self.last),
        }


def _released(plan: Plan, times: Mapping[int, int], rounds: int) -> Mechanism:
    """The releases of so many rounds of a plan, those that were released again included."""
    before = len(plan.mechanism) - plan.rounds
    if max(times.values()) == 1:
        return plan.mechanism.first(before + rounds)
    done = Transcript()
    for index in range(rounds):
        one = plan.round(index)
        done.append(
            one,
            one.noise_std,
            one.clip_norm,
            one.count_noise,
            one.strategy,
            times.get(index, 1),
        )
    found = done.mechanism(plan.mechanism.adjacency)
    if not before:
        return found
    return plan.mechanism.first(before) + found
