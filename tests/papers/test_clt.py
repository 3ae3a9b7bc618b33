import math

import pytest

from forethought.accounting.dominating_pair import gaussian_epsilon
from forethought.accounting.exact import epsilon as exact_epsilon
from forethought.papers.closed_form import approximate_clt_epsilon, approximate_clt_mu
from forethought.values.mechanism import FullBatch, Mechanism, Poisson, Rounds, WithoutReplacement


def test_published_example():
    # Bu et al. 2020: μ = p sqrt(T(e^{1/σ²} − 1)) with p = 256/60000, σ = 1.3, 15 epochs.
    mechanism = Mechanism(Rounds(1.3, 3516, Poisson(256 / 60000)))
    want = 256 / 60000 * math.sqrt(3516 * math.expm1(1.3**-2))
    assert approximate_clt_mu(mechanism) == pytest.approx(want)
    assert approximate_clt_epsilon(mechanism, 1e-5) == pytest.approx(gaussian_epsilon(1e-5, want))


def test_near_the_exact_value_with_many_quiet_rounds_and_below_it():
    mechanism = Mechanism(Rounds(1.1, 14000, Poisson(0.004)))
    exact = exact_epsilon(mechanism, 1e-5)
    near = approximate_clt_epsilon(mechanism, 1e-5)
    assert near == pytest.approx(exact.upper, rel=0.05)
    assert near < exact.lower  # which is why it is never a guarantee


def test_gaussian_parts_are_exact_and_kinds_add():
    full = Mechanism(Rounds(5.0, 4, FullBatch()))
    assert approximate_clt_mu(full) == pytest.approx(0.4)
    both = full + Mechanism(Rounds(2.0, 10, WithoutReplacement(10, 1000)))
    alone = approximate_clt_mu(Mechanism(Rounds(2.0, 10, WithoutReplacement(10, 1000))))
    assert approximate_clt_mu(both) == pytest.approx(math.hypot(0.4, alone))
    assert approximate_clt_epsilon(Mechanism(Rounds(0.0, 1, FullBatch())), 1e-5) == math.inf
