"""A first job file for images: which features a linear model should have of them, and why.

Nothing but sizes is read: the headers of the arrays. No record and no label decides what is
written.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forethought.data import DataError
from forethought.data.arrays import shape_read
from forethought.data.features import best_features, reason_for
from forethought.data.files import DAMAGE
from forethought.jobs.toml import toml_value

_IDX = ("-idx", ".idx")
_HEAD = """\
# Written by forethought init from the sizes of the arrays in {name}. No image and no label was
# read.
"""
_HEAD_IDX = """\
# Written by forethought init, which read {name} and the files that belong to it on this machine.
"""
_KEPT = "# Trained on as it is, {shape} numbers a record."
_AXES = " Images are (N, channels, height, width); those in other order are not known for images."
# The files of LeCun et al. (1998), as the loaders of these sets want them.
_ORIGINAL = ("mnist", "fashion-mnist")


@dataclass(frozen=True)
class _Array:
    """Of an array in an archive: shape and type."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


def holds_arrays(path: Path) -> bool:
    """Whether a file's name says that it holds arrays, or images in the idx format."""
    name = path.name.lower()
    return path.suffix.lower() in (".npz", ".npy") or any(mark in name for mark in _IDX)


def job_for_arrays(path: Path) -> str:
    """The text of a job file for an archive of NumPy arrays, or for MNIST's files and their like.

    Images of a size that fixed features take get them by name, with the reason; other arrays stay
    as they are.

    Args:
        path: ``.npz`` with ``x`` and ``y`` or ``x_train`` and ``y_train``; or training images in
            the idx format, the three files that belong to them beside it.

    Raises:
        DataError: no such file, no archive, no such arrays, or an array alone, which has no labels.
    """
    if not path.is_file():
        raise DataError(f"no file {path}")
    if path.suffix.lower() == ".npz":
        return _of_archive(path)
    if path.suffix.lower() == ".npy":
        raise DataError(
            f"{path} holds one array and no labels: write both into one archive, "
            "np.savez('images.npz', x=images, y=labels), and forethought init images.npz"
        )
    return _of_idx(path)


def _of_archive(path: Path) -> str:
    found = _headers(path)
    x, y = ("x_train", "y_train") if "x_train" in found else ("x", "y")
    if x not in found or y not in found:
        raise DataError.unexpected(
            path,
            f"the arrays {', '.join(found) or 'of none'}",
            "x_train and y_train (perhaps with x_test and y_test), or x and y",
        )
    inputs, targets = found[x], found[y]
    if len(inputs.shape) < 2:
        raise DataError.unexpected(f"{path}, {x}", f"shape {inputs.shape}", "(N, features, …)")
    lines = [_HEAD.format(name=path.name), "[data]", f"source = {toml_value(f'npz:{path}')}"]
    lines += _features(shape_read(inputs.shape, inputs.dtype))
    if len(targets.shape) == 2 and targets.shape[1] > 1:
        lines.append('task = "multilabel"')
    elif targets.dtype.kind == "f":
        lines.append('task = "classification"  # or "regression"')
    else:
        lines.append('task = "classification"')
    if len(targets.shape) == 1 or targets.shape[1] == 1:
        lines.append(
            "# classes = [0, 1]  # which there are, class 0 first; left out, the labels say, and "
            "the Statement says that"
        )
    return "\n".join([*lines, "", "[budget]", "epsilon = 3.0", ""])


def _features(shape: tuple[int, ...]) -> list[str]:
    chosen = best_features(shape)
    if chosen is None:
        kept = _KEPT.format(shape=" × ".join(map(str, shape[1:])))
        return [kept + (_AXES if len(shape) > 2 else "")]
    return [f"# Why these features: {reason_for(chosen)}.", f"features = {toml_value(chosen)}"]


def _of_idx(path: Path) -> str:
    from forethought.data.idx import load_idx

    folder = path.parent
    name = folder.name if folder.name in _ORIGINAL else "mnist"
    # The four files must be there and fit each other: that is what the loader says.
    shape = load_idx(name, folder).train.inputs.shape
    lines = [
        _HEAD_IDX.format(name=path.name),
        "[data]",
        f"source = {toml_value(name)}  # ten classes, train-… and t10k-… in the folder",
        f"folder = {toml_value(str(folder))}",
        *_features(shape),
    ]
    return "\n".join([*lines, "", "[budget]", "epsilon = 3.0", ""])


def _headers(path: Path) -> dict[str, _Array]:
    """Shapes and types of an archive's arrays, without reading them."""
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as file:
                    version = np.lib.format.read_magic(file)
                    shape, _, dtype = read[version](file)
                found[name.removesuffix(".npy")] = _Array(shape, dtype)
    except (*DAMAGE, zipfile.BadZipFile, ValueError, KeyError) as error:
        raise DataError.unexpected(
            path, f"no readable archive of plain arrays ({error})", "a .npz file without objects"
        ) from error
    return found
