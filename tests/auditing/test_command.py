"""`forethought audit` as a person meets it: table, files, exit status, one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import forethought as ft
from forethought.auditing.verdict import Audit, Finding
from forethought.cli import main
from forethought.jobs.audit import Audited, read_run, replay, save
from forethought.training.run import Loop
from forethought.values.plan import Plan
from trials import audits

JOB = """\
[data]
source = "digits"

[model]
name = "linear"

[budget]
epsilon = 3.0

[training]
batch = 150
rounds = 5
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["forethought", *map(str, arguments)])
        try:
            main()
            status = 0
        except SystemExit as end:
            status = int(end.code or 0)
    text = capsys.readouterr()
    return status, text.out, text.err


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "plan.json"
    Plan(ft.Mechanism(ft.Rounds(1.0, 2, ft.FullBatch())), 40, 1e-5).save(path)
    return path


@pytest.mark.slow
def test_a_plan_that_is_not_refuted(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "audit", plan, "--quick", "--out", "found")
    assert status == 0
    assert "Not refuted." in out and "no part of the guarantee" in out
    assert "participation" in out and "membership games" in out
    assert (plan.parent / "found" / "audit.png").read_bytes().startswith(b"\x89PNG")
    read = json.loads((plan.parent / "found" / "audit.json").read_text())
    assert read["schema"] == "forethought/audit/1" and read["refuted"] is False


@pytest.mark.slow
def test_a_refutation_is_status_1_and_one_sentence(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fault,) = (fault for fault in audits.FAULTS if fault.name == "half noise")
    with fault.plant():
        status, out, err = run(capsys, "audit", plan, "--quick", "--json")
    assert status == 1
    assert err.startswith("error: refuted: The noise of round ")
    assert err.count("\n") == 1
    read = json.loads(out)
    assert read["refuted"] is True
    assert Path(read["files"]["audit"]).is_file()


@pytest.mark.slow
def test_one_run_says_how_near_an_attack_comes(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capsys, "audit", plan, "--one-run", "--out", "found")
    assert status == 0 and "A strong attack on one run reaches ε ≥ " in out
    assert "the claim for one record says ≤ " in out and "rehearsal" in out
    read = json.loads(Path("found/audit.json").read_text())
    assert read["attack"]["fdp_epsilon"] <= read["attack"]["claimed_epsilon"]


@pytest.mark.slow
def test_rounds_of_a_run_are_replayed_as_they_are_made(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("job.toml").write_text(JOB)
    command = ("train", "job.toml", "--replay", 3, "--out")
    status, out, _ = run(capsys, *command, "run")
    assert status == 0 and "Not refuted." in out
    assert " releases were replayed" in out
    assert json.loads(Path("run/audit.json").read_text())["refuted"] is False
    assert "an audit: not refuted" in Path("run/statement.html").read_text()
    status, _, err = run(capsys, "train", "--resume", "run", "--replay", 3)
    assert status == 2 and "none of these rounds was run" in err
    (fault,) = (fault for fault in audits.FAULTS if fault.name == "half noise")
    with fault.plant():
        status, _, err = run(capsys, *command, "faulty", "--quiet")
    assert status == 1 and "is not the noise that belongs to its sum" in err


@pytest.mark.slow
def test_one_run_of_a_job_leaves_nothing_but_its_audit(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("job.toml").write_text(JOB)
    status, out, _ = run(capsys, "audit", "job.toml", "--one-run", "--canaries", "inputs")
    assert status == 0 and "Not refuted." in out
    assert sorted(p.name for p in Path("runs/job-one-run").iterdir()) == ["audit.json"]


@pytest.mark.slow
def test_a_job_and_its_run_folder(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("job.toml").write_text(JOB)
    status, out, _ = run(capsys, "audit", "job.toml", "--quick", "--json")
    assert status == 0
    names = [row["name"] for row in json.loads(out)["findings"]]
    assert "one record's contribution" in names
    assert Path("runs/job-audit/audit.json").is_file()
    assert run(capsys, "train", "job.toml", "--out", "run", "--quiet")[0] == 0
    status, out, _ = run(capsys, "audit", "run", "--quick", "--json")
    assert status == 0
    assert "one record's contribution" in [row["name"] for row in json.loads(out)["findings"]]
    assert Path("run/audit.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "give a job file, a plan or a run folder, or --self-test"),
        (("plan.json", "--quick", "--thorough"), "--quick or --thorough, not both"),
        (("plan.json", "--self-test"), "--self-test goes by itself"),
        (("plan.json", "--replay"), "needs a job or a run folder"),
        (("plan.json", "--replay", "--quick"), "leaves nothing to chance"),
        (("plan.json", "--one-run", "--quick"), "one run of the whole plan"),
        (("plan.json", "--one-run", "--canaries", "inputs"), "records of yours"),
        (("missing.toml",), "no job file missing.toml"),
        (("empty",), "is no run folder"),
    ],
)
def test_mistakes_are_one_line(
    plan: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], text: str
) -> None:
    Path("empty").mkdir()
    status, _, err = run(capsys, "audit", *arguments)
    assert status == 2
    assert text in err and err.count("\n") == 1


@pytest.mark.slow
def test_a_job_and_a_run_that_was_stopped_are_replayed(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("job.toml").write_text(JOB)
    status, out, _ = run(capsys, "audit", "job.toml", "--replay", "--rounds", 2, "--json")
    assert status == 0
    rows = {row["name"]: row for row in json.loads(out)["findings"]}
    assert {"batch", "release less noise", "noise, bit for bit", "a round run again"} <= set(rows)
    assert not any(row["refutes"] for row in rows.values())

    class StoppedError(Exception):
        pass

    rounds = Loop.rounds

    def stopped(self: Loop) -> Iterator[int]:
        for done in rounds(self):
            yield done
            if done == 3:
                raise StoppedError

    with monkeypatch.context() as patch, pytest.raises(StoppedError):
        patch.setattr(Loop, "rounds", stopped)
        run(capsys, "train", "job.toml", "--out", "run", "--quiet")
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    status, out, _ = run(capsys, "audit", "run", "--replay", "--rounds", 2, "--out", "found")
    assert status == 0 and "Not refuted." in out and "2 releases were replayed" in out
    assert {path: path.read_bytes() for path in before} == before
    assert run(capsys, "train", "--resume", "run", "--quiet")[0] == 0
    status, _, err = run(capsys, "audit", "run", "--replay")
    assert status == 2 and "no keys any more" in err
    (fault,) = (fault for fault in audits.FAULTS if fault.name == "half noise")
    with fault.plant():
        status, _, err = run(capsys, "audit", "job.toml", "--replay", "--rounds", 1)
    assert status == 1 and "is not the noise that belongs to its sum" in err


def test_a_run_that_was_refuted_stays_so(plan: Path) -> None:
    wrong = Finding("noise", "width", "0.5", "1", "The noise is too small.", violated=True)
    own, sound = Plan.load("plan.json"), Audited(Audit((), 1e-4), Plan.load("plan.json"), Path())
    Audit((wrong,), 1e-4).save("audit.json", "another plan")
    assert save(sound)[0].name == "audit.json"
    save(Audited(Audit((wrong,), 1e-4), own, Path()))
    assert save(sound)[0].name == "audit-later.json"
    assert json.loads(Path("audit.json").read_text())["refuted"] is True


def test_the_audit_of_a_job_of_several_holders_says_that_it_ran_one(plan: Path) -> None:
    path = Path("job.toml")
    path.write_text(JOB + "\n[federation]\nclients = 3\n")
    assert "holders" in read_run(path, None)[2]


@pytest.mark.slow
def test_a_replay_costs_a_ledger_nothing(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = ("--data", "patients", "--epsilon", 9, "--delta", 1e-3, "--quiet")
    assert run(capsys, "ledger", "create", "book.db", *own)[0] == 0
    path = Path("job.toml")
    path.write_text(JOB + '\n[ledger]\nurl = "sqlite:///book.db"\ndata = "patients"\n')
    assert not replay(path, rounds=1).audit.refuted
    assert "active" not in run(capsys, "ledger", "show", "book.db")[1]
