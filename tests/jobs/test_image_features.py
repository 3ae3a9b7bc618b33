"""What replaces images where a job leaves it open, and that it is never behind its back."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import forethought as ft
from forethought.cli import app
from forethought.data import DataError, load
from forethought.data.features import best_features
from forethought.jobs.job import Job, JobError, as_given, from_file, resumed
from forethought.jobs.load import ModelCard, load_job
from forethought.jobs.public_proxy import utility_of

PATCHES = (1024, 4, 4)
JOB = """
[data]
source = "npz:{data}"
task = "classification"
classes = [0, 1]
holdout = 0.3
[budget]
epsilon = 8.0
delta = 1e-3
[training]
rounds = 2
"""


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("FORETHOUGHT_CACHE", "off")


def images(folder: Path, side: int, channels: int = 3) -> Path:
    random = np.random.default_rng(0)
    path = folder / f"images_{side}_{channels}.npz"
    np.savez(path, x=random.random((40, channels, side, side), np.float32), y=np.arange(40) % 2)
    return path


@pytest.fixture(name="job")
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(JOB.format(data=images(tmp_path, 12)))
    return path


def test_a_jobs_own_file_is_no_public_proxy_and_a_copy_is_told(job: Path, tmp_path: Path) -> None:
    own, link, copy = images(tmp_path, 12), tmp_path / "link.npz", tmp_path / "public.npz"
    link.symlink_to(own)
    loaded = load_job(from_file(job))
    for proxy in (own, link):
        with pytest.raises(JobError, match="own file"):
            utility_of(loaded, f"npz:{proxy}", {})
    np.savez_compressed(copy, **np.load(own))
    known = {"clip_norms": (1.0,), "noise_multipliers": (1.0, 2.0), "draws": 1}
    with pytest.warns(UserWarning, match="own records"):
        utility_of(loaded, f"npz:{copy}", {**known, "batch": 10, "epochs": 1})


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((9, 1, 28, 28), "scattering"),
        ((9, 3, 32, 32), "deep-patches"),
        ((9, 3, 20, 96), "deep-patches"),
        ((9, 3, 19, 32), "patches"),  # too small for the second scale
        ((9, 3, 12, 12), "patches"),
        ((9, 1, 8, 8), None),  # too small
        ((9, 4, 32, 32), None),
        ((9, 30), None),
    ],
)
def test_the_shape_alone_decides(shape, expected):
    assert best_features(shape) == expected


def test_a_job_of_images_that_names_no_model_takes_the_best_features(job):
    loaded = load_job(from_file(job))
    assert (loaded.dataset.shape, loaded.card().features) == (PATCHES, "patches")
    # What was taken is in the released job, so that later versions take the same.
    released = loaded.request.released_text()
    assert tomllib.loads(released)["data"]["features"] == "patches"
    again = load_job(replace(loaded.request, job=Job.parse(released), settled=()))
    assert (again.dataset.shape, again.request.settled) == (PATCHES, ())


@pytest.mark.slow
def test_a_run_of_a_job_that_leaves_it_open_keeps_what_was_taken(job, tmp_path):
    folder = tmp_path / "run"
    result = CliRunner().invoke(app, ["train", str(job), "--out", str(folder)])
    assert result.exit_code == 0, result.output
    assert 'features = "patches"' in result.output
    assert tomllib.loads((folder / "job.toml").read_text())["data"]["features"] == "patches"
    card = ModelCard.load(folder / "model.json")
    assert (card.features, card.inputs) == ("patches", PATCHES)
    again = load_job(resumed(folder))
    assert (again.dataset.shape, again.request.settled) == (PATCHES, ())
    # New images are turned into the same features.
    pixels = load_job(as_given(from_file(job))).dataset.test
    assert pixels is not None
    assert again.dataset.test is not None
    predictor = ft.load(folder)
    expected = predictor.predict_proba(again.dataset.test.inputs)
    np.testing.assert_array_equal(predictor.predict_proba(pixels.inputs), expected)
    with pytest.raises(DataError, match="as in training"):
        predictor.predict(pixels.inputs[:, :, :8, :8])


def test_grey_images_take_scattering(tmp_path):
    found = Job(data={"source": f"npz:{images(tmp_path, 12, channels=1)}"}).load_data()
    assert (found.fixed_features, found.shape) == ("scattering", (81, 3, 3))


def test_a_run_folder_whose_job_says_nothing_goes_on_with_pixels(job):
    assert load_job(resumed(job.parent)).dataset.shape == (3, 12, 12)
    assert load_job(as_given(from_file(job))).card().features is None


def test_the_planner_knows_their_norm(job):
    loaded = load_job(from_file(job))
    asked = loaded.plan_request()
    assert (asked.feature_norm, asked.feature_norm_known) == (1.0, True)
    assert asked.parameters == 2 * (1024 * 16 + 1)


@pytest.mark.parametrize(
    "tables",
    [
        {"model": {}},
        {"model": {"name": "linear"}},
        {"data": {"features": "pixels"}},
        {"data": {"standardise": [0.5, 0.5]}},
        {"training": {"augment": "mirror"}},
        {"training": {"augmentations": 2}},
        {"training": {"learning_rate": 0.1}},
        {"training": {"feature_norm": 3.0}},
        {"training": {"centre": False}},
        {"gossip": {"workers": 4}},
        {"federation": {"clients": 4}},
    ],
    ids=str,
)
def test_a_job_that_says_more_keeps_its_pixels(tmp_path, tables):
    tables = {**tables, "data": {"source": f"npz:{images(tmp_path, 12)}", **tables.get("data", {})}}
    assert Job(**tables).load_data().shape == (3, 12, 12)


def test_auto_goes_with_a_model_too_and_leaves_other_data_alone(tmp_path):
    data = {"source": f"npz:{images(tmp_path, 12)}", "features": "auto"}
    assert Job(data=data, model={"name": "linear"}).load_data().shape == PATCHES
    for source in (f"npz:{images(tmp_path, 8)}", "breast-cancer", "digits"):
        found = load(source, features="auto")
        assert found.fixed_features is None
        np.testing.assert_array_equal(found.train.inputs, load(source).train.inputs)
    assert Job(data={"source": "digits"}).load_data().shape == (1, 8, 8)


def test_pixels_may_be_augmented_and_chosen_features_may_not(tmp_path):
    tables = {"data": {"source": "digits", "features": "pixels"}, "training": {"augmentations": 2}}
    assert Job(**tables).plan_request(100).augment.copies == 2
    tables["data"]["features"] = "auto"
    with pytest.raises(ValueError, match="'auto'"):
        Job(**tables).plan_request(100)


def test_an_audit_of_an_older_run_takes_pixels(job, tmp_path):
    from forethought.jobs.audit import read_run

    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "job.toml").write_text(job.read_text())
    ft.plan(examples=28, budget=ft.Budget(8, 1e-3), rounds=2).save(folder / "plan.json")
    _, loaded, _ = read_run(folder, None)
    assert loaded is not None
    assert loaded.dataset.shape == (3, 12, 12)
