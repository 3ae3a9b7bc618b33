"""Writes the coverage table of docs/auditing.md: what is claimed, and what an attack sees.

    python docs/auditing.py            # minutes; replaces the table between the markers
    python docs/auditing.py --few      # fewer games, prints only

Every supported sampling, clipping and adjacency, groups of records, quantile clipping, phases, a
search, and both kinds of contribution, each attacked through ``forethought.train``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import forethought as ft
from forethought.auditing import attack as attacking
from forethought.auditing.attack import Games, log_likelihood_ratio
from forethought.auditing.canaries import (
    _WATCHING,
    LARGE,
    CanaryRecords,
    divisors,
    holding,
    kept,
)
from forethought.auditing.noise import scales
from forethought.auditing.verdict import AttackSummary
from forethought.values.plan import Plan

PAGE = Path(__file__).with_name("auditing.md")
BEGIN, END = "<!-- coverage -->", "<!-- /coverage -->"
CANARIES, FEW_RECORDS, ROUNDS, DELTA = 4_000, 60, 6, 1e-5
# A claim this many times above the attack's own upper end is a lead for the accountant.
LEAD = 1.15
ADJACENCIES = ("add-or-remove", "zero-out", "replace-one")


@dataclass(frozen=True)
class Row:
    """One row: what ran, and what the attack says."""

    name: str
    clipping: str
    adjacency: str
    found: AttackSummary

    @property
    def lead(self) -> bool:
        """Whether the claim is far above what this attack could show at best."""
        return self.found.claimed_epsilon > LEAD * self.found.epsilon[1]

    @property
    def text(self) -> str:
        """The row in Markdown."""
        low, high = self.found.epsilon
        mark = "lead" if self.lead else ""
        return (
            f"| {self.name} | {self.clipping} | {self.adjacency} | {self.found.games:,} | "
            f"{self.found.claimed_epsilon:.3g} | {low:.3g} to {high:.3g} | {mark} |"
        )


def samplings(examples: int) -> dict[str, tuple[Any, float]]:
    """Each sampling with noise that leaves ε near 1 to 4."""
    return {
        "poisson": (ft.Poisson(0.1), 0.8),
        "without replacement": (ft.WithoutReplacement(examples // 10, examples), 1.2),
        "shuffled": (ft.Shuffled(examples // 3, examples), 1.5),
        "full batch": (ft.FullBatch(), 4.0),
    }


def plan_of(sampling: Any, sigma: float, adjacency: str, examples: int, **options: Any) -> Plan:
    """A plan of :data:`ROUNDS` rounds."""
    kind = "group" if "groups" in options else "example"
    part = ft.Rounds(sigma, ROUNDS, sampling, kind)
    return Plan(ft.Mechanism(part, adjacency=adjacency), examples, DELTA, **options)


def played(plan: Plan, trainings: int) -> AttackSummary:
    """Attack a plan through one training, or through many of one game each."""
    generator = np.random.default_rng()
    if attacking.directed(plan):
        games = attacking.directed_games(plan, trainings, generator)
    else:
        games = attacking.orthogonal_games(plan, plan.examples, generator)
    _, chosen = attacking.judge(plan, games)
    return attacking.summarise(plan, games, chosen)


def matrix(trainings: int) -> Iterator[Row]:
    """Every supported sampling, clipping and adjacency."""
    for clipping in ("example", "group"):
        for adjacency in ADJACENCIES:
            for name in samplings(CANARIES):
                if name == "shuffled" and adjacency == "add-or-remove":
                    continue
                single = clipping == "group" or (
                    name == "without replacement" and adjacency == "add-or-remove"
                )
                examples = FEW_RECORDS if single else CANARIES
                sampling, sigma = samplings(examples)[name]
                options: dict[str, Any] = {"groups": 1} if clipping == "group" else {}
                plan = plan_of(sampling, sigma, adjacency, examples, **options)
                yield Row(name, clipping, adjacency, played(plan, trainings))


def records_together(group: int) -> Row:
    """Groups of records of one person: all there, or none; they share a coordinate."""
    people = CANARIES // 2
    examples = people * group
    plan = plan_of(ft.Poisson(0.1), 1.5, "add-or-remove", examples)
    generator = np.random.default_rng()
    there = generator.random(people) < 0.5
    index = np.repeat(np.arange(people), group)
    weight = np.where(np.repeat(there, group), LARGE, 0)
    records = CanaryRecords(index, weight, plan.clip.norm, people)
    seen = np.array(kept(plan, records, lambda total: total)[0])
    noise = scales(plan)

    def score(values: np.ndarray) -> np.ndarray:
        # k of the person's records are in with probability Binomial(group, rate).
        total = np.zeros(values.shape[1])
        for t, std in enumerate(noise):
            ways = [
                w * np.exp((2 * k * values[t] - k * k) / (2 * std**2))
                for k, w in enumerate(_binomial(group, 0.1))
            ]
            total += np.log(np.sum(ways, axis=0))
        return total

    games = Games(score(seen)[~there], score(seen)[there])
    chosen = _rule_by_score(plan, score, group)
    found = attacking.summarise(plan, games, chosen)
    claimed = ft.epsilon(plan.mechanism, DELTA, group=group).upper
    name = f"poisson, {group} records of a person"
    return Row(name, "example", "add-or-remove", replace(found, claimed_epsilon=claimed))


def _binomial(group: int, rate: float) -> list[float]:
    from scipy.stats import binom

    return [float(binom.pmf(k, group, rate)) for k in range(group + 1)]


def _rule_by_score(plan: Plan, score: Callable[[np.ndarray], np.ndarray], group: int) -> Any:
    """DecisionRule from simulated people, where the library has no score of its own."""
    from forethought.auditing.attack import DecisionRule, _slope, _thresholds

    generator = np.random.default_rng(0)
    noise = np.array(scales(plan))[:, None]
    count = 20_000
    quiet = noise * generator.standard_normal((plan.rounds, count))
    taken = generator.binomial(group, 0.1, (plan.rounds, count))
    made = Games(score(quiet), score(taken + noise * generator.standard_normal(taken.shape)))
    half = CANARIES // 4
    (threshold,) = _thresholds([made], half, plan.mechanism)
    return DecisionRule(
        (threshold,), (_slope(ft.tradeoff(plan.mechanism, group), made, threshold),), 20
    )


def phases() -> Row:
    """Two phases of a run until an accuracy, attacked over both."""
    parts = (
        ft.Rounds(1.0, ROUNDS // 2, ft.Poisson(0.1)),
        ft.Rounds(0.8, ROUNDS // 2, ft.Poisson(0.1)),
    )
    plan = Plan(ft.Mechanism(*parts), CANARIES, DELTA)
    return Row("phases, poisson", "example", "add-or-remove", _through(plan, _in_phases))


def search() -> Row:
    """The winner of a private search, attacked through what it released."""
    plan = plan_of(ft.Poisson(0.1), 1.2, "add-or-remove", CANARIES)
    trials = ft.NegativeBinomialTrials.of_mean(3.0, shape=0)
    statements: list[Any] = []

    def tuned(recorded: Plan, records: CanaryRecords) -> None:
        found = ft.tune(
            records.model,
            records.data,
            [recorded],
            trials=trials,
            score=lambda _model: 0.0,  # all are equal: the first wins
            scoring="public",
            loss=records.loss,
        )
        statements.append(found.statement)

    found = _through(plan, tuned)
    claimed = statements[0].epsilon.upper
    return Row(
        "search over 3 trials", "example", "add-or-remove", replace(found, claimed_epsilon=claimed)
    )


def _in_phases(plan: Plan, records: CanaryRecords) -> None:
    never = torch.full((2,), 7, dtype=torch.int64)
    ft.train_until(
        records.model(),
        records.data,
        plan,
        accuracy=1.0,
        test=(torch.zeros(2, dtype=torch.int64), never),
        loss=records.loss,
        diagnostics=False,
    )


def _through(plan: Plan, run: Callable[[Plan, CanaryRecords], None]) -> AttackSummary:
    """Orthogonal games through another verb than ``train``."""
    from forethought.auditing.canaries import recorded_plan

    generator = np.random.default_rng()
    there = generator.random(plan.examples) < 0.5
    weight = np.where(there, LARGE, 0)
    records = CanaryRecords(np.arange(plan.examples), weight, plan.clip.norm, plan.examples)
    seen: list[np.ndarray] = []
    recorded = recorded_plan(plan)

    def watch(gradients: list[torch.Tensor]) -> None:
        # A search runs the plan again for every trial: the first is the one that wins.
        if len(seen) < plan.rounds:
            (table,) = gradients
            seen.append(table.detach().cpu().numpy().reshape(-1) * next(scale))

    scale = divisors(recorded)
    with holding(_WATCHING, watch):
        run(recorded, records)
    score = log_likelihood_ratio(plan.mechanism, scales(plan), np.stack(seen), 1.0, 0.0)
    games = Games(score[~there], score[there])
    _, chosen = attacking.judge(plan, games)
    return attacking.summarise(plan, games, chosen)


def rows(trainings: int) -> Iterator[Row]:
    """All rows, as they come."""
    yield from matrix(trainings)
    yield records_together(2)
    yield records_together(5)
    quantile = ft.Clip(1.0, "quantile", count_noise=5.0)
    plan = plan_of(ft.Poisson(0.1), 0.8, "add-or-remove", CANARIES, clip=quantile)
    yield Row("poisson, quantile rule", "example", "add-or-remove", played(plan, trainings))
    several = plan_of(ft.Poisson(0.1), 0.8, "zero-out", FEW_RECORDS, groups=4)
    yield Row("poisson, 4 groups", "group", "zero-out", played(several, trainings))
    yield phases()
    yield search()


def table(found: list[Row], seconds: float) -> str:
    """The table with its caption."""
    head = (
        f"{len(found)} combinations, {ROUNDS} rounds each, δ = {DELTA:g}; {seconds / 60:.0f} "
        "minutes. *Claimed*: ε of the Statement. *Seen*: what the attack shows with 95 % "
        "confidence, and what it could show at best given its own uncertainty.\n\n"
        "| what ran | clipping | adjacency | games | claimed ε | seen | |\n"
        "| --- | --- | --- | ---: | ---: | --- | --- |\n"
    )
    return head + "\n".join(row.text for row in found)


def main() -> None:
    """Compute the table; write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--few", action="store_true", help="a few games, printed only")
    parser.add_argument("--trainings", type=int, default=150)
    arguments = parser.parse_args()
    start, found = time.perf_counter(), []
    for row in rows(30 if arguments.few else arguments.trainings):
        found.append(row)
        print(row.text, flush=True)
    text = table(found, time.perf_counter() - start)
    if not arguments.few:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        _, after = rest.split(END)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
