"""One loading path: what loading read from private records reaches every statement."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

import forethought as ft
from forethought.cli import app
from forethought.data import load
from forethought.jobs.job import JobError, from_file
from forethought.jobs.load import load_job
from forethought.jobs.public_proxy import utility_of
from forethought.jobs.train import prepare, propose
from forethought.models import build
from forethought.planning.plan_request import noise_borne
from forethought.utility.graph import LEAKS

READ = ("classes are those found", "classes or values", "highest index")


@pytest.fixture(name="job")
def job_file(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    lines = [
        f"{label} 1:{label + random.normal():.3f} 2:{random.normal():.3f}"
        for label in random.choice([-1, 1], 120)
    ]
    (tmp_path / "data.svm").write_text("\n".join(lines) + "\n")
    path = tmp_path / "job.toml"
    path.write_text(
        f"""
[data]
source = "svmlight:{tmp_path / "data.svm"}"
[budget]
epsilon = 3.0
[training]
batch = 40
rounds = 4
"""
    )
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def named(texts: list[object]) -> set[str]:
    return {wanted for wanted in READ if any(wanted in str(text) for text in texts)}


def test_a_saved_plan_keeps_what_loading_read(job: Path, tmp_path: Path) -> None:
    run("plan", job, "--save", tmp_path / "plan.json")
    plan = ft.Plan.load(tmp_path / "plan.json")
    assert named(list(plan.not_covered)) == set(READ)
    assert named(list(ft.account(plan).not_covered)) == set(READ)
    best = json.loads(run("plan", job, "--pareto", "--max-epsilon", 3, "--json"))["plan"]
    assert named(list(ft.Plan.from_dict(best).not_covered)) == set(READ)


def test_a_plan_for_one_row_does_not_run_where_several_are_one_persons(
    job: Path, tmp_path: Path
) -> None:
    propose(from_file(job)).plan.save(tmp_path / "plan.json")
    job.write_text(job.read_text().replace("[data]", "[data]\nrecords_per_person = 4"))
    with pytest.raises(JobError, match="may be one"):
        prepare(from_file(job), saved_plan=tmp_path / "plan.json")


def test_a_search_by_a_graph_of_private_data_says_so(job: Path, tmp_path: Path) -> None:
    request = from_file(job)
    known = {"clip_norms": (0.1, 1.0), "noise_multipliers": (0.5, 2.0), "draws": 2}
    known |= {"batch": 40, "epochs": 1}
    utility_of(load_job(request), None, known, leaks=True).save(tmp_path / "graph.json")
    limits = {"epsilon": 8.0, "rounds": None, "gradients": None}
    found = propose(request, utility=tmp_path / "graph.json", limits=limits).plan
    assert LEAKS in found.not_covered and "private data" in str(found.hyperparameters)


@pytest.mark.slow
def test_a_run_and_a_search_name_it_once(job: Path, tmp_path: Path) -> None:
    run("train", job, "--out", tmp_path / "run")
    uses = list(ft.Statement.load(tmp_path / "run" / "statement.json").not_covered)
    assert named(uses) == set(READ)
    assert len({str(use) for use in uses}) == len(uses)
    run("tune", job, "--learning-rate", 0.1, "--trials", 2, "--out", tmp_path / "tuned")
    uses = list(ft.Statement.load(tmp_path / "tuned" / "statement.json").not_covered)
    assert named(uses) == set(READ)


def test_a_data_set_handed_to_train_brings_its_caveats_and_its_test_part(
    job: Path, tmp_path: Path
) -> None:
    data = load(f"svmlight:{tmp_path / 'data.svm'}")
    plan = ft.plan(examples=len(data.train), budget=ft.Budget(3, 1e-4), batch=40, rounds=4)
    found = ft.train(nn.Linear(2, 2), data, plan, seed=1, noise_seed=1)
    assert named(list(found.statement.not_covered)) == set(READ)
    assert found.accuracy is not None
    until = ft.train_until(nn.Linear(2, 2), data, plan, accuracy=0.01)
    assert named(list(until.statement.not_covered)) == set(READ)
    tuned = ft.tune(
        lambda: nn.Linear(2, 2), data, [plan], trials=ft.NegativeBinomialTrials.of_mean(2, shape=0)
    )
    assert named(list(tuned.statement.not_covered)) == set(READ)


@pytest.mark.slow
def test_what_the_job_declares_is_not_named_as_read(job: Path, tmp_path: Path) -> None:
    declared = "[data]\nclasses = [-1, 1]\nfeatures = 2\n"
    job.write_text(job.read_text().replace("[data]\n", declared))
    run("train", job, "--out", tmp_path / "run")
    statement = ft.Statement.load(tmp_path / "run" / "statement.json")
    assert named(list(statement.not_covered)) == set()
    assert any("the classes, the number of features" in str(c) for c in statement.assumptions)


@pytest.mark.slow
def test_a_run_names_its_time_and_memory(job: Path, tmp_path: Path) -> None:
    run("train", job, "--out", tmp_path / "run")
    assert "how long the run took" in (tmp_path / "run" / "statement.md").read_text()
    run("train", job, "--until-accuracy", 0.01, "--out", tmp_path / "phases")
    assert "how long the run took" in (tmp_path / "phases" / "statement.md").read_text()


def test_a_declared_feature_norm_is_planned_with(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    text = "[data]\nsource='digits'\n[budget]\nepsilon = 3.0\n[model]\nname = '{}'\n[training]\n{}"

    def plan(model: str, training: str) -> ft.Plan:
        job.write_text(text.format(model, training))
        return load_job(from_file(job)).plan()

    usual, declared = plan("linear", ""), plan("linear", "feature_norm = 32.0")
    assert usual.preparation is not None and declared.preparation is not None
    assert declared.preparation.reach == pytest.approx(10 * (usual.preparation.reach or 0))
    assert plan("linear", "centre = false").preparation is None
    for of_linear in ("feature_norm = 32.0", "centre = false"):  # nothing of a network
        with pytest.raises(JobError, match="a linear model"):
            plan("mlp", of_linear)


def test_a_network_on_a_table_is_planned_by_its_units(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    text = "[data]\nsource='breast-cancer'\n{}\n[budget]\nepsilon = 3.0\n[model]\nname = 'mlp'\n"

    def borne(standardise: str) -> float | None:
        job.write_text(text.format(standardise))
        loaded = load_job(from_file(job))
        asked = loaded.plan_request()
        assert asked.noise_borne is not None and asked.feature_norm is None
        return asked.noise_borne

    model = build("mlp", inputs=(30,), classes=2)
    declared = load("breast-cancer").feature_norm
    assert declared == pytest.approx(math.sqrt(10))
    # A network's own initial weights hardly matter.
    assert borne("") == pytest.approx(noise_borne(model, (30,), declared / 2), rel=0.06)
    scaled = noise_borne(model, (30,), math.sqrt(30))
    assert borne("standardise = [0.3, 2]") == pytest.approx(scaled, rel=0.06)
    assert borne("") != pytest.approx(scaled, rel=0.3)
