"""Patch features beside scattering behind a private linear model: which, and how far to go.

    python experiments/patches/run.py trial --data DIR      # training images only, 10,000 held out
    python experiments/patches/run.py measure --data DIR    # test images, five seeds
    python experiments/patches/run.py tables                # write tables.md from what is there

Both are resumable: a finished cell (one data set with one kind of features) is in trial.csv or
results.csv and is not run again. ``--only cifar10:patches`` runs one cell, ``--smoke`` a few
hundred images of it, and keeps nothing. A cell is some ten minutes of one core at first, more than
half of them for the features, which are cached; the larger ones take 5 GB.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from dataclasses import astuple
from pathlib import Path

import numpy as np
import torch
from side_by_side import Run, accuracies, trained

from forethought.data import Dataset, load
from forethought.data.features import cached

FOLDER = Path(__file__).parent
SETS = ("cifar10", "fashion-mnist", "mnist")
FEATURES = ("patches", "scattering", "deep-patches")
HELD_OUT = 10_000
EPSILONS = (0.5, 1.0, 3.0, 8.0)
SPREADS = (0.25, 0.5, 1.0, 2.0)
# Chosen on trial.csv, by features and ε: see README.md.
CHOSEN = {
    "patches": dict.fromkeys(EPSILONS, 1.0),
    "deep-patches": dict.fromkeys(EPSILONS, 1.0),
    "scattering": dict(zip(EPSILONS, (2.0, 1.0, 0.5, 0.25), strict=True)),
}
SEEDS = 5
FILES = {"trial": FOLDER / "trial.csv", "measure": FOLDER / "results.csv"}
FIELDS = ("set", "features", "epsilon", "spread", "seed", "accuracy", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("trial", "measure", "tables"))
    parser.add_argument("--data", type=Path, help="where mnist/, cifar10/, … are")
    parser.add_argument("--only", help="SET:FEATURES")
    parser.add_argument("--smoke", action="store_true", help="a few hundred images, nothing kept")
    arguments = parser.parse_args()
    if arguments.what == "tables":
        write_tables()
        return
    torch.set_grad_enabled(False)
    for name in SETS:
        for features in FEATURES:
            if arguments.only not in (None, f"{name}:{features}"):
                continue
            if not arguments.smoke and any(
                (row["set"], row["features"]) == (name, features)
                for row in rows(FILES[arguments.what])
            ):
                continue
            cell(arguments.what, name, features, arguments.data, arguments.smoke)
    if not arguments.smoke:
        write_tables()


def cell(what: str, name: str, features: str, folder: Path | None, smoke: bool) -> None:
    """Train every run of one data set and one kind of features, and keep what came out."""
    data = load(name, folder=folder)
    train, test = parts(what, data)
    if smoke:
        train, test = (x[:300] for x in train), (x[:100] for x in test)
    (images, targets), (others, labels) = train, test
    runs = [
        Run(epsilon, spread, seed)
        for epsilon in EPSILONS
        for spread in (SPREADS if what == "trial" else (CHOSEN[features][epsilon],))
        for seed in range(1 if what == "trial" else SEEDS)
    ]
    inputs, held_out = of(images, features), of(others, features)
    start = time.process_time()
    weights = trained(inputs, torch.from_numpy(targets), runs)
    seconds = time.process_time() - start
    found = accuracies(weights, held_out, torch.from_numpy(labels))
    for run, accuracy in zip(runs, found, strict=True):
        print(f"{name} {features} {run}: {accuracy:.2f}", flush=True)
    if smoke:
        return
    new = not FILES[what].exists()
    with FILES[what].open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(FIELDS)
        for run, accuracy in zip(runs, found, strict=True):
            writer.writerow((name, features, *astuple(run), f"{accuracy:.2f}", f"{seconds:.0f}"))


def parts(what: str, data: Dataset) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Images and labels to train on and to measure on; a trial does not touch the test images."""
    train = (data.train.inputs, data.train.targets)
    if what == "trial":
        return tuple(x[:-HELD_OUT] for x in train), tuple(x[-HELD_OUT:] for x in train)
    if data.test is None:
        raise SystemExit(f"{data.name} has no test images")
    return train, (data.test.inputs, data.test.targets)


def of(images: np.ndarray, features: str) -> torch.Tensor:
    """Features of images, each record scaled to norm 1, as bfloat16; (N, features)."""
    found: torch.Tensor | None = None
    for at in range(0, len(images), HELD_OUT):  # bounds memory
        piece = torch.from_numpy(cached(images[at : at + HELD_OUT], features)).flatten(1)
        if found is None:
            found = torch.empty(len(images), piece.shape[1], dtype=torch.bfloat16)
        # Patch features have norm 1 as they are.
        scale = 1.0 if features.endswith("patches") else piece.norm(dim=1, keepdim=True)
        found[at : at + HELD_OUT] = piece / scale
    if found is None:
        raise SystemExit("no images")
    return found


def rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_tables() -> None:
    """tables.md from the two files, whatever is in them."""
    text = ["Written by `python experiments/patches/run.py tables`.\n"]
    text += ["## Held-out training images: accuracy by spread of the noise in the scores\n"]
    head = [f"ε {e:g}, {s:g}" for e in EPSILONS for s in SPREADS]
    text += ["| set | features | " + " | ".join(head) + " |", "| --- " * (len(head) + 2) + "|"]
    found = {
        (r["set"], r["features"], float(r["epsilon"]), float(r["spread"])): r["accuracy"]
        for r in rows(FILES["trial"])
    }
    for name, features in dict.fromkeys(key[:2] for key in found):
        cells = [found.get((name, features, e, s), "–") for e in EPSILONS for s in SPREADS]
        text.append(f"| {name} | {features} | " + " | ".join(cells) + " |")
    text += ["\n## Test images: mean and standard deviation over five seeds\n"]
    text += ["| set | features | " + " | ".join(f"ε {e:g}" for e in EPSILONS) + " |"]
    text += ["| --- " * (len(EPSILONS) + 2) + "|"]
    seeds: dict[tuple[str, str, float], list[float]] = {}
    for r in rows(FILES["measure"]):
        key = (r["set"], r["features"], float(r["epsilon"]))
        seeds.setdefault(key, []).append(float(r["accuracy"]))
    for name, features in dict.fromkeys(key[:2] for key in seeds):
        many = [seeds[name, features, e] for e in EPSILONS]
        cells = [f"{statistics.mean(some):.2f} ± {statistics.stdev(some):.2f}" for some in many]
        text.append(f"| {name} | {features} | " + " | ".join(cells) + " |")
    (FOLDER / "tables.md").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
