from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from forethought.data import DataError, load
from forethought.data.sources import load_records


@pytest.fixture
def save(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def save(**arrays) -> str:
        np.savez("t.npz", **arrays)
        return "npz:t.npz"

    return save


def test_parts_of_their_own(save):
    x, y = np.arange(12, dtype=np.float64).reshape(6, 2), np.array([3, 5, 3, 5, 9, 9])
    data = load(save(x_train=x, y_train=y, x_test=x[:2], y_test=y[:2]))
    assert data.train.inputs.dtype == np.float32
    np.testing.assert_array_equal(data.train.inputs, x)
    assert data.train.targets.tolist() == [0, 1, 0, 1, 2, 2]
    assert data.test is not None
    assert data.test.targets.tolist() == [0, 1]
    assert data.classes == 3


def test_one_part_is_split(save):
    x, y = np.eye(200), np.arange(200) % 2
    for keys in (("x", "y"), ("x_train", "y_train")):
        data = load(save(**dict(zip(keys, (x, y), strict=True))), holdout=0.3)
        assert data.test is not None
        assert len(data.train) + len(data.test) == 200
        assert 40 < len(data.test) < 80


def test_bytes_are_pixels(save):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 5, 6), dtype=np.uint8)
    labels = {"y_train": np.arange(8) % 2, "y_test": np.arange(8) % 2}
    grey = load(save(x_train=pixels, x_test=pixels, **labels))
    assert grey.train.inputs.shape[1:] == (1, 5, 6)
    assert grey.train.inputs.max() <= 1
    colour = load(
        save(**dict.fromkeys(("x_train", "x_test"), np.stack([pixels] * 3, -1)), **labels)
    )
    assert colour.train.inputs.shape[1:] == (3, 5, 6)
    np.testing.assert_array_equal(colour.train.inputs[:, 2], grey.train.inputs[:, 0])
    first = load(save(**dict.fromkeys(("x_train", "x_test"), np.stack([pixels] * 3, 1)), **labels))
    np.testing.assert_array_equal(first.train.inputs, colour.train.inputs)


def test_a_file_that_holds_no_such_arrays_is_refused(tmp_path):
    """As a DataError, not as whatever NumPy makes of it."""
    np.save(tmp_path / "one.npy", np.eye(3))
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as made:
        made.writestr("x.npy", b"abc")
        made.writestr("y.npy", b"")
    for name in ("one.npy", "text.npz"):
        with pytest.raises(DataError, match="expected"):
            load(f"npz:{tmp_path / name}")
    with pytest.raises(DataError, match="an array"):
        load_records(tmp_path / "text.npz")
    np.testing.assert_array_equal(load_records(tmp_path / "one.npy"), np.eye(3))
    header = io.BytesIO()
    large = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 10**6)}
    np.lib.format.write_array_header_1_0(header, large)
    (tmp_path / "large.npy").write_bytes(header.getvalue())
    with pytest.raises(DataError, match="no readable"):
        load_records(tmp_path / "large.npy")


def test_classes_are_a_list_and_no_word(save):
    with pytest.raises(DataError, match="list of labels"):
        load(save(x=np.eye(40), y=np.array(["y", "e"] * 20)), classes="yes")


def test_kinds_of_labels(save):
    x = np.eye(40)
    assert load(save(x=x, y=np.array(["b", "a"] * 20))).classes == 2
    assert load(save(x=x, y=np.array([[0], [1]] * 20))).classes == 2
    assert load(save(x=x, y=np.array([True, False] * 20))).classes == 2
    assert load(save(x=x, y=np.arange(40) / 10)).classes is None


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.eye(2)}, "the arrays a, expected x_train and y_train"),
        ({"x_train": np.eye(2)}, "expected x_train and y_train"),
        (
            {"x_train": np.eye(2), "y_train": np.arange(2), "x_test": np.eye(2)},
            "expected x_train and y_train",
        ),
        ({"x": np.eye(3), "y": np.arange(2)}, "3 examples in x and 2 in y"),
        ({"x": np.array([[1, np.nan], [2, 3]]), "y": np.arange(2)}, "found nan in example 1"),
        ({"x": np.array([[1, 2], [np.inf, 3]]), "y": np.arange(2)}, "found inf in example 2"),
        ({"x": np.arange(2), "y": np.arange(2)}, r"x: found int64 of shape \(2,\)"),
        ({"x": np.array([["a"], ["b"]]), "y": np.arange(2)}, "x: found <U1"),
        ({"x": np.eye(2), "y": np.eye(2)}, r"y: found float64 of shape \(2, 2\)"),
        ({"x": np.eye(2), "y": np.array([1.0, np.nan])}, "found label nan in example 2"),
        (
            {
                "x_train": np.eye(2),
                "y_train": np.arange(2),
                "x_test": np.eye(3),
                "y_test": np.array([0, 1, 1]),
            },
            "examples of shapes",
        ),
    ],
)
def test_faults_are_named(save, arrays, message):
    with pytest.raises(DataError, match=rf"t\.npz.*{message}"):
        load(save(**arrays))


@pytest.mark.parametrize("harm", ["truncated", "flipped", "text", "objects"])
def test_damage_is_named(save, tmp_path: Path, harm):
    source = save(x=np.random.default_rng(0).random((50, 4)), y=np.arange(50) % 2)
    path = tmp_path / "t.npz"
    content = bytearray(path.read_bytes())
    if harm == "objects":
        np.savez(path, x=np.array([{}, {}]), y=np.arange(2))
    else:
        if harm == "truncated":
            del content[-30:]
        elif harm == "flipped":
            content[600] ^= 0xFF
        else:
            content = bytearray(b"hello")
        path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"t\.npz: found no"):
        load(source)


def test_more_than_a_thousand_whole_numbers_are_values(save):
    data = load(save(x=np.zeros((1500, 1)), y=np.arange(1500)))
    assert data.classes is None
    with pytest.raises(DataError, match="1500 different words"):
        load(save(x=np.zeros((1500, 1)), y=np.array([f"w{row}" for row in range(1500)])))
