"""Ctrl-C and SIGTERM in an asyncio loop: the first asks to stop, the second acts at once."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

from forethought.training.execution import SIGNALS


@contextlib.asynccontextmanager
async def stop_on_signals(stop: asyncio.Event) -> AsyncIterator[None]:
    """While active, a signal sets ``stop``. Outside the main thread it does nothing."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note() -> None:
        stop.set()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, note)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
