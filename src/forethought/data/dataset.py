"""The result of a loader: arrays, with notes and caveats."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.data.columns import MISSING_WORDS
from forethought.data.files import LABEL_NEEDED, DataError, distinct, named, one_by_one, written
from forethought.values.caveats import Caveat, of_role

if TYPE_CHECKING:
    from forethought.data.basis import Basis, Curves
    from forethought.data.columns import Encoder


HOLDOUT = 0.2
# Public constants: they make the split the same in every run, and independent of other hashes.
_SPLIT_KEY, _TELL_KEY = b"forethought/split/1", b"forethought/equal records/1"


@dataclass(frozen=True, eq=False)
class Split:
    """Examples and their targets.

    Args:
        inputs: float32, (N, features) or (N, C, H, W).
        targets: (N,): int64 classes from 0, or float32 values of a regression; (N, labels) of 0
            and 1 if a record has several labels or none.
    """

    inputs: NDArray[np.float32]
    targets: NDArray[np.int64] | NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.targets)

    def at(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Split:
        """The examples with these indices, or where a mask is true."""
        return Split(self.inputs[chosen], self.targets[chosen])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training part, perhaps a test part, and notes on both.

    Args:
        name: the source it was loaded from.
        train: the private examples.
        test: examples that training never uses, or None.
        classes: number of classes or labels of the targets; None for a regression.
        notes: the scaling of inputs, and other facts that matter in comparisons.
        caveats: for the Statement: values that loading read from the private data, and values
            that the user declared instead. :func:`forethought.train` takes a Dataset as it is and
            passes them on; its bare arrays cannot carry them.
        sites: (N,), the client of a federation that holds each training record, if a column of
            the file names it; see :mod:`forethought.data.synthetic`.
        encoder: encodes new rows of the table as features; None: not from a table.
        persons: (N,), the person of each training record, if several can be one person's.
        records_per_person: largest number of records of a person.
        feature_norm: usual norm of a record's features, from declarations or from the way the
            features are made, never from a record; None: unknown.
        fixed_features: features that replaced images, such as ``"scattering"``; None: none.
        image_shape: shape of each replaced image, (channels, height, width).
        test_persons: (M,), the person of each test record, or what ``split_by`` keeps together.
    """

    name: str
    train: Split
    test: Split | None
    classes: int | None
    notes: tuple[str, ...] = ()
    caveats: tuple[Caveat, ...] = ()
    sites: NDArray[np.str_] | None = None
    encoder: Encoder | None = None
    persons: NDArray[np.str_] | None = None
    records_per_person: int = 1
    feature_norm: float | None = None
    fixed_features: str | None = None
    image_shape: tuple[int, ...] | None = None
    test_persons: NDArray[np.str_] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example, which is a model's input."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def records(self) -> tuple[Any, Any] | PersonRows:
        """The training part as arrays, or as :class:`PersonRows` if the data name persons."""
        if self.persons is None:
            return self.train.inputs, self.train.targets
        return PersonRows(self.train, self.persons, self.records_per_person)

    def with_basis(self, basis: Basis | Curves) -> Dataset:
        """The same table with the functions of a basis added to its encoded features.

        Raises:
            ValueError: no declared table, or one that has a basis already.
        """
        if self.encoder is None or self.encoder.basis is not None:
            raise ValueError("a basis stands beside the features of a declared table, and only one")
        encoder = replace(self.encoder, basis=basis)
        return self.with_inputs(basis.of, encoder=encoder, feature_norm=encoder.usual_norm)

    def with_inputs(self, of: Callable[[Any], Any], **changes: Any) -> Dataset:
        """The data set with inputs that a function makes of those of each part.

        Args:
            changes: fields that differ with the inputs.
        """
        train, test = self.train, self.test
        train = Split(np.asarray(of(train.inputs)), train.targets)
        if test is not None:
            test = Split(np.asarray(of(test.inputs)), test.targets)
        return replace(self, train=train, test=test, **changes)

    @property
    def multilabel(self) -> bool:
        """True if a record has several labels, or none, instead of one class."""
        return self.classes is not None and self.train.targets.ndim == 2

    @property
    def not_covered(self) -> tuple[Caveat, ...]:
        """The caveats that name a use of private data outside the guarantee."""
        return of_role(self.caveats, "not-covered")


def usual_norm_of_pixels(shape: tuple[int, ...]) -> float:
    """Usual norm of images in [0, 1], (N, …), if pixels are about 0.4, as in photographs."""
    return 0.4 * math.sqrt(math.prod(shape[1:]))


def split_off(
    whole: Split, holdout: float | None, identities: Iterable[bytes] | None = None
) -> tuple[Split, Split]:
    """Training part and test part; the part of a record depends on that record alone.

    A record is held out if a keyed hash of its identity, read as a number in [0, 1), is below
    ``holdout``. So adding or removing a record moves no other record to the other part, records of
    one identity stay together, and the split is the same in every run. The sizes vary as in
    independent coin flips.

    Args:
        holdout: expected share of the examples in the test part; 0.2 when None.
        identities: bytes that identify each record, in order: its raw content or a person's
            name. Default: the bytes of its inputs and target.

    Raises:
        ValueError: a share outside (0, 1).
        DataError: a part would be empty.
    """
    own = row_contents(whole.inputs, whole.targets) if identities is None else identities
    share = share_held_out(holdout)
    held = places(_hashes(own, _SPLIT_KEY)) < share
    if held.all() or not held.any():
        raise cannot_split(len(held), share)
    return whole.at(~held), whole.at(held)


def share_held_out(holdout: float | None) -> float:
    """The share to hold out, 0.2 if none is given.

    Raises:
        ValueError: outside (0, 1).
    """
    share = HOLDOUT if holdout is None else holdout
    if isinstance(share, bool) or not 0 < share < 1:
        raise ValueError(f"holdout must be a share above 0 and below 1, not {holdout!r}")
    return share


def cannot_split(examples: int, share: float, where: str = "") -> DataError:
    """The error for a split that would leave one part empty."""
    return DataError(
        f"{where}{examples} examples cannot be split with holdout {share}: by their hashes one "
        "part would be empty. Choose another holdout, or give a test file"
    )


def split_hashes(identities: Sequence[bytes]) -> NDArray[np.uint64]:
    """Keyed hashes of each identity, (n, 3): one for :func:`places`, two to tell records apart.

    The latter have 128 bits, since with 64 anyone can find two records that seem to be equal.
    """
    return np.column_stack([_hashes(identities, _SPLIT_KEY), _hashes(identities, _TELL_KEY, 16)])


def places(hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Hashes as numbers in [0, 1)."""
    return hashes.astype(np.float64) / 2.0**64


def told_apart(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The first hash of each record; of equal records, each after the first gets a hash of its own.

    So equal records are split independently, like different ones. The repeated records are hashed
    with their number among equal records, so adding one of n equal records adds one record to one
    part, whichever of them it is.

    Args:
        hashes: as :func:`split_hashes` returns them, (n, 3).
    """
    order = np.lexsort(hashes.T)
    ranked = hashes[order]
    firsts = np.flatnonzero(np.r_[True, (ranked[1:] != ranked[:-1]).any(axis=1)])
    number = np.arange(len(hashes)) - np.repeat(firsts, np.diff(np.r_[firsts, len(hashes)]))
    again = number > 0
    found = hashes[:, 0].copy()
    pairs = np.stack([ranked[again, 0], number[again].astype(np.uint64)], axis=1)
    found[order[again]] = _hashes((pair.tobytes() for pair in pairs), _SPLIT_KEY)
    return found


def _hashes(contents: Iterable[bytes], key: bytes, size: int = 8) -> NDArray[np.uint64]:
    made = [hashlib.blake2b(each, key=key, digest_size=size).digest() for each in contents]
    found = np.frombuffer(b"".join(made), "<u8") if made else np.empty(0, "<u8")
    return found if size == 8 else found.reshape(-1, size // 8)


def row_contents(inputs: NDArray[Any], labels: NDArray[Any]) -> Iterable[bytes]:
    """The bytes of each record's inputs and label.

    Numbers are hashed by value, as float64, since the dtype of an array may depend on other
    records.
    """
    for row, label in zip(inputs, labels, strict=True):
        if labels.ndim > 1:
            yield row.astype(np.float64).tobytes() + label.astype(np.float64).tobytes()
            continue
        text = str(label) if labels.dtype.kind in "SU" else repr(float(label))
        yield row.astype(np.float64).tobytes() + text.encode()


# The meaning of a column of labels: classes from 0, or values of a regression.


MOST_CLASSES = 1000

Task = Literal["classification", "regression", "multilabel"]
TASKS: tuple[Task, ...] = get_args(Task)


@dataclass(frozen=True)
class Declared:
    """The user's declaration of the targets and the features, so that no record decides it.

    Args:
        task: ``"classification"``, ``"regression"``, or ``"multilabel"``: several labels that a
            record has or has not, each in a column of its own.
        classes: the labels, words or numbers; the first is class 0.
        features: number of features.

    Raises:
        DataError: no such task, classes for a regression, fewer than two, or one given twice.
    """

    task: Task | None = None
    classes: tuple[str | float, ...] | None = None
    features: int | None = None

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise DataError(f"unknown task {self.task!r}: the choice is {', '.join(TASKS)}")
        if self.classes is None:
            return
        if self.task in ("regression", "multilabel"):
            raise DataError("classes= goes with task 'classification': drop one of the two")
        words = written(pl.Series(list(map(_called, self.classes))))
        if words.n_unique() < len(words) or not 2 <= len(words) <= MOST_CLASSES:
            raise DataError(
                f"classes must be two or more different labels (at most {MOST_CLASSES}), not "
                f"{list(self.classes)!r}; 1, 1.0 and true are the same one"
            )

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """The caveat that names what was declared; empty if nothing was."""
        words = "the task", "the classes", "the number of features"
        given = zip(words, (self.task, self.classes, self.features), strict=True)
        names = ", ".join(word for word, value in given if value is not None)
        return (Caveat("declared-shape", names),) if names else ()


class Labels:
    """The meaning of the training file's labels, so that a test file's labels are read alike.

    Without a declaration, words and whole numbers are classes, numbered from 0 in sorted order.
    Other numbers are values of a regression, and so are more than 1,000 different whole numbers.

    Args:
        path: the file of the labels, for messages.
        raw: strings or numbers, (N,).
        declared: the user's declaration.
    """

    def __init__(
        self, path: Path | str, raw: NDArray[Any], declared: Declared | None = None
    ) -> None:
        self._declared = declared or Declared()
        self.kinds: pl.Series | None = None
        if self._declared.classes is not None:
            self.kinds = pl.Series(list(map(_called, self._declared.classes)))
            return
        if self._declared.task == "regression":
            return
        values = _numbers(path, raw)
        kinds = np.unique(values)
        numeric = values.dtype.kind == "f"
        if not numeric:  # of several ways to write a word, one is the class
            first = np.unique(written(pl.Series(kinds)).to_numpy(), return_index=True)[1]
            kinds = kinds[np.sort(first)]
        # Beside one other word, such as "none" beside a diagnosis, it is a class.
        lacking = np.zeros(0, bool) if numeric else np.isin(np.char.lower(values), MISSING_WORDS)
        if lacking.any() and len(np.unique(values[~lacking])) > 1:
            row = int(lacking.argmax())
            found = f"no label in example {row + 1}, only {str(values[row])!r}"
            wanted = f"{LABEL_NEEDED}; classes= declares it if it is one"
            raise DataError.unexpected(path, found, wanted)
        whole = not numeric or bool((kinds == np.round(kinds)).all())
        if len(kinds) <= MOST_CLASSES and (whole or self._declared.task is not None):
            self.kinds = pl.Series(kinds)
        if self.kinds is None and (not numeric or self._declared.task is not None):
            found = f"{len(kinds)} different {'labels' if numeric else 'words as labels'}"
            raise DataError.unexpected(path, found, f"at most {MOST_CLASSES} classes")
        if len(kinds) < 2:
            raise DataError.unexpected(
                path, f"only the label {kinds[0] if len(kinds) else 'of no example'}", "two or more"
            )

    @property
    def classes(self) -> int | None:
        """The number of classes; None for regression."""
        return None if self.kinds is None else len(self.kinds)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the classes as a person writes them, class 0 first; None for regression."""
        return None if self.kinds is None else tuple(map(_called, self.kinds))

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Caveats for the Statement on facts that were read from the data; they hold no label."""
        if self._declared.classes is not None or self._declared.task == "regression":
            return ()
        found = []
        if self._declared.task is None:
            taken = "values" if self.kinds is None else "classes"
            found.append(Caveat("kind-from-data", f"taken as {taken}; task= would declare it"))
        if self.kinds is not None:
            count = len(self.kinds)
            found.append(Caveat("classes-from-data", f"{count}; classes= would declare them"))
        return tuple(found)

    def encode(
        self, path: Path | str, raw: NDArray[Any] | pl.Series
    ) -> NDArray[np.int64] | NDArray[np.float32]:
        """Labels as int64 classes from 0, or as float32 values.

        Raises:
            DataError: a label that is not among the classes; names the first one.
        """
        if self.kinds is None:
            values = _numbers(path, np.asarray(raw))
            if values.dtype.kind != "f":
                row = next((at for at, entry in enumerate(raw) if not is_number(entry)), 0)
                label = f"the label {raw[row]} in example {row + 1}"
                raise DataError.unexpected(path, label, "numbers, as for a regression")
            return values.astype(np.float32)
        entries = pl.Series("label", raw)
        known, labels = written(self.kinds), written(entries)
        numbers = known.cast(pl.Float64, strict=False)
        # As numbers, if the classes are different ones: 1.1 and 1.10 are words.
        if numbers.is_finite().fill_null(False).all() and numbers.n_unique() == len(known):
            known, labels = numbers, labels.cast(pl.Float64, strict=False)
        else:
            distinct(path, entries)
        place = dict(zip(known, range(len(known)), strict=True))
        found = labels.replace_strict(place, default=None, return_dtype=pl.Int64)
        if found.null_count():
            row = int(found.is_null().arg_true()[0])
            entry = "" if entries[row] is None else str(entries[row]).strip()
            given = self._declared.classes is not None
            whose = "the declared classes" if given else "the training file's labels"
            names = ", ".join(sorted(self.names or ())[:20])
            label, wanted = f"label {entry}", f"one of {whose} {names}"
            if not entry:
                label, wanted = "no label", LABEL_NEEDED
            raise DataError.unexpected(path, f"{label} in example {row + 1}", wanted)
        return found.to_numpy(writable=True)


def _called(label: Any) -> str:
    """A class as a person writes it: 1, not 1.0."""
    number = isinstance(label, float | np.floating)
    return str(int(label)) if number and float(label).is_integer() else str(label)


# Words for a label that a record has, and for one that it has not.
_LABELS = {"1": 1.0, "yes": 1.0, "y": 1.0, "t": 1.0, "0": 0.0, "no": 0.0, "n": 0.0, "f": 0.0}


def label_column(where: str, name: str, entries: Sequence[str] | pl.Series) -> NDArray[np.float32]:
    """A column of one label, float32, (N,): 1 for records that have it, 0 for the others.

    Args:
        entries: 1 and 0, yes and no, true and false, in any case.

    Raises:
        DataError: any other entry, a missing one included; the message names the record.
    """
    words = written(pl.Series(entries)).fill_null("").to_list()
    found = [_LABELS.get(word.lower()) for word in words]
    if None in found:
        row = found.index(None)
        raise DataError.unexpected(
            where, f"{words[row]!r} in label {name}, example {row + 1}", "1 or 0, yes or no"
        )
    return np.array(found, np.float32)


def is_number(entry: Any) -> bool:
    """True if an entry of a file is a number, as text or as a number."""
    try:
        float(entry)
    except ValueError:
        return False
    return "_" not in str(entry)


def _numbers(path: Path | str, raw: NDArray[Any]) -> NDArray[Any]:
    """Labels as float64 where all of them are numbers, else as strings."""
    # Python reads 1_0 as ten.
    text = raw.dtype.kind not in "biuf"
    plain = np.char.replace(raw.astype(str), "_", "?") if text else raw
    try:
        values = plain.astype(np.float64)
    except ValueError:
        words: NDArray[Any] = np.char.strip(raw.astype(str))
        if (words == "").any():
            row = int((words == "").argmax())
            found = f"no label in example {row + 1}"
            raise DataError.unexpected(path, found, LABEL_NEEDED) from None
        return words
    with np.errstate(over="ignore"):
        known = np.isfinite(values.astype(np.float32))
    if not known.all():
        row = int(known.argmin())
        found = f"label {values[row]} in example {row + 1}"
        raise DataError.unexpected(path, found, "finite labels below 3.4e38")
    return values


# Persons, not rows: a limited number of rows of a person, and all of them as one record.


# The label of an empty place, which cross entropy ignores.
EMPTY = -100
# A public constant: it makes the choice the same in every run, and independent of other hashes.
_KEEP_KEY = b"forethought/kept rows/1"
# Rows whose person is missing are not one person's; the last two are how pandas writes it.
_NOBODY = frozenset({*MISSING_WORDS, "<na>", "nat"})
MOST_ROWS = 1000


@dataclass(frozen=True, eq=False)
class PersonRows:
    """Rows with the person of each.

    Args:
        rows: inputs (N, …) and targets (N, …).
        persons: the person of each row, (N,).
        most: largest number of rows of a person.
    """

    rows: Split
    persons: NDArray[np.str_]
    most: int


def of_persons(
    inputs: Any, targets: Any, persons: Sequence[object], records_per_person: int
) -> Dataset:
    """Arrays as data of persons, for :func:`forethought.plan` and :func:`forethought.train`.

    Args:
        inputs: (N, …).
        targets: (N,), whole numbers for classes.
        persons: the person of each row, (N,).
        records_per_person: declared largest number of rows of a person that are kept.

    Raises:
        DataError: a row without a person, different lengths, several whole numbers a row, masked
            entries, inputs or targets that are no numbers, or no whole number from 1 to 1000.
    """
    if np.ma.is_masked(inputs) or np.ma.is_masked(targets):
        raise DataError("some entries are masked: fill them (array.filled(…)), or drop these rows")
    try:
        given, values = np.asarray(inputs, np.float32), np.asarray(targets)
        values = values if values.dtype.kind in "iub" else values.astype(np.float32)
        names = persons.tolist() if hasattr(persons, "tolist") else list(persons)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"inputs and targets are arrays of numbers, persons a name or number a row: {error}"
        ) from error
    labels = values.dtype.kind in "iub"
    if labels and values.ndim != 1:
        raise DataError(
            f"classes are one a row, not of shape {values.shape}: give targets.ravel(), or floats"
        )
    rows = Split(given, values.astype(np.int64) if labels else values)
    if len(rows.inputs) != len(rows):
        raise DataError(f"{len(rows.inputs)} rows of inputs and {len(rows)} of targets")
    owners = np.array(named("of_persons", pl.Series("persons", one_by_one(names))))
    classes = int(values.max()) + 1 if labels and len(values) else None
    return limited(Dataset("arrays", rows, None, classes), owners, records_per_person)


def limited(whole: Dataset, persons: NDArray[np.str_], most: int) -> Dataset:
    """A data set of persons: at most ``most`` rows of each are kept.

    Args:
        persons: the person of each training record, (N,).

    Raises:
        DataError: as of :func:`kept`.
    """
    rows = whole.train
    mask = kept(row_contents(rows.inputs, rows.targets), persons.tolist(), most)
    held: dict[str, Any] = {"persons": persons[mask], "records_per_person": most, "sites": None}
    return replace(whole, train=rows.at(mask), **held)


def kept(contents: Iterable[bytes], persons: Sequence[str], most: int) -> NDArray[np.bool_]:
    """True for the rows that are kept: of each person the first ``most`` rows by hash, (N,).

    Args:
        contents: of each row, which its hash is of.
        persons: the person of each row, (N,).
        most: largest number of rows of a person.

    Raises:
        DataError: a row without a person, or ``most`` outside 1 to 1000.
    """
    return np.asarray(_places(contents, persons, most)[1] < most)


def _places(
    contents: Iterable[bytes], persons: Sequence[str], most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of each row's person, and the row's position among that person's rows."""
    if isinstance(most, bool) or most not in range(1, MOST_ROWS + 1):
        raise DataError(f"records_per_person must be whole, from 1 to {MOST_ROWS}, not {most!r}")
    order = _hashes(contents, _KEEP_KEY)
    if len(persons) != len(order) or any(name.strip().lower() in _NOBODY for name in persons):
        raise DataError("a row has no person: drop it, or give it one")
    number: dict[str, int] = {}
    owner = np.array([number.setdefault(person, len(number)) for person in persons], np.int64)
    sorted_rows = np.lexsort((order, owner))
    starts = np.searchsorted(owner[sorted_rows], np.arange(len(number)))
    place = np.empty(len(order), np.int64)
    place[sorted_rows] = np.arange(len(order)) - starts[owner[sorted_rows]]
    return owner, place


def by_person(rows: Split, persons: Sequence[str], most: int) -> Split:
    """One record for each person.

    Args:
        rows: inputs (N, …) and targets (N,) or (N, labels).
        persons: the person of each row, (N,).
        most: declared largest number of rows of a person that are kept.

    Returns:
        Inputs (P, most, …), where empty those of the person's first row. Targets: of labels
        (P, most), :data:`EMPTY` where empty; of K values a row (P, most, K + 1), the values and 1,
        or where empty those of the first row and 0.

    Raises:
        DataError: a row without a person, or ``most`` outside 1 to 1000.
    """
    owner, place = _places(row_contents(rows.inputs, rows.targets), persons, most)
    there = place < most
    at = owner[there], place[there]
    count = int(owner.max()) + 1 if len(owner) else 0
    # Not zeros where empty: a model or loss that is not finite there would turn the weight of 0
    # into NaN in the backward pass, and the person would contribute nothing.
    firsts = np.flatnonzero(place == 0)
    source = np.repeat(firsts[np.argsort(owner[firsts])], most).reshape(count, most)
    source[at] = np.flatnonzero(there)
    inputs = rows.inputs[source].astype(np.float32, copy=False)
    if rows.targets.dtype.kind == "f":
        own = rows.targets.reshape(len(rows), -1).astype(np.float32, copy=False)
        values = np.zeros((count, most, own.shape[1] + 1), np.float32)
        values[..., :-1] = own[source]
        values[(*at, -1)] = 1.0
        return Split(inputs, values)
    labels = np.full((count, most), EMPTY, np.int64)
    labels[at] = rows.targets[there]
    return Split(inputs, labels)


def one_row_each(rows: Split, persons: Sequence[str]) -> Split:
    """The first row of each person by hash, so that a record depends on its person alone."""
    return rows.at(kept(row_contents(rows.inputs, rows.targets), persons, 1))
