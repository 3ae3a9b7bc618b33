"""Table 1 and Figures 1 to 4 of Xu, Zhang and Wang, "A(DP)²SGD", at a size for two cores.

    python experiments/gossip/run.py --data ../shared/data --processes 2  # half an hour
    python experiments/gossip/run.py --data ../shared/data --nine         # the nine networks, tiny
    python experiments/gossip/run.py --data ../shared/data --families     # two, a quarter as wide
    python experiments/gossip/run.py --data ../shared/data --further      # CIFAR-10, more seeds
    python experiments/gossip/run.py --data ../shared/data --ten          # cases II, III, ten seeds
    python experiments/gossip/run.py --data ../shared/data --full         # for a cluster
    python experiments/gossip/run.py --full --estimate                    # how many, of one core
    python experiments/gossip/run.py --write                              # table, figures

Every finished cell is a line of results.jsonl and is not run again, so a run that was stopped goes
on where it was. table.md and the figures are made from that file alone, and real.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from functools import cache
from itertools import chain, product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from cells import CASES, NOISE, Cell, Records, Task, records_of, run
from shown import figures, table

HERE = Path(__file__).parent
RESULTS, REAL = HERE / "results.jsonl", HERE / "real.jsonl"
RULES = ("allreduce", "asynchronous")
MNIST, CIFAR = "MNIST, LeNet-5", "CIFAR-10, LeNet-5"
CNNS = ("MNIST, small CNN", "CIFAR-10, small CNN")
SEQUENCES = "sequences, LSTM of 32"
NETWORKS = (
    "efficientnet-b0",
    "resnext-29",
    "mobilenet",
    "mobilenet-v2",
    "vgg-19",
    "resnet-18",
    "shufflenet-v2",  # of Table 2's 4.82 MB
    "googlenet",
    "senet-18",
)
# The paper's: 300 epochs of batches of 256, by 16 workers, at 0.4, 0.04 and 0.004.
WHOLE = {
    f"CIFAR-10, {name}": Task("cifar10", name, 0, 256, 300, 0.4, stages=(160, 240))
    for name in NETWORKS
}
# Ten epochs of warm-up, then × √½ an epoch.
LSTM = "sequences, LSTM of 512"
EPOCHS = tuple(map(float, range(10, 20)))
WHOLE[LSTM] = Task(
    *("sequences", "lstm-512", 20_000, 128, 20, 1.0), stages=EPOCHS, fall=0.5**0.5, warmup=10
)
# The same networks, and everything else as small as it goes: two rounds of four workers, who have
# 16 images each and draw 4, measured on 50.
TINY = {
    f"{name}, two rounds of four": replace(
        task, records=16, batch=4, epochs=0.5, workers=4, tested=50, micro_batch=4, stages=()
    )
    for name, task in WHOLE.items()
    if task.data == "cifar10"
}
# One network of each family, plain convolutions and separable ones, a quarter as wide: 5,000 images
# less the eight that 16 equal shares leave, 20 epochs, steps by the paper's stages (0.4, then a
# tenth after 8/15 of the epochs, and again after 4/5). A batch of 64 in place of 256 on a quarter
# of the width is the paper's ratio of noise to clipped mean.
FAMILIES = {
    f"CIFAR-10, {name}, a quarter as wide": replace(
        WHOLE[f"CIFAR-10, {name}"],
        records=312,
        batch=64,
        epochs=20,
        stages=(20 * 160 / 300, 20 * 240 / 300),
        options=(("width", 0.25),),
    )
    for name in ("resnet-18", "mobilenet")
}
TASKS = {
    MNIST: Task("mnist", "lenet5", 1250, 64, 4, 2.0),
    CIFAR: Task("cifar10", "lenet5", 1250, 64, 8, 2.0),
    CNNS[0]: Task("mnist", "tempered-cnn", 320, 32, 2, 2.0, tested=2000),
    CNNS[1]: Task("cifar10", "tempered-cnn", 320, 32, 2, 2.0, tested=2000),
    SEQUENCES: Task("sequences", "lstm-32", 250, 32, 8, 8.0, options=(("layers", 1),)),
    **FAMILIES,
    **TINY,
    **WHOLE,
}
# Records of a whole training part.
TRAINED = {"mnist": 60_000, "cifar10": 50_000}
# Of the goal: seeds that nothing was chosen on.
HELD_OUT = (3, 4, 5)
TEN = range(3, 13)


def preset() -> Iterator[Cell]:
    """Half an hour of two cores."""
    yield from _of(MNIST, NOISE)
    yield from _cases(MNIST)
    yield from goal(("large", "medium"))
    yield from _of(SEQUENCES, NOISE)
    yield from _of(CIFAR, NOISE)
    yield from _of(CNNS[1], NOISE)
    yield from _cases(CIFAR)
    yield from _of(CNNS[0], NOISE)
    yield from goal(("none", "small"))


def goal(noises: Iterable[str]) -> Iterator[Cell]:
    """Case II beside SYNC, on seeds that nothing was chosen on. SYNC's updates do not depend on who
    is slow, so it is trained once, without a slow worker."""
    for noise, seed in product(noises, HELD_OUT):
        yield Cell(MNIST, "allreduce", noise, seed=seed)
        yield Cell(MNIST, "asynchronous", noise, "II", seed)


def further() -> Iterator[list[Cell]]:
    """The goal on CIFAR-10, and case III: noises that the preset has for one seed, held-out ones.
    In case III SYNC's batches and steps are doubled, too."""
    yield [
        cell
        for seed in HELD_OUT
        for cell in (
            Cell(CIFAR, "allreduce", "medium", seed=seed),
            Cell(CIFAR, "asynchronous", "medium", "II", seed),
        )
    ]
    yield [Cell(CIFAR, rule, "small", "III", seed) for seed in HELD_OUT for rule in RULES]


def ten() -> Iterator[list[Cell]]:
    """Case III on CIFAR-10 and case II at the largest noise, of ten seeds, first rounds staggered,
    as they are by default."""
    for task, noise, case, its in ((CIFAR, "small", "III", "III"), (MNIST, "large", "II", "even")):
        yield [
            cell
            for seed in TEN
            for cell in (
                Cell(task, "allreduce", noise, its, seed),
                Cell(task, "asynchronous", noise, case, seed, stagger=True),
            )
        ]


def nine() -> Iterator[Cell]:
    """Every row of Table 1, tiny."""
    for noise, name, rule in product(("medium", "none", "small", "large"), TINY, RULES):
        yield Cell(name, rule, noise)


def families() -> Iterator[Cell]:
    """All noises and cases. SYNC's updates do not depend on who is slow: cases I and II have no
    training of their own."""
    for name, case, noise in product(FAMILIES, CASES, NOISE):
        if case in ("even", "III"):
            yield Cell(name, "allreduce", noise, case)
        yield Cell(name, "asynchronous", noise, case, stagger=True)


def beside_families() -> Iterator[list[Cell]]:
    """Each case of :func:`families` beside SYNC, at every noise."""
    for name, case in product(FAMILIES, CASES):
        its = "III" if case == "III" else "even"
        yield [
            cell
            for noise in NOISE
            for cell in (
                Cell(name, "allreduce", noise, its),
                Cell(name, "asynchronous", noise, case, stagger=True),
            )
        ]


def full() -> Iterator[Cell]:
    """Every model, noise, rule and case at its whole size."""
    for task, case, noise, rule in product((MNIST, CIFAR, *CNNS, *WHOLE), CASES, NOISE, RULES):
        yield Cell(task, rule, noise, case)


def _of(task: str, noises: Iterable[str]) -> Iterator[Cell]:
    yield from (Cell(task, rule, noise) for noise in noises for rule in RULES)


def _cases(task: str) -> Iterator[Cell]:
    """The paper's noise in each: medium in I and II, small in III."""
    yield from (Cell(task, "asynchronous", "medium", case) for case in ("I", "II"))
    yield from (Cell(task, rule, "small", "III") for rule in RULES)


def finished() -> dict[Cell, dict[str, Any]]:
    """Cell → what came of it."""
    found = {}
    if RESULTS.exists():
        for line in RESULTS.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found[Cell(**row.pop("cell"))] = row
    return found


def estimate(cells: Iterable[Cell], found: dict[Cell, dict[str, Any]]) -> str:
    """What cells would take, by what a record's gradient took wherever its network was trained.

    A small cell's time has the making and measuring of the model in it as well, so that what the
    nine networks would take is too much rather than too little.
    """
    spent: dict[tuple[Any, ...], list[float]] = {}
    for cell, row in found.items():
        task = TASKS[cell.task]
        if cell.rule == "allreduce":  # of which every worker makes all rounds
            records = task.workers * task.batch * row["rounds"] * (2 if cell.case == "III" else 1)
            each = spent.setdefault((task.data, task.model, task.options), [])
            each.append(row["processor"] / records)
    hours, unknown = 0.0, set()
    for cell in cells:
        task = TASKS[cell.task]
        if not (each := spent.get((task.data, task.model, task.options))):
            unknown.add(cell.task)
        else:
            share = task.workers * task.records or TRAINED[task.data]
            hours += task.epochs * share * min(each) / 3600
    text = f"{hours:.0f} h of one core in all"
    return f"{text}, without {', '.join(sorted(unknown))}, which never ran" if unknown else text


@cache
def _records(task: Task, folder: Path | None) -> Records:
    return records_of(task, folder)


def _run(cell: Cell, folder: Path | None) -> dict[str, Any]:
    return run(cell, TASKS[cell.task], _records(TASKS[cell.task], folder))


def main() -> None:
    """Run what is missing, and write table and figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETHOUGHT_DATA"))
    parser.add_argument("--nine", action="store_true")
    parser.add_argument("--families", action="store_true", help="48 cells, 6 hours of one core")
    parser.add_argument("--further", action="store_true", help="a quarter of an hour")
    parser.add_argument("--ten", action="store_true", help="ten seeds of cases II and III")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--estimate", action="store_true", help="say how long; run nothing")
    parser.add_argument("--only", action="append", default=[], help="a part of a task's name")
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.parse_args()
    found = finished()
    cells = nine() if asked.nine else full() if asked.full else preset()
    cells = families() if asked.families else cells
    cells = chain.from_iterable(further()) if asked.further else cells
    cells = chain.from_iterable(ten()) if asked.ten else cells
    if asked.estimate:
        print(estimate([cell for cell in dict.fromkeys(cells) if cell not in found], found))
        return
    wanted = [
        cell
        for cell in ({} if asked.write else dict.fromkeys(cells))
        if cell not in found and all(part in cell.task for part in asked.only)
    ]
    with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
        running = {pool.submit(_run, cell, asked.data): cell for cell in wanted}
        for done in as_completed(running):
            cell, row = running[done], done.result()
            found[cell] = row
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"cell": asdict(cell), **row}) + "\n")
            print(cell, f"{row['accuracy']:.2f} worst {row['worst']:.2f}", flush=True)
    real = []
    if REAL.exists():
        real = [json.loads(line) for line in REAL.read_text(encoding="utf-8").splitlines()]
    places = {name: place for place, name in enumerate(TASKS)}
    ours = sum(found[cell]["processor"] for cell in set(preset()) & found.keys())
    missing = sum(cell not in found for cell in preset())
    goals = [list(goal(("none", "small", "medium", "large"))), *further(), *ten()]
    goals += beside_families()
    text = table(found, places, tuple(TINY), goals)
    text += f"\nThe preset's cells took {ours / 60:.0f} minutes of processor time in all"
    text += f"; {missing} of them are missing.\n" if missing else ".\n"
    (HERE / "table.md").write_text(text, encoding="utf-8")
    figures(found, (MNIST, CIFAR), real, HERE)
    print(text)


if __name__ == "__main__":
    main()
