"""What a column of labels means: classes from 0, or values to regress on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.data.dataset import DataError

MOST_CLASSES = 1000


class Labels:
    """How the labels of the training file are read, so that those of a test file are read alike.

    Words and whole numbers are classes, numbered from 0 in sorted order; other numbers are values
    to regress on, and so are whole numbers of more than 1,000 kinds.

    Args:
        path: the file they come from, for messages.
        raw: strings or numbers, (N,).
    """

    def __init__(self, path: Path | str, raw: NDArray[Any]) -> None:
        values = _numbers(path, raw)
        kinds = np.unique(values)
        numeric = values.dtype.kind == "f"
        whole = not numeric or bool((kinds == np.round(kinds)).all())
        self.kinds: NDArray[Any] | None = kinds if whole and len(kinds) <= MOST_CLASSES else None
        if self.kinds is None and not numeric:
            raise DataError.unexpected(
                path, f"{len(kinds)} different words as labels", f"at most {MOST_CLASSES}"
            )
        if len(kinds) < 2:
            raise DataError.unexpected(
                path, f"only the label {kinds[0] if len(kinds) else 'of no example'}", "two or more"
            )

    @property
    def classes(self) -> int | None:
        """How many classes there are; None for regression."""
        return None if self.kinds is None else len(self.kinds)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What was read from the data, for the Statement; nothing for values to regress on."""
        if self.kinds is None:
            return ()
        shown = [f"{kind:g}" if self.kinds.dtype.kind == "f" else str(kind) for kind in self.kinds]
        listed = ", ".join(shown[:10]) + (", …" if len(shown) > 10 else "")
        return (f"the {len(shown)} classes are those found in the training file: {listed}",)

    def encode(
        self, path: Path | str, raw: NDArray[Any]
    ) -> NDArray[np.int64] | NDArray[np.float32]:
        """Labels as int64 classes from 0, or as float32 values.

        Raises:
            DataError: a label that the training file does not have; names the first one.
        """
        values = _numbers(path, raw)
        if self.kinds is None:
            if values.dtype.kind != "f":
                raise DataError.unexpected(path, f"the label {values[0]}", "numbers")
            return values.astype(np.float32)
        if values.dtype.kind != self.kinds.dtype.kind:
            known = np.zeros(len(values), bool)
        else:
            known = np.isin(values, self.kinds)
        if not known.all():
            row = int((~known).argmax())
            raise DataError.unexpected(
                path,
                f"label {values[row]} in example {row}",
                f"one of the training file's labels {', '.join(map(str, self.kinds[:20]))}",
            )
        return np.searchsorted(self.kinds, values).astype(np.int64)


def _numbers(path: Path | str, raw: NDArray[Any]) -> NDArray[Any]:
    """Labels as float64 where all of them are numbers, else as strings."""
    try:
        values = raw.astype(np.float64)
    except ValueError:
        words: NDArray[Any] = np.char.strip(raw.astype(str))
        if (words == "").any():
            row = int((words == "").argmax())
            raise DataError.unexpected(path, f"no label in example {row}", "a label") from None
        return words
    if not np.isfinite(values).all():
        row = int((~np.isfinite(values)).argmax())
        raise DataError.unexpected(path, f"label {values[row]} in example {row}", "finite labels")
    return values
