"""Accuracy at the same promise: the formula's noise, the exact noise, the planner's own plan.

The formula is σ = sqrt(2(ε + ln(1/δ))/ε) with the paper's sample size and number of gradients K.
The exact plan keeps (ε, δ), sample size, K, clip norm and step sizes, and only asks the accountant
for the noise. The chosen plan is what `forethought.plan` makes of examples, budget and K.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from cells import Cell, Cells
from clients import COPIES, ONE, SHARES, Holders, train

import forethought as ft
from forethought.papers.closed_form import closed_form_sigma
from forethought.report.figures import BLUE, GREEN, GREY, ORANGE, new_axes
from forethought.rounds.contributions import Loss

TIMED = 5  # rounds of an estimate
FORMULA, EXACT, CHOSEN, NOISELESS = "formula", "exact", "chosen", "no noise"
COLOURS = {FORMULA: ORANGE, EXACT: BLUE, CHOSEN: GREEN, NOISELESS: GREY}
MARKERS = {ONE.name: "s", SHARES.name: "o", COPIES.name: "^"}
HOLDERS = {"one": ONE, "shares": SHARES, "copies": COPIES}
STYLES = {ONE.name: ":", SHARES.name: "-", COPIES.name: "--"}


@lru_cache
def exact_sigma(epsilon: float, delta: float, rate: float, rounds: int) -> float:
    """The accountant's noise multiplier; several problems ask for the same one."""
    return ft.noise_multiplier(ft.Budget(epsilon, delta), ft.Poisson(rate), rounds)


@dataclass(frozen=True)
class Problem:
    """One of the paper's learning problems, with its table of plans.

    Args:
        gradients: K, gradient computations of one holder of all the records.
        step_size: η₀, on the *sum* of clipped gradients, as in the paper.
        score: share of right answers of a model.
        table: (ε, printed σ, printed sample size).
        printed: ε → test accuracy in per cent that the paper's text states; None: no noise.
    """

    name: str
    model: torch.nn.Module
    data: tuple[np.ndarray, np.ndarray]
    loss: Loss
    score: Callable[[torch.nn.Module], float]
    delta: float
    gradients: int
    clip_norm: float
    step_size: float
    schedule: ft.Schedule
    options: tuple[tuple[str, float], ...]
    table: tuple[tuple[float, float, int], ...]
    printed: dict[float | None, float]

    @property
    def examples(self) -> int:
        """N."""
        return len(self.data[0])

    def rounds(self, size: int) -> int:
        """T = K/s."""
        return max(1, round(self.gradients / size))

    def sigma(self, kind: str, epsilon: float, size: int) -> float:
        """The noise multiplier of a kind of plan."""
        if kind == NOISELESS:
            return 0.0
        if kind == FORMULA:
            return closed_form_sigma(epsilon, self.delta)
        return exact_sigma(epsilon, self.delta, size / self.examples, self.rounds(size))

    def plan(self, kind: str, epsilon: float, size: int) -> ft.Plan:
        """The plan of a holder of all the records."""
        if kind == CHOSEN:
            return ft.plan(
                examples=self.examples,
                budget=ft.Budget(epsilon, self.delta),
                epochs=self.gradients / self.examples,
                model=self.model,
            )
        sigma = self.sigma(kind, epsilon, size)
        release = ft.Rounds(sigma, self.rounds(size), ft.Poisson(size / self.examples))
        return ft.Plan(
            ft.Mechanism(release),
            self.examples,
            self.delta,
            clip=ft.Clip(self.clip_norm),
            optimizer=ft.Optimizer("sgd", self.step_size * size, self.options),
            schedule=self.schedule,
            averaging=ft.Averaging("none"),
        )


@dataclass(frozen=True)
class Row:
    """A plan, run with several seeds: accuracies in per cent of the test records."""

    problem: str
    holders: str
    kind: str
    epsilon: float
    size: int
    rounds: int
    sigma: float
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return statistics.mean(self.accuracies)

    @property
    def spread(self) -> float:
        """Standard deviation over the seeds; 0 for a single one."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0


def measure(
    problem: Problem,
    holders: Holders,
    kind: str,
    epsilon: float,
    size: int,
    seeds: int,
    cells: Cells,
) -> Row:
    """Run one plan with every seed that was not run before, and say so."""
    plan = problem.plan(kind, epsilon, size)
    accuracies = []
    for seed in range(seeds):
        cell = Cell(problem.name, problem.gradients, holders.name, kind, epsilon, size, seed)
        if cell not in cells.done:
            start = time.process_time()
            model = train(problem.model, problem.data, plan, holders, problem.loss, seed)
            cells.keep(cell, 100 * problem.score(model), time.process_time() - start)
        accuracies.append(cells.done[cell])
    batch, noise = round(plan.batch), plan.noise_multiplier
    row = Row(
        problem.name, holders.name, kind, epsilon, batch, plan.rounds, noise, tuple(accuracies)
    )
    print(
        f"{row.problem}, {row.holders}, {kind}: ε {epsilon:g}, s {batch}, T {row.rounds}, "
        f"σ {noise:.3f}: {row.mean:.1f} ± {row.spread:.1f} %",
        flush=True,
    )
    return row


@dataclass(frozen=True)
class Preset:
    """How much of the paper's experiment is run."""

    seeds: int
    epsilons: Sequence[float]
    sizes: Sequence[int]
    holders: Sequence[Holders]


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that change a preset."""
    parser.add_argument("--data", type=Path, help="folder with the data sets")
    parser.add_argument("--full", action="store_true", help="everything the paper shows")
    parser.add_argument("--estimate", action="store_true", help="say how long; run nothing else")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--epsilons", type=float, nargs="*", help="of the paper's table")
    parser.add_argument("--sizes", type=int, nargs="*", help="sample sizes at the table's first ε")
    parser.add_argument("--holders", nargs="*", choices=HOLDERS)


def preset(arguments: argparse.Namespace, small: Preset, full: Preset) -> Preset:
    """The preset asked for, with its changes."""
    base = full if arguments.full else small
    given = {
        name: getattr(arguments, name)
        for name in ("seeds", "epsilons", "sizes")
        if getattr(arguments, name) is not None
    }
    if arguments.holders is not None:
        given["holders"] = [HOLDERS[name] for name in arguments.holders]
    return replace(base, **given)


Wanted = tuple[Holders, str, float, int, int]  # with seeds


def wanted_of(problem: Problem, preset: Preset) -> list[Wanted]:
    """Every plan of the preset, each once."""
    first, _, first_size = problem.table[0]
    wanted: dict[tuple[Holders, str, float, int], None] = {}
    for holders in preset.holders:
        for epsilon, _, size in problem.table:
            if epsilon in preset.epsilons:
                for kind in (FORMULA, EXACT, *([CHOSEN] if holders is ONE else [])):
                    wanted[holders, kind, epsilon, size] = None
        wanted[holders, NOISELESS, first, first_size] = None
    for size in preset.sizes:
        for kind in (FORMULA, EXACT):
            wanted[preset.holders[0], kind, first, size] = None
    return [
        (holders, kind, epsilon, size, 1 if kind == NOISELESS else preset.seeds)
        for holders, kind, epsilon, size in wanted
    ]


def run(problem: Problem, preset: Preset, folder: Path) -> list[Row]:
    """Every plan of the preset; finished seeds are kept beside this file and not run again.

    Args:
        folder: of the report, whose name the kept seeds have.
    """
    cells = Cells(Path(__file__).with_name(f"{folder.name}.jsonl"))
    return [measure(problem, *asked, cells) for asked in wanted_of(problem, preset)]


def estimate(problems: Sequence[Problem], preset: Preset) -> None:
    """Print how many runs a preset has and how long they would take on one core.

    A few rounds of each number of holders and sample size are run and timed, or one round of a
    number of holders where that takes more than half a second, scaled by the sample size. The
    figure is as good as the machine is idle.
    """
    seconds, runs = 0.0, 0
    for problem in problems:
        of_round: dict[tuple[str, int], float] = {}
        of_record: dict[str, float] = {}
        own = 0.0
        holders, kind, epsilon, size, _ = wanted_of(problem, preset)[0]
        plan = problem.plan(kind, epsilon, size)
        once = plan.with_(mechanism=plan.mechanism.first(1))
        train(problem.model, problem.data, once, holders, problem.loss, 0)  # loads libraries
        for holders, kind, epsilon, size, seeds in wanted_of(problem, preset):
            plan = problem.plan(kind, epsilon, size)
            key = (holders.name, round(plan.batch))
            if holders.name in of_record:
                of_round[key] = of_record[holders.name] * plan.batch
            elif key not in of_round:
                for count in (1, min(plan.rounds, TIMED)):
                    short = plan.with_(mechanism=plan.mechanism.first(count))
                    start = time.process_time()
                    train(problem.model, problem.data, short, holders, problem.loss, 0)
                    of_round[key] = (time.process_time() - start) / count
                    if of_round[key] > 0.5:
                        of_record[holders.name] = of_round[key] / plan.batch
                        break
            own += seeds * plan.rounds * of_round[key]
            runs += seeds
        print(f"{problem.name}: {own / 3600:.1f} h of one core", flush=True)
        seconds += own
    print(f"{runs} runs, {seconds / 3600:.1f} h of one core in all")


def report(folder: Path, problems: Sequence[Problem], rows: Sequence[Row]) -> None:
    """Write results.csv, results.md and the figures into ``folder``; print the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["problem", "holders", "plan", "epsilon", "s", "T", "sigma", "accuracy", "spread", "n"]
        )
        for row in rows:
            own = [row.problem, row.holders, row.kind, row.epsilon, row.size, row.rounds]
            found = [f"{row.sigma:.5f}", f"{row.mean:.3f}", f"{row.spread:.3f}"]
            writer.writerow([*own, *found, len(row.accuracies)])
    lines = [f"Made by `python {shlex.join(sys.argv)}`.", ""]
    for problem in problems:
        own = [row for row in rows if row.problem == problem.name]
        lines += [*table(problem, own), *size_table(problem, own)]
    text = "\n".join(lines) + "\n"
    (folder / "results.md").write_text(text, encoding="utf-8")
    print("\n" + text)
    for problem in problems:
        own = [row for row in rows if row.problem == problem.name]
        name = problem.name.replace(",", "").replace(" ", "_").lower()
        of_table = {(epsilon, size) for epsilon, _, size in problem.table}
        by_epsilon = [r for r in own if r.kind == CHOSEN or (r.epsilon, r.size) in of_table]
        draw(problem, by_epsilon, "epsilon", folder / f"{name}_epsilon.png")
        draw(problem, by_size(problem, own), "size", folder / f"{name}_size.png")


def by_size(problem: Problem, rows: Sequence[Row]) -> list[Row]:
    """The rows at the table's first ε with the holders that several sample sizes were run for."""
    at_first = [row for row in rows if row.epsilon == problem.table[0][0] and row.kind != CHOSEN]
    sizes: dict[str, set[int]] = {}
    for row in at_first:
        sizes.setdefault(row.holders, set()).add(row.size)
    found = [row for row in at_first if len(sizes[row.holders]) > 1]
    return sorted(found, key=lambda row: row.size)


def table(problem: Problem, rows: Sequence[Row]) -> Iterator[str]:
    """Accuracy against ε in Markdown."""
    yield f"### {problem.name}: accuracy in % against ε, K = {problem.gradients:,}\n"
    yield (
        "| holders | ε | s | T | paper: σ, accuracy | formula: σ, accuracy | exact: σ, accuracy | "
        "exact − formula | `ft.plan`: s, T, σ, accuracy | no noise |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for holders in dict.fromkeys(row.holders for row in rows):
        sizes = {epsilon: size for epsilon, _, size in problem.table}
        own = {
            (row.kind, row.epsilon): row
            for row in rows
            if row.holders == holders and (row.kind == CHOSEN or row.size == sizes[row.epsilon])
        }
        bare = next(row for row in own.values() if row.kind == NOISELESS)
        for epsilon, sigma, size in problem.table:
            if (EXACT, epsilon) not in own:
                continue
            formula, exact = own[FORMULA, epsilon], own[EXACT, epsilon]
            printed = problem.printed.get(epsilon) if holders == COPIES.name else None
            stated = "" if printed is None else f", {printed:g}"
            chosen = own.get((CHOSEN, epsilon))
            yield (
                f"| {holders} | {epsilon:g} | {size} | {exact.rounds} | {sigma:g}{stated} | "
                f"{formula.sigma:.2f}, {said(formula)} | {exact.sigma:.2f}, {said(exact)} | "
                f"{exact.mean - formula.mean:+.1f} | "
                + (
                    ""
                    if chosen is None
                    else f"{chosen.size}, {chosen.rounds}, {chosen.sigma:.2f}, {said(chosen)}"
                )
                + f" | {bare.mean:.1f} |"
            )
    yield ""


def size_table(problem: Problem, rows: Sequence[Row]) -> Iterator[str]:
    """Accuracy against sample size in Markdown."""
    rows = by_size(problem, rows)
    if not rows:
        return
    yield f"### {problem.name}: accuracy in % against s at ε = {problem.table[0][0]:g}\n"
    yield "| holders | s | T | formula: σ, accuracy | exact: σ, accuracy | exact − formula |"
    yield "|---|---|---|---|---|---|"
    own = {(row.holders, row.size, row.kind): row for row in rows}
    for (holders, size, kind), exact in own.items():
        if kind == EXACT:
            formula = own[holders, size, FORMULA]
            yield (
                f"| {holders} | {size} | {exact.rounds} | {formula.sigma:.2f}, {said(formula)} | "
                f"{exact.sigma:.2f}, {said(exact)} | {exact.mean - formula.mean:+.1f} |"
            )
    yield ""


def said(row: Row) -> str:
    """Mean and spread."""
    return f"{row.mean:.1f} ± {row.spread:.1f}" if len(row.accuracies) > 1 else f"{row.mean:.1f}"


def draw(problem: Problem, rows: Sequence[Row], over: str, path: Path) -> None:
    """Accuracy with its spread, a line for each kind of plan and of holders; nothing of no rows."""
    if not rows:
        return
    x = "ε" if over == "epsilon" else f"sample size s (K = {problem.gradients:,})"
    title = f"{problem.name[0].upper()}{problem.name[1:]}: test accuracy" + (
        "" if over == "epsilon" else f" at ε = {problem.table[0][0]:g}"
    )
    figure, axes = new_axes(title, x, "test accuracy, %")
    for holders in dict.fromkeys(row.holders for row in rows):
        for kind in (FORMULA, EXACT, CHOSEN):
            line = [row for row in rows if (row.holders, row.kind) == (holders, kind)]
            if line:
                axes.errorbar(
                    [getattr(row, over) for row in line],
                    [row.mean for row in line],
                    [row.spread for row in line],
                    color=COLOURS[kind],
                    marker=MARKERS[holders],
                    linestyle=STYLES[holders],
                    markersize=4,
                    capsize=2,
                    label=f"{kind}, {holders}",
                )
    for bare in (row for row in rows if row.kind == NOISELESS and row.holders == rows[0].holders):
        words = f"no noise, {bare.holders}: {bare.mean:.1f} %"
        axes.axhline(bare.mean, color=GREY, linewidth=1, label=words)
    axes.set_xscale("log")
    ticks = sorted({getattr(row, over) for row in rows if row.kind == EXACT})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(top=min(axes.get_ylim()[1], 101))  # a spread may reach beyond
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    figure.savefig(path)
    print(f"figure  {path}")
