"""The meaning of a column of labels: classes from 0, or values to regress on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from forethought.data.files import DataError
from forethought.values.caveats import Caveat

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
        names = [
            name
            for name, given in (
                ("the task", self.task),
                ("the classes", self.classes),
                ("the number of features", self.features),
            )
            if given is not None
        ]
        return (Caveat("declared-shape", ", ".join(names)),) if names else ()


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
                row = _first_word(raw)
                raise DataError.unexpected(
                    path, f"the label {raw[row]} in example {row}", "numbers, as for a regression"
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
        if values.dtype.kind != self.kinds.dtype.kind:
            known = np.zeros(len(values), bool)
        else:
            known = np.isin(values, self.kinds)
        if not known.all():
            row = int((~known).argmax())
            whose = "the training file's labels" if self._order is None else "the declared classes"
            raise DataError.unexpected(
                path,
                f"label {values[row]} in example {row}",
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
            where, f"{entries[row]!r} in label {name}, example {row}", "1 or 0, yes or no"
        )
    return np.array(found, np.float32)


def _first_word(raw: NDArray[Any]) -> int:
    for row, entry in enumerate(raw):
        try:
            float(entry)
        except ValueError:
            return row
    return 0


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
