"""How good is a rehearsal's prediction?

    python experiments/defaults/rehearsals.py --data ../shared/data           # minutes
    python experiments/defaults/rehearsals.py --data ../shared/data --full    # all images

For each of six data sets, taken as private: the default plan, rehearsed on public proxies of the
same shape, on synthetic data, and, as a control of the interval itself, on the data set's own
records. Then the plan is run on the "private" data. The proxies: Fashion-MNIST for MNIST and the
reverse; MNIST pooled to 8 × 8 pixels for digits; mushrooms, padded with zeros, for a9a.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from run import FRESH, trained
from sets import NAMES, Task, fetch
from torch import nn
from torch.nn import functional

import forethought as ft
from forethought.data import Dataset
from forethought.data.dataset import Split
from forethought.data.features import with_scattering
from forethought.data.synthetic import like
from forethought.models import build
from forethought.planning.defaults import default_delta
from forethought.utility.rehearsal import PublicProxy, rehearse

HERE = Path(__file__).parent
STAND_INS = {"mnist": "fashion-mnist", "fashion-mnist": "mnist", "digits": "mnist, 8 × 8"}


@dataclass(frozen=True)
class Row:
    """One prediction beside what was achieved, in per cent."""

    data: str
    examples: int
    epsilon: float
    rehearsed_on: str
    distinct: float
    predicted: float
    lower: float
    upper: float
    achieved: float
    error: float
    inside: bool


def dataset(task: Task, name: str) -> Dataset:
    """A task as the library's value."""
    return Dataset(
        name,
        Split(task.inputs.numpy(), task.targets.numpy()),
        Split(task.test_inputs.numpy(), task.test_targets.numpy()),
        task.classes,
    )


def sources(
    name: str, task: Task, folder: Path | None, limit: int | None
) -> dict[str, PublicProxy]:
    """What a data set is rehearsed on."""
    found: dict[str, PublicProxy] = {}
    if name in ("mnist", "fashion-mnist"):
        public = fetch(STAND_INS[name], folder, limit, "scattering")
        found[STAND_INS[name]] = dataset(public, STAND_INS[name])
    elif name == "digits":
        found[STAND_INS[name]] = small_digits(fetch("mnist", folder, None, None))
    elif name == "a9a":
        found["mushrooms, padded"] = padded(fetch("mushrooms", folder, None, None), task)
    found["synthetic"] = generator(name, task)
    found["itself (control)"] = dataset(task, name)
    return found


def small_digits(task: Task) -> Dataset:
    """MNIST's middle 24 × 24 pixels, averaged over squares of 3: the shape of digits."""

    def pooled(inputs: torch.Tensor) -> np.ndarray:
        middle = inputs.view(-1, 1, 28, 28)[:, :, 2:26, 2:26]
        return functional.avg_pool2d(middle, 3).flatten(1).numpy()

    return Dataset(
        STAND_INS["digits"],
        Split(pooled(task.inputs), task.targets.numpy()),
        Split(pooled(task.test_inputs), task.test_targets.numpy()),
        10,
    )


def padded(task: Task, shape_of: Task) -> Dataset:
    """Zeros behind the features, up to the private data's number of them."""
    missing = shape_of.inputs.shape[1] - task.inputs.shape[1]
    return Dataset(
        "mushrooms, padded",
        *(
            Split(functional.pad(inputs, (0, missing)).numpy(), targets.numpy())
            for inputs, targets in (
                (task.inputs, task.targets),
                (task.test_inputs, task.test_targets),
            )
        ),
        task.classes,
    )


def generator(name: str, task: Task) -> Callable[[int], Dataset]:
    """Synthetic data of the private data's shape, images with their scattering features."""
    examples, tested = len(task.targets), len(task.test_targets)
    images = "mnist" in name
    shape = (1, 28, 28) if images else (task.inputs.shape[1],)

    def make(seed: int) -> Dataset:
        made = like(shape, task.classes, examples, test=tested, seed=seed)
        return with_scattering(made) if images else made

    return make


def compare(
    name: str, task: Task, epsilon: float, found: dict[str, PublicProxy], repeats: int
) -> list[Row]:
    """Every rehearsal of the default plan beside the plan's runs on the data itself."""
    examples = len(task.targets)
    budget = ft.Budget(epsilon, default_delta(examples))
    plan = ft.plan(examples=examples, budget=budget, parameters=task.parameters)
    shape = (task.inputs.shape[1],)

    def model() -> nn.Module:
        return build("linear", inputs=shape, classes=task.classes)

    runs = [trained(task, plan, model(), shape, seed) for seed in range(FRESH, FRESH + repeats)]
    achieved = statistics.mean(runs)
    rows = []
    for source, data in found.items():
        rehearsal = rehearse(plan, model, data, repeats=repeats, level=0.9, micro_batch=4096)
        low, high = (100 * end for end in rehearsal.interval)
        predicted = 100 * rehearsal.predicted
        rows.append(
            Row(
                name,
                examples,
                epsilon,
                source,
                rehearsal.distinct,
                predicted,
                low,
                high,
                achieved,
                predicted - achieved,
                low <= achieved <= high,
            )
        )
    return rows


def table(rows: list[Row]) -> str:
    """The result as markdown."""
    lines = [
        "| data | examples | ε | rehearsed on | predicted | 90 % interval | achieved | error "
        "| inside |",
        "| --- | ---: | ---: | --- | ---: | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {r.data} | {r.examples:,} | {r.epsilon:g} | {r.rehearsed_on}"
        f"{'' if r.distinct == 1 else f' ({r.distinct:.0%} distinct)'} | {r.predicted:.1f} | "
        f"{r.lower:.1f} to {r.upper:.1f} | {r.achieved:.1f} | {r.error:+.1f} | "
        f"{'yes' if r.inside else 'no'} |"
        for r in rows
    ]
    kinds = {
        "the data itself (control)": [r for r in rows if r.rehearsed_on.startswith("itself")],
        "synthetic data": [r for r in rows if r.rehearsed_on == "synthetic"],
        "public proxies": [
            r for r in rows if r.rehearsed_on != "synthetic" and "itself" not in r.rehearsed_on
        ],
    }
    lines.append("")
    lines += [
        f"On {kind}: median absolute error {statistics.median(abs(r.error) for r in chosen):.1f} "
        f"points, largest {max(abs(r.error) for r in chosen):.1f}; "
        f"inside the interval in {sum(r.inside for r in chosen)} of {len(chosen)} cases.\n"
        for kind, chosen in kinds.items()
        if chosen
    ]
    return "\n".join(lines)


def main() -> None:
    """Run what the command line asks for and write rehearsals.csv and rehearsals.md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--full", action="store_true", help="all images, more repeats")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 3.0])
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in args.only:
        images = name in ("mnist", "fashion-mnist")
        limit = None if args.full else 5_000
        task = fetch(name, args.data, limit, "scattering" if images else None)
        found = sources(name, task, args.data, limit)
        repeats = 10 if args.full else 5 if len(task.targets) < 5_000 else 4
        for epsilon in args.epsilon:
            start = time.monotonic()
            rows += compare(name, task, epsilon, found, repeats)
            with (HERE / "rehearsals.csv").open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(field.name for field in fields(Row))
                writer.writerows(
                    [f"{v:.6g}" if isinstance(v, float) else v for v in astuple(row)]
                    for row in rows
                )
            (HERE / "rehearsals.md").write_text(table(rows), encoding="utf-8")
            print(name, epsilon, f"{time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
