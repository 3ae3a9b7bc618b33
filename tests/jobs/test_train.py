"""From the command line to a run in phases and back."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from forethought.accounting.adaptive import NegativeBinomialTrials
from forethought.cli import app
from forethought.jobs.job import Job, JobError, JobRequest, from_file, resumed
from forethought.jobs.predict import load
from forethought.jobs.train import prepare, tune_job
from forethought.jobs.train import run as run_job
from forethought.training.execution import Interrupted
from forethought.training.metrics import Event

JOB = """
[data]
source = "breast-cancer"
holdout = 0.2
[training]
rounds = 12
batch = 60
[run]
seed = 1
noise_seed = 1
"""


@pytest.fixture(name="job")
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_a_run_until_an_accuracy_stops_cleanly(job: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = run("train", job, "--until-accuracy", 1, "--max-epsilon", 2, "--out", out)
    assert "stopped because the budget was used up" in said
    record = json.loads((out / "phases.json").read_text())
    assert not record["reached"] and len(record["phases"]) == 3
    statement = json.loads((out / "statement.json").read_text())
    assert statement["epsilon"]["upper"] <= 2
    assert "the budget was used up" in statement["hyperparameters"]
    assert "Verified" in run("account", out, "--verify")
    again = run("train", "--resume", out)
    assert "stopped because the budget was used up" in again


@pytest.mark.slow
def test_it_stops_as_soon_as_the_accuracy_is_reached(job: Path, tmp_path: Path) -> None:
    arguments = ("--until-accuracy", 0.01, "--max-epsilon", 2, "--out", tmp_path / "run", "--json")
    found = json.loads(run("train", job, *arguments))
    assert found["statement"]["rounds"] == 12
    assert "after 1 of them" in found["statement"]["hyperparameters"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-epsilon", 1), "goes with"),
        (("--until-accuracy", 0.9), "needs a budget"),
        (("--until-accuracy", 90, "--max-epsilon", 1), "at most 1"),
        (("--until-accuracy", 0.9, "--max-epsilon", -1), "above 0"),
    ],
)
def test_what_makes_no_sense_is_said(
    job: Path, tmp_path: Path, arguments: tuple[object, ...], said: str
) -> None:
    given = ["train", str(job), "--out", str(tmp_path / "run"), *map(str, arguments)]
    with pytest.raises(ValueError, match=said):
        CliRunner().invoke(app, given, catch_exceptions=False)
    assert not (tmp_path / "run").exists()


def test_a_run_until_an_accuracy_is_refused_for_persons_of_several_records(job: Path) -> None:
    job.write_text(JOB.replace("holdout", "records_per_person = 3\nholdout"))
    with pytest.raises(JobError, match="single records"):
        prepare(from_file(job), until=0.9, max_epsilon=3.0)


def test_a_search_or_filter_statement_is_accounted_its_own_way_at_another_delta(
    tmp_path: Path,
) -> None:
    from forethought.accounting.adaptive import PoissonTrials, selection_details
    from forethought.accounting.statement import account
    from forethought.jobs.account import statement_of
    from forethought.values.mechanism import Mechanism, Poisson, Rounds

    mechanism = Mechanism(Rounds(2.0, 50, Poisson(0.1)))
    details = selection_details(mechanism, [mechanism], PoissonTrials(5), None, 1e-5)
    account(mechanism, 1e-5, accountant=details).save(tmp_path)
    again = statement_of(tmp_path / "statement.json", delta=1e-4)
    assert again.accountant["kind"] == "selection"
    assert again.epsilon.upper > account(mechanism, 1e-4).epsilon.upper


ABOUT = """
[about]
data = "Breast masses"
date = 1995-11-01
purpose = "a test"
responsible = "nobody"
"""


@pytest.mark.slow
def test_a_jobs_owner_is_quoted_and_the_model_file_named(job: Path, tmp_path: Path) -> None:
    job.write_text(JOB + ABOUT)
    out = tmp_path / "run"
    run("train", job, "--epsilon", 2, "--out", out)
    said = json.loads((out / "statement.json").read_text())["about"]
    weights = (out / "model.safetensors").read_bytes()
    assert said == {
        "data": "Breast masses",
        "date": "1995-11-01",
        "purpose": "a test",
        "responsible": "nobody",
        "model": f"sha256:{hashlib.sha256(weights).hexdigest()}",
    }
    assert "Purpose: a test" in (out / "statement.md").read_text()
    assert "1995-11-01" in (out / "job.toml").read_text()
    believed = json.loads(run("account", out, "--verify", "--json"))["not_checked"]
    assert "as its owner says" in believed["about"]
    (out / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    result = CliRunner().invoke(app, ["account", str(out), "--verify"])
    assert result.exit_code != 0 and "its hash differs" in str(result.exception or result.output)


@pytest.mark.slow
def test_a_run_in_phases_quotes_its_owner_too(job: Path, tmp_path: Path) -> None:
    job.write_text(JOB + ABOUT)
    out = tmp_path / "run"
    run("train", job, "--until-accuracy", 0.01, "--max-epsilon", 2, "--out", out)
    said = json.loads((out / "statement.json").read_text())["about"]
    assert said["purpose"] == "a test" and said["model"].startswith("sha256:")
    assert "Verified" in run("account", out, "--verify")


@pytest.mark.parametrize("wrong", ['data = ""', "purpose = 3", 'data = "a\\nb"', "owner = 'x'"])
def test_a_malformed_about_is_named(wrong: str, job: Path) -> None:
    job.write_text(f"{JOB}[about]\n{wrong}\n")
    with pytest.raises(JobError, match=r"line 12: .*about\."):
        Job.load(job)


def test_a_continued_run_keeps_the_threads_that_it_began_with(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another number could round otherwise; it once had to be set back by hand."""
    job.write_text(JOB.replace("[run]", "[budget]\nepsilon = 2\n[run]\nthreads = 2"))
    out, seen = tmp_path / "run", []

    def stop(event: Event) -> None:
        seen.append(torch.get_num_threads())
        if event.round == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        run_job(prepare(from_file(job)), out, progress=stop)
    (out / "job.toml").write_text((out / "job.toml").read_text().replace("threads = 2\n", ""))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run_job(prepare(resumed(out), resume=out), out, resume=True, progress=stop)
    assert set(seen) == {2} and len(seen) >= 12


TRIALS = NegativeBinomialTrials.of_mean(2, shape=0)
TUNED = """
[data]
source = "csv:{table}"
label = "y"
classes = ["no", "yes"]
prevalence = [0.8, 0.2]
{data}
[data.columns]
age = [0, 100]
dose = [0, 9]
[model]
name = "mlp"
[predict]
costs = [1, 9]
[about]
data = "mine"
[budget]
epsilon = 8.0
[training]
rounds = 1
sampling = "full-batch"
clip_norm = 1.0
clip_rule = "flat"
{training}
[run]
seed = 3
noise_seed = 4
"""


def test_a_search_takes_the_jobs_loss_data_and_words(tmp_path: Path) -> None:
    rows = [f"{20 + n / 10:.1f},{n % 9},{'yes' if n % 5 else 'no'}" for n in range(400)]
    (tmp_path / "t.csv").write_text("\n".join(["age,dose,y", *rows]) + "\n")

    def weights(name: str, data: str = "", training: str = "") -> bytes:
        text = TUNED.format(table=tmp_path / "t.csv", data=data, training=training)
        request = JobRequest(name, text, Job.parse(text))
        tune_job(request, tmp_path / name, [0.1], TRIALS)
        return (tmp_path / name / "model.safetensors").read_bytes()

    plain = weights("plain")
    assert weights("loud", training="class_weights = [1.0, 0.01]") != plain
    assert weights("scaled", data="standardise = [0.2, 0.5]") != plain
    for name in ("plain", "loud", "scaled"):
        model = load(tmp_path / name)
        assert model.statement.about is not None and model.statement.about.data == "mine"
        assert model.card.decisions is not None and model.card.decisions.costs == (1.0, 9.0)
        assert set(model.predict({"age": [30], "dose": [2]})) <= {"no", "yes"}
        assert Job.load(tmp_path / name / "job.toml").predict.costs == (1, 9)
    assert load(tmp_path / "scaled").card.standardise == (0.2, 0.5)
    assert any(
        "weights of the classes" in str(c) for c in load(tmp_path / "loud").statement.assumptions
    )
