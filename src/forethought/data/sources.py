"""From a source's name to a data set: the registry of loaders."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from forethought.data.arrays import load_npz
from forethought.data.bundled import load_breast_cancer, load_digits
from forethought.data.cifar import load_cifar10
from forethought.data.dataset import DataError, Dataset
from forethought.data.files import data_folder, resolve
from forethought.data.idx import load_idx
from forethought.data.svmlight import load_svmlight
from forethought.data.tables import load_csv

# Sets without a test part of their own, sets with one, and formats of the user's own files.
_BUNDLED: dict[str, Callable[[str, Path | None, float | None], Dataset]] = {
    "digits": load_digits,
    "breast-cancer": load_breast_cancer,
}
_ORIGINAL: dict[str, Callable[[str, Path | None], Dataset]] = {
    "mnist": load_idx,
    "fashion-mnist": load_idx,
    "cifar10": load_cifar10,
}
_FORMATS = ("svmlight", "csv", "npz")
FEATURES = ("scattering",)


def names() -> tuple[str, ...]:
    """Every source that :func:`load` knows; PATH stands for a file of the user's own."""
    return (*_BUNDLED, *_ORIGINAL, *(f"{kind}:PATH" for kind in _FORMATS))


def load(
    source: str,
    *,
    folder: Path | None = None,
    label: str | None = None,
    holdout: float | None = None,
    features: str | None = None,
    test: str | None = None,
) -> Dataset:
    """A data set as float32 arrays, scaled by public constants only.

    Args:
        source: one of :func:`names`: ``"digits"``, ``"mnist"``, ``"csv:patients.csv"``, …
        folder: where data files are: in FOLDER/mnist, … or in FOLDER itself; paths that are not
            found from the working directory are looked up here too. By default the folder that the
            environment variable FORETHOUGHT_DATA names.
        label: the label's column (csv only): a name, or a number if the file has no names.
        holdout: share of the examples held out as test part, for sources without one of their own;
            0.2 by default, drawn by a fixed seed.
        features: ``"scattering"`` replaces images by their normalised scattering coefficients,
            computed once and cached (:mod:`forethought.data.features`).
        test: a file of its own for the test part (csv and svmlight).

    Raises:
        DataError: unknown source, an option that does not go with it, or data that is missing,
            damaged or unsuitable; names the file, what was found and what was expected.

    >>> load("digits").train.inputs.shape
    (1438, 1, 8, 8)
    """
    if not isinstance(source, str):
        raise TypeError(f"source must be a string such as 'mnist', not {source!r}")
    if features is not None and features not in FEATURES:
        raise DataError(f"unknown features {features!r}: the choice is {', '.join(FEATURES)}")
    where = data_folder(folder)
    kind, colon, path = source.partition(":")
    if label is not None and kind != "csv":
        raise DataError(f"{source}: label= goes with csv:PATH only")
    if test is not None and kind not in ("csv", "svmlight"):
        raise DataError(f"{source}: test= goes with csv:PATH and svmlight:PATH only")
    if holdout is not None and (kind in _ORIGINAL or test is not None):
        raise DataError(f"{source}: has a test part of its own; leave holdout out")
    if colon and kind in _FORMATS:
        dataset = _load_file(kind, source, resolve(path, where), where, label, holdout, test)
    elif source in _BUNDLED:
        dataset = _BUNDLED[source](source, where, holdout)
    elif source in _ORIGINAL:
        dataset = _ORIGINAL[source](source, where)
    else:
        raise DataError(_unknown(source))
    if features is None:
        return dataset
    from forethought.data.features import with_scattering

    return with_scattering(dataset)


def _load_file(
    kind: str,
    source: str,
    path: Path,
    folder: Path | None,
    label: str | None,
    holdout: float | None,
    test: str | None,
) -> Dataset:
    test_path = None if test is None else resolve(test, folder)
    if kind == "svmlight":
        return load_svmlight(source, path, test_path, holdout)
    if kind == "csv":
        return load_csv(source, path, test_path, holdout, label)
    return load_npz(source, path, holdout)


def _unknown(source: str) -> str:
    near = difflib.get_close_matches(
        source.partition(":")[0], [*_BUNDLED, *_ORIGINAL, *_FORMATS], 1
    )
    hint = (
        f" Did you mean {near[0] + ':PATH' if near[0] in _FORMATS else near[0]!r}?" if near else ""
    )
    return f"unknown data source {source!r}.{hint} The sources are {', '.join(names())}"
