"""How far is the default of a network from the best of a grid search on the same data?

    python experiments/defaults/networks.py --data ../shared/data --models mlp --epsilon 0.5 1
    python experiments/defaults/networks.py --data ../shared/data --estimate   # hours of all cases

For every model, held-out data set and ε: the plan that `forethought.plan` makes from examples,
model and budget; and a search at the same exact (ε, δ): half, once and twice the default's path,
further while the best is the last one; then the best path clipped flat at 1, and in 50 rounds of
batches as large as they then pay. The best of it on the test accuracy, a mean over two seeds, is
measured again beside the default with fresh ones. Everything is trained by network_runs.py, which
the tests hold against `forethought.train`. It looks at test data and pays nothing for that: it is a
yardstick, not a method. Cases that networks.csv holds with as many seeds are kept; those with fewer
keep what their search chose, and get the seeds that they lack. networks.md is written from it.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
import time
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import torch
from network_runs import train
from network_sets import AGAIN, HELD_OUT, NEW, task
from sets import Task
from torch import nn

import forethought as ft
from forethought.models import build
from forethought.planning.defaults import default_delta
from forethought.planning.plan_request import noise_borne, table_radius

RESULTS = Path(__file__).with_name("networks.csv")
EPSILONS = (0.1, 0.5, 1.0, 3.0, 8.0)
MODELS = ("mlp", "lenet5", "cnn")
FURTHEST = 16  # times the default's path, or a part of it, that the search goes
SHORT = 50  # rounds
CHOOSING = 2  # seeds
TIMED = 10  # rounds of an estimate
TRIED = 6  # plans of most searches
FRESH = 1_000  # seeds from here on choose nothing
# Twenty seeds where a run costs less than a second.
SEEDS = {"mlp": 20, "lenet5": 10, "cnn": 5}


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

    def budget(self, epsilon: float) -> ft.Budget:
        """At the usual δ."""
        return ft.Budget(epsilon, default_delta(len(self.task.targets)))

    def default(self, epsilon: float) -> ft.Plan:
        """What the planner makes of sizes, declared norm, model and budget."""
        return ft.plan(
            examples=len(self.task.targets),
            budget=self.budget(epsilon),
            model=self.fresh(0),
            noise_borne=self.noise_borne,
        )

    @property
    def noise_borne(self) -> float | None:
        """What the planner takes for this network on such records."""
        return noise_borne(self.fresh(0), self.shape, table_radius(self.task.norm))

    def seconds(self, plan: ft.Plan) -> float:
        """Processor time of one run of the plan, by some of its rounds."""
        spent = []
        for count in (1, 1 + TIMED):
            start = time.process_time()
            self.accuracy(plan.with_(mechanism=plan.mechanism.first(count)), 0)
            spent.append(time.process_time() - start)
        return spent[0] + (spent[1] - spent[0]) * (plan.rounds - 1) / TIMED

    def accuracy(self, plan: ft.Plan, seed: int) -> float:
        """On the test part, in per cent, of one run of the plan."""
        task, model = self.task, self.fresh(seed)
        train(model, task.inputs.view(-1, *self.shape), task.targets, plan, seed)
        with torch.no_grad():
            scores = model(task.test_inputs.view(-1, *self.shape))
        return 100 * float((scores.argmax(1) == task.test_targets).double().mean())


@dataclass(frozen=True)
class Tried:
    """A plan of the search: its path against the default's, its clipping, accuracy when chosen."""

    path: float
    clip: float | None
    plan: ft.Plan
    accuracy: float


class Search:
    """The yardstick's plans for one case and budget, as far as they were tried."""

    def __init__(self, case: Case, default: ft.Plan, budget: ft.Budget) -> None:
        self._case, self._default, self._budget = case, default, budget
        self.tried: list[Tried] = []

    def best(self) -> Tried:
        """Search path, then clipping and rounds at the best path."""
        rounds = self._default.rounds
        paths = [self._try(path, None, rounds) for path in (0.5, 1.0, 2.0)]
        best = self._best
        while best in (paths[0], paths[-1]) and 1 / FURTHEST < best.path < FURTHEST:
            if best is paths[0]:
                paths.insert(0, self._try(best.path / 2, None, rounds))
            else:
                paths.append(self._try(best.path * 2, None, rounds))
            best = self._best
        self._try(best.path, 1.0, rounds)
        self._try(best.path, None, SHORT)
        return self._best

    @property
    def _best(self) -> Tried:
        return max(self.tried, key=lambda one: one.accuracy)

    def _try(self, path: float, clip: float | None, rounds: int) -> Tried:
        plan = tried_plan(self._default, self._budget, path, clip, rounds)
        found = [self._case.accuracy(plan, seed) for seed in range(CHOOSING)]
        self.tried.append(Tried(path, clip, plan, statistics.mean(found)))
        return self.tried[-1]


def tried_plan(
    default: ft.Plan, budget: ft.Budget, path: float, clip: float | None, rounds: int
) -> ft.Plan:
    """So many times the default's path, in other rounds or clipped flat."""
    if path == 1 and clip is None and rounds == default.rounds:
        return default
    momentum = float(dict(default.optimizer.options)["momentum"])

    def steps(rounds: int) -> float:
        return (rounds - momentum / (1 - momentum)) / (1 - momentum)

    length = path * default.optimizer.learning_rate * steps(default.rounds)
    return ft.plan(
        examples=default.examples,
        budget=budget,
        batch=min(default.examples, round(default.batch * default.rounds / rounds)),
        rounds=rounds,
        clip_norm=clip,
        learning_rate=length / steps(rounds) / (clip or 1.0),
    )


def compare(case: Case, epsilon: float, seeds: int) -> Row:
    """Default and search of one case at one ε."""
    plan = case.default(epsilon)
    search = Search(case, plan, case.budget(epsilon))
    chosen = search.best()
    best = chosen.plan
    own, others = measured(case, plan, best, range(FRESH, FRESH + seeds))
    gaps = [other - mine for other, mine in zip(others, own, strict=True)]
    return Row(
        case.model,
        case.task.name,
        plan.examples,
        sum(p.numel() for p in case.fresh(0).parameters()),
        epsilon,
        round(plan.batch),
        plan.rounds,
        plan.optimizer.learning_rate,
        statistics.mean(own),
        statistics.stdev(own),
        round(best.batch),
        best.rounds,
        chosen.path,
        "automatic" if chosen.clip is None else f"{chosen.clip:g}",
        chosen.accuracy,
        statistics.mean(others),
        statistics.mean(gaps),
        statistics.stdev(gaps) / math.sqrt(seeds),
        len(search.tried),
        seeds,
    )


def measured(
    case: Case, default: ft.Plan, best: ft.Plan, seeds: range
) -> tuple[list[float], list[float]]:
    """Accuracies of both plans."""
    own = [case.accuracy(default, seed) for seed in seeds]
    return own, own if best is default else [case.accuracy(best, seed) for seed in seeds]


def with_more_seeds(case: Case, row: Row, seeds: int) -> Row:
    """The row with the fresh seeds that it lacks, means and deviations of all of them together.

    Raises:
        ValueError: the planner's default is no longer the one that the row was measured with.
    """
    plan, budget = case.default(row.epsilon), case.budget(row.epsilon)
    if f"{plan.optimizer.learning_rate:.6g}" != f"{row.step_size:.6g}":
        raise ValueError(
            f"{row.model} on {row.data} at ε = {row.epsilon:g} was measured with step size "
            f"{row.step_size:g}, the default is {plan.optimizer.learning_rate:g} now: drop its "
            "line from networks.csv, and it is searched again"
        )
    clip = None if row.best_clip == "automatic" else float(row.best_clip)
    best = tried_plan(plan, budget, row.best_path, clip, row.best_rounds)
    own, others = measured(case, plan, best, range(FRESH + row.seeds, FRESH + seeds))
    gaps = [other - mine for other, mine in zip(others, own, strict=True)]
    default, spread = pooled(row.seeds, row.default, row.spread, own)
    behind, deviation = pooled(row.seeds, row.behind, row.error * math.sqrt(row.seeds), gaps)
    return replace(
        row,
        default=default,
        spread=spread,
        best=default + behind,
        behind=behind,
        error=deviation / math.sqrt(seeds),
        seeds=seeds,
    )


def pooled(count: int, mean: float, deviation: float, more: list[float]) -> tuple[float, float]:
    """Mean and standard deviation of so many numbers, of which those are known, and some more."""
    total = count + len(more)
    whole = (count * mean + math.fsum(more)) / total
    squares = (count - 1) * deviation**2 + count * (mean - whole) ** 2
    squares += math.fsum((value - whole) ** 2 for value in more)
    return whole, math.sqrt(squares / (total - 1))


def table(rows: list[Row]) -> str:
    """The result as markdown."""
    parts = ["# Networks: the default beside the best of a search\n"]
    for title, sets in (("Held out", HELD_OUT), ("Looked at since the first version", AGAIN)):
        own = of(rows, sets)
        if own:
            parts.append(f"## {title}\n\n{summary(own)}\n")
            if sets is HELD_OUT and of(rows, NEW):
                parts.append(f"Of these, on the new sets: {summary(of(rows, NEW))}\n")
            parts.append(f"{lines(own)}\n")
    return "\n".join(parts)


def of(rows: list[Row], sets: dict[str, tuple[str, ...]]) -> list[Row]:
    """The cases on these data sets."""
    return [row for row in rows if row.data in sets.get(row.model, ())]


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
    beyond = sorted((r for r in rows if r.behind > 1.5), key=lambda r: -r.behind)
    same = sum(r.best_path == 1 and r.best_clip == "automatic" and r.behind == 0 for r in rows)
    models = dict.fromkeys(r.model for r in rows)
    counted = "; ".join(
        f"{model} {len(own)} cases of {' or '.join(map(str, sorted({r.seeds for r in own})))} seeds"
        for model in models
        if (own := [r for r in rows if r.model == model])
    )
    return (
        f"Median {statistics.median(r.behind for r in rows):+.2f} points behind; within 1.5 in "
        f"{len(rows) - len(beyond)} of {len(rows)} cases ({counted}); in "
        f"{same} the best of the search is the default itself and the difference nought. Beyond: "
        + "; ".join(
            f"{r.model} on {r.data} at ε = {r.epsilon:g}: {r.behind:.2f} ± {r.error:.2f}"
            for r in beyond
        )
        + ("." if beyond else "none.")
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
    rows = sorted(
        known.values(),
        key=lambda r: (MODELS.index(r.model), names(r.model).index(r.data), r.epsilon),
    )
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Row))
        writer.writerows(
            [f"{v:.6g}" if isinstance(v, float) else v for v in astuple(r)] for r in rows
        )
    write(rows)


def names(model: str) -> tuple[str, ...]:
    """The data sets that a model is measured on."""
    return HELD_OUT[model] + AGAIN.get(model, ())


def write(rows: list[Row]) -> None:
    """Write the table."""
    RESULTS.with_suffix(".md").write_text(table(rows), encoding="utf-8")


def main() -> None:
    """Run the cases that are asked for and not there yet, or with fewer seeds than asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, help="fresh seeds; by default 20, 10 and 5")
    parser.add_argument("--only", nargs="+", help="data sets; by default all")
    parser.add_argument("--write", action="store_true", help="run nothing, write the table")
    parser.add_argument("--estimate", action="store_true", help="say how long; run nothing else")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.write:
        write(saved())
        return
    known = {(r.model, r.data, r.epsilon): r for r in saved()}
    hours = 0.0
    for model in args.models:
        seeds = args.seeds or SEEDS[model]
        for name in names(model):
            for epsilon in args.epsilon:
                if name not in (args.only or (name,)):
                    continue
                if args.estimate:
                    case = Case(model, *task(name, args.data))
                    runs = TRIED * CHOOSING + 2 * seeds
                    hours += runs * case.seconds(case.default(epsilon)) / 3600
                    continue
                row = known.get((model, name, epsilon))
                if row is None or row.seeds < (args.seeds or 0):
                    start = time.process_time()
                    case = Case(model, *task(name, args.data))
                    if row is None:
                        found = compare(case, epsilon, seeds)
                    else:
                        found = with_more_seeds(case, row, seeds)
                    keep(found)
                    spent = time.process_time() - start
                    print(lines([found]).splitlines()[-1], f"{spent:.0f} s", flush=True)
    if args.estimate:
        print(f"all cases, done or not: {hours:.2f} h of one core in all")


if __name__ == "__main__":
    main()
