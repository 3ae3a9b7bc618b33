"""The networks of van Dijk et al., "Proactive DP", on images: what their comparisons share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from comparison import Preset, Problem, add_options, estimate, preset, report, run

import forethought as ft
from forethought.data import load
from forethought.models import build
from forethought.rounds.contributions import cross_entropy

# Published networks are there.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))


@dataclass(frozen=True)
class Comparison:
    """A network, its data and the paper's settings.

    Attributes:
        name: in tables. source: of the data. model: the network's name.
        delta, table: δ, and rows (ε, σ, s) as printed. printed: accuracies, where it has them.
        gradients: the paper's K. few: K of the small preset.
        small, full: what the two presets compute.
    """

    name: str
    source: str
    model: str
    delta: float
    table: Sequence[tuple[float, float, int]]
    printed: Mapping[float | None, float]
    gradients: int
    few: int
    small: Preset
    full: Preset

    def problem(self, folder: Path | None, gradients: int) -> Problem:
        """The non-convex problem with K = ``gradients``."""
        data = load(self.source, folder=folder)
        if data.test is None:
            raise SystemExit(f"the test part of {self.source} is missing")
        inputs, targets = torch.from_numpy(data.test.inputs), torch.from_numpy(data.test.targets)

        def score(model: torch.nn.Module) -> float:
            with torch.no_grad():
                outputs = torch.cat([model(piece) for piece in inputs.split(500)])
            return float((outputs.argmax(1) == targets).double().mean())

        return Problem(
            name=self.name,
            model=build(self.model, inputs=tuple(inputs.shape[1:]), classes=10, seed=0),
            data=(data.train.inputs, data.train.targets),
            loss=cross_entropy,
            score=score,
            delta=self.delta,
            gradients=gradients,
            clip_norm=0.025,
            step_size=0.1,
            schedule=ft.Schedule("inverse-sqrt", decay=0.01, unit="examples"),
            options=(),
            table=tuple(self.table),
            printed=dict(self.printed),
        )

    def main(self, description: str) -> None:
        """Run what the command line asks for."""
        parser = argparse.ArgumentParser(description=description)
        add_options(parser)
        parser.add_argument("--gradients", type=int, help=f"K; the paper's is {self.gradients:,}")
        parser.add_argument("--out", type=Path, default=Path("runs/proactive_dp") / self.model)
        arguments = parser.parse_args()
        torch.set_num_threads(1)
        gradients = arguments.gradients or (self.gradients if arguments.full else self.few)
        problem = self.problem(arguments.data, gradients)
        asked = preset(arguments, self.small, self.full)
        if arguments.estimate:
            estimate([problem], asked)
            return
        report(arguments.out, [problem], run(problem, asked, arguments.out))
