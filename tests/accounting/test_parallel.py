"""Statements of several holders as one."""

from __future__ import annotations

import pytest

from forethought.accounting.exact import epsilon
from forethought.accounting.statement import shared
from forethought.values.mechanism import FullBatch, Mechanism, Rounds


def rounds(sigma: float) -> Mechanism:
    return Mechanism(Rounds(sigma, 1, FullBatch()))


@pytest.mark.parametrize("order", [(1.0, 1.0, 4.0), (1.0, 4.0, 1.0), (4.0, 1.0, 1.0)])
def test_the_worst_choice_of_holders_counts_wherever_it_stands(order: tuple[float, ...]) -> None:
    found = shared([rounds(sigma) for sigma in order], 2, 1e-5)
    assert found.epsilon == epsilon(rounds(1.0) + rounds(1.0), 1e-5)
    assert found.guarantee > shared([rounds(1.0), rounds(4.0)], 2, 1e-5).guarantee
