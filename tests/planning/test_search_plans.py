"""Plans of a search share one mechanism, with noise that the whole search needs."""

from __future__ import annotations

from typing import Any

import pytest

from forethought.accounting.adaptive import (
    NegativeBinomialTrials,
    PoissonTrials,
    Trials,
    search_epsilon,
)
from forethought.planning import alternatives
from forethought.planning.alternatives import plan_tuning
from forethought.planning.solve import PlanError, plan
from forethought.values.mechanism import Budget

BUDGET = Budget(2.0, 1e-5)
GIVEN: dict[str, Any] = {"examples": 2000, "budget": BUDGET, "rounds": 50, "batch": 200}


@pytest.mark.parametrize(
    "trials",
    [
        pytest.param(PoissonTrials(6), marks=pytest.mark.slow),
        NegativeBinomialTrials.of_mean(6, 0),
        NegativeBinomialTrials(0.2),
    ],
)
def test_the_search_just_keeps_the_budget(trials: Trials) -> None:
    candidates = [{"learning_rate": 0.1}, {"clip_norm": 0.5}, {"learning_rate": 1.0}]
    plans = plan_tuning(**GIVEN, trials=trials, candidates=candidates)
    assert len({p.mechanism for p in plans}) == 1
    spent = search_epsilon([plans[0].mechanism], trials, BUDGET.delta)
    assert 0.99 * BUDGET.epsilon <= spent <= BUDGET.epsilon
    assert plans[0].noise_multiplier > plan(**GIVEN).noise_multiplier
    assert [p.optimizer.learning_rate for p in plans][::2] == [0.1, 1.0]
    assert plans[1].clip_norm == 0.5
    assert "random number of trials" in plans[0].explain()


def test_what_cannot_be_searched_is_explained() -> None:
    trials = PoissonTrials(6)
    with pytest.raises(PlanError, match="not in batch"):
        plan_tuning(**GIVEN, trials=trials, candidates=[{"batch": 3}])
    with pytest.raises(PlanError, match="candidates is empty"):
        plan_tuning(**GIVEN, trials=trials, candidates=[])
    for wrong in (["learning_rate"], {"learning_rate": [1, 2]}, 3):
        with pytest.raises(TypeError, match="several mappings"):
            plan_tuning(**GIVEN, trials=trials, candidates=wrong)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="drop it"):
        plan_tuning(**GIVEN, trials=trials, candidates=[{}], noise_multiplier=1.0)
    with pytest.raises(TypeError, match="PoissonTrials"):
        plan_tuning(**GIVEN, trials=8, candidates=[{}])  # type: ignore[arg-type]


def test_a_search_that_no_noise_pays_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # With privacy profiles the price goes to 0 with the noise's inverse: such a search is made up.
    monkeypatch.setattr(alternatives.adaptive, "search_epsilon", lambda *_arguments: 9.0)
    with pytest.raises(PlanError, match="costs that much"):
        plan_tuning(**GIVEN, trials=NegativeBinomialTrials(1e-4, 1.0), candidates=[{}])


def test_candidates_protect_persons_in_the_way_that_the_noise_is_for() -> None:
    """Plain SGD of a network alone would be planned in groups of rows, which need more noise."""
    plans = plan_tuning(
        examples=5000,
        persons=2574,
        records_per_person=2,
        untried=True,
        epochs=20,
        budget=Budget(8.0, 1e-6),
        optimizer="adam",
        trials=NegativeBinomialTrials.of_mean(4, 1),
        candidates=[{"optimizer": "sgd"}, {"learning_rate": 0.1}],
    )
    assert {(each.examples, each.records_per_person) for each in plans} == {(2574, 1)}
    assert "centre" not in str(plans[0].hyperparameters)
