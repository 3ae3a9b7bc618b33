"""People, not rows: at most so many rows of one person, and all of them as one record.

Which rows are kept where a person has more is decided by a hash of each row, so no other person
moves it. A plan says what is then done with them: one contribution a person, whatever they have, or
a promise about as many rows together as one person may have (:mod:`forethought.planning.solve`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.data.dataset import Dataset, Split, row_contents
from forethought.data.files import DataError

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
    return Dataset(
        "arrays",
        rows.at(mask),
        None,
        classes,
        persons=names[mask],
        records_per_person=records_per_person,
    )


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
    order = np.array(
        [
            int.from_bytes(hashlib.blake2b(row, key=_KEEP_KEY, digest_size=8).digest(), "little")
            for row in row_contents(rows.inputs, rows.targets)
        ],
        np.uint64,
    )
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
