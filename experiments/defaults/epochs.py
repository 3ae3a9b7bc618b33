"""How many rounds should a network's passes over the data be divided into?

    python experiments/defaults/epochs.py --data ../shared/data             # looked at: a grid
    python experiments/defaults/epochs.py --data ../shared/data --held-out  # old rule and new
    python experiments/defaults/epochs.py --write                           # epochs.md

At the same exact (ε, δ) and the same number of passes: accuracy by the number of rounds, step sizes
by the planner. The grid is of sets that constants may be looked at on (network_sets.py), and of
20,000 images of MNIST and Fashion-MNIST at 14 pixels; from it follows what a limit on the steps is
worth. On the others the planner's own plan is run as it is and as it was without
``defaults.DIVIDED_STEP``, where they differ, with the same seeds. Passes of 0: as many as the
planner takes where nobody gives them. network_runs.py trains. Finished rows are kept in
epochs.jsonl; those of the grid that are there hold the mean of so many ``seeds``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from network_sets import HELD_OUT, task
from networks import Case

import forethought as ft
from forethought.planning import defaults

ROWS = Path(__file__).with_name("epochs.jsonl")
GRID = (25, 50, 100, 200, 400, 800, 1600)
LOOKED_AT = {
    "mlp": (
        *("digits", "mnist@14#3000", "fashion-mnist@28#3000", "cifar10@16#3000", "phishing"),
        *("mushrooms", "mnist@14#20000", "fashion-mnist@14#20000"),
    ),
    "lenet5": ("mnist@14#3000", "fashion-mnist@14#3000", "cifar10@16#3000", "mnist@14#20000"),
}
# Written down before they were run. They are larger draws, or other sizes, of sets above or in
# network_sets.py. For lenet5 14 pixels took the place of 28 before either had been run.
LARGE = {
    "mlp": ("fashion-mnist@28#60000", "cifar10@8#50000"),
    "lenet5": ("fashion-mnist@14#60000",),
    "cnn": ("cifar10@8#50000",),
}
LIMITS = (30, 20, 15, 12, 10, 8, 6, 5, 4, 3, 2)  # clip norms a round
SEEDS = {"mlp": 5, "lenet5": 3, "cnn": 2}
FRESH = 1_000


def plan(case: Case, epsilon: float, epochs: float, **given: Any) -> ft.Plan:
    """The planner's plan for so many passes; 0: for as many as it takes itself."""
    return ft.plan(
        examples=len(case.task.targets),
        budget=case.budget(epsilon),
        model=case.fresh(0),
        noise_borne=case.noise_borne,
        **({"epochs": epochs} if epochs and not given else given),
    )


def undivided(case: Case, epsilon: float, epochs: float) -> ft.Plan:
    """The plan as it was before long steps were divided."""
    kept = defaults.DIVIDED_STEP
    defaults.DIVIDED_STEP = 1e300
    try:
        return plan(case, epsilon, epochs)
    finally:
        defaults.DIVIDED_STEP = kept


def grid(case: Case, epsilon: float, epochs: float) -> list[tuple[str, ft.Plan]]:
    """The plan as it was, and the same passes in other numbers of rounds."""
    examples = len(case.task.targets)
    found = [("before", undivided(case, epsilon, epochs))]
    found += [
        ("grid", plan(case, epsilon, epochs, rounds=rounds, batch=batch))
        for rounds in GRID
        if 1 <= (batch := math.ceil(epochs * examples / rounds)) <= examples
    ]
    return found


def both(case: Case, epsilon: float, epochs: float) -> list[tuple[str, ft.Plan]]:
    """The plan as it was and as it is; none where they are the same."""
    before, now = undivided(case, epsilon, epochs), plan(case, epsilon, epochs)
    return [] if now.rounds == before.rounds else [("before", before), ("now", now)]


def cell(row: dict[str, Any]) -> tuple[Any, ...]:
    """What is the same for all rows of a case."""
    return tuple(row[key] for key in ("model", "data", "epochs", "epsilon", "held_out"))


def saved() -> list[dict[str, Any]]:
    """The finished rows."""
    if not ROWS.is_file():
        return []
    return [json.loads(line) for line in ROWS.read_text("utf-8").splitlines()]


def run(model: str, name: str, args: argparse.Namespace) -> None:
    """All cases of one model on one data set that are not finished."""
    done = {cell(row) for row in saved()}
    case = Case(model, *task(name, args.data))
    for epochs in args.epochs:
        for epsilon in args.epsilon:
            known = {"model": model, "data": name, "epochs": epochs, "epsilon": epsilon}
            known["held_out"] = args.held_out
            if cell(known) in done:
                continue
            rows = []
            for rule, found in (both if args.held_out else grid)(case, epsilon, epochs):
                first = FRESH if args.held_out else 0
                seeds = range(first, first + (args.seeds or SEEDS[model]))
                own = {"rounds": found.rounds, "batch": round(found.batch)}
                rate = round(found.optimizer.learning_rate, 4)
                runs = [round(case.accuracy(found, seed), 2) for seed in seeds]
                rows.append({**known, "rule": rule, **own, "step_size": rate, "accuracy": runs})
            with ROWS.open("a", encoding="utf-8") as file:
                file.writelines(
                    json.dumps(row) + "\n" for row in rows or [{**known, "rule": "same"}]
                )
            print(*known.values(), *(f"{r['rounds']}: {_mean(r):.1f}" for r in rows), flush=True)


def _mean(row: dict[str, Any]) -> float:
    return statistics.mean(row["accuracy"])


def page(rows: list[dict[str, Any]]) -> str:
    """The tables as markdown."""
    cases: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault(cell(row), []).append(row)
    parts = ["# A network's passes, in how many rounds", "## Held out", _summary(cases)]
    head = "| model | data | passes | ε | before: rounds, % | now: rounds, % | now − before |"
    parts.append(
        "\n".join([head, "| --- | --- | ---: | ---: | ---: | ---: | ---: |", *_pairs(cases)])
    )
    parts.append("## Looked at: what a limit on the steps gains, in points over the plan before")
    head = "| model, cases | " + " | ".join(f"{limit} norms" for limit in LIMITS) + " |"
    parts.append("\n".join([head, "| --- |" + " ---: |" * len(LIMITS), *_limits(cases)]))
    parts.append("## Looked at: accuracy by rounds")
    head = "| model | data | passes | ε | before (rounds) | " + " | ".join(map(str, GRID)) + " |"
    lines = [head, "| --- | --- | ---: | ---: |" + " ---: |" * (len(GRID) + 1)]
    for (model, name, epochs, epsilon, held_out), found in cases.items():
        if not held_out:
            by = {row["rounds"]: f"{_mean(row):.1f}" for row in found if row["rule"] == "grid"}
            before = next(row for row in found if row["rule"] == "before")
            own = f"{_mean(before):.1f} ({before['rounds']})"
            shown = " | ".join(by.get(rounds, "") for rounds in GRID)
            lines.append(f"| {model} | {name} | {epochs:g} | {epsilon:g} | {own} | {shown} |")
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def _limits(cases: dict[tuple[Any, ...], list[dict[str, Any]]]) -> list[str]:
    """A line a model: mean and worst over its cases, interpolated between the grid's rounds."""
    lines = []
    for model in SEEDS:
        own = [found for key, found in cases.items() if key[0] == model and not key[4]]
        shown = []
        for limit in LIMITS:
            gains = [_at_limit(found, limit) for found in own]
            shown.append(f"{statistics.mean(gains):+.2f} (worst {min(gains):+.2f})" if own else "")
        lines += [f"| {model}, {len(own)} | " + " | ".join(shown) + " |"] if own else []
    return lines


def _at_limit(found: list[dict[str, Any]], limit: float) -> float:
    """The gain of as many more rounds as make steps no longer than the limit."""
    before = found[0]
    kept = [r for r in found[1:] if r["rounds"] > before["rounds"]]
    rows = [before, *sorted(kept, key=lambda row: row["rounds"])]
    for left, right in pairwise(rows):
        long, short = _step(left), _step(right)
        if long <= limit:
            return _mean(left) - _mean(before)
        if short <= limit:
            share = (math.log(long) - math.log(limit)) / max(1e-9, math.log(long / short))
            return _mean(left) + share * (_mean(right) - _mean(left)) - _mean(before)
    return _mean(rows[-1]) - _mean(before)


def _step(row: dict[str, Any], momentum: float = 0.9) -> float:
    """The mean step of a round, in clip norms."""
    lag = momentum * (1 - momentum ** row["rounds"]) / (1 - momentum)
    return float(row["step_size"] * (row["rounds"] - lag) / (1 - momentum) / row["rounds"])


def _gains(found: list[dict[str, Any]]) -> list[float]:
    before, now = found
    return [n - b for b, n in zip(before["accuracy"], now["accuracy"], strict=True)]


def _pairs(cases: dict[tuple[Any, ...], list[dict[str, Any]]]) -> list[str]:
    lines = []
    for (model, name, epochs, epsilon, held_out), found in cases.items():
        if held_out and len(found) == 2:
            gains = _gains(found)
            error = statistics.stdev(gains) / math.sqrt(len(gains))
            shown = " | ".join(f"{row['rounds']}, {_mean(row):.1f}" for row in found)
            passes = f"{epochs:g}" if epochs else "its own"
            lines.append(
                f"| {model} | {name} | {passes} | {epsilon:g} | {shown} | "
                f"{statistics.mean(gains):+.2f} ± {error:.2f} |"
            )
    return lines


def _summary(cases: dict[tuple[Any, ...], list[dict[str, Any]]]) -> str:
    parts = []
    for own, title in ((False, "passes given"), (True, "passes chosen by the planner")):
        of = [v for k, v in cases.items() if k[4] and (k[2] == 0) == own]
        gains = [statistics.mean(_gains(found)) for found in of if len(found) == 2]
        if gains:
            parts.append(
                f"With {title}: the plan is another in {len(gains)} of {len(of)} cases; in these "
                f"{statistics.mean(gains):+.2f} points in the mean, "
                f"{statistics.median(gains):+.2f} in the median, "
                f"{min(gains):+.2f} to {max(gains):+.2f}."
            )
    return "\n".join(parts)


def main() -> None:
    """Run what is asked for and not there yet, or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--models", nargs="+", choices=SEEDS, default=["mlp", "lenet5", "cnn"])
    parser.add_argument("--only", nargs="+", help="data sets; by default all")
    parser.add_argument("--epsilon", nargs="+", type=float)
    parser.add_argument("--epochs", nargs="+", type=float)
    parser.add_argument("--seeds", type=int, help="by default 5, 3 and 2")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--write", action="store_true", help="run nothing, write the tables")
    args = parser.parse_args()
    args.epochs = args.epochs or ([0, 2, 6, 20] if args.held_out else [2, 6, 20])
    args.epsilon = args.epsilon or ([1, 3, 8] if args.held_out else [0.5, 2, 8])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for model in () if args.write else args.models:
        names = HELD_OUT[model] + LARGE[model] if args.held_out else LOOKED_AT.get(model, ())
        for name in names:
            if name in (args.only or (name,)):
                run(model, name, args)
    if args.write:
        ROWS.with_suffix(".md").write_text(page(saved()), encoding="utf-8")


if __name__ == "__main__":
    main()
