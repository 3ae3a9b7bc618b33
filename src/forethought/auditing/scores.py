"""The best score of a membership attack: the log-likelihood ratio of everything it saw.

A canary's coordinate of a round's sum, in units of C, is Gaussian noise around its contribution:
y ~ N(d, σ²) if it took part and N(0, σ²) if not. With L(d) = (2dy − d²)/(2σ²), sampling at rate q
gives log(1 − q + q·exp L(d)) a round; a shuffled record takes part once an epoch, in a round that
nobody knows: log Σ_t w_t exp L_t(d) an epoch, w_t being the share of the records in round t. Where
parts of the records take turns, nobody knows the record's part: the mean over the parts. Where
noise is correlated, y and d are seen through the strategy's matrix, which makes it independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import assert_never

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from forethought.auditing.whitening import applied, correlated
from forethought.values.mechanism import Correlated, Mechanism, Rounds
from forethought.values.samplings import Binomial, Hypergeometric, Sampling

Array = NDArray[np.float64]


def log_likelihood_ratio(
    mechanism: Mechanism, noise: list[float], seen: Array, inside: float, outside: float
) -> Array:
    """log p(seen | a contribution of ``inside``) − log p(seen | one of ``outside``).

    Args:
        noise: standard deviation of each round's noise, in units of C.
        seen: one row a round, one column a game, in units of C.
        inside, outside: contribution of the record that is or is not there; outside is 0 for a
            record that is absent, −1 for one that was replaced by its opposite.

    Returns:
        Shape (games,).
    """
    total = np.zeros(seen.shape[1])
    for sign, shift in ((1.0, inside), (-1.0, outside)):
        if shift == 0:
            continue
        first = 0
        for part in mechanism:
            rows = slice(first, first + part.count)
            total += sign * _likelihood(part, noise[rows], seen[rows], shift)
            first += part.count
    return total


def _likelihood(part: Rounds, noise: list[float], seen: Array, shift: float) -> Array:
    if isinstance(part, Correlated):
        return _through_the_strategy(part, noise[0], applied(part, seen), shift)
    times = _times(part.sampling)
    terms = (_drawn(seen[t], shift, noise[t], times) for t in range(part.count))
    if part.sampling.redealt:
        found = np.zeros(seen.shape[1])
        for rounds, weights in _epochs(part.sampling, part.count):
            rows = np.stack([next(terms) for _ in rounds])
            left = 1 - math.fsum(weights)
            if left > 1e-12:  # the run ended inside the epoch
                rows = np.vstack([rows, np.zeros((1, seen.shape[1]))])
                weights = [*weights, left]
            found += _log_mean(rows, np.array(weights))
        return found
    places = part.sampling.rounds_per_epoch
    mine = np.zeros((places, seen.shape[1]))
    for t, term in enumerate(terms):
        mine[t % places] += term
    if places == 1:
        return np.asarray(mine[0])
    return _log_mean(mine, np.array([part.sampling.turn(place) for place in range(places)]))


def _times(sampling: Sampling) -> list[tuple[int, float]]:
    """(k, chance) that a record is in its turn's batch k times."""
    match sampling.hits(1):
        case Binomial(1, chance):
            found = [(0, 1 - chance), (1, chance)]
        case Binomial(trials, chance):
            found = list(enumerate(stats.binom.pmf(np.arange(trials + 1), trials, chance)))
        case Hypergeometric(_, drawn, examples):
            found = [(0, 1 - drawn / examples), (1, drawn / examples)]
        case other:
            assert_never(other)
    return [(k, float(weight)) for k, weight in found if weight > 1e-15]


def _drawn(seen: Array, shift: float, noise: float, times: list[tuple[int, float]]) -> Array:
    """log Σ_k w_k exp L(k·shift) of one round."""
    if times == [(1, 1.0)]:
        return _shifted(seen, shift, noise)
    terms = [
        math.log(weight) + (_shifted(seen, k * shift, noise) if k else np.zeros_like(seen))
        for k, weight in times
    ]
    return np.asarray(np.logaddexp.reduce(terms))


def _through_the_strategy(part: Correlated, noise: float, seen: Array, shift: float) -> Array:
    """A record that takes part in rounds p, p + b, … moves Cy by those columns of C."""
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
    return _log_mean(terms, np.array([sampling.turn(place) for place in range(parts)]))


def _shifted(seen: Array, shift: float, noise: float) -> Array:
    return np.asarray((2 * shift * seen - shift**2) / (2 * noise**2))


def _log_mean(terms: Array, weights: Array) -> Array:
    highest = terms.max(axis=0)
    return np.asarray(highest + np.log(weights @ np.exp(terms - highest)))


def _epochs(sampling: Sampling, count: int) -> Iterator[tuple[range, list[float]]]:
    length = sampling.rounds_per_epoch
    for start in range(0, count, length):
        rounds = range(start, min(start + length, count))
        yield rounds, [sampling.turn(t - start) for t in rounds]


def simulate(
    mechanism: Mechanism,
    noise: list[float],
    games: int,
    contribution: float,
    generator: np.random.Generator,
) -> Array:
    """The scores that a sound run would show of a record with this contribution: (rounds,
    games)."""
    seen = np.empty((len(noise), games))
    first = 0
    for part in mechanism:
        taken = _participation(part, games, generator)
        drawn = correlated(part, generator.standard_normal((part.count, games)))
        for t in range(part.count):
            seen[first + t] = contribution * taken[t] + noise[first + t] * drawn[t]
        first += part.count
    return seen


def _participation(part: Rounds, games: int, generator: np.random.Generator) -> Array:
    """The count of a record in each round's batch: (rounds, games)."""
    sampling, found = part.sampling, np.zeros((part.count, games))
    mine = np.zeros(games, dtype=np.int64)
    if not sampling.redealt and sampling.rounds_per_epoch > 1:
        mine = _places(sampling, range(sampling.rounds_per_epoch), games, generator)
    times, chances = (np.array(x) for x in zip(*_times(sampling), strict=True))
    ends = np.cumsum(chances)
    for rounds, _ in _epochs(sampling, part.count):
        if sampling.redealt:
            mine = _places(sampling, rounds, games, generator)
        for place, t in enumerate(rounds):
            drawn = times[np.searchsorted(ends[:-1], generator.random(games), side="right")]
            found[t] = np.where(mine == place, drawn, 0)
    return found


def _places(
    sampling: Sampling, rounds: range, games: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    ends = np.cumsum([sampling.turn(place) for place in range(len(rounds))])
    return np.searchsorted(ends, generator.random(games), side="right")
