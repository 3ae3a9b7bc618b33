from __future__ import annotations

import subprocess
import sys
from collections import Counter
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from forethought.data import DataError, Split, TableSchema, load, names, of_persons
from forethought.data.dataset import split_off, told_apart


def test_digits():
    data = load("digits")
    assert data.test is not None
    assert data.train.inputs.shape == (1443, 1, 8, 8)
    assert len(data.test) == 354
    assert (data.train.inputs.min(), data.train.inputs.max(), data.classes) == (0, 1, 10)
    assert np.array_equal(data.train.inputs * 16, np.round(data.train.inputs * 16))


def test_breast_cancer_uses_bounds_that_hold_all_rows():
    from sklearn.datasets import load_breast_cancer

    from forethought.data.sources import BOUNDS

    raw = load_breast_cancer()
    bounds = np.array(list(BOUNDS.values())).T.ravel()
    names_of_bounds = [
        f"{kind} {measure}" if kind != "error" else f"{measure} error"
        for kind in ("mean", "error", "worst")
        for measure in BOUNDS
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
    assert len(train) + len(test) == 100
    assert 8 <= len(test) <= 32
    np.testing.assert_array_equal(train.targets, again.targets)
    assert sorted([*train.targets, *test.targets]) == list(range(100))
    assert 840 < len(load("digits", holdout=0.5).train) < 960


def of_kinds(path: Path, rows: list[int], **options: Any) -> tuple[Counter[Any], Counter[Any]]:
    """Training and held-out rows of a table of few kinds."""
    kinds = "abc"
    lines = [f"{row // 3},{kinds[row % 3]},{row % 2}\n" for row in rows]
    path.write_text("size,ward,y\n" + "".join(lines))
    size = "drop" if options else [0, 4]  # what a split goes by is no feature
    schema = TableSchema({"size": size, "ward": list(kinds)})
    data = load(f"csv:{path}", label="y", classes=[0, 1], schema=schema, **options)
    assert data.test is not None
    found = (
        Counter(zip(map(bytes, part.inputs), part.targets.tolist(), strict=True))
        for part in (data.train, data.test)
    )
    return next(found), next(found)


def test_one_row_more_among_equal_ones_is_one_more_on_one_side(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).integers(0, 12, 300).tolist()
    train, held = of_kinds(tmp_path / "t.csv", rows)
    assert set(held) == set(train) and len(train) == 12  # every kind on both sides
    assert 30 <= held.total() <= 90
    for gone in range(0, 300, 7):
        less, apart = of_kinds(tmp_path / "t.csv", rows[:gone] + rows[gone + 1 :])
        assert not less - train and not apart - held
        assert (train - less).total() + (held - apart).total() == 1


def test_a_row_with_the_mark_between_entries_moves_no_other(tmp_path: Path) -> None:
    schema = TableSchema({name: ["a", "b\x1fa", "a\x1fb", "b"] for name in ("one", "two")})
    options: dict[str, Any] = {"label": "y", "classes": [0, 1], "schema": schema, "holdout": 0.5}
    first, second = "a\x1fb,a", "a,b\x1fa"
    # Rows of others, on either side of the split, and now and then one that a text joins alike.
    pairs = [f"{one},{two},{label}" for one in "ab" for two in "ab" for label in (0, 1)] * 3

    def held(rows: list[str]) -> Counter[bytes]:
        path = tmp_path / "t.csv"
        path.write_text("one,two,y\n" + "".join(f"{row}\n" for row in rows))
        found = load(f"csv:{path}", **options).test
        return Counter(map(bytes, found.inputs)) if found is not None else Counter()

    for count in range(1, 12):
        less = held([*pairs, *[f"{first},1"] * (count - 1), f"{second},1"])
        more = held([*pairs, *[f"{first},1"] * count, f"{second},1"])
        assert not less - more and (more - less).total() <= 1


def test_places_alone_do_not_say_that_records_are_equal() -> None:
    hashes = np.array([[7, 1, 1], [7, 1, 2], [7, 1, 1], [9, 1, 1]], np.uint64)
    apart = told_apart(hashes)
    assert apart[[0, 1, 3]].tolist() == [7, 7, 9] and apart[2] not in (7, 9)


def test_equal_rows_of_one_person_stay_together(tmp_path: Path) -> None:
    rows = [row % 12 for row in range(240)]
    train, held = of_kinds(tmp_path / "t.csv", rows, split_by="size")  # four persons
    assert (train.total(), held.total()) == (180, 60)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, True])
def test_a_share_that_is_none(share):
    with pytest.raises(ValueError, match="holdout must be"):
        load("digits", holdout=share)


def test_a_part_that_would_be_empty():
    with pytest.raises(DataError, match="one part would"):
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


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("mine.csv", "csv:mine.csv"),
        ("cvs:mine.csv", "csv:mine.csv"),
        ("cvs:/a/mine.csv", "csv:/a/mine.csv"),
        ("xlsx:mine.xlsx", "excel:mine.xlsx"),
        ("D:mine.parquet", "parquet:D:mine.parquet"),
        ("https://a/mine.csv", "csv:https://a/mine.csv"),
    ],
)
def test_a_file_with_no_format_or_a_misspelt_one_is_told_the_right_one(source, wanted):
    with pytest.raises(DataError, match=f"as in '{wanted}'"):
        load(source)


def test_options_that_do_not_go_together():
    for options, message in [
        ({"label": "y"}, "label= goes with a table"),
        ({"test": "t.csv"}, "test= goes with tables and svmlight"),
        ({"holdout": 0.2}, "test part of its own"),
    ]:
        with pytest.raises(DataError, match=message):
            load("mnist", **options)
    with pytest.raises(TypeError, match="source must be"):
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
        "parquet:PATH",
        "excel:PATH",
    )


def test_importing_the_room_loads_no_heavy_library():
    code = (
        "import sys, forethought.data; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'sklearn', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def table(folder, rows, name="t.csv", header="age,ward,stay,outcome"):
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n")
    return f"csv:{path}"


def rows_of(count, seed=0):
    random = np.random.default_rng(seed)
    return [
        f"{random.integers(20, 90)},{'ABC'[random.integers(3)]},{index / 10},{random.integers(2)}"
        for index in range(count)
    ]


def stays(data, column, unit=1.0):
    """The rows of each part, told apart by the running number in one of their columns."""
    parts = (data.train, data.test)
    return [{round(value / unit) for value in part.inputs[:, column].tolist()} for part in parts]


def test_one_appended_record_moves_nobody_else_across_the_split(tmp_path):
    rows = rows_of(600)
    # The new record brings a category, a class and a place in the order that no other has.
    for extra in ("33,A,60,1", "33,NEW,60,7"):
        before = load(table(tmp_path, rows), label="outcome")
        after = load(table(tmp_path, [extra, *rows]), label="outcome")
        moved = [
            old ^ new
            for old, new in zip(
                stays(before, -1, 0.1),
                stays(after, -1, 0.1),
                strict=True,
            )
        ]
        assert moved[0] | moved[1] <= {600}
        assert 0.14 < len(after.test) / 601 < 0.26


def test_a_wider_line_moves_no_other_line_of_an_svmlight_file(tmp_path):
    random = np.random.default_rng(1)
    lines = [
        f"{random.choice([-1, 1])} 1:{index} {random.integers(2, 6)}:1" for index in range(400)
    ]
    parts = []
    for content in (lines, [*lines, "3 1:400 99:1"]):
        path = tmp_path / "t.svm"
        path.write_text("\n".join(content) + "\n")
        parts.append(stays(load(f"svmlight:{path}"), 0))
    assert (parts[0][0] ^ parts[1][0]) | (parts[0][1] ^ parts[1][1]) == {400}


def test_a_new_label_moves_no_other_row_of_an_archive(tmp_path):
    random = np.random.default_rng(2)
    x = np.column_stack([np.arange(300), random.normal(size=300)]).astype(np.float32)
    y = random.integers(1, 3, 300)
    parts = []
    for more in (0, 1):
        path = tmp_path / "t.npz"
        extra = np.array([[300, 0]] * more, np.float32).reshape(-1, 2)
        np.savez(path, x=np.concatenate([x, extra]), y=np.concatenate([y, [0] * more]))
        parts.append(stays(load(f"npz:{path}"), 0))
    assert (parts[0][0] ^ parts[1][0]) | (parts[0][1] ^ parts[1][1]) == {300}


def numbered(path: Path, entries: pl.Series, **options: Any) -> list[set[int]]:
    """The numbers of the rows on each side of the split of a table with this column."""
    numbers = list(range(len(entries)))
    frame = pl.DataFrame({"a": entries, "n": numbers, "y": [("no", "yes")[n % 2] for n in numbers]})
    kind = path.suffix[1:].replace("xlsx", "excel")
    getattr(frame, f"write_{kind}")(path)
    schema = TableSchema({"a": "drop", "n": [0, 999]})
    data = load(f"{kind}:{path}", label="y", classes=["no", "yes"], schema=schema, **options)
    assert data.test is not None
    places = [(part.inputs[:, 0].astype(float) + 1) / 2 * 999 for part in (data.train, data.test)]
    return [set(np.rint(found).astype(int).tolist()) for found in places]


WHOLE = [n // 4 for n in range(240)]
DAYS = [date(2020, 1, 1) + timedelta(n) for n in WHOLE]
BIG = [2**60 + n for n in WHOLE]
CENTS = [f"{n}.{n % 4 * 25:02}" for n in WHOLE]


@pytest.mark.parametrize("split_by", [None, "a"])
@pytest.mark.parametrize(
    ("entries", "other", "more"),
    [
        (pl.Series(WHOLE), pl.Float64, None),
        (pl.Series(WHOLE), pl.Float64, 0.5),
        (pl.Series(BIG), pl.Float64, None),
        (pl.Series(WHOLE), pl.Decimal(38, 3), 7),
        (pl.Series([n / 10 for n in WHOLE], dtype=pl.Float32), pl.Float64, 0.3),
        (pl.Series(CENTS).cast(pl.Decimal(38, 2)), pl.Decimal(38, 5), 7),
        (pl.Series(DAYS), pl.Datetime("us"), datetime(2020, 1, 2, 3)),
        (pl.Series(DAYS).cast(pl.Datetime("ms")) + timedelta(hours=1), pl.Datetime("ns"), None),
        (pl.Series([n % 8 < 4 for n in WHOLE]), pl.Int64, 2),
    ],
    ids=["missing", "fraction", "beyond", "decimal", "float32", "cents", "days", "times", "truths"],
)
def test_a_row_that_changes_a_columns_type_moves_no_other(
    tmp_path: Path, entries: pl.Series, other: Any, more: Any, split_by: str | None
) -> None:
    if split_by and entries.dtype == pl.Boolean:
        return  # two groups may be on one side
    before = numbered(tmp_path / "t.parquet", entries, split_by=split_by)
    wider = pl.concat([entries.cast(other), pl.Series([more], dtype=other)])
    if split_by and entries[0] == BIG[0]:
        with pytest.raises(DataError, match="beyond 2"):  # the floats of many persons are one
            numbered(tmp_path / "t.parquet", wider, split_by=split_by)
        return
    after = numbered(tmp_path / "t.parquet", wider, split_by=split_by)
    assert len(before[1]) > 20 and before[0] - after[0] == before[1] - after[1] == set()


@pytest.mark.parametrize("entries", [WHOLE, list(map(float, WHOLE)), list(map(str, WHOLE)), DAYS])
def test_every_format_splits_alike(tmp_path: Path, entries: list[Any]) -> None:
    text = pl.Series([str(one).removesuffix(".0") for one in entries])
    assert numbered(tmp_path / "t.csv", text) == numbered(
        tmp_path / "t.parquet", pl.Series(entries)
    )


def test_a_word_in_a_sheet_changes_no_number_beside_it(tmp_path: Path) -> None:
    import xlsxwriter

    days = {"num_format": "yyyy-mm-dd"}
    found = []
    for more in (None, "?", 2):
        book = xlsxwriter.Workbook(tmp_path / "t.xlsx")
        sheet = book.add_worksheet()
        rows = [
            (n, n % 2, 1e-9 * n / 3, n % 3 == 0, datetime(2020, 1, 1 + n % 28)) for n in range(90)
        ]
        for place, row in enumerate([("n", "y", "a", "b", "d"), *rows]):
            sheet.write_row(place, 0, row[:4])
            sheet.write(place, 4, row[4], book.add_format(days))
        if more:
            sheet.write_row(91, 0, (90, 0, more, more, "?"))
        book.close()
        columns = {"n": [0, 99], "a": {"range": [0, 1e-7], "missing": "middle"}}
        truths = {"categories": ["true", "false"], "other": True, "missing": "category"}
        days_ = {"date": ["2020-01-01", "2021-01-01"], "missing": "middle"}
        schema = TableSchema({**columns, "b": truths, "d": days_})
        data = load(f"excel:{tmp_path / 't.xlsx'}", label="y", classes=[0, 1], schema=schema)
        assert data.test is not None
        found.append([Counter(map(bytes, part.inputs)) for part in (data.train, data.test)])
    for after in found[1:]:
        assert all(not one - other for one, other in zip(found[0], after, strict=True))


@pytest.mark.parametrize("split_by", [None, "a"])
@pytest.mark.parametrize("form", ["{}.0", "  {}", "{} "])
def test_another_way_to_write_a_column_moves_no_row(
    tmp_path: Path, form: str, split_by: str | None
) -> None:
    entries = list(map(str, WHOLE))
    before = numbered(tmp_path / "t.csv", pl.Series(entries), split_by=split_by)
    again = [form.format(entry) for entry in entries]
    after = numbered(tmp_path / "t.csv", pl.Series([*again, "?"]), split_by=split_by)
    assert len(before[1]) > 20 and before[0] - after[0] == before[1] - after[1] == set()


@pytest.mark.parametrize("kind", ["parquet", "excel"])
def test_numbers_that_are_no_longer_whole_in_the_file_name_no_person(tmp_path, kind) -> None:
    """Two persons would be one: 2^24 and its successor as float32, 2^53 and its in a sheet."""
    many = {"parquet": 2.0**24, "excel": 2.0**53}[kind]
    wide = {"parquet": pl.Float32, "excel": pl.Float64}[kind]
    who = pl.Series([many, 1.0, 2.0] * 20, dtype=wide)
    frame = pl.DataFrame({"who": who, "n": [0, 1, 2] * 20, "y": [0, 1, 1] * 20})
    path = tmp_path / {"parquet": "t.parquet", "excel": "t.xlsx"}[kind]
    getattr(frame, f"write_{kind}")(path)
    schema = TableSchema({"n": [0, 2]}, person="who")
    with pytest.raises(DataError, match="beyond 2"):
        load(f"{kind}:{path}", label="y", classes=[0, 1], schema=schema)


def test_a_person_under_two_spellings_is_one(tmp_path: Path) -> None:
    ways = ("7", "7.0", " 7", "Anna", "Anna ")
    lines = [f"{ways[n % 5] if n < 10 else n // 2},{n % 50},{n % 2}\n" for n in range(100)]
    (tmp_path / "t.csv").write_text("who,a,y\n" + "".join(lines))
    schema = TableSchema({"a": [0, 49]}, person="who", records_per_person=1)
    data = load(f"csv:{tmp_path / 't.csv'}", label="y", classes=[0, 1], schema=schema)
    assert data.persons is not None and data.test is not None
    seven = [who for who in data.persons.tolist() if who.strip() in ways]
    assert len(seven) == len(set(seven)) and set(seven) <= {"7", "Anna"}
    persons: list[Any] = [1, 1.0, "1", " 1.0", True, "Anna", "Anna ", "anna"]
    made = of_persons(np.eye(8), np.arange(8) % 2, persons, 1)
    assert made.persons is not None and sorted(made.persons) == ["1", "Anna", "anna"]
    names_ = np.array([f"p{n // 2}{' ' * (n % 2)}" for n in range(200)])
    x = np.arange(200, dtype=np.float32)[:, None]
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(200) % 2, patient=names_)
    for side in stays(load(f"npz:{tmp_path / 't.npz'}", split_by="patient"), 0):
        assert side and all((n ^ 1) in side for n in side)


def test_a_person_with_rows_on_both_sides_is_refused(tmp_path: Path) -> None:
    schema = TableSchema({"a": [0, 49]}, person="who", records_per_person=4)
    options: dict[str, Any] = {"label": "y", "classes": [0, 1], "schema": schema}
    for wards in (12, 60):  # of 60 persons with four rows each: some have several, or each has one
        lines = [f"p{n % 60},w{(n + n // 60 * (wards < 60)) % wards},1,0\n" for n in range(240)]
        (tmp_path / "t.csv").write_text("who,ward,a,y\n" + "".join(lines))
        if wards < 60:
            with pytest.raises(DataError, match="has several values"):
                load(f"csv:{tmp_path / 't.csv'}", split_by="ward", **options)
        else:
            data = load(f"csv:{tmp_path / 't.csv'}", split_by="ward", **options)
            assert data.test is not None and len(data.test) % 4 == 0


@pytest.mark.parametrize(
    ("inputs", "targets", "persons", "most", "message"),
    [
        (np.eye(4), [0, 1, 0, 1], [1, 2, 3, 4], 2.5, "must be whole"),
        (np.eye(4), [0, 1, 0, 1], [1, 2, 3, 4], "4", "must be whole"),
        (np.eye(4), ["a", "b", "a", "b"], [1, 2, 3, 4], 2, "arrays of numbers"),
        (np.eye(4), [0, 1, 0, 1], 5, 2, "arrays of numbers"),
        (np.eye(4), [0, 1, 0, 1], [[1], [2], [3], [4]], 2, "of type list"),
        (np.eye(4), [0, 1, 0, 1], [2.0**53, 2.0**53 + 2, 1.0, 1.5], 2, "beyond"),
    ],
)
def test_what_are_no_rows_of_persons_is_said(
    inputs: Any, targets: Any, persons: Any, most: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        of_persons(inputs, targets, persons, most)


def test_a_tensor_that_requires_grad_is_refused_in_words() -> None:
    import torch

    inputs = torch.zeros(2, 1, requires_grad=True)
    with pytest.raises(DataError, match="detach"):
        of_persons(inputs, [0, 1], ["a", "b"], 1)


def test_one_person_without_a_name_moves_no_other_of_an_archive(tmp_path: Path) -> None:
    found = []
    for persons in (np.array(WHOLE), np.array([*map(float, WHOLE), np.nan])):
        x = np.arange(len(persons), dtype=np.float32)[:, None]
        np.savez(tmp_path / "t.npz", x=x, y=np.arange(len(persons)) % 2, patient=persons)
        found.append(stays(load(f"npz:{tmp_path / 't.npz'}", split_by="patient"), 0))
    assert all(not one - other for one, other in zip(*found, strict=True))


def test_a_person_is_never_on_both_sides(tmp_path):
    random = np.random.default_rng(3)
    rows = [f"{index / 10},p{random.integers(60)},{index % 2}" for index in range(500)]
    source = table(tmp_path, rows, header="stay,patient,outcome")
    data = load(source, label="outcome", split_by="patient")
    assert data.train.inputs.shape[1] == 1, "the person's name is no feature"
    persons = [{rows[stay].split(",")[1] for stay in part} for part in stays(data, 0, 0.1)]
    assert not persons[0] & persons[1]
    assert len(persons[0] | persons[1]) == len({row.split(",")[1] for row in rows})
    x = np.arange(500, dtype=np.float32)[:, None] / 10
    names_ = np.array([row.split(",")[1] for row in rows])
    np.savez(tmp_path / "t.npz", x=x, y=np.arange(500) % 2, patient=names_)
    again = load(f"npz:{tmp_path / 't.npz'}", split_by="patient")
    assert stays(again, 0, 0.1) == stays(data, 0, 0.1), "the same persons fall on the same sides"
    for options, message in [
        ({"split_by": "ward"}, "one named 'ward', to split by"),
        ({"split_by": "outcome"}, "the label's column"),
        ({"split_by": "patient", "test": "t.csv"}, "without test="),
    ]:
        with pytest.raises(DataError, match=message):
            load(source, label="outcome", **options)
    with pytest.raises(DataError, match="split_by= goes with"):
        load("digits", split_by="patient")


def test_what_is_declared_is_not_read_from_the_data(tmp_path):
    rows = ["1,2,yes", "3,4,yes", "5,6,yes", "7,8,yes", "9,1,yes", "2,2,yes"] * 3
    rows = [f"{index}.{row}" for index, row in enumerate(rows)]
    source = table(tmp_path, rows, header="a,b,y")
    with pytest.raises(DataError, match="the label yes"):
        load(source, label="y")
    data = load(source, label="y", classes=["yes", "no"], features=2)
    assert data.classes == 2
    assert set(data.train.targets.tolist()) == {0}
    assert [c.code for c in data.not_covered] == ["preparation-from-data"]
    declared = [c for c in data.caveats if c.code == "declared-shape"]
    assert "the classes, the number of features" in str(declared[0])
    with pytest.raises(DataError, match="example 1, expected"):
        load(source, label="y", classes=["ja", "nein"])
    with pytest.raises(DataError, match="2 features, expected"):
        load(source, label="y", classes=["yes", "no"], features=3)


@pytest.mark.parametrize(
    ("classes", "entries"),
    [
        (["1.1", "1.10", "2.0"], ["1.1", "1.10", "2.0"]),
        (["01", "1"], ["01", "1"]),
        ([2**60, 2**60 + 1], [str(2**60), str(2**60 + 1)]),
        ([0, 1], ["0.0", " 1"]),
        (["no", "yes"], ["no ", "yes"]),
        (["true", "false"], ["True", "0"]),
        ([0.1, 1e5], ["0.10", "1e5"]),
    ],
)
def test_different_classes_stay_different(
    tmp_path: Path, classes: list[Any], entries: list[str]
) -> None:
    rows = [f"{n % 50},{entries[n % len(entries)]}" for n in range(120)]
    source = table(tmp_path, rows, header="a,y")
    data = load(source, label="y", classes=classes, schema=TableSchema({"a": [0, 49]}))
    assert data.test is not None
    counts = np.bincount([*data.train.targets, *data.test.targets], minlength=len(classes))
    assert counts.tolist() == [120 // len(classes)] * len(classes)
    assert data.encoder is not None and len(set(data.encoder.classes or ())) == len(classes)


def test_a_label_of_no_class_is_named_and_no_other(tmp_path: Path) -> None:
    for stray in ("x", "NA", "2"):
        source = table(tmp_path, [*(f"{n},{n % 2}" for n in range(40)), f"3,{stray}"], header="a,y")
        with pytest.raises(DataError, match=f"label {stray} in"):
            load(source, label="y", classes=[0, 1], schema=TableSchema({"a": [0, 49]}))


def test_words_of_undeclared_classes_are_the_same_in_any_spelling(tmp_path: Path) -> None:
    rows = [f"{n},{['1', '1.0', 'x'][n % 3]}" for n in range(60)]
    data = load(table(tmp_path, rows, header="a,y"), label="y")
    assert data.test is not None and data.classes == 2
    assert sum(data.train.targets) + sum(data.test.targets) == 20


def test_what_is_found_in_the_data_is_named_and_no_value_of_it(tmp_path):
    numbers = table(tmp_path, [f"{i},{i % 3}" for i in range(40)], header="a,y")
    found = load(numbers, label="y")
    assert [c.code for c in found.not_covered] == [
        "kind-from-data",
        "classes-from-data",
        "preparation-from-data",
    ]
    values = load(numbers, label="y", task="regression")
    assert values.classes is None
    assert values.train.targets.dtype == np.float32
    assert "kind-from-data" not in [c.code for c in values.not_covered]
    undecided = load(table(tmp_path, [f"{i},{i / 7}" for i in range(40)], header="a,y"), label="y")
    assert "taken as values" in str(undecided.not_covered[0])
    secret = table(
        tmp_path, [f"{i},{'AIDS' if i % 2 else 'none'}" for i in range(40)], "s.csv", "a,y"
    )
    assert "AIDS" not in str([str(c) for c in load(secret, label="y").caveats])
    path = tmp_path / "t.svm"
    path.write_text("1 3:1\n2 1:1\n" * 20 + "1 2:5\n2 2:6\n1 3:4\n")
    wide = load(f"svmlight:{path}")
    assert "features-from-data" in [c.code for c in wide.not_covered]
    fixed = load(f"svmlight:{path}", features=7, classes=[1, 2])
    assert fixed.train.inputs.shape[1] == 7
    assert fixed.not_covered == ()
    with pytest.raises(DataError, match="index 3, expected"):
        load(f"svmlight:{path}", features=2)
    with pytest.raises(DataError, match="files of your"):
        load("digits", features=64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": ["a"]}, "two or more"),
        ({"classes": ["a", "a"]}, "two or more different"),
        ({"classes": [1, "1.0"]}, "two or more different"),
        ({"classes": ["a", "b"], "task": "regression"}, "drop one"),
        ({"task": "ranking"}, "unknown task"),
        ({"task": "regression"}, "expected numbers"),
    ],
)
def test_a_declaration_that_makes_no_sense(tmp_path, options, message):
    source = table(tmp_path, [f"{i},{'ab'[i % 2]}" for i in range(9)], header="a,y")
    with pytest.raises(DataError, match=message):
        load(source, label="y", **options)


def test_a_missing_value_of_a_regression_is_no_class(tmp_path):
    source = table(tmp_path, [f"{i},{'NA' if i == 4 else i}" for i in range(9)], header="a,y")
    with pytest.raises(DataError, match="expected numbers"):
        load(source, label="y", task="regression")
