"""gRPC as a carrier: mutual TLS 1.3, a stream for each pair of members, frames both ways.

Only members whose certificates are in the roster can connect. The network may lose or duplicate
frames, as long as some arrive: lost ones are sent again, duplicates are answered again. Of two
neighbours in a gossip the later one in the roster connects to the earlier one.

grpcio has no setting for the lowest version of TLS, and reads its cipher list when it is loaded. So
this module sets the list before it loads grpc, to a TLS 1.2 cipher that needs an RSA certificate.
Forethought's certificates are ECDSA, so no handshake below TLS 1.3 finds a cipher (the list does
not affect those of 1.3). The server checks the version of every connection as well. The list also
applies to all other gRPC connections of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, ClassVar

from forethought.exchange import messages
from forethought.exchange.keys import Everybody, Identity, Keys, Roster, RosterError
from forethought.exchange.messages import DecodeError, Endpoint, Finished, FrameError, register
from forethought.federated.server import ServerMachine
from forethought.gossip.gossip import Gossip
from forethought.holders import driving
from forethought.holders.links import BEAT_EVERY, Arrived, Deliver, Reduce, RefusedMessage
from forethought.values.serialisation import Readers, each

_NAME, _CIPHERS = "GRPC_SSL_CIPHER_SUITES", "ECDHE-RSA-AES128-GCM-SHA256"
#: True if grpc was, or will be, loaded with that list.
RESTRICTED = "grpc" not in sys.modules or os.environ.get(_NAME) == _CIPHERS
os.environ[_NAME] = _CIPHERS

import grpc  # noqa: E402 (after the list of its ciphers)

SERVICE, PEERS_SERVICE, METHOD = "forethought.Federation", "forethought.Gossip", "Exchange"
# Seconds that a finished server waits for clients that have not received the last model yet.
LINGER = 60.0
# Starts of addresses in which gRPC itself reads what follows.
SCHEMES = ("unix:", "unix-abstract:", "xds:", "dns:", "ipv4:", "ipv6:")
# Most messages that wait to be sent to one neighbour.
_QUEUE = 8
TLS = b"TLSv1.3"


class ConnectionPolicyError(RuntimeError):
    """Connections of this process could use TLS below 1.3."""


def server_credentials(keys: Keys, roster: Roster) -> grpc.ServerCredentials:
    """Credentials of a server to which only the roster's clients can connect.

    Raises:
        ConnectionPolicyError: see :func:`channel_credentials`.
    """
    _require_ciphers()
    pair = (keys.connection, keys.identity.certificate.encode())
    clients = "".join(identity.certificate for identity in roster.clients)
    return grpc.ssl_server_credentials([pair], clients.encode(), require_client_auth=True)


def channel_credentials(keys: Keys, roster: Roster) -> grpc.ChannelCredentials:
    """Credentials of a client that connects only to the roster's server.

    Raises:
        ConnectionPolicyError: grpc was loaded before this module, so TLS 1.3 is not enforced.
    """
    _require_ciphers()
    return grpc.ssl_channel_credentials(
        roster.server.certificate.encode(), keys.connection, keys.identity.certificate.encode()
    )


def _require_ciphers() -> None:
    if not RESTRICTED:
        raise ConnectionPolicyError(
            "grpc was loaded before forethought.holders.grpc, which has to choose its ciphers "
            "first so that nothing below TLS 1.3 is spoken: import it before grpc"
        )


def place_of(context: grpc.aio.ServicerContext[bytes, bytes], roster: Roster) -> int | None:
    """The place of the client at the other end of a connection.

    None: its certificate is not in the roster, or the connection uses TLS below 1.3.
    """
    about = context.auth_context()
    if about.get("ssl_tls_version", [TLS])[0] != TLS:
        return None
    shown = b"".join(about.get("x509_pem_cert", [])).strip()
    for place, identity in enumerate(roster.clients):
        if identity.certificate.encode().strip() == shown:
            return place
    return None


def channel_options(most_bytes: int) -> list[tuple[str, Any]]:
    """gRPC's options, for both sides.

    Args:
        most_bytes: size of the longest incoming frame; gRPC refuses longer messages.
    """
    return [
        ("grpc.max_receive_message_length", most_bytes),
        ("grpc.max_send_message_length", -1),
        # Detects within half a minute that the other end has gone without closing the connection.
        ("grpc.keepalive_time_ms", 15_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
        ("grpc.http2.max_frame_size", 1 << 20),
    ]


# What grpc raises when a call has ended or its connection fails, whatever the other end did.
_CALL_OVER = (grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class _GrpcStream:
    """A stream over one call; an error in the call closes the stream."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> bytes | None:
        with contextlib.suppress(*_CALL_OVER):
            data: Any = await self._call.read()
            return None if data is grpc.aio.EOF else bytes(data)
        return None

    async def write(self, frame: bytes) -> None:
        with contextlib.suppress(*_CALL_OVER):
            await self._call.write(frame)

    async def finish(self) -> None:
        with contextlib.suppress(*_CALL_OVER):
            await self._call.done_writing()
            # The server ends the stream when it has read everything.
            await self._call.code()


# What gRPC says of a connection that fails → what that means, and what to do.
_REASONS = {
    "certificate has expired": "its certificate has expired: make new keys, and all a new roster",
    "not yet valid": "its certificate is not valid yet: set this computer's clock right",
    "CERTIFICATE_VERIFY_FAILED": "a stranger to this roster answers: compare its fingerprint",
    "Socket closed": "who answers does not know this member: compare the roster's fingerprint",
    "Domain name not found": "there is no host of this name: see how it is spelled",
    "": "nobody answers there yet, or not by gRPC: see that it runs, and that this is its address",
}


def grpc_stream(
    roster: Roster, keys: Keys, address: str, service: str = SERVICE
) -> driving.Connect:
    """A function that opens streams to a server over gRPC with mutual TLS.

    Args:
        roster: of the server. keys: the client's own. address: host:port of the server.
        service: name of the gRPC service.

    Opening a stream raises a ConnectionError that says why there is no connection.
    """

    @contextlib.asynccontextmanager
    async def connect(most_bytes: int) -> AsyncIterator[driving.FrameStream]:
        options = channel_options(most_bytes)
        # The certificate has the server's name in the roster, not its host name.
        options.append(("grpc.ssl_target_name_override", roster.server.name))
        credentials = channel_credentials(keys, roster)
        async with grpc.aio.secure_channel(address, credentials, options) as channel:
            call = channel.stream_stream(f"/{service}/{METHOD}")()
            try:
                async with asyncio.timeout(10.0):
                    await call.wait_for_connection()
            except (TimeoutError, *_CALL_OVER) as error:
                why = next(words for sign, words in _REASONS.items() if sign in str(error))
                raise ConnectionError(f"no connection to {address} yet: {why}.") from None
            try:
                yield _GrpcStream(call)
            finally:
                call.cancel()

    return connect


class _Streams(ABC):
    """A member's open streams, one with each other member, in which both send frames.

    Args:
        keys: the member's own. most: the most frames that wait for one member.
        failed: takes an error of this process, which no other member caused.
    """

    service: ClassVar[str]
    refusal: ClassVar[str]

    def __init__(self, keys: Keys, most: int, failed: Callable[[BaseException], object]) -> None:
        self._keys, self._most, self._failed = keys, most, failed
        self._outboxes: dict[int, driving.Outbox] = {}
        self._server: grpc.aio.Server | None = None

    async def _serve(
        self, address: str, roster: Roster, most_bytes: int, places: Sequence[int]
    ) -> int:
        """Listen for streams of the roster's clients, and return the port.

        Args:
            address: host:port; ``"127.0.0.1:0"`` takes any free port.
            places: place in the roster → place among all members.

        Raises:
            OSError: the address cannot be listened on.
        """

        async def exchange(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            found = place_of(context, roster)
            if found is None:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, self.refusal)
                raise PermissionError(self.refusal)
            place = places[found]
            outbox = self._open(place)
            reader = driving.watched(self._read(requests, place, outbox), self._failed)
            try:
                async for frame in outbox:
                    yield frame
            finally:
                reader.cancel()
                self._shut(place, outbox)

        server = grpc.aio.server(
            options=channel_options(most_bytes),
            maximum_concurrent_rpcs=8 + 4 * len(places),  # dead ones count until they are closed
        )
        handler = grpc.stream_stream_rpc_method_handler(exchange)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(self.service, {METHOD: handler}),)
        )
        credentials = server_credentials(self._keys, roster)
        try:
            port = server.add_secure_port(address, credentials)
        except RuntimeError:
            port = 0
        if not port:
            raise OSError(f"cannot listen on {address}: end who does, or give one of this computer")
        await server.start()
        self._server = server
        return int(port)

    def _open(self, place: int) -> driving.Outbox:
        before = self._outboxes.get(place)
        if before is not None:
            before.close()  # the member is back before its old connection was found dead
        outbox = self._outboxes[place] = driving.Outbox(self._most)
        return outbox

    def _shut(self, place: int, outbox: driving.Outbox) -> None:
        if self._outboxes.get(place) is outbox:
            del self._outboxes[place]

    async def _read(self, frames: AsyncIterator[bytes], place: int, outbox: driving.Outbox) -> None:
        try:
            async for data in frames:
                self._received(data, place)
            self._ended(place)
        except _CALL_OVER:
            pass
        finally:
            outbox.close()

    @abstractmethod
    def _received(self, data: bytes, place: int) -> None:
        """Take a frame from a member."""

    def _ended(self, place: int) -> None:
        """Note that a member has closed its stream; a killed one does not get here."""
        return

    async def _stop(self, seconds: float) -> None:
        if self._server is not None:
            await self._server.stop(seconds)


class FederationServer(_Streams):
    """Serves one federation.

    Args:
        roster: its clients may connect. keys: the server's own.
        driver: makes the driver, given the function that sends frames.
        machine: of that driver; it knows which clients have left.
        linger: see :data:`LINGER`.

    Attributes:
        driver: of the machine. heard: when each client was last heard.
    """

    service, refusal = SERVICE, "not in the roster"

    def __init__(
        self,
        roster: Roster,
        keys: Keys,
        driver: Callable[[Callable[[int, Any, bytes], None]], driving.ServerDriver],
        machine: ServerMachine,
        linger: float = LINGER,
    ) -> None:
        super().__init__(keys, driving.MOST, lambda error: self._guard.fail(error))
        self.roster, self._linger, self._machine = roster, linger, machine
        self.driver = driver(self._send)
        self.heard = driving.LastHeard(len(roster.clients), self._outboxes.keys())
        self._last_word: set[int] = set()
        self._told: set[int] = set()
        self._guard = driving.SerialDriver(self.driver)

    async def start(self, address: str) -> int:
        """Listen on host:port (``"127.0.0.1:0"``: any free port), and return the port.

        Raises:
            OSError: the address cannot be listened on.
        """
        most, places = self.driver.endpoint.most_bytes, range(len(self.roster.clients))
        port = await self._serve(address, self.roster, most, places)
        self._guard.do(self.driver.connected)
        if self._machine.finished:  # before this process began
            self.driver.done = "finished"
        return port

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until the run is finished and all clients know, or until ``stop``.

        Raises:
            Exception: an error in a write; the process must end, and a new one goes on from the
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
            await self._stop(1.0)

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

    def _received(self, data: bytes, place: int) -> None:
        self.heard.note(place)
        self._guard.do(lambda: self.driver.received(data, place))

    def _ended(self, place: int) -> None:
        if place in self._last_word:
            self._told.add(place)


def is_address(text: str, least: int = 1) -> bool:
    """True if a text is host:port, with a port of at least ``least``."""
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and least <= int(port) < 65536


@dataclass(frozen=True)
class PeerRoster(Everybody):
    """The workers of a gossip between sites.

    Args:
        workers: their identities, in the order of their places.
        addresses: host:port on which each can be reached, in the same order.
        nonce: 32 hexadecimal digits drawn when the roster was made.

    Raises:
        RosterError: a name, a key or an address is invalid or occurs twice, or there are fewer
            than two workers.
    """

    SCHEMA: ClassVar[str] = "forethought/peer-roster/1"
    CALLED: ClassVar[str] = "roster of workers"
    PARTS: ClassVar[Readers] = {"workers": each(Identity.from_dict), "addresses": tuple}

    workers: tuple[Identity, ...]
    addresses: tuple[str, ...]
    nonce: str

    def __post_init__(self) -> None:
        if len(self.workers) < 2 or len(self.workers) != len(self.addresses):
            raise RosterError("a roster needs at least two workers, and an address of each")
        Roster(self.workers[0], self.workers[1:], self.nonce)  # names and keys, each once
        for address in self.addresses:
            if not is_address(address):
                raise RosterError(f"{address!r} is no address: give host:port of every worker")
        twice = sorted({one for one in self.addresses if self.addresses.count(one) > 1})
        if twice:
            raise RosterError(f"two workers have the address {twice[0]}: each needs its own")

    @classmethod
    def of(cls, workers: Sequence[Identity], addresses: Sequence[str]) -> PeerRoster:
        """A new roster with a new nonce."""
        return cls(tuple(workers), tuple(addresses), secrets.token_hex(16))

    @property
    def identities(self) -> tuple[Identity, ...]:
        """The workers' identities, in the order of their places."""
        return self.workers

    def one_way(self, to: int, connecting: Sequence[int]) -> Roster:
        """The roster of a worker, as the server, and of the workers that may connect to it."""
        return Roster(self.workers[to], tuple(self.workers[one] for one in connecting), self.nonce)


@dataclass(frozen=True, slots=True, eq=False)
class Sign(messages.Framed):
    """A sign of life.

    Args:
        round: not used. base: not used. finished: 1 from a worker that has finished, else 0.
    """

    finished: int


register(67, Sign)


class SiteLinks(_Streams):
    """Links to a worker's neighbours; see :class:`~forethought.holders.links.Links`.

    Args:
        gossip: with the roster's keys in it. roster: of all workers. keys: this worker's own.
        listen: host:port to listen on; None: the worker's address in the roster.
        back_off: (first, last) seconds between two attempts to connect.

    Raises:
        RosterError: the keys belong to no worker.
    """

    service, refusal = PEERS_SERVICE, "no neighbour of this worker"

    def __init__(
        self,
        gossip: Gossip,
        roster: PeerRoster,
        keys: Keys,
        listen: str | None = None,
        back_off: tuple[float, float] = driving.BACK_OFF,
    ) -> None:
        super().__init__(keys, _QUEUE, lambda error: self._deliver(error))
        self.me = roster.place(keys)
        self.reduce: Reduce | None = None
        self._roster = roster
        self._listen = listen or roster.addresses[self.me]
        self._back_off = back_off
        near = gossip.mixing.graph.neighbours(self.me)
        self._earlier = tuple(peer for peer in near if peer < self.me)
        self._later = tuple(peer for peer in near if peer > self.me)
        public = {peer: bytes.fromhex(roster.workers[peer].public_key) for peer in near}
        known = gossip.run_id, self.me, keys.signing, public, gossip.coordinates
        self.endpoint = Endpoint(*known, lambda sender, message: gossip.trust.largest)
        self._heard: dict[int, float] = {}
        self._over: set[int] = set()
        self._finished = 0
        self._deliver: Deliver = lambda came: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._flush = 0.0

    def start(self, deliver: Deliver) -> None:
        """See Links.

        Raises:
            OSError: the address cannot be listened on.
        """
        listens: Future[None] = Future()
        self._deliver = deliver

        def run() -> None:
            try:
                asyncio.run(self._run(listens))
            except BaseException as error:
                if not listens.done():
                    listens.set_exception(error)

        self._thread = threading.Thread(target=run, name="gossip-sites", daemon=True)
        self._thread.start()
        listens.result()

    def send(self, to: int, message: Any) -> None:
        """See Links."""
        if to in self._outboxes:
            driving.in_loop(self._loop, self._put, to, self.endpoint.seal(to, message))

    def heard(self, peer: int) -> float | None:
        """See Links."""
        return self._heard.get(peer) if peer in self._outboxes else None

    def finish(self) -> None:
        """See Links."""
        self._finished = 1
        driving.in_loop(self._loop, self._say_all)

    def over(self, peer: int) -> bool:
        """See Links."""
        return peer in self._over

    def close(self, seconds: float) -> None:
        """See Links."""
        self._flush = seconds
        if self._ending is not None:
            driving.in_loop(self._loop, self._ending.set)
        if self._thread is not None:
            self._thread.join(seconds + 5.0)

    # ---- in the event loop

    async def _run(self, listens: Future[None]) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        _require_ciphers()
        if self._later:
            own = self._roster.one_way(self.me, self._later)
            await self._serve(self._listen, own, self.endpoint.most_bytes, self._later)
        listens.set_result(None)
        works = [self._beat(), *map(self._live_with, self._earlier)]
        tasks = [driving.watched(work, self._failed) for work in works]
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
        await self._stop(0.5)

    async def _live_with(self, peer: int) -> None:
        """Connect to an earlier neighbour, and again after every loss."""
        roster, address = self._roster.one_way(peer, (self.me,)), self._roster.addresses[peer]
        connect = grpc_stream(roster, self._keys, address, PEERS_SERVICE)

        async def connection() -> None:
            async with connect(self.endpoint.most_bytes) as stream:
                outbox = self._open(peer)
                reading = self._read(_frames(stream), peer, outbox)
                try:
                    await driving.both_ways(stream, outbox, reading)
                finally:
                    self._shut(peer, outbox)

        await driving.reconnecting(connection, self._back_off)

    def _open(self, place: int) -> driving.Outbox:
        outbox = super()._open(place)
        # A connection alone does not count as heard: only a valid frame of this gossip does.
        self._heard.pop(place, None)
        self._say(place)
        return outbox

    def _received(self, data: bytes, place: int) -> None:
        try:
            opened = self.endpoint.open(data)
            if opened.sender != place:
                raise FrameError(f"it is signed by worker {opened.sender}")
        except (FrameError, DecodeError) as error:
            name = self._roster.workers[place].name
            text = f"a frame from worker {name!r} was refused: {error}"
            self._deliver(RefusedMessage(place, text))
            return
        self._heard[place] = time.monotonic()
        if isinstance(opened.message, Sign):
            if opened.message.finished:
                self._over.add(place)
        else:
            self._deliver(Arrived(place, opened.message, opened.proof))

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
            outbox.put(None, frame)


async def _frames(stream: driving.FrameStream) -> AsyncIterator[bytes]:
    while (data := await stream.read()) is not None:
        yield data
