"""ft.plan solves for whatever is missing, exactly, and says what limits an impossible request."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forethought as ft
from forethought.accounting.adaptive import PoissonTrials
from forethought.planning.alternatives import pareto, plan_tuning
from forethought.planning.plan_request import PlanError, PlanRequest
from forethought.planning.solve import neighbours

BUDGET = ft.Budget(1.0, 1e-5)


def spent(plan: ft.Plan) -> float:
    return ft.epsilon(plan.mechanism, plan.delta).upper


def test_noise_follows_from_a_budget_and_is_not_wasted() -> None:
    plan = ft.plan(examples=60_000, budget=BUDGET, epochs=20, batch=256)
    assert plan.rounds == 4688
    assert 0.998 <= spent(plan) <= 1.0
    less = plan.mechanism.rounds[0].noise_multiplier * 0.99
    smaller = ft.Mechanism(ft.Rounds(less, plan.rounds, plan.sampling))
    assert ft.epsilon(smaller, plan.delta).upper > 1.0


def test_everything_left_out_is_chosen() -> None:
    plan = ft.plan(examples=60_000, budget=BUDGET)
    assert spent(plan) <= 1.0
    assert 1 <= plan.batch <= 60_000
    assert plan.clip.rule == "automatic"
    assert {"batch", "rounds", "noise", "clipping", "step size"} <= dict(plan.reasons).keys()
    assert "noise: the least" in plan.explain()


def test_epsilon_follows_from_noise_batch_and_epochs() -> None:
    plan = ft.plan(examples=60_000, noise_multiplier=1.1, batch=256, epochs=20, delta=1e-5)
    assert plan.budget is None
    assert spent(plan) == pytest.approx(1.319, rel=1e-3)


def test_rounds_follow_from_budget_and_noise() -> None:
    plan = ft.plan(examples=60_000, budget=BUDGET, noise_multiplier=1.5, batch=256)
    assert spent(plan) <= 1.0
    part = plan.mechanism.rounds[0]
    more = ft.Mechanism(ft.Rounds(1.5, part.count + max(2, part.count // 500), part.sampling))
    assert ft.epsilon(more, plan.delta).upper > 1.0


def test_batch_follows_from_budget_noise_and_epochs() -> None:
    plan = ft.plan(examples=60_000, budget=BUDGET, noise_multiplier=2.0, epochs=10)
    assert spent(plan) <= 1.0
    assert plan.epochs == pytest.approx(10, rel=0.02)
    bigger = ft.plan(
        examples=60_000,
        noise_multiplier=2.0,
        epochs=10,
        batch=round(plan.batch * 1.02) + 1,
        delta=1e-5,
    )
    assert spent(bigger) > 1.0


@pytest.mark.parametrize("sampling", ["poisson", "without-replacement", "shuffled", "full-batch"])
@pytest.mark.parametrize("clipping", ["example", "group"])
def test_every_sampling_and_clipping_is_planned(sampling: str, clipping: str) -> None:
    plan = ft.plan(
        examples=1000,
        budget=ft.Budget(3, 1e-4),
        epochs=5,
        sampling=sampling,  # type: ignore[arg-type]
        clipping=clipping,  # type: ignore[arg-type]
    )
    assert spent(plan) <= 3
    assert plan.groups == (1 if clipping == "group" else None)


@given(
    examples=st.integers(20, 10**7),
    epsilon=st.floats(0.05, 20),
    epochs=st.none() | st.floats(1, 100),
)
@settings(max_examples=15, deadline=None)
def test_any_plain_request_gives_a_sensible_plan(
    examples: int, epsilon: float, epochs: float | None
) -> None:
    plan = ft.plan(examples=examples, budget=ft.Budget(epsilon, 1e-6), epochs=epochs)
    assert 1 - 1e-9 <= plan.batch <= examples
    assert plan.rounds >= 1
    assert 0.99 * epsilon <= spent(plan) <= epsilon
    if epochs is not None:
        assert plan.epochs == pytest.approx(epochs, rel=0.5)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({}, r"too little.*budget=.*noise_multiplier="),
        ({"noise_multiplier": 1.0}, r"add batch= and epochs= or rounds="),
        ({"noise_multiplier": 1.0, "batch": 10}, r"add epochs= or rounds="),
        ({"budget": BUDGET, "epochs": 1, "rounds": 5}, "drop one"),
        (
            {"budget": BUDGET, "noise_multiplier": 1.0, "batch": 10, "epochs": 5},
            "too much is given",
        ),
        ({"budget": BUDGET, "delta": 1e-6}, "delta is given twice"),
        ({"budget": BUDGET, "batch": 2000}, "batch 2000 is larger than the data"),
        ({"budget": BUDGET, "epochs": 1e12}, "rounds must be at least 1 and at most"),
        ({"budget": BUDGET, "batch": 100, "epochs": 0.01}, "less than one batch"),
        ({"budget": BUDGET, "batch": 10, "sampling": "full-batch"}, "drop batch="),
        ({"budget": BUDGET, "noise_multiplier": 0.3, "batch": 900}, r"raise noise_multiplier to"),
        ({"budget": BUDGET, "sampling": "bernoulli"}, "'poisson'"),
        ({"budget": BUDGET, "noise_multiplier": 0.0}, "keeps no budget"),
        ({"budget": BUDGET, "quantile": 0.9}, "goes with clip_rule='quantile'"),
        ({"budget": BUDGET, "quantile": 0.7, "clip_rule": "automatic"}, "or drop quantile="),
        ({"budget": BUDGET, "groups": 4}, "drop groups="),
        ({"budget": BUDGET, "groups": 4, "persons": 500, "records_per_person": 3}, "drop groups="),
        (
            {"budget": BUDGET, "rounds": 20, "schedule": ft.Schedule("cosine", warmup=30)},
            "warmup of 30",
        ),
        ({"budget": BUDGET, "schedule": ft.Schedule(unit="examples")}, "counts no time"),
    ],
)
def test_impossible_requests_say_what_limits_them(
    request_: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ft.plan(examples=1000, **request_)  # type: ignore[arg-type]


def test_the_nearest_feasible_noise_is_right() -> None:
    with pytest.raises(PlanError) as error:
        ft.plan(examples=1000, budget=BUDGET, noise_multiplier=0.3, batch=900)
    least = float(str(error.value).split("at least ")[1])
    plan = ft.plan(examples=1000, budget=BUDGET, noise_multiplier=least * 1.001, batch=900)
    assert plan.rounds >= 1


def test_an_epsilon_is_told_where_it_goes() -> None:
    with pytest.raises(TypeError, match=r"Budget\(3.0, 1e-05\)"):
        ft.plan(examples=1000, epsilon=3.0, delta=1e-5)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": "full-batch"},
        {"batch": 100},
        {"sampling": "shuffled", "batch": 100},
        {"sampling": "full-batch", "noise_schedule": "geometric"},
        {"sampling": "cyclic-poisson", "parts": 5, "noise": "correlated"},
    ],
)
def test_groups_bound_what_several_records_of_a_person_cost(options: dict[str, object]) -> None:
    """The noise is the least for the groups that there are, in the plan and in those beside it."""
    known = {"examples": 1000, "clipping": "group", "groups": 2, "records_per_person": 5}
    plan = ft.plan(budget=BUDGET, rounds=10, **known, **options)  # type: ignore[arg-type]
    every = [plan, *(near.plan for near in neighbours(plan) if near.name != "more accurate")]
    for one in every:
        spent = ft.epsilon(one.mechanism, one.delta, 5).upper
        assert 0.99 * BUDGET.epsilon <= spent <= BUDGET.epsilon


def test_a_wrong_budget_type_is_refused() -> None:
    with pytest.raises(TypeError, match="Budget"):
        ft.plan(examples=1000, budget=1.0)  # type: ignore[arg-type]


def test_a_given_noise_that_fits_at_a_small_batch_is_not_refused() -> None:
    for sigma in (0.34, 0.4, 0.5, 0.6):
        plan = ft.plan(examples=1000, budget=ft.Budget(4.0, 1e-5), noise_multiplier=sigma)
        assert ft.epsilon(plan.mechanism, 1e-5).upper <= 4.0
        assert plan.batch >= 1


def test_the_statement_says_who_chose_the_numbers() -> None:
    planned = ft.plan(examples=1000, budget=ft.Budget(2.0, 1e-5), parameters=50)
    assert "chosen by the planner" in planned.hyperparameters
    given = ft.plan(examples=1000, budget=ft.Budget(2.0, 1e-5), batch=50, clip_norm=0.5)
    assert "as declared by the user: batch, clip norm" in given.hyperparameters
    for plan in (planned, given):
        assert "fixed in advance" not in ft.account(plan).to_markdown()


def test_keywords_and_a_request_are_one_and_the_same() -> None:
    request = PlanRequest(examples=1000, budget=ft.Budget(2.0, 1e-5), epochs=5)
    assert ft.plan(request) == ft.plan(examples=1000, budget=ft.Budget(2.0, 1e-5), epochs=5)
    assert ft.plan(request, batch=50) == ft.plan(request.with_(batch=50))
    with pytest.raises(TypeError, match="keyword 'epoch'; did"):
        ft.plan(examples=1000, epoch=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="examples= is missing"):
        ft.plan(epochs=5)
    for planner, more in (
        (ft.plan, {}),
        (pareto, {}),
        (plan_tuning, {"trials": PoissonTrials(6), "candidates": [{}]}),
    ):
        with pytest.raises(TypeError, match="no PlanRequest"):
            planner(BUDGET, examples=1000, **more)  # type: ignore[operator]


def test_data_and_model_say_their_own_numbers_and_caveats() -> None:
    nn = pytest.importorskip("torch", reason="sizes of a model need torch").nn

    from forethought.data import Dataset, Split
    from forethought.values.caveats import Caveat

    read = Caveat("classes-from-data", "2; classes= would declare them")
    part = Split(np.zeros((500, 4), np.float32), np.zeros(500, np.int64))
    data, model = Dataset("own", part, None, 2, (), (read,)), nn.Linear(4, 2)
    model.bias.requires_grad_(False)
    plan = ft.plan(data=data, model=model, budget=BUDGET)
    assert plan == ft.plan(examples=500, parameters=8, budget=BUDGET, not_covered=(read,))
    with pytest.raises(TypeError, match="several caveats"):
        ft.plan(examples=500, budget=BUDGET, not_covered="means")  # type: ignore[arg-type]
    assert plan.not_covered == (read,)
    for wrong, message in [
        ({"data": data, "examples": 500}, "drop examples="),
        ({"examples": 500, "model": model, "parameters": 8}, "drop parameters="),
        ({"data": part.inputs}, "for arrays give examples=len"),
        ({"examples": 500, "model": "linear"}, "must be a torch module"),
    ]:
        with pytest.raises((TypeError, PlanError), match=message):
            ft.plan(budget=BUDGET, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("sampling", "rounds"), [("shuffled", 4), ("random-allocation", 3)])
def test_epochs_that_deal_every_record_are_whole(sampling: str, rounds: int) -> None:
    """Batches of 300 of 1,000: three of a shuffled epoch are followed by a short one."""
    known = {"examples": 1000, "batch": 300, "noise_multiplier": 4.0, "sampling": sampling}
    plan = ft.plan(**known, epochs=5)  # type: ignore[arg-type]
    assert plan.rounds == 5 * rounds and plan.epochs == 5
    begun = ft.plan(**known, rounds=5 * rounds + 1)  # type: ignore[arg-type]
    assert begun.epochs == pytest.approx(5 + plan.batch / 1000)
    assert ft.plan(**known, epochs=0.2).rounds == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(("batch", "dealt"), [(700, "1,000"), (300, "333"), (500, None)])
def test_batches_that_random_allocation_cannot_deal_are_told_of(batch, dealt) -> None:
    run = {"examples": 1000, "rounds": 20, "sampling": "random-allocation"}
    for known in ({"noise_multiplier": 20.0}, {"budget": BUDGET}):
        reason = dict(ft.plan(**run, batch=batch, **known).reasons).get("batch")
        assert reason is None if dealt is None else f"{dealt} a round and not {batch}" in reason


@pytest.mark.parametrize("given", [{"noise_multiplier": 0.05}, {"budget": ft.Budget(500, 1e-6)}])
def test_a_plan_by_a_wide_interval_says_so(given) -> None:
    run = {"examples": 1000, "batch": 100, "epochs": 2, "sampling": "random-allocation"}
    with pytest.warns(UserWarning, match="so little") as warned:
        plan = ft.plan(**run, **given)
    assert len(warned) == 1 and warned[0].filename == __file__
    assert dict(plan.reasons)["epsilon"] == str(warned[0].message)
    assert "epsilon" not in dict(ft.plan(examples=60_000, budget=BUDGET).reasons)
