"""A job's [federation]: shares, plans, speeds, and the command that simulates it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from forethought.accounting.statement import account
from forethought.cli import app
from forethought.federated.federation import Federation
from forethought.jobs import holders
from forethought.jobs.holders import Network, section_of, speeds_of, times_of
from forethought.jobs.job import FederationSection, Job, JobError, JobRequest
from forethought.planning.holders import predict
from forethought.values.mechanism import Budget

JOB = """
[data]
source = "digits"
[budget]
epsilon = 4.0
[training]
rounds = 12
batch = 20
[federation]
clients = 4
"""


ONE = '[[federation.client]]\nname = "a"\n'


def job(extra: str = "", text: str = JOB) -> Job:
    return Job.parse(text + extra)


def agreed(
    job: Job, sizes: list[int], speeds: Sequence[float]
) -> tuple[Federation, tuple[Budget, ...]]:
    section, network = section_of(job, "federation"), Network(650, "a")
    return holders.agreed(JobRequest("job", "", job), section, sizes, speeds, network)


def test_every_client_has_a_plan_within_its_budget() -> None:
    federation, budgets = agreed(job(), [100, 100, 300, 50], [1.0] * 4)
    assert [budget.epsilon for budget in budgets] == [4.0] * 4
    for client, size in enumerate([100, 100, 300, 50]):
        plan = federation.plan(client)
        assert plan.examples == size and plan.rounds == 12
        assert account(plan).guarantee <= 4.0
    # Equal clients share a plan; weights are public sizes.
    assert federation.members[0].plan == federation.members[1].plan and len(federation.plans) == 3
    assert [member.weight for member in federation.members] == [100, 100, 300, 50]


def test_a_deadline_behind_masks_is_refused_before_keys_are_made() -> None:
    with pytest.raises(ValueError, match="leave the deadline"):
        agreed(job("secure = {}\ndeadline = 5.0\n"), [100] * 4, [1.0] * 4)


def test_a_batch_larger_than_a_holder_s_records_is_named_as_it_was_given() -> None:
    assert agreed(job(), [20] * 4, [1.0] * 4)[0].plan(0).round(0).divisor == 20
    with pytest.raises(JobError, match="batch = 20"):
        agreed(job(), [19, 19, 19, 90], [1.0] * 4)


def test_asynchronous_sample_sizes_match_the_speeds() -> None:
    extra = 'rule = "asynchronous"\nslow = 1\nslow_factor = 4.0\n'
    section = job(extra).federation
    assert section is not None
    speeds = speeds_of(section, 4)
    assert speeds == (1.0, 1.0, 1.0, 0.25)
    federation, _ = agreed(job(extra), [100] * 4, speeds)
    batches = [federation.plan(client).batch for client in range(4)]
    assert batches[:3] == [20] * 3 and batches[3] == 5
    assert [member.weight for member in federation.members] == batches
    times = times_of(section, federation, speeds)
    assert max(times.compute) == pytest.approx(min(times.compute))


@pytest.mark.slow
def test_clients_may_have_samples_and_noise_that_change() -> None:
    lines = 'batch = 20\nsize_schedule = "linear"\nnoise_schedule = "geometric"'
    federation, _ = agreed(job(text=JOB.replace("batch = 20", lines)), [100] * 4, [1.0] * 4)
    plan = federation.plan(0)
    assert plan.rounds == 12 and plan.mean_batch == pytest.approx(20, rel=0.01)
    assert len(plan.mechanism.rounds) == 12 and account(plan).guarantee <= 4.0
    both = job("growth = 2.0\n", JOB.replace("batch = 20", lines))
    with pytest.raises(ValueError, match="differ already"):
        agreed(both, [100] * 4, [1.0] * 4)


def test_local_epochs_are_turned_into_rounds() -> None:
    federation, _ = agreed(job("local_epochs = 1.0\n"), [100] * 4, [1.0] * 4)
    assert federation.local_rounds == 5 and federation.plan(0).rounds % 5 == 0


def test_local_rounds_may_change_from_update_to_update() -> None:
    found = job("local_rounds = [1, 1, 2]\nlatency = 0.0\n")
    federation, budgets = agreed(found, [100] * 4, [1.0] * 4)
    assert federation.plan(0).rounds == 12 and federation.updates(0) == 7
    section = section_of(found, "federation")
    times = times_of(section, federation, [1.0] * 4)
    costs = predict(federation, budgets, [1.0] * 4, times)
    assert {split.local_rounds: split.rounds for split in costs.splits if not split.chosen} == {
        1: 12, 12: 1,
    }  # fmt: skip
    (chosen,) = (split for split in costs.splits if split.chosen)
    assert (chosen.local_rounds, chosen.rounds) == ((1, 1, 2), 7)
    # The same private rounds take as long, however they are cut; what is sent takes nothing here.
    assert [s.seconds for s in costs.splits] == pytest.approx([chosen.seconds] * 3)
    assert costs.clients[0].rounds == 12


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("local_rounds = []", "a list of those of the first"),
        ("local_rounds = [1, 0]", "a whole number of at least 1"),
        ("cohrt = 3", "did you mean 'cohort'"),
        ("local_rounds = 2\nlocal_epochs = 1.0", "not both"),
        ("clients = 0", "greater than or equal to 1|at least 1"),
        ('[[federation.client]]\nname = "a"', "there are 1"),
        (ONE + 'examples = 9\n[[federation.client]]\nname = "b"', "for every client"),
        (ONE + 'folder = "a"', "brings its own"),
        ('rule = "asynchronous"\nweights = "equal"', "weights goes with rule 'synchronous'"),
        ('secure = {dropouts = 1}\nweights = "equal"', "weights goes with .* without secure"),
        (ONE + '[[federation.client]]\nname = "../b"', "no member's name"),
        (ONE + '[[federation.client]]\nname = "server"', "server's name"),
    ],
)
def test_a_section_that_cannot_be_is_refused_in_words(extra: str, words: str) -> None:
    text = JOB.replace("clients = 4", "") if extra.startswith(("clients", ONE)) else JOB
    with pytest.raises(JobError, match=words):
        job(extra, text)


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("extra", "name"),
    [
        ("shrink = 0.5", "shrink"),
        ("shrink = 0.5\nphases = [1.0, 2.0]", "shrink"),
        ("[federation.delay]\nmost = 3", "delay"),
        ("growth = 5.0\n[federation.sizes]", "growth"),
    ],
)
def test_only_a_new_agreement_refuses_a_setting_that_would_change_nothing(
    extra: str, name: str
) -> None:
    held = holders.holders_of(JobRequest("job", "", job(extra)), "federation")
    for begin in (holders.plan_job, holders.simulate_job):
        with pytest.raises(JobError, match=f"{name} changes nothing"):
            begin(held)
    with pytest.raises(ValueError, match="resume=True"):
        holders.simulate_job(held, resume=True)


def test_a_large_delta_is_warned_of_once() -> None:
    asked = job(text=JOB.replace("epsilon = 4.0", "epsilon = 4.0\ndelta = 0.02"))
    with pytest.warns(UserWarning) as told:
        agreed(asked, [100] * 4, [1.0] * 4)
    assert len({str(one.message) for one in told if "0.02" in str(one.message)}) == 1


def test_a_holder_of_few_records_has_a_batch_of_its_own_and_is_warned() -> None:
    with pytest.warns(UserWarning, match="promises little"):
        federation, _ = agreed(job(), [100, 100, 100, 8], [1.0] * 4)
    assert [round(plan.mean_batch) for plan in federation.own_plans] == [20, 20, 20, 2]


@pytest.mark.parametrize(
    "speeds", ["fast", "lognormal:x", "lognormal:-1", "lognormal:nan", "lognormal:1e308"]
)
def test_speeds_that_say_nothing(speeds: str) -> None:
    with pytest.raises(JobError, match="lognormal"):
        speeds_of(FederationSection(speeds=speeds), 3)
    with pytest.raises(JobError, match="speeds for 3"):
        speeds_of(FederationSection(speeds=(1.0, 2.0)), 3)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf")])
def test_speeds_are_above_0(speed: float) -> None:
    with pytest.raises(ValueError, match="finite number above"):
        speeds_of(FederationSection(speeds=(1.0, speed, 1)), 3)


@pytest.mark.parametrize(
    ("secure", "words"),
    [
        ("dropouts = 1.5", "must be a whole number"),
        ('dropouts = "a"', "must be a whole number"),
        ("dropouts = 4", "fewer than two"),
        ("patience = 0", "above 0"),
        ("drop = 1", "take dropouts"),
    ],
)
def test_settings_of_secure_aggregation_are_refused_in_words(secure: str, words: str) -> None:
    with pytest.raises(JobError, match=words):
        agreed(job(f"secure = {{ {secure} }}"), [100] * 4, [1.0] * 4)


@pytest.mark.slow
def test_simulating_a_job_leaves_results_and_figures(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB.replace("rounds = 12", "rounds = 3"), encoding="utf-8")
    out = tmp_path / "run"
    found = CliRunner().invoke(
        app, ["federate", "simulate", str(path), "--out", str(out), "--json"]
    )
    assert found.exit_code == 0, found.output
    summary = json.loads(found.stdout)
    assert {"accuracy", "seconds", "synchronous_seconds", "clients"} <= set(summary)
    assert {"epsilon", "budget", "rounds"} <= set(summary["clients"][0])
    assert len(summary["clients"]) == 4
    for name in ("federation.json", "model.safetensors", "timeline.png", "accuracy.png"):
        assert (out / name).is_file(), name


@pytest.mark.parametrize(
    "extra",
    [
        'rule = "published"\ncadence = 8.0\nrefreshes = 1\n',
        "bandwidth = 1000.0\nlatency = 0.0\n",
    ],
)
def test_a_simulation_is_compared_with_synchronous_rounds(extra: str) -> None:
    text = JOB.replace("rounds = 12", "rounds = 2").replace("clients = 4", "clients = 2")
    run, seconds = holders.simulate_job(
        holders.holders_of(JobRequest("job", "", job(extra, text)), "federation")
    )
    simulated = run.simulated.seconds
    assert seconds == simulated if run.federation.rule == "synchronous" else seconds > 0


@pytest.mark.slow
def test_a_fused_simulation_of_a_job_says_that_it_is_one(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    text = JOB.replace("rounds = 12", 'rounds = 3\nnoise = "gaussian"\noptimizer = "sgd"')
    path.write_text(f"{text}fused = true\n", encoding="utf-8")
    out = tmp_path / "run"
    found = CliRunner().invoke(app, ["federate", "simulate", str(path), "--out", str(out)])
    assert found.exit_code != 0 and "without momentum" in str(found.exception)
    path.write_text(f'{text}fused = true\nexchanged = "gradients"\n', encoding="utf-8")
    found = CliRunner().invoke(app, ["federate", "simulate", str(path), "--out", str(out)])
    assert found.exit_code == 0, found.output
    assert "global model only" in " ".join(found.output.split())
    assert (out / "timeline.png").is_file() and not (out / "clients").exists()


@pytest.mark.slow
def test_the_demo_outruns_the_slow_client_within_its_budget() -> None:
    found = CliRunner().invoke(app, ["federate", "simulate", "--demo", "--json"])
    assert found.exit_code == 0, found.output
    summary = json.loads(found.stdout)
    assert summary["accuracy"] > 0.85
    assert summary["seconds"] < summary["synchronous_seconds"] / 5
    assert all(row["epsilon"] <= row["budget"] for row in summary["clients"])


def test_faults_on_the_command_line_say_where_they_are_now() -> None:
    found = CliRunner().invoke(app, ["federate", "faults", "--seeds", "20", "--json"])
    assert found.exit_code != 0 and "tools/faults.py" in str(found.exception)


def test_clients_that_bring_their_own_records_are_planned_by_their_numbers() -> None:
    tables = (f'[[federation.client]]\nname = "{name}"\nexamples = {n}\n' for name, n in SIZES)
    own = job("".join(tables), JOB.replace("clients = 4\n", ""))
    held = holders.holders_of(JobRequest("job", "", own), "federation")
    assert [held.agreed.plan(place).examples for place in range(2)] == [500, 700]
    assert [cost.epsilon <= 4.0 for cost in holders.plan_job(held).clients] == [True, True]
    with pytest.raises(JobError, match="brings its own"):
        holders.simulate_job(held)


SIZES = (("a", 500), ("b", 700))
