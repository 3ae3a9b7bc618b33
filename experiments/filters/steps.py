"""Adam's planned step size against its usual one and against gradient descent, held-out sets too.

The rule (forethought.planning.defaults) has no constant of its own: nothing was chosen on any
of these sets, which are those of experiments/defaults/sets.py that train in seconds, in its two
groups (gradient descent's own rule was made with the first). Finished runs are kept in steps.csv,
so that a stopped command goes on.

    python experiments/filters/steps.py --full --data-dir DIR   # steps.csv and steps.md
    python experiments/filters/steps.py --smoke                 # one run of each on digits
    python experiments/filters/steps.py --table                 # of what is in steps.csv
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

import forethought as ft
from forethought.models import build

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "defaults"))
import sets  # noqa: E402

RESULTS, TABLE = HERE / "steps.csv", HERE / "steps.md"
# Sets of images, sets with tens of thousands of records, and families that the others stand for.
SKIPPED = {
    *("mnist", "fashion-mnist", "a9a", "w8a", "phishing", "kddcup99"),
    *("corner", "sparse", "heavy", "correlated", "imbalanced", "many"),
}
GROUPS = {
    "looked at": [name for name in sets.LOOKED_AT if name not in SKIPPED],
    "held out": [name for name in sets.HELD_OUT if name not in SKIPPED],
}
MODELS, EPSILONS, EPOCHS, SEEDS = ("linear", "mlp"), (0.5, 3.0), 20, 2
WAYS: dict[str, tuple[str, float | None]] = {
    "sgd": ("sgd", None),
    "adam, 0.001": ("adam", 0.001),
    "adam": ("adam", None),
    "adam-bc": ("adam-bc", None),
}
FIELDS = ("data", "model", "epsilon", "way", "seed", "accuracy")
Key = tuple[str, ...]


def trained(task: Any, case: Key) -> float:
    """Test accuracy of one run."""
    _, name, epsilon, way, seed = case
    optimizer, step = WAYS[way]
    inputs = tuple(task.inputs.shape[1:])
    model = build(name, inputs=inputs, classes=task.classes, seed=int(seed))
    plan = ft.plan(
        examples=len(task.targets),
        budget=ft.Budget(float(epsilon), 1 / (10 * len(task.targets))),
        model=model,
        feature_norm=task.norm if name == "linear" else None,
        epochs=EPOCHS,
        optimizer=optimizer,
        learning_rate=step,
    )
    run = ft.train(
        model,
        (task.inputs, task.targets),
        plan,
        test=(task.test_inputs, task.test_targets),
        seeds=ft.Seeds(int(seed), int(seed)),
        log_every=10**9,
        diagnostics=False,
    )
    assert run.accuracy is not None
    return run.accuracy


def kept() -> dict[Key, float]:
    """Accuracies of finished runs."""
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {tuple(row[name] for name in FIELDS[:5]): float(row["accuracy"]) for row in rows}


def keep(key: Key, accuracy: float) -> None:
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(FIELDS)
        writer.writerow([*key, f"{accuracy:.4f}"])


def table(found: dict[Key, float]) -> str:
    """Accuracy of every way, and a line of what the planned steps gain in each group."""
    lines = [
        f"Test accuracy in %, mean over {SEEDS} seeds, {EPOCHS} epochs, δ = 1/(10 N). Made by\n"
        "`python experiments/filters/steps.py --full`.\n",
        "| group | data, model | ε | " + " | ".join(WAYS) + " |",
        "| --- | --- | --- " + "| --- " * len(WAYS) + "|",
    ]
    sums = []
    for group, names in GROUPS.items():
        gains: dict[str, list[float]] = {"adam, 0.001": [], "sgd": []}
        for data, model, epsilon in itertools.product(names, MODELS, EPSILONS):
            means = {}
            for way in WAYS:
                keys = [(data, model, f"{epsilon:g}", way, str(seed)) for seed in range(SEEDS)]
                values = [found[key] for key in keys if key in found]
                if len(values) == SEEDS:
                    means[way] = 100 * statistics.mean(values)
            if len(means) < len(WAYS):
                continue
            for other, of_group in gains.items():
                of_group.append(means["adam"] - means[other])
            cells = " | ".join(f"{value:.1f}" for value in means.values())
            lines.append(f"| {group} | {data}, {model} | {epsilon:g} | {cells} |")
        for other, of_group in gains.items():
            if of_group:
                better = sum(gain > 0 for gain in of_group)
                sums.append(
                    f"- {group}: adam as planned over {other}: better in {better} of "
                    f"{len(of_group)} cases, median {statistics.median(of_group):+.1f}, worst "
                    f"{min(of_group):+.1f}, best {max(of_group):+.1f}"
                )
    return "\n".join([*lines, "", *sums]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="all sets and seeds, kept")
    parser.add_argument("--smoke", action="store_true", help="one run of each way, not kept")
    parser.add_argument("--table", action="store_true", help="print what is kept, and run nothing")
    parser.add_argument("--data-dir", type=Path, help="where libsvm/ is")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    done = {} if asked.smoke else kept()
    names = ["digits"] if asked.smoke or not asked.full else list(itertools.chain(*GROUPS.values()))
    for name in [] if asked.table else names:
        task = sets.fetch(name, asked.data_dir, None, None)
        seeds = range(SEEDS if asked.full else 1)
        epsilons = EPSILONS[1:] if asked.smoke else EPSILONS
        for seed, model, epsilon, way in itertools.product(seeds, MODELS, epsilons, WAYS):
            key = (name, model, f"{epsilon:g}", way, str(seed))
            if key in done:
                continue
            done[key] = trained(task, key)
            print(*key, f"{done[key]:.4f}", flush=True)
            if asked.full:
                keep(key, done[key])
    text = table(done)
    if asked.full:
        TABLE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
