"""What other paths and clip norms give than the planner's, on the sets that may be looked at.

    python experiments/defaults/paths.py --data ../shared/data --only splice many --epsilon 0.1 1

For every set and ε: batch, rounds, noise and centring as planned, the norm that is released of
centred features in units of the declared one (first seed), and mean accuracy in per cent for paths
of several lengths, in units of the planner's, and clip norms, in units of a record's usual norm.
The constants of `forethought.planning.defaults` were chosen on such tables; held-out sets are
refused.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from cases import measure, planned, split
from linear import Column
from sets import LOOKED_AT, Task, fetch

import forethought as ft
from forethought.rounds.randomness import Seeds

PATHS = (1 / 4, 1 / 2, 1, 2, 4, 8)
CLIPS = (None, 1 / 8, 1 / 4, 1 / 2, 1)


def table(task: Task, epsilon: float, seeds: int, centre: bool | None) -> list[str]:
    """One set at one ε as lines."""
    plan = planned(task, epsilon, centre=centre)
    unit = plan.optimizer.learning_rate * plan.clip.norm
    asked, norm = plan.preparation, task.norm
    centred = asked is not None and asked.becomes is not None
    usual = math.hypot(asked.becomes if centred else norm or 0.0, 1)
    columns = [
        Column(unit * path / (clip * usual if clip else 1), clip * usual if clip else None)
        for clip in CLIPS
        for path in PATHS
    ]
    total = sum(measure(task, plan, columns, seed) for seed in range(seeds)) / seeds
    means = "not centred"
    if centred:
        part = split(task, 0)
        released = ft.prepare(plan, (part.inputs, part.targets), seeds=Seeds(None, 0))
        found = released.constants.scale[0] * asked.becomes / norm
        means = f"centred, norm {found:.2f} of the declared"
    lines = [f"{task.name}, ε = {epsilon:g}, batch {plan.batch:.0f}, {means}; paths "]
    lines[0] += " ".join(f"{path:>6g}" for path in PATHS)
    for row, clip in enumerate(CLIPS):
        values = total[row * len(PATHS) : (row + 1) * len(PATHS)].tolist()
        called = "automatic" if clip is None else f"flat {clip:g}"
        lines.append(
            f"{called:>{len(lines[0]) - 7 * len(PATHS)}} " + " ".join(f"{v:6.2f}" for v in values)
        )
    return lines


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--only", nargs="+", choices=LOOKED_AT, default=["digits", "german"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[0.1, 1.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--raw", action="store_true", help="features as they are, never centred")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.only:
        images = name in ("mnist", "fashion-mnist")
        task = fetch(name, args.data, 4_000, "scattering" if images else None)
        for epsilon in args.epsilon:
            print(*table(task, epsilon, args.seeds, False if args.raw else None), sep="\n")


if __name__ == "__main__":
    main()
