"""The plans beside a plan keep its promise and do what their reason says."""

from __future__ import annotations

from typing import Any

import pytest

import forethought as ft
from forethought.planning.defaults import gradient_computations, noise_to_signal
from forethought.planning.solve import neighbours
from forethought.values.mechanism import Persons


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement", "shuffled"])
def test_cheaper_halves_the_gradients_and_more_accurate_lowers_the_noise(sampling: str) -> None:
    plan = ft.plan(
        examples=2000,
        budget=ft.Budget(2.0, 1e-5),
        batch=100,
        rounds=50,
        sampling=sampling,  # type: ignore[arg-type]
    )
    cheaper, better = (near.plan for near in neighbours(plan))
    for near in (cheaper, better):
        assert 0.99 * 2.0 <= ft.epsilon(near.mechanism, near.delta).upper <= 2.0
    assert gradient_computations(cheaper) == pytest.approx(gradient_computations(plan) / 2)
    assert noise_to_signal(cheaper) > noise_to_signal(plan)
    assert noise_to_signal(better) < noise_to_signal(plan)


def test_a_full_batch_gets_more_accurate_only_with_a_larger_epsilon() -> None:
    plan = ft.plan(examples=100, budget=ft.Budget(2.0, 1e-4), rounds=10, sampling="full-batch")
    (better,) = neighbours(plan)
    assert "twice ε" in better.reason
    assert ft.epsilon(better.plan.mechanism, better.plan.delta).upper == pytest.approx(4, rel=1e-2)


def test_neighbours_of_a_plan_of_persons_are_plans_of_persons() -> None:
    plan = ft.plan(examples=2000, persons=900, records_per_person=4, budget=ft.Budget(3.0, 1e-5))
    found = neighbours(plan)
    assert [near.plan.contribution for near in found] == [Persons(4), Persons(4)]


def test_a_plan_without_noise_has_none() -> None:
    silent = ft.plan(examples=100, noise_multiplier=0.0, batch=10, rounds=5)
    assert neighbours(silent) == ()


def test_a_plan_that_spends_no_epsilon_has_none() -> None:
    plan = ft.plan(examples=10, noise_multiplier=1000.0, batch=1, rounds=1, delta=0.1)
    assert ft.epsilon(plan.mechanism, plan.delta).upper == 0
    assert neighbours(plan) == ()


def test_noise_to_signal_follows_its_formula() -> None:
    plan = ft.plan(examples=1000, noise_multiplier=2.0, batch=50, rounds=100)
    assert noise_to_signal(plan, 400) == pytest.approx(2.0 * 20 / (50 * 10))
    grouped = ft.plan(
        examples=1000, noise_multiplier=2.0, batch=50, rounds=100, clipping="group", groups=5
    )
    assert noise_to_signal(grouped) == pytest.approx(2.0 / (5 * 10))


def test_groups_keep_their_size_and_stand_beside_clipped_examples() -> None:
    plan = ft.plan(
        examples=20_000,
        budget=ft.Budget(2.0, 1e-6),
        batch=640,
        rounds=100,
        clipping="group",
        groups=20,
        local=ft.Local("adam", step=8, passes=3),
    )
    assert gradient_computations(plan) == pytest.approx(3 * 640 * 100)
    cheaper, better, examples = (near.plan for near in neighbours(plan))
    assert (cheaper.groups, better.groups, examples.groups) == (10, 40, None)
    assert cheaper.batch / cheaper.groups == better.batch / better.groups == 32
    assert examples.local is None and examples.batch == plan.batch
    for near in (cheaper, better, examples):
        assert 0.99 * 2.0 <= ft.epsilon(near.mechanism, near.delta).upper <= 2.0
        assert near.optimizer.learning_rate != plan.optimizer.learning_rate
    assert noise_to_signal(better) < noise_to_signal(plan) < noise_to_signal(cheaper)
    # A factor of 2 for the sensitivity, and 32 records a contribution.
    ratio = noise_to_signal(plan) / noise_to_signal(examples)
    assert ratio == pytest.approx(64, rel=0.01)
    assert "groups" not in dict(examples.reasons)


def test_neighbours_pay_for_the_same_preparation() -> None:
    preparation = ft.Preparation("moments", bounds=(0.0, 1.0), features=12)
    request: Any = {"examples": 5000, "budget": ft.Budget(2.0, 1e-5), "rounds": 50, "batch": 300}
    plan = ft.plan(**request, preparation=preparation)
    for near in neighbours(plan):
        assert near.plan.preparation == plan.preparation
        assert 0.99 * 2.0 <= ft.epsilon(near.plan.mechanism, near.plan.delta).upper <= 2.0
    # What is released of the data before moves no weights.
    alone = plan.with_(preparation=None)
    assert noise_to_signal(plan) == noise_to_signal(alone)


def test_neighbours_have_a_step_size_of_their_own_unless_it_was_given() -> None:
    request = {"examples": 20_000, "budget": ft.Budget(0.5, 1e-6), "rounds": 100, "batch": 300}
    plan = ft.plan(**request, parameters=500)
    for near in neighbours(plan, 500):
        own = ft.plan(**{**request, "batch": round(near.plan.batch)}, parameters=500)
        assert near.plan.optimizer.learning_rate == pytest.approx(own.optimizer.learning_rate)
        assert near.plan.optimizer.learning_rate != plan.optimizer.learning_rate
    given = ft.plan(**request, learning_rate=0.25)
    assert {near.plan.optimizer.learning_rate for near in neighbours(given)} == {0.25}


def test_more_accurate_never_means_no_less_noise() -> None:
    plan = ft.plan(examples=1000, budget=ft.Budget(8.0, 1e-5), batch=480, rounds=2000)
    better = neighbours(plan)[-1]
    assert noise_to_signal(better.plan) < 0.99 * noise_to_signal(plan)
    assert "+0%" not in better.reason and "-0%" not in better.reason


@pytest.mark.parametrize(
    "epsilon", [pytest.param(1e-9, marks=pytest.mark.slow), 1e-3, 0.1, 1.0, 30.0]
)
def test_more_accurate_is_left_out_where_nothing_is(epsilon: float) -> None:
    plan = ft.plan(examples=1000, budget=ft.Budget(epsilon, 1e-4))
    better = [near for near in neighbours(plan) if near.name == "more accurate"]
    assert better or epsilon == 1e-9  # there δ alone decides, and twice ε buys nothing
    assert all(noise_to_signal(near.plan) < 0.99 * noise_to_signal(plan) for near in better)
