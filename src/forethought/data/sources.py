"""From a source's name to a data set: the registry of loaders."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from forethought.data.arrays import load_npz
from forethought.data.bundled import load_breast_cancer, load_digits
from forethought.data.cifar import load_cifar10
from forethought.data.dataset import Dataset
from forethought.data.error import DataError
from forethought.data.files import data_folder, resolve
from forethought.data.idx import load_idx
from forethought.data.labels import Declared, Task
from forethought.data.svmlight import load_svmlight
from forethought.data.tables import Aside, load_csv

if TYPE_CHECKING:  # both load polars
    from forethought.data.encoder import TableSchema
    from forethought.data.reading import Kind

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
_FORMATS = ("svmlight", "csv", "npz", "parquet", "excel")
_TABLES = ("csv", "parquet", "excel")
_ENDINGS = {
    **dict.fromkeys(("csv", "tsv", "txt", "data"), "csv"),
    **dict.fromkeys(("svm", "svmlight", "libsvm"), "svmlight"),
    "npz": "npz",
    **dict.fromkeys(("parquet", "pq"), "parquet"),
    **dict.fromkeys(("xlsx", "xlsm", "xlsb", "xls", "ods"), "excel"),
}
FIXED = (
    "scattering",
    "patches",
    "deep-patches",
    "shifted-patches",
    "handwriting",
    "deskewed",
)
FEATURES = (*FIXED, "auto", "pixels")


def names() -> tuple[str, ...]:
    """Every source that :func:`load` knows; PATH stands for a file of the user's own."""
    return (*_BUNDLED, *_ORIGINAL, *(f"{kind}:PATH" for kind in _FORMATS))


def load(  # noqa: C901, PLR0915
    source: str,
    *,
    folder: Path | None = None,
    label: str | Sequence[str] | None = None,
    holdout: float | None = None,
    features: str | int | None = None,
    test: str | None = None,
    task: Task | None = None,
    classes: Sequence[str | float] | None = None,
    split_by: str | None = None,
    site: str | None = None,
    schema: TableSchema | None = None,
) -> Dataset:
    """A data set as float32 arrays, scaled by public constants only.

    Args:
        source: one of :func:`names`: ``"digits"``, ``"mnist"``, ``"csv:patients.csv"``, …
        folder: where data files are: in FOLDER/mnist, … or in FOLDER itself; paths that are not
            found from the working directory are looked up here too. By default the folder that the
            environment variable FORETHOUGHT_DATA names.
        label: the label's column of a table: a name; for csv a number if the file has no names.
            Several names with ``task="multilabel"``: columns of 1 and 0, or yes and no.
        holdout: share of the examples held out as test part, for sources without one of their own;
            0.2 by default, drawn by a hash of each example (:func:`forethought.data.split_off`).
        features: how many there are, declared so that no record decides it; or ``"scattering"``,
            ``"patches"``, ``"deep-patches"``, ``"shifted-patches"``, ``"handwriting"`` or
            ``"deskewed"``: images by fixed features of them, computed once and cached
            (:mod:`forethought.data.features`);
            ``"auto"``: those that are best for images of this shape, none where the data are no
            images; ``"pixels"``: none.
        test: a file of its own for the test part (csv and svmlight).
        task, classes: whether targets are classes or values, and which classes (the first is class
            0), declared so that no record decides it. Files of one's own only.
        split_by: what keeps a person's records on one side of the split: a column (csv) or an
            array (npz).
        site: the column (csv) that says which client of a federation holds a record; it becomes
            the data set's ``sites``.
        schema: what every column of a table is, declared (:class:`TableSchema`): the only way to
            read Parquet and Excel, and tables with other separators, missing entries or dates.

    Raises:
        DataError: unknown source, an option that does not go with it, or data that is missing,
            damaged or unsuitable; names the file, what was found and what was expected.

    >>> load("digits").train.inputs.shape
    (1443, 1, 8, 8)
    """
    if not isinstance(source, str):
        raise TypeError(f"source must be a string such as 'mnist', not {source!r}")
    width = features if isinstance(features, int) and not isinstance(features, bool) else None
    if width is None and features is not None and features not in FEATURES:
        raise DataError(
            f"unknown features {features!r}: the choice is {', '.join(FEATURES)}, or their number"
        )
    if width is not None and width < 1:
        raise DataError(f"features must be at least 1, not {width}")
    where = data_folder(folder)
    kind, colon, path = source.partition(":")
    tabular = kind in _TABLES
    if label is not None and not tabular:
        raise DataError(f"{source}: label= goes with a table, such as csv:PATH, only")
    if schema is not None and not tabular:
        raise DataError(f"{source}: declared columns go with {', '.join(_TABLES)}:PATH only")
    if test is not None and not tabular and kind != "svmlight":
        raise DataError(f"{source}: test= goes with tables and svmlight:PATH only")
    if holdout is not None and (kind in _ORIGINAL or test is not None):
        raise DataError(f"{source}: has a test part of its own; leave holdout out")
    if split_by is not None and (not (tabular or kind == "npz") or test is not None):
        raise DataError(f"{source}: split_by= goes with tables and npz:PATH, without test=")
    if site is not None and not tabular:
        raise DataError(f"{source}: site= goes with a table, such as csv:PATH, only")
    labels = () if label is None or isinstance(label, str) else tuple(label)
    if tabular and bool(labels) != (task == "multilabel"):
        raise DataError(
            f"{source}: task='multilabel' goes with a list of columns as label, one for each label"
        )
    if len(labels) == 1 or len(set(labels)) < len(labels):
        raise DataError(f"{source}: label lists {list(labels)}: two or more different columns")
    declared = Declared(task, None if classes is None else tuple(classes), width)
    if declared != Declared() and kind not in _FORMATS:
        raise DataError(
            f"{source}: task=, classes= and a number of features go with files of your own; this "
            "set's are public"
        )
    if colon and kind in _FORMATS:
        test_path = None if test is None else resolve(test, where)
        file = resolve(path, where)
        one = label if isinstance(label, str) else None
        aside = Aside(one or "", split_by, site, labels=labels)
        loaders: dict[str, Callable[[], Dataset]] = {
            "svmlight": partial(load_svmlight, source, file, test_path, holdout, declared),
            "csv": partial(load_csv, source, file, test_path, holdout, aside, declared),
            "npz": partial(load_npz, source, file, holdout, declared, split_by),
        }
        if labels and schema is None:
            raise DataError(
                f"{source}: several labels go with declared columns: forethought init {file.name} "
                "writes [data.columns] for you to correct"
            )
        if task == "multilabel" and kind == "svmlight":
            raise DataError(f"{source}: task='multilabel' goes with tables and npz:PATH")
        if tabular and (schema is not None or kind != "csv"):
            dataset = _declared(source, file, schema, aside, declared, test_path, holdout)
        else:
            dataset = loaders[kind]()
    elif source in _BUNDLED:
        dataset = _BUNDLED[source](source, where, holdout)
    elif source in _ORIGINAL:
        dataset = _ORIGINAL[source](source, where)
    else:
        raise DataError(_unknown(source))
    if not isinstance(features, str) or features == "pixels":
        return dataset
    from forethought.data.features import best_features, with_features

    shape = dataset.train.inputs.shape
    chosen = best_features(shape) if features == "auto" else features
    return dataset if chosen is None else with_features(dataset, chosen)


def _declared(
    source: str,
    file: Path,
    schema: TableSchema | None,
    aside: Aside,
    declared: Declared,
    test: Path | None,
    holdout: float | None,
) -> Dataset:
    # Imported here: polars takes a while, and most sources do without it.
    from forethought.data.declared_tables import load_declared

    if not (aside.label or aside.labels):
        raise DataError(f"{source}: which column is the label? Name it with label=")
    if schema is None:
        raise DataError(
            f"{source}: declare the columns of a Parquet or Excel file in [data.columns]; "
            f"forethought init {file.name} writes the table for you to correct"
        )
    if schema.person is not None:
        if test is not None or aside.site is not None:
            raise DataError(f"{source}: person= goes without test= and site=")
        aside = replace(aside, person=schema.person, split_by=aside.split_by or schema.person)
    kind = source.partition(":")[0]
    kinds: dict[str, Kind] = {"csv": "csv", "parquet": "parquet", "excel": "excel"}
    return load_declared(source, file, kinds[kind], schema, aside, declared, test, holdout)


def _unknown(source: str) -> str:
    ending = Path(source.lower().removesuffix(".gz")).suffix.removeprefix(".")
    kind = _ENDINGS.get(ending, "" if ":" in source or not Path(source).is_file() else "csv")
    if kind:
        return f"{source!r} looks like a file: write its format before it, as in '{kind}:{source}'"
    near = difflib.get_close_matches(
        source.partition(":")[0], [*_BUNDLED, *_ORIGINAL, *_FORMATS], 1
    )
    hint = (
        f" Did you mean {near[0] + ':PATH' if near[0] in _FORMATS else near[0]!r}?" if near else ""
    )
    return f"unknown data source {source!r}.{hint} The sources are {', '.join(names())}"
