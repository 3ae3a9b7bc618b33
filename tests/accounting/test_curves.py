import math

import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from forethought.accounting.dominating_pair import gaussian_epsilon
from forethought.accounting.exact import epsilon as exact_epsilon
from forethought.accounting.renyi import (
    RenyiCurve,
    binary_moment,
    canonne_epsilon,
    exchange_rdp,
    gaussian_rdp,
    poisson_rdp,
    rdp,
    zcdp,
)
from forethought.values.mechanism import (
    FullBatch,
    Mechanism,
    Poisson,
    Rounds,
    Shuffled,
    WithoutReplacement,
)

CASES = [(0.004, 1.1), (0.5, 0.5), (1e-4, 0.6), (0.01, 50.0), (1e-8, 0.2), (0.99, 3.0)]


def mironov_epsilon(orders, values, delta):
    """ε at each order by the first conversion, D + ln(1/δ)/(α − 1) (Mironov 2017, Prop. 3)."""
    return values - math.log(delta) / (orders - 1)


def zcdp_epsilon(rho, delta):
    """ε of ρ-zCDP, least over orders (Canonne, Kamath and Steinke 2020, Corollary 13)."""
    # The optimum lies near 1 + sqrt(ln(1/δ)/ρ); any grid of orders around it is sound.
    orders = 1 + math.sqrt(-math.log(delta) / rho) * np.geomspace(1e-3, 4.0, 4001)
    return float(np.min(canonne_epsilon(orders, rho * orders, delta)))


def integrated(rate, sigma, order):
    with mpmath.workdps(40):
        q, s, a = mpmath.mpf(rate), mpmath.mpf(sigma), mpmath.mpf(order)

        def gap(z):
            u = q * mpmath.expm1((2 * z - 1) / (2 * s**2))
            density = mpmath.exp(-(z**2) / (2 * s**2)) / (s * mpmath.sqrt(2 * mpmath.pi))
            return ((1 + u) ** a - 1 - a * u) * density

        cuts = [-14 * s, -4 * s, 0, 4 * s, a, a + 6 * s, a + 14 * s]
        return float(mpmath.log1p(mpmath.quad(gap, sorted(cuts))) / (a - 1))


@pytest.mark.parametrize(("rate", "sigma"), CASES)
def test_whole_orders_agree_with_the_binomial_sum(rate, sigma):
    orders = [2, 3, 8, 32, 200]
    want = oracle._compute_rdp_poisson_subsampled_gaussian(rate, sigma, orders)
    got = poisson_rdp(rate, sigma, orders).values
    # The sum loses what is small against 1: 1e-16 of A_α.
    assert np.allclose(got, want, rtol=1e-9, atol=1e-14)


@pytest.mark.thinned
@pytest.mark.parametrize(("rate", "sigma"), CASES[:4])
@pytest.mark.parametrize("order", [1.05, 1.5, 2.75, 7.3])
def test_fractional_orders_agree_with_forty_digits(rate, sigma, order):
    want = integrated(rate, sigma, order)
    assert poisson_rdp(rate, sigma, [order]).values[0] == pytest.approx(want, rel=1e-8)


def test_the_other_direction_is_smaller():
    rate, sigma = 0.1, 0.8
    z = np.linspace(-30, 30, 600001)
    absent = np.exp(-(z**2) / (2 * sigma**2))
    present = np.exp(-((z - 1) ** 2) / (2 * sigma**2))
    mixed = (1 - rate) * absent + rate * present
    scale = np.sum(absent)
    for order in (1.5, 4.0, 16.0):
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(absent > 0, absent * (mixed / absent) ** (1 - order), 0)
        other = math.log(np.sum(terms) / scale) / (order - 1)
        assert other <= poisson_rdp(rate, sigma, [order]).values[0]


@pytest.mark.parametrize("rate", [1e-200, 1e-250, 1e-290])
def test_a_record_that_is_hardly_ever_drawn_costs_what_its_noise_lets_it(rate):
    # At order 2 the moment is 1 + rate² (e^(1/σ²) − 1), whose second term is huge here.
    wanted = 2 * math.log(rate) + 1 / 0.02**2
    assert poisson_rdp(rate, 0.02, [2.0]).values[0] == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(("rate", "sigma"), [(0.004, 1.1), (0.5, 0.5), (0.01, 20.0), (0.2, 3.0)])
def test_exchange_agrees_with_the_oracle_or_is_tighter(rate, sigma):
    orders = [1.5, 2, 2.5, 3, 8, 16.25, 64, 200]
    want = oracle._compute_rdp_sample_wor_gaussian(rate, sigma, orders)
    got = np.array(exchange_rdp(rate, sigma, orders).values)
    assert np.all(got <= want * (1 + 1e-7))
    unamplified = np.array(orders) / (2 * sigma**2)
    same = want < unamplified * 0.999
    assert np.allclose(got[same], want[same], rtol=1e-6)


@settings(max_examples=15, deadline=None)
@given(
    st.floats(1e-3, 0.5),
    st.floats(0.5, 8),
    st.integers(1, 300),
    st.sampled_from(["add-or-remove", "replace-one"]),
)
def test_exact_epsilon_is_never_above_the_renyi_bound(rate, sigma, rounds, adjacency):
    mechanism = Mechanism(Rounds(sigma, rounds, Poisson(rate)), adjacency=adjacency)
    exact = exact_epsilon(mechanism, 1e-6, accuracy=0.05)
    assert exact.lower <= rdp(mechanism).epsilon(1e-6)


def test_exact_without_replacement_is_below_the_renyi_bound():
    mechanism = Mechanism(Rounds(4.0, 200, WithoutReplacement(50, 1000)), adjacency="replace-one")
    exact = exact_epsilon(mechanism, 1e-6)
    assert exact.lower <= rdp(mechanism).epsilon(1e-6) <= exact.upper * 3


def test_a_planted_fault_of_the_sensitivity_is_seen():
    mechanism = Mechanism(Rounds(2.0, 50, Poisson(0.1)), adjacency="replace-one")
    faulty = poisson_rdp(0.1, 2.0, rdp(mechanism).orders).times(50)
    assert exact_epsilon(mechanism, 1e-6).lower > faulty.epsilon(1e-6)


def test_conversions_order_and_soundness():
    curve = gaussian_rdp(1.0, tuple(np.linspace(1.5, 30, 300)))
    orders, values = np.array(curve.orders), np.array(curve.values)
    for delta in (1e-2, 1e-5, 1e-10):
        best = curve.epsilon(delta)
        assert gaussian_epsilon(delta, 1.0) <= best
        assert best <= canonne_epsilon(orders, values, delta).min() * (1 + 1e-9)
        assert (
            canonne_epsilon(orders, values, delta).min()
            < mironov_epsilon(orders, values, delta).min()
        )
        assert curve.delta(best * 1.0001) <= delta * 1.2


def test_the_optimal_conversion_agrees_with_a_search_of_binary_pairs():
    order, epsilon, delta = 3.0, 1.2, 0.05
    q = np.exp(np.linspace(-12, math.log((1 - delta) * math.exp(-epsilon)), 400001))[:-1]
    p = delta + math.exp(epsilon) * q
    moment = np.log(p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order))
    assert binary_moment(order, epsilon, delta) == pytest.approx(moment.min(), abs=1e-7)
    curve = RenyiCurve((order,), (moment.min() / (order - 1),))
    assert curve.epsilon(delta) == pytest.approx(epsilon, rel=1e-5)
    assert curve.epsilon(delta) < canonne_epsilon(np.array([order]), np.array(curve.values), delta)


@pytest.mark.parametrize("order", [1.001, 1.5, 2.0, 8.0, 32.0, 1024.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 0.1, 1.0, 40.0])
@pytest.mark.parametrize("delta", [0.3, 1e-5, 1e-14, 1e-20])
def test_the_optimal_conversion_is_never_above_the_exact_one(order, epsilon, delta):
    """In 100 digits, at places around the least one that the moment of binary pairs has."""
    with mpmath.workdps(100):
        top = mpmath.log1p(-mpmath.mpf(delta)) - epsilon

        def moment(log_q):
            q, p = mpmath.exp(log_q), delta + mpmath.exp(epsilon + log_q)
            other = (1 - p) ** order * (1 - q) ** (1 - order) if p < 1 else 0
            return mpmath.log(p**order * q ** (1 - mpmath.mpf(order)) + other)

        low, high = top - 200, top
        for _ in range(90):  # convex: thirds
            left, right = low + (high - low) / 3, high - (high - low) / 3
            low, high = (low, right) if moment(left) <= moment(right) else (left, high)
        least = min(moment(low), moment(top))
        found = binary_moment(order, epsilon, delta)
        assert least * (1 - mpmath.mpf("3e-10")) <= found <= least * (1 + mpmath.mpf("1e-11"))


def test_zero_concentration_of_each_sampling():
    assert zcdp(Mechanism(Rounds(2.0, 8, FullBatch()))) == pytest.approx(1.0)
    assert zcdp(Mechanism(Rounds(2.0, 8, Poisson(0.1)))) == pytest.approx(1.0)
    shuffled = Mechanism(Rounds(2.0, 20, Shuffled(10, 100)), adjacency="zero-out")
    assert zcdp(shuffled) == pytest.approx(0.25)
    assert zcdp(Mechanism(Rounds(0.0, 1, FullBatch()))) == math.inf
    for rho in (0.01, 0.5, 20.0):
        published = rho + 2 * math.sqrt(rho * math.log(1e5))
        exact = gaussian_epsilon(1e-5, math.sqrt(2 * rho))
        assert exact <= zcdp_epsilon(rho, 1e-5) < published


def test_composition_adds_and_needs_one_grid():
    one = poisson_rdp(0.01, 1.0, (2.0, 4.0))
    assert (one + one).values == pytest.approx(one.times(2).values)
    with pytest.raises(ValueError, match="equal orders"):
        one + poisson_rdp(0.01, 1.0, (2.0, 5.0))
    with pytest.raises(ValueError, match="above 1"):
        rdp(Mechanism(Rounds(1.0, 1, FullBatch())), (1.0,))


def test_extremes_stay_finite_or_say_infinity():
    for rate in (1e-8, 1e-3, 1.0):
        for sigma in (0.2, 1.0, 1e5):
            values = rdp(Mechanism(Rounds(sigma, 10**7, Poisson(rate)))).values
            assert all(value >= 0 and math.isfinite(value) for value in values)
    assert rdp(Mechanism(Rounds(0.0, 1, Poisson(0.5)))).epsilon(1e-5) == math.inf
