"""Finding, reading and caching files; every failure names the file."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import struct
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

# The one error for data that cannot be used.


class DataError(ValueError):
    """Data that is missing, damaged or unsuitable: the message names the file and what is wrong."""

    @classmethod
    def unexpected(cls, path: Path | str, found: object, expected: object) -> DataError:
        """The error that says what a file holds and what it should hold."""
        return cls(f"{path}: found {found}, expected {expected}")


def finite(
    path: Path | str, inputs: NDArray[Any], columns: list[str] | None = None, first: int = 0
) -> None:
    """Refuse NaN and infinite features; ``first`` is the number of the first row.

    Raises:
        DataError: names the first row and column that holds one.
    """
    # One pass without a temporary the size of the data: the sum of finite float32 values in
    # float64 cannot overflow.
    if np.isfinite(inputs.sum(dtype=np.float64)):
        return
    row, *place = (int(index) for index in np.argwhere(~np.isfinite(inputs))[0])
    where = columns[place[0]] if columns else ", ".join(str(index) for index in place)
    found = f"{inputs[(row, *place)]} in example {first + row}, feature {where} (counted from 0)"
    raise DataError.unexpected(path, found, "finite features")


# Finding data files and reading them, compressed or not; every failure names the file.


FOLDER_VARIABLE = "FORETHOUGHT_DATA"
_OPENERS: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open, b"BZh": bz2.open}
DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)  # what a damaged compressed file raises


def data_folder(folder: Path | str | None) -> Path | None:
    """The folder given, or the one that FORETHOUGHT_DATA names, or None."""
    chosen = folder or os.environ.get(FOLDER_VARIABLE)
    return Path(chosen).expanduser() if chosen else None


def find(name: str, files: Iterable[str], folder: Path | None) -> Path:
    """The first of ``files`` that exists in FOLDER/name or in FOLDER itself.

    Raises:
        DataError: no folder was named, or none of the files is there.
    """
    if folder is None:
        raise DataError(
            f"{name}: no data folder. Name one with folder=, --data-dir, folder in the job file, "
            f"or the environment variable {FOLDER_VARIABLE}"
        )
    wanted = tuple(files)
    places = (folder / name, folder)
    for place in places:
        for file in wanted:
            if (place / file).exists():
                return place / file
    raise DataError(
        f"{name}: no {' or '.join(wanted)} in {' or '.join(map(str, places))}. "
        "forethought downloads nothing: put the data set's original files there"
    )


def resolve(path: str, folder: Path | None) -> Path:
    """A path as the user wrote it: from the working directory, else from the data folder.

    Raises:
        DataError: no such file.
    """
    given = Path(path).expanduser()
    if not path:
        raise DataError("no file named: write the path behind the colon, as in csv:patients.csv")
    tried = [given] if folder is None or given.is_absolute() else [given, folder / given]
    for place in tried:
        if place.is_file():
            return place
    raise DataError(f"no file {' or '.join(map(str, tried))}")


def read(path: Path, most: int = -1) -> bytes:
    """The file's content, or so many bytes of it, decompressed as by :func:`opened_file`.

    Raises:
        DataError: unreadable, truncated or corrupt.
    """
    try:
        with opened_file(path) as file:
            return file.read(most)
    except (*DAMAGE, ValueError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        raise DataError.unexpected(
            path, f"a truncated or corrupt compressed file ({error})", "an intact one"
        ) from error


@contextmanager
def opened_file(path: Path) -> Iterator[IO[bytes]]:
    """A file's bytes, decompressed where it starts like a gzip, xz or bzip2 file."""
    with path.open("rb") as file:
        start = file.peek(8)[:8]
        opener = next((found for mark, found in _OPENERS.items() if start.startswith(mark)), None)
        if opener is None:
            yield file
            return
        with opener(file, "rb") as plain:
            yield plain


# Arrays that are computed once and kept in the user's cache folder: whole files or none.


CACHE_VARIABLE = "FORETHOUGHT_CACHE"
_TRAILER = struct.Struct("<4sI")  # marks the end of a whole file; then a CRC-32 of what is before
_MARK = b"end\n"


def cache_folder() -> Path | None:
    """The folder of kept features: FORETHOUGHT_CACHE, or the user's cache folder of the platform.

    None when FORETHOUGHT_CACHE is ``off``.
    """
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen and chosen.lower() == "off":
        return None
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "forethought"


def kept_array(
    path: Path, dtype: type[Any], shape: tuple[int, ...] | None = None
) -> NDArray[Any] | None:
    """The array that :func:`keep_array` wrote; None where it is not there, damaged or something
    else."""
    try:
        with path.open("rb") as file:
            found = np.lib.format.read_array(file, allow_pickle=False)
            mark, checksum = _TRAILER.unpack(file.read())  # refuses another length
    except (OSError, ValueError, EOFError, struct.error):
        return None
    if mark != _MARK or found.dtype != dtype or shape not in (None, found.shape):
        return None
    return found if zlib.crc32(found.data) == checksum else None


def keep_array(path: Path, array: NDArray[Any]) -> None:
    """Write next to the target and rename: no reader ever sees half a file.

    A folder that cannot be written is no error: nothing is kept then.
    """
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".partial")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            np.lib.format.write_array(file, array, allow_pickle=False)
            file.write(_TRAILER.pack(_MARK, zlib.crc32(array.data)))
        Path(partial).replace(path)
    except OSError:
        Path(partial).unlink(missing_ok=True)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
