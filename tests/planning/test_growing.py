"""A federation's sample sizes that grow keep length, records and budget."""

from __future__ import annotations

import pytest

import forethought as ft
from forethought.accounting.statement import account
from forethought.planning.plan_request import PlanError, growing


def base(**more: object) -> ft.Plan:
    return ft.plan(examples=500, budget=ft.Budget(2.0, 1e-4), batch=20, rounds=41, **more)  # type: ignore[arg-type]


@pytest.mark.slow
def test_growth_keeps_length_records_and_budget() -> None:
    plan, before = growing(base(), 5.0), base()
    assert plan.rounds == before.rounds
    assert plan.epochs == pytest.approx(before.epochs, rel=0.05)
    sizes = [plan.round(index).divisor for index in range(plan.rounds)]
    assert sizes == sorted(sizes) and sizes[-1] == pytest.approx(5 * sizes[0], rel=0.02)
    spent = account(plan).guarantee
    assert 0.99 * 2.0 < spent <= 2.0
    assert growing(before, 1.0) is before


def test_sizes_change_between_updates_only() -> None:
    plan = growing(base().with_(mechanism=ft.Mechanism(ft.Rounds(2.0, 40, ft.Poisson(0.04)))), 4, 4)
    ends = [part.count for part in plan.mechanism]
    assert all(count % 4 == 0 for count in ends) and sum(ends) == 40


def test_what_cannot_grow_is_refused() -> None:
    with pytest.raises(PlanError, match="times the data"):
        growing(ft.plan(examples=50, budget=ft.Budget(4.0, 1e-3), batch=40, rounds=10), 9.0)
    with pytest.raises(PlanError, match="differ already"):
        growing(base(size_schedule="linear"), 2.0)
    with pytest.raises(PlanError, match="need Poisson"):
        growing(base(sampling="without-replacement"), 2.0)
