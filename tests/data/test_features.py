from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from forethought.data import DataError, Dataset, Split, features, files, load
from forethought.data.scattering import (
    decorrelation,
    group_normalised,
    scatter,
    scattering_features,
    strokes,
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("FORETHOUGHT_CACHE", str(folder))
    return folder


@pytest.fixture
def images() -> NDArray[np.float32]:
    return np.random.default_rng(0).random((6, 1, 12, 12), dtype=np.float32)


@pytest.fixture
def transforms(monkeypatch):
    """How often the transform really ran."""
    runs = []

    def counted(images):
        runs.append(1)
        return scattering_features(images)

    monkeypatch.setattr(features, "scattering_features", counted)
    return runs


def test_features_are_normalised_decorrelated_scattering(images):
    normalised = group_normalised(scatter(torch.from_numpy(images)), 27)
    mean, matrix = decorrelation(12, 12, 2, 8, 27)
    expected = torch.einsum("cd,ndhw->nchw", matrix, normalised - mean)
    np.testing.assert_allclose(features.cached(images), expected.numpy(), atol=1e-4)


def test_each_example_is_transformed_by_itself(images):
    together = features.cached(images)
    for index in range(len(images)):
        np.testing.assert_array_equal(features.cached(images[index:]), together[index:])
        np.testing.assert_array_equal(
            features.cached(images[index : index + 1])[0], together[index]
        )


@pytest.mark.slow
def test_decorrelation_reads_no_data_and_flattens_the_spectrum():
    mean, matrix = decorrelation(16, 16, 2, 8, 27)
    decorrelation.cache_clear()
    again, matrix_again = decorrelation(16, 16, 2, 8, 27)
    torch.testing.assert_close(mean, again)
    torch.testing.assert_close(matrix, matrix_again)
    other = group_normalised(scatter(strokes(16, 16, images=300, seed=1)), 27)
    plain = (other - mean).movedim(1, -1).reshape(-1, 81)
    flat = plain @ matrix
    spread = [torch.linalg.eigvalsh(rows.T @ rows / len(rows))[-1] for rows in (plain, flat)]
    assert spread[1] < 1.5, "no direction may stand out after decorrelation"
    assert spread[0] > 5 * spread[1]


def test_computed_once(images, transforms, cache):
    first = features.cached(images)
    np.testing.assert_array_equal(features.cached(images), first)
    assert len(transforms) == 1
    assert {path.suffix for path in (cache / "private").iterdir()} == {"", ".npy"}


def test_other_images_have_another_file(images, transforms):
    features.cached(images)
    changed = images.copy()
    changed[3, 0, 5, 5] += 1e-3
    features.cached(changed)
    features.cached(images[:5])
    assert len(transforms) == 3


@pytest.mark.parametrize("harm", ["truncated", "flipped", "empty", "longer", "other shape"])
def test_a_damaged_file_is_computed_again(images, transforms, cache, harm):
    expected = features.cached(images)
    (path,) = (cache / "private").glob("*.npy")
    content = bytearray(path.read_bytes())
    if harm == "truncated":
        del content[-100:]
    elif harm == "flipped":
        content[len(content) // 2] ^= 1
    elif harm == "empty":
        content.clear()
    elif harm == "longer":
        content += b"more"
    else:
        content = bytearray(path.read_bytes().replace(b"(6, 81, 3, 3)", b"(6, 27, 9, 3)"))
    path.write_bytes(bytes(content))
    np.testing.assert_array_equal(features.cached(images), expected)
    assert len(transforms) == 2
    features.cached(images)
    assert len(transforms) == 2, "the file was not mended"


def test_no_half_written_file_is_left(images, cache, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(files.zlib, "crc32", full)
    assert features.cached(images).shape == (6, 81, 3, 3)
    assert [path.name for path in (cache / "private").iterdir()] == ["key"]


def test_a_cache_folder_that_cannot_be_made_is_no_error(images, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FORETHOUGHT_CACHE", str(tmp_path / "file" / "cache"))
    assert features.cached(images).shape == (6, 81, 3, 3)


def test_cache_folder_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("FORETHOUGHT_CACHE")
    monkeypatch.setattr(files.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert features.cache_folder() == tmp_path / "forethought"
    monkeypatch.setattr(files.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    assert features.cache_folder() == tmp_path / "forethought"
    monkeypatch.setattr(files.sys, "platform", "darwin")
    assert features.cache_folder().parts[-3:] == ("Library", "Caches", "forethought")


def test_load_replaces_images_and_says_so():
    plain, scattered = load("digits"), load("digits", features="scattering")
    assert scattered.train.inputs.shape == (len(plain.train), 81, 2, 2)
    assert scattered.test is not None
    assert scattered.test.inputs.shape[1:] == (81, 2, 2)
    np.testing.assert_array_equal(scattered.train.targets, plain.train.targets)
    assert any("scattering" in note for note in scattered.notes)


def test_refused_for_what_is_no_image():
    with pytest.raises(DataError, match="scattering needs images"):
        load("breast-cancer", features="scattering")
    tiny = Split(np.zeros((3, 1, 4, 4), np.float32), np.zeros(3, np.int64))
    with pytest.raises(DataError, match="than 4 pixels"):
        features.with_features(Dataset("tiny", tiny, None, 2), "scattering")
    with pytest.raises(DataError, match="unknown features 'wavelets'"):
        load("digits", features="wavelets")


def test_what_is_kept_is_for_its_owner_only_and_named_by_a_keyed_hash(images, cache, transforms):
    cache.mkdir(mode=0o755)
    features.cached(images)
    folder = cache / "private"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    (name,) = (path.name for path in folder.glob("*.npy"))
    for path in folder.iterdir():
        path.unlink()
    folder.chmod(0o755)  # however it came to be open to others
    features.cached(images)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert name not in {path.name for path in folder.iterdir()}, "the name depends on no key"
    assert len(transforms) == 2


def test_the_statement_names_what_is_kept_and_off_keeps_nothing(images, cache, monkeypatch):
    whole = Split(images, np.zeros(len(images), np.int64))
    kept = features.with_features(Dataset("own", whole, None, 2), "scattering")
    assert [caveat.code for caveat in kept.not_covered] == ["cached-features"]
    monkeypatch.setenv("FORETHOUGHT_CACHE", "off")
    bare = features.with_features(Dataset("own", whole, None, 2), "scattering")
    assert bare.not_covered == ()
    np.testing.assert_array_equal(bare.train.inputs, kept.train.inputs)


def test_features_of_persons_images_are_still_the_persons(images, monkeypatch):
    monkeypatch.setenv("FORETHOUGHT_CACHE", "off")
    count = len(images)
    persons, sites = (np.array([f"{word}{i // 2}" for i in range(count)]) for word in "ps")
    whole = Split(images, np.zeros(count, np.int64))
    data = Dataset("own", whole, None, 2, sites=sites, persons=persons, records_per_person=2)
    made = features.with_features(data, "scattering")
    assert (made.persons == persons).all() and (made.sites == sites).all()
    assert made.records_per_person == 2


def test_the_usual_norm_is_near_that_of_images(monkeypatch):
    monkeypatch.setenv("FORETHOUGHT_CACHE", "off")
    plain, scattered = load("digits"), load("digits", features="scattering")
    for data in (plain, scattered):
        norms = np.linalg.norm(data.train.inputs.reshape(len(data.train), -1), axis=1)
        assert data.feature_norm == pytest.approx(np.sqrt(np.mean(norms**2)), rel=0.5)


def test_bytes_tensors_and_lists_have_the_features_of_the_pixels(images):
    whole = np.round(images * 255).astype(np.uint8)
    pixels = whole / np.float32(255)
    expected = features.features_of(pixels, "patches")
    alike = (whole, torch.from_numpy(whole), torch.from_numpy(pixels), pixels.tolist())
    for given in (*alike, pixels.astype(np.float64)):
        assert np.array_equal(features.features_of(given, "patches"), expected)
    halves = torch.from_numpy(pixels).bfloat16()
    assert features.features_of(halves, "patches").shape == expected.shape


@pytest.mark.parametrize(
    ("given", "name", "words"),
    [
        (np.zeros((2, 1, 12, 12)), "auto", "one of 'scattering', .*, not 'auto'"),
        (np.zeros((2, 1, 12, 12)), None, "one of 'scattering', .*, not None"),
        (None, "patches", "images are numbers"),
        ("image", "patches", "images are numbers"),
        (3, "patches", "patches need images"),
        (np.full((2, 1, 12, 12), np.nan), "patches", "expected 0 to 1"),
        (
            np.full((2, 1, 12, 12), 200),
            "patches",
            "from 200 to 200, expected 0 to 1: divide by 255",
        ),
    ],
)
def test_what_has_no_features_is_refused_in_words(given, name, words):
    with pytest.raises(DataError, match=words):
        features.features_of(given, name)


def test_images_that_would_be_cut_off_are_refused_as_data(images):
    targets = np.zeros(len(images), np.int64)
    data = Dataset("bytes", Split(images * 255, targets), None, 2)
    with pytest.raises(DataError, match=r"bytes: found pixels .* divide by 255"):
        features.with_features(data, "patches")
    with pytest.raises(DataError, match="one of 'scattering'"):
        features.with_features(data, "foo")
