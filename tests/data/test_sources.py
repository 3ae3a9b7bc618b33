from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from forethought.data import DataError, Split, load, names
from forethought.data.dataset import split_off


def test_digits():
    data = load("digits")
    assert data.test is not None
    assert data.train.inputs.shape == (1438, 1, 8, 8)
    assert len(data.test) == 359
    assert (data.train.inputs.min(), data.train.inputs.max(), data.classes) == (0, 1, 10)
    assert np.array_equal(data.train.inputs * 16, np.round(data.train.inputs * 16))


def test_breast_cancer_uses_bounds_that_hold_all_rows():
    from sklearn.datasets import load_breast_cancer

    from forethought.data.bundled import _BOUNDS

    raw = load_breast_cancer()
    bounds = np.array(list(_BOUNDS.values())).T.ravel()
    names_of_bounds = [
        f"{kind} {measure}" if kind != "error" else f"{measure} error"
        for kind in ("mean", "error", "worst")
        for measure in _BOUNDS
    ]
    assert names_of_bounds == raw.feature_names.tolist()
    assert (raw.data.max(0) <= bounds).all(), "a bound clips the public range"
    data = load("breast-cancer")
    assert data.test is not None
    assert len(data.train) + len(data.test) == 569
    assert (data.train.inputs.shape[1], data.classes) == (30, 2)
    assert -1 <= data.train.inputs.min() < -0.9
    assert 0.5 < data.train.inputs.max() <= 1


def test_the_split_is_the_same_every_time_and_loses_nothing():
    whole = Split(np.arange(100, dtype=np.float32)[:, None], np.arange(100))
    train, test = split_off(whole, None)
    again, _ = split_off(whole, None)
    assert (len(train), len(test)) == (80, 20)
    np.testing.assert_array_equal(train.targets, again.targets)
    assert sorted([*train.targets, *test.targets]) == list(range(100))
    assert len(load("digits", holdout=0.5).train) in (898, 899)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, True])
def test_a_share_that_is_none(share):
    with pytest.raises(ValueError, match="holdout must be a share"):
        load("digits", holdout=share)


def test_a_part_that_would_be_empty():
    with pytest.raises(DataError, match="one part would be empty"):
        split_off(Split(np.zeros((2, 1), np.float32), np.arange(2)), 0.01)


@pytest.mark.parametrize(
    ("source", "nearest"),
    [
        ("minst", "'mnist'"),
        ("cifar-10", "'cifar10'"),
        ("fashion_mnist", "'fashion-mnist'"),
        ("digit", "'digits'"),
        ("svmligth:a9a", "'svmlight:PATH'"),
        ("csv", "'csv:PATH'"),
    ],
)
def test_unknown_sources_suggest_the_nearest(source, nearest):
    with pytest.raises(DataError, match=f"unknown data source.*Did you mean {nearest}"):
        load(source)


def test_options_that_do_not_go_together():
    for options, message in [
        ({"label": "y"}, "label= goes with csv"),
        ({"test": "t.csv"}, "test= goes with csv:PATH and svmlight"),
        ({"holdout": 0.2}, "test part of its own"),
    ]:
        with pytest.raises(DataError, match=message):
            load("mnist", **options)
    with pytest.raises(TypeError, match="source must be a string"):
        load(3)  # type: ignore[arg-type]


def test_names_are_listed():
    assert names() == (
        "digits",
        "breast-cancer",
        "mnist",
        "fashion-mnist",
        "cifar10",
        "svmlight:PATH",
        "csv:PATH",
        "npz:PATH",
    )


def test_importing_the_room_loads_no_heavy_library():
    code = (
        "import sys, forethought.data; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'sklearn', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
