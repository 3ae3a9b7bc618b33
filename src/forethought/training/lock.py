"""One run in one folder: a lock that ends with its process, however that ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # no such locks on this system
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


class RunFolderBusyError(ValueError):
    """Another process is running in the folder."""


@contextlib.contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Hold the lock of a run folder, which is made when missing; None holds nothing.

    Raises:
        RunFolderBusyError: somebody else holds it. OSError: the folder cannot be written.
    """
    if folder is None or fcntl is None or (folder.exists() and not folder.is_dir()):
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    descriptor = _take(path, folder)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
        with contextlib.suppress(OSError):
            folder.rmdir()  # only if nothing came of it


def _take(path: Path, folder: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            raise RunFolderBusyError(
                f"a run is going on in {folder} (process {owner or 'unknown'}): wait for it, stop "
                "it, or choose another folder"
            ) from error
        # The one before may have removed the file between our opening and our locking it.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(descriptor).st_ino == path.stat().st_ino:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
                return descriptor
        os.close(descriptor)
