from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from forethought.data import DataError, load


@pytest.fixture
def write(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "t.svm") -> str:
        Path(name).write_bytes(
            gzip.compress(text.encode()) if name.endswith("gz") else text.encode()
        )
        return f"svmlight:{name}"

    return write


TEXT = "-1 1:0.5 3:2\n+1 2:-1 # a comment\n+1 1:1 2:1 3:1\n-1 3:4\n"


@pytest.mark.parametrize("name", ["t.svm", "t.svm.gz"])
def test_dense_features_and_classes(write, name):
    write("+1 1:9\n", "test.svm")
    data = load(write(TEXT, name), test="test.svm")
    assert data.train.inputs.tolist() == [[0.5, 0, 2], [0, -1, 0], [1, 1, 1], [0, 0, 4]]
    assert data.train.targets.tolist() == [0, 1, 1, 0]
    assert data.test is not None
    assert data.test.inputs.tolist() == [[9, 0, 0]]
    assert data.classes == 2
    assert [caveat.code for caveat in data.not_covered] == [
        "kind-from-data",
        "classes-from-data",
        "features-from-data",
    ]


def test_a_test_file_with_more_features_widens_both(write):
    write("+1 5:9\n", "test.svm")
    data = load(write(TEXT), test="test.svm")
    assert data.train.inputs.shape == (4, 5)
    assert data.test is not None
    assert data.test.inputs.tolist() == [[0, 0, 0, 0, 9]]


@pytest.mark.thinned
@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("w8a", (49_749, 300), 2),
        ("phishing", (11_055, 68), 2),
        ("mushrooms", (8_124, 112), 2),
        ("splice", (3_175, 60), 2),
        ("svmguide1", (3_089, 4), 2),
        ("german.numer_scale", (1_000, 24), 2),
        ("breast-cancer", (683, 10), 2),
    ],
)
def test_original_files(real_data: Path, name, shape, classes):
    data = load(f"svmlight:libsvm/{name}.gz", folder=real_data)
    assert data.test is not None
    assert (len(data.train) + len(data.test), data.train.inputs.shape[1]) == shape
    assert data.classes == classes
    assert set(np.unique(data.train.targets)) == {0, 1}


def test_a9a_and_its_test_file_have_one_width(real_data: Path):
    data = load("svmlight:libsvm/a9a.gz", folder=real_data, test="libsvm/a9a.t.gz")
    assert data.test is not None
    assert data.train.inputs.shape == (32_561, 123)
    assert data.test.inputs.shape == (16_281, 123)
    assert np.bincount(data.train.targets).tolist() == [24_720, 7_841]
    assert np.bincount(data.test.targets).tolist() == [12_435, 3_846]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:2\nhello world\n", "no svmlight text"),
        ("1 1:2\n0 0:2\n", "no svmlight text"),
        ("1 1:2\n0 2:nan\n", "found nan in example 2, feature 2"),
        ("1 1:2\n0 2:1e39\n", "found inf in example 2"),
        ("nan 1:2\n0 2:1\n", "found label nan in example 1"),
        ("1 1:2\n1 2:1\n", "only the label 1.0"),
        ("", "0 examples with no feature"),
        ("1\n0\n", "2 examples with no feature"),
        ("1 1:2\n0 2147483000:1\n", "stored densely"),
    ],
)
def test_faults_are_named(write, text, message):
    with pytest.raises(DataError, match=rf"t\.svm.*{message}"):
        load(write(text))


def test_a_test_label_that_training_does_not_have(write):
    write("3 1:9\n", "test.svm")
    with pytest.raises(DataError, match=r"test\.svm: found label"):
        load(write(TEXT), test="test.svm")


def test_values_to_regress_on(write):
    data = load(write("0.5 1:1\n1.5 1:2\n-3 1:3\n2 1:4\n7 1:5\n"))
    assert data.classes is None
    assert data.train.targets.dtype == np.float32
