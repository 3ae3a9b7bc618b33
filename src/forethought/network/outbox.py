"""Frames on their way to one member: bounded, and a newer model takes the place of an older one.

What does not fit is dropped: everything that matters is sent again until it is answered.
"""

from __future__ import annotations

import asyncio
from typing import Any

from forethought.exchange.messages import Finished, Model

MOST = 256


def queued(frames: list[tuple[Any, bytes]], message: Any, frame: bytes) -> list[tuple[Any, bytes]]:
    """A queue with one more frame, without what it makes old."""
    if isinstance(message, Model | Finished):
        frames = [entry for entry in frames if not isinstance(entry[0], Model | Finished)]
    return [*frames, (message, frame)][-MOST:]


class Outbox:
    """A queue with one reader."""

    def __init__(self) -> None:
        self._frames: list[tuple[Any, bytes]] = []
        self._something = asyncio.Event()
        self._closed = False

    def put(self, message: Any, frame: bytes) -> None:
        """Queue a frame behind the others."""
        self._frames = queued(self._frames, message, frame)
        self._something.set()

    def close(self) -> None:
        """Nothing more is put; the reader gets what is left."""
        self._closed = True
        self._something.set()

    async def get(self) -> bytes | None:
        """The next frame; None when closed and empty."""
        while not self._frames:
            if self._closed:
                return None
            self._something.clear()
            await self._something.wait()
        return self._frames.pop(0)[1]
