"""Two ways to promise something to a person: each within the budget, the better one chosen."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forethought as ft
from forethought.accounting import exact
from forethought.planning.alternatives import pareto
from forethought.planning.defaults import noise_to_signal
from forethought.planning.solve import neighbours
from forethought.values.mechanism import Persons


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    st.integers(200, 5000),
    st.integers(1, 8),
    st.floats(0.3, 9),
    st.sampled_from(["poisson", "full-batch", "without-replacement", "shuffled"]),
)
def test_the_budget_holds_for_all_records_of_a_person(rows, most, epsilon, sampling):
    plan = ft.plan(
        examples=rows,
        records_per_person=most,
        budget=ft.Budget(epsilon, 1e-5),
        rounds=20,
        sampling=sampling,
        person_as="group",
    )
    assert plan.records_per_person == most
    spent = exact.epsilon(plan.mechanism, plan.delta, most).upper
    assert 0.99 * epsilon < spent <= epsilon
    said = ft.account(plan)
    assert (said.group, said.epsilon.upper) == (most, spent)
    assert ft.Plan.from_json(plan.to_json()) == plan


def test_the_way_with_less_noise_for_its_signal_is_taken():
    chosen = []
    for epsilon, persons in ((1.0, 1000), (1.0, 2500), (8.0, 1000), (30.0, 1000)):
        known = {
            "examples": 4000,
            "records_per_person": 4,
            "budget": ft.Budget(epsilon, 1e-5),
            "rounds": 100,
            "batch": 200,
            "persons": persons,
        }
        ways = {way: ft.plan(**known, person_as=way) for way in ("contribution", "group")}
        noise = {way: noise_to_signal(plan) for way, plan in ways.items()}
        best = min(noise, key=lambda way: noise[way])
        found = ft.plan(**known)
        assert found.privacy == ways[best].privacy
        assert (
            f"{4000 / persons:.3g} rows on average and at most 4" in dict(found.reasons)["persons"]
        )
        chosen.append(best)
    assert set(chosen) == {"contribution", "group"}  # both can be the better one


def test_a_budget_that_groups_of_rows_cannot_keep_is_kept_by_one_contribution_a_person():
    preparation = ft.Preparation(bounds=(0, 1), features=5, noise_multiplier=30.0)
    known = {"examples": 5000, "persons": 1000, "records_per_person": 10, "batch": 500}
    plan = ft.plan(**known, rounds=20, budget=ft.Budget(0.5, 1e-5), preparation=preparation)
    assert plan.contribution == Persons(10)
    assert "are refused" in dict(plan.reasons)["persons"]


def test_a_person_as_one_contribution_costs_what_a_record_costs():
    plan = ft.plan(
        examples=4000,
        persons=1500,
        records_per_person=4,
        batch=200,
        rounds=50,
        noise_multiplier=2.0,
    )
    assert plan.contribution == Persons(4) and plan.examples == 1500 and plan.batch == 75
    alone = ft.plan(examples=1500, batch=75, rounds=50, noise_multiplier=2.0)
    assert ft.account(plan).epsilon == ft.account(alone).epsilon
    assert ft.Plan.from_json(plan.to_json()) == plan


@pytest.mark.slow
def test_fronts_neighbours_and_falling_noise_keep_the_promise_to_persons():
    known = {"examples": 2000, "records_per_person": 3, "budget": ft.Budget(4.0, 1e-5)}
    front = pareto(**known, batches=[100, 500], rounds=[20, 50])
    for row in front.candidates:
        spent = exact.epsilon(row.plan.mechanism, row.plan.delta, 3).upper
        assert row.epsilon == spent <= 4.0
    plan = ft.plan(**known, rounds=40)
    for near in neighbours(plan):
        spent = exact.epsilon(near.plan.mechanism, near.plan.delta, 3).upper
        assert spent <= near.plan.budget.epsilon
    falling = ft.plan(**known, rounds=40, noise_schedule="geometric")
    assert exact.epsilon(falling.mechanism, falling.delta, 3).upper <= 4.0


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"persons": 10}, "10 persons with 1 to 4 records each .* cannot have 500"),
        ({"persons": 501}, "501 persons"),
        ({"person_as": "contribution", "clipping": "group"}, "drop clipping='group'"),
        ({"person_as": "rows"}, "person_as"),
        ({"records_per_person": 0}, "records_per_person must be at least 1"),
    ],
)
def test_numbers_that_cannot_be_are_refused(given_, message):
    known = {"examples": 500, "records_per_person": 4, "budget": ft.Budget(1.0, 1e-5), **given_}
    with pytest.raises(ValueError, match=message):
        ft.plan(**known)


def test_a_plan_of_persons_counts_no_records_of_theirs_again():
    mechanism = ft.Mechanism(ft.Rounds(2.0, 3, ft.Poisson(0.1)))
    with pytest.raises(ValueError, match="persons already"):
        ft.Plan(mechanism, 100, 1e-5, contribution=Persons(3), records_per_person=2)


def test_the_command_line_plans_for_persons(monkeypatch, capsys):
    pytest.importorskip("torch")
    from forethought.cli import main

    def run(*arguments: str) -> dict:
        monkeypatch.setattr("sys.argv", ["forethought", *arguments, "--json"])
        try:
            main()
        except SystemExit as end:
            assert not end.code
        return json.loads(capsys.readouterr().out)

    known = ("plan", "--examples", "3000", "--epsilon", "2", "--rounds", "20")
    found = run(*known, "--records-per-person", "4", "--persons", "1200")["plan"]["privacy"]
    assert found["contribution"] == {"kind": "persons", "records": 4}
    assert found["examples"] == 1200
    found = run(*known, "--records-per-person", "4")
    assert found["plan"]["privacy"]["records_per_person"] == 4
    assert 1.98 < found["epsilon"]["upper"] <= 2.0
    said = run(
        "account", "--examples", "3000", "--batch", "100", "--rounds", "20",
        "--noise-multiplier", "4", "--delta", "1e-5", "--records-per-person", "4",
    )  # fmt: skip
    assert said["group"] == 4


def test_the_plan_as_it_is_shown_says_whom_it_counts():
    from forethought.report.terminal import plan_rows

    known = {"examples": 900, "records_per_person": 3, "budget": ft.Budget(2.0, 1e-4), "rounds": 9}
    rows = dict(plan_rows(ft.plan(**known, persons=400)))
    assert rows["persons"] == "400" and "examples" not in rows
    assert rows["clip norm"].endswith("per person")
    rows = dict(plan_rows(ft.plan(**known)))
    assert rows["records"] == "900" and rows["protected together"] == "any 3 records"
    assert rows["expected ε"].startswith(("1.99", "2 "))
