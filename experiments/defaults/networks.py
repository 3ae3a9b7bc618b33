"""How far is the default of a network from the best of a grid search on the same data?

    python experiments/defaults/networks.py --data ../shared/data --group looked-at
    python experiments/defaults/networks.py --data ../shared/data --group held-out --models mlp

For every model, data set and ε: the plan that `forethought.plan` makes from examples, model and
budget; and a grid of path length × (batch, rounds) × clipping at the same exact (ε, δ), its paths
a quarter to four times the default's. Everything is trained by `forethought.train`. The grid's best
on the test accuracy is chosen with one seed and measured again, beside the default, with fresh
ones. It looks at test data and pays nothing for that: it is a yardstick, not a method. Cases that
networks.csv holds are kept; networks.md is written from it.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import torch
from network_sets import HELD_OUT, LOOKED_AT, task
from sets import Task
from torch import nn

import forethought as ft
from forethought.models import build
from forethought.planning.defaults import default_delta

RESULTS = Path(__file__).with_name("networks.csv")
EPSILONS = (0.1, 0.5, 1.0, 3.0, 8.0)
MODELS = ("mlp", "lenet5", "cnn")
PATHS = (1 / 4, 1 / 2, 1, 2, 4)  # of the default's
CLIPS = (None, 1.0)
SHORT = 50  # rounds of the grid's other half, with batches as large as they then pay
FRESH = 1_000  # seeds from here on choose nothing
# Twenty seeds where a run costs about a second.
SEEDS = {"mlp": 20, "lenet5": 5, "cnn": 3}


@dataclass(frozen=True)
class Row:
    """One case: accuracies in per cent of the test part, means over fresh seeds."""

    model: str
    data: str
    examples: int
    parameters: int
    epsilon: float
    batch: int
    rounds: int
    step_size: float
    default: float
    spread: float
    best_batch: int
    best_rounds: int
    best_path: float
    best_clip: str
    best_when_chosen: float
    best: float
    behind: float
    error: float
    grid_points: int
    seeds: int


@dataclass(frozen=True)
class Case:
    """One model on one data set."""

    model: str
    task: Task
    shape: tuple[int, ...]

    def fresh(self, seed: int) -> nn.Module:
        """An untrained model."""
        return build(self.model, inputs=self.shape, classes=self.task.classes, seed=seed)

    def accuracy(self, plan: ft.Plan, seed: int) -> float:
        """On the test part, in per cent, of one run of the plan."""
        task = self.task
        run = ft.train(
            self.fresh(seed),
            (task.inputs.view(-1, *self.shape), task.targets),
            plan,
            test=(task.test_inputs.view(-1, *self.shape), task.test_targets),
            seed=seed,
            noise_seed=seed,
            log_every=plan.rounds,
            diagnostics=False,
            micro_batch=512,
        )
        return 100 * float(run.accuracy or 0.0)


def grid(
    default: ft.Plan, budget: ft.Budget, paths_only: bool
) -> Iterator[tuple[float, str, ft.Plan]]:
    """The yardstick's plans, each with its path against the default's and its clipping."""
    momentum = float(dict(default.optimizer.options)["momentum"])

    def steps(rounds: int) -> float:
        return (rounds - momentum / (1 - momentum)) / (1 - momentum)

    length = default.optimizer.learning_rate * steps(default.rounds)
    for rounds in (default.rounds,) if paths_only else (default.rounds, SHORT):
        batch = default.batch * default.rounds / rounds
        for path in PATHS:
            for clip in CLIPS[:1] if paths_only else CLIPS:
                yield (
                    path,
                    "automatic" if clip is None else f"{clip:g}",
                    ft.plan(
                        examples=default.examples,
                        budget=budget,
                        batch=min(default.examples, round(batch)),
                        rounds=rounds,
                        clip_norm=clip,
                        learning_rate=path * length / steps(rounds) / (clip or 1.0),
                    ),
                )


def compare(case: Case, epsilon: float, seeds: int, paths_only: bool) -> Row:
    """Default and grid of one case at one ε."""
    examples = len(case.task.targets)
    budget = ft.Budget(epsilon, default_delta(examples))
    model = case.fresh(0)
    plan = ft.plan(examples=examples, budget=budget, model=model, shape=case.shape)
    tried = [
        (case.accuracy(found, 0), *rest, found) for *rest, found in grid(plan, budget, paths_only)
    ]
    when_chosen, path, clip, best = max(tried, key=lambda one: one[0])
    fresh = range(FRESH, FRESH + seeds)
    own = [case.accuracy(plan, seed) for seed in fresh]
    others = [case.accuracy(best, seed) for seed in fresh]
    gaps = [other - mine for other, mine in zip(others, own, strict=True)]
    return Row(
        case.model,
        case.task.name,
        examples,
        sum(p.numel() for p in model.parameters()),
        epsilon,
        round(plan.batch),
        plan.rounds,
        plan.optimizer.learning_rate,
        statistics.mean(own),
        statistics.stdev(own),
        round(best.batch),
        best.rounds,
        path,
        clip,
        when_chosen,
        statistics.mean(others),
        statistics.mean(gaps),
        statistics.stdev(gaps) / math.sqrt(seeds),
        len(tried),
        seeds,
    )


def table(rows: list[Row]) -> str:
    """The result as markdown, one group after the other."""
    parts = []
    for title, group in (("Looked at", LOOKED_AT), ("Held out", HELD_OUT)):
        own = [row for row in rows if row.data in group[row.model]]
        if own:
            parts.append(f"## {title}\n\n{summary(own)}\n\n{lines(own)}\n")
    return "# Networks: the default beside the best of a grid\n\n" + "\n".join(parts)


def lines(rows: list[Row]) -> str:
    """One line a case."""
    head = (
        "| model, weights | data | examples | ε | default (batch, rounds) | accuracy | best "
        "(batch, rounds, clip, path) | of | accuracy | behind ± error | seeds |\n"
        "| --- | --- | ---: | ---: | --- | ---: | --- | ---: | ---: | ---: | ---: |\n"
    )
    return head + "\n".join(
        f"| {r.model}, {r.parameters:,} | {r.data} | {r.examples:,} | {r.epsilon:g} | {r.batch}, "
        f"{r.rounds} | {r.default:.1f} ± {r.spread:.1f} | {r.best_batch}, {r.best_rounds}, "
        f"{r.best_clip}, {r.best_path:g} × | {r.grid_points} | {r.best:.1f} | "
        f"{r.behind:+.2f} ± {r.error:.2f} | {r.seeds} |"
        for r in rows
    )


def summary(rows: list[Row]) -> str:
    """In one paragraph, how far the defaults are behind."""
    worst = max(rows, key=lambda r: r.behind)
    within = sum(r.behind <= 1.5 for r in rows)
    return (
        f"Median {statistics.median(r.behind for r in rows):+.2f} points behind; within 1.5 in "
        f"{within} of {len(rows)} cases; the worst is {worst.model} on {worst.data} at ε = "
        f"{worst.epsilon:g}, {worst.behind:.2f} ± {worst.error:.2f} behind."
    )


def saved() -> list[Row]:
    """The cases in networks.csv."""
    if not RESULTS.is_file():
        return []
    kinds = {"str": str, "int": int, "float": float}
    with RESULTS.open(encoding="utf-8", newline="") as file:
        return [
            Row(**{f.name: kinds[str(f.type)](line[f.name]) for f in fields(Row)})
            for line in csv.DictReader(file)
        ]


def keep(new: Row) -> None:
    """Write all cases with this one in its place."""
    known = {(r.model, r.data, r.epsilon): r for r in (*saved(), new)}
    order = [name for group in (LOOKED_AT, HELD_OUT) for names in group.values() for name in names]
    rows = sorted(
        known.values(), key=lambda r: (MODELS.index(r.model), order.index(r.data), r.epsilon)
    )
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(Row))
        writer.writerows(
            [f"{v:.6g}" if isinstance(v, float) else v for v in astuple(r)] for r in rows
        )
    RESULTS.with_suffix(".md").write_text(table(rows), encoding="utf-8")


def main() -> None:
    """Run the cases that the command line asks for and that are not there yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--group", choices=("looked-at", "held-out"), default="held-out")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, help="fresh seeds; by default 20, 5 and 3")
    parser.add_argument("--paths-only", action="store_true", help="a grid of path lengths alone")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    group = LOOKED_AT if args.group == "looked-at" else HELD_OUT
    known = {(row.model, row.data, row.epsilon) for row in saved()}
    for model in args.models:
        for name in group[model]:
            for epsilon in args.epsilon:
                if (model, name, epsilon) in known:
                    continue
                start = time.process_time()
                case = Case(model, *task(name, args.data))
                found = compare(case, epsilon, args.seeds or SEEDS[model], args.paths_only)
                keep(found)
                spent = time.process_time() - start
                print(lines([found]).splitlines()[-1], f"{spent:.0f} s", flush=True)


if __name__ == "__main__":
    main()
