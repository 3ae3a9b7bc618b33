"""Finding data files and reading them, compressed or not; every failure names the file."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

from forethought.data.error import DataError

FOLDER_VARIABLE = "FORETHOUGHT_DATA"
_OPENERS = {b"\x1f\x8b": gzip.decompress, b"\xfd7zXZ\x00": lzma.decompress, b"BZh": bz2.decompress}
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


def read(path: Path) -> bytes:
    """The file's content, decompressed when it starts like a gzip, xz or bzip2 file.

    Raises:
        DataError: unreadable, truncated or corrupt.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    for start, decompress in _OPENERS.items():
        if content.startswith(start):
            try:
                return decompress(content)
            except (*DAMAGE, ValueError) as error:
                raise DataError.unexpected(
                    path, f"a truncated or corrupt compressed file ({error})", "an intact one"
                ) from error
    return content
