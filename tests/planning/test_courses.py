"""Sample sizes that change over a run: the very rounds are accounted, within budget and data."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forethought as ft
from forethought.errors import PlanError
from forethought.jobs.job import Job
from forethought.papers.calculators import growing as calculated
from forethought.planning.alternatives import pareto, plan_tuning
from forethought.planning.defaults import noise_to_signal
from forethought.planning.plan_request import STEPS, Course
from forethought.planning.solve import neighbours

BUDGET = ft.Budget(2.0, 1e-5)
N = 5000


def planned(**keywords: Any) -> ft.Plan:
    given = {"examples": N, "budget": BUDGET, "batch": 200, "rounds": 6, **keywords}
    return ft.plan(**given)


def sizes_of(plan: ft.Plan) -> list[float]:
    return [plan.round(index).divisor for index in range(plan.rounds)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "asked"),
    [
        ("poisson", {"size_schedule": "linear", "size_growth": 5.0}),
        (
            "without-replacement",
            {"size_schedule": "geometric", "size_growth": 0.2, "noise_schedule": "geometric"},
        ),
        (
            "cyclic-poisson",
            {"size_schedule": "power", "size_power": 0.5, "noise_schedule": "linear"},
        ),
    ],
)
def test_plans_keep_the_budget_the_length_and_the_records(sampling, asked) -> None:
    more = {"parts": 5, "rounds": 20} if sampling == "cyclic-poisson" else {}
    plan = planned(sampling=sampling, **more, **asked)
    spent = ft.account(plan).epsilon.upper
    assert 0.99 * BUDGET.epsilon <= spent <= BUDGET.epsilon
    assert plan.rounds == (20 if more else 6)
    assert plan.mean_batch == pytest.approx(200, rel=0.01)
    sizes = sizes_of(plan)
    assert sizes in (sorted(sizes), sorted(sizes, reverse=True))
    ratio = sizes[-1] / sizes[0]
    if "size_growth" in asked:
        assert ratio == pytest.approx(asked["size_growth"], rel=0.02)
    assert "sample sizes" in dict(plan.reasons)
    assert ft.Plan.from_json(plan.to_json()) == plan


def test_power_is_the_first_papers_rule() -> None:
    # s_i = q N i^p, a stage with the mean of its own; the first one's by the integral, as the
    # paper's calculators take it.
    equal = ft.Rounds(1.0, 120, ft.Poisson(200 / N))
    parts = Course(sizes="power", power=0.5).parts(equal, N)
    found = [N * part.sampling.rate for part in parts]
    wanted = np.arange(1, 121) ** 0.5
    wanted *= 200 / wanted.mean()
    assert np.allclose(found[1:], wanted.reshape(12, 10).mean(axis=1)[1:], rtol=0.02)
    assert np.allclose(found, calculated(N, 120 * 200 / N, 0.5, 120, 12).sizes)


def test_epsilon_is_that_of_the_rounds_listed_one_by_one() -> None:
    """dp-accounting composes eight rounds, each with its own rate and noise; it rounds upward."""
    dp = pytest.importorskip("dp_accounting", reason="the oracle is not installed")
    from dp_accounting.pld import PLDAccountant

    plan = planned(rounds=8, size_schedule="geometric", size_growth=6.0, noise_schedule="geometric")
    told = PLDAccountant(value_discretization_interval=1e-3)
    one_by_one = []
    for index in range(plan.rounds):
        found = plan.round(index)
        rate, sigma = found.divisor / N, found.accounted
        told.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)))
        one_by_one.append(ft.Rounds(sigma, 1, ft.Poisson(rate)))
    ours = ft.epsilon(plan.mechanism, BUDGET.delta)
    assert ours.lower <= told.get_epsilon(BUDGET.delta) <= ours.upper * 1.01
    listed = ft.epsilon(ft.Mechanism(*one_by_one), BUDGET.delta)
    assert listed.upper == pytest.approx(ours.upper, rel=1e-3)


def test_accounting_for_the_mean_size_would_be_too_little() -> None:
    """The planted fault: equal rounds of the mean size, at the noise of the growing ones."""
    plan = planned(size_schedule="geometric", size_growth=20.0)
    equal = ft.Rounds(plan.noise_multiplier, 6, ft.Poisson(200 / N))
    assert ft.epsilon(ft.Mechanism(equal), BUDGET.delta).upper < 0.9 * BUDGET.epsilon


def test_stages_end_with_whole_turns_and_together() -> None:
    plan = planned(sampling="cyclic-poisson", parts=7, rounds=60, batch=100, size_schedule="linear")
    ends = np.cumsum([part.count for part in plan.mechanism])
    assert all(end % 7 == 0 for end in ends[:-1]) and ends[-1] == 60
    rounds = ft.Rounds(1.0, 100, ft.Poisson(0.01))
    assert Course(sizes="linear", multiple=30).edges(rounds) == [0, 30, 60, 100]
    assert len(Course(sizes="linear").edges(rounds)) == STEPS + 1
    assert len(Course(sizes="linear").edges(replace(rounds, count=3))) == 4
    assert Course(sizes="linear").edges(replace(rounds, count=1)) == [0, 1]


def test_noise_to_signal_weighs_rounds_as_training_divides_them() -> None:
    parts = ft.Rounds(2.0, 10, ft.Poisson(0.1)), ft.Rounds(1.0, 30, ft.Poisson(0.2))
    plan = ft.Plan(ft.Mechanism(*parts), 1000, 1e-5)
    noise = 10 * (2.0 / 100) ** 2 + 30 * (1.0 / 200) ** 2
    assert noise_to_signal(plan, 9) == pytest.approx(3 * noise**0.5 / 40)


@pytest.mark.slow
def test_batches_that_the_planner_chooses_leave_room_for_the_largest_sample() -> None:
    plan = ft.plan(
        examples=400, budget=ft.Budget(0.5, 1e-4), rounds=6, size_schedule="linear", size_growth=9
    )
    assert max(sizes_of(plan)) <= 400
    assert ft.account(plan).epsilon.upper <= 0.5
    affordable = ft.plan(
        examples=400,
        budget=ft.Budget(8.0, 1e-4),
        noise_multiplier=3.0,
        rounds=5,
        size_schedule="geometric",
    )
    assert max(sizes_of(affordable)) <= 400
    assert ft.account(affordable).epsilon.upper <= 8.0


def test_neighbours_keep_the_shape() -> None:
    plan = planned(size_schedule="linear", noise_schedule="geometric")
    cheaper, better = (near.plan for near in neighbours(plan))
    for near, factor in ((cheaper, 0.5), (better, 2.0)):
        assert np.allclose(np.divide(sizes_of(near), sizes_of(plan)), factor)
        spent = ft.epsilon(near.mechanism, near.delta).upper
        assert 0.99 * BUDGET.epsilon <= spent <= BUDGET.epsilon
        ratios = [
            one.noise_multiplier / two.noise_multiplier
            for one, two in zip(near.mechanism, plan.mechanism, strict=True)
        ]
        assert max(ratios) == pytest.approx(min(ratios))
    assert noise_to_signal(better) < noise_to_signal(plan) < noise_to_signal(cheaper)


def test_a_front_keeps_the_schedules() -> None:
    front = pareto(
        examples=N,
        budget=ft.Budget(4.0, 1e-5),
        size_schedule="geometric",
        size_growth=8.0,
        noise_schedule="linear",
        batches=[50, 1000, 4000],
        rounds=[60],
        noise_multipliers=[1.0, 2.0],
    )
    assert front.considered == 4  # 4,000 leave no room
    for row in front.candidates:
        assert len(row.plan.mechanism.rounds) == STEPS
        assert ft.epsilon(row.plan.mechanism, 1e-5).upper == row.epsilon <= 4.0


@pytest.mark.slow
def test_a_search_runs_every_stage() -> None:
    plans = plan_tuning(
        examples=1000,
        budget=ft.Budget(3.0, 1e-4),
        batch=100,
        rounds=3,
        noise_schedule="geometric",
        trials=ft.NegativeBinomialTrials.of_mean(4, shape=0),
        candidates=[{"learning_rate": 0.1}, {"learning_rate": 1.0}],
    )
    assert {plan.rounds for plan in plans} == {3}
    noises = [part.noise_multiplier for part in plans[0].mechanism]
    assert noises == sorted(noises, reverse=True) and noises[0] / noises[-1] > 1.5


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"size_schedule": "cosine"}, "size_schedule must be one of"),
        ({"size_growth": 2.0}, "size_growth= goes with"),
        ({"size_schedule": "power", "size_growth": 2.0}, "size_growth= goes with"),
        ({"size_schedule": "linear", "size_power": 0.5}, "size_power= goes with"),
        ({"size_schedule": "linear", "size_growth": 0.0}, "size_growth must be"),
        ({"size_schedule": "linear", "size_growth": 1e-9}, "size_growth must be .* at least 0.001"),
        (
            {"noise_schedule": "geometric", "noise_fall": 1e-9},
            "noise_fall must be .* at least 0.01",
        ),
        ({"size_schedule": "power", "size_power": -1.0}, "size_power must be"),
        ({"size_schedule": "linear", "batch": 4000}, "times the data"),
        ({"size_schedule": "linear", "sampling": "shuffled"}, "holds every record once"),
        ({"size_schedule": "linear", "sampling": "random-allocation"}, "deals every record"),
        ({"size_schedule": "linear", "sampling": "full-batch", "batch": None}, "no size can"),
    ],
)
def test_requests_that_make_no_sense(keywords, words) -> None:
    with pytest.raises(ValueError, match=words):
        planned(**keywords)


def test_correlated_noise_is_refused() -> None:
    with pytest.raises(PlanError, match="samples of one"):
        planned(
            noise="correlated", sampling="cyclic-poisson", parts=10, size_schedule="linear", batch=9
        )


@pytest.mark.slow
def test_a_run_resumes_bit_for_bit_and_states_every_stage(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="a run needs torch")
    from forethought.training.execution import Interrupted

    generator = np.random.default_rng(0)
    data = generator.normal(size=(200, 5)).astype(np.float32), generator.integers(2, size=200)
    plan = ft.plan(
        examples=200,
        budget=BUDGET,
        rounds=6,
        batch=40,
        size_schedule="linear",
        noise_schedule="geometric",
    )
    assert len(plan.mechanism.rounds) == 6

    def model() -> Any:
        torch.manual_seed(0)
        return torch.nn.Linear(5, 2)

    def leave(event: Any) -> None:
        if event.round == 4:
            os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        ft.train(model(), data, plan, out=out, progress=leave, seed=1, noise_seed=2)
    resumed = ft.train(model(), data, plan, out=out, resume=True)
    straight = ft.train(model(), data, plan, seed=1, noise_seed=2)
    assert torch.equal(resumed.model.weight, straight.model.weight)
    assert resumed.statement.mechanism == plan.mechanism


@pytest.mark.slow
def test_a_job_may_ask_for_it() -> None:
    text = """
    [data]
    source = "digits"
    [budget]
    epsilon = 3.0
    [training]
    rounds = 6
    size_schedule = "power"
    size_power = 0.5
    noise_schedule = "linear"
    noise_fall = 1.5
    """
    plan = Job.parse(text, "job.toml").make_plan(1000, 650)
    assert len({part.sampling for part in plan.mechanism}) == 6
    assert ft.account(plan).epsilon.upper <= 3.0
