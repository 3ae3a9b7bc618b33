"""The planner's recipe on fixed features beside the rounds and steps that run.py trains with.

    python experiments/patches/recipe.py --data DIR     # writes recipe.md; some minutes of one core

Training images only: the first 6,000 to train on, the last 3,000 to measure on. The recipe is what
a job without a [training] section gets: ``ft.plan`` from the data and a linear model, ``ft.train``.
Finished rows are kept in recipe.csv and not run again; ``--smoke`` runs one row with 300 images.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from kept_rows import keep, kept
from side_by_side import Run, accuracies, trained

import forethought as ft
from forethought.data import Dataset, Split, load
from forethought.data.features import with_features
from forethought.models import build

FOLDER = Path(__file__).parent
KEPT = FOLDER / "recipe.csv"
FIELDS = ("set", "features", "epsilon", "recipe", "ours", "rounds", "batch", "centred")
SETS = ("fashion-mnist", "cifar10", "mnist")
FEATURES = ("patches", "scattering")
EPSILONS = (3.0, 8.0)
TRAIN, MEASURE = 6_000, 3_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="where mnist/, cifar10/, … are")
    parser.add_argument("--smoke", action="store_true", help="300 images, nothing kept")
    arguments = parser.parse_args()
    done = {(row["set"], row["features"]) for row in kept(KEPT)}
    for name in SETS:
        for features in FEATURES:
            if arguments.smoke or (name, features) not in done:
                found = rows(name, features, arguments.data, 300 if arguments.smoke else TRAIN)
                if arguments.smoke:
                    return
                keep(KEPT, FIELDS, found)
    write_table()


def rows(name: str, features: str, folder: Path | None, count: int) -> list[tuple[object, ...]]:
    """Both at every ε, on one set with one kind of features; one seed."""
    whole = load(name, folder=folder).train
    data = with_features(
        Dataset(
            name,
            Split(whole.inputs[:count], whole.targets[:count]),
            Split(whole.inputs[-count // 2 :], whole.targets[-count // 2 :]),
            classes=10,
        ),
        features,
    )
    assert data.test is not None
    train, test = (torch.from_numpy(part.inputs).flatten(1) for part in (data.train, data.test))
    targets, labels = (torch.from_numpy(part.targets) for part in (data.train, data.test))
    unit = [part / part.norm(dim=1, keepdim=True) for part in (train, test)]
    halves = [part.bfloat16() for part in unit]
    with torch.no_grad():
        weights = trained(halves[0], targets, [Run(epsilon, 1.0) for epsilon in EPSILONS])
        ours = accuracies(weights, halves[1], labels)
    found = []
    for epsilon, beside in zip(EPSILONS, ours, strict=True):
        model = build("linear", inputs=data.shape, classes=10, seed=0)
        plan = ft.plan(data=data, model=model, budget=ft.Budget(epsilon, 1e-5))
        run = ft.train(model, data, plan, seed=0, noise_seed=0, micro_batch=512)
        with torch.no_grad():
            scores = run.model(torch.from_numpy(data.test.inputs))
        accuracy = 100 * (scores.argmax(1) == labels).double().mean().item()
        row = (
            *(name, features, epsilon, f"{accuracy:.2f}", f"{beside:.2f}"),
            *(plan.rounds, round(plan.batch), plan.preparation is not None),
        )
        print(row, flush=True)
        found.append(row)
    return found


def write_table() -> None:
    """recipe.md from recipe.csv."""
    text = [
        "Written by `python experiments/patches/recipe.py`.\n",
        "Held-out training images, one seed; 6,000 records.\n",
        "| set | features | ε | recipe | spread 1, 30 rounds | recipe: rounds, batch | centred |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in kept(KEPT):
        text.append(
            f"| {r['set']} | {r['features']} | {r['epsilon']} | {r['recipe']} | {r['ours']} | "
            f"{r['rounds']}, {r['batch']} | {'yes' if r['centred'] == 'True' else 'no'} |"
        )
    (FOLDER / "recipe.md").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
