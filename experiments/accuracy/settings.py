"""Settings of jobs on MNIST compared on its training images: networks, and batches in place of all.

    python experiments/accuracy/settings.py --data-dir DIR  # what is missing; settings.md

The first 50,000 training images train and the last 10,000 measure, one seed. Batch and noise are
five sixths of those of a job on 60,000 images, so that sampling rate, noise in the mean gradient
and guarantee are the job's; "planned" is the planner's own for 50,000. A cell that is in
settings.csv is not run again; ``--smoke`` trains two rounds on 600 images, and keeps nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

import forethought as ft
from forethought.data import Dataset, Split, load
from forethought.data.features import EXTRACTORS, cached
from forethought.models import build

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent / "patches"))
from kept_rows import keep, kept  # noqa: E402  (lies beside)

KEPT, TABLE = FOLDER / "settings.csv", FOLDER / "settings.md"
EXAMPLES, TRAIN = 60_000, 50_000
DELTA = 1.6666e-5


@dataclass(frozen=True)
class Cell:
    """A model and the settings that it is trained with, as a job on 60,000 images has them.

    Args:
        batch: 0: all that follows is the planner's.
        images: ``"pixels"``, or features of them. averaging: ``"none"`` reports the last weights.
        strength: of what the Gabor CNN's last layer sees; 0 elsewhere.
    """

    epsilon: float
    model: str
    images: str
    batch: int
    rounds: int
    learning_rate: float
    momentum: float
    clip_norm: float
    averaging: str
    strength: float = 0.0


def linear(epsilon: float, rounds: int, learning_rate: float) -> Cell:
    """Noise of 0.5 in the scores at ε = 0.15, of 1 elsewhere."""
    settings = (rounds, learning_rate, 0.8, 0.25, "none")
    return Cell(epsilon, "linear", "handwriting", 4096, *settings)


def usual(model: str, images: str) -> Cell:
    return Cell(0.15, model, images, 2048, 150, 0.5, 0.9, 1.0, "exponential")


def gabor(images: str, rounds: int, learning_rate: float, strength: float) -> Cell:
    settings = (rounds, learning_rate, 0.9, 0.5, "none", strength)
    return Cell(0.15, "gabor-cnn", images, 2048, *settings)


PLANNED = (0, 0, 0.0, 0.0, 0.0, "")
CELLS = (
    *(usual(model, images) for model in ("lenet5", "tempered-cnn") for images in ("pixels",)),
    *(gabor("pixels", 40, rate, strength) for strength in (1.0, 3.0) for rate in (3.5, 7.0, 14.0)),
    *(gabor("pixels", rounds, rate, 3.0) for rounds, rate in ((20, 14.0), (80, 3.5))),
    gabor("deskewed", 40, 7.0, 3.0),
    Cell(0.15, "gabor-cnn", "pixels", *PLANNED),
    *(linear(0.15, rounds, rate) for rounds, rate in ((60, 19.3), (120, 9.7))),
    *(linear(1.2, rounds, rate) for rounds, rate in ((200, 73.7), (400, 37.9))),
    *(linear(2.93, rounds, rate) for rounds, rate in ((400, 78.8), (800, 41.2))),
    *(Cell(epsilon, "linear", "handwriting", *PLANNED) for epsilon in (0.15, 1.2, 2.93)),
    *(usual(model, "deskewed") for model in ("lenet5", "tempered-cnn")),
)
FIELDS = (*(field.name for field in fields(Cell)), "accuracy", "seconds")
WEIGHTS = {"": "", "none": "last", "exponential": "averaged"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, help="where mnist/ is; or FORETHOUGHT_DATA")
    parser.add_argument("--smoke", action="store_true", help="600 images, nothing kept")
    given = parser.parse_args()
    done = {tuple(row[field] for field in FIELDS[:-2]) for row in kept(KEPT)}
    for cell in CELLS:
        if given.smoke or tuple(map(str, astuple(cell))) not in done:
            found = measured(cell, given.data_dir, given.smoke)
            if not given.smoke:
                keep(KEPT, FIELDS, [found])
    if not given.smoke:
        write_table()


def measured(cell: Cell, folder: Path | None, smoke: bool) -> tuple[object, ...]:
    """The row of one cell."""
    whole = load("mnist", folder=folder).train
    count, train = (600, 500) if smoke else (EXAMPLES, TRAIN)
    images, targets = whole.inputs[:count], whole.targets[:count]
    if cell.images != "pixels":
        images = cached(images, cell.images)
    options: dict[str, Any] = {"strength": cell.strength} if cell.strength else {}
    if cell.model == "linear" and cell.batch:
        options["bias"] = False
    model = build(cell.model, inputs=images.shape[1:], classes=10, seed=0, **options)
    plan = plan_of(cell, images[:train], targets[:train], model, smoke)
    start = time.process_time()
    run = ft.train(
        model,
        (images[:train], targets[:train]),
        plan,
        test=(images[train:], targets[train:]),
        seed=0,
        noise_seed=0,
        log_every=plan.rounds,
        micro_batch=512,
    )
    assert run.accuracy is not None
    seconds = time.process_time() - start
    row = (*astuple(cell), f"{100 * run.accuracy:.2f}", f"{seconds:.0f}")
    print(*row, flush=True)
    return row


def plan_of(
    cell: Cell,
    images: NDArray[np.float32],
    targets: NDArray[np.int64],
    model: nn.Module,
    smoke: bool,
) -> ft.Plan:
    """The cell's plan for these images, five sixths of the whole."""
    train = len(images)
    budget = ft.Budget(cell.epsilon, DELTA)
    if not cell.batch and cell.model != "linear":
        return ft.plan(examples=train, budget=budget, model=model, shape=images.shape[1:])
    if not cell.batch:
        norm = EXTRACTORS[cell.images].usual_norm(images.shape)
        rows = Split(images, targets)
        data = Dataset("mnist", rows, None, 10, feature_norm=norm, fixed_features=cell.images)
        return ft.plan(data=data, budget=budget, model=model)
    count = train * 6 // 5
    settings: dict[str, Any] = {
        "rounds": 2 if smoke else cell.rounds,
        "clip_norm": cell.clip_norm,
        "learning_rate": cell.learning_rate,
        "options": {"momentum": cell.momentum},
        "averaging": ft.Averaging(cell.averaging),
    }
    batch = min(cell.batch, count // 10)
    job = ft.plan(examples=count, budget=budget, batch=batch, **settings)
    return ft.plan(
        examples=train,
        noise_multiplier=job.noise_multiplier * train / count,
        batch=round(batch * train / count),
        delta=DELTA,
        **settings,
    )


def write_table() -> None:
    """settings.md from settings.csv."""
    rows = {tuple(row[field] for field in FIELDS[:-2]): row for row in kept(KEPT)}
    heads = (
        "ε, model, images, batch, rounds, step, momentum, clip norm, weights, strength, accuracy"
    )
    text = ["Written by `python experiments/accuracy/settings.py`; one seed.\n"]
    text += ["MNIST's training images only: 50,000 to train on, 10,000 to measure on.\n"]
    text += [f"| {heads.replace(', ', ' | ')} |", "| --- " * (heads.count(",") + 1) + "|"]
    for cell in CELLS:
        row = rows.get(tuple(map(str, astuple(cell))))
        if row is not None:
            words = [row[field] for field in FIELDS[:-2]]
            words[-2:] = [WEIGHTS[cell.averaging], row["strength"] if cell.strength else ""]
            if not cell.batch:
                words[3:] = ["planned"] * 6 + [""]
            text.append(f"| {' | '.join(words)} | {row['accuracy']} % |")
    TABLE.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
