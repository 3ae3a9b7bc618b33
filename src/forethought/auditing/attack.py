"""Membership games against a run: one training plays thousands of games, on orthogonal canaries.

Each canary is a record whose gradient has its own coordinate and a norm far above the clipping
norm. A fair coin decides if it takes part; if not, a blank record (or, under replace-one, its
opposite) takes its place. A coordinate reveals nothing about the coins of other canaries. So the
games are independent if records are drawn one by one. If records compete for the places of a batch,
the errors are negatively associated, and the tests use a bound that allows it.

Canaries of one group share its clipped update, and with batches of a fixed size one record less
changes all batches. In these cases each training plays one game, and all other records point
against the canary, which attains the sensitivity of 2.

The attacker's score is optimal: the log-likelihood ratio of everything that it saw. A canary's
coordinate of a round's sum, in units of C, is Gaussian noise around its contribution: y ~ N(d, σ²)
if it took part and N(0, σ²) if not. With L(d) = (2dy − d²)/(2σ²), sampling at rate q gives
log(1 − q + q·exp L(d)) for each round. A shuffled record takes part once an epoch, in an unknown
round: log Σ_t w_t exp L_t(d) for each epoch, with w_t the share of the records in round t. If parts
of the records take turns, the record's part is unknown: the mean over the parts. If noise is
correlated, y and d are multiplied by the strategy's matrix, which makes the noise independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import bdtr, logsumexp

from forethought.accounting.exact import epsilon
from forethought.accounting.interval import bisected, reached
from forethought.accounting.tradeoff import TradeOff, tradeoff
from forethought.auditing.canaries import LARGE, CanaryRecords, CheckSizes, kept, scaled, with_parts
from forethought.auditing.exact_tests import share_at_least, share_at_most
from forethought.auditing.noise import applied, correlated, scales
from forethought.auditing.verdict import AttackPoint, AttackSummary, Finding, smallest
from forethought.values import mechanism as kinds
from forethought.values.mechanism import scaled_noise
from forethought.values.plan import Clip, Plan

Array = NDArray[np.float64]

# Records and rounds of a training that plays one game.
FEW, SHORT = 60, 12
# Simulated games of each kind: at most SIMULATED, at least FEWEST, about CELLS numbers in all.
SIMULATED, FEWEST, CELLS = 20_000, 2_000, 4_000_000
# Multiples of the claimed noise for which thresholds are chosen: with less noise than claimed,
# another threshold shows the fault best.
SUSPECTED = (1.0, 0.75, 0.5)
# Number of thresholds to compare, and multiples of the noise at which they are compared.
CANDIDATES = 100
FACTORS = np.geomspace(1.01, 4.0, 12)


def log_likelihood_ratio(
    mechanism: kinds.Mechanism, noise: list[float], seen: Array, inside: float, outside: float
) -> Array:
    """log p(seen | a contribution of ``inside``) − log p(seen | a contribution of ``outside``).

    Args:
        noise: standard deviation of each round's noise, in units of C.
        seen: the canaries' coordinates of the noised sums, (rounds, games), in units of C.
        inside, outside: the contribution of a record that takes part, and of one that does not:
            0 if it is absent, −1 if it was replaced by its opposite.

    Returns:
        Shape (games,).
    """
    total = np.zeros(seen.shape[1])
    for sign, shift in ((1.0, inside), (-1.0, outside)):
        first = 0
        for part in mechanism if shift else ():
            rows = slice(first, first + part.count)
            total += sign * _likelihood(part, noise[rows], seen[rows], shift)
            first += part.count
    return total


def _likelihood(part: kinds.Rounds, noise: list[float], seen: Array, shift: float) -> Array:
    if isinstance(part, kinds.Correlated):
        return _through_the_strategy(part, noise[0], applied(part, seen), shift)
    times, found = _times(part.sampling), np.zeros(seen.shape[1])
    for rounds, turns in _deals(part.sampling, part.count):
        # A row for each turn that a record may have got, and one for those that never came.
        rows = np.zeros((len(turns) + 1, seen.shape[1]))
        for t in rounds:
            rows[(t - rounds.start) % len(turns)] += _drawn(seen[t], shift, noise[t], times)
        left = 1 - math.fsum(turns)
        weights = np.array([*turns, left if left > 1e-12 else 0.0])
        found += logsumexp(rows, axis=0, b=weights[:, None])
    return found


def _times(sampling: kinds.Sampling) -> list[tuple[int, float]]:
    """Pairs (k, chance): the chance that a record is in the batch of its turn k times."""
    match sampling.hits(1):
        case kinds.Binomial(1, chance):
            found = [(0, 1 - chance), (1, chance)]
        case kinds.Binomial(trials, chance):
            found = list(enumerate(stats.binom.pmf(np.arange(trials + 1), trials, chance)))
        case kinds.Hypergeometric(_, drawn, examples):
            found = [(0, 1 - drawn / examples), (1, drawn / examples)]
        case other:
            assert_never(other)
    return [(k, float(weight)) for k, weight in found if weight > 1e-15]


def _drawn(seen: Array, shift: float, noise: float, times: list[tuple[int, float]]) -> Array:
    """log Σ_k w_k exp L(k·shift) of one round, (games,); ``times`` holds the pairs (k, w_k)."""
    terms = [
        math.log(weight) + (2 * k * shift * seen - (k * shift) ** 2) / (2 * noise**2)
        for k, weight in times
    ]
    return np.asarray(np.logaddexp.reduce(terms))


def _through_the_strategy(part: kinds.Correlated, noise: float, seen: Array, shift: float) -> Array:
    """The log-likelihood ratio of a part with correlated noise, (games,).

    A record that takes part in rounds p, p + b, … moves Cy by those columns of C.
    """
    sampling = part.sampling
    parts, times = sampling.rounds_per_epoch, _times(sampling)
    column = shift * part.strategy.column(part.count)
    terms = np.zeros((parts, seen.shape[1]))
    for place in range(parts):
        turns = range(place, part.count, parts)
        moves = [np.concatenate([np.zeros(t), column[: part.count - t]]) for t in turns]
        if not sampling.hides(part.count):
            moves = [np.sum(moves, axis=0)] if moves else []
        for move in moves:
            term = (2 * move @ seen - move @ move) / (2 * noise**2)
            logs = [math.log(w) + (term if k else np.zeros_like(term)) for k, w in times]
            terms[place] += np.logaddexp.reduce(logs)
    weights = np.array([sampling.turn(place) for place in range(parts)])
    return np.asarray(logsumexp(terms, axis=0, b=weights[:, None]))


def _deals(sampling: kinds.Sampling, count: int) -> Iterator[tuple[range, list[float]]]:
    """The rounds after each deal of records to turns, and the chance of each of these turns."""
    turns = sampling.rounds_per_epoch
    length = turns if sampling.redealt else count
    for start in range(0, count, length):
        rounds = range(start, min(start + length, count))
        yield rounds, [sampling.turn(turn) for turn in range(min(turns, len(rounds)))]


def simulate(
    mechanism: kinds.Mechanism,
    noise: list[float],
    games: int,
    contribution: float,
    generator: np.random.Generator,
) -> Array:
    """Simulated coordinates of a sound run for a record with this contribution, (rounds, games)."""
    seen: list[Array] = []
    for part in mechanism:
        taken = _participation(part, games, generator)
        drawn = correlated(part, generator.standard_normal((part.count, games)))
        scale = np.array(noise[len(seen) :][: part.count])[:, None]
        seen += list(contribution * taken + scale * drawn)
    return np.array(seen)


def _participation(part: kinds.Rounds, games: int, generator: np.random.Generator) -> Array:
    """The number of times that a record is in each round's batch, (rounds, games)."""
    found, mine = np.zeros((part.count, games)), np.zeros(games, dtype=np.int64)
    times, chances = (np.array(x) for x in zip(*_times(part.sampling), strict=True))
    ends = np.cumsum(chances)
    for rounds, turns in _deals(part.sampling, part.count):
        if part.sampling.redealt or part.sampling.rounds_per_epoch > 1:
            mine = np.searchsorted(np.cumsum(turns), generator.random(games), side="right")
        for t in rounds:
            drawn = times[np.searchsorted(ends[:-1], generator.random(games), side="right")]
            found[t] = np.where(mine == (t - rounds.start) % len(turns), drawn, 0)
    return found


@dataclass(frozen=True)
class DecisionRule:
    """Choices of an attack that are made before it, on simulated games that do not use the run.

    They do not depend on the games that are counted, so they do not change any error rate of the
    tests; they only make the tests more powerful.

    Args:
        thresholds: on the score, the best for a sound run first.
        slopes: absolute slopes of the claimed trade-off function at each threshold.
        guesses: number of canaries to guess on, for the one-run bound.
    """

    thresholds: tuple[float, ...]
    slopes: tuple[float, ...]
    guesses: int


@lru_cache(maxsize=64)
def decision_rule(plan: Plan, games: int) -> DecisionRule:
    """The choices for a number of games of a plan, half of them with the record."""
    mechanism, noise, distance = plan.mechanism, scales(plan), contributions(plan)
    count = min(SIMULATED, max(FEWEST, CELLS // len(noise)))

    def simulated(factor: float) -> Games:
        generator, made = np.random.default_rng(0), [factor * std for std in noise]
        seen = [simulate(mechanism, made, count, shift, generator) for shift in distance]
        inside, outside = (log_likelihood_ratio(mechanism, noise, y, *distance) for y in seen)
        return Games(outside, inside)

    kinds_of_games = [simulated(factor) for factor in SUSPECTED]
    thresholds = _thresholds(kinds_of_games, max(1, games // 2), mechanism)
    pairs, claim = zip(kinds_of_games, thresholds, strict=True), tradeoff(mechanism)
    slopes = tuple(_slope(claim, *pair) for pair in pairs)
    return DecisionRule(tuple(thresholds), slopes, _guesses(kinds_of_games[0], games, plan.delta))


def _slope(claim: TradeOff, simulated: Games, threshold: float) -> float:
    at = float((simulated.outside > threshold).mean())
    step = max(0.2 * min(at, 1 - at), 1e-4)
    low, high = max(at - step, 0.0), min(at + step, 1.0)
    return max(1e-3, (claim(low) - claim(high)) / (high - low))


def _thresholds(simulated: Sequence[Games], half: int, mechanism: kinds.Mechanism) -> list[float]:
    """For each kind of simulated games the threshold that refutes the most noise.

    Args:
        half: number of games without the record, and with it.
    """
    candidates, ends = [], []
    for games in simulated:
        made = np.quantile(games.labelled[0], np.linspace(0.002, 0.998, CANDIDATES))
        candidates.append(made)
        for threshold in made:
            shares = (games.outside > threshold).mean(), (games.inside <= threshold).mean()
            ends.append([share_at_most(round(float(s) * half), half, LEVEL / 2) for s in shares])
    false, missed = np.array(ends).T
    # The distance of each point below the curve, which grows with the noise that the curve claims.
    gaps = np.array(
        [
            tradeoff(scaled_noise(mechanism, float(factor)))(np.minimum(false, 1.0)) - missed
            for factor in FACTORS
        ]
    )
    says = -np.array([_crossing(column) for column in gaps.T])
    best = says.reshape(len(simulated), CANDIDATES).argmax(axis=1)
    return [float(made[place]) for made, place in zip(candidates, best, strict=True)]


def _crossing(gaps: NDArray[np.float64]) -> float:
    """The interpolated place on the scale of factors from which a point lies below the curve."""
    if gaps[0] > 0:
        return float(-gaps[0])
    if gaps[-1] <= 0:
        return float(len(gaps) - gaps[-1])
    place = int(np.argmax(gaps > 0))
    return float(place - gaps[place] / (gaps[place] - gaps[place - 1]))


def _guesses(simulated: Games, canaries: int, delta: float) -> int:
    """The number of ``canaries`` to guess on, chosen from simulated scores alone."""
    scores, inside = simulated.labelled
    order = np.argsort(scores, kind="stable")
    best, most = 0.0, 2
    for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0):
        half = max(1, int(share * len(scores)) // 2)
        right = float(np.mean(np.r_[inside[order[-half:]], 1 - inside[order[:half]]]))
        guesses = max(2, round(share * canaries))
        found = epsilon_of_guesses(canaries, guesses, math.floor(right * guesses), delta, LEVEL)
        if found > best:
            best, most = found, guesses
    return most


def shortened(plan: Plan, rounds: int) -> Plan:
    """The plan's first ``rounds`` rounds, at most, for planted records."""
    parts = list(plan.mechanism.first(min(rounds, plan.rounds)))
    return with_parts(plan, parts, plan.examples).with_(augmentation=None)  # they are no images


def directed(plan: Plan) -> bool:
    """True if one training of the plan can play only one game."""
    exchanges = any(part.sampling.exchanges for part in plan.mechanism)
    return plan.groups is not None or (exchanges and plan.mechanism.adjacency == "add-or-remove")


def contributions(plan: Plan) -> tuple[float, float]:
    """The contributions, in units of C, of the record and of the one that takes its place."""
    if directed(plan):  # a canary moves the sum of the others, which oppose it, by 2
        return 2.0, 0.0
    return (1.0, -1.0) if plan.mechanism.adjacency == "replace-one" else (1.0, 0.0)


def drawn_canaries(
    plan: Plan, canaries: int, generator: np.random.Generator
) -> tuple[CanaryRecords, NDArray[np.bool_]]:
    """Records of a plan, the first of them canaries, and the canaries' coins.

    Args:
        plan: a plan that clips examples. canaries: number of its records that are canaries.
    """
    there = generator.random(canaries) < 0.5
    index = np.full(plan.examples, canaries)  # the blank records' coordinate
    weight = np.zeros(plan.examples, dtype=np.int64)
    index[:canaries] = np.arange(canaries)
    weight[:canaries] = np.where(there, *contributions(plan)) * LARGE
    return CanaryRecords(index, weight, plan.clip.norm, canaries + 1), there


def games_of(plan: Plan, seen: Array, there: NDArray[np.bool_]) -> Games:
    """Games from the canaries' coordinates of all noised sums.

    Args:
        seen: (rounds, canaries), in units of C. there: the canaries' coins, (canaries,).
    """
    score = log_likelihood_ratio(plan.mechanism, scales(plan), seen, *contributions(plan))
    competing = any(part.sampling.exchanges for part in plan.mechanism)
    return Games(score[~there], score[there], independent=not competing)


def orthogonal_games(
    plan: Plan, canaries: int, generator: np.random.Generator, **options: Any
) -> Games:
    """Play one training; every canary is a game.

    Args:
        plan, canaries, generator: as for :func:`drawn_canaries`. options: of training.
    """
    records, there = drawn_canaries(plan, canaries, generator)
    seen, norms = kept(plan, records, lambda total: total[:canaries], **options)
    return games_of(plan, np.array(seen) / np.array(norms)[:, None], there)


def directed_games(plan: Plan, games: int, generator: np.random.Generator) -> Games:
    """Play one training for each game: the canary points one way, all other records the other.

    The canary outweighs its group, so that its presence reverses the group's whole update.
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
    records = CanaryRecords(np.zeros(len(weight), dtype=np.int64), weight, plan.clip.norm * 1e3, 1)
    seen, _ = kept(plan, records, lambda total: total / plan.clip.norm)
    return _directed_score(plan, np.array(seen))


def _one_less(plan: Plan) -> Plan:
    parts = []
    for part in plan.mechanism:
        sampling = part.sampling
        if sampling.known_examples() is not None:
            batch = sampling.expected_batch(plan.examples)
            sampling = sampling.resized(batch, plan.examples - 1)
        parts.append(replace(part, sampling=sampling))
    return with_parts(plan, parts, plan.examples - 1)


def _directed_score(plan: Plan, seen: Array) -> float:
    """Log-likelihood ratio for a sum that the canary moves from the sum of the others.

    In the sum of the others, every group, or every record of a batch, contributes −1.
    """
    others, sampling = 0.0, plan.mechanism.rounds[0].sampling
    if plan.groups is not None or sampling.exchanges:
        others = -float(plan.groups or sampling.expected_batch(plan.examples))
    moved = seen - others
    return float(log_likelihood_ratio(plan.mechanism, scales(plan), moved, *contributions(plan))[0])


def attack(
    plan: Plan, sizes: CheckSizes, generator: np.random.Generator
) -> tuple[list[Finding], AttackSummary | None, list[str]]:
    """Play the games and test them against the claimed trade-off function.

    Args:
        plan: the claim. sizes: number of games. generator: of coins and simulations.

    Returns:
        The findings, the summary (None if there are no games or no bounds are wanted), and notes on
        the rounds and records that were left out.
    """
    if any(part.noise_multiplier == 0 for part in plan.mechanism):
        return [], None, ["no attack was needed: rounds without noise claim nothing"]
    notes = []
    if directed(plan):
        small = _few_records(plan)
        size = f"{small.examples} records and the first {small.rounds} rounds"
        notes.append(f"the attack played one game a training, on {size}")
        games = directed_games(small, sizes.directed_games, generator)
    else:
        canaries = min(sizes.canaries, plan.examples)
        small = shortened(plan, max(1, sizes.attack_cells // canaries))
        if small.rounds < plan.rounds:
            notes.append(f"the attack saw the first {small.rounds:,} of {plan.rounds:,} rounds")
        games = orthogonal_games(small, canaries, generator)
    if not len(games.outside) or not len(games.inside):
        return [], None, [*notes, "no attack was judged: every coin of its few games fell alike"]
    finding, chosen = judge(small, games)
    return [finding], summarise(small, games, chosen) if sizes.bounds else None, notes


def _few_records(plan: Plan) -> Plan:
    examples = min(plan.examples, FEW)
    part = plan.mechanism.rounds[0]
    sampling = scaled(part.sampling, plan.examples, examples)
    rounds = replace(part, count=min(SHORT, part.count), sampling=sampling)
    small, clip = with_parts(plan, [rounds], examples), plan.clip
    if clip.rule != "quantile":
        small = small.with_(clip=Clip(clip.norm, final=clip.final))
    return small.with_(augmentation=None)


def judge(plan: Plan, games: Games) -> tuple[Finding, DecisionRule]:
    """Test games against the trade-off function of the plan that they were played on."""
    chosen, claim = decision_rule(plan, games.count), tradeoff(plan.mechanism)
    rates = [games.rates(threshold) for threshold in chosen.thresholds]
    rate, share = rates[0]
    seen = f"{100 * share:.3g} % missed at {100 * rate:.3g} % false alarms"
    least = f"{100 * claim(rate):.3g} % or more"
    # The threshold whose errors lie furthest below the claim:
    rate, share = max(rates, key=lambda pair: claim(pair[0]) - pair[1])
    reason = (
        f"A membership attack does better than the claim allows: with {100 * rate:.2g} % false "
        f"alarms it misses {100 * share:.3g} %, where at least {100 * claim(rate):.3g} % are "
        "claimed."
    )
    p_value = refutation_p(games, chosen, claim)
    name = "errors of a membership attack"
    return Finding("attack", name, seen, least, reason, p_value), chosen


def summarise(
    plan: Plan, games: Games, chosen: DecisionRule | None, fdp: float | None = None
) -> AttackSummary:
    """The games' results in terms of ε, beside the claim.

    Args:
        chosen: None if the distribution of the scores is not known: then only guesses are judged.
        fdp: lower bound on ε from one run by f-DP, if there is one.
    """
    delta, shown, noise, plain = plan.delta, None, None, None
    alphas = np.linspace(0, 1, 101)  # of the figure
    if chosen is None:
        # The larger of the bounds from the two numbers of guesses, at half of the level each.
        found = guessed(games)
        level = LEVEL / len(found)
        plain = max(epsilon_of_guesses(games.count, *one, delta, level) for one in found)
    else:
        shown, noise = epsilon_interval(plan.mechanism, games, chosen, delta)
        if not directed(plan):  # one run with many coins, not one run for each game
            made, right = right_guesses(games, chosen.guesses)
            plain = epsilon_of_guesses(games.count, made, right, delta, LEVEL)
    return AttackSummary(
        games=games.count,
        rounds=plan.rounds,
        delta=delta,
        claimed_epsilon=epsilon(plan.mechanism, delta).upper,
        epsilon=shown,
        one_run_epsilon=plain,
        noise_at_most=noise,
        confidence=1 - LEVEL,
        points=() if chosen is None else points(games),
        curve=tuple(zip(alphas.tolist(), tradeoff(plan.mechanism)(alphas).tolist(), strict=True)),
        fdp_epsilon=fdp,
    )


# Inference about a claim from an attack's errors: by f-DP, and by the one-run bound.


# The binomial mass beyond REACH standard deviations is below BEYOND, which the p-value includes.
REACH, BEYOND = 9.0, 1e-15
# Numbers of pieces of [0, 1]: the first, the finest for few games and for many (from MANY), and the
# ratio within which an upper bound is close enough to the curve's own value.
FIRST, FINE, FINEST, MANY, ABOVE = 64, 1024, 4096, 4_000, 1.03
# Exponents that the Chernoff bound tries; each of them is valid.
EXPONENTS = np.geomspace(1e-3, 30.0, 120)


@dataclass(frozen=True)
class JointErrors:
    """The two error counts of one threshold, and their weighted total T = misses + λ·false alarms.

    Args:
        false: false alarms, out of ``outside`` games. missed: misses, out of ``inside`` games.
        weight: λ, the weight of a false alarm relative to a miss; fixed before the games.
        independent: True if the games are independent; otherwise they are negatively associated,
            and the Chernoff bound replaces the binomials (Dubhashi and Ranjan 1998, Proposition 7).
    """

    false: int
    outside: int
    missed: int
    inside: int
    weight: float
    independent: bool = True

    def p_value(self, claim: TradeOff) -> float:
        """An upper bound of the chance of so few errors if ``claim`` holds."""
        finest = FINE if self.outside + self.inside < MANY else FINEST
        alphas = np.linspace(0.0, 1.0, finest + 1)
        misses = claim(alphas)
        chance = self._binomial if self.independent else self._chernoff
        step = finest // FIRST
        left, right = np.arange(0, finest, step), np.arange(step, finest + 1, step)
        reached, settled = 0.0, 0.0
        while len(left):
            bounds = chance(alphas[left], misses[right])
            reached = max(reached, float(np.max(chance(alphas[left], misses[left]))))
            done = (bounds <= ABOVE * reached) | (right - left == 1)
            settled = max(settled, float(np.max(bounds[done], initial=0.0)))
            left, right = left[~done], right[~done]
            middle = (left + right) // 2
            left, right = np.r_[left, middle], np.r_[middle, right]
        return min(1.0, settled)

    @property
    def total(self) -> float:
        """The observed T."""
        return self.missed + self.weight * self.false

    def _binomial(self, alpha: Array, beta: Array) -> Array:
        spread = np.sqrt(self.outside * alpha * (1 - alpha))
        width = math.ceil(2 * REACH * float(spread.max())) + 20
        start = np.clip(np.floor(self.outside * alpha - REACH * spread) - 9, 0, None)
        counts = start[:, None] + np.arange(width)
        mass = stats.binom.pmf(counts, self.outside, alpha[:, None])
        left = np.floor(self.total - self.weight * counts + 1e-9)
        below = bdtr(np.clip(left, 0, self.inside), self.inside, np.clip(beta[:, None], 0.0, 1.0))
        return np.asarray((mass * np.where(left < 0, 0.0, below)).sum(axis=1) + BEYOND)

    def _chernoff(self, alpha: Array, beta: Array) -> Array:
        s = EXPONENTS / max(1.0, self.weight)
        log = (
            s * self.total
            + self.inside * np.log1p(beta[:, None] * np.expm1(-s))
            + self.outside * np.log1p(alpha[:, None] * np.expm1(-s * self.weight))
        )
        return np.asarray(np.exp(np.minimum(log.min(axis=1), 0.0)))


# Error probability of each bound that is shown besides the verdict.
LEVEL = 0.05
# The smallest and largest multiple of the claimed noise in the search for the effective noise, and
# the ratio to which it is found.
LEAST, MOST, CLOSE = 0.2, 50.0, 1.006
# Shares of the canaries that are guessed on in one run; the p-values are corrected for two shares.
GUESSED = (0.05, 0.2)


@dataclass(frozen=True)
class Games:
    """The scores of membership games; a larger score makes "in" more likely.

    Args:
        outside, inside: scores of the games in which the record was out, and in; (games,) each.
        independent: True if the games are independent; otherwise errors are negatively associated.
    """

    outside: Array
    inside: Array
    independent: bool = True

    def errors(self, threshold: float) -> tuple[int, int]:
        """False alarms and misses of the attack that says "in" at scores above ``threshold``."""
        return int((self.outside > threshold).sum()), int((self.inside <= threshold).sum())

    def rates(self, threshold: float) -> tuple[float, float]:
        """Shares of false alarms and of misses at a threshold."""
        false, missed = self.errors(threshold)
        return false / max(1, len(self.outside)), missed / max(1, len(self.inside))

    def ends(
        self, end: Callable[..., float], threshold: float, level: float
    ) -> tuple[float, float]:
        """Ends for both error rates; both hold with chance at least 1 − level.

        Args:
            end: ``share_at_most`` for upper ends, ``share_at_least`` for lower ones.
        """
        false, missed = self.errors(threshold)
        return (
            end(false, len(self.outside), level / 2, self.independent),
            end(missed, len(self.inside), level / 2, self.independent),
        )

    @property
    def count(self) -> int:
        """The number of games."""
        return len(self.outside) + len(self.inside)

    @property
    def labelled(self) -> tuple[Array, Array]:
        """All scores, and for each 1 if its record was in and 0 if it was out."""
        there = np.repeat([0.0, 1.0], [len(self.outside), len(self.inside)])
        return np.concatenate([self.outside, self.inside]), there


def joint(games: Games, threshold: float, slope: float) -> JointErrors:
    """Both error counts at a threshold, weighted by the claim's slope there."""
    false, missed = games.errors(threshold)
    outside, inside = len(games.outside), len(games.inside)
    return JointErrors(
        false, outside, missed, inside, slope * inside / max(1, outside), games.independent
    )


def refutation_p(games: Games, chosen: DecisionRule, claim: TradeOff) -> float:
    """p-value against ``claim``: the smallest of all thresholds, times their number."""
    at = zip(chosen.thresholds, chosen.slopes, strict=True)
    return smallest([joint(games, *one).p_value(claim) for one in at])


def critical_noise(refuted: Callable[[kinds.Mechanism], bool], mechanism: kinds.Mechanism) -> float:
    """The smallest multiple of its noise at which a mechanism is refuted; rounded up.

    Returns:
        A factor; infinite if no noise is refuted, :data:`LEAST` if that is refuted, too.
    """

    def at(log_factor: float) -> bool:
        return refuted(scaled_noise(mechanism, math.exp(log_factor)))

    # The search starts at the claim, because accounting for little noise is slow and seldom needed.
    step = math.log(1.5)
    low = high = 0.0
    if at(0.0):
        while at(low := low - step):
            high = low
            if low < math.log(LEAST):
                return LEAST
    else:
        while not at(high := high + step):
            low = high
            if high > math.log(MOST):
                return math.inf
    steps = math.ceil(math.log2((high - low) / math.log(CLOSE)))
    return math.exp(bisected(lambda log: not at(log), low, high, steps=steps)[1])


def shown_epsilon(mechanism: kinds.Mechanism, factor: float, delta: float) -> float:
    """ε that an attack shows by f-DP: that of the mechanism with ``factor`` times the noise."""
    if math.isinf(factor):
        return 0.0
    return epsilon(scaled_noise(mechanism, factor), delta, accuracy=1e-2).lower


def epsilon_interval(
    mechanism: kinds.Mechanism, games: Games, chosen: DecisionRule, delta: float
) -> tuple[tuple[float, float], float]:
    """ε that an attack shows, (lower, upper), and the multiple of the noise that it corresponds to.

    Both follow from the first threshold, which was fixed in advance with its slope. The lower end
    holds with confidence 1 − :data:`LEVEL`. The upper end is the ε that the attack would show if
    its error rates were the lower ends of their intervals; it expresses the attack's uncertainty.
    """
    threshold = chosen.thresholds[0]
    errors = joint(games, threshold, chosen.slopes[0])
    upper = critical_noise(lambda scaled: errors.p_value(tradeoff(scaled)) < LEVEL, mechanism)
    false, missed = games.ends(share_at_least, threshold, LEVEL)
    lower = critical_noise(lambda scaled: missed < tradeoff(scaled)(false), mechanism)
    shown = shown_epsilon(mechanism, upper, delta)
    return (shown, max(shown, shown_epsilon(mechanism, lower, delta))), upper


def points(games: Games, count: int = 24) -> tuple[AttackPoint, ...]:
    """The attack's errors at ``count`` thresholds, with bands that hold for all together."""
    quantiles = np.quantile(games.labelled[0], np.linspace(0.02, 0.98, count))
    found = []
    for threshold in map(float, np.unique(quantiles)):
        sides = (share_at_least, share_at_most)
        low, high = (games.ends(side, threshold, LEVEL / count) for side in sides)
        found.append(AttackPoint(*games.rates(threshold), *zip(low, high, strict=True)))
    return tuple(found)


def right_guesses(games: Games, guesses: int) -> tuple[int, int]:
    """The number of guesses, "in" at the highest scores and "out" at the lowest, and of right ones.

    A random order decides between equal scores, because the order of the scores follows the coins.
    """
    mixed = np.random.default_rng(0).permutation(games.count)
    scores, inside = (column[mixed] for column in games.labelled)
    half = min(guesses, len(scores)) // 2
    order = np.argsort(scores, kind="stable")
    right = int(inside[order[len(scores) - half :]].sum() + (1 - inside[order[:half]]).sum())
    return 2 * half, right


def epsilon_of_guesses(
    canaries: int, guesses: int, right: int, delta: float, level: float
) -> float:
    """The largest ε that ``right`` guesses of ``guesses`` refute at ``level``.

    They are of one run with many canaries, each in or out by a fair coin, and as many as was fixed
    in advance.

    Source: Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", 2023,
    Theorem 5.2 and the algorithm of its Appendix D.
    """

    def p_value(eps: float) -> float:
        q = 1 / (1 + math.exp(-eps))
        at_least = stats.binom.sf(np.arange(right + 1) - 1, guesses, q)
        # P[right − i ≤ correct < right], i = 1 … right: their largest mean over i.
        steps = np.arange(1, right + 1)
        gain = (at_least[right - steps] - at_least[right]) / steps
        extra = 2 * canaries * delta * float(np.max(gain, initial=0.0))
        return float(at_least[right]) + extra

    if guesses == 0 or p_value(0.0) > level:
        return 0.0
    return reached(lambda eps: p_value(eps) <= level, 0.0, 1.0, most=64, steps=50)[0]


def guessed(games: Games) -> tuple[tuple[int, int], ...]:
    """Numbers of guesses and of right ones for each share in :data:`GUESSED`, fixed in advance."""
    wanted = dict.fromkeys(max(2, round(share * games.count)) for share in GUESSED)
    return tuple(right_guesses(games, guesses) for guesses in wanted)


def one_run_p_value(canaries: int, guesses: int, right: int, claim: TradeOff) -> float:
    """An upper bound of the chance of ``right`` or more right guesses in one run under ``claim``.

    It holds for any dependence between canaries. Each of m canaries is in or out by its own fair
    coin; W of at most r guesses are right, p_j = P(W = j). For fixed other coins, the event "guess
    i is v and at least c − 1 others are right" has one chance under coin v and another under the
    other coin, and the claim f holds for this pair in either order. Averaged over coins and
    canaries, by convexity of f,

        H_{c−1} ≥ f(1 − R_c),  R_c = Σ_{j≥c} j p_j / m,  H_c = Σ_{j≥c} (r − j) p_j / m,

    for every c, while R_0 + H_0 = r/m. The largest P(W ≥ v) has all its mass at v and equality in
    every inequality below, so chances that lead to R_0 + H_0 > r/m are impossible.

    Source: Mahloujifar, Melis and Chaudhuri, "Auditing f-Differential Privacy in One Run", 2024,
    Theorem 9 with k = 2, and Algorithms 2 and 3. Rounded upwards: f is taken at a smaller R.
    """
    if right <= 0:
        return 1.0
    power = np.concatenate([[0.0], np.geomspace(1e-12, 0.5, 4_000), np.linspace(0.5, 1, 1_000)[1:]])
    wrong = claim(1 - power)
    high, low = 0.0, math.log(1e-12)
    while high - low > 0.01:
        chances = np.exp(np.linspace(low, high, 33))
        up, aside = chances * right / canaries, chances * (guesses - right) / canaries
        for below in range(right - 1, -1, -1):
            place = np.searchsorted(power, np.minimum(up, 1.0), side="right") - 1
            more = np.maximum(aside, wrong[place])
            # In the mass of W = below, that many guesses are right and the others are wrong.
            up, aside = up + below / (guesses - below) * (more - aside), more
        impossible = up + aside > guesses / canaries
        if not impossible[-1]:
            return 1.0
        least = int(np.argmax(impossible))
        if least == 0:
            return float(chances[0])
        low, high = float(np.log(chances[least - 1])), float(np.log(chances[least]))
    return math.exp(high)


def one_run_refutation(found: Sequence[tuple[int, int]], canaries: int, claim: TradeOff) -> float:
    """p-value of one run against ``claim``, from several numbers of guesses (Bonferroni)."""
    return smallest([one_run_p_value(canaries, r, v, claim) for r, v in found])


def one_run_fdp_epsilon(
    mechanism: kinds.Mechanism, found: Sequence[tuple[int, int]], canaries: int, delta: float
) -> float:
    """Lower bound on ε from one run: that of the mechanism with the least noise that is refuted.

    It holds with confidence 1 − :data:`LEVEL` among all mechanisms whose trade-off function is that
    of this one with some multiple of its noise.
    """
    factor = critical_noise(
        lambda scaled: one_run_refutation(found, canaries, tradeoff(scaled)) < LEVEL, mechanism
    )
    return shown_epsilon(mechanism, factor, delta)
