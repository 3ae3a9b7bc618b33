"""A driver in an asyncio loop: its timer, and its first failure, which ends the process.

After a failed write a machine is not what its journal or ledger says. So no other event reaches it:
the process ends, and a new one begins from what was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from forethought.network.driving import Driver

_MEBIBYTE = 1 << 20


class Guarded:
    """Runs a driver's steps one after the other, and keeps its timer.

    Args:
        driver: whose.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._failure: BaseException | None = None
        self._over = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._at: float | None = None

    def do(self, step: Callable[[], object]) -> None:
        """One step of the driver; nothing once a step has failed."""
        if self._failure is not None:
            return
        try:
            step()
        except BaseException as error:
            self._failure = error
            self._over.set()
            return
        if self._driver.done is not None:
            self._over.set()
        self._set_timer()

    def check(self) -> None:
        """Raise what a step has raised."""
        if self._failure is not None:
            raise self._failure

    async def until(self, stop: asyncio.Event) -> None:
        """Wait until the driver is done, a step has failed (raised here), or ``stop``."""
        waiting = [asyncio.create_task(event.wait()) for event in (stop, self._over)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            if self._timer is not None:
                self._timer.cancel()
        self.check()

    def _set_timer(self) -> None:
        at = self._driver.wake_at
        if at == self._at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._at = at
        if at is not None:
            wait = max(0.0, at - self._driver.clock())
            self._timer = asyncio.get_running_loop().call_later(wait, self._woken)

    def _woken(self) -> None:
        self._timer = self._at = None
        self.do(self._driver.woken)


def channel_options(most_bytes: int) -> list[tuple[str, Any]]:
    """gRPC's settings on both sides.

    Args:
        most_bytes: longest frame that may come; gRPC allocates no longer message.
    """
    return [
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", -1),
        # A connection whose other end is gone without a word is found within half a minute.
        ("grpc.keepalive_time_ms", 15_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
        ("grpc.http2.max_frame_size", _MEBIBYTE),
    ]
