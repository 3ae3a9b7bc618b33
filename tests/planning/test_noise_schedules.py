"""Falling noise: within the budget by the exact accountant, and least where the weights say so."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

import forethought as ft
from forethought.jobs.job import Job
from forethought.planning.plan_request import noise_at

BUDGET = ft.Budget(2.0, 1e-5)


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        ("forgetting", "poisson"),
        ("geometric", "without-replacement"),
        ("geometric", "full-batch"),
        ("forgetting", "full-batch"),
        ("linear", "poisson"),
    ],
)
def test_plans_spend_the_budget_with_noise_that_falls(name, sampling) -> None:
    plan = ft.plan(
        examples=5000,
        budget=BUDGET,
        rounds=50,
        batch=None if sampling == "full-batch" else 200,
        sampling=sampling,
        noise_schedule=name,
        noise_fall=1.5,
    )
    spent = ft.account(plan).epsilon.upper
    assert 0.99 * BUDGET.epsilon <= spent <= BUDGET.epsilon
    noises = [part.noise_multiplier for part in plan.mechanism]
    assert noises == sorted(noises, reverse=True)
    assert plan.rounds == 50
    assert "falls over the run" in plan.explain()
    assert ft.Plan.from_json(plan.to_json()) == plan


def test_the_default_is_constant_noise() -> None:
    plain = ft.plan(examples=5000, budget=BUDGET)
    assert ft.plan(examples=5000, budget=BUDGET, noise_schedule="constant") == plain
    flat = ft.plan(examples=5000, budget=BUDGET, noise_schedule="geometric", noise_fall=1.0)
    assert len(flat.mechanism.rounds) == 1


def test_forgetting_is_the_least_weighted_noise_by_the_central_limit_theorem() -> None:
    # An independent optimiser over the 12 steps finds nothing better at the same Σ (e^(1/σ²) − 1).
    fall = 2.5
    places = (np.arange(12) + 0.5) / 12
    sigmas = np.array([noise_at("forgetting", fall, place, 0.9) for place in places])
    weights = np.exp(4 * (places - 0.5) * math.log(fall))
    cost = np.expm1(sigmas**-2).sum()

    def noise(logs):
        # The scale of any shape that has the same cost.
        low, high = 1e-3, 1e3
        for _ in range(200):
            middle = math.sqrt(low * high)
            with np.errstate(over="ignore"):
                dear = np.expm1((middle * np.exp(logs)) ** -2.0).sum() > cost
            low, high = (middle, high) if dear else (low, middle)
        return float((weights * (high * np.exp(logs)) ** 2).sum())

    found = minimize(noise, np.zeros(12), method="Powell", options={"maxiter": 4000})
    assert noise(np.log(sigmas)) <= found.fun * (1 + 1e-4)
    assert noise(np.log(sigmas)) < 0.99 * noise(np.zeros(12))


def test_a_given_noise_multiplier_is_that_of_the_middle_of_the_run() -> None:
    for name in ("geometric", "linear", "forgetting"):
        assert noise_at(name, 3.0, 0.5, 1.7) == pytest.approx(1.7)
        assert noise_at(name, 3.0, 0.1, 1.7) > 1.7 > noise_at(name, 3.0, 0.9, 1.7)
        assert noise_at(name, 0.5, 0.1, 1.7) < noise_at(name, 0.5, 0.9, 1.7)
        # Monotone in the middle's noise, down to next to none.
        scales = [noise_at(name, 2.0, 0.2, sigma) for sigma in np.geomspace(0.01, 30, 40)]
        assert scales == sorted(scales)
    plan = ft.plan(
        examples=5000, noise_multiplier=1.5, batch=100, rounds=60, noise_schedule="linear"
    )
    noises = [part.noise_multiplier for part in plan.mechanism]
    assert np.mean(noises) == pytest.approx(1.5) and noises[0] / noises[-1] == pytest.approx(
        2, rel=0.1
    )
    longer = ft.plan(
        examples=5000, budget=BUDGET, noise_multiplier=1.5, batch=100, noise_schedule="linear"
    )
    assert ft.epsilon(longer.mechanism, BUDGET.delta).upper <= BUDGET.epsilon
    assert longer.rounds > 500


def test_shuffled_noise_changes_between_whole_epochs_only() -> None:
    plan = ft.plan(
        examples=1000,
        budget=ft.Budget(6.0, 1e-4),
        batch=100,
        epochs=3,
        sampling="shuffled",
        noise_schedule="geometric",
    )
    assert [part.count for part in plan.mechanism] == [10, 10, 10]
    assert ft.account(plan).epsilon.upper <= 6.0


def test_a_job_may_ask_for_it() -> None:
    text = """
    [data]
    source = "digits"
    [budget]
    epsilon = 3.0
    [training]
    noise_schedule = "geometric"
    noise_fall = 1.5
    """
    plan = Job.parse(text, "job.toml").make_plan(1000, 650)
    assert len({part.noise_multiplier for part in plan.mechanism}) > 3


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"noise_schedule": "cosine"}, "noise_schedule must be one of"),
        ({"noise_fall": 2.0}, "noise_fall= goes with"),
        ({"noise_schedule": "geometric", "noise_fall": 0.0}, "noise_fall must be"),
        ({"noise_schedule": "geometric", "noise_fall": math.nan}, "noise_fall must be"),
        ({"noise_schedule": "geometric", "sampling": "shuffled", "epochs": 1}, "every 50 rounds"),
    ],
)
def test_requests_that_make_no_sense(keywords, words) -> None:
    with pytest.raises(ValueError, match=words):
        ft.plan(examples=5000, budget=BUDGET, **keywords)


@pytest.mark.slow
def test_a_run_releases_what_was_planned() -> None:
    torch = pytest.importorskip("torch", reason="a run needs torch")

    inputs, targets = torch.randn(200, 5), torch.randint(2, (200,))
    plan = ft.plan(examples=200, budget=BUDGET, rounds=4, batch=50, noise_schedule="forgetting")
    run = ft.train(torch.nn.Linear(5, 2), (inputs, targets), plan)
    assert run.statement.mechanism == plan.mechanism
    assert run.statement.guarantee <= BUDGET.epsilon
