"""People, not rows: everything of one person becomes one record.

A record of such a data set is a person: at most so many of their rows, the rest of its place empty.
One contribution is then a person's, whatever they have, and every ε is about a person. Which rows
are kept where there are more is decided by a hash of each row, so no other person moves it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from forethought.caveats import Caveat
from forethought.data.dataset import DataError, Split, row_contents

# The label of an empty place; cross entropy passes over it.
EMPTY = -100
# Public: it only makes the choice the same in every run and unlike any other use of these hashes.
_KEEP_KEY = b"forethought/kept rows/1"
MOST_ROWS = 1000


def by_person(rows: Split, persons: Sequence[str], most: int) -> Split:
    """One record for each person.

    Args:
        rows: inputs (N, …) and targets (N,). persons: whose each row is, (N,).
        most: how many rows of one person are kept, declared.

    Returns:
        Inputs (P, most, …), zero where empty. Targets (P, most), :data:`EMPTY` where empty, of
        labels; of values (P, most, 2): the value, and 1, or 0 where empty.

    Raises:
        DataError: a row of nobody, or an impossible number of rows.
    """
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
    kept = place < most
    at = owner[kept], place[kept]
    inputs = np.zeros((len(number), most, *rows.inputs.shape[1:]), np.float32)
    inputs[at] = rows.inputs[kept]
    if rows.targets.dtype.kind == "f":
        values = np.zeros((len(number), most, 2), np.float32)
        values[(*at, 0)] = rows.targets[kept]
        values[(*at, 1)] = 1.0
        return Split(inputs, values)
    labels = np.full((len(number), most), EMPTY, np.int64)
    labels[at] = rows.targets[kept]
    return Split(inputs, labels)


def person_caveat(most: int) -> Caveat:
    """What the Statement says of persons."""
    return Caveat("persons", f"at most {most}")
