"""Export of a finished run as one ONNX file: encoding, standardisation, network, answers.

Raises JobError on import where the extra ``onnx`` is not installed.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from forethought.accounting.interval import at_most
from forethought.data import Encoder
from forethought.jobs.job import JobError
from forethought.training.metrics import Decisions
from forethought.values.serialisation import replaced

try:
    import onnxruntime
    import onnxscript  # noqa: F401 (torch's exporter needs it)
    from onnx import TensorProto, checker, compose, helper, numpy_helper
except ImportError as error:
    raise JobError(
        f"ONNX needs packages that are not here ({error.name}): pip install 'forethought[onnx]'"
    ) from None

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

    from forethought.jobs.predict import Predictor


# A table's encoding as ONNX, from named columns to features, equal to :mod:`forethought.data`.
#
# ONNX cannot raise an error for a bad entry, so rows with entries outside the declarations are
# marked.


ML = "ai.onnx.ml"


@dataclass
class OnnxGraph:
    """An ONNX graph under construction: nodes in order, each with one output.

    Args:
        prefix: begins the names of all but inputs and answers; a column's name has another start.
    """

    prefix: str = ""
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    inputs: list[ValueInfoProto] = field(default_factory=list)

    def input(self, name: str, kind: type, about: str = "", shape: tuple[Any, ...] = ("N",)) -> str:
        """Add a named input with the description ``about``; returns its name."""
        self.inputs.append(helper.make_tensor_value_info(name, _type(kind), shape, about))
        return name

    def constant(self, value: Any, kind: type = np.float64) -> str:
        """Add a constant; returns its name."""
        name = f"{self.prefix}constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add an operator; returns the name of its output."""
        name = f"{self.prefix}{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, list(inputs), [name], domain=domain, **attributes)
        )
        return name

    def cast(self, value: str, kind: type) -> str:
        """Add a cast to another type; returns the name of its output."""
        return self.add("Cast", value, to=_type(kind))


def encoded(graph: OnnxGraph, encoder: Encoder) -> tuple[str, str | None]:
    """The names of the features, float32 (N, features), and of the marks of bad rows, bool (N,).

    The latter is None where no row can be refused. The graph gets one input for each column that
    becomes features, with its name; see :meth:`forethought.data.columns.Column.to_onnx`.
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
    if encoder.basis is not None:
        table = encoder.basis.to_onnx(graph, table)
    return table, mark


def _type(kind: type) -> int:
    return int(
        TensorProto.STRING if kind is str else helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    )


# The network is compared with the answers of :class:`Predictor` before the file is written.


# Number of rows of this comparison, and the tolerance for rounding in two runtimes.
ROWS, ROUNDING = 64, 1e-4


def write_onnx(predictor: Predictor, out: Path) -> ModelProto:
    """Write the model as ONNX.

    The graph of a run on a declared table has its columns as inputs; any other graph has
    ``inputs``, float32 (N, …). For a run on fixed features of images these are the features, not
    images: the file's metadata say so (``features`` and ``before``), and
    :func:`forethought.data.features_of` computes them. Outputs: ``probabilities``, float32
    (N, classes), and ``prediction``, the likeliest class's name or number (for several labels, 0 or
    1 each); for a regression only ``prediction``, float64 (N,). A row with an entry outside the
    declarations has NaN as its numbers, and "" or −1 as its class. Words are known in the usual
    spellings only: 7 and 7.0, or true, True and TRUE; Python knows 7.00 and tRUE, too.

    Args:
        predictor: the model. out: the file; replaced if it exists.

    Returns:
        The ONNX model that was written.

    Raises:
        JobError: torch cannot export the network, its answers in ONNX differ, or a column has the
            name of an answer. OSError: the file cannot be written.
    """
    model = whole_model(predictor, network_of(predictor))
    checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    _compare(predictor, session)
    with replaced(out) as file:
        file.write(model.SerializeToString())
    return model


def network_of(predictor: Predictor) -> ModelProto:
    """The torch module alone, from ``features`` to ``outputs``."""
    shape = predictor.card.inputs
    rows = torch.export.Dim.DYNAMIC
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own internals
            program = torch.onnx.export(
                predictor.model,
                (torch.zeros(2, *shape),),
                dynamo=True,
                dynamic_shapes=({0: rows},),
                input_names=["features"],
                output_names=["outputs"],
                verbose=False,
            )
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        raise JobError(
            f"torch cannot export this network to ONNX: {first}. Its weights are in "
            "model.safetensors, and forethought.load applies it"
        ) from error
    assert program is not None  # None only where a file is written
    return program.model_proto


def whole_model(predictor: Predictor, network: ModelProto) -> ModelProto:
    """The network with the encoding before it and the answers after it."""
    card, prefix = predictor.card, "forethought."
    columns = () if card.encoder is None else card.encoder.columns
    while any(name.startswith(prefix) for name, _ in columns):
        prefix += "."
    graph, network = OnnxGraph(prefix), compose.add_prefix(network, prefix)
    if card.encoder is None:
        shape = ("N", *card.inputs)
        features = graph.add("Identity", graph.input("inputs", np.float32, shape=shape))
        refused = None
    else:
        features, refused = encoded(graph, card.encoder)
    features = _prepared(graph, features, predictor)
    graph.nodes.append(helper.make_node("Identity", [features], [f"{prefix}features"]))
    graph.nodes += network.graph.node
    graph.constants += network.graph.initializer
    outputs = _answers(graph, predictor, refused)
    taken = {value.name for value in graph.inputs} & {value.name for value in outputs}
    if taken:
        raise JobError(
            f"the table has a column {min(taken)!r}, and an answer of the file is called so: "
            "rename the column and train anew, or apply the run with forethought.load"
        )
    whole = helper.make_graph(
        graph.nodes, "forethought", graph.inputs, outputs, initializer=graph.constants
    )
    opsets = [entry for entry in network.opset_import if entry.domain != ML]
    model = helper.make_model(
        whole,
        opset_imports=[*opsets, helper.make_opsetid(ML, 3)],
        functions=list(network.functions),
        producer_name="forethought",
    )
    model.ir_version = network.ir_version
    s = predictor.statement
    found = {"guarantee": s.sentences()[0], **before(predictor)}
    if s.private:  # else the number would be of a run that nobody can draw again, not of this one
        found |= {"epsilon": at_most(s.epsilon.upper, ".6g"), "delta": at_most(s.delta, ".6g")}
    if s.about is not None and s.about.model is not None:
        found["model"] = s.about.model
    helper.set_model_props(model, found)
    return model


def before(predictor: Predictor) -> dict[str, str]:
    """The file's metadata on steps that its user must do first; {} where there are none."""
    card = predictor.card
    if card.features is None:
        return {}
    shape = ", ".join(map(str, card.inputs))
    call = f"forethought.data.features_of(images, {card.features!r})"
    return {
        "features": card.features,
        "before": f"inputs are not images but their fixed features, float32 (N, {shape}): "
        f"in Python {call}, images float32 (N, channels, height, width), bytes divided by 255",
    }


def _prepared(graph: OnnxGraph, features: str, predictor: Predictor) -> str:
    """Add the standardisation of :meth:`forethought.rounds.preparation.InputConstants.apply`."""

    constants = predictor.constants
    if not constants.shift:
        return features
    shape = (1, -1, *(1,) * (len(predictor.card.inputs) - 1))
    shift, scale = (
        graph.constant(np.reshape(np.asarray(part, np.float64), shape))
        for part in (constants.shift, constants.scale)
    )
    double = graph.cast(features, np.float64)
    found = graph.add("Div", graph.add("Sub", double, shift), scale)
    if constants.limits is not None:
        found = graph.add("Clip", found, *(graph.constant(end) for end in constants.limits))
    return graph.cast(found, np.float32)


def _answers(graph: OnnxGraph, predictor: Predictor, refused: str | None) -> list[Any]:
    """Add the answers from the network's outputs, as named outputs of the graph."""
    card, outputs = predictor.card, f"{graph.prefix}outputs"

    def marked(value: str, instead: Any, kind: Any, wide: bool) -> str:
        if refused is None:
            return value
        rows = refused
        if wide:
            rows = graph.add("Unsqueeze", refused, graph.constant([1], np.int64))
        return graph.add("Where", rows, graph.constant(instead, kind), value)

    def named(value: str, name: str, kind: int, *shape: Any) -> Any:
        graph.nodes.append(helper.make_node("Identity", [value], [name]))
        return helper.make_tensor_value_info(name, kind, ("N", *shape))

    if card.classes is None:
        flat = graph.add("Flatten", outputs)
        first = graph.add("Gather", flat, graph.constant(0, np.int64), axis=1)
        value = graph.cast(first, np.float64)
        limits = None if card.encoder is None else card.encoder.target_range
        if limits is not None:
            low, high = limits
            value = graph.add("Mul", value, graph.constant(high / 2 - low / 2))
            value = graph.add("Add", value, graph.constant(low / 2 + high / 2))
            value = graph.add("Clip", value, graph.constant(low), graph.constant(high))
        return [named(marked(value, np.nan, np.float64, False), "prediction", TensorProto.DOUBLE)]
    rule = card.decisions or Decisions()
    if rule.shift:
        outputs = graph.add("Add", outputs, graph.constant(rule.shift, np.float32))
    chance = graph.add("Sigmoid", outputs) if card.multilabel else ""
    chance = chance or graph.add("Softmax", outputs, axis=1)
    likely = named(
        marked(chance, np.nan, np.float32, True), "probabilities", TensorProto.FLOAT, card.classes
    )
    if card.multilabel:
        has = graph.add("Greater", outputs, graph.constant(0.0, np.float32))
        several = marked(graph.cast(has, np.int64), -1, np.int64, True)
        return [likely, named(several, "prediction", TensorProto.INT64, card.classes)]
    if rule.costs:
        outputs = graph.add("Add", outputs, graph.constant(np.log(rule.costs), np.float32))
    number = graph.add("ArgMax", outputs, axis=1, keepdims=0)
    number = marked(number, -1, np.int64, False)
    names = predictor.classes or ()
    if not all(isinstance(name, str) for name in names):
        return [likely, named(number, "prediction", TensorProto.INT64)]
    words = graph.add(
        "LabelEncoder",
        number,
        domain=ML,
        keys_int64s=list(range(len(names))),
        values_strings=list(names),
        default_string="",
    )
    return [likely, named(words, "prediction", TensorProto.STRING)]


def _compare(predictor: Predictor, session: Any) -> None:
    """Refuse an ONNX model whose answers differ from the model's on rows from declared ranges."""
    generator = np.random.default_rng(0)
    encoder = predictor.card.encoder
    if encoder is None:
        inputs = generator.normal(size=(ROWS, *predictor.card.inputs)).astype(np.float32)
        given: dict[str, NDArray[Any]] = {"inputs": inputs}
        expected = predictor.outputs(inputs)
    else:
        # Synthetic rows over the declared ranges: as inputs for ONNX, and as a table.
        kinds = {name: kind for name, kind in encoder.columns if kind.titles(name)}
        drawn = {name: kind.drawn(generator, ROWS) for name, kind in kinds.items()}
        given = {name: entries for name, (entries, _) in drawn.items()}
        frame = pl.DataFrame({name: column for name, (_, column) in drawn.items()})
        expected = predictor.outputs(encoder.encode(frame, "made-up rows"))
    name, wanted, relative = "probabilities", predictor.shares, 0.0
    if predictor.card.classes is None:
        name, wanted, relative = "prediction", predictor.answers, ROUNDING
    (found,) = session.run([name], given)
    if not np.allclose(found, wanted(expected), rtol=relative, atol=ROUNDING):
        raise JobError(
            "the network answers otherwise in ONNX than in torch: nothing was written. Its weights "
            "are in model.safetensors, and forethought.load applies it"
        )
