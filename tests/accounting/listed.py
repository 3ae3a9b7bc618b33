"""The exact truth of small runs: all batches that there are, listed, and an integral of the sums.

It shares no code with the library, not even how batches are drawn: a list of (chance, how often
each record is in each round's batch), for a handful of records, by the words that define the
sampling. δ of data made to be told apart is then an integral, and no guarantee may be below it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import combinations, permutations, product

import numpy as np

# One way to draw a run: its chance, and how often each record is in each round.
Way = tuple[float, tuple[tuple[int, ...], ...]]


def _poisson(sampling, records: int, rounds: int) -> Iterator[Way]:
    q = sampling.rate
    for kept in product((0, 1), repeat=records * rounds):
        chance = math.prod(q if k else 1 - q for k in kept)
        yield chance, tuple(tuple(kept[t * records : (t + 1) * records]) for t in range(rounds))


def _subsets(sampling, records: int, rounds: int) -> Iterator[Way]:
    batches = [
        tuple(int(r in batch) for r in range(records))
        for batch in combinations(range(records), sampling.batch)
    ]
    for run in product(batches, repeat=rounds):
        yield len(batches) ** -rounds, run


def _shuffled(sampling, records: int, rounds: int) -> Iterator[Way]:
    assert rounds <= math.ceil(records / sampling.batch)
    for order in permutations(range(records)):
        run = tuple(
            tuple(
                int(r in order[t * sampling.batch : (t + 1) * sampling.batch])
                for r in range(records)
            )
            for t in range(rounds)
        )
        yield 1 / math.factorial(records), run


def _allocated(sampling, records: int, rounds: int) -> Iterator[Way]:
    assert rounds <= sampling.rounds
    for places in product(range(sampling.rounds), repeat=records):
        yield (
            sampling.rounds**-records,
            tuple(tuple(int(place == t) for place in places) for t in range(rounds)),
        )


def _in_turn(sampling, records: int, rounds: int) -> Iterator[Way]:
    assert rounds <= sampling.parts
    q = sampling.rate
    for places in product(range(sampling.parts), repeat=records):
        for kept in product((0, 1), repeat=records):
            chance = sampling.parts**-records * math.prod(q if k else 1 - q for k in kept)
            yield (
                chance,
                tuple(
                    tuple(k * (place == t) for k, place in zip(kept, places, strict=True))
                    for t in range(rounds)
                ),
            )


def _everything(sampling, records: int, rounds: int) -> Iterator[Way]:
    yield 1.0, ((1,) * records,) * rounds


# By the sampling's name in files. A new kind adds all its batches here.
WAYS: dict[str, Callable[..., Iterator[Way]]] = {
    "poisson": _poisson,
    "without-replacement": _subsets,
    "shuffled": _shuffled,
    "random-allocation": _allocated,
    "cyclic-poisson": _in_turn,
    "full-batch": _everything,
}


def _updates(own, times, records: int, others: float, groups: int) -> dict[float, float]:
    """The law of one round's sum of group updates, each record dealt to a group by itself."""
    positions = [r for r, k in enumerate(times) for _ in range(k)]
    found: dict[float, float] = {}
    for dealt in product(range(groups), repeat=len(positions)):
        total = 0.0
        for group in range(groups):
            inside = [r for r, g in zip(positions, dealt, strict=True) if g == group]
            if own and any(r < records for r in inside):
                total += own
            elif any(r >= records for r in inside):
                total += others
        found[total] = found.get(total, 0.0) + groups ** -len(positions)
    return found


def sums(part, sampling, records: int, own: float, targets: int, others: float):
    """The law of all rounds' sums: {sums: chance}; the first ``targets`` records say ``own``."""
    found: dict[tuple[float, ...], float] = {}
    for chance, run in WAYS[sampling.kind](sampling, records, part.count):
        if part.clipping == "example":
            each = [
                {own * sum(times[:targets]) + others * sum(times[targets:]): 1.0} for times in run
            ]
        else:
            each = [_updates(own, times, targets, others, part.groups) for times in run]
        for rows in product(*(law.items() for law in each)):
            key = tuple(total for total, _ in rows)
            found[key] = found.get(key, 0.0) + chance * math.prod(w for _, w in rows)
    return found


def _density(law, sigma: float, axis) -> np.ndarray:
    """On the grid with this axis in every round: for each sum, a product over the rounds."""
    found = np.zeros((axis.size,) * len(next(iter(law))))
    bells = {}
    for centre, chance in law.items():
        for c in centre:
            if c not in bells:
                bells[c] = np.exp(-np.square(axis - c) / (2 * sigma**2))
        density = chance * bells[centre[0]]
        for c in centre[1:]:
            density = density[..., None] * bells[c]
        found += density
    return found / (sigma * math.sqrt(2 * math.pi)) ** found.ndim


def _through(law, columns):
    """The law of what C makes of the sums: noise correlated by C⁻¹ is independent behind it."""
    found: dict[tuple[float, ...], float] = {}
    for centre, chance in law.items():
        seen = [sum(columns[t - s] * centre[s] for s in range(t + 1)) for t in range(len(centre))]
        found[tuple(seen)] = found.get(tuple(seen), 0.0) + chance
    return found


def least_delta(
    part, adjacency: str, group: int, records: int, epsilon: float, fewer, columns=(1.0, 0.0)
) -> float:
    """δ at ``epsilon`` of the worst of some data sets, both ways, by the midpoint rule.

    Args:
        fewer: (sampling, records, how many are left) → the sampling of the neighbour.
        columns: the first column of C, where noise is correlated.
    """
    best, cell = 0.0, _step(part) ** part.count
    for p, q in _densities(part, adjacency, group, records, fewer, tuple(columns)):
        for one, other in ((p, q), (q, p)):
            lost = np.maximum(one - math.exp(epsilon) * other, 0).sum() * cell
            best = max(best, float(lost))
    return best


def _step(part) -> float:
    return part.noise_multiplier / (100 if part.count == 1 else 20)


# The same data sets are asked for their δ at several ε.
@lru_cache(maxsize=4)
def _densities(part, adjacency: str, group: int, records: int, fewer, columns):
    """Densities of the sums of neighbouring data sets on a grid, pair by pair."""
    replaced = {"add-or-remove": 0.0, "zero-out": 0.0, "replace-one": -1.0}[adjacency]
    found = []
    for others in (0.0, -1.0):
        first = sums(part, part.sampling, records, 1.0, group, others)
        if adjacency == "add-or-remove":
            left = records - group
            second = sums(part, fewer(part.sampling, records, left), left, 0.0, 0, others)
        else:
            second = sums(part, part.sampling, records, replaced, group, others)
        first, second = _through(first, columns), _through(second, columns)
        reach = 7 * part.noise_multiplier
        centres = [c for law in (first, second) for centre in law for c in centre]
        axis = np.arange(min(centres) - reach, max(centres) + reach, _step(part))
        found.append([_density(law, part.noise_multiplier, axis) for law in (first, second)])
    return found
