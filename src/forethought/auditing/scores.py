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

import numpy as np
from numpy.typing import NDArray

from forethought.auditing.whitening import applied, correlated
from forethought.mechanism import Correlated, Mechanism, Rounds
from forethought.samplings import (
    CyclicPoisson,
    FullBatch,
    Poisson,
    RandomAllocation,
    Shuffled,
    WithoutReplacement,
)

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
    found = np.zeros(seen.shape[1])
    if isinstance(part.sampling, Shuffled | RandomAllocation):
        for rounds, weights in _epochs(part.sampling, part.count):
            terms = np.stack([_shifted(seen[t], shift, noise[t]) for t in rounds])
            left = 1 - math.fsum(weights)
            if left > 1e-12:  # the run ended inside the epoch
                terms = np.vstack([terms, np.zeros((1, seen.shape[1]))])
                weights = [*weights, left]
            found += _log_mean(terms, np.array(weights))
        return found
    if isinstance(part.sampling, CyclicPoisson):
        parts = part.sampling.parts
        terms = np.zeros((parts, seen.shape[1]))
        for t in range(part.count):
            terms[t % parts] += _mixed(_shifted(seen[t], shift, noise[t]), part.sampling.rate)
        return _log_mean(terms, np.full(parts, 1 / parts))
    for t in range(part.count):
        term = _shifted(seen[t], shift, noise[t])
        found += term if isinstance(part.sampling, FullBatch) else _mixed(term, part.sampling.rate)
    return found


def _through_the_strategy(part: Correlated, noise: float, seen: Array, shift: float) -> Array:
    """A record that takes part in rounds p, p + b, … moves Cy by those columns of C."""
    sampling = part.sampling
    parts = sampling.parts if isinstance(sampling, CyclicPoisson) else 1
    rate = sampling.rate if isinstance(sampling, CyclicPoisson) else 1.0
    column = shift * part.strategy.column(part.count)
    terms = np.zeros((parts, seen.shape[1]))
    for place in range(parts):
        turns = range(place, part.count, parts)
        moves = [np.concatenate([np.zeros(t), column[: part.count - t]]) for t in turns]
        if rate == 1:
            moves = [np.sum(moves, axis=0)] if moves else []
        for move in moves:
            term = (2 * move @ seen - move @ move) / (2 * noise**2)
            terms[place] += _mixed(term, rate)
    return _log_mean(terms, np.full(parts, 1 / parts))


def _shifted(seen: Array, shift: float, noise: float) -> Array:
    return np.asarray((2 * shift * seen - shift**2) / (2 * noise**2))


def _mixed(term: Array, rate: float) -> Array:
    if rate >= 1:
        return term
    return np.logaddexp(math.log1p(-rate), math.log(rate) + term)


def _log_mean(terms: Array, weights: Array) -> Array:
    highest = terms.max(axis=0)
    return np.asarray(highest + np.log(weights @ np.exp(terms - highest)))


def _epochs(
    sampling: Shuffled | RandomAllocation, count: int
) -> Iterator[tuple[range, list[float]]]:
    length = sampling.rounds_per_epoch
    for start in range(0, count, length):
        rounds = range(start, min(start + length, count))
        if isinstance(sampling, RandomAllocation):
            yield rounds, [sampling.rate] * len(rounds)
            continue
        sizes = [
            min(sampling.batch, sampling.examples - (t - start) * sampling.batch) for t in rounds
        ]
        yield rounds, [size / sampling.examples for size in sizes]


def simulate(
    mechanism: Mechanism,
    noise: list[float],
    games: int,
    contribution: float,
    generator: np.random.Generator,
) -> Array:
    """What a sound run would show of a record with this contribution: (rounds, games)."""
    seen = np.empty((len(noise), games))
    first = 0
    for part in mechanism:
        taken = _participation(part, games, generator)
        drawn = correlated(part, generator.standard_normal((part.count, games)))
        for t in range(part.count):
            seen[first + t] = contribution * taken[t] + noise[first + t] * drawn[t]
        first += part.count
    return seen


def _participation(part: Rounds, games: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    match part.sampling:
        case FullBatch():
            return np.ones((part.count, games), dtype=bool)
        case Poisson(rate=rate):
            return generator.random((part.count, games)) < rate
        case WithoutReplacement():
            return generator.random((part.count, games)) < part.sampling.rate
        case CyclicPoisson(rate=rate, parts=parts):
            mine = generator.integers(parts, size=games)
            turn = np.arange(part.count)[:, None] % parts == mine
            return np.asarray(turn & (generator.random((part.count, games)) < rate))
        case Shuffled() | RandomAllocation():
            taken = np.zeros((part.count, games), dtype=bool)
            for rounds, weights in _epochs(part.sampling, part.count):
                ends = np.cumsum(weights)
                place = np.searchsorted(ends, generator.random(games), side="right")
                for offset, t in enumerate(rounds):
                    taken[t] = place == offset
            return taken
        case _:
            raise TypeError(f"no attack for {part.sampling!r}")
