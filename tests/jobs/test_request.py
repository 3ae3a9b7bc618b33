"""One request: flags go visibly before the file, seeds stay out of what is released."""

from __future__ import annotations

import json
import os
import tomllib
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import forethought as ft
from forethought.cli import app
from forethought.jobs.job import Job, JobError, JobRequest, from_file, overridden, to_toml

JOB = """\
# The lab's job.
[data]
source = "digits"
[budget]
epsilon = 3.0
[training]
batch = 200
rounds = 5
clip_norm = 0.7
optimizer = "adam"
learning_rate = 0.003
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


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="pipes as files, of POSIX")
def test_a_job_in_a_pipe_is_read_once() -> None:
    reading, writing = os.pipe()
    os.write(writing, JOB.replace("[budget]", '# person = "id"\n[budget]').encode())
    os.close(writing)
    assert "person" in (from_file(Path(f"/dev/fd/{reading}")).question or "")
    os.close(reading)


def plan_in(folder: Path) -> ft.Plan:
    return ft.Plan.load(folder / "plan.json")


@pytest.mark.slow
def test_a_flag_goes_before_the_file_and_says_so(job: Path, tmp_path: Path) -> None:
    flags = ("--epsilon", 1.5, "--rounds", 7)
    shown = run("plan", job, *flags, "--save", tmp_path / "plan.json")
    assert "epsilon 1.5 in place of 3.0" in shown
    assert "rounds 7 in place of 5" in shown
    plan = ft.Plan.load(tmp_path / "plan.json")
    assert plan.budget is not None
    assert (plan.budget.epsilon, plan.rounds) == (1.5, 7)
    shown = run("train", job, *flags, "--out", tmp_path / "run")
    assert "epsilon 1.5 in place of 3.0" in shown
    assert plan_in(tmp_path / "run").mechanism == plan.mechanism
    again = from_file(tmp_path / "run" / "job.toml")
    assert (again.job.budget.epsilon, again.job.training.rounds) == (1.5, 7)


def test_epochs_take_the_place_of_rounds(job: Path) -> None:
    request = overridden(from_file(job), {"epochs": 2.0, "batch": None})
    assert (request.job.training.rounds, request.job.training.epochs) == (None, 2.0)
    assert request.overrides == ("epochs 2.0 in place of rounds 5",)
    assert overridden(request, {"epochs": 2.0}) is request
    with pytest.raises(JobError, match=r"budget\.epsilon = -1"):
        overridden(request, {"epsilon": -1})


def test_a_front_keeps_clip_norm_optimizer_and_step_size(job: Path) -> None:
    assert "epsilon at most 3" in run("plan", job, "--pareto")
    found = json.loads(run("plan", job, "--pareto", "--json"))
    assert found["limits"] == {"epsilon": 3.0}
    for row in found["front"]:
        plan = ft.Plan.from_dict(row["plan"])
        assert (plan.clip_norm, plan.optimizer.name) == (0.7, "adam")
        assert plan.optimizer.learning_rate == 0.003
        assert (round(plan.batch), plan.rounds) == (200, 5)
        assert row["epsilon"] <= 3.0


@pytest.mark.slow
def test_seeds_never_land_in_the_run_folder(job: Path, tmp_path: Path) -> None:
    # However TOML lets one write them down.
    for number, table in enumerate(
        (
            "[run]\nseed = 20240229\nnoise_seed = 19700101\nmicro_batch = 64\n",
            "[run]\n'seed' = 20_240_229\n\"noise_seed\" = 0x12C9A45\nmicro_batch = 64\n",
        )
    ):
        job.write_text(JOB + table)
        folder = tmp_path / f"run{number}"
        run("train", job, "--out", folder)
        for path in folder.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                for seed in (b"20240229", b"20_240_229", b"19700101", b"12C9A45"):
                    assert seed not in content, path
        released = Job.load(folder / "job.toml")
        assert released.run.model_dump(exclude_unset=True) == {"micro_batch": 64}
        assert released.training == Job.parse(JOB).training
    job.write_text("run = {noise_seed = 19700101}\n" + JOB)
    assert "19700101" not in from_file(job).released_text()


# Every section, with days, nested tables, keys in quotes, and what init counts in a comment.
WHOLE = """\
# prevalence = [0.971, 0.029]  # counted in the file
[data]  # 4,711 rows
source = "csv:patients.csv"
label = "ill"
classes = ["no", "yes"]
person = "name"
[data.columns]
"first stay" = {date = [2010-01-01, 2029-12-31], missing = "middle"}
"w = \\"x\\"" = {categories = ["a", "b"], other = true, codes = [-999]}
amount = [0, 1e300]
[model]
name = "mlp"
hidden = [3, 4]
[budget]
epsilon = 3
delta = 1e-60
[training]
class_weights = [1, 2.5]
[run]
metrics = ["accuracy"]
[predict]
costs = [1, 9]
[about]
date = 2020-01-01
[ledger]
url = "sqlite:///book.db"
data = "patients"
also = ["staff"]
[[statistics]]
kind = "count"
[[statistics]]
kind = "mean"
column = "amount"
[federation]
local_rounds = [1, 2]
delay = {most = 2}
[[federation.client]]
name = "here"
[[federation.client]]
name = "there"
[gossip]
workers = 2
outage = [{worker = "here", begin = 3}]
"""


def test_a_job_is_released_without_comments_and_says_the_same(job: Path) -> None:
    """A run folder may be published, and comments of init tell what it counted in the file."""
    released = from_file(job).released_text()
    assert "lab" not in released and Job.parse(released) == Job.parse(JOB)
    job.write_text(WHOLE)
    text = from_file(job).released_text()
    assert "counted" not in text and "4,711" not in text
    whole, again = (Job.parse(one).model_dump(exclude_unset=True) for one in (WHOLE, text))
    days = [date.fromisoformat(day) for day in again["data"]["columns"]["first stay"]["date"]]
    again["data"]["columns"]["first stay"]["date"] = days
    assert again == whole


@pytest.mark.slow
def test_a_resumed_run_keeps_its_plan_whatever_the_planner_says_now(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forethought.jobs import train as jobs
    from forethought.planning import defaults
    from forethought.training.execution import Interrupted

    job.write_text("[data]\nsource = 'digits'\n[budget]\nepsilon = 3.0\n")
    folder = tmp_path / "run"
    prepared = jobs.prepare(from_file(job))

    def stop(event: object) -> None:
        raise Interrupted(folder, 1)

    with pytest.raises(KeyboardInterrupt):
        jobs.run(prepared, folder, progress=stop)
    shown = run("report", folder)
    assert "1 of 200 rounds may have been released" in shown
    assert f"forethought train --resume {folder}" in " ".join(shown.split())
    found = json.loads(run("report", folder, "--json"))
    assert found["released"] == 1
    # The features' means, their norm, and a round.
    one = ft.epsilon(prepared.plan.mechanism.first(3), prepared.plan.delta).upper
    assert found["spent"] == one
    assert not {"loss", "clipped", "non_finite"} & set(found["last"])
    monkeypatch.setattr(defaults, "NOISE", 3.0)
    monkeypatch.setattr(defaults, "ROUNDS", 77)
    assert Job.load(job).make_plan(prepared.loaded.examples) != prepared.plan
    run("train", "--resume", folder, "--quiet")
    assert plan_in(folder) == prepared.plan
    result = CliRunner().invoke(app, ["train", "--resume", str(folder), "--epsilon", "9"])
    assert isinstance(result.exception, ValueError)
    assert "keeps the plan it began with" in str(result.exception)


values: st.SearchStrategy[object] = st.recursive(
    st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), st.dictionaries(st.text(), values, min_size=1), max_size=3))
def test_what_is_written_as_toml_reads_back(tables: dict[str, dict[str, object]]) -> None:
    assert tomllib.loads(to_toml(tables)) == tables


def test_a_request_without_a_file_is_released_too() -> None:
    assert Job.parse(JobRequest("", "", Job.parse(JOB)).released_text()) == Job.parse(JOB)
