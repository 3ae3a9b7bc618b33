import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forethought.accounting.dominating_pair import gaussian_delta
from forethought.accounting.renyi import rdp
from forethought.accounting.tradeoff import from_epsilon_delta, tradeoff
from forethought.papers.closed_form import (
    SampleSizes,
    closed_form_epsilon,
    closed_form_sigma,
    g,
    gamma,
    gamma_printed,
    gamma_step,
    h,
    lemma_b_3,
    section_c_1,
    section_c_3,
    theorem_3_1,
    theorem_b_2,
    theorem_b_4,
)
from forethought.values.mechanism import Mechanism, Poisson, Rounds


@given(st.floats(1e-3, 20), st.floats(-15, -0.5))
def test_sigma_and_epsilon_invert_each_other(epsilon, log_delta):
    delta = 10**log_delta
    sigma = closed_form_sigma(epsilon, delta)
    assert closed_form_epsilon(sigma, delta) == pytest.approx(epsilon, rel=1e-9)
    assert sigma == pytest.approx(math.sqrt(2 * (epsilon + math.log(1 / delta)) / epsilon))


def test_small_sigma_has_no_closed_form():
    assert closed_form_epsilon(1.4, 1e-5) == math.inf


def test_h_and_g_at_the_papers_figures():
    assert h(6) == pytest.approx(0.42, abs=0.005)
    assert h(10) == pytest.approx(0.58, abs=0.01)
    assert g(6) == pytest.approx(1 / (6 * math.e))
    # h is where the denominator of gamma vanishes.
    assert 7 * (1 - h(7)) == pytest.approx(2 * math.e * math.sqrt(h(7)))


@pytest.mark.parametrize(
    ("sigma", "ratio"), [(19.3, 0.01), (12.1, 0.025), (6.57, 0.075), (3.0, 0.4)]
)
def test_gamma_is_the_smallest_solution(sigma, ratio):
    value = gamma(sigma, ratio)
    assert value == pytest.approx(gamma_step(sigma, ratio, value), rel=1e-9)
    assert value * 0.999 < gamma_step(sigma, ratio, value * 0.999)
    assert gamma_printed(sigma, ratio) > value


@pytest.mark.parametrize(
    ("examples", "sigma", "epochs", "least", "most"),
    [(10000, 19.29962, 5, 0.0, 0.01), (50000, 6.572, 7, 0.02, 0.05)],
)
def test_erratum_000_2_the_two_denominators_differ_little(examples, sigma, epochs, least, most):
    ratio = closed_form_epsilon(sigma, 1 / examples) / epochs
    assert least < gamma_printed(sigma, ratio) / gamma(sigma, ratio) - 1 < most


def test_moments_of_a_growing_sequence():
    sizes = SampleSizes.growing(1e-4, 1.0, 500, 10000)
    assert sizes.theta == pytest.approx(2, rel=0.01)
    each = [size for size, count in sizes for _ in range(count)]
    assert len(each) == 500 and each[0] == 1 and each[-1] == 500
    for j in (1, 2, 3):
        want = sum(s**j / (10000 * (10000 - s) ** (j - 1)) for s in each) / 500
        assert sizes.moment(j) == pytest.approx(want)
    assert sizes.rho >= 1 and sizes.rho_hat <= 1
    assert len(sizes.mechanism(8.0)) == 500
    with pytest.raises(ValueError, match="grows past N"):
        SampleSizes.growing(0.1, 1.0, 500, 10000)


def test_conditions_come_with_margins():
    result = theorem_b_4(0.04945, 1e-4, 19.29962, SampleSizes.constant(26, 1923, 10000))
    assert [condition.name[:4] for condition in result.conditions] == [
        "(32)",
        "(33)",
        "(34)",
        "(35)",
    ]
    assert result.conditions[2].margin > 1
    # The paper's σ drops the ε inside the root, so (35) fails by a hair.
    assert not result.holds and 0.99 < result.conditions[3].margin < 1
    larger = theorem_b_4(0.04945, 1e-4, 19.36, SampleSizes.constant(26, 1923, 10000))
    assert larger.holds
    too_few = theorem_b_4(0.04945, 1e-4, 19.36, SampleSizes.constant(50, 1000, 10000))
    assert not too_few.conditions[2].holds


@pytest.mark.parametrize(
    ("examples", "sigma", "size", "rounds", "delta", "claimed", "exact"),
    [
        (10000, 19.29962, 26, 1923, 1e-4, 0.0497, 0.01026),
        (60000, 12.10881, 288, 1250, 1 / 60000, 0.1521, 0.03763),
        (50000, 6.572, 406, 862, 1 / 50000, 0.5253, 0.1071),
    ],
)
def test_erratum_000_4_sound_but_loose(examples, sigma, size, rounds, delta, claimed, exact):
    epsilon = closed_form_epsilon(sigma, delta)
    assert epsilon == pytest.approx(claimed, abs=1e-4)
    result = theorem_b_4(epsilon, delta, sigma, SampleSizes.constant(size, rounds, examples))
    assert result.holds
    assert result.exact.lower <= exact * 1.001 and result.exact.upper >= exact * 0.999
    assert result.exact.upper < epsilon / 3


def test_theorem_3_1_names_what_fails():
    sizes = SampleSizes.constant(26, 1923, 10000)
    epsilon = closed_form_epsilon(19.29962, 1e-4)
    assert theorem_3_1(epsilon, 1e-4, 19.29962, sizes).holds
    outside = theorem_3_1(0.6, 1e-4, 19.29962, sizes)
    failing = [condition.name for condition in outside.conditions if not condition.holds]
    assert failing == ["ε < 0.5"]


def test_theorem_b_2_follows_where_b_4_does():
    for size, rounds, sigma, examples in ((26, 1923, 19.36, 10000), (288, 1250, 12.2, 60000)):
        sizes = SampleSizes.constant(size, rounds, examples)
        epsilon = closed_form_epsilon(sigma, 1 / examples)
        assert theorem_b_4(epsilon, 1 / examples, sigma, sizes).holds
        assert theorem_b_2(epsilon, 1 / examples, sigma, sizes).holds
    assert not theorem_b_2(0.001, 1e-4, 3.0, SampleSizes.constant(26, 1923, 10000)).holds


def test_noise_that_is_nearly_nothing_proves_nothing():
    sizes = SampleSizes.constant(0.001, 3, 10**6)
    assert not theorem_b_2(1.0, 1e-5, 1e-3, sizes).holds
    assert not theorem_b_4(1.0, 1e-5, 1e-200, sizes).holds
    assert closed_form_epsilon(1e300, 1e-5) == 0


def test_bad_sequences_are_refused():
    with pytest.raises(ValueError, match="number of rounds"):
        SampleSizes((1.0, 2.0), (3,), 10)
    with pytest.raises(ValueError, match="sample size"):
        SampleSizes.constant(11, 3, 10)


@pytest.mark.parametrize(
    ("size", "sigma", "examples"),
    [(26, 19.3, 10_000), (288, 12.1, 60_000), (406, 6.572, 50_000), (100, 2.0, 10_000)],
)
def test_lemma_b_3_bounds_the_log_moment(size, sigma, examples):
    curve = rdp(Mechanism(Rounds(sigma, 1, Poisson(size / examples))))
    divergence = dict(zip(curve.orders, curve.values, strict=True))
    for order in (1, 2, 8):
        bound = lemma_b_3(size, sigma, examples, order)
        assert order * divergence[order + 1.0] <= bound < math.inf
        # A wider r_0 weakens it.
        assert lemma_b_3(size, sigma, examples, order, 1.5 * sigma * size / examples) > bound
    # About twice the truth at small orders, where its own first term is: it is loose, not wrong.
    assert lemma_b_3(size, sigma, examples, 1) < 3 * divergence[2.0]
    assert lemma_b_3(size, 1.0, examples, 1) == math.inf
    assert lemma_b_3(size, sigma, examples, 10**6) == math.inf


@pytest.mark.slow
def test_section_c_3_is_one_curve_below_every_run_of_enough_rounds():
    sigma, N, K, target = 12.10881, 60_000, 360_000, 0.2
    proven = section_c_3(sigma, target, N, K)
    fewest = math.ceil(gamma(sigma, target * N / K) * (K / N) ** 2 / target)
    alpha = np.linspace(0.001, 0.999, 60)
    for rounds in (fewest, 4 * fewest):
        run = Mechanism(Rounds(sigma, rounds, Poisson(K / rounds / N)))
        assert (proven(alpha) <= tradeoff(run)(alpha) + 1e-9).all()
    # Of the guarantees that make it, each is on or below it, and one of them meets it.
    each = [
        from_epsilon_delta(eps, math.exp(-eps * (sigma**2 / 2 - 1)))(0.05)
        for eps in np.linspace(target, 0.4999, 300)
    ]
    assert max(each) <= proven(0.05) + 1e-12
    assert max(each) == pytest.approx(proven(0.05), abs=1e-3)
    with pytest.raises(ValueError, match="no ε"):
        section_c_3(3.0, 0.2, N, K)


def test_section_c_3_where_delta_is_below_every_double():
    assert section_c_3(1000.0, 0.001, 10_000, 5 * 10**6).delta(0.4) == pytest.approx(0, abs=1e-9)


def test_section_c_1_asks_for_more_noise_than_the_limit_and_nears_it():
    ratios = []
    for delta in (1e-4, 1e-12, 1e-100, 1e-300):
        approximate, limit = section_c_1(0.05, delta, 0.01)
        # c/τ is the μ of a Gaussian that has this δ at this ε.
        assert gaussian_delta(0.05, 0.01 / limit) == pytest.approx(delta, rel=1e-6)
        ratios.append(approximate / limit)
    assert ratios == sorted(ratios, reverse=True)
    assert 1 < ratios[-1] < 1.02
    with pytest.raises(ValueError, match="Section"):
        section_c_1(1e-6, 1e-5, 0.01)
