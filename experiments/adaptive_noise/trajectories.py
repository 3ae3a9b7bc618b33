"""One way of descending on one data set, 120 times at once: risks where budgets end, and curves."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from constants import noise
from repeat import Way, minimum, paths, risks
from sets import Task, fetch

from forethought import Budget, convex
from forethought.accounting.dominating_pair import gaussian_mu
from forethought.convex.planning import CONSTANTS, recipe
from forethought.convex.problems import Problem
from forethought.convex.schedules import Schedule
from forethought.papers.adaptive_noise import paper_rho

EPSILONS = (0.1, 20.0)
SIGMAS = (0.001, 0.01, 0.1, 1.0)
# Iterations at most; the paper does not say its own.
MOST = {"mnist": 400, "kdd": 300}
MOST_ELSEWHERE = 2000
# The paper's random start, which it does not say either: N(0, START² I). One scale does not fit
# all: Breast Cancer's 1.1656 wants 0.45, MNIST's 1.0058 a ninth of it.
START = 0.45
STARTS = {"mnist": 0.05}
GRID = tuple(np.geomspace(0.02, 20, 40))

DEFAULT, SCHEDULE, ORACLE = "default", "schedule", "data-dependent"
LEAST = "minimum"


@dataclass(frozen=True)
class Job:
    """What is repeated.

    Args:
        name: of the data set. l2: λ.
        way: DEFAULT, SCHEDULE (the paper's), ORACLE, "constant 0.01", or LEAST for F* itself.
        epsilon: what the default is planned for; 0 elsewhere.
        printed: as the paper has it: rows of any length, random start, ρ + 2√(ρ ln 1/δ), and the
            first iterate beyond ε. Otherwise rows within Z, start at zero, the last one within the
            exact ε.
    """

    name: str
    l2: float
    way: str
    epsilon: float = 0.0
    printed: bool = False


@dataclass(frozen=True)
class Result:
    """What came out.

    Args:
        rounds: ε → iterations. risk: ε → lower quartile, median, upper quartile.
        curve: rows of (ε, quartile, median, quartile) of the gradient's norm.
        capped: ε → whether the iterations were cut off. seconds: processor time.
    """

    job: Job
    rounds: dict[float, int]
    risk: dict[float, tuple[float, float, float]]
    curve: tuple[tuple[float, float, float, float], ...]
    capped: dict[float, bool]
    seconds: float = 0.0


def _quartiles(values: np.ndarray) -> tuple[float, float, float]:
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    return float(low), float(middle), float(high)


def _schedule(job: Job, task: Task, problem: Problem) -> tuple[Schedule, Way]:
    N, d = task.features.shape
    net = None if job.printed else problem.lipschitz
    if job.way == DEFAULT:
        budget = Budget(job.epsilon, 1 / N)
        found = recipe(problem, N, d, gaussian_mu(budget.epsilon, budget.delta), 2.0)
        sigmas = noise(found, budget, N)
        way = Way(lambda t, _: sigmas[t - 1], found.step, found.clip_norm, found.accelerated)
        return lambda t: (sigmas[t - 1] if t <= len(sigmas) else 0.0, found.step), way
    if job.way == SCHEDULE:
        if problem.convexity:
            schedule = convex.schedules.strongly_convex(problem, d)
        else:  # the paper does not say its R
            schedule = convex.schedules.convex(problem, d, CONSTANTS.radius)
    else:
        schedule = convex.schedules.constant(problem, float(job.way.split()[1]))
    return schedule, Way(lambda t, _: schedule(t)[0], schedule(1)[1], net)


def _ends(
    schedule: Schedule, delta: float, sensitivity: float, printed: bool, most: int
) -> dict[float, int]:
    """ε → the iterate that is reported."""
    ends = {}
    for epsilon in EPSILONS:
        allowed = (
            2 * paper_rho(epsilon, delta)
            if printed
            else gaussian_mu(epsilon, delta) ** 2 * (1 + 1e-9)
        )
        spent, t = 0.0, 0
        while t < most:
            sigma = schedule(t + 1)[0]
            cost = (sensitivity / sigma) ** 2 if sigma else math.inf
            if spent + cost > allowed:
                t += printed
                break
            spent, t = spent + cost, t + 1
        ends[epsilon] = min(t, most)
    return ends


def run(job: Job, folder: Path, repetitions: int) -> Result:
    """Repeat one way of descending."""
    torch.set_num_threads(1)
    begun = time.process_time()
    found = _run(job, folder, repetitions)
    return replace(found, seconds=round(time.process_time() - begun, 1))


def to_row(result: Result, repetitions: int) -> dict[str, Any]:
    """A row of results.jsonl."""
    return {"repetitions": repetitions, **asdict(result)}


def from_row(row: dict[str, Any]) -> Result:
    """A result, of a row."""
    risk = {float(epsilon): tuple(values) for epsilon, values in row["risk"].items()}
    rounds = {float(epsilon): count for epsilon, count in row["rounds"].items()}
    capped = {float(epsilon): cut for epsilon, cut in row["capped"].items()}
    curve = tuple(tuple(point) for point in row["curve"])
    return Result(Job(**row["job"]), rounds, risk, curve, capped, row["seconds"])


def _run(job: Job, folder: Path, repetitions: int) -> Result:
    task = fetch(job.name, folder, not job.printed)
    N, d = task.features.shape
    problem = convex.LogisticRegression(feature_bound=task.bound, l2=job.l2)
    most = MOST.get(job.name, MOST_ELSEWHERE)
    if job.way == LEAST:
        least = minimum(task, problem)
        return Result(job, {0.0: 0}, {0.0: (least, least, least)}, (), {0.0: False})
    sensitivity = 2 * problem.lipschitz / N
    start = torch.zeros(d, repetitions)
    if job.printed:
        scale = STARTS.get(job.name, START)
        start = scale * torch.randn(d, repetitions, generator=torch.Generator().manual_seed(1))
    if job.way == ORACLE:
        curve = _oracle(task, problem, start, most)
        return Result(job, {}, {}, curve, {})
    schedule, way = _schedule(job, task, problem)
    if way.clip_norm is not None:
        sensitivity = 2 * way.clip_norm / N
    limit = most if job.way != DEFAULT else 10**6
    ends = _ends(schedule, 1 / N, sensitivity, job.printed, limit)
    if job.way == DEFAULT:
        ends = {job.epsilon: ends[job.epsilon]}
    risk, norms = {}, []
    for t, weights, gradient in paths(task, problem, way, start, seed=2):
        norms.append(gradient.norm(dim=0).numpy())
        for epsilon, end in ends.items():
            if t == end:
                risk[epsilon] = _quartiles(risks(task, problem, weights).numpy())
        if t >= max(ends.values()):
            break
    costs = [(sensitivity / schedule(t)[0]) ** 2 for t in range(1, len(norms))]
    spent = np.repeat(np.concatenate([[0.0], np.cumsum(costs)])[:, None], repetitions, axis=1)
    curve = _curve(np.array(norms), spent, 1 / N)
    return Result(job, ends, risk, curve, {e: end == limit for e, end in ends.items()})


def _oracle(
    task: Task, problem: Problem, start: torch.Tensor, most: int
) -> tuple[tuple[float, float, float, float], ...]:
    """Proposition 1 with the gradient's norm for nothing: not private."""
    N, d = task.features.shape
    allowed = gaussian_mu(EPSILONS[-1], 1 / N) ** 2
    way = Way(lambda _, g: g.norm(dim=0) / math.sqrt(d), 1 / (2 * problem.smoothness))
    norms: list[np.ndarray] = []
    spent = [np.zeros(start.shape[1])]
    for t, _, gradient in paths(task, problem, way, start, seed=2):
        norms.append(gradient.norm(dim=0).numpy())
        cost = (2 * problem.lipschitz / N) ** 2 * d / np.maximum(norms[-1], 1e-12) ** 2
        spent.append(spent[-1] + cost)
        if t >= most or (spent[-1] > allowed).all():
            break
    return _curve(np.array(norms), np.array(spent[: len(norms)]), 1 / N)


def _curve(
    norms: np.ndarray, spent: np.ndarray, delta: float
) -> tuple[tuple[float, float, float, float], ...]:
    """Quartiles of the gradient's norm at each ε: of the last iterate that is within it."""
    rows = []
    for epsilon in GRID:
        within = spent <= gaussian_mu(epsilon, delta) ** 2 * (1 + 1e-9)
        last = np.maximum(within.sum(0) - 1, 0)
        row = (float(epsilon), *_quartiles(norms[last, np.arange(norms.shape[1])]))
        rows.append(tuple(float(f"{value:.5g}") for value in row))
        if within.all() and (spent[-1] > 0).all():
            break
    return tuple(rows)


def jobs(names: Sequence[str], ridges: Sequence[float] = (0.0, 0.1)) -> list[Job]:
    """Everything that the table and the figures need, the dearest last."""
    constants = [f"constant {sigma:g}" for sigma in SIGMAS]
    found = []
    for name in names:
        for l2 in ridges:
            found += [Job(name, l2, way) for way in (LEAST, *constants, SCHEDULE, ORACLE)]
            found += [Job(name, l2, DEFAULT, epsilon) for epsilon in EPSILONS]
        found += [Job(name, 0.1, way, printed=True) for way in (*constants, SCHEDULE)]
    last = {"kdd": 1, "mnist": 2}

    def order(job: Job) -> tuple[float, ...]:
        aside = job.printed or job.way == ORACLE
        return last.get(job.name, 0), aside, -job.l2, job.way != DEFAULT

    return sorted(found, key=order)
