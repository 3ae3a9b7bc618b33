import math

import pytest

from forethought.published.calculators import converged_gamma, phase_calculator, rounds_calculator
from forethought.published.closed_form import gamma


@pytest.mark.parametrize(
    ("examples", "sigma", "epochs", "epsilon", "size", "asymptotic"),
    [
        (10000, 19.29962, 5, 0.0497, 31, 198),
        (60000, 12.10881, 6, 0.1521, 414, 3042),
        (50000, 6.572, 7, 0.5253, 811, 7504),
    ],
)
def test_tables_9_to_11_by_the_printed_rules(examples, sigma, epochs, epsilon, size, asymptotic):
    found = rounds_calculator(examples, sigma, epochs)
    assert found.epsilon == pytest.approx(epsilon, abs=1e-4)
    assert math.floor(found.s_max) == size
    assert math.floor(found.s_max_asymptotic) == asymptotic
    assert found.t_min * found.s_max == pytest.approx(epochs * examples)


@pytest.mark.parametrize(
    ("examples", "epochs", "targets", "sizes"),
    [
        (10000, 5, (0.04945, 0.1, 0.25, 0.5, 1, 2), (31, 56, 117, 194, 301, 418)),
        (60000, 6, (0.15007, 0.2, 0.25, 0.5, 0.75, 1, 2), (410, 515, 614, 1028, 1357, 1628, 2337)),
        (50000, 7, (0.25, 0.5, 0.75, 1, 1.5, 2, 3), (464, 783, 1037, 1246, 1568, 1799, 2087)),
    ],
    ids=["table 6", "table 7", "table 8"],
)
def test_tables_6_to_8_by_the_printed_rules(examples, epochs, targets, sizes):
    found = [phase_calculator(examples, epochs * examples, target) for target in targets]
    assert tuple(phase.size for phase in found) == sizes
    assert all(phase.result.holds for phase in found)


def test_a_later_phase_keeps_the_target_over_all_phases():
    phase = phase_calculator(10000, 20000, 2.0, earlier=[(26, 1923)], sigma=4.0)
    assert phase.result.holds and phase.result.epsilon == 2.0
    assert phase.result.sizes.rounds == (1923, phase.rounds)
    assert phase.result.exact.upper < 2.0
    with pytest.raises(ValueError, match="needs its sigma"):
        phase_calculator(10000, 20000, 2.0, earlier=[(26, 1923)])


def test_an_impossible_target_says_what_to_change():
    with pytest.raises(ValueError, match="no sample size"):
        phase_calculator(10000, 50000, 0.01, sigma=4.0)
    with pytest.raises(ValueError, match="lower sigma"):
        rounds_calculator(10000, 19.3, 1)


def test_the_iteration_converges_to_the_solution():
    assert converged_gamma(12.1, 0.025) == pytest.approx(gamma(12.1, 0.025), rel=2e-4)
