"""Statements of several holders as one."""

from __future__ import annotations

import pytest

from forethought.accounting.exact import epsilon
from forethought.accounting.interval import at_most
from forethought.accounting.statement import account, disjoint, shared
from forethought.values.mechanism import FullBatch, Mechanism, Poisson, Rounds


def rounds(sigma: float) -> Mechanism:
    return Mechanism(Rounds(sigma, 1, FullBatch()))


@pytest.mark.parametrize("order", [(1.0, 1.0, 4.0), (1.0, 4.0, 1.0), (4.0, 1.0, 1.0)])
def test_the_worst_choice_of_holders_counts_wherever_it_stands(order: tuple[float, ...]) -> None:
    found = shared([rounds(sigma) for sigma in order], 2, 1e-5)
    assert found.epsilon == epsilon(rounds(1.0) + rounds(1.0), 1e-5)
    assert found.guarantee > shared([rounds(1.0), rounds(4.0)], 2, 1e-5).guarantee


def test_holders_of_other_deltas_are_told_an_epsilon_that_holds_for_each() -> None:
    plans = {count: Mechanism(Rounds(1.0, count, Poisson(0.01))) for count in (400, 1000)}
    deltas = {400: 1e-9, 1000: 1e-5}
    made = {str(n): account(plans[n], deltas[n], released=10) for n in plans}
    [said] = [one.detail for one in disjoint(made).caveats if one.code == "ended-early"]
    least = epsilon(plans[400], 1e-9).upper  # more than the longer plan's at its own delta
    assert said.startswith(f"epsilon {at_most(least)} of all 400 at delta 1e-05 for ")
    assert all(epsilon(plan, 1e-5).upper <= least for plan in plans.values())
