"""MNIST and its relatives: the idx format of LeCun et al. (1998), gzipped or not."""

from __future__ import annotations

import json
import math
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.data.dataset import Dataset, Split
from forethought.data.files import DataError, find, read

CLASSES = 10
_FILES = {"train": "train", "test": "t10k"}


def load_idx(name: str, folder: Path | None) -> Dataset:
    """The data set ``name`` from its four idx files: 28 × 28 images, (N, 1, 28, 28) in [0, 1].

    Raises:
        DataError: a file is missing, damaged, or does not fit its partner.
    """
    train, test = (_part(name, folder, part) for part in ("train", "test"))
    if train.inputs.shape[1:] != test.inputs.shape[1:]:
        raise DataError.unexpected(
            f"{name} test images",
            f"images of {test.inputs.shape[2:]} pixels",
            f"the training images' {train.inputs.shape[2:]}",
        )
    norm = usual_norm_of_pixels(train.inputs.shape)
    return Dataset(name, train, test, CLASSES, ("pixels divided by 255",), feature_norm=norm)


def usual_norm_of_pixels(shape: tuple[int, ...]) -> float:
    """Usual norm of images in [0, 1], (N, …): pixels of photographs and drawings are 0.4 or so."""
    return 0.4 * math.sqrt(math.prod(shape[1:]))


def _part(name: str, folder: Path | None, part: str) -> Split:
    stem = _FILES[part]
    images_path = find(name, _spellings(f"{stem}-images", 3), folder)
    labels_path = find(name, _spellings(f"{stem}-labels", 1), folder)
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise DataError.unexpected(
            labels_path, f"{len(labels)} labels", f"one for each of the {len(images)} images"
        )
    if len(labels) and labels.max() >= CLASSES:
        row = int(np.argmax(labels >= CLASSES))
        raise DataError.unexpected(
            labels_path, f"label {labels[row]} in example {row}", f"labels from 0 to {CLASSES - 1}"
        )
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
    expected = 0x0800 + dimensions
    magic = int.from_bytes(content[:4], "big")
    if len(content) < 4 + 4 * dimensions or magic != expected:
        raise DataError.unexpected(
            path,
            f"{len(content)} bytes that start with 0x{content[:4].hex()}",
            f"the magic number 0x{expected:08x} (unsigned bytes in {dimensions} dimensions)",
        )
    header: NDArray[Any] = np.frombuffer(content, ">u4", dimensions, 4)
    shape = tuple(int(size) for size in header)
    start = 4 + 4 * dimensions
    if len(content) - start != math.prod(shape):
        raise DataError.unexpected(
            path,
            f"{len(content) - start} bytes of data",
            f"{math.prod(shape)} as its header says: {' × '.join(map(str, shape))}",
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


# CIFAR-10 (Krizhevsky 2009) in its binary layout: a folder, or straight from the archive.


CLASSES = 10
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
# Published with copies of the archive in which some images were decoded from a lossy copy.
_INEXACT = "approx_rows.json"


def load_cifar10(name: str, folder: Path | None) -> Dataset:
    """50,000 and 10,000 colour images, (N, 3, 32, 32) in [0, 1]; nothing is unpacked to disk.

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
    train = _split([batches[file] for file in _TRAIN])
    notes = ("pixels divided by 255", *_inexact(found.parent))
    norm = usual_norm_of_pixels(train.inputs.shape)
    test = _split([batches[_TEST]])
    return Dataset(name, train, test, CLASSES, notes, feature_norm=norm)


def _split(batches: list[NDArray[np.uint8]]) -> Split:
    inputs = np.empty((sum(map(len, batches)), *_SHAPE), np.float32)
    at = 0
    for rows in batches:
        inputs[at : at + len(rows)] = scaled(rows[:, 1:]).reshape(-1, *_SHAPE)
        at += len(rows)
    return Split(inputs, np.concatenate([rows[:, 0] for rows in batches]).astype(np.int64))


def _from(found: Path) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    folder = found if found.is_dir() else found.parent
    for file in (*_TRAIN, _TEST):
        if (folder / file).exists():
            yield file, _rows(folder / file, read(folder / file))


def _from_archive(archive: Path) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    # Decompressed in memory first: tarfile alone would never compare the checksum at the end.
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
    wrong = rows[:, 0] >= CLASSES
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError.unexpected(
            path, f"label {rows[row, 0]} in example {row}", f"labels from 0 to {CLASSES - 1}"
        )
    return rows


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
