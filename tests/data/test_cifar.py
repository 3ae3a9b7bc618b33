from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from forethought.data import DataError, load

FILES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def rows(seed: int, count: int = 7) -> bytes:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, (count, 1), dtype=np.uint8)
    return np.hstack([labels, rng.integers(0, 256, (count, 3072), dtype=np.uint8)]).tobytes()


def pack(archive: Path, contents: dict[str, bytes], mode: str) -> Path:
    with tarfile.open(archive, mode) as tar:
        for file in sorted(contents, reverse=True):  # the order in the archive does not matter
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{file}")
            member.size = len(contents[file])
            tar.addfile(member, io.BytesIO(contents[file]))
    return archive


@pytest.fixture
def contents() -> dict[str, bytes]:
    return {file: rows(seed) for seed, file in enumerate(FILES)}


@pytest.mark.parametrize(
    ("archive", "mode"),
    [
        ("cifar-10-binary.tar.gz", "w:gz"),
        ("cifar-10-batches-bin.tar.xz", "w:xz"),
        ("cifar-10-binary.tar", "w"),
    ],
)
def test_reads_archives_without_unpacking(tmp_path: Path, contents, archive, mode):
    pack(tmp_path / archive, contents, mode)
    data = load("cifar10", folder=tmp_path)
    assert data.test is not None
    assert data.train.inputs.shape == (35, 3, 32, 32)
    assert data.test.inputs.shape == (7, 3, 32, 32)
    second = np.frombuffer(contents[FILES[1]], np.uint8).reshape(7, 3073)
    np.testing.assert_array_equal(data.train.targets[7:14], second[:, 0])
    np.testing.assert_allclose(
        data.train.inputs[7:14].reshape(7, -1), second[:, 1:] / 255, rtol=1e-6
    )
    assert [path.name for path in tmp_path.iterdir()] == [archive]
    assert data.notes == ("pixels divided by 255",)


@pytest.mark.parametrize(
    "inside", ["cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "cifar10"]
)
def test_reads_a_folder(tmp_path: Path, contents, inside):
    (tmp_path / inside).mkdir(parents=True)
    for file, content in contents.items():
        (tmp_path / inside / file).write_bytes(content)
    assert load("cifar10", folder=tmp_path).train.inputs.shape == (35, 3, 32, 32)


def test_copies_with_inexact_rows_say_so(tmp_path: Path, contents):
    pack(tmp_path / "cifar-10-binary.tar.gz", contents, "w:gz")
    (tmp_path / "approx_rows.json").write_text(json.dumps({"rows": {"a": [1, 2], "b": [3]}}))
    assert any(
        "3 images are not byte-exact" in note for note in load("cifar10", folder=tmp_path).notes
    )
    (tmp_path / "approx_rows.json").write_text("[]")
    with pytest.raises(DataError, match=r"approx_rows\.json: found no"):
        load("cifar10", folder=tmp_path)


def test_a_missing_batch(tmp_path: Path, contents):
    del contents["data_batch_3.bin"]
    pack(tmp_path / "cifar-10-binary.tar.gz", contents, "w:gz")
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: found no"):
        load("cifar10", folder=tmp_path)


def test_a_short_batch(tmp_path: Path, contents):
    contents["data_batch_3.bin"] = contents["data_batch_3.bin"][:-1]
    pack(tmp_path / "cifar-10-binary.tar.gz", contents, "w:gz")
    with pytest.raises(DataError, match=r"data_batch_3\.bin: found 21510"):
        load("cifar10", folder=tmp_path)


def test_a_label_out_of_range(tmp_path: Path, contents):
    harmed = bytearray(contents["test_batch.bin"])
    harmed[2 * 3073] = 10
    contents["test_batch.bin"] = bytes(harmed)
    pack(tmp_path / "cifar-10-binary.tar.gz", contents, "w:gz")
    with pytest.raises(DataError, match=r"test_batch\.bin: found label"):
        load("cifar10", folder=tmp_path)


@pytest.mark.parametrize(("ending", "mode"), [(".gz", "w:gz"), (".xz", "w:xz")])
@pytest.mark.parametrize("harm", ["truncated", "flipped", "no archive"])
def test_a_damaged_archive(tmp_path: Path, contents, ending, mode, harm):
    path = pack(tmp_path / f"cifar-10-batches-bin.tar{ending}", contents, mode)
    content = bytearray(path.read_bytes())
    if harm == "truncated":
        del content[len(content) // 2 :]
    elif harm == "flipped":
        content[len(content) // 2] ^= 0xFF
    else:
        content = bytearray(b"no archive at all")
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=rf"tar\{ending}: found"):
        load("cifar10", folder=tmp_path)


@pytest.mark.slow
def test_original_archive(real_data: Path):
    data = load("cifar10", folder=real_data)
    assert data.test is not None
    assert data.train.inputs.shape == (50_000, 3, 32, 32)
    assert data.test.inputs.shape == (10_000, 3, 32, 32)
    assert np.bincount(data.train.targets).tolist() == [5_000] * 10
    assert data.train.targets[:5].tolist() == [6, 9, 9, 4, 1]
    # The published channel means of the training images.
    means = data.train.inputs.mean((0, 2, 3), dtype=np.float64)
    np.testing.assert_allclose(means, [0.49140, 0.48216, 0.44653], atol=2e-4)
    assert any("174 images" in note for note in data.notes)


def test_an_unpacked_folder_goes_before_the_archive(tmp_path: Path, contents):
    """An unpacked folder is preferred to the archive beside it: it is read faster."""
    pack(tmp_path / "cifar-10-binary.tar.gz", {}, "w:gz")
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for file, content in contents.items():
        (tmp_path / "cifar-10-batches-bin" / file).write_bytes(content)
    assert len(load("cifar10", folder=tmp_path).train) == 35
    shutil.rmtree(tmp_path / "cifar-10-batches-bin")
    with pytest.raises(DataError, match="found no data_batch_1"):
        load("cifar10", folder=tmp_path)
