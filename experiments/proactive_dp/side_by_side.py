"""Many runs of the first paper's logistic regressions in step, as one tensor.

A round of one run is a few records and some seventy weights: nearly all of its time is overhead.
Here all plans that have holders, sample size and number of rounds in common, such as those of two
problems, three noises and ten seeds, do each round together. Every seed's batches and noise are
those of :func:`clients.train`, drawn from the library's own streams, once for all of its plans, and
the formulas are the same: so are the weights, to rounding (tests/training/test_paper_runs.py).

It is a simulation for experiments, without transcript or Statement: private training is
``forethought.train``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from cells import Cell, Cells
from clients import ONE, Holders, secrets_of
from comparison import CHOSEN, TIMED, Preset, Problem, Row, measure, train, wanted_of

import forethought as ft
from forethought.gradients.sums import CHARGE, NARROW
from forethought.rounds.randomness import BoundNoise, Indices, Secrets, Stream, sampler
from forethought.values.plan import step_sizes


@dataclass(frozen=True)
class Drawn:
    """A round's chance for one seed: what all of its holders draw.

    Args:
        records: of all holders together, int64; a record that two of them drew is in it twice.
        noise: the sum of the holders' standard normal vectors, float64, shape (weights,).
    """

    records: Indices
    noise: np.ndarray


class Chance:
    """Batches and noise of one seed's holders, round by round, the noise the same for every plan.

    The library's noise is bound to each sum; plans in step share theirs, so that it is drawn once.

    Args:
        plan: of a holder of all the records; its Poisson rate counts.
        parts: each holder's records. secrets: each holder's.
        weights: length of a noise vector.
    """

    def __init__(
        self, plan: ft.Plan, parts: Sequence[Indices], secrets: Sequence[Secrets], weights: int
    ) -> None:
        self._parts, self._weights = parts, weights
        self._noises = [BoundNoise(own.noise) for own in secrets]
        (release,) = plan.mechanism
        self._samplers = [
            sampler(release.sampling, len(part), Stream(own.sampling, "sampling"))
            for part, own in zip(parts, secrets, strict=True)
        ]

    def __call__(self, index: int) -> Drawn:
        """Round ``index``."""
        drawn = zip(self._parts, self._samplers, strict=True)
        records = [part[draw(index)] for part, draw in drawn]
        place = index.to_bytes(32, "little")
        noise = sum(noise.at(place).standard_normal(self._weights) for noise in self._noises)
        return Drawn(np.concatenate(records), np.asarray(noise))


def logistic_weights(
    data: tuple[np.ndarray, np.ndarray],
    plans: Sequence[ft.Plan],
    chances: Sequence[Callable[[int], Drawn]],
    rounds: int | None = None,
) -> torch.Tensor:
    """Train every plan with every seed, from zero weights.

    Args:
        data: inputs (records, features) and targets 0 or 1 (records,).
        plans: SGD without momentum, of the same clip norm, number of rounds and sample size, flat
            clipping, no averaging. chances: each seed's.
        rounds: stop after so many, for an estimate.

    Returns:
        Float64, shape (seeds, plans, features + 1): the intercept is last.

    Raises:
        ValueError: plans that cannot be run in step, or that this does not know.
    """
    first = plans[0]
    for plan in plans:
        require(plan, first)
    inputs = torch.from_numpy(data[0]).double().flatten(1)
    # The record past the last one is nothing: it fills the shorter batches up.
    rows = torch.zeros(len(inputs) + 1, inputs.shape[1] + 1, dtype=torch.float64)
    rows[:-1, :-1], rows[:-1, -1] = inputs, 1
    targets = torch.cat([torch.from_numpy(data[1]).double(), torch.zeros(1)])[:, None]
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    weights = torch.zeros(len(chances), len(plans), rows.shape[1], dtype=torch.float64)
    bound = first.clip.norm * (1 - CHARGE) * NARROW  # the trainer's, which leaves room for rounding
    noise_std = torch.tensor([first.clip.norm * plan.noise_multiplier for plan in plans])
    noise_std = noise_std.double()[:, None]
    decays = torch.tensor([dict(plan.optimizer.options).get("weight_decay", 0.0) for plan in plans])
    decays = decays.double()[:, None]
    steps = {(plan.optimizer, plan.schedule): step_sizes(plan) for plan in plans}
    for index in range(rounds or first.rounds):
        drawn = [chance(index) for chance in chances]
        records = torch.full((len(drawn), max(len(d.records) for d in drawn)), len(inputs))
        for row, one in zip(records, drawn, strict=True):
            row[: len(one.records)] = torch.from_numpy(one.records)
        batch = rows[records]  # (seeds, most records, weights)
        slopes = torch.sigmoid(batch @ weights.transpose(1, 2)) - targets[records]
        clipped = slopes * (bound / (slopes.abs() * norms[records])).clamp(max=1.0)
        sums = clipped.transpose(1, 2) @ batch  # (seeds, plans, weights)
        noise = torch.from_numpy(np.stack([one.noise for one in drawn]))
        means = (sums + noise_std * noise[:, None, :]) / first.batch
        now = {key: size(index) for key, size in steps.items()}
        sizes = torch.tensor([now[plan.optimizer, plan.schedule] for plan in plans]).double()
        weights -= sizes[:, None] * (means + decays * weights)
    return weights


def require(plan: ft.Plan, first: ft.Plan) -> None:
    """Refuse a plan that is not run here, or not in step with the first. Raises ValueError."""
    same = ("rounds", "batch", "examples")
    known = (
        plan.optimizer.name == "sgd"
        and set(dict(plan.optimizer.options)) <= {"weight_decay"}
        and plan.averaging.kind == "none"
        and plan.clip == first.clip == ft.Clip(first.clip.norm)
        and [type(part) for part in plan.mechanism] == [ft.Rounds]
        and all(isinstance(part.sampling, ft.Poisson) for part in plan.mechanism)
        and plan.augmentation is None
        and plan.gradient_filter is None
    )
    if not known or any(getattr(plan, name) != getattr(first, name) for name in same):
        raise ValueError(
            "only plans with plain SGD steps on Poisson batches, flat clipping and no averaging, "
            "all of the same rounds, sample size and clip norm, are run in step"
        )


@dataclass(frozen=True, eq=False)
class Variant:
    """One of a problem's plans, at a sample size that the group has."""

    problem: Problem
    kind: str
    epsilon: float

    def cells(self, holders: Holders, size: int, seeds: int) -> list[Cell]:
        """Of every seed."""
        name, gradients = self.problem.name, self.problem.gradients
        return [
            Cell(name, gradients, holders.name, self.kind, self.epsilon, size, seed)
            for seed in range(seeds)
        ]


Groups = dict[tuple[Holders, int], list[Variant]]  # by sample size


def groups_of(problems: Sequence[Problem], preset: Preset) -> Groups:
    """What runs in step; the planner's own plans do not."""
    groups: Groups = {}
    for problem in problems:
        for holders, kind, epsilon, size, _ in wanted_of(problem, preset):
            if kind != CHOSEN:
                groups.setdefault((holders, size), []).append(Variant(problem, kind, epsilon))
    return groups


def train_group(
    plans: Sequence[Variant], holders: Holders, size: int, seeds: Sequence[int], rounds: int | None
) -> torch.Tensor:
    """The weights of one group, as of :func:`logistic_weights`."""
    problem = plans[0].problem
    own = [plan.problem.plan(plan.kind, plan.epsilon, size) for plan in plans]
    weights = sum(p.numel() for p in problem.model.parameters())
    parts = holders.parts(problem.examples)
    chances = [Chance(own[0], parts, secrets_of(holders, seed), weights) for seed in seeds]
    return logistic_weights(problem.data, own, chances, rounds)


def run(problems: Sequence[Problem], preset: Preset, folder: Path) -> list[Row]:
    """Every plan of the preset on one data set, no noise with all seeds too.

    Finished groups are kept where :func:`comparison.run` keeps its runs.
    """
    cells = Cells(Path(__file__).with_name(f"{folder.name}.jsonl"))
    for (holders, size), plans in groups_of(problems, preset).items():
        of_plan = {plan: plan.cells(holders, size, preset.seeds) for plan in plans}
        left = [plan for plan in plans if any(cell not in cells.done for cell in of_plan[plan])]
        if not left:
            continue
        start = time.process_time()
        weights = train_group(left, holders, size, range(preset.seeds), None).float()
        took = (time.process_time() - start) / len(left)
        for column, plan in enumerate(left):
            found = [100 * score(plan.problem, own) for own in weights[:, column]]
            cells.keep_all(of_plan[plan], found, took)
    return [
        measure(problem, holders, kind, epsilon, size, preset.seeds, cells)
        for problem in problems
        for holders, kind, epsilon, size, _ in wanted_of(problem, preset)
    ]


def score(problem: Problem, weights: torch.Tensor) -> float:
    """Share of right answers of one run's weights, (features + 1,)."""
    with torch.no_grad():
        weight, bias = problem.model.parameters()
        weight.copy_(weights[None, :-1])
        bias.copy_(weights[-1:])
        found = problem.score(problem.model)
        weight.zero_()  # the model is where every run begins
        bias.zero_()
    return found


def estimate(problems: Sequence[Problem], preset: Preset) -> None:
    """Print how long a preset takes on one core, by some rounds of every group."""
    few, seconds, runs = 4 * TIMED, 0.0, 0
    groups = groups_of(problems, preset)
    (holders, size), plans = next(iter(groups.items()))
    train_group(plans, holders, size, range(preset.seeds), 1)  # loads libraries
    for (holders, size), plans in groups.items():
        rounds = plans[0].problem.rounds(size)
        start = time.process_time()
        train_group(plans, holders, size, range(preset.seeds), min(few, rounds))
        seconds += (time.process_time() - start) * rounds / min(few, rounds)
        runs += len(plans) * preset.seeds
    chosen = [
        (problem, epsilon)
        for problem in problems
        for _, kind, epsilon, _, _ in wanted_of(problem, preset)
        if kind == CHOSEN
    ]
    for problem, epsilon in chosen:
        plan = problem.plan(CHOSEN, epsilon, 0)
        start = time.process_time()
        train(problem.model, problem.data, plan, ONE, problem.loss, 0)
        seconds += preset.seeds * (time.process_time() - start)
        runs += preset.seeds
    print(f"{runs} runs, {seconds / 3600:.2f} h of one core in all")
