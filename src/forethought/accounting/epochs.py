"""Certified ε and δ where epochs of random allocation are among the rounds.

An epoch's likelihood ratio is bounded in convex order from both sides
(:mod:`forethought.accounting.pld.allocation`), and each bound is composed with all other rounds
like any pair: from the larger law comes the upper end, from the smaller one the lower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from scipy.special import log_ndtr

from forethought.accounting.limits import Bounds, inverted, log_tail, total_variation
from forethought.accounting.pld.allocation import (
    LARGEST_DISTANCE,
    MOST_ROUNDS,
    Epoch,
    epoch_laws,
)
from forethought.accounting.pld.contour import Total
from forethought.accounting.pld.law import Law
from forethought.accounting.pld.pair import Pair
from forethought.accounting.pld.search import Search

Counts = Mapping[Pair | Epoch, int]
# The finer the laws, the longer they take: each step four times as long.
_FINENESS = (1.0, 0.5)
# What the ends of an epoch's law are worth at the default accuracy.
_WANTED = 5e-3


def of_epochs(
    counts: Counts, accuracy: float, delta: float | None, epsilon: float | None
) -> Bounds:
    """Bounds on ε at ``delta``, or on δ at ``epsilon``, of composed pairs and epochs."""
    epochs = [(pair, n) for pair, n in counts.items() if isinstance(pair, Epoch)]
    lower, upper = 0.0, math.inf if delta is not None else 1.0
    if delta is not None:
        lower = max(_hits_epsilon(epoch, n, delta) for epoch, n in epochs)
    if any(e.distance > LARGEST_DISTANCE or e.rounds > MOST_ROUNDS for e, _ in epochs):
        return Bounds(lower, upper)
    for fineness in _FINENESS:
        below, above = (_with_laws(counts, fineness, end) for end in (0, 1))
        upper = min(upper, _composed(above, accuracy, delta, epsilon).upper)
        lower = max(lower, _composed(below, accuracy, delta, epsilon).lower)
        if upper - lower <= max(accuracy, _WANTED) * upper:
            break
    return Bounds(lower, upper)


def _with_laws(counts: Counts, fineness: float, end: int) -> dict[Pair | Law, int]:
    return {
        (epoch_laws(pair, fineness)[end] if isinstance(pair, Epoch) else pair): n
        for pair, n in counts.items()
    }


def _composed(
    counts: Mapping[Pair | Law, int], accuracy: float, delta: float | None, epsilon: float | None
) -> Bounds:
    if sum(counts.values()) == 1:
        (law,) = counts
        assert isinstance(law, Law)
        if epsilon is not None:
            return law.profile(epsilon)
        return inverted(law.profile, float(delta or 0.0))
    varies = math.fsum(n * _varies(pair) for pair, n in counts.items()) * (1 + 1e-9)
    if delta is not None and varies <= delta:
        return Bounds(0.0, 0.0)
    searches: list[Search] = []
    for swapped in (False, True):
        search = Search(Total(counts, swapped=swapped), delta=delta, epsilon=epsilon)
        # The direction in which the record is there is nearly always the worse one.
        search.refine(accuracy, beaten_by=max((s.lower for s in searches), default=-1.0))
        searches.append(search)
    upper = max(search.upper for search in searches)
    if epsilon is not None:
        upper = min(upper, varies, 1.0)
    return Bounds(max(search.lower for search in searches), upper)


def _varies(pair: Pair | Law) -> float:
    """An upper bound on δ(0) of one round."""
    return pair.profile(0.0).upper if isinstance(pair, Law) else total_variation(pair)


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
