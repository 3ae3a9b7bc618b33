"""A plan that was made for another model, or other features, is not trained with in silence."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import forethought as ft
from forethought.data import load
from forethought.holders.trainer import ClientTrainer, Holder, SharedModel
from forethought.jobs import train as jobs
from forethought.jobs.job import Job, JobRequest
from forethought.planning.alternatives import plan_phases
from forethought.rounds.contributions import cross_entropy
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import as_records
from forethought.training.records import OtherModelWarning
from forethought.values.plan import Plan

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 3)).astype(np.float32)
Y = RANDOM.integers(2, size=60)
BUDGET = ft.Budget(2.0, 1e-4)
DIGITS = load("digits")


def plan(**keywords: object) -> Plan:
    return ft.plan(**{"examples": 60, "budget": BUDGET, "rounds": 2, **keywords})


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 500), nn.ReLU(), nn.Linear(500, 2))  # 3,002 weights


def test_a_guess_is_named_beside_the_model_with_its_cost_and_remedy() -> None:
    message = (
        r"step size and batch were chosen for 10,000 weights \(a guess.*trains 3,002.*"
        r"1\.8 times too short.*model=model.*parameters=3002"
    )
    with pytest.warns(OtherModelWarning, match=message):
        ft.train(wide(), (X, Y), plan())


def test_a_given_step_size_is_not_called_too_short() -> None:
    with pytest.warns(OtherModelWarning, match=r"batch was chosen.* another batch may"):
        ft.train(wide(), (X, Y), plan(learning_rate=0.1))


def test_a_number_that_somebody_gave_is_no_guess() -> None:
    message = r"step size was chosen for 30 weights, the model trains 3,002.*10 times too long"
    with pytest.warns(OtherModelWarning, match=message):
        ft.train(wide(), (X, Y), plan(parameters=30, batch=20))


@pytest.mark.parametrize(
    "keywords",
    [
        {"model": wide()},
        {"model": wide},  # a function that builds it
        {"parameters": 3_300},  # near enough
        {"learning_rate": 0.1, "batch": 20},  # nothing follows from the size
    ],
)
def test_a_plan_for_this_model_says_nothing(keywords: dict[str, object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", OtherModelWarning)
        ft.train(wide(), (X, Y), plan(**keywords))


def test_frozen_weights_and_shared_ones_count_as_they_are_trained() -> None:
    model = wide()
    model[0].requires_grad_(requires_grad=False)
    assert plan(model=model).assumed.parameters == 1_002
    twice = nn.Linear(3, 3)
    assert plan(model=nn.Sequential(twice, twice)).assumed.parameters == 12


def test_models_that_cannot_be_counted_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"lazy layers.*once on zeros"):
        plan(model=nn.Sequential(nn.LazyLinear(2)))
    with pytest.raises(TypeError, match="function without arguments"):
        plan(model="lenet5")
    with pytest.raises(TypeError, match="one, not int"):
        plan(model=lambda: 3)
    with pytest.raises(TypeError, match="not Linear"):
        plan(model=nn.Linear)
    with pytest.raises(ValueError, match="trains nothing"):
        plan(model=nn.Flatten())


@pytest.mark.parametrize(
    "door", [ft.train, ft.cost, lambda model, data, plan: ft.private(model, None, data, plan)]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_that_cannot_be_looked_into_is_refused_at_every_door(
    door: Callable[[nn.Module, Any, Any], object],
) -> None:
    lazy = nn.Sequential(nn.LazyLinear(2))
    before = repr(lazy)
    with pytest.raises(ValueError, match="lazy layers"):
        door(lazy, (X, Y), plan())
    assert repr(lazy) == before
    with pytest.raises(ValueError, match=r"torch\.jit module"):
        door(nn.Sequential(torch.jit.script(nn.Linear(3, 2))), (X, Y), plan())


def test_lazy_layers_count_after_their_first_input() -> None:
    model = nn.Sequential(nn.LazyLinear(2))
    model(torch.zeros(1, 3))
    assert plan(model=model).assumed.parameters == 8


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def digits_plan(**keywords: object) -> Plan:
    return ft.plan(budget=BUDGET, rounds=1, batch=50, **keywords)


def test_features_of_known_norm_that_the_plan_does_not_know_are_named() -> None:
    made = digits_plan(examples=len(DIGITS.train), parameters=650)
    message = r"unknown norm and 650 weights.*have norm 3\.2, as declared.*feature_norm=3\.2"
    with pytest.warns(OtherModelWarning, match=message):
        ft.train(linear(), DIGITS, made)


def test_features_of_another_norm_are_named_with_what_it_costs() -> None:
    made = digits_plan(examples=len(DIGITS.train), feature_norm=32.0)
    message = r"features of norm 32, the data's have norm 3\.2.*9\.5 times too short"
    with pytest.warns(OtherModelWarning, match=message):
        ft.train(linear(), DIGITS, made)


def test_a_network_is_not_trained_by_the_rule_of_linear_models_in_silence() -> None:
    made = plan(feature_norm=1.7)
    with pytest.warns(OtherModelWarning, match=r"a linear model.*of 3,002 weights,"):
        ft.train(wide(), (X, Y), made)


def test_data_and_model_together_say_all_there_is() -> None:
    made = ft.plan(data=DIGITS, model=linear, budget=BUDGET, rounds=1, batch=50)
    assert made.assumed.feature_norm == DIGITS.feature_norm
    with warnings.catch_warnings():
        warnings.simplefilter("error", OtherModelWarning)
        ft.train(linear(), DIGITS, made)


def test_a_loop_of_ones_own_hears_of_it_where_the_steps_are_the_plans() -> None:
    with pytest.warns(OtherModelWarning, match="trains 3,002"):
        ft.private(wide(), None, (X, Y), plan())
    with warnings.catch_warnings():
        warnings.simplefilter("error", OtherModelWarning)
        model = wide()
        ft.private(model, torch.optim.Adam(model.parameters()), (X, Y), plan())


def test_phases_and_searches_hear_of_it() -> None:
    with pytest.warns(OtherModelWarning, match="trains 3,002"):
        ft.train_until(
            wide(), (X, Y), plan_phases(plan(rounds=20)), accuracy=0.01, test=(X[:9] + 1, Y[:9])
        )
    with pytest.warns(OtherModelWarning, match="trains 3,002"):
        ft.tune(
            wide,
            (X, Y),
            [plan()],
            trials=ft.PoissonTrials(1.0),
            holdout=(X[:9] + 1, Y[:9]),
            scoring="public",
            seed=0,
        )


def test_a_job_counts_the_model_and_compares_a_saved_plan(tmp_path: Path) -> None:
    job = Job(data={"source": "digits"}, budget={"epsilon": 2.0}, training={"rounds": 2})
    prepared = jobs.prepare(JobRequest("digits", "", job))
    assert prepared.plan.assumed.parameters == 650
    assert not prepared.plan.assumed.guessed
    other = prepared.plan.with_(assumed=None)
    guess = ft.plan(examples=other.examples, budget=other.budget, rounds=2)
    guess.save(tmp_path / "plan.json")
    with pytest.warns(OtherModelWarning, match="unknown norm"):
        saved = jobs.prepare(JobRequest("digits", "", job), saved_plan=tmp_path / "plan.json")
    with pytest.warns(OtherModelWarning, match="trains 650"):
        jobs.run(saved, tmp_path / "run")


def test_members_of_a_federation_and_workers_of_a_gossip_hear_of_it() -> None:
    records = as_records((X, Y), torch.float32, torch.device("cpu"))
    holder = Holder(plan(), records, cross_entropy, Secrets.draw(Seeds(0, 0)))
    with pytest.warns(OtherModelWarning, match="trains 3,002"):
        ClientTrainer(SharedModel(wide()), holder)


def test_what_was_assumed_is_stored() -> None:
    made = plan(parameters=7)
    values = made.to_dict()
    assert values["use"]["assumed"] == {
        "parameters": 7,
        "feature_norm": None,
        "guessed": False,
        "chosen": ["step size", "batch"],
    }
    assert Plan.from_dict(values) == made
