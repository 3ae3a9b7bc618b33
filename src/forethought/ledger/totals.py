"""Rules by which an account's charges add up: whole numbers, in any order, with exact refunds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtr

from forethought.accounting import exact
from forethought.accounting.adaptive import Selection, Trials, best_of_profile, limit_of
from forethought.accounting.dominating_pair import (
    Array,
    gaussian_delta_above,
    gaussian_delta_below,
    gaussian_epsilon,
    gaussian_mu,
)
from forethought.accounting.interval import reached
from forethought.accounting.renyi import LIFT, RenyiCurve, rdp
from forethought.accounting.theorems import unsampled_distance
from forethought.ledger.book import Account, Charge
from forethought.values.checks import one_of, real, settle, whole, without_none
from forethought.values.mechanism import (
    ADJACENCIES,
    Adjacency,
    Budget,
    Mechanism,
    UnsupportedMechanismError,
)
from forethought.values.serialisation import entries, exact_keys

Sums = tuple[int, ...]

# A budget's limit is divided into so many units; a cost is rounded up by at most 1e-15 of it.
WHOLE = 2**50
# A cost of at least this counts as infinite; sums of 1,000 such costs fit into 64 bits.
MOST = 2**53
_ROUNDING = 1 + 1e-12


@dataclass(frozen=True)
class TotalRule:
    """A rule that adds up the charges to one account; fixed when the account is opened.

    Args:
        budget: the account's budget.
        adjacency: the adjacency of every mechanism that is charged.
    """

    KIND: ClassVar[str]

    budget: Budget
    adjacency: Adjacency = "add-or-remove"

    @staticmethod
    def of(account: Account, kind: str | None = None, blocks: int | None = None) -> TotalRule:
        """The rule of a new account.

        Args:
            kind: a key of :data:`RULES`; None: the rule that covers most kinds of charges.
            blocks: of a :class:`ClockRule`; None: its default.

        Raises:
            ValueError: no such rule, ``blocks`` with a rule that refunds round by round, or an ε
                above 1,000.
        """
        real("epsilon", account.budget.epsilon, most=1000)  # far beyond it, numbers overflow
        chosen = DEFAULT if kind is None else kind
        one_of("rule", chosen, tuple(RULES))
        if blocks is not None and chosen != ClockRule.KIND:
            raise ValueError(f"the rule {chosen!r} returns round by round: leave blocks out")
        more: dict[str, Any] = without_none({"blocks": blocks})
        return RULES[chosen](account.budget, account.adjacency, **more)

    def to_dict(self) -> dict[str, Any]:
        """The rule as JSON values; :meth:`from_dict` reads them back."""
        found: dict[str, Any] = {"kind": self.KIND}
        for name, value in entries(self).items():
            found |= value if name in _PARTS else {name: value}
        return found

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> TotalRule:
        """The inverse of :meth:`to_dict`. Raises ValueError for anything else."""
        known = dict(values)
        kind = known.pop("kind", None)
        one_of("rule", kind, tuple(RULES))
        names = {one.name for one in fields(RULES[kind])}
        held = {name: {one.name for one in fields(_PARTS[name])} for name in names & _PARTS.keys()}
        exact_keys(f"{kind} rule", known, (names - held.keys()).union(*held.values()))
        one_of("adjacency", known["adjacency"], ADJACENCIES)
        if "order" in known:
            real("order", known["order"], above=1)
        parts = {at: _PARTS[at](**{name: known.pop(name) for name in held[at]}) for at in held}
        return RULES[kind](**known, **parts)

    @property
    def nothing(self) -> Sums:
        """The sums of an account without a charge."""
        return (0,)

    def costs(self, charge: Charge, rounds: int | None = None) -> Sums:
        """The amounts that a charge adds to the sums, in whole units, rounded up.

        Args:
            rounds: number of rounds that were released; None: the whole charge.

        Raises:
            UnsupportedMechanismError: another adjacency, or no theorem covers the charge.
            ValueError: more rounds than the charge has.
        """
        mechanism = charge.mechanism
        if mechanism.adjacency != self.adjacency:
            raise UnsupportedMechanismError(
                f"the account is kept under adjacency {self.adjacency!r}, the charge is stated "
                f"under {mechanism.adjacency!r}: plan it with adjacency={self.adjacency!r}"
            )
        if charge.partition is not None and self.adjacency == "replace-one":
            raise UnsupportedMechanismError(
                "a replaced record may come to be in another part, so that parts add up under "
                "adjacency 'replace-one': charge without a partition, or open the account under "
                "'add-or-remove'"
            )
        length, found = charge.rounds, charge.selection
        released = length if rounds is None else whole("rounds", rounds, least=0, most=length)
        if not released:
            return self.nothing
        made = (mechanism,) if found is None else sum(found.of_a_record, ())
        if any(part.noise_multiplier == 0 for one in made for part in one):
            return (MOST,) * len(self.nothing)
        if found is not None:
            return self._searched(found)
        return self._costs(mechanism, charge.group, released)

    def _costs(self, mechanism: Mechanism, group: int, rounds: int) -> Sums:
        raise NotImplementedError

    def _searched(self, selection: Selection) -> Sums:
        raise UnsupportedMechanismError(
            f"a private search is no Gaussian release, which is all that the rule {self.KIND!r} of "
            "this account adds up: open an account with the rule 'clock' or 'renyi', or train one "
            "plan"
        )

    def fits(self, sums: Sequence[int]) -> bool:
        """True if all charges together keep the budget."""
        return all(spent <= WHOLE for spent in sums)

    def epsilon(self, sums: Sequence[int]) -> float:
        """The smallest ε, at the δ of the account's budget, that these sums keep; rounded up."""
        raise NotImplementedError

    def total_epsilon(self, sums: Sequence[int]) -> float:
        """The same, but never above the budget's ε where the sums fit."""
        return min(self.epsilon(sums), self.budget.epsilon if self.fits(sums) else math.inf)

    @property
    def limit(self) -> float:
        """The largest amount that keeps the budget, in the rule's own unit."""
        raise NotImplementedError

    def left(self, sums: Sequence[int]) -> float:
        """The largest ε at the account's δ of one more Gaussian release that fits; at least 0."""
        rest = max(0, WHOLE - sums[0]) / WHOLE * self.limit / _ROUNDING
        return gaussian_epsilon(self.budget.delta, self._mu(rest)) / _ROUNDING

    def _mu(self, amount: float) -> float:
        """μ of the Gaussian release that costs so much."""
        return math.sqrt(amount)

    def more(self, sums: Sequence[int], charge: Charge) -> int:
        """The number of further charges like this one that fit; at most 10⁹."""
        pairs = zip(sums, self.costs(charge), strict=True)
        return min(10**9, *(max(0, WHOLE - spent) // max(1, cost) for spent, cost in pairs))

    def total(self, whole: Sequence[int], parts: Mapping[str, Sequence[int]]) -> Sums:
        """The sums of the record with the largest charges.

        Args:
            whole: sums of the charges to all records.
            parts: ``"scheme=part"`` → sums of the charges to that part alone. Of each scheme, the
                worst part counts, separately for each number of the sums.
        """
        worst: dict[str, Sums] = {}
        for partition, sums in parts.items():
            scheme = partition.split("=", 1)[0]
            before = worst.get(scheme, self.nothing)
            worst[scheme] = tuple(map(max, before, sums))
        return tuple(map(sum, zip(whole, *worst.values(), strict=True)))


def _units(cost: float, limit: float) -> int:
    """A cost in units of a limit, rounded up."""
    share = cost / limit * _ROUNDING if limit > 0 else math.inf
    return MOST if share >= MOST / WHOLE else math.ceil(share * WHOLE)


def _value(units: int, limit: float) -> float:
    return math.inf if units >= MOST else units / WHOLE * limit * _ROUNDING


@dataclass(frozen=True)
class GaussianRule(TotalRule):
    """Σ μ² of Gaussian releases; a sampled round counts as if it held every record.

    Source: Smith and Thakurta 2022; :class:`~forethought.accounting.adaptive.GaussianFilter`.
    """

    KIND: ClassVar[str] = "gaussian"

    @property
    def limit(self) -> float:
        """The largest Σ μ² that keeps the budget."""
        return gaussian_mu(self.budget.epsilon, self.budget.delta) ** 2

    def _costs(self, mechanism: Mechanism, group: int, rounds: int) -> Sums:
        distance = unsampled_distance(mechanism.first(rounds), group)
        return (_units(distance**2, self.limit),)

    def epsilon(self, sums: Sequence[int]) -> float:
        spent = _value(sums[0], self.limit)
        return spent if math.isinf(spent) else gaussian_epsilon(self.budget.delta, math.sqrt(spent))


@dataclass(frozen=True)
class RenyiRule(TotalRule):
    """Rényi divergence at one order, fixed when the account is opened.

    Source: Feldman and Zrnic 2021, Theorem 4.3.

    Args:
        order: above 1; 0: the best order for Gaussian releases that use up the budget.
    """

    KIND: ClassVar[str] = "renyi"

    order: float = 0.0

    def __post_init__(self) -> None:
        settle(self, order=real("order", self.order or _order(self.budget), above=1))

    @property
    def limit(self) -> float:
        """The largest divergence that keeps the budget."""
        return limit_of(self.order, self.budget.epsilon, self.budget.delta)

    def _costs(self, mechanism: Mechanism, group: int, rounds: int) -> Sums:
        made = mechanism.first(rounds)
        # If every batch holds the whole group, the run is never better (joint convexity).
        value = self.order * unsampled_distance(made, group) ** 2 / 2
        if group == 1:
            value = min(value, rdp(made, (self.order,)).values[0])
        return (_units(value * LIFT, self.limit),)

    def _searched(self, selection: Selection) -> Sums:
        return (_units(selection.divergence(self.order) * LIFT, self.limit),)

    def epsilon(self, sums: Sequence[int]) -> float:
        spent = _value(sums[0], self.limit)
        return RenyiCurve((self.order,), (spent,)).epsilon(self.budget.delta)

    def _mu(self, amount: float) -> float:
        return math.sqrt(2 * amount / self.order)


@lru_cache(maxsize=64)
def _order(budget: Budget) -> float:
    orders = [1 + 2 ** (x / 8) for x in range(-24, 81)]
    return max(orders, key=lambda order: limit_of(order, budget.epsilon, budget.delta) / order)


# Sizes of the clock's jumps, in hundredths of its even growth, → the part that each may add to the
# moment that decides ε at δ: enough for the tails of sampled rounds, and little compared with 1.
_ADDED = {2: 0.04, 5: 0.08, 12: 0.04, 40: 0.04}
_HUNDREDTHS = 100
# The share of δ that is the probability of a leap to ∞.
_LEAPS = 5e-4
# Jumps of more hundredths in total count as a leap.
_FURTHEST = 400
_NEGLIGIBLE = 1e-26
_KNOTS = 160
# Possible ends of the knots. Stored charges are compared with results of these numbers.
_ENDS: Array = np.cumprod(np.array([2.0**-10, *[1.1] * 133]))


@dataclass(frozen=True)
class Clock:
    """A random clock whose path is published and independent of the data; it reads a variance, μ².

    From time 0 to 1 it grows evenly by ``variance`` and makes jumps at random times. With a
    probability that is a small part of δ, it leaps to ∞. The release of a time interval is a
    Gaussian release of the variance that the clock has advanced; after a leap, it discloses
    everything. The release is the same in both directions of adjacency.

    Args:
        variance: the even growth until time 1.
        steps: (size in hundredths of ``variance``, expected number until time 1) of the jumps.
        leaps: expected number of leaps until time 1.
    """

    variance: float
    steps: tuple[tuple[int, float], ...]
    leaps: float

    def __post_init__(self) -> None:
        real("variance", self.variance, above=0)
        settle(self, steps=tuple((size, rate) for size, rate in self.steps))
        for size, rate in self.steps:
            whole("size of a step", size)
            real("number of steps", rate, least=0)
        real("leaps", self.leaps, least=0)

    @classmethod
    def suited(cls, budget: Budget) -> Clock:
        """The clock for an account's budget: its release until time 1 keeps the budget."""
        pure = gaussian_mu(budget.epsilon, budget.delta) ** 2
        # The tilt under which the mean privacy loss of a Gaussian release is ε.
        tilt = max(0.5, (budget.epsilon - pure / 2) / pure)
        moment = pure * tilt * (tilt + 1) / 2
        steps = tuple(
            (size, added / math.expm1(moment * size / _HUNDREDTHS))
            for size, added in _ADDED.items()
        )

        def exceeds(variance: float) -> bool:
            clock = cls(variance, steps, _LEAPS * budget.delta)
            return clock.above(1.0, budget.epsilon) > budget.delta

        high = smallest(exceeds, 0.0, pure)
        return cls(high * (1 - 1e-9), steps, _LEAPS * budget.delta)

    # Cached, since the bisection of a total reads one clock at one time again and again.
    @lru_cache(maxsize=64)  # noqa: B019 (at most so many clocks stay)
    def readings(self, time: float) -> tuple[Array, Array]:
        """The possible readings after ``time`` and their probabilities, without negligible ones.

        The probabilities come from Panjer's recursion, in which no term is negative.
        """
        law = [math.exp(-time * math.fsum([self.leaps, *(rate for _, rate in self.steps)]))]
        for at in range(1, _FURTHEST + 1):
            terms = [size * rate * law[at - size] for size, rate in self.steps if at >= size]
            law.append(time / at * math.fsum(terms))
        odds = np.array(law)
        kept = np.flatnonzero(odds > _NEGLIGIBLE)
        return self.variance * (time + kept / _HUNDREDTHS), odds[kept]

    def leapt(self, time: float) -> float:
        """The probability of a leap until ``time``."""
        return -math.expm1(-time * self.leaps)

    def above(self, time: float, epsilon: float) -> float:
        """Upper end of δ at ``epsilon`` of the release in ``time``."""
        return float(self.deltas(time, np.array([epsilon]))[0])

    def deltas(self, time: float, epsilons: Array) -> Array:
        """Upper ends of δ, at each ε, of the release in ``time``."""
        readings, odds = self.readings(time)
        deltas = gaussian_delta_above(epsilons[:, None], np.sqrt(readings * _ROUNDING)) @ odds
        lost = self.leapt(time) + _left_out(self, time)
        return np.minimum(1.0, (deltas + lost) * _ROUNDING)

    def below(self, time: float, epsilons: Array) -> tuple[Array, Array]:
        """Lower end of δ at each ε of the release in ``time``, and its slope against e^ε."""
        readings, odds = self.readings(time)
        sizes = np.sqrt(readings / _ROUNDING)
        deltas = gaussian_delta_below(epsilons[:, None], sizes) @ odds
        slopes = ndtr(-sizes / 2 - epsilons[:, None] / sizes) @ odds
        return (deltas + self.leapt(time)) / _ROUNDING, -slopes


@lru_cache(maxsize=64)
def _left_out(clock: Clock, time: float) -> float:
    """An upper bound on the probability of the readings left out: Chernoff's bound."""
    tilts = np.linspace(0.0, 0.5, 51)
    grown = sum(time * rate * np.expm1(tilts * size) for size, rate in clock.steps)
    return math.exp(float(np.min(grown - tilts * _FURTHEST))) + _FURTHEST * _NEGLIGIBLE


@dataclass(frozen=True)
class ClockRule(TotalRule):
    """A charge costs the time that a clock needs until its release dominates the charge's.

    The total time is 1. Even if charges are chosen by results, all their releases are a function
    of one path of the clock's release until time 1, which keeps the budget:
    docs/ledger_theorems.md. A Gaussian release costs its μ² over the clock's even growth; a sampled
    one costs hardly more than its share of the exact composition.

    Args:
        clock: None: the clock for the budget (:meth:`Clock.suited`).
        blocks: number of parts of a run that are charged separately, so that parts that were never
            begun are refunded when the run stops. With 1, a sampled run that has begun gets no
            refund, since its releases may be the reason why it stopped; this costs least. 0: for
            each run the largest of 8, 4 or 2 that costs at most 3 % more, which depends on its plan
            only.
    """

    KIND: ClassVar[str] = "clock"

    clock: Clock = None  # type: ignore[assignment]  # set below
    blocks: int = 1

    def __post_init__(self) -> None:
        if self.clock is None:
            settle(self, clock=Clock.suited(self.budget))
        whole("blocks", self.blocks, least=0, most=100)
        if not self.clock.above(1.0, self.budget.epsilon) <= self.budget.delta:
            raise ValueError(
                f"the rule 'clock' does not keep ε {self.budget.epsilon:g} at δ "
                f"{self.budget.delta:g}: it takes a δ from 1e-22, and an ε from 0.0001 and from "
                "ten times δ; choose them so, or take the rule 'gaussian' (--rule gaussian)"
            )

    def _costs(self, mechanism: Mechanism, group: int, rounds: int) -> Sums:
        if not any(part.sampling.hides(part.sampling.rounds_per_epoch) for part in mechanism):
            # The even growth alone dominates Gaussian releases, round by round.
            return (_even(self.clock, mechanism.first(rounds), group),)
        parts = _blocks(self.clock, mechanism, group, self.blocks or 1)
        if not self.blocks:
            ways = (_blocks(self.clock, mechanism, group, n) for n in _BLOCKS)
            most = _DEARER * parts[0][1]
            parts = next((cut for cut in ways if sum(cost for _, cost in cut) <= most), parts)
        return (min(MOST, sum(cost for start, cost in parts if start < rounds)),)

    def _searched(self, selection: Selection) -> Sums:
        # The worst kind of record counts.
        return (max(_best_time(self.clock, k, selection.trials) for k in selection.of_a_record),)

    def epsilon(self, sums: Sequence[int]) -> float:
        time = _value(sums[0], 1.0)
        if not 0 < time < math.inf:
            return time
        return reached(lambda e: self.clock.above(time, e) > self.budget.delta, 0.0, 1e-6)[1]

    @property
    def limit(self) -> float:
        """The even growth of the clock, a variance."""
        return self.clock.variance


def smallest(
    holds: Callable[[float], bool], low: float, high: float, within: float = 1e-12
) -> float:
    """Upper end of a bisection bracket for the smallest value at which ``holds`` is true."""
    while high - low > within * high:
        # The geometric mean, while the ends are far apart.
        far = 0 < 4 * low < high
        middle = math.sqrt(low * high) if far else 0.5 * (low + high)
        if not low < middle < high or high < 1e-18:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _even(clock: Clock, mechanism: Mechanism, group: int) -> int:
    """The cost as if every batch held the whole group; with sampling, a run costs no more."""
    return _units(unsampled_distance(mechanism, group) ** 2, clock.variance)


# The numbers of blocks that are tried, largest first, and the factor by which they may cost more.
_BLOCKS, _DEARER = (8, 4, 2), 1.03


@lru_cache(maxsize=4096)
def _blocks(
    clock: Clock, mechanism: Mechanism, group: int, blocks: int
) -> tuple[tuple[int, int], ...]:
    """First rounds and costs of a charge's blocks; one block if it cannot be divided."""
    length = len(mechanism)
    starts = sorted({length * block // blocks for block in range(blocks)})
    try:
        cut = [
            (mechanism.after(start) if start else mechanism).first(end - start)
            for start, end in pairwise([*starts, length])
        ]
    except UnsupportedMechanismError:
        starts, cut = [0], [mechanism]
    return tuple((at, least_time(clock, part, group)) for at, part in zip(starts, cut, strict=True))


@lru_cache(maxsize=4096)
def least_time(clock: Clock, mechanism: Mechanism, group: int) -> int:
    """The least time, in units, whose release dominates a mechanism's; within 1e-6 of it."""
    even = _even(clock, mechanism, group)
    try:
        ends = [above for _, above in exact.privacy_loss(mechanism, group)]
    except UnsupportedMechanismError:
        # A theorem covers it, since the distance is known, but there is no privacy curve.
        return even

    def most(levels: Array) -> Array:
        return np.max([end.deltas(levels) for end in ends], axis=0) * _ROUNDING

    return min(even, _dominating(clock, most))


def _dominating(clock: Clock, most: Callable[[Array], Array]) -> int:
    """The least time, in units, whose release dominates a profile; MOST if none is found.

    Args:
        most: upper ends of the profile, the maximum of both directions, at ε of at least 0.
    """
    zero, longest = np.zeros(1), MOST / WHOLE
    at_zero = float(most(zero)[0])
    low = smallest(lambda t: bool(clock.below(t, zero)[0][0] >= at_zero), 0.0, longest, 1e-6)
    low *= 1 - 2e-6
    far = most(_ENDS) <= clock.leapt(low)
    knots = np.linspace(0.0, _ENDS[int(np.argmax(far)) if far.any() else -1], _KNOTS)
    profile = most(knots)

    def dominates(t: float) -> bool:
        # Beyond the last knot the profile only falls, while the probability of a leap is constant.
        if clock.leapt(t) < profile[-1] * _ROUNDING:
            return False
        return above_chords(np.exp(knots), profile, *clock.below(t, knots))

    high = smallest(dominates, low, longest, 1e-6)
    return _units(high, 1.0) if dominates(high) else MOST


# Numbers of trials up to this are computed one by one; above it, numbers within this factor of each
# other count as the largest of them.
_APART, _TOGETHER = 24, 1.08
# The probability of more trials than are summed up; they count as a disclosure.
_UNLIKELY = 1e-14


@lru_cache(maxsize=256)
def _best_time(clock: Clock, mechanisms: Sequence[Mechanism], trials: Trials) -> int:
    """The time of the best of a random number of trials, each of any of the mechanisms.

    Two profiles hold, and so does the smaller one at each level: the theorem's on the best trial,
    which is trivial at low ε; and that of showing all trials. The clock releases each trial in some
    time, so that k of them take k times that time.
    """
    each = max(least_time(clock, mechanism, 1) for mechanism in mechanisms)
    if each >= MOST:
        return MOST
    best, shown = best_of_profile(mechanisms, trials), _trials_shown(trials)

    def most(levels: Array) -> Array:
        together = np.zeros(len(levels))
        for number, chance in shown:
            time = _value(min(MOST, number * each), 1.0)
            # A trial count that takes twice the whole clock counts as a disclosure.
            together += chance * (clock.deltas(time, levels) if time < 2 else 1.0)
        missed = max(0.0, 1 - math.fsum(chance for _, chance in shown)) + _UNLIKELY
        return np.minimum(best(levels), np.minimum(1.0, together + missed)) * _ROUNDING

    return _dominating(clock, most)


def _trials_shown(trials: Trials) -> list[tuple[int, float]]:
    """Numbers of trials with upper bounds of their probabilities, few of them."""
    most = 64
    while True:
        odds = trials.probabilities(most)
        if 1 - math.fsum(odds) < _UNLIKELY or most >= 2**16:
            break
        most *= 2
    first = most + 1 - len(odds)
    found, at = [], 0
    while at < len(odds):
        number = first + at
        end = at + 1 if number <= _APART else max(at + 1, math.floor(number * _TOGETHER) - first)
        found.append((first + min(end, len(odds)) - 1, math.fsum(odds[at:end])))
        at = end
    return found


def above_chords(places: Array, chords: Array, values: Array, slopes: Array) -> bool:
    """True if one convex function is above the chords of another one everywhere.

    Both profiles are convex in e^ε: the second is at most its chords, the first at least its
    tangents.

    Args:
        places: e^ε of the knots, increasing.
        chords: the second function's values there.
        values, slopes: the first function's values and slopes there.
    """
    above = values - chords
    if not np.all(above >= 0):
        return False
    wide = np.diff(places)
    rise = np.diff(chords) / wide
    left, right = slopes[:-1] - rise, slopes[1:] - rise
    # If the difference first falls and then rises, its least value is where the tangents meet.
    dips = (left < 0) & (right > 0)
    lowest, highest = above[:-1][dips], above[1:][dips]
    left, right = left[dips], right[dips]
    meet = (highest - lowest - right * wide[dips]) / (left - right)
    return bool(np.all(lowest + left * meet >= 0))


RULES: dict[str, type[TotalRule]] = {
    rule.KIND: rule for rule in (ClockRule, GaussianRule, RenyiRule)
}
DEFAULT = ClockRule.KIND
# Fields of rules whose own fields stand among the rule's in JSON.
_PARTS: dict[str, type[Any]] = {"budget": Budget, "clock": Clock}
