"""Neighbours over gRPC: signed frames both ways, mutual TLS 1.3, a connection for each pair.

Of two neighbours the later one in the roster connects to the earlier one, and comes back after
every loss. Every frame is signed (:mod:`forethought.exchange.frame`) and names the gossip, its
sender and its recipient: one of another gossip, one that its sender did not sign, or one that came
over somebody else's connection is refused, and so are NaN and weights that are too large.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc

from forethought.exchange.codec import DecodeError
from forethought.exchange.frame import Endpoint, FrameError
from forethought.exchange.keys import Keys
from forethought.exchange.messages import register
from forethought.gossip.gossip import Gossip
from forethought.network.driving import (
    channel_credentials,
    channel_options,
    place_of,
    server_credentials,
)
from forethought.peers.links import BEAT_EVERY, Arrived, Deliver, Reduce, Refused
from forethought.peers.roster import PeerRoster

SERVICE, METHOD = "forethought.Gossip", "Exchange"
# Seconds between two tries to connect: from the first, doubling, to the last; half of it random.
BACK_OFF = (0.1, 5.0)
# Messages on their way to one neighbour; of more, the oldest go.
_QUEUE = 8


@dataclass(frozen=True, slots=True, eq=False)
class Sign:
    """A sign of life.

    Args:
        round: nothing. base: nothing. finished: 1 from a worker that has finished.
    """

    round: int
    base: int
    finished: int


register(67, Sign)


class _Outbox:
    """Frames on their way to one neighbour, with one reader in the loop."""

    def __init__(self) -> None:
        self._frames: deque[bytes] = deque(maxlen=_QUEUE)
        self._something = asyncio.Event()
        self.closed = False

    def put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._something.set()

    def close(self) -> None:
        self.closed = True
        self._something.set()

    async def get(self) -> bytes | None:
        """The next frame; None when closed and empty."""
        while not self._frames:
            if self.closed:
                return None
            self._something.clear()
            await self._something.wait()
        return self._frames.popleft()


class SiteLinks:
    """Links to a worker's neighbours; see :class:`~forethought.peers.links.Links`.

    Args:
        gossip: with the roster's keys in it. roster: who is where. keys: own.
        listen: host:port to listen on; None: the own address in the roster.
        back_off: (first, last) seconds between two tries to connect.

    Raises:
        RosterError: the keys are nobody's.
    """

    def __init__(
        self,
        gossip: Gossip,
        roster: PeerRoster,
        keys: Keys,
        listen: str | None = None,
        back_off: tuple[float, float] = BACK_OFF,
    ) -> None:
        self.me = roster.place(keys)
        self.reduce: Reduce | None = None
        self._roster, self._keys = roster, keys
        self._listen = listen or roster.addresses[self.me]
        self._back_off = back_off
        near = gossip.mixing.graph.neighbours(self.me)
        self._earlier = tuple(peer for peer in near if peer < self.me)
        self._later = tuple(peer for peer in near if peer > self.me)
        public = {peer: bytes.fromhex(roster.workers[peer].public_key) for peer in near}
        self.endpoint = Endpoint(
            gossip.run_id,
            self.me,
            keys.signing,
            public,
            gossip.coordinates,
            lambda sender, message: gossip.trust.largest,
        )
        self._heard: dict[int, float] = {}
        self._over: set[int] = set()
        self._finished = 0
        self._outboxes: dict[int, _Outbox] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._flush = 0.0
        self.port: int | None = None

    def start(self, deliver: Deliver) -> None:
        """See Links.

        Raises:
            OSError: the address cannot be listened on.
        """
        ready: list[BaseException | int] = []
        there = threading.Event()

        def run() -> None:
            try:
                asyncio.run(self._run(deliver, ready, there))
            except BaseException as error:
                ready.append(error)
            finally:
                there.set()

        self._thread = threading.Thread(target=run, name="gossip-sites", daemon=True)
        self._thread.start()
        there.wait()
        if isinstance(ready[0], BaseException):
            raise ready[0]
        self.port = ready[0]

    def send(self, to: int, message: Any) -> None:
        """See Links."""
        if to in self._outboxes:
            self._in_loop(self._put, to, self.endpoint.seal(to, message))

    def heard(self, peer: int) -> float | None:
        """See Links."""
        return self._heard.get(peer) if peer in self._outboxes else None

    def finish(self) -> None:
        """See Links."""
        self._finished = 1
        self._in_loop(self._say_all)

    def over(self, peer: int) -> bool:
        """See Links."""
        return peer in self._over

    def close(self, seconds: float) -> None:
        """See Links."""
        self._flush = seconds
        if self._ending is not None:
            self._in_loop(self._ending.set)
        if self._thread is not None:
            self._thread.join(seconds + 5.0)

    def _in_loop(self, step: Callable[..., object], *values: object) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(step, *values)

    # ---- in the loop

    async def _run(
        self, deliver: Deliver, ready: list[BaseException | int], there: threading.Event
    ) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        server, port = await self._serve(deliver)
        ready.append(port)
        there.set()
        tasks = [asyncio.create_task(self._live_with(peer, deliver)) for peer in self._earlier]
        tasks.append(asyncio.create_task(self._beat()))
        await self._ending.wait()
        for outbox in self._outboxes.values():
            outbox.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._flush):
                while self._outboxes:
                    await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if server is not None:
            await server.stop(0.5)

    async def _serve(self, deliver: Deliver) -> tuple[Any, int]:
        if not self._later:
            return None, 0
        roster = self._roster.one_way(self.me, self._later)
        server = grpc.aio.server(
            options=channel_options(self.endpoint.most_bytes),
            maximum_concurrent_rpcs=8 + 4 * len(self._later),
        )

        async def exchange(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            found = place_of(context, roster)
            if found is None:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no neighbour of this worker")
                return
            peer = self._later[found]
            outbox = self._open(peer)
            reader = asyncio.create_task(self._read(requests, peer, outbox, deliver))
            try:
                while (frame := await outbox.get()) is not None:
                    yield frame
            finally:
                reader.cancel()
                self._shut(peer, outbox)

        handler = grpc.stream_stream_rpc_method_handler(exchange)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),)
        )
        try:
            port = server.add_secure_port(self._listen, server_credentials(self._keys, roster))
        except RuntimeError:
            port = 0
        if not port:
            raise OSError(f"cannot listen on {self._listen}: give another address, or end who does")
        await server.start()
        return server, int(port)

    async def _live_with(self, peer: int, deliver: Deliver) -> None:
        """Connect to an earlier neighbour, again and again."""
        first, last = self._back_off
        wait = first
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError, TimeoutError):
                if await self._connection(peer, deliver):
                    wait = first
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, last)

    async def _connection(self, peer: int, deliver: Deliver) -> bool:
        options = channel_options(self.endpoint.most_bytes)
        options.append(("grpc.ssl_target_name_override", self._roster.workers[peer].name))
        credentials = channel_credentials(self._keys, self._roster.one_way(peer, (self.me,)))
        address = self._roster.addresses[peer]
        async with grpc.aio.secure_channel(address, credentials, options) as channel:
            async with asyncio.timeout(10.0):
                await channel.channel_ready()
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
            outbox = self._open(peer)
            writer = asyncio.create_task(_write(call, outbox))
            reader = asyncio.create_task(self._read(_frames(call), peer, outbox, deliver))
            try:
                await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            finally:
                reader.cancel()
                writer.cancel()
                call.cancel()
                self._shut(peer, outbox)
        return True

    def _open(self, peer: int) -> _Outbox:
        before = self._outboxes.get(peer)
        if before is not None:
            before.close()  # it came back before its old connection was found dead
        outbox = self._outboxes[peer] = _Outbox()
        # Heard is who said something of this gossip; a connection alone is nothing.
        self._heard.pop(peer, None)
        self._say(peer)
        return outbox

    def _shut(self, peer: int, outbox: _Outbox) -> None:
        if self._outboxes.get(peer) is outbox:
            del self._outboxes[peer]

    async def _read(
        self, frames: AsyncIterator[bytes], peer: int, outbox: _Outbox, deliver: Deliver
    ) -> None:
        try:
            async for data in frames:
                self._received(data, peer, deliver)
        except grpc.aio.AioRpcError:
            pass
        finally:
            outbox.close()

    def _received(self, data: bytes, peer: int, deliver: Deliver) -> None:
        try:
            opened = self.endpoint.open(data)
            if opened.sender != peer:
                raise FrameError(f"it is signed by worker {opened.sender}")
        except (FrameError, DecodeError) as error:
            name = self._roster.workers[peer].name
            deliver(Refused(peer, f"a frame from worker {name!r} was refused: {error}"))
            return
        self._heard[peer] = time.monotonic()
        if isinstance(opened.message, Sign):
            if opened.message.finished:
                self._over.add(peer)
        else:
            deliver(Arrived(peer, opened.message, opened.proof))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_EVERY)
            self._say_all()

    def _say_all(self) -> None:
        for peer in list(self._outboxes):
            self._say(peer)

    def _say(self, peer: int) -> None:
        self._put(peer, self.endpoint.seal(peer, Sign(0, 0, self._finished)))

    def _put(self, peer: int, frame: bytes) -> None:
        outbox = self._outboxes.get(peer)
        if outbox is not None:
            outbox.put(frame)


async def _frames(call: Any) -> AsyncIterator[bytes]:
    while (data := await call.read()) is not grpc.aio.EOF:
        yield data


async def _write(call: Any, outbox: _Outbox) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while (frame := await outbox.get()) is not None:
            await call.write(frame)
        await call.done_writing()
        await call.code()
