"""Adam's step sizes: gradient descent's, in units of what noise makes Adam divide by."""

from __future__ import annotations

import math
from typing import Any

import pytest
from torch import nn

import forethought as ft
from forethought.planning.defaults import adaptive_rate
from forethought.values.use import USUAL_RATE

KNOWN: dict[str, Any] = {"examples": 5000, "budget": ft.Budget(1.0, 1e-5), "epochs": 10}


def planned(optimizer: str, **options: Any) -> ft.Plan:
    return ft.plan(optimizer=optimizer, **{**KNOWN, **options})


def descent(**options: Any) -> tuple[float, float]:
    """Step size without momentum, and the variance of the noise on a round's mean."""
    plan = planned("sgd", options={"momentum": 0.0}, **options)
    sigma = plan.noise_multiplier * plan.clip_norm / plan.batch
    return plan.optimizer.learning_rate, sigma**2


@pytest.mark.parametrize("name", ["adam", "adamw", "Adam"])
def test_adams_is_that_of_gradient_descent_times_the_noise(name: str) -> None:
    rate, variance = descent()
    assert planned(name).optimizer.learning_rate == pytest.approx(rate * math.sqrt(variance))


def test_without_the_noise_in_it_the_floor_is_divided_by() -> None:
    rate, variance = descent()
    rounds = planned("adam-bc").rounds
    roots = []
    for done in range(1, rounds + 1):
        # Weights of v̂, from the newest gradient to the oldest: the deviation of noise's squares.
        weights = [0.9**age for age in range(done)]
        roots.append((math.sqrt(2 * sum(w * w for w in weights)) / sum(weights)) ** 0.5)
    share = rounds / sum(1 / root for root in roots)
    found = planned("adam-bc", options={"betas": (0.9, 0.9)}).optimizer.learning_rate
    assert rounds < 1000 and found == pytest.approx(rate * math.sqrt(variance) * share)
    given = planned("adam-bc", options={"floor": 0.04}).optimizer.learning_rate
    assert given == pytest.approx(rate * 0.2)


def test_a_filter_leaves_less_to_divide_by() -> None:
    rate, variance = descent()
    chosen = ft.GradientFilter("kalman", delay=4.0)
    found = planned("adam", gradient_filter=chosen).optimizer.learning_rate
    assert found == pytest.approx(rate * math.sqrt(variance / 9))


def test_the_plan_says_why_and_keeps_the_model_that_it_was_made_for() -> None:
    plan = planned("adam", parameters=500)
    assert "gradient descent with" in plan.explain()
    assert plan.use.assumed is not None and "step size" in plan.use.assumed.chosen
    more = planned("adam", parameters=50_000).optimizer.learning_rate
    assert more < plan.optimizer.learning_rate


def test_elsewhere_it_is_the_usual_one() -> None:
    assert planned("rmsprop").optimizer.learning_rate == USUAL_RATE
    without = ft.plan(examples=100, noise_multiplier=0.0, batch=10, epochs=1, optimizer="adam")
    assert without.optimizer.learning_rate == USUAL_RATE
    together = planned("adam", sampling="cyclic-poisson", parts=10, noise="correlated")
    assert together.optimizer.learning_rate == USUAL_RATE
    little = planned("adam", budget=ft.Budget(1000.0, 1e-5))
    assert little.optimizer.learning_rate >= USUAL_RATE
    assert adaptive_rate(little, "adam", {}, 1e-9) == USUAL_RATE


def test_noise_that_falls_counts_by_its_mean() -> None:
    plan = planned("adam", noise_schedule="geometric", noise_fall=4.0)
    variance = sum(plan.round(n).mean_variance for n in range(plan.rounds)) / plan.rounds
    rate = planned(
        "sgd", noise_schedule="geometric", noise_fall=4.0, options={"momentum": 0.0}
    ).optimizer.learning_rate
    assert plan.optimizer.learning_rate == pytest.approx(rate * math.sqrt(variance))


def test_a_network_that_cannot_be_tried_takes_no_long_steps() -> None:
    ids = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(40, 3))
    given: dict[str, Any] = {"examples": 3000, "budget": ft.Budget(8.0, 1e-5), "epochs": 3}
    numbers = ft.plan(**given, batch=256, optimizer="adam", parameters=523)
    assert numbers.optimizer.learning_rate > 0.02
    tried = ft.plan(**given, batch=256, optimizer="adam", model=ids)
    assert tried.optimizer.learning_rate == 0.01
    assert "small models bore" in tried.explain()
    # What is known, linear or tried, and what descends is planned as before.
    shorter = {
        "optimizer": "adam",
        "batch": 256,
        "model": nn.Sequential(nn.Linear(9, 40), nn.ReLU(), nn.Linear(40, 2)),
    }
    assert ft.plan(**given, **shorter, shape=(9,)).optimizer.learning_rate != 0.01
    assert ft.plan(**given, batch=256, model=ids).optimizer.learning_rate > 0.1
    with pytest.raises(TypeError, match="untried"):
        ft.plan(**given, untried=1)
