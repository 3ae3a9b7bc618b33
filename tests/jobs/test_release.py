"""Statistics of a job: paid for before a record is read, stated, and compared with the book."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from forethought.cli import app
from forethought.jobs.account import verified
from forethought.jobs.job import from_file
from forethought.jobs.release import release_job
from forethought.ledger.book import Account, OverBudgetError
from forethought.ledger.store import Store, create
from forethought.statistics.kinds import Estimate
from forethought.training.folder import RunFolderExistsError
from forethought.values.mechanism import Budget

JOB = """
[data]
source = "csv:{folder}/patients.csv"
[data.columns]
age = [0, 110]
ward = {{categories = ["A", "B"], other = true}}
[budget]
epsilon = 1.0
delta = 1e-6
[[statistics]]
kind = "count"
[[statistics]]
kind = "mean"
column = "age"
[ledger]
url = "sqlite:///{folder}/books.db"
data = "patients"
"""


def written(folder: Path, text: str = JOB, epsilon: float = 2.0) -> tuple[Path, Store]:
    draw = np.random.default_rng(0)
    rows = [f"{draw.uniform(20, 90):.1f},{'AB'[draw.integers(2)]}" for _ in range(2000)]
    (folder / "patients.csv").write_text("\n".join(["age,ward", *rows]) + "\n")
    path = folder / "job.toml"
    path.write_text(text.format(folder=folder))
    book = create(f"sqlite:///{folder}/books.db", actor="owner")
    book.open_account(Account("patients", Budget(epsilon, 1e-5)))
    return path, book


def test_a_table_that_is_refused_costs_nothing(tmp_path: Path) -> None:
    path, book = written(tmp_path)
    table = tmp_path / "patients.csv"
    table.write_text(table.read_text() + ",A\n")  # no age
    with pytest.raises(ValueError, match="age"):
        release_job(from_file(path), tmp_path / "out")
    assert book.total("patients").epsilon == 0
    assert not (tmp_path / "out" / "statement.json").exists()


def test_a_delta_that_promises_little_is_told_of(tmp_path: Path) -> None:
    path, _ = written(tmp_path, JOB.partition("[ledger]")[0].replace("1e-6", "0.001"))
    with pytest.warns(UserWarning, match="promises little"):
        release_job(from_file(path), tmp_path / "out")


def test_statistics_are_paid_for_and_stated(tmp_path: Path) -> None:
    path, book = written(tmp_path)
    released, statement = release_job(from_file(path), tmp_path / "out")
    (count,), (mean,) = released.results
    assert abs(count.value - 2000) < 100 and 50 < mean.value < 60
    (held,) = book.reservations("patients")
    assert (held.status, held.released) == ("settled", 1)
    assert held.charge.mechanism == statement.mechanism and statement.guarantee <= 1
    outcome = verified(tmp_path / "out", ledger=f"sqlite:///{tmp_path}/books.db")
    assert "total of the data set" in outcome.checked
    assert json.loads((tmp_path / "out" / "statistics.json").read_text())["results"]["count"]
    with pytest.raises(RunFolderExistsError, match="not empty"):
        release_job(from_file(path), tmp_path / "out")
    assert len(book.reservations("patients")) == 1


def test_a_job_of_persons_is_paid_and_stated_for_persons(tmp_path: Path) -> None:
    text = JOB.replace("{folder}/patients.csv", "patients.csv")
    text = text.replace("[data.columns]", 'person = "who"\nrecords_per_person = 2\n[data.columns]')
    text = text.replace("[[statistics]]", '[training]\nadjacency = "zero-out"\n[[statistics]]', 1)
    path, book = written(tmp_path, text.replace("epsilon = 1.0", "epsilon = 50.0"))
    (tmp_path / "patients.csv").write_text(
        "who,age,ward\n" + "p1,30,A\n" * 100 + "p2,40,B\n" + "p3,50,B\n"
    )
    protected = {"unit": "person", "adjacency": "zero-out"}
    book.open_account(Account("persons", Budget(99.0, 1e-5), **protected))
    path.write_text(path.read_text().replace('data = "patients"', 'data = "persons"'))
    # The table is found in the data folder, as for training.
    released, statement = release_job(from_file(path), tmp_path / "out", tmp_path)
    (count,), _ = released.results
    assert count.value == pytest.approx(4, abs=2) and statement.examples == 4
    assert (statement.group, statement.adjacency) == (2, "zero-out")
    (held,) = book.reservations("persons")
    assert (held.charge.group, held.charge.unit) == (2, "person")
    assert verified(tmp_path / "out", ledger=f"sqlite:///{tmp_path}/books.db").checked


def test_a_folder_that_holds_anything_keeps_it(tmp_path: Path) -> None:
    path, book = written(tmp_path)
    kept = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    for out in (tmp_path, path):  # the job's own folder, and a file
        with pytest.raises(RunFolderExistsError):
            release_job(from_file(path), out)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == kept
    assert book.reservations("patients") == []


def test_what_does_not_fit_reads_no_record(tmp_path: Path) -> None:
    path, book = written(tmp_path, epsilon=0.5)
    (tmp_path / "patients.csv").unlink()
    with pytest.raises(OverBudgetError):
        release_job(from_file(path), tmp_path / "out")
    assert book.total("patients").epsilon == 0 and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("delta = 1e-6\n", "", "give delta"),
        ('[[statistics]]\nkind = "count"\n', "", ""),
        ("csv:{folder}/patients.csv", "digits", "of a table"),
        ("[data.columns]", 'missing_label = "drop"\n[data.columns]', "knows the label"),
        ('kind = "mean"', 'kind = "meen"', "did you mean 'mean'"),
        ('kind = "mean"', 'kind = "median"', "did you mean 'quantiles'"),
        ('column = "age"\n', 'column = "age"\nrange = [9, 1]\n', "range"),
        ('column = "age"\n', 'column = "ward"\n', "range = None"),
        ('column = "age"\n', 'column = "age"\nrange = ["a", "b"]\n', "must be a number"),
        ('kind = "count"\n', "kind = 'histogram'\ncolumn = 'age'\nbins = nan\n", "whole number"),
    ],
)
def test_what_cannot_be_released_is_said(tmp_path: Path, old: str, new: str, message: str) -> None:
    path, book = written(tmp_path, JOB.replace(old, new))
    if not message:
        assert len(release_job(from_file(path), tmp_path / "out")[0].results) == 1
        return
    with pytest.raises(ValueError, match=message):
        release_job(from_file(path), tmp_path / "out")
    assert book.reservations("patients") == []


def test_what_is_printed_lies_in_its_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, statement = (
        Estimate("A", -1.5, 0.0, 7.0, 0.0, 8.0),
        SimpleNamespace(sentences=lambda: ("",)),
    )
    asked = SimpleNamespace(statistics=[SimpleNamespace(name="ward")])
    released = SimpleNamespace(request=asked, results=[(one,)])
    monkeypatch.setattr("forethought.jobs.release.release_job", lambda *_: (released, statement))
    path, _ = written(tmp_path)
    result = CliRunner().invoke(app, ["release", str(path)])
    assert "ward: A 0 (0 to 7)" in result.output
    asked.statistics[0].name = "A"  # a statistic of one number has its name
    assert "\nA 0 (0 to 7)" in f"\n{CliRunner().invoke(app, ['release', str(path)]).output}"
