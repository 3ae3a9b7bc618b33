"""From a source's name to a data set: the registry of loaders."""

from __future__ import annotations

import difflib
import json
import math
import tarfile
import tokenize
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from forethought.data.dataset import (
    Dataset,
    Declared,
    Labels,
    Split,
    Task,
    row_contents,
    split_off,
    usual_norm_of_pixels,
)
from forethought.data.files import (
    DAMAGE,
    ENDINGS,
    TABLES,
    DataError,
    data_folder,
    find,
    finite,
    named,
    read,
    required,
    resolve,
)
from forethought.data.tables import Aside, load_table
from forethought.values.caveats import Caveat

if TYPE_CHECKING:
    from forethought.data.columns import TableSchema


# NumPy archives: ``x_train``, ``y_train`` and perhaps ``x_test``, ``y_test``; or ``x``, ``y``.


def load_npz(
    name: str, path: Path, holdout: float | None, declared: Declared, split_by: str | None
) -> Dataset:
    """Arrays as they are; uint8 arrays are pixels: divided by 255, channels moved to the front.

    Args:
        declared: the user's declaration of labels and features.
        split_by: name of the array that holds each example's person, for the split.

    Raises:
        DataError: a damaged file, missing arrays, different lengths, features that are not finite,
            or labels that are not one number or word an example.
    """
    arrays = _arrays(path)
    wanted = wanted_arrays(path, arrays)
    targets = [_targets(path, key, arrays, declared.task == "multilabel") for key in wanted[1::2]]
    raw, labels = targets[0], None
    if declared.task != "multilabel":
        labels = Labels(f"{path}, {wanted[1]}", raw, declared)
    splits = []
    for x, y, values in zip(wanted[::2], wanted[1::2], targets, strict=True):
        inputs = array_inputs(f"{path}, {x}", arrays[x])
        if len(inputs) != len(values):
            found = f"{len(inputs)} examples in {x} and {len(values)} in {y}"
            raise DataError.unexpected(path, found, "as many of each")
        known = values if labels is None else labels.encode(f"{path}, {y}", values)
        splits.append(Split(inputs, known))
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
    classes = raw.shape[1] if labels is None else labels.classes
    caveats = (*declared.caveats, *(() if labels is None else labels.caveats))
    return Dataset(name, train, test, classes, (scaling,), caveats)


def wanted_arrays(path: Path, found: Collection[str]) -> tuple[str, ...]:
    """The names of an archive's inputs and labels, and of those of its test part if it has one.

    Raises:
        DataError: some arrays are missing.
    """
    wanted: tuple[str, ...] = ("x_train", "y_train") if "x_train" in found else ("x", "y")
    if wanted[0] == "x_train" and {"x_test", "y_test"} & {*found}:
        wanted += ("x_test", "y_test")
    if not {*wanted} <= {*found}:
        there = f"the arrays {', '.join(found) or 'of none'}"
        needed = "x_train and y_train (perhaps with x_test and y_test), or x and y"
        raise DataError.unexpected(path, there, needed)
    return wanted


def load_records(path: Path) -> NDArray[np.float32]:
    """New records without labels, (N, …), scaled as :func:`load_npz` scales training records.

    Args:
        path: ``.npz`` with ``x_test``, or else ``x``; or ``.npy``.

    Raises:
        DataError: no such file or array, or numbers that are not finite.
    """
    arrays = _arrays(required(path))
    key = "x_test" if "x_test" in arrays else "x"
    if key not in arrays:
        found = f"the arrays {', '.join(arrays) or 'of none'}"
        raise DataError.unexpected(path, found, "x_test or x")
    return array_inputs(str(path), arrays[key])


def shape_read(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """The shape of an array once it is loaded: in uint8 arrays, channels may move."""
    if dtype != np.uint8:
        return shape
    return _channels_first(np.broadcast_to(np.uint8(0), shape)).shape


def _targets(
    path: Path, key: str, arrays: dict[str, NDArray[Any]], several: bool = False
) -> NDArray[Any]:
    """One label an example, (N,); with ``several``, labels of 0 and 1, (N, labels), float32."""
    values, where = arrays[key], f"{path}, {key}"
    found = f"{values.dtype} of shape {values.shape}"
    if several:
        if values.ndim != 2 or values.shape[1] < 2 or values.dtype.kind not in "biuf":
            raise DataError.unexpected(where, found, "0 and 1, (N, labels)")
        if not np.isin(values, (0, 1)).all():
            raise DataError.unexpected(where, "other numbers", "labels of 0 and 1")
        return values.astype(np.float32)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or values.dtype.kind not in "biufU" or not len(values):
        raise DataError.unexpected(where, found, "one label an example")
    return values


def _persons(path: Path, key: str, arrays: dict[str, NDArray[Any]], examples: int) -> list[bytes]:
    if key not in arrays:
        found = f"the arrays {', '.join(arrays)}"
        raise DataError.unexpected(path, found, f"one named {key!r}, to split by")
    values = _targets(path, key, arrays)
    if len(values) != examples:
        raise DataError.unexpected(path, f"{len(values)} entries in {key}", f"{examples}")
    return [one.encode() for one in named(path, pl.Series(key, values))]


# Errors of an archive that is damaged or encrypted, or claims what no memory holds.
BROKEN = (*DAMAGE, zipfile.BadZipFile, RuntimeError, MemoryError, tokenize.TokenError)


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an archive; a single one, as in .npy, is called ``x``."""
    try:
        with path.open("rb") as file:
            held = np.load(file, allow_pickle=False)
            arrays = {"x": held} if isinstance(held, np.ndarray) else dict(held)
    except (*BROKEN, ValueError) as error:
        found = f"no readable archive of plain arrays ({error})"
        raise DataError.unexpected(path, found, "arrays without objects") from error
    for name, one in arrays.items():
        if not isinstance(one, np.ndarray):
            raise DataError.unexpected(f"{path}, {name}", "something else", "an array")
    return arrays


def array_inputs(where: str, inputs: NDArray[Any]) -> NDArray[np.float32]:
    """An array of records as float32; uint8 values are pixels."""
    if inputs.ndim < 2 or inputs.dtype.kind not in "biuf":
        found = f"{inputs.dtype} of shape {inputs.shape}"
        raise DataError.unexpected(where, found, "numbers (N, features, …)")
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


# Data sets that ship with scikit-learn, which load on any machine, offline.


# Upper bounds of breast-cancer's ten measurements: round numbers at or above the ranges printed in
# the data set's public description, so that no constant comes from the rows loaded. Each line is
# mean, standard error and worst value of one measurement.
BOUNDS = {
    "radius": (30, 3, 40),
    "texture": (40, 5, 50),
    "perimeter": (200, 25, 300),
    "area": (3000, 600, 5000),
    "smoothness": (0.2, 0.04, 0.25),
    "compactness": (0.4, 0.15, 1.2),
    "concavity": (0.5, 0.4, 1.3),
    "concave points": (0.25, 0.06, 0.3),
    "symmetry": (0.4, 0.08, 0.7),
    "fractal dimension": (0.1, 0.03, 0.25),
}


def load_bundled(name: str, holdout: float | None) -> Dataset:
    """A set of scikit-learn's.

    ``"digits"``: 1,797 handwritten digits of 8 × 8 pixels, (N, 1, 8, 8) in [0, 1] (Alpaydin, Kaynak
    1998). ``"breast-cancer"``: 569 tumours by 30 measurements in [−1, 1]; class 1 is benign (Street
    et al. 1993).
    """
    from sklearn import datasets

    if name == "digits":
        given, labels = datasets.load_digits(return_X_y=True)
        inputs = (given / 16).reshape(-1, 1, 8, 8)
        note = "pixels divided by 16, their largest value"
        norm = usual_norm_of_pixels(inputs.shape)
    else:
        given, labels = datasets.load_breast_cancer(return_X_y=True)
        inputs = 2 * np.clip(given / np.array(list(BOUNDS.values())).T.ravel(), 0, 1) - 1
        note = "measurements scaled from [0, bound] to [−1, 1] by fixed public bounds, and clipped"
        norm = math.sqrt(inputs.shape[1] / 3)
    whole = Split(inputs.astype(np.float32), labels.astype(np.int64))
    train, test = split_off(whole, holdout)
    return Dataset(name, train, test, int(labels.max()) + 1, (note,), feature_norm=norm)


# The sparse text format of svmlight and LIBSVM: ``label index:value index:value …``.


_MOST_VALUES = 2**31  # a dense matrix above 8 GiB is refused before memory is allocated


def load_svmlight(
    name: str, path: Path, test: Path | None, holdout: float | None, declared: Declared
) -> Dataset:
    """Dense features as they are, (N, highest index); classes numbered from 0 in sorted order.

    A test file may have fewer features than the training file (the last ones may all be zero) or
    more (which no training example has). Both parts get the larger number of columns, unless
    ``declared`` gives the number of features.

    Raises:
        DataError: a file is damaged or no svmlight file, a feature is not finite, or a test label
            does not occur in the training file.
    """
    paths = [path] if test is None else [path, test]
    read_files = [_sparse(file) for file in paths]
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
            size = f"{features.shape[0]} examples of {columns} features"
            most = f"at most {_MOST_VALUES} values in all, since they are stored densely"
            raise DataError.unexpected(file, size, most)
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
    """Yield each line's non-zero entries and label, which do not depend on other lines."""
    ends = features.indptr
    for row, label in enumerate(raw):
        entries = slice(ends[row], ends[row + 1])
        indices = features.indices[entries].astype(np.int64)
        yield indices.tobytes() + features.data[entries].tobytes() + str(label).encode()


def _sparse(path: Path) -> tuple[Any, NDArray[np.float64]]:
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


# MNIST and its relatives: the idx format of LeCun et al. (1998), gzipped or not.


CLASSES = 10
_FILES = {"train": "train", "test": "t10k"}


def load_idx(name: str, folder: Path | None) -> Dataset:
    """The data set ``name`` from its four idx files: 28 × 28 images, (N, 1, 28, 28) in [0, 1].

    Raises:
        DataError: a file is missing, damaged, or does not fit its partner.
    """
    train, test = (_part(name, folder, part) for part in ("train", "test"))
    if train.inputs.shape[1:] != test.inputs.shape[1:]:
        found, wanted = f"images of {test.inputs.shape[2:]} pixels", train.inputs.shape[2:]
        raise DataError.unexpected(f"{name} test images", found, f"the training images' {wanted}")
    norm = usual_norm_of_pixels(train.inputs.shape)
    return Dataset(name, train, test, CLASSES, ("pixels divided by 255",), feature_norm=norm)


def _part(name: str, folder: Path | None, part: str) -> Split:
    stem = _FILES[part]
    images_path = find(name, _spellings(f"{stem}-images", 3), folder)
    labels_path = find(name, _spellings(f"{stem}-labels", 1), folder)
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        wanted = f"one for each of the {len(images)} images"
        raise DataError.unexpected(labels_path, f"{len(labels)} labels", wanted)
    _require_classes(labels_path, labels)
    if not images.size:
        raise DataError.unexpected(images_path, f"shape {images.shape}", "at least one image")
    return Split(scaled(images[:, None]), labels.astype(np.int64))


def _spellings(stem: str, dimensions: int) -> tuple[str, ...]:
    return tuple(
        f"{stem}{mark}idx{dimensions}-ubyte{ending}" for mark in "-." for ending in (".gz", "")
    )


def scaled(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Bytes as float32 in [0, 1]: divided by 255, the largest byte."""
    return np.multiply(pixels, np.float32(1 / 255), dtype=np.float32)


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array of unsigned bytes in an idx file.

    Raises:
        DataError: another magic number, or more or fewer bytes than the header announces.
    """
    content = read(path)
    expected, start = 0x0800 + dimensions, 4 + 4 * dimensions
    magic = int.from_bytes(content[:4], "big")
    if len(content) < start or magic != expected:
        found = f"{len(content)} bytes that start with 0x{content[:4].hex()}"
        number = f"the magic number 0x{expected:08x} (unsigned bytes in {dimensions} dimensions)"
        raise DataError.unexpected(path, found, number)
    header: NDArray[Any] = np.frombuffer(content, ">u4", dimensions, 4)
    shape = tuple(int(size) for size in header)
    if len(content) - start != math.prod(shape):
        announced = f"{math.prod(shape)} as its header says: {' × '.join(map(str, shape))}"
        raise DataError.unexpected(path, f"{len(content) - start} bytes of data", announced)
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


# CIFAR-10 (Krizhevsky 2009) in its binary format: a folder, or directly from the archive.


_SHAPE = (3, 32, 32)
_ROW = 1 + 3 * 32 * 32
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = "test_batch.bin"
_UNPACKED = ("cifar-10-batches-bin", _TRAIN[0])
_ARCHIVES = tuple(
    f"{stem}.tar{ending}"
    for stem in ("cifar-10-batches-bin", "cifar-10-binary")
    for ending in (".xz", ".gz", "")
)
# This file accompanies copies of the archive in which some images were decoded from a lossy copy.
_INEXACT = "approx_rows.json"


def load_cifar10(name: str, folder: Path | None) -> Dataset:
    """50,000 and 10,000 colour images, (N, 3, 32, 32) in [0, 1]; the archive is read in memory.

    Raises:
        DataError: a file is missing, damaged or of the wrong size, or a label is above 9.
    """
    found = find(name, (*_UNPACKED, *_ARCHIVES), folder)
    batches = dict(_from_archive(found) if found.suffix in (".xz", ".gz", ".tar") else _from(found))
    missing = [file for file in (*_TRAIN, _TEST) if file not in batches]
    if missing:
        raise DataError.unexpected(
            found, f"no {', '.join(missing)}", f"the six files {_TRAIN[0]} … {_TEST}"
        )
    train, test = _split([batches[file] for file in _TRAIN]), _split([batches[_TEST]])
    notes = ("pixels divided by 255", *_inexact(found.parent))
    norm = usual_norm_of_pixels(train.inputs.shape)
    return Dataset(name, train, test, CLASSES, notes, feature_norm=norm)


def _split(batches: list[NDArray[np.uint8]]) -> Split:
    rows = np.concatenate(batches)
    return Split(scaled(rows[:, 1:]).reshape(-1, *_SHAPE), rows[:, 0].astype(np.int64))


def _from(found: Path) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    folder = found if found.is_dir() else found.parent
    for file in (*_TRAIN, _TEST):
        if (folder / file).exists():
            yield file, _rows(folder / file, read(folder / file))


def _from_archive(archive: Path) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    # Decompressed in memory first, since tarfile alone never compares the checksum at the end.
    content = read(archive)
    try:
        with tarfile.open(fileobj=BytesIO(content)) as members:
            for member in members:
                file = Path(member.name).name
                batch = members.extractfile(member) if member.isfile() else None
                if batch is not None and file in (*_TRAIN, _TEST):
                    yield file, _rows(f"{archive}, {member.name}", batch.read())
    except tarfile.TarError as error:
        raise DataError.unexpected(
            archive, f"a truncated or corrupt archive ({error})", "an intact one"
        ) from error


def _rows(path: Path | str, content: bytes) -> NDArray[np.uint8]:
    if not content or len(content) % _ROW:
        raise DataError.unexpected(
            path, f"{len(content)} bytes", f"a multiple of {_ROW} (1 label and 3,072 pixel bytes)"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, _ROW)
    _require_classes(path, rows[:, 0])
    return rows


def _require_classes(path: Path | str, labels: NDArray[np.uint8]) -> None:
    wrong = labels >= CLASSES
    if wrong.any():
        row = int(wrong.argmax())
        found = f"label {labels[row]} in example {row + 1}"
        raise DataError.unexpected(path, found, f"labels from 0 to {CLASSES - 1}")


def _inexact(folder: Path) -> tuple[str, ...]:
    path = folder / _INEXACT
    if not path.exists():
        return ()
    try:
        rows = sum(map(len, json.loads(read(path))["rows"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError.unexpected(
            path, f"no list of rows ({error})", '{"rows": {"data_batch_1.bin": [4298, …], …}}'
        ) from error
    return (
        f"{rows} images are not byte-exact but decoded from a lossy copy ({_INEXACT}); "
        "all labels are exact",
    )


# Sets without a test part of their own, sets with one, and formats of a user's own files.
BUNDLED = ("digits", "breast-cancer")
_ORIGINAL: dict[str, Callable[[str, Path | None], Dataset]] = {
    "mnist": load_idx,
    "fashion-mnist": load_idx,
    "cifar10": load_cifar10,
}
_FORMATS = ("svmlight", "csv", "npz", "parquet", "excel")
_TESTED = (*TABLES, "svmlight")  # formats that may have a separate file for the test part
FIXED = ("scattering", "patches", "deep-patches", "shifted-patches", "handwriting", "deskewed")
FEATURES = (*FIXED, "auto", "pixels")


def names() -> tuple[str, ...]:
    """Every source that :func:`load` knows; PATH stands for a user's own file."""
    return (*BUNDLED, *_ORIGINAL, *(f"{kind}:PATH" for kind in _FORMATS))


def load(
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
    """Load a data set as float32 arrays, scaled by public constants only.

    Args:
        source: one of :func:`names`: ``"digits"``, ``"mnist"``, ``"csv:patients.csv"``, …
        folder: folder of the data files, in FOLDER/mnist, … or in FOLDER itself; paths are looked
            up here before the working directory. Default: the folder in the environment variable
            FORETHOUGHT_DATA, in which paths are looked up after the working directory.
        label: the label's column of a table: a name; for csv a number if the file has no names.
            Several names with ``task="multilabel"``: columns of 1 and 0, or yes and no.
        holdout: share of the examples in the test part, for sources without one of their own; 0.2
            by default, by a hash of each example (:func:`forethought.data.dataset.split_off`).
        features: number of features, declared so that no record decides it; or ``"scattering"``,
            ``"patches"``, ``"deep-patches"``, ``"shifted-patches"``, ``"handwriting"`` or
            ``"deskewed"``: fixed features in place of images, computed once and cached
            (:mod:`forethought.data.features`);
            ``"auto"``: the best ones for images of this shape, none if the data are no images;
            ``"pixels"``: none.
        test: a separate file for the test part (tables and svmlight).
        task, classes: kind of the targets, and the classes (the first is class 0), declared so
            that no record decides them. For a user's own files only.
        split_by: column (tables) or array (npz) whose equal entries stay in one part of the split,
            such as a person's name.
        site: column (tables) of the client of a federation that holds a record; it becomes the
            data set's ``sites``.
        schema: declaration of every column of a table (:class:`TableSchema`): the only way to
            read Parquet and Excel, and tables with other separators, missing entries or dates.

    Returns:
        The data set.

    Raises:
        DataError: an unknown source, an option that the source does not take, or data that are
            missing, damaged or unsuitable; names the file, what was found and what was expected.
        TypeError: ``source`` is no string.

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
    tabular, own_file = kind in TABLES, kind in _FORMATS
    if not (colon and own_file) and source not in (*BUNDLED, *_ORIGINAL):
        raise DataError(_unknown(source))
    labels = () if label is None or isinstance(label, str) else tuple(label)
    declared = Declared(task, None if classes is None else tuple(classes), width)
    tested = test is not None
    own_test = kind in _ORIGINAL or tested
    person = schema is not None and schema.person is not None
    refused = {
        "label= goes with a table, such as csv:PATH, only": label is not None and not tabular,
        f"declared columns go with {', '.join(TABLES)}:PATH only": schema and not tabular,
        "test= goes with tables and svmlight:PATH only": tested and kind not in _TESTED,
        "has a test part of its own; leave holdout out": own_test and holdout is not None,
        "split_by= goes with tables and npz:PATH, without test=": (
            split_by is not None and (tested or kind not in (*TABLES, "npz"))
        ),
        "site= goes with a table, such as csv:PATH, only": site is not None and not tabular,
        "task='multilabel' goes with a list of columns as label, one for each label": (
            tabular and bool(labels) != (task == "multilabel")
        ),
        f"label lists {list(labels)}: two or more different columns": (
            len(labels) == 1 or len(set(labels)) < len(labels)
        ),
        "task=, classes= and a number of features go with files of your own; this set's are "
        "public": declared != Declared() and not own_file,
        "task='multilabel' goes with tables and npz:PATH": (
            task == "multilabel" and kind == "svmlight"
        ),
        "person= goes without test= and site=": person and (tested or site is not None),
        "classes= is a list of labels": isinstance(classes, str),
    }
    for words, found in refused.items():
        if found:
            raise DataError(f"{source}: {words}")
    if colon and own_file:
        test_path = None if test is None else resolve(test, folder)
        file = resolve(path, folder)
        init = f"forethought init {file.name} writes"
        if labels and schema is None:
            raise DataError(f"{source}: several labels go with declared columns: {init} them")
        if schema is None and kind in ("parquet", "excel"):
            raise DataError(f"{source}: declare the columns in [data.columns]: {init} them")
        if kind == "npz":
            dataset = load_npz(source, file, holdout, declared, split_by)
        elif kind == "svmlight":
            dataset = load_svmlight(source, file, test_path, holdout, declared)
        else:
            one = label if isinstance(label, str) else ""
            aside = Aside(one, split_by, site, labels=labels)
            table: Any = kind  # one of three words
            dataset = load_table(source, file, table, schema, aside, declared, test_path, holdout)
    elif source in BUNDLED:
        dataset = load_bundled(source, holdout)
    else:
        dataset = _ORIGINAL[source](source, where)
    if not isinstance(features, str) or features == "pixels":
        return dataset
    from forethought.data.features import best_features, with_features

    shape = dataset.train.inputs.shape
    chosen = best_features(shape) if features == "auto" else features
    return dataset if chosen is None else with_features(dataset, chosen)


def _unknown(source: str) -> str:
    ending = Path(source.lower().removesuffix(".gz")).suffix
    kind = ENDINGS.get(ending, "" if ":" in source or not Path(source).is_file() else "csv")
    before, _, path = source.partition(":")
    if kind:  # one letter before the colon is a drive
        path = source if len(before) == 1 or path[:2] in ("", "//") else path
        return f"{source!r} looks like a file: write its format before it, as in '{kind}:{path}'"
    near = difflib.get_close_matches(before, [*BUNDLED, *_ORIGINAL, *_FORMATS], 1)
    hint = "".join(f" Did you mean '{one}{':PATH' * (one in _FORMATS)}'?" for one in near)
    return f"unknown data source {source!r}.{hint} The sources are {', '.join(names())}"
