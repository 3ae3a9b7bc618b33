"""Rules by which an account's charges add up: whole numbers, in any order, with exact refunds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from forethought.accounting.adaptive import limit_of
from forethought.accounting.closed_bounds import gaussian_epsilon, gaussian_mu
from forethought.accounting.renyi import LIFT, RenyiCurve, rdp
from forethought.accounting.theorems import unsampled_distance
from forethought.ledger.book import Account, Charge
from forethought.values.checks import one_of, real
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
# A cost of at least this is not told apart from an infinite one; sums of 4,000 fit into 64 bits.
MOST = 2**51
_ROUNDING = 1 + 1e-12


@dataclass(frozen=True)
class Rule:
    """How charges to one account add up; chosen when it is opened, and never changed.

    Args:
        budget: of the account. adjacency: of every mechanism that is charged.
    """

    KIND: ClassVar[str]

    budget: Budget
    adjacency: Adjacency = "add-or-remove"

    @staticmethod
    def of(account: Account, kind: str | None = None) -> Rule:
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
    def from_dict(values: Mapping[str, Any]) -> Rule:
        """The inverse of :meth:`to_dict`. Raises ValueError for anything else."""
        values = dict(values)
        kind = values.pop("kind", None)
        one_of("rule", kind, tuple(RULES))
        return RULES[kind]._restore(values)

    def _own(self) -> dict[str, Any]:
        return {}

    @classmethod
    def _restore(cls, values: dict[str, Any]) -> Rule:
        exact_keys("rule", values, {"epsilon", "delta", "adjacency"})
        return cls(Budget(values["epsilon"], values["delta"]), values["adjacency"])

    @property
    def nothing(self) -> Sums:
        """The sums of an account without a charge."""
        return (0,)

    def costs(self, charge: Charge, rounds: int | None = None) -> Sums:
        """What a charge adds to the sums, in whole units, rounded up.

        Args:
            rounds: those that were released; None: the whole charge.

        Raises:
            UnsupportedMechanismError: another adjacency, or no theorem covers the charge.
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
        if rounds == 0:
            return self.nothing
        if any(part.noise_multiplier == 0 for part in mechanism):
            return (MOST,) * len(self.nothing)
        return self._costs(mechanism, charge.group, len(mechanism) if rounds is None else rounds)

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
        """How many charges like this one still fit; at most 10⁹."""
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
class GaussianRule(Rule):
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
class RenyiRule(Rule):
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
    def _restore(cls, values: dict[str, Any]) -> Rule:
        exact_keys("rule", values, {"epsilon", "delta", "adjacency", "order"})
        one_of("adjacency", values["adjacency"], ADJACENCIES)
        budget = Budget(values["epsilon"], values["delta"])
        return cls(budget, values["adjacency"], real("order", values["order"], above=1))

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


RULES: dict[str, type[Rule]] = {rule.KIND: rule for rule in (GaussianRule, RenyiRule)}
DEFAULT = RenyiRule.KIND
