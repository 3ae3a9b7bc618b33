import math

import pytest

from forethought.accounting.exact import epsilon as exact_epsilon
from forethought.papers.adaptive_noise import (
    GaussianSchedule,
    convex_sigma,
    exact_inverse_iterations,
    nonconvex_sigma,
    paper_epsilon,
    paper_iterations,
    paper_rho,
    paper_strongly_convex_iterations,
    strongly_convex_iterations,
    strongly_convex_sigma,
)
from forethought.values.mechanism import Budget


def schedule(count):
    return GaussianSchedule(
        tuple(convex_sigma(t, 0.25, 1.0, 10) for t in range(1, count + 1)), 1.0, 10000
    )


def test_rho_is_the_papers_sum():
    want = 2 * (1 / 10000) ** 2 * sum(1 / convex_sigma(t, 0.25, 1.0, 10) ** 2 for t in range(1, 50))
    assert schedule(49).rho == pytest.approx(want)
    # The proof's bound takes T³ for Σ t².
    assert schedule(49).rho < 10 * 49**3 / (8 * 10000**2 * 0.25**2)


def test_schedules_divide_by_root_d_times_t():
    assert nonconvex_sigma(8, 0.25, 4.0, 16) == pytest.approx(4 * 0.25 * 2 / (4 * 8))
    assert convex_sigma(8, 0.25, 3.0, 16) == pytest.approx(4 * 0.25 * 3 / (4 * 8))
    ratio = strongly_convex_sigma(3, 1.0, 0.2, 0.7, 5) / strongly_convex_sigma(2, 1.0, 0.2, 0.7, 5)
    assert ratio == pytest.approx(math.sqrt(1 - 0.2 / 2))


def test_erratum_004_2_exact_is_smaller_and_affords_more():
    run = schedule(49)
    assert run.exact(1e-5).upper < run.paper_epsilon(1e-5)
    engine = exact_epsilon(run.mechanism, 1e-5)
    assert engine.lower <= run.exact(1e-5).upper * (1 + 1e-9)
    assert run.exact(1e-5).lower <= engine.upper
    budget = Budget(paper_epsilon(0.1, 1e-5), 1e-5)
    published = paper_iterations(0.1, 0.25, 1.0, 1.0, 10000, 10)
    exact = exact_inverse_iterations(budget, convex_sigma(1, 0.25, 1.0, 10), 1.0, 10000)
    assert published == pytest.approx(79.37, abs=0.01)
    assert exact > 1.5 * published
    assert schedule(exact).exact(1e-5).upper <= budget.epsilon
    assert schedule(exact + 1).exact(1e-5).lower > budget.epsilon


def test_paper_conversion_and_its_inverse():
    for rho in (1e-4, 0.3, 40.0):
        assert paper_rho(paper_epsilon(rho, 1e-6), 1e-6) == pytest.approx(rho)


def test_strongly_convex_iterations_as_published_overspend_by_the_condition_number():
    # The proof drops κ = M/μ between 2aκ r^T and its bound.
    M, mu, gap, L, N, d, rho = 1.0, 0.2, 0.7, 1.0, 50000, 5, 0.05

    def spent(count):
        sigmas = tuple(strongly_convex_sigma(t, M, mu, gap, d) for t in range(1, count + 1))
        return GaussianSchedule(sigmas, L, N).rho

    published = math.floor(paper_strongly_convex_iterations(rho, M, mu, gap, L, N, d))
    assert spent(published) == pytest.approx(rho * M / mu, rel=0.12)
    exact = strongly_convex_iterations(rho, M, mu, gap, L, N, d)
    assert spent(exact) <= rho < spent(exact + 1)


@pytest.mark.parametrize("kappa", [1e9, 1e14, 1e17])
def test_iterations_at_a_large_condition_number_are_exact(kappa):
    """ln(2κ/(2κ − 1)) is 1/(2κ) there, of which a quotient of doubles keeps few digits or none."""
    M, mu, gap, L, N, rho = 1.0, 1 / kappa, 1e12, 1e-6, 10**6, 1e-4
    a = (2 * L / N) ** 2 / (4 * mu * gap)
    wanted = 2 * kappa * math.log1p(rho / (2 * a * kappa))
    assert strongly_convex_iterations(rho, M, mu, gap, L, N, 1) == pytest.approx(wanted, rel=2e-9)
    assert paper_strongly_convex_iterations(rho, M, mu, gap, L, N, 1) > 0


@pytest.mark.parametrize(
    "iterations", [strongly_convex_iterations, paper_strongly_convex_iterations]
)
def test_a_convexity_above_the_smoothness_is_refused_in_words(iterations):
    with pytest.raises(ValueError, match="convexity"):
        iterations(1.0, 1.0, 3.0, 1.0, 1.0, 1000, 1)


def test_bad_input():
    with pytest.raises(ValueError, match="exceed smoothness"):
        strongly_convex_sigma(1, 0.1, 0.2, 1.0, 5)
    with pytest.raises(ValueError, match="sigma"):
        GaussianSchedule((0.0,), 1.0, 10)
