"""The comparison table: exact first, no guarantee is marked, what does not apply is said."""

from __future__ import annotations

import math

import numpy as np
import pytest

import forethought as ft
from forethought.accounting.dominating_pair import gaussian_delta_bounds, gaussian_epsilon_bounds
from forethought.papers.comparison import ComparisonRow, compare, utility_bounds
from forethought.papers.convergence import proposition_3
from forethought.values.plan import Clip
from forethought.values.use import Optimizer


def rows(mechanism: ft.Mechanism, delta: float, examples: int | None) -> dict[str, ComparisonRow]:
    return {row.name: row for row in compare(mechanism, delta, examples)}


def test_the_papers_own_setting() -> None:
    mechanism = ft.Mechanism(ft.Rounds(19.29962, 1923, ft.Poisson(26 / 10_000)))
    found = rows(mechanism, 1e-4, 10_000)
    exact = found["exact"].epsilon
    assert exact == pytest.approx(0.01026, rel=2e-3)
    for name in ("Rényi", "closed form", "strong adversary"):
        assert found[name].guarantee
        assert found[name].epsilon is not None
        assert found[name].epsilon > exact
    assert found["closed form"].epsilon == pytest.approx(0.0497, rel=1e-2)
    assert not found["CLT (approximate)"].guarantee


def test_zero_concentrated_dp_is_the_sum_of_the_rounds_and_converts_as_printed() -> None:
    mechanism = ft.Mechanism(ft.Rounds(8.0, 20, ft.FullBatch()))
    row = rows(mechanism, 1e-5, None)["zCDP"]
    rho = 20 / (2 * 8.0**2)
    assert row.guarantee
    assert row.note.startswith(f"ρ = {rho:.6g}")
    assert row.epsilon == pytest.approx(rho + 2 * math.sqrt(rho * math.log(1e5)))
    assert row.epsilon > ft.epsilon(mechanism, 1e-5).upper


def test_a_closed_form_whose_conditions_fail_is_no_guarantee() -> None:
    mechanism = ft.Mechanism(ft.Rounds(3.0, 1000, ft.Poisson(0.5)))
    row = rows(mechanism, 1e-5, 10_000)["closed form"]
    assert not row.guarantee
    assert "not proven" in row.note


@pytest.mark.parametrize(
    ("mechanism", "examples", "name", "why"),
    [
        (ft.Mechanism(ft.Rounds(1.0, 10, ft.Poisson(0.1))), 100, "closed form", "√2"),
        (ft.Mechanism(ft.Rounds(2.0, 10, ft.Poisson(0.1))), None, "closed form", "number of"),
        (ft.Mechanism(ft.Rounds(2.0, 10, ft.FullBatch())), 100, "closed form", "Poisson"),
        (ft.Mechanism(ft.Rounds(2.0, 10, ft.FullBatch())), 100, "strong adversary", "hide nothing"),
        (
            ft.Mechanism(ft.Rounds(2.0, 10, ft.Poisson(0.1), "group")),
            100,
            "strong adversary",
            "groups",
        ),
        (
            ft.Mechanism(ft.Rounds(2.0, 10, ft.Poisson(0.1)), ft.Rounds(3.0, 10, ft.Poisson(0.1))),
            100,
            "strong adversary",
            "equal rounds",
        ),
    ],
)
def test_what_does_not_apply_says_why(
    mechanism: ft.Mechanism, examples: int | None, name: str, why: str
) -> None:
    row = rows(mechanism, 1e-5, examples)[name]
    assert row.epsilon is None
    assert not row.guarantee
    assert why in row.note


def test_for_shuffling_the_strong_adversary_is_the_exact_figure() -> None:
    mechanism = ft.Mechanism(
        ft.Rounds(8.0, 4700, ft.Shuffled(256, 60_000)), adjacency="replace-one"
    )
    found = rows(mechanism, 1e-5, 60_000)
    assert found["strong adversary"].epsilon == pytest.approx(found["exact"].epsilon, rel=1e-6)


def test_the_strong_adversary_moves_by_two_where_another_record_takes_the_place() -> None:
    # With every record in every batch the pair is attained: a Gaussian at distance 2.
    whole = ft.Mechanism(ft.Rounds(2.0, 10, ft.WithoutReplacement(100, 100)))
    found = rows(whole, 1e-5, 100)
    attained = gaussian_epsilon_bounds(math.sqrt(10) * 2 / 2.0, 1e-5).lower
    assert found["strong adversary"].epsilon >= attained
    assert found["strong adversary"].epsilon == pytest.approx(attained, rel=1e-6)


@pytest.mark.parametrize("sampling", [ft.Poisson(0.01), ft.WithoutReplacement(10, 1000)], ids=str)
def test_the_strong_adversary_counts_every_round(sampling: ft.Poisson) -> None:
    def strong(count: int) -> float:
        mechanism = ft.Mechanism(ft.Rounds(2.0, count, sampling))
        got = rows(mechanism, 1e-5, 1000)["strong adversary"].epsilon
        assert got is not None
        return got

    assert strong(1000) < strong(1019) < strong(1100)


def test_the_strong_adversary_of_one_poisson_round_by_hand() -> None:
    # δ(ε) = rate·δ_Gauss(ε; 1/σ).
    mechanism = ft.Mechanism(ft.Rounds(1.0, 1, ft.Poisson(0.25)))
    got = rows(mechanism, 1e-4, None)["strong adversary"].epsilon
    assert got is not None
    assert 0.25 * gaussian_delta_bounds(1.0, got).upper == pytest.approx(1e-4, rel=1e-9)


def test_no_analysis_is_below_the_exact_figure_and_called_a_guarantee() -> None:
    for sampling in (ft.Poisson(0.03), ft.WithoutReplacement(30, 1000), ft.Shuffled(30, 1000)):
        for adjacency in ("add-or-remove", "zero-out", "replace-one"):
            if sampling.kind == "shuffled" and adjacency == "add-or-remove":
                continue
            # 68 shuffled rounds are two whole epochs: a part of one is charged whole.
            mechanism = ft.Mechanism(ft.Rounds(3.0, 68, sampling), adjacency=adjacency)
            # Under zero-out without replacement the ordinary theorem charges 2, this one 1.
            loose = sampling.kind == "without-replacement" and adjacency == "zero-out"
            for row in compare(mechanism, 1e-5, 1000):
                if row.guarantee and row.epsilon is not None and not loose:
                    low = ft.epsilon(mechanism, 1e-5).lower
                    assert row.epsilon >= low, (row, mechanism)


def test_rows_are_json_ready() -> None:
    endless = ComparisonRow("x", float("inf"), False, "")
    assert endless.to_dict()["epsilon"] == "infinity"


def test_every_row_of_a_group_is_for_the_group():
    mechanism = ft.Mechanism(ft.Rounds(1.1, 1000, ft.Poisson(0.01)))
    rows = compare(mechanism, 1e-5, 60_000, group=4)
    assert rows[0].epsilon == ft.epsilon(mechanism, 1e-5, 4).upper
    assert all(row.epsilon is None and "not of 4" in row.note for row in rows[1:])


def test_bounds_on_utility_stand_beside_what_the_plans_own_rounds_attain() -> None:
    plan = ft.plan(
        examples=10_000,
        budget=ft.Budget(2.0, 1e-5),
        parameters=50,
        batch=500,
        rounds=100,
        clip_norm=1.0,
        learning_rate=0.05,
    )
    found = {row.bound.name: row for row in utility_bounds(plan, 50, 1.0, 2.0)}
    convex = {row.bound.name: row for row in utility_bounds(plan, 50, 1.0, 2.0, 0.5)}
    # Noisy descent on ‖θ‖²/2 itself, 4,000 times: within five standard errors.
    generator = np.random.default_rng(0)
    weights, moved = np.zeros((4000, 50)), np.zeros((4000, 50))
    weights[:, 0] = 2.0
    squares = [4.0]
    momentum = plan.optimizer.momentum
    assert momentum == 0.9
    for index in range(plan.rounds):
        noise = generator.normal(0, plan.round(index).mean_variance ** 0.5, weights.shape)
        moved = momentum * moved + weights + noise
        weights = weights - 0.05 * moved
        squares.append((weights**2).sum(1).mean())
    assert found["Proposition 3(a)"].runs == pytest.approx(np.mean(squares[:-1]), rel=1e-3)
    assert convex["Proposition 3(c)"].runs == pytest.approx(squares[-1] / 2, rel=2e-2)
    assert found["Lemma 1"].runs == pytest.approx((squares[0] - squares[1]) / 2, rel=1e-3)
    assert found["Lemma 1"].bound.proven == pytest.approx(found["Lemma 1"].runs)
    # E of a Gaussian's length in 50 dimensions is below the root of its mean square by 1/(4·50).
    first = plan.round(0)
    length = 0.05 * first.mean_variance**0.5 * math.sqrt(50) * (1 - 1 / 200)
    assert found["Theorem 2"].runs == pytest.approx(length, rel=1e-3)
    assert found["Proposition 4(a)"].bound.proven < found["Proposition 3(a)"].bound.proven


def test_a_delta_that_the_strong_adversary_cannot_reach_leaves_the_other_rows() -> None:
    rows = compare(ft.Mechanism(ft.Rounds(1.0, 1000, ft.Poisson(0.01))), 1e-20)
    found = {row.name: row.epsilon for row in rows}
    assert found["strong adversary"] == math.inf > found["exact"] > 0


@pytest.mark.parametrize("rate", [0.0014, 0.0004])
def test_the_noise_of_a_release_is_over_its_own_divisor(rate: float) -> None:
    """An expected batch need be no whole number: 1.4 records are not one, and 0.4 not none."""
    rounds = ft.Rounds(1.0, 5, ft.Poisson(rate))
    plan = ft.Plan(
        ft.Mechanism(rounds), 1000, 1e-5, clip=Clip(2.0), optimizer=Optimizer("sgd", 0.1, ())
    )
    shift = utility_bounds(plan, 1, 1.0, 1.0)[-1]
    noise = 0.1 * 2.0 / (1000 * rate) * math.sqrt(2 / math.pi)  # E|N(0, s²)| = s·√(2/π)
    assert shift.runs == pytest.approx(noise)
    assert shift.bound.proven == pytest.approx(noise + 0.2)


def test_bounds_on_utility_of_steps_that_run_away_are_infinite() -> None:
    asked = {"examples": 1000, "parameters": 50, "budget": ft.Budget(2.0, 1e-5)}
    plan = ft.plan(**asked).with_(optimizer=ft.Optimizer("sgd", 1e200, {"momentum": 0.9}))
    found = {row.bound.name: row for row in utility_bounds(plan, 50, 1.0, 2.0)}
    assert found["Proposition 3(a)"].runs == math.inf
    assert found["Lemma 1"].runs == found["Lemma 1"].bound.proven == -math.inf
    assert proposition_3(5, 1.0, radius=1e200).proven == math.inf
    loud = ft.Mechanism(ft.Rounds(1e200, 5, ft.FullBatch()))
    noisy = ft.Plan(loud, 100, 1e-4, ft.Clip(1.0), optimizer=ft.Optimizer("sgd", 0.1))
    told = {row.bound.name: row.runs for row in utility_bounds(noisy, 5, 1.0, 1.0)}
    assert told["Proposition 3(a)"] == math.inf and told["Lemma 1"] == -math.inf


def test_bounds_on_utility_are_of_descent_with_independent_noise() -> None:
    asked = {"examples": 1000, "parameters": 50, "budget": ft.Budget(2.0, 1e-5)}
    with pytest.raises(ValueError, match="gradient descent"):
        utility_bounds(ft.plan(**asked, optimizer="adam"), 50, 1.0, 2.0)
    plan = ft.plan(**asked)
    for more in ({"momentum": 0.5, "nesterov": True}, {"dampening": 0.5}, {"weight_decay": 0.1}):
        with pytest.raises(ValueError, match="but momentum"):
            utility_bounds(plan.with_(optimizer=ft.Optimizer("sgd", 0.1, more)), 50, 1.0, 2.0)
    with pytest.raises(ValueError, match="gap"):
        utility_bounds(ft.plan(**asked), 50, 1.0, 0.0)


def test_what_is_no_number_or_no_plan_is_named() -> None:
    mechanism = ft.Mechanism(ft.Rounds(2.0, 5, ft.Poisson(0.1)))
    with pytest.raises(TypeError, match="examples must be"):
        compare(mechanism, 1e-5, "many")
    with pytest.raises(TypeError, match="plan must be"):
        utility_bounds("plan.json", 3, 1.0, 1.0)
