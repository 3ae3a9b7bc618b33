"""A table's encoding as ONNX: from named columns to features, as :mod:`forethought.data` has it.

ONNX cannot stop at a bad entry, so what a declaration refuses is marked, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from forethought.data import Encoder

ML = "ai.onnx.ml"


@dataclass
class Graph:
    """Nodes in order, each with one output."""

    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    inputs: list[ValueInfoProto] = field(default_factory=list)

    def input(self, name: str, kind: type, about: str = "", shape: tuple[Any, ...] = ("N",)) -> str:
        """A named input; ``about`` says in words what it is."""
        self.inputs.append(helper.make_tensor_value_info(name, _type(kind), shape, about))
        return name

    def constant(self, value: Any, kind: type = np.float64) -> str:
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

    def cast(self, value: str, kind: type) -> str:
        """In another type."""
        return self.add("Cast", value, to=_type(kind))


def encoded(graph: Graph, encoder: Encoder) -> tuple[str, str | None]:
    """Names of the features, float32 (N, features), and of whether a row is refused, bool (N,).

    The latter is None where nothing can be refused. Inputs are one a column that becomes features,
    by its name; see :meth:`forethought.data.columns.Column.to_onnx`.
    """
    features: list[str] = []
    refused: list[str] = []
    for name, kind in encoder.columns:
        written = kind.to_onnx(graph, name)
        features += written.features
        refused += written.refused
        if written.absent is not None and kind.missing == "refuse":
            refused.append(written.absent)
        if written.absent is not None and kind.missing == "category":
            features.append(graph.cast(written.absent, np.float32))
    rows = [graph.add("Unsqueeze", part, graph.constant([1], np.int64)) for part in features]
    table = graph.add("Concat", *rows, axis=1)
    mark: str | None = None
    for part in refused:
        mark = part if mark is None else graph.add("Or", mark, part)
    return table, mark


def _type(kind: type) -> int:
    return int(
        TensorProto.STRING if kind is str else helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    )
