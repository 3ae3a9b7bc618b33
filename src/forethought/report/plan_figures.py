"""The figures of a plan before it runs: ε against rounds, σ against batch, the Pareto front."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from forethought.accounting.calibration import least_multiplier
from forethought.mechanism import Budget
from forethought.planning.pareto import Front
from forethought.plans import Plan
from forethought.report.figures import BLUE, GREY, ORANGE, draw_epsilon, new_axes
from forethought.samplings import FullBatch, Poisson

BATCHES = 12


def draw_plan(plan: Plan, folder: Path, front: Front | None = None) -> list[Path]:
    """Draw the figures of a plan into ``folder`` as PNG and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [
        draw_epsilon(plan.mechanism, plan.delta, folder / "epsilon.png", plan.records_per_person),
        draw_noise(plan, folder / "noise.png"),
        None if front is None else draw_front(front, folder / "pareto.png"),
    ]
    return [path for path in drawn if path is not None]


def draw_noise(plan: Plan, path: Path) -> Path | None:
    """The noise that the same promise needs at other batches; None unless Poisson with a budget."""
    if plan.budget is None or len(plan.mechanism.rounds) != 1:
        return None
    if not isinstance(plan.sampling, Poisson | FullBatch):
        return None
    part = plan.mechanism.rounds[0]
    budget = Budget(plan.budget.epsilon, plan.delta)
    least = max(1.0, plan.batch / 30)
    batches = np.geomspace(least, plan.examples, BATCHES)
    adjacency = plan.mechanism.adjacency
    sigmas = np.array(
        [
            least_multiplier(
                budget,
                Poisson(min(1.0, batch / plan.examples)),
                part.count,
                part.clipping,
                adjacency,
                group=plan.records_per_person,
            )
            for batch in batches
        ]
    )
    figure, axes = new_axes(
        f"Noise for ε = {budget.epsilon:g} in {part.count:,} rounds", "batch", "σ, and σ a record"
    )
    axes.loglog(batches, sigmas, color=BLUE, linewidth=1.8, label="noise multiplier σ")
    relative = sigmas / batches
    axes.loglog(
        batches, relative, color=ORANGE, linewidth=1.8, label="σ / batch: noise a record meets"
    )
    axes.axvline(plan.batch, color=GREY, linestyle=":", label="this plan")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path)
    return path


def draw_front(front: Front, path: Path) -> Path:
    """The front: noise for the signal against ε, gradient computations as colour."""
    figure, axes = new_axes(
        f"{len(front.candidates)} plans of those that none of {front.considered} beats",
        "ε",
        "noise for the signal (less is better)",
    )
    rows = front.candidates
    dots = axes.scatter(
        [row.epsilon for row in rows],
        [row.noise for row in rows],
        c=np.log10([row.gradients for row in rows]),
        s=[12 + 10 * np.log10(row.rounds) for row in rows],
        cmap="viridis",
        alpha=0.85,
        linewidths=0,
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    figure.colorbar(dots, ax=axes, label="log₁₀ gradient computations")
    figure.savefig(path)
    return path
