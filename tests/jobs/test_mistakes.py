"""Every mistake is one clear line with the remedy: no traceback, nothing half-written."""

from __future__ import annotations

import errno
import io
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from typer.main import get_command

import forethought as ft
from forethought.cli import app, main
from forethought.commands.command import of_the_system
from forethought.jobs.job import from_file

Outcome = tuple[int, str, str]

JOB = """\
[data]
source = "digits"
[model]
name = "linear"
[budget]
epsilon = 3.0
delta = 1e-5
[training]
batch = 200
rounds = 5
learning_rate = 0.1
clip_norm = 1.0
schedule = "cosine"
"""


@pytest.fixture(name="forethought")
def command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Outcome]:
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


def one_line(outcome: Outcome, *words: str) -> None:
    status, _, err = outcome
    assert status in (1, 2)
    assert len(err.strip().splitlines()) == 1, err
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("epsilon = 3.0", 'epsilon = "2"', ["line 6", "epsilon = '2'", "number"]),
        ("epsilon = 3.0", "epsilon = true", ["epsilon = True", "number"]),
        ("epsilon = 3.0", "epsilon = inf", ["epsilon = inf", "finite"]),
        ("batch = 200", "batch = 200.5", ["batch = 200.5", "integer"]),
        ("batch = 200", "batch = true", ["batch = True", "integer"]),
        ("learning_rate = 0.1", "learning_rate = 1e30", ["learning_rate = 1e+30", "at most 1e+06"]),
        ("delta = 1e-5", "delta = 1e-300", ["delta = 1e-300", "1e-60"]),
        ('schedule = "cosine"', 'schedule = "cosin"', ["schedule = 'cosin'", "'cosine'"]),
        ('schedule = "cosine"', "averaging = 5", ["averaging = 5", "'tail'"]),
        ("[model]", '[run]\ndevice = "gpu"\n[model]', ["device 'gpu'", "this machine has cpu"]),
        ("[model]", '[run]\ndevice = "cuda:77"\n[model]', ["device 'cuda:77'", "cpu"]),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_in_one_line(
    forethought: Callable[..., Outcome], old: str, new: str, words: list[str]
) -> None:
    Path("job.toml").write_text(JOB.replace(old, new))
    one_line(forethought("train", "job.toml", "--out", "run"), *words)
    assert not Path("run").exists()


def test_a_table_without_its_format_is_told_how_to_name_it(
    forethought: Callable[..., Outcome],
) -> None:
    Path("patients.csv").write_text("age,y\n31,0\n44,1\n27,0\n65,1\n")
    Path("job.toml").write_text('[data]\nsource = "patients.csv"\n')
    one_line(forethought("plan", "job.toml"), "'csv:patients.csv'")
    Path("job.toml").write_text('[data]\nsource = "csv:patients.csv"\nlabel = "-1"\n')
    one_line(forethought("plan", "job.toml"), "looks like column names (age, y)", "such as 'y'")


def test_a_plan_given_as_a_job_is_told_what_it_is_for(forethought: Callable[..., Outcome]) -> None:
    assert forethought("plan", "--examples", 500, "--epsilon", 1, "--save", "p.json", "-q")[0] == 0
    one_line(forethought("train", "p.json"), "p.json is JSON", "train JOB --plan PLAN")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("plan --examples -5 --epsilon 1", ["examples must be at least 1, not -5"]),
        ("account --examples 9 --batch 3 --epochs 1 --noise-multiplier 1e-9", ["protects nobody"]),
        ("plan --examples 500 --epsilon 1 --delta 1e-300", ["delta", "1e-60"]),
        ("plan --examples 500 --epsilon 1 --epochs 1e308", ["too large"]),
        ("plan --examples 500 --noise-multiplier 1e200 --batch 50 --rounds 9", ["too large"]),
        ("plan --examples 500 --epsilon 1 --parameters 0", ["parameters must be at least 1"]),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_in_one_line(
    forethought: Callable[..., Outcome], arguments: str, words: list[str]
) -> None:
    one_line(forethought(*arguments.split()), *words)


def test_python_is_told_the_same() -> None:
    budget = ft.Budget(1.0, 1e-5)
    for options, message in [
        ({"schedule": "cosine"}, r'forethought.Schedule, such as Schedule\("cosine"\)'),
        ({"averaging": 5}, "forethought.Averaging"),
        ({"optimizer": ft.Optimizer()}, "optimizer must be a name"),
        ({"options": [0.9]}, "options must be a mapping"),
        ({"learning_rate": 1e30}, "learning_rate"),
        ({"noise_multiplier": 1e-6}, "protects nobody"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            ft.plan(examples=1000, budget=budget, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_saved_plan_is_run_on_a_job(forethought: Callable[..., Outcome]) -> None:
    Path("job.toml").write_text(JOB)
    assert forethought("plan", "job.toml", "--rounds", 3, "--save", "p.json", "-q")[0] == 0
    assert forethought("train", "job.toml", "--plan", "p.json", "--out", "run", "-q")[0] == 0
    assert ft.Plan.load("run/plan.json") == ft.Plan.load("p.json")
    assert forethought("account", "--verify", "run")[0] == 0
    one_line(forethought("train", "job.toml", "--plan", "p.json", "--rounds", 4), "drop --plan")
    forethought("plan", "--examples", 500, "--epsilon", 1, "--save", "other.json", "-q")
    one_line(forethought("train", "job.toml", "--plan", "other.json"), "500 records", "1443")


@pytest.mark.slow
def test_a_model_of_ones_own_lies_next_to_its_job(forethought: Callable[..., Outcome]) -> None:
    Path("mine").mkdir()
    Path("mine/its_model.py").write_text(
        "from torch import nn\n\n\ndef network(inputs, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    Path("mine/job.toml").write_text(JOB.replace('"linear"', '"its_model:network"'))
    status, _, err = forethought("plan", "mine/job.toml", "-q")
    assert (status, err) == (0, "")


def test_the_package_runs_as_a_module_and_tells_its_version() -> None:
    command = [sys.executable, "-m", "forethought", "-V"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ft.__version__


@pytest.mark.slow
def test_a_damaged_folder_is_named_with_the_remedy(forethought: Callable[..., Outcome]) -> None:
    Path("job.toml").write_text(JOB)
    assert forethought("train", "job.toml", "--out", "run", "-q")[0] == 0
    model = Path("run/model.safetensors")
    whole = model.read_bytes()
    model.write_bytes(whole[:500])
    one_line(forethought("train", "--resume", "run"), "is gone or damaged")
    model.write_bytes(whole)
    Path("run/metrics.csv").unlink()
    one_line(forethought("report", "run"), "run is not complete: its metrics.csv is gone")


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
    "left",
    [
        ".plan.json.part",
        pytest.param(".job.toml.part", marks=SLOW),
        pytest.param(".model.json.part", marks=SLOW),
    ],
)
def test_a_run_that_was_killed_while_it_wrote_its_first_files_begins_again(
    left: str, forethought: Callable[..., Outcome]
) -> None:
    """Once `train` said to resume, and `--resume` that there was nothing to resume."""
    Path("job.toml").write_text(JOB)
    Path("run/checkpoint").mkdir(parents=True)
    Path("run", left).write_text("[da")
    Path("run/plan.json").write_text("of the same run")
    assert forethought("train", "job.toml", "--out", "run", "-q")[0] == 0
    assert not Path("run", left).exists() and Path("run/statement.json").exists()
    # A plan beside a reservation may be paid: only resuming pays for nothing twice.
    Path("paid/checkpoint").mkdir(parents=True)
    for name in ("plan.json", "reservation.json"):
        Path("paid", name).write_text("{}")
    one_line(forethought("train", "job.toml", "--out", "paid"), "--resume")
    # With the job whole, resuming is what the message says and what works.
    Path("again/checkpoint").mkdir(parents=True)
    Path("again/job.toml").write_text(JOB)
    Path("again", left).write_text("[da")
    one_line(forethought("train", "job.toml", "--out", "again"), "--resume")
    assert forethought("train", "--resume", "again", "-q")[0] == 0
    assert not Path("again", left).exists()


@pytest.mark.slow
def test_an_interrupted_run_is_reported(forethought: Callable[..., Outcome]) -> None:
    Path("job.toml").write_text(JOB)
    assert forethought("train", "job.toml", "--out", "run", "-q")[0] == 0
    assert forethought("report", "run")[0] == 0

    def stop(event: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    from forethought.jobs.job import from_file
    from forethought.jobs.train import prepare, run

    with pytest.raises(ft.errors.Interrupted):
        run(prepare(from_file(Path("job.toml"))), Path("cut"), progress=stop)
    status, out, _ = forethought("report", "cut")
    assert status == 0 and "1 of" in out.replace("\n", " ")


def test_a_file_that_cannot_be_written_is_told_by_its_own_name(
    forethought: Callable[..., Outcome],
) -> None:
    flags = ("plan", "--examples", 500, "--epsilon", 1)
    one_line(forethought(*flags, "--save", "no/p.json"), "no/p.json: there is no folder")
    Path("file").write_text("in the way")
    one_line(forethought(*flags, "--figure", "file"), "file: file exists")


@pytest.mark.parametrize(
    "flag",
    [
        *("--max-epsilon 3", "--max-rounds 9", "--weight epsilon=2", "--public-proxy mnist"),
        *("--tolerance 0.1", "--repeats 5", "--rehearse"),
    ],
)
def test_a_flag_that_would_change_nothing_is_refused(
    forethought: Callable[..., Outcome], flag: str
) -> None:
    one_line(forethought("plan", "--examples", 500, "--epsilon", 1, *flag.split()), "goes with")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("server --engine flower --page 0", "--page goes with --engine grpc"),
        ("server --engine flower --data-dir x", "--data-dir goes with --engine grpc"),
        ("server --engine flower --json", "--json goes with --engine grpc"),
        ("server --certificates no.pem", "--certificates goes with --engine flower"),
        ("client --certificates no.pem", "--certificates goes with --engine flower"),
        ("client --node-key key", "--node-key goes with --engine flower"),
        ("server --address 127.0.0.1:99999999", "no address: give host:port"),
        ("server --address :-1", "no address: give host:port"),
        ("server --address ::", "no address: give host:port"),
        ("server --address=", "no address: give host:port"),
        ("client --address localhost", "no address: give host:port"),
    ],
)
def test_a_flag_of_another_engine_or_no_address_is_refused(
    forethought: Callable[..., Outcome], flags: str, words: str
) -> None:
    role, *more = flags.split()
    one_line(forethought("federate", role, "job.toml", "--keys", "keys", *more), words)


def test_a_good_address_and_a_folder_for_every_command_are_taken(
    forethought: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORETHOUGHT_DATA", "data")
    for address in ("127.0.0.1:0", "[::1]:8750", "hospital-a.example:65535"):
        for engine in ("grpc", "flower"):
            words = ["job.toml", "--keys", "keys", "--address", address, "--engine", engine]
            one_line(forethought("federate", "server", *words), "no job file job.toml")


def test_a_page_has_a_port(forethought: Callable[..., Outcome]) -> None:
    words = ["job.toml", "--keys", "keys", "--page", 999999]
    status, _, told = forethought("federate", "server", *words)
    assert status == 2 and "65535" in told


def test_numbers_beside_a_path_are_refused(forethought: Callable[..., Outcome]) -> None:
    assert forethought("plan", "--examples", 500, "--epsilon", 1, "--save", "p.json", "-q")[0] == 0
    one_line(
        forethought("account", "p.json", "--batch", 5, "--rounds", 9), "drop --rounds, --batch"
    )
    assert forethought("account", "p.json", "--delta", 1e-6, "-q")[0] == 0


MIXING = """\
from torch import nn


def network(inputs, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))
"""


@pytest.mark.parametrize("command", ["plan", "train"])
@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ('name = "linear"', 'name = "mixing:network"', "BatchNorm1d"),
        ("[budget]", '[run]\nmetrics = ["luck"]\n[budget]', "luck"),
    ],
)
def test_a_plan_refuses_what_training_would(
    forethought: Callable[..., Outcome], command: str, old: str, new: str, word: str
) -> None:
    Path("mixing.py").write_text(MIXING)
    Path("job.toml").write_text(JOB.replace(old, new))
    status, _, error = forethought(command, "job.toml")
    assert status == 2
    assert word in error
    assert "Traceback" not in error


def test_a_full_disk_is_told_with_the_remedy() -> None:
    told = of_the_system(OSError(errno.ENOSPC, "No space left on device", "/d/.plan.json.part"))
    assert told.startswith("/d/plan.json: no space left on device. Free some space")
    assert "train --resume" in told
    assert of_the_system(OSError("plain words")) == "plain words"
    # A write knows no file, and what has no space is a user's share as well.
    for number in (errno.ENOSPC, errno.EDQUOT):
        told = of_the_system(OSError(number, "No space"))
        assert told.startswith("no space. Free some space")


@pytest.mark.parametrize(
    ("encoding", "errors"),
    [("cp1252", "strict"), ("ascii", "surrogateescape")],  # of Windows' pipes, and of locale C
)
def test_an_output_without_greek_letters_shows_the_rest(
    monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, errors))
    numbers = {"examples": 1000, "batch": 100, "rounds": 5, "noise-multiplier": 2, "delta": 1e-5}
    given = [f"--{name}={value}" for name, value in numbers.items()]
    monkeypatch.setattr(sys, "argv", ["forethought", "account", *given])
    with pytest.raises(SystemExit) as ended:
        main()
    sys.stdout.flush()
    assert not ended.value.code and b"clip norm" in written.getvalue().lower()


def test_a_command_whose_output_was_closed_does_its_work(
    forethought: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", None)  # Python's own, where a shell says >&-
    flags = ("plan", "--examples", 500, "--epsilon", 1, "--save", "plan.json")
    assert forethought(*flags)[0] == 0
    assert Path("plan.json").exists()


EARLY = {
    "while modules load": """
class Interrupts:
    def find_spec(self, name, *_):
        if name == "forethought.commands.account":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
""",
    "while the commands are put together": """
import typer.main

def interrupted(*_):
    raise KeyboardInterrupt

typer.main.get_command = interrupted
""",
}


@pytest.mark.parametrize("when", EARLY)
def test_an_early_interrupt_is_no_traceback(when: str) -> None:
    run = 'runpy.run_module("forethought", run_name="__main__")'
    script = f"import runpy, sys\n{EARLY[when]}\n{run}\n"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (130, "")


def test_what_somebody_chose_for_letters_that_cannot_be_shown_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = io.TextIOWrapper(io.BytesIO(), "ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", chosen)
    monkeypatch.setattr(sys, "argv", ["forethought", "--version"])
    with pytest.raises(SystemExit):
        main()
    assert chosen.errors == "backslashreplace"


@pytest.mark.skipif(os.name != "posix", reason="links, modes and pipes of POSIX")
def test_a_first_job_file_is_written_through_a_link_and_into_a_pipe(
    forethought: Callable[..., Outcome],
) -> None:
    Path("t.csv").write_text("\n".join(["age,y", *(f"{row % 50},{row % 2}" for row in range(200))]))
    own, link = Path("own.toml"), Path("link.toml")
    own.write_text("old")
    own.chmod(0o660)
    link.symlink_to("own.toml")
    assert not forethought("init", "t.csv", "--out", "link.toml", "--overwrite")[0]
    assert link.is_symlink() and "[budget]" in own.read_text()
    assert own.stat().st_mode & 0o777 == 0o660
    os.mkfifo("pipe")
    reading = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    assert not forethought("init", "t.csv", "--out", "pipe", "--overwrite")[0]
    assert os.read(reading, 1 << 16).decode() == own.read_text()
    os.close(reading)


def test_a_first_job_file_is_written_whole_or_not_at_all(
    forethought: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("t.csv").write_text("\n".join(["age,y", *(f"{row % 50},{row % 2}" for row in range(200))]))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    one_line(forethought("init", "t.csv"), "no space left", "Free some space")
    assert [one.name for one in Path().iterdir()] == ["t.csv"]


@pytest.mark.parametrize("command", ["plan", "train"])
def test_a_folder_in_place_of_a_job_file_is_called_one(
    forethought: Callable[..., Outcome], command: str
) -> None:
    Path("run").mkdir()
    one_line(forethought(command, "run"), "run is a folder", "job.toml")


@pytest.mark.parametrize(("section", "command"), [("federation", "federate"), ("gossip", "gossip")])
def test_a_job_of_several_holders_is_told_to_be_one_model_here(
    tmp_path: Path, section: str, command: str
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(f"{JOB}[{section}]\nrounds = 2\n")
    (told,) = from_file(job).aside
    assert "one model of all records together" in told and f"forethought {command}" in told


# Pieces that a hurried or hostile hand puts where a value belongs.
ODD = (
    "-1", "0", "1e400", "nan", "true", '"x"', "[]", "{}", "[1, 2]", "1979-05-27", '""', "99999999",
    "-0.0", "1e-320", "0x10", '"../../etc/passwd"', "[[1]]", "{a = 1}", "'csv:'", "''' '''",
)  # fmt: skip


def malformed(number: int) -> str:
    """A job with one to three of its lines broken, doubled, cut or filled with odd values."""
    draw = random.Random(number)
    lines = JOB.splitlines()
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(lines))
        key = lines[at].partition("=")[0]
        lines[at] = draw.choice(
            [
                f"{key} = {draw.choice(ODD)}",
                lines[at][: draw.randrange(len(lines[at]) + 1)],
                lines[at] + "\n" + lines[at],
                lines[at].replace("=", draw.choice([":", "==", "= =", ""])),
                f"{key.strip()}{draw.choice('xyzé-.')} = 1",
                draw.choice(["\x00", "[", "]", "[[data]]", "[data", "= 3", "'''", "é = 1"]),
            ]
        )
    return "\n".join(lines) + "\n"


@pytest.mark.slow
def test_a_hundred_malformed_jobs_train_or_are_one_clear_line(
    forethought: Callable[..., Outcome],
) -> None:
    """Of mistakes that one job in 33 makes, a hundred show one with a probability of 0.95."""
    refused = 0
    for number in range(100):
        Path("job.toml").write_text(malformed(number))
        outcome = forethought("train", "job.toml", "--out", f"run{number}", "--quiet")
        if outcome[0] == 0:
            assert Path(f"run{number}/statement.json").is_file()
            continue
        refused += 1
        one_line(outcome)
        assert not Path(f"run{number}").exists(), "something half-written was left"
    assert refused > 60


def test_a_saved_plan_replaces_nothing_but_such_a_plan(forethought: Callable[..., Outcome]) -> None:
    flags = ("plan", "--examples", 500, "--epsilon", 1, "--quiet", "--save")
    Path("job.toml").write_text(JOB)
    one_line(forethought(*flags, "job.toml"), "job.toml is no plan")
    assert Path("job.toml").read_text() == JOB
    assert [forethought(*flags, "p.json")[0] for _ in range(2)] == [0, 0]
    one_line(
        forethought("utility", "job.toml", "--public-proxy", "synthetic", "--save", "p.json"),
        "p.json is no utility graph",
    )
    Path("star.toml").write_text(JOB + "[federation]\nclients = 2\n")
    one_line(forethought("federate", "plan", "star.toml", "--save", "p.json"), "is no federation")
    ran = Path("run")
    ran.mkdir()
    Path("p.json").rename(ran / "plan.json")
    (ran / "statement.json").write_text("{}")
    one_line(forethought(*flags, "run/plan.json"), "of the run")


def test_what_is_asked_for_wrongly_is_told_as_the_command_line_has_it(
    forethought: Callable[..., Outcome],
) -> None:
    Path("job.toml").write_text(JOB)
    one_line(forethought("utility", "job.toml"), "--leaks accept")
    one_line(forethought("predict", "job.toml", "new.csv"), "job.toml is a file")
    status, out, err = forethought("gossip", "train", "job.toml")
    assert (status, out) == (2, "") and "no [gossip]" in err
    for words in ("plan job.toml --rehearse", "utility job.toml"):
        one_line(forethought(*words.split(), "--public-proxy", "nope"), "data source 'nope'")


def test_a_run_that_was_interrupted_before_its_folder_is_begun_again(
    forethought: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("forethought.jobs.train.run", interrupted)
    Path("job.toml").write_text(JOB)
    status, _, err = forethought("train", "job.toml")
    assert status == 130 and "same command again" in err and "--resume" not in err


@pytest.mark.slow
def test_names_with_brackets_are_printed_as_they_are(forethought: Callable[..., Outcome]) -> None:
    Path("t[red].csv").write_text("age,y\n" + "".join(f"{n},{n % 2}\n" for n in range(60)))
    status, out, _ = forethought("init", "t[red].csv", "--label", "y", "--out", "j[red].toml")
    assert status == 0 and "j[red].toml is written" in out and "t[red].csv" in out
    Path("job.toml").write_text(JOB)
    status, out, _ = forethought("train", "job.toml", "--out", "run[bold]")
    assert status == 0 and "Run folder  run[bold]" in out
    told = {"epsilon": 8, "delta": 1e-6, "data": "d"}
    options = [word for name, value in told.items() for word in (f"--{name}", value)]
    assert forethought("ledger", "create", "b[red].db", *options)[0] == 0
    assert "b[red].db verifies" in forethought("ledger", "verify", "b[red].db")[1]


@pytest.mark.slow
def test_answers_that_are_no_numbers_end_a_paid_run_in_words(
    forethought: Callable[..., Outcome],
) -> None:
    Path("job.toml").write_text(JOB.replace('"linear"', '"mlp"'))
    assert forethought("plan", "job.toml", "--save", "plan.json")[0] == 0
    text = Path("plan.json").read_text()
    Path("plan.json").write_text(text.replace('"learning_rate": 0.1', '"learning_rate": 1e30'))
    status, _, err = forethought("train", "job.toml", "--plan", "plan.json", "--out", "run")
    assert status == 0 and "not finite" in err and "NaN" not in err
    assert Path("run/report.html").is_file() and not Path("run/results.json").exists()


def test_what_is_read_and_what_a_run_holds_is_never_replaced(
    forethought: Callable[..., Outcome],
) -> None:
    kept = "age,died\n50,yes\n40,no\n"
    for path in ("in.csv", "run/job.toml", "run/model.json", "run/model.safetensors"):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(kept)
    Path("run/statement.json").write_text("{}")
    Path("link.csv").symlink_to("in.csv")
    for words in ("predict run in.csv --out in.csv", "predict run in.csv --out link.csv"):
        one_line(forethought(*words.split(), "--overwrite"), "is read here", "--out")
    one_line(forethought("init", "in.csv", "--out", "in.csv", "--overwrite"), "is read here")
    for words in (
        "predict run in.csv --out run/model.json",
        "export run --onnx run/model.safetensors",
        "init in.csv --out run/job.toml",
    ):
        one_line(forethought(*words.split(), "--overwrite"), "of the run")
    for path in ("in.csv", "run/job.toml", "run/model.json", "run/model.safetensors"):
        assert Path(path).read_text() == kept
    # A file of one's own may lie in the folder of a run.
    Path("run/mine.toml").write_text("")
    one_line(forethought("init", "in.csv", "--out", "run/mine.toml"), "--overwrite")
    assert forethought("init", "in.csv", "--out", "run/mine.toml", "--overwrite")[0] == 0


def test_every_help_has_all_its_words() -> None:
    def words(command: Any) -> Iterator[str]:
        yield from (command.help or "", command.epilog or "")
        for option in command.params:
            yield from (getattr(option, "help", None) or "", option.name)
        for one in getattr(command, "commands", {}).values():
            yield from words(one)

    told = list(words(get_command(app)))
    assert len(told) > 400
    for text in told:  # rich takes brackets for markup, unless they are escaped
        assert Text.from_markup(text).plain == text.replace("\\[", "[")


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("audit job.toml --rounds 2", "--rounds goes with --replay"),
        ("audit job.toml --canaries inputs", "--canaries goes with --one-run"),
        ("federate plan job.toml --repeats 2", "--repeats goes with --rehearse"),
        ("gossip plan job.toml --repeats 2", "--repeats goes with --rehearse"),
    ],
)
def test_a_flag_with_a_default_needs_its_companion_too(
    forethought: Callable[..., Outcome], words: str, needed: str
) -> None:
    one_line(forethought(*words.split()), needed)


def test_a_resumed_run_names_what_is_to_be_dropped(forethought: Callable[..., Outcome]) -> None:
    flags = ("train", "--resume", "run", "--out", "x", "--rounds", 3)
    one_line(forethought(*flags), "drop --out and the numbers")


def test_data_in_place_of_a_job_a_folder_of_a_file_and_a_lost_path_are_told(
    forethought: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("t.parquet").write_bytes(b"PAR1\xd0")
    one_line(forethought("plan", "t.parquet"), "forethought init t.parquet")
    Path("images").mkdir()
    one_line(forethought("init", "images"), "images is a folder")
    table = JOB.replace('"digits"', '"csv:t.csv"\n[data.columns]\nage = [0, 9]')
    Path("job.toml").write_text(table)
    one_line(forethought("plan", "job.toml"), "no file t.csv", "--data-dir", "working folder")
    Path("else").mkdir()
    for place, words in ((Path(), "name,here"), (Path("else"), "name,there")):
        (place / "t.csv").write_text(f"{words}\n1,2\n")
    monkeypatch.setenv("FORETHOUGHT_DATA", "else")
    label = '"csv:t.csv"\nlabel = "y"\nclasses = ["0", "1"]'
    Path("job.toml").write_text(table.replace('"csv:t.csv"', label))
    one_line(forethought("plan", "job.toml"), "t.csv", "here")
    one_line(forethought("plan", "job.toml", "--data-dir", "else"), "t.csv", "there")
    Path("job.toml").write_text(JOB.replace("[model]", '[run]\nmetrics = "AUC"\n[model]'))
    one_line(forethought("plan", "job.toml"), "metrics = 'AUC'", "a list")
    Path("job.toml").write_text(JOB + '[statistics]\nkind = "count"\n')
    one_line(forethought("release", "job.toml"), "under [[statistics]]")
