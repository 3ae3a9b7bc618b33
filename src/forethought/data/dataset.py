"""The result of a loader: arrays with notes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forethought.data.files import DataError
from forethought.values.caveats import Caveat, of_role

if TYPE_CHECKING:
    from forethought.data.encoder import Encoder

HOLDOUT = 0.2
# Public: it only makes the split the same in every run and unlike any other use of these hashes.
_SPLIT_KEY = b"forethought/split/1"


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
    def multilabel(self) -> bool:
        """True if a record has several labels, or none, instead of one class."""
        return self.classes is not None and self.train.targets.ndim == 2

    @property
    def not_covered(self) -> tuple[Caveat, ...]:
        """The caveats that name a use of private data outside the guarantee."""
        return of_role(self.caveats, "not-covered")


def finite(path: Path | str, inputs: NDArray[Any], columns: list[str] | None = None) -> None:
    """Refuse NaN and infinite features.

    Raises:
        DataError: names the first row and column that holds one.
    """
    # One pass without a temporary the size of the data: the sum of finite float32 values in
    # float64 cannot overflow.
    if np.isfinite(inputs.sum(dtype=np.float64)):
        return
    row, *place = (int(index) for index in np.argwhere(~np.isfinite(inputs))[0])
    where = columns[place[0]] if columns else ", ".join(str(index) for index in place)
    value = inputs[(row, *place)]
    raise DataError.unexpected(
        path, f"{value} in example {row}, feature {where} (counted from 0)", "finite features"
    )


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
    held = held_out(whole, holdout, identities)
    return whole.at(~held), whole.at(held)


def held_out(
    whole: Split, holdout: float | None, identities: Iterable[bytes] | None = None
) -> NDArray[np.bool_]:
    """True for each record that falls into the test part, (N,); see :func:`split_off`."""
    own = row_contents(whole.inputs, whole.targets) if identities is None else identities
    return below(fractions(own), holdout)


def below(places: NDArray[np.float64], holdout: float | None) -> NDArray[np.bool_]:
    """True for each of the :func:`fractions` that falls into the test part.

    Raises:
        ValueError: a share outside (0, 1). DataError: a part would be empty.
    """
    share = share_held_out(holdout)
    held = np.asarray(places < share)
    if held.all() or not held.any():
        raise DataError(
            f"{len(places)} examples cannot be split with holdout {share}: one part would be "
            "empty. Each record falls on its side by a hash of its own; choose another holdout, "
            "or give a test file"
        )
    return held


def share_held_out(holdout: float | None) -> float:
    """The share itself, 0.2 where none is given.

    Raises:
        ValueError: outside (0, 1).
    """
    share = HOLDOUT if holdout is None else holdout
    if isinstance(share, bool) or not 0 < share < 1:
        raise ValueError(f"holdout must be a share above 0 and below 1, not {holdout!r}")
    return share


def falls_out(identities: Iterable[bytes], share: float, count: int) -> NDArray[np.bool_]:
    """True for each of ``count`` records that is held out, from its identity alone, (count,)."""
    uniform = fractions(identities)
    if len(uniform) != count:
        raise ValueError(f"{len(uniform)} identities of {count} records")
    return np.asarray(uniform < share)


def fractions(identities: Iterable[bytes]) -> NDArray[np.float64]:
    """The place in [0, 1) of each identity by its keyed hash; below the share it is held out."""
    hashes = b"".join(
        [hashlib.blake2b(each, key=_SPLIT_KEY, digest_size=8).digest() for each in identities]
    )
    return np.frombuffer(hashes, "<u8").astype(np.float64) / 2.0**64


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
