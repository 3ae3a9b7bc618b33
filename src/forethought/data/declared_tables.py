"""Tables whose every column is declared: read in pieces, encoded without a look at the whole."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.caveats import Caveat
from forethought.data.columns import Outside, UndeclaredError
from forethought.data.dataset import Dataset, Split, falls_out, share_held_out
from forethought.data.encoder import Encoder, TableSchema
from forethought.data.error import DataError
from forethought.data.labels import Declared, Labels, label_column
from forethought.data.persons import kept
from forethought.data.reading import Kind, Table
from forethought.data.suspicions import SuspiciousDataWarning
from forethought.data.tables import Aside

COLUMNS = Caveat("declared-shape", "the columns, their ranges and their categories")
MEASURED = Caveat(
    "preparation-from-data",
    "ranges and categories of columns and what the target can be, taken from the file by its owner",
)


def load_declared(
    name: str,
    path: Path,
    kind: Kind,
    schema: TableSchema,
    aside: Aside,
    declared: Declared,
    test: Path | None,
    holdout: float | None,
) -> Dataset:
    """A table by its declaration, float32, in about the memory of its features.

    Args:
        name: of the source. path, kind: the file. schema: what its columns are.
        aside: label and other columns that are no features.
        declared: the classes, or that it is a regression. test: a file of its own for testing.
        holdout: share held out where there is none.

    Raises:
        DataError: columns that are not declared or not there, entries that no declaration covers,
            no declared classes, or a damaged file.
    """
    if declared.classes is None and declared.task not in ("regression", "multilabel"):
        raise UndeclaredError(
            f'{path}: with declared columns the target is declared as well: classes = ["no", '
            '"yes"], or task = "regression" with target_range = [low, high], or task = '
            '"multilabel" with a list of columns as label'
        )
    if declared.task != "regression" and schema.target_range is not None:
        raise UndeclaredError(f"{path}: target_range goes with a regression, not with classes")
    if declared.task == "regression" and schema.target_range is None:
        raise UndeclaredError(
            f"{path}: a regression on a declared table needs target_range = [low, high]: targets "
            "are scaled by it, and no record decides it"
        )
    columns = schema.parsed()
    for column, purpose in (
        *((label, "a label") for label in aside.labels or (aside.label,)),
        (aside.site, "the site"),
        (aside.person, "the person"),
    ):
        if column in columns and columns[column].titles(column):
            raise UndeclaredError(
                f"{path}: {column!r} is {purpose} and a feature at once: take it out of "
                "[data.columns]"
            )
    if {aside.label, *aside.labels} & {aside.person, aside.site}:
        raise UndeclaredError(f"{path}: {aside.label!r} is the label and the person at once")
    encoder = Encoder(
        tuple((key, value) for key, value in columns.items() if key not in aside.names),
        aside.label,
        target_range=schema.target_range,
        form=schema.form,
    )
    if not encoder.titles:
        raise UndeclaredError(f"{path}: every column is dropped: there is nothing to learn from")
    if declared.features not in (None, len(encoder.titles)):
        raise DataError.unexpected(
            path, f"{len(encoder.titles)} features", f"the declared {declared.features}"
        )
    if declared.classes is not None:
        encoder = encoder.with_classes(declared.classes)
    if aside.labels:
        encoder = replace(encoder, label=None, classes=aside.labels, multilabel=True)
    labels = None if aside.labels else Labels(path, np.array([]), declared)
    classes = len(aside.labels) if labels is None else labels.classes
    reader = _Reader(encoder, labels, aside, kind, schema, set(columns))
    outside = Outside()
    if test is None:
        train, held, names = reader.split(path, holdout, outside)
    else:
        train, _, names = reader.split(path, 0.0, outside)
        held = reader.split(test, 0.0, outside)[0]
    _tell(path, outside, len(train) + len(held))
    notes = ("numbers scaled from their declared ranges to [-1, 1]",)
    # What init wrote was not declared without a look at the data: nor were its classes.
    caveats = (MEASURED,) if schema.measured else (*declared.caveats, COLUMNS)
    if aside.person is None:
        return Dataset(
            name,
            train,
            held,
            classes,
            notes,
            caveats,
            names,
            encoder,
            feature_norm=encoder.usual_norm,
        )
    assert names is not None
    most = schema.records_per_person
    mask = kept(train, names.tolist(), most)
    return Dataset(
        name,
        train.at(mask),
        held,
        classes,
        notes,
        caveats,
        encoder=encoder,
        persons=names[mask],
        records_per_person=most,
        feature_norm=encoder.usual_norm,
    )


@dataclass(frozen=True)
class _Reader:
    encoder: Encoder
    labels: Labels | None
    aside: Aside
    kind: Kind
    schema: TableSchema
    known: set[str]

    def split(
        self, path: Path, holdout: float | None, outside: Outside
    ) -> tuple[Split, Split, NDArray[np.str_] | None]:
        """The parts that stay and that are held out (0: none), and whose or where what stays is."""
        share = 0.0 if holdout == 0.0 else share_held_out(holdout)
        parts: tuple[list[Split], list[Split]] = ([], [])
        sites: list[NDArray[np.str_]] = []
        first = 0
        for frame in Table(path, self.kind, self.schema.form).pieces():
            if not first:
                self._check(path, frame.columns)
            whole = Split(
                self.encoder.encode(frame, str(path), first, outside),
                self._targets(frame, path, outside),
            )
            out = falls_out(self._identities(frame), share, len(frame))
            for part, chosen in zip(parts, (~out, out), strict=True):
                if chosen.any():
                    part.append(whole.at(chosen))
            wanted = self.aside.person or self.aside.site
            if wanted is not None:
                named = frame[wanted].cast(pl.String).str.strip_chars().fill_null("")
                sites.append(np.array(named.to_list())[~out])
            first += len(frame)
        if share and not (parts[0] and parts[1]):
            raise DataError(
                f"{path}: {first} examples cannot be split with holdout {share}: one part would be "
                "empty. Choose another holdout, or give a test file"
            )
        return _joined(parts[0]), _joined(parts[1]), np.concatenate(sites) if sites else None

    def _check(self, path: Path, names: list[str]) -> None:
        for wanted in self.aside.names - set(names):
            raise DataError.unexpected(
                path, f"the columns {', '.join(names[:20])}", f"one named {wanted!r}"
            )
        extra = [each for each in names if each not in self.known | self.aside.names]
        if extra:
            raise UndeclaredError(
                f"{path}: not declared: {', '.join(extra[:20])}: say in [data.columns] what each "
                'is, or "drop". forethought init writes the table for you to correct'
            )

    def _targets(
        self, frame: pl.DataFrame, path: Path, outside: Outside
    ) -> NDArray[np.int64] | NDArray[np.float32]:
        if self.labels is None:
            columns = [
                label_column(str(path), name, frame[name].cast(pl.String).fill_null("").to_list())
                for name in self.aside.labels
            ]
            return np.stack(columns, axis=1)
        if self.labels.classes is None:
            return self.encoder.targets(frame, str(path), outside)
        entries = frame[self.aside.label].cast(pl.String).fill_null("")
        known = {str(name).strip(): number for number, name in enumerate(self.labels.names or ())}
        places = entries.str.strip_chars().replace_strict(
            list(known), list(known.values()), default=None, return_dtype=pl.Int64
        )
        if not places.null_count():
            return places.to_numpy()
        return self.labels.encode(path, np.array(entries.to_list()))  # written in another way

    def _identities(self, frame: pl.DataFrame) -> list[bytes]:
        if self.aside.split_by is not None:
            one = pl.col(self.aside.split_by).cast(pl.String).str.strip_chars().fill_null("")
        else:
            text = [pl.col(name).cast(pl.String).fill_null("") for name in sorted(frame.columns)]
            one = pl.concat_str(text, separator="\x1f")
        found: list[bytes] = frame.select(one.cast(pl.Binary)).to_series().to_list()
        return found


def _joined(parts: list[Split]) -> Split:
    if not parts:
        return Split(np.empty((0, 0), np.float32), np.empty(0, np.float32))
    if len(parts) == 1:
        return parts[0]
    inputs = np.concatenate([part.inputs for part in parts])
    return Split(inputs, np.concatenate([part.targets for part in parts]))


def _tell(path: Path, outside: Outside, rows: int) -> None:
    """Tell the owner, on their machine, where the declarations do not fit the table."""
    found = [
        f"{name}: {count} of {rows} {what}"
        for kind, what in (
            (outside.clipped, "outside the declared range, clipped to it"),
            (outside.unknown, "words that are not declared"),
        )
        for name, count in kind.items()
    ]
    if found:
        warnings.warn(
            f"{path}: {'; '.join(found[:10])}. For your eyes only; correct [data.columns] where it "
            "is wrong, from what you know and not from these counts",
            SuspiciousDataWarning,
            stacklevel=5,
        )
