"""Strategies for a workload: errors by matrices, optima by perturbation, plans end to end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import toeplitz

import forethought as ft
from forethought.accounting.theorems import sensitivity_over_turns
from forethought.jobs.job import Job
from forethought.planning import defaults
from forethought.planning.alternatives import in_phases, next_phase
from forethought.planning.defaults import noise_to_signal
from forethought.planning.solve import PlanError, neighbours
from forethought.values.mechanism import Correlated, CyclicPoisson
from forethought.values.strategies import Banded, BufferedToeplitz, Strategy

BUDGET = ft.Budget(2.0, 1e-5)


def lower(column: np.ndarray) -> np.ndarray:
    return np.tril(toeplitz(column))


@pytest.mark.parametrize(
    "strategy", [Banded((1.0, 0.6, 0.2)), BufferedToeplitz((0.4, 0.2), (0.9, 0.5))], ids=str
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_errors_are_those_of_the_matrices(strategy: Strategy, momentum: float) -> None:
    n, b = 30, 5
    decays = lower(momentum ** np.arange(n))
    A, C = lower(np.ones(n)) @ decays, lower(strategy.column(n))
    wanted = np.linalg.norm(A @ np.linalg.inv(C)) / np.sqrt(n)
    size = np.linalg.norm(C[:, ::b].sum(axis=1))
    assert defaults.error(strategy, n, b, momentum) == pytest.approx(wanted * size)
    alone = np.linalg.norm(A) / np.sqrt(n)
    assert defaults.gain(strategy, n, momentum) == pytest.approx(wanted / alone)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_bands_are_at_a_minimum(momentum: float) -> None:
    found = defaults.banded(6, 60, 10, momentum)
    least = defaults.error(found, 60, 10, momentum)
    for place in range(1, 6):
        for step in (-1e-3, 1e-3):
            moved = list(found.coefficients)
            moved[place] = min(1.0, moved[place] + step)
            assert defaults.error(Banded(tuple(moved)), 60, 10, momentum) >= least * (1 - 1e-9)


def test_strategies_come_near_the_best_there_is() -> None:
    """One pass: ‖AC⁻¹‖_F ‖C‖_F is at least A's nuclear norm, ‖C‖_F at most √n times a column's."""
    n = 256
    A = lower(np.ones(n))
    bound = np.linalg.svd(A, compute_uv=False).sum() / n
    root = np.cumprod([1.0, *((2 * i - 1) / (2 * i) for i in range(1, n))])
    for strategy in (defaults.buffered(3, n, n), defaults.banded(n, n, n)):
        error = defaults.error(strategy, n, n)
        assert bound <= error <= 1.1 * defaults.error(Banded(tuple(root)), n, n)
    assert defaults.best(n, n)[1] < 0.3


def test_more_bands_are_better_and_sampling_takes_bands() -> None:
    errors = [defaults.error(defaults.banded(k, 200, 20), 200, 20) for k in (1, 2, 5, 20)]
    assert errors == sorted(errors, reverse=True)
    assert isinstance(defaults.best(200, 20, sampled=True)[0], Banded)
    assert defaults.best(50, 1)[1] == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("batch", [None, 50])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_plans_meet_the_budget_with_less_noise_in_the_weights(
    batch: int | None, optimizer: str
) -> None:
    shared = {
        "examples": 2000,
        "budget": BUDGET,
        "sampling": "cyclic-poisson",
        "parts": 20,
        "rounds": 80,
        "batch": batch,
        "optimizer": optimizer,
    }
    plan = ft.plan(**shared, noise="correlated")
    alone = ft.plan(**shared)
    (part,) = plan.mechanism.rounds
    assert isinstance(part, Correlated) and plan.noise == "gaussian"
    assert 0.998 * 2 <= ft.epsilon(plan.mechanism, 1e-5).upper <= 2
    assert noise_to_signal(plan) < 0.5 * noise_to_signal(alone)
    assert "independent noise" in dict(plan.reasons)["correlation"]
    assert ft.Plan.from_json(plan.to_json()) == plan
    assert neighbours(plan) == ()
    rate = 1.0 if batch is None else 0.5
    assert part.sampling == CyclicPoisson(rate, 20)
    size = sensitivity_over_turns(part.strategy, 80, 20)
    if rate == 1:
        assert plan.noise_multiplier / size == pytest.approx(alone.noise_multiplier / 2, rel=2e-3)


def test_the_batch_of_parts_follows_from_noise_and_length() -> None:
    plan = ft.plan(
        examples=5000,
        budget=BUDGET,
        sampling="cyclic-poisson",
        parts=10,
        rounds=50,
        noise_multiplier=2.0,
    )
    assert 1 <= plan.batch < 500
    assert 1.9 < ft.epsilon(plan.mechanism, 1e-5).upper <= 2


def test_what_cannot_be_planned_says_what_to_change() -> None:
    with pytest.raises(PlanError, match="cyclic-poisson"):
        ft.plan(examples=100, budget=BUDGET, rounds=10, noise="correlated")
    with pytest.raises(PlanError, match="needs it"):
        ft.plan(examples=100, budget=BUDGET, rounds=10, sampling="cyclic-poisson")
    with pytest.raises(PlanError, match="of 10 parts"):
        ft.plan(
            examples=100, budget=BUDGET, rounds=10, sampling="cyclic-poisson", parts=10, batch=11
        )
    part = Correlated(1.0, 10, CyclicPoisson(1.0, 10), strategy=Banded((1.0, 0.5)))
    with pytest.raises(PlanError, match="independent noise"):
        next_phase(
            None,
            examples=100,
            rounds=5,
            noise_multiplier=2.0,
            budget=ft.Budget(2.0, 1e-5),
            like=part,
        )
    whole = ft.Plan(ft.Mechanism(part), 100, 1e-5, budget=ft.Budget(9.0, 1e-5))
    with pytest.raises(PlanError, match="independent noise"):
        in_phases(whole, (5, 5), [1.0, 2.0])


def test_a_job_file_plans_it() -> None:
    job = Job(
        data={"source": "digits"},
        budget={"epsilon": 3.0},
        training={"sampling": "cyclic-poisson", "parts": 5, "rounds": 10, "noise": "correlated"},
    )
    plan = job.make_plan(1443)
    (part,) = plan.mechanism.rounds
    assert isinstance(part, Correlated)
    # 1443 records do not divide by 5: a part is taken whole all the same.
    assert part.sampling == CyclicPoisson(1.0, 5)


REFERENCE = json.loads(Path(__file__).with_name("jax_privacy.json").read_text())
STRATEGIES = {
    "banded": Banded((1.0, 0.5, 0.375, 0.2)),
    "buffered": BufferedToeplitz((0.4, 0.2), (0.9, 0.5)),
}


@pytest.mark.parametrize(("name", "count", "separation", "wanted"), REFERENCE["sensitivity"])
def test_sensitivities_are_those_of_jax_privacy(
    name: str, count: int, separation: int, wanted: float
) -> None:
    found = sensitivity_over_turns(STRATEGIES[name], count, separation)
    assert found == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(("count", "bands", "wanted"), REFERENCE["banded"])
def test_bands_are_as_good_as_those_of_jax_privacy(count: int, bands: int, wanted: float) -> None:
    turns = np.sqrt(-(-count // bands))
    found = defaults.error(defaults.banded(bands, count, bands), count, bands)
    # Where the last turn is cut short its column is a little shorter.
    assert found <= wanted * turns * 1.0005
    assert found >= wanted * turns * 0.98


@pytest.mark.parametrize(("count", "separation", "wanted"), REFERENCE["buffered"])
def test_buffers_are_as_good_as_those_of_jax_privacy(
    count: int, separation: int, wanted: float
) -> None:
    found = defaults.error(defaults.buffered(3, count, separation), count, separation)
    assert 0.95 * wanted <= found <= 1.02 * wanted
