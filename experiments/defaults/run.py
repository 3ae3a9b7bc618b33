"""How far is the default from the best of a grid search on the same data?

    python experiments/defaults/run.py --data ../shared/data            # about half an hour
    python experiments/defaults/run.py --data ../shared/data --full     # all images, more seeds

For every data set and ε: the plan that `forethought.plan` makes from examples, parameters and
budget, trained by `forethought.train`; and a grid of batch × rounds × step size × clipping at the
same exact (ε, δ), trained by linear.py. The grid's best on the test accuracy is chosen with one set
of seeds and measured again, beside the default, with fresh ones. The grid looks at test data and
pays nothing for it: it is a yardstick, not a method.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from linear import Column, accuracies, train_columns
from sets import HELD_OUT, LOOKED_AT, NAMES, Task, fetch
from torch import nn

import forethought as ft
from forethought.models import build
from forethought.planning.defaults import default_delta

RESULTS = Path(__file__).with_name("results.csv")
EPSILONS = (0.1, 0.5, 1.0, 3.0, 8.0)
ROUNDS = (50, 200, 800)
SHARES = (1 / 64, 1 / 16, 1 / 4, 1)  # of the examples, in a batch
PATHS = (30, 100, 300, 1_000, 3_000, 10_000)  # step size × rounds/(1 − momentum), in clip norms
CLIPS = (None, 0.1, 1.0)
MOMENTUM = 0.9
FRESH = 1_000  # seeds from here on choose nothing


@dataclass(frozen=True)
class Row:
    """One line of the result: accuracies in per cent of the test part."""

    model: str
    data: str
    examples: int
    epsilon: float
    default_batch: int
    default_rounds: int
    default_step_size: float
    default_accuracy: float
    default_spread: float
    best_batch: int
    best_rounds: int
    best_step_size: float
    best_clip: str
    best_when_chosen: float
    best_accuracy: float
    behind: float
    grid_points: int


@dataclass(frozen=True)
class Point:
    """One plan of the grid."""

    batch: int
    rounds: int
    sigma: float
    column: Column


def trained(
    task: Task, plan: ft.Plan, model: nn.Module, shape: tuple[int, ...], seed: int
) -> float:
    """Test accuracy, in per cent, of one run of the plan."""
    run = ft.train(
        model,
        (task.inputs.view(-1, *shape), task.targets),
        plan,
        test=(task.test_inputs.view(-1, *shape), task.test_targets),
        seed=seed,
        noise_seed=seed,
        log_every=plan.rounds,
        diagnostics=False,
        micro_batch=4096,
    )
    return 100 * float(run.accuracy or 0.0)


def grid(
    task: Task, budget: ft.Budget, passes: float, seeds: range, coarse: bool
) -> list[tuple[float, Point]]:
    """Mean accuracy and plan of every point of the grid, best first.

    A coarse grid, for images and a9a without --full, leaves out what costs most and is seldom best
    on the small sets: the longest runs, the shortest and longest paths.
    """
    found = []
    examples = len(task.targets)
    for rounds in ROUNDS[:2] if coarse else ROUNDS:
        for share in SHARES:
            batch = max(1, round(share * examples))
            if batch * rounds > passes * examples:
                continue
            rate = batch / examples
            sampling = ft.FullBatch() if batch == examples else ft.Poisson(rate)
            sigma = ft.noise_multiplier(budget, sampling, rounds)
            columns = [
                Column(path * (1 - MOMENTUM) / rounds / (clip or 1.0), clip)
                for path in (PATHS[1:5] if coarse else PATHS)
                for clip in (CLIPS[:2] if coarse else CLIPS)
            ]
            total = sum(measure(task, rate, rounds, sigma, columns, seed) for seed in seeds)
            points = [Point(batch, rounds, sigma, column) for column in columns]
            found += zip((total / len(seeds)).tolist(), points, strict=True)
    return sorted(found, key=lambda pair: -pair[0])


def measure(
    task: Task, rate: float, rounds: int, sigma: float, columns: list[Column], seed: int
) -> torch.Tensor:
    """Accuracy of every column with one seed."""
    weights = train_columns(
        task.inputs,
        task.targets,
        task.classes,
        rate=rate,
        rounds=rounds,
        noise_multiplier=sigma,
        columns=columns,
        momentum=MOMENTUM,
        seed=seed,
    )
    return accuracies(weights, task.test_inputs, task.test_targets)


def compare(
    task: Task, epsilon: float, passes: float, chosen: int, fresh: int, coarse: bool
) -> Row:
    """Default and grid on one data set at one ε, for a linear model."""
    examples = len(task.targets)
    budget = ft.Budget(epsilon, default_delta(examples))
    plan = ft.plan(
        examples=examples, budget=budget, parameters=task.parameters, feature_norm=task.norm
    )
    seeds = range(FRESH, FRESH + fresh)
    shape = (task.inputs.shape[1],)
    runs = [
        trained(task, plan, build("linear", inputs=shape, classes=task.classes), shape, seed)
        for seed in seeds
    ]
    points = grid(task, budget, passes, range(chosen), coarse)
    when_chosen, best = points[0]
    rate = best.batch / examples
    again = [
        float(measure(task, rate, best.rounds, best.sigma, [best.column], seed)[0])
        for seed in seeds
    ]
    return row("linear", task, epsilon, plan, runs, best, when_chosen, again, len(points))


def row(
    model: str,
    task: Task,
    epsilon: float,
    plan: ft.Plan,
    runs: list[float],
    best: Point,
    when_chosen: float,
    again: list[float],
    points: int,
) -> Row:
    """The line of the result."""
    return Row(
        model,
        task.name,
        len(task.targets),
        epsilon,
        round(plan.batch),
        plan.rounds,
        plan.optimizer.learning_rate,
        statistics.mean(runs),
        statistics.stdev(runs),
        best.batch,
        best.rounds,
        best.column.learning_rate,
        "automatic" if best.column.clip_norm is None else f"{best.column.clip_norm:g}",
        when_chosen,
        statistics.mean(again),
        statistics.mean(again) - statistics.mean(runs),
        points,
    )


def compare_network(task: Task, model: str, epsilon: float, fresh: int) -> Row:
    """Default and a coarser grid for a network, both trained by `forethought.train`."""
    examples, shape = len(task.targets), (1, 28, 28)
    budget = ft.Budget(epsilon, default_delta(examples))

    def fresh_model(seed: int) -> nn.Module:
        return build(model, inputs=shape, classes=task.classes, seed=seed)

    size = sum(p.numel() for p in fresh_model(0).parameters())
    plan = ft.plan(examples=examples, budget=budget, parameters=size)
    seeds = range(FRESH, FRESH + fresh)
    runs = [trained(task, plan, fresh_model(seed), shape, seed) for seed in seeds]
    points = []
    for rounds in ROUNDS[:2]:
        for share in SHARES[1:3]:
            if rounds * share > 15:
                continue
            for path in PATHS[2:]:
                for clip in (None, 1.0):
                    step = path * (1 - MOMENTUM) / rounds / (clip or 1.0)
                    batch = round(share * examples)
                    tried = ft.plan(
                        examples=examples,
                        budget=budget,
                        batch=batch,
                        rounds=rounds,
                        clip_norm=clip,
                        learning_rate=step,
                    )
                    point = Point(batch, rounds, tried.noise_multiplier, Column(step, clip))
                    score = trained(task, tried, fresh_model(0), shape, 0)
                    points.append((score, point, tried))
    when_chosen, best, tried = max(points, key=lambda point: point[0])
    again = [trained(task, tried, fresh_model(seed), shape, seed) for seed in seeds]
    return row(model, task, epsilon, plan, runs, best, when_chosen, again, len(points))


def table(rows: list[Row]) -> str:
    """The result as markdown."""
    lines = [
        "| model | data | examples | ε | default (batch, rounds) | default | best of the grid "
        "(batch, rounds, clip) | best, fresh seeds | best, when chosen | default behind |",
        "| --- | --- | ---: | ---: | --- | ---: | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {r.model} | {r.data} | {r.examples:,} | {r.epsilon:g} | {r.default_batch}, "
        f"{r.default_rounds} | {r.default_accuracy:.2f} ± {r.default_spread:.2f} | {r.best_batch}, "
        f"{r.best_rounds}, {r.best_clip} | {r.best_accuracy:.2f} | {r.best_when_chosen:.2f} | "
        f"{r.behind:+.2f} |"
        for r in rows
    ]
    lines += [
        "",
        *(summary(*group, rows) for group in (("Looked at", LOOKED_AT), ("Held out", HELD_OUT))),
    ]
    return "\n".join(lines) + "\n"


def summary(title: str, names: tuple[str, ...], every: list[Row]) -> str:
    """In one paragraph, how far the defaults are behind on one group of data sets."""
    rows = [row for row in every if row.data in names]
    if not rows:
        return ""
    worst = max(rows, key=lambda r: r.behind)
    optimistic = max(r.best_when_chosen - r.default_accuracy for r in rows)
    within = sum(r.behind <= 1.5 for r in rows)
    return (
        f"{title}: within 1.5 points of the best in {within} of {len(rows)} cases; the worst is "
        f"{worst.model} on {worst.data} at ε = {worst.epsilon:g}, {worst.behind:.2f} behind. "
        f"Median {statistics.median(r.behind for r in rows):+.2f}. Against the best as it was when "
        f"chosen, an estimate biased upward, the default is at most {optimistic:.2f} behind.\n"
    )


def main() -> None:
    """Run what the command line asks for; results.csv and results.md keep the other cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--full", action="store_true", help="all images, more seeds, two networks")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--models", choices=["linear", "networks", "all"], default="all")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    np.seterr(all="ignore")
    for name in [] if args.models == "networks" else args.only:
        images = name in ("mnist", "fashion-mnist")
        limit = None if args.full else 4_000
        task = fetch(name, args.data, limit, "scattering" if images else None)
        small = not images and len(task.targets) < 5_000
        coarse = not args.full and (images or name == "a9a")
        chosen = (3 if small else 1 if coarse else 2) * (2 if args.full else 1)
        passes = 15 if images else 200 if small else 50
        for epsilon in args.epsilon:
            start = time.monotonic()
            found = compare(task, epsilon, passes, chosen, 10 if small else 3, coarse)
            report(found, time.monotonic() - start)
    networks = ["mlp", "lenet5"] if args.full else ["mlp"]
    for model in [] if args.models == "linear" else networks:
        for name in [n for n in ("mnist", "fashion-mnist") if n in args.only]:
            task = fetch(name, args.data, None if args.full else 3_000, None)
            for epsilon in args.epsilon if args.full else (3.0,):
                start = time.monotonic()
                found = compare_network(task, model, epsilon, 3)
                report(found, time.monotonic() - start)


def report(new: Row, seconds: float) -> None:
    """Put a case in place of its older result, if any, and write all there is."""
    known = {(r.model, r.data, r.epsilon): r for r in saved()}
    known[new.model, new.data, new.epsilon] = new
    order = ["linear", "mlp", "lenet5"]
    rows = sorted(
        known.values(), key=lambda r: (order.index(r.model), NAMES.index(r.data), r.epsilon)
    )
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(Row))
        writer.writerows(
            [f"{v:.6g}" if isinstance(v, float) else v for v in astuple(r)] for r in rows
        )
    RESULTS.with_suffix(".md").write_text(table(rows), encoding="utf-8")
    print(table([new]).splitlines()[2], f"{seconds:.0f} s", flush=True)


def saved() -> list[Row]:
    """The cases in results.csv."""
    if not RESULTS.is_file():
        return []
    kinds = {"str": str, "int": int, "float": float}
    with RESULTS.open(encoding="utf-8", newline="") as file:
        return [
            Row(**{f.name: kinds[str(f.type)](line[f.name]) for f in fields(Row)})
            for line in csv.DictReader(file)
        ]


if __name__ == "__main__":
    main()
