"""The effort of an audit: three levels, and their cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from forethought.values.checks import one_of
from forethought.values.mechanism import Mechanism, Rounds
from forethought.values.plan import Plan
from forethought.values.samplings import Sampling

# Kinds of rounds that one check looks at, evenly spread over a plan of more.
PARTS = 4

Level = Literal["quick", "standard", "thorough"]


@dataclass(frozen=True)
class Effort:
    """Sizes of the checks.

    Args:
        hits: how often records take part in the dry run, at least.
        dry_rounds: most rounds of the dry run.
        population: most records of a dry run; a larger data set is scaled down at its rate.
        coordinates: that carry noise only. noise_rounds: rounds in which they are looked at.
        canaries: membership games in one training. attack_cells: most canaries times rounds.
        directed_games: trainings, where one training can play one game only.
        batch: most records of the batches whose sums are compared; 0 for the plan's own.
        neighbours: how many neighbouring batches at each set of weights.
        bounds: whether what the attack shows is also put in terms of ε; the verdict needs none.
    """

    hits: int
    dry_rounds: int
    population: int
    coordinates: int
    noise_rounds: int
    canaries: int
    attack_cells: int
    directed_games: int
    batch: int
    neighbours: int
    bounds: bool = True


EFFORTS: dict[Level, Effort] = {
    "quick": Effort(
        hits=10_000,
        dry_rounds=600,
        population=20_000,
        coordinates=70_000,
        noise_rounds=8,
        canaries=1_000,
        attack_cells=300_000,
        directed_games=60,
        batch=128,
        neighbours=3,
    ),
    "standard": Effort(
        hits=40_000,
        dry_rounds=2_000,
        population=200_000,
        coordinates=140_000,
        noise_rounds=12,
        canaries=2_000,
        attack_cells=4_000_000,
        directed_games=300,
        batch=0,
        neighbours=6,
    ),
    "thorough": Effort(
        hits=400_000,
        dry_rounds=10_000,
        population=1_000_000,
        coordinates=400_000,
        noise_rounds=32,
        canaries=20_000,
        attack_cells=60_000_000,
        directed_games=3_000,
        batch=0,
        neighbours=20,
    ),
}


def effort(level: str) -> Effort:
    """The sizes of a level by name. Raises ValueError for an unknown one."""
    one_of("level", level, get_args(Level))
    return EFFORTS[level]  # type: ignore[index]


def scaled(sampling: Sampling, examples: int, wanted: int) -> Sampling:
    """The same sampling of ``wanted`` instead of ``examples`` records, at the same rate."""
    if examples == wanted or sampling.known_examples() is None:
        return sampling
    return sampling.resized(sampling.expected_batch(examples) * wanted / examples, wanted)


def evenly(parts: list[Rounds]) -> list[Rounds]:
    """At most :data:`PARTS` of them, the first and the last included."""
    if len(parts) <= PARTS:
        return parts
    return [parts[round(i * (len(parts) - 1) / (PARTS - 1))] for i in range(PARTS)]


def with_parts(plan: Plan, parts: list[Rounds], examples: int) -> Plan:
    """The plan's clipping and grouping on other rounds and another number of records.

    Shares of the clip norm by parameter name do not fit a planted model: they are made even.
    """
    clip = replace(plan.clip, shares=None) if plan.clip.shares else plan.clip
    mechanism = Mechanism(*parts, adjacency=plan.mechanism.adjacency)
    return plan.with_(mechanism=mechanism, examples=examples, clip=clip, budget=None)
