import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from forethought.accounting.dominating_pair import gaussian_delta, gaussian_epsilon
from forethought.accounting.exact import epsilon as exact_epsilon
from forethought.accounting.tradeoff import (
    composed,
    from_epsilon_delta,
    from_points,
    from_profile,
    gaussian,
    gaussian_mixture,
    lower_envelope,
    maximum,
    minimum,
    mixture,
    through,
    tradeoff,
    upper_envelope,
)
from forethought.values.mechanism import FullBatch, Mechanism, Poisson, Rounds, WithoutReplacement

ALPHA = np.linspace(0, 1, 101)


def curve(alpha, mu):
    return norm.cdf(norm.isf(alpha) - mu)


@pytest.mark.parametrize("mu", [0.0, 1e-3, 0.3, 1.0, 5.0, 30.0])
def test_gaussian_is_its_closed_form_and_never_above(mu):
    f = from_profile(lambda epsilon: gaussian_delta(epsilon, mu))
    assert np.allclose(f(ALPHA), curve(ALPHA, mu), atol=1e-14)
    assert np.all(f(ALPHA) <= curve(ALPHA, mu) + 1e-16)
    assert np.allclose(gaussian(mu)(ALPHA), curve(ALPHA, mu), atol=1e-14)


def test_scalars_arrays_and_shapes():
    f = gaussian(1.0)
    assert isinstance(f(0.25), float)
    assert f(ALPHA[:100].reshape(4, 25)).shape == (4, 25)
    with pytest.raises(ValueError, match="between 0 and"):
        f(1.5)


def test_epsilon_delta_is_the_maximum_of_its_three_terms():
    # Appendix A of the source prints the minimum, which is no trade-off function.
    f = from_epsilon_delta(1.0, 0.01)
    terms = [0 * ALPHA, 0.99 - math.e * ALPHA, math.exp(-1) * (0.99 - ALPHA)]
    assert np.allclose(f(ALPHA), np.max(terms, axis=0), atol=1e-12)
    assert not np.allclose(f(ALPHA), np.min(terms, axis=0), atol=0.1)
    assert f.epsilon(0.01) == pytest.approx(1.0, abs=1e-9)
    assert f.delta(1.0) == pytest.approx(0.01, abs=1e-12)
    assert from_epsilon_delta(0.0, 1.0)(0.3) == 0.0


def test_pure_privacy_has_the_gaussian_it_implies():
    # ε-DP touches G_μ at the corner: Φ⁻¹(e^ε/(1 + e^ε)) = μ/2.
    want = 2 * norm.ppf(math.e / (1 + math.e))
    assert want <= from_epsilon_delta(1.0, 0.0).gaussian_mu() <= want * 1.001


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 6), st.floats(-12, -0.5))
def test_conversions_go_there_and_back(mu, log_delta):
    f, delta = gaussian(mu), 10**log_delta
    epsilon = f.epsilon(delta)
    assert epsilon == pytest.approx(gaussian_epsilon(delta, mu), rel=1e-6, abs=1e-9)
    assert f.delta(epsilon) <= delta
    assert from_epsilon_delta(epsilon, delta)(0.1) <= f(0.1) + 1e-9


def test_gaussian_mu_is_certified_from_above():
    for mu in (0.3, 1.0, 4.0):
        f = from_profile(lambda epsilon, mu=mu: gaussian_delta(epsilon, mu))
        assert gaussian(mu).gaussian_mu() == mu
        # The blind slack cannot be beaten by more than the cut into straight pieces.
        assert f.gaussian_mu(1e-9) <= mu * (1 + 1e-4)
        assert f.gaussian_mu(1e-9) >= mu * (1 - 1e-3)
        assert f.gaussian_mu() == math.inf or f.gaussian_mu() >= mu


@pytest.mark.parametrize("size", [2, 3, 5])
def test_group_of_a_gaussian_is_a_gaussian_of_the_multiple(size):
    f = from_profile(lambda epsilon: gaussian_delta(epsilon, 0.4)).group(size)
    assert np.all(f(ALPHA) <= curve(ALPHA, 0.4 * size) + 1e-12)
    assert np.allclose(f(ALPHA), curve(ALPHA, 0.4 * size), atol=1e-5)
    want = gaussian_epsilon(1e-8, 0.4 * size)
    assert want <= f.epsilon(1e-8) <= want * 1.0001
    known = gaussian(0.4).group(size)  # whose floor is a theorem's
    assert np.allclose(known(ALPHA), curve(ALPHA, 0.4 * size), atol=1e-9)


def test_group_of_pure_privacy_multiplies_epsilon():
    f = from_epsilon_delta(0.5, 0.0).group(4)
    assert 2.0 <= f.epsilon(1e-12) <= 2.01


def test_group_of_an_unsymmetric_curve_agrees_with_its_definition():
    f = lower_envelope(0.02, 0.7, symmetric=False)
    want = 1 - ALPHA
    power = ALPHA.copy()
    for _ in range(3):
        power = 1 - f(np.clip(power, 0, 1))
    want = 1 - power
    got = f.group(3)(ALPHA)
    assert np.all(got <= want + 1e-10)
    assert np.allclose(got, want, atol=1e-4)


def test_inverse_swaps_the_errors_and_symmetrising_takes_the_worse():
    f = lower_envelope(0.1, 1.0, symmetric=False)
    alphas = np.linspace(0.05, 0.85, 30)
    assert np.allclose(f.inverse()(f(alphas)), alphas, atol=1e-7)
    worse = f.symmetrised()
    assert np.all(worse(ALPHA) <= np.minimum(f(ALPHA), f.inverse()(ALPHA)) + 1e-12)
    assert np.allclose(worse.inverse()(ALPHA), worse(ALPHA), atol=1e-12)


def test_minimum_is_convex_and_maximum_is_pointwise():
    one, two = from_epsilon_delta(0.2, 0.2), gaussian(1.0)
    below = minimum(one, two)(ALPHA)
    assert np.all(below <= np.minimum(one(ALPHA), two(ALPHA)) + 1e-12)
    assert np.all(np.diff(below, 2) >= -1e-12)
    above = maximum(one, two)(ALPHA)
    assert np.allclose(above, np.maximum(one(ALPHA), two(ALPHA)), atol=1e-9)


def test_mixture_of_gaussians_is_lemma_b5():
    q, mu = np.array([0.2, 0.5, 0.3]), np.array([0.5, 1.0, 2.0])

    def published(alpha):
        level = brentq(lambda x: q @ norm.cdf(x / mu + mu / 2) - (1 - alpha), -200, 200, xtol=1e-14)
        return q @ norm.cdf(level / mu - mu / 2)

    want = [published(alpha) for alpha in ALPHA[1:-1]]
    assert np.allclose(gaussian_mixture(q, mu)(ALPHA[1:-1]), want, atol=1e-12)
    apart = mixture(q, [gaussian(m) for m in mu])
    assert np.allclose(apart(ALPHA), gaussian_mixture(q, mu)(ALPHA), atol=1e-12)
    assert apart.gaussian_mu() == 2.0


def test_missing_weight_is_disclosure():
    f = gaussian_mixture([0.9], [1.0])
    assert f(0.0) == pytest.approx(0.9)
    assert f.delta(50.0) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="at most 1"):
        gaussian_mixture([0.9, 0.2], [1.0, 2.0])


def test_envelopes_are_definitions_5_3_and_5_4():
    u, mu = 0.1, 1.0
    hat = u + (1 - u) * curve(ALPHA, mu)
    back = np.where(u < ALPHA, curve(np.clip((ALPHA - u) / (1 - u), 0, 1), mu), 1.0)
    beta_0 = 1 - norm.cdf(mu / 2 - math.log(1 - u) / mu)
    beta_1 = u + (1 - u) * (1 - norm.cdf(mu / 2 + math.log(1 - u) / mu))
    line = beta_0 + beta_1 - ALPHA
    upper = np.where(beta_0 >= ALPHA, hat, np.where(beta_1 >= ALPHA, line, back))
    assert np.allclose(upper_envelope(u, mu)(ALPHA), np.minimum(upper, 1 - ALPHA), atol=1e-10)
    shifted = curve(np.minimum(1, ALPHA + u), mu)
    sunk = np.maximum(0, curve(ALPHA, mu) - u)
    assert np.allclose(lower_envelope(u, mu, symmetric=False)(ALPHA), shifted, atol=1e-10)
    want = np.maximum(shifted, sunk)
    assert np.allclose(lower_envelope(u, mu)(ALPHA), want, atol=1e-10)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.05, 3), min_size=2, max_size=5), st.data())
def test_a_mixture_lies_between_its_envelopes(mus, data):
    mus = np.sort(np.array(mus))
    q = np.array([data.draw(st.floats(0.05, 1)) for _ in mus])
    q = q / q.sum() * (1 - 1e-12)
    f = gaussian_mixture(q, mus)(ALPHA)
    middle = mus[len(mus) // 2]
    below, above = q[mus < middle].sum() + 1e-11, q[mus > middle].sum() + 1e-11
    assert np.all(f <= upper_envelope(below, middle)(ALPHA) + 1e-9)
    assert np.all(f >= lower_envelope(above, middle)(ALPHA) - 1e-9)


def test_points_prove_what_they_say_and_no_more():
    eps = np.linspace(0, 6, 40)
    f = from_points(eps, gaussian_delta(eps, 1.0))
    assert np.all(f(ALPHA) <= curve(ALPHA, 1.0) + 1e-12)
    assert np.allclose(f(ALPHA), curve(ALPHA, 1.0), atol=5e-3)
    for epsilon in (0.0, 0.3, 2.0, 5.5):
        assert f.delta(epsilon) >= gaussian_delta(epsilon, 1.0)
    with pytest.raises(ValueError, match="ascend"):
        from_points([0.0, 0.0], [0.1, 0.05])


def test_double_conjugate_of_points_is_convex_below_them():
    y = np.where(ALPHA < 0.3, 1 - ALPHA, 0.5 * (1 - ALPHA))
    f = through(ALPHA, y)
    assert np.all(f(ALPHA) <= y + 1e-9)
    assert np.all(np.diff(f(ALPHA), 2) >= -1e-9)
    straight = through([0.2], [0.3])
    assert straight(0.1) == pytest.approx(0.65, abs=1e-9)
    assert straight(0.6) == pytest.approx(0.15, abs=1e-9)


def test_a_gaussian_mechanism_is_exact():
    f = tradeoff(Mechanism(Rounds(4.0, 4, FullBatch())))
    assert np.allclose(f(ALPHA), curve(ALPHA, 0.5), atol=1e-12)
    assert np.allclose(
        tradeoff(Mechanism(Rounds(4.0, 4, FullBatch())), group=3)(ALPHA),
        curve(ALPHA, 1.5),
        atol=1e-9,
    )


@pytest.mark.slow
def test_a_sampled_mechanism_is_bounded_from_below_by_its_guarantees():
    mechanism = Mechanism(Rounds(1.0, 100, Poisson(0.02)))
    f = tradeoff(mechanism)
    for delta in (1e-2, 1e-5, 1e-8):
        certified = exact_epsilon(mechanism, delta)
        assert certified.lower <= f.epsilon(delta) <= certified.upper * 1.02
    # Without amplification every record is in every batch.
    assert f.gaussian_mu() == pytest.approx(10.0)
    assert f.gaussian_mu(1e-6) < 1.0


@pytest.mark.slow
def test_no_attack_beats_the_promise():
    """Likelihood-ratio attacks on 200,000 simulated runs; false alarm about 1e-6 per point."""
    sigma, rate, rounds, runs = 1.0, 0.1, 20, 200_000
    f = tradeoff(Mechanism(Rounds(sigma, rounds, Poisson(rate))))
    random = np.random.default_rng(7)

    def loss(y):
        return np.log1p(rate * np.expm1((2 * y - 1) / (2 * sigma**2))).sum(axis=1)

    noise = random.normal(0, sigma, (2, runs, rounds))
    absent, present = loss(noise[0]), loss(noise[1] + (random.random((runs, rounds)) < rate))
    for threshold in np.quantile(absent, [0.5, 0.9, 0.99]):
        alpha, beta = np.mean(absent > threshold), np.mean(present <= threshold)
        assert beta >= f(float(alpha)) - 5 / math.sqrt(runs)
        # A promise twice as strong would be caught.
        assert beta < gaussian(0.0)(float(alpha)) - 5 / math.sqrt(runs)


def test_noise_so_small_that_a_line_has_no_nodes():
    """Next to no noise: all that moves the transform is within its errors somewhere."""
    rounds = Rounds(0.0625, 1876, WithoutReplacement(64, 60_000), "group")
    mechanism = Mechanism(rounds, adjacency="replace-one")
    curve = tradeoff(mechanism)
    spent = exact_epsilon(mechanism, 1e-5).upper
    assert 1e-5 <= curve.delta(spent) <= 2e-5


def test_what_is_no_mechanism_is_said():
    with pytest.raises(TypeError, match=r"such as plan\.mechanism"):
        tradeoff(None)


@pytest.mark.parametrize(("mu", "times"), [(0.3, 2), (1.0, 5), (2.0, 3)])
def test_composed_gaussians_are_one_gaussian(mu, times):
    whole, low, high = (
        gaussian(mu * math.sqrt(times)),
        composed(gaussian(mu), times),
        composed(gaussian(mu), times, above=True),
    )
    for epsilon in (0.0, 0.4, 1.5, 4.0):
        exact = whole.delta(epsilon)
        assert exact <= low.delta(epsilon) <= exact * (1 + 1e-4) + 3e-11
        assert exact * 0.96 - 1e-12 <= high.delta(epsilon) <= exact + 1e-14
    assert low.floor == pytest.approx(mu * math.sqrt(times))


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (0.3, 0.02), (2.0, 0.1)])
def test_composed_guarantees_are_what_counting_says(epsilon, delta):
    # k-fold randomised response (Kairouz, Oh and Viswanath 2015), outcome by outcome.
    times, share = 4, 1 / (1 + math.exp(epsilon))
    for at in (0.0, 0.7, 1.9):
        least = sum(
            math.comb(times, k)
            * max(
                0.0,
                (1 - share) ** k * share ** (times - k)
                - math.exp(at) * share**k * (1 - share) ** (times - k),
            )
            for k in range(times + 1)
        )
        want = 1 - (1 - delta) ** times * (1 - least)
        found = composed(from_epsilon_delta(epsilon, delta), times).delta(at)
        assert want - 1e-12 <= found <= want * 1.02 + 1e-4


def test_composed_once_is_the_same_curve():
    f = lower_envelope(0.01, 0.5)
    assert composed(f, 1) is f
    # What one run discloses, two disclose the more often.
    assert composed(f, 2).delta(30.0) == pytest.approx(1 - 0.99**2, rel=1e-9)


def test_a_pair_of_a_huge_epsilon_bounds_nothing():
    assert from_epsilon_delta(800.0, 1e-5)(0.1) < 1e-9
    assert from_epsilon_delta(1.0, 1e-5)(0.1) == pytest.approx(1 - 1e-5 - math.e * 0.1)
