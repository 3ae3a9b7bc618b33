"""A Gaussian filter: the exact accountant for unsampled rounds chosen after seeing outputs.

**Formal guarantee.** A run goes on only while Σ μ_t² ≤ B² for the rounds made and the next one,
where round t is μ_t-GDP however it was chosen. Then the whole run is B-GDP: adaptive choice costs
nothing beside rounds that were fixed in advance. Source: Smith and Thakurta 2022 (Fully Adaptive
Composition for Gaussian Differential Privacy); Koskela, Tobaben and Honkela 2022.

In short: given the past, a μ_t-GDP round is a randomised function of one draw of N(μ_t, 1) or of
N(0, 1) (Blackwell), and what is left of B² in the end can be spent on one more draw that nobody
uses. Let S = Σ μ_t X_t. Under N(0, 1) every e^{λ μ_t X_t - λ² μ_t²/2} has mean 1 given the past, so
E e^{λS} = e^{λ²B²/2}, as Σ μ_t² = B² surely: S is N(0, B²). In the same way it is N(B², B²) under
the other hypothesis, and log dP/dQ = S - B²/2 is that of one Gaussian release.

A sampled round is charged like one that holds every record: for those use
:class:`~forethought.accounting.renyi.filter.RenyiFilter`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forethought.accounting.gaussian import gaussian_mu
from forethought.accounting.renyi.curves import zcdp
from forethought.accounting.renyi.filter import BudgetExceededError
from forethought.checks import one_of, real
from forethought.mechanism import ADJACENCIES, Adjacency, Budget, Correlated, Mechanism, Rounds
from forethought.serialisation import exact_keys

GAUSSIAN_FILTER_SCHEMA = "forethought/gaussian-filter/1"
# Relative rounding of sums of squares, charged to every round.
_ROUNDING = 1 + 1e-13
_MOST_TOGETHER = 2**20


class GaussianFilter:
    """Spends a fixed (ε, δ) over unsampled rounds that are chosen one after another.

    Args:
        budget: what the whole run may cost, whatever is chosen.
        adjacency: under which every round is accounted.

    >>> from forethought.mechanism import Budget, Rounds
    >>> from forethought.samplings import FullBatch
    >>> ledger = GaussianFilter(Budget(1.0, 1e-5))
    >>> ledger.affordable(Rounds(100.0, 1, FullBatch()))
    718
    """

    def __init__(self, budget: Budget, adjacency: Adjacency = "add-or-remove") -> None:
        if not isinstance(budget, Budget):
            raise TypeError(f"budget must be a Budget(epsilon, delta), not {budget!r}")
        one_of("adjacency", adjacency, ADJACENCIES)
        self.budget = budget
        self.adjacency: Adjacency = adjacency
        self._spent = 0.0
        self._limit = gaussian_mu(budget.epsilon, budget.delta) ** 2 / _ROUNDING

    @property
    def spent(self) -> float:
        """Σ μ² of the rounds charged so far."""
        return self._spent

    @property
    def fraction_used(self) -> float:
        """Spent share of the budget, of Σ μ²: at most 1."""
        return self._spent / self._limit

    def would_exceed(self, rounds: Rounds | Mechanism) -> bool:
        """Whether making these releases would break the budget. Changes nothing.

        Raises:
            ValueError: a Mechanism under another adjacency.
        """
        return not self._spent + self._cost(rounds) <= self._limit

    def spend(self, rounds: Rounds | Mechanism) -> None:
        """Charge these releases; call it *before* they are made.

        A part of a shuffled epoch is charged as a whole epoch.

        Raises:
            BudgetExceededError: they do not fit. Nothing is charged then, and they must not be
                made.
        """
        total = self._spent + self._cost(rounds)
        if not total <= self._limit:
            raise BudgetExceededError(
                f"{rounds!r} does not fit into what is left of epsilon {self.budget.epsilon} at "
                f"delta {self.budget.delta} ({100 * self.fraction_used:.1f} % is spent): stop "
                "here, or ask for fewer rounds or more noise"
            )
        self._spent = total

    def affordable(self, rounds: Rounds) -> int:
        """How many more rounds like ``rounds`` fit now; its own count is ignored.

        Rounds that cost nothing measurable are capped at 10⁹, rounds of correlated noise, which
        cost what all of them together do, at 2²⁰.
        """
        if isinstance(rounds, Correlated):
            return self._affordable_together(rounds)
        one = replace(rounds, count=1)
        each = self._cost(one)
        count = math.floor(min((self._limit - self._spent) / each, 1e9)) if each > 0 else 10**9
        # One step down where the division rounds up past the limit.
        count = max(0, count if self._spent + count * each <= self._limit else count - 1)
        return min(10**9, count * rounds.sampling.rounds_per_epoch)

    def _affordable_together(self, rounds: Correlated) -> int:
        # More rounds never cost less: the first of them are what a shorter run releases.
        low, high = 0, 1
        while high <= _MOST_TOGETHER and not self.would_exceed(replace(rounds, count=high)):
            low, high = high, 2 * high
        while high - low > 1 and low < _MOST_TOGETHER:
            middle = (low + high) // 2
            if self.would_exceed(replace(rounds, count=middle)):
                high = middle
            else:
                low = middle
        return low

    def _cost(self, rounds: Rounds | Mechanism) -> float:
        if isinstance(rounds, Rounds):
            rounds = Mechanism(rounds, adjacency=self.adjacency)
        if rounds.adjacency != self.adjacency:
            raise ValueError(
                f"this filter accounts under adjacency {self.adjacency!r}, the rounds are stated "
                f"under {rounds.adjacency!r}"
            )
        return 2 * zcdp(rounds) * _ROUNDING

    def state_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping for checkpoints; :meth:`from_state` reads it back bit for bit."""
        return {
            "schema": GAUSSIAN_FILTER_SCHEMA,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "adjacency": self.adjacency,
            "spent": self._spent,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> GaussianFilter:
        """The inverse of :meth:`state_dict`.

        Raises:
            ValueError: another schema, other keys, or values that no filter can have.
        """
        if state.get("schema") != GAUSSIAN_FILTER_SCHEMA:
            raise ValueError(
                f"not a Gaussian filter this version can read: schema {state.get('schema')!r}, "
                f"expected {GAUSSIAN_FILTER_SCHEMA!r}"
            )
        exact_keys("filter", state, {"schema", "epsilon", "delta", "adjacency", "spent"})
        ledger = cls(Budget(state["epsilon"], state["delta"]), state["adjacency"])
        ledger._spent = real("spent", state["spent"], least=0)
        return ledger
