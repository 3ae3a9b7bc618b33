import math

import pytest

from forethought.papers.calculators import (
    iterated_gamma,
    phase_calculator,
    phase_epsilon,
    rounds_calculator,
)
from forethought.papers.closed_form import gamma, gamma_step


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


def test_an_iteration_that_would_swing_for_ever_ends_at_the_solution():
    tried = []

    def step(current):
        tried.append(current)
        assert len(tried) < 1000
        return gamma_step(11.98, 0.3977, current)

    kept, last = iterated_gamma(step)
    assert kept == pytest.approx(last, rel=1e-4)
    assert last == pytest.approx(gamma(11.98, 0.3977), rel=1e-4)


def test_the_iteration_converges_to_the_solution():
    found = iterated_gamma(lambda current: gamma_step(12.1, 0.025, current))[1]
    assert found == pytest.approx(gamma(12.1, 0.025), rel=2e-4)


@pytest.mark.parametrize(
    ("examples", "sigma", "epochs", "size", "gamma_kept"),
    [
        (10000, 19.29962, 5, 26, 3.815),
        (60000, 12.10881, 6, 288, 5.281),
        (50000, 6.572, 7, 406, 9.225),
    ],
)
def test_tables_9_to_11_come_out_to_the_letter(examples, sigma, epochs, size, gamma_kept):
    found = rounds_calculator(examples, sigma, epochs, reading="as-printed")
    assert math.floor(found.s_max) == size
    assert found.gamma == pytest.approx(gamma_kept, abs=5e-4)


# Table, N, K, (sample size printed, σ printed, ε found at it). Left out are the two rows that do
# not come out: the first of Table 6, which is Appendix D.4's, and the last of Table 8.
AS_PRINTED = [
    (
        10000,
        50000,
        [
            (55, 13.06742, 0.10788),
            (103, 8.59143, 0.24956),
            (168, 6.05868, 0.50182),
            (265, 4.27273, 1.00900),
            (400, 3.03241, 2.00322),
        ],
    ),
    (
        60000,
        360000,
        [
            (370, 12.10881, 0.15007),
            (460, 10.48452, 0.20017),
            (543, 9.37379, 0.25042),
            (889, 6.63120, 0.50040),
            (1168, 5.41887, 0.74936),
            (1409, 4.69244, 0.99932),
            (2159, 3.31648, 2.00054),
        ],
    ),
    (
        50000,
        350000,
        [
            (417, 9.29838, 0.25028),
            (689, 6.57192, 0.50103),
            (909, 5.36937, 0.75059),
            (1099, 4.65014, 1.00073),
            (1267, 4.16111, 1.24976),
            (1690, 3.28831, 2.00125),
        ],
    ),
]


@pytest.mark.parametrize(
    ("examples", "gradients", "rows"), AS_PRINTED, ids=["table 6", "table 7", "table 8"]
)
def test_tables_6_to_8_come_out_to_the_letter(examples, gradients, rows):
    for size, sigma, epsilon in rows:
        found = phase_epsilon(examples, gradients, size, reading="as-printed")
        assert found is not None
        assert found[1] == pytest.approx(sigma, abs=1.2e-5)
        assert found[0] == pytest.approx(epsilon, abs=6e-6)


def test_the_largest_size_as_printed_is_the_printed_one_or_the_one_below():
    for target, size in ((0.25, 103), (0.5, 168), (2.0, 400)):
        phase = phase_calculator(10000, 50000, target, reading="as-printed")
        assert phase.size in (size, size - 1)
        assert phase.result.epsilon <= target
        failing = [c.name for c in phase.result.conditions if not c.holds]
        assert failing == ["(35) sqrt(2(ε + ln(1/δ))/ε) ≤ σ"], "the ε left out of the root"
        assert phase.result.exact.upper < target


def test_steps_of_gamma_that_jump_to_and_fro_come_to_an_end():
    """Each step from one of two values leads to the other: the iteration never settled."""
    found = rounds_calculator(10_000_000, 2.0, 100)
    assert found.gamma == pytest.approx(gamma(2.0, found.epsilon / 100), rel=2e-3)
    with pytest.raises(ValueError, match="lower sigma"):
        rounds_calculator(100, 5.0, 1)
