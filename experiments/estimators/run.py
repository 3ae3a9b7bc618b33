"""Private estimators beside diffprivlib's: score and processor time, the same rows and bounds.

    python experiments/estimators/run.py                                  # three small tables
    python experiments/estimators/run.py --full --data ../shared/data     # results.md, an hour

Both see the same 80 % of a table, split by the seed, with the same bound on rows and the same
ranges, one thread each. Ours runs under replace-one, diffprivlib's adjacency, with δ = 1/(10 n);
diffprivlib spends δ = 0. It runs in an environment of its own, made in build/diffprivlib on first
use: diffprivlib 0.6.6 cannot be imported beside scikit-learn 1.8 and later.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from sets import CLASSIFICATION, REGRESSION, Table
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import train_test_split

from forethought.estimators import PrivateLinearRegression, PrivateLogisticRegression

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EPSILONS = (0.1, 1.0, 3.0)
SEEDS = 20
# 70,000 images of 784 pixels: a fit takes seconds, and seeds differ in the third decimal.
FEW = {
    "MNIST, 0 against rest": 3,
    "MNIST, ten classes": 2,
    "Fashion-MNIST, 0 against rest": 3,
    "MNIST, digit as a number": 3,
}
SMALL = ("Iris", "wine", "diabetes")
# A mean score is at chance that is not so many standard errors above naming the commonest class
# (or, of numbers, the mean).
ERRORS = 2.0


@dataclass(frozen=True)
class Cell:
    """One line: a task, a table, an ε. Scores are accuracies or R², seconds are of one fit."""

    task: str
    data: str
    records: int
    features: int
    epsilon: float
    seeds: int
    chance: float
    not_private: float
    ours: float
    ours_spread: float
    theirs: float
    theirs_spread: float
    our_seconds: float
    their_seconds: float

    @property
    def verdict(self) -> str:
        """Who is ahead; in brackets where one of the two is at chance."""
        ahead = "ours" if self.ours > self.theirs else "theirs"
        scores = ((self.ours, self.ours_spread), (self.theirs, self.theirs_spread))
        clear = all(
            mean - ERRORS * spread / self.seeds**0.5 > self.chance for mean, spread in scores
        )
        return ahead if clear else f"({ahead})"


def parts(table: Table, seed: int) -> tuple[Any, Any, Any, Any]:
    """Training rows, test rows, training targets, test targets."""
    return tuple(train_test_split(table.X, table.y, test_size=0.2, random_state=seed))


def estimator(table: Table, epsilon: float) -> Any:
    """Ours, for a table."""
    given = {"epsilon": epsilon, "feature_bound": table.bound, "adjacency": "replace-one"}
    if table.target_range is None:
        return PrivateLogisticRegression(**given, classes=table.classes)
    return PrivateLinearRegression(**given, target_range=table.target_range)


def ours(table: Table, epsilon: float, seeds: int) -> tuple[list[float], list[float]]:
    """Scores and processor seconds of our fits."""
    scores, seconds = [], []
    estimator(table, epsilon).fit(
        *(some[:200] for some in (table.X, table.y))
    )  # loads what it needs
    for seed in range(seeds):
        train_x, test_x, train_y, test_y = parts(table, seed)
        model = estimator(table, epsilon)
        began = time.process_time()
        model.fit(train_x, train_y)
        seconds.append(time.process_time() - began)
        scores.append(model.score(test_x, test_y))
    return scores, seconds


def theirs(
    table: Table, task: str, epsilon: float, seeds: int, python: Path, folder: Path
) -> tuple[list[float], list[float]]:
    """Scores and processor seconds of diffprivlib's fits."""
    path = folder / "table.npz"
    ends = table.target_range or (0.0, 0.0)
    np.savez(
        path,
        X=table.X,
        y=table.y,
        bound=table.bound,
        lowest=table.lowest,
        highest=table.highest,
        target_range=ends,
    )
    command = [python, HERE / "rival.py", path, task, str(epsilon), str(seeds)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)), env=environment, capture_output=True, text=True, check=True
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    failed = sum(line["score"] is None for line in lines)
    if failed:
        print(f"diffprivlib failed {failed} times: {done.stderr[-300:]}", flush=True)
    fitted = [line for line in lines if line["score"] is not None]
    return [line["score"] for line in fitted], [line["seconds"] for line in lines]


def reference(table: Table) -> tuple[float, float]:
    """The commonest class's share (R² 0), and scikit-learn's score without privacy, one split."""
    train_x, test_x, train_y, test_y = parts(table, 0)
    if table.target_range is not None:
        return 0.0, float(LinearRegression().fit(train_x, train_y).score(test_x, test_y))
    chance = np.bincount(np.searchsorted(table.classes, table.y)).max() / len(table.y)
    free = LogisticRegression(max_iter=200).fit(train_x, train_y)
    return float(chance), float(free.score(test_x, test_y))


def environment(python: Path | None) -> Path:
    """The Python that has diffprivlib; made on first use."""
    if python is not None:
        return python
    place = ROOT / "build" / "diffprivlib"
    found = place / "bin" / "python"
    if not found.is_file():
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        install = [found, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "--upgrade", "pip>=25.1"], check=True)
        subprocess.run([*install, "--group", f"{ROOT}/pyproject.toml:diffprivlib"], check=True)
    return found


def measured(
    task: str, name: str, table: Table, seeds: int, python: Path, folder: Path
) -> list[Cell]:
    """A table's cells."""
    chance, free = reference(table)
    cells = []
    for epsilon in EPSILONS:
        mine, my_seconds = ours(table, epsilon, seeds)
        other, other_seconds = theirs(table, task, epsilon, seeds, python, folder)
        cell = Cell(
            task,
            name,
            *table.X.shape,
            epsilon,
            seeds,
            chance,
            free,
            statistics.fmean(mine),
            statistics.stdev(mine),
            statistics.fmean(other),
            statistics.stdev(other),
            statistics.median(my_seconds),
            statistics.median(other_seconds),
        )
        print(line(cell), flush=True)
        cells.append(cell)
    return cells


def number(value: float) -> str:
    """Three decimals, or a power of ten where a score has none."""
    return f"{value:.3f}" if value > -10 else f"{value:.0e}"


def line(cell: Cell) -> str:
    """A cell as a row of results.md."""
    spread = f"{cell.theirs_spread:.3f}" if cell.theirs_spread < 10 else f"{cell.theirs_spread:.0e}"
    return (
        f"| {cell.data} | {cell.records:,} × {cell.features} | {cell.epsilon:g} | "
        f"{cell.chance:.3f} | {cell.not_private:.3f} | {cell.ours:.3f} ± {cell.ours_spread:.3f} | "
        f"{number(cell.theirs)} ± {spread} | {cell.verdict} | "
        f"{cell.our_seconds:.3g} | {cell.their_seconds:.3g} | "
        f"{cell.their_seconds / cell.our_seconds:.2g} |"
    )


HEAD = (
    "| data | size | ε | chance | not private | ours | diffprivlib | ahead | our s | their s | "
    "their s / ours |\n" + "| --- " * 11 + "|"
)


def report(cells: list[Cell]) -> str:
    """results.md."""
    text = [
        "# Private estimators beside diffprivlib",
        "",
        "`python experiments/estimators/run.py --full --data ../shared/data` makes this table.",
        "",
        f"Mean and standard deviation over {SEEDS} splits (2 or 3 for 70,000 images), on the 20 % "
        "that were not trained on. Seconds are the median processor time of one fit, one thread. "
        "Both under replace-one; ours with δ = 1/(10 n), diffprivlib's with δ = 0. In brackets: "
        f"one of the two is not {ERRORS:g} standard errors above chance.",
    ]
    for task, title in (("classification", "Accuracy"), ("regression", "R²")):
        chosen = [line(cell) for cell in cells if cell.task == task]
        if chosen:
            text += ["", f"## {title}", "", HEAD, *chosen]
    return "\n".join(text) + "\n"


def kept(path: Path) -> list[Cell]:
    """Cells of an earlier run."""
    if not path.is_file():
        return []
    kinds = {
        field.name: {"str": str, "int": int, "float": float}[field.type] for field in fields(Cell)
    }
    with path.open(encoding="utf-8", newline="") as file:
        return [Cell(**{k: kinds[k](v) for k, v in row.items()}) for row in csv.DictReader(file)]


def store(cells: list[Cell], folder: Path) -> None:
    """Write results.csv and results.md."""
    order = [("classification", name) for name in CLASSIFICATION]
    order += [("regression", name) for name in REGRESSION]
    cells.sort(key=lambda cell: (order.index((cell.task, cell.data)), cell.epsilon))
    with (folder / "results.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Cell)])
        writer.writeheader()
        writer.writerows(map(asdict, cells))
    (folder / "results.md").write_text(report(cells), encoding="utf-8")


def main() -> None:
    """Measure the tables that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="every table; writes results.md")
    parser.add_argument("--only", nargs="+", help="these tables; the others of results.csv stay")
    parser.add_argument("--data", type=Path, default=os.environ.get("FORETHOUGHT_DATA"))
    parser.add_argument("--seeds", type=int, help="in place of 20, 2 or 3")
    parser.add_argument("--python", type=Path, help="a Python that has diffprivlib")
    chosen = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    data = None if chosen.data is None else Path(chosen.data)
    full = chosen.full or chosen.only is not None
    python = environment(chosen.python)
    cells = kept(HERE / "results.csv") if full else []
    print(HEAD)
    for task, tables in (("classification", CLASSIFICATION), ("regression", REGRESSION)):
        for name, load in tables.items():
            if name not in (chosen.only or (tables if full else SMALL)):
                continue
            if data is None and name not in SMALL:
                raise SystemExit(f"{name} needs the folder with the data sets: give --data")
            seeds = chosen.seeds or (FEW.get(name, SEEDS) if full else 3)
            with tempfile.TemporaryDirectory() as folder:
                found = measured(task, name, load(data), seeds, python, Path(folder))
            if full:
                cells = [one for one in cells if (one.task, one.data) != (task, name)] + found
                store(cells, HERE)


if __name__ == "__main__":
    main()
