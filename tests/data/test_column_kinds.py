"""Every registered kind of column against an oracle of its own; none is left out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import polars as pl
import pytest
from onnx import helper

from forethought.data import Encoder
from forethought.data.columns import (
    KINDS,
    MISSING_WORDS,
    Category,
    Column,
    Dropped,
    Outside,
    PlainNumber,
    Seen,
    UndeclaredError,
    column,
    proposal,
    register,
)
from forethought.jobs.onnx_export import OnnxGraph, encoded

PAGE = Path(__file__).parents[2] / "docs" / "adding_a_column.md"
Oracle = Callable[[Any, str], list[float]]


def scaled(kind: Any, entry: str) -> list[float]:
    inside = min(max(float(entry), kind.low), kind.high)
    low, high = kind.low, kind.high
    if kind.log:
        inside, low, high = math.log(1 + inside - low), 0.0, math.log(1 + high - low)
    return [2 * (inside - low) / (high - low) - 1]


def one_hot(kind: Any, entry: str) -> list[float]:
    known = [float(entry == word) for word in kind.words]
    return [*known, float(not any(known))] if kind.other else known


def of_day(kind: Any, entry: str) -> list[float]:
    day = date.fromisoformat(entry[:10])
    place = 2 * (day - kind.first).days / (kind.last - kind.first).days - 1
    turn = np.exp(2j * math.pi * (day - date(2000, 1, 1)).days / 365.2425)
    return [min(max(place, -1.0), 1.0), turn.imag, turn.real]


# Kind → declarations of it, and the features of one entry that is there, worked out another way.
ORACLES: dict[str, tuple[list[Column], Oracle]] = {
    "range": (
        [
            column("x", [-5, 10]),
            column("x", {"range": [0, 1], "missing": "middle"}),
            column("x", {"range": [1, 500], "log": True, "missing": "category", "codes": [-9]}),
        ],
        scaled,
    ),
    "plain": ([PlainNumber()], lambda kind, entry: [float(entry)]),
    "categories": (
        [
            column("x", ["A", "b c"]),
            column("x", {"categories": ["A", "na"], "other": True, "missing": "category"}),
        ],
        one_hot,
    ),
    "date": (
        [column("x", "date"), column("x", {"date": ["2020-01-01", "2021-06-30"]})],
        of_day,
    ),
    "drop": ([Dropped("category")], lambda kind, entry: []),
}


def cases(name: str) -> tuple[list[Column], Oracle]:
    """The declarations of a kind, with their oracle; a kind without one is not to be trusted."""
    assert name in ORACLES, f"the kind of column {name!r} has no oracle: add a row to ORACLES"
    found, oracle = ORACLES[name]
    assert found and all(type(one) is KINDS[name] for one in found)
    return found, oracle


def in_onnx(kind: Column, given: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Features and refused rows that the written graph gives."""
    graph = OnnxGraph()
    table, refused = encoded(graph, Encoder((("x", kind),)))
    outputs = [helper.make_tensor_value_info(table, onnx.TensorProto.FLOAT, ("N", None))]
    if refused:
        outputs.append(helper.make_tensor_value_info(refused, onnx.TensorProto.BOOL, ("N",)))
    made = helper.make_graph(graph.nodes, "one", graph.inputs, outputs, graph.constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = session.run(None, {"x": given})
    return found[0], found[1] if refused else np.zeros(len(given), bool)


def check(name: str) -> None:
    """What has to hold of a kind."""
    found, oracle = cases(name)
    for kind in found:
        generator = np.random.default_rng(7)
        given, drawn = kind.drawn(generator, 400)
        entries = drawn.cast(pl.String)
        outside = Outside()
        assert len(kind.titles("x")) == len(set(kind.titles("x")))
        assert kind.describe() and column("x", kind.to_value()) == kind
        features = kind.encode("t", "x", entries, 0, outside).astype(np.float64)
        own = [oracle(kind, str(entry)) for entry in entries]
        expected = np.array(own).reshape(len(own), -1)
        np.testing.assert_allclose(features[:, : expected.shape[1]], expected, atol=1e-5)
        assert not features[:, expected.shape[1] :].any()  # nothing is missing
        squares = (features**2).sum(1)
        assert squares.max(initial=0) <= kind.bound**2 * (1 + 1e-6)
        if math.isfinite(kind.bound) and not getattr(kind, "log", False):
            # Of a mean of 400 in [0, bound²], seven standard errors of at most bound²/2 each.
            assert abs(squares.mean() - kind.usual_square) <= 7 * kind.bound**2 / 2 / 20
        if not kind.titles("x"):
            continue
        written, refused = in_onnx(kind, given)
        np.testing.assert_allclose(written, features, atol=1e-5)
        assert not refused.any()
        missing(kind, given[:2], entries[:2])
        seen = Seen()
        seen.add(entries, ".")
        value, why = proposal("x", seen)
        assert why and type(column("x", value)) in (type(kind), KINDS["range"], KINDS["drop"])


def missing(kind: Column, given: np.ndarray[Any, Any], entries: pl.Series) -> None:
    """A missing entry is what was declared: refused, all zero, or a feature of its own."""
    nothing = next(word for word in MISSING_WORDS if word not in getattr(kind, "words", ()))
    row = pl.Series([entries[0], nothing])
    holed = given.copy()
    holed[1] = nothing if holed.dtype == object else np.nan
    written, refused = in_onnx(kind, holed)
    assert refused.tolist() == [False, kind.missing == "refuse"]
    if kind.missing == "refuse":
        with pytest.raises(UndeclaredError, match="x, example 2"):
            kind.encode("t", "x", row, 0, Outside())
        return
    features = kind.encode("t", "x", row, 0, Outside())
    expected = [0.0] * features.shape[1]
    if kind.missing == "category":
        expected[-1] = 1.0
    assert features[1].tolist() == expected == written[1].tolist()


@pytest.mark.parametrize("name", list(KINDS))
def test_a_kind_is_what_its_oracle_says(name: str) -> None:
    check(name)


@pytest.fixture
def added() -> Iterator[None]:
    """Kinds and oracles that a test adds go with it."""
    kinds, oracles = dict(KINDS), dict(ORACLES)
    yield
    for kept, now in ((kinds, KINDS), (oracles, ORACLES)):
        now.clear()
        now.update(kept)  # type: ignore[call-overload]


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.mark.usefixtures("added")
def test_the_kind_on_the_page_is_whole() -> None:
    scope: dict[str, Any] = {"ORACLES": ORACLES, "__name__": __name__}
    kind, oracle = blocks()
    exec(compile(kind, str(PAGE), "exec"), scope)
    with pytest.raises(AssertionError, match="'hour' has no"):
        check("hour")
    exec(compile(oracle, str(PAGE), "exec"), scope)
    check("hour")
    assert column("x", "hour") == scope["Hour"]()
    seen = Seen()
    seen.add(pl.Series(["1", "23.5"]), ".")
    assert proposal("hour", seen)[0] == "hour"


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("part", ["to_onnx", "bound", "usual_square", "proposed", "describe"])
def test_a_kind_that_leaves_something_out_is_refused(part: str) -> None:
    code = blocks()[0].replace("@register\n", "").replace(f"def {part}(", "def left_out(")
    code = code.replace(f"    {part} = ", "    left_out = ")
    scope: dict[str, Any] = {"__name__": __name__}
    exec(compile(code, str(PAGE), "exec"), scope)
    with pytest.raises(TypeError, match=f"not say {part}$"):
        register(scope["Hour"])
    assert "hour" not in KINDS


@pytest.mark.usefixtures("added")
def test_two_kinds_of_one_name_are_refused() -> None:
    @dataclass(frozen=True)
    class Second(Dropped):
        kind = "range"

    with pytest.raises(TypeError, match="'range' already"):
        register(Second)


def test_a_time_may_stand_behind_a_day_and_nothing_else() -> None:
    day = column("x", {"date": ["2010-01-01", "2029-12-31"], "format": "%d.%m.%Y"})
    entries = pl.Series(["01.02.2020", "1.2.2020 10:00", "01.02.2020T10:00:00.5Z"])
    found = day.encode("t", "x", entries, 0, Outside())
    assert (found == found[0]).all()
    for odd in ("01.02.20201", "01.02.2020garbage"):
        with pytest.raises(UndeclaredError, match="expected a day"):
            day.encode("t", "x", pl.Series([odd]), 0, Outside())


def test_a_number_is_the_same_word_in_every_type() -> None:
    for words in (("1", "2"), ("1.0", "2.0")):
        kind = Category(words=words)
        for entries in (
            pl.Series([1, 2]),
            pl.Series([1.0, 2.0]),
            pl.Series(["1.00", "2"]).cast(pl.Decimal(38, 4)),
        ):
            found = kind.encode("t", "a", entries, 0, Outside())
            assert found.tolist() == [[1, 0], [0, 1]]
