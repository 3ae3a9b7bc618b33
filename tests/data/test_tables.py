from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from forethought.data import DataError, TableFormat, TableSchema, load

TABLE = """age,sex,dose,outcome
31,f,1.5,well
44,m,2,ill
27,f,0,well
65, x ,1e1,ill
50,m,3,well
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "t.csv") -> str:
        Path(name).write_text(text, encoding="utf-8")
        return f"csv:{name}"

    return write


def both(data):
    """All examples in one array each, whatever part they fell into."""
    return (
        np.concatenate([data.train.inputs, data.test.inputs]),
        np.concatenate([data.train.targets, data.test.targets]),
    )


def test_numbers_and_categories(write):
    data = load(write(TABLE), label="outcome", holdout=0.4)
    inputs, targets = both(data)
    assert len(data.train) + len(data.test) == 5
    assert data.classes == 2
    rows = sorted(tuple(row) for row in inputs.tolist())
    assert rows == [
        (27, 1, 0, 0, 0),
        (31, 1, 0, 0, 1.5),
        (44, 0, 1, 0, 2),
        (50, 0, 1, 0, 3),
        (65, 0, 0, 1, 10),
    ]
    assert {row[0]: target for row, target in zip(inputs, targets, strict=True)} == {
        31: 1,
        44: 0,
        27: 1,
        65: 0,
        50: 1,
    }
    codes = {caveat.code for caveat in data.not_covered}
    assert {"categories-from-data", "classes-from-data"} <= codes


def test_a_file_without_names_and_a_numbered_label(write):
    body = TABLE.partition("\n")[2]
    for label in ("3", "-1"):
        assert both(load(write(body), label=label, holdout=0.4))[0].shape == (5, 5)
    with pytest.raises(DataError, match="one numbered 4"):
        load(write(body), label="4")


@pytest.mark.parametrize(
    ("first", "label", "place"),
    [
        ("0.5,7,-1", "-1", 2),
        ("-1,7,1", "-1", 2),
        ("f,7,-1", "-1", 2),
        ("0.5,2,1", "2", 2),
        ("1,1,0.5", "1", 1),
    ],
)
def test_the_number_of_a_label_that_a_record_holds_names_no_column(write, first, label, place):
    rest = [first.replace(first.split(",")[place], other) for other in ("5", "6")]
    data = load(write("\n".join([first, *rest, *[first, *rest] * 20])), label=label)
    assert len(data.train) + len(data.test) == 63 and data.encoder.label == str(place)


def test_a_line_that_counts_the_columns_holds_names(write):
    for names, label in ((",0,1", "1"), ("0,1,2", "2"), ("country,2019,2020", "2020")):
        data = load(write(f"{names}\n" + "5,2,1\n6,2,0\n" * 20), label=label)
        assert len(data.train) + len(data.test) == 40


def test_a_test_file_is_read_like_the_training_file(write):
    source = write(TABLE)
    write("outcome,dose,sex,age\nwell,7,m,20\nill,8,unseen,30\n", "test.csv")
    data = load(source, label="outcome", test="test.csv")
    assert len(data.train) == 5
    assert data.test is not None
    assert data.test.inputs.tolist() == [[20, 0, 1, 0, 7], [30, 0, 0, 0, 8]]
    assert data.test.targets.tolist() == [1, 0]
    write("outcome,dose,sex,age\ndead,7,m,20\n", "test.csv")
    with pytest.raises(DataError, match=r"test\.csv: found label"):
        load(source, label="outcome", test="test.csv")
    write("outcome,dose,age\nwell,7,20\n", "test.csv")
    with pytest.raises(DataError, match="columns outcome, dose,"):
        load(source, label="outcome", test="test.csv")


def test_values_to_regress_on(write):
    data = load(write("a,y\n1,0.5\n2,1.5\n3,2.25\n4,-1\n"), label="y", holdout=0.5)
    assert data.classes is None
    assert data.train.targets.dtype == np.float32
    assert sorted(both(data)[1].tolist()) == [-1, 0.5, 1.5, 2.25]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,y\n1,2,0\n3,1\n", "found 2 entries in line 3, expected 3"),
        ("a,b,y\n1,2,0\n3,4,5,6\n", "found 4 entries in line 3"),
        ("a,b,y\n1,2,0\n,4,1\n3,4,1\n", "found '' in column a, example 2, expected a number"),
        ("a,b,y\n1,2,0\n3,?,1\n3,4,1\n", r"found '\?' in column b, example 2"),
        ("a,b,y\n1,2,0\n3,nan,1\n", "found nan in example 2, feature b"),
        ("a,b,y\n1,2,0\n3,inf,1\n", "found inf in example 2, feature b"),
        ("a,b,y\n1,2,0\n3,4,\n5,6,x\n", "found no label in example 2"),
        ("a,b,y\n1,2,0\n3,4,1\n5,6,NA\n", "in example 3"),
        ("a,b,y\n1,2,0\n3,4,nan\n", "found label nan in example 2"),
        ("a,b,y\n1,2,0\n3,4,0\n", "only the label 0.0, expected two or more"),
        ("a,a,y\n1,2,0\n3,4,1\n", "two columns of one name"),
        ("a,b,y\n", "0 examples"),
        ("y\n1\n2\n", "in 1 columns"),
        ("", "an empty file"),
        ("a,b,z\n1,2,0\n", "expected one named 'y', the label"),
        ("a,b,y\n1,\0,0\n", "a zero byte"),
    ],
)
def test_faults_are_named(write, text, message):
    with pytest.raises(DataError, match=rf"t\.csv.*{message}"):
        load(write(text), label="y")


def test_a_word_with_an_underscore_is_no_number(write):
    data = load(write("a,y\n" + "1,1_0\n2,1_1\n" * 20), label="y")
    assert (data.classes, data.encoder.classes) == (2, ("1_0", "1_1"))
    with pytest.raises(DataError, match="1_0 in example"):
        load(write("a,y\n" + "2,2.5\n1,1_0\n" * 20), label="y", task="regression")


def test_a_declared_class_may_be_called_nothing(write):
    assert load(write("a,y\n" + "1,none\n2,some\n" * 20), label="y").classes == 2
    source = write("a,y\n" + "1,none\n2,some\n3,more\n" * 20)
    with pytest.raises(DataError, match="classes= declares"):
        load(source, label="y")
    assert load(source, label="y", classes=["none", "some", "more"]).classes == 3


def test_a_column_of_identifiers(write):
    text = "id,a,y\n" + "".join(f"p{row},1,{row % 2}\n" for row in range(1001))
    with pytest.raises(DataError, match=r"1000 different words.*drop a column"):
        load(write(text), label="y")


def test_a_fault_deep_in_a_long_column(write):
    rows = [f"{row},{row % 2}" for row in range(3000)]
    rows[1234] = "missing,0"
    with pytest.raises(DataError, match="a, example 1235"):
        load(write("a,y\n" + "\n".join(rows)), label="y")


def test_the_label_must_be_named(write):
    with pytest.raises(DataError, match="which column is"):
        load(write(TABLE))


def test_compressed(write, tmp_path: Path):
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(TABLE.encode()))
    assert both(load("csv:t.csv.gz", label="outcome", holdout=0.4))[0].shape == (5, 5)


@pytest.mark.slow
def test_original_files(real_data: Path):
    iris = load("csv:uci/iris.data", folder=real_data, label="-1")
    assert (len(iris.train) + len(iris.test), iris.classes) == (150, 3)
    names = [str(number) for number in range(32)]
    form = TableFormat(header=False)
    columns = {name: [0, 5000] for name in names[2:]} | {"0": "drop"}
    schema = TableSchema(columns, form=form)
    cancer = load(
        "csv:uci/wdbc.data", folder=real_data, label="1", classes=["B", "M"], schema=schema
    )
    assert (cancer.train.inputs.shape[1], cancer.classes) == (30, 2)
    words = {"1": 8, "3": 16, "5": 7, "6": 14, "7": 6, "8": 5, "9": 2, "13": 41}
    known = {name: sorted(kinds) for name, kinds in _words(real_data).items() if name in words}
    adult = load(
        "csv:uci/adult.data.gz",
        folder=real_data,
        label="14",
        classes=["<=50K", ">50K"],
        schema=TableSchema(
            {name: [0, 1_500_000] for name in ("0", "2", "4", "10", "11", "12")}
            | {name: {"categories": kinds, "missing": "category"} for name, kinds in known.items()},
            form=form,
        ),
    )
    assert {name: len(kinds) for name, kinds in known.items()} == words
    # Numbers, words, and one more feature a column of words for what is missing.
    assert adult.train.inputs.shape[1] == 6 + sum(words.values()) + len(words)
    assert len(adult.train) + len(adult.test) == 32_561
    assert abs(len(adult.test) / 32_561 - 0.2) < 0.01


def _words(folder: Path) -> dict[str, set[str]]:
    """The different words of each column, without the question mark that stands for nothing."""
    lines = gzip.decompress((folder / "uci/adult.data.gz").read_bytes()).decode().splitlines()
    columns = zip(*(line.split(", ") for line in lines if line), strict=True)
    return {str(number): set(column) - {"?"} for number, column in enumerate(columns)}


def test_a_damaged_line_of_an_original_file(real_data: Path):
    with pytest.raises(DataError, match=r"adult\.test\.gz: found 1"):
        load("csv:uci/adult.test.gz", folder=real_data, label="14")


def test_one_word_in_several_spellings_is_one_category(write):
    rows = [f"{word},{i % 2}" for i, word in enumerate(["True", "TRUE", "false", "False"] * 10)]
    data = load(write("\n".join(["smoker,y", *rows]) + "\n"), label="y")
    assert len(data.encoder.titles) == 2
    assert both(data)[0].sum(axis=0).tolist() == [20, 20]


@pytest.mark.parametrize("kind", ["csv", "npz", "svmlight"])
def test_values_that_single_precision_cannot_hold_are_refused(write, kind):
    values = [1e39 * i for i in range(40)]
    if kind == "npz":
        np.savez("t.npz", x=np.ones((40, 2)), y=np.array(values))
    text = {"csv": "x,y\n" + "".join(f"1,{one}\n" for one in values)}
    text["svmlight"] = "".join(f"{one} 1:2\n" for one in values)
    source = "npz:t.npz" if kind == "npz" else write(text[kind]).replace("csv", kind, 1)
    with pytest.raises(DataError, match="label 1e"):
        load(source, label="y" if kind == "csv" else None, task="regression")
