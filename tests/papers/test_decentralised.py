import math

import pytest

from forethought.papers.decentralised import theorem_2

CASE = theorem_2(5.0, 1e-5, 40000, 16, 16, 3000)


def test_sigma_and_order_satisfy_equation_24():
    population = 16 * 3000
    spent = 20 * 40000 * CASE.order / (population**2 * CASE.sigma**2)
    assert spent + math.log(1e5) / (CASE.order - 1) == pytest.approx(5.0)
    assert CASE.holds
    # Noise on the sum is B times the noise on the mean: erratum 003.1.
    assert CASE.noise_multiplier == pytest.approx(16 * CASE.sigma)


def test_the_published_rate_hides_who_stepped():
    # The honest figure: a worker's own T/K steps at K times the rate.
    assert CASE.as_published.upper < CASE.exact.lower
    assert CASE.mechanism.rounds[0].count == 2500
    assert CASE.mechanism.rounds[0].sampling.examples == 3000


def test_as_published_the_bound_holds():
    assert CASE.as_published.upper <= 5.0


def test_the_rule_of_thumb_for_prefixes():
    assert CASE.prefix_epsilon(10000) == pytest.approx(2.5)
    with pytest.raises(ValueError, match="iteration"):
        CASE.prefix_epsilon(40001)


def test_where_nothing_fits_the_conditions_say_so():
    case = theorem_2(0.1, 1e-5, 100, 1000, 2, 1000)
    assert not case.holds
    assert any(condition.margin < 1 for condition in case.conditions)
