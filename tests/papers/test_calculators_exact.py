"""The published calculators as a user meets them: plans, margins, exact figures beside."""

import json
import math
import sys

import pytest

import forethought as ft
from forethought.cli import main
from forethought.papers.calculators import (
    CalculatorError,
    calculate,
    earlier_phase,
    growing,
)
from forethought.papers.closed_form import closed_form_sigma, theorem_b_4


def test_noise_alone_follows_appendix_d4():
    proven, claimed = calculate(examples=10_000, epochs=5, noise_multiplier=19.29962)
    assert proven.calculator == claimed.calculator == "Appendix D.4"
    assert proven.result.theorem == "Theorem 3.1" and proven.result.holds
    # Table 9: ε_target 0.0497, asymptotic sample size 198; 31 by the printed rules.
    assert proven.result.epsilon == pytest.approx(0.0497, abs=1e-4)
    assert math.floor(proven.result.sizes.mean) == 31
    assert math.floor(claimed.result.sizes.mean) == 198
    assert [c.name[:3] for c in claimed.result.conditions if not c.holds] == ["(8)"]


def test_one_round_less_is_not_proven():
    proven = calculate(examples=10_000, epochs=5, noise_multiplier=19.29962)[0]
    fewer = growing(10_000, 5, 0.0, proven.result.sizes.total_rounds - 1, 1)
    assert fewer.gradients == pytest.approx(50_000)
    (needed,) = (c for c in proven.result.conditions if c.name.startswith("(8)"))
    assert fewer.total_rounds < needed.left <= proven.result.sizes.total_rounds


def test_epsilon_follows_appendix_e1():
    (plan,) = calculate(examples=10_000, epochs=5, epsilon=0.04945)
    assert plan.calculator == "Appendix E.1" and plan.result.holds
    assert plan.result.sizes.sizes == (31.0,)
    assert plan.result.sigma == pytest.approx(closed_form_sigma(plan.result.epsilon, 1e-4), rel=0.1)


def test_the_exact_noise_keeps_the_same_promise_with_three_times_less():
    (plan,) = calculate(examples=10_000, epochs=5, epsilon=0.1)
    sizes = plan.result.sizes
    exact = ft.noise_multiplier(
        ft.Budget(0.1, 1e-4), ft.Poisson(sizes.mean / 10_000), sizes.total_rounds
    )
    assert plan.exact_noise_multiplier == pytest.approx(exact, rel=1e-3)
    assert ft.epsilon(sizes.mechanism(plan.exact_noise_multiplier), 1e-4).upper <= 0.1
    assert plan.less_noise > 3


def test_growing_samples_are_the_fewest_rounds_that_theorem_b4_proves():
    (plan,) = calculate(examples=10_000, epochs=5, epsilon=0.1, power=0.5, steps=8)
    sizes, sigma = plan.result.sizes, plan.result.sigma
    assert plan.result.holds and len(sizes.sizes) == 8
    assert sizes.epochs == pytest.approx(5)
    assert sizes.theta == pytest.approx(1.5, abs=0.05)  # s_max/s̄ = 1 + p in the limit
    fewer = growing(10_000, 5, 0.5, sizes.total_rounds - 1, 8)
    assert not theorem_b_4(0.1, 1e-4, sigma, fewer).holds
    assert plan.result.exact.upper < 0.1


def test_growing_sizes_follow_the_power():
    sizes = growing(1_000_000, 10, 1.0, 100, 100)
    assert sizes.total_rounds == 100 and sizes.epochs == pytest.approx(10)
    first, tenth = sizes.sizes[0], sizes.sizes[9]
    assert tenth / first == pytest.approx(19)  # stretches [0, 1] and [9, 10]: means 0.5 and 9.5


def test_growing_samples_work_with_appendix_d4():
    proven, _ = calculate(examples=60_000, epochs=6, noise_multiplier=12.1, power=0.5)
    constant, _ = calculate(examples=60_000, epochs=6, noise_multiplier=12.1)
    assert proven.result.holds
    ratio = proven.result.sizes.total_rounds / constant.result.sizes.total_rounds
    assert ratio == pytest.approx(proven.result.sizes.theta**2, rel=0.01)


def test_a_later_phase_counts_the_earlier_ones():
    (plan,) = calculate(
        examples=10_000, epochs=2, epsilon=2.0, noise_multiplier=4.0, earlier=[(26, 1923)]
    )
    assert plan.what == "phase 2" and plan.result.holds
    assert plan.result.sizes.rounds[0] == 1923


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({}, "give noise_multiplier"),
        ({"noise_multiplier": 19.3, "earlier": [(26, 10)]}, "needs epsilon"),
        ({"epsilon": 0.1, "power": 0.5, "noise_multiplier": 9.0}, "from epsilon alone"),
        ({"epsilon": 0.1, "earlier": [(26, 10)]}, "needs its sigma"),
        ({"noise_multiplier": 1.2}, "sigma must be above"),
        ({"epsilon": 1e-6, "power": 0.5}, "larger epsilon"),
    ],
)
def test_what_cannot_be_calculated_says_what_to_change(wish, said):
    with pytest.raises(CalculatorError, match=said):
        calculate(examples=10_000, epochs=5, **wish)


@pytest.mark.parametrize(
    "wish",
    [
        {"epochs": 5, "noise_multiplier": 1e160},
        {"epochs": 5, "noise_multiplier": 1e160, "epsilon": 1},
        {"epochs": 1e300, "noise_multiplier": 5},
    ],
)
def test_numbers_too_large_to_be_squared_are_refused_in_words(wish):
    with pytest.raises(ValueError, match="must be a"):
        calculate(examples=10_000, **wish)


def test_an_earlier_phase_is_read_or_refused():
    assert earlier_phase("26:1923") == (26.0, 1923)
    for text in ("26", "26:", "a:b", "-1:10"):
        with pytest.raises(CalculatorError, match="SIZE:ROUNDS"):
            earlier_phase(text)


@pytest.fixture
def forethought(monkeypatch, capsys):
    """Runs a command: exit status, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["forethought", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        return status, *capsys.readouterr()

    return run


def test_the_command_prints_conditions_margins_and_exact_figures(forethought):
    status, out, _ = forethought("calculator", "--examples", 10000, "--epochs", 5, "--epsilon", 0.1)
    assert status == 0
    for text in ("Appendix E.1", "margin", "(34)", "holds", "exact at this σ", "times less noise"):
        assert text in out


def test_the_command_prints_json_without_infinities(forethought):
    status, out, _ = forethought(
        *("calculator", "--examples", 10000, "--epochs", 5, "--noise-multiplier", 19.3, "--json")
    )
    proven, claimed = json.loads(out, parse_constant=pytest.fail)
    assert status == 0 and proven["holds"] and not claimed["holds"]
    assert proven["exact_epsilon"][1] < proven["epsilon"]
    assert {"name", "left", "right", "margin", "holds"} == set(proven["conditions"][0])


def test_the_command_reads_earlier_phases_and_refuses_nonsense(forethought):
    status, out, _ = forethought(
        *("calculator", "--examples", 10000, "--epochs", 2, "--epsilon", 2),
        *("--noise-multiplier", 4, "--after", "26:1923"),
    )
    assert status == 0 and "phase 2" in out and "Rényi filter" in out
    status, _, error = forethought("calculator", "--examples", 10000, "--epochs", 5)
    assert status == 2 and "give noise_multiplier" in error


def test_growing_samples_that_never_fit_are_refused_in_words():
    with pytest.raises(CalculatorError, match="not even with"):
        calculate(examples=1000, epochs=2e7, epsilon=0.1, power=1.0)


def test_no_noise_is_needed_where_delta_is_the_chance_of_being_sampled():
    (plan,) = calculate(examples=10_000, epochs=0.5, epsilon=0.1, delta=0.9)
    assert plan.exact_noise_multiplier == 0 and plan.less_noise == math.inf
    assert plan.to_dict()["less_noise"] is None
    # A little below that chance, the least noise is that of a large ε.
    (plan,) = calculate(examples=10_000, epochs=1, epsilon=500.0)
    assert 0.01 < plan.exact_noise_multiplier < 0.1
