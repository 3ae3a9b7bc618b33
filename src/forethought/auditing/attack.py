"""Membership games against a run: one training plays thousands, on orthogonal canaries.

Each canary is a record whose gradient has a coordinate of its own and is far above the clipping
norm. A fair coin decides whether it is there; if not, a blank record (or, where records are
replaced, its opposite) takes its place. From the coordinate's noised sums over all rounds the
attacker scores the exact log-likelihood ratio. One coordinate tells nothing of another's coin, so
the games are independent where records are drawn one by one; where they compete for places, errors
are negatively associated and counted with a bound that allows it.

Canaries of one group share its clipped update, and a record less changes everybody's batch when its
size is fixed: there each training plays one game, and all other records point against the canary,
which is what the sensitivity of 2 is attained by.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from forethought.accounting import exact
from forethought.accounting.tradeoff import TradeOff, tradeoff
from forethought.auditing.effort import Effort, scaled
from forethought.auditing.inference import (
    LEVEL,
    Games,
    curve,
    epsilon_interval,
    one_run_epsilon,
    points,
    refutation_p,
)
from forethought.auditing.noise import scales
from forethought.auditing.planted import PlantedRecords, observe
from forethought.auditing.scores import log_likelihood_ratio
from forethought.auditing.tactics import Tactics, tactics
from forethought.auditing.verdict import AttackSummary, Finding
from forethought.values.mechanism import Mechanism
from forethought.values.plan import Plan

Array = NDArray[np.float64]

# Far above any clipping norm that a rule reaches.
LARGE = 10**6
# Records of a training that plays one game.
FEW = 60
# Rounds of such a training.
SHORT = 12


def shortened(plan: Plan, rounds: int) -> Plan:
    """The plan's first ``rounds`` rounds, at most."""
    mechanism = plan.mechanism.first(min(rounds, plan.rounds))
    clip = plan.clip
    if clip.shares is not None:
        clip = type(clip)(clip.norm, clip.rule)
    # Planted records are no images.
    return plan.with_(mechanism=mechanism, clip=clip, budget=None, augmentation=None)


def directed(plan: Plan) -> bool:
    """True if one training can play one game only."""
    exchanges = any(part.sampling.exchanges for part in plan.mechanism)
    return plan.groups is not None or (exchanges and plan.mechanism.adjacency == "add-or-remove")


def contributions(plan: Plan) -> tuple[float, float]:
    """The contributions of the record that is there, and of the one that takes its place."""
    return (1.0, -1.0) if plan.mechanism.adjacency == "replace-one" else (1.0, 0.0)


def orthogonal_games(plan: Plan, canaries: int, generator: np.random.Generator) -> Games:
    """Play one training; every canary is a game.

    Args:
        plan: clips examples. canaries: how many of its records take part in games.
    """
    inside, outside = contributions(plan)
    there = generator.random(canaries) < 0.5
    index = np.full(plan.examples, canaries)  # the blank records' coordinate
    weight = np.zeros(plan.examples, dtype=np.int64)
    index[:canaries] = np.arange(canaries)
    weight[:canaries] = np.where(there, inside, outside) * LARGE
    records = PlantedRecords(index, weight, plan.clip.norm, canaries + 1)
    seen = np.empty((plan.rounds, canaries))

    def see(t: int, total: Array) -> None:
        seen[t] = total[:canaries]

    moving = plan.clip.rule == "quantile"
    run = observe(plan, records, see, log_every=1 if moving else plan.rounds)
    norms = [row.clip_norm for row in run.history] if moving else [plan.clip.norm] * plan.rounds
    for t, norm in enumerate(norms):
        seen[t] /= norm
    score = log_likelihood_ratio(
        plan.mechanism, scales(plan, [1.0] * plan.rounds), seen, inside, outside
    )
    competing = any(part.sampling.exchanges for part in plan.mechanism)
    return Games(score[~there], score[there], independent=not competing)


def directed_games(plan: Plan, games: int, generator: np.random.Generator) -> Games:
    """Play one training a game: the canary points one way, everybody else the other.

    The canary outweighs its group, so that its presence turns the group's whole update round.
    """
    found: tuple[list[float], list[float]] = ([], [])
    for turn in generator.permutation(games):
        there = bool(turn % 2)
        found[there].append(_directed_game(plan, there))
    return Games(np.array(found[0]), np.array(found[1]))


def _directed_game(plan: Plan, there: bool) -> float:
    adjacency, examples = plan.mechanism.adjacency, plan.examples
    weight = np.full(examples, -1, dtype=np.int64)
    weight[-1] = LARGE
    if not there:
        # Absent, blank, or replaced by one more of the others.
        weight[-1] = -1 if adjacency == "replace-one" else 0
        if adjacency == "add-or-remove":
            plan, weight = _one_less(plan), weight[:-1]
    records = PlantedRecords(np.zeros(len(weight), dtype=np.int64), weight, plan.clip.norm * 1e3, 1)
    seen = np.empty((plan.rounds, 1))

    def see(t: int, total: Array) -> None:
        seen[t] = total / plan.clip.norm

    observe(plan, records, see)
    return _directed_score(plan, seen)


def _one_less(plan: Plan) -> Plan:
    examples = plan.examples - 1
    parts = [
        replace(
            part,
            sampling=part.sampling
            if part.sampling.known_examples() is None
            else part.sampling.resized(part.sampling.expected_batch(plan.examples), examples),
        )
        for part in plan.mechanism
    ]
    return plan.with_(
        mechanism=Mechanism(*parts, adjacency=plan.mechanism.adjacency), examples=examples
    )


def _directed_score(plan: Plan, seen: Array) -> float:
    """Log-likelihood ratio for a sum that the canary moves by 2 from where the others leave it."""
    base = _others(plan)
    return float(
        log_likelihood_ratio(
            plan.mechanism, scales(plan, [1.0] * plan.rounds), seen - base, 2.0, 0.0
        )[0]
    )


def _others(plan: Plan) -> float:
    """The sum without the canary: every group, or every record, at −1."""
    if plan.groups is not None:
        return -float(plan.groups)
    part = plan.mechanism.rounds[0]
    return -part.sampling.expected_batch(plan.examples) if part.sampling.exchanges else 0.0


def attack(
    plan: Plan, effort: Effort, generator: np.random.Generator
) -> tuple[list[Finding], AttackSummary | None, list[str]]:
    """Play the games and hold them against the claimed trade-off function.

    Args:
        plan: the claim. generator: of coins and simulations.

    Returns:
        The finding, the games in numbers, and notes on what was left out.
    """
    if any(part.noise_multiplier == 0 for part in plan.mechanism):
        return [], None, ["no attack was needed: rounds without noise claim nothing"]
    single = directed(plan)
    notes = []
    if single:
        small = _few_records(plan)
        distance = (2.0, 0.0)
        notes.append(
            f"the attack played one game a training, on {small.examples} records and "
            f"{small.rounds} rounds"
        )
    else:
        canaries = min(effort.canaries, plan.examples)
        small = shortened(plan, max(1, effort.attack_cells // canaries))
        distance = contributions(plan)
        if small.rounds < plan.rounds:
            notes.append(f"the attack saw the first {small.rounds:,} of {plan.rounds:,} rounds")
    games = (
        directed_games(small, effort.directed_games, generator)
        if single
        else orthogonal_games(small, canaries, generator)
    )
    if not len(games.outside) or not len(games.inside):
        return [], None, [*notes, "no attack was judged: every coin of its few games fell alike"]
    finding, chosen = judge(small, games, distance)
    return [finding], summarise(small, games, chosen) if effort.bounds else None, notes


def _few_records(plan: Plan) -> Plan:
    examples = min(plan.examples, FEW)
    part = plan.mechanism.rounds[0]
    sampling = scaled(part.sampling, plan.examples, examples)
    rounds = replace(part, count=min(SHORT, part.count), sampling=sampling)
    return shortened(
        plan.with_(
            mechanism=Mechanism(rounds, adjacency=plan.mechanism.adjacency),
            examples=examples,
            clip=type(plan.clip)(plan.clip.norm) if plan.clip.rule != "quantile" else plan.clip,
        ),
        rounds.count,
    )


def judge(
    plan: Plan, games: Games, distance: tuple[float, float], group: int = 1
) -> tuple[Finding, Tactics]:
    """Games against the trade-off function of the plan that they were played on.

    Args:
        distance: what the record contributed, and what its absence.
    """
    count = len(games.outside) + len(games.inside)
    noise = tuple(scales(plan, [1.0] * plan.rounds))
    chosen = tactics(plan.mechanism, noise, distance, count, plan.delta, group)
    thresholds, slopes = np.array(chosen.thresholds), np.array(chosen.slopes)
    claim = tradeoff(plan.mechanism, group)
    false, missed = games.errors(chosen.thresholds[0])
    rate = false / max(1, len(games.outside))
    share = missed / max(1, len(games.inside))
    finding = Finding(
        "attack",
        "errors of a membership attack",
        f"{100 * share:.3g} % missed at {100 * rate:.3g} % false alarms",
        f"{100 * claim(rate):.3g} % or more",
        _does_better(games, thresholds, claim),
        refutation_p(games, thresholds, slopes, claim),
    )
    return finding, chosen


def summarise(
    plan: Plan, games: Games, chosen: Tactics, group: int = 1, fdp: float | None = None
) -> AttackSummary:
    """The games' result in terms of ε, beside the claim, and beside what one run says by f-DP."""
    delta, count = plan.delta, len(games.outside) + len(games.inside)
    shown, noise = epsilon_interval(
        plan.mechanism, games, chosen.thresholds[0], chosen.slopes[0], delta, group
    )
    return AttackSummary(
        games=count,
        rounds=plan.rounds,
        delta=delta,
        claimed_epsilon=exact.epsilon(plan.mechanism, delta, group).upper,
        epsilon=shown,
        # One run with many coins; where every training plays one game there is no such run.
        one_run_epsilon=None
        if directed(plan)
        else one_run_epsilon(games, delta, chosen.guesses, LEVEL),
        noise_at_most=noise,
        confidence=1 - LEVEL,
        points=points(games),
        curve=curve(tradeoff(plan.mechanism, group)),
        fdp_epsilon=fdp,
    )


def _does_better(games: Games, thresholds: Array, claim: TradeOff) -> str:
    """The threshold whose errors lie furthest below the claim, in words."""
    rates = []
    for threshold in thresholds:
        false, missed = games.errors(float(threshold))
        rates.append((false / len(games.outside), missed / len(games.inside)))
    rate, share = max(rates, key=lambda pair: claim(pair[0]) - pair[1])
    return (
        f"A membership attack does better than the claim allows: with {100 * rate:.2g} % false "
        f"alarms it misses {100 * share:.3g} %, where at least {100 * claim(rate):.3g} % are "
        "claimed."
    )
