"""Frames without a signature: for trials of machines, where nobody forges and speed counts."""

from __future__ import annotations

from typing import Any

from forethought.exchange.codec import decode, encode
from forethought.exchange.messages import Update


class UnsignedEndpoint:
    """In place of :class:`~forethought.exchange.signed.Endpoint` in a trial."""

    def __init__(self, run_id: bytes, me: int) -> None:
        self.run_id, self.me = run_id, me

    def seal(self, to: int, message: Any) -> bytes:
        """The message alone."""
        return encode(message)

    def reopen(self, data: bytes, to: int) -> Any:
        """The update that was sealed."""
        return decode(Update, memoryview(data))
