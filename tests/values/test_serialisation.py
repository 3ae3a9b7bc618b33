"""Stored values: exact keys, schema versions, one canonical text, whole files."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forethought.values.serialisation import (
    Stored,
    build,
    canonical,
    digest,
    parse,
    plain,
    write_text,
)


@dataclass(frozen=True)
class Point(Stored):
    left: float
    up: float

    SCHEMA: ClassVar[str] = "test/point/2"
    CALLED: ClassVar[str] = "point"


def test_it_round_trips_through_text_and_files(tmp_path: Path) -> None:
    point = Point(1.0, 2.0)
    assert Point.from_json(point.to_json()) == point
    point.save(tmp_path / "point.json")
    assert Point.load(tmp_path / "point.json") == point
    assert [path.name for path in tmp_path.iterdir()] == ["point.json"]


def test_other_schemas_and_keys_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'test/point/9', expected 'test/point/2'"):
        Point.from_dict({"schema": "test/point/9"})
    with pytest.raises(ValueError, match=r"\['z'\], missing \['up'\]"):
        Point.from_dict({"schema": "test/point/2", "left": 1.0, "z": 0})
    with pytest.raises(TypeError, match="object, not list"):
        Point.from_dict([])  # type: ignore[arg-type]
    path = tmp_path / "point.json"
    for text in ("[]", "{}", "no json", '{"schema": 3}'):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"point\.json holds no"):
            Point.load(path)
    with pytest.raises(ValueError, match="missing"):
        build(Point, {"left": 1.0})


def test_a_key_named_twice_is_found_among_many() -> None:
    text = "{" + ", ".join(f'"{key}": 1' for key in (*range(40_000), 7)) + "}"
    begin = time.process_time()
    with pytest.raises(ValueError, match="names 7 more"):
        parse(text)
    assert time.process_time() - begin < 3


def test_plain_values() -> None:
    assert plain({"a": (1, np.array([[1.5, math.inf]])), "b": Point(0.0, 1.0)}) == {
        "a": [1, [[1.5, "infinity"]]],
        "b": {"schema": "test/point/2", "left": 0.0, "up": 1.0},
    }
    assert plain(np.float32(0.5)) == 0.5
    for nothing in (math.nan, -math.inf):
        with pytest.raises(ValueError, match="form in JSON"):
            plain(nothing)
    with pytest.raises(TypeError, match="object has no"):
        plain(object())


@given(st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False) | st.text()))
def test_the_canonical_text_has_no_order(values: dict[str, Any]) -> None:
    turned = dict(reversed(values.items()))
    assert canonical(turned) == canonical(values)
    assert digest(turned) == digest(values)
    assert digest({**values, "one more": 1}) != digest(values)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "text"
    write_text(path, "before")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "after \ud800")
    assert path.read_text() == "before"
    assert [found.name for found in tmp_path.iterdir()] == ["text"]
