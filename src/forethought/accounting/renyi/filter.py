"""A Rényi filter: the accountant for rounds whose parameters are chosen after seeing outputs.

Composing privacy loss distributions supposes parameters that were fixed in advance. When noise,
batch or the number of further rounds depends on what earlier rounds released, only a filter that
refuses a release *before* it is made keeps the promise. Source: Feldman and Zrnic 2021, Theorem
4.3 (fully adaptive composition at one order); Lécuyer 2021.

**Formal guarantee.** Fix orders α_1 … α_k in advance and let B_i be the largest divergence that
converts to (ε, δ/k) at α_i. A run goes on only while some order i has spent at most B_i. Every
transcript of the run is then a transcript, equally likely, of the run that order i's own filter
would allow, for an i that the transcript decides; the latter runs are each (ε, δ/k)-DP, so over
the k classes of transcripts the whole run is (ε, δ)-DP. One order costs nothing extra; k orders
cost ln(k)/(α − 1) of ε and save the choice of the best one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from forethought.accounting.renyi.curves import (
    LIFT,
    ORDERS,
    RenyiCurve,
    binary_moment,
    canonne_epsilon,
    rdp,
)
from forethought.checks import one_of, real
from forethought.mechanism import ADJACENCIES, Adjacency, Budget, Mechanism, Rounds, sensitivity

FILTER_SCHEMA = "forethought/renyi-filter/1"
FILTER_ORDERS: tuple[float, ...] = tuple(
    map(float, (3, 5, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256))
)


class BudgetExceededError(RuntimeError):
    """The release was not made: with it, the run would no longer keep its budget."""


def best_order(mechanism: Mechanism, delta: float) -> float:
    """The order at which ``mechanism``, as foreseen, converts to the least ε.

    A filter at this single order pays nothing for choosing among orders; a run that departs from
    what was foreseen is still safe, only dearer.
    """
    target = real("delta", delta, above=0, below=1)
    curve = rdp(mechanism, ORDERS)
    epsilon = canonne_epsilon(np.array(curve.orders), np.array(curve.values), target)
    return curve.orders[int(np.argmin(epsilon))]


class RenyiFilter:
    """Spends a fixed (ε, δ) over rounds that are chosen one after another.

    Args:
        budget: what the whole run may cost, whatever is chosen.
        adjacency: under which every round is accounted.
        orders: fixed before the first release; see :func:`best_order` for a single good one.

    >>> from forethought.mechanism import Budget, Rounds
    >>> from forethought.samplings import Poisson
    >>> ledger = RenyiFilter(Budget(1.0, 1e-5))
    >>> ledger.would_exceed(Rounds(0.1, 1, Poisson(1.0)))
    True
    >>> ledger.spend(Rounds(2.0, 100, Poisson(0.01)))
    """

    def __init__(
        self,
        budget: Budget,
        adjacency: Adjacency = "add-or-remove",
        orders: Sequence[float] = FILTER_ORDERS,
    ) -> None:
        if not isinstance(budget, Budget):
            raise TypeError(f"budget must be a Budget(epsilon, delta), not {budget!r}")
        one_of("adjacency", adjacency, ADJACENCIES)
        self.budget = budget
        self.adjacency: Adjacency = adjacency
        self._spent = RenyiCurve(tuple(sorted(set(orders))), (0.0,) * len(set(orders)))
        share = budget.delta / len(self.orders)
        self._limits = tuple(limit_of(order, budget.epsilon, share) for order in self.orders)

    @property
    def orders(self) -> tuple[float, ...]:
        """The orders fixed at the start."""
        return self._spent.orders

    @property
    def spent(self) -> RenyiCurve:
        """Divergence spent so far, at each order."""
        return self._spent

    @property
    def fraction_used(self) -> float:
        """Spent share of the budget at the order with most left: at most 1."""
        return min(
            spent / limit for spent, limit in zip(self._spent.values, self._limits, strict=True)
        )

    def would_exceed(self, rounds: Rounds | Mechanism) -> bool:
        """Whether making these releases would break the budget. Changes nothing.

        Raises:
            ValueError: a Mechanism under another adjacency.
        """
        return not self._fits(self._spent + self._cost(rounds))

    def spend(self, rounds: Rounds | Mechanism) -> None:
        """Charge these releases; call it *before* they are made.

        A part of a shuffled epoch is charged as a whole epoch.

        Raises:
            BudgetExceededError: they do not fit. Nothing is charged then, and they must not be
                made.
        """
        total = self._spent + self._cost(rounds)
        if not self._fits(total):
            raise BudgetExceededError(
                f"{rounds!r} does not fit into what is left of epsilon {self.budget.epsilon} at "
                f"delta {self.budget.delta} ({100 * self.fraction_used:.1f} % is spent): stop "
                "here, or ask for fewer rounds or more noise"
            )
        self._spent = total

    def affordable(self, rounds: Rounds) -> int:
        """How many more rounds like ``rounds`` fit now; its own count is ignored.

        Rounds that cost nothing measurable are capped at 10⁹.
        """
        sensitivity(rounds, self.adjacency)  # refuses rounds that are no mechanisms one by one
        one = Rounds(
            rounds.noise_multiplier, 1, rounds.sampling, rounds.clipping, groups=rounds.groups
        )
        cost = self._cost(one).values
        most = 0
        for spent, limit, each in zip(self._spent.values, self._limits, cost, strict=True):
            if each == 0:
                return 10**9
            # One step down where the division rounds up past the limit.
            count = max(0, math.floor(min((limit - spent) / each, 1e9)))
            most = max(most, count if spent + count * each <= limit else count - 1)
        # One release of a shuffled part covers the rounds of a whole epoch.
        return min(10**9, most * rounds.sampling.rounds_per_epoch)

    def _cost(self, rounds: Rounds | Mechanism) -> RenyiCurve:
        if isinstance(rounds, Rounds):
            rounds = Mechanism(rounds, adjacency=self.adjacency)
        if rounds.adjacency != self.adjacency:
            raise ValueError(
                f"this filter accounts under adjacency {self.adjacency!r}, the rounds are stated "
                f"under {rounds.adjacency!r}"
            )
        return rdp(rounds, self.orders)

    def _fits(self, total: RenyiCurve) -> bool:
        return any(spent <= limit for spent, limit in zip(total.values, self._limits, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping for checkpoints; :meth:`from_state` reads it back bit for bit."""
        return {
            "schema": FILTER_SCHEMA,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "adjacency": self.adjacency,
            "orders": list(self.orders),
            "spent": list(self._spent.values),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> RenyiFilter:
        """The inverse of :meth:`state_dict`.

        Raises:
            ValueError: another schema, a missing key, or values that no filter can have.
        """
        if state.get("schema") != FILTER_SCHEMA:
            raise ValueError(
                f"not a Rényi filter this version can read: schema {state.get('schema')!r}, "
                f"expected {FILTER_SCHEMA!r}"
            )
        missing = {"epsilon", "delta", "adjacency", "orders", "spent"} - set(state)
        if missing:
            raise ValueError(f"the filter's state lacks {sorted(missing)}")
        ledger = cls(Budget(state["epsilon"], state["delta"]), state["adjacency"], state["orders"])
        ledger._spent = RenyiCurve(tuple(state["orders"]), tuple(state["spent"]))
        return ledger


def limit_of(order: float, epsilon: float, delta: float) -> float:
    """Largest divergence that converts to (ε, δ) at this order: next to nothing where it is low.

    The better of two conversions (Canonne, Kamath and Steinke 2020, Proposition 12; the optimal one
    of Asoodeh et al. 2021, Theorem 2).
    """
    overhead = math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
    optimal = binary_moment(order, epsilon, delta) / (order - 1) / LIFT
    return max(epsilon - overhead, optimal)
