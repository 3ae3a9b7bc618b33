"""What a newcomer with images gets: a job with features, their reason, predictions of images."""

from __future__ import annotations

import gzip
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import forethought as ft
from forethought.cli import app
from forethought.data import DataError, features_of, load
from forethought.jobs import onnx_export
from forethought.jobs.init import holds_arrays, job_for_arrays
from forethought.jobs.job import Job, JobError, JobRequest, from_file
from forethought.jobs.load import ModelCard, load_job
from forethought.jobs.public_proxy import rehearse_job, utility_of

BYTES = np.random.default_rng(0).integers(0, 256, (40, 12, 12, 3), dtype=np.uint8)
LABELS = np.arange(40) % 2


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("FORETHOUGHT_CACHE", "off")


def archive(folder: Path, inputs: np.ndarray = BYTES, labels: np.ndarray = LABELS) -> Path:
    path = folder / "images.npz"
    np.savez(path, x=inputs, y=labels)
    return path


@pytest.mark.parametrize(
    ("inputs", "features", "why"),
    [
        (BYTES, "patches", "colour"),
        (BYTES[..., 0], "scattering", 'photographs try "patches"'),
        (BYTES.transpose(0, 3, 1, 2) / 255, "patches", "colour"),
        (BYTES / 255, None, "(N, channels, height, width)"),  # not moved, so not taken for images
        (BYTES[:, :, 0, 0], None, "12 numbers a record"),
        (BYTES[:, :5, :5], None, "3 × 5 × 5 numbers"),
    ],
    ids=["colour", "grey", "floats", "channels-last", "numbers", "small"],
)
def test_sizes_alone_say_which_features(tmp_path, inputs, features, why):
    path = archive(tmp_path, inputs)
    text = job_for_arrays(path)
    job = Job.parse(text)
    assert job.data.features == features
    assert why in text
    assert job.load_data().fixed_features == features


def test_no_image_and_no_label_is_read(tmp_path):
    texts = {
        job_for_arrays(archive(tmp_path, inputs, labels))
        for inputs, labels in ((BYTES, LABELS), (BYTES[::-1], np.full(40, 7)))
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("labels", "task"),
    [
        (LABELS, "classification"),
        (LABELS.astype(float), "classification"),
        (np.stack([LABELS, 1 - LABELS], 1), "multilabel"),
    ],
    ids=["numbers", "floats", "several"],
)
def test_labels_by_their_type(tmp_path, labels, task):
    assert Job.parse(job_for_arrays(archive(tmp_path, labels=labels))).data.task == task


def idx(folder: Path) -> Path:
    for part in ("train", "t10k"):
        for kind, array in (("images-idx3", BYTES[..., 0]), ("labels-idx1", LABELS)):
            header = struct.pack(f">i{array.ndim}i", 0x0800 + array.ndim, *array.shape)
            content = gzip.compress(header + array.astype(np.uint8).tobytes())
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(content)
    return folder / "train-images-idx3-ubyte.gz"


def test_the_files_of_mnist_and_its_like(tmp_path):
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    job = Job.parse(job_for_arrays(idx(folder)))
    assert (job.data.source, job.data.features) == ("fashion-mnist", "scattering")
    assert len(job.load_data().train) == 40
    (folder / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="train-labels"):
        job_for_arrays(folder / "train-images-idx3-ubyte.gz")


def test_what_cannot_be_read_is_said(tmp_path):
    np.save(tmp_path / "a.npy", BYTES)
    with pytest.raises(DataError, match=r"np\.savez\('images\.npz', x=images, y=labels\)"):
        job_for_arrays(tmp_path / "a.npy")
    np.savez(tmp_path / "b.npz", z=BYTES)
    with pytest.raises(DataError, match="z, expected x_train"):
        job_for_arrays(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", x=np.arange(3), y=np.arange(3))
    with pytest.raises(DataError, match=r"\(N, features, …\)"):
        job_for_arrays(tmp_path / "c.npz")
    (tmp_path / "d.npz").write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(DataError, match="no readable archive"):
        job_for_arrays(tmp_path / "d.npz")
    with pytest.raises(DataError, match="no file"):
        job_for_arrays(tmp_path / "e.npz")
    assert not holds_arrays(Path("patients.csv"))


def test_init_and_plan_say_why(tmp_path):
    job = tmp_path / "job.toml"
    path = archive(tmp_path)
    result = CliRunner().invoke(app, ["init", str(path), "--out", str(job)])
    assert result.exit_code == 0, result.output
    assert "Why these features" in result.output and 'features = "patches"' in result.output
    wrong = CliRunner().invoke(app, ["init", str(path), "--out", str(job), "--label", "y"])
    assert wrong.exit_code != 0
    pixels = job.read_text().replace('"patches"', '"pixels"')
    job.write_text(pixels + '[model]\nname = "linear"\n')
    result = CliRunner().invoke(app, ["plan", str(job)])
    assert 'consider: images on pixels: features = "patches"' in " ".join(result.output.split())


def test_a_job_for_an_archive_is_rehearsed_on_a_named_set(tmp_path):
    """``task``, which init writes, is of the archive; the named set knows its own classes."""
    path = archive(tmp_path, np.random.default_rng(0).random((200, 1, 8, 8)), np.arange(200) % 10)
    text = job_for_arrays(path) + "[training]\nepochs = 1\n"
    job = tmp_path / "job.toml"
    job.write_text(text)
    loaded = load_job(from_file(job))
    assert 'task = "classification"' in text
    assert rehearse_job(loaded, loaded.plan(), "digits", 2).source == "digits"


def test_advice_is_for_images_on_pixels_alone(tmp_path):
    def advice(**data: object) -> str | None:
        source = {"source": f"npz:{archive(tmp_path)}", **data}
        path = tmp_path / "job.toml"
        lines = [f"{name} = {json.dumps(value)}" for name, value in source.items()]
        path.write_text("\n".join(["[data]", *lines, "[budget]", "epsilon = 1.0"]))
        return load_job(from_file(path)).advice

    assert "patches" in (advice(features="pixels") or "")
    assert advice(features="patches") is None
    assert advice(source="breast-cancer") is None
    assert advice(source="digits") is None


@pytest.fixture(name="run", scope="module")
def finished_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORETHOUGHT_CACHE", "off")
        job = folder / "job.toml"
        job.write_text(job_for_arrays(archive(folder)))
        arguments = ["train", str(job), "--out", str(folder / "run"), "--rounds", "2", "--quiet"]
        result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return folder / "run"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["new.npy", "new.npz"])
def test_predict_turns_images_into_features(run, tmp_path, form):
    new = BYTES[:7]
    if form == "new.npy":
        np.save(tmp_path / form, new)
    else:
        np.savez(tmp_path / form, x=new)
    out = tmp_path / "predictions.csv"
    result = CliRunner().invoke(app, ["predict", str(run), str(tmp_path / form), "--out", str(out)])
    assert result.exit_code == 0, result.output
    found = np.loadtxt(out, delimiter=",", skiprows=1)
    pixels = (new / np.float32(255)).astype(np.float32).transpose(0, 3, 1, 2)
    expected = ft.load(run).predict_proba(features_of(pixels, "patches"))
    np.testing.assert_allclose(found[:, 1:], expected, atol=1e-6)
    assert out.read_text().startswith("prediction,probability_0,probability_1")
    bytes_ = new.transpose(0, 3, 1, 2)
    np.testing.assert_allclose(ft.load(run).predict_proba(bytes_), expected, atol=1e-6)
    for side in (5, 40):  # of 40 × 40 pixels there are features of the same shape
        np.save(tmp_path / "wrong.npy", np.zeros((2, side, side, 3), np.uint8))
        result = CliRunner().invoke(app, ["predict", str(run), str(tmp_path / "wrong.npy")])
        assert result.exit_code != 0
        assert "as in training" in str(result.exception or result.output)


def test_a_card_of_an_earlier_version_has_no_images(run, tmp_path):
    card = ModelCard.load(run / "model.json")
    assert card.images == BYTES.transpose(0, 3, 1, 2).shape[1:]
    older = json.loads((run / "model.json").read_text())
    del older["images"]
    (tmp_path / "model.json").write_text(json.dumps(older))
    assert ModelCard.load(tmp_path / "model.json") == replace(card, images=None)


@pytest.mark.slow
def test_an_onnx_file_says_that_it_takes_features(run, tmp_path):
    onnx = pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    path = tmp_path / "model.onnx"
    result = CliRunner().invoke(app, ["export", str(run), "--onnx", str(path)])
    assert result.exit_code == 0, result.output
    assert "not images but their fixed features" in " ".join(result.output.split())
    properties = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert properties["features"] == "patches"
    assert "features_of(images, 'patches')" in properties["before"]
    assert "(N, 1024, 4, 4)" in properties["before"]
    # Doing what it says gives what the run answers.
    images = load(f"npz:{run.parent / 'images.npz'}").train.inputs[:3]
    session = onnxruntime.InferenceSession(path)
    found = session.run(["probabilities"], {"inputs": features_of(images, "patches")})[0]
    np.testing.assert_allclose(found, ft.load(run).predict_proba(images), atol=1e-5)


def test_a_model_of_pixels_needs_nothing_before_it():
    class Card:
        features = None

    class Predictor:
        card = Card()

    assert onnx_export.before(Predictor()) == {}  # type: ignore[arg-type]


def test_ones_own_idx_files_are_no_other_sets(tmp_path):
    text = job_for_arrays(idx(tmp_path)).replace('features = "scattering"', 'features = "pixels"')
    request = JobRequest("own", text, Job.parse(text))
    for proxy in ("mnist", "fashion-mnist"):
        with pytest.raises(JobError, match="may be anybody"):
            utility_of(load_job(request), proxy, {})
