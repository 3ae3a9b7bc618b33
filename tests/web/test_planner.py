"""What the page is told: the planner's own plan, certified limits, a front, saved files."""

from __future__ import annotations

import math
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forethought as ft
from forethought.accounting.tradeoff import tradeoff
from forethought.jobs.job import Job
from forethought.web.planner import FALSE_ALARMS, SettingError, Settings, expected_accuracy, shown
from forethought.web.site import Place, beginning


def test_the_numbers_are_those_of_the_plan():
    asked = Settings(epsilon=2.0, records=4000, epochs=8.0)
    found = shown(asked)
    plan = ft.plan(examples=4000, budget=ft.Budget(2.0, 1 / 40000), epochs=8.0, parameters=21)
    assert asked.plan() == plan
    assert (found["sigma"], found["rounds"]) == (plan.noise_multiplier, plan.rounds)
    assert found["epsilon"] == ft.account(plan).epsilon.upper <= 2.0
    assert found["unit"] == "records" and found["together"] == 1
    # Limits on an attacker are above the exact curve, and close to it.
    for (alarm, power), exact in zip(
        found["attack"], tradeoff(plan.mechanism)(FALSE_ALARMS), strict=True
    ):
        assert alarm <= 1 - exact <= power <= 1.1 * (1 - exact) + 0.02
    points = found["front"]
    assert len(points) > 20
    assert [e for e, _ in points] == sorted(e for e, _ in points)
    assert [n for _, n in points] == sorted((n for _, n in points), reverse=True)
    # The planner's own choice is close to that front.
    near = min(n for e, n in points if e <= 1.5 * found["epsilon"])
    assert found["noise"] < 3 * near


@pytest.mark.slow
def test_persons_are_planned_for():
    found = shown(Settings(records=3000, persons=1000, records_per_person=4))
    assert (found["unit"], found["examples"], found["together"]) == ("persons", 1000, 1)
    found = shown(Settings(records=3000, records_per_person=4))
    assert (found["unit"], found["examples"], found["together"]) == ("records", 3000, 4)
    assert found["epsilon"] <= 3.0


@settings(max_examples=20, deadline=None)
@given(st.floats(0.05, 20), st.integers(50, 10**6), st.integers(1, 400))
def test_expected_accuracy_is_between_guessing_and_no_noise(epsilon, records, features):
    asked = Settings(epsilon=epsilon, records=records, features=features)
    found = expected_accuracy(asked.plan(), features)
    assert 0.3 < found.accuracy <= found.without_noise + 0.02 < 1.02
    assert found.without_noise > 0.9


def test_less_noise_and_more_records_are_worth_something():
    def accuracy(**options):
        asked = Settings(features=100, **options)
        return expected_accuracy(asked.plan(), 100).accuracy

    little, more = accuracy(epsilon=0.1, records=300), accuracy(epsilon=5.0, records=300)
    assert little < more - 0.1
    assert accuracy(epsilon=0.1, records=100_000) > little + 0.1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epsilon": "2"}, "epsilon must be from 0.01 to 100, not '2'"),
        ({"epsilon": True}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"records": 10**12}, "records"),
        ({"records": 50.5}, "whole number"),
        ({"records": None}, "records"),
        ({"path": "/etc/passwd"}, "unknown setting 'path'"),
    ],
)
def test_values_that_make_no_sense_are_refused(values, message):
    with pytest.raises(SettingError, match=message):
        Settings.of(values)


def test_a_plan_and_a_job_are_saved_and_read_back(tmp_path):
    asked, place = Settings(epsilon=2.0, epochs=5.0, records_per_person=3), Place(tmp_path)
    assert ft.Plan.load(place.save("mine.json", asked)) == asked.plan()
    job = Job.load(place.save("mine.toml", asked))
    assert job.budget.epsilon == 2.0 and job.training.epochs == 5.0
    assert job.make_plan(asked.records, 21).mechanism == asked.plan().mechanism
    for name in ("mine.json", "../out.json", ".hidden.json", "a.sh", "/tmp/x.json", ""):
        with pytest.raises(SettingError):
            place.save(name, asked)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.json", "mine.toml"]


def test_it_begins_with_a_job_and_changes_its_numbers_only(tmp_path):
    path = tmp_path / "job.toml"
    text = (
        '[data]\nsource = "digits"\n[budget]\nepsilon = 1.5\n[training]\nrounds = 9\nbatch = 50\n'
    )
    path.write_text(text)
    place, start = beginning(path, tmp_path, None)
    assert (start.epsilon, start.records) == (1.5, 1443)
    saved = tomllib.loads(place.save("new.toml", Settings(epsilon=4.0, epochs=3.0)).read_text())
    assert saved == {
        "data": {"source": "digits"},
        "budget": {"epsilon": 4.0},
        "training": {"batch": 50, "epochs": 3.0},
    }
