"""Storage in memory with crashes planted at its writes, and frames that nobody signs.

Nobody forges in a trial of machines, and speed counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forethought.exchange.messages import Update, decode, encode


class CrashError(RuntimeError):
    """A planted crash: the process is gone at this write."""


class MemoryStorage:
    """Storage in memory, for simulations, with crashes planted at its writes.

    Args:
        contents: what is there to begin with.
        fault: called before every write with its number (from 0) and its length in bytes; how many
            bytes of it get through before the process crashes, or None: no crash. An atomic write
            gets through whole (its length or more) or not at all.

    Attributes:
        writes: how many there have been.
    """

    def __init__(
        self,
        contents: dict[str, bytes] | None = None,
        fault: Callable[[int, int], int | None] | None = None,
    ) -> None:
        self._contents = {name: bytearray(value) for name, value in (contents or {}).items()}
        self._fault = fault
        self.writes = 0

    def contents(self) -> dict[str, bytes]:
        """Everything kept: a backup, to begin another storage with."""
        return {name: bytes(value) for name, value in self._contents.items()}

    def read(self, name: str) -> bytes | None:
        """See :class:`~forethought.exchange.storage.Storage`."""
        found = self._contents.get(name)
        return None if found is None else bytes(found)

    def replace(self, name: str, content: bytes) -> None:
        """See :class:`~forethought.exchange.storage.Storage`."""
        through = self._through(len(content))
        if through is None or through >= len(content):
            self._contents[name] = bytearray(content)
        if through is not None:
            raise CrashError(f"crashed at write {self.writes - 1}")

    def append(self, name: str, content: bytes) -> None:
        """See :class:`~forethought.exchange.storage.Storage`."""
        through = self._through(len(content))
        self._contents.setdefault(name, bytearray()).extend(content[:through])
        if through is not None:
            raise CrashError(f"crashed at write {self.writes - 1}")

    def _through(self, length: int) -> int | None:
        number, self.writes = self.writes, self.writes + 1
        return None if self._fault is None else self._fault(number, length)


class UnsignedEndpoint:
    """In place of :class:`~forethought.exchange.messages.Endpoint` in a trial."""

    def __init__(self, run_id: bytes, me: int) -> None:
        self.run_id, self.me = run_id, me

    def seal(self, to: int, message: Any) -> bytes:
        """The message alone."""
        return encode(message)

    def reopen(self, data: bytes, to: int) -> Any:
        """The update that was sealed."""
        return decode(Update, memoryview(data))
