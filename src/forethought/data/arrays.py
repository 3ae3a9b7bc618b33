"""NumPy archives: ``x_train``, ``y_train`` and perhaps ``x_test``, ``y_test``; or ``x``, ``y``."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.data.dataset import Dataset, Split, finite, row_contents, split_off
from forethought.data.error import DataError
from forethought.data.files import DAMAGE
from forethought.data.idx import scaled
from forethought.data.labels import Declared, Labels


def load_npz(
    name: str,
    path: Path,
    holdout: float | None,
    declared: Declared | None = None,
    split_by: str | None = None,
) -> Dataset:
    """Arrays as they are; bytes are taken for pixels: divided by 255, channels moved to the front.

    Args:
        declared: what the user says of labels and features.
        split_by: name of the array that holds each example's person, for the split.

    Raises:
        DataError: damaged, keys missing, lengths that differ, features that are not finite, labels
            that are not one number or word an example.
    """
    arrays = _read(path)
    own_test = {"x_test", "y_test"} & set(arrays)
    wanted: tuple[str, ...] = ("x_train", "y_train") if "x_train" in arrays else ("x", "y")
    wanted += ("x_test", "y_test") if own_test and wanted[0] == "x_train" else ()
    missing = [key for key in wanted if key not in arrays]
    if missing:
        raise DataError.unexpected(
            path,
            f"the arrays {', '.join(arrays) or 'of none'}",
            "x_train and y_train (perhaps with x_test and y_test), or x and y",
        )
    declared = declared or Declared()
    if declared.task == "multilabel":
        labels: Labels | None = None
        raw = _labels(path, wanted[1], arrays)
    else:
        raw = _column(path, wanted[1], arrays)
        labels = Labels(f"{path}, {wanted[1]}", raw, declared)
    splits = [
        _split(path, x, y, arrays, labels) for x, y in zip(wanted[::2], wanted[1::2], strict=True)
    ]
    shapes = {split.inputs.shape[1:] for split in splits}
    if len(shapes) > 1:
        raise DataError.unexpected(path, f"examples of shapes {sorted(shapes)}", "one shape")
    width = math.prod(splits[0].inputs.shape[1:])
    if declared.features not in (None, width):
        raise DataError.unexpected(path, f"{width} features", f"the declared {declared.features}")
    bytes_given = arrays[wanted[0]].dtype == np.uint8
    scaling = "bytes divided by 255" if bytes_given else "inputs as they are, not rescaled"
    if len(splits) == 2:
        if split_by is not None:
            raise DataError(f"{path} has a test part of its own: leave split_by out")
        train, test = splits
    else:
        persons = None if split_by is None else _persons(path, split_by, arrays, len(raw))
        content = row_contents(arrays[wanted[0]], raw) if persons is None else persons
        train, test = split_off(splits[0], holdout, content)
    if labels is None:
        return Dataset(name, train, test, raw.shape[1], (scaling,), declared.caveats)
    caveats = (*declared.caveats, *labels.caveats)
    return Dataset(name, train, test, labels.classes, (scaling,), caveats)


def load_records(path: Path) -> NDArray[np.float32]:
    """New records without labels, (N, …), read as :func:`load_npz` reads those of training.

    Args:
        path: ``.npz`` with ``x_test`` or, where that is not there, ``x``; or ``.npy``.

    Raises:
        DataError: no such file or array, or numbers that are not finite.
    """
    if not path.is_file():
        raise DataError(f"no file {path}")
    if path.suffix.lower() == ".npy":
        try:
            inputs = np.load(path, allow_pickle=False)
        except (*DAMAGE, ValueError) as error:
            raise DataError.unexpected(path, f"no readable array ({error})", "numbers") from error
    else:
        arrays = _read(path)
        key = "x_test" if "x_test" in arrays else "x"
        if key not in arrays:
            raise DataError.unexpected(
                path, f"the arrays {', '.join(arrays) or 'of none'}", "x_test or x"
            )
        inputs = arrays[key]
    return _inputs(str(path), inputs)


def shape_read(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Which shape an array has once it is read: that of bytes may have channels to move."""
    if dtype != np.uint8:
        return shape
    return _channels_first(np.broadcast_to(np.uint8(0), shape)).shape


def _labels(path: Path, key: str, arrays: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    values = arrays[key]
    if values.ndim != 2 or values.shape[1] < 2 or values.dtype.kind not in "biuf":
        raise DataError.unexpected(
            f"{path}, {key}", f"{values.dtype} of shape {values.shape}", "0 and 1, (N, labels)"
        )
    if not np.isin(values, (0, 1)).all():
        raise DataError.unexpected(f"{path}, {key}", "other numbers", "labels of 0 and 1")
    return values.astype(np.float32)


def _persons(path: Path, key: str, arrays: dict[str, NDArray[Any]], examples: int) -> list[bytes]:
    if key not in arrays:
        raise DataError.unexpected(
            path, f"the arrays {', '.join(arrays)}", f"one named {key!r}, to split by"
        )
    values = _column(path, key, arrays)
    if len(values) != examples:
        raise DataError.unexpected(path, f"{len(values)} entries in {key}", f"{examples}")
    return [str(value).encode() for value in values]


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (*DAMAGE, zipfile.BadZipFile, ValueError, AttributeError, NotImplementedError) as error:
        raise DataError.unexpected(
            path, f"no readable archive of plain arrays ({error})", "a .npz file without objects"
        ) from error


def _column(path: Path, key: str, arrays: dict[str, NDArray[Any]]) -> NDArray[Any]:
    values = arrays[key]
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind not in "biufU" or not len(values):
        raise DataError.unexpected(
            f"{path}, {key}", f"{values.dtype} of shape {values.shape}", "one label an example"
        )
    return values


def _split(
    path: Path, x: str, y: str, arrays: dict[str, NDArray[Any]], labels: Labels | None
) -> Split:
    inputs = _inputs(f"{path}, {x}", arrays[x])
    targets = _labels(path, y, arrays) if labels is None else _column(path, y, arrays)
    if len(inputs) != len(targets):
        raise DataError.unexpected(
            path, f"{len(inputs)} examples in {x} and {len(targets)} in {y}", "as many of each"
        )
    if labels is None:
        return Split(inputs, targets)
    return Split(inputs, labels.encode(f"{path}, {y}", targets))


def _inputs(where: str, inputs: NDArray[Any]) -> NDArray[np.float32]:
    """An array of records as float32: bytes are pixels."""
    if inputs.ndim < 2 or inputs.dtype.kind not in "biuf":
        raise DataError.unexpected(
            where, f"{inputs.dtype} of shape {inputs.shape}", "numbers (N, features, …)"
        )
    if inputs.dtype == np.uint8:
        inputs = scaled(_channels_first(inputs))
    inputs = np.ascontiguousarray(inputs, np.float32)
    finite(where, inputs)
    return inputs


def _channels_first(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if pixels.ndim == 3:
        return pixels[:, None]
    if pixels.ndim == 4 and pixels.shape[3] in (1, 3) and pixels.shape[1] not in (1, 3):
        return pixels.transpose(0, 3, 1, 2)
    return pixels
