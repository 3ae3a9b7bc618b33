"""A job with an additive model, from its table to predictions, pictures and an ONNX file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import polars as pl
import pytest
from typer.testing import CliRunner

import forethought as ft
from forethought.cli import app
from forethought.jobs.job import Job, JobError, from_file
from forethought.jobs.load import load_job
from forethought.jobs.onnx_export import write_onnx
from forethought.training.metrics import Decisions
from forethought.training.shapes import Shapes

COLUMNS = """
[data.columns]
age = [0, 110]
sodium = {range = [100, 180], missing = "category"}
ward = {categories = ["A", "B", "C"], other = true}
"""


def table(folder: Path, rows: int, target: str = "died") -> Path:
    draw = np.random.default_rng(0)
    age, sodium = draw.uniform(0, 110, rows), draw.normal(140, 8, rows)
    ward = draw.choice(["A", "B", "C"], rows)
    score = ((age - 55) / 25) ** 2 - 1.5 + (ward == "B") + draw.normal(0, 0.3, rows)
    died = np.where(score > 0, "yes", "no") if target == "died" else 10 + 5 * score
    lost = [None if draw.random() < 0.1 else float(x) for x in sodium]
    frame = pl.DataFrame({"age": age, "sodium": lost, "ward": ward, target: died})
    path = folder / f"{target}.csv"
    frame.write_csv(path)
    return path


def job(folder: Path, more: str = "", rows: int = 1500, target: str = "died") -> Path:
    kind = 'classes = ["no", "yes"]'
    if target != "died":
        kind = 'task = "regression"\ntarget_range = [0, 30]'
    source = table(folder, rows, target)
    text = f'[data]\nsource = "csv:{source}"\nlabel = "{target}"\n{kind}\n{COLUMNS}'
    text += "[budget]\nepsilon = 4.0\n[training]\nrounds = 60\n"
    path = folder / f"{target}.toml"
    path.write_text(text + (more or '[model]\nname = "additive"\n'))
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("additive")
    model = '[model]\nname = "additive"\npieces = 6\npairs = true\n'
    path = job(folder, model + "[predict]\nprevalence = [0.8, 0.2]\n")
    known = "[data]\nprevalence = [0.5, 0.5]"
    path.write_text(path.read_text().replace("[data]", known, 1))
    run("train", path, "--out", folder / "run", "--quiet")
    return folder


@pytest.mark.slow
def test_it_bends_where_a_linear_model_cannot(trained: Path) -> None:
    results = json.loads((trained / "run" / "results.json").read_text())
    assert results["figures"]["accuracy"]["low"] > results["baseline"]["accuracy"]
    assert results["figures"]["AUC"]["value"] > 0.85
    shapes = Shapes.load(trained / "run" / "shapes.json")
    age = next(shape for shape in shapes.columns if shape.column == "age")
    middle = age.values[0][32]
    assert age.values[0][0] > middle and age.values[0][-1] > middle and age.clear
    assert all(age.noise) and shapes.outputs == ("yes",) and len(shapes.pairs) == 1


def test_reasons_beside_predictions_are_the_answer(trained: Path) -> None:
    out = trained / "why.csv"
    run("predict", trained / "run", trained / "died.csv", "--why", "--out", out, "--quiet")
    found = pl.read_csv(out)
    reasons = found.select(pl.col("^why_.*$"))
    assert reasons.columns == [
        f"why_{name}" for name in ("intercept", "age", "sodium", "ward", "pairs")
    ]
    odds = np.log(found["probability_yes"].to_numpy() / found["probability_no"].to_numpy())
    assert np.allclose(reasons.to_numpy().sum(1), odds, atol=1e-3)
    predictor = ft.load(trained / "run")
    assert predictor.why(trained / "died.csv").width == 5
    assert predictor.why(pl.read_csv(trained / "died.csv").head(0)).shape == (0, 5)
    (start,) = Shapes.load(trained / "run" / "shapes.json").intercept
    assert start == pytest.approx(reasons["why_intercept"][0], abs=1e-5)  # both are rounded


@pytest.mark.slow
def test_its_file_answers_alike(trained: Path) -> None:
    predictor = ft.load(trained / "run")
    write_onnx(predictor, trained / "model.onnx")  # compares on made-up rows before it writes
    rows = pl.read_csv(trained / "died.csv").head(50)
    session = onnxruntime.InferenceSession(trained / "model.onnx")
    given = {
        "age": rows["age"].to_numpy(),
        "sodium": rows["sodium"].cast(pl.Float64).fill_null(float("nan")).to_numpy(),
        "ward": np.array(rows["ward"].to_list(), dtype=object),
    }
    (found,) = session.run(["probabilities"], given)
    assert np.allclose(found, predictor.predict_proba(rows), atol=1e-5)


@pytest.mark.slow
def test_the_report_draws_every_column_and_the_statement_verifies(trained: Path) -> None:
    page = (trained / "run" / "report.html").read_text()
    assert "What each column adds" in page and page.count('class="band"') == 2
    assert page.count('class="bars"') == 1 and page.count('class="cells"') == 1
    run("account", "--verify", trained / "run" / "statement.json")
    # Another run in the folder leaves nothing of this one's curves.
    out = trained / "other"
    run("train", job(trained), "--out", out, "--quiet")
    assert (out / "shapes.json").exists()
    linear = job(trained, 'basis = "none"\nranges = false\n[model]\nname = "linear"\n')
    run("train", linear, "--out", out, "--overwrite", "--quiet")
    assert not (out / "shapes.json").exists()
    assert "What each column adds" not in (out / "report.html").read_text()
    reasons = ft.load(out).why(trained / "died.csv")
    assert reasons.columns == ["intercept", "age", "sodium", "ward"]
    # A number in the middle of what was declared adds nothing.
    middle = ft.load(out).why({"age": [55.0], "sodium": [140.0], "ward": ["A"]})
    assert abs(middle["age"][0]) < 1e-6 < abs(reasons["age"][0])


@pytest.mark.slow
def test_words_that_were_found_in_the_data_are_not_shown(tmp_path: Path) -> None:
    path = job(tmp_path, rows=300)
    text = path.read_text().replace("rounds = 60", "rounds = 2")
    text = text.replace('"A", "B", "C"', '"Hill", "B", "C"')
    frame = pl.read_csv(tmp_path / "died.csv").with_columns(pl.col("ward").replace("A", "Hill"))
    frame.write_csv(tmp_path / "died.csv")
    for measured, found in (("true", "word 1"), ("false", "Hill")):
        path.write_text(text.replace("label =", f"columns_measured = {measured}\nlabel ="))
        run("train", path, "--out", tmp_path / measured, "--quiet")
        shapes = Shapes.load(tmp_path / measured / "shapes.json")
        (words,) = (one.places for one in shapes.columns if one.kind == "word")
        assert words[0] == found and len(words) == 4
        page = (tmp_path / measured / "report.html").read_text()
        assert ("Hill" in page) == (measured == "false")
        assert ("word 1" in page) == (measured == "true")


@pytest.mark.slow
def test_of_several_classes_the_one_that_is_explained_is_named(tmp_path: Path) -> None:
    path = job(tmp_path, rows=400)
    text = path.read_text().replace("rounds = 60", "rounds = 5").replace('"died"', '"ward"')
    text = text.replace('classes = ["no", "yes"]', 'classes = ["A", "B", "C"]')
    path.write_text("".join(line for line in text.splitlines(True) if "ward = {" not in line))
    text = path.read_text().replace("[data.columns]", '[data.columns]\ndied = ["no", "yes"]')
    path.write_text(text)
    run("train", path, "--out", tmp_path / "run", "--quiet")
    predictor, rows = ft.load(tmp_path / "run"), pl.read_csv(tmp_path / "died.csv")
    reasons = predictor.why(rows)
    assert reasons.columns == ["class", "intercept", "died", "age", "sodium"]
    assert reasons["class"].to_list() == predictor.predict(rows).tolist()
    # Declared shares and costs make another answer than the outputs alone.
    rule = Decisions((2.0, -1.0, -1.0), (1.0, 1.0, 1e9))  # beyond any noise
    moved = replace(predictor, card=replace(predictor.card, decisions=rule))
    other, log = moved.why(rows), np.log(moved.predict_proba(rows))
    assert other["class"].to_list() == moved.predict(rows).tolist() == ["C"] * len(rows)
    total = other.drop("class").to_numpy().sum(1)
    assert np.allclose(total, log[:, 2] - log.mean(axis=1), atol=1e-4)


def test_pairs_follow_from_public_numbers_and_are_written_down(tmp_path: Path) -> None:
    few, many = (load_job(from_file(job(tmp_path, rows=rows))) for rows in (300, 1500))
    assert few.request.job.model.options["pairs"] is False
    assert many.request.job.model.options["pairs"] is True
    assert "pairs = true" in many.request.released_text()
    assert many.parameters > few.parameters and many.dataset.encoder is not None
    fixed = Job.parse(many.request.released_text())
    assert fixed.model.options["pairs"] is True
    # Holders of unlike sizes would build unlike models.
    text = job(tmp_path, rows=1500).read_text() + "[federation]\nclients = 2\nrounds = 2\n"
    (tmp_path / "shared.toml").write_text(text)
    shared = load_job(from_file(tmp_path / "shared.toml"))
    assert shared.request.job.model.options["pairs"] is False
    plan = many.plan()
    assert (
        plan.privacy.preparation is None
        or plan.privacy.preparation.features == (many.dataset.shape[0])
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (("[data.columns]\nage = [0, 110]", "[elsewhere]"), None),
        (('name = "additive"', 'name = "additive"\npieces = 0'), "pieces"),
        (('name = "additive"', 'name = "additive"\npairs = "some"'), "pairs is true"),
        (('name = "additive"', 'name = "additive"\nknots = 3'), "knots"),
        (("[data.columns]", "standardise = [0, 1]\n[data.columns]"), "declared ranges"),
    ],
)
def test_mistakes_are_told_in_a_line(
    tmp_path: Path, change: tuple[str, str], match: str | None
) -> None:
    path = job(tmp_path, rows=300)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ValueError, match=match):
        load_job(from_file(path))


def test_undeclared_columns_have_no_curves(tmp_path: Path) -> None:
    source = table(tmp_path, 300)
    path = tmp_path / "job.toml"
    path.write_text(
        f'[data]\nsource = "csv:{source}"\nlabel = "died"\n[model]\nname = "additive"\n'
    )
    pl.read_csv(source).drop("sodium").write_csv(source)
    frame = pl.read_csv(source).with_columns(pl.col("age") / 110)
    frame.write_csv(source)
    with pytest.raises(JobError, match="declare them"):
        load_job(from_file(path))


@pytest.mark.slow
def test_a_number_is_predicted_in_its_units_and_within_its_range(tmp_path: Path) -> None:
    path = job(tmp_path, target="stay")
    output = run("train", path, "--out", tmp_path / "run")
    assert "in units of stay" in output
    figures = json.loads((tmp_path / "run" / "results.json").read_text())["figures"]
    assert all(one["low"] <= one["value"] <= one["high"] for one in figures.values())
    predictor = ft.load(tmp_path / "run")
    rows = pl.read_csv(tmp_path / "stay.csv")
    found, reasons = predictor.predict(rows), predictor.why(rows).to_numpy().sum(1)
    assert found.min() >= 0 and found.max() <= 30
    assert np.allclose(found, np.clip(reasons, 0, 30), atol=1e-3)
    assert "in units of stay" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_reasons_are_refused_where_columns_do_not_add(trained: Path, tmp_path: Path) -> None:
    run("train", job(tmp_path, '[model]\nname = "mlp"\n'), "--out", tmp_path / "run", "--quiet")
    with pytest.raises(JobError, match="why"):
        ft.load(tmp_path / "run").why(tmp_path / "died.csv")
    several = ft.load(trained / "run")
    several = replace(several, card=replace(several.card, multilabel=True))
    with pytest.raises(JobError, match="one label"):
        several.why(trained / "died.csv")


@pytest.mark.parametrize("model", ["linear", "additive"])
def test_reasons_and_columns_of_one_name_are_told_apart(model: str, tmp_path: Path) -> None:
    names = ("intercept", "intercept_", "class", "pairs")
    rows = [f"{n % 10},{n % 7},{n % 5},{n % 3},{'abc'[n % 3]}" for n in range(300)]
    (tmp_path / "t.csv").write_text("\n".join([",".join((*names, "y")), *rows]) + "\n")
    text = f'[data]\nsource = "csv:{tmp_path / "t.csv"}"\nlabel = "y"\nclasses = ["a", "b", "c"]\n'
    text += "[data.columns]\n" + "".join(f"{name} = [0, 9]\n" for name in names)
    text += f'[model]\nname = "{model}"\n[budget]\nepsilon = 4.0\n[training]\nrounds = 2\n'
    text += 'basis = "none"\nranges = false\n'
    (tmp_path / "job.toml").write_text(text)
    run("train", tmp_path / "job.toml", "--out", tmp_path / "run")
    predictor = ft.load(tmp_path / "run")
    record = {name: [3.0] for name in names}
    why = predictor.why(record)
    assert {*names, "intercept__", "class_"} <= set(why.columns)
    log = np.log(predictor.predict_proba(record)[0])
    total = sum(why[name][0] for name in why.columns if name != "class_")
    assert total == pytest.approx(log.max() - log.mean(), abs=1e-4)
