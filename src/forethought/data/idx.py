"""MNIST and its relatives: the idx format of LeCun et al. (1998), gzipped or not."""

from __future__ import annotations

import math
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
