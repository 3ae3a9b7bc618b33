import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forethought.accounting.dominating_pair import (
    gaussian_delta,
    gaussian_delta_above,
    gaussian_delta_below,
    gaussian_delta_bounds,
    gaussian_epsilon,
    gaussian_mu,
)


def oracle(epsilon, mu):
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize("mu", [1e-4, 0.1, 1.0, 7.0, 30.0])
@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0, 5.0, 8.0])
def test_delta_agrees_with_sixty_digits(mu, spread):
    epsilon = mu * mu / 2 + spread * mu
    want = float(oracle(epsilon, mu))
    assert float(gaussian_delta(epsilon, mu)) == pytest.approx(want, rel=1e-9)


def test_delta_on_the_negative_axis_mirrors_the_positive_one():
    epsilon = np.linspace(0.01, 5, 50)
    mirrored = 1 - np.exp(-epsilon) * (1 - gaussian_delta(epsilon, 1.3))
    assert np.allclose(gaussian_delta(-epsilon, 1.3), mirrored, atol=1e-14)


def test_without_shift_only_negative_epsilon_costs_delta():
    assert gaussian_delta(np.array([-1.0, 0.0, 1.0]), 0.0).tolist() == [1 - math.exp(-1), 0, 0]


@given(st.floats(1e-3, 30), st.floats(-13, -0.1))
def test_epsilon_is_the_least_that_holds(mu, log_delta):
    delta = 10**log_delta
    epsilon = gaussian_epsilon(delta, mu)
    assert float(oracle(epsilon, mu)) <= delta
    if epsilon > 1e-9:
        assert float(oracle(epsilon * (1 - 1e-8) - 1e-12, mu)) > delta * (1 - 1e-6)


@given(st.floats(1e-3, 50), st.floats(-13, -0.5))
def test_mu_inverts_epsilon_from_below(epsilon, log_delta):
    delta = 10**log_delta
    mu = gaussian_mu(epsilon, delta)
    assert float(oracle(epsilon, mu)) <= delta
    assert float(oracle(epsilon, mu * (1 + 1e-8))) > delta * (1 - 1e-7)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-90, 1e-80), (0.0, 1e-70), (1e-300, 1e-300)])
def test_mu_is_never_above_a_tiny_one(epsilon, delta):
    assert gaussian_mu(epsilon, delta) <= 3 * max(epsilon, delta)  # δ(0) is at least μ/3 here


def test_impossible_targets_are_refused():
    with pytest.raises(ValueError, match="mu has delta"):
        gaussian_mu(-1.0, 0.1)
    with pytest.raises(ValueError, match="delta"):
        gaussian_epsilon(0.0, 1.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mu", [1e-300, 1e-8, 1.0, 1e5, 2e8, 1e16, 1e200])
@pytest.mark.parametrize("epsilon", [-1e200, -1.0, 0.0, 1.0, 1e17, 1e200, 1e308])
def test_bounds_on_delta_are_an_interval_however_large_or_small_all_is(epsilon, mu):
    ends = [float(end(epsilon, mu)) for end in (gaussian_delta_below, gaussian_delta_above)]
    assert 0 <= ends[0] <= ends[1] <= 1
    assert 0 <= float(gaussian_delta(epsilon, mu)) <= 1


@pytest.mark.parametrize("mu", [1e-3, 9e4, 2e8, 9e8])
@pytest.mark.parametrize("spread", [-30.0, -3.0, 0.0, 3.0, 30.0, 37.9])
def test_bounds_on_delta_enclose_it_far_out(mu, spread):
    epsilon = max(0.0, mu * mu / 2 + spread * mu)
    with mpmath.workdps(60):
        a, t = mpmath.mpf(mu) / 2 - mpmath.mpf(epsilon) / mu, mpmath.mpf(mu)
        t -= a
        # e^ε Φ(-t) by the tail's continued fraction where ε is far too large for e^ε.
        taken = (
            mpmath.npdf(a) * mpmath.exp(t * t / 2) * mpmath.ncdf(-t) * mpmath.sqrt(2 * mpmath.pi)
            if t < 1e4
            else mpmath.npdf(a) / t * (1 - 1 / t**2)
        )
        want = mpmath.ncdf(a) - taken
        assert gaussian_delta_below(epsilon, mu) <= want <= gaussian_delta_above(epsilon, mu)
        lower, upper = gaussian_delta_bounds(mu, epsilon)
        assert lower <= want <= upper


@pytest.mark.parametrize("mu", [1e-8, 1e-12, 1e-300])
def test_bounds_on_delta_hold_where_rounding_is_all_that_is_left(mu):
    """δ(−1) is 1 − 1/e up to μ: both factors of the lower end were negative, and it was 1."""
    found = gaussian_delta_bounds(mu, -1.0)
    assert found.lower <= -math.expm1(-1.0) <= found.upper
    assert found.lower > 0.63
