"""Solving for one unknown: never above the budget, and close to it."""

from __future__ import annotations

import pytest

from forethought.accounting import exact
from forethought.accounting.exact import calibrate, epsilon, estimate, noise_multiplier
from forethought.values.mechanism import (
    Budget,
    FullBatch,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Shuffled,
    UnsupportedMechanismError,
    WithoutReplacement,
)


def _close(mechanism: Mechanism, budget: Budget) -> None:
    spent = epsilon(mechanism, budget.delta).upper
    assert budget.epsilon * (1 - 1e-3) <= spent <= budget.epsilon


@pytest.mark.parametrize("budget", [Budget(0.01, 1e-6), Budget(1, 1e-5), Budget(50, 1e-8)])
@pytest.mark.parametrize("sampling", [Poisson(256 / 60_000), FullBatch()], ids=str)
def test_noise_meets_the_budget_within_a_thousandth(budget, sampling):
    sigma = noise_multiplier(budget, sampling, 470)
    _close(Mechanism(Rounds(sigma, 470, sampling)), budget)


@pytest.mark.parametrize(
    ("sampling", "clipping", "adjacency"),
    [
        (WithoutReplacement(256, 60_000), "example", "replace-one"),
        (Poisson(0.01), "group", "replace-one"),
        (Shuffled(100, 1000), "example", "zero-out"),
    ],
    ids=str,
)
def test_noise_under_other_sampling_and_adjacency(sampling, clipping, adjacency):
    budget = Budget(2.0, 1e-5)
    sigma = noise_multiplier(budget, sampling, 100, clipping, adjacency)
    _close(Mechanism(Rounds(sigma, 100, sampling, clipping), adjacency=adjacency), budget)


def test_rate_is_an_increasing_unknown():
    budget = Budget(2.0, 1e-5)
    rate = calibrate(lambda q: Mechanism(Rounds(1.0, 1000, Poisson(q))), budget, (1e-5, 0.5))
    _close(Mechanism(Rounds(1.0, 1000, Poisson(rate))), budget)


def test_rounds_are_the_last_whole_number_that_fits():
    budget = Budget(1.0, 1e-5)

    def make(rounds: float) -> Mechanism:
        return Mechanism(Rounds(1.0, int(rounds), Poisson(0.01)))

    rounds = calibrate(make, budget, (1, 100_000), integer=True)
    assert rounds == int(rounds)
    assert epsilon(make(rounds), budget.delta).upper <= budget.epsilon
    assert epsilon(make(rounds + 1), budget.delta).upper > budget.epsilon


def test_calibrating_undoes_epsilon():
    for sigma in (0.7, 1.5, 9.0):
        spent = epsilon(Mechanism(Rounds(sigma, 300, Poisson(0.02))), 1e-6).upper
        again = noise_multiplier(Budget(spent, 1e-6), Poisson(0.02), 300)
        assert again == pytest.approx(sigma, rel=3e-3)


def test_a_jump_of_epsilon_is_found_in_few_steps():
    """As where a sharper bound on one side was too much work; 83 with halvings to the last bit."""
    asked: list[float] = []

    def make(sigma: float) -> Mechanism:
        asked.append(sigma)
        return Mechanism(Rounds(sigma if sigma > 3 else sigma / 2, 1, FullBatch()))

    found = calibrate(make, Budget(1.6, 1e-5), (0.5, 50))
    assert 3 < found <= 3 * (1 + 1e-6) and len(asked) < 50


def test_a_bracket_without_a_solution_is_refused():
    def make(sigma: float) -> Mechanism:
        return Mechanism(Rounds(sigma, 10, FullBatch()))

    with pytest.raises(ValueError, match="neither meets it"):
        calibrate(make, Budget(0.1, 1e-5), (0.5, 2))
    with pytest.raises(ValueError, match="both meet it"):
        calibrate(make, Budget(100, 1e-5), (5, 20))
    with pytest.raises(TypeError, match="budget must be"):
        calibrate(make, 1.0, (5, 20))
    with pytest.raises(TypeError, match="budget must be"):
        noise_multiplier((1, 1e-5), FullBatch(), 10)
    with pytest.raises(ValueError, match="no whole number"):
        calibrate(make, Budget(0.1, 1e-5), (1.5, 1.6), integer=True)
    for bracket in (None, 5.0, (1.0,), (2.0, 1.0), (1.0, "2"), (-1.0, 2.0)):
        with pytest.raises((TypeError, ValueError), match="bracket"):
            calibrate(make, Budget(0.1, 1e-5), bracket)


def test_an_unsupported_combination_is_refused():
    with pytest.raises(UnsupportedMechanismError):
        noise_multiplier(Budget(1, 1e-5), Shuffled(10, 100), 10)


@pytest.mark.slow
@pytest.mark.parametrize("off", [0.3, 1.0, 5.0, float("nan")])
def test_a_bad_estimate_costs_time_and_nothing_else(off, monkeypatch):
    monkeypatch.setattr(exact, "estimate", lambda *_: off * next(noise))
    noise = iter(0.5 + 0.37 * (i % 7) for i in range(10_000))
    budget, sampling = Budget(1.0, 1e-5), Poisson(0.01)
    sigma = noise_multiplier(budget, sampling, 500)
    _close(Mechanism(Rounds(sigma, 500, sampling)), budget)


def test_an_estimate_is_near_what_is_certified():
    for rounds, group in ((Rounds(1.1, 5000, Poisson(0.01)), 1), (Rounds(2.0, 9, FullBatch()), 3)):
        mechanism = Mechanism(rounds)
        certain = epsilon(mechanism, 1e-5, group).upper
        assert estimate(mechanism, 1e-5, group) == pytest.approx(certain, rel=1e-3)
    assert estimate(Mechanism(Rounds(1e-5, 9, Poisson(0.1))), 1e-5) < float("inf")


def test_what_rests_on_a_wide_interval_says_so(recwarn):
    noise_multiplier(Budget(1.0, 1e-5), Poisson(0.01), 500)
    assert not recwarn, "an interval as sharp as usual is nothing to warn of"
    # So little noise that no law of an epoch is built.
    budget, sampling = Budget(500, 1e-6), RandomAllocation(10)
    with pytest.warns(UserWarning, match="so little"):
        sigma = noise_multiplier(budget, sampling, 20)
    with pytest.warns(UserWarning, match="less may be"):
        calibrate(
            lambda value: Mechanism(Rounds(value, 20, sampling)),
            budget,
            (0.9 * sigma, 1.1 * sigma),
        )
