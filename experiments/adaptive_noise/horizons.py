"""How many iterations exact accounting buys, and what they are worth.

    python experiments/adaptive_noise/horizons.py --data-dir ../shared/data    # about a minute

The paper's schedules, rows within Z, from zero. T by Proposition 4's closed form (which for (c)
spends about κ times too much), by ρ + 2√(ρ ln 1/δ) summed round by round, and exactly.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from repeat import Way, minimum, paths, risks
from sets import fetch

from forethought import Budget, convex
from forethought.convex.planning import CONSTANTS
from forethought.convex.schedules import horizon
from forethought.papers.adaptive_noise import (
    paper_iterations,
    paper_rho,
    paper_strongly_convex_iterations,
)

NAMES = ("synthetic", "iris", "breast-cancer", "kdd")
EPSILONS = (0.1, 1.0, 20.0)
MOST = 2000


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=60)
    given = parser.parse_args()
    print("| λ | data | ε | T, closed form | T, ρ summed | T, exact | excess, ρ | excess, exact |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for l2 in (0.1, 0.0):
        for name in NAMES:
            task = fetch(name, given.data_dir)
            N, d = task.features.shape
            problem = convex.LogisticRegression(
                feature_bound=task.bound, l2=l2, radius=None if l2 else CONSTANTS.radius
            )
            L, M, S = problem.lipschitz, problem.smoothness, math.log(2)
            schedule = convex.schedules.published(problem, d)
            least = minimum(task, convex.LogisticRegression(feature_bound=task.bound, l2=l2))
            for epsilon in EPSILONS:
                rho = paper_rho(epsilon, 1 / N)
                closed = (
                    paper_strongly_convex_iterations(rho, M, l2, S, L, N, d)
                    if l2
                    else paper_iterations(rho, M, CONSTANTS.radius**2, L, N, d)
                )
                ends = []
                for allowed in (2 * rho, None):
                    ends.append(_rounds(schedule, Budget(epsilon, 1 / N), 2 * L / N, allowed))
                found = {}
                way = Way(lambda t, _, schedule=schedule: schedule(t)[0], schedule(1)[1], L)
                for t, weights, _ in paths(
                    task, problem, way, torch.zeros(d, given.repetitions), seed=5
                ):
                    if t in ends:
                        found[t] = float(risks(task, problem, weights).median()) - least
                    if t == max(ends):
                        break
                print(
                    f"| {l2:g} | {name} | {epsilon:g} | {closed:.1f} | {ends[0]} | {ends[1]} "
                    f"| {found[ends[0]]:.3g} | {found[ends[1]]:.3g} |",
                    flush=True,
                )


def _rounds(
    schedule: convex.schedules.Schedule, budget: Budget, sensitivity: float, allowed: float | None
) -> int:
    """The rounds within a sum of (Δ/σ)², or within the exact budget; at most :data:`MOST`."""
    if allowed is None:
        try:
            return len(horizon(schedule, budget, sensitivity, MOST).sigmas)
        except ValueError:
            return 0
    spent, t = 0.0, 0
    while t < MOST and spent + (sensitivity / schedule(t + 1)[0]) ** 2 <= allowed:
        spent, t = spent + (sensitivity / schedule(t + 1)[0]) ** 2, t + 1
    return t


if __name__ == "__main__":
    main()
