"""Filters of noised gradients and Adam's bias correction against none, on looked-at sets.

Each line is a data set, a model, ε, an optimizer and a filter: test accuracy over five seeds, and
its difference from the same without the filter, seed by seed (a seed decides sampling, noise and
initial weights). Finished runs are kept in results.csv, so that a stopped command goes on.

    python experiments/filters/run.py --full --data-dir DIR   # five seeds: results.csv, results.md
    python experiments/filters/run.py --data-dir DIR          # one seed of every third case
    python experiments/filters/run.py --smoke                 # digits for a few rounds, in seconds
    python experiments/filters/run.py --table                 # the table of what is in results.csv

Digits and Fashion-MNIST are sets that experiments/defaults/sets.py lists as looked at: nothing here
is a claim about others.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import forethought as ft
from forethought.data import Dataset, load
from forethought.models import build

HERE = Path(__file__).parent
RESULTS, TABLE = HERE / "results.csv", HERE / "results.md"
SEEDS = 5
# Name → optimizer and step size; None: the planner's, which knows of the filter.
OPTIMIZERS = {
    "sgd": ("sgd", None),
    "adam": ("adam", None),
    "adam-bc": ("adam-bc", None),
    # Noise alone makes these steps short, and a filter, which takes noise out, longer.
    "adam, 0.001": ("adam", 0.001),
    "adam-bc, 0.001": ("adam-bc", 0.001),
}
# Data set, training records, model, epochs, and at which ε with which of the optimizers.
TASKS = (
    ("digits", None, "mlp", 20, (0.5, 1.0, 3.0), tuple(OPTIMIZERS)),
    ("fashion-mnist", 10_000, "linear", 10, (1.0, 3.0), ("sgd", "adam", "adam-bc")),
    ("fashion-mnist", 10_000, "lenet5", 5, (3.0,), ("sgd",)),
)
FILTERS: dict[str, Any] = {
    "none": None,
    "low-pass": "low-pass",
    "low-pass, order 2": {"kind": "low-pass", "order": 2},
    "kalman": "kalman",
    "kalman, κ = 0.7": {"kind": "kalman", "delay": 3 / 7},
}
FIELDS = ("data", "model", "epsilon", "optimizer", "filter", "seed", "accuracy", "seconds")
Key = tuple[str, ...]


def data_of(name: str, records: int | None, folder: Path | None) -> tuple[Any, Any]:
    """Training and test records: arrays."""
    found: Dataset = load(name, folder=folder)
    assert found.test is not None
    train = found.train.inputs[:records], found.train.targets[:records]
    return train, (found.test.inputs, found.test.targets)


def trained(train: Any, test: Any, task: Any, case: Key, seed: int, rounds: int | None) -> float:
    """Test accuracy of one run."""
    name, epochs = task[2:4]
    epsilon, (optimizer, step), chosen = float(case[2]), OPTIMIZERS[case[3]], FILTERS[case[4]]
    model = build(name, inputs=train[0].shape[1:], classes=10, seed=seed)
    length = {"rounds": rounds} if rounds else {"epochs": epochs}
    plan = ft.plan(
        examples=len(train[0]),
        budget=ft.Budget(epsilon, 1e-5),
        model=model,
        optimizer=optimizer,
        learning_rate=step,
        gradient_filter=chosen,
        **length,
    )
    run = ft.train(model, train, plan, test=test, seed=seed, noise_seed=seed, log_every=10**9)
    assert run.accuracy is not None
    return run.accuracy


def kept() -> dict[Key, float]:
    """Accuracies of finished runs."""
    if not RESULTS.exists():
        return {}
    with RESULTS.open(newline="", encoding="utf-8") as file:
        return {
            tuple(row[name] for name in FIELDS[:6]): float(row["accuracy"])
            for row in csv.DictReader(file)
        }


def keep(key: Key, accuracy: float, seconds: float) -> None:
    new = not RESULTS.exists()
    with RESULTS.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(FIELDS)
        writer.writerow([*key, f"{accuracy:.4f}", f"{seconds:.1f}"])


def cases(task: Any) -> list[Key]:
    """(data, model, ε, optimizer, filter) of a task."""
    return [
        (task[0], task[2], f"{epsilon:g}", optimizer, chosen)
        for epsilon, optimizer, chosen in itertools.product(task[4], task[5], FILTERS)
    ]


def table(found: dict[Key, float]) -> str:
    """A line a case: accuracy without a filter, and each filter's gain over it."""
    lines = [
        "Test accuracy in % without a filter, and what each filter adds to it, in points: the mean "
        "over\nthe seeds (in brackets: how many), paired by seed, ± its standard error. Made by\n"
        "`python experiments/filters/run.py --full`.\n",
        "| data, model | ε | optimizer | none | " + " | ".join(list(FILTERS)[1:]) + " |",
        "| --- | --- | --- | --- " + "| --- " * (len(FILTERS) - 1) + "|",
    ]
    compared: dict[str, list[float]] = {}
    every = [(one, *rest) for one in TASKS for rest in itertools.product(one[4], one[5])]
    for task, epsilon, optimizer in every:
        start = (task[0], task[2], f"{epsilon:g}")
        steps = "steps of 0.001" if optimizer.endswith("0.001") else "planned steps"

        def of(optimizer: str, chosen: str, start: Key = start) -> dict[int, float]:
            seeds = range(SEEDS)
            values = {n: found.get((*start, optimizer, chosen, str(n))) for n in seeds}
            return {n: 100 * value for n, value in values.items() if value is not None}

        def over(what: str, with_it: dict[int, float], without: dict[int, float]) -> str:
            gains = [value - without[n] for n, value in with_it.items() if n in without]
            if not gains:
                return ""
            compared.setdefault(what, []).append(statistics.mean(gains))
            error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
            return f"{statistics.mean(gains):+.1f} ± {error:.1f} ({len(gains)})"

        plain = of(optimizer, "none")
        if not plain:
            continue
        line = [f"{task[0]}, {task[2]}", f"{epsilon:g}", optimizer]
        line.append(f"{statistics.mean(plain.values()):.1f} ({len(plain)})")
        line += [over(f"{name}, {steps}", of(optimizer, name), plain) for name in list(FILTERS)[1:]]
        lines.append("| " + " | ".join(line) + " |")
        if optimizer.startswith("adam-bc"):
            usual = of(optimizer.replace("adam-bc", "adam"), "none")
            over(f"adam-bc over adam, {steps}", plain, usual)
    lines.append("")
    for what, gains in sorted(compared.items()):
        better = sum(gain > 0 for gain in gains)
        lines.append(
            f"- {what}: better in {better} of {len(gains)} cases, median "
            f"{statistics.median(gains):+.2f}, worst {min(gains):+.1f}, best {max(gains):+.1f}"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="all cases, five seeds, kept")
    parser.add_argument("--smoke", action="store_true", help="a few rounds on digits, not kept")
    parser.add_argument("--table", action="store_true", help="print what is kept, and run nothing")
    parser.add_argument("--data-dir", type=Path, help="where fashion-mnist/ is")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    done = {} if asked.smoke else kept()
    for task in TASKS[:1] if asked.smoke else TASKS:
        for seed in range(0 if asked.table else SEEDS if asked.full else 1):
            todo = [key for key in cases(task) if (*key, str(seed)) not in done]
            if not asked.full:
                todo = todo[::9] if asked.smoke else todo[::3]
            if not todo:
                continue
            train, test = data_of(task[0], task[1], asked.data_dir)
            for case in todo:
                start = time.process_time()
                found = trained(train, test, task, case, seed, 5 if asked.smoke else None)
                seconds = time.process_time() - start
                done[*case, str(seed)] = found
                print(*case, seed, f"{found:.4f}", f"{seconds:.1f} s", flush=True)
                if asked.full:
                    keep((*case, str(seed)), found, seconds)
    text = table(done)
    if asked.full:
        TABLE.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
