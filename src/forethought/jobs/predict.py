"""Predictions of a finished run's model for new records, in Python and from file to file."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from forethought.accounting.statement import Statement, content_hash
from forethought.data import DataError, Encoder
from forethought.data.columns import Outside
from forethought.data.features import features_of
from forethought.data.files import Table, kind_of, required, with_entries
from forethought.data.sources import array_inputs, load_records
from forethought.jobs.job import JobError
from forethought.jobs.load import ModelCard, public_constants
from forethought.models import build
from forethought.rounds.preparation import InputConstants, Prepared
from forethought.training.folder import CARD, MODEL, STATEMENT, RunFolder
from forethought.training.metrics import Decisions, outputs_of
from forethought.training.records import PREPARED
from forethought.values.checks import importable_from
from forethought.values.serialisation import replaced

# Number of records of an array that are processed at once.
_PIECE = 1_000


@dataclass(frozen=True, eq=False)
class Predictor:
    """A trained model with the encoding of new records into its inputs.

    Args:
        model: with the released weights, in evaluation mode.
        card: architecture and encoding. statement: the guarantee for the training records.
        folder: of the run. constants: of the standardisation of inputs.
    """

    model: torch.nn.Module
    card: ModelCard
    statement: Statement
    folder: Path
    constants: InputConstants = field(default_factory=InputConstants)

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """The names of the classes, class 0 first; None for a regression."""
        if self.card.classes is None:
            return None
        named: tuple[str, ...] | None = getattr(self.card.encoder, "classes", None)
        return named or tuple(range(self.card.classes))

    def predict(self, records: object) -> NDArray[Any]:
        """The answer for each record: the name of its class, or the value of a regression.

        The class is the likeliest one, or the one of least expected cost where the job declares
        costs.

        Args:
            records: for a table a polars or pandas frame, an Arrow table, a mapping of columns or
                a sequence of mappings, in which a duration counts in seconds; for other data an
                array (N, …) of the inputs, of which bytes are pixels. Where the model was trained
                on fixed features of images, images are accepted, too. Or the path of a file, whose
                answers are the same. Other columns than those of training, such as the label, are
                ignored.

        Returns:
            Shape (N,). For several labels, 1 where a record has the label and 0 otherwise, shape
            (N, labels), in the order of ``classes``.

        Raises:
            DataError: a missing column, an entry outside the declarations, an array of another
                shape, or numbers that are not finite.
        """
        return self.answers(self.outputs(self._inputs(records)))

    def predict_proba(self, records: object) -> NDArray[np.float64]:
        """The probability of each class or label, float64, (N, classes), ordered as ``classes``.

        Raises:
            DataError: as for :meth:`predict`. JobError: a regression has no classes.
        """
        if self.card.classes is None:
            raise JobError("a regression has no probabilities: use predict")
        return self.shares(self.outputs(self._inputs(records)))

    def shares(self, outputs: NDArray[np.float32]) -> NDArray[np.float64]:
        """The probabilities (N, classes), float64, from the network's outputs (N, classes)."""
        if self.card.multilabel:
            return np.asarray(1 / (1 + np.exp(-outputs.astype(np.float64))))
        return self._decisions.shares(outputs)

    @property
    def _decisions(self) -> Decisions:
        return self.card.decisions or Decisions()

    def why(self, records: object) -> pl.DataFrame:
        """The contribution of each column to each answer, for a linear or an additive model.

        With two classes, the contribution to the log-odds of class 1. With more, to the score of
        the class that is the answer (named in ``class``) minus the mean score. For a regression, to
        the value before it is clipped to its range. ``intercept`` is the answer where every column
        adds its mean over the declared range, or 0 without a declaration. The sum of a row is its
        answer. ``pairs`` is the sum of all surfaces over two columns, if the model has any. Where
        the table has a column of such a name, ``_`` stands behind ours.

        Args:
            records: as for :meth:`predict`.

        Raises:
            JobError: another model, several labels, or inputs that are standardised.
        """
        return self._why(self._inputs(records))

    def _why(self, inputs: NDArray[np.float32]) -> pl.DataFrame:
        from forethought.training.shapes import addition_of

        if self.card.multilabel or self.constants.shift:
            raise JobError(
                "why is told of one label, of columns that are not standardised; see report.html"
            )
        try:
            model = addition_of(self._encoder(), self.model, shift=self._decisions.shift)
        except ValueError as error:
            raise JobError(f"why is not known of the model {self.card.name!r}: {error}") from None
        columns, pairs = model.columns(inputs), model.pairs(inputs)
        rows, chosen = np.arange(len(inputs)), np.zeros(len(inputs), np.int64)

        def free(name: str) -> str:
            return free(f"{name}_") if name in model.names else name

        found: dict[str, Any] = {}
        if len(model.intercept) > 1:
            chosen = self._decisions.chosen(self.outputs(inputs))
            found[free("class")] = np.array(self.classes)[chosen]
        found[free("intercept")] = model.intercept[chosen]
        found |= {name: columns[rows, at, chosen] for at, name in enumerate(model.names)}
        if getattr(self._encoder().basis, "couples", ()):
            found[free("pairs")] = pairs[rows, chosen]
        return pl.DataFrame(found)

    def predict_file(self, source: Path, out: Path, why: bool = False) -> int:
        """Write a CSV file with a row for each record: ``prediction`` and one column per class.

        For several labels ``prediction`` lists those that a record has, separated by "; ". The file
        is written in pieces under a temporary name and renamed at the end.

        Args:
            source: a table; or, for a run on arrays, ``.npy`` or ``.npz`` with ``x_test`` or ``x``,
                read as in training: images are turned into the features of training.
            out: the file; replaced if it exists.
            why: add the columns of :meth:`why`, with "why_" before their names.

        Returns:
            The number of rows.

        Raises:
            DataError: as for :meth:`predict`. JobError: a table, but the model has no encoding.
        """
        rows = 0
        with replaced(out) as file, _applied(self.folder / CARD):
            for inputs in self._read(source):
                frame = self._frame(self.outputs(inputs))
                if why:
                    frame = frame.hstack(self._why(inputs).select(pl.all().name.prefix("why_")))
                frame.write_csv(file, include_header=not rows)
                rows += len(inputs)
        return rows

    def _frame(self, outputs: NDArray[np.float32]) -> pl.DataFrame:
        answers = self.answers(outputs)
        columns: dict[str, Any] = {"prediction": answers}
        if self.classes is not None:
            if self.card.multilabel:
                names = np.array(list(map(str, self.classes)))
                columns = {"prediction": ["; ".join(names[row == 1]) for row in answers]}
            for name, values in zip(self.classes, self.shares(outputs).T, strict=True):
                columns[f"probability_{name}"] = values
        return pl.DataFrame(columns)

    def answers(self, outputs: NDArray[np.float32]) -> NDArray[Any]:
        """The classes, labels or values from the network's outputs (N, …); see :meth:`predict`."""
        encoder = self.card.encoder
        if self.classes is None:
            values = outputs.reshape(len(outputs), -1)[:, 0]
            return values.astype(np.float64) if encoder is None else encoder.restored(values)
        if self.card.multilabel:
            return (outputs > 0).astype(np.int64)
        return np.array(self.classes)[self._decisions.chosen(outputs)]

    def _inputs(self, records: object) -> NDArray[np.float32]:
        if isinstance(records, str | Path):
            return np.concatenate(list(self._read(Path(records))))
        if self.card.encoder is None:
            return self._array(array_inputs("the records", np.asarray(records)))
        frame = with_entries(_frame_of(records, self._encoder()))
        return np.concatenate(list(self._encoded([frame], "the records")))

    def _encoded(self, pieces: Iterable[pl.DataFrame], where: str) -> Iterator[NDArray[np.float32]]:
        """The features of frames, which follow each other; warns at the end."""
        outside, rows = Outside(), 0
        for frame in pieces:
            yield self._encoder().encode(frame, where, rows, outside)
            rows += len(frame)
        outside.tell(where, rows, "are they written as in training? model.json has them declared")

    def _array(self, found: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.card.features is not None and found.shape[1:] != self.card.inputs:
            # Images of another shape could give features of the same shape, unnoticed.
            if self.card.images is not None and found.shape[1:] != self.card.images:
                wanted = f"{self.card.images}, as in training"
                raise DataError.unexpected("the records", f"images of {found.shape[1:]}", wanted)
            found = features_of(found, self.card.features)
        if found.shape[1:] != self.card.inputs:
            raise DataError.unexpected(
                "the records", f"an array of shape {found.shape}", f"(N, *{self.card.inputs})"
            )
        return found

    def _encoder(self) -> Encoder:
        if self.card.encoder is None:
            raise JobError(
                f"the model in {self.folder} was not trained on a table: give its records as .npy "
                f"or .npz, or in Python forethought.load({str(self.folder)!r}).predict(array)"
            )
        return self.card.encoder

    def _read(self, source: Path) -> Iterator[NDArray[np.float32]]:
        """The inputs of the network from a file, in pieces."""
        if self.card.encoder is None and source.suffix.lower() in (".npy", ".npz"):
            records = load_records(source)
            if not len(records):
                raise DataError.unexpected(source, "no records", "at least one")
            for at in range(0, len(records), _PIECE):
                yield self._array(records[at : at + _PIECE])
            return
        table = Table(required(source), kind_of(source), self._encoder().form)
        yield from self._encoded(table.pieces(), str(source))

    def outputs(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """The network's outputs for encoded inputs (N, …), which are standardised here.

        Warns:
            UserWarning: some are not finite.
        """
        if not len(inputs):
            return np.empty((0, self.card.classes or 1), np.float32)
        found = outputs_of(self.model, self.constants.apply(inputs))
        if not np.isfinite(found).all():  # an answer is made of them all the same
            words = f"the model in {self.folder} has outputs that are not finite: do not use them"
            warnings.warn(words, stacklevel=2)
        return found


def load(folder: str | Path) -> Predictor:
    """The model of a finished run, ready for new records.

    The folder holds plain JSON and safetensors; nothing in it is executed. A user's own model
    (``module:function``) is built by importing its module, which may lie next to the folder.

    Args:
        folder: a run folder of ``forethought train``.

    Raises:
        JobError: no finished run, a damaged file, or another model than the statement's.
        forethought.errors.CheckpointError: the weights are missing, damaged or of another model.
    """
    path = Path(folder)
    if path.is_file():
        raise JobError(f"{path} is a file: give the run folder that forethought train made")
    run = RunFolder(path)
    for file in (path / name for name in (CARD, MODEL, PREPARED)):
        if file.exists() and not file.is_file():  # reading a pipe would wait for its writer
            raise JobError(f"{file} is no ordinary file: restore it from a copy")
    with _applied(path / CARD):
        card = ModelCard.load(path / CARD)
        if not run.finished:
            raise JobError(f"{path} has not ended: continue with forethought train --resume {path}")
        with importable_from(path.parent):
            model = build(
                card.name, inputs=card.inputs, classes=card.classes or 1, seed=0, **card.options
            )
        constants = InputConstants()
        if isinstance(card.standardise, str):
            constants = Prepared.load(path / PREPARED).constants
        elif card.standardise is not None:
            constants = public_constants(card.standardise, card.inputs[0])
    run.load_model(model)
    statement = Statement.load(path / STATEMENT)
    stated = {MODEL: statement.about and statement.about.model}
    if isinstance(card.standardise, str) and statement.evidence is not None:
        stated[PREPARED] = statement.evidence.files.get(PREPARED)
    for name, named in stated.items():
        if named and named != content_hash((path / name).read_bytes()):
            raise JobError(
                f"{path / name} is not the model that its statement names: restore it from a copy"
            )
    return Predictor(model.eval(), card, statement, path, constants)


@contextmanager
def _applied(card: Path) -> Iterator[None]:
    # An edited card fails wherever its values are used.
    try:
        yield
    except (TypeError, AttributeError, LookupError, RuntimeError, pl.exceptions.PolarsError) as one:
        raise JobError(
            f"{card} cannot be applied ({one!r}): if it was edited, restore it from a copy"
        ) from None


def _frame_of(records: object, encoder: Encoder) -> pl.DataFrame:
    """Rows in memory, in any accepted form, as a polars frame."""
    if isinstance(records, pl.LazyFrame):
        return records.collect()
    # Frames of polars and tables of Arrow; pandas' columns are read below, without Arrow.
    if hasattr(records, "__arrow_c_stream__") and not hasattr(records, "iloc"):
        return pl.DataFrame(records)
    if isinstance(records, np.ndarray):
        names = [name for name, _ in encoder.columns]
        if records.ndim != 2 or records.shape[1] != len(names):
            wanted = f"(N, columns): {', '.join(names)}"
            raise DataError.unexpected("the records", f"an array of shape {records.shape}", wanted)
        records = dict(zip(names, records.T, strict=True))
    elif isinstance(records, Sequence) and all(isinstance(row, Mapping) for row in records):
        keys = {key: None for row in records for key in row}
        records = {key: [row.get(key) for row in records] for key in keys}
    columns = getattr(records, "columns", None)
    if columns is not None:  # a pandas frame, or an object with the same interface
        if len(set(map(str, columns))) < len(columns):
            raise DataError.unexpected("the records", "columns of one name", "different names")
        records = {str(name): records[name] for name in columns}  # type: ignore[index]
    if not isinstance(records, Mapping) or any(
        isinstance(values, str) or not isinstance(values, Iterable) for values in records.values()
    ):
        raise TypeError(
            "records are a frame, a mapping of columns, or a sequence of mappings; one row as [row]"
        )
    return pl.DataFrame({str(name): _series(values) for name, values in records.items()})


def _series(values: Any) -> pl.Series:
    if isinstance(values, np.ndarray) and values.dtype.kind in "mM":
        values = values.astype(f"{values.dtype.kind}8[us]")  # nanoseconds are listed as numbers
    entries = values.tolist() if hasattr(values, "tolist") else list(values)
    known = [None if _missing(entry) else entry for entry in entries]
    # One entry must not say what another is: beside a number a day would be one, and beside a byte
    # 300 would be missing. And a day is that of its own clock, not of one time zone for all.
    kinds = {type(entry) for entry in known if entry is not None}
    zones = {getattr(entry, "tzinfo", None) for entry in known} - {None}
    if zones or len(kinds) > 1:
        # A number as text would have a point, whatever the form of the table's texts is.
        told = float if all(issubclass(kind, Real | Decimal) for kind in kinds) else str
        known = [None if entry is None else told(entry) for entry in known]
    return pl.Series(known, strict=False)


def _missing(entry: Any) -> bool:
    """True for None, and for what pandas has in its place: NaN, NaT, and NA, which is not bool."""
    try:
        return entry is None or bool(entry != entry)
    except TypeError:
        return True
