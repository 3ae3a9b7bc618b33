"""From an attack's errors to what they say about a claim: f-DP inference, and the one-run bound.

A trade-off function f claims that no attack has misses below f(false alarms); an attack whose
errors are improbable under that refutes it (Nasr, Hayes, Steinke, Balle, Tramèr, Jagielski,
Carlini and Terzis, "Tight Auditing of Differentially Private Machine Learning", 2023, Section 4).
Thresholds are fixed in advance, from a simulation that never saw the run, so no error comes from
choosing them; what several of them cost is charged by Bonferroni.

False alarms and misses are judged together. For independent games with error rates α and β,
T = misses + λ·false alarms is the sum of two binomials and grows with either rate. If β ≥ f(α), as
f claims of every attack, then P(T ≤ t) is at most its value on the curve, sup_α P(T ≤ t | α, f(α)):
that is a p-value. With λ the slope of f at the threshold, fixed in advance, it is much smaller than
from two confidence intervals, whose errors add up where these partly cancel. The supremum is never
underestimated: where α_i ≤ α ≤ α_k, both rates are at least α_i and f(α_k), and such pieces are
halved until their bound is close to a value on the curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import bdtr

from forethought.accounting.exact import epsilon
from forethought.accounting.tradeoff import TradeOff, tradeoff
from forethought.auditing.exact_tests import bisected, share_at_least, share_at_most
from forethought.auditing.verdict import AttackPoint, smallest
from forethought.values.mechanism import Mechanism

Array = NDArray[np.float64]

# Binomial mass beyond so many standard deviations is added to the p-value as this much.
REACH, BEYOND = 9.0, 1e-15
# The first and the finest pieces of [0, 1], the latter for few games and for many, and how far a
# bound may lie above the curve's own.
FIRST, FINE, FINEST, MANY, ABOVE = 64, 1024, 4096, 4_000, 1.03
# Exponents that Chernoff's bound tries; any is valid.
EXPONENTS = np.geomspace(1e-3, 30.0, 120)


@dataclass(frozen=True)
class JointErrors:
    """The two error counts of one threshold.

    Args:
        false, outside: false alarms, of how many games. missed, inside: misses likewise.
        weight: λ, what a false alarm counts against a miss; fixed before the games.
        independent: whether the games are; otherwise they are negatively associated, and Chernoff's
            bound takes the place of the binomials (Dubhashi and Ranjan 1998, Proposition 7).
    """

    false: int
    outside: int
    missed: int
    inside: int
    weight: float
    independent: bool = True

    def p_value(self, claim: TradeOff) -> float:
        """Chance, at most, of so few errors if ``claim`` holds."""
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
        """T as observed."""
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


# What is shown besides the verdict holds with this chance of an error.
LEVEL = 0.05
# Multiples of the claimed noise within which the effective one is looked for, and how closely.
LEAST, MOST, CLOSE = 0.2, 50.0, 1.006
# Shares of the canaries that are guessed on in one run; what two of them cost is charged.
GUESSED = (0.05, 0.2)


@dataclass(frozen=True)
class Games:
    """Membership games that were played: scores, larger where "in" is more likely.

    Args:
        outside, inside: scores of games in which the record was out and in.
        independent: whether the games are independent; otherwise errors are negatively associated.
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

    def at_most(self, threshold: float, level: float) -> tuple[float, float]:
        """Upper ends for both error rates; both hold with chance at least 1 − level."""
        return self._ends(share_at_most, threshold, level)

    def at_least(self, threshold: float, level: float) -> tuple[float, float]:
        """Lower ends for both error rates; both hold with chance at least 1 − level."""
        return self._ends(share_at_least, threshold, level)

    def _ends(
        self, end: Callable[..., float], threshold: float, level: float
    ) -> tuple[float, float]:
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
        """Every score, and whether its record was in (1) or out (0)."""
        there = np.repeat([0.0, 1.0], [len(self.outside), len(self.inside)])
        return np.concatenate([self.outside, self.inside]), there


def joint(games: Games, threshold: float, slope: float) -> JointErrors:
    """Both error counts at a threshold, weighted by the claim's slope there."""
    (false, missed), outside, inside = (
        games.errors(threshold),
        len(games.outside),
        len(games.inside),
    )
    return JointErrors(false, outside, missed, inside, slope * inside / outside, games.independent)


def refutation_p(
    games: Games, thresholds: Sequence[float], slopes: Sequence[float], claim: TradeOff
) -> float:
    """p-value against ``claim``: the smallest of all thresholds, times their number."""
    at = zip(thresholds, slopes, strict=True)
    return smallest([joint(games, *one).p_value(claim) for one in at])


def scaled_noise(mechanism: Mechanism, factor: float) -> Mechanism:
    """The mechanism with every noise multiplier times ``factor``."""
    parts = [replace(part, noise_multiplier=part.noise_multiplier * factor) for part in mechanism]
    return Mechanism(*parts, adjacency=mechanism.adjacency)


def critical_noise(refuted: Callable[[Mechanism], bool], mechanism: Mechanism) -> float:
    """The multiple of its noise at which a mechanism begins to be refuted; rounded up.

    Returns:
        A factor; infinite when no noise is refuted, :data:`LEAST` when that is, too.
    """

    def at(log_factor: float) -> bool:
        return refuted(scaled_noise(mechanism, math.exp(log_factor)))

    # Outwards from the claim: little noise is slow to account for, and seldom asked about.
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
    return math.exp(bisected(at, low, high, steps)[1])


def shown_epsilon(mechanism: Mechanism, factor: float, delta: float, group: int = 1) -> float:
    """ε of the mechanism with ``factor`` times the noise: what an attack shows by f-DP."""
    if math.isinf(factor):
        return 0.0
    return epsilon(scaled_noise(mechanism, factor), delta, group, accuracy=1e-2).lower


def epsilon_interval(
    mechanism: Mechanism, games: Games, threshold: float, slope: float, delta: float, group: int = 1
) -> tuple[tuple[float, float], float]:
    """ε that an attack shows, (lower, upper), and the multiple of the noise that it acts as having.

    The lower end holds with confidence 1 − :data:`LEVEL`; threshold and slope were fixed in
    advance. The upper end is what the attack could show at best, were its error rates the lower
    ends of their intervals: it says how far the attack's own uncertainty reaches.
    """
    errors = joint(games, threshold, slope)
    upper = critical_noise(
        lambda scaled: errors.p_value(tradeoff(scaled, group)) < LEVEL, mechanism
    )
    false, missed = games.at_least(threshold, LEVEL)
    lower = critical_noise(lambda scaled: missed < tradeoff(scaled, group)(false), mechanism)
    shown = shown_epsilon(mechanism, upper, delta, group)
    return (shown, max(shown, shown_epsilon(mechanism, lower, delta, group))), upper


def points(games: Games, count: int = 24, level: float = 0.05) -> tuple[AttackPoint, ...]:
    """The attack's errors over its whole range, with bands that hold for all points together."""
    quantiles = np.quantile(games.labelled[0], np.linspace(0.02, 0.98, count))
    found = []
    for threshold in map(float, np.unique(quantiles)):
        low, high = (end(threshold, level / count) for end in (games.at_least, games.at_most))
        found.append(AttackPoint(*games.rates(threshold), *zip(low, high, strict=True)))
    return tuple(found)


def curve(claim: TradeOff, count: int = 101) -> tuple[tuple[float, float], ...]:
    """Pairs (α, f(α)) for the figure."""
    alphas = np.linspace(0, 1, count)
    return tuple((float(a), float(b)) for a, b in zip(alphas, claim(alphas), strict=True))


def one_run_epsilon(games: Games, delta: float, guesses: int, level: float) -> float:
    """Lower bound on ε from one run with many canaries, each in or out by a fair coin.

    The attacker guesses "in" for the ``guesses``/2 highest scores and "out" for as many lowest.

    Args:
        guesses: how many, fixed in advance.

    Source: Steinke, Nasr and Jagielski, "Privacy Auditing with One (1) Training Run", 2023,
    Theorem 5.2 and the algorithm of its Appendix D.
    """
    made, right = right_guesses(games, guesses)
    return epsilon_of_guesses(games.count, made, right, delta, level)


def right_guesses(games: Games, guesses: int) -> tuple[int, int]:
    """Guesses made, "in" at the highest scores and "out" at the lowest, and how many are right.

    Which of equal scores are guessed on is left to chance: their order here knows the coins.
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
    """The largest ε that ``right`` guesses of ``guesses`` refute at ``level``."""

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
    low, high = 0.0, 1.0
    while p_value(high) <= level and high < 64:
        low, high = high, 2 * high
    return bisected(lambda eps: p_value(eps) > level, low, high, 50)[0]


def guessed(games: Games) -> tuple[tuple[int, int], ...]:
    """Guesses and right ones for each of :data:`GUESSED`, which were fixed in advance."""
    wanted = dict.fromkeys(max(2, round(share * games.count)) for share in GUESSED)
    return tuple(right_guesses(games, guesses) for guesses in wanted)


def one_run_p_value(canaries: int, guesses: int, right: int, claim: TradeOff) -> float:
    """Chance, at most, of ``right`` or more right guesses in one run if ``claim`` holds.

    No matter how canaries act on each other. Each of m canaries is in or out by a fair coin of its
    own; W of at most r guesses are right, p_j = P(W = j). With the other coins given, "guess i is v
    and at least c − 1 others are right" has some chance under coin v and another under the other
    coin: the claim f holds for this pair of laws in either order. Averaged over coins and canaries,
    by convexity of f,

        H_{c−1} ≥ f(1 − R_c),  R_c = Σ_{j≥c} j p_j / m,  H_c = Σ_{j≥c} (r − j) p_j / m,

    for every c, while R_0 + H_0 = r/m. The largest P(W ≥ v) has all of it at v and every inequality
    tight below, so chances that lead to R_0 + H_0 > r/m are impossible.

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
            # Of those that say ``below`` are right, so many are, and the others are wrong.
            up, aside = up + below / (guesses - below) * (more - aside), more
        impossible = up + aside > guesses / canaries
        if not impossible[-1]:
            return 1.0
        least = int(np.argmax(impossible))
        if least == 0:
            break
        low, high = float(np.log(chances[least - 1])), float(np.log(chances[least]))
    return math.exp(high)


def one_run_refutation(found: Sequence[tuple[int, int]], canaries: int, claim: TradeOff) -> float:
    """p-value of one run against ``claim``, from several numbers of guesses (Bonferroni)."""
    return smallest([one_run_p_value(canaries, r, v, claim) for r, v in found])


def one_run_fdp_epsilon(
    mechanism: Mechanism, found: Sequence[tuple[int, int]], canaries: int, delta: float
) -> float:
    """Lower bound on ε from one run: of the mechanism with the most noise that is not refuted.

    Holds with confidence 1 − :data:`LEVEL` among all mechanisms that have the trade-off function of
    this one with some multiple of its noise.
    """
    factor = critical_noise(
        lambda scaled: one_run_refutation(found, canaries, tradeoff(scaled)) < LEVEL, mechanism
    )
    return shown_epsilon(mechanism, factor, delta)
