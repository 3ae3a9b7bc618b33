"""What the page is told: the plan of the command and of training, certified limits, saved files."""

from __future__ import annotations

import json
import math
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import forethought as ft
from forethought.accounting.tradeoff import tradeoff
from forethought.cli import main
from forethought.jobs.job import Job, from_file, overridden
from forethought.jobs.load import load_job
from forethought.jobs.train import prepare, propose
from forethought.planning.defaults import noise_to_signal
from forethought.web.planner import BUDGETS, FALSE_ALARMS, SettingError, Settings, shown
from forethought.web.site import Place, beginning


def test_the_numbers_are_those_of_the_plan():
    asked = Settings(epsilon=2.0, records=4000, epochs=8.0)
    found = shown(asked)
    plan = ft.plan(examples=4000, budget=ft.Budget(2.0, 1 / 40000), epochs=8.0, parameters=21)
    assert asked.plan() == plan
    assert (found["sigma"], found["rounds"]) == (f"{plan.noise_multiplier:.4g}", plan.rounds)
    assert found["epsilon"] == ft.account(plan).epsilon.upper <= 2.0
    assert found["unit"] == "records" and found["together"] == 1
    # The attacker's limits are those of the plan's statement.
    assert [tuple(row) for row in found["attack"]] == [
        (alarm, 1.0 - missed)
        for alarm, missed in zip(FALSE_ALARMS, tradeoff(plan.mechanism)(FALSE_ALARMS), strict=True)
    ]
    assert set(ft.account(plan).attack) <= {tuple(row) for row in found["attack"]}
    budgets = found["budgets"]
    assert [epsilon for epsilon, *_ in budgets] == [2.0 * factor for factor in BUDGETS]
    assert budgets[3][1:] == [pytest.approx(4000), found["cost"]["lost"]]
    # A larger budget is worth more records, and costs less.
    worth, lost = ([row[column] for row in budgets] for column in (1, 2))
    assert worth == sorted(worth) and worth[0] < worth[-1]
    assert lost == sorted(lost, reverse=True) and lost[0] > lost[-1]


@pytest.mark.parametrize("asked", [Settings(records=900), Settings(records=60_000, features=80)])
def test_a_budget_is_worth_the_records_that_it_is_said_to_be(asked):
    for epsilon, worth, _ in shown(asked)["budgets"]:
        other = replace(asked, records=round(worth)).plan()
        larger = replace(asked, epsilon=epsilon).plan()
        assert noise_to_signal(other) == pytest.approx(noise_to_signal(larger), rel=0.35)


@pytest.mark.parametrize(
    "asked",
    [
        *(Settings(records=records) for records in (10, 12, 40, 150)),
        Settings(records=1000, persons=2, records_per_person=1000),
    ],
)
def test_a_budget_is_worth_more_records_the_larger_it_is_for_few_too(asked):
    worth = [row[1] for row in shown(asked)["budgets"]]
    known = [records for records in worth if records is not None]
    assert known == sorted(known) and asked.records < known[-1] < 1e6
    # Nothing is said of fewer or more records than were tried.
    assert known[0] >= 10 and known[-1] <= 16 * asked.records


@pytest.mark.slow
def test_a_smaller_budget_is_never_worth_more_records():
    many = [row[1] for row in shown(Settings(features=1000))["budgets"]]
    assert many[-1] is None and many[:-1] == sorted(many[:-1])
    # A delta that was given is that of every number of records.
    asked = Settings(delta=0.4, records=400)
    for epsilon, worth, _ in shown(asked)["budgets"]:
        if worth is not None:
            other = replace(asked, records=round(worth)).plan()
            larger = replace(asked, epsilon=epsilon).plan()
            assert noise_to_signal(other) == pytest.approx(noise_to_signal(larger), rel=0.35)


def test_where_no_other_size_can_be_planned_nothing_is_said(monkeypatch):
    whole = Settings.plan

    def plan(self, *given):
        if self.records != 500:
            raise ValueError("too few or too many for the job")
        return whole(self, *given)

    monkeypatch.setattr(Settings, "plan", plan)
    assert {row[1] for row in shown(Settings(records=500))["budgets"]} == {None}


def test_the_records_that_are_said_to_be_needed_are_enough():
    asked = Settings(epsilon=0.3, records=2000, features=40, without=0.8)
    cost = shown(asked)["cost"]
    assert cost["lost"] > 0.01
    there = Settings(0.3, records=round(cost["records_needed"]), features=40, without=0.8)
    assert shown(there)["cost"]["lost"] == pytest.approx(0.01, abs=0.004)


@pytest.mark.slow
def test_persons_are_planned_for():
    found = shown(Settings(records=3000, persons=1000, records_per_person=4))
    assert (found["unit"], found["examples"], found["together"]) == ("persons", 1000, 1)
    found = shown(Settings(records=3000, records_per_person=4))
    assert (found["unit"], found["examples"], found["together"]) == ("records", 3000, 4)
    assert found["epsilon"] <= 3.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epsilon": "2"}, "epsilon must be"),
        ({"epsilon": True}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"records": 10**12}, "records"),
        ({"records": 10**400}, "records"),
        ({"records": 50.5}, "whole number"),
        ({"records": None}, "records"),
        ({"without": 0.5}, "without must be"),
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
    # Rounds that nobody replaced stay, on the page and in the file.
    kept = Job.load(place.save("kept.toml", Settings(epsilon=4.0)))
    assert kept.training.rounds == 9 == Settings(records=1443).plan(place.loaded).rounds


def test_a_job_whose_promise_is_less_is_told_before_it_runs(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        '[data]\nsource = "digits"\nfeatures = "pixels"\n[budget]\nepsilon = 1\n'
        '[training]\nrounds = 2\nadjacency = "zero-out"\n[run]\nnoise_seed = 3\n'
    )
    place, start = beginning(path, tmp_path, None)
    assert [note for note in place.notes if "noise_seed" in note and "guarantee" in note]
    assert shown(start, place.loaded)["adjacency"] == "zero-out"
    assert shown(Settings(records=100))["adjacency"] == "add-or-remove"


def test_a_saved_job_keeps_statistics_members_and_the_open_question(tmp_path):
    path = tmp_path / "job.toml"
    asked = '# person = "who"  # values repeat'
    path.write_text(
        f'[data]\nsource = "digits"\n{asked}\n[budget]\nepsilon = 1.5\n'
        '[[statistics]]\nkind = "count"\n[[statistics]]\nkind = "count"\nname = "again"\n'
        '[federation]\n[[federation.client]]\nname = "a"\nexamples = 9\n'
    )
    place, start = beginning(path, tmp_path, None)
    saved = from_file(place.save("new.toml", start))
    assert saved.job.statistics == ({"kind": "count"}, {"kind": "count", "name": "again"})
    assert saved.job.federation == Job.load(path).federation
    assert saved.question == from_file(path).question
    assert saved.question is not None
    head, _, rest = saved.text.partition(f"[data]\n{asked}\n")
    assert rest and "[data]" not in head


def a_table(folder: Path) -> Path:
    random = np.random.default_rng(7)
    lines = ["who,age,dose,ward,ill"]
    for row in range(700):
        age, dose = random.integers(20, 90), random.normal()
        ill = "yes" if age / 50 + dose > random.normal() + 1 else "no"
        lines.append(f"p{row // 2},{age},{dose:.3f},{'ABC'[row % 3]},{ill}")
    (folder / "ill.csv").write_text("\n".join(lines) + "\n")
    return folder / "ill.csv"


COLUMNS = '[data.columns]\nwho = "drop"\nage = [0, 120]\ndose = [-5, 5]\nward = ["A", "B", "C"]\n'
TABLE = '[data]\nsource = "csv:{}"\nlabel = "ill"\nclasses = ["no", "yes"]\n'
BUDGET = "[budget]\nepsilon = 2.0\n"


@pytest.mark.slow
def test_noise_and_samples_that_change_are_shown_and_forecast(tmp_path):
    """Each of the three read the one noise, or the one batch, of a plan that has several."""
    job, training = tmp_path / "job.toml", "[training]\nbatch = 50\nrounds = 2\n"
    courses = 'noise_schedule = "geometric"\nsize_schedule = "linear"\n'
    text = TABLE + COLUMNS + BUDGET + training + courses
    job.write_text(text.replace("{}", str(a_table(tmp_path))))
    made = propose(from_file(job))
    noises = [part.noise_multiplier for part in made.plan.privacy.mechanism]
    assert noises[0] > noises[-1] and len(made.to_dict()["forecast"]) == 3
    place, start = beginning(job, tmp_path, None)
    page = shown(start, place.loaded)
    assert page["sigma"] == f"{noises[0]:.4g} to {noises[-1]:.4g}"
    assert page["batch"] == pytest.approx(50, rel=0.01)


@pytest.mark.parametrize("model", ["", '[model]\nname = "additive"\n'])
def test_what_stands_beside_the_columns_follows_the_sliders(model, tmp_path):
    job = tmp_path / "job.toml"
    job.write_text((TABLE + COLUMNS + BUDGET + model).replace("{}", str(a_table(tmp_path))))
    place, start = beginning(job, tmp_path, None)
    features = set()
    for epsilon in (0.05, 0.5, 3.0, 60.0):
        trained = prepare(overridden(from_file(job), {"epsilon": epsilon}))
        assert replace(start, epsilon=epsilon).plan(place.loaded) == trained.plan
        features.add(trained.loaded.dataset.shape)
    assert len(features) > 1


JOBS = {
    "a table": TABLE + COLUMNS + BUDGET,
    "its delta, its batch": TABLE
    + COLUMNS
    + BUDGET
    + "delta = 1e-6\n[training]\nbatch = 100\nrounds = 30\n",
    "epochs, momentum": TABLE
    + COLUMNS
    + BUDGET
    + "[training]\nepochs = 4\noptions = {momentum = 0.9}\n",
    "persons": TABLE
    + 'person = "who"\nrecords_per_person = 2\n'
    + COLUMNS.replace('who = "drop"\n', "")
    + BUDGET,
    "a network": TABLE + COLUMNS + BUDGET + '[model]\nname = "mlp"\n',
    "images": '[data]\nsource = "digits"\n' + BUDGET,
    "ranges": TABLE + COLUMNS + BUDGET + "[training]\nranges = true\n",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in ("a table", "ranges")))
        for name in JOBS
    ],
)
def test_page_command_and_training_have_one_plan(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    job = tmp_path / "job.toml"
    job.write_text(JOBS[name].replace("{}", str(a_table(tmp_path))))
    trained = prepare(from_file(job)).plan
    monkeypatch.setattr(sys, "argv", ["forethought", "plan", str(job), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    told = json.loads(capsys.readouterr().out)
    assert ft.Plan.from_dict(told["plan"]) == trained
    place, start = beginning(job, tmp_path, None)
    assert start.plan(place.loaded) == trained
    page = shown(start, place.loaded)
    assert (page["batch"], page["sigma"]) == (trained.batch, f"{trained.noise_multiplier:.4g}")
    # Another budget on the page is that budget in the command, what is released first included.
    less = prepare(overridden(from_file(job), {"epsilon": 0.9})).plan
    assert replace(start, epsilon=0.9).plan(place.loaded) == less != trained
    # What is saved without a change is the same run.
    assert ft.Plan.load(place.save("same.json", start)) == trained
    saved = place.save("same.toml", start)
    assert prepare(from_file(saved)).plan == trained
    # A cost is told of linear models of two classes, and of no others.
    linear = name not in ("a network", "images")
    assert (page["cost"] is not None) == linear == bool(told["forecast"])
    assert told["seconds"] > 0


def test_a_saved_job_has_as_many_rows_of_a_person_as_the_page_showed(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('[data]\nsource = "digits"\nrecords_per_person = 4\n[budget]\nepsilon = 2.0\n')
    place, start = beginning(path, tmp_path, None)
    for rows in (1, 3, 4):
        saved = Job.load(place.save(f"of-{rows}.toml", replace(start, records_per_person=rows)))
        assert saved.data.most_of_one_person == rows
    path.write_text('[data]\nsource = "digits"\n[budget]\nepsilon = 200.0\n')
    with pytest.raises(SettingError, match="epsilon must be"):
        beginning(path, tmp_path, None)


def test_a_saved_job_is_planned_as_the_page_showed_it(tmp_path):
    draw = np.random.default_rng(5)
    x, y = draw.uniform(0, 10, (2, 20_000)).round(3)
    words = np.where(x + y > 10, "yes", "no")
    pl.DataFrame({"x": x, "y": y, "over": words}).write_csv(tmp_path / "table.csv")
    path = tmp_path / "job.toml"
    path.write_text(
        f'[data]\nsource = "csv:{tmp_path}/table.csv"\nlabel = "over"\nclasses = ["no", "yes"]\n'
        "[data.columns]\nx = [0, 10]\ny = [0, 10]\n[budget]\nepsilon = 1.0\n"
    )
    place, start = beginning(path, tmp_path, None)
    moved = replace(start, epsilon=0.02)  # where another basis pays
    saved = load_job(from_file(place.save("less.toml", moved)))
    assert saved.request.job.training.basis != load_job(from_file(path)).request.job.training.basis
    assert saved.plan() == moved.plan(place.loaded)
