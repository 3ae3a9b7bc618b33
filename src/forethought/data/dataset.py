"""The result of a loader: arrays with notes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from forethought.data.files import LABEL_NEEDED, DataError
from forethought.values.caveats import Caveat, of_role

if TYPE_CHECKING:
    from forethought.data.basis import Basis, Curves
    from forethought.data.columns import Encoder


HOLDOUT = 0.2
# Public: it only makes the split the same in every run and unlike any other use of these hashes.
_SPLIT_KEY, _TELL_KEY = b"forethought/split/1", b"forethought/equal records/1"


@dataclass(frozen=True, eq=False)
class Split:
    """Examples and what to predict of them.

    Args:
        inputs: float32, (N, features) or (N, C, H, W).
        targets: (N,): int64 classes from 0, or float32 values to regress on; (N, labels) of 0
            and 1 where a record has several labels or none.
    """

    inputs: NDArray[np.float32]
    targets: NDArray[np.int64] | NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.targets)

    def at(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Split:
        """Those of its examples, by number or by a mask."""
        return Split(self.inputs[chosen], self.targets[chosen])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training part, perhaps a test part, and what one should know about both.

    Args:
        name: the source it was loaded from.
        train: the private examples.
        test: examples that training never sees, or None.
        classes: how many classes or labels the targets have; None for regression.
        notes: how inputs were scaled, and anything that bears on comparisons.
        caveats: for the Statement: what loading itself read from the private data, and what the
            user declared instead. :func:`forethought.train` takes a Dataset as it is and passes
            them on; its bare arrays cannot carry them.
        sites: which client of a federation holds each training record, (N,), where a column of
            the file says so; see :mod:`forethought.data.synthetic`.
        encoder: how new rows of the table become features; None: not from a table.
        persons: whose each training record is, (N,), where several may be one person's.
        records_per_person: how many of them at most.
        feature_norm: usual norm of a record's features, as far as it follows from declarations or
            from how the features are made, and from no record; None: unknown.
        fixed_features: what images were replaced by, such as ``"scattering"``; None: nothing.
        image_shape: of each image that was replaced, (channels, height, width).
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

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what a model takes: of one example."""
        return tuple(self.train.inputs.shape[1:])

    @property
    def records(self) -> tuple[Any, Any] | PersonRows:
        """The training part as arrays; with whose its rows are, where the data say."""
        if self.persons is None:
            return self.train.inputs, self.train.targets
        return PersonRows(self.train, self.persons, self.records_per_person)

    def with_basis(self, basis: Basis | Curves) -> Dataset:
        """The same table with the functions of a basis beside its encoded features.

        Raises:
            ValueError: no declared table, or one that has a basis already.
        """
        if self.encoder is None or self.encoder.basis is not None:
            raise ValueError("a basis stands beside the features of a declared table, and only one")
        encoder = replace(self.encoder, basis=basis)
        train = Split(basis.of(self.train.inputs), self.train.targets)
        test = None if self.test is None else Split(basis.of(self.test.inputs), self.test.targets)
        norm = encoder.usual_norm
        return replace(self, train=train, test=test, encoder=encoder, feature_norm=norm)

    @property
    def multilabel(self) -> bool:
        """True if a record has several labels, or none, instead of one class."""
        return self.classes is not None and self.train.targets.ndim == 2

    @property
    def not_covered(self) -> tuple[Caveat, ...]:
        """The caveats that name a use of private data outside the guarantee."""
        return of_role(self.caveats, "not-covered")


def usual_norm_of_pixels(shape: tuple[int, ...]) -> float:
    """Usual norm of images in [0, 1], (N, …): pixels of photographs and drawings are 0.4 or so."""
    return 0.4 * math.sqrt(math.prod(shape[1:]))


def split_off(
    whole: Split, holdout: float | None, identities: Iterable[bytes] | None = None
) -> tuple[Split, Split]:
    """Training part and test part: each record's side follows from that record alone.

    A record is held out when a keyed hash of its identity, read as a number in [0, 1), is below
    ``holdout``. So one record more, or less, moves nobody else across the split, records of one
    identity stay together, and the split is the same in every run. Sizes vary as those of coin
    flips do.

    Args:
        holdout: share of the examples that goes to the test part, in the mean; 0.2 when None.
        identities: what each record is recognised by, in order: its raw content or a person's
            name. Default: the bytes of its inputs and target.

    Raises:
        ValueError: a share outside (0, 1). DataError: a part would be empty.
    """
    own = row_contents(whole.inputs, whole.targets) if identities is None else identities
    share = share_held_out(holdout)
    held = fractions(own) < share
    if held.all() or not held.any():
        raise cannot_split(len(held), share)
    return whole.at(~held), whole.at(held)


def share_held_out(holdout: float | None) -> float:
    """The share itself, 0.2 where none is given.

    Raises:
        ValueError: outside (0, 1).
    """
    share = HOLDOUT if holdout is None else holdout
    if isinstance(share, bool) or not 0 < share < 1:
        raise ValueError(f"holdout must be a share above 0 and below 1, not {holdout!r}")
    return share


def cannot_split(examples: int, share: float, where: str = "") -> DataError:
    """The error for so few examples that a part would be empty."""
    return DataError(
        f"{where}{examples} examples cannot be split with holdout {share}: one part would be "
        "empty. Each record falls on its side by a hash of its own; choose another holdout, "
        "or give a test file"
    )


def fractions(identities: Iterable[bytes]) -> NDArray[np.float64]:
    """The place in [0, 1) of each identity by its keyed hash; below the share it is held out."""
    return places(_hashes(identities, _SPLIT_KEY))


def split_hashes(identities: Sequence[bytes]) -> NDArray[np.uint64]:
    """Keyed hashes of each identity, shape (n, 3): for :func:`places`, and 128 bits to tell apart.

    Of 64 bits alone anybody can find two records that seem to be equal.
    """
    return np.column_stack([_hashes(identities, _SPLIT_KEY), _hashes(identities, _TELL_KEY, 16)])


def places(hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Hashes as places in [0, 1)."""
    return hashes.astype(np.float64) / 2.0**64


def told_apart(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The first hash of each record, but for the second, third, … of equal ones another by number.

    So equal records fall on their sides one by one, as different ones do. One record more is still
    one more on one side, whichever of its equals it is: of n equal records those with the numbers 1
    to n are there.

    Args:
        hashes: of :func:`split_hashes`.
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
    """For each record the bytes of its inputs and its label.

    Numbers count by their value, since the kind an array stores them in may come from others.
    """
    for row, label in zip(inputs, labels, strict=True):
        if labels.ndim > 1:
            yield row.astype(np.float64).tobytes() + label.astype(np.float64).tobytes()
            continue
        text = str(label) if labels.dtype.kind in "SU" else repr(float(label))
        yield row.astype(np.float64).tobytes() + text.encode()


# The meaning of a column of labels: classes from 0, or values to regress on.


MOST_CLASSES = 1000

Task = Literal["classification", "regression", "multilabel"]
TASKS: tuple[Task, ...] = get_args(Task)


@dataclass(frozen=True)
class Declared:
    """The user's declaration of the targets and the features, so that no record decides it.

    Args:
        task: ``"classification"``, ``"regression"``, or ``"multilabel"``: several labels that a
            record has or has not, each a column of its own.
        classes: the labels, words or numbers; the first is class 0.
        features: how many there are.

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
        object.__setattr__(self, "classes", tuple(self.classes))
        texts = [str(label).strip() for label in self.classes]
        if len(set(texts)) < len(texts) or not 2 <= len(texts) <= MOST_CLASSES:
            raise DataError(
                f"classes must be two or more different labels (at most {MOST_CLASSES}), not "
                f"{list(self.classes)!r}"
            )

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Names what was declared; nothing when nothing was."""
        words = "the task", "the classes", "the number of features"
        given = zip(words, (self.task, self.classes, self.features), strict=True)
        names = ", ".join(word for word, value in given if value is not None)
        return (Caveat("declared-shape", names),) if names else ()


class Labels:
    """The reading of the training file's labels, so that those of a test file are read alike.

    Without a declaration words and whole numbers are classes, numbered from 0 in sorted order;
    other numbers are values to regress on, and so are whole numbers of more than 1,000 kinds.

    Args:
        path: the file they come from, for messages.
        raw: strings or numbers, (N,).
        declared: what the user said of them.
    """

    def __init__(
        self, path: Path | str, raw: NDArray[Any], declared: Declared | None = None
    ) -> None:
        self._declared = declared or Declared()
        self._order: NDArray[np.int64] | None = None
        self.kinds: NDArray[Any] | None = None
        if self._declared.classes is not None:
            self._fix(self._declared.classes)
            return
        if self._declared.task == "regression" and not len(raw):
            return  # nothing to look at, and nothing to look for
        values = _numbers(path, raw)
        kinds = np.unique(values)
        numeric = values.dtype.kind == "f"
        if self._declared.task == "regression":
            if not numeric:
                row = next((at for at, entry in enumerate(raw) if not is_number(entry)), 0)
                raise DataError.unexpected(
                    path,
                    f"the label {raw[row]} in example {row + 1}",
                    "numbers, as for a regression",
                )
            return
        whole = not numeric or bool((kinds == np.round(kinds)).all())
        few = len(kinds) <= MOST_CLASSES
        self.kinds = kinds if few and (whole or self._declared.task is not None) else None
        if self.kinds is None and (not numeric or self._declared.task is not None):
            raise DataError.unexpected(
                path,
                f"{len(kinds)} different {'labels' if numeric else 'words as labels'}",
                f"at most {MOST_CLASSES} classes",
            )
        if len(kinds) < 2:
            raise DataError.unexpected(
                path, f"only the label {kinds[0] if len(kinds) else 'of no example'}", "two or more"
            )

    def _fix(self, classes: Sequence[str | float]) -> None:
        try:
            kinds: NDArray[Any] = np.array([float(label) for label in classes])
        except ValueError:
            kinds = np.array([str(label).strip() for label in classes])
        order = np.argsort(kinds)
        self.kinds, self._order = kinds[order], order.astype(np.int64)

    @property
    def classes(self) -> int | None:
        """The number of classes; None for regression."""
        return None if self.kinds is None else len(self.kinds)

    @property
    def names(self) -> list[str | float] | None:
        """The names of the classes, class 0 first; None for regression."""
        if self._declared.classes is not None:
            return list(self._declared.classes)
        return None if self.kinds is None else self.kinds.tolist()

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """Notes for the Statement on what was read from the data; no value of theirs."""
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
        self, path: Path | str, raw: NDArray[Any]
    ) -> NDArray[np.int64] | NDArray[np.float32]:
        """Labels as int64 classes from 0, or as float32 values.

        Raises:
            DataError: a label that is not among the classes; names the first one.
        """
        values = _numbers(path, raw)
        if self.kinds is None:
            if values.dtype.kind != "f":
                raise DataError.unexpected(path, f"the label {values[0]}", "numbers")
            return values.astype(np.float32)
        if values.dtype.kind != self.kinds.dtype.kind and self._order is not None:
            # Declared as words: a file whose labels happen to be numbers alone has none of them.
            values = np.char.strip(raw.astype(str)) if self.kinds.dtype.kind == "U" else values
        alike = values.dtype.kind == self.kinds.dtype.kind
        known = np.isin(values, self.kinds) if alike else np.zeros(len(values), bool)
        if not known.all():
            row = int((~known).argmax())
            whose = "the training file's labels" if self._order is None else "the declared classes"
            raise DataError.unexpected(
                path,
                f"label {values[row]} in example {row + 1}",
                f"one of {whose} {', '.join(map(str, self.kinds[:20]))}",
            )
        places = np.searchsorted(self.kinds, values).astype(np.int64)
        return places if self._order is None else self._order[places]


# What says that a record has a label, and that it has not.
_HAS, _HAS_NOT = ("1", "1.0", "yes", "true", "y", "t"), ("0", "0.0", "no", "false", "n", "f")


def label_column(where: str, name: str, entries: Sequence[str]) -> NDArray[np.float32]:
    """The records that have a label, float32, (N,), of 0 and 1.

    Args:
        entries: 1 and 0, yes and no, true and false, in any case.

    Raises:
        DataError: anything else, a missing entry among it; names the record.
    """
    known = {**dict.fromkeys(_HAS, 1.0), **dict.fromkeys(_HAS_NOT, 0.0)}
    found = [known.get(entry.strip().lower()) for entry in entries]
    if None in found:
        row = found.index(None)
        raise DataError.unexpected(
            where, f"{entries[row]!r} in label {name}, example {row + 1}", "1 or 0, yes or no"
        )
    return np.array(found, np.float32)


def is_number(entry: Any) -> bool:
    """True if an entry of a file is a number, as text or as it is."""
    try:
        float(entry)
    except ValueError:
        return False
    return True


def _numbers(path: Path | str, raw: NDArray[Any]) -> NDArray[Any]:
    """Labels as float64 where all of them are numbers, else as strings."""
    try:
        values = raw.astype(np.float64)
    except ValueError:
        words: NDArray[Any] = np.char.strip(raw.astype(str))
        if (words == "").any():
            row = int((words == "").argmax())
            raise DataError.unexpected(
                path, f"no label in example {row + 1}", LABEL_NEEDED
            ) from None
        return words
    if not np.isfinite(values).all():
        row = int((~np.isfinite(values)).argmax())
        raise DataError.unexpected(
            path, f"label {values[row]} in example {row + 1}", "finite labels"
        )
    return values


# People, not rows: at most so many rows of one person, and all of them as one record.


# The label of an empty place; cross entropy passes over it.
EMPTY = -100
# Public: it only makes the choice the same in every run and unlike any other use of these hashes.
_KEEP_KEY = b"forethought/kept rows/1"
MOST_ROWS = 1000


@dataclass(frozen=True, eq=False)
class PersonRows:
    """Rows with whose each is.

    Args:
        rows: inputs (N, …) and targets (N, …). persons: whose each row is, (N,).
        most: how many rows of one person there are at most.
    """

    rows: Split
    persons: NDArray[np.str_]
    most: int


def of_persons(
    inputs: Any, targets: Any, persons: Sequence[object], records_per_person: int
) -> Dataset:
    """Arrays as data of persons: :func:`forethought.plan` and :func:`forethought.train` take it.

    Args:
        inputs: (N, …). targets: (N,), whole numbers for classes. persons: whose each row is, (N,).
        records_per_person: how many rows of one person are kept, declared.

    Raises:
        DataError: a row of nobody, other lengths, or an impossible number of rows.
    """
    values = np.asarray(targets)
    labels = values.dtype.kind in "iu"
    kept_as = values.astype(np.int64) if labels else values.astype(np.float32)
    rows = Split(np.asarray(inputs, np.float32), kept_as)
    if len(rows.inputs) != len(rows):
        raise DataError(f"{len(rows.inputs)} rows of inputs and {len(rows)} of targets")
    names = np.array([str(person) for person in persons])
    mask = kept(rows, names.tolist(), records_per_person)
    classes = int(values.max()) + 1 if labels and len(values) else None
    whose: dict[str, Any] = {"persons": names[mask], "records_per_person": records_per_person}
    return Dataset("arrays", rows.at(mask), None, classes, **whose)


def kept(rows: Split, persons: Sequence[str], most: int) -> NDArray[np.bool_]:
    """True for rows among the first so many of their person by a hash of each, (N,).

    Raises:
        DataError: a row of nobody, or an impossible number of rows.
    """
    return np.asarray(_places(rows, persons, most)[1] < most)


def _places(
    rows: Split, persons: Sequence[str], most: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of each row's person, and its place among that person's rows."""
    if isinstance(most, bool) or not 1 <= most <= MOST_ROWS:
        raise DataError(f"records_per_person must be from 1 to {MOST_ROWS}, not {most!r}")
    if len(persons) != len(rows) or "" in persons:
        raise DataError("a row has no person: drop it, or give it one")
    number: dict[str, int] = {}
    owner = np.array([number.setdefault(person, len(number)) for person in persons], np.int64)
    order = _hashes(row_contents(rows.inputs, rows.targets), _KEEP_KEY)
    sorted_rows = np.lexsort((order, owner))
    starts = np.searchsorted(owner[sorted_rows], np.arange(len(number)))
    place = np.empty(len(rows), np.int64)
    place[sorted_rows] = np.arange(len(rows)) - starts[owner[sorted_rows]]
    return owner, place


def by_person(rows: Split, persons: Sequence[str], most: int) -> Split:
    """One record for each person.

    Args:
        rows: inputs (N, …) and targets (N,) or (N, labels). persons: whose each row is, (N,).
        most: how many rows of one person are kept, declared.

    Returns:
        Inputs (P, most, …), zero where empty. Targets (P, most), :data:`EMPTY` where empty, of
        labels; of K values a row (P, most, K + 1): the values, and 1, or all 0 where empty.

    Raises:
        DataError: a row of nobody, or an impossible number of rows.
    """
    owner, place = _places(rows, persons, most)
    there = place < most
    at = owner[there], place[there]
    count = int(owner.max()) + 1 if len(owner) else 0
    inputs = np.zeros((count, most, *rows.inputs.shape[1:]), np.float32)
    inputs[at] = rows.inputs[there]
    if rows.targets.dtype.kind == "f":
        own = rows.targets.reshape(len(rows), -1)
        values = np.zeros((count, most, own.shape[1] + 1), np.float32)
        values[(*at, slice(0, -1))] = own[there]
        values[(*at, -1)] = 1.0
        return Split(inputs, values)
    labels = np.full((count, most), EMPTY, np.int64)
    labels[at] = rows.targets[there]
    return Split(inputs, labels)


def one_row_each(rows: Split, persons: Sequence[str]) -> Split:
    """The first row of each person by its hash: a record that follows from that person alone."""
    return rows.at(np.asarray(_places(rows, persons, 1)[1] == 0))
