"""Scattering features of a whole data set, computed once and kept on disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from forethought.caveats import Caveat
from forethought.data.dataset import DataError, Dataset, Split
from forethought.data.decorrelation import POWER, RIDGE, SEED, decorrelated
from forethought.data.scattering import channels, group_normalised, scatter

SCALES, ANGLES = 2, 8
GROUP = 3  # channels normalised together: 27 groups for each plane of the image
CACHE_VARIABLE = "FORETHOUGHT_CACHE"
CACHED = Caveat(
    "cached-features",
    "scattering coefficients, in the user's cache folder or in FORETHOUGHT_CACHE (off keeps none), "
    "under names that say nothing without the key in it",
)
PRIVATE, _KEY, _KEY_BYTES = "private", "key", 32
# Changed whenever the numbers change: old files are then never found.
_KIND = f"scattering/2 J={SCALES} L={ANGLES} group={GROUP} strokes={SEED} {RIDGE} {POWER}"
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


def with_scattering(dataset: Dataset) -> Dataset:
    """The data set with images replaced by normalised, decorrelated scattering coefficients.

    Images (N, C, H, W) become (N, 81·C, H/4, W/4). Each example is transformed by itself and with
    constants only, so this costs no privacy.

    Raises:
        DataError: the inputs are not images, or too small.
    """
    shape = dataset.train.inputs.shape
    if len(shape) != 4 or min(shape[2:]) <= 2**SCALES:
        raise DataError(
            f"{dataset.name}: scattering needs images (N, C, H, W) of more than {2**SCALES} pixels "
            f"a side, not inputs of shape {shape}"
        )
    note = (
        f"inputs replaced by scattering coefficients (J={SCALES}, L={ANGLES}), each example "
        f"normalised by itself in groups of {GROUP} channels, then decorrelated by constants "
        "computed on synthetic strokes"
    )
    test = dataset.test
    return Dataset(
        dataset.name,
        Split(cached(dataset.train.inputs), dataset.train.targets),
        None if test is None else Split(cached(test.inputs), test.targets),
        dataset.classes,
        (*dataset.notes, note),
        (*dataset.caveats, *((CACHED,) if cache_folder() is not None else ())),
    )


def cached(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scattering features of ``images`` from the cache; computed and stored when not there.

    They lie in a folder of their own, readable by its owner only, under names that are hashes with
    a key kept there: a name tells nobody else which images it was made from. A file that is
    truncated or damaged is computed again. A cache folder that cannot be written is no error: the
    features are returned all the same.
    """
    images = np.ascontiguousarray(images, np.float32)
    path = _path_of(images)
    N, C, H, W = images.shape
    shape = (N, C * channels(SCALES, ANGLES), H // 2**SCALES, W // 2**SCALES)
    known = None if path is None else _load(path, shape)
    if known is not None:
        return known
    coefficients = scatter(torch.from_numpy(images), scales=SCALES, angles=ANGLES)
    groups = channels(SCALES, ANGLES) // GROUP
    normalised = group_normalised(coefficients, C * groups)
    features = decorrelated(normalised, H, W, scales=SCALES, angles=ANGLES, groups=groups).numpy()
    if path is not None:
        _store(path, features)
    return features


def _path_of(images: NDArray[np.float32]) -> Path | None:
    """Where the features of these images are kept; None without a folder to keep them in."""
    folder = cache_folder()
    key = None if folder is None else _cache_key(folder / PRIVATE)
    if folder is None or key is None:
        return None
    for unkeyed in folder.glob("scattering-*.npy"):  # as earlier versions left them
        unkeyed.unlink(missing_ok=True)
    description = repr((_KIND, images.shape)).encode()
    digest = hashlib.blake2b(description, key=key, digest_size=16)
    digest.update(images.data)
    return folder / PRIVATE / f"scattering-{digest.hexdigest()}.npy"


def _cache_key(folder: Path) -> bytes | None:
    """The secret of an owner-only folder, both made on first use; None when neither is possible."""
    path = folder / _KEY
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        with contextlib.suppress(FileExistsError):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
        key = path.read_bytes()
    except OSError:
        return None
    return key if len(key) == _KEY_BYTES else None


def _load(path: Path, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    try:
        with path.open("rb") as file:
            features: NDArray[np.float32] = np.lib.format.read_array(file, allow_pickle=False)
            mark, checksum = _TRAILER.unpack(file.read())  # refuses another length
    except (OSError, ValueError, EOFError, struct.error):
        return None
    if mark != _MARK or features.dtype != np.float32 or features.shape != shape:
        return None
    return features if zlib.crc32(features.data) == checksum else None


def _store(path: Path, features: NDArray[np.float32]) -> None:
    """Write next to the target and rename: no reader ever sees half a file."""
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".partial")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            np.lib.format.write_array(file, features, allow_pickle=False)
            file.write(_TRAILER.pack(_MARK, zlib.crc32(features.data)))
        Path(partial).replace(path)
    except OSError:
        Path(partial).unlink(missing_ok=True)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
