"""Finished runs of a comparison, kept in a file, so that a long experiment can be run in pieces."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Cell:
    """One run: a plan of a problem with one seed."""

    problem: str
    gradients: int
    holders: str
    kind: str
    epsilon: float
    size: int
    seed: int


class Cells:
    """The accuracies, in per cent, of the runs that are done."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.done: dict[Cell, float] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                values = json.loads(line)
                cell = Cell(**values["cell"])
                if "accuracies" in values:
                    for more, accuracy in enumerate(values["accuracies"]):
                        self.done[replace(cell, seed=cell.seed + more)] = accuracy
                else:
                    self.done[cell] = values["accuracy"]

    def keep(self, cell: Cell, accuracy: float, seconds: float) -> None:
        """Add a run to the file."""
        self.done[cell] = accuracy
        self._write({"cell": asdict(cell), "accuracy": accuracy, "seconds": round(seconds, 1)})

    def keep_all(self, cells: Sequence[Cell], accuracies: Sequence[float], seconds: float) -> None:
        """Add one plan's runs, of successive seeds, as one line."""
        found = [round(accuracy, 4) for accuracy in accuracies]
        self.done.update(zip(cells, found, strict=True))
        cell = asdict(cells[0])
        self._write({"cell": cell, "accuracies": found, "seconds": round(seconds, 3)})

    def _write(self, values: dict[str, object]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values, ensure_ascii=False) + "\n")
