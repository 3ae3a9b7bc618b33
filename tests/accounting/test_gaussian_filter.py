"""A Gaussian filter: exact for fixed rounds, and no adaptive strategy gets more out of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr

from forethought.accounting import adaptive, exact
from forethought.accounting.adaptive import (
    BudgetExceededError,
    GaussianFilter,
    RenyiFilter,
    best_order,
)
from forethought.accounting.dominating_pair import gaussian_delta, gaussian_mu
from forethought.values.mechanism import (
    Budget,
    Correlated,
    FullBatch,
    Mechanism,
    Poisson,
    Rounds,
    Shuffled,
    UnsupportedMechanismError,
)
from forethought.values.strategies import Banded, BufferedToeplitz

BUDGET = Budget(2.0, 1e-6)
ONE = Rounds(20.0, 1, FullBatch())


def test_fixed_rounds_get_all_that_the_exact_accountant_allows():
    count = GaussianFilter(BUDGET).affordable(ONE)
    assert exact.epsilon(Mechanism(Rounds(20.0, count, FullBatch())), 1e-6).upper <= 2.0
    assert exact.epsilon(Mechanism(Rounds(20.0, count + 1, FullBatch())), 1e-6).lower > 2.0
    order = best_order(Mechanism(Rounds(20.0, count, FullBatch())), 1e-6)
    assert count > 1.1 * RenyiFilter(BUDGET, orders=(order,)).affordable(ONE)


def adaptive_delta(total: float, second, epsilon: float) -> float:
    """δ(ε) of one release at μ₁ = √(total/2), then one at ``second``(x₁), by quadrature."""
    first = math.sqrt(total / 2)
    x = np.linspace(-12, 12, 20_001)
    q = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    loss = first * x - first * first / 2
    mu = np.maximum(second(x), 1e-12)
    # Given the first loss l, E_Q (e^l W - e^ε)+ with W of a Gaussian release at mu.
    need = epsilon - loss
    a, b = mu / 2 - need / mu, -mu / 2 - need / mu
    gain = np.exp(loss) * ndtr(a) - math.exp(epsilon) * ndtr(b)
    return float((q * gain).sum() * (x[1] - x[0]))


STRATEGIES = {
    "all of the rest": lambda rest, x: np.full_like(x, rest),
    "stop when lucky": lambda rest, x: np.where(x > 0.5, 0.0, rest),
    "stop when unlucky": lambda rest, x: np.where(x < 0.5, 0.0, rest),
    "in proportion": lambda rest, x: rest / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("epsilon", [0.0, 0.7, 2.0])
def test_no_strategy_beats_one_gaussian_release(name, epsilon):
    mu = gaussian_mu(2.0, 1e-6)
    rest = mu / math.sqrt(2)
    got = adaptive_delta(mu * mu, lambda x: STRATEGIES[name](rest, x), epsilon)
    allowed = float(gaussian_delta(epsilon, mu))
    assert got <= allowed * (1 + 1e-9)
    if name == "all of the rest":
        assert got == pytest.approx(allowed, rel=1e-9)


def test_a_strategy_that_overspends_is_caught_by_the_oracle():
    mu = gaussian_mu(2.0, 1e-6)

    # Sums of μ instead of μ²: less than the rest on average, more where it pays.
    def greedy(x):
        return np.where(x > 1, 1.2 * mu / math.sqrt(2), 0.5 * mu / math.sqrt(2))

    assert adaptive_delta(mu * mu, greedy, 2.0) > float(gaussian_delta(2.0, mu))


def test_what_does_not_fit_is_refused_before_it_is_charged():
    ledger = GaussianFilter(BUDGET, "zero-out")
    count = ledger.affordable(ONE)
    ledger.spend(Rounds(20.0, count, FullBatch()))
    before = ledger.spent
    assert ledger.would_exceed(ONE) and 0.9 < ledger.fraction_used <= 1
    with pytest.raises(BudgetExceededError, match="does not fit"):
        ledger.spend(ONE)
    assert ledger.spent == before and ledger.affordable(ONE) == 0
    with pytest.raises(ValueError, match="adjacency"):
        ledger.spend(Mechanism(ONE, adjacency="replace-one"))
    assert ledger.would_exceed(Rounds(0.0, 1, FullBatch()))


def test_epochs_are_charged_whole_and_sampled_rounds_in_full():
    ledger = GaussianFilter(BUDGET, "zero-out")
    some = Rounds(20.0, 1, Shuffled(10, 100))
    assert ledger.affordable(some) == 10 * ledger.affordable(ONE)
    ledger.spend(Rounds(20.0, 3, Shuffled(10, 100)))
    assert ledger.spent == pytest.approx(1 / 400)
    ledger.spend(Rounds(20.0, 3, Poisson(0.01)))
    assert ledger.spent == pytest.approx(4 / 400)


def test_the_state_is_read_back_bit_for_bit_and_nothing_else_is():
    ledger = GaussianFilter(BUDGET, "replace-one")
    ledger.spend(Rounds(31.0, 7, FullBatch()))
    state = json.loads(json.dumps(ledger.state_dict()))
    again = adaptive.filter_from_state(state)
    assert isinstance(again, GaussianFilter) and again.state_dict() == ledger.state_dict()
    with pytest.raises(ValueError, match="schema"):
        GaussianFilter.from_state({**state, "schema": "forethought/gaussian-filter/9"})
    with pytest.raises(ValueError, match="spent"):
        GaussianFilter.from_state({**state, "spent": -1.0})
    with pytest.raises(TypeError, match="Budget"):
        GaussianFilter(2.0)


def test_a_statement_recomputes_what_was_charged():
    mechanism = Mechanism(Rounds(31.0, 7, FullBatch()), Rounds(25.0, 3, FullBatch()))
    ledger = adaptive.suited_filter(mechanism, BUDGET)
    assert isinstance(ledger, GaussianFilter)
    ledger.spend(mechanism)
    details = ledger.details()
    got = adaptive.filter_interval(mechanism, 1e-6, 1, details)
    assert (got.lower, got.upper) == (0.0, 2.0)
    for wrong, words in (
        ({"spent": ledger.spent / 2}, "other rounds"),
        ({"epsilon": 0.01}, "do not fit"),
        ({"delta": 1e-4}, "nothing is proven"),
    ):
        with pytest.raises(ValueError, match=words):
            adaptive.filter_interval(mechanism, 1e-6, 1, {**details, **wrong})
    with pytest.raises(UnsupportedMechanismError, match="group=1"):
        adaptive.filter_interval(mechanism, 1e-6, 2, details)
    sampled = adaptive.suited_filter(Mechanism(Rounds(2.0, 9, Poisson(0.01))), BUDGET)
    assert isinstance(sampled, RenyiFilter)


@pytest.mark.parametrize("strategy", [Banded((1.0, 0.5, 0.25)), BufferedToeplitz((0.5,), (0.9,))])
def test_correlated_rounds_cost_what_all_of_them_together_do(strategy):
    ledger = GaussianFilter(Budget(1.0, 1e-5))
    rounds = Correlated(30.0, 1, FullBatch(), strategy=strategy)
    most = ledger.affordable(rounds)
    assert 1 < most < ledger.affordable(Rounds(30.0, 1, FullBatch()))
    assert not ledger.would_exceed(replace(rounds, count=most))
    assert ledger.would_exceed(replace(rounds, count=most + 1))
    found = exact.epsilon(Mechanism(replace(rounds, count=most)), 1e-5)
    assert found.upper <= 1.0


@pytest.mark.parametrize("sigma", [0.7, 3.0, 11.3, 97.1])
def test_what_is_charged_is_at_least_what_rounds_cost(sigma):
    """In exact fractions: 1/σ² a round, however many are added one after another."""
    ledger = GaussianFilter(Budget(50.0, 1e-5), "zero-out")
    for count in (1, 3, 7):
        ledger.spend(Rounds(sigma, count, FullBatch()))
    assert Fraction(11) / Fraction(sigma) ** 2 <= Fraction(ledger.spent)
    assert ledger.spent <= 11 / sigma**2 * (1 + 1e-9)
