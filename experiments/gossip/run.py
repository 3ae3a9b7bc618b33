"""Table 1 and Figures 1 to 4 of Xu, Zhang and Wang, "A(DP)²SGD", at a size for two cores.

    python experiments/gossip/run.py --data ../shared/data            # half an hour
    python experiments/gossip/run.py --data ../shared/data --full     # the nine networks, the LSTM
    python experiments/gossip/run.py --write                          # table, figures

Every finished cell is a line of results.jsonl and is not run again, so a run that was stopped goes
on where it was. table.md and the figures are made from that file alone.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cells import CASES, NOISE, SEQUENCE_NOISE, WORKERS, Cell, Records, Task, records_of, run

HERE = Path(__file__).parent
RESULTS = HERE / "results.jsonl"
# Exchanges, of 32 in a usual computation, that a worker waits with its next gradient.
PAUSE = 4
RULES = {"allreduce": "SYNC", "asynchronous": "A(DP)²SGD"}
TASKS = {
    "MNIST, LeNet-5": Task("mnist", "lenet5", 1250, 64, 4, 2.0),
    "CIFAR-10, LeNet-5": Task("cifar10", "lenet5", 1250, 64, 8, 2.0),
    "CIFAR-10, tempered CNN": Task("cifar10", "tempered-cnn", 1250, 64, 2, 2.0),
    "sequences, LSTM": Task("sequences", "lstm-32", 250, 32, 8, 8.0, options=(("layers", 1),)),
    **{
        f"CIFAR-10, {name}": Task("cifar10", name, 0, 256, 300, 0.4)
        for name in (
            "efficientnet-b0",
            "resnext-29",
            "mobilenet",
            "mobilenet-v2",
            "vgg-19",
            "resnet-18",
            "shufflenet",
            "googlenet",
            "senet-18",
        )
    },
    "sequences, LSTM of the paper": Task("sequences", "lstm-512", 20_000, 128, 20, 1.0),
}
SMALL = ("MNIST, LeNet-5", "CIFAR-10, LeNet-5")


def preset() -> Iterator[Cell]:
    """Half an hour of two cores: MNIST at every noise and in every case, the goal of case II with
    three seeds, then the sequences, then CIFAR-10."""
    first, second = SMALL
    yield from _of(first, ("none", "medium"))
    yield Cell(first, "asynchronous", "medium", "II")
    yield from _of(first, ("small",))
    for rule in RULES:
        yield Cell(first, rule, "small", "III")
    for seed in (1, 2):
        yield Cell(first, "allreduce", "medium", seed=seed)
        yield Cell(first, "asynchronous", "medium", "II", seed)
    for seed in (0, 1, 2):
        yield Cell(first, "asynchronous", "medium", "II", seed, PAUSE)
    yield from _of(first, ("large",))
    yield Cell(first, "asynchronous", "medium", "I")
    yield from _of("sequences, LSTM", ("none", "small", "large"))
    yield from _of(second, ("none", "medium", "small", "large"))
    yield from (Cell(second, "asynchronous", "medium", case) for case in ("I", "II"))
    yield from (Cell(second, rule, "small", "III") for rule in RULES)
    yield from _of("CIFAR-10, tempered CNN", ("none", "small"))


def _of(task: str, noises: Iterable[str]) -> Iterator[Cell]:
    yield from (Cell(task, rule, noise) for noise in noises for rule in RULES)


def full() -> Iterator[Cell]:
    """Every model, noise, rule and case: for a GPU, and days."""
    for task in TASKS:
        for case in CASES:
            for noise in NOISE:
                for rule in RULES:
                    yield Cell(task, rule, noise, case)


def finished() -> dict[Cell, dict[str, Any]]:
    """Cell → what came of it."""
    found = {}
    if RESULTS.exists():
        for line in RESULTS.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found[Cell(**row.pop("cell"))] = row
    return found


def table(found: dict[Cell, dict[str, Any]]) -> str:
    """The form of Table 1: rows are models, columns noise and rule; then every cell's promise."""
    heads = [f"{noise}, {short}" for noise in NOISE for short in RULES.values()]
    lines = [
        f"# Table 1 with {WORKERS} workers",
        "",
        "`python experiments/gossip/run.py` prints this. Accuracy in per cent of the average of "
        "all workers' models (the LSTM: held-out loss as well), and in brackets the worst "
        "worker's. σ is the paper's: per coordinate of a sum of gradients, here of gradients "
        "clipped to C = 1, so that the noise multiplier is the same number. A printed σ says "
        "nothing about ε; the second table does. A star: the worst worker on the first 1,000 or "
        "2,500 test records, which are harder than the rest; the others on all.",
        "",
        f"| model | {' | '.join(heads)} |",
        "| --- |" + " --- |" * (2 * len(NOISE)),
    ]
    names = [task for task in TASKS if any(cell.task == task for cell in found)]
    for task in names:
        texts = []
        for noise in NOISE:
            for rule in RULES:
                row = found.get(Cell(task, rule, noise))
                texts.append("" if row is None else _figure(task, row))
        lines.append(f"| {task} | " + " | ".join(texts) + " |")
    lines += [
        "",
        "Every cell's ε is certified for the worker with most updates, at its own rate and "
        "δ = 1/n; virtual seconds count a usual worker's computation as 1 (2 where the batch is "
        "doubled).",
        "",
        "| model | rule | case | seed | σ | rate | rounds, least to most | ε | δ | "
        "accuracy (worst) | virtual s | SYNC's s | processor s |",
        "| --- |" + " --- |" * 12,
    ]
    for cell, row in sorted(found.items(), key=lambda pair: _place(pair[0])):
        noise = (SEQUENCE_NOISE if cell.task.startswith("seq") else NOISE)[cell.noise]
        epsilon = "∞" if row["epsilon"] is None else f"{row['epsilon']:.4g}"
        lines.append(
            f"| {cell.task} | {RULES[cell.rule]}{_pause(cell)} | {cell.case} | {cell.seed} | "
            f"{noise:g} | {row['rate']:.4f} | "
            f"{row['fewest']} to {row['rounds']} | {epsilon} | {row['delta']:.2g} | "
            f"{_figure(cell.task, row)} | {row['seconds']:.0f} | "
            f"{row['synchronous_seconds']:.0f} | {row['processor']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def _pause(cell: Cell) -> str:
    return f", pause of {cell.pause}/32" if cell.pause else ""


def _figure(task: str, row: dict[str, Any]) -> str:
    if task.startswith("seq"):
        return f"loss {row['loss']:.3f}, {row['accuracy']:.1f} ({row['worst']:.1f})"
    star = "*" if "worst_of" in row else ""
    return f"{row['accuracy']:.2f} ({row['worst']:.2f}{star})"


def _place(cell: Cell) -> tuple[int, ...]:
    return (
        list(TASKS).index(cell.task),
        CASES.index(cell.case),
        list(NOISE).index(cell.noise),
        list(RULES).index(cell.rule),
        cell.pause,
        cell.seed,
    )


def figures(found: dict[Cell, dict[str, Any]]) -> None:
    """Figures 1 to 4: against epochs at every noise; against virtual seconds in the three cases."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = [task for task in SMALL if any(cell.task == task for cell in found)]
    if not tasks:
        return
    plots = {
        1: ("even", list(NOISE), "epochs", 1),
        2: ("I", ["medium"], "virtual seconds", 0),
        3: ("II", ["medium"], "virtual seconds", 0),
        4: ("III", ["small"], "epochs", 1),
    }
    for number, (case, noises, axis, column) in plots.items():
        figure, rows = pyplot.subplots(1, len(tasks), figsize=(5 * len(tasks), 3.5), squeeze=False)
        for place, task in enumerate(tasks):
            axes = rows[0][place]
            for shade, noise in enumerate(noises):
                for rule, short in RULES.items():
                    curve = curve_of(found, Cell(task, rule, noise, case))
                    if curve:
                        axes.plot(
                            [point[column] for point in curve],
                            [point[2] for point in curve],
                            "-" if rule == "asynchronous" else "--",
                            color=f"C{shade}",
                            label=f"{short}, {noise}",
                        )
            axes.set(title=task, xlabel=axis, ylabel="accuracy, %")
            if axes.lines:
                axes.legend(fontsize=6)
        figure.tight_layout()
        figure.savefig(HERE / f"figure_{number}.png", dpi=110)
        pyplot.close(figure)


def curve_of(found: dict[Cell, dict[str, Any]], cell: Cell) -> list[list[float]]:
    """A cell's curve. SYNC's in the cases I and II is that of even workers at other times: its
    updates do not depend on who is slow, and every round takes as long as the slowest."""
    if cell in found:
        return list(found[cell]["curve"])
    even = found.get(Cell(cell.task, cell.rule, cell.noise))
    if cell.rule != "allreduce" or even is None or cell.case == "III":
        return []
    slower = {"I": 2.0, "II": 10.0}[cell.case] * even["rounds"] / even["seconds"]
    return [[slower * seconds, *rest] for seconds, *rest in even["curve"]]


def main() -> None:
    """Run what is missing, and write table and figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETHOUGHT_DATA"))
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", action="append", default=[], help="a part of a task's name")
    asked = parser.parse_args()
    found = finished()
    loaded: dict[str, Records] = {}
    for cell in () if asked.write else full() if asked.full else preset():
        if cell in found or not all(part in cell.task for part in asked.only):
            continue
        task = TASKS[cell.task]
        if task.data not in loaded:
            loaded = {task.data: records_of(task, asked.data)}
        row = run(cell, task, loaded[task.data])
        found[cell] = row
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"cell": asdict(cell), **row}) + "\n")
        print(cell, f"{row['accuracy']:.2f} worst {row['worst']:.2f}", flush=True)
    text = table(found)
    (HERE / "table.md").write_text(text, encoding="utf-8")
    figures(found)
    print(text)


if __name__ == "__main__":
    main()
