"""What the planner's defaults reach on test images, a linear model on fixed features.

    python experiments/patches/image_defaults.py --data DIR    # image_defaults.csv and .md
    python experiments/patches/image_defaults.py --data DIR --only mnist:scattering

Plans are what a job without ``[model]`` and ``[training]`` gets: ``ft.plan`` from sizes and the
features' norm. All budgets and seeds of a set are trained in one pass over its features, with
products in bfloat16: the rules of ``ft.train`` at the plan's batches, noise, clipping, step and
averaging, with the means that the plan pays for released once for all. Batches are the same for all
of them, noise is each seed's own. Seeded, so nothing trained here is private. One cell is some
minutes of one core beside the features, and 4 GB. ``--smoke`` trains on 300 images, keeps nothing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from kept_rows import keep, kept
from torch import Tensor

import forethought as ft
from forethought.data import load
from forethought.data.features import EXTRACTORS, cached
from forethought.rounds.preparation import centre

FOLDER = Path(__file__).parent
KEPT, TABLE = FOLDER / "image_defaults.csv", FOLDER / "image_defaults.md"
FIELDS = ("set", "features", "epsilon", "seed", "accuracy", "batch", "rounds", "seconds")
CELLS = (
    "cifar10:patches",
    "cifar10:deep-patches",
    "fashion-mnist:scattering",
    "mnist:scattering",
    "fashion-mnist:patches",
    "mnist:patches",
)
EPSILONS, DELTA = (0.5, 1.0, 3.0, 8.0), 1e-5
SEEDS, CLASSES, PIECE = 5, 10, 10_000
_PART = 1000  # records at a time


@dataclass(frozen=True)
class Column:
    """One run: its plan and the seed of its noise."""

    plan: ft.Plan
    seed: int


def planned(examples: int, features: int, norm: float, epsilon: float) -> ft.Plan:
    """As :meth:`forethought.jobs.load.Loaded.plan_request` asks for it."""
    return ft.plan(
        examples=examples,
        budget=ft.Budget(epsilon, DELTA),
        features=features,
        parameters=(features + 1) * CLASSES,
        feature_norm=norm,
        feature_norm_known=True,
        image_features=True,
    )


def centred(parts: list[Tensor], plan: ft.Plan, seed: int) -> tuple[list[Tensor], float]:
    """Features around the means that the plan pays for, in bfloat16, and their new usual norm.

    The first of the parts are the training records.
    """
    asked = plan.preparation
    assert asked is not None and asked.reach is not None and asked.becomes is not None
    train, size = parts[0], parts[0].shape[1]
    total = torch.zeros(size, dtype=torch.float64)
    for part in train.split(_PART):
        bounded = part.double()
        total += (bounded * (asked.reach / bounded.norm(dim=1, keepdim=True)).clamp_max(1)).sum(0)
    noise = torch.randn(
        size, dtype=torch.float64, generator=torch.Generator().manual_seed(1000 + seed)
    )
    total += noise * asked.parts()[0].noise_multiplier * asked.reach
    found = centre(asked, total / len(train), len(train))
    shift, scale = torch.tensor(found.shift), torch.tensor(found.scale)
    for part in parts:
        for at in range(0, len(part), _PART):
            part[at : at + _PART] = (part[at : at + _PART].float() - shift) / scale
    return parts, asked.becomes


def trained(inputs: Tensor, targets: Tensor, columns: list[Column], seed: int) -> Tensor:
    """Averaged weights of all columns, (features + 1, columns, classes), intercepts last.

    Args:
        inputs: (N, features) in bfloat16, as the plans train on them. columns: plans of one batch,
            number of rounds, momentum and clip norm. seed: of the batches.
    """
    plan = columns[0].plan
    momentum, decay = float(dict(plan.optimizer.options)["momentum"]), plan.averaging.decay
    N, size = inputs.shape
    rate, clip = plan.batch / plan.examples, plan.clip.norm
    scale = torch.tensor([c.plan.noise_multiplier * clip / c.plan.batch for c in columns])[:, None]
    step = torch.tensor([c.plan.optimizer.learning_rate for c in columns])[:, None]
    draws = torch.Generator().manual_seed(seed)
    noises = {c.seed: torch.Generator().manual_seed(c.seed) for c in columns}
    shape = (size + 1, len(columns), CLASSES)
    weights, speed, average = (torch.zeros(shape) for _ in range(3))
    lengths = torch.cat([part.float().square().sum(1) for part in inputs.split(_PART)])
    lengths = (lengths + 1).sqrt()
    for done in range(plan.rounds):
        chosen = (torch.rand(N, generator=draws) < rate).nonzero()[:, 0]
        now, total = weights.flatten(1).bfloat16(), torch.zeros(shape).flatten(1)
        for rows in chosen.split(_PART):
            part = inputs[rows]
            scores = (part @ now[:-1]).float() + weights.flatten(1)[-1]
            slopes = scores.view(-1, *shape[1:]).softmax(-1)
            slopes[torch.arange(len(part)), :, targets[rows]] -= 1
            norms = slopes.norm(dim=-1, keepdim=True) * lengths[rows, None, None]
            slopes *= (clip / norms.clamp_min(1e-12)).clamp_max(1)
            flat = slopes.flatten(1)
            total[:-1] += (part.T @ flat.bfloat16()).float()
            total[-1] += flat.sum(0)
        gradient = total.view(shape) / (rate * N)
        drawn = {
            seed: torch.randn(size + 1, CLASSES, generator=generator)
            for seed, generator in noises.items()
        }
        for at, column in enumerate(columns):
            gradient[:, at] += scale[at] * drawn[column.seed]
        speed.mul_(momentum).add_(gradient)
        weights -= step * speed
        average.lerp_(weights, 1 - min(decay, (2 + done) / (11 + done)))
    return average


def accuracies(weights: Tensor, inputs: Tensor, targets: Tensor) -> list[float]:
    """Percent right, by column."""
    right, flat = torch.zeros(weights.shape[1]), weights.flatten(1)
    for at in range(0, len(inputs), _PART):
        scores = (inputs[at : at + _PART] @ flat[:-1].bfloat16()).float() + flat[-1]
        guessed = scores.view(-1, *weights.shape[1:]).argmax(-1)
        right += (guessed == targets[at : at + _PART, None]).float().sum(0)
    return (100 * right / len(inputs)).tolist()


def features_of(images: Any, name: str) -> Tensor:
    """(N, features) in bfloat16."""
    found = None
    for at in range(0, len(images), PIECE):  # bounds memory
        piece = torch.from_numpy(cached(images[at : at + PIECE], name)).flatten(1)
        if found is None:
            found = torch.empty(len(images), piece.shape[1], dtype=torch.bfloat16)
        found[at : at + PIECE] = piece
    assert found is not None
    return found


def cell(name: str, features: str, folder: Path | None, smoke: bool) -> None:
    """All budgets and seeds on one set."""
    data = load(name, folder=folder)
    if data.test is None:
        raise SystemExit(f"{name} has no test images")
    most = 300 if smoke else len(data.train)
    images, others = data.train.inputs[:most], data.test.inputs[:most]
    targets, labels = (
        torch.from_numpy(part.targets[:most]).long() for part in (data.train, data.test)
    )
    extractor = EXTRACTORS[features]
    norm = extractor.usual_norm(extractor.shape(images.shape))
    parts = [features_of(part, features) for part in (images, others)]
    plans = [planned(len(data.train), parts[0].shape[1], norm, epsilon) for epsilon in EPSILONS]
    assert len({plan.preparation for plan in plans}) == 1  # so it is released once for all
    (inputs, held_out), _ = centred(parts, plans[0], 0)
    columns = [Column(plan, seed) for plan in plans for seed in range(1 if smoke else SEEDS)]
    start = time.process_time()
    weights = trained(inputs, targets, columns, 0)
    seconds = time.process_time() - start
    found = []
    for column, right in zip(columns, accuracies(weights, held_out, labels), strict=True):
        plan = column.plan
        assert plan.budget is not None
        what = (name, features, plan.budget.epsilon, column.seed, f"{right:.2f}")
        found.append((*what, round(plan.batch), plan.rounds, f"{seconds:.0f}"))
    print(*found, sep="\n", flush=True)
    if not smoke:
        keep(KEPT, FIELDS, found)


def write_table() -> None:
    """image_defaults.md from image_defaults.csv."""
    text = ["Written by `python experiments/patches/image_defaults.py`.\n"]
    text += [f"Test images, {SEEDS} seeds of the noise: mean ± standard deviation, in per cent.\n"]
    text += [
        "| set | features | " + " | ".join(f"ε {e:g}" for e in EPSILONS) + " | batch, rounds |"
    ]
    text += ["| --- " * (len(EPSILONS) + 3) + "|"]
    rows = kept(KEPT)
    for name, features in dict.fromkeys((row["set"], row["features"]) for row in rows):
        own = [row for row in rows if (row["set"], row["features"]) == (name, features)]
        cells = []
        for epsilon in EPSILONS:
            some = [float(r["accuracy"]) for r in own if float(r["epsilon"]) == epsilon]
            cells.append(f"{statistics.mean(some):.2f} ± {statistics.stdev(some):.2f}")
        size = f"{own[0]['batch']}, {own[0]['rounds']}"
        text.append(f"| {name} | {features} | " + " | ".join(cells) + f" | {size} |")
    TABLE.write_text("\n".join(text) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="where mnist/, cifar10/, … are")
    parser.add_argument("--only", choices=CELLS, help="one set with one kind of features")
    parser.add_argument("--smoke", action="store_true", help="300 images, nothing kept")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    done = {(row["set"], row["features"]) for row in kept(KEPT)}
    for wanted in CELLS:
        name, features = wanted.split(":")
        if arguments.only not in (None, wanted):
            continue
        if arguments.smoke or (name, features) not in done:
            cell(name, features, arguments.data, arguments.smoke)
    if not arguments.smoke:
        write_table()


if __name__ == "__main__":
    main()
