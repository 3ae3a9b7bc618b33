"""Job files: read, refused with line and nearest key, turned into plans."""

from __future__ import annotations

from pathlib import Path

import pytest

import forethought as ft
from forethought.jobs.job import Job, JobError
from forethought.ledger.book import Account, BookError
from forethought.ledger.identity import new_key
from forethought.ledger.store import create, open_book

GOOD = """\
[data]
source = "digits"

[model]
name = "mlp"
hidden = [32]

[budget]
epsilon = 3.0

[training]
epochs = 5
"""


def test_a_job_keeps_what_it_says() -> None:
    job = Job.parse(GOOD)
    assert job.data.source == "digits"
    assert job.model.options == {"hidden": [32]}
    assert job.training.epochs == 5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epochs = 5", "epoch = 5", r"job, line 12: unknown key 'training.epoch'.*'epochs'"),
        ("[training]", "[trainning]", r"line 11: unknown key 'trainning'.*'training'"),
        ("epochs = 5", "epochs = -5", r"line 12: training.epochs = -5: .*greater than 0"),
        ("epsilon = 3.0", 'epsilon = "three"', r"line 9: budget.epsilon = 'three'"),
        ('source = "digits"', "", r"line 1: 'data.source' is missing"),
        ("epochs = 5", "epochs 5", "job is no TOML file: .*line 12"),
        ("epochs = 5", 'sampling = "bernoulli"', "'poisson'"),
        (
            '"digits"',
            '"digits"\nfeatures = "x"',
            "data.features = 'x': .* integer, or 'scattering'",
        ),
        (
            "epochs = 5",
            "[about]\ndate = 3",
            "job, line 13: about.date = 3: input should be a valid",
        ),
        (
            "epochs = 5",
            "batch = 0\nrounds = 0",
            "training.rounds = 0: .*; job, line 12: training.batch = 0:",
        ),
    ],
)
def test_a_wrong_job_points_at_the_line(old: str, new: str, message: str) -> None:
    with pytest.raises(JobError, match=message):
        Job.parse(GOOD.replace(old, new))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"no job file .*nothing\.toml"):
        Job.load(tmp_path / "nothing.toml")
    (tmp_path / "mine.toml").touch()
    with pytest.raises(JobError, match=r"mean 'mine\.toml'"):
        Job.load(tmp_path / "mine.tml")


def test_a_plan_follows_the_job() -> None:
    plan = Job.parse(GOOD).make_plan(1000)
    assert plan.budget is not None
    assert plan.budget.epsilon == 3.0
    assert plan.delta == pytest.approx(1e-4)
    assert plan.epochs == pytest.approx(5, rel=0.1)


def test_a_job_may_ask_for_noise_on_a_grid() -> None:
    job = Job.parse(GOOD + 'noise = "grid"\n')
    assert job.make_plan(1000).noise == "grid"
    assert Job.parse(GOOD).make_plan(1000).noise == "gaussian"
    with pytest.raises(JobError, match="'gaussian', 'grid' or"):
        Job.parse(GOOD + 'noise = "laplace"\n')


@pytest.mark.parametrize(
    ("section", "hint"),
    [
        ("[training]\nlr = 0.1", "'training.lr'; did you mean 'learning_rate'?"),
        ("[training]\nMax_Grad_Norm = 1.0", "did you mean 'clip_norm'?"),
        ("[training]\nepsilon = 3.0", "'training.epsilon'; it belongs in [budget]"),
        ("[training]\nseed = 3", "it belongs in [run] or [federation] or [gossip]"),
        ("[privacy]\nepsilon = 3.0", "'privacy'; did you mean 'budget'?"),
        ("[run]\nfile = 'a.csv'", "unknown key 'run.file'; "),
        ("[training]\nschedul = 'cosine'", "did you mean 'schedule'?"),
    ],
)
def test_a_name_of_another_library_or_section_is_understood(section: str, hint: str) -> None:
    with pytest.raises(JobError) as refused:
        Job.parse(f"{section}\n[data]\nsource = 'digits'\n")
    assert hint in str(refused.value)
    assert "'source'" not in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("lr", "learning_rate="), ("steps", "rounds="), ("dataset_size", "examples=")],
)
def test_a_planner_s_keyword_is_found_by_its_name_elsewhere(wrong: str, right: str) -> None:
    with pytest.raises(TypeError, match="did you mean") as refused:
        ft.plan(budget=ft.Budget(1.0, 1e-5), **{wrong: 100})
    assert right in str(refused.value)
    with pytest.raises(TypeError, match="such as examples="):
        ft.plan(1000, budget=ft.Budget(1.0, 1e-5))


@pytest.mark.slow
def test_the_ledger_is_asked_about_the_records_of_the_test_file_too(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'books.db'}"
    create(url, actor="owner").close()
    new_key(tmp_path / "key")
    book = open_book(url, actor="owner")
    for name in ("one", "two"):
        book.open_account(Account(name, ft.Budget(8.0, 1e-5)))
    book.close()
    for part, start in (("a", 0), ("b", 100), ("c", 200)):
        rows = [f"{i},{i % 2}\n" for i in range(start, start + 60)]
        (tmp_path / f"{part}.csv").write_text("".join(["x,y\n", *rows]))
    paid = {"url": url, "identity": tmp_path / "key"}

    def recognised(account: str, source: str, test: str) -> None:
        data = {"source": f"csv:{source}.csv", "test": f"{test}.csv", "label": "y"}
        data["columns"] = {"x": [0, 300]}
        data["classes"] = [0, 1]
        job = Job(data=data, ledger={**paid, "data": account})
        job.recognise(tmp_path, job.load_data(tmp_path))

    recognised("one", "a", "b")
    with pytest.raises(BookError, match="'one'"):
        recognised("two", "c", "b")
