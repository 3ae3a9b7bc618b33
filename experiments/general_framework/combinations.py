"""At equal exact ε, which combination wins: individual, mixed or batch clipping, and what inside?

Every combination is planned by ``forethought.plan`` from the budget alone, with the same number of
gradient computations, and nothing is tuned on the data. Results are kept in a file as they come, so
a run that was stopped goes on where it was; the table is made of what there is.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import forethought as ft
from forethought.planning.defaults import noise_to_signal

DATA = ("mnist", "fashion-mnist")
EPSILONS = (1.0, 3.0, 8.0)
BATCH, EPOCHS, DELTA, MIXED = 1024, 2.0, 1e-5, 64
INSIDE: dict[str, ft.Local | None] = {
    "gradient": None,
    "SGD": ft.Local("sgd", 0.1, step=16),
    "Adam": ft.Local("adam", 1e-3, step=16),
}
COMBINATIONS = [
    ("individual", "gradient", False),
    *(
        (clipping, inside, normalised)
        for clipping in ("mixed", "batch")
        for inside in INSIDE
        for normalised in (False, True)
    ),
]


# Noise so low that only the contributions themselves are compared: where do groups begin to win?
LARGE = (32.0, 512.0, 8192.0)
LARGE_COMBINATIONS = [
    ("individual", "gradient", False),
    ("mixed", "gradient", True),
    ("mixed", "SGD", False),
    ("mixed", "SGD", True),
]


def network(normalised: bool) -> nn.Module:
    """A small convolutional network for 14 × 14 pixels, with batch normalisation or without."""

    def after(channels: int) -> list[nn.Module]:
        return [nn.BatchNorm2d(channels)] if normalised else []

    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3), *after(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3), *after(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64, 10)),
    )


def plan_of(clipping: str, inside: str, epsilon: float, examples: int, size: int) -> ft.Plan:
    """The planner's own plan of a combination."""
    grouped: dict[str, Any] = {}
    if clipping != "individual":
        count = 1 if clipping == "batch" else BATCH // MIXED
        grouped = {"clipping": "group", "groups": count, "local": INSIDE[inside]}
    budget = ft.Budget(epsilon, DELTA)
    return ft.plan(
        examples=examples,
        budget=budget,
        batch=min(BATCH, examples),
        epochs=EPOCHS,
        parameters=size,
        **grouped,
    )


def pooled(part: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """28 × 28 pixels averaged to 14 × 14: no figure of the data is needed for it."""
    return F.avg_pool2d(torch.from_numpy(part.inputs), 2), torch.from_numpy(part.targets)


def accuracy_of(
    data: str, loaded: Any, combination: tuple[str, str, bool], epsilon: float, seed: int
) -> dict[str, Any]:
    """One run: test accuracy and processor seconds. Only the initial weights are seeded."""
    clipping, inside, normalised = combination
    torch.manual_seed(seed)
    model = network(normalised)
    (inputs, targets), test = loaded
    size = sum(p.numel() for p in model.parameters())
    plan = plan_of(clipping, inside, epsilon, len(targets), size)
    start = time.process_time()
    run = ft.train(
        model, (inputs, targets), plan, test=test, diagnostics=False, log_every=plan.rounds
    )
    return {
        "data": data,
        "clipping": clipping,
        "inside": inside,
        "normalised": normalised,
        "epsilon": epsilon,
        "seed": seed,
        "accuracy": run.accuracy,
        "certified": run.statement.epsilon.upper,
        "noise_multiplier": plan.noise_multiplier,
        "groups": plan.groups,
        "learning_rate": plan.optimizer.learning_rate,
        "noise_to_signal": noise_to_signal(plan, size),
        "seconds": round(time.process_time() - start, 1),
    }


_KEY = ("data", "clipping", "inside", "normalised", "epsilon", "seed")


def table(
    rows: list[dict[str, Any]],
    combinations: Sequence[tuple[str, str, bool]],
    epsilons: Sequence[float],
) -> str:
    """Mean accuracy in percent, standard deviation where there are several seeds, and how many."""
    heads = [f"{data}, ε {epsilon:g}" for data in DATA for epsilon in epsilons]
    lines = [
        "| clipping | inside a group | batch norm | " + " | ".join(heads) + " |",
        "| --- | --- | --- |" + " --- |" * len(heads),
    ]
    for clipping, inside, normalised in combinations:
        cells = []
        for data in DATA:
            for epsilon in epsilons:
                wanted = (data, clipping, inside, normalised, epsilon)
                found = [
                    100 * row["accuracy"]
                    for row in rows
                    if tuple(row[name] for name in _KEY[:-1]) == wanted
                ]
                spread = f" ± {stdev(found):.1f}" if len(found) > 1 else ""
                cells.append(f"{mean(found):.1f}{spread} ({len(found)})" if found else "")
        yes = "yes" if normalised else "no"
        lines.append(f"| {clipping} | {inside} | {yes} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, seed by seed, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="where mnist/ and fashion-mnist/ are")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after these")
    parser.add_argument("--large", action="store_true", help="large budgets, few combinations")
    parser.add_argument("--results", type=Path, help="default: beside this file")
    asked = parser.parse_args()
    combinations, epsilons = COMBINATIONS, EPSILONS
    if asked.large:
        combinations, epsilons = LARGE_COMBINATIONS, LARGE
    name = "large_budgets.jsonl" if asked.large else "combinations.jsonl"
    asked.results = asked.results or Path(__file__).with_name(name)
    rows: list[dict[str, Any]] = []
    if asked.results.is_file():
        rows = [json.loads(line) for line in asked.results.read_text().splitlines()]
    done = {tuple(row[name] for name in _KEY) for row in rows}
    end = time.monotonic() + 60 * asked.minutes
    parts = {}
    for data in DATA if asked.data_dir else ():
        loaded = ft.data.load(data, folder=asked.data_dir)
        parts[data] = (pooled(loaded.train), pooled(loaded.test))
    for seed in range(asked.seeds if parts else 0):
        for data in DATA:
            for epsilon in epsilons:
                for combination in combinations:
                    if (data, *combination, epsilon, seed) in done or time.monotonic() > end:
                        continue
                    row = accuracy_of(data, parts[data], combination, epsilon, seed)
                    rows.append(row)
                    with asked.results.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    print(table(rows, combinations, epsilons))


if __name__ == "__main__":
    main()
