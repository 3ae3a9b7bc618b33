"""The front holds every plan that no other beats, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import forethought as ft
from forethought.planning.alternatives import (
    OBJECTIVES,
    approximate_epsilons,
    non_dominated,
    pareto,
)
from forethought.planning.plan_request import PlanRequest
from forethought.planning.solve import PlanError

GRID = {"batches": [50, 100, 200], "rounds": [10, 40, 160], "noise_multipliers": [0.8, 1.5, 4.0]}


@given(arrays(np.float64, (12, 3), elements=st.integers(0, 4).map(float)))
def test_non_dominated_agrees_with_the_definition(costs: np.ndarray) -> None:
    keep = non_dominated(costs)
    for i, row in enumerate(costs):
        beaten = any((o <= row).all() and (o < row).any() for o in costs)
        assert keep[i] == (not beaten)


def test_rows_are_certified_and_can_be_run() -> None:
    front = pareto(examples=2000, delta=1e-5, **GRID)
    assert front.considered == 27
    for candidate in front.candidates:
        exact = ft.epsilon(candidate.plan.mechanism, 1e-5)
        assert exact.lower <= candidate.epsilon <= 1.01 * exact.upper
        assert ft.Plan.from_json(candidate.plan.to_json()) == candidate.plan


def test_limits_hold_and_weights_choose() -> None:
    front = pareto(examples=2000, delta=1e-5, limits={"epsilon": 3, "rounds": 100}, **GRID)
    assert all(c.epsilon <= 3 and c.rounds <= 100 for c in front.candidates)
    assert front.best().noise < 4 * min(c.noise for c in front.candidates)
    private = front.best({"epsilon": 1})
    assert private.epsilon == min(c.epsilon for c in front.candidates)
    cheap = front.best({"gradients": 1})
    assert cheap.gradients == min(c.gradients for c in front.candidates)
    with pytest.raises(TypeError, match="weights must be"):
        front.best(["gradients"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="limits must be"):
        pareto(examples=2000, delta=1e-5, limits=["epsilon"], **GRID)  # type: ignore[arg-type]


def test_a_utility_graph_replaces_the_noise_objective() -> None:
    front = pareto(
        examples=2000,
        delta=1e-5,
        clip_norms=[0.5, 2.0],
        loss_of_utility=lambda clip_norm, sigma: 0.01 * clip_norm * sigma,
        **GRID,
    )
    assert {c.plan.clip_norm for c in front.candidates} == {0.5}
    assert all(c.noise == pytest.approx(0.005 * c.plan.noise_multiplier) for c in front.candidates)
    # What this function looked at, the planner does not know.
    assert "as declared by the user" in str(front.candidates[0].plan.hyperparameters)


def test_a_search_by_a_graph_of_private_records_says_so() -> None:
    plan = ft.plan(examples=10, noise_multiplier=0.0, rounds=1, batch=10, delta=0.01)
    norms, sigmas = (0.5, 2.0), (0.1, 4.0)
    accuracy = np.array([[[0.8], [0.5]], [[0.7], [0.2]]])
    graph = ft.UtilityGraph(norms, sigmas, np.full(2, 0.9), accuracy, "private", 100, plan)
    told = {"examples": 2000, "delta": 1e-5, "not_covered": ("a drawing of the data",)}
    front = pareto(**told, loss_of_utility=graph.loss, **GRID)
    found = front.candidates[0].plan
    assert "private data" in str(found.hyperparameters)
    assert {"a drawing of the data", *map(str, graph.not_covered)} <= set(
        map(str, found.not_covered)
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limits": {"epsilon": 1e-6}}, "raise the limit"),
        ({"limits": {"epsilon": 3, "rounds": 1}}, "least each reaches alone"),
        ({"limits": {"speed": 3}}, ", ".join(OBJECTIVES)),
        ({"clip_norms": [1.0]}, "loss_of_utility"),
        ({"batches": [0]}, "each of batches must be at least 1, not 0"),
        ({"batches": ["a"]}, "each of batches must be a whole number"),
        ({"rounds": 50}, "rounds must be values to try"),
        ({"noise_multipliers": [0.0]}, "each of noise_multipliers"),
        ({"loss_of_utility": "accuracy"}, "must be a function"),
        ({"group_sizes": np.array([8, 16])}, "clipping='group'"),
    ],
)
def test_what_cannot_be_met_is_explained(options: dict[str, object], message: str) -> None:
    with pytest.raises((PlanError, ValueError, TypeError), match=message):
        pareto(examples=2000, delta=1e-5, **GRID | options)  # type: ignore[arg-type]


def test_what_the_request_fixes_every_plan_of_the_front_keeps() -> None:
    request = PlanRequest(
        examples=2000,
        budget=ft.Budget(2.0, 1e-5),
        clip_norm=0.3,
        optimizer="adam",
        learning_rate=0.02,
        averaging=ft.Averaging("none"),
        epochs=10,
    )
    front = pareto(request)
    assert front.candidates
    for candidate in front.candidates:
        plan = candidate.plan
        assert (plan.clip_norm, plan.clip.rule) == (0.3, "flat")
        assert (plan.optimizer.name, plan.optimizer.learning_rate) == ("adam", 0.02)
        assert plan.averaging.kind == "none"
        assert plan.epochs == pytest.approx(10, rel=0.2)
        assert candidate.epsilon <= 2.0


@pytest.mark.slow
def test_without_a_limit_one_is_set_and_the_front_is_short() -> None:
    front = pareto(examples=60_000)
    best = front.best()
    assert front.limits["epsilon"] == 8.0
    assert best.epsilon <= 8.0
    assert best.plan.epochs <= 30
    assert 8 <= len(front.candidates) <= 20
    places = np.log([candidate.costs() for candidate in front.candidates])
    apart = np.abs(places[:, None] - places[None]).max(-1) + np.eye(len(places))
    assert apart.min() > 0.05, "two plans of the front look alike"
    loose = pareto(examples=60_000, limits={"epsilon": 300, "gradients": 1e9})
    assert max(candidate.epsilon for candidate in loose.candidates) > 8


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement", "shuffled", "full-batch"])
def test_the_approximation_sorts_plans_as_the_accountant_does(sampling: str) -> None:
    front = pareto(
        examples=2000,
        delta=1e-5,
        sampling=sampling,  # type: ignore[arg-type]
        rounds=[30, 100, 300],
        noise_multipliers=[2.0, 6.0, 20.0],
        limits={"epsilon": 50},
    )
    plans = [candidate.plan for candidate in front.candidates]
    ratios = approximate_epsilons(plans) / [candidate.epsilon for candidate in front.candidates]
    assert ratios.min() > 0.4 and ratios.max() < 2


def test_groups_are_searched_or_kept() -> None:
    grouped = {"examples": 2000, "delta": 1e-5, "clipping": "group", "local": "sgd"}
    front = pareto(**grouped, group_sizes=[10, 50], **GRID)  # type: ignore[arg-type]
    assert front.considered == 54
    # At one ε and one number of gradients, smaller groups have less noise for the signal.
    assert {c.plan.batch / (c.plan.groups or 1) for c in front.candidates} == {10.0}
    fixed = pareto(**grouped, groups=80, **GRID)  # type: ignore[arg-type]
    assert {c.plan.groups for c in fixed.candidates} == {80}
    assert {round(c.plan.batch) for c in fixed.candidates} <= {100, 200}
    with pytest.raises(PlanError, match="group_sizes="):
        pareto(examples=2000, delta=1e-5, group_sizes=[10], **GRID)
    with pytest.raises(PlanError, match="more than the"):
        pareto(**grouped, groups=300, **GRID)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "considered"),
    [
        # Noise changes between epochs: the smallest batches have no two in so few rounds.
        ({"sampling": "shuffled", "noise_schedule": "geometric"}, 21),
        # The last samples of the largest batches do not fit into the data.
        ({"size_schedule": "power", "size_power": 5}, 18),
        # A count with so little noise leaves nothing to more noise than twice its own.
        ({"clip_rule": "quantile", "clip_norm": 1.0, "count_noise": 1.0}, 18),
    ],
)
def test_points_that_no_plan_fulfils_are_left_out(options, considered) -> None:
    given = {"examples": 800, "delta": 1e-5, "limits": {"epsilon": 100}, **GRID}
    assert pareto(**given, **options).considered == considered
    with pytest.raises(ValueError, match="must be above"):
        pareto(**given, clip_rule="quantile", count_noise=0.1)


def test_a_limit_above_the_budget_does_not_raise_it() -> None:
    front = pareto(examples=2000, budget=ft.Budget(1.0, 1e-5), limits={"epsilon": 5}, **GRID)
    assert front.limits["epsilon"] == 1.0
    assert all(candidate.epsilon <= 1.0 for candidate in front.candidates)
