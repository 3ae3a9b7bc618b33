"""Frames on their way to one member: bounded, and a newer model takes the place of an older one.

What does not fit is dropped: everything that matters is sent again until it is answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from forethought.exchange.messages import Finished, Model

MOST = 256


class Outbox:
    """A queue with one reader."""

    def __init__(self) -> None:
        self._frames: deque[tuple[bool, bytes]] = deque()
        self._something = asyncio.Event()
        self._closed = False

    def put(self, message: Any, frame: bytes) -> None:
        """Queue a frame behind the others."""
        model = isinstance(message, Model | Finished)
        if model:
            kept = [entry for entry in self._frames if not entry[0]]
            self._frames = deque(kept)
        self._frames.append((model, frame))
        while len(self._frames) > MOST:
            self._frames.popleft()
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
        return self._frames.popleft()[1]
