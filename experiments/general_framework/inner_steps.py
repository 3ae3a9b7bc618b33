"""Which group size, inner step and inner step size: one thing changed at a time, at equal exact ε.

Chosen on MNIST (ε 3, one seed), checked on Fashion-MNIST, with the network and the plans of
combinations.py. Results are kept in a file as they come; the table is made of what there is.

    python experiments/general_framework/inner_steps.py --data-dir DIR
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import combinations as combos
import torch

import forethought as ft

EPSILON, SEED = 3.0, 0
USUAL = {"sgd": 0.1, "adam": 1e-3}
# Optimizer, records in a group, records in a step, passes, step size in units of the usual one.
MIDDLE = (64, 16, 1, 1.0)
CHANGES = [
    MIDDLE,
    (32, 8, 1, 1.0),
    *((size, 16, 1, 1.0) for size in (16, 32, 128)),
    *((64, step, 1, 1.0) for step in (4, 8, 32)),
    (64, 16, 2, 1.0),
    *((64, 16, 1, factor) for factor in (0.1, 0.3, 3.0, 10.0)),
]
CHECKED = [MIDDLE, (32, 16, 1, 1.0), (32, 8, 1, 1.0), (64, 4, 1, 1.0), (64, 16, 1, 3.0)]
_KEY = ("data", "optimizer", "size", "step", "passes", "factor")


def accuracy_of(loaded: Any, key: tuple[Any, ...]) -> dict[str, Any]:
    """One run: test accuracy and processor seconds."""
    _, optimizer, size, step, passes, factor = key
    torch.manual_seed(SEED)
    model = combos.network(False)
    (inputs, targets), test = loaded
    plan = ft.plan(
        examples=len(targets),
        budget=ft.Budget(EPSILON, combos.DELTA),
        batch=combos.BATCH,
        epochs=combos.EPOCHS,
        parameters=sum(p.numel() for p in model.parameters()),
        clipping="group",
        groups=combos.BATCH // size,
        local=ft.Local(optimizer, factor * USUAL[optimizer], step=step, passes=passes),
    )
    start = time.process_time()
    run = ft.train(
        model, (inputs, targets), plan, test=test, diagnostics=False, log_every=plan.rounds
    )
    spent = round(time.process_time() - start, 1)
    return {**dict(zip(_KEY, key, strict=True)), "accuracy": run.accuracy, "seconds": spent}


def table(rows: list[dict[str, Any]]) -> str:
    """Test accuracy in percent; an empty cell was not run."""
    found = {tuple(row[name] for name in _KEY): 100 * row["accuracy"] for row in rows}
    heads = [(data, optimizer) for data in combos.DATA for optimizer in USUAL]
    lines = [
        "| records in a group | in a step | passes | step size | "
        + " | ".join(f"{data}, {optimizer}" for data, optimizer in heads)
        + " |",
        "| --- | --- | --- | --- |" + " --- |" * len(heads),
    ]
    for change in dict.fromkeys(CHANGES + CHECKED):
        size, step, passes, factor = change
        cells = [f"{found[head + change]:.1f}" if head + change in found else "" for head in heads]
        lines.append(f"| {size} | {step} | {passes} | {factor:g} × | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="where mnist/ and fashion-mnist/ are")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after these")
    parser.add_argument(
        "--results", type=Path, default=Path(__file__).with_name("inner_steps.jsonl")
    )
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if asked.results.is_file():
        rows = [json.loads(line) for line in asked.results.read_text().splitlines()]
    done = {tuple(row[name] for name in _KEY) for row in rows}
    end = time.monotonic() + 60 * asked.minutes
    for data in combos.DATA if asked.data_dir else ():
        loaded = ft.data.load(data, folder=asked.data_dir)
        parts = combos.pooled(loaded.train), combos.pooled(loaded.test)
        for change in CHANGES if data == combos.DATA[0] else CHECKED:
            for optimizer in USUAL:
                key = (data, optimizer, *change)
                if key in done or time.monotonic() > end:
                    continue
                rows.append(accuracy_of(parts, key))
                with asked.results.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
