"""How far is a linear model's default from the best of a grid search on the same data?

    python experiments/defaults/run.py --data ../shared/data                 # what is missing
    python experiments/defaults/run.py --data ../shared/data --only iris --again
    python experiments/defaults/run.py --data ../shared/data --only iris --seeds 20 # kept nowhere
    python experiments/defaults/run.py --smoke                         # a minute, kept nowhere

For every data set and ε: the plan that `forethought.plan` makes from sizes, declarations and
budget; and a grid of batch × rounds × step size × clipping × centring at the same exact (ε, δ).
Both are run by linear.py, which the tests hold against `forethought.train`. The grid's best on the
test accuracy is chosen with two seeds (one where data are large) and measured again, beside the
default, with twenty fresh ones (200 where data are so few that every seed splits them anew), seed
by seed, so that the gap has a standard error. The grid looks at test data and pays nothing for it:
it is a yardstick, not a method. Finished cases are kept in results.csv, and results.md is written
from it. ``--more-seeds`` measures kept cases of fewer seeds again, with what was best in the grid
as it was chosen then.
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
from cases import MOMENTUM, SPLIT_ANEW, measure, own_column, planned
from linear import Column
from sets import HELD_OUT, LOOKED_AT, NAMES, NEW, Task, fetch

import forethought as ft

RESULTS = Path(__file__).with_name("results.csv")
EPSILONS = (0.1, 0.5, 1.0, 3.0, 8.0)
ROUNDS = (50, 200)
SHARES = (1 / 16, 1 / 4, 1)  # of the examples, in a batch
PATHS = (30, 100, 300, 1_000, 3_000, 10_000)  # step size × rounds/(1 − momentum), in clip norms
CLIPS = (None, 0.1, 1.0)
LARGE = 500_000  # numbers in the inputs from which on the grid is coarse, chosen with one seed
FRESH = 1_000  # seeds from here on choose nothing
BEYOND = 1.5  # points behind that are too many


@dataclass(frozen=True)
class Row:
    """One line of the result: accuracies in per cent of the test part."""

    data: str
    examples: int
    epsilon: float
    default_batch: int
    default_centred: bool
    default_accuracy: float
    default_error: float
    best_batch: int
    best_rounds: int
    best_path: float
    best_clip: str
    best_centred: bool
    best_when_chosen: float
    best_accuracy: float
    behind: float
    behind_error: float
    grid_points: int
    seeds: int


@dataclass(frozen=True)
class Point:
    """One plan of the grid, with what a column of it is."""

    plan: ft.Plan
    path: float
    clip: float | None

    @property
    def column(self) -> Column:
        """Step size and clipping."""
        return Column(self.path * (1 - MOMENTUM) / self.plan.rounds / (self.clip or 1.0), self.clip)


def grid(task: Task, epsilon: float, seeds: range, coarse: bool) -> list[tuple[float, Point]]:
    """Mean accuracy and plan of every point of the grid, best first."""
    found = []
    examples = len(task.targets)
    for centre in (False, True) if task.norm else (False,):
        for rounds in ROUNDS:
            for share in SHARES[:2] if coarse else SHARES:
                batch = max(1, round(share * examples))
                taken = {"sampling": "full-batch"} if batch == examples else {"batch": batch}
                plan = planned(task, epsilon, rounds=rounds, centre=centre, **taken)
                points = [
                    Point(plan, path, clip)
                    for path in (PATHS[1:5] if coarse else PATHS)
                    for clip in (CLIPS[:2] if coarse else CLIPS)
                ]
                columns = [point.column for point in points]
                total = sum(measure(task, plan, columns, seed) for seed in seeds)
                found += zip((total / len(seeds)).tolist(), points, strict=True)
    return sorted(found, key=lambda pair: -pair[0])


def seeds_for(task: Task) -> int:
    """How many seeds default and best are measured with.

    Twenty splits of a few hundred records leave a standard error of a point or two.
    """
    return 200 if len(task.targets) + len(task.test_targets) < SPLIT_ANEW else 20


def compare(task: Task, epsilon: float, smoke: bool, count: int | None = None) -> Row:
    """Default and grid on one data set at one ε, measured with so many seeds."""
    large = task.inputs.numel() > LARGE
    points = grid(task, epsilon, range(1 if large or smoke else 2), large or smoke)
    count = count or (2 if smoke else seeds_for(task))
    return beside(task, epsilon, *points[0], len(points), count)


def beside(
    task: Task, epsilon: float, when_chosen: float, best: Point, points: int, count: int
) -> Row:
    """Default and the best of so many points, measured with so many fresh seeds."""
    plan = planned(task, epsilon)
    seeds = range(FRESH, FRESH + count)
    own = [float(measure(task, plan, [own_column(plan)], seed)[0]) for seed in seeds]
    again = [float(measure(task, best.plan, [best.column], seed)[0]) for seed in seeds]
    behind = [theirs - mine for theirs, mine in zip(again, own, strict=True)]
    root = len(seeds) ** 0.5
    return Row(
        task.name,
        len(task.targets),
        epsilon,
        round(plan.batch),
        plan.preparation is not None,
        statistics.mean(own),
        statistics.stdev(own) / root,
        round(best.plan.batch),
        best.plan.rounds,
        best.path,
        "automatic" if best.clip is None else f"flat {best.clip:g}",
        best.plan.preparation is not None,
        when_chosen,
        statistics.mean(again),
        statistics.mean(behind),
        statistics.stdev(behind) / root,
        points,
        count,
    )


def with_more_seeds(task: Task, row: Row) -> Row:
    """A kept case with as many seeds as it would have now; the grid is not searched again."""
    batch = row.best_batch
    taken = {"sampling": "full-batch"} if batch == row.examples else {"batch": batch}
    plan = planned(task, row.epsilon, rounds=row.best_rounds, centre=row.best_centred, **taken)
    clip = None if row.best_clip == "automatic" else float(row.best_clip.removeprefix("flat "))
    best = Point(plan, row.best_path, clip)
    count = seeds_for(task)
    return beside(task, row.epsilon, row.best_when_chosen, best, row.grid_points, count)


def table(rows: list[Row]) -> str:
    """The result as markdown."""
    heads = (
        "| data | examples | ε | default (batch) | default | best of the grid "
        "(batch, rounds, clip) | best, fresh seeds | best, when chosen | default behind | seeds |\n"
        "| --- | ---: | ---: | --- | ---: | --- | ---: | ---: | ---: | ---: |\n"
    )
    text = ""
    for title, names in (("Held out", HELD_OUT), ("Looked at", LOOKED_AT)):
        own = [row for row in rows if row.data in names]
        if not own:
            continue
        lines = [
            f"| {r.data} | {r.examples:,} | {r.epsilon:g} | {r.default_batch}"
            f"{', centred' if r.default_centred else ''} | {r.default_accuracy:.2f} ± "
            f"{r.default_error:.2f} | {r.best_batch}, {r.best_rounds}, {r.best_clip}"
            f"{', centred' if r.best_centred else ''} | {r.best_accuracy:.2f} | "
            f"{r.best_when_chosen:.2f} | {r.behind:+.2f} ± {r.behind_error:.2f} | {r.seeds} |"
            for r in own
        ]
        told = summary(own)
        fresh = [row for row in own if row.data in NEW]
        if fresh:
            told += f"\n\nOf these, the sets that no earlier version was run on: {summary(fresh)}"
        text += f"## {title}\n\n{told}\n\n{heads}" + "\n".join(lines) + "\n\n"
    return (
        "± is one standard error: of the default's mean, of the mean difference seed by seed.\n\n"
        + text.rstrip()
        + "\n"
    )


def summary(rows: list[Row]) -> str:
    """In one paragraph, how far the defaults are behind on one group of data sets."""
    worst = max(rows, key=lambda r: r.behind)
    beyond = [r for r in rows if r.behind > BEYOND]
    clearly = [r for r in beyond if r.behind - 2 * r.behind_error > BEYOND]
    named = "; ".join(f"{r.data} at ε = {r.epsilon:g}: {r.behind:.2f}" for r in beyond) or "none"
    return (
        f"Within {BEYOND} points of the best in {len(rows) - len(beyond)} of {len(rows)} cases on "
        f"{len({r.data for r in rows})} sets ({len(clearly)} beyond by more than two standard "
        "errors); median "
        f"{statistics.median(r.behind for r in rows):+.2f}, worst {worst.behind:+.2f} "
        f"({worst.data}, ε = {worst.epsilon:g}). Beyond: {named}."
    )


def main() -> None:
    """Run what the command line asks for; results.csv and results.md keep the other cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=[*HELD_OUT, *LOOKED_AT])
    parser.add_argument("--epsilon", nargs="+", type=float, default=list(EPSILONS))
    parser.add_argument("--full", action="store_true", help="all images, not 4,000")
    parser.add_argument("--again", action="store_true", help="cases that there are as well")
    parser.add_argument("--more-seeds", action="store_true", help="kept cases that have few")
    parser.add_argument("--seeds", type=int, help="to measure with; kept nowhere")
    parser.add_argument("--smoke", action="store_true", help="one bundled set, kept nowhere")
    parser.add_argument("--render", action="store_true", help="write results.md and stop")
    args = parser.parse_args()
    torch.set_num_threads(1)
    np.seterr(all="ignore")
    if args.render:
        RESULTS.with_suffix(".md").write_text(table(saved()), encoding="utf-8")
        return
    if args.smoke:
        print(table([compare(fetch("wine", None, None, None), 1.0, True)]))
        return
    known = {(row.data, row.epsilon): row for row in saved()}
    for name in args.only:
        images = name in ("mnist", "fashion-mnist")
        all_anew = args.again or args.seeds
        done = set() if all_anew or args.more_seeds else set(known)
        wanted = [epsilon for epsilon in args.epsilon if (name, epsilon) not in done]
        if not wanted:
            continue
        task = fetch(
            name, args.data, None if args.full else 4_000, "scattering" if images else None
        )
        for epsilon in wanted:
            start = time.process_time()
            if args.more_seeds:
                old = known.get((name, epsilon))
                if old is None or old.seeds >= seeds_for(task):
                    continue
                row = with_more_seeds(task, old)
            else:
                row = compare(task, epsilon, False, args.seeds)
            if not args.seeds:
                keep(row)
            print(
                f"{row.data} {row.epsilon:g}: {row.default_accuracy:.2f}, behind {row.behind:+.2f} "
                f"± {row.behind_error:.2f} ({time.process_time() - start:.0f} s of processor time)",
                flush=True,
            )


def keep(new: Row) -> None:
    """Put a case in place of its older result, if any, and write all there is."""
    known = {(row.data, row.epsilon): row for row in saved()}
    known[new.data, new.epsilon] = new
    rows = sorted(known.values(), key=lambda row: (NAMES.index(row.data), row.epsilon))
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(Row))
        writer.writerows(
            [f"{v:.6g}" if isinstance(v, float) else v for v in astuple(r)] for r in rows
        )
    RESULTS.with_suffix(".md").write_text(table(rows), encoding="utf-8")


def saved() -> list[Row]:
    """The cases in results.csv."""
    if not RESULTS.is_file():
        return []
    kinds = {"str": str, "int": int, "float": float, "bool": "True".__eq__}
    with RESULTS.open(encoding="utf-8", newline="") as file:
        return [
            Row(**{f.name: kinds[str(f.type)](line[f.name]) for f in fields(Row)})
            for line in csv.DictReader(file)
        ]


if __name__ == "__main__":
    main()
