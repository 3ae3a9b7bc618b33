"""The sparse text format of svmlight and LIBSVM: ``label index:value index:value …``."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.caveats import Caveat
from forethought.data.dataset import Dataset, Split, finite, split_off
from forethought.data.error import DataError
from forethought.data.files import read
from forethought.data.labels import Declared, Labels

_MOST_VALUES = 2**31  # a dense matrix above 8 GiB is refused before it is made


def load_svmlight(
    name: str,
    path: Path,
    test: Path | None,
    holdout: float | None,
    declared: Declared | None = None,
) -> Dataset:
    """Dense features as they are, (N, highest index); classes numbered from 0 in sorted order.

    A test file may mention fewer features than the training file (its last ones may all be zero)
    or more (no training example has them): both parts get the larger number of columns, unless
    ``declared`` gives the number of features.

    Raises:
        DataError: a file is damaged or no svmlight file, a feature is not finite, or a test label
            does not occur in the training file.
    """
    paths = [path] if test is None else [path, test]
    read_files = [_read(file) for file in paths]
    declared = declared or Declared()
    found = max(features.shape[1] for features, _ in read_files)
    columns = found if declared.features is None else declared.features
    if found > columns:
        raise DataError.unexpected(
            path, f"a feature with index {found}", f"at most the declared {columns}"
        )
    labels = Labels(path, read_files[0][1], declared)
    splits = []
    for file, (features, raw) in zip(paths, read_files, strict=True):
        if features.shape[0] * columns > _MOST_VALUES:
            raise DataError.unexpected(
                file,
                f"{features.shape[0]} examples of {columns} features",
                f"at most {_MOST_VALUES} values in all, since they are stored densely",
            )
        inputs = np.zeros((features.shape[0], columns), np.float32)
        inputs[:, : features.shape[1]] = features.toarray()
        finite(file, inputs)
        splits.append(Split(inputs, labels.encode(file, raw)))
    notes = ("features as they are in the file, not rescaled",)
    if test is not None:
        train, held = splits
    else:
        train, held = split_off(splits[0], holdout, _contents(*read_files[0]))
    caveats = (*declared.caveats, *labels.caveats)
    if declared.features is None:
        width = Caveat("features-from-data", f"{columns}, the highest index; features= declares it")
        caveats = (*caveats, width)
    return Dataset(name, train, held, labels.classes, notes, caveats)


def _contents(features: Any, raw: NDArray[np.float64]) -> Iterator[bytes]:
    """Each line's non-zero entries and label: the same however wide the other lines are."""
    ends = features.indptr
    for row, label in enumerate(raw):
        entries = slice(ends[row], ends[row + 1])
        indices = features.indices[entries].astype(np.int64)
        yield indices.tobytes() + features.data[entries].tobytes() + str(label).encode()


def _read(path: Path) -> tuple[Any, NDArray[np.float64]]:
    from sklearn.datasets import load_svmlight_file

    content = read(path)
    try:
        features, labels = load_svmlight_file(BytesIO(content), dtype=np.float32, zero_based=False)
    except (ValueError, OverflowError, IndexError) as error:
        raise DataError.unexpected(
            path, f"no svmlight text ({error})", "lines of the form: label index:value …"
        ) from error
    if not features.nnz:
        raise DataError.unexpected(
            path, f"{features.shape[0]} examples with no feature at all", "index:value pairs"
        )
    return features, labels
