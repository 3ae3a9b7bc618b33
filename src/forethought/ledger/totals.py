"""Rules by which an account's charges add up: whole numbers, in any order, with exact refunds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtr

from forethought.accounting import exact
from forethought.accounting.adaptive import limit_of
from forethought.accounting.dominating_pair import (
    Array,
    gaussian_delta_above,
    gaussian_delta_below,
    gaussian_epsilon,
    gaussian_mu,
)
from forethought.accounting.renyi import LIFT, RenyiCurve, rdp
from forethought.accounting.theorems import unsampled_distance
from forethought.ledger.book import Account, Charge
from forethought.values.checks import one_of, real, whole
from forethought.values.mechanism import (
    ADJACENCIES,
    Adjacency,
    Budget,
    Mechanism,
    UnsupportedMechanismError,
)
from forethought.values.serialisation import exact_keys

Sums = tuple[int, ...]

# A limit is so many units: a cost is rounded up by a part of 1e-15 of the budget.
WHOLE = 2**50
# A cost of at least this is not told apart from an infinite one; sums of 1,000 fit into 64 bits.
MOST = 2**53
_ROUNDING = 1 + 1e-12


@dataclass(frozen=True)
class TotalRule:
    """The way in which charges to one account add up; chosen when it is opened, and never changed.

    Args:
        budget: of the account. adjacency: of every mechanism that is charged.
    """

    KIND: ClassVar[str]

    budget: Budget
    adjacency: Adjacency = "add-or-remove"

    @staticmethod
    def of(account: Account, kind: str | None = None) -> TotalRule:
        """The rule of a new account.

        Args:
            kind: one of :data:`RULES`; None: the one that fits most kinds of charges.
        """
        chosen = DEFAULT if kind is None else kind
        one_of("rule", chosen, tuple(RULES))
        return RULES[chosen](account.budget, account.adjacency)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; :meth:`from_dict` reads it back."""
        budget = {"epsilon": self.budget.epsilon, "delta": self.budget.delta}
        return {"kind": self.KIND, **budget, "adjacency": self.adjacency, **self._own()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> TotalRule:
        """The inverse of :meth:`to_dict`. Raises ValueError for anything else."""
        values = dict(values)
        kind = values.pop("kind", None)
        one_of("rule", kind, tuple(RULES))
        common = {"epsilon", "delta", "adjacency"}
        exact_keys("rule", {key: values[key] for key in common & values.keys()}, common)
        one_of("adjacency", values["adjacency"], ADJACENCIES)
        budget = Budget(values["epsilon"], values["delta"])
        own = {key: value for key, value in values.items() if key not in common}
        return RULES[kind]._restore(budget, values["adjacency"], own)

    def _own(self) -> dict[str, Any]:
        return {}

    @classmethod
    def _restore(cls, budget: Budget, adjacency: Adjacency, own: dict[str, Any]) -> TotalRule:
        exact_keys(f"{cls.KIND} rule", own, set())
        return cls(budget, adjacency)

    @property
    def nothing(self) -> Sums:
        """The sums of an account without a charge."""
        return (0,)

    def costs(self, charge: Charge, rounds: int | None = None) -> Sums:
        """The amounts that a charge adds to the sums, in whole units, rounded up.

        Args:
            rounds: those that were released; None: the whole charge.

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
        length = len(mechanism)
        released = length if rounds is None else whole("rounds", rounds, least=0, most=length)
        if not released:
            return self.nothing
        if any(part.noise_multiplier == 0 for part in mechanism):
            return (MOST,) * len(self.nothing)
        return self._costs(mechanism, charge.group, released)

    def _costs(self, mechanism: Mechanism, group: int, rounds: int) -> Sums:
        raise NotImplementedError

    def fits(self, sums: Sequence[int]) -> bool:
        """True if everything charged keeps the budget."""
        return all(spent <= WHOLE for spent in sums)

    def epsilon(self, sums: Sequence[int]) -> float:
        """The ε at the account's δ of the budget that these sums would just have kept."""
        raise NotImplementedError

    def left(self, sums: Sequence[int]) -> float:
        """The largest ε at the account's δ of one more Gaussian release that fits; at least 0."""
        raise NotImplementedError

    def more(self, sums: Sequence[int], charge: Charge) -> int:
        """The number of charges like this one that still fit; at most 10⁹."""
        counts = [
            10**9 if not cost else max(0, WHOLE - spent) // cost
            for spent, cost in zip(sums, self.costs(charge), strict=True)
        ]
        return min(*counts, 10**9) if self.fits(sums) else 0

    def total(self, whole: Sequence[int], parts: Mapping[str, Sequence[int]]) -> Sums:
        """The sums of the record that most is charged to.

        Args:
            whole: of what touched all records.
            parts: ``"scheme=part"`` → sums of what touched that part alone. The worst part of
                each scheme counts, number by number.
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
    """Σ μ² of Gaussian releases; a sampled round counts as one that holds every record.

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

    def left(self, sums: Sequence[int]) -> float:
        rest = max(0, WHOLE - sums[0]) / WHOLE * self.limit / _ROUNDING
        return gaussian_epsilon(self.budget.delta, math.sqrt(rest)) / _ROUNDING


@dataclass(frozen=True)
class RenyiRule(TotalRule):
    """Rényi divergence at one order that is fixed when the account is opened.

    Source: Feldman and Zrnic 2021, Theorem 4.3.

    Args:
        order: above 1; None: the best for Gaussian releases that use up the budget.
    """

    KIND: ClassVar[str] = "renyi"

    order: float = 0.0

    def __post_init__(self) -> None:
        order = self.order or _order(self.budget)
        object.__setattr__(self, "order", real("order", order, above=1))

    def _own(self) -> dict[str, Any]:
        return {"order": self.order}

    @classmethod
    def _restore(cls, budget: Budget, adjacency: Adjacency, own: dict[str, Any]) -> TotalRule:
        exact_keys("renyi rule", own, {"order"})
        return cls(budget, adjacency, real("order", own["order"], above=1))

    @property
    def limit(self) -> float:
        """The largest divergence that keeps the budget."""
        return limit_of(self.order, self.budget.epsilon, self.budget.delta)

    def _costs(self, mechanism: Mechanism, group: int, rounds: int) -> Sums:
        made = mechanism.first(rounds)
        # Every batch holding the whole group is never better (joint convexity).
        value = self.order * unsampled_distance(made, group) ** 2 / 2
        if group == 1:
            value = min(value, rdp(made, (self.order,)).values[0])
        return (_units(value * LIFT, self.limit),)

    def epsilon(self, sums: Sequence[int]) -> float:
        spent = _value(sums[0], self.limit)
        return RenyiCurve((self.order,), (spent,)).epsilon(self.budget.delta)

    def left(self, sums: Sequence[int]) -> float:
        rest = max(0, WHOLE - sums[0]) / WHOLE * self.limit / _ROUNDING
        mu = math.sqrt(2 * rest / self.order)
        return gaussian_epsilon(self.budget.delta, mu) / _ROUNDING


@lru_cache(maxsize=64)
def _order(budget: Budget) -> float:
    orders = [1 + 2 ** (x / 8) for x in range(-24, 81)]
    return max(orders, key=lambda order: limit_of(order, budget.epsilon, budget.delta) / order)


# Sudden steps of the clock, in hundredths of its even course, and what each may add to the moment
# that ε at δ hangs on: enough for the tails of sampled rounds, and little beside 1.
_ADDED = {2: 0.04, 5: 0.08, 12: 0.04, 40: 0.04}
_HUNDREDTHS = 100
# The leaps' share of δ.
_LEAPS = 5e-4
# Sudden steps of more hundredths together count as a leap.
_FURTHEST = 400
_NEGLIGIBLE = 1e-26
_KNOTS = 160
# Where knots end at last, and by what factor the end is looked for.
_FARTHEST, _FARTHER = 300.0, 1.1


@dataclass(frozen=True)
class Clock:
    """A clock that is told, and that the data does not move; its reading is a variance, μ².

    From 0 to 1 it grows evenly by ``variance``, by sudden steps now and then, and with a chance
    that is a small part of δ it leaps to ∞. What is released in some time is a Gaussian release of
    what it has advanced; after a leap, everything. Both directions of it are alike.

    Args:
        variance: of the even course.
        steps: (size in hundredths of ``variance``, expected number until 1) of sudden steps.
        leaps: expected number of leaps until 1.
    """

    variance: float
    steps: tuple[tuple[int, float], ...]
    leaps: float

    def __post_init__(self) -> None:
        real("variance", self.variance, above=0)
        for size, rate in self.steps:
            whole("size of a step", size)
            real("number of steps", rate, least=0)
        real("leaps", self.leaps, least=0)

    @classmethod
    def suited(cls, budget: Budget) -> Clock:
        """The one of an account's budget: what it releases until 1 keeps it."""
        pure = gaussian_mu(budget.epsilon, budget.delta) ** 2
        # The tilt under which a Gaussian release's loss is ε on average.
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

    def readings(self, time: float) -> tuple[Array, Array]:
        """Its possible readings after ``time``, and their chances; unlikely ones are left out.

        Panjer's recursion: no term is negative.
        """
        return _readings(self, time)

    def _left_out(self, time: float) -> float:
        """At most this is the mass of the readings that are left out: Chernoff's bound."""
        return _left_out(self, time)

    def leapt(self, time: float) -> float:
        """The chance of a leap."""
        return -math.expm1(-time * self.leaps)

    def above(self, time: float, epsilon: float) -> float:
        """δ at ``epsilon`` of what is released in ``time``: an upper end."""
        readings, odds = self.readings(time)
        deltas = gaussian_delta_above(epsilon, np.sqrt(readings * _ROUNDING))
        lost = self.leapt(time) + self._left_out(time)
        return min(1.0, (float(odds @ deltas) + lost) * _ROUNDING)

    def below(self, time: float, epsilons: Array) -> tuple[Array, Array]:
        """δ at each ε, a lower end, and its slope against e^ε."""
        readings, odds = self.readings(time)
        sizes = np.sqrt(readings / _ROUNDING)
        deltas = gaussian_delta_below(epsilons[:, None], sizes) @ odds
        slopes = ndtr(-sizes / 2 - epsilons[:, None] / sizes) @ odds
        return (deltas + self.leapt(time)) / _ROUNDING, -slopes


# A total reads one clock at one time, at every step of its bisection.
@lru_cache(maxsize=64)
def _readings(clock: Clock, time: float) -> tuple[Array, Array]:
    law = [math.exp(-time * math.fsum([clock.leaps, *(rate for _, rate in clock.steps)]))]
    for at in range(1, _FURTHEST + 1):
        terms = [size * rate * law[at - size] for size, rate in clock.steps if at >= size]
        law.append(time / at * math.fsum(terms))
    odds = np.array(law)
    kept = np.flatnonzero(odds > _NEGLIGIBLE)
    return clock.variance * (time + kept / _HUNDREDTHS), odds[kept]


@lru_cache(maxsize=64)
def _left_out(clock: Clock, time: float) -> float:
    tilts = np.linspace(0.0, 0.5, 51)
    grown = sum(time * rate * np.expm1(tilts * size) for size, rate in clock.steps)
    return math.exp(float(np.min(grown - tilts * _FURTHEST))) + _FURTHEST * _NEGLIGIBLE


@dataclass(frozen=True)
class ClockRule(TotalRule):
    """A charge costs the time that a clock takes until its release dominates the charge's.

    The time is 1 in all. However charges are chosen by results, all that they show is then a
    function of one path of the clock's release until 1, which keeps the budget:
    docs/ledger_theorems.md. Gaussian releases cost their μ² of the even course, and sampled ones
    hardly more than they add to the exact composition.

    Args:
        clock: None: the one that is suited to the budget.
        blocks: so many parts of a run are charged one by one, so that those which were never begun
            return when it stops. With 1 a sampled run that has begun returns nothing, since what it
            showed may be the reason why it stopped; it costs least.
    """

    KIND: ClassVar[str] = "clock"

    clock: Clock = None  # type: ignore[assignment]  # set below
    blocks: int = 1

    def __post_init__(self) -> None:
        if self.clock is None:
            object.__setattr__(self, "clock", Clock.suited(self.budget))
        whole("blocks", self.blocks, most=100)
        if not self.clock.above(1.0, self.budget.epsilon) <= self.budget.delta:
            raise ValueError("what this clock releases until 1 does not keep the account's budget")

    def _own(self) -> dict[str, Any]:
        clock = self.clock
        steps = {"variance": clock.variance, "steps": list(map(list, clock.steps))}
        return {**steps, "leaps": clock.leaps, "blocks": self.blocks}

    @classmethod
    def _restore(cls, budget: Budget, adjacency: Adjacency, own: dict[str, Any]) -> TotalRule:
        exact_keys("clock rule", own, {"variance", "steps", "leaps", "blocks"})
        steps = tuple((size, rate) for size, rate in own["steps"])
        clock = Clock(own["variance"], steps, own["leaps"])
        return cls(budget, adjacency, clock, own["blocks"])

    def _costs(self, mechanism: Mechanism, group: int, rounds: int) -> Sums:
        if not any(part.sampling.hides(part.sampling.rounds_per_epoch) for part in mechanism):
            # The even course alone dominates Gaussian releases, round by round.
            return (_even(self.clock, mechanism.first(rounds), group),)
        parts = _blocks(self.clock, mechanism, group, self.blocks)
        return (min(MOST, sum(cost for start, cost in parts if start < rounds)),)

    def epsilon(self, sums: Sequence[int]) -> float:
        time = _value(sums[0], 1.0)
        if not 0 < time < math.inf:
            return time
        high = 1e-6
        while self.clock.above(time, high) > self.budget.delta:
            high *= 2
        return smallest(lambda level: self.clock.above(time, level) <= self.budget.delta, 0.0, high)

    def left(self, sums: Sequence[int]) -> float:
        rest = max(0, WHOLE - sums[0]) / WHOLE * self.clock.variance / _ROUNDING
        return gaussian_epsilon(self.budget.delta, math.sqrt(rest)) / _ROUNDING


def smallest(
    holds: Callable[[float], bool], low: float, high: float, within: float = 1e-12
) -> float:
    """Upper end of the bisection bracket of the smallest value at which ``holds`` turns true."""
    while high - low > within * high:
        # Halves of the exponent where the ends are far apart.
        far = 0 < 4 * low < high
        middle = math.sqrt(low * high) if far else 0.5 * (low + high)
        if not low < middle < high or high < 1e-18:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _even(clock: Clock, mechanism: Mechanism, group: int) -> int:
    """The cost with every batch holding the whole group: no sampling makes a run worse."""
    return _units(unsampled_distance(mechanism, group) ** 2, clock.variance)


@lru_cache(maxsize=4096)
def _blocks(
    clock: Clock, mechanism: Mechanism, group: int, blocks: int
) -> tuple[tuple[int, int], ...]:
    """First rounds and costs of a charge's blocks; one block where it cannot be cut."""
    length = len(mechanism)
    starts = sorted({length * block // blocks for block in range(blocks)})
    try:
        cut = [_between(mechanism, *ends) for ends in pairwise([*starts, length])]
    except UnsupportedMechanismError:
        starts, cut = [0], [mechanism]
    return tuple((at, least_time(clock, part, group)) for at, part in zip(starts, cut, strict=True))


def _between(mechanism: Mechanism, start: int, end: int) -> Mechanism:
    return (mechanism.after(start) if start else mechanism).first(end - start)


@lru_cache(maxsize=4096)
def least_time(clock: Clock, mechanism: Mechanism, group: int) -> int:
    """The least time, in units, whose release dominates a mechanism's; within 1e-6 of it."""
    even = _even(clock, mechanism, group)
    try:
        ends = [above for _, above in exact.privacy_loss(mechanism, group)]
    except UnsupportedMechanismError:
        # Some theorem covers it, as the distance is known, but there is no curve.
        return even

    def most(level: float) -> float:
        return max(end.delta(level) for end in ends) * _ROUNDING

    zero, longest = np.zeros(1), MOST / WHOLE
    at_zero = most(0.0)
    low = smallest(lambda t: bool(clock.below(t, zero)[0][0] >= at_zero), 0.0, longest, 1e-6)
    low *= 1 - 2e-6
    last = 2.0**-10
    while most(last) > clock.leapt(low) and last < _FARTHEST:
        last *= _FARTHER
    knots = np.linspace(0.0, last, _KNOTS)
    profile = np.array([most(level) for level in knots])

    def dominates(t: float) -> bool:
        # Beyond the last knot the profile only falls, and the chance of a leap stays.
        if clock.leapt(t) < profile[-1] * _ROUNDING:
            return False
        return above_chords(np.exp(knots), profile, *clock.below(t, knots))

    high = smallest(dominates, low, longest, 1e-6)
    return min(even, _units(high, 1.0)) if dominates(high) else even


def above_chords(places: Array, chords: Array, values: Array, slopes: Array) -> bool:
    """True if a convex function is above the chords of another one, not only where they end.

    Both profiles are convex in e^ε: one is at most its chords, the other at least its tangents.

    Args:
        places: e^ε. chords: of the one there. values, slopes: of the other.
    """
    above = values - chords
    if not np.all(above >= 0):
        return False
    wide = np.diff(places)
    rise = np.diff(chords) / wide
    left, right = slopes[:-1] - rise, slopes[1:] - rise
    # Where the difference falls first and then rises, it is least where both tangents meet.
    dips = (left < 0) & (right > 0)
    lowest, highest = above[:-1][dips], above[1:][dips]
    left, right = left[dips], right[dips]
    meet = (highest - lowest - right * wide[dips]) / (left - right)
    return bool(np.all(lowest + left * meet >= 0))


RULES: dict[str, type[TotalRule]] = {
    rule.KIND: rule for rule in (ClockRule, GaussianRule, RenyiRule)
}
DEFAULT = ClockRule.KIND
