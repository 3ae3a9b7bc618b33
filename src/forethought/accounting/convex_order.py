"""Certified ε and δ where some rounds' likelihood ratios are bounded in convex order.

Epochs of random allocation (:mod:`forethought.accounting.pld.allocation`) and rounds in which a hit
replaces something (:mod:`forethought.accounting.pld.told`) are. Each bound is composed with all
other rounds like any pair: from the larger law comes the upper end, from the smaller one the lower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.special import log_ndtr

from forethought.accounting.limits import Bounds, inverted, log_tail
from forethought.accounting.pld.allocation import (
    LARGEST_DISTANCE,
    MOST_ROUNDS,
    Epoch,
    epoch_laws,
)
from forethought.accounting.pld.contour import Total
from forethought.accounting.pld.law import Law, varies
from forethought.accounting.pld.pair import Pair
from forethought.accounting.pld.search import Search
from forethought.accounting.pld.told import Told, told_laws

Counts = Mapping[Pair | Epoch | Told, int]
# The finer the laws, the longer they take: for epochs, each step four times as long.
_FINENESS = (1.0, 0.5, 0.35)
# Ends that are further apart, relatively, would be with finer laws as well.
_LAWS_SHARE = 0.05
# δ at which two theorems on a round are held against each other.
_TYPICAL = 1e-6
# Of more kinds of rounds it is not chosen for each.
_MOST_CHOSEN = 64
# Products of two numbers that the lines of one direction may take.
_WORK = 2e9


def of_laws(
    counts: Counts,
    accuracy: float,
    delta: float | None,
    epsilon: float | None,
    *,
    beaten_by: float = math.inf,
) -> Bounds:
    """Bounds on ε at ``delta``, or on δ at ``epsilon``, of rounds some of which have laws.

    ``beaten_by``: what is certainly above this need not be sharp.
    """
    epochs = [(pair, n) for pair, n in counts.items() if isinstance(pair, Epoch)]
    lower, upper = 0.0, math.inf if delta is not None else 1.0
    if delta is not None:
        lower = max((_hits_epsilon(epoch, n, delta) for epoch, n in epochs), default=0.0)
    if not lawful(counts):
        return Bounds(lower, upper)
    for fineness in _FINENESS:
        below, above = (with_laws(counts, fineness, end) for end in (0, 1))
        # Either end has a gap of its own.
        lower = max(lower, _composed(below, accuracy / 2, delta, epsilon).lower)
        if lower >= beaten_by:
            break
        upper = min(upper, _composed(above, accuracy / 2, delta, epsilon).upper)
        if upper - lower <= accuracy * upper:
            break
        if delta is not None and upper < math.inf:
            lower = max(lower, _by_one_round(below, delta))
        if not epochs and fineness <= 0.5:
            break
        if _LAWS_SHARE * upper < upper - lower < math.inf:
            break  # it is not for the laws that the ends are apart
    return Bounds(lower, upper)


@np.errstate(all="ignore")
def of_laws_below(counts: Mapping[Pair | Epoch | Law, int], delta: float) -> float:
    """A lower bound on ε at ``delta`` of rounds some of which are laws already; 0 if none is known.

    Of an epoch the smaller law in convex order is taken.
    """
    known: dict[Pair | Law, int] = {}
    for pair, n in counts.items():
        if isinstance(pair, Epoch):
            if pair.distance > LARGEST_DISTANCE or pair.rounds > MOST_ROUNDS:
                return 0.0
            pair = epoch_laws(pair, 1.0)[0]
        elif isinstance(pair, Pair) and not pair.integrable:
            return 0.0
        known[pair] = known.get(pair, 0) + n
    return _composed(known, 1e-3, delta, None).lower


def lawful(counts: Counts) -> bool:
    """Whether laws can be built of all that need one, and the others be integrated."""

    def usable(pair: Pair | Epoch | Told) -> bool:
        match pair:
            case Epoch():
                return pair.distance <= LARGEST_DISTANCE and pair.rounds <= MOST_ROUNDS
            case Told():
                return True
            case Pair():
                return pair.integrable

    return all(map(usable, counts))


def with_laws(counts: Counts, fineness: float, end: int) -> dict[Pair | Law, int]:
    """The rounds with their laws: the smaller ones in convex order (0), or the larger ones (1)."""
    found: dict[Pair | Law, int] = {}
    for pair, n in counts.items():
        match pair:
            case Epoch():
                found[epoch_laws(pair, fineness)[end]] = n
            case Told():
                found[told_laws(pair, fineness)[end]] = n
            case Pair():
                found[pair] = n
    return found


def alternatives(counts: Counts) -> list[Counts]:
    """The rounds by sets of pairs that dominate them, the quickest to compose first.

    A round that is told has a pair of half lines as well, and any choice of either is a theorem:
    half lines for all, told for all, and where there are several, for each what seems to cost less.
    """
    told = [pair for pair in counts if isinstance(pair, Told)]
    if not told:
        return [counts]
    choices = [set(told), set()]
    if 1 < len(told) <= _MOST_CHOSEN:
        tilt = Total(with_laws(counts, 1.0, 1)).locate(delta=_TYPICAL, rough=True).tilt
        choices.append({pair for pair in told if not _cheaper_told(pair, tilt)})
    found: list[Counts] = []
    for plain in choices:
        way: dict[Pair | Epoch | Told, int] = {}
        for pair, n in counts.items():
            chosen = pair.otherwise if isinstance(pair, Told) and pair in plain else pair
            way[chosen] = way.get(chosen, 0) + n
        if way not in found:
            found.append(way)
    return found


def _cheaper_told(pair: Told, tilt: float) -> bool:
    """Whether a round's moment at ``tilt`` is about less by the told pair than by half lines."""
    if not pair.otherwise.integrable:
        return True
    law = told_laws(pair, 1.0)[1]
    told, plain = (
        max(
            float(Total({one: 1}, swapped=swapped).cumulant(np.array([tilt]))[0])
            for swapped in (False, True)
        )
        for one in (law, pair.otherwise)
    )
    return told <= plain


def about(counts: Counts, delta: float) -> float:
    """About ε at ``delta``, for choosing where to ask; ∞ where nothing is known."""
    if not lawful(counts):
        return math.inf
    found = Total(with_laws(counts, 1.0, 1)).estimate(delta)
    return found if math.isfinite(found) else math.inf


def _by_one_round(counts: Mapping[Pair | Law, int], delta: float) -> float:
    """A lower bound on ε from the event that some loss of the laws is beyond a threshold.

    δ(ε) ≥ P(T) - e^ε Q(T) for every event T.
    """
    laws = [(law, n) for law, n in counts.items() if isinstance(law, Law)]
    largest = max(float(law.loss.max()) for law, _ in laws)
    best = 0.0
    for threshold in largest * np.linspace(0.0, 1.0, 100)[1:-1] ** 2:
        none_p = none_q = 0.0
        for law, n in laws:
            beyond = law.loss > threshold
            p, q = (float(x[beyond].sum()) for x in (law.first, law.second))
            none_p += n * math.log1p(-min(p * (1 - law.doubt - 1e-9), 0.5))
            none_q += n * math.log1p(-min(q * (1 + law.doubt + 1e-9), 1 - 1e-12))
        p, q = -math.expm1(none_p) * (1 - 1e-9), -math.expm1(none_q) * (1 + 1e-9)
        if p > delta and q > 1e-280:
            best = max(best, math.log((p - delta) / q) - 1e-9)
    return best


def _composed(
    counts: Mapping[Pair | Law, int], accuracy: float, delta: float | None, epsilon: float | None
) -> Bounds:
    if sum(counts.values()) == 1:
        (law,) = counts
        assert isinstance(law, Law)
        if epsilon is not None:
            return law.profile(epsilon)
        return inverted(law.profile, float(delta or 0.0))
    most = math.fsum(n * varies(pair) for pair, n in counts.items()) * (1 + 1e-9)
    if delta is not None and most <= delta:
        return Bounds(0.0, 0.0)
    searches: list[Search] = []
    for swapped in (False,) if all(pair.two_sided for pair in counts) else (False, True):
        total = Total(counts, swapped=swapped)
        total.work_left = _WORK
        if searches and delta is not None and total.lesser(searches[0].lower, delta):
            break
        search = Search(total, delta=delta, epsilon=epsilon)
        # The direction in which the record is there is nearly always the worse one.
        search.refine(accuracy, beaten_by=max((s.lower for s in searches), default=-1.0))
        searches.append(search)
    upper = max(search.upper for search in searches)
    if epsilon is not None:
        upper = min(upper, most, 1.0)
    return Bounds(max(search.lower for search in searches), upper)


def _hits_epsilon(epoch: Epoch, count: int, delta: float) -> float:
    """A lower bound on ε from the event "in every epoch some round's noise is at least x".

    P gives it at least Φ(distance - x) an epoch, Q at most rounds·Φ(-x).
    """
    best = 0.0
    share = epoch.used / epoch.rounds
    for slack in (-6.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0):
        x = epoch.distance + slack
        if x <= 0:
            continue
        p = math.exp(count * (math.log(share) + float(log_ndtr(-slack)))) * (1 - 1e-9)
        log_q = count * min(0.0, math.log(epoch.used) + log_tail(x) + 1e-9)
        if p > delta and log_q < 0:
            best = max(best, math.log(p - delta) - log_q - 1e-9 * (1 + abs(log_q)))
    return best
