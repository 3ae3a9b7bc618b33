"""A linear model on UCI Adult as its file is: what a declared logarithm of the wide columns does.

    python experiments/defaults/adult.py --data ../shared/data
    python experiments/defaults/adult.py --data ../shared/data --smoke   # 2,000 records, one seed

Ranges and categories are those of the set's description (adult.names), not of its records. Four
ways: ranges alone or with `log = true` for the weights and the capital columns, features centred by
the plan or not. It writes adult.md, but for ``--smoke``.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import tempfile
import warnings
from pathlib import Path

import numpy as np

import forethought as ft
from forethought.data import Dataset, load
from forethought.data.columns import TableSchema
from forethought.data.dataset import Split
from forethought.models import build

NAMES = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)
RANGES = {
    "age": (17, 90),
    "fnlwgt": (0, 1_500_000),
    "education-num": (1, 16),
    "capital-gain": (0, 100_000),
    "capital-loss": (0, 5_000),
    "hours-per-week": (1, 99),
}
WIDE = ("fnlwgt", "capital-gain", "capital-loss")
EPSILONS = (0.1, 0.5, 1.0, 3.0)
RESULTS = Path(__file__).with_name("adult.md")


def table(folder: Path, kind: str, into: Path, most: int | None) -> Path:
    """One of the two files as a CSV with a header."""
    rows = []
    with gzip.open(folder / "uci" / f"adult.{kind}.gz", "rt", encoding="ascii") as file:
        for line in file:
            entries = [entry.strip().rstrip(".") for entry in line.split(",")]
            if len(entries) == len(NAMES):
                rows.append(",".join(entries))
    path = into / f"{kind}.csv"
    path.write_text("\n".join([",".join(NAMES), *rows[:most]]) + "\n", encoding="ascii")
    return path


def words(folder: Path) -> dict[str, list[str]]:
    """The categories that adult.names lists."""
    found = {}
    for line in (folder / "uci" / "adult.names").read_text("ascii").splitlines():
        name, _, rest = line.partition(":")
        if name in NAMES and "continuous" not in rest:
            found[name] = [word.strip() for word in rest.strip().rstrip(".").split(",")]
    return found


def dataset(folder: Path, log: bool, most: int | None) -> Dataset:
    """Adult by its declaration."""
    columns: dict[str, object] = {
        name: {"categories": known, "missing": "middle"} for name, known in words(folder).items()
    }
    for name, ends in RANGES.items():
        wide = {"range": list(ends), "log": True}
        columns[name] = wide if log and name in WIDE else list(ends)
    with tempfile.TemporaryDirectory() as place:
        train, test = (table(folder, kind, Path(place), most) for kind in ("data", "test"))
        return load(
            f"csv:{train}",
            label="income",
            test=str(test),
            classes=["<=50K", ">50K"],
            schema=TableSchema(columns),
        )


def accuracy(data: Dataset, epsilon: float, centre: bool | None, seeds: int) -> tuple[float, float]:
    """Mean and spread of the default's test accuracy in per cent."""
    found = []
    for seed in range(seeds):
        model = build("linear", inputs=data.shape, classes=2)
        delta = 1 / (10 * len(data.train))
        plan = ft.plan(data=data, model=model, budget=ft.Budget(epsilon, delta), centre=centre)
        run = ft.train(
            model, data, plan, seed=seed, noise_seed=seed, log_every=plan.rounds, diagnostics=False
        )
        found.append(100 * (run.accuracy or 0.0))
    return statistics.mean(found), statistics.stdev(found) if seeds > 1 else 0.0


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="2,000 records, one seed")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    most, seeds = (2_000, 1) if args.smoke else (None, args.seeds)
    lines = [
        f"Written by `python experiments/defaults/adult.py --seeds {seeds}`: mean and spread, %.",
        "",
        "| ε | ranges, not centred | log, not centred | ranges, centred | log, centred |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    print(*lines, sep="\n", flush=True)
    plain, logs = (dataset(args.data, log, most) for log in (False, True))
    for epsilon in EPSILONS:
        cells = [
            accuracy(data, epsilon, centre, seeds)
            for centre in (False, None)
            for data in (plain, logs)
        ]
        told = [f"{mean:.1f} ± {spread:.1f}" for mean, spread in cells]
        lines.append(f"| {epsilon:g} | {' | '.join(told)} |")
        print(lines[-1], flush=True)
    test = plain.test
    assert isinstance(test, Split)
    share = 100 * np.bincount(np.asarray(test.targets)).max() / len(test.targets)
    lines += ["", f"Always the more usual class: {share:.1f}."]
    print(*lines[-2:], sep="\n")
    if not args.smoke:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
