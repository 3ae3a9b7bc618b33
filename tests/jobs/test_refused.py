"""A job that training refuses is refused by the plan before it, in the same words."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forethought.cli import main

DIGITS = '[data]\nsource = "digits"\nfeatures = "pixels"\n'
BUDGET = "[budget]\nepsilon = 3.0\n"
TABLE = '[data]\nsource = "csv:t.csv"\nlabel = "y"\nclasses = ["no", "yes"]\n'
COLUMNS = "[data.columns]\nage = [0, 100]\ndose = [0, 9]\n"
TRAINING = "[training]\nrounds = 2\n"

# Name → the job, more words of both commands, and a word of the refusal.
REFUSED: dict[str, tuple[str, str, str]] = {
    "an optimizer": (DIGITS + BUDGET + TRAINING + 'optimizer = "adamx"\n', "", "adamax"),
    "its options": (DIGITS + BUDGET + TRAINING + "options = {speed = 2}\n", "", "speed"),
    "a metric": (DIGITS + BUDGET + '[run]\nmetrics = ["auk"]\n', "", "auk"),
    "a model": (DIGITS + BUDGET + '[model]\nname = "resnet1000"\n', "", "resnet1000"),
    "a model's option": (DIGITS + BUDGET + '[model]\nname = "mlp"\nwide = 3\n', "", "wide"),
    "a schedule": (DIGITS + BUDGET + TRAINING + 'schedule = "cosin"\n', "", "cosine"),
    "a key": (DIGITS + BUDGET + TRAINING + "bach = 3\n", "", "batch"),
    "a source": ('[data]\nsource = "digitz"\n' + BUDGET, "", "digits"),
    "no file": (TABLE.replace("t.csv", "none.csv") + BUDGET, "", "none.csv"),
    "a missing column": (TABLE + COLUMNS + "weight = [0, 9]\n" + BUDGET, "", "weight"),
    "a label": (TABLE.replace('"y"', '"Y"') + COLUMNS + BUDGET, "", "'y'"),
    "a class": (TABLE.replace('"yes"', '"perhaps"') + COLUMNS + BUDGET, "", "perhaps"),
    "a word": (TABLE + COLUMNS.replace("[0, 9]", '["a", "b"]') + BUDGET, "", "dose"),
    "weights": (TABLE + COLUMNS + BUDGET + "[training]\nclass_weights = [1.0]\n", "", "weights"),
    "a batch": (TABLE + COLUMNS + BUDGET + "[training]\nbatch = 5000\n", "", "batch"),
    "no budget": (TABLE + COLUMNS, "", "budget"),
    "idle bounds": (DIGITS + "bounds = [0, 1]\n" + BUDGET, "", "bounds go with"),
    "groups of nobody": (DIGITS + BUDGET + TRAINING + 'person_as = "group"\n', "", "persons of"),
    "a person without rows": (
        DIGITS + BUDGET + TRAINING + 'person_as = "contribution"\n',
        "",
        "[data] person",
    ),
    "a size": (DIGITS + BUDGET + '[model]\nname = "mlp"\nhidden = 0.5\n', "", "hidden must be"),
    "a deep nest": (DIGITS + "bounds = " + "[" * 5000, "", "no TOML file"),
    "a preparation": (DIGITS + 'standardise = "private"\n' + BUDGET, "", "bounds"),
    "a folder of a file": (DIGITS + BUDGET + TRAINING, "--out t.csv", "t.csv"),
    "a folder below a file": (DIGITS + BUDGET + TRAINING, "--out t.csv/run", "t.csv"),
    "a key of a linear model": (
        DIGITS + BUDGET + TRAINING + 'centre = true\n[model]\nname = "mlp"\n',
        "",
        "a linear model",
    ),
    "an idle decay": (DIGITS + BUDGET + TRAINING + "decay = 0.1\n", "", "goes with schedule"),
    "decay of a cosine": (
        DIGITS + BUDGET + TRAINING + 'schedule = "cosine"\ndecay = 0.1\n',
        "",
        "goes with schedule",
    ),
    "decay of a tail": (
        DIGITS + BUDGET + TRAINING + 'averaging = "tail"\naveraging_decay = 0.9\n',
        "",
        "goes with averaging",
    ),
    "an idle fraction": (
        DIGITS + BUDGET + TRAINING + "averaging_fraction = 0.5\n",
        "",
        "goes with averaging",
    ),
    "a statistic": (DIGITS + BUDGET + '[[statistics]]\nkind = "count"\nnaem = "n"\n', "", "name"),
    "a full folder": (DIGITS + BUDGET + TRAINING, "--out full", "not empty"),
}


@pytest.fixture(name="refusal")
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., str]:
    """The one line in which a command in a prepared folder refuses."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{20 + n % 60},{n % 9},{'yes' if n % 3 else 'no'}" for n in range(200)]
    Path("t.csv").write_text("\n".join(["age,dose,y", *rows]) + "\n")
    Path("full").mkdir()
    Path("full/kept.txt").write_text("kept")

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["forethought", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (1, 2)
        lines = capsys.readouterr().err.strip().splitlines()
        return "".join(line for line in lines if not line.startswith("warning"))

    return run


@pytest.mark.thinned
@pytest.mark.parametrize("name", REFUSED)
def test_a_plan_refuses_what_training_would(name, refusal):
    text, more, word = REFUSED[name]
    Path("job.toml").write_text(text)
    before = sorted(Path().rglob("*"))
    planned = refusal("plan", "job.toml", *more.split())
    assert word in planned and planned.startswith("error: ")
    assert refusal("train", "job.toml", *more.split()) == planned
    assert sorted(Path().rglob("*")) == before


@pytest.mark.slow
def test_a_plan_asks_whom_a_row_is_about(refusal, monkeypatch, capsys):
    rows = [f"p{n // 4},{20 + n % 60},{'yes' if n % 7 else 'no'}" for n in range(400)]
    Path("visits.csv").write_text("\n".join(["patient,age,ill", *rows]) + "\n")

    def told(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["forethought", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return " ".join(capsys.readouterr().out.split())

    told("init", "visits.csv", "--label", "ill")
    asked = told("plan", "job.toml")
    assert "about one person (patient)?" in asked
    text = Path("job.toml").read_text()
    answered = text.replace("# person =", "person =").replace('patient = "drop"', "# dropped")
    Path("job.toml").write_text(answered)
    assert "question:" not in told("plan", "job.toml")


def test_a_plan_names_the_sections_that_it_does_not_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "job.toml"
    more = '[[statistics]]\nkind = "count"\n[federation]\nclients = 2\n[gossip]\nworkers = 2\n'
    path.write_text(DIGITS + BUDGET + TRAINING + more)
    monkeypatch.setattr(sys, "argv", ["forethought", "plan", str(path)])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().out
    for command in ("release", "federate", "gossip"):
        assert f": forethought {command} " in told
    assert "[[statistics]]" in told and "[federation]" in told
