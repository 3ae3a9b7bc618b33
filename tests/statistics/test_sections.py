"""``[[statistics]]`` sections: every kind, unknown keys, and what the columns declare."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from forethought.data.columns import TableSchema
from forethought.statistics import Histogram, Statistic, statistic
from forethought.statistics.sections import KINDS

SECTIONS = """
[[statistics]]
kind = "count"
where = {sex = "F", age = [18, 65], ward = ["A", "B"]}

[[statistics]]
kind = "sum"
column = "cost"
range = [0, 1000]
missing = "skip"

[[statistics]]
kind = "mean"
column = "age"
range = [0, 120]
weight = 2

[[statistics]]
kind = "histogram"
column = "age"
range = [0, 120]
bins = 12

[[statistics]]
kind = "quantiles"
column = "age"
range = [0, 120]
at = [0.5, 0.9]

[[statistics]]
kind = "survival"
time = "months"
event = "died"
happened = "yes"
until = 60

[[statistics]]
kind = "auc"
score = "p"
label = "y"

[[statistics]]
kind = "accuracy"
name = "how often it was right"
"""


def sections() -> list[dict[str, Any]]:
    return tomllib.loads(SECTIONS)["statistics"]


def test_every_kind_is_read_and_written_back() -> None:
    found = [statistic(one) for one in sections()]
    assert [one.kind for one in found] == list(
        dict.fromkeys(one["kind"] for one in sections())
    ) and {one.kind for one in found} == set(KINDS)
    assert [statistic(one.to_dict()) for one in found] == found
    assert found[0].name == "count where age [18.0, 65.0] and sex F and ward ['A', 'B']"
    assert found[-1].name == "how often it was right"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "kind is missing"),
        ({"kind": ["count"]}, "is unknown"),
        ({"kind": {"a": 1}}, "is unknown"),
        ({"kind": "histgram"}, "did you mean 'histogram'"),
        ({"kind": "histogram", "colum": "age"}, "unknown 'colum': did you mean 'column'"),
        ({"kind": "mean", "column": "age", "bins": 3}, "unknown 'bins'"),
    ],
)
def test_unknown_words_are_refused_with_the_nearest(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        statistic(values)
    with pytest.raises(TypeError, match="table of keys"):
        statistic([values])  # type: ignore[arg-type]


def test_what_a_section_leaves_out_is_what_the_columns_declare() -> None:
    declared = TableSchema(
        {"age": [0, 110], "ward": {"categories": ["A", "B"], "other": True}, "p": [0, 100]}
    ).parsed()

    def read(**values: Any) -> Statistic:
        return statistic(values, declared)

    assert read(kind="mean", column="age").range == (0, 110)  # type: ignore[attr-defined]
    assert read(kind="quantiles", column="age", range=[5, 9]).range == (5, 9)  # type: ignore[attr-defined]
    assert read(kind="auc", score="p").range == (0, 100)  # type: ignore[attr-defined]
    ward = read(kind="histogram", column="ward")
    assert isinstance(ward, Histogram) and (ward.categories, ward.other) == (("A", "B"), True)
