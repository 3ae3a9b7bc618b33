"""Noise that follows results: charged before each round, and never from the data unsaid."""

from __future__ import annotations

import numpy as np
import pytest

import forethought as ft
from forethought import convex
from forethought.accounting.verification import verify

BUDGET = ft.Budget(2.0, 1e-4)
RNG = np.random.default_rng(5)
X = RNG.standard_normal((500, 4))
Y = (X[:, 0] + 0.3 * RNG.standard_normal(500) > 0).astype(int)
PROBLEM = convex.LogisticRegression(feature_bound=2.0, l2=0.05)


def test_the_filter_keeps_the_budget_and_the_noise_falls() -> None:
    run = convex.descend_steered(PROBLEM, BUDGET, X, Y)
    assert run.statement.private
    assert run.statement.accountant["kind"] == "gaussian-filter"
    assert run.statement.guarantee == BUDGET.epsilon
    # Fixed in advance, the same rounds would have cost less: the filter never overspends.
    assert ft.accounting.epsilon(run.plan.mechanism, BUDGET.delta).upper <= BUDGET.epsilon
    noises = run.plan.sigmas
    assert min(noises) < 0.7 * noises[0]
    assert len(set(noises)) > 3
    verify(ft.Statement.from_json(run.statement.to_json()))
    assert "by the accuracy" not in run.statement.hyperparameters
    assert "noised sums before it" in run.statement.hyperparameters


def test_every_round_draws_noise_of_its_own() -> None:
    # Records of zeros: steps are noise only. Rounds that shared their secret would correlate at 1;
    # 3,000 coordinates put the correlation of independent ones within 0.1 but once in 10⁷ runs.
    problem = convex.LogisticRegression(feature_bound=2.0)
    zeros, labels = np.zeros((100, 3000)), np.zeros(100, dtype=int)
    for seeds in (None, ft.Seeds(noise=3)):
        run = convex.descend_steered(problem, BUDGET, zeros, labels, rounds=1, seeds=seeds)
        more = convex.descend_steered(problem, BUDGET, zeros, labels, rounds=2, seeds=seeds)
        if seeds is not None:
            first, second = run.weights, more.weights - run.weights
            assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
            assert not run.statement.private
        else:
            assert abs(np.corrcoef(run.weights, more.weights)[0, 1]) < 0.1


def test_the_data_dependent_schedule_says_that_it_is_not_private() -> None:
    run = convex.descend_unprotected(PROBLEM, BUDGET, X, Y)
    assert not run.statement.private
    assert run.statement.guarantee == float("inf")
    assert "data-dependent-noise" in {caveat.code for caveat in run.statement.breaks}
    assert "not private" in run.statement.to_markdown().lower()
    # Proposition 1: the first noise is the gradient's norm at zero over √d.
    rows, _ = convex.bounded_rows(X, 2.0)
    gradient = ((0.5 - Y)[:, None] * rows).mean(0)
    assert run.plan.sigmas[0] == pytest.approx(np.linalg.norm(gradient) / 2, rel=0.01)


def test_the_smallest_budget_pays_for_rounds_of_much_noise() -> None:
    tiny = ft.Budget(1e-6, 1e-9)
    run = convex.descend_steered(PROBLEM, tiny, X, Y)
    spent = ft.accounting.epsilon(run.plan.mechanism, 1e-9)
    assert run.plan.sigmas[0] > 1e4 and spent.upper <= 1e-6


@pytest.mark.parametrize("descend", [convex.descend_steered, convex.descend_unprotected])
@pytest.mark.parametrize(
    ("change", "words"), [({"budget": 2.0}, "budget must be"), ({"seeds": 3}, "seeds must be")]
)
def test_what_is_no_budget_or_seed_is_refused_in_words(descend, change, words) -> None:
    with pytest.raises(TypeError, match=words):
        descend(**{"problem": PROBLEM, "budget": BUDGET, "features": X, "targets": Y, **change})


def test_budgets_that_pay_for_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="for no round"):
        convex.descend_unprotected(PROBLEM, ft.Budget(0.001, 1e-5), X, Y)
