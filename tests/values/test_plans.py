"""Plan: one frozen value that projects to the mechanism and survives storage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import forethought as ft
from forethought.values.caveats import Caveat


def mechanism(clipping: str = "example", sigma: float = 1.0) -> ft.Mechanism:
    return ft.Mechanism(ft.Rounds(sigma, 100, ft.Poisson(0.01), clipping))  # type: ignore[arg-type]


def test_json_round_trip_with_every_field_set(tmp_path: Path) -> None:
    plan = ft.Plan(
        mechanism("group"),
        1000,
        1e-5,
        clip=ft.Clip(2.0, "per-layer", shares=(("weight", 0.8), ("bias", 0.6))),
        groups=2,
        optimizer=ft.Optimizer("adam", 0.01, (("betas", (0.9, 0.99)),)),
        schedule=ft.Schedule("inverse", 0.1, 5, "examples"),
        averaging=ft.Averaging("tail", fraction=0.5),
        budget=ft.Budget(3, 1e-5),
        hyperparameters="copied from a paper",
        not_covered=("means",),
    )
    plan.save(tmp_path / "plan.json")
    assert ft.Plan.load(tmp_path / "plan.json") == plan


def test_derived_numbers() -> None:
    plan = ft.Plan(mechanism(), 1000, 1e-5)
    assert (plan.rounds, plan.batch, plan.epochs) == (100, 10, 1)
    assert (plan.noise_multiplier, plan.sampling, plan.clip_norm) == (1.0, ft.Poisson(0.01), 1.0)
    mixed = plan.with_(mechanism=mechanism() + ft.Mechanism(ft.Rounds(2.0, 5, ft.Poisson(0.01))))
    assert mixed.round_at(99).noise_multiplier == 1.0
    assert mixed.round_at(100).noise_multiplier == 2.0
    with pytest.raises(ValueError, match="values of noise_multiplier"):
        _ = mixed.noise_multiplier
    with pytest.raises(IndexError):
        mixed.round_at(105)


def test_quantile_clipping_is_paid_from_the_plans_noise() -> None:
    clip = ft.Clip(1.0, "quantile", count_noise=10.0)
    gradient = clip.gradient_noise(2.0)
    assert gradient > 2.0
    assert gradient**-2 + (2 * 10.0) ** -2 == pytest.approx(2.0**-2)
    with pytest.raises(ValueError, match="count_noise"):
        ft.Plan(mechanism(sigma=30.0), 1000, 1e-5, clip=clip)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ft.Plan(mechanism("group"), 1000, 1e-5), "groups="),
        (lambda: ft.Plan(mechanism(), 1000, 1e-5, groups=1), "groups="),
        (lambda: ft.Plan(mechanism(), 0, 1e-5), "examples"),
        (lambda: ft.Plan(mechanism(), 10, 2.0), "delta"),
        (lambda: ft.Clip(1.0, "quantile"), "count_noise"),
        (lambda: ft.Clip(1.0, "quantile", count_noise=1e-200), "count_noise"),
        (lambda: ft.Clip(1.0, "flat", shares=(("a", 1.0),)), "per-layer"),
        (lambda: ft.Clip(1.0, "per-layer", shares=(("a", 1.0), ("b", 0.1))), "at most 1"),
        (lambda: ft.Clip(0.0), "clip_norm"),
        (lambda: ft.Schedule("linear"), "'cosine'"),
        (lambda: ft.Averaging("exponential", decay=1.0), "decay"),
        (lambda: ft.Optimizer("sgd", -1.0), "learning_rate"),
        (
            lambda: ft.Plan(
                ft.Mechanism(ft.Rounds(1.0, 1, ft.WithoutReplacement(1, 10))), 20, 1e-5
            ),
            "10 examples, the plan of 20",
        ),
    ],
)
def test_wrong_plans_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        *(("budget", (1, 1e-5)), ("preparation", "moments"), ("augmentation", "mirror")),
        *(("clip", 2.0), ("clip", None), ("optimizer", "adam"), ("optimizer", None)),
        *(("schedule", "cosine"), ("averaging", "mean"), ("assumed", 3), ("gradient_filter", 3)),
        *(("use", 3), ("reasons", 3), ("reasons", {"a": "b"}), ("not_covered", 3)),
    ],
)
def test_a_part_of_another_class_is_refused(part: str, wrong: object) -> None:
    with pytest.raises(TypeError, match="caveats" if part == "not_covered" else f"{part} must be"):
        ft.Plan(mechanism(), 1000, 1e-5).with_(**{part: wrong})


def test_a_file_that_is_no_plan_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="holds no plan"):
        ft.Plan.load(path)
    values = ft.Plan(mechanism(), 1000, 1e-5, ft.Clip(1.0, "quantile", count_noise=9)).to_dict()
    values["privacy"]["mechanism"]["rounds"][0]["noise_multiplier"] = 1e-200
    path.write_text(json.dumps(values))
    with pytest.raises(ValueError, match="holds no plan"):
        ft.Plan.load(path)


def test_a_round_is_derived_from_the_plan() -> None:
    mixed = ft.Mechanism(ft.Rounds(1.5, 3, ft.Poisson(0.1)), ft.Rounds(2.0, 2, ft.FullBatch()))
    plan = ft.Plan(mixed, 50, 1e-5, ft.Clip(0.5))
    first, last = plan.round(2), plan.round(3)
    assert (first.index, first.origin, first.noise_std, first.divisor) == (2, 0, 0.75, 5.0)
    assert (last.index, last.origin, last.noise_std, last.divisor) == (3, 3, 1.0, 50.0)
    assert last.mechanism == ft.Rounds(2.0, 1, ft.FullBatch())
    for index in (-1, 5):
        with pytest.raises(IndexError, match="round"):
            plan.round(index)
    grouped = ft.Plan(mechanism("group"), 1000, 1e-5, groups=4)
    assert grouped.round(0).divisor == 4.0


def test_another_version_and_other_keys_are_named() -> None:
    values = ft.Plan(mechanism(), 1000, 1e-5).to_dict()
    for changed in ({**values, "sigma": 1}, {k: v for k, v in values.items() if k != "use"}):
        with pytest.raises(ValueError, match=r"sigma|use"):
            ft.Plan.from_dict(changed)
    with pytest.raises(ValueError, match=r"forethought/plan/9.*forethought/plan/2"):
        ft.Plan.from_dict({**values, "schema": "forethought/plan/9"})


def test_a_plan_is_in_two_parts() -> None:
    plan = ft.Plan(mechanism(), 1000, 1e-5)
    other = plan.with_(optimizer=ft.Optimizer("adam", 0.01, ()))
    assert other.privacy == plan.privacy and other.use != plan.use
    assert plan.with_(delta=1e-6).use == plan.use
    assert plan.with_(noise="grid").noise == "grid"
    with pytest.raises(ValueError, match="'gaussian', 'grid'"):
        plan.with_(noise="laplace")


def test_the_mechanism_and_the_contribution_speak_of_the_same_groups() -> None:
    four = ft.Mechanism(ft.Rounds(1.0, 3, ft.Poisson(0.1), "group", groups=4))
    plan = ft.Plan(four, 1000, 1e-5, groups=4)
    assert plan.round(1).mechanism.groups == 4
    with pytest.raises(ValueError, match="contribution of 5"):
        ft.Plan(four, 1000, 1e-5, groups=5)
    fewer = plan.with_(groups=2)
    assert (fewer.groups, fewer.mechanism.rounds[0].groups) == (2, 2)
    assert ft.Plan.from_dict(plan.to_dict()) == plan
    # A preparation has no groups.
    prepared = plan.with_(preparation=ft.Preparation(("classes",), classes=2, noise_multiplier=9))
    assert prepared.with_(groups=2).mechanism == prepared.preparation.before(fewer.mechanism)


def test_a_number_that_follows_from_the_mechanism_is_planned_again() -> None:
    with pytest.raises(TypeError, match="Plan again"):
        ft.Plan(mechanism(), 1000, 1e-5).with_(rounds=100)


def test_a_planned_mechanism_knows_its_groups() -> None:
    plan = ft.plan(
        examples=500,
        noise_multiplier=2.0,
        batch=50,
        rounds=3,
        delta=1e-5,
        clipping="group",
        groups=5,
    )
    assert [part.groups for part in plan.mechanism] == [5]


def test_numbers_that_the_planner_did_not_choose_are_not_called_its_own() -> None:
    plan = ft.plan(examples=5000, budget=ft.Budget(3, 1e-4), parameters=50)
    louder = ft.Mechanism(ft.Rounds(0.5, 200, ft.Poisson(0.05)))
    for changes in ({"mechanism": louder}, {"clip": ft.Clip(0.4)}, {"delta": 1e-9}):
        other = plan.with_(**changes)
        assert other.reasons == () and "declared by the user" in str(other.hyperparameters)
        assert "certified" not in other.explain()
    words = plan.with_(delta=1e-9, hyperparameters="from a paper", reasons=(("δ", "smaller"),))
    assert words.explain() == "δ: smaller" and "from a paper" in str(words.hyperparameters)
    # What a user said of looking at the private data stays with every copy.
    for choice in ("a grid search over the private records", Caveat("utility-graph", "of them")):
        tuned = ft.plan(examples=5000, budget=ft.Budget(3, 1e-4), hyperparameters=choice)
        assert tuned.with_(delta=1e-9).hyperparameters == tuned.hyperparameters
    part = ft.plan(examples=5000, budget=ft.Budget(3, 1e-4), parameters=50, batch=100)
    assert "the planner chose" in str(part.hyperparameters)
    assert "the planner chose" not in str(part.with_(delta=1e-9).hyperparameters)
    for changes in ({"not_covered": ("means",)}, {"augmentation": ft.Augmentation(4)}):
        kept = plan.with_(**changes)
        assert (kept.reasons, kept.hyperparameters) == (plan.reasons, plan.hyperparameters)


def test_a_plan_that_counts_records_again_does_not_speak_of_persons() -> None:
    budget = ft.Budget(2.0, 1e-5)
    rows = {"examples": 2000, "persons": 500, "records_per_person": 6}
    plan = ft.plan(**rows, budget=budget, person_as="contribution", rounds=3)
    assert "one person" in ft.account(plan).sentences()[0]
    assert "one person" not in ft.account(plan.with_(groups=None)).sentences()[0]


def test_a_part_that_is_left_empty_is_no_default() -> None:
    values = ft.Plan(mechanism(), 1000, 1e-5, optimizer=ft.Optimizer("adam")).to_dict()
    values["use"]["optimizer"] = None
    with pytest.raises(TypeError, match="Optimizer"):
        ft.Plan.from_dict(values)
