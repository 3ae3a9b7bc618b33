"""A client over gRPC: connects, comes back after every loss, computes beside the connection."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from typing import Any

import grpc

from forethought.exchange.events import Compute, Computed
from forethought.exchange.keys import Keys
from forethought.exchange.messages import SERVER
from forethought.exchange.roster import Roster
from forethought.network.driving import ClientDriver
from forethought.network.loop import Guarded, channel_options
from forethought.network.outbox import Outbox
from forethought.network.server import METHOD, SERVICE
from forethought.network.tls import channel_credentials

# Seconds between two tries to connect: from the first, doubling, to the last; half of it random.
BACK_OFF = (0.1, 5.0)
# Seconds that the last words of a client may take to get out.
_FLUSH = 5.0

Send = Callable[[int, Any, bytes], None]
Begin = Callable[[Compute], None]


class FederationClient:
    """Takes part in one federation.

    Args:
        roster: whose server to connect to. keys: own.
        driver: makes the driver, given how frames get out and how an update is begun.
        compute: makes an update; called in a thread of its own, one at a time.
        back_off: (first, last) seconds between two tries to connect.

    Attributes:
        driver: of the machine. connections: how often it connected. connected: whether it is now.
    """

    def __init__(
        self,
        roster: Roster,
        keys: Keys,
        driver: Callable[[Send, Begin], ClientDriver],
        compute: Callable[[Compute], Computed],
        back_off: tuple[float, float] = BACK_OFF,
    ) -> None:
        self._roster, self._keys, self._back_off = roster, keys, back_off
        self.compute = compute
        self._outbox: Outbox | None = None
        self.driver = driver(self._send, self._begin)
        self.connections, self.connected = 0, False
        self._ending = False
        self._worker: threading.Thread | None = None
        self._guard = Guarded(self.driver)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, address: str, stop: asyncio.Event, leave: bool = False) -> None:
        """Take part until the machine has nothing more to do, or until ``stop``.

        Args:
            address: host:port of the server.
            leave: say goodbye for good on the first connection.

        Raises:
            Exception: what went wrong in a write or in computing; a new process goes on from the
                ledger.
        """
        self._loop = asyncio.get_running_loop()
        talking = asyncio.create_task(self._talk(address, leave))
        try:
            await self._guard.until(stop)
            self._ending = True
            if self._outbox is not None:
                self._outbox.close()
                with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError):
                    async with asyncio.timeout(_FLUSH):
                        await talking
        finally:
            talking.cancel()
            with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                await talking
        if self._worker is not None and self._worker.is_alive():
            # What is being computed is finished and committed; a second signal acts at once.
            await asyncio.to_thread(self._worker.join)
            await asyncio.sleep(0)
        self._guard.check()

    async def _talk(self, address: str, leave: bool) -> None:
        first, last = self._back_off
        wait = first
        while not self._ending:
            try:
                if await self._connection(address, leave):
                    wait = first
            except (grpc.aio.AioRpcError, TimeoutError):
                pass
            if self._ending or self.driver.done is not None:
                return
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, last)

    async def _connection(self, address: str, leave: bool) -> bool:
        """One connection from its beginning to its end; whether it came about."""
        options = channel_options(self.driver.endpoint.most_bytes)
        # The certificate is for the server's name in the roster, whatever host it runs on.
        options.append(("grpc.ssl_target_name_override", self._roster.server.name))
        credentials = channel_credentials(self._keys, self._roster)
        async with grpc.aio.secure_channel(address, credentials, options) as channel:
            async with asyncio.timeout(10.0):
                await channel.channel_ready()
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
            outbox = self._outbox = Outbox()
            writer = asyncio.create_task(self._write(call, outbox))
            self.connections, self.connected = self.connections + 1, True
            try:
                self._guard.do(self.driver.stopped if leave else self.driver.connected)
                reader = asyncio.create_task(self._read(call))
                await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
                reader.cancel()
            finally:
                self.connected, self._outbox = False, None
                outbox.close()
                writer.cancel()
                call.cancel()
                self._guard.do(self.driver.disconnected)
        return True

    async def _read(self, call: Any) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            while (data := await call.read()) is not grpc.aio.EOF:
                self._guard.do(lambda data=data: self.driver.received(data, SERVER))  # type: ignore[misc]

    async def _write(self, call: Any, outbox: Outbox) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while (frame := await outbox.get()) is not None:
                await call.write(frame)
            await call.done_writing()
            # The server ends the stream when it has read everything.
            await call.code()

    def _send(self, to: int, message: Any, frame: bytes) -> None:
        if self._outbox is not None:
            self._outbox.put(message, frame)

    def _begin(self, asked: Compute) -> None:
        if self._ending:
            return  # the process that goes on from the ledger is asked again
        self._worker = threading.Thread(target=self._work, args=(asked,), daemon=True)
        self._worker.start()

    def _work(self, asked: Compute) -> None:
        try:
            done = self.compute(asked)
        except BaseException as error:
            outcome = _raising(error)
        else:
            outcome = lambda: self.driver.handle(done)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop has ended by a second signal
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._guard.do, outcome)


def _raising(error: BaseException) -> Callable[[], None]:
    def outcome() -> None:
        raise error

    return outcome
