import json
from dataclasses import replace

import pytest

from forethought.accounting import adaptive
from forethought.accounting.adaptive import BudgetExceededError, RenyiFilter, best_order
from forethought.accounting.exact import epsilon as exact_epsilon
from forethought.accounting.renyi import RenyiCurve, rdp
from forethought.values.mechanism import (
    Budget,
    Correlated,
    FullBatch,
    Mechanism,
    Poisson,
    Rounds,
    Shuffled,
)
from forethought.values.plan import Plan
from forethought.values.strategies import Banded

STEP = Rounds(2.0, 100, Poisson(0.01))


def test_it_says_before_the_release_and_refuses_it():
    ledger = RenyiFilter(Budget(1.0, 1e-5))
    made = 0
    while not ledger.would_exceed(STEP):
        ledger.spend(STEP)
        made += 1
    before = ledger.state_dict()
    with pytest.raises(BudgetExceededError, match="does not fit"):
        ledger.spend(STEP)
    assert ledger.state_dict() == before
    assert made > 0
    assert ledger.fraction_used <= 1
    # What was spent keeps the promise even as a fixed composition.
    spent = Mechanism(Rounds(2.0, 100 * made, Poisson(0.01)))
    assert exact_epsilon(spent, 1e-5).upper <= 1.0


def test_parameters_may_change_on_the_way():
    ledger = RenyiFilter(Budget(2.0, 1e-5))
    parts = [
        Rounds(2.0, 10, Poisson(0.05)),
        Rounds(1.0, 3, Poisson(0.01)),
        Rounds(4.0, 7, Poisson(0.2)),
    ]
    for part in parts:
        ledger.spend(part)
    whole = rdp(Mechanism(*parts), ledger.orders)
    assert ledger.spent.values == pytest.approx(whole.values)


def test_affordable_is_exactly_what_fits():
    ledger = RenyiFilter(Budget(1.0, 1e-5))
    ledger.spend(STEP)
    count = ledger.affordable(STEP)
    assert not ledger.would_exceed(Rounds(2.0, count, Poisson(0.01)))
    assert ledger.would_exceed(Rounds(2.0, count + 1, Poisson(0.01)))


def test_correlated_rounds_are_afforded_together():
    ledger = RenyiFilter(Budget(1.0, 1e-5))
    rounds = Correlated(80.0, 1, FullBatch(), strategy=Banded((1.0, 0.5)))
    most = ledger.affordable(rounds)
    assert not ledger.would_exceed(replace(rounds, count=most))
    assert ledger.would_exceed(replace(rounds, count=most + 1))
    assert exact_epsilon(Mechanism(replace(rounds, count=most)), 1e-5).upper <= 1.0


def test_shuffled_epochs_are_charged_whole():
    ledger = RenyiFilter(Budget(3.0, 1e-5), adjacency="zero-out")
    epoch = Shuffled(10, 100)
    count = ledger.affordable(Rounds(4.0, 1, epoch))
    assert count % 10 == 0 and count > 0
    ledger.spend(Rounds(4.0, 1, epoch))
    assert ledger.affordable(Rounds(4.0, 1, epoch)) == count - 10


def test_the_best_single_order_affords_more_than_a_choice_of_several():
    planned = Mechanism(Rounds(2.0, 8000, Poisson(0.01)))
    order = best_order(planned, 1e-5)
    budget = Budget(rdp(planned).epsilon(1e-5) * 1.0005, 1e-5)
    single = RenyiFilter(budget, orders=(order,))
    assert single.affordable(STEP) >= 7900
    assert single.affordable(STEP) > RenyiFilter(budget).affordable(STEP)


def test_several_orders_pay_for_the_choice():
    # The planted fault: the full δ at every order would let more through.
    several = RenyiFilter(Budget(1.0, 1e-5))
    unpaid = max(
        RenyiFilter(Budget(1.0, 1e-5), orders=(order,)).affordable(STEP)
        for order in (16.0, 32.0, 64.0)
    )
    assert several.affordable(STEP) < unpaid


def test_state_survives_json_bit_for_bit():
    ledger = RenyiFilter(Budget(1.0, 1e-5), adjacency="replace-one")
    ledger.spend(Rounds(3.0, 17, Poisson(0.013)))
    again = RenyiFilter.from_state(json.loads(json.dumps(ledger.state_dict())))
    assert again.state_dict() == ledger.state_dict()
    assert again.affordable(STEP) == ledger.affordable(STEP)
    with pytest.raises(ValueError, match="schema"):
        RenyiFilter.from_state({"schema": "other"})


@pytest.mark.parametrize("noise", [1e200, 1e-200, 1e-3, 0.01])
@pytest.mark.parametrize("adjacency", ["add-or-remove", "replace-one"])
def test_any_noise_is_charged_at_once(noise, adjacency):
    for sampling in (Poisson(1.0), Poisson(0.1)):
        ledger = RenyiFilter(Budget(1.0, 1e-5), adjacency)
        assert ledger.would_exceed(Rounds(noise, 1, sampling)) == (noise < 1)


@pytest.mark.parametrize("delta", [1e-5, 1e-15, 1e-20])
def test_limits_at_a_tiny_delta_are_not_negative(delta):
    ledger = RenyiFilter(Budget(0.01, delta))
    ledger.spend(Rounds(1e12, 1, Poisson(1.0)))
    assert min(ledger.limits) > 0 and 0 <= ledger.fraction_used < 1


def test_what_cannot_work_is_refused():
    with pytest.raises(ValueError, match="adjacency"):
        RenyiFilter(Budget(1.0, 1e-5)).spend(Mechanism(STEP, adjacency="replace-one"))
    with pytest.raises(TypeError, match="Budget"):
        RenyiFilter((1.0, 1e-5))
    with pytest.raises(TypeError, match="each order"):
        RenyiFilter(Budget(1.0, 1e-5), orders=3)
    with pytest.raises(TypeError, match="Mechanism"):
        RenyiFilter(Budget(1.0, 1e-5)).spend(Plan(Mechanism(STEP), 1000, 1e-5))


@pytest.mark.parametrize("order", [1.5, 3.0, 12.0, 64.0])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-3), (1.0, 1e-5), (8.0, 1e-9)])
def test_an_order_may_spend_what_still_converts_to_the_budget(order, epsilon, delta):
    limit = adaptive.limit_of(order, epsilon, delta)
    assert RenyiCurve((order,), (limit,)).epsilon(delta) <= epsilon * (1 + 1e-9)
    assert RenyiCurve((order,), (limit * 1.001,)).epsilon(delta) > epsilon
