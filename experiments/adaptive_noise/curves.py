"""Figures 1 and 2: the gradient's norm against the privacy spent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from trajectories import DEFAULT, EPSILONS, Result

FIGURES = {"figure1": ("synthetic", "iris"), "figure2": ("mnist", "breast-cancer", "kdd")}


def draw(results: Sequence[Result], folder: Path) -> None:
    """Write figure1.svg and figure2.svg, of the data sets that there are results of."""
    for title, wanted in FIGURES.items():
        names = [name for name in wanted if any(result.job.name == name for result in results)]
        if not names:
            continue
        figure, axes = plt.subplots(
            len(names), 2, figsize=(9, 3.2 * len(names)), squeeze=False, sharex=True
        )
        for row, name in enumerate(names):
            for column, l2 in enumerate((0.0, 0.1)):
                _panel(axes[row][column], results, name, l2)
        axes[0][0].legend(fontsize=7)
        figure.tight_layout()
        figure.savefig(folder / f"{title}.svg", metadata={"Date": None})
        plt.close(figure)


def _panel(axes: plt.Axes, results: Sequence[Result], name: str, l2: float) -> None:
    for result in sorted(results, key=lambda result: result.job.way):
        job = result.job
        if (job.name, job.l2, job.printed) != (name, l2, False):
            continue
        if not result.curve or (job.way == DEFAULT and job.epsilon != EPSILONS[-1]):
            continue
        label = f"{job.way}, planned for ε = {job.epsilon:g}" if job.way == DEFAULT else job.way
        epsilon, low, middle, high = zip(*result.curve, strict=True)
        (line,) = axes.plot(epsilon, middle, label=label, lw=2 if job.way == DEFAULT else 1)
        axes.fill_between(epsilon, low, high, alpha=0.15, color=line.get_color())
    axes.set(xscale="log", yscale="log", title=f"{name}, λ = {l2:g}")
    axes.set(xlabel="ε spent (exact)", ylabel="norm of the gradient")
