"""Declared columns: what they become follows from the declaration and the row alone."""

from __future__ import annotations

import math
import sys
from datetime import date, datetime, time

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forethought.data import DataError, Encoder, TableSchema
from forethought.data.columns import (
    Category,
    Date,
    Number,
    Outside,
    UndeclaredError,
    column,
    outward,
)

WORDS = ["A", "B", "", "?", "other", "NA", " A ", "C"]


def encoded(value, entries, **options):
    outside = Outside()
    found = column("x", value, **options)
    return found.encode("t.csv", "x", pl.Series(entries, dtype=pl.String), 0, outside), outside


def test_numbers_are_scaled_from_their_range_and_clipped_to_it():
    features, outside = encoded([0, 110], ["0", "55", " 110 ", "82.5", "-3", "1e9"])
    assert features[:, 0].tolist() == [-1, 0, 1, 0.5, -1, 1]
    assert outside.clipped == {"x": 2}


def test_what_is_missing_means_what_was_declared():
    entries = ["10", "NA", "", "-999", "80"]
    middle, outside = encoded({"range": [10, 80], "missing": "middle", "codes": [-999]}, entries)
    assert middle[:, 0].tolist() == [-1, 0, 0, 0, 1]
    assert not +outside.clipped
    category, _ = encoded({"range": [10, 80], "missing": "category", "codes": [-999]}, entries)
    assert category.tolist() == [[-1, 0], [0, 1], [0, 1], [0, 1], [1, 0]]
    with pytest.raises(DataError, match=r"x, example 2.*middle"):
        encoded([10, 80], entries)
    dropped = column("x", {"range": [10, 80], "missing": "drop-column"})
    assert dropped.titles("x") == () and dropped.bound == 0
    assert column("x", [0, 1], missing="middle").missing == "middle"


def test_categories():
    value = {"categories": ["A", "B"], "other": True, "missing": "category"}
    features, outside = encoded(value, WORDS)
    # Words: A, B, other, missing.
    assert features.tolist() == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [0, 0, 0, 1],
        [0, 0, 0, 1],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
        [1, 0, 0, 0],
        [0, 0, 1, 0],
    ]
    assert outside.unknown == {"x": 2}
    with pytest.raises(DataError, match="A, B: declare"):
        encoded(["A", "B"], ["A", "C"])
    # A declared word is a word, even one that others take for nothing.
    assert encoded(["none", "some"], ["none", "some"])[0].tolist() == [[1, 0], [0, 1]]


def test_one_word_in_every_way_it_is_written():
    value = {"categories": ["0", "7.0", "true"], "other": True, "missing": "category"}
    entries = ["0", "0.0", " 0.00", "7", "7.0 ", "TRUE", "1", "1.0", "7.5", ""]
    features, _ = encoded(value, entries)
    assert features.argmax(1).tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 4]
    kind = column("x", value)
    for typed in (pl.Series([True, False]), pl.Series([1, 0]), pl.Series([1.0, 0.0])):
        found = kind.encode("t", "x", typed, 0, Outside())
        assert found.argmax(1).tolist() == [2, 0]


def test_a_code_is_found_among_float32():
    for kind in (pl.Float32, pl.Float64):
        made = column("x", {"range": [0, 10], "codes": [-99.9], "missing": "category"})
        found = made.encode("t", "x", pl.Series([-99.9, 5.0], dtype=kind), 0, Outside())
        assert found.tolist() == [[0, 1], [0, 0]]


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({"x": {"drop": False}}, {}),
        ({"x": {"plain": True}}, {}),
        ({"x": "plain"}, {}),
        ({"x": [0, 1]}, {"missing": "drop-column"}),
    ],
)
def test_a_declaration_that_no_table_reads_is_refused(columns, options):
    with pytest.raises(UndeclaredError, match=r"declare it|the choice"):
        TableSchema(columns, **options)


def test_days():
    value = {"date": ["2020-01-01", "2020-12-31"]}
    days = ["2020-01-01", "2020-12-31 23:59", "2020-07-01T08:00:00", "1999-01-01"]
    features, outside = encoded(value, days)
    assert features[:2, 0].tolist() == [-1, 1]
    assert features[2, 0] == pytest.approx(2 * 182 / 365 - 1)
    assert outside.clipped == {"x": 1}
    angle = 2 * math.pi * (date(2020, 7, 1) - date(2000, 1, 1)).days / 365.2425
    assert features[2, 1:].tolist() == pytest.approx([math.sin(angle), math.cos(angle)], abs=1e-6)
    german, _ = encoded({"date": ["2020-01-01", "2020-12-31"], "format": "%d.%m.%Y"}, ["1.7.2020"])
    assert german[0].tolist() == features[2].tolist()
    for form, day in (("%d.%m.%Y", "01.07.2020 10:30"), ("%Y/%m/%d", "2020/07/01T10:30:00")):
        timed, _ = encoded({"date": ["2020-01-01", "2020-12-31"], "format": form}, [day])
        assert timed[0].tolist() == features[2].tolist()
    with pytest.raises(DataError, match="column x, expected"):
        encoded("date", ["2020-01-01", "May"])


@pytest.mark.parametrize(
    ("form", "entry"),
    [
        ("%m/%d/%Y", "1/2/20"),
        ("%Y-%m-%d", "20-01-02"),
        ("%Y%m%d", "2020111"),
        ("%Y-%m-%d", "2020-01-02 or later"),
        ("%d.%m.%Y", "00.00.0000"),
    ],
)
def test_what_is_no_whole_day_is_refused(form, entry):
    with pytest.raises(DataError, match="a day such"):
        encoded({"date": ["2000-01-01", "2029-12-31"], "format": form}, [entry])


def test_the_declared_range_says_the_century_of_a_year_of_two_digits():
    value = {"date": ["1920-01-01", "2009-12-31"]}
    short, outside = encoded({**value, "format": "%d.%m.%y"}, ["01.02.45", "01.02.05", "01.02.12"])
    whole, _ = encoded(value, ["1945-02-01", "2005-02-01", "2012-02-01"])
    assert short.tolist() == whole.tolist() and outside.clipped == {"x": 1}


def test_the_day_of_a_time_is_that_of_its_time_zone():
    times = pl.Series([datetime(2020, 7, 1)]).dt.replace_time_zone("Europe/Berlin")
    kind = column("x", {"date": ["2020-01-01", "2020-12-31"]})
    found = kind.encode("t", "x", times, 0, Outside())
    assert found.tolist() == encoded(kind.to_value(), ["2020-07-01"])[0].tolist()


@pytest.mark.parametrize("entry", [date(1970, 2, 1), datetime(1970, 1, 1), time(8)])
def test_a_day_or_time_is_no_number(entry):
    with pytest.raises(DataError, match="a finite number"):
        column("x", [0, 10]).encode("t", "x", pl.Series([entry]), 0, Outside())


def test_frames_with_types_of_their_own_are_read_alike():
    outside = Outside()
    number = column("x", [0, 10])
    for entries in (pl.Series([1, 5]), pl.Series([1.0, 5.0]), pl.Series(["1", "5"])):
        assert number.encode("t", "x", entries, 0, outside)[:, 0].tolist() == pytest.approx(
            [-0.8, 0]
        )
    day = column("x", "date")
    typed = day.encode("t", "x", pl.Series([date(2020, 1, 1)]), 0, outside)
    assert typed.tolist() == day.encode("t", "x", pl.Series(["2020-01-01"]), 0, outside).tolist()
    assert column("x", ["1", "2"]).encode("t", "x", pl.Series([1, 2]), 0, outside).tolist() == [
        [1, 0],
        [0, 1],
    ]
    as_floats = pl.Series([1.0, 2.0, None])  # what pandas makes of whole numbers and a gap
    for words in (["1", "2"], ["1.0", "2"]):
        kind = column("x", {"categories": words, "missing": "category"})
        assert kind.encode("t", "x", as_floats, 0, outside).tolist() == [
            [1, 0, 0],
            [0, 1, 0],
            [0, 0, 1],
        ]
    written = column("x", {"date": ["2020-01-01", "2020-12-31"], "format": "%Y%m%d"})
    assert written.encode("t", "x", pl.Series([20200101.0]), 0, outside)[0, 0] == -1
    nothing = column("x", {"range": [0, 1], "missing": "middle"})
    assert nothing.encode("t", "x", pl.Series([None, float("nan")]), 0, outside).tolist() == [
        [0],
        [0],
    ]


finite = st.floats(-1e300, 1e300)


@pytest.mark.slow
@given(st.data())
def test_no_record_exceeds_the_bound(data):
    """Whatever stands in the row, its features have at most the declared norm."""
    # A range of denormal width is refused.
    low, high = data.draw(st.tuples(finite, finite).filter(lambda pair: pair[1] - pair[0] > 1e-300))
    missing = data.draw(st.sampled_from(["middle", "category"]))
    other = data.draw(st.booleans())
    kinds = (
        ("a", Number(missing=missing, low=low, high=high, log=data.draw(st.booleans()))),
        (
            "b",
            Category(missing=missing, words=("A", "B"), other=other, lenient=True),
        ),
        ("c", Date(missing=missing)),
    )
    encoder = Encoder(kinds)
    number = data.draw(finite.map(repr) | st.sampled_from(["", "NA"]))
    day = data.draw(st.dates().map(str) | st.just(""))
    frame = pl.DataFrame({"a": [number], "b": [data.draw(st.sampled_from(WORDS))], "c": [day]})
    features = encoder.encode(frame, "t.csv")
    assert features.shape == (1, len(encoder.titles)) and np.isfinite(features).all()
    assert np.linalg.norm(features.astype(np.float64)) <= encoder.bound * (1 + 1e-6)
    assert Encoder.from_dict(encoder.to_dict()) == encoder


@pytest.mark.parametrize("log", [False, True])
def test_a_range_that_no_double_divides_is_refused(log):
    with pytest.raises(UndeclaredError, match="too narrow"):
        Number(low=-5e-324, high=0.0, log=log)


def test_the_usual_norm_is_that_of_records_spread_over_what_is_declared():
    kinds = (
        ("a", Number(low=0.0, high=10.0)),
        ("b", Category(words=("A", "B"))),
        ("c", Number(low=-5.0, high=5.0)),
    )
    random = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "a": random.uniform(0, 10, 4000),
            "b": random.choice(["A", "B"], 4000),
            "c": random.uniform(-5, 5, 4000),
        }
    )
    encoder = Encoder(kinds)
    norms = np.linalg.norm(encoder.encode(frame, "t.csv"), axis=1)
    assert encoder.usual_norm == pytest.approx(np.sqrt(np.mean(norms**2)), rel=0.02)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1, 0], "the smaller one first"),
        ([0, float("inf")], "the smaller one first"),
        ([0, 1, 2], "declare it as"),
        ([], "one or more different words"),
        ("number", "declare it as"),
        ({"range": [0, 1], "mising": "middle"}, "unknown key 'mising'"),
        ({"range": [0, 1], "missing": "zero"}, "the choice is refuse, middle, category"),
        ({"range": [0, True]}, "declare it as"),
        ({"range": ["0", 1]}, "declare it as"),
        ({"range": [0, 1], "log": 1}, "declare it as"),
        ({"range": [-1.7e308, 1.7e308], "log": True}, "too wide"),
        ({"categories": ["A", "A"]}, "one or more different words"),
        ({"categories": ["7", "7.0"]}, "different words"),
        ({"categories": [1, "true"]}, "different words"),
        ({"categories": ["A"], "other": 1}, "declare it as"),
        ({"date": ["2020-01-02", "2020-01-01"]}, "the earlier one first"),
        ({"date": ["May", "June"]}, "declare it as"),
        (3, "declare it as"),
        (None, "declare it as"),
    ],
)
def test_what_is_no_declaration_is_refused(value, message):
    with pytest.raises(DataError, match=rf"column x.*{message}"):
        column("x", value)


def test_a_logarithm_spreads_what_lies_at_one_end():
    amount = column("x", {"range": [10, 10_010], "log": True, "missing": "middle"})
    found = amount.encode("t", "x", pl.Series([10, 109, 10_010, None, 0]), 0, Outside())
    expected = [-1, np.log(100) / np.log(10_001) * 2 - 1, 1, 0, -1]
    assert found[:, 0] == pytest.approx(expected, abs=1e-6)
    assert column("x", amount.to_value()) == amount


@pytest.mark.filterwarnings("error")
def test_numbers_whose_sum_is_none_are_encoded_without_a_warning():
    found, outside = encoded([0, 1], ["1e308", "1e308", "-1e308", "-1e308"])
    assert found[:, 0].tolist() == [1, 1, -1, -1] and outside.clipped == {"x": 4}


def test_a_long_entry_is_shown_by_its_start():
    for value in (["A"], "date", [0, 1]):
        with pytest.raises(DataError) as refused:
            encoded(value, ["x" * 3_000_000])
        assert len(str(refused.value)) < 400


@pytest.mark.parametrize("entry", ["high", "1,5", "inf", "nan1", "1_0", "0x10"])
def test_what_is_no_number_is_refused(entry):
    with pytest.raises(DataError, match="column x, expected"):
        encoded([0, 10], ["1", entry])


def test_decimal_commas():
    features, _ = encoded([0, 10], ["2,5", "5"], decimal=",")
    assert features[:, 0].tolist() == [-0.5, 0]
    with pytest.raises(DataError, match="no point"):  # of thousands, or of another file
        encoded([0, 2000], ["2,5", "1.234"], decimal=",")


def test_a_code_hides_no_other_entry_and_is_read_as_the_file_writes_numbers() -> None:
    made = column("x", {"range": [0, 10], "codes": [-9.5]}, missing="middle", decimal=",")
    entries = pl.Series(["1,5", "-9,5", "7", ""])
    assert made.absent(entries, ",").to_list() == [False, True, False, True]
    found = made.encode("file", "x", entries, 1, Outside())[:, 0]
    assert len(set(found.tolist())) == 3 and found[0] < found[1] < found[2]
    with pytest.raises(UndeclaredError, match="finite number"):
        made.encode("file", "x", pl.Series(["1,5", "unknown?"]), 1, Outside())


def test_a_midnight_is_a_time_too():
    form = "%Y-%m-%d %H:%M:%S"
    kind = column("d", {"date": ["2010-01-01", "2029-12-31"], "format": form})
    entries = pl.Series("d", ["2015-03-01 10:00:00", "2015-03-02 00:00:00"])
    assert len(np.unique(kind.encode("t", "d", entries, 0, Outside()), axis=0)) == 2
    first, last = datetime(2010, 1, 1), datetime(2020, 1, 1)
    assert column("d", {"date": [first, last]}).describe().endswith("2010-01-01 to 2020-01-01")
    with pytest.raises(UndeclaredError):
        column("d", {"date": ["2010-01-01", "2029-12-31"], "format": 5})


def test_the_largest_number_has_a_range():
    low, high = outward(0.0, sys.float_info.max, True)
    assert low == 0 and math.isfinite(float(high))
