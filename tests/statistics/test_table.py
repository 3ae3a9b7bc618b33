"""Columns from files and from memory are read alike, as they are declared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from forethought.data.columns import TableSchema, UndeclaredError
from forethought.data.files import DataError, TableFormat
from forethought.statistics.table import rows

FRAME = pl.DataFrame(
    {"n": [1.5, 2.0, None], "k": [3, 4, 5], "w": [" A", "B", None], "b": [True, False, True]}
)


def test_files_and_frames_say_the_same(tmp_path: Path) -> None:
    FRAME.write_parquet(tmp_path / "t.parquet")
    FRAME.write_csv(tmp_path / "t.csv")
    for held in (FRAME, FRAME.to_dict(as_series=False), tmp_path / "t.parquet", tmp_path / "t.csv"):
        read = rows(held, {"n", "k", "w", "b"})
        assert len(read) == 3
        assert np.array_equal(read.numbers("n", "skip"), [1.5, 2, np.nan], equal_nan=True)
        assert read.numbers("k", "refuse").tolist() == [3, 4, 5]
        assert read.words("k", "refuse").tolist() == ["3", "4", "5"]
        assert read.words("w", "skip").tolist() == ["A", "B", ""]
    assert rows(FRAME, {"b"}).words("b", "refuse").tolist() == ["1", "0", "1"]
    assert rows(FRAME, {"b"}).numbers("b", "refuse").tolist() == [1, 0, 1]
    # Whole numbers that a gap has made floating-point ones are the same words.
    assert rows({"x": [1.0, None, 2.0]}, {"x"}).words("x", "skip").tolist() == ["1", "", "2"]
    # One of another kind changes no other.
    assert rows({"x": [1.0, 0.5]}, {"x"}).words("x", "skip").tolist() == ["1", "0.5"]


def test_a_declaration_says_how_entries_are_written(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("n;w\n1,5;A\n;B\n")
    schema = TableSchema(
        {"n": {"range": [0, 9], "missing": "middle"}, "w": {"categories": ["A"]}},
        form=TableFormat(separator=";", decimal=","),
    )
    read = rows(path, {"n", "w"}, schema)
    assert np.array_equal(read.numbers("n", "skip"), [1.5, np.nan], equal_nan=True)
    coded = TableSchema({"n": {"range": [0, 9], "codes": [-999], "missing": "middle"}})
    found = rows({"n": [-999.0, 2.5]}, {"n"}, coded).numbers("n", "skip")
    assert np.array_equal(found, [np.nan, 2.5], equal_nan=True)
    again = rows(read.frame, {"n"}, schema)
    assert np.array_equal(again.numbers("n", "skip"), [1.5, np.nan], equal_nan=True)


def test_what_is_no_table_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="mean 'ages'"):
        rows({"ages": [1]}, {"age"}).numbers("age", "refuse")
    with pytest.raises(UndeclaredError, match="a finite number"):
        rows({"n": ["1", "x"]}, {"n"}).numbers("n", "skip")
    with pytest.raises(DataError, match="are no table"):
        rows({"a": [1, 2], "b": [1, 2, 3]}, {"a"})
    with pytest.raises(TypeError, match="a polars frame"):
        rows(3, {"a"})
    with pytest.raises(OSError, match=r"none\.csv"):
        rows(tmp_path / "none.csv", {"a"})
