"""Arrays that are computed once and kept in the user's cache folder: whole files or none."""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CACHE_VARIABLE = "FORETHOUGHT_CACHE"
_TRAILER = struct.Struct("<4sI")  # marks the end of a whole file; then a CRC-32 of what is before
_MARK = b"end\n"


def cache_folder() -> Path | None:
    """Where features are kept: FORETHOUGHT_CACHE, or the user's cache folder of the platform.

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
    """What :func:`keep_array` wrote; None where it is not there, damaged or something else."""
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
