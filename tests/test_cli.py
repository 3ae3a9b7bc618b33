"""The command line as a person meets it: output, exit status, one clear line for each mistake."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import forethought as ft
from forethought.cli import main

Outcome = tuple[int, str, str]
Command = Callable[..., Outcome]

JOB = """\
[data]
source = "digits"

[budget]
epsilon = 3.0

[training]
batch = 200
rounds = 5
"""


@pytest.fixture
def forethought(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """Runs a command in an empty folder: exit status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["forethought", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return path


def test_train_prints_plan_result_statement_and_folder_in_this_order(
    forethought: Command, job: Path
) -> None:
    status, out, err = forethought("train", job, "--out", "run")
    assert (status, err) == (0, "")
    places = [out.index(word) for word in ("Plan", "expected ε", "Result", "Statement", "run")]
    assert places[:4] == sorted(places[:4])
    assert "Run folder  run" in out
    assert "\x1b[" not in out  # no colours where there is no terminal
    folder = Path("run")
    for name in ("plan.json", "statement.json", "statement.md", "model.safetensors", "metrics.csv"):
        assert (folder / name).is_file(), name
    names = {path.name for path in (folder / "figures").glob("*.png")}
    assert names == {"learning.png", "epsilon.png", "tradeoff.png"}


@pytest.mark.slow
def test_a_finished_run_verifies_and_an_edited_one_does_not(
    forethought: Command, job: Path
) -> None:
    assert forethought("train", job, "--out", "run", "--quiet") == (0, "", "")
    assert forethought("account", "--verify", "run")[0] == 0
    path = Path("run/statement.json")
    values = json.loads(path.read_text())
    values["mechanism"]["rounds"][0]["noise_multiplier"] *= 2
    path.write_text(json.dumps(values))
    status, _, err = forethought("account", "--verify", "run")
    assert status == 2
    assert "edited" in err


@pytest.mark.slow
def test_a_statement_of_another_plan_is_noticed(forethought: Command, job: Path) -> None:
    forethought("train", job, "--out", "run", "--quiet")
    plan = ft.Plan.load("run/plan.json")
    other = ft.Mechanism(ft.Rounds(9.0, plan.rounds, plan.sampling))
    plan.with_(mechanism=other).save("run/plan.json")
    for command in (("account", "--verify"), ("account",), ("report",)):
        status, _, err = forethought(*command, "run")
        assert status == 2
        assert "the plan.json beside" in err


@pytest.mark.slow
def test_json_is_one_object_and_nothing_else(forethought: Command, job: Path) -> None:
    status, out, err = forethought("train", job, "--json")
    assert (status, err) == (0, "")
    values = json.loads(out)
    assert values["folder"] == str(Path("runs/job"))
    assert ft.Plan.from_dict(values["plan"]).rounds == 5
    for command in (
        ["plan", job, "--json"],
        ["account", "runs/job", "--json", "--compare"],
        ["report", "runs/job", "--json"],
    ):
        status, out, err = forethought(*command)
        assert (status, err) == (0, ""), command
        assert isinstance(json.loads(out), dict)


def test_account_from_flags_agrees_with_python(forethought: Command) -> None:
    status, out, _ = forethought(
        *[
            "account",
            "--examples",
            "60000",
            "--batch",
            "256",
            "--epochs",
            "20",
            "--noise-multiplier",
            "1.1",
        ],
        *["--delta", "1e-5", "--json"],
    )
    assert status == 0
    mechanism = ft.Mechanism(ft.Rounds(1.1, 4688, ft.Poisson(256 / 60000)))
    assert json.loads(out)["epsilon"]["upper"] == ft.epsilon(mechanism, 1e-5).upper


@pytest.mark.slow
def test_plan_can_be_saved_explained_drawn_and_accounted(forethought: Command) -> None:
    status, out, _ = forethought(
        *[
            "plan",
            "--examples",
            "1000",
            "--epsilon",
            "2",
            "--rounds",
            "20",
            "--explain",
            "--save",
            "plan.json",
        ],
        *["--figure", "figures"],
    )
    assert status == 0
    assert "cheaper" in out
    assert "more accurate" in out
    assert "noise: the least" in out
    assert {path.name for path in Path("figures").glob("*.png")} == {"epsilon.png", "noise.png"}
    assert ft.Plan.load("plan.json").rounds == 20
    assert forethought("account", "plan.json")[0] == 0


@pytest.mark.slow
def test_group_and_delta_can_be_asked_of_a_finished_run(forethought: Command, job: Path) -> None:
    forethought("train", job, "--out", "run", "--quiet")
    one = json.loads(forethought("account", "run", "--json")[1])
    four = json.loads(forethought("account", "run", "--json", "--group", "4")[1])
    assert four["epsilon"]["upper"] > 2 * one["epsilon"]["upper"]
    assert four["group"] == 4


@pytest.mark.slow
def test_a_run_in_a_folder_that_cannot_be_written_is_reported(
    forethought: Command, job: Path
) -> None:
    forethought("train", job, "--out", "run", "--quiet")
    shutil.rmtree("run/figures")
    Path("run/figures").write_text("")  # also whoever may write everywhere cannot draw here
    status, out, err = forethought("report", "run")
    assert status == 0 and "differentially private" in out
    assert "run/figures: file exists; it was not drawn" in err


def test_a_page_that_could_not_be_drawn_is_not_named(forethought: Command) -> None:
    stated = ft.account(ft.Mechanism(ft.Rounds(1.0, 10, ft.Poisson(0.1))), 1e-5)
    Path("given/statement.html").mkdir(parents=True)  # no page can be written in its place
    stated.save("given")
    status, out, err = forethought("report", "given")
    assert status == 0 and "differentially private" in out
    assert "it was not drawn" in err and "statement.html" not in out


def test_a_folder_that_cannot_be_written_is_told_before_an_audit(
    forethought: Command, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def audited(*arguments: object, **options: object) -> None:
        raise AssertionError

    monkeypatch.setattr("forethought.jobs.audit.audited", audited)
    status, _, err = forethought("audit", job, "--out", "job.toml/audit")
    assert status == 1 and "not a directory" in err


@pytest.mark.slow
def test_an_existing_run_folder_asks_what_to_do(forethought: Command, job: Path) -> None:
    assert forethought("train", job, "--out", "run", "--quiet")[0] == 0
    status, _, err = forethought("train", job, "--out", "run")
    assert status == 2
    assert "resume" in err
    assert "overwrite" in err
    assert forethought("train", job, "--out", "run", "--overwrite", "--quiet")[0] == 0
    status, said, _ = forethought("train", "--resume", "run")
    assert status == 0 and "Result" in said
    assert "trained in" not in said  # nothing is trained here, and nobody knows how long it took


@pytest.mark.parametrize(
    ("old", "new", "status", "message"),
    [
        ("epsilon = 3.0", "epsilon = 0", 2, "line 5: budget.epsilon = 0"),
        ("epsilon = 3.0", "epsilon = 3.0\ndelta = 1.5", 2, "line 6: budget.delta = 1.5"),
        ("batch = 200", "batch = 2000", 2, "batch 2000 is larger than the data (1443 examples)"),
        ("batch = 200", "bach = 200", 2, "line 8: unknown key 'training.bach'; did you mean"),
        ('"digits"', '"digit"', 2, "digits"),
        ('"digits"', '"mnist"', 2, "mnist"),
        ('"digits"', '"csv:missing.csv"\nlabel = "y"', 2, "missing.csv"),
        ("[budget]", '[model]\nname = "liner"\n[budget]', 2, "linear"),
        ("[budget]", '[model]\nname = "nowhere:net"\n[budget]', 2, "nowhere"),
    ],
)
def test_a_mistake_in_the_job_is_one_clear_line(
    forethought: Command,
    job: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    status: int,
    message: str,
) -> None:
    monkeypatch.delenv("FORETHOUGHT_DATA", raising=False)
    job.write_text(JOB.replace(old, new))
    found, _, err = forethought("train", job, "--out", "run")
    assert found == status
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not Path("run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train", "exactly one of"),
        ("train nothing.toml", "no job file nothing.toml"),
        ("train --resume nothing", "no interrupted run"),
        ("plan", "--examples"),
        ("plan --examples 100", "too little is given"),
        ("plan --examples 100 --epsilon 1 --sampling bernoulli", "poisson"),
        ("plan --examples 100 --epsilon -1", "epsilon"),
        ("plan --examples 100 --epsilon 1 --gpu-memory 80", "goes with a job file"),
        ("account", "give a path"),
        ("account nothing.json", "nothing.json"),
        ("report nothing", "holds no run"),
    ],
)
def test_a_mistake_in_the_arguments_is_one_clear_line(
    forethought: Command, arguments: str, message: str
) -> None:
    status, _, err = forethought(*arguments.split())
    assert status in (1, 2)
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_names_in_a_table_cannot_control_the_terminal(forethought: Command) -> None:
    name = "\x1b[31mdose\x9b\x07\u202e"
    rows = (f"{row % 90},{row * 37 % 101}.5" for row in range(120))
    Path("t.csv").write_text("\n".join([f"age,{name}", *rows]), encoding="utf-8")
    status, _, refused = forethought("init", "t.csv", "--label", "nothing", "--out", "no.toml")
    assert status == 2 and "dose" in refused
    assert forethought("init", "t.csv", "--label", name, "--out", "job.toml")[0] == 0
    status, out, _ = forethought("train", "job.toml", "--out", "run", "--rounds", "2")
    assert status == 0 and "in units of" in out
    page = Path("run/report.html").read_text(encoding="utf-8")
    for text in (refused, out, page):
        assert "[31mdose" in text and not set("\x1b\x9b\x07\u202e") & set(text)


@pytest.mark.slow
def test_a_seed_of_the_noise_is_told_before_the_run(forethought: Command, job: Path) -> None:
    job.write_text(f"{JOB}[run]\nnoise_seed = 3\n")
    status, out, _ = forethought("plan", job)
    assert status == 0 and "not here: any guarantee" in out.replace("\n", " ")


def test_a_job_in_the_place_of_something_else_is_called_one(
    forethought: Command, job: Path
) -> None:
    for command, words in (("account", "ask forethought plan"), ("predict run", "is a job")):
        status, _, err = forethought(*command.split(), job)
        assert status == 2 and words in err


@pytest.mark.slow
def test_plan_says_what_memory_a_jobs_model_takes(forethought: Command, job: Path) -> None:
    status, out, _ = forethought("plan", job, "--gpu-memory", "0.4")
    assert status == 0
    assert "memory: about" in out and "on a GPU of 0.4 GB: it fits" in out
    status, out, _ = forethought("plan", job, "--gpu-memory", "80", "--json")
    assert status == 0 and json.loads(out)["memory"] > 1e6


def test_memory_without_end_is_refused_before_anything_is_read(forethought: Command) -> None:
    status, _, err = forethought("plan", "nothing.toml", "--gpu-memory", "inf")
    assert status == 2 and "gpu-memory" in err


def test_a_large_delta_warns(forethought: Command) -> None:
    status, _, err = forethought(*["plan", "--examples", "100", "--epsilon", "1", "--delta", "0.1"])
    assert status == 0
    assert err.count("promises little") == 1


@pytest.mark.parametrize("command", ["", "train", "plan", "account", "report"])
def test_help_shows_an_example(forethought: Command, command: str) -> None:
    status, out, _ = forethought(*command.split(), "--help")
    assert status == 0
    assert "Example" in out or not command


def test_import_and_help_load_neither_torch_nor_tables() -> None:
    code = (
        "import sys, forethought, forethought.cli, forethought.accounting.statement,"
        "forethought.planning.solve\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
        "import forethought as ft; ft.epsilon; ft.plan; ft.Plan\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
        "assert 'polars' not in sys.modules, 'polars was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_a_plan_is_rehearsed_weighed_and_taken_from_a_utility_graph(
    forethought: Command, job: Path
) -> None:
    status, out, err = forethought("plan", job, "--rehearse", "--repeats", "2", "--json")
    assert (status, err) == (0, "")
    assert len(json.loads(out)["rehearsal"]["accuracies"]) == 2
    status, out, _ = forethought(
        *["plan", job, "--pareto", "--max-rounds", "100", "--weight", "gradients=1", "--json"]
    )
    assert status == 0
    front = json.loads(out)["front"]
    assert json.loads(out)["plan"] == min(front, key=lambda row: row["gradients"])["plan"]
    grid = ["--clip-norm", "0.1", "--clip-norm", "1", "--noise-multiplier", "2"]
    training = ["--draws", "2", "--epochs", "3", "--batch", "100", "--quiet"]
    utility = ["utility", job, *grid, *training, "--save", "graph.json", "--tolerance", "0.99"]
    status, _, err = forethought(*utility)
    assert status == 2  # the job's own data, unless its leak is accepted
    assert "leaks" in err
    assert forethought(*utility, "--leaks", "accept")[0] == 0
    # Without a pair that is good enough, the graph is still told.
    status, out, err = forethought(
        *["utility", job, "--clip-norm", "1", "--noise-multiplier", "900", *training],
        *["--tolerance", "0.001", "--leaks", "accept", "--json"],
    )
    assert (status, err) == (0, "") and json.loads(out)
    job.write_text(JOB.replace("rounds = 5\n", ""))
    status, out, err = forethought(
        *["plan", job, "--utility", "graph.json", "--tolerance", "0.99", "--json"]
    )
    assert (status, err) == (0, "")
    plan = ft.Plan.from_dict(json.loads(out)["plan"])
    assert plan.noise_multiplier == 2
    assert any("private data" in text for text in plan.not_covered)


@pytest.mark.slow
def test_a_private_search_leaves_one_run_and_a_statement_that_covers_it(
    forethought: Command, job: Path
) -> None:
    rates = ["--learning-rate", "0.1", "--learning-rate", "1"]
    status, out, err = forethought("tune", job, *rates, "--trials", "2", "--out", "run")
    assert (status, err) == (0, "")
    assert "the search for it included" in out
    assert forethought("account", "--verify", "run")[0] == 0


@pytest.mark.parametrize(("group", "trials"), [("federate", "federation"), ("gossip", "gossip")])
def test_trials_of_faults_are_told_to_be_in_the_repository(
    forethought: Command, group: str, trials: str
) -> None:
    status, out, err = forethought(group, "faults", "--seeds", "10", "--json")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"python tools/faults.py {trials}" in err


def test_a_safety_stop_is_one_line_and_a_mistake_in_a_program_is_not(
    forethought: Command, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = '[gossip]\nworkers = 4\nrule = "synchronous"\nrecord_seconds = 1.0\n'
    outage = '[[gossip.outage]]\nworker = "worker-0"\nbegin = 1.0\n'
    job.write_text(f"{JOB}\n{gone}{outage}")
    status, _, err = forethought("gossip", "simulate", job, "--out", "run", "--quiet")
    assert (status, err.count("\n")) == (1, 1) and "error: " in err and "deadline" in err

    def wrong() -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr("forethought.cli.app", wrong)
    with pytest.raises(RuntimeError, match="a mistake"):
        forethought("papers")


def test_a_relation_goes_with_a_public_proxy(forethought: Command) -> None:
    status, _, err = forethought(
        "plan", "--examples", "100", "--epsilon", "1", "--relation", "same task"
    )
    assert status == 2 and "--relation goes with --public-proxy" in err
