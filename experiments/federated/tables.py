"""Tables 2 to 5 of Bhaskar et al., "Optimal Strategies for Federated Learning Maintaining Client
Privacy": their figures, ours at their settings, ours as planned, at the same exact ε.

    python experiments/federated/tables.py --data ../shared/data            # the small preset
    python experiments/federated/tables.py --data ../shared/data --full     # every cell, ten seeds
    python experiments/federated/tables.py --data ../shared/data --only mnist --only SN+Linear

Every finished seed of a cell is a line of results.csv and is not run again, so a run that was
stopped goes on where it was. tables.md is written from that file alone (--write).
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import astuple, fields
from pathlib import Path

import torch
from cells import MODELS, Cell, Outcome, dataset, run
from printed import EPSILONS, FEDAVG, K_TABLE, PRINTED, SPLITS

HERE = Path(__file__).parent
COLUMNS = [field.name for field in fields(Cell)]
FIGURES = [field.name for field in fields(Outcome)]
SETTINGS = ("paper", "planned")
CLIENTS = 10


def every_cell() -> Iterator[Cell]:
    """The full grid: Tables 2 to 4, then Table 5, then FedAvg's columns of Tables 2 to 4."""
    yield from private_cells()
    for data in EPSILONS:
        for local, _ in SPLITS:
            for model in MODELS:
                yield Cell(data, model, math.inf, local, CLIENTS, "fedavg")


def private_cells() -> Iterator[Cell]:
    """The 192 rows with an ε, each at two settings."""
    for data, epsilons in EPSILONS.items():
        for epsilon in epsilons:
            for local, _ in SPLITS:
                for model in MODELS:
                    for settings in SETTINGS:
                        yield Cell(data, model, epsilon, local, CLIENTS, settings)
    for data, (largest, _) in EPSILONS.items():
        for clients in K_TABLE:
            for model in MODELS:
                for settings in SETTINGS:
                    yield Cell(data, model, largest, 1, clients, settings)


def small_preset() -> Iterator[Cell]:
    """Under half an hour on two cores: linear models, and a CNN at both ends of E."""
    for epsilon in EPSILONS["mnist"]:
        for local in (1, 4, 20):
            for settings in SETTINGS:
                yield Cell("mnist", "SN+Linear", epsilon, local, CLIENTS, settings)
    for local in (1, 20):
        for settings in SETTINGS:
            yield Cell("fashion-mnist", "SN+Linear", 2.7, local, CLIENTS, settings)
    for local in (1, 20):
        yield Cell("mnist", "CNN+TS", 2.93, local, CLIENTS, "planned")
    for clients in (1, 25):
        for settings in SETTINGS:
            yield Cell("mnist", "SN+Linear", 2.93, 1, clients, settings)


def varied_cells() -> Iterator[Cell]:
    """Where a column is far behind the other, or behind the paper: one thing changed at a time."""
    for change in ("told", "flat", "shorter=3", "shorter=3 flat"):
        yield Cell("cifar10", "SN+Linear", 3.0, 1, CLIENTS, f"planned {change}")
    for batch in (60, 125, 500):
        yield Cell("fashion-mnist", "CNN+ReLU", 2.7, 1, CLIENTS, f"paper batch={batch}")
    for data in ("mnist", "fashion-mnist"):
        for local in (5, 10, 20):
            yield Cell(data, "CNN+ReLU", math.inf, local, CLIENTS, "fedavg shorter=3")


def finished(path: Path) -> dict[tuple[str, ...], dict[int, Outcome]]:
    """Cell → seed → what came of it."""
    found: dict[tuple[str, ...], dict[int, Outcome]] = defaultdict(dict)
    if path.exists():
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                key = tuple(row[name] for name in COLUMNS)
                found[key][int(row["seed"])] = Outcome(*(float(row[name]) for name in FIGURES))
    return found


def printed(cell: Cell) -> float | None:
    """The paper's figure for a cell."""
    place = list(MODELS).index(cell.model)
    if math.isinf(cell.epsilon):
        return FEDAVG[cell.data][cell.local_epochs][place]
    if cell.local_epochs == 1 and cell.clients != CLIENTS:
        return K_TABLE[cell.clients][cell.data][place]
    return PRINTED[cell.data][cell.epsilon][cell.local_epochs][place]


def markdown(results: dict[tuple[str, ...], dict[int, Outcome]]) -> str:
    """All cells that have a result, the paper's figure beside ours."""
    lines = [
        "| data | ε | (E, R) | k | model | paper | at the paper's settings | as planned | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    seen = set()
    for cell in private_cells():
        row = (cell.data, cell.epsilon, cell.local_epochs, cell.clients, cell.model)
        if row in seen:
            continue
        seen.add(row)
        ours = [results.get(Cell(*_of(cell, settings)).key, {}) for settings in SETTINGS]
        if not any(ours):
            continue
        theirs = printed(cell)
        shown = [_mean(found, theirs) for found in ours]
        split = f"({cell.local_epochs}, {20 // cell.local_epochs})"
        seeds = ", ".join(str(len(found)) for found in ours)
        lines.append(
            f"| {cell.data} | {cell.epsilon:g} | {split} | {cell.clients} | {cell.model} | "
            f"{theirs:.2f} | {shown[0]} | {shown[1]} | {seeds} |"
        )
    lines += ["", "## FedAvg", "", FEDAVG_HEAD]
    lines += ["| data | (E, R) | model | paper | here | seeds |", "| --- " * 6 + "|"]
    for data, rows in FEDAVG.items():
        for local, figures in rows.items():
            for model, theirs in zip(MODELS, figures, strict=True):
                cell = Cell(data, model, math.inf, local, CLIENTS, "fedavg")
                found = results.get(cell.key, {})
                if found:
                    split = f"({local}, {20 // local})"
                    lines.append(
                        f"| {data} | {split} | {model} | {theirs:.2f} | {_mean(found, theirs)} "
                        f"| {len(found)} |"
                    )
    lines += ["", "## One thing changed", "", "| data | ε | E | model | settings | paper | here |"]
    lines += ["| --- " * 7 + "|"]
    for cell in varied_cells():
        if found := results.get(cell.key):
            theirs = printed(cell)
            lines.append(
                f"| {cell.data} | {cell.epsilon:g} | {cell.local_epochs} | {cell.model} "
                f"| {cell.settings} | {theirs:.2f} | {_mean(found, theirs)} |"
            )
    done = sum(1 for cell in every_cell() if results.get(cell.key))
    lines += ["", f"Of the grid's {len(list(every_cell()))} cells {done} have a figure here."]
    return "\n".join(lines)


FEDAVG_HEAD = (
    "Neither noise nor clipping: step size 0.3, momentum 0.5, batches of 250, ten clients.\n"
)


def _of(cell: Cell, settings: str) -> tuple[str, str, float, int, int, str]:
    return (cell.data, cell.model, cell.epsilon, cell.local_epochs, cell.clients, settings)


def _mean(found: dict[int, Outcome], theirs: float | None) -> str:
    if not found:
        return "not run"
    values = [outcome.accuracy for outcome in found.values()]
    mean = statistics.mean(values)
    mark = "**" if theirs is not None and mean > theirs else ""
    spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    return f"{mark}{mean:.2f}{mark}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="where mnist/ is; or FORETHOUGHT_DATA")
    parser.add_argument("--full", action="store_true", help="every cell (weeks on one core)")
    parser.add_argument("--varied", action="store_true", help="one thing changed at a time")
    parser.add_argument("--only", action="append", default=[], help="a data set, model or settings")
    parser.add_argument("--seeds", type=int, help="of each cell; 1, or 10 with --full")
    parser.add_argument("--results", type=Path, default=HERE / "results.csv")
    parser.add_argument("--write", action="store_true", help="write tables.md and stop")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.write:
        cells = every_cell() if arguments.full else small_preset()
        cells = varied_cells() if arguments.varied else cells
        wanted = [cell for cell in cells if all(word in cell.key for word in arguments.only)]
        compute(wanted, arguments.seeds or (10 if arguments.full else 1), arguments)
    table = markdown(finished(arguments.results))
    (HERE / "tables.md").write_text(HEAD + table + "\n", encoding="utf-8")
    print(table)


def compute(cells: list[Cell], seeds: int, arguments: argparse.Namespace) -> None:
    """Run what is missing, seed by seed, and append every figure as it comes."""
    done = finished(arguments.results)
    loaded: dict[tuple[str, str | None], object] = {}
    for seed in range(seeds):
        for cell in cells:
            if seed in done.get(cell.key, {}):
                continue
            name = (cell.data, MODELS[cell.model][1])
            if name not in loaded:
                loaded.clear()  # one data set in memory at a time
                loaded[name] = dataset(cell.data, cell.model, arguments.data)
            outcome = run(cell, loaded[name], seed)  # type: ignore[arg-type]
            new = not arguments.results.exists()
            with arguments.results.open("a", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                if new:
                    writer.writerow([*COLUMNS, "seed", *FIGURES])
                writer.writerow([*cell.key, seed, *(f"{v:.6g}" for v in astuple(outcome))])
            done[cell.key][seed] = outcome
            print(*cell.key, f"seed {seed}: {outcome.accuracy:.2f} %", flush=True)


HEAD = """# Tables 2 to 5 of Bhaskar et al., beside ours

Written by `python experiments/federated/tables.py --write` from results.csv. Test accuracy of the
final global model in percent, mean over seeds (least to most). ε is exact at δ = 1e-5, a record
added or removed, against a server that sees every update. E·R = 20 epochs; k clients each draw 10 %
of the training records (k = 1: one client with all of them). Bold: above the paper. "Paper's
settings": lr 0.3, momentum 0.5, C = 1, and batches of 250, which the paper does not print. Its own
figures are means of ten runs with noise from its accountant; CIFAR-10 here has 174 images decoded
from a JPEG copy.

"""


if __name__ == "__main__":
    main()
