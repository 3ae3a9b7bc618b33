"""Tables of many pieces: the same as in one, in the memory of their features and little more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from forethought.data import DataError, TableSchema, files, load

COLUMNS = {"a": [0, 100], "b": [-1, 1], "w": {"categories": ["A", "B"], "other": True}}


def table(path: Path, rows: int, columns: int = 2) -> Path:
    draw = np.random.default_rng(0)
    frame = {f"c{n}": draw.uniform(0, 100, rows).round(3) for n in range(columns)}
    frame |= {"w": np.array(["A", "B", "C"])[draw.integers(3, size=rows)]}
    frame |= {"y": np.array(["no", "yes"])[draw.integers(2, size=rows)]}
    pl.DataFrame(frame).write_csv(path)
    return path


@pytest.mark.thinned
@pytest.mark.filterwarnings("ignore:.*words that are not declared")
@pytest.mark.parametrize("size", [1, 7, 100, 4096])
@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_where_pieces_end_changes_nothing(tmp_path, monkeypatch, size, ends):
    rows = [f'{n},{n / 100 - 0.5},"{"ABC"[n % 3]}",{"yn"[n % 2]}' for n in range(60)]
    path = tmp_path / "t.csv"
    path.write_bytes(ends.join(["a,b,w,y", *rows, ""]).encode())
    schema = TableSchema(COLUMNS)
    options = {"label": "y", "classes": ["n", "y"]}
    whole = [load(f"csv:{path}", **options), load(f"csv:{path}", schema=schema, **options)]
    monkeypatch.setattr(files, "PIECE", size)
    pieces = [load(f"csv:{path}", **options), load(f"csv:{path}", schema=schema, **options)]
    for one, other in zip(whole, pieces, strict=True):
        assert np.array_equal(one.train.inputs, other.train.inputs)
        assert np.array_equal(one.train.targets, other.train.targets)
        assert np.array_equal(one.test.inputs, other.test.inputs)
    assert np.array_equal(whole[0].train.targets, whole[1].train.targets)


def test_a_fault_far_down_is_named(tmp_path, monkeypatch):
    path = table(tmp_path / "t.csv", 500)
    lines = path.read_text().splitlines()
    monkeypatch.setattr(files, "PIECE", 1000)
    for entry, message in (
        ("x,1,A,no", "'x' in column c0, example 399"),
        (",1,A,no", "'' in column c0, example 399, expected a number: fill or drop"),
        ("nan,1,A,no", "nan in example 399, feature c0"),
        ("1,1,A", "3 entries in line 400"),
        ('1,1,"A,no', "an open quote in line 400"),
    ):
        path.write_text("\n".join([*lines[:399], entry, *lines[400:]]) + "\n")
        with pytest.raises(DataError, match=message):
            load(f"csv:{path}", label="y")


READ = """
import resource, sys
from forethought.data import TableSchema, load
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
columns = {f"c{n}": [0, 100] for n in range(int(sys.argv[2]))} | {"w": ["A", "B", "C"]}
schema = TableSchema(columns) if sys.argv[3] == "declared" else None
load(f"csv:{sys.argv[1]}", label="y", classes=["no", "yes"], schema=schema)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")
@pytest.mark.parametrize("kind", ["declared", "undeclared"])
def test_memory_stays_below_two_and_a_half_times_the_file(tmp_path, kind):
    """A table of 60 MB; what a piece takes besides weighs less in a larger one."""
    path = table(tmp_path / "t.csv", 200_000, 45)
    command = [sys.executable, "-W", "ignore", "-c", READ, str(path), "45", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert int(done.stdout) < 2.5 * path.stat().st_size + (150 << 20)
