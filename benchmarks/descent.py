"""How fast a descent on a linear model goes.

python benchmarks/descent.py              # 70,000 × 784, two threads
python benchmarks/descent.py --smoke
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch

import forethought as ft
from forethought import convex


def main() -> None:
    """Print iterations a second of wall-clock and of processor time, the median of three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=70_000)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    N, d = (500, 20) if given.smoke else (given.examples, given.features)
    torch.set_num_threads(given.threads)
    rng = np.random.default_rng(0)
    features = rng.standard_normal((N, d))
    targets = (features[:, 0] > 0).astype(int)
    problem = convex.LogisticRegression(feature_bound=d**0.5)
    schedule = convex.schedules.constant(problem, 1.0)
    plan = convex.plan(
        problem,
        ft.Budget(20.0, 1e-6),
        examples=N,
        features=d,
        schedule=schedule,
        rounds=given.rounds,
    )
    walls, used = [], []
    for _ in range(3):
        times: list[tuple[float, float]] = []

        def watch(t: int, _: np.ndarray, times: list[tuple[float, float]] = times) -> None:
            times.append((time.perf_counter(), time.process_time()))

        convex.descend(plan, features, targets, watch=watch)
        (wall, cpu), (end, used_up) = times[0], times[-1]
        walls.append((len(times) - 1) / (end - wall))
        used.append((len(times) - 1) / (used_up - cpu))
    print(
        f"{N} × {d}, {given.threads} threads: {statistics.median(walls):.1f} iterations a second, "
        f"{statistics.median(used):.1f} a second of processor time"
    )


if __name__ == "__main__":
    main()
