"""What a finished run folder says of its run, as one plain value that reports are drawn from."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forethought.accounting.statement import Statement
from forethought.plans import Plan


@dataclass(frozen=True)
class RunSummary:
    """A finished run.

    Args:
        folder: the run folder.
        plan: what was run. statement: what was guaranteed.
        metrics: the rows of metrics.csv, as text.
        figures: the pictures in the folder.
    """

    folder: Path
    plan: Plan
    statement: Statement
    metrics: tuple[Mapping[str, str], ...]
    figures: tuple[Path, ...]

    @classmethod
    def load(cls, folder: Path) -> RunSummary:
        """Read a finished run folder.

        Raises:
            ValueError: the folder holds no finished run.
        """
        if not (folder / "statement.json").is_file():
            raise ValueError(f"{folder} holds no finished run: there is no statement.json in it")
        with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
            metrics = tuple(csv.DictReader(file))
        return cls(
            folder,
            Plan.load(folder / "plan.json"),
            Statement.load(folder / "statement.json"),
            metrics,
            tuple(sorted((folder / "figures").glob("*.png"))),
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "folder": str(self.folder),
            "plan": self.plan.to_dict(),
            "statement": json.loads(self.statement.to_json()),
            "metrics": [dict(row) for row in self.metrics],
            "figures": [str(path) for path in self.figures],
        }
