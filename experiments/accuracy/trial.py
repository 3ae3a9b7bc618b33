"""Fixed features and rounds compared on training images: what the jobs on grey images rest on.

    python experiments/accuracy/trial.py --data-dir DIR    # what is missing in trial.csv, trial.md

The first 50,000 training images train, with the noise that 60,000 would have; the last 10,000
measure. Linear models without an intercept on features of norm 1, full batch, momentum 0.8, clip
norm 0.25, one seed, by ``experiments/patches/side_by_side.py``. A cell (set, features, rounds) that
is in trial.csv is not run again; ``--only mnist:handwriting:150`` runs one, ``--smoke`` 300 images
of each kind of features, and keeps nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from forethought.data import load
from forethought.data.features import cached

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "patches"))
from kept_rows import keep, kept  # noqa: E402  (lie beside)
from side_by_side import Run, accuracies, trained  # noqa: E402

KEPT, TABLE = FOLDER / "trial.csv", FOLDER / "trial.md"
FIELDS = ("set", "features", "rounds", "epsilon", "spread", "accuracy", "seconds")
TRAIN, PIECE = 50_000, 10_000
SPREADS = (0.5, 1.0, 2.0)
EPSILONS = {"mnist": (0.15, 1.2, 2.93), "fashion-mnist": (2.7,)}
CELLS = (
    *(("mnist", "scattering", rounds) for rounds in (30, 150)),
    ("mnist", "deskewed-scattering", 150),
    *(("mnist", "handwriting", rounds) for rounds in (30, 150, 400)),
    *(("fashion-mnist", "scattering", rounds) for rounds in (30, 150)),
    *(("fashion-mnist", "patches", rounds) for rounds in (30, 100)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="where mnist/, … are; or FORETHOUGHT_DATA")
    parser.add_argument("--only", help="SET:FEATURES:ROUNDS")
    parser.add_argument("--smoke", action="store_true", help="300 images, nothing kept")
    given = parser.parse_args()
    torch.set_grad_enabled(False)
    done = {(row["set"], row["features"], int(row["rounds"])) for row in kept(KEPT)}
    for cell in CELLS:
        if given.only not in (None, ":".join(map(str, cell))):
            continue
        if given.smoke or cell not in done:
            found = measured(*cell, given.data_dir, given.smoke)
            if not given.smoke:
                keep(KEPT, FIELDS, found)
    if not given.smoke:
        write_table()


def measured(
    name: str, features: str, rounds: int, folder: Path | None, smoke: bool
) -> list[tuple[object, ...]]:
    """The rows of one cell."""
    whole = load(name, folder=folder).train
    count = 300 if smoke else len(whole.inputs)
    inputs = normalised(whole.inputs[:count], features)
    targets = torch.from_numpy(whole.targets[:count])
    train = min(TRAIN, count * 2 // 3)
    runs = [Run(epsilon, spread) for epsilon in EPSILONS[name] for spread in SPREADS]
    start = time.process_time()
    weights = trained(inputs[:train], targets[:train], runs, count, 3 if smoke else rounds)
    seconds = time.process_time() - start
    found: list[tuple[object, ...]] = []
    right = accuracies(weights, inputs[train:], targets[train:])
    for run, accuracy in zip(runs, right, strict=True):
        row = (name, features, rounds, run.epsilon, run.spread, f"{accuracy:.2f}", f"{seconds:.0f}")
        print(*row, flush=True)
        found.append(row)
    return found


def normalised(images, features: str) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Features of images, each record scaled to norm 1, as bfloat16; (N, features)."""
    found: torch.Tensor | None = None
    if features == "deskewed-scattering":
        images, features = cached(images, "deskewed"), "scattering"
    for at in range(0, len(images), PIECE):  # bounds memory
        piece = torch.from_numpy(cached(images[at : at + PIECE], features)).flatten(1)
        if found is None:
            found = torch.empty(len(images), piece.shape[1], dtype=torch.bfloat16)
        if features == "scattering":
            piece = piece / piece.norm(dim=1, keepdim=True)
        found[at : at + PIECE] = piece
    assert found is not None
    return found


def write_table() -> None:
    """trial.md from trial.csv."""
    found = {
        (r["set"], r["features"], r["rounds"], float(r["epsilon"]), float(r["spread"])): r
        for r in kept(KEPT)
    }
    text = ["Written by `python experiments/accuracy/trial.py`; one seed.\n"]
    text += [
        "Training images only: 50,000 to train on, 10,000 to measure on, noise as for 60,000.\n"
    ]
    head = " | ".join(f"spread {spread:g}" for spread in SPREADS)
    text += [f"| set | features | ε | rounds | {head} |", "| --- " * (4 + len(SPREADS)) + "|"]
    for name, features, rounds in CELLS:
        for epsilon in EPSILONS[name]:
            keys = [(name, features, str(rounds), epsilon, spread) for spread in SPREADS]
            if keys[0] in found:
                cells = " | ".join(found[key]["accuracy"] for key in keys)
                text.append(f"| {name} | {features} | {epsilon} | {rounds} | {cells} |")
    TABLE.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
