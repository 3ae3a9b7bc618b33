"""A table's encoding as ONNX: from named columns to features, as :mod:`forethought.data` has it.

ONNX cannot stop at a bad entry, so what a declaration refuses is marked, row by row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from forethought.data import Encoder
from forethought.data.columns import (
    EPOCH,
    MISSING_WORDS,
    YEAR,
    Category,
    Column,
    Date,
    Number,
)
from forethought.data.error import DataError

ML = "ai.onnx.ml"


@dataclass
class Graph:
    """Nodes in order, each with one output."""

    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    inputs: list[ValueInfoProto] = field(default_factory=list)

    def input(self, name: str, kind: int, shape: tuple[Any, ...] = ("N",)) -> str:
        """A named input."""
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, value: Any, kind: Any = np.float64) -> str:
        """A constant of its own name."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """The name of an operator's output."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, list(inputs), [name], domain=domain, **attributes)
        )
        return name

    def cast(self, value: str, kind: int) -> str:
        """In another type."""
        return self.add("Cast", value, to=kind)


def encoded(graph: Graph, encoder: Encoder) -> tuple[str, str | None]:
    """Names of the features, float32 (N, features), and of whether a row is refused, bool (N,).

    The latter is None where nothing can be refused.

    Inputs are one a column that becomes features, by its name: numbers float64, NaN where missing;
    categories as text without spaces around it; days as float64, counted from 2000-01-01.

    Raises:
        DataError: a kind of column that has no such form.
    """
    features: list[str] = []
    refused: list[str] = []
    for name, kind in encoder.columns:
        if not kind.titles(name):
            continue
        if isinstance(kind, Category):
            found, absent, wrong = _words(graph, name, kind)
            refused += wrong
        else:
            found, absent, endless = _numbers(graph, name, kind)
            refused.append(endless)
        if kind.missing == "refuse":
            refused.append(absent)
        if kind.missing == "category":
            found.append(graph.cast(absent, TensorProto.FLOAT))
        features += found
    rows = [graph.add("Unsqueeze", part, graph.constant([1], np.int64)) for part in features]
    table = graph.add("Concat", *rows, axis=1)
    mark: str | None = None
    for part in refused:
        mark = part if mark is None else graph.add("Or", mark, part)
    return table, mark


def _numbers(graph: Graph, name: str, kind: Column) -> tuple[list[str], str, str]:
    """Features of a number or a day, zero where missing; whether it is; whether it is infinite."""
    value = graph.input(name, TensorProto.DOUBLE)
    absent = graph.add("IsNaN", value)
    for code in kind.codes:
        absent = graph.add("Or", absent, graph.add("Equal", value, graph.constant(code)))
    if isinstance(kind, Number):
        middle, half = kind.scale
        inside = _between(graph, value, kind.low, kind.high)
        if kind.log:
            moved = graph.add("Sub", inside, graph.constant(kind.low - 1.0))
            inside = graph.add("Log", moved)
        scaled = graph.add(
            "Div", graph.add("Sub", inside, graph.constant(middle)), graph.constant(half)
        )
        found = [_between(graph, scaled, -1.0, 1.0)]
    elif isinstance(kind, Date):
        low, high = ((day - EPOCH).days for day in (kind.first, kind.last))
        twice = graph.add("Mul", value, graph.constant(2.0))
        place = graph.add(
            "Div",
            graph.add("Sub", twice, graph.constant(float(low + high))),
            graph.constant(float(high - low)),
        )
        # The season does not need the whole years, which single precision could not hold.
        turned = graph.add("Div", value, graph.constant(YEAR))
        angle = graph.add(
            "Mul",
            graph.add("Sub", turned, graph.add("Floor", turned)),
            graph.constant(2 * math.pi),
        )
        single = graph.cast(angle, TensorProto.FLOAT)
        found = [_between(graph, place, -1.0, 1.0), graph.add("Sin", single)]
        found.append(graph.add("Cos", single))
    elif kind.kind == "plain":
        found = [value]
    else:
        raise DataError(f"column {name}: {kind.kind} columns have no form in ONNX")
    zero = graph.constant(0.0, np.float32)
    singles = [graph.cast(part, TensorProto.FLOAT) for part in found]
    features = [graph.add("Where", absent, zero, part) for part in singles]
    return features, absent, graph.add("IsInf", value)


def _between(graph: Graph, value: str, low: float, high: float) -> str:
    return graph.add("Clip", value, graph.constant(low), graph.constant(high))


def _words(graph: Graph, name: str, kind: Category) -> tuple[list[str], str, list[str]]:
    """A feature a word; whether the entry is missing; and where it is a word that is refused."""
    value = graph.input(name, TensorProto.STRING)
    number = _looked_up(graph, value, {word: n for n, word in enumerate(kind.words)}, -1)
    unknown = graph.add("Less", number, graph.constant(0, np.int64))
    # In all spellings: ONNX turns words into small letters only where a locale is installed.
    spellings = {
        "".join(letters)
        for word in MISSING_WORDS
        for letters in product(*((letter.lower(), letter.upper()) for letter in word))
    }
    named = _looked_up(graph, value, dict.fromkeys(sorted(spellings), 1), 0)
    absent = graph.add("And", unknown, graph.cast(named, TensorProto.BOOL))
    strange = graph.add("And", unknown, graph.add("Not", absent))
    found = [
        graph.cast(graph.add("Equal", number, graph.constant(n, np.int64)), TensorProto.FLOAT)
        for n in range(len(kind.words))
    ]
    if kind.other:
        found.append(graph.cast(strange, TensorProto.FLOAT))
    return found, absent, [] if kind.other or kind.lenient else [strange]


def _looked_up(graph: Graph, value: str, table: dict[str, int], default: int) -> str:
    return graph.add(
        "LabelEncoder",
        value,
        domain=ML,
        keys_strings=list(table),
        values_int64s=list(table.values()),
        default_int64=default,
    )
