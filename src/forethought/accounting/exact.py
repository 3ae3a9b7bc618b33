"""Certified ε and δ of a mechanism, as intervals; and the parameters that meet a budget.

For each direction of the dominating pairs (:mod:`forethought.accounting.theorems`), line integrals
of the transform (:mod:`forethought.accounting.line_integral`) bound the composed privacy profile
from both sides. They are refined until the ends are close enough. The interval encloses the ε that
one theorem proves. This is the theorem with the least upper end: that of a dominating pair named by
:func:`forethought.accounting.theorems.theorem`, or that of the Gaussian mechanism at the group's
whole distance. The upper end is always a guarantee.

**Several records, or a replaced one, as a chain of single changes: group privacy.**

Where no amplification theorem covers s changes at once, a theorem for a single change is used s
times. If for every test T one change gives P(T) ≤ e^a R(T) + δ'(a) at every level a, and the next
one R(T) ≤ e^b Q(T) + δ''(b), then P(T) ≤ e^(a+b) Q(T) + δ'(a) + e^a δ''(b): δ(ε) of both changes is
at most the least of δ'(a) + e^a δ''(ε - a) over all levels a. This is the composition of their
trade-off functions (group privacy: Dong, Roth and Su 2022, "Gaussian differential privacy",
Theorem 2.14; with equal levels it is Vadhan's, 2017). Each direction has its own profile: all
records of a group appear, or all disappear. The replacement of a record is two changes under
zero-out: its removal and the insertion of the new one. Levels are taken from a grid; between two of
its points the true δ is convex in e^ε, and so at most the chord. Chains are used for random
allocation, where each record chooses its rounds independently of the others and of all contents.

**Rounds whose likelihood ratios are bounded in convex order.** These are epochs of random
allocation and rounds in which a hit replaces a contribution
(:mod:`forethought.accounting.discrete_ratio`). Each bound, a discrete law of the likelihood ratio,
is composed with all other rounds like a pair: the larger law gives the upper end of the interval,
the smaller law the lower end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from forethought.accounting.discrete_ratio import DisclosedCount, DiscreteRatio, Epoch, varies
from forethought.accounting.dominating_pair import (
    Array,
    Bounds,
    Pair,
    disclosed_epsilon,
    gaussian_delta_bounds,
    gaussian_epsilon_bounds,
    hits_beyond,
    hits_epsilon,
    inverted,
)
from forethought.accounting.interval import Interval, at_most, warn_if_wide
from forethought.accounting.line_integral import (
    SMALLEST,
    Composition,
    Curve,
    DirectionBound,
    HalfLines,
    Parts,
    Profile,
    Search,
    alone,
    exp_or_inf,
    of_one_round,
)
from forethought.accounting.theorems import parts, unsampled_distance
from forethought.values.checks import instance, real, reals, whole
from forethought.values.mechanism import (
    Adjacency,
    Budget,
    Clipping,
    Correlated,
    Mechanism,
    RandomAllocation,
    Rounds,
    Sampling,
    UnsupportedMechanismError,
)
from forethought.values.strategies import Strategy

Curves = Sequence[tuple[Curve, Curve]]
# Number of levels of a chain, and the approximate δ of a single change at the last level.
_LEVELS = 512
_TAIL = 1e-24
_ROUNDING = 1e-12
# Rounding error of a sum of some hundred logarithms below 2,000.
_CHAIN_ROUNDING = 1e-10


def single_changes(mechanism: Mechanism, group: int) -> tuple[Mechanism, int] | None:
    """The mechanism under single changes, and the number of changes; None if no chain is used."""
    allocated = [
        isinstance(part.sampling, RandomAllocation) and min(part.sampling.rounds, part.count) > 1
        for part in mechanism
    ]
    exchanged = mechanism.adjacency == "replace-one"
    if not any(allocated) or (group == 1 and not exchanged):
        return None
    if not exchanged:
        return mechanism, group
    return Mechanism(*mechanism.rounds, adjacency="zero-out"), 2 * group


def log_growth(level: float, steps: int) -> float:
    """log of (e^(steps·level) - 1)/(e^level - 1)."""
    if level < 1e-12:
        return math.log(steps)
    return (steps - 1) * level + math.log(math.expm1(-steps * level) / math.expm1(-level))


class _Proven(NamedTuple):
    """Bounds on log δ of some changes at the levels 0, step, 2 step, ….

    Args:
        step: distance of the levels.
        logs: lower bounds (row 0) and upper bounds (row 1), shape (2, levels).
    """

    step: float
    logs: Array

    def between(self, levels: Array) -> Array:
        """The bounds at ``levels`` ≥ 0, by chords in e^ε; beyond the last level, those at it."""
        ends = np.stack([levels * (1 + _ROUNDING) + _ROUNDING, levels * (1 - _ROUNDING)])
        place = np.minimum(ends / self.step, self.logs.shape[1] - 1)
        before = np.minimum(place.astype(int), self.logs.shape[1] - 2)
        share = np.expm1((place - before) * self.step) / np.expm1(self.step)
        low, high = (
            np.stack([row[at] for row, at in zip(self.logs, before + up, strict=True)])
            for up in (0, 1)
        )
        found = np.logaddexp(low + np.log1p(-np.minimum(share, 1.0)), high + np.log(share))
        return np.asarray(found)

    def then(self, other: _Proven) -> _Proven:
        """These changes followed by others: P(T) ≤ e^a R(T) + …, R(T) ≤ e^b Q(T) + …."""
        outer = self.step * np.arange(self.logs.shape[1])
        total = (self.step + other.step) * np.arange(self.logs.shape[1])
        rest = total[:, None] - outer
        ways = np.logaddexp(self.logs[:, None, :], outer + other.between(np.maximum(rest, 0.0)))
        ways[:, rest < 0] = math.inf
        return _Proven(self.step + other.step, ways.min(axis=2))

    def times(self, count: int) -> _Proven:
        """The bounds of ``count`` such changes in a row."""
        half = self if count == 1 else self.times(count // 2)
        if count == 1:
            return half
        return half.then(half).then(self) if count % 2 else half.then(half)


class Chained:
    """The privacy profile that a chain of single changes proves, for both directions.

    Args:
        curves: the curves of a single change; the direction present against absent comes first.
        group: number of records.
        exchanged: True if each record is replaced: removed and then inserted anew.
    """

    @np.errstate(all="ignore")
    def __init__(self, curves: Curves, group: int, *, exchanged: bool) -> None:
        last = 2.0**-20
        while last < 350 and max(high.delta(last) for _, high in curves) > _TAIL:
            last *= 1.2
        levels = last * (np.arange(_LEVELS + 1) / _LEVELS)
        each = [
            _Proven(last / _LEVELS, np.log([end.deltas(levels) for end in pair])).times(group)
            for pair in curves
        ]
        self._group = group
        self._ways: list[tuple[_Proven, Curves]] = [
            (one, (pair,)) for one, pair in zip(each, curves, strict=True)
        ]
        if exchanged:
            self._ways = [(each[0].then(each[-1]), (curves[0], curves[-1]))]

    @np.errstate(all="ignore")
    def bound(self, epsilon: float, end: int) -> float:
        """δ at ``epsilon`` ≥ 0 is at least this (``end`` 0), or at most (1), by this theorem."""
        found = 0.0
        for proven, turns in self._ways:
            # Equal levels for all changes give a closed bound, without a grid.
            level = epsilon / (self._group * len(turns))
            # A factor that leaves the range of a double counts as ∞ in an upper bound.
            factor = exp_or_inf if end else lambda exponent: math.exp(min(exponent, 700.0))
            each = (
                factor(place * self._group * level + log_growth(level, self._group))
                * pair[end].delta(level)
                for place, pair in enumerate(turns)
            )
            least = math.exp(proven.between(np.array([epsilon]))[end, 0])
            found = max(found, min(least, math.fsum(each)))
        return min(1.0, found * (1 + (_CHAIN_ROUNDING if end else -_CHAIN_ROUNDING)))


Counts = Mapping[Pair | Epoch | DisclosedCount, int]


class Asked(NamedTuple):
    """The requested quantity: ε at ``delta``, or δ at ``epsilon`` if ``delta`` is None."""

    delta: float | None = None
    epsilon: float = 0.0

    @property
    def most(self) -> float:
        """The largest possible answer for any mechanism: 1 for δ, ∞ for ε."""
        return 1.0 if self.delta is None else math.inf

    def of(self, profile: Callable[[float, int], float]) -> Bounds:
        """The answer from a profile (ε, end) → lower (0) or upper (1) bound on δ(ε)."""
        if self.delta is not None:
            return inverted(profile, self.delta)
        return Bounds(profile(self.epsilon, 0), profile(self.epsilon, 1))

    def of_gaussian(self, distance: float) -> Bounds:
        """The answer for N(distance, 1) against N(0, 1)."""
        return self.of(lambda level, end: gaussian_delta_bounds(distance, level)[end])


# Finer laws take longer: for epochs, each step takes four times as long.
_FINENESS = (1.0, 0.5, 0.35)
# The laws are not refined further if the last step left more than this share of the interval.
_HELPED = 0.8
# Share of the accuracy for the integrals of each end; the rest is for the laws.
_LINES_SHARE = 0.4
# If the ends are further apart than this, relatively, finer laws do not help.
_LAWS_SHARE = 0.05
# δ at which two theorems on the same round are compared.
_TYPICAL = 1e-6
# With more kinds of rounds than this, no theorem is chosen for each kind.
_MOST_CHOSEN = 64


def of_ratios(
    counts: Counts, accuracy: float, asked: Asked, *, beaten_by: float = math.inf
) -> Bounds:
    """Bounds on the requested quantity for rounds of which some have laws.

    Args:
        beaten_by: an answer that is certainly above this need not be sharp.
    """
    epochs = [(pair, n) for pair, n in counts.items() if isinstance(pair, Epoch)]
    delta = asked.delta
    lower, upper = 0.0, asked.most
    if delta is not None:
        lower = max((_epoch_hits(epoch, n, delta) for epoch, n in epochs), default=0.0)
    if not all_integrable(counts):
        return Bounds(lower, upper)
    width = math.inf
    for fineness in _FINENESS:
        below, above = (with_ratios(counts, fineness, end) for end in (0, 1))
        lower = max(lower, composed(below, _LINES_SHARE * accuracy, asked).lower)
        if lower >= beaten_by:
            break
        upper = min(upper, composed(above, _LINES_SHARE * accuracy, asked).upper)
        if upper - lower <= accuracy * upper:
            break
        if delta is not None and upper < math.inf:
            laws = {law: n for law, n in below.items() if isinstance(law, DiscreteRatio)}
            largest = max(float(law.loss.max()) for law in laws)
            steps = largest * np.linspace(0.0, 1.0, 100)[1:-1] ** 2
            lower = max(lower, _by_one_round(laws, delta, steps))
        if not epochs and fineness <= 0.5:
            break
        before, width = width, upper - lower
        if width > _HELPED * before:
            break
        if _LAWS_SHARE * upper < upper - lower < math.inf:
            break  # the laws are not the cause of the distance
    return Bounds(lower, upper)


def of_ratios_below(counts: Mapping[Any, int], delta: float) -> float:
    """A lower bound on ε at ``delta`` of rounds of which some are laws; 0 if none is known.

    An epoch is represented by its smaller law in convex order.
    """
    if not all_integrable(counts):
        return 0.0
    return composed(with_ratios(counts, 1.0, 0), 1e-3, Asked(delta)).lower


def all_integrable(counts: Mapping[Any, int]) -> bool:
    """True if a law can be built for each round that needs one, and the others be integrated."""
    return all(map(attrgetter("integrable"), counts))


def only_pairs(counts: Mapping[Any, int]) -> dict[Pair, int] | None:
    """The same counts if no round needs a law; None if some do."""
    found: dict[Pair, int] = {part: n for part, n in counts.items() if isinstance(part, Pair)}
    return found if len(found) == len(counts) else None


def with_ratios(
    counts: Mapping[Any, int], fineness: float, end: int
) -> dict[Pair | DiscreteRatio, int]:
    """The rounds with their laws: the smaller ones in convex order (0), or the larger ones (1)."""
    return {part.ratios(fineness)[end]: n for part, n in counts.items()}


def alternatives(counts: Counts) -> list[Counts]:
    """Sets of pairs that dominate the rounds, the quickest to compose first.

    A round with a disclosed count (:class:`DisclosedCount`) also has a pair of half lines, and
    either may be used for each kind of round. The sets are: half lines for all; disclosed counts
    for all; with two kinds, the two mixed choices; with more kinds, for each kind the one that
    seems to have the smaller moment.
    """
    disclosed = [pair for pair in counts if isinstance(pair, DisclosedCount)]
    if not disclosed:
        return [counts]
    choices = [set(disclosed), set()]
    if len(disclosed) == 2:
        choices += [{pair} for pair in disclosed]
    elif 2 < len(disclosed) <= _MOST_CHOSEN:
        tilt = Composition(with_ratios(counts, 1.0, 1)).locate(delta=_TYPICAL, rough=True).tilt
        choices.append({pair for pair in disclosed if not _cheaper_disclosed(pair, tilt)})
    found: list[Counts] = []
    for plain in choices:
        way: dict[Pair | Epoch | DisclosedCount, int] = {}
        for pair, n in counts.items():
            chosen = pair.otherwise if isinstance(pair, DisclosedCount) and pair in plain else pair
            way[chosen] = way.get(chosen, 0) + n
        if way not in found:
            found.append(way)
    return found


def _cheaper_disclosed(pair: DisclosedCount, tilt: float) -> bool:
    """True if a round's estimated moment at ``tilt`` is at most that by half lines."""
    if not pair.otherwise.integrable:
        return True
    law = pair.ratios(1.0)[1]
    disclosed, plain = (
        max(
            float(Composition({one: 1}, swapped=swapped).cumulant(np.array([tilt]))[0])
            for swapped in (False, True)
        )
        for one in (law, pair.otherwise)
    )
    return disclosed <= plain


def about(counts: Counts, delta: float) -> float:
    """An estimate of ε at ``delta``, as a start of a search; ∞ if nothing is known."""
    if not all_integrable(counts):
        return math.inf
    found = Composition(with_ratios(counts, 1.0, 1)).estimate(delta)
    return found if math.isfinite(found) else math.inf


def _by_one_round(
    counts: Mapping[Pair, int] | Mapping[DiscreteRatio, int], delta: float, thresholds: Array
) -> float:
    """The largest lower bound on ε at ``delta`` from the events "some loss exceeds a threshold".

    δ(ε) ≥ P(T) - e^ε Q(T) for every event T; this one is sharp at low sampling rates.

    Args:
        counts: pair or law → its number of rounds; more rounds may have been released beside them.
        thresholds: the thresholds to try, shape (n,).
    """
    best = 0.0
    rounds = [
        (part if isinstance(part, DiscreteRatio) else HalfLines(part), n, part.doubt)
        for part, n in counts.items()
    ]
    for threshold in thresholds:
        none_p = none_q = 0.0
        for part, n, doubt in rounds:
            p, q = part.above(float(threshold))
            none_p += n * math.log1p(-min(p * (1 - doubt - 1e-9), 0.5))
            none_q += n * math.log1p(-min(q * (1 + doubt + 1e-9), 1 - 1e-12))
        p, q = -math.expm1(none_p) * (1 - 1e-9), -math.expm1(none_q) * (1 + 1e-9)
        if p > delta and q > 1e-280:
            best = max(best, math.log((p - delta) / q) - 1e-9)
    return best


def composed(counts: Parts, accuracy: float, asked: Asked) -> Bounds:
    """Bounds on the requested quantity of composed rounds, as sharp as integrals are."""
    if alone(counts):
        return single_part(next(iter(counts)), asked)
    # δ(0) is a total variation distance, which adds up over the rounds.
    most = math.fsum(n * varies(part) for part, n in counts.items()) * (1 + 1e-12)
    if asked.delta is not None and most <= asked.delta:
        return Bounds(0.0, 0.0)
    upper = min(1.0, most) if asked.delta is None else math.inf
    return searched(counts, accuracy, asked, upper) if all_integrable(counts) else Bounds(0, upper)


def _epoch_hits(epoch: Epoch, count: int, delta: float) -> float:
    """A lower bound on ε from the event "in at least k epochs some round's noise is at least t"."""
    share = epoch.used / epoch.rounds * (1 - 1e-12)
    return hits_beyond(epoch.distance, share, count, delta, places=epoch.used)


_COARSE = 0.03
_LARGEST_DISTANCE = 1e100
_MOST_ATTACKED = 16
_FIXED_POINT = 8
# Fineness of the laws for whole profiles.
_CURVES = 0.5


class CertificateError(ArithmeticError):
    """A lower bound is above an upper one: a defect of the library, never of its input."""


def epsilon(
    mechanism: Mechanism, delta: float, group: int = 1, *, accuracy: float = 1e-3
) -> Interval:
    """The smallest ε ≥ 0 for which the mechanism is (ε, delta)-differentially private.

    Args:
        mechanism: the released rounds.
        delta: in (0, 1).
        group: number of records in which neighbouring data sets differ.
        accuracy: wanted (upper - lower)/upper, in [1e-6, 0.1]. Where rounding or memory does not
            allow it, the interval is wider, and still certified.

    Returns:
        An interval that encloses ε; (∞, ∞) if some round has no noise.

    Raises:
        UnsupportedMechanismError: no theorem is known for a part of the mechanism.
        TypeError, ValueError: an argument is of the wrong kind or out of range.

    >>> from forethought.values.mechanism import Rounds
    >>> from forethought.values.mechanism import Poisson
    >>> epsilon(Mechanism(Rounds(1.1, 14_000, Poisson(0.004))), 1e-5)  # doctest: +SKIP
    Interval(lower=2.2097..., upper=2.2111...)
    """
    group, accuracy = _arguments(mechanism, group, accuracy)
    return enclose(mechanism, group, accuracy, Asked(real("delta", delta, above=0, below=1)))


def delta(
    mechanism: Mechanism, epsilon: float, group: int = 1, *, accuracy: float = 1e-3
) -> Interval:
    """The smallest δ for which the mechanism is (epsilon, δ)-differentially private.

    Args:
        mechanism: the released rounds.
        epsilon: at least 0.
        group: number of records in which neighbouring data sets differ.
        accuracy: wanted (upper - lower)/upper, in [1e-6, 0.1].

    Returns:
        An interval in [0, 1] that encloses δ; (1, 1) if some round has no noise.

    Raises:
        UnsupportedMechanismError: no theorem is known for a part of the mechanism.
        TypeError, ValueError: an argument is of the wrong kind or out of range.
    """
    group, accuracy = _arguments(mechanism, group, accuracy)
    return enclose(mechanism, group, accuracy, Asked(epsilon=real("epsilon", epsilon, least=0)))


def epsilon_curve(
    mechanism: Mechanism,
    delta: float,
    rounds: Sequence[int],
    group: int = 1,
    *,
    accuracy: float = 1e-2,
) -> list[Interval]:
    """ε that a run has spent after each of these numbers of rounds.

    Args:
        mechanism: the whole run.
        delta: in (0, 1).
        rounds: numbers of rounds, each from 0 (nothing released: ε = 0) to len(mechanism).
        group, accuracy: as in :func:`epsilon`; accuracy is 1e-2 by default.

    Returns:
        One interval for each entry of ``rounds``.

    Raises:
        UnsupportedMechanismError, TypeError, ValueError: as in :func:`epsilon`.
    """
    group, accuracy = _arguments(mechanism, group, accuracy)
    asked = Asked(real("delta", delta, above=0, below=1))
    return [
        enclose(mechanism.first(n), group, accuracy, asked) if n else Interval(0.0, 0.0)
        for n in (whole("rounds", n, least=0) for n in rounds)
    ]


@np.errstate(all="ignore")
def estimate(mechanism: Mechanism, delta: float, group: int = 1) -> float:
    """An estimate of ε in a tenth of the time of :func:`epsilon`: a start of a search, no bound.

    Args:
        mechanism: the released rounds.
        delta: in (0, 1).
        group: number of records in which neighbouring data sets differ.

    Raises:
        UnsupportedMechanismError: no theorem is known for a part of the mechanism.
    """
    if not _noisy(mechanism):
        return math.inf
    most = gaussian_epsilon_bounds(unsampled_distance(mechanism, group), delta).upper
    chain = single_changes(mechanism, group)
    if chain is not None:
        # Fixed point: at this level, `chain[1]` equal changes compose to `delta`.
        level = 0.0
        for _ in range(_FIXED_POINT):
            wanted = delta * math.exp(-min(log_growth(level, chain[1]), 600.0))
            level = estimate(chain[0], wanted)
        return min(most, chain[1] * level)
    return min(most, *(about(way, delta) for way in alternatives(parts(mechanism, group))))


@np.errstate(all="ignore")
def privacy_loss(
    mechanism: Mechanism, group: int = 1, *, accuracy: float = 1e-3
) -> list[tuple[Curve, Curve]]:
    """The composed privacy loss distribution, as bounds on the whole profile δ(ε).

    Args:
        mechanism: the released rounds.
        group: number of records in which neighbouring data sets differ.
        accuracy: wanted relative accuracy of δ where it is above 1e-12, in [1e-6, 0.1].

    Returns:
        For each direction (only one if both are the same) a lower and an upper
        :class:`~forethought.accounting.line_integral.Curve`. They bound the pointwise least δ(ε)
        that any theorem proves. Both hold for every real ε and are sharp down to δ = 1e-12; use
        :func:`epsilon` below that.

    Raises:
        UnsupportedMechanismError: no theorem is known for a part of the mechanism, or random
            allocation has so little noise that no law bounds it.
        TypeError, ValueError: an argument is of the wrong kind or out of range, or some round has
            no noise, so that there is no distribution.
    """
    group, accuracy = _arguments(mechanism, group, accuracy)
    if not _noisy(mechanism):
        raise ValueError(
            "a round without noise (noise_multiplier=0) has no privacy loss distribution: ε is ∞"
        )
    counts = parts(mechanism, group)
    if only_pairs(counts) is None and not all_integrable(counts):
        text = "with so little noise random allocation has no curve of its privacy loss"
        raise UnsupportedMechanismError(f"{text}: ask for ε or δ instead")
    cap = Profile({Pair(((unsampled_distance(mechanism, group), 1.0),)): 1}, swapped=False).bound
    known: list[tuple[list[DirectionBound], list[DirectionBound]]] = [([cap], [cap])]
    known += [_profiles(way, accuracy) for way in alternatives(counts)]
    chain = single_changes(mechanism, group)
    if chain is not None:
        changes = _chained(chain[0], mechanism, group, accuracy).bound
        known.append(([changes], [changes]))
    # One direction is enough if both are the same for every theorem. A theorem with one profile
    # uses it for both directions.
    directions = max(len(below) for below, _ in known)
    ends = [
        [[way[end][min(d, len(way[end]) - 1)] for way in known] for d in range(directions)]
        for end in (0, 1)
    ]
    low, high = (
        [Curve(*both, above=end > 0) for both in zip(ways, ways[::-1], strict=True)]
        for end, ways in enumerate(ends)
    )
    return list(zip(low, high, strict=True))


def _profiles(counts: Counts, accuracy: float) -> tuple[list[DirectionBound], list[DirectionBound]]:
    """Lower and upper profiles of each direction by one choice of theorems.

    The lists have one entry if both directions are the same. Without laws the lower and the upper
    list are the same; with laws they rest on the smaller and the larger laws.
    """
    pairs = only_pairs(counts)
    sides = (False,) if pairs and all(pair.two_sided for pair in pairs) else (False, True)
    profiles: list[list[DirectionBound]] = []
    for end in (0, 1) if pairs is None else (0,):
        rounds = with_ratios(counts, _CURVES, end)
        profiles.append([Profile(rounds, swapped=s, accuracy=accuracy).bound for s in sides])
    return profiles[0], profiles[-1]


def _arguments(mechanism: Mechanism, group: int, accuracy: float) -> tuple[int, float]:
    instance("mechanism", mechanism, Mechanism)
    return whole("group", group), real("accuracy", accuracy, least=1e-6, most=0.1)


@lru_cache(maxsize=8192)
def enclose(mechanism: Mechanism, group: int, accuracy: float, asked: Asked) -> Interval:
    """The requested interval, with a reason if it is wide."""
    found = _at_once(mechanism, group, accuracy, asked)
    chain = single_changes(mechanism, group)
    if chain is not None and 0 < found.upper < math.inf:
        with suppress(UnsupportedMechanismError):
            other = asked.of(_chained(chain[0], mechanism, group, accuracy).bound)
            found = Interval(min(found.lower, *other), min(found.upper, other.upper))
    return replace(found, reason=why_wide(mechanism, group, found, accuracy))


def _chained(single: Mechanism, mechanism: Mechanism, group: int, accuracy: float) -> Chained:
    curves = privacy_loss(single, accuracy=accuracy)
    return Chained(curves, group, exchanged=mechanism.adjacency == "replace-one")


def why_wide(
    mechanism: Mechanism, group: int, found: Interval, accuracy: float = 1e-3
) -> str | None:
    """The reason why the ends are wider than ``accuracy`` apart, relatively; None: they are not.

    The difference of two infinite ends is NaN, which is above nothing.
    """
    if not found.upper - found.lower > accuracy * found.upper or found.upper <= SMALLEST:
        return None
    try:
        if single_changes(mechanism, group) is not None:
            return "the changes are charged one by one, as no theorem is known on all at once"
        counts = parts(mechanism, group)
    except (UnsupportedMechanismError, ArithmeticError):
        counts = {}
    if not all_integrable(counts):
        return "the noise is so little beside the clipping norm that no integral is taken"
    return "the work of one search did not suffice to bring both ends together"


# Overflow and underflow are recognised and bounded where they arise.
@np.errstate(all="ignore")
def _at_once(mechanism: Mechanism, group: int, accuracy: float, asked: Asked) -> Interval:
    """The interval by the dominating pairs for all changes at once."""
    if not _noisy(mechanism):
        return Interval(asked.most, asked.most)
    # The bound without amplification: the group is in every batch.
    most = unsampled_distance(mechanism, group)
    counts: Counts = {}
    if most <= _LARGEST_DISTANCE * group or math.isfinite(most * most):
        counts = parts(mechanism, group)
    pairs = only_pairs(counts)
    if pairs and len(pairs) == 1 and next(iter(pairs)).gaussian:
        return Interval(*asked.of_gaussian(next(iter(pairs)).up[0][0]))
    found = _least(counts, accuracy, asked)
    if found.lower > found.upper:
        raise CertificateError(
            f"the bounds contradict each other, a fault of this library: {found} for "
            f"{mechanism!r}, {asked}, {group=}, {accuracy=}. Please report it"
        )
    wanted = asked.delta if found.upper < math.inf else None
    if wanted is not None and gaussian_delta_bounds(most, found.upper).lower > wanted:
        return Interval(*found)
    cap = asked.of_gaussian(most)
    return Interval(min(found.lower, cap.lower), min(found.upper, cap.upper))


def _least(counts: Counts, accuracy: float, asked: Asked) -> Bounds:
    """The bounds of the theorem with the least upper end, where several cover some rounds.

    Disclosed counts and half lines do not dominate each other, and no estimate decides for certain
    which of them gives less. So all are computed, the quickest first.
    """
    found = Bounds(math.inf, math.inf)
    for way in alternatives(counts):
        pairs = only_pairs(way)
        if pairs is None:
            here = of_ratios(way, accuracy, asked, beaten_by=found.upper)
        else:
            here = of_pairs(pairs, accuracy, asked)
        if here.upper < found.upper or found.lower == math.inf:
            found = here
    return found


def of_pairs(counts: Mapping[Pair, int], accuracy: float, asked: Asked) -> Bounds:
    """Bounds on the requested quantity for the composed dominating pairs."""
    delta = asked.delta
    if not counts:
        return Bounds(0.0, asked.most)
    lower, upper = composed(counts, accuracy, asked)
    if upper == math.inf or upper - lower > accuracy * upper:
        # Closed bounds, where the integrals are not accurate enough.
        lower = max(lower, *(floor_of(p, n, asked) for p, n in counts.items()))
        if delta is not None:
            upper = min(upper, disclosed_epsilon(counts, delta))
            if all_integrable(counts) and 0 < upper < 600:
                some = dict(list(counts.items())[:_MOST_ATTACKED])
                lower = max(lower, _by_one_round(some, delta, np.geomspace(0.02, 2, 100) * upper))
    return Bounds(lower, upper)


def searched(counts: Parts, accuracy: float, asked: Asked, upper: float) -> Bounds:
    """Bounds by line integrals; ``upper`` is an upper bound that is already known."""
    delta = asked.delta
    # A coarse line of laws costs nearly as much as a fine one.
    rough = max(accuracy, _COARSE) if only_pairs(counts) else accuracy
    one_sided = not all(pair.two_sided for pair in counts)
    searches = [Search(Composition(counts), *asked)]
    searches[0].refine(accuracy)
    if one_sided:
        # An upper bound on the loss in the other direction.
        largest = math.fsum(n * _largest_reverse_loss(p) for p, n in counts.items())
        if largest > (asked.epsilon if delta is None else searches[0].lower):
            total = Composition(counts, swapped=True)
            first = searches[0]
            if delta is not None and total.lesser(first.lower, delta):
                return Bounds(first.lower, min(upper, first.upper))
            searches.append(Search(total, *asked))
            searches[1].refine(rough, beaten_by=searches[0].lower)
    best = max(search.lower for search in searches)
    # Only a direction that may have the larger answer needs the full accuracy.
    for search in searches:
        search.refine(accuracy, beaten_by=best)
    for search in searches:
        if search.lower > search.upper:
            return Bounds(search.lower, search.upper)
    return Bounds(max(s.lower for s in searches), min(upper, max(s.upper for s in searches)))


def floor_of(pair: Pair, count: int, asked: Asked) -> float:
    """The lower bound that one kind of round proves without an integral."""
    if pair.gaussian:
        return asked.of_gaussian(pair.up[0][0] * math.sqrt(count)).lower
    return 0.0 if asked.delta is None else hits_epsilon(pair, count, asked.delta)


def _largest_reverse_loss(pair: Pair | DiscreteRatio) -> float:
    # The supremum of log Q/P is far left, where only P's idle component remains.
    if isinstance(pair, DiscreteRatio) or pair.down or pair.symmetric or pair.idle < 1e-300:
        return math.inf
    return -math.log(pair.idle) * (1 + 1e-9) + pair.doubt


def _noisy(mechanism: Mechanism) -> bool:
    return all(part.noise_multiplier > 0 for part in mechanism)


def single_part(part: Pair | DiscreteRatio, asked: Asked) -> Bounds:
    """The bounds of one round: its profile is P(loss > ε) - e^ε Q(loss > ε), without a grid."""
    sides = (False,) if part.two_sided else (False, True)
    ways = [of_one_round(part, swapped=side) for side in sides]
    return asked.of(lambda level, end: max(way(level)[end] for way in ways))


# Solve for any one unknown so that the certified ε meets a budget.


# Most steps of the secant search with estimates, and of its correction with certified values.
_STEPS, _ATTEMPTS = 12, 4
_APART = 0.02


def calibrate(
    make_mechanism: Callable[[float], Mechanism],
    budget: Budget,
    bracket: tuple[float, float],
    *,
    tolerance: float = 1e-3,
    integer: bool = False,
    group: int = 1,
    warn: bool = True,
) -> float:
    """The value in ``bracket`` at which the mechanism just meets the budget.

    ε may increase or decrease with the value; the ends of the bracket show which.

    Args:
        make_mechanism: the unknown (noise multiplier, rounds, rate, epochs, …) → mechanism; ε must
            be monotone in it.
        budget: the target. The certified upper end of ε is at most ``budget.epsilon``.
        bracket: two values, 0 ≤ low < high, of which one meets the budget and the other does not.
        tolerance: the certified ε is at least (1 - tolerance) of the budget if the unknown is
            continuous; in (0, 0.1]. Where ε jumps, the place is found to a thousandth of it.
        integer: True if the unknown is an integer; the result is the last that meets the budget.
        group: number of records in which neighbouring data sets differ.
        warn: False if the caller itself warns of a wide interval.

    Returns:
        The value, as a float; with ``integer`` it has no fractional part.

    Raises:
        TypeError: ``budget`` is not a Budget, or ``bracket`` is not numbers.
        ValueError: another bracket, or both of its ends meet the budget, or neither does.
        UnsupportedMechanismError: as in :func:`forethought.accounting.exact.epsilon`.

    Warns:
        UserWarning: the interval of ε at the result is wider than usual; the message says why.

    >>> from forethought.values.mechanism import FullBatch
    >>> def once(sigma: float) -> Mechanism:
    ...     return Mechanism(Rounds(sigma, 1, FullBatch()))
    >>> sigma = calibrate(once, Budget(1, 1e-5), (0.5, 50))
    >>> round(sigma, 2)
    3.73
    """
    instance("budget", budget, Budget)
    tolerance = real("tolerance", tolerance, above=0, most=0.1)
    ends = reals("end of the bracket", bracket, least=0)
    if len(ends) != 2 or not ends[0] < ends[1]:
        raise ValueError(f"bracket must be two numbers, the smaller one first, not {bracket!r}")
    low, high = ends
    if integer:
        low, high = float(math.ceil(low)), float(math.floor(high))
        if low > high:
            raise ValueError(f"the bracket {bracket} holds no whole number: widen it")

    def spent(value: float) -> float:
        # The accuracy is that of a Statement: by a sharper bound, a mechanism could meet the budget
        # and its Statement still exceed it. A coarser bound is hardly faster.
        return epsilon(make_mechanism(value), budget.delta, group).upper

    found = None
    if not integer:
        found = _near_estimate(make_mechanism, spent, budget, (low, high), tolerance, group)
    if found is None:
        found = _searched(spent, budget, (low, high), tolerance, integer=integer)
    if warn:
        warn_if_wide(epsilon(make_mechanism(found), budget.delta, group))
    return found


def _searched(
    spent: Callable[[float], float],
    budget: Budget,
    bracket: tuple[float, float],
    tolerance: float,
    *,
    integer: bool,
) -> float:
    """The value that just meets the budget, by a search in the bracket."""
    low, high = bracket
    ends = (spent(low), spent(high))
    meets = [end <= budget.epsilon for end in ends]
    if meets[0] == meets[1]:
        which = "both meet it" if meets[0] else "neither meets it"
        raise ValueError(
            f"no solution in the bracket ({low:g}, {high:g}): ε is {at_most(ends[0])} and "
            f"{at_most(ends[1])} at its ends for {budget}; {which}. Widen the bracket"
        )
    # `good` meets the budget, `bad` does not. ε is close to a power of the unknown.
    good, bad = (low, high) if meets[0] else (high, low)
    at_good, at_bad = ends if meets[0] else ends[::-1]
    target = budget.epsilon * (1 - tolerance / 2)
    for step in range(200):
        # Between values so near, the proven bound jumps: a sharper line was too much work.
        finished = abs(good - bad) <= (1 if integer else 1e-3 * tolerance * max(good, bad))
        if finished or (not integer and at_good >= budget.epsilon * (1 - tolerance)):
            break
        # Every fourth step halves the bracket, so that a kink cannot stall the search; all late
        # ones do, as ε jumps then.
        value = _between(good, bad, at_good, at_bad, target, bisect=step % 4 == 3 or step > 12)
        if integer:
            value = float(min(max(round(value), min(good, bad) + 1), max(good, bad) - 1))
        got = spent(value)
        if got <= budget.epsilon:
            good, at_good = value, got
        else:
            bad, at_bad = value, got
    return good


def _near_estimate(
    make_mechanism: Callable[[float], Mechanism],
    spent: Callable[[float], float],
    budget: Budget,
    bracket: tuple[float, float],
    tolerance: float,
    group: int,
    start: float | None = None,
) -> float | None:
    """A value that certifiably just meets the budget, from a start by estimates.

    None if that takes more than a few attempts; the caller then searches the bracket.
    """
    low, high = bracket
    target = math.log(budget.epsilon * (1 - tolerance / 2))

    def roughly(x: float) -> float:
        value = estimate(make_mechanism(math.exp(x)), budget.delta, group)
        return math.log(value) if 0 < value < math.inf else math.nan

    if low <= 0:
        return None
    ends = (math.log(low), math.log(high))
    # ε is close to a power of the unknown.
    x = sum(ends) / 2 if start is None else math.log(start)
    step = min(0.1, (ends[1] - ends[0]) / 4)
    at = roughly(x)
    slope = (roughly(x + step) - at) / step
    for _ in range(_STEPS):
        if not (math.isfinite(slope) and slope != 0):
            return None
        following = min(max(x + (target - at) / slope, ends[0]), ends[1])
        before, x = (x, at), following
        if abs(x - before[0]) < 1e-3:
            break
        at = roughly(x)
        if abs(x - before[0]) > _APART:  # closer points measure the estimate's own jumps
            slope = (at - before[1]) / (x - before[0])
    known: list[tuple[float, float]] = []
    for _ in range(_ATTEMPTS):
        got = spent(math.exp(x))
        if budget.epsilon * (1 - tolerance) <= got <= budget.epsilon:
            return math.exp(x)
        if not 0 < got < math.inf:
            return None
        known.append((x, math.log(got)))
        if len(known) > 1 and known[-1][0] != known[-2][0]:
            secant = (known[-1][1] - known[-2][1]) / (known[-1][0] - known[-2][0])
            slope = secant if secant * slope > 0 else slope
        x = x + (target - known[-1][1]) / slope
        if not ends[0] <= x <= ends[1]:
            return None
    return None


def _between(
    good: float, bad: float, at_good: float, at_bad: float, target: float, *, bisect: bool
) -> float:
    logs = good > 0 and bad > 0
    x, y = (math.log(good), math.log(bad)) if logs else (good, bad)
    share = 0.5
    if not bisect and at_good > 0 and at_bad < math.inf:
        u, v = math.log(at_good), math.log(at_bad)
        if v > u:
            share = min(0.98, max(0.02, (math.log(target) - u) / (v - u)))
    point = x + share * (y - x)
    return math.exp(point) if logs else point


def noise_multiplier(
    budget: Budget,
    sampling: Sampling,
    rounds: int,
    clipping: Clipping = "example",
    adjacency: Adjacency = "add-or-remove",
    strategy: Strategy | None = None,
    group: int = 1,
    *,
    warn: bool = True,
) -> float:
    """The smallest noise multiplier, within 0.1 % of ε, with which the rounds meet the budget.

    Args:
        budget: the target ε and δ.
        sampling, rounds, clipping: as of :class:`~forethought.values.mechanism.Rounds`.
        adjacency: the neighbouring relation.
        strategy: correlation of the noise over the rounds; None: it is independent.
        group: number of records in which neighbouring data sets differ.
        warn: False if the caller itself warns of a wide interval.

    Raises:
        UnsupportedMechanismError: no theorem is known for the combination.
        TypeError: ``budget`` is not a Budget.
        ValueError: no noise multiplier up to 1e9 meets the budget, or already one below 1e-3 does.

    Warns:
        UserWarning: the interval of ε at the result is wider than usual; the message says why.
    """
    instance("budget", budget, Budget)

    def make(sigma: float) -> Mechanism:
        release = Rounds(sigma, rounds, sampling, clipping)
        if strategy is not None:
            release = Correlated(sigma, rounds, sampling, clipping, strategy)
        return Mechanism(release, adjacency=adjacency)

    def spent(sigma: float) -> float:
        return epsilon(make(sigma), budget.delta, group).upper

    found = _near_estimate(make, spent, budget, (1e-3, 1e9), 1e-3, group, start=1.0)
    if found is None:
        bracket = _bracket(spent, budget, rounds)
        found = _searched(spent, budget, bracket, 1e-3, integer=False)
    if warn:
        warn_if_wide(epsilon(make(found), budget.delta, group))
    return found


def _bracket(spent: Callable[[float], float], budget: Budget, rounds: int) -> tuple[float, float]:
    """Two noise multipliers: one that does not meet the budget, and a larger one that does."""
    high = 1.0
    while spent(high) > budget.epsilon:
        high *= 3
        if high > 1e9:
            raise ValueError(f"no noise multiplier up to 1e9 meets {budget} over {rounds} rounds")
    low = high / 3
    while spent(low) <= budget.epsilon:
        low /= 2
        if low < 1e-3:
            text = (
                f"{budget} over {rounds} rounds is met with a noise multiplier of {low:g} already"
            )
            raise ValueError(f"{text}: the budget asks for no noise worth the name")
    return low, high
