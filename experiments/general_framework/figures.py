"""The paper's figures: trade-off functions (no training needed), and Figure 1 of what was run.

    python experiments/general_framework/figures.py            # into docs/figures/
    python experiments/general_framework/figures.py --out DIR --results table3.jsonl

Trade-off functions are for batch clipping at N 60,000, s 256, E 20, the paper's σ 8 and groups of g
records: what the adversary who knows which rounds hold them can reach (exact), each published bound
where it differs, and what one who does not know can reach. A published lower bound that lies above
the exact curve anywhere is refuted. Figure 1 is test accuracy by batch size, the best over clipping
norms, of the rows of two epochs that table3.py left: one with 100 epochs has one batch size.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import forethought as ft
from forethought.papers.strong_adversary import StrongAdversary
from forethought.values.mechanism import Mechanism, Rounds, Shuffled, WithoutReplacement

N, BATCH, EPOCHS, SIGMA = 60_000, 256, 20, 8.0
ALPHA = np.linspace(0.0, 1.0, 201)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
MARKS = {"individual": "o", "batch": "s", "mixed": "^", "none": "x"}


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.9", linewidth=0.6)
    return figure, panels


def trade_offs(path: Path) -> None:
    """Four panels: subsampling and shuffling, g = 1 and g = 4."""
    figure, panels = _figure(2, 2, 9.0, 8.0)
    for row, kind in enumerate(("subsampling", "shuffling")):
        drawn = WithoutReplacement(BATCH, N) if row == 0 else Shuffled(BATCH, N)
        rounds = Rounds(2 * SIGMA, EPOCHS * -(-N // BATCH), drawn, "group", groups=1)
        mechanism = Mechanism(rounds, adjacency="replace-one")
        for column, g in enumerate((1, 4)):
            axes = panels[row][column]
            run = StrongAdversary(N, EPOCHS, 2 * SIGMA, 1, BATCH, kind, g)  # type: ignore[arg-type]
            axes.plot(ALPHA, 1 - ALPHA, color="0.7", linewidth=0.8)
            axes.plot(ALPHA, run.tradeoff()(ALPHA), color="black", label="batches known, exact")
            unknown = ft.tradeoff(mechanism, group=g)
            axes.plot(ALPHA, unknown(ALPHA), color="0.5", linestyle=":", label="batches unknown")
            for colour, bound in zip(COLOURS, run.paper_bounds(), strict=False):
                name = bound.name.replace("Theorem ", "")
                label = f"{name}: {bound.verdict}"
                axes.plot(ALPHA, bound.curve(ALPHA), color=colour, linestyle="--", label=label)
            axes.set_title(f"{kind}, g = {g}", loc="left", fontsize=10)
            axes.set_xlabel("false positives α")
            axes.set_ylabel("false negatives β")
            axes.legend(fontsize=6, frameon=False)
    figure.savefig(path)


def figure_1(rows: list[dict[str, Any]], path: Path) -> None:
    """Accuracy by batch size, a panel a data set."""
    names = sorted({row["data"] for row in rows})
    figure, panels = _figure(1, len(names), 4.5 * len(names), 4.0)
    for axes, name in zip(panels[0], names, strict=True):
        for colour, sampling in zip(COLOURS, ("subsampling", "shuffling"), strict=False):
            for clipping, mark in MARKS.items():
                best: dict[int, float] = {}
                for row in rows:
                    if (row["data"], row["sampling"], row["clipping"]) == (
                        name,
                        sampling,
                        clipping,
                    ):
                        found = max(best.get(row["batch"], 0.0), 100 * row["accuracy"])
                        best[row["batch"]] = found
                if best:
                    label = f"{sampling}, " + ("without noise" if clipping == "none" else clipping)
                    sizes = sorted(best)
                    reached = [best[size] for size in sizes]
                    axes.plot(sizes, reached, color=colour, marker=mark, label=label, linewidth=0.8)
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, 100)
        axes.set_title(name, loc="left", fontsize=10)
        axes.set_xlabel("batch size")
        axes.set_ylabel("test accuracy, %")
        axes.legend(fontsize=6, frameon=False)
    figure.savefig(path)


def main() -> None:
    """Draw both."""
    here = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=here.parents[1] / "docs" / "figures")
    parser.add_argument("--results", type=Path, default=here / "table3.jsonl")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    trade_offs(asked.out / "general_framework_tradeoff.png")
    rows = [json.loads(line) for line in asked.results.read_text().splitlines()]
    short = [row for row in rows if row["epochs"] == 2]
    figure_1(short, asked.out / "general_framework_accuracy.png")


if __name__ == "__main__":
    main()
