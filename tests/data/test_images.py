from __future__ import annotations

import gzip
import time
from pathlib import Path

import numpy as np
import pytest

from forethought.data import DataError, load
from forethought.data.sources import read_idx


def idx(array: np.ndarray, magic: int | None = None) -> bytes:
    start = magic if magic is not None else 0x0800 + array.ndim
    return start.to_bytes(4, "big") + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny data set of the same layout: 30 and 10 images of 4 × 5 pixels."""
    rng = np.random.default_rng(0)
    for stem, size in (("train", 30), ("t10k", 10)):
        images = rng.integers(0, 256, (size, 4, 5), dtype=np.uint8)
        labels = (np.arange(size) % 10).astype(np.uint8)
        (tmp_path / f"{stem}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{stem}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "mean", "first"),
    [("mnist", 0.1306604762738429, [5, 0, 4, 1, 9]), ("fashion-mnist", 0.28604, [9, 0, 0, 3, 0])],
)
def test_original_files(real_data: Path, name, mean, first):
    start = time.perf_counter()
    data = load(name, folder=real_data)
    seconds = time.perf_counter() - start
    assert data.test is not None
    assert data.train.inputs.shape == (60_000, 1, 28, 28)
    assert data.test.inputs.shape == (10_000, 1, 28, 28)
    assert data.train.inputs.dtype == np.float32
    assert data.train.targets.dtype == np.int64
    assert (data.train.inputs.min(), data.train.inputs.max()) == (0.0, 1.0)
    # The published mean of the training pixels, to the digits usually quoted.
    assert data.train.inputs.mean(dtype=np.float64) == pytest.approx(mean, abs=2e-5)
    assert data.train.targets[:5].tolist() == first
    assert data.classes == 10
    assert np.bincount(data.test.targets).sum() == 10_000
    assert seconds < 30, "far slower than the second it takes alone"


def test_reads_plain_and_gzipped(folder: Path):
    data = load("mnist", folder=folder)
    assert data.train.inputs.shape == (30, 1, 4, 5)
    assert data.train.targets[:11].tolist() == [*range(10), 0]
    raw = read_idx(folder / "train-images-idx3-ubyte", 3)
    np.testing.assert_allclose(data.train.inputs[:, 0], raw / 255, rtol=1e-6)
    inside = folder / "mnist"
    inside.mkdir()
    for file in [path for path in folder.iterdir() if path.is_file()]:
        file.rename(inside / file.name.replace("-idx", ".idx"))
    assert len(load("mnist", folder=folder).train) == 30


def test_missing_file(folder: Path):
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        load("mnist", folder=folder)


def harmed(folder: Path, file: str, content: bytes) -> str:
    (folder / file).write_bytes(content)
    with pytest.raises(DataError) as caught:
        load("mnist", folder=folder)
    assert file in str(caught.value)
    return str(caught.value)


def test_wrong_magic_number(folder: Path):
    message = harmed(folder, "train-images-idx3-ubyte", idx(np.zeros((3, 4, 5), np.uint8), 0x0D03))
    assert "0x00000d03" in message
    assert "expected the magic number 0x00000803" in message


def test_labels_where_images_should_be(folder: Path):
    message = harmed(folder, "train-images-idx3-ubyte", idx(np.zeros(30, np.uint8)))
    assert "0x00000801" in message


def test_truncated_and_too_long(folder: Path):
    whole = (folder / "train-images-idx3-ubyte").read_bytes()
    assert "599 bytes of data, expected 600" in harmed(
        folder, "train-images-idx3-ubyte", whole[:-1]
    )
    assert "601 bytes of data" in harmed(folder, "train-images-idx3-ubyte", whole + b"x")
    assert "3 bytes that start with" in harmed(folder, "train-images-idx3-ubyte", whole[:3])
    assert "0 bytes" in harmed(folder, "train-images-idx3-ubyte", b"")


def test_corrupt_gzip(folder: Path):
    file = "train-labels-idx1-ubyte.gz"
    whole = (folder / file).read_bytes()
    assert "truncated or corrupt" in harmed(folder, file, whole[:-4])


def test_count_mismatch(folder: Path):
    content = gzip.compress(idx(np.zeros(29, np.uint8)))
    message = harmed(folder, "train-labels-idx1-ubyte.gz", content)
    assert "29 labels, expected one for each of the 30 images" in message


def test_label_out_of_range(folder: Path):
    labels = np.zeros(30, np.uint8)
    labels[7] = 10
    message = harmed(folder, "train-labels-idx1-ubyte.gz", gzip.compress(idx(labels)))
    assert "label 10 in example 8, expected labels from 0 to 9" in message


def test_no_images_at_all(folder: Path):
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(0, np.uint8))))
    message = harmed(folder, "train-images-idx3-ubyte", idx(np.zeros((0, 4, 5), np.uint8)))
    assert "at least one image" in message


def test_parts_of_different_sizes(folder: Path):
    images = idx(np.zeros((10, 4, 6), np.uint8))
    (folder / "t10k-images-idx3-ubyte").write_bytes(images)
    with pytest.raises(DataError, match=r"\(4, 6\) pixels"):
        load("mnist", folder=folder)
