"""Do batches follow the claimed sampling? Tests of who took part in which round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtri

from forethought.auditing import exact_tests as exact
from forethought.auditing.verdict import Finding, certain, smallest
from forethought.values.mechanism import UnsupportedMechanismError
from forethought.values.samplings import (
    CyclicPoisson,
    FullBatch,
    Poisson,
    RandomAllocation,
    Sampling,
    Shuffled,
    WithoutReplacement,
)

Indices = NDArray[np.int64]
Marks = Callable[[int], NDArray[np.bool_] | None]

# How many rounds back a batch is compared with.
LAGS = (1, 2, 3, 5, 8)


def sampling_findings(
    sampling: Sampling, members: Sequence[Indices], examples: int, generator: np.random.Generator
) -> list[Finding]:
    """True if batches are drawn as claimed.

    Args:
        members: for each round the records that took part. examples: of how many.
        generator: of the tests' own choices.
    """
    row = TESTS.get(type(sampling))
    if row is None:
        raise UnsupportedMechanismError(
            f"an audit has no tests of how {type(sampling).__name__} draws its batches; it has "
            f"them for {', '.join(kind.__name__ for kind in TESTS)}"
        )
    return row(sampling, members, examples, generator)


def _sizes(members: Sequence[Indices], wanted: Sequence[int], name: str) -> Finding:
    wrong = [
        (len(batch), size)
        for batch, size in zip(members, wanted, strict=True)
        if len(batch) != size
    ]
    got, size = wrong[0] if wrong else (0, 0)
    return certain(
        "participation",
        "batch sizes",
        f"{len(wrong)} of {len(members)} rounds differ",
        "none",
        bool(wrong),
        f"A batch holds {got:,} different records, where {name} draws {size:,}.",
    )


def _full(
    sampling: Sampling, members: Sequence[Indices], examples: int, generator: np.random.Generator
) -> list[Finding]:
    return [_sizes(members, [examples] * len(members), "full batch")]


def _subsets(
    sampling: WithoutReplacement,
    members: Sequence[Indices],
    examples: int,
    generator: np.random.Generator,
) -> list[Finding]:
    sizes = _sizes(members, [sampling.batch] * len(members), "sampling without replacement")
    often = _most_and_fewest(members, examples, sampling.rate)
    return [sizes, often, *_uniformity(sampling, members, examples, generator)]


def _allocated(
    sampling: RandomAllocation,
    members: Sequence[Indices],
    examples: int,
    generator: np.random.Generator,
) -> list[Finding]:
    once = _once_an_epoch(sampling.rounds, members, examples, "random allocation")
    evenly = _dealt_evenly(sampling.rounds, members, examples, 1.0, generator)
    return [once, evenly, *_uniformity(sampling, members, examples, generator)]


def _poisson(
    sampling: Poisson, members: Sequence[Indices], examples: int, generator: np.random.Generator
) -> list[Finding]:
    rounds, rate = len(members), sampling.rate
    sizes = np.array([len(batch) for batch in members])
    total = int(sizes.sum())
    seen = total / (rounds * examples)
    spread = float(sizes.std(ddof=1)) if rounds > 1 else 0.0
    wanted = float(np.sqrt(examples * rate * (1 - rate)))
    counts = np.bincount(np.concatenate(members), minlength=examples)
    scatter, expected = float(counts.std()), float(np.sqrt(rounds * rate * (1 - rate)))
    sizes_z = ndtri(exact.uniform_binomial(sizes, examples, rate, generator))
    counts_z = ndtri(exact.uniform_binomial(counts, rounds, rate, generator))
    return [
        Finding(
            "participation",
            "rate at which records take part",
            f"{seen:.5g}",
            f"{rate:.5g}",
            f"Records take part at a rate of {seen:.4g}, where {rate:.4g} was claimed.",
            exact.binomial_p(total, rounds * examples, rate),
        ),
        Finding(
            "participation",
            "spread of batch sizes",
            f"{spread:.4g}",
            f"{wanted:.4g}",
            f"Batch sizes vary with a standard deviation of {spread:.3g}, where Poisson sampling "
            f"gives {wanted:.3g}: batches are not drawn record by record.",
            exact.spread_p(sizes_z),
        ),
        Finding(
            "participation",
            "spread of counts per record",
            f"{scatter:.4g}",
            f"{expected:.4g}",
            f"Over {rounds} rounds the records' counts vary with a standard deviation of "
            f"{scatter:.3g}, where independent draws give {expected:.3g}.",
            exact.spread_p(counts_z),
        ),
        *_uniformity(sampling, members, examples, generator),
    ]


def _most_and_fewest(members: Sequence[Indices], examples: int, rate: float) -> Finding:
    rounds = len(members)
    counts = np.bincount(np.concatenate(members), minlength=examples)
    most, fewest = int(counts.max()), int(counts.min())
    tails = (
        float(stats.binom.sf(most - 1, rounds, rate)),
        float(stats.binom.cdf(fewest, rounds, rate)),
    )
    return Finding(
        "participation",
        "counts per record",
        f"{fewest} to {most}",
        f"{rounds * rate:.4g} on average",
        f"Over {rounds} rounds one record took part {most} times and one {fewest} times, where "
        f"independent draws give {rounds * rate:.3g} on average.",
        min(1.0, 2 * examples * min(tails)),
    )


def _shuffled(
    sampling: Shuffled, members: Sequence[Indices], examples: int, generator: np.random.Generator
) -> list[Finding]:
    length, batch = sampling.rounds_per_epoch, sampling.batch
    last = examples - batch * (length - 1)
    wanted = [last if t % length == length - 1 else batch for t in range(len(members))]
    return [
        _sizes(members, wanted, "shuffling"),
        _once_an_epoch(length, members, examples, "shuffling"),
        *_uniformity(sampling, members, examples, generator),
    ]


def _once_an_epoch(length: int, members: Sequence[Indices], examples: int, name: str) -> Finding:
    most = 0
    for start in range(0, len(members), length):
        epoch = np.concatenate(members[start : start + length])
        most = max(most, int(np.bincount(epoch, minlength=examples).max()))
    return certain(
        "participation",
        "times a record takes part in an epoch",
        f"at most {most}",
        "1",
        most > 1,
        f"A record took part {most} times in one epoch, where {name} takes each once.",
    )


def _dealt_evenly(
    length: int,
    members: Sequence[Indices],
    examples: int,
    rate: float,
    generator: np.random.Generator,
) -> Finding:
    """Sizes of batches, when each record is dealt to one of ``length`` rounds and kept at ``rate``.

    Of those that did not come yet, each comes next with chance (rate/length)/(1 − rate·t/length).
    """
    sizes, left, chances = [], [], []
    for start in range(0, len(members), length):
        there = examples
        for t, batch in enumerate(members[start : start + length]):
            sizes.append(min(len(batch), there))
            left.append(there)
            chances.append(min(1.0, rate / (length - rate * t)))
            there = max(0, there - len(batch))
    p = exact.uniform_p(exact.uniform_binomial(sizes, left, np.array(chances), generator))
    return Finding(
        "participation",
        "sizes of batches",
        f"{np.mean(sizes):.5g} on average",
        f"{rate * examples / length:.5g}",
        f"Batches hold {np.mean(sizes):.4g} records on average; dealt out at random, "
        f"{rate * examples / length:.4g} would, and sizes would vary as independent draws do.",
        p,
    )


def _turns(
    sampling: CyclicPoisson,
    members: Sequence[Indices],
    examples: int,
    generator: np.random.Generator,
) -> list[Finding]:
    """Each record in the rounds of one part only, and there independently at the rate.

    A record's part shows when it takes part first; from then on it is in each round of that part
    with chance ``rate``, whatever came before. Until then, parts are even.
    """
    parts, rate = sampling.parts, sampling.rate
    part_of = np.full(examples, -1)
    moved = 0
    halves = [np.arange(examples) < examples // 2, np.arange(examples) % 2 == 0]
    before = [np.zeros(examples, dtype=bool) for _ in range(parts)]
    counts: list[list[int]] = [[], [], [], []]
    trials: list[list[int]] = [[], [], [], []]
    for t, batch in enumerate(members):
        part = t % parts
        mine = part_of == part
        inside = np.zeros(examples, dtype=bool)
        inside[batch] = True
        marks = (mine, mine & halves[0], mine & halves[1], mine & before[part])
        for place, marked in enumerate(marks):
            counts[place].append(int((inside & marked).sum()))
            trials[place].append(int(marked.sum()))
        moved += int(((part_of[batch] >= 0) & ~mine[batch]).sum())
        part_of[batch] = part
        before[part] = inside
    p_values = [
        exact.uniform_p(exact.uniform_binomial(k, n, rate, generator))
        for k, n in zip(counts, trials, strict=True)
    ]
    seen, tried = sum(counts[0]), sum(trials[0])
    return [
        certain(
            "participation",
            "records in rounds of other parts",
            f"{moved:,}",
            "none",
            moved > 0,
            f"Records took part in the rounds of more than one part ({moved:,} times), where each "
            f"belongs to one of {parts}.",
        ),
        _dealt_evenly(parts, members[:parts], examples, rate, generator),
        Finding(
            "participation",
            "rate at which records of a part take part",
            f"{seen / max(1, tried):.4g}",
            f"{rate:.4g}",
            f"Records take part at a rate of {seen / max(1, tried):.4g} in their part's rounds, "
            f"where {rate:.4g} was claimed, or not independently of who they are.",
            smallest(p_values[:3]),
        ),
        Finding(
            "participation",
            "independence of successive rounds",
            f"p = {p_values[3]:.2g}",
            "every batch drawn afresh",
            "Batches are not independent of the ones before: the same records come again.",
            p_values[3],
        ),
    ]


def _uniformity(
    sampling: Sampling, members: Sequence[Indices], examples: int, generator: np.random.Generator
) -> list[Finding]:
    """Given its size, a batch is a uniform subset, whatever the rounds before were.

    So the number of its records in any set that was marked beforehand is hypergeometric given the
    past. Where an epoch deals the records out, the subset is of what it has left.
    """
    length = sampling.rounds_per_epoch if sampling.redealt else 1
    order = generator.permutation(examples)
    halves = [np.arange(examples) < examples // 2, np.arange(examples) % 2 == 0, order % 2 == 0]
    fixed = [_marked(members, examples, length, _always(half), generator) for half in halves]

    def earlier(lag: int) -> Marks:
        def marks(t: int) -> NDArray[np.bool_] | None:
            if t < lag:
                return None
            chosen = np.zeros(examples, dtype=bool)
            chosen[members[t - lag]] = True
            return chosen

        return marks

    lags = [_marked(members, examples, length, earlier(lag * length), generator) for lag in LAGS]
    often = _marked(members, examples, length, _drawn_often(members, order, length), generator)
    neighbours = _neighbours(members[::length], examples, generator)
    return [
        Finding(
            "participation",
            "which records are drawn",
            f"p = {smallest(fixed):.2g}",
            "uniform subsets",
            "Batches are not uniform subsets: some part of the data set is drawn more often than "
            "another.",
            smallest(fixed),
        ),
        Finding(
            "participation",
            "independence of neighbours",
            f"p = {neighbours:.2g}",
            "records drawn one by one",
            "Records that lie next to each other are not drawn independently.",
            neighbours,
        ),
        Finding(
            "participation",
            "independence of successive rounds",
            f"p = {smallest([*lags, often]):.2g}",
            "every batch drawn afresh",
            "Batches are not independent of the ones before: the same records come again.",
            smallest([*lags, often]),
        ),
    ]


def _always(marked: NDArray[np.bool_]) -> Marks:
    return lambda _t: marked


def _drawn_often(members: Sequence[Indices], order: Indices, length: int) -> Marks:
    """Marks the half of the records that took part most in earlier rounds (or epochs)."""
    counts = np.zeros(len(order))
    known = 0
    chosen: NDArray[np.bool_] | None = None

    def marks(t: int) -> NDArray[np.bool_] | None:
        nonlocal known, chosen
        upto = t - t % length
        while known < upto:
            counts[members[known]] += 1
            known += 1
            chosen = None
        if chosen is None and known:
            chosen = np.zeros(len(order), dtype=bool)
            # Ties are broken by a fixed random order.
            ranked = np.lexsort((order, -counts)) if len(order) < 50_000 else _top(counts, order)
            chosen[ranked[: len(order) // 2]] = True
        return chosen

    return marks


def _top(counts: NDArray[np.float64], order: Indices) -> Indices:
    key = counts + order / (len(order) + 1)
    return np.argpartition(-key, len(order) // 2)


def _marked(
    members: Sequence[Indices],
    examples: int,
    length: int,
    marks: Marks,
    generator: np.random.Generator,
) -> float:
    counts, population, marked, drawn = [], [], [], []
    left = np.ones(examples, dtype=bool)
    for t, batch in enumerate(members):
        if length > 1 and t % length == 0:
            left[:] = True
        chosen = marks(t)
        if chosen is not None:
            counts.append(int(chosen[batch].sum()))
            if length > 1:
                population.append(int(left.sum()))
                marked.append(int((chosen & left).sum()))
            else:
                population.append(examples)
                marked.append(int(chosen.sum()))
            drawn.append(len(batch))
        if length > 1:
            left[batch] = False
    if not counts:
        return 1.0
    valid = np.array(drawn) <= np.array(population)
    if not valid.all():  # a record came twice in an epoch: said elsewhere, with certainty
        return 1.0
    return exact.uniform_p(
        exact.uniform_hypergeometric(
            counts, np.array(population), np.array(marked), np.array(drawn), generator
        )
    )


def _neighbours(members: Sequence[Indices], examples: int, generator: np.random.Generator) -> float:
    pairs = examples // 2
    if not pairs:
        return 1.0
    both, drawn = [], []
    for batch in members:
        inside = np.zeros(2 * pairs, dtype=bool)
        inside[batch[batch < 2 * pairs]] = True
        both.append(int(inside.reshape(pairs, 2).all(axis=1).sum()))
        drawn.append(int(inside.sum()))
    return exact.uniform_p(exact.uniform_pairs(both, pairs, drawn, generator))


def group_sizes(
    mates: Sequence[int], others: Sequence[int], groups: int, generator: np.random.Generator
) -> Finding:
    """A record shares its group with each other one with chance 1/groups, independently.

    Args:
        mates: how many share the group of one random record of a batch; one number a round.
        others: how many other records the batch has.
    """
    p = exact.uniform_p(exact.uniform_binomial(mates, others, 1 / groups, generator))
    share = sum(mates) / max(1, sum(others))
    return Finding(
        "participation",
        "records that share a group",
        f"{share:.4g}",
        f"{1 / groups:.4g}",
        "Records are not dealt to groups independently at random.",
        p,
    )


# (sampling, members, examples, generator) → findings, by kind; others cannot be audited.
TESTS: dict[type[Sampling], Callable[[Any, Sequence[Indices], int, Any], list[Finding]]] = {
    FullBatch: _full,
    Poisson: _poisson,
    WithoutReplacement: _subsets,
    Shuffled: _shuffled,
    RandomAllocation: _allocated,
    CyclicPoisson: _turns,
}
