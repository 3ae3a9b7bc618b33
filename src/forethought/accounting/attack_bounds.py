"""Bounds on an attacker's success: from above by ε and δ, from below by a named attack.

**ε that data sets attain: a lower bound on the mechanism's true ε, by a named attack.**

A certified interval encloses the ε that a theorem proves; the mechanism's true ε may lie below it.
Here are pairs of neighbouring data sets whose sums lie on one line, so that their laws are known. A
record's contribution has the full clip norm. All other contributions are zero; or, if the size of a
batch is fixed, so that a hit replaces one of them, they have the clip norm in the opposite
direction. With clipped groups, the update of a group points in one direction if it holds a
differing record and in the opposite direction if it holds none; k records of a batch are assigned
to groups at random. All differing records are equal. Parts of a sum that do not lie on the line are
left out, which is post-processing, such as the incomplete last batch of a shuffled epoch. If
several records are in rounds of an epoch, or in unknown parts, the attack uses the sum of the
rounds of an epoch or of a cycle: it holds every record once, or with the sampling rate, with
√rounds times the noise.

**An attack on unknown parts tries them all.** Let P_j be the law of the sums with m records in part
j of p, R the law without any, and T_j = {dP_j/dR > e^c}, so that P_j(T_j) - e^c R(T_j) is δ'(c),
the δ at c of m records whose part is known. Of g records, m or more are together in some part with
a probability of at least w, and more records only raise every sum and dP_j/dR. So the event that
any T_j happens has a probability of at least w P_j(T_j) with the records, and at most p R(T_j)
without them. With c = ε + log(p/w) this proves δ(ε) ≥ w δ'(ε + log(p/w)): ε is at least that of m
records with known part at δ/w, less log(p/w). The same holds if the records are replaced by others
that pull every sum in the opposite direction, which makes T_j no more likely than under R.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from forethought.accounting import exact
from forethought.accounting.accountants import Accountant
from forethought.accounting.discrete_ratio import DiscreteRatio, Epoch
from forethought.accounting.dominating_pair import Array, Pair
from forethought.accounting.interval import Interval
from forethought.accounting.line_integral import Composition, Search
from forethought.accounting.theorems import (
    GroupHits,
    group_hits,
    merged,
    parts,
    uncorrelated,
    whole_epochs,
)
from forethought.accounting.tradeoff import tradeoff
from forethought.values.mechanism import (
    Adjacency,
    Correlated,
    CyclicPoisson,
    FullBatch,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Shuffled,
    WithoutReplacement,
)

# False-positive rates at which a statement bounds an attacker's true-positive rate.
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.1)

Attack = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Attained:
    """The ε that a named pair of data sets attains; no proof can give a smaller one.

    Args:
        epsilon: a lower bound on the mechanism's true ε.
        data: the data sets that attain it, in words.
    """

    epsilon: float
    data: str


class Bounded(NamedTuple):
    """The bounds of a statement on an attacker's success, from above and from below.

    Args:
        epsilon: certified interval of ε.
        attack: pairs (false-positive rate, highest true-positive rate) of any attacker.
        attained: the ε of a named pair of data sets; None if no attack is known, or only one
            (ε, δ) is proven.
    """

    epsilon: Interval
    attack: Attack
    attained: Attained | None


def bounded(
    way: Accountant, mechanism: Mechanism, delta: float, group: int, details: Mapping[str, Any]
) -> Bounded:
    """The entries of a statement that follow from mechanism, δ, group and accountant.

    Raises:
        UnsupportedMechanismError: no theorem covers the mechanism.
        ValueError: the details do not fit the mechanism.
    """
    epsilon = way.interval(mechanism, delta, group, details)
    attack = attack_of(way, mechanism, delta, group, details, epsilon.upper)
    if way.composed is None or not math.isfinite(epsilon.upper):
        return Bounded(epsilon, attack, None)
    found = attained(way.composed(mechanism), delta, group)
    return Bounded(epsilon, attack, found if found.epsilon > 0 else None)


def attack_of(
    way: Accountant,
    mechanism: Mechanism,
    delta: float,
    group: int,
    details: Mapping[str, Any],
    epsilon: float,
    accuracy: float = 5e-3,
) -> Attack:
    """Pairs (false-positive rate, highest true-positive rate) of any attacker.

    Args:
        epsilon: the ε that is proven at ``delta``.
        accuracy: relative accuracy of the trade-off function's δ.
    """
    # (ε, δ) bounds every test's power: TPR ≤ e^ε FPR + δ and, with the roles exchanged,
    # 1 − FPR ≤ e^ε (1 − TPR) + δ  (Kairouz, Oh, Viswanath 2015, Theorem 2.1).
    grown = math.exp(min(epsilon, 700.0))
    rows = tuple(
        (rate, max(min(grown * rate + delta, 1 - (1 - rate - delta) / grown, 1.0), 0.0))
        for rate in FALSE_POSITIVE_RATES
    )
    faced = way.faced(mechanism, details)
    if faced is not None and math.isfinite(epsilon):
        # The whole trade-off function gives a tighter bound than a single (ε, δ).
        powers = _powers(faced, group, accuracy)
        rows = tuple(
            (rate, min(power, most)) for (rate, power), most in zip(rows, powers, strict=True)
        )
    return rows


# Searches and audits use the same mechanism many times, so its curve is cached.
@lru_cache(maxsize=512)
def _powers(mechanism: Mechanism, group: int, accuracy: float) -> tuple[float, ...]:
    misses = tradeoff(mechanism, group, accuracy)(FALSE_POSITIVE_RATES)
    return tuple(float(1 - missed) for missed in misses)


_STEP = 0.05
_FAR = 38.0
# Relative rounding of masses in cells of width _STEP, and of their quotients.
_DOUBT = 1e-11
_DOWN = 1 - 1e-9
# Relative tolerance, for rounding, in the comparison of two certified ends of one number.
_WIDTH = 1e-9
_ACCURACY = 1e-3
# With this number of records per group, a batch leaves a group empty with probability e^-60 only.
_FULL = 60
# Largest product of groups and batch size for which the law of occupied groups is computed.
_MOST_DEALT = 2_000_000
ZEROS, OPPOSITE = "all others zero", "all others in the opposite direction"

Mix = list[tuple[float, float]]


@lru_cache(maxsize=512)
def attained(mechanism: Mechanism, delta: float, group: int = 1) -> Attained:
    """The largest ε that a named pair of data sets has at ``delta``.

    Raises:
        UnsupportedMechanismError: no theorem is known for a part of the mechanism.
        CertificateError: the data sets have a larger ε than the proven one.
    """
    theorem = exact.epsilon(mechanism, delta, group)
    if not all(part.noise_multiplier > 0 for part in mechanism):
        bare = any(p.noise_multiplier == 0 and p.sampling == FullBatch() for p in mechanism)
        return Attained(math.inf if bare else 0.0, ZEROS)
    proven = parts(mechanism, group)
    best = Attained(0.0, ZEROS)
    for many, others in product(sorted({1, group}), (ZEROS, OPPOSITE)):
        claims = [_by_parts(mechanism, delta, group, others)] if many == group else []
        for summed in (False, True):
            counts = _composed(mechanism, many, others, summed=summed)
            if counts:
                known = counts == proven
                claims.append(theorem.lower if known else _lower(counts, delta) * _DOWN)
        for found in claims:
            who = "a record" if many == 1 else f"{many} records alike"
            data = f"{who} at the clip norm, {others}"
            if found > theorem.upper * (1 + _WIDTH):
                raise exact.CertificateError(
                    f"an attack beats the certificate, a fault of this library: {data} have ε of "
                    f"at least {found!r}, and {theorem.upper!r} is proven, for {mechanism!r}, "
                    f"{delta=}, {group=}. Please report it, and do not rely on this ε"
                )
            if found > best.epsilon:
                best = Attained(min(found, theorem.upper), data)
    return best


@np.errstate(all="ignore")
def _lower(counts: dict[Pair | Epoch | DiscreteRatio, int], delta: float) -> float:
    pairs = exact.only_pairs(counts)
    if pairs is None:
        return exact.of_ratios_below(counts, delta)
    return exact.of_pairs(pairs, _ACCURACY, exact.Asked(delta)).lower


@np.errstate(all="ignore")
def _by_parts(mechanism: Mechanism, delta: float, group: int, others: str) -> float:
    """ε that an attack on unknown parts attains, by trying them all; 0 if there are no parts.

    Only rounds of cyclic or plain Poisson sampling and full batches are used.
    """
    known: list[Rounds] = []
    places = 1
    for part in mechanism:
        sampling = part.sampling
        if isinstance(sampling, CyclicPoisson) and not isinstance(part, Correlated):
            # Every part has at least this number of turns.
            turns = part.count // sampling.parts
            if turns:
                known.append(replace(part, count=turns, sampling=Poisson(sampling.rate)))
                places *= sampling.parts
        elif isinstance(sampling, Poisson | FullBatch):
            known.append(part)
    best = 0.0
    if places == 1:
        return best
    for many in sorted({1, *(math.ceil(group * k / 8) for k in range(1, 9))}):
        chance = in_one_part(group, many, places) * _DOWN
        counts = _composed(Mechanism(*known, adjacency="zero-out"), many, others)
        pairs = exact.only_pairs(counts)
        if delta < chance and pairs is not None and exact.all_integrable(pairs):
            search = Search(Composition(pairs), delta=delta / chance)  # only this direction
            search.refine(_ACCURACY)
            best = max(best, search.lower * _DOWN - math.log(places / chance) * (1 + _WIDTH))
    return best


def in_one_part(records: int, many: int, places: int) -> float:
    """A lower bound on the probability that one of the places holds ``many`` of the records."""
    if many <= -(-records // places):
        return 1.0
    # In whole numbers: the binomial coefficients of a thousand records are no doubles.
    ways = sum(
        math.comb(records, k) * (places - 1) ** (records - k) for k in range(many, records + 1)
    )
    one = ways / places**records
    # Bonferroni: two places both hold that many with a probability of at most one².
    both = one**2 if 2 * many <= records else 0.0
    return max(one, places * one - places * (places - 1) / 2 * both)


def _composed(
    mechanism: Mechanism, group: int, others: str, *, summed: bool = False
) -> dict[Pair | Epoch | DiscreteRatio, int]:
    on_lines = (_on_a_line(part, mechanism.adjacency, group, others, summed) for part in mechanism)
    return merged(chain.from_iterable(on_lines))


def _on_a_line(
    part: Rounds, adjacency: Adjacency, group: int, others: str, summed: bool = False
) -> Iterator[tuple[Pair | Epoch | DiscreteRatio, int]]:
    """One part's sums as pairs of laws on the line, each with its number of releases."""
    if isinstance(part, Correlated):
        # With several parts, the attacker does not know a record's part.
        if group == 1 and not (
            isinstance(part.sampling, CyclicPoisson) and part.sampling.parts > 1
        ):
            yield from _on_a_line(uncorrelated(part, 1), adjacency, 1, ZEROS)
        return
    if summed and (seen := _summed(part, adjacency, group, others)) is not None:
        yield from seen
        return
    sampling, sigma = part.sampling, part.noise_multiplier
    if isinstance(sampling, RandomAllocation | Shuffled):
        for piece in whole_epochs(part):
            if piece.sampling is not sampling:  # one round of an epoch, by itself
                yield from _on_a_line(piece, adjacency, group, others)
            elif group == 1:
                yield _epoch(piece, adjacency, others)
        return
    # The attack on several parts is that on their sum, for the same reason.
    known = isinstance(sampling, Poisson | CyclicPoisson | WithoutReplacement | FullBatch)
    if not known or sampling.rounds_per_epoch > 1:
        return
    one, other = _sums(part, adjacency, group_hits(part, group), others)
    scaled = ([(shift / sigma, weight) for shift, weight in side] for side in (one, other))
    law = _pair(*scaled)
    if isinstance(law, Pair) or law.loss.size:  # laws too far apart have no cell in common
        yield law, part.releases


def _summed(
    part: Rounds, adjacency: Adjacency, group: int, others: str
) -> list[tuple[Pair | Epoch | DiscreteRatio, int]] | None:
    """The sums of whole epochs, or of whole cycles of parts; None if the sampling has neither."""
    length = part.sampling.rounds_per_epoch
    together = replace(part, noise_multiplier=part.noise_multiplier * math.sqrt(length))
    whole = part.count // length
    if not isinstance(part.sampling, RandomAllocation | Shuffled | CyclicPoisson) or length == 1:
        return None
    if not whole or (group > 1 and part.clipping == "group" and part.groups is not None):
        return []  # the number of groups that they occupy in an epoch is not computed
    if isinstance(part.sampling, CyclicPoisson):
        poisson = replace(together, count=whole, sampling=Poisson(part.sampling.rate))
        return list(_on_a_line(poisson, adjacency, group, others))
    # Each record is in the epoch once.
    move = 2.0 if adjacency == "replace-one" else 1.0
    if part.clipping == "group" and others == OPPOSITE:
        last = part
        if isinstance(part.sampling, Shuffled):
            # The last batch of an epoch may be shorter, and hold a record without others.
            left = part.sampling.examples % part.sampling.batch or part.sampling.batch
            last = replace(part, sampling=replace(part.sampling, batch=left))
        filled = isinstance(part.sampling, RandomAllocation) or _filled(last, group)
        move = 2.0 if filled else move
    return [(Pair(((move * group / together.noise_multiplier, 1.0),)), whole)]


def _sums(part: Rounds, adjacency: Adjacency, hits: GroupHits, others: str) -> tuple[Mix, Mix]:
    """P and Q as mixtures of (place, weight) on the line, in clip norms."""
    moved: dict[float, float] = {}
    for k, weight in enumerate(hits.weights.tolist(), hits.first):
        for j, share in _dealt(part, k):
            moved[j] = moved.get(j, 0.0) + weight * share
    law = [(place, weight) for place, weight in sorted(moved.items()) if weight > 0]
    still, mirrored = [(0.0, 1.0)], [(-place, weight) for place, weight in law]
    fixed, grouped = isinstance(part.sampling, WithoutReplacement), part.clipping == "group"
    # `fits`: other contributions can point in the opposite direction, so that a hit moves the sum
    # twice as far.
    most = hits.first + hits.weights.size - 1
    fits = True
    if isinstance(part.sampling, WithoutReplacement) and adjacency == "add-or-remove":
        # If too few records are left for a batch, no record takes the place of the removed ones.
        fits = part.sampling.examples - most >= part.sampling.batch
    if others == OPPOSITE and grouped and fixed and not _filled(part, most):
        assert isinstance(part.sampling, WithoutReplacement)
        if fits and (part.groups or 1) * part.sampling.batch <= _MOST_DEALT:
            return _crowded(part, adjacency, hits)
        others = ZEROS
    if others == OPPOSITE and fits and (grouped or fixed):
        # A blanked contribution moves the sum half as far.
        blank = law if adjacency == "zero-out" and not grouped else still
        return [(2 * place, weight) for place, weight in law], blank
    return law, mirrored if adjacency == "replace-one" else still


def _crowded(part: Rounds, adjacency: Adjacency, hits: GroupHits) -> tuple[Mix, Mix]:
    """P and Q if the other records, in the opposite direction, may leave some groups empty."""
    sampling = part.sampling
    assert isinstance(sampling, WithoutReplacement)
    groups = part.groups or 1
    one: dict[float, float] = {}
    other: dict[float, float] = {}
    for k, weight in enumerate(hits.weights.tolist(), hits.first):
        others = sampling.batch - k
        for j, share in _dealt(part, k):
            for full, chance in _occupied(groups, groups - int(j), others):
                place = groups + j - full
                one[place] = one.get(place, 0.0) + weight * share * chance
        without = others if adjacency == "zero-out" else sampling.batch
        for full, chance in _occupied(groups, groups, without):
            other[groups - full] = other.get(groups - full, 0.0) + weight * chance
    return sorted(one.items()), sorted(other.items())


@lru_cache(maxsize=1024)
def _occupied(groups: int, counted: int, records: int) -> list[tuple[float, float]]:
    """The law of the number of ``counted`` groups that hold at least one of ``records``.

    Each record is assigned to one of ``groups`` groups independently and uniformly.
    """
    chances = np.zeros(min(counted, records) + 1)
    chances[0] = 1.0
    empty = (counted - np.arange(chances.size)) / groups
    for _ in range(records):
        opened = chances * empty
        chances = chances * (1 - empty)
        chances[1:] += opened[:-1]
    return [(float(k), float(x)) for k, x in enumerate(chances) if x > 0]


def _filled(part: Rounds, records: int) -> bool:
    """True if every group of a batch holds other records besides ``records`` differing ones."""
    assert isinstance(part.sampling, WithoutReplacement | Shuffled)
    if part.groups is None or part.groups == 1:
        return part.sampling.batch > records
    return part.sampling.batch >= _FULL * part.groups + records


def _dealt(part: Rounds, records: int) -> list[tuple[float, float]]:
    """The law of the number of contributions that hold ``records`` records of one batch."""
    if part.clipping == "example" or part.groups is None or records == 0:
        return [(float(records), 1.0)]
    return _occupied(part.groups, part.groups, records)


def _pair(one: Mix, other: Mix) -> Pair | DiscreteRatio:
    right = tuple((c, w) for c, w in one if c > 0)
    left = tuple((-c, w) for c, w in other if c < 0)
    if all(c >= 0 for c, _ in one) and all(c <= 0 for c, _ in other):
        if not left and len(right) == 1 and right[0][1] >= 1:
            return Pair(((right[0][0], 1.0),))
        if left and len(right) == 1 == len(left) and min(right[0][1], left[0][1]) >= 1:
            return Pair(((right[0][0] + left[0][0], 1.0),))
        return Pair(right, left, doubt=_DOUBT)
    return _in_cells(one, other)


def _in_cells(one: Mix, other: Mix) -> DiscreteRatio:
    """The laws of the cell that holds the sum: a discretisation, which is post-processing."""
    places = [c for c, _ in (*one, *other)]
    low, high = min(places) - _FAR, max(places) + _FAR
    edges = np.linspace(low, high, math.ceil((high - low) / _STEP) + 1)

    def masses(mix: Mix) -> Array:
        total = np.zeros(edges.size - 1)
        for centre, weight in mix:
            z = edges - centre
            # Differences of the smaller tail avoid cancellation.
            total += weight * np.where(z[1:] <= 0, np.diff(ndtr(z)), -np.diff(ndtr(-z)))
        return total

    p, q = masses(one), masses(other)
    kept = (p > 1e-290) & (q > 1e-290)
    p, q = p[kept], q[kept]
    return DiscreteRatio(np.log(p / q), p, q, _DOUBT, 0.0, 0.0)


def _epoch(part: Rounds, adjacency: Adjacency, others: str) -> tuple[Pair | Epoch, int]:
    """The law of an epoch, or of a begun one, in which one record is in one round; and how many."""
    sampling = part.sampling
    assert isinstance(sampling, RandomAllocation | Shuffled)
    grouped = part.clipping == "group"
    length, far, rounds = sampling.rounds_per_epoch, grouped, sampling.rounds_per_epoch
    if isinstance(sampling, Shuffled):
        length = sampling.examples // sampling.batch
        far = _filled(part, 1) if grouped else adjacency == "replace-one"
    move = 2.0 if far and others == OPPOSITE else 1.0
    distance = move / part.noise_multiplier
    used, count = min(part.count, length), max(1, part.count // rounds)
    return Pair(((distance, 1.0),)) if rounds == 1 else Epoch(distance, rounds, used), count
