"""The exported file answers as the run does, from a table's own columns."""

from __future__ import annotations

import json
import math
import sys
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import polars as pl
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import forethought as ft
from forethought.cli import app
from forethought.data.columns import Encoder, PlainNumber, TableSchema
from forethought.jobs import onnx_export
from forethought.jobs.job import JobError
from forethought.jobs.load import ModelCard
from forethought.jobs.onnx_export import write_onnx
from forethought.jobs.predict import Predictor
from forethought.rounds.preparation import InputConstants

COLUMNS = {
    "age": [0, 110],
    "bmi": {"range": [10, 80], "missing": "middle"},
    "sodium": {"range": [100, 180], "log": True, "missing": "category", "codes": [-999, -99.9]},
    "ward": {"categories": ["A", "B", "na"], "other": True},
    "sex": {"categories": ["f", "m"], "missing": "category"},
    "tumour": {"categories": ["x", "y"]},
    "admitted": {"date": ["2015-01-01", "2025-12-31"], "missing": "middle"},
    "name": "drop",
}
STATEMENT = ft.account(ft.Mechanism(ft.Rounds(1.0, 10, ft.Poisson(0.1))), 1e-5)


def predictor(tmp_path: Path, outputs: int = 2, **changes: Any) -> Predictor:
    columns = tuple(TableSchema(COLUMNS).parsed().items())
    about = {"columns": columns, "label": "died", "classes": ("no", "yes")}
    encoder = Encoder(**{**about, **changes.pop("encoder", {})})
    torch.manual_seed(0)
    width = len(encoder.titles)
    model = nn.Sequential(nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, outputs)).eval()
    card = ModelCard("mlp", {}, (width,), changes.pop("classes", 2), encoder=encoder, **changes)
    return Predictor(model, card, STATEMENT, tmp_path)


def written(made: Predictor, tmp_path: Path) -> onnxruntime.InferenceSession:
    write_onnx(made, tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    return onnxruntime.InferenceSession(tmp_path / "model.onnx")


ROWS: list[tuple[Any, ...]] = [
    # age, bmi, sodium, ward, sex, tumour, admitted
    (50.0, 22.5, 140.0, "A", "f", "x", date(2020, 2, 29)),
    (-5.0, 200.0, -999.0, "na", "m", "y", date(2014, 1, 1)),
    (110.0, None, None, "C", "", "x", None),
    (33.3, 10.0, 99.0, "A1", "NA", "y", date(2025, 12, 31)),
    (0.0, 80.0, 180.0, "B", "?", "x", date(2015, 1, 1)),
    (0.0, 20.0, float(np.float32(-99.9)), "B", "?", "x", date(2015, 1, 1)),
]
REFUSED: list[tuple[Any, ...]] = [
    (None, 22.5, 140.0, "A", "f", "x", date(2020, 2, 29)),
    (math.inf, 22.5, 140.0, "A", "f", "x", date(2020, 2, 29)),
    (50.0, 22.5, 140.0, "", "f", "x", date(2020, 2, 29)),
    (50.0, 22.5, 140.0, "A", "q", "x", date(2020, 2, 29)),
    (50.0, 22.5, 140.0, "A", "f", "z", date(2020, 2, 29)),
    (50.0, 22.5, 140.0, "A", "f", "", date(2020, 2, 29)),
]
NAMES = ("age", "bmi", "sodium", "ward", "sex", "tumour", "admitted")


def frame(rows: list[tuple[Any, ...]]) -> pl.DataFrame:
    return pl.DataFrame(dict(zip(NAMES, zip(*rows, strict=True), strict=True)), strict=False)


def given(rows: list[tuple[Any, ...]]) -> dict[str, np.ndarray]:
    found: dict[str, Any] = {}
    for name, values in zip(NAMES, zip(*rows, strict=True), strict=True):
        if name in ("ward", "sex", "tumour"):
            found[name] = np.array(values, dtype=object)
        elif name == "admitted":
            days = [None if day is None else (day - date(2000, 1, 1)).days for day in values]
            found[name] = np.array(days, dtype=np.float64)
        else:
            found[name] = np.array(values, dtype=np.float64)
    return found


@pytest.mark.slow
def test_raw_columns_give_the_runs_probabilities_and_the_names_of_classes(tmp_path: Path) -> None:
    made = predictor(tmp_path)
    session = written(made, tmp_path)
    assert [one.name for one in session.get_inputs()] == list(NAMES)
    likely, names = session.run(["probabilities", "prediction"], given(ROWS))
    expected = made.predict_proba(frame(ROWS))
    assert np.allclose(likely, expected, atol=1e-6)
    assert names.tolist() == made.predict(frame(ROWS)).tolist()
    assert len({tuple(row) for row in expected.round(4)}) == len(ROWS)
    # One row is a table too.
    alone = session.run(["probabilities"], given(ROWS[:1]))[0]
    assert np.allclose(alone, expected[:1], atol=1e-6)


@pytest.mark.slow
def test_a_row_that_the_declarations_refuse_has_no_answer(tmp_path: Path) -> None:
    made = predictor(tmp_path)
    model = onnx_export.whole_model(made, _network())
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for row in REFUSED:
        with pytest.raises(ft.errors.DataError):
            made.predict(frame([row]))
        likely, names = session.run(["probabilities", "prediction"], given([ROWS[0], row]))
        assert np.isfinite(likely[0]).all() and np.isnan(likely[1]).all()
        assert names[0] in ("no", "yes") and names[1] == ""


@pytest.mark.slow
@pytest.mark.parametrize("high", [1e-15, 1e-8, 2e-8, 1e300])
def test_a_logarithm_is_exact_of_any_range(tmp_path: Path, high: float) -> None:
    declared = TableSchema({**COLUMNS, "age": {"range": [0, high], "log": True}}).parsed()
    made = predictor(tmp_path, encoder={"columns": tuple(declared.items())})
    model = onnx_export.whole_model(made, _network())
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rows = [(high * share, *ROWS[0][1:]) for share in (0.0, 0.01, 0.3, 0.7, 1.0)]
    expected = made.predict_proba(frame(rows))
    assert np.allclose(session.run(["probabilities"], given(rows))[0], expected, atol=1e-6)


_KEPT: list[onnx.ModelProto] = []


def _network() -> onnx.ModelProto:
    # Torch takes seconds to export: once is enough for what does not depend on it.
    if not _KEPT:
        _KEPT.append(onnx_export.network_of(predictor(Path())))
    return _KEPT[0]


@pytest.mark.slow
def test_a_regression_answers_in_the_unit_of_its_targets(tmp_path: Path) -> None:
    made = predictor(
        tmp_path, 1, classes=None, encoder={"classes": None, "target_range": (20.0, 60.0)}
    )
    session = written(made, tmp_path)
    (values,) = session.run(None, given(ROWS))
    assert np.allclose(values, made.predict(frame(ROWS)), atol=1e-4) and values.dtype == np.float64
    assert np.isnan(session.run(None, given(REFUSED[:1]))[0]).all()


@pytest.mark.slow
def test_several_labels_have_a_probability_each(tmp_path: Path) -> None:
    encoder = {"classes": ("a", "b", "c"), "multilabel": True}
    made = predictor(tmp_path, 3, classes=3, multilabel=True, encoder=encoder)
    likely, found = written(made, tmp_path).run(["probabilities", "prediction"], given(ROWS))
    assert np.allclose(likely, made.predict_proba(frame(ROWS)), atol=1e-6)
    assert found.tolist() == made.predict(frame(ROWS)).tolist()
    with torch.no_grad():
        for weights in made.model.parameters():
            weights.zero_()
    session = onnxruntime.InferenceSession(
        onnx_export.whole_model(made, onnx_export.network_of(made)).SerializeToString()
    )
    (level,) = session.run(["prediction"], given(ROWS))
    assert level.tolist() == made.predict(frame(ROWS)).tolist()  # an output of 0 is no label


@pytest.mark.slow
def test_a_number_beyond_single_precision_has_no_answer(tmp_path: Path) -> None:
    columns = tuple((name, PlainNumber()) for name in ("a", "b"))
    made = predictor(tmp_path, encoder={"columns": columns})
    with pytest.raises(ft.errors.DataError):
        made.predict({"a": [1e39], "b": [1.0]})
    told = {"a": np.array([1.0, 1e39]), "b": np.ones(2)}
    likely, names = written(made, tmp_path).run(["probabilities", "prediction"], told)
    assert np.isnan(likely[1]).all() and names[0] != "" and names[1] == ""


@pytest.mark.slow
@pytest.mark.parametrize("limits", [None, (0.0, 1.0)])
def test_other_data_go_in_as_they_are_and_are_prepared(
    limits: tuple[float, float] | None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4)).eval()
    card = ModelCard("cnn", {}, (1, 8, 8), 4)
    made = Predictor(model, card, STATEMENT, tmp_path, InputConstants((0.3,), (2.0,), limits))
    images = np.random.default_rng(0).normal(size=(7, 1, 8, 8)).astype(np.float32)
    likely, found = written(made, tmp_path).run(None, {"inputs": images})
    assert np.allclose(likely, made.predict_proba(images), atol=1e-6)
    assert found.tolist() == made.predict(images).tolist()


@pytest.mark.slow
def test_a_file_that_answers_otherwise_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted fault: one output of the network is off by one."""
    made = predictor(tmp_path)
    network = _network()
    network_bias = next(one for one in network.graph.initializer if list(one.dims) == [2])
    values = onnx.numpy_helper.to_array(network_bias) + np.arange(2, dtype=np.float32)
    wrong = onnx.ModelProto()
    wrong.CopyFrom(network)
    place = list(network.graph.initializer).index(network_bias)
    wrong.graph.initializer[place].CopyFrom(onnx.numpy_helper.from_array(values, network_bias.name))
    monkeypatch.setattr(onnx_export, "network_of", lambda _: wrong)
    with pytest.raises(JobError, match="answers otherwise"):
        write_onnx(made, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


class Unexportable(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :2] if float(x.sum()) > 0 else x[:, 1:3]


@pytest.mark.slow
def test_a_network_that_torch_cannot_export_is_one_line(tmp_path: Path) -> None:
    made = Predictor(Unexportable(), ModelCard("own", {}, (4,), 2), STATEMENT, tmp_path)
    with pytest.raises(JobError, match=r"export this network.*model.safetensors"):
        write_onnx(made, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_writes_what_the_run_folder_holds(tmp_path: Path) -> None:
    job, out = tmp_path / "job.toml", tmp_path / "run"
    job.write_text(
        '[data]\nsource = "breast-cancer"\n[budget]\nepsilon = 3\n[training]\nepochs = 2\n'
    )
    run = CliRunner()
    assert run.invoke(app, ["train", str(job), "--out", str(out), "-q"]).exit_code == 0
    arguments = ["export", str(out), "--onnx", str(tmp_path / "model.onnx")]
    found = run.invoke(app, arguments, catch_exceptions=False)
    assert found.exit_code == 0 and "inputs → probabilities, prediction" in found.output
    assert run.invoke(app, arguments).exit_code != 0  # it is there
    model = onnx.load(tmp_path / "model.onnx")
    kept = {one.key: one.value for one in model.metadata_props}
    statement = ft.Statement.load(out / "statement.json")
    assert statement.about is not None and kept["model"] == statement.about.model
    assert float(kept["epsilon"]) == pytest.approx(statement.epsilon.upper, rel=1e-5)


@pytest.mark.slow
def test_a_seeded_run_gives_no_promise_away(tmp_path: Path) -> None:
    job, out, new = tmp_path / "job.toml", tmp_path / "run", tmp_path / "new.npy"
    np.save(new, np.zeros((2, 30), np.float32))
    text = '[data]\nsource = "breast-cancer"\n[budget]\nepsilon = 3\n[training]\nrounds = 2\n'
    run, words = CliRunner(), [str(job), "--out", str(out)]
    ready = ["predict", str(out), str(new), "--out", str(tmp_path / "p.csv"), "--json"]
    arguments = ["export", str(out), "--onnx", str(tmp_path / "model.onnx"), "-q"]
    for seed, promised in (("", True), ("[run]\nnoise_seed = 1\n", False)):
        job.write_text(text + seed)
        assert run.invoke(app, ["train", *words, "--overwrite", "-q"]).exit_code == 0
        told = json.loads(run.invoke(app, [*ready, "--overwrite"]).stdout)
        assert run.invoke(app, [*arguments, "--overwrite"]).exit_code == 0
        kept = {one.key: one.value for one in onnx.load(tmp_path / "model.onnx").metadata_props}
        assert (told["epsilon"] is not None) == promised == ("epsilon" in kept) == ("delta" in kept)
        assert told["guarantee"] == kept["guarantee"]
        assert ("Not private: seeded" in kept["guarantee"]) != promised


def _linear(width: int) -> onnx.ModelProto:
    """A network as torch exports one, whose parts have names that columns may have, too."""
    info, float32 = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    weight = np.linspace(-1, 1, 2 * width, dtype=np.float32).reshape(width, 2)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["features", "weight"], ["outputs"])],
        "network",
        [info("features", float32, ("N", width))],
        [info("outputs", float32, ("N", 2))],
        initializer=[onnx.numpy_helper.from_array(weight, "weight")],
    )
    opset = onnx.helper.make_opsetid("", 18)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10)


def test_columns_may_be_called_as_parts_of_the_graph_but_not_as_answers(tmp_path: Path) -> None:
    names = ("features", "outputs", "constant_0", "weight", "forethought.constant_0")

    def made(names: tuple[str, ...]) -> onnx.ModelProto:
        columns = tuple(TableSchema({name: [0, 9] for name in names}).parsed().items())
        return onnx_export.whole_model(
            predictor(tmp_path, encoder={"columns": columns}), _linear(len(names))
        )

    whole = made(names)
    onnx.checker.check_model(whole, full_check=True)
    session = onnxruntime.InferenceSession(whole.SerializeToString())
    assert [one.name for one in session.get_inputs()] == list(names)
    (likely,) = session.run(["probabilities"], {name: np.array([9.0]) for name in names})
    outputs = np.linspace(-1, 1, 10).reshape(5, 2).sum(0)
    assert likely[0] == pytest.approx(np.exp(outputs) / np.exp(outputs).sum(), abs=1e-6)
    for answer in ("prediction", "probabilities"):
        with pytest.raises(JobError, match=answer):
            made((*names, answer))


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    monkeypatch.delitem(sys.modules, onnx_export.__name__)
    with pytest.raises(JobError, match="pip install"):
        import_module(onnx_export.__name__)


def test_codes_and_other_spellings_mean_in_the_file_what_they_mean_here(tmp_path: Path) -> None:
    about = {"categories": ["1", "2", "0"], "codes": [-9], "missing": "category", "other": True}
    day = {"date": ["1990-01-01", "2029-12-31"], "codes": [0], "missing": "middle"}
    schema = TableSchema({"a": [0, 10], "c": about, "d": day})
    made = predictor(tmp_path, encoder={"columns": tuple(schema.parsed().items())})
    words = ["1", "-9", "-9.0", "7", "2.0", "TRUE", "-0.0", "1"]
    days = [date(2005, 1, 1)] * 7 + [date(2000, 1, 1)]
    rows = pl.DataFrame({"a": [5.0] * 8, "c": words, "d": days})
    numbers = np.array([(one - date(2000, 1, 1)).days for one in days], dtype=np.float64)
    told = {"a": np.full(8, 5.0), "c": np.array(words, dtype=object), "d": numbers}
    found = written(made, tmp_path).run(["probabilities"], told)[0]
    np.testing.assert_allclose(found, made.predict_proba(rows), atol=1e-6)
