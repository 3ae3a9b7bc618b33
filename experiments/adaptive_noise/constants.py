"""How the default schedule's constants were chosen: on data sets that are none of the paper's.

    python experiments/adaptive_noise/constants.py --data-dir DIR    # five minutes: constants.md
    python experiments/adaptive_noise/constants.py --data-dir DIR --sets w8a --vary clip_scale

One constant at a time is moved from the default. A figure is the geometric mean, over data sets, λ
and ε, of the median excess risk relative to the default's: below 1 is better than the default. The
second command checks one of them on a set that none was chosen on, cell by cell: constants_w8a.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from repeat import Way, minimum, paths, risks
from sets import CHECKED, OTHERS, Task, fetch

from forethought import Budget, convex
from forethought.accounting.dominating_pair import gaussian_mu
from forethought.convex.planning import CONSTANTS, Recipe, ScheduleConstants, recipe
from forethought.convex.problems import Problem

EPSILONS = (0.1, 1.0, 10.0)
RIDGES = (0.0, 0.1)
VARIED = {
    "radius": (1.0, 2.0, 8.0, 16.0),
    "fall": (1.0, 2.0, 6.0),
    "clip_least": (0.25, 1.0),
    "clip_scale": (200.0, 500.0),
}

# What is kept, and where.
KEPT = (
    (tuple(OTHERS), tuple(VARIED), "constants.md"),
    (tuple(CHECKED), ("clip_scale",), "constants_w8a.md"),
)
HEAD = """Written by `python experiments/adaptive_noise/constants.py`. Excess risk of the default,
then of each constant moved from it, relative to the default's.
"""


def noise(found: Recipe, budget: Budget, examples: int) -> list[float]:
    """σ_t of the recipe at the scale that spends the budget, for a replaced record."""
    mu = gaussian_mu(budget.epsilon, budget.delta)
    spent = math.sqrt(math.fsum(size**-2 for size in found.shape))
    scale = 2 * found.clip_norm / examples * spent / mu
    return [scale * size for size in found.shape]


def excess(
    task: Task, problem: Problem, budget: Budget, constants: ScheduleConstants, repetitions: int
) -> float:
    """Median excess risk of the default schedule."""
    N, d = task.features.shape
    found = recipe(problem, N, d, gaussian_mu(budget.epsilon, budget.delta), 2.0, constants)
    sigmas = noise(found, budget, N)
    way = Way(lambda t, _: sigmas[t - 1], found.step, found.clip_norm, found.accelerated)
    for t, weights, _ in paths(task, problem, way, torch.zeros(d, repetitions), 0):
        if t == len(sigmas):
            return float(risks(task, problem, weights).median())
    raise AssertionError("paths do not end")


def cells(folder: Path, names: list[str]) -> Iterator[tuple[Task, Problem, Budget, float]]:
    """Data set, problem, budget and F* of every cell."""
    for name in names:
        task = fetch(name, folder)
        for l2 in RIDGES:
            problem = convex.LogisticRegression(feature_bound=task.bound, l2=l2)
            least = minimum(task, problem)
            for epsilon in EPSILONS:
                yield task, problem, Budget(epsilon, 1 / len(task.features)), least


def main() -> None:
    """Print a table of what each constant is worth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--sets", nargs="+", choices=(*OTHERS, *CHECKED), default=OTHERS)
    parser.add_argument("--vary", nargs="+", choices=tuple(VARIED), default=tuple(VARIED))
    given = parser.parse_args()
    lines: list[str] = []
    ways = [
        (name, value, replace(CONSTANTS, **{name: value}))
        for name in given.vary
        for value in VARIED[name]
    ]
    logs: dict[tuple[str, float], list[float]] = {(name, value): [] for name, value, _ in ways}
    for task, problem, budget, least in cells(given.data_dir, given.sets):
        base = excess(task, problem, budget, CONSTANTS, given.repetitions) - least
        for name, value, constants in ways:
            other = excess(task, problem, budget, constants, given.repetitions) - least
            logs[name, value].append(math.log(other / base))
        moved = ", ".join(f"{k} {v:g} {math.exp(found[-1]):.2f}" for (k, v), found in logs.items())
        where = f"{task.name}, λ = {problem.l2:g}, ε = {budget.epsilon:g}"
        lines.append(f"- {where}: {base:.3g}; {moved}")
        print(lines[-1], flush=True)
    table = ["| constant | value | default | excess risk | least, most |"]
    table.append("| --- | --- | --- | --- | --- |")
    for (name, value), found in logs.items():
        mean = math.exp(math.fsum(found) / len(found))
        ends = f"{math.exp(min(found)):.2f}, {math.exp(max(found)):.2f}"
        table.append(f"| {name} | {value:g} | {getattr(CONSTANTS, name):g} | {mean:.3f} | {ends} |")
    print(*table, sep="\n")
    for sets, varied, kept in KEPT:
        if (tuple(given.sets), tuple(given.vary)) == (sets, varied):
            text = "\n".join([HEAD, *lines, "", *table, ""])
            Path(__file__).with_name(kept).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
