"""Certified ε and δ of a mechanism, as intervals.

For each direction of the dominating pairs (:mod:`forethought.accounting.pairs`) the composed
privacy profile is bounded from both sides (:mod:`forethought.accounting.privacy_loss`), on finer
and finer grids until the ends are close enough. The interval encloses the value of the dominating
pair named by :func:`forethought.accounting.pairs.theorem`; its upper end is always a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from scipy.special import log_ndtr

from forethought.accounting.interval import Interval
from forethought.accounting.pairs import parts
from forethought.accounting.privacy_loss import Answer, Composition
from forethought.accounting.profiles import EPS, Pair
from forethought.mechanism import Mechanism, real, whole

_COARSE = 0.03
_REFINEMENTS = 6


class Bounds(NamedTuple):
    """A quantity's lower and upper bound while it is being refined."""

    lower: float
    upper: float


def epsilon(
    mechanism: Mechanism, delta: float, group: int = 1, *, accuracy: float = 1e-3
) -> Interval:
    """The smallest ε ≥ 0 for which the mechanism is (ε, delta)-differentially private.

    Args:
        mechanism: what is released.
        delta: in (0, 1).
        group: number of records in which neighbouring data sets differ.
        accuracy: wanted (upper - lower)/upper, in [1e-6, 0.1]. Where rounding or memory does not
            allow it, the interval is wider, and still certain.

    Returns:
        An interval that encloses ε; (∞, ∞) where some round has no noise.

    Raises:
        UnsupportedMechanismError: no theorem is known for a part of the mechanism.
        TypeError, ValueError: an argument is of the wrong kind or out of range.

    >>> from forethought.mechanism import Poisson, Rounds
    >>> epsilon(Mechanism(Rounds(1.1, 14_000, Poisson(0.004))), 1e-5)  # doctest: +SKIP
    Interval(lower=2.2097..., upper=2.2111...)
    """
    group, accuracy = _arguments(mechanism, group, accuracy)
    return _epsilon(mechanism, real("delta", delta, above=0, below=1), group, accuracy)


def delta(
    mechanism: Mechanism, epsilon: float, group: int = 1, *, accuracy: float = 1e-3
) -> Interval:
    """The smallest δ for which the mechanism is (epsilon, δ)-differentially private.

    Args:
        mechanism: what is released.
        epsilon: at least 0.
        group: number of records in which neighbouring data sets differ.
        accuracy: wanted (upper - lower)/upper, in [1e-6, 0.1].

    Returns:
        An interval in [0, 1]; (1, 1) where some round has no noise.

    Raises:
        UnsupportedMechanismError: no theorem is known for a part of the mechanism.
        TypeError, ValueError: an argument is of the wrong kind or out of range.
    """
    group, accuracy = _arguments(mechanism, group, accuracy)
    return _delta(mechanism, real("epsilon", epsilon, least=0), group, accuracy)


def epsilon_curve(
    mechanism: Mechanism,
    delta: float,
    rounds: Sequence[int],
    group: int = 1,
    *,
    accuracy: float = 1e-2,
) -> list[Interval]:
    """ε after each of these numbers of rounds: what a run has spent so far.

    Args:
        mechanism: the whole run.
        delta: in (0, 1).
        rounds: prefixes, each from 0 (nothing released: ε = 0) to len(mechanism).
        group, accuracy: as in :func:`epsilon`.
    """
    group, accuracy = _arguments(mechanism, group, accuracy)
    delta = real("delta", delta, above=0, below=1)
    return [
        _epsilon(mechanism.first(n), delta, group, accuracy) if n else Interval(0.0, 0.0)
        for n in (whole("rounds", n, least=0) for n in rounds)
    ]


def _arguments(mechanism: Mechanism, group: int, accuracy: float) -> tuple[int, float]:
    if not isinstance(mechanism, Mechanism):
        raise TypeError(f"mechanism must be a Mechanism, not {type(mechanism).__name__}")
    return whole("group", group), real("accuracy", accuracy, least=1e-6, most=0.1)


@lru_cache(maxsize=4096)
def _epsilon(mechanism: Mechanism, delta: float, group: int, accuracy: float) -> Interval:
    return _enclose(mechanism, group, accuracy, delta=delta)


@lru_cache(maxsize=4096)
def _delta(mechanism: Mechanism, epsilon: float, group: int, accuracy: float) -> Interval:
    return _enclose(mechanism, group, accuracy, epsilon=epsilon)


def _enclose(
    mechanism: Mechanism,
    group: int,
    accuracy: float,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
) -> Interval:
    counts = parts(mechanism, group) if _noisy(mechanism) else None
    if counts is None:
        return Interval(math.inf, math.inf) if delta is not None else Interval(1.0, 1.0)
    if len(counts) == 1 and next(iter(counts)).gaussian:
        distance = next(iter(counts)).up[0][0]
        bounds = (
            _gaussian_epsilon(distance, delta)
            if delta is not None
            else gaussian_delta(distance, float(epsilon or 0.0))
        )
        return Interval(*bounds)
    directions = [Composition(counts)]
    if not all(pair.two_sided for pair in counts):
        directions.append(Composition(counts, swapped=True))
    answers = [c.locate(delta=delta, epsilon=epsilon) for c in directions]
    found = []
    for i, composition in enumerate(directions):
        bounds, answers[i] = _refine(
            composition, answers[i], max(accuracy, _COARSE), delta, epsilon
        )
        found.append(bounds)
    best = max(bounds.lower for bounds in found)
    # Only a direction that may be the worse one needs the full accuracy.
    if accuracy < _COARSE:
        for i, bounds in enumerate(found):
            if bounds.upper >= best:
                finer, _ = _refine(directions[i], answers[i], accuracy, delta, epsilon)
                found[i] = Bounds(max(bounds.lower, finer.lower), min(bounds.upper, finer.upper))
    return Interval(max(b.lower for b in found), max(b.upper for b in found))


def _noisy(mechanism: Mechanism) -> bool:
    return all(part.noise_multiplier > 0 for part in mechanism)


def _refine(
    composition: Composition,
    answer: Answer,
    accuracy: float,
    delta: float | None,
    epsilon: float | None,
) -> tuple[Bounds, Answer]:
    step = composition.step(answer, accuracy, of_delta=epsilon is not None)
    best = Bounds(0.0, math.inf if epsilon is None else 1.0)
    for _ in range(_REFINEMENTS):
        window = composition.window(answer, step, accuracy)
        below, above = composition.curves(window)
        if delta is not None:
            got = Bounds(below.epsilon(delta), above.epsilon(delta))
            if 0 < got.upper < math.inf:
                answer = composition.relocate(answer, got.upper, delta)
        else:
            wanted = float(epsilon or 0.0)
            got = Bounds(below.delta(wanted), above.delta(wanted))
            if got.upper > 0:
                answer = answer._replace(log_delta=math.log(got.upper))
        better = Bounds(max(best.lower, got.lower), min(best.upper, got.upper))
        width = better.upper - better.lower
        if width <= accuracy * better.upper:
            return better, answer
        best = better
        step *= max(0.2, 0.6 * math.sqrt(accuracy * better.upper / width))
    return best, answer


def gaussian_delta(distance: float, epsilon: float) -> Bounds:
    """δ(ε) of N(distance, 1) against N(0, 1) (Balle and Wang 2018, Theorem 8).

    The ends are the floating-point value moved by a bound on its rounding error.
    """
    a = distance / 2 - epsilon / distance
    b = -distance / 2 - epsilon / distance
    log_p, log_q = float(log_ndtr(a)), float(log_ndtr(b))
    gap = epsilon + log_q - log_p  # log of what is taken away from 1
    noise = 16 * EPS * (1 + abs(epsilon) + abs(log_p) + abs(log_q) + a * a + b * b)
    value = -math.expm1(min(gap, 0.0))
    scale = math.exp(log_p)
    return Bounds(
        min(1.0, max(0.0, scale * (1 - noise) * (value - noise))),
        min(1.0, scale * (1 + noise) * (value + noise)),
    )


def _gaussian_epsilon(distance: float, delta: float) -> Bounds:
    def smallest(end: int) -> tuple[float, float]:
        # gaussian_delta falls with ε, up to rounding: bisection keeps both sides.
        low, high = 0.0, 1.0
        if gaussian_delta(distance, 0.0)[end] <= delta:
            return 0.0, 0.0
        while gaussian_delta(distance, high)[end] > delta:
            low, high = high, 2 * high
        for _ in range(80):
            middle = (low + high) / 2
            if gaussian_delta(distance, middle)[end] > delta:
                low = middle
            else:
                high = middle
        return low, high

    return Bounds(smallest(0)[0], smallest(1)[1])
