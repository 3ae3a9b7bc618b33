"""Noise that follows the gradient's norm, privately and not, against the default.

    python experiments/adaptive_noise/steered.py --data-dir ../shared/data    # under a minute

Runs of the library itself, with noise from the operating system; medians of the risk.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import torch
from repeat import risks
from sets import fetch

from forethought import Budget, convex

NAMES = ("iris", "breast-cancer")
EPSILONS = (0.1, 1.0, 20.0)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=9)
    given = parser.parse_args()
    print("| λ | data | ε | default | steered | Proposition 1 (not private) |")
    print("| --- | --- | --- | --- | --- | --- |")
    for l2 in (0.1, 0.0):
        for name in NAMES:
            task = fetch(name, given.data_dir)
            N, d = task.features.shape
            problem = convex.LogisticRegression(feature_bound=task.bound, l2=l2)
            data = (task.features, task.targets)
            for epsilon in EPSILONS:
                budget = Budget(epsilon, 1 / N)
                plan = convex.plan(problem, budget, examples=N, features=d)
                ways = (
                    lambda plan=plan, data=data: convex.descend(plan, *data),
                    lambda p=problem, b=budget, data=data: convex.descend_steered(
                        p, b, *data, rounds=300
                    ),
                    lambda p=problem, b=budget, data=data: convex.descend_unprotected(
                        p, b, *data, rounds=300
                    ),
                )
                cells = []
                for way in ways:
                    try:
                        found = [way().weights for _ in range(given.runs)]
                    except ValueError:  # the budget pays for no round
                        cells.append("no round")
                        continue
                    columns = torch.tensor([list(weights) for weights in found]).T.float()
                    cells.append(f"{statistics.median(risks(task, problem, columns).tolist()):.4f}")
                print(f"| {l2:g} | {name} | {epsilon:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
