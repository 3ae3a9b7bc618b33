"""What a loader returns: arrays with notes, and the one error for data that cannot be used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HOLDOUT = 0.2
_SPLIT_SEED = 20_240_229


class DataError(ValueError):
    """Data that is missing, damaged or unsuitable: the message names the file and what is wrong."""

    @classmethod
    def unexpected(cls, path: Path | str, found: object, expected: object) -> DataError:
        """The error that says what a file holds and what it should hold."""
        return cls(f"{path}: found {found}, expected {expected}")


@dataclass(frozen=True, eq=False)
class Split:
    """Examples and what to predict of them.

    Args:
        inputs: float32, (N, features) or (N, C, H, W).
        targets: (N,): int64 classes from 0, or float32 values to regress on.
    """

    inputs: NDArray[np.float32]
    targets: NDArray[np.int64] | NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training part, perhaps a test part, and what one should know about both.

    Args:
        name: the source it was loaded from.
        train: the private examples.
        test: examples that training never sees, or None.
        classes: how many classes the targets have; None for regression.
        notes: how inputs were scaled, and anything that bears on comparisons.
        not_covered: what loading itself read from the private data, for the Statement.
    """

    name: str
    train: Split
    test: Split | None
    classes: int | None
    notes: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()


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


def split_off(whole: Split, holdout: float | None) -> tuple[Split, Split]:
    """Training part and test part, drawn by a fixed seed: the same in every run.

    Args:
        holdout: share of the examples that goes to the test part; 0.2 when None.
    """
    share = HOLDOUT if holdout is None else holdout
    if isinstance(share, bool) or not 0 < share < 1:
        raise ValueError(f"holdout must be a share above 0 and below 1, not {holdout!r}")
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(whole))
    size = round(share * len(whole))
    if not 0 < size < len(whole):
        raise DataError(
            f"{len(whole)} examples cannot be split with holdout {share}: one part would be empty"
        )
    test, train = np.sort(order[:size]), np.sort(order[size:])
    return (
        Split(whole.inputs[train], whole.targets[train]),
        Split(whole.inputs[test], whole.targets[test]),
    )
