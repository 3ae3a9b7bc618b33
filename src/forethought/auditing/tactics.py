"""The tactics of an attack, decided before it: on simulated games that never saw the run.

What is chosen here moves no error rate that is claimed later, since it does not depend on the games
that are counted; it only makes them say more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from forethought.accounting.tradeoff import TradeOff, tradeoff
from forethought.auditing.exact_tests import share_at_most
from forethought.auditing.inference import LEVEL, Games, epsilon_of_guesses, scaled_noise
from forethought.auditing.scores import log_likelihood_ratio, simulate
from forethought.values.mechanism import Mechanism

# Games of each kind that are simulated: so many, and at least so many, within so many numbers.
SIMULATED, FEWEST, CELLS = 20_000, 2_000, 4_000_000
# Multiples of the claimed noise that thresholds are made for: a fault may show elsewhere.
SUSPECTED = (1.0, 0.75, 0.5)
# Thresholds that are compared, and the multiples of the noise that they are compared at.
CANDIDATES = 100
FACTORS = np.geomspace(1.01, 4.0, 12)


@dataclass(frozen=True)
class Tactics:
    """The tactics of an attack.

    Args:
        thresholds: on the score, the best for a sound run first.
        slopes: of the claimed trade-off function where each threshold lies on it, positive.
        guesses: canaries to guess on, for the one-run bound.
    """

    thresholds: tuple[float, ...]
    slopes: tuple[float, ...]
    guesses: int


@lru_cache(maxsize=64)
def tactics(
    mechanism: Mechanism,
    noise: tuple[float, ...],
    distance: tuple[float, float],
    games: int,
    delta: float,
    group: int = 1,
) -> Tactics:
    """The tactics for so many games, half of them with the record in.

    Args:
        noise: standard deviation of each round's noise, in units of C.
        distance: what the record contributes, and what its absence.
    """
    count = min(SIMULATED, max(FEWEST, CELLS // len(noise)))
    simulated = [_games(mechanism, noise, distance, count, factor) for factor in SUSPECTED]
    half = max(1, games // 2)
    thresholds = _thresholds(simulated, half, half, mechanism, group)
    claim = tradeoff(mechanism, group)
    slopes = [_slope(claim, made, at) for made, at in zip(simulated, thresholds, strict=True)]
    return Tactics(tuple(thresholds), tuple(slopes), _guesses(simulated[0], games, delta))


def _slope(claim: TradeOff, simulated: Games, threshold: float) -> float:
    at = float((simulated.outside > threshold).mean())
    step = max(0.2 * min(at, 1 - at), 1e-4)
    low, high = max(at - step, 0.0), min(at + step, 1.0)
    return max(1e-3, (claim(low) - claim(high)) / (high - low))


def _games(
    mechanism: Mechanism,
    noise: tuple[float, ...],
    distance: tuple[float, float],
    count: int,
    factor: float,
) -> Games:
    generator = np.random.default_rng(0)
    claimed, made = list(noise), [factor * std for std in noise]
    inside, outside = (
        log_likelihood_ratio(
            mechanism, claimed, simulate(mechanism, made, count, shift, generator), *distance
        )
        for shift in distance
    )
    return Games(outside, inside)


def _thresholds(
    simulated: Sequence[Games], outside: int, inside: int, mechanism: Mechanism, group: int
) -> list[float]:
    """For each kind of simulated games the threshold that would refute most noise in so many."""
    candidates, ends = [], []
    for games in simulated:
        scores = np.concatenate([games.outside, games.inside])
        candidates.append(np.quantile(scores, np.linspace(0.002, 0.998, CANDIDATES)))
        for threshold in candidates[-1]:
            shares = (games.outside > threshold).mean(), (games.inside <= threshold).mean()
            ends.append(
                [
                    share_at_most(round(float(share) * count), count, LEVEL / 2)
                    for share, count in zip(shares, (outside, inside), strict=True)
                ]
            )
    false, missed = np.array(ends).T
    # How far below each curve a point lies: it grows with the noise that the curve claims.
    gaps = np.array(
        [
            tradeoff(scaled_noise(mechanism, float(factor)), group)(np.minimum(false, 1.0)) - missed
            for factor in FACTORS
        ]
    )
    says = -np.array([_crossing(column) for column in gaps.T])
    best = says.reshape(len(simulated), CANDIDATES).argmax(axis=1)
    return [float(made[place]) for made, place in zip(candidates, best, strict=True)]


def _crossing(gaps: NDArray[np.float64]) -> float:
    """The place on the factors' scale where a point comes to lie below the curve, interpolated."""
    if gaps[0] > 0:
        return float(-gaps[0])
    if gaps[-1] <= 0:
        return float(len(gaps) - gaps[-1])
    place = int(np.argmax(gaps > 0))
    return float(place - gaps[place] / (gaps[place] - gaps[place - 1]))


def _guesses(simulated: Games, canaries: int, delta: float) -> int:
    """The number of ``canaries`` to guess on, judged on simulated scores alone."""
    scores = np.concatenate([simulated.outside, simulated.inside])
    inside = np.concatenate([np.zeros(len(simulated.outside)), np.ones(len(simulated.inside))])
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
