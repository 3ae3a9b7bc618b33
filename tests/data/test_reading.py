"""Tables in pieces: every way of writing one gives the same features; ragged ones are refused."""

from __future__ import annotations

import csv
import errno
import gzip
import io
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forethought.data import DataError, TableFormat, TableSchema, files, load
from forethought.data.files import Table

HEAD = ["age", "ward", "outcome"]
ROWS = [[str(20 + i % 60), "AB"[i % 2], ("no", "yes")[i % 3 == 0]] for i in range(80)]
COLUMNS = {"age": [0, 120], "ward": ["A", "B"]}


def text(rows=ROWS, separator=",", end="\n", head=True):
    return end.join(separator.join(row) for row in ([HEAD] if head else []) + rows) + end


def both(source, **form):
    schema = TableSchema(COLUMNS, form=TableFormat(**form))
    data = load(source, label="outcome", classes=["no", "yes"], schema=schema)
    assert data.test is not None and data.encoder is not None
    pairs = np.concatenate([np.c_[part.inputs, part.targets] for part in (data.train, data.test)])
    return pairs[np.lexsort(pairs.T)]


@pytest.fixture
def expected():
    rows = [
        [(int(age) - 60) / 60, ward == "A", ward == "B", outcome == "yes"]
        for age, ward, outcome in ROWS
    ]
    found = np.array(rows, np.float32)
    return found[np.lexsort(found.T)]


FORMS = {
    "commas": (text().encode(), {}),
    "semicolons": (text(separator=";").encode(), {"separator": ";"}),
    "tabs": (text(separator="\t").encode(), {"separator": "\t"}),
    "line ends": (text(end="\r\n").encode(), {}),
    "blank lines": (text(end="\n\n").encode(), {}),
    "UTF-16": (text().encode("utf-16"), {"encoding": "utf-16"}),
    "UTF-16, its order said": (("\ufeff" + text()).encode("utf-16-le"), {"encoding": "utf-16-le"}),
    "byte order mark": (b"\xef\xbb\xbf" + text().encode(), {}),
    "Latin-1": (text().encode("latin-1"), {"encoding": "latin-1"}),
    "comments": (("# made today\n" + text() + "# end\n").encode(), {"comment": "#"}),
    "gzip": (gzip.compress(text().encode(), mtime=0), {}),
    "no end": (text().encode().rstrip(b"\n"), {}),
    "quotes": (text([[f'"{entry}"' for entry in row] for row in ROWS]).encode(), {}),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("piece", [64, 1 << 20])
def test_every_way_of_writing_it_is_the_same_table(name, piece, tmp_path, monkeypatch, expected):
    monkeypatch.setattr(files, "PIECE", piece)  # one piece, or many cut in awkward places
    content, form = FORMS[name]
    (tmp_path / "t.csv").write_bytes(content)
    assert np.allclose(both(f"csv:{tmp_path / 't.csv'}", **form), expected)


@pytest.mark.parametrize("piece", [16, 1 << 20])
def test_a_quotation_mark_in_a_comment_and_a_comment_mark_in_quotes(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(files, "PIECE", piece)
    (tmp_path / "t.csv").write_text('a,b\n# 5" pipes\n1,"x\n# y"\n2,z\n#"\n3,"""\n"\n# end "')
    frames = list(Table(tmp_path / "t.csv", form=TableFormat(comment="#")).pieces())
    found = [row for frame in frames for row in frame.iter_rows()]
    assert found == [("1", "x\n# y"), ("2", "z"), ("3", '"\n')]


def test_a_row_whose_first_entry_is_missing_is_no_comment(tmp_path):
    (tmp_path / "t.tsv").write_text("a\tb\n\t#2\n # 5\n1\t3\n")
    (frame,) = Table(tmp_path / "t.tsv", form=TableFormat(separator="\t", comment="#")).pieces()
    assert frame.rows() == [(None, "#2"), ("1", "3")]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    frames = Table(tmp_path / "t.csv").pieces()
    next(frames)
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    with pytest.raises(DataError, match="changed while"):
        list(frames)


@pytest.mark.parametrize(("entry", "form"), [(2.0**63, "0"), (0.5, "[h]:mm:ss")])
def test_a_column_of_a_sheet_that_cannot_be_read_is_named(tmp_path, entry, form):
    import xlsxwriter

    book = xlsxwriter.Workbook(tmp_path / "t.xlsx")
    sheet = book.add_worksheet()
    sheet.write_column(0, 0, ["dose", entry, 1])
    sheet.write(1, 0, entry, book.add_format({"num_format": form}))
    sheet.write_column(0, 1, ["outcome", "no", "yes"])
    book.close()
    with pytest.raises(DataError, match="column dose"):
        list(Table(tmp_path / "t.xlsx", "excel").pieces())


def test_parquet_and_excel(tmp_path, expected):
    frame = pl.DataFrame(dict(zip(HEAD, zip(*ROWS, strict=True), strict=True)))
    frame = frame.with_columns(pl.col("age").cast(pl.Int64))
    frame.write_parquet(tmp_path / "t.parquet")
    frame.write_excel(tmp_path / "t.xlsx")
    assert np.allclose(both(f"parquet:{tmp_path / 't.parquet'}"), expected)
    assert np.allclose(both(f"excel:{tmp_path / 't.xlsx'}"), expected)
    for kind in ("parquet", "excel"):
        with pytest.raises(DataError, match=r"declare the columns.*forethought init"):
            load(f"{kind}:{tmp_path / 't.parquet'}", label="outcome")
        (tmp_path / "broken").write_bytes(b"PAR1 PK nothing")
        with pytest.raises(DataError, match="no readable"):
            both(f"{kind}:{tmp_path / 'broken'}")


@pytest.mark.parametrize("kind", [pl.Categorical(), pl.Enum(["no", "yes", "NA", "A", "B", "25"])])
def test_words_in_a_dictionary_are_words(tmp_path, kind):
    """A gap in them is one as in any text, and numbers are numbers."""
    rows = [("25", "A", "no"), ("NA", "NA", "yes"), ("25", "B", "NA"), ("25", "A", "yes")] * 20
    frame = pl.DataFrame(rows, HEAD, orient="row").cast(kind)
    frame.write_parquet(tmp_path / "t.parquet")
    age, ward = {"range": [0, 100]}, {"categories": ["A", "B"]}
    gaps = {"age": age | {"missing": "middle"}, "ward": ward | {"missing": "category"}}
    schema = TableSchema(gaps, missing_label="drop")
    data = load(
        f"parquet:{tmp_path / 't.parquet'}", label="outcome", classes=["no", "yes"], schema=schema
    )
    assert len(data.train) + len(data.test) == 60
    found = {tuple(row) for row in data.train.inputs.tolist()}
    assert found == {(-0.5, 1, 0, 0), (0, 0, 0, 1)}


@pytest.mark.skipif(not hasattr(pl, "Map"), reason="to an older polars, a map is a list")
def test_a_map_in_a_column_that_is_dropped_stops_nothing(tmp_path):
    maps = pl.Series([{"a": 1}, None] * 20, dtype=pl.Map(pl.String, pl.Int64))
    frame = pl.DataFrame({"m": maps, "n": [0, 1] * 20, "y": [0, 1] * 20})
    frame.write_parquet(tmp_path / "t.parquet")
    schema = TableSchema({"m": "drop", "n": [0, 1]})
    data = load(f"parquet:{tmp_path / 't.parquet'}", label="y", classes=[0, 1], schema=schema)
    assert len(data.train) + len(data.test) == 40


cell = st.text(st.characters(codec="utf-8", exclude_characters='\0\r,"\n'), max_size=5)
quoted = st.text(st.sampled_from('a,"\n é'), max_size=6)


@given(
    st.lists(st.tuples(cell | quoted, cell | quoted, cell), min_size=1, max_size=12),
    st.integers(1, 40),
)
def test_the_standard_library_reads_the_same(tmp_path_factory, rows, piece):
    """Whatever Python's csv module writes, quoted or not, is read back entry by entry."""
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows([HEAD, *rows])
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_bytes(written.getvalue().encode())
    old, files.PIECE = files.PIECE, piece
    try:
        frames = list(Table(path).pieces())
    finally:
        files.PIECE = old
    found = [tuple(entry or "" for entry in row) for frame in frames for row in frame.iter_rows()]
    assert found == [tuple(row) for row in rows]


marks = st.text(st.sampled_from('""",,\n\na #'), max_size=30)


@given(marks, st.integers(1, 40))
@example('1,"5" disk"\n2,"6" disk"\n', 40)
@example('1,5" disk\n2,6" disk\n', 40)
@example('"5" disk",1\n2,"6" disk"\n', 3)
@example('a "b",""a""\n', 40)
def test_any_text_is_refused_or_read_as_by_the_standard_library(tmp_path_factory, body, piece):
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_text(f"x,y\n{body}")
    old, files.PIECE = files.PIECE, piece
    try:
        frames = list(Table(path).pieces())
    except DataError:
        return
    finally:
        files.PIECE = old
    found = [[entry or "" for entry in row] for frame in frames for row in frame.iter_rows()]
    assert found == [row for row in csv.reader(io.StringIO(body, newline="")) if row]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("age,ward,outcome\n1,A,no\n2,B\n3,A,no\n", "2 entries in line 3, expected 3"),
        ('age,ward,outcome\n1,"A\nB",no\n2,B\n', "2 entries in line 4, expected 3"),
        ('age,ward,outcome\n1,A,no\n2,"5" A",no\n3,"6" A",no\n', "stray .* line 3"),
        ('age,ward,outcome\n1,5" A,no\n2,6" A,no\n', "stray .* line 2"),
        ('age,ward,outcome\n1,"\\"A\\"",no\n', "stray .* line 2"),
        ("age,ward,outcome\n1,A,no\n2,B,no,x\n", "4 entries in line 3"),
        ('age,ward,outcome\n1,A,no\n2,"B,no\n', "open quote in line 3"),
        ("age,age,outcome\n1,A,no\n", "two columns of one name"),
        ("age,ward,outcome\n", "no line below the names"),
        ("", "an empty file"),
        ("age,ward,outcome\n1,\0,no\n", "a zero byte"),
        ("age,ward,result\n1,A,no\n", "one named 'outcome'"),
        ("age,ward,outcome,zip\n1,A,no,3\n", "not declared: zip"),
        ("age,wrad,outcome\n1,A,no\n", "not declared: wrad.*not in the table: ward"),
        ("age,outcome\n1,no\n", "columns ward"),
        ("age,ward,outcome\n1,A,maybe\n", "label maybe in example 1"),
        ("age,ward,outcome\n1,A,\n", "no label in example 1"),
        ("age,ward,outcome\n,A,no\n", "found nothing in column age, example 1"),
        ("age,ward,outcome\nold,A,no\n", "found 'old' in column age"),
        ("age,ward,outcome\n1,Z,no\n", "'Z' in column ward"),
        (b"age,ward,outcome\n1,\xe9,no\n", "no UTF-8 text"),
        (gzip.compress(text().encode(), mtime=0)[:60], "truncated or corrupt"),
    ],
)
def test_faults_are_named(tmp_path, content, message):
    path = tmp_path / "t.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message) as found:
        both(f"csv:{path}")
    assert "\n" not in str(found.value)


def test_a_table_that_cannot_be_read_is_not_called_corrupt(tmp_path, monkeypatch):
    (tmp_path / "t.csv").write_text("a,outcome\n1,no\n")

    def unreadable(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", unreadable)
        with pytest.raises(DataError, match="cannot be read"):
            list(files.Table(tmp_path / "t.csv").pieces())


def test_what_is_no_number_is_named_by_its_example(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PIECE", 64)  # many pieces
    lines = ["1,no", "2,yes"] * 20
    (tmp_path / "t.csv").write_text("\n".join(["a,y", *lines, "old,no", *lines]))
    schema = TableSchema({"a": [0, 9]})
    with pytest.raises(DataError, match="example 41"):
        load(f"csv:{tmp_path / 't.csv'}", label="y", classes=["no", "yes"], schema=schema)


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"separator": ""}, "one character"),
        ({"separator": '"'}, "one character"),
        ({"decimal": ","}, "not the separator"),
        ({"decimal": "-"}, "decimal is"),
        ({"encoding": "klingon"}, "not known"),
        ({"encoding": "base64"}, "not known"),
        ({"comment": ""}, "starts with"),
    ],
)
def test_impossible_formats_are_refused(form, message):
    with pytest.raises(DataError, match=message):
        TableFormat(**form)


def test_what_the_target_needs_is_asked_for(tmp_path):
    (tmp_path / "t.csv").write_text(text())
    source = f"csv:{tmp_path / 't.csv'}"
    for options, schema, message in [
        ({}, TableSchema(COLUMNS), "classes = "),
        ({"task": "regression"}, TableSchema(COLUMNS), "needs target_range"),
        (
            {"classes": ["no", "yes"]},
            TableSchema(COLUMNS, target_range=(0, 1)),
            "goes with a regression",
        ),
        (
            {"classes": ["no", "yes"]},
            TableSchema({"age": "drop", "ward": "drop"}),
            "every column is dropped",
        ),
        (
            {"classes": ["no", "yes"]},
            TableSchema({**COLUMNS, "outcome": ["no", "yes"]}),
            "label and a feature",
        ),
    ]:
        with pytest.raises(DataError, match=message):
            load(source, label="outcome", schema=schema, **options)


@pytest.mark.parametrize("role", ["split_by", "person"])
def test_a_column_with_another_role_is_no_feature(tmp_path, role):
    (tmp_path / "t.csv").write_text("x,z,y\n" + "1,2,a\n3,4,b\n" * 20)
    person = {"person": "x"} if role == "person" else {}
    schema = TableSchema({"x": [0, 9], "z": [0, 9]}, **person)
    split = {"split_by": "x"} if role == "split_by" else {}
    with pytest.raises(DataError, match="at once"):
        load(f"csv:{tmp_path / 't.csv'}", label="y", classes=["a", "b"], schema=schema, **split)


def test_a_regression_is_scaled_by_its_declared_range(tmp_path):
    (tmp_path / "t.csv").write_text("a,y\n" + "".join(f"{i},{10 * i}\n" for i in range(40)))
    schema = TableSchema({"a": [0, 39]}, target_range=(0, 390))
    data = load(f"csv:{tmp_path / 't.csv'}", label="y", task="regression", schema=schema)
    assert np.allclose(data.train.targets, data.train.inputs[:, 0])
    assert np.allclose(data.encoder.restored(np.array([-1.0, 0, 1])), [0, 195, 390])
    with (tmp_path / "t.csv").open("a") as file:
        file.write("7,NA\n")
    with pytest.raises(DataError, match="missing_label"):
        load(f"csv:{tmp_path / 't.csv'}", label="y", task="regression", schema=schema)


def test_measured_columns_reach_the_statement(tmp_path):
    (tmp_path / "t.csv").write_text(text())
    for measured, covered in ((True, False), (False, True)):
        schema = TableSchema(COLUMNS, measured=measured)
        data = load(
            f"csv:{tmp_path / 't.csv'}", label="outcome", classes=["no", "yes"], schema=schema
        )
        assert (data.not_covered == ()) is covered
        # Nothing that was measured is called declared without looking.
        assert any(caveat.code == "declared-shape" for caveat in data.caveats) is covered
