"""Columns from files and from memory are read alike, as they are declared."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("entries", "more", "words"),
    [
        ([Decimal("0.50"), Decimal("1E+2")], Decimal("0.125"), ["0.5", "100"]),
        ([Decimal("1E+20")], Decimal("1E-30"), ["100000000000000000000"]),
        ([Decimal("0.123456789012345678")], 0.5, ["0.123456789012345678"]),
        ([10**16 + 1, 2], 0.5, ["10000000000000001", "2"]),
        ([0.123456789], np.float32(0.5), ["0.123456789"]),
        ([1, 2], "a", ["1", "2"]),
        ([True, False], "a", ["1", "0"]),
        ([date(2020, 1, 2)], datetime(2020, 1, 2, 3), ["2020-01-02"]),
    ],
)
def test_no_entry_changes_how_another_is_written(
    entries: list[Any], more: Any, words: list[str]
) -> None:
    for held in (entries, [*entries, more], [more, *entries]):
        found = rows({"x": held}, {"x"}).words("x", "refuse").tolist()
        assert found[len(found) - len(words) :] == words or found[: len(words)] == words
        again = rows({"x": np.array(held, dtype=object)}, {"x"}).words("x", "refuse").tolist()
        assert again == found


def test_the_type_of_a_stored_column_changes_no_word(tmp_path: Path) -> None:
    for scale in (2, 20):
        prices = pl.Series([Decimal("0.5"), Decimal("100")], dtype=pl.Decimal(38, scale))
        pl.DataFrame({"x": prices}).write_parquet(tmp_path / "t.parquet")
        read = rows(tmp_path / "t.parquet", {"x"})
        assert read.words("x", "refuse").tolist() == ["0.5", "100"]
        assert read.numbers("x", "refuse").tolist() == [0.5, 100]
        comma = TableSchema({"x": [0, 100]}, form=TableFormat(decimal=",", separator=";"))
        read = rows(tmp_path / "t.parquet", {"x"}, comma)
        assert read.numbers("x", "refuse").tolist() == [0.5, 100]
        assert rows({"x": [0.5]}, {"x"}, comma).numbers("x", "refuse").tolist() == [0.5]
    days = pl.Series([datetime(2020, 1, 2), datetime(2020, 1, 2, 3)])
    assert rows(pl.DataFrame({"x": days}), {"x"}).words("x", "refuse").tolist() == [
        "2020-01-02",
        "2020-01-02 03:00:00",
    ]
    assert rows({"x": ["true", "False"]}, {"x"}).words("x", "refuse").tolist() == ["1", "0"]
    # What is around a word is taken away as for training: blanks, and no separators of ASCII.
    odd = [" 10\u3000", "\x1fa", "2020-01-02 00:00:00.0"]
    found = rows({"x": odd}, {"x"}).words("x", "refuse").tolist()
    assert found == ["10", "\x1fa", "2020-01-02"]
    # A float32 is written as in float64, and floats may stand for several whole numbers.
    single = pl.Series([0.1, 7.0], dtype=pl.Float32)
    for held in (single, single.cast(pl.Float64), single.to_numpy().astype(object)):
        assert rows({"x": held}, {"x"}).words("x", "refuse").tolist() == ["0.1", "7"]
    with pytest.raises(DataError, match="beyond 2"):
        rows({"x": np.array([1e16, 0.5])}, {"x"}).words("x", "refuse")
    pl.DataFrame({"x": ["0.25", "a"], "y": ["b", "c"]}).write_excel(tmp_path / "t.xlsx")
    assert rows(tmp_path / "t.xlsx", {"y"}).words("y", "refuse").tolist() == ["b", "c"]
    assert rows(tmp_path / "t.xlsx", {"x"}).words("x", "refuse").tolist() == ["0.25", "a"]


def test_what_is_no_word_number_or_time_is_refused() -> None:
    with pytest.raises(DataError, match="type list"):
        rows({"x": [[1], [2]]}, {"x"})
    with pytest.raises(DataError, match="of type List"):
        rows(pl.DataFrame({"x": [[1], [2]]}), {"x"}).words("x", "refuse")
    for unused in ([[1], [2]], [True, 0.5], ["a", 1]):  # polars knows no type for these
        held = {"unused": unused, "x": [1, 2]}
        assert rows(held, {"x"}).words("x", "refuse").tolist() == ["1", "2"]
        assert len(rows(held, {})) == 2


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


PERSONS = TableSchema({"x": [0, 9]}, person="who", records_per_person=2)


def test_the_rows_of_a_person_depend_on_that_person_alone() -> None:
    held = {"who": [n // 6 for n in range(60)], "x": [n % 6 for n in range(60)]}
    first = rows(held, {"x"}, PERSONS)
    kept = sorted(zip(first.words("who", "refuse"), first.words("x", "refuse"), strict=True))
    assert len(kept) == 20 and len({*kept}) == 20
    # A person more, whose entries make floats of all others.
    more = {"who": [77.5] * 9 + held["who"], "x": [0.5] * 9 + held["x"]}
    for other in (more, pl.DataFrame(more, strict=False)):
        after = rows(other, {"x"}, PERSONS)
        found = zip(after.words("who", "refuse"), after.words("x", "refuse"), strict=True)
        assert sorted(found) == sorted([*kept, ("77.5", "0.5"), ("77.5", "0.5")])
    with pytest.raises(DataError, match="no person"):
        rows({"who": ["a", None], "x": [1, 2]}, {"x"}, PERSONS)
    with pytest.raises(DataError, match="no column 'who'"):
        rows({"x": [1, 2]}, {"x"}, PERSONS)


def test_what_is_no_table_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="mean 'ages'"):
        rows({"ages": [1]}, {"age"}).numbers("age", "refuse")
    with pytest.raises(UndeclaredError, match="a finite number"):
        rows({"n": ["1", "x"]}, {"n"}).numbers("n", "skip")
    with pytest.raises(DataError, match="are no table"):
        rows({"a": [1, 2], "b": [1, 2, 3]}, {"a", "b"})
    with pytest.raises(TypeError, match="a polars frame"):
        rows(3, {"a"})
    with pytest.raises(OSError, match=r"none\.csv"):
        rows(tmp_path / "none.csv", {"a"})


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["10", "NA", "20"])])
def test_words_from_a_list_are_read_as_text(kind: Any) -> None:
    read = rows(pl.DataFrame({"a": pl.Series(["10", "NA", "20"], dtype=kind)}), ["a"])
    assert read.words("a", "skip").tolist() == ["10", "", "20"]
    assert read.numbers("a", "skip")[::2].tolist() == [10, 20]
