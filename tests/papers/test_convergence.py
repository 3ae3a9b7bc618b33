"""Bounds on utility against exact expectations, numeric optima, other routes, and simulations."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import chi

from forethought.papers.adaptive_noise import (
    GaussianSchedule,
    convex_sigma,
    nonconvex_sigma,
    paper_iterations,
    paper_strongly_convex_iterations,
    strongly_convex_sigma,
)
from forethought.papers.convergence import (
    Decentralised,
    adp2sgd_utility,
    best_step,
    improvement,
    l_utility,
    local_degradation,
    mixing_constant,
    privacy_utility_ratio,
    proposition_1,
    proposition_2,
    proposition_2_rounds,
    proposition_3,
    proposition_4,
    quadratic_path,
    staleness,
    theorem_3,
)
from forethought.papers.decentralised import AsynchronousTheorem

SETTING = Decentralised(16, 8, 10**9, 0.5, 2.0, 1.0, 0.3, 50, 1.2, 0.467, 15)


# Adaptive noise


def test_the_exact_path_is_what_descents_do_on_average() -> None:
    draw = np.random.default_rng(3)
    h, sigmas, runs = np.array([0.5, 2.0]), (0.7, 0.4, 0.2), 40_000
    theta = np.tile([1.0, -2.0], (runs, 1))
    for sigma in sigmas:
        theta -= 0.3 * (h * theta + sigma * draw.standard_normal(theta.shape))
    found = quadratic_path(h, [1.0, -2.0], 0.3, sigmas)
    risks = 0.5 * theta**2 @ h
    # Five standard errors: a false alarm in 1.7 million.
    assert abs(risks.mean() - found.risks[-1]) < 5 * risks.std() / math.sqrt(runs)
    norms = (h * theta) ** 2 @ np.ones(2)
    assert abs(norms.mean() - found.squared_gradients[-1]) < 5 * norms.std() / math.sqrt(runs)


def test_lemma_1_is_exact_where_every_curvature_is_the_largest_and_a_bound_elsewhere() -> None:
    for curvatures, exact in (((4.0, 4.0), True), ((4.0, 0.3), False)):
        path = quadratic_path(curvatures, (1.0, -0.5), 0.2, (0.9,))
        gained = path.risks[0] - path.risks[1]
        least = improvement(0.2, 0.9, math.sqrt(path.squared_gradients[0]), 4.0, 2)
        assert gained == pytest.approx(least) if exact else gained > least + 1e-3


@pytest.mark.parametrize("sigma", [0.0, 0.2, 3.0])
def test_equation_12_is_the_step_that_gains_most(sigma: float) -> None:
    found = minimize_scalar(
        lambda step: -improvement(step, sigma, 1.3, 2.5, 7), bounds=(1e-9, 1.0), method="bounded"
    )
    assert best_step(sigma, 1.3, 2.5, 7) == pytest.approx(found.x, rel=1e-4)


def test_proposition_1_has_the_least_ratio_of_all_noises_and_steps() -> None:
    told = (1.3, 2.5, 7, 1.0, 1000, 1e-5)
    best = proposition_1(1.3, 2.5, 7)
    assert best.step == pytest.approx(best_step(best.sigma, 1.3, 2.5, 7))
    least = privacy_utility_ratio(best.step, best.sigma, *told)
    for sigma in best.sigma * np.geomspace(0.2, 5, 41):
        for step in best.step * np.geomspace(0.2, 5, 41):
            assert privacy_utility_ratio(step, sigma, *told) >= least * (1 - 1e-12)
    assert privacy_utility_ratio(10.0, best.sigma, *told) == math.inf  # such a step gains nothing


def left_sides(curvatures: list[float], start: list[float], sigmas: list[float]) -> list[float]:
    """The mean squared gradient, as the paper sums it, and the excess of the last iterate."""
    path = quadratic_path(curvatures, start, 1 / (2 * max(curvatures)), sigmas)
    return [path.squared_gradients.sum() / len(sigmas), path.risks[-1]]


def test_erratum_004_6_proposition_3a_lacks_a_factor_m() -> None:
    gap = 2.0  # F = 2x² from x = 1
    sigmas = [nonconvex_sigma(t, 4.0, gap, 1) for t in range(1, 21)]
    left = left_sides([4.0], [1.0], sigmas)[0]
    bound = proposition_3(20, 4.0, gap=gap)
    assert (left, bound.printed, bound.proven) == pytest.approx((14.680, 3.776, 15.103), abs=1e-3)
    assert bound.printed < left <= bound.proven


@pytest.mark.parametrize("seed", range(8))
def test_what_proposition_3_proves_holds_on_quadratics(seed: int) -> None:
    draw = np.random.default_rng(seed)
    d, rounds = int(draw.integers(1, 6)), int(draw.integers(1, 60))
    curvatures = list(draw.uniform(0.1, 6, d))
    start = list(draw.normal(size=d))
    M, mu = max(curvatures), min(curvatures)
    gap, radius = 0.5 * np.dot(curvatures, np.square(start)), 10 * math.hypot(*start)
    times = range(1, rounds + 1)
    sigmas = [nonconvex_sigma(t, M, gap, d) for t in times]
    bound = proposition_3(rounds, M, gap=gap)
    assert left_sides(curvatures, start, sigmas)[0] <= bound.proven
    sigmas = [convex_sigma(t, M, radius, d) for t in times]
    assert (
        left_sides(curvatures, start, sigmas)[1] <= proposition_3(rounds, M, radius=radius).proven
    )
    sigmas = [strongly_convex_sigma(t, M, mu, gap, d) for t in times]
    bound = proposition_3(rounds, M, gap=gap, convexity=mu)
    assert left_sides(curvatures, start, sigmas)[1] <= bound.proven * (1 + 1e-12)


def test_proposition_2_holds_where_noise_follows_the_gradient() -> None:
    # One dimension: E x² shrinks by (1 − h/(2M))² + (h/(2M))² a round.
    for h, M in ((3.0, 3.0), (0.4, 3.0)):
        shrink = (1 - h / (2 * M)) ** 2 + (h / (2 * M)) ** 2
        second, total, gap = 1.0, 0.0, h / 2
        for rounds in range(1, 40):
            second *= shrink
            total += h**2 * second
            assert total / rounds <= proposition_2(rounds, M, gap=gap).proven
            assert h / 2 * second <= proposition_2(rounds, M, radius=3.0).proven
            last = proposition_2(rounds, M, gap=gap, convexity=h)
            assert h / 2 * second <= last.proven * (1 + 1e-12)


def test_proposition_4_is_proposition_3_at_the_rounds_that_the_budget_buys() -> None:
    rho, M, L, N, d = 0.05, 3.0, 1.5, 20_000, 6
    at = (rho, M, L, N, d)
    gap, radius, mu = 0.7, 2.5, 0.4
    T = paper_iterations(rho, M, gap, L, N, d)
    found = proposition_4(*at, gap=gap)
    assert found.proven == pytest.approx(proposition_3(1, M, gap=gap).proven / T)
    assert found.printed == pytest.approx(found.proven / M)
    T = paper_iterations(rho, M, radius**2, L, N, d)
    found = proposition_4(*at, radius=radius)
    assert found.proven == pytest.approx(proposition_3(1, M, radius=radius).proven / T)
    assert found.proven / found.printed == pytest.approx(radius)  # ∛(R⁴/R)
    T = paper_strongly_convex_iterations(rho, M, mu, gap, L, N, d)
    found = proposition_4(*at, gap=gap, convexity=mu)
    assert (1 - mu / (2 * M)) ** T * gap == pytest.approx(2 * found.printed)
    # That T spends κρ, up to the 1 that the proof drops; what ρ buys is κ times as far off.
    kappa = M / mu
    sigmas = tuple(strongly_convex_sigma(t, M, mu, gap, d) for t in range(1, round(T) + 1))
    assert GaussianSchedule(sigmas, L, N).rho == pytest.approx(kappa * rho, rel=0.1)
    assert found.proven == pytest.approx(2 * kappa * found.printed)


@pytest.mark.parametrize(
    "given", [{}, {"radius": 1.0, "gap": 1.0}, {"convexity": 0.1}, {"gap": 1.0, "convexity": 9.0}]
)
def test_a_case_has_its_own_constants_and_no_others(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="convexity"):
        proposition_3(10, 1.0, **given)


# A(DP)²SGD


def counted_staleness(seconds: tuple[float, ...], end: float) -> int:
    """By brute force: everybody begins at its own offset, and each update is counted."""
    most = 0
    draw = np.random.default_rng(1)
    for _ in range(200):
        begun = [draw.uniform(0, span) for span in seconds]
        ends = [np.arange(b, end, s) for b, s in zip(begun, seconds, strict=True)]
        for k, own in enumerate(ends):
            for first, last in pairwise(own):
                others = (e for j, e in enumerate(ends) if j != k)
                most = max(most, sum(int(((e >= first) & (e < last)).sum()) for e in others))
    return most


@pytest.mark.parametrize("seconds", [(1.0,) * 4, (10.0, 1.0, 1.0), (1.0, 0.7, 2.3), (3.0,)])
def test_staleness_is_the_most_that_can_pass_meanwhile(seconds: tuple[float, ...]) -> None:
    assert counted_staleness(seconds, 60.0) == staleness(seconds)


def test_the_mixing_constant_is_the_sum_of_the_proof() -> None:
    for rho in (0.0, 0.2, 0.9):
        j = np.arange(5000)
        whole = np.sum(rho**j + 2 * j * rho ** (j / 2))
        assert mixing_constant(rho, 5) == pytest.approx(0.8 * whole)
    assert mixing_constant(1.0, 5) == math.inf
    assert mixing_constant(1.0, 1) == 0


def test_proposition_1_is_theorem_1_at_its_step() -> None:
    rounds = math.ceil(SETTING.proposition_1_rounds)
    run = replace(SETTING, rounds=rounds)
    found = run.proposition_1()
    assert found.holds
    direct = run.theorem_1(16 / (8 * math.sqrt(rounds)))
    assert found.proven == pytest.approx(direct.proven)
    assert replace(run, rounds=rounds // 2).proposition_1().proven == math.inf
    # A step a thousand times as long breaks the conditions.
    assert run.theorem_1(2000 / math.sqrt(rounds)).proven == math.inf


def test_the_printed_number_of_rounds_is_too_small_for_long_delays() -> None:
    run = replace(SETTING, workers=2, rho=0.0, tau=100)
    run = replace(run, rounds=math.ceil(run.proposition_1_rounds))
    first, second, third = run.constants(2 / (8 * math.sqrt(run.rounds)))
    assert first > 0
    assert second > 0
    assert third == pytest.approx(3.145, abs=1e-3)
    assert run.proposition_1().proven == math.inf
    mended = replace(run, rounds=math.ceil(run.smoothness**2 * 64 * run.tau**4))
    assert mended.proposition_1().holds


def test_theorem_1_bounds_what_runs() -> None:
    # Two workers that average exactly, two records each, on squared distances: L = 1.
    K, B, rounds, runs = 2, 1, 400, 400
    records = np.array([[0.0, 1.0], [0.5, 1.5]])
    draw = np.random.default_rng(7)
    sigma, step = 0.3, 0.02
    weights = np.full((runs, K), 3.0)
    total = 0.0
    for _ in range(rounds):
        mean = weights.mean(1)
        total += float(np.mean((mean - records.mean()) ** 2))
        worker, record = draw.integers(K, size=runs), draw.integers(2, size=runs)
        gradient = weights[np.arange(runs), worker] - records[worker, record]
        weights[:] = mean[:, None]
        noised = gradient + sigma * draw.standard_normal(runs)
        weights[np.arange(runs), worker] -= step * noised
    gap = 0.5 * (3.0 - records.mean()) ** 2
    within, between = float(records.var(1).mean()), float(records.mean(1).var())
    told = Decentralised(K, B, rounds, 1.0, gap, within, between, 1, sigma, 0.0, 0)
    bound = told.theorem_1(step)
    assert bound.holds
    assert 0.1 * bound.proven < total / rounds < bound.proven


def test_proposition_2_is_proposition_1_with_the_theorems_noise() -> None:
    few = Decentralised(2, 4, 1, 1.0, 1.0, 1.0, 0.1, 1, 0.0, 0.05, 1)
    at = (5.0, 1e-5, 30_000, 1.0, 0.3)
    found = adp2sgd_utility(few, *at)
    rounds = math.ceil(proposition_2_rounds(few, *at[:-1]))
    # Theorem 2's σ at this T and μ, B times as much of it on a sum; the rest is Proposition 1.
    case = AsynchronousTheorem(5.0, 1e-5, rounds, 4, 2, 30_000, 1.0, 0.3)
    run = replace(few, sigma=4 * case.sigma, rounds=rounds)
    assert case.holds and found.holds
    assert found.proven == pytest.approx(run.proposition_1().proven, rel=1e-6)
    # As printed: σ itself on the sum, and α without its 1.
    short = case.sigma * math.sqrt((case.order - 1) / case.order)
    printed = replace(run, sigma=short).proposition_1().printed
    assert found.printed == pytest.approx(printed, rel=1e-6)
    # So few rounds; and so many parameters that Theorem 2 does not apply to T.
    assert adp2sgd_utility(SETTING, 0.5, 1e-6, 5000, 1.0, 0.6).proven == math.inf
    many = adp2sgd_utility(replace(few, dimension=1000), *at)
    assert [one.name[:3] for one in many.conditions if not one.holds] == ["ε ≤"]
    assert many.proven == math.inf


# Private federated learning


def test_local_epochs_cost_what_the_length_of_noise_is() -> None:
    found = local_degradation(3, 0.5, 2.0, 1.5, 10, 40, (0.1, 4.0))
    noise = 0.5 * 1.5 * 2.0 * chi(40).mean() / 10
    assert found == pytest.approx(3 * (0.5 * 2.0 + 0.1 * 4.0 + noise))
    # Over a run of 20 steps it does not matter how they are dealt into rounds.
    one = 20 * local_degradation(1, 0.5, 2.0, 1.5, 10, 40)
    assert 4 * local_degradation(5, 0.5, 2.0, 1.5, 10, 40) == pytest.approx(one)


def test_theorem_3_is_below_the_utility_of_independent_clients() -> None:
    draw = np.random.default_rng(5)
    spread, d = 2.0, 9
    for clients, far in ((1, 3.0), (10, 1.0), (40, 0.4)):
        models = draw.normal(0, spread / math.sqrt(d * clients), (20_000, d))
        excesses = 1.5 * np.linalg.norm(models, axis=1)  # a loss of slope β = 1.5
        assert l_utility(excesses, far) >= theorem_3(far, clients, 1.5, spread)
    assert theorem_3(1.0, 1, 2.0, 1.0) == 0
    assert theorem_3(1.0, 100, 1.0, 2.0) == pytest.approx(0.96)
    assert l_utility([0.1, -0.2, 0.5, 0.4], 0.4) == 0.5


def test_bounds_that_leave_the_doubles_have_their_sign() -> None:
    for step, sign in ((0.1, 1), (1.0, -1)):
        assert improvement(step, 1e200, 1e200, 1.0, 3) == sign * math.inf
    assert improvement(0.0, 1e200, 1e200, 1.0, 3) == improvement(0.1, 0.0, 0.0, 1.0, 3) == 0
    one, far = (proposition_4(0.1, 1.0, 1.0, 100, 5, radius=R).proven for R in (1.0, 1e100))
    assert far == pytest.approx(one * 1e100 ** (4 / 3))


def test_proposition_2_at_a_gap_whose_square_is_no_number() -> None:
    assert proposition_2(1, 1.0, gap=1e200).printed == 4e200


def test_bounds_at_extremes_are_numbers_or_refused_in_words() -> None:
    assert theorem_3(1e-300, 1, 1e-3, 1e-3) == 0
    few = Decentralised(2, 4, 1, 1.0, 1.0, 1.0, 0.1, 1, 0.0, 0.05, 1)
    for delta in (0.0, 1.0):
        with pytest.raises(ValueError, match="delta"):
            adp2sgd_utility(few, 5.0, delta, 30_000, 1.0, 0.3)
