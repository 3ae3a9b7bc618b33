"""Phases of less and less noise keep the budget, and say what the closed form allows."""

from __future__ import annotations

from itertools import pairwise

import pytest

from forethought.accounting import exact
from forethought.accounting.adaptive import Progress, RenyiFilter
from forethought.planning.alternatives import (
    in_phases,
    next_by_shortfall,
    next_phase,
    plan_phases,
)
from forethought.planning.solve import PlanError
from forethought.planning.solve import plan as solve
from forethought.values.mechanism import Budget, FullBatch, Mechanism, Poisson, Rounds

N = 5000
BUDGET = Budget(1.0, 1e-5)


@pytest.mark.parametrize("sampling", ["poisson", "full-batch", "without-replacement", "shuffled"])
def test_noise_falls_and_the_whole_budget_is_used(sampling: str) -> None:
    options = {} if sampling == "full-batch" else {"batch": 250}
    whole = solve(examples=N, budget=BUDGET, rounds=120, sampling=sampling, **options)  # type: ignore[arg-type]
    phased = plan_phases(whole, phases=3)
    parts = phased.mechanism.rounds
    assert [part.count for part in parts] == [40, 40, 40]
    for before, after in pairwise(parts):
        assert after.noise_multiplier < before.noise_multiplier
        grown = after.sampling.expected_batch(N) > before.sampling.expected_batch(N)
        assert grown or sampling == "full-batch"
    spent = exact.epsilon(phased.mechanism, BUDGET.delta).upper
    assert 0.998 * BUDGET.epsilon <= spent <= BUDGET.epsilon
    assert phased.remade(mechanism=whole.mechanism, reasons=whole.reasons) == whole
    assert "phase 3" in phased.explain()


@pytest.mark.parametrize(
    "options",
    [
        {"batch": 250},
        {"batch": 250, "clipping": "group", "groups": 2},
        {"sampling": "full-batch"},
    ],
)
def test_phases_keep_the_budget_for_all_records_of_a_person(options: dict[str, object]) -> None:
    whole = solve(examples=N, budget=BUDGET, rounds=30, records_per_person=3, **options)  # type: ignore[arg-type]
    phased = plan_phases(whole)
    spent = exact.epsilon(phased.mechanism, BUDGET.delta, 3).upper
    assert 0.99 * BUDGET.epsilon <= spent <= BUDGET.epsilon
    assert "single" in dict(phased.reasons)["phase 1"]  # no closed form for several records


def test_phases_with_budgets_of_their_own_know_their_groups() -> None:
    known = {"clipping": "group", "groups": 2, "records_per_person": 3, "batch": 250}
    whole = solve(examples=N, budget=Budget(4.0, 1e-5), rounds=20, **known)  # type: ignore[arg-type]
    for part, own in zip(in_phases(whole, (10, 10), [1.0, 2.0]).mechanism, (1, 2), strict=True):
        assert 0.99 * own <= exact.epsilon(Mechanism(part), 1e-5, 3).upper <= own


def test_a_budget_that_no_whole_sample_size_spends_is_spent_by_less_noise() -> None:
    whole = solve(examples=50, budget=BUDGET, rounds=30, batch=4)
    phased = plan_phases(whole, lengths=(10, 10, 10))
    assert exact.epsilon(phased.mechanism, BUDGET.delta).upper >= 0.998 * BUDGET.epsilon


def test_a_sample_size_that_cannot_grow_takes_the_rest_from_the_noise() -> None:
    whole = solve(examples=100, budget=BUDGET, rounds=30, batch=95)
    phased = plan_phases(whole)
    assert phased.mechanism.rounds[-1].sampling.expected_batch(100) == 100
    assert exact.epsilon(phased.mechanism, BUDGET.delta).upper >= 0.99 * BUDGET.epsilon


def test_the_next_phase_is_the_largest_that_fits() -> None:
    earlier = Mechanism(Rounds(4.0, 50, Poisson(0.05)))
    found = next_phase(
        earlier,
        examples=N,
        rounds=50,
        noise_multiplier=3.0,
        budget=BUDGET,
        like=earlier.rounds[0],
    )
    assert found.epsilon <= BUDGET.epsilon
    size = round(found.rounds.sampling.expected_batch(N))
    # The statement's interval is about 0.1 % wide: within 1 % of sizes one more would not fit.
    larger = Rounds(3.0, 50, Poisson(1.01 * size / N))
    assert exact.epsilon(earlier + Mechanism(larger), BUDGET.delta).upper > BUDGET.epsilon


def test_the_closed_form_stands_beside() -> None:
    """With much noise Theorem B.4 admits a phase, of a smaller sample size than the exact one."""
    earlier = Mechanism(Rounds(20.0, 500, Poisson(20 / 10_000)))
    found = next_phase(
        earlier,
        examples=10_000,
        rounds=500,
        noise_multiplier=18.0,
        budget=Budget(0.3, 1e-4),
        like=earlier.rounds[0],
    )
    assert found.closed_form is not None
    assert found.closed_form.result.holds
    assert found.closed_form.size < found.rounds.sampling.expected_batch(10_000)
    full = Mechanism(Rounds(20.0, 5, FullBatch()))
    other = next_phase(
        full, examples=100, rounds=5, noise_multiplier=18.0, budget=BUDGET, like=full.rounds[0]
    )
    assert other.closed_form is None and "Poisson" in other.remark


def test_what_cannot_be_planned_is_explained() -> None:
    whole = solve(examples=N, budget=BUDGET, rounds=10, batch=250)
    with pytest.raises(PlanError, match="several parts"):
        plan_phases(plan_phases(whole))
    with pytest.raises(PlanError, match="plan with budget="):
        plan_phases(whole.with_(budget=None))
    with pytest.raises(PlanError, match="plan more rounds"):
        plan_phases(whole, phases=11)
    assert plan_phases(whole, phases=1) == whole
    for phases, lengths in ((2, (3, 6)), (2, (10,)), (2, (3, 3, 4)), (1, (9,))):
        with pytest.raises(PlanError, match="lengths= must be"):
            plan_phases(whole, phases=phases, lengths=lengths)
    with pytest.raises(PlanError, match="larger budget"):
        plan_phases(whole.with_(budget=Budget(1e-6, 1e-12)))
    with pytest.raises(PlanError, match="not fit into"):
        next_phase(
            whole.mechanism,
            examples=N,
            rounds=10,
            noise_multiplier=0.5,
            budget=BUDGET,
            like=whole.mechanism.rounds[0],
        )


def progress(accuracy: float, times: int = 1) -> Progress:
    ledger = RenyiFilter(BUDGET, orders=(16.0,))
    part = Rounds(8.0, 40, Poisson(0.1))
    for _ in range(times):
        ledger.spend(part)
    return Progress(N, 0.9, ((part, accuracy),), ledger)


def test_the_rule_reacts_to_what_is_missing_and_fits() -> None:
    near, far = next_by_shortfall(progress(0.88)), next_by_shortfall(progress(0.5))
    assert near is not None and far is not None
    assert far.noise_multiplier < near.noise_multiplier < 8.0
    ledger = progress(0.5).filter
    assert not ledger.would_exceed(Mechanism(far) + Mechanism(far))
    larger = Rounds(far.noise_multiplier, 80, far.sampling.resized(round(0.01 * N) + 1 + round(
        far.sampling.expected_batch(N)), N))  # fmt: skip
    assert ledger.would_exceed(larger)


def test_the_rule_ends() -> None:
    state = progress(0.5)
    phases = 0
    while (part := next_by_shortfall(state)) is not None:
        state.filter.spend(part)
        state = Progress(N, 0.9, (*state.done, (part, 0.5)), state.filter)
        phases += 1
        assert phases < 20
    assert state.filter.fraction_used > 0.95
