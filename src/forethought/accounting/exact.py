"""Certified ε and δ of a mechanism, as intervals.

For each direction of the dominating pairs (:mod:`forethought.accounting.pld.pairs`) the composed
privacy profile is bounded from both sides (:mod:`forethought.accounting.pld.privacy_loss`), on
finer and finer grids until the ends are close enough. The interval encloses the value of the
dominating pair named by :func:`forethought.accounting.pld.pairs.theorem`; its upper end is always
a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr

from forethought.accounting.interval import Interval
from forethought.accounting.pld.curve import Curve
from forethought.accounting.pld.pairs import parts
from forethought.accounting.pld.privacy_loss import Answer, Composition
from forethought.accounting.pld.profiles import EPS, Pair, Stack
from forethought.mechanism import Mechanism, real, whole

_COARSE = 0.03
_REFINEMENTS = 6
# Nobody needs ε or δ resolved below these, absolutely.
_SMALLEST_EPSILON, _SMALLEST_DELTA = 1e-8, 1e-18


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


@np.errstate(all="ignore")
def privacy_loss(
    mechanism: Mechanism, group: int = 1, *, accuracy: float = 1e-3
) -> list[tuple[Curve, Curve]]:
    """The composed privacy loss distribution, as bounds on the whole profile δ(ε).

    Args:
        mechanism: what is released.
        group: number of records in which neighbouring data sets differ.
        accuracy: wanted relative accuracy of typical losses.

    Returns:
        For each direction of the dominating pair (one where both are the same) a lower and an
        upper :class:`~forethought.accounting.pld.privacy_loss.Curve`. Both hold for every real ε
        and resolve δ down to about 1e-12; use :func:`epsilon` below that.

    Raises:
        UnsupportedMechanismError: no theorem is known for a part of the mechanism.
        ValueError: some round has no noise, so that there is no distribution.
    """
    group, accuracy = _arguments(mechanism, group, accuracy)
    if not _noisy(mechanism):
        raise ValueError(
            "a round without noise (noise_multiplier=0) has no privacy loss distribution: ε is ∞"
        )
    counts = parts(mechanism, group)
    both = all(pair.two_sided for pair in counts)
    curves = []
    for swapped in (False,) if both else (False, True):
        composition = Composition(counts, swapped=swapped)
        mean, variance = composition.spread()
        answer = Answer(0.0, mean, math.log(1e-10))
        step = math.sqrt(4 * accuracy * variance / composition.count)
        curves.append(composition.curves(composition.window(answer, step, accuracy)))
    return curves


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


# What leaves the range of a double is recognised and bounded where it arises.
@np.errstate(all="ignore")
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
    if sum(counts.values()) == 1:
        return Interval(*_single(next(iter(counts)), delta, epsilon))
    # δ(0) is a total variation distance, which adds up over the rounds.
    varies = math.fsum(n * _single(p, None, 0.0).upper for p, n in counts.items()) * (1 + 1e-12)
    if delta is not None and varies <= delta:
        return Interval(0.0, 0.0)
    rough = max(accuracy, _COARSE)
    searches = [_Search(Composition(counts), delta, epsilon)]
    searches[0].refine(rough)
    if not all(pair.two_sided for pair in counts):
        # In the other direction no loss is above this one.
        largest = math.fsum(n * _largest_reverse_loss(p) for p, n in counts.items())
        if largest > (searches[0].lower if epsilon is None else epsilon):
            searches.append(_Search(Composition(counts, swapped=True), delta, epsilon))
            searches[1].refine(rough, beaten_by=searches[0].lower)
    best = max(search.lower for search in searches)
    best = max(best, _by_one_round(counts, delta, epsilon, max(s.upper for s in searches)))
    # Only a direction that may be the worse one needs the full accuracy.
    for search in searches:
        search.refine(accuracy, beaten_by=best)
    upper = max(s.upper for s in searches)
    # Without sampling every round is one Gaussian: looser, and always finite.
    most = math.sqrt(
        math.fsum(
            n * (max(c for c, _ in p.up) + max((c for c, _ in p.down), default=0.0)) ** 2
            for p, n in counts.items()
        )
    )
    if delta is not None:
        upper = min(upper, _gaussian_epsilon(most, delta).upper)
    else:
        upper = min(upper, varies, gaussian_delta(most, float(epsilon or 0.0)).upper)
    return Interval(min(upper, max(best, *(s.lower for s in searches))), upper)


def _by_one_round(
    counts: Mapping[Pair, int], delta: float | None, epsilon: float | None, guess: float
) -> float:
    """A lower bound from the attack "some round's loss is large": sharp where records are rare.

    For the event T that some loss exceeds a threshold, δ(ε) ≥ P(T) - e^ε Q(T).
    """
    best = 0.0
    if not 0 < guess < 600:
        return best
    stacks = [(Stack([pair]), count) for pair, count in counts.items()]
    for threshold in np.geomspace(0.02, 2, 12) * (guess if delta is not None else epsilon or guess):
        idle_p = idle_q = 0.0
        for stack, count in stacks:
            p, q = stack.above(float(threshold))
            idle_p += count * math.log1p(-min(p * (1 - 1e-9), 0.5))
            idle_q += count * math.log1p(-min(q * (1 + 1e-9), 1 - 1e-12))
        p, q = -math.expm1(idle_p) * (1 - 1e-9), -math.expm1(idle_q) * (1 + 1e-9)
        if delta is None:
            best = max(best, p - math.exp(float(epsilon or 0.0)) * q)
        elif p > delta and q > 1e-280:
            best = max(best, math.log((p - delta) / q) - 1e-9)
    return best


def _largest_reverse_loss(pair: Pair) -> float:
    # log Q/P where P is largest beside Q: far left, where only P's idle component is left.
    idle = 1 - math.fsum(w for _, w in pair.up)
    return math.inf if pair.down or pair.symmetric or idle < 1e-6 else -math.log(idle) * (1 + 1e-9)


def _noisy(mechanism: Mechanism) -> bool:
    return all(part.noise_multiplier > 0 for part in mechanism)


class _Search:
    """One direction's bounds on ε or δ, refined step by step."""

    def __init__(
        self, composition: Composition, delta: float | None, epsilon: float | None
    ) -> None:
        self.composition, self.delta, self.epsilon = composition, delta, epsilon
        self.answer = composition.locate(delta=delta, epsilon=epsilon)
        self.lower, self.upper = 0.0, math.inf if epsilon is None else 1.0
        self.step = 0.0
        self.stalls = 0
        self.exhausted = False  # a finer grid gains nothing or does not fit into memory

    def refine(self, accuracy: float, *, beaten_by: float = -1.0) -> None:
        """Halve the grid and halve again until the bounds are ``accuracy`` apart, relatively."""
        for _ in range(_REFINEMENTS):
            width = self.upper - self.lower
            floor = _SMALLEST_EPSILON if self.epsilon is None else _SMALLEST_DELTA
            if (
                self.upper < beaten_by
                or self.exhausted
                or (width <= max(accuracy * self.upper, floor) and width < math.inf)
            ):
                return
            if self.step == 0:
                of_delta = self.epsilon is not None
                self.step = self.composition.step(self.answer, accuracy, of_delta=of_delta)
            else:
                # The gap between the bounds goes with the square of the step.
                wanted = 0.7 * accuracy * self.upper / width if width < math.inf else 0.1
                self.step *= max(0.15, min(0.9, math.sqrt(wanted)))
            self._evaluate(accuracy)
            # At a kink of the profile or the floor of rounding a finer grid gains nothing.
            stalled = self.upper - self.lower > 0.8 * width and width < 0.3 * self.upper
            self.stalls = self.stalls + 1 if stalled else 0
            self.exhausted |= self.stalls > 1

    def _evaluate(self, accuracy: float) -> None:
        window = self.composition.window(self.answer, self.step, accuracy)
        if not math.isfinite(window.high - window.low):
            # δ is too small for a double here: the bounds that need no grid remain.
            self.exhausted = True
            return
        self.exhausted = window.step > 1.01 * self.step
        self.step = window.step
        below, above = self.composition.curves(window)
        if self.delta is not None:
            got = Bounds(below.epsilon(self.delta), above.epsilon(self.delta))
            if 0 < got.upper < math.inf:
                self.answer = self.composition.relocate(self.answer, got.upper, self.delta)
        else:
            wanted = float(self.epsilon or 0.0)
            got = Bounds(below.delta(wanted), above.delta(wanted))
            if got.upper > 0:
                self.answer = self.answer._replace(log_delta=math.log(got.upper))
        self.lower, self.upper = max(self.lower, got.lower), min(self.upper, got.upper)


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
    return _inverted(lambda level: gaussian_delta(distance, level), delta)


def _single(pair: Pair, delta: float | None, epsilon: float | None) -> Bounds:
    """One round: its profile is P(loss > ε) - e^ε Q(loss > ε), with no grid at all."""
    forward = Stack([pair])

    def profile(level: float) -> Bounds:
        ends = [forward.direct(level)]
        if not pair.two_sided:
            ends.append(Stack([pair], swapped=True).direct(level))
        return Bounds(max(e[0] for e in ends), max(e[1] for e in ends))

    if delta is None:
        return profile(float(epsilon or 0.0))
    return _inverted(profile, delta)


def _inverted(profile: Callable[[float], Bounds], delta: float) -> Bounds:
    def smallest(end: int) -> tuple[float, float]:
        # The profile falls with ε, up to rounding: bisection keeps both sides.
        low, high = 0.0, 1.0
        if profile(0.0)[end] <= delta:
            return 0.0, 0.0
        while profile(high)[end] > delta:
            low, high = high, 2 * high
        for _ in range(80):
            middle = (low + high) / 2
            if profile(middle)[end] > delta:
                low = middle
            else:
                high = middle
        return low, high

    return Bounds(smallest(0)[0], smallest(1)[1])
