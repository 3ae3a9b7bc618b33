"""Where a client's ledger and a server's journal are kept: two kinds of write, one of them atomic.

``replace`` is seen whole or not at all. ``append`` is durable once it returns; a crash during it
can leave a torn tail, which :mod:`forethought.exchange.log` recognises. Nothing else is written.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")


class FolderStorage:
    """Storage in one folder, a file for each name, readable by its owner only.

    Args:
        folder: made when missing. One process at a time: lock it.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder

    def read(self, name: str) -> bytes | None:
        """See :class:`~forethought.exchange.storing.Storage`.

        Raises:
            OSError: cannot be read.
        """
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes) -> None:
        """See :class:`~forethought.exchange.storing.Storage`.

        Raises:
            OSError: cannot be written; the old content is untouched.
        """
        path = self._path(name)
        part = path.with_name(f".{name}.part")
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            _write(descriptor, content)
            part.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        _sync_folder(self.folder)

    def append(self, name: str, content: bytes) -> None:
        """See :class:`~forethought.exchange.storing.Storage`.

        Raises:
            OSError: cannot be written; a part of it may have been.
        """
        path = self._path(name)
        new = not path.exists()
        _write(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), content)
        if new:
            _sync_folder(self.folder)

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name here: small letters, digits, dots and dashes")
        return self.folder / name


def _write(descriptor: int, content: bytes) -> None:
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
