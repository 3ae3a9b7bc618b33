"""Several labels a record: read, trained, measured, predicted; by rows and by persons."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from sklearn import metrics

import forethought as ft
from drawn import rand, randn
from forethought.data import DataError, TableSchema, load
from forethought.jobs.init import job_for
from forethought.jobs.job import Job, JobRequest
from forethought.jobs.train import prepare, run
from forethought.report.page import report_page
from forethought.rounds.contributions import label_cross_entropy
from forethought.training.folder import RunSummary
from forethought.training.metrics import Results, measured

COLUMNS = {"age": [0, 110], "bmi": [10, 60]}


def table(path: Path, count: int = 1500, seed: int = 0) -> Path:
    draw = np.random.default_rng(seed)
    age, bmi = draw.uniform(20, 90, count), draw.uniform(15, 45, count)
    pl.DataFrame(
        {
            "patient": [f"P{n}" for n in draw.integers(count // 3, size=count)],
            "age": age.round(3),
            "bmi": bmi.round(3),
            "diabetes": np.where(bmi + draw.normal(0, 4, count) > 32, "yes", "no"),
            "stroke": (age + draw.normal(0, 8, count) > 70).astype(int),
        }
    ).write_csv(path)
    return path


def job(path: Path, *more: str) -> str:
    text = job_for(path, ["diabetes", "stroke"]).replace("epsilon = 3.0", "epsilon = 10.0")
    return text.replace("[data.columns]", "\n".join([*more, "[data.columns]"]))


@pytest.mark.slow
def test_from_init_to_predictions(tmp_path):
    path = table(tmp_path / "t.csv")
    text = job(path)
    assert 'label = ["diabetes", "stroke"]' in text and 'task = "multilabel"' in text
    prepared = prepare(JobRequest("t", text, Job.parse(text)))
    data = prepared.loaded.dataset
    assert data.multilabel and data.train.targets.shape[1] == 2
    assert set(np.unique(data.train.targets)) == {0.0, 1.0}
    run(prepared, tmp_path / "run")
    results = Results.load(tmp_path / "run" / "results.json")
    assert results.task == "multilabel" and results.classes == ("diabetes", "stroke")
    assert results.figures["accuracy"].value > results.baseline["accuracy"] + 0.1
    assert not results.weak and min(results.recall) > 0.5
    page = report_page(RunSummary.load(tmp_path / "run"))
    assert "Which labels it finds" in page and "rightly not given" in page

    new = table(tmp_path / "new.csv", 300, seed=1)
    predictor = ft.load(tmp_path / "run")
    frame = pl.read_csv(new)
    found, shares = predictor.predict(frame), predictor.predict_proba(frame)
    assert found.shape == shares.shape == (300, 2)
    assert np.array_equal(found, (shares > 0.5).astype(int))
    assert (found[:, 1] == frame["stroke"].to_numpy()).mean() > 0.75
    assert predictor.predict_file(new, tmp_path / "p.csv") == 300
    written = pl.read_csv(tmp_path / "p.csv").with_columns(pl.col("prediction").fill_null(""))
    assert written.columns == ["prediction", "probability_diabetes", "probability_stroke"]
    names = np.array(predictor.classes)
    assert written["prediction"].to_list() == ["; ".join(names[row == 1]) for row in found]


@pytest.mark.slow
def test_persons_have_several_labels_too(tmp_path):
    path = table(tmp_path / "t.csv")
    text = job(path, 'person = "patient"', "records_per_person = 3")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("patient ="))
    for way in ("contribution", "group"):
        each = text + f'\n[training]\nrounds = 30\nperson_as = "{way}"\n'
        prepared = prepare(JobRequest("t", each, Job.parse(each)))
        found = run(prepared, tmp_path / way)
        results = Results.load(tmp_path / way / "results.json")
        assert results.figures["AUC"].value > 0.7
        assert found.statement.group == (3 if way == "group" else 1)


def test_arrays_of_labels(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(400, 3)).astype(np.float32)
    y = (x[:, :2] > 0).astype(np.int64)
    np.savez(tmp_path / "t.npz", x=x, y=y)
    data = load(f"npz:{tmp_path / 't.npz'}", task="multilabel")
    plan = ft.plan(data=data, budget=ft.Budget(20.0, 1e-4), rounds=30, parameters=8)
    model = torch.nn.Linear(3, 2)
    ft.train(model, data, plan)
    outputs = model(torch.from_numpy(data.test.inputs)).detach().numpy()
    assert measured(outputs, data.test.targets, "ab").figures["AUC"].value > 0.8
    np.savez(tmp_path / "u.npz", x=x, y=y + 1)
    with pytest.raises(DataError, match="labels of 0"):
        load(f"npz:{tmp_path / 'u.npz'}", task="multilabel")


def test_the_loss_is_torchs_own():
    outputs, targets = randn(5, 3), (rand(5, 3) > 0.5).float()
    own = torch.nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    assert torch.equal(label_cross_entropy(outputs, targets), own.mean(1))


def test_figures_against_scikit_learn():
    draw = np.random.default_rng(3)
    targets = draw.integers(2, size=(300, 3))
    outputs = draw.normal(size=(300, 3)) + 1.5 * targets - 0.7
    names = ["all labels right", "AUC", "F1", "precision", "average precision", "log loss"]
    found = measured(outputs, targets, "abc", names).figures
    chosen, shares = outputs > 0, 1 / (1 + np.exp(-outputs))
    assert found["accuracy"].value == pytest.approx(1 - metrics.hamming_loss(targets, chosen))
    assert found["all labels right"].value == metrics.accuracy_score(targets, chosen)
    assert found["AUC"].value == pytest.approx(metrics.roc_auc_score(targets, shares))
    assert found["F1"].value == metrics.f1_score(targets, chosen, average="macro")
    assert found["precision"].value == metrics.precision_score(targets, chosen, average="macro")
    area = metrics.average_precision_score(targets, shares)
    assert found["average precision"].value == pytest.approx(area)
    each = [metrics.log_loss(targets[:, k], shares[:, k]) for k in range(3)]
    assert found["log loss"].value == pytest.approx(np.mean(each))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": ["diabetes", "stroke"]}, "task='multilabel' goes with a list of columns"),
        ({"label": "stroke", "task": "multilabel"}, "goes with a list of columns"),
        ({"label": ["stroke"], "task": "multilabel"}, "two or more different columns"),
        ({"label": ["stroke", "age"], "task": "multilabel"}, "'age' is a label and a feature"),
        ({"label": ["stroke", "no"], "task": "multilabel"}, "expected one named 'no'"),
        ({"label": ["stroke", "patient"], "task": "multilabel"}, "in label patient, example 0"),
        (
            {"label": ["stroke", "diabetes"], "task": "multilabel", "classes": ["a", "b"]},
            "classes= goes with task 'classification'",
        ),
    ],
)
def test_labels_that_cannot_be_are_refused(tmp_path, options, message):
    path = table(tmp_path / "t.csv", 50)
    columns = {**COLUMNS, "patient": "drop", "diabetes": "drop", "stroke": "drop"}
    with pytest.raises(DataError, match=message):
        load(f"csv:{path}", schema=TableSchema(columns), **options)


def test_without_declared_columns_they_are_refused(tmp_path):
    path = table(tmp_path / "t.csv", 50)
    with pytest.raises(DataError, match="several labels go"):
        load(f"csv:{path}", label=["diabetes", "stroke"], task="multilabel")
