"""Table 3 and Figure 1 of van Dijk et al. (2022), Appendix H: the paper's number beside ours.

LeNet-5 on MNIST and the tabled CNN on CIFAR-10; {subsampling, shuffling} × {individual, batch,
mixed (s = 64)} × batch {64 … 1024}; σ = 2 in the paper's units (noise_multiplier 4), step size
0.025, times 0.9 after an epoch in which test accuracy fell (so the test set is taken as public),
100 epochs; the clipping norm that does best on the test set, as in the paper. Mini-batch SGD
without noise beside it. Results are kept in a file as they come; a run that was stopped goes on
where it was.

    python experiments/general_framework/table3.py --data-dir DIR --small
    python experiments/general_framework/table3.py --data-dir DIR --headline  # 100 epochs, one norm
    python experiments/general_framework/table3.py --data-dir DIR             # the whole grid

The small preset: two epochs, batches of 64 and 1024; MNIST with two clipping norms a cell,
CIFAR-10's first 5,000 records with one (and its first 2,000 test records). ``--headline`` is one
run of 100 epochs for each of the twelve cells, for training without noise and for noise that is
divided, with the batch and the clipping norm that did best on MNIST in two epochs.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import forethought as ft
from forethought.models import build
from forethought.values.mechanism import Mechanism, Rounds, Shuffled, WithoutReplacement
from forethought.values.plan import Clip, Plan
from forethought.values.use import Averaging, Optimizer, Schedule

MODELS = {"mnist": "lenet5", "cifar10": "cnn"}
SIZE = 64  # records in a group of mixed clipping
BATCHES, EPOCHS, NORMS = (64, 128, 256, 512, 1024), 100, (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
SMALL_BATCHES, SMALL_EPOCHS = (64, 1024), 2
SMALL_NORMS = {"mnist": (0.3, 3.0), "cifar10": (0.3,)}
SMALL_RECORDS, SMALL_TEST = {"mnist": 60_000, "cifar10": 5_000}, 2_000  # the latter of CIFAR-10
RECORDS = {"mnist": 60_000, "cifar10": 50_000}
# Batch clipping with the noise of individual clipping's mean: what the paper's figures look like.
DIVIDED = "batch, noise / records"
# Clipping → batch and clipping norm of ``--headline``.
HEADLINE = {
    DIVIDED: (64, 0.3),
    "individual": (64, 3.0),
    "batch": (64, 0.03),
    "mixed": (1024, 0.3),
    "none": (64, 1e6),
}
# A sum of m contributions is divided by m: with few of them the noise calls for smaller norms.
FEWER = 0.1
# Best over batch sizes, noised and without noise, in percent (Table 3).
PAPER = {
    ("mnist", "subsampling", "individual"): (98.41, 98.31),
    ("mnist", "subsampling", "batch"): (98.21, 98.31),
    ("mnist", "subsampling", "mixed"): (97.5, 98.31),
    ("mnist", "shuffling", "individual"): (98.38, 98.40),
    ("mnist", "shuffling", "batch"): (98.33, 98.40),
    ("mnist", "shuffling", "mixed"): (96.97, 98.40),
    ("cifar10", "subsampling", "individual"): (71.09, 68.94),
    ("cifar10", "subsampling", "batch"): (71.7, 68.94),
    ("cifar10", "subsampling", "mixed"): (63.97, 68.94),
    ("cifar10", "shuffling", "individual"): (70.77, 70.14),
    ("cifar10", "shuffling", "batch"): (71.52, 70.14),
    ("cifar10", "shuffling", "mixed"): (64.68, 70.14),
}
CLIPPINGS = ("individual", "batch", "mixed", "none")
_CELL = ("data", "records", "sampling", "clipping", "epochs")
_KEY = (*_CELL, "batch", "norm")


def plan_of(sampling: str, clipping: str, batch: int, norm: float, epochs: int, N: int) -> Plan:
    """The paper's run as a plan; ``"none"`` is mini-batch SGD without clipping and noise.

    ``DIVIDED`` has a far larger ε than the paper states for it.
    """
    groups = {"individual": None, "mixed": batch // SIZE}.get(clipping, 1)
    drawn = WithoutReplacement(batch, N) if sampling == "subsampling" else Shuffled(batch, N)
    noise = {"none": 0.0, DIVIDED: 4.0 / batch}.get(clipping, 4.0)
    rounds = Rounds(noise, epochs * -(-N // batch), drawn, "example" if groups is None else "group")
    return Plan(
        Mechanism(rounds, adjacency="replace-one"),
        N,
        1e-5,
        Clip(norm),
        groups=groups,
        optimizer=Optimizer("sgd", 0.025, ()),
        schedule=Schedule("drops", decay=0.9),
        averaging=Averaging("none"),
    )


def cell(data: Any, key: tuple[Any, ...]) -> dict[str, Any]:
    """One run's test accuracy and exact ε."""
    name, records, sampling, clipping, epochs, batch, norm = key
    plan = plan_of(sampling, clipping, batch, norm, epochs, records)
    inputs, targets = data.train.inputs[:records], data.train.targets[:records]
    model = build(MODELS[name], inputs=inputs.shape[1:], classes=10, seed=0)
    few = SMALL_TEST if name == "cifar10" and records < RECORDS[name] else None
    test = data.test.inputs[:few], data.test.targets[:few]
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a group's own passes
        run = ft.train(
            model,
            (inputs, targets),
            plan,
            test=test,
            diagnostics=False,
            log_every=plan.rounds,
        )
    spent = run.statement.epsilon.upper
    return {
        **dict(zip(_KEY, key, strict=True)),
        "accuracy": run.accuracy,
        "epsilon": spent if math.isfinite(spent) else None,
        "seconds": round(time.process_time() - start, 1),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The best clipping norm and batch of every cell beside the paper's best; in percent."""
    lines = [
        "| data | sampling | clipping | epochs | accuracy by batch | ours, best | paper, best |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for cell in sorted({tuple(row[name] for name in _CELL) for row in rows}):
        data, records, sampling, clipping, epochs = cell
        same = [row for row in rows if tuple(row[name] for name in _CELL) == cell]
        by_batch: dict[int, dict[str, Any]] = {}
        for row in sorted(same, key=lambda row: row["accuracy"]):
            by_batch[row["batch"]] = row
        shown = ", ".join(
            f"{batch}: {100 * row['accuracy']:.1f}"
            + ("" if row["epsilon"] is None else f" (C {row['norm']:g}, ε {row['epsilon']:.3g})")
            for batch, row in sorted(by_batch.items())
        )
        best = 100 * max(row["accuracy"] for row in same)
        published = PAPER[(data, sampling, "individual")][1]
        if clipping != "none":
            published = PAPER[(data, sampling, clipping.partition(",")[0])][0]
        what = data if records == RECORDS[data] else f"{data}, {records:,} records"
        lines.append(
            f"| {what} | {sampling} | {clipping} | {epochs} | {shown} | {best:.1f} "
            f"| {published:.2f} (100 epochs) |"
        )
    return "\n".join(lines)


def cells(name: str, asked: argparse.Namespace) -> Iterator[tuple[str, str, int, float]]:
    """Sampling, clipping, batch and clipping norm of the runs that are asked for."""
    if asked.headline:
        for clipping, (batch, norm) in HEADLINE.items():
            for sampling in ("shuffling", "subsampling"):
                if (sampling, clipping) != ("subsampling", DIVIDED):
                    yield sampling, clipping, batch, norm
        return
    norms = SMALL_NORMS[name] if asked.small else NORMS
    for sampling, clipping, batch, norm in product(
        ("shuffling",) if asked.divided else ("subsampling", "shuffling"),
        (DIVIDED,) if asked.divided else CLIPPINGS,
        SMALL_BATCHES if asked.small else BATCHES,
        norms,
    ):
        small = FEWER if asked.small and clipping in ("batch", "mixed") else 1.0
        if clipping == "none" and norm == norms[0]:
            yield sampling, clipping, batch, 1e6
        elif clipping != "none" and not (clipping == "mixed" and batch == SIZE):
            # One group of mixed clipping is batch clipping.
            yield sampling, clipping, batch, round(small * norm, 6)


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--small", action="store_true", help="two epochs, fewer cells")
    parser.add_argument(
        "--divided", action="store_true", help="shuffled batch clipping, noise divided by records"
    )
    parser.add_argument("--headline", action="store_true", help="one run of every cell's best")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after these")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("table3.jsonl"))
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if asked.results.is_file():
        rows = [json.loads(line) for line in asked.results.read_text().splitlines()]
    done = {tuple(row[name] for name in _KEY) for row in rows}
    end = time.monotonic() + 60 * asked.minutes
    epochs = SMALL_EPOCHS if asked.small else EPOCHS
    for name in MODELS if asked.data_dir else ():
        data = ft.data.load(name, folder=asked.data_dir)
        records = (SMALL_RECORDS if asked.small else RECORDS)[name]
        for sampling, clipping, batch, bound in cells(name, asked):
            key = (name, records, sampling, clipping, epochs, batch, bound)
            if key in done or time.monotonic() > end:
                continue
            rows.append(cell(data, key))
            with asked.results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
