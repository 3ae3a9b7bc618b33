"""From an attack's errors to what they say about a claim: f-DP inference, and the one-run bound.

A trade-off function f claims that no attack has misses below f(false alarms). With confidence, an
attack's true error rates lie below the upper ends of their confidence intervals; f is refuted where
even those lie below it, since f does not increase (Nasr, Hayes, Steinke, Balle, Tramèr, Jagielski,
Carlini and Terzis, "Tight Auditing of Differentially Private Machine Learning", 2023, Section 4).
Thresholds are fixed in advance, from a simulation that never saw the run, so no error comes from
choosing them; what several of them cost is charged by Bonferroni.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from forethought.accounting.exact import epsilon
from forethought.accounting.tradeoff import TradeOff, tradeoff
from forethought.auditing.exact_tests import share_at_least, share_at_most
from forethought.auditing.verdict import AttackPoint
from forethought.mechanism import Mechanism, Rounds

Array = NDArray[np.float64]

# Thresholds that are compared.
CANDIDATES = 120
# Multiples of the claimed noise that thresholds are compared at.
FACTORS = np.geomspace(1.05, 6.0, 16)
# What is shown besides the verdict holds with this chance of an error.
LEVEL = 0.05
# Multiples of the claimed noise that are tried.
LEAST, MOST = 0.02, 50.0


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

    def at_most(self, threshold: float, level: float) -> tuple[float, float]:
        """Upper ends for both error rates; both hold with chance at least 1 − level."""
        false, missed = self.errors(threshold)
        return (
            share_at_most(false, len(self.outside), level / 2, self.independent),
            share_at_most(missed, len(self.inside), level / 2, self.independent),
        )

    def at_least(self, threshold: float, level: float) -> tuple[float, float]:
        """Lower ends for both error rates; both hold with chance at least 1 − level."""
        false, missed = self.errors(threshold)
        return (
            share_at_least(false, len(self.outside), level / 2, self.independent),
            share_at_least(missed, len(self.inside), level / 2, self.independent),
        )


def choose_thresholds(
    simulated: Games, outside: int, inside: int, mechanism: Mechanism, group: int = 1
) -> Array:
    """Thresholds for so many games, the best one first, judged on simulated games alone.

    The best is the one whose expected upper ends refute the most noise; the others have other
    false-alarm rates, since a fault may show elsewhere than the claim.
    """
    scores = np.concatenate([simulated.outside, simulated.inside])
    candidates = np.unique(np.quantile(scores, np.linspace(0.002, 0.998, CANDIDATES)))
    ends = []
    for threshold in candidates:
        shares = (simulated.outside > threshold).mean(), (simulated.inside <= threshold).mean()
        ends.append(
            [
                share_at_most(round(float(share) * count), count, LEVEL / 2, simulated.independent)
                for share, count in zip(shares, (outside, inside), strict=True)
            ]
        )
    false, missed = np.array(ends).T
    says = np.zeros(len(candidates))
    for factor in FACTORS:
        claim = tradeoff(scaled_noise(mechanism, float(factor)), group)
        # How far below the curve the point lies breaks ties between neighbouring factors.
        gap = claim(np.minimum(false, 1.0)) - missed
        says += np.clip(gap, 0.0, None) + (gap > 0)
    best = candidates[int(np.argmax(says))]
    others = np.quantile(simulated.outside, [0.9, 0.99])
    return np.array([best, *others])


def refutation_p(games: Games, thresholds: Array, claim: Callable[[float], float]) -> float:
    """p-value against ``claim`` (a trade-off function): the least level at which it is refuted."""

    def refuted(level: float) -> bool:
        for threshold in thresholds:
            false, missed = games.at_most(float(threshold), level / len(thresholds))
            if missed < claim(false):
                return True
        return False

    if not refuted(1.0):
        return 1.0
    low, high = -700.0, 0.0  # of the level's logarithm
    if refuted(math.exp(low)):
        return math.exp(low)
    for _ in range(40):
        middle = 0.5 * (low + high)
        if refuted(math.exp(middle)):
            high = middle
        else:
            low = middle
    return math.exp(high)


def scaled_noise(mechanism: Mechanism, factor: float) -> Mechanism:
    """The mechanism with every noise multiplier times ``factor``."""
    parts = [
        Rounds(part.noise_multiplier * factor, part.count, part.sampling, part.clipping)
        for part in mechanism
    ]
    return Mechanism(*parts, adjacency=mechanism.adjacency)


def effective_noise(
    mechanism: Mechanism,
    errors: list[tuple[float, float]],
    group: int = 1,
) -> float:
    """Largest multiple of the claimed noise at which no point lies below the trade-off function.

    Args:
        errors: pairs (false alarms, misses).

    Returns:
        A factor; infinite when the points refute no noise that is tried.
    """

    def refuted(factor: float) -> bool:
        claim = tradeoff(scaled_noise(mechanism, factor), group)
        return any(missed < claim(min(false, 1.0)) for false, missed in errors)

    low, high = math.log(LEAST), math.log(MOST)
    if not refuted(MOST):
        return math.inf
    for _ in range(14):
        middle = 0.5 * (low + high)
        if refuted(math.exp(middle)):
            high = middle
        else:
            low = middle
    return math.exp(high)


def shown_epsilon(mechanism: Mechanism, factor: float, delta: float, group: int = 1) -> float:
    """ε of the mechanism with ``factor`` times the noise: what an attack shows by f-DP."""
    if math.isinf(factor):
        return 0.0
    return epsilon(scaled_noise(mechanism, factor), delta, group, accuracy=1e-2).lower


def epsilon_interval(
    mechanism: Mechanism, games: Games, threshold: float, delta: float, group: int = 1
) -> tuple[tuple[float, float], float]:
    """ε that an attack shows at one threshold, (lower, upper), and the noise it acts as having.

    The lower end holds with confidence 1 − :data:`LEVEL`; the threshold was fixed in advance. The
    upper end is what this attack could show at best, were its error rates the lower ends of their
    intervals: it says how far the attack's own uncertainty reaches.
    """
    upper = effective_noise(mechanism, [games.at_most(threshold, LEVEL)], group)
    lower = effective_noise(mechanism, [games.at_least(threshold, LEVEL)], group)
    shown = shown_epsilon(mechanism, upper, delta, group)
    return (shown, max(shown, shown_epsilon(mechanism, lower, delta, group))), upper


def points(games: Games, count: int = 24, level: float = 0.05) -> tuple[AttackPoint, ...]:
    """The attack's errors over its whole range, with bands that hold for all points together."""
    scores = np.concatenate([games.outside, games.inside])
    found = []
    for threshold in np.unique(np.quantile(scores, np.linspace(0.02, 0.98, count))):
        false, missed = games.errors(float(threshold))
        least = games.at_least(float(threshold), level / count)
        most = games.at_most(float(threshold), level / count)
        found.append(
            AttackPoint(
                false / len(games.outside),
                missed / len(games.inside),
                (least[0], most[0]),
                (least[1], most[1]),
            )
        )
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
    scores = np.concatenate([games.outside, games.inside])
    inside = np.concatenate([np.zeros(len(games.outside)), np.ones(len(games.inside))])
    half = min(guesses, len(scores)) // 2
    order = np.argsort(scores, kind="stable")
    right = int(inside[order[len(scores) - half :]].sum() + (1 - inside[order[:half]]).sum())
    return epsilon_of_guesses(len(scores), 2 * half, right, delta, level)


def epsilon_of_guesses(canaries: int, guesses: int, right: int, delta: float, level: float) -> float:
    """The largest ε that ``right`` guesses of ``guesses`` refute at ``level``; see the source above."""

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
    for _ in range(50):
        middle = 0.5 * (low + high)
        if p_value(middle) <= level:
            low = middle
        else:
            high = middle
    return low


def choose_guesses(simulated: Games, canaries: int, delta: float, level: float) -> int:
    """How many of ``canaries`` to guess on, judged on simulated scores alone."""
    scores = np.concatenate([simulated.outside, simulated.inside])
    inside = np.concatenate([np.zeros(len(simulated.outside)), np.ones(len(simulated.inside))])
    order = np.argsort(scores, kind="stable")
    best, most = 0.0, 2
    for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0):
        half = max(1, int(share * len(scores)) // 2)
        right = float(np.mean(np.r_[inside[order[-half:]], 1 - inside[order[:half]]]))
        guesses = max(2, round(share * canaries))
        found = epsilon_of_guesses(
            canaries, guesses, math.floor(right * guesses), delta, level
        )
        if found > best:
            best, most = found, guesses
    return most
