"""Schedules are the paper's, and a horizon is the last round that the budget pays for."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forethought import Budget, convex
from forethought.accounting.dominating_pair import gaussian_epsilon
from forethought.convex.schedules import horizon
from forethought.papers.adaptive_noise import (
    exact_inverse_iterations,
    paper_epsilon,
    strongly_convex_iterations,
)

RIDGED = convex.LogisticRegression(feature_bound=2.0, l2=0.1)
FLAT = convex.LogisticRegression(feature_bound=2.0, radius=5.0)


def _epsilon(horizon_, sensitivity, delta):
    mu = math.sqrt(math.fsum((sensitivity / s) ** 2 for s in horizon_.sigmas))
    return gaussian_epsilon(delta, mu)


def test_schedules_are_proposition_three() -> None:
    M, d = 1.1, 4
    sigma, eta = convex.schedules.strongly_convex(RIDGED, d)(3)
    assert sigma == pytest.approx(math.sqrt(0.2 * math.log(2) * (1 - 0.1 / (2 * M)) ** 3 / d))
    assert eta == pytest.approx(1 / (2 * M))
    assert convex.schedules.convex(FLAT, d)(5)[0] == pytest.approx(4 * 1.0 * 5 / (2 * 5))
    declared = convex.DeclaredLoss(
        name="mine", feature_bound=1.0, lipschitz=1.0, curvature=3.0, gap=0.5, convex=False
    )
    expected = 4 * 3 * math.sqrt(0.5) / (2 * 2)
    assert convex.schedules.published(declared, d)(2)[0] == pytest.approx(expected)
    assert convex.schedules.published(RIDGED, d)(3)[0] == sigma
    assert convex.schedules.geometric(RIDGED, 2.0, 0.5)(3)[0] == 0.5


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.05, 20.0),
    st.floats(1e-9, 0.01),
    st.floats(0.9, 1.1),
    st.floats(0.05, 3.0),
    st.floats(1e-4, 1e-2),
)
def test_the_horizon_is_the_last_that_fits(epsilon, delta, ratio, first, sensitivity) -> None:
    schedule = convex.schedules.geometric(RIDGED, first, ratio)
    budget = Budget(epsilon, delta)
    try:
        found = horizon(schedule, budget, sensitivity, most=3000)
    except ValueError:
        assert gaussian_epsilon(delta, sensitivity / first) > epsilon * (1 - 1e-6)
        return
    assert _epsilon(found, sensitivity, delta) <= epsilon
    T = len(found.sigmas)
    if T < 3000:
        more = [*found.sigmas, schedule(T + 1)[0]]
        mu = math.sqrt(math.fsum((sensitivity / s) ** 2 for s in more))
        assert gaussian_epsilon(delta, mu) > epsilon * (1 - 1e-6)


def test_horizons_agree_with_closed_forms_and_beat_the_papers_accounting() -> None:
    N, d, budget = 10_000, 2, Budget(1.0, 1e-4)
    found = horizon(convex.schedules.convex(FLAT, d), budget, 2 * FLAT.lipschitz / N)
    first = convex.schedules.convex(FLAT, d)(1)[0]
    assert len(found.sigmas) == exact_inverse_iterations(budget, first, FLAT.lipschitz, N)
    found = horizon(convex.schedules.strongly_convex(RIDGED, d), budget, 2 * RIDGED.lipschitz / N)
    rho = found.mu**2 / 2
    exact = strongly_convex_iterations(rho * (1 + 1e-9), 1.1, 0.1, math.log(2), 2.0, N, d)
    assert len(found.sigmas) == exact
    # What the same rounds cost by ρ + 2√(ρ ln 1/δ).
    assert paper_epsilon(rho, budget.delta) > 1.09 * budget.epsilon


def test_a_budget_too_small_says_what_one_round_needs() -> None:
    schedule = convex.schedules.constant(RIDGED, 0.001)
    with pytest.raises(ValueError, match="for no iteration") as told:
        horizon(schedule, Budget(0.1, 1e-5), 0.01)
    needed = float(str(told.value).split("spends ε = ")[1].split(" ")[0])
    assert len(horizon(schedule, Budget(needed * 1.001, 1e-5), 0.01).sigmas) >= 1
    assert needed == pytest.approx(gaussian_epsilon(1e-5, 10.0), rel=1e-3)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_noise_that_is_none_is_refused(sigma) -> None:
    with pytest.raises(ValueError, match="of iteration 1"):
        horizon(lambda t: (sigma, 0.1), Budget(1.0, 1e-5), 0.01)
    with pytest.raises(ValueError, match="of iteration 1"):
        horizon(lambda t: (1.0, sigma), Budget(1.0, 1e-5), 0.01)


def test_what_a_schedule_needs_of_the_problem() -> None:
    flat = convex.LogisticRegression(feature_bound=2.0)
    with pytest.raises(ValueError, match="radius"):
        convex.schedules.convex(flat, 3)
    with pytest.raises(ValueError, match="l2= above 0"):
        convex.schedules.strongly_convex(flat, 3)
    wild = convex.DeclaredLoss(
        name="mine", feature_bound=1.0, lipschitz=1.0, curvature=3.0, gap=0.5, convex=False
    )
    with pytest.raises(ValueError, match="nonconvex"):
        convex.schedules.convex(wild, 3)
