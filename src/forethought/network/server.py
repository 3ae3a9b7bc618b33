"""A server over gRPC: one stream for each client, frames both ways, mutual TLS 1.3.

The library asks for nothing but this of the network: that some frames arrive. What is lost is sent
again; what is doubled is answered again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from forethought.exchange.keys import Keys
from forethought.exchange.messages import Finished
from forethought.exchange.roster import Roster
from forethought.federated.server import ServerMachine
from forethought.network.driving import ServerDriver
from forethought.network.loop import Guarded, channel_options
from forethought.network.outbox import Outbox
from forethought.network.status import Heard
from forethought.network.tls import place_of, server_credentials

SERVICE, METHOD = "forethought.Federation", "Exchange"
# Seconds that a finished server waits for clients that have not had the last model yet.
LINGER = 60.0


class FederationServer:
    """Serves one federation.

    Args:
        roster: who may connect. keys: the server's own.
        driver: makes the driver, given how frames get out.
        machine: the driver's, to ask who is to hear the last model.
        linger: see :data:`LINGER`.

    Attributes:
        driver: of the machine. heard: when the clients were heard of.
    """

    def __init__(
        self,
        roster: Roster,
        keys: Keys,
        driver: Callable[[Callable[[int, Any, bytes], None]], ServerDriver],
        machine: ServerMachine,
        linger: float = LINGER,
    ) -> None:
        self.roster, self._keys, self._linger = roster, keys, linger
        self._machine = machine
        self.driver = driver(self._send)
        self.heard = Heard(len(roster.clients))
        self._outboxes: dict[int, Outbox] = {}
        self._last_word: set[int] = set()
        self._told: set[int] = set()
        self._guard = Guarded(self.driver)
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str) -> int:
        """Listen; ``"127.0.0.1:0"`` takes any free port. Returns the port.

        Raises:
            OSError: the address cannot be listened on.
        """
        most = self.driver.endpoint.most_bytes
        most_streams = 8 + 4 * len(self.roster.clients)  # old ones are closed when found dead
        server = grpc.aio.server(
            options=channel_options(most), maximum_concurrent_rpcs=most_streams
        )
        handler = grpc.stream_stream_rpc_method_handler(self._exchange)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        credentials = server_credentials(self._keys, self.roster)
        try:
            port = server.add_secure_port(address, credentials)
        except RuntimeError:
            port = 0
        if not port:
            raise OSError(f"cannot listen on {address}: give another address, or end who does")
        await server.start()
        self._server = server
        self._guard.do(self.driver.connected)
        if self._machine.finished:  # before this process began
            self.driver.done = "finished"
        return int(port)

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until the run is finished and everybody knows, or until ``stop``.

        Raises:
            Exception: what went wrong in a write; the process must end, and is made again from the
                journal.
        """
        try:
            await self._guard.until(stop)
            if not stop.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._linger):
                        await self._everybody_told(stop)
        finally:
            for outbox in self._outboxes.values():
                outbox.close()
            if self._server is not None:
                await self._server.stop(1.0)

    async def _everybody_told(self, stop: asyncio.Event) -> None:
        wanted = set(range(len(self.roster.clients))) - self._machine.left
        while not stop.is_set() and (wanted - self._told or self._outboxes):
            self._guard.check()
            await asyncio.sleep(0.02)

    def _send(self, to: int, message: Any, frame: bytes) -> None:
        outbox = self._outboxes.get(to)
        if outbox is not None:
            outbox.put(message, frame)
            if isinstance(message, Finished):
                self._last_word.add(to)

    async def _exchange(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        place = place_of(context, self.roster)
        if place is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not in the roster")
            return
        outbox = Outbox()
        before = self._outboxes.get(place)
        if before is not None:
            before.close()  # it came back before its old connection was found dead
        self._outboxes[place] = outbox
        self.heard.connected.add(place)
        reader = asyncio.create_task(self._read(requests, place, outbox))
        try:
            while (frame := await outbox.get()) is not None:
                yield frame
        finally:
            reader.cancel()
            if self._outboxes.get(place) is outbox:
                del self._outboxes[place]
                self.heard.connected.discard(place)

    async def _read(self, requests: AsyncIterator[bytes], place: int, outbox: Outbox) -> None:
        try:
            async for data in requests:
                self.heard.note(place)
                self._guard.do(lambda data=data: self.driver.received(data, place))  # type: ignore[misc]
            if place in self._last_word:
                self._told.add(place)  # it hung up by itself: a killed client does not come so far
        except grpc.aio.AioRpcError:
            pass
        finally:
            outbox.close()
