"""The dominating pair of a round by theorem: the table of supported combinations.

Each cell (sampling × clipping × adjacency) has one theorem for a single record and one for groups
of g records. Shifts are in noise standard deviations; "distance" is in clipping norms.

The bounds on centres come from :meth:`~forethought.values.mechanism.Rounds.sensitivity`. Lemma used
below ("half lines"): let P = Σ w_k N(a_k), Q = Σ w_k N(b_k) with |a_k|, |b_k| ≤ r_k around a common
centre. For any test T with N(0)(T) = β the Neyman-Pearson lemma gives N(a_k)(T) ≤ Φ(Φ⁻¹(β) + r_k)
and N(b_k)(T) ≥ Φ(Φ⁻¹(β) - r_k), all attained by one half line. So for every α > 0 the profile is
at most that of Σ w_k N(r_k) against Σ w_k N(-r_k) on the line.

**Correlated noise is accounted as uncorrelated rounds.**

The run releases x_t + σ(C⁻¹z)_t for all t, in units of the clipping norm, which is equivalent to
Cx + σz. Let a record take part in rounds p, p + b, p + 2b, … with contributions u_j of length at
most 1, which may depend on earlier releases.

- *Every turn is taken* (rate 1, or every round, where b is 1). The record moves Cx by
  Σ_j C[:, p + jb] u_j, whose length is at most that of v = Σ_j C[:, jb] if C has no negative entry:
  inner products of columns are then at least 0, so that aligned u_j are the worst case, and pattern
  p is a beginning of pattern 0. If C has at most b bands the columns do not overlap, and signs do
  not matter. So the whole run is one Gaussian release of sensitivity ‖v‖, also for inputs that
  depend on earlier releases (Denisov et al. 2022). Fewer turns, or smaller contributions, only
  shorten the sum.
- *Turns are sampled* (rate below 1), and C has at most b bands. Turn j affects only the rounds from
  p + jb up to p + (j + 1)b: each turn is a Poisson-sampled Gaussian release of sensitivity
  ‖C[:, 0]‖, and the run composes them (Choquette-Choo et al. 2023, "(Amplified) banded matrix
  factorization").
- *Groups* of a sampled run are charged as if every turn were taken: their turns overlap.

A run that stops early has released the first rows of Cx + σz, which is the same strategy over fewer
rounds. Only a beginning of the run has a guarantee of its own.

**The number of a group's records in a batch, with a bound on the weights' relative errors.**

The probabilities are products of ratios of neighbours, outwards from the largest. So each has a few
rounding errors for every step, and no differences of logarithms of factorials occur.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np

from forethought.accounting.discrete_ratio import DisclosedCount, Epoch
from forethought.accounting.dominating_pair import EPS, Array, Pair
from forethought.values.checks import whole
from forethought.values.mechanism import (
    ADJACENCIES,
    CLIPPINGS,
    SAMPLINGS,
    Adjacency,
    Correlated,
    FullBatch,
    Hypergeometric,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Shuffled,
    UnsupportedMechanismError,
    WithoutReplacement,
)
from forethought.values.strategies import Strategy

TURNS = (
    "correlated noise: one Gaussian release at the strategy's sensitivity over all of a record's "
    "turns (Denisov et al. 2022)"
)
SAMPLED_TURNS = (
    "banded correlated noise, parts in turns: each turn one release at the bands' norm "
    "(Choquette-Choo et al. 2023)"
)


@lru_cache(maxsize=256)
def sensitivity_over_turns(strategy: Strategy, count: int, separation: int) -> float:
    """‖Σ_j C[:, j·separation]‖ over ``count`` rounds, rounded up.

    This is the most that a record can move Cx if it takes part in every ``separation``-th round.

    Raises:
        UnsupportedMechanismError: columns overlap and some coefficient is negative.
        ValueError: too many rounds.
    """
    if strategy.bands > separation and not strategy.nonnegative:
        raise UnsupportedMechanismError(
            f"a strategy of {strategy.bands} bands with negative coefficients needs turns at least "
            f"as many rounds apart, not {separation}: no bound on its sensitivity is known"
        )
    whole("the number of rounds of correlated noise", count, most=10_000_000)  # each takes memory
    separation = min(separation, count)
    turns = -(-count // separation)
    padded = np.zeros(turns * separation)
    padded[:count] = strategy.column(count)
    moved = padded.reshape(turns, separation).cumsum(axis=0).ravel()[:count]
    size = math.sqrt(math.fsum(moved * moved))
    # The rounding of the coefficients, of the sums of positive terms and of the square root.
    return size * (1 + (turns + 32) * EPS)


def uncorrelated(rounds: Rounds, group: int = 1) -> Rounds:
    """Uncorrelated rounds with the dominating pairs of ``rounds``; uncorrelated ones are unchanged.

    Raises:
        UnsupportedMechanismError: the sampling has no turns at equal distances or may draw a record
            twice; sampled turns with more bands than parts; overlapping columns with a negative
            coefficient.
    """
    if not isinstance(rounds, Correlated):
        return rounds
    sampling, sigma = rounds.sampling, rounds.noise_multiplier
    separation = sampling.turns_apart
    if separation is None or sampling.most(1) > 1:
        raise UnsupportedMechanismError(
            f"correlated noise with {type(sampling).__name__} sampling is not supported: a "
            "record's turns are not equally far apart, or it can be drawn several times in one"
        )
    if group == 1 and sampling.hides(rounds.count):
        if rounds.strategy.bands > separation:
            raise UnsupportedMechanismError(
                f"sampled parts ({sampling.words()}) need at most as many bands as parts "
                f"({separation}), not {rounds.strategy.bands}: a record's turns would overlap, and "
                "no theorem is known. Take fewer bands, or rate 1"
            )
        size = sensitivity_over_turns(rounds.strategy, min(rounds.count, separation), separation)
        return Rounds(
            _over(sigma, size), rounds.count, sampling, rounds.clipping, groups=rounds.groups
        )
    size = sensitivity_over_turns(rounds.strategy, rounds.count, separation)
    # Several records may be in different groups of different parts.
    groups = None if rounds.groups is None else rounds.groups * separation
    return Rounds(_over(sigma, size), 1, FullBatch(), rounds.clipping, groups=groups)


def all_uncorrelated(mechanism: Mechanism, group: int = 1) -> Mechanism:
    """The mechanism with :func:`uncorrelated` parts; the same object if none is correlated."""
    if not mechanism.correlated:
        return mechanism
    parts: Iterable[Rounds] = (uncorrelated(part, group) for part in mechanism)
    return Mechanism(*parts, adjacency=mechanism.adjacency)


def _over(sigma: float, size: float) -> float:
    share = sigma / size * (1 - 4 * EPS)
    if not share > 0:
        raise UnsupportedMechanismError(
            f"the strategy's coefficients are too large for noise multiplier {sigma:g}: lower them"
        )
    return share


# Numbers of hits with a probability below this are left out; their mass is charged.
_LEAST = 1e-280


class GroupHits(NamedTuple):
    """The law of the number of a group's records in a batch.

    Args:
        first: the smallest number k.
        weights: probabilities of k = first, first + 1, …; shape (n,).
        doubt: bound on their relative error.
        lost: bound on the probability of all other k.
    """

    first: int
    weights: Array
    doubt: float
    lost: float


def binomial(group: int, rate: float) -> GroupHits:
    """Poisson sampling: each of ``group`` records is in a batch with probability ``rate``."""
    if rate == 1:
        return GroupHits(group, np.ones(1), 0.0, 0.0)
    if group == 1:
        return GroupHits(0, np.array([1 - rate, rate]), EPS, 0.0)
    odds = rate / (1 - rate)
    mode = min(group, int((group + 1) * rate))

    def ratio(k: Array) -> Array:
        return np.asarray((group - k) / (k + 1) * odds)

    return _from_ratios(mode, 0, group, ratio)


def hypergeometric(group: int, batch: int, examples: int) -> GroupHits:
    """Sampling without replacement: the number of ``group`` records among ``batch`` drawn ones."""
    group = min(group, examples)
    if group == 1:
        rest = (examples - batch) / examples
        return GroupHits(0, np.array([rest, batch / examples]), EPS, 0.0)
    low, high = max(0, group - (examples - batch)), min(group, batch)
    mode = min(high, max(low, (group + 1) * (batch + 1) // (examples + 2)))

    def ratio(k: Array) -> Array:
        return np.asarray(
            (group - k) / (k + 1) * ((batch - k) / (examples - group - batch + k + 1))
        )

    return _from_ratios(mode, low, high, ratio)


def _from_ratios(mode: int, low: int, high: int, ratio: Callable[[Array], Array]) -> GroupHits:
    above = _until_rare(lambda k: ratio(k), mode, high)
    below = _until_rare(lambda k: 1 / ratio(-k - 1), -mode, -low)
    weights = np.concatenate([below[:0:-1], above])
    total = float(weights.sum())
    first = mode - (below.size - 1)
    # Six rounding errors for each step, and those of the sum.
    doubt = EPS * (6.0 * max(above.size, below.size) + weights.size + 8)
    whole = first == low and mode + above.size - 1 == high
    weights = weights / total
    kept = weights > _LEAST
    start = int(np.argmax(kept))
    weights = weights[start : weights.size - int(np.argmax(kept[::-1]))]
    cut = not (whole and kept.all())
    # Beyond a weight below 1e-280 the ratios decrease: the tail is at most geometric.
    return GroupHits(first + start, weights, doubt, 1e-270 if cut else 0.0)


def _until_rare(ratio: Callable[[Array], Array], first: int, last: int) -> Array:
    """1 at ``first``, then the running products of ``ratio`` upwards until they are negligible."""
    pieces: list[Array] = [np.ones(1)]
    here, size, k = 1.0, 64, first
    while k < last and here > 1e-290:
        steps = np.arange(k, min(k + size, last), dtype=float)
        piece = np.asarray(here * np.cumprod(ratio(steps)), dtype=float)
        pieces.append(piece)
        here, k, size = float(piece[-1]), k + steps.size, 2 * size
    return np.concatenate(pieces)


# The contribution of one Rounds: the pair of one release, and the number of charged releases.
Part = tuple[Pair | Epoch | DisclosedCount, int]
_Kind = TypeVar("_Kind")


@dataclass(frozen=True)
class Cell:
    """One supported combination of sampling, clipping and adjacency.

    Args:
        theorem: the source of the dominating pair.
        part: (rounds, adjacency, group) → pair and number of releases.
        group_theorem: the source for groups of several records.
    """

    theorem: str
    part: Callable[[Rounds, Adjacency, int], Part]
    group_theorem: str


def _gaussian(rounds: Rounds, adjacency: Adjacency, group: int) -> tuple[Pair, int]:
    """The pair of records that are in every batch, or in one batch of every started epoch."""
    most = rounds.sampling.most(group)
    shift = rounds.reach(adjacency, most) / rounds.noise_multiplier
    return Pair(((shift, 1.0),)), rounds.releases


def _allocated(rounds: Rounds, adjacency: Adjacency, group: int) -> Part:
    assert isinstance(rounds.sampling, RandomAllocation)
    length = rounds.sampling.rounds
    if group > 1 or length == 1:
        return _gaussian(rounds, adjacency, group)
    distance = rounds.sensitivity(adjacency) / rounds.noise_multiplier
    used = min(length, rounds.count)
    return Epoch(distance, length, used), rounds.count // used


def group_hits(rounds: Rounds, group: int) -> GroupHits:
    """Probabilities that ``group`` records occur 0, 1, … times in a batch."""
    hits = rounds.sampling.hits(group)
    if isinstance(hits, Hypergeometric):
        return hypergeometric(hits.marked, hits.drawn, hits.examples)
    found = binomial(hits.trials, hits.chance)
    if not hits.rounded or hits.chance == 1:
        return found
    return found._replace(doubt=found.doubt + hits.trials * EPS / (1 - hits.chance))


def one_sided(rounds: Rounds, adjacency: Adjacency, group: int) -> tuple[Pair, int]:
    """The pair of rounds in which hits add to a sum, and the number of charged releases."""
    up, idle, hits = shifts_of(rounds, group, lambda k: rounds.reach(adjacency, k))
    if idle == 0 and len(up) == 1:  # some record hits for certain, and each hit moves as far
        return Pair(((up[0][0], 1.0),)), rounds.releases
    return Pair(up, idle=idle, doubt=hits.doubt, lost=hits.lost), rounds.releases


def _two_sided(rounds: Rounds, adjacency: Adjacency, group: int) -> tuple[Pair, int]:
    # Distance of one record's contribution from the common centre, not between two records.
    by_itself = not rounds.sampling.exchanges
    radius = 1.0 if rounds.clipping == "example" and by_itself else 2.0
    share = radius / rounds.per_hit(adjacency)
    up, idle, hits = shifts_of(rounds, group, lambda k: share * rounds.reach(adjacency, k))
    if idle == 0 and len(up) == 1:
        # Every record is in every batch: P and Q are single Gaussians at this distance.
        return Pair(((2 * up[0][0], 1.0),)), rounds.releases
    pair = Pair(up, up, idle=idle, rest=idle, doubt=hits.doubt, lost=hits.lost, lost_rest=hits.lost)
    return pair, rounds.releases


def _combined(rounds: Rounds, adjacency: Adjacency, group: int) -> tuple[Pair, int]:
    pair, count = one_sided(rounds, adjacency, group)
    if len(pair.up) > 1 or (group > 1 and rounds.groups is None):
        return _two_sided(rounds, adjacency, group)
    # One record, or several records in the only group, which act as one. The sum without them is
    # the same for P and Q, and the three sums are within distance 2 of each other.
    return replace(pair, symmetric=not pair.gaussian), count


def replacing(rounds: Rounds, adjacency: Adjacency, group: int) -> Part:
    """The pair of rounds in which a hit replaces another contribution, and the charged releases.

    Any two of the three sums (with the record, with its replacement, with neither) are near.

    Raises:
        UnsupportedMechanismError: a blanked record takes no other record's place.
    """
    plain, count = _combined(rounds, adjacency, group)
    blanked = adjacency == "zero-out" and rounds.clipping == "example"
    if blanked and not rounds.sampling.exchanges:
        kind = type(rounds.sampling).__name__
        text = f"a blanked record of {kind} takes nobody's place: its rounds need a pair of hits"
        raise UnsupportedMechanismError(f"{text} that add (one_sided, if they are independent)")
    if plain.symmetric and not blanked:
        return plain, count
    up, missed, hits = shifts_of(rounds, group, lambda k: rounds.reach(adjacency, k))
    # A contribution is within 1 of the blank, and the blank within 1 of another's contribution.
    distances = tuple((shift / 2 if blanked else shift, weight) for shift, weight in up)
    if missed == 0 and len(up) == 1:
        return Pair(((distances[0][0], 1.0),)), count
    disclosed = DisclosedCount(distances, blanked, missed, plain, hits.doubt, hits.lost)
    return (disclosed if disclosed.resolved else plain), count


def _shuffled(rounds: Rounds, adjacency: Adjacency, group: int) -> Part:
    """The pair of whole shuffled epochs, or of the beginning of one, which may hold the record."""
    assert isinstance(rounds.sampling, Shuffled)
    sampling = rounds.sampling
    left = sampling.examples - rounds.count * sampling.batch
    if left <= 0 or group > 1:
        return _gaussian(rounds, adjacency, group)
    seen, missed = 1 - left / sampling.examples, left / sampling.examples
    distance = rounds.reach(adjacency, 1) / rounds.noise_multiplier
    blanked = adjacency == "zero-out" and rounds.clipping == "example"
    farthest = 2 * distance if blanked else distance
    plain = Pair(((farthest, seen),), symmetric=True, idle=missed, doubt=2 * EPS)
    if not blanked:
        return plain, 1
    disclosed = DisclosedCount(((distance, seen),), True, missed, plain, 2 * EPS)
    return (disclosed if disclosed.resolved else plain), 1


def shifts_of(
    rounds: Rounds, group: int, moved: Callable[[int], float]
) -> tuple[tuple[tuple[float, float], ...], float, GroupHits]:
    """Components (shift, weight) right of 0, the weight at 0, and the law of the hits.

    Args:
        moved: number of records → the distance by which they move a sum. Numbers with the same
            distance become one component.
    """
    hits = group_hits(rounds, group)
    together: dict[float, list[float]] = {}
    for k, weight in enumerate(hits.weights, hits.first):
        if weight > 0:
            shift = moved(k) / rounds.noise_multiplier
            together.setdefault(shift, []).append(float(weight))
    parts = {shift: math.fsum(weights) for shift, weights in together.items()}
    idle = parts.pop(0.0, 0.0)
    return tuple(parts.items()), idle, hits


_GAUSS = "Gaussian mechanism (Balle and Wang 2018, Theorem 8)"
_HALF_LINES = "half lines: Neyman-Pearson for every component around the common centre"
_MIXTURE = "mixture of Gaussians (Ganesh 2024, Theorem 1.2), both directions"
_SHUFFLE = "joint convexity over permutations: one Gaussian for each started epoch"
_DISCLOSED_HITS = (
    "told how many hit, three sums near each other by twos (half lines, joint convexity), or half "
    "lines for every component around the common centre, whichever proves less"
)
_BLANK = (
    "half lines around the sum with the blank, whose place another record may take, or around the "
    "common centre, whichever proves less"
)
_ALLOCATION = (
    "random allocation: each epoch (1/t) Σ N(Δe_i, I) against N(0, I) (Chua et al. 2024; Feldman "
    "and Shenfeld 2025), both directions, bounded in convex order"
)
_UNAMPLIFIED = "joint convexity over allocations: one Gaussian for each started epoch"
_CHAIN = "record by record (group privacy: Dong, Roth and Su 2022, Theorem 2.14)"
_POISSON = "Poisson-subsampled Gaussian (Zhu, Dong, Wang 2022, Theorem 11), both directions"
_AT_DISTANCE_2 = (
    "combined curve at distance 2 (Zhu, Dong, Wang 2022, Theorem 11; advanced joint convexity, "
    "Balle, Barthe, Gaboardi 2018, Theorem 2)"
)
_FEW_GROUPS = "; k records of a batch move at most min(k, groups) of its updates"
_IN_EPOCHS = f"{_UNAMPLIFIED}, at g times the distance; or {_CHAIN}"
_ANEW = f"or {_CHAIN}, blanked and written anew"
_FIXED = (
    "sampling without replacement, add or remove (Zhu, Dong, Wang 2022, Theorem 11), inner "
    "distance 2, both directions"
)
_FIXED_GROUP = "hypergeometric mixture of Gaussians, both directions (half lines)"
_COMBINED = "combined curve (Zhu, Dong, Wang 2022, Theorem 11), inner distance 2"
_TURNS = "only the rounds of a record's own part can hold it (Choquette-Choo et al. 2023); each: "
_ONE_PART = "most for a group within one part (half lines, a norm is at most the sum); each: "

# Adjacencies: all but replace-one, all but add-or-remove, and replace-one alone.
_UNREPLACED, _IN_PLACE, _REPLACED = ADJACENCIES[:2], ADJACENCIES[1:], ADJACENCIES[2:]


def _cells(
    sampling: str, adjacencies: Sequence[Adjacency], cell: Cell
) -> dict[tuple[str, str, str], Cell]:
    """The same cell for several adjacencies and for every kind of clipping."""
    return {(sampling, clipping, each): cell for clipping in CLIPPINGS for each in adjacencies}


SUPPORTED: dict[tuple[str, str, str], Cell] = {
    **_cells(
        "full-batch", ADJACENCIES, Cell(_GAUSS, _gaussian, f"{_GAUSS} at g times the distance")
    ),
    **_cells(
        "shuffled", _IN_PLACE, Cell(_SHUFFLE, _shuffled, f"{_SHUFFLE}, at g times the distance")
    ),
    **_cells("random-allocation", _UNREPLACED, Cell(_ALLOCATION, _allocated, _IN_EPOCHS)),
    **_cells(
        "random-allocation",
        _REPLACED,
        Cell(
            f"{_UNAMPLIFIED}, at distance 2; {_ANEW}", _gaussian, f"{_UNAMPLIFIED}, at 2g; {_ANEW}"
        ),
    ),
    **_cells("poisson", _UNREPLACED, Cell(_POISSON, one_sided, _MIXTURE)),
    ("poisson", "example", "replace-one"): Cell(_HALF_LINES, _two_sided, _HALF_LINES),
    ("poisson", "group", "replace-one"): Cell(_AT_DISTANCE_2, replacing, _DISCLOSED_HITS),
    **_cells(
        "cyclic-poisson", _UNREPLACED, Cell(_TURNS + _POISSON, one_sided, _ONE_PART + _MIXTURE)
    ),
    ("cyclic-poisson", "example", "replace-one"): Cell(
        _TURNS + _HALF_LINES, _two_sided, _ONE_PART + _HALF_LINES
    ),
    ("cyclic-poisson", "group", "replace-one"): Cell(
        _TURNS + _AT_DISTANCE_2, replacing, _ONE_PART + _DISCLOSED_HITS
    ),
    **_cells("without-replacement", ["add-or-remove"], Cell(_FIXED, one_sided, _FIXED_GROUP)),
    **_cells(
        "without-replacement",
        _IN_PLACE,
        Cell(_COMBINED, replacing, f"hypergeometric: {_DISCLOSED_HITS}"),
    ),
    ("without-replacement", "example", "zero-out"): Cell(
        _BLANK, replacing, f"hypergeometric, told how many hit: {_BLANK}"
    ),
}


def theorem(rounds: Rounds, adjacency: Adjacency, group: int = 1) -> str:
    """The name of the theorem on the dominating pair of ``rounds``, one of :func:`whole_epochs`.

    Raises:
        UnsupportedMechanismError: no theorem is known.
    """
    plain = uncorrelated(rounds, group)
    cell = _cell(plain, adjacency)
    name = cell.theorem if group == 1 else cell.group_theorem
    if group > 1 and rounds.groups is not None:
        name += _FEW_GROUPS
    if plain is rounds:
        return name
    sampled = group == 1 and rounds.sampling.hides(rounds.count)
    return f"{SAMPLED_TURNS if sampled else TURNS}; {name}"


def parts(mechanism: Mechanism, group: int = 1) -> dict[Pair | Epoch | DisclosedCount, int]:
    """Dominating pair → number of its releases, for the whole mechanism.

    Gaussians are merged: N(c_1) … N(c_n) against N(0) compose to one at distance √Σ c².

    Args:
        mechanism: a mechanism with every noise multiplier above 0.
        group: number of records in which neighbouring data sets differ.

    Raises:
        UnsupportedMechanismError: no theorem is known for a part.
    """
    plain = all_uncorrelated(mechanism, group)
    return merged(
        _cell(rounds, mechanism.adjacency).part(rounds, mechanism.adjacency, group)
        for rounds in chain.from_iterable(map(whole_epochs, plain))
    )


def merged(found: Iterable[tuple[_Kind, int]]) -> dict[_Kind | Pair, int]:
    """Pair → its total count; all Gaussians are merged to one."""
    counts: dict[_Kind | Pair, int] = {}
    squares: list[float] = []
    for pair, count in found:
        if isinstance(pair, Pair) and pair.gaussian:
            squares.append(count * pair.up[0][0] ** 2)
        elif count:
            counts[pair] = counts.get(pair, 0) + count
    if squares:
        # fsum is exact, so the result does not depend on the order of the rounds.
        counts[Pair(((math.sqrt(math.fsum(squares)), 1.0),))] = 1
    return counts


def whole_epochs(rounds: Rounds) -> tuple[Rounds, ...]:
    """Rounds split into whole epochs and the rounds of an incomplete last epoch."""
    if not rounds.sampling.redealt:
        return (rounds,)
    length = rounds.sampling.rounds_per_epoch
    whole, rest = divmod(rounds.count, length)
    counts = (whole * length, rest)
    return tuple(_by_itself(replace(rounds, count=count)) for count in counts if count)


def _by_itself(rounds: Rounds) -> Rounds:
    """Rounds with the theorems of a simpler sampling, if they are the only one of a longer epoch.

    The first of t rounds of random allocation holds each record with probability 1/t, independently
    of all others: it is a Poisson round. The first batch of a permutation is a uniform subset: it
    is a round without replacement. From the same data come sums of the same law, so what is proven
    of one is proven of the other, for every adjacency and group. The rounding of 1/t ≤ 1/2 is
    within that of the weights (:func:`binomial`).
    """
    sampling = rounds.sampling
    if rounds.count == 1 < sampling.rounds_per_epoch:
        if isinstance(sampling, RandomAllocation):
            return replace(rounds, sampling=Poisson(sampling.rate))
        if isinstance(sampling, Shuffled):
            return replace(rounds, sampling=WithoutReplacement(sampling.batch, sampling.examples))
    return rounds


def unsampled_distance(mechanism: Mechanism, group: int = 1) -> float:
    """Distance of the Gaussian run in which every batch holds the whole group.

    A batch holds it as many times as the sampling allows. By joint convexity no sampling has a
    larger ε than this run.

    Raises:
        UnsupportedMechanismError: no theorem is known for a part.
    """
    shifts = []
    # A group size of at least 2 charges correlated rounds as if every turn were taken.
    for rounds in all_uncorrelated(mechanism, max(2, group)):
        _cell(rounds, mechanism.adjacency)
        count, most = rounds.releases, rounds.sampling.most(group)
        placed = mechanism.adjacency != "add-or-remove" and rounds.sampling.rounds_per_epoch == 1
        if rounds.sampling.exchanges and placed:
            # The same positions are drawn: no record takes another's place.
            rounds = replace(rounds, sampling=FullBatch())
        shift = rounds.reach(mechanism.adjacency, most) / rounds.noise_multiplier
        shifts.append(math.sqrt(count) * shift)
    return math.hypot(*shifts) * (1 + 8 * EPS)


def _cell(rounds: Rounds, adjacency: Adjacency) -> Cell:
    key = (rounds.sampling.kind, rounds.clipping, adjacency)
    if key not in SUPPORTED:
        same = sorted({a for s, c, a in SUPPORTED if (s, c) == key[:2]})
        why = rounds.sampling.refused.get(adjacency, "no theorem is known")
        everywhere = [
            known.__name__
            for kind, known in SAMPLINGS.items()
            if all((kind, rounds.clipping, each) in SUPPORTED for each in ADJACENCIES)
        ]
        raise UnsupportedMechanismError(
            f"{type(rounds.sampling).__name__} sampling with clipping={rounds.clipping!r} under "
            f"adjacency={adjacency!r} is not supported: {why}. "
            f"This sampling is supported under {', '.join(map(repr, same)) or 'no adjacency'}; "
            f"under every adjacency: {', '.join(everywhere)}"
        )
    return SUPPORTED[key]
