"""Table 3 and Figure 1 of van Dijk et al. (2022), Appendix H: the paper's number beside ours.

LeNet-5 on MNIST and the tabled CNN on CIFAR-10; {subsampling, shuffling} × {individual, batch,
mixed (s = 64)} × batch {64 … 1024}; σ = 2 in the paper's units (noise_multiplier 4), step size
0.025, times 0.9 after an epoch in which test accuracy fell (so the test set is taken as public),
100 epochs; the clipping norm that does best on the test set, as in the paper. Mini-batch SGD
without noise beside it. Results are kept in a file as they come; a run that was stopped goes on
where it was.

    python experiments/general_framework/table3.py --data-dir DIR --small     # MNIST, 2 epochs
    python experiments/general_framework/table3.py --data-dir DIR             # the whole grid
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import forethought as ft
from forethought.mechanism import Mechanism, Rounds, Shuffled, WithoutReplacement
from forethought.models import build
from forethought.plans import Averaging, Clip, Optimizer, Plan, Schedule

MODELS = {"mnist": "lenet5", "cifar10": "cnn"}
SIZE = 64  # records in a group of mixed clipping
BATCHES, EPOCHS, NORMS = (64, 128, 256, 512, 1024), 100, (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
SMALL_BATCHES, SMALL_EPOCHS, SMALL_NORMS = (64, 1024), 2, (0.3, 3.0)
# A sum of m contributions is divided by m: with few of them the noise calls for smaller norms.
FEWER = 0.1
# Best over batch sizes, noised and without noise, in percent (Table 3).
PAPER = {
    ("mnist", "subsampling", "individual"): (98.41, 98.31),
    ("mnist", "shuffling", "individual"): (98.38, 98.40),
    ("mnist", "shuffling", "batch"): (98.33, 98.40),
    ("mnist", "shuffling", "mixed"): (96.97, 98.40),
    ("cifar10", "subsampling", "individual"): (71.09, 68.94),
    ("cifar10", "shuffling", "individual"): (70.77, 70.14),
    ("cifar10", "shuffling", "batch"): (71.52, 70.14),
    ("cifar10", "shuffling", "mixed"): (64.68, 70.14),
}
CLIPPINGS = ("individual", "batch", "mixed", "none")
_KEY = ("data", "sampling", "clipping", "batch", "norm", "epochs")


def plan_of(sampling: str, clipping: str, batch: int, norm: float, epochs: int, N: int) -> Plan:
    """The paper's run as a plan; ``"none"`` is mini-batch SGD without clipping and noise."""
    groups = {"individual": None, "batch": 1, "mixed": batch // SIZE, "none": 1}[clipping]
    drawn = WithoutReplacement(batch, N) if sampling == "subsampling" else Shuffled(batch, N)
    noise = 0.0 if clipping == "none" else 4.0
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


def cell(data: Any, name: str, key: tuple[Any, ...]) -> dict[str, Any]:
    """One run's test accuracy and exact ε."""
    _, sampling, clipping, batch, norm, epochs = key
    plan = plan_of(sampling, clipping, batch, norm, epochs, len(data.train))
    model = build(MODELS[name], inputs=data.train.inputs.shape[1:], classes=10, seed=0)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a group's own passes
        run = ft.train(model, data, plan, diagnostics=False, log_every=plan.rounds)
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
    cells = sorted({tuple(row[name] for name in (*_KEY[:3], "epochs")) for row in rows})
    for data, sampling, clipping, epochs in cells:
        same = [
            row
            for row in rows
            if tuple(row[name] for name in (*_KEY[:3], "epochs"))
            == (data, sampling, clipping, epochs)
        ]
        by_batch: dict[int, dict[str, Any]] = {}
        for row in sorted(same, key=lambda row: row["accuracy"]):
            by_batch[row["batch"]] = row
        shown = ", ".join(
            f"{batch}: {100 * row['accuracy']:.1f} (C {row['norm']:g}"
            + (")" if row["epsilon"] is None else f", ε {row['epsilon']:.3g})")
            for batch, row in sorted(by_batch.items())
        )
        best = 100 * max(row["accuracy"] for row in same)
        noised, without = PAPER.get((data, sampling, "individual"), (None, None))
        if clipping != "none":
            noised = PAPER.get((data, sampling, clipping), (None, None))[0]
        else:
            noised = without
        published = "not given" if noised is None else f"{noised:.2f} (100 epochs)"
        lines.append(
            f"| {data} | {sampling} | {clipping} | {epochs} | {shown} | {best:.1f} | {published} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--small", action="store_true", help="MNIST only, two epochs, fewer cells")
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after these")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_name("table3.jsonl"))
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if asked.results.is_file():
        rows = [json.loads(line) for line in asked.results.read_text().splitlines()]
    done = {tuple(row[name] for name in _KEY) for row in rows}
    end = time.monotonic() + 60 * asked.minutes
    names = ("mnist",) if asked.small else tuple(MODELS)
    batches, epochs, norms = (
        (SMALL_BATCHES, SMALL_EPOCHS, SMALL_NORMS) if asked.small else (BATCHES, EPOCHS, NORMS)
    )
    for name in names if asked.data_dir else ():
        data = ft.data.load(name, folder=asked.data_dir)
        for sampling, clipping, batch, norm in product(
            ("subsampling", "shuffling"), CLIPPINGS, batches, norms
        ):
            if clipping == "none" and norm != norms[0]:
                continue
            small = FEWER if asked.small and clipping in ("batch", "mixed") else 1.0
            bound = 1e6 if clipping == "none" else small * norm
            key = (name, sampling, clipping, batch, bound, epochs)
            same = clipping == "mixed" and batch == SIZE  # one group: batch clipping
            if key in done or same or time.monotonic() > end:
                continue
            rows.append(cell(data, name, key))
            with asked.results.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
