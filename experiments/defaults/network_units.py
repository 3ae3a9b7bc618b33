"""Does a network's default depend on the units of a table? With the declared norm, and without.

    python experiments/defaults/network_units.py

Every table's numbers as they are, a quarter and four times as large; the planner is told the norm
that the table's owner then would declare, or nothing, as before 2026-11-22. Accuracy of the
perceptron's default in per cent, a mean over seeds, written to network_units.md. Linear models had
been looked at on all these tables; skewed and heavy-4 were held out of the rule for
networks, and measured (networks.md) before this was run.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

import torch
from network_sets import task
from networks import Case

RESULTS = Path(__file__).with_name("network_units.md")
TABLES = ("clusters-50", "mixture", "ordinal", "skewed", "heavy-4")
UNITS = (0.25, 1.0, 4.0)
EPSILONS = (0.1, 1.0)
SEEDS = 3
FRESH = 5_000


def accuracy(name: str, units: float, epsilon: float, told: bool, seeds: int) -> float:
    """Of the default on a table in other units, whether or not the planner is told them."""
    found, shape = task(name, None)
    if found.norm is None:
        raise ValueError(f"the owner of {name} declares no norm")
    scaled = replace(
        found,
        inputs=found.inputs * units,
        test_inputs=found.test_inputs * units,
        norm=found.norm * units if told else None,
    )
    case = Case("mlp", scaled, shape)
    plan = case.default(epsilon)
    return statistics.mean(case.accuracy(plan, FRESH + seed) for seed in range(seeds))


def main() -> None:
    """Run all tables; write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the table goes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    head = "| table | ε | " + " | ".join(
        f"{units:g} ×, {how}" for how in ("told", "not told") for units in UNITS
    )
    lines = [head + " |", "| --- " + "| ---: " * (1 + 2 * len(UNITS)) + "|"]
    sums = [0.0] * (2 * len(UNITS))
    for name in args.tables:
        for epsilon in args.epsilon:
            found = [
                accuracy(name, units, epsilon, told, args.seeds)
                for told in (True, False)
                for units in UNITS
            ]
            sums = [total + one for total, one in zip(sums, found, strict=True)]
            shown = " | ".join(f"{value:.1f}" for value in found)
            lines.append(f"| {name} | {epsilon:g} | {shown} |")
            print(lines[-1], flush=True)
    cases = len(args.tables) * len(args.epsilon)
    lines.append("| mean | | " + " | ".join(f"{total / cases:.1f}" for total in sums) + " |")
    title = f"# Perceptrons on tables in other units: accuracy of the default, {args.seeds} seeds"
    args.out.write_text("\n".join([title, "", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
