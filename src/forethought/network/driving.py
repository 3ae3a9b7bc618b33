"""Executes a machine's effects in order, over mutual TLS, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Protocol

import grpc

from forethought.exchange import events as on
from forethought.exchange.codec import DecodeError
from forethought.exchange.frame import Endpoint, Frame, FrameError, Opened
from forethought.exchange.keys import Keys, Roster
from forethought.exchange.ledger import ClientLedger, ServerJournal, Witness
from forethought.exchange.messages import KINDS, Finished, Model, Refusal, Update
from forethought.network import RESTRICTED
from forethought.training.execution import SIGNALS

# Ctrl-C and SIGTERM in an asyncio loop: the first asks to stop, the second acts at once.


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


# Mutual TLS 1.3 between members whose certificates are in the roster, and nobody else.
#
# Below 1.3 no cipher is left (:mod:`forethought.network` says how), and the server asks every
# connection for its version as well.


TLS = b"TLSv1.3"


class ConnectionPolicyError(RuntimeError):
    """Connections of this process could fall below TLS 1.3."""


def server_credentials(keys: Keys, roster: Roster) -> grpc.ServerCredentials:
    """For a server that only the roster's clients can connect to.

    Raises:
        ConnectionPolicyError: see :func:`channel_credentials`.
    """
    _require_ciphers()
    pair = (keys.connection, keys.identity.certificate.encode())
    clients = "".join(identity.certificate for identity in roster.clients)
    return grpc.ssl_server_credentials([pair], clients.encode(), require_client_auth=True)


def channel_credentials(keys: Keys, roster: Roster) -> grpc.ChannelCredentials:
    """For a client that connects to the roster's server only.

    Raises:
        ConnectionPolicyError: grpc was loaded too early to be held to TLS 1.3.
    """
    _require_ciphers()
    return grpc.ssl_channel_credentials(
        roster.server.certificate.encode(), keys.connection, keys.identity.certificate.encode()
    )


def _require_ciphers() -> None:
    if not RESTRICTED:
        raise ConnectionPolicyError(
            "grpc was loaded before forethought.network, which has to choose its ciphers first so "
            "that nothing below TLS 1.3 is spoken: import forethought.network before grpc"
        )


def place_of(context: grpc.aio.ServicerContext[bytes, bytes], roster: Roster) -> int | None:
    """The member at the other end of a connection; None: nobody who may be.

    Also None below TLS 1.3.
    """
    about = context.auth_context()
    if about.get("ssl_tls_version", [TLS])[0] != TLS:
        return None
    shown = b"".join(about.get("x509_pem_cert", [])).strip()
    for place, identity in enumerate(roster.clients):
        if identity.certificate.encode().strip() == shown:
            return place
    return None


# A driver in an asyncio loop: its timer, and its first failure, which ends the process.
#
# After a failed write a machine is not what its journal or ledger says. So no other event reaches
# it: the process ends, and a new one begins from what was written.


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


# Executes a machine's effects in their order: writes before it sends, and sends what was written.
#
# No transport in here: whoever drives says how frames get out, and brings in those that arrive. A
# frame that fails is counted and changes nothing.


Clock = Callable[[], float]
# (to, message, frame): put a frame on its way; it may be lost.
Out = Callable[[int, Any, bytes], None]
_KEPT_ALARMS = 50


class Machine(Protocol):
    """The common part of both machines."""

    def handle(self, event: on.Event) -> list[on.Effect]:
        """Events in, effects out."""
        ...


@dataclass(frozen=True)
class Raised:
    """An alarm, and when (seconds of the driver's clock)."""

    at: float
    code: str
    text: str


class Driver:
    """The common part of client and server; use :class:`ClientDriver`, :class:`ServerDriver`.

    Attributes:
        wake_at: when to call :meth:`woken`, in seconds of the clock; None: not at all.
        done: why the machine has nothing more to do; None: it has.
        alarms: the last ones. counts: how many of each code there have been.
    """

    def __init__(self, machine: Machine, endpoint: Endpoint, out: Out, clock: Clock) -> None:
        self.machine, self.endpoint, self.clock = machine, endpoint, clock
        self.wake_at: float | None = None
        self.done: str | None = None
        self.alarms: deque[Raised] = deque(maxlen=_KEPT_ALARMS)
        self.counts: Counter[str] = Counter()
        self.out = out

    def connected(self) -> None:
        """The way to the other side is open."""
        self.handle(on.Connected(self.clock()))

    def disconnected(self) -> None:
        """The way to the other side is lost."""
        self.handle(on.Disconnected(self.clock()))

    def stopped(self) -> None:
        """The owner ends this machine for good."""
        self.handle(on.Stopped(self.clock()))

    def woken(self) -> None:
        """The time in :attr:`wake_at` has come; nothing before it."""
        if self.wake_at is not None and self.clock() >= self.wake_at:
            self.wake_at = None
            self.handle(on.Woken(self.clock()))

    def received(self, data: bytes, peer: int | None = None) -> int | None:
        """A frame came; a bad one raises an alarm, no exception.

        Args:
            peer: whose connection it came over; None: it came over nobody's in particular.

        Returns:
            Its sender; None: it was refused.
        """
        try:
            opened: Opened = self.endpoint.open(data)
        except (FrameError, DecodeError) as error:
            whose = "somebody" if peer is None else peer
            self.alarm(type(error).__name__, f"a frame from {whose} was refused: {error}")
            if isinstance(error, DecodeError) and peer in (None, error.frame.sender):
                self.undecoded(error.frame)
            return None
        if peer not in (None, opened.sender):
            text = f"{peer}'s connection brought a frame of {opened.sender}: refused"
            self.alarm("ForgeryError", text)
            return None
        self.handle(on.Received(opened.sender, opened.message, self.clock(), opened.digest))
        return opened.sender

    def undecoded(self, frame: Frame) -> None:
        """A frame came whose signature held, and whose content is no message."""

    def handle(self, event: on.Event) -> None:
        """Let the machine handle an event, and do what it wants done, in order."""
        for effect in self.machine.handle(event):
            match effect:
                case on.Send():
                    self.out(effect.to, effect.message, self.frame(effect.to, effect.message))
                case on.Wake():
                    early = self.wake_at is None or effect.at < self.wake_at
                    self.wake_at = effect.at if early else self.wake_at
                case on.Alarm():
                    self.alarm(effect.code, effect.text)
                case on.Done():
                    self.done = effect.reason
                case _:
                    self.execute(effect)

    def alarm(self, code: str, text: str) -> None:
        """Something that an operator must see."""
        self.counts[code] += 1
        self.alarms.append(Raised(self.clock(), code, text))

    def frame(self, to: int, message: Any) -> bytes:
        """The signed bytes of a message."""
        return self.endpoint.seal(to, message)

    def execute(self, effect: on.Effect) -> None:
        """An effect of one side only."""
        raise NotImplementedError(f"nobody executes {type(effect).__name__}")


class ServerDriver(Driver):
    """A server's machine with its journal.

    Args:
        snapshot: gives the state to store when the machine finds the time good.
    """

    def __init__(
        self,
        machine: Machine,
        journal: ServerJournal,
        endpoint: Endpoint,
        out: Out,
        snapshot: Callable[[], Any],
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(machine, endpoint, out, clock)
        self.journal, self._snapshot = journal, snapshot

    def undecoded(self, frame: Frame) -> None:
        """An update is answered, so that its client does not send it for ever."""
        if KINDS[frame.kind] is Update:
            answer = Refusal(frame.round, frame.base, "undecodable")
            self.out(frame.sender, answer, self.frame(frame.sender, answer))

    def execute(self, effect: on.Effect) -> None:
        """Journal an entry or the state."""
        match effect:
            case on.Append():
                self.journal.append(effect.entry)
            case on.Snapshot():
                self.journal.snapshot(self._snapshot())
            case _:
                super().execute(effect)


class ClientDriver(Driver):
    """A client's machine with its ledger.

    Args:
        compute: begins the private rounds that are asked for; hand their outcome to :meth:`handle`.
        witness: counts what leaves, apart from the ledger.
    """

    def __init__(
        self,
        machine: Machine,
        ledger: ClientLedger,
        endpoint: Endpoint,
        out: Out,
        compute: Callable[[on.Compute], None],
        clock: Clock = time.monotonic,
        witness: Witness | None = None,
    ) -> None:
        super().__init__(machine, endpoint, out, clock)
        self.ledger, self._compute, self._witness = ledger, compute, witness

    def frame(self, to: int, message: Any) -> bytes:
        """The signed bytes; of an update those in the ledger, and nothing that is not in it."""
        if isinstance(message, Update):
            kept = self.ledger.frame(message.round)
            if kept is None:
                raise RuntimeError(f"update {message.round} is not in the ledger: it is not sent")
            return kept
        return super().frame(to, message)

    def execute(self, effect: on.Effect) -> None:
        """Commit to the ledger, or begin to compute."""
        match effect:
            case on.Commit():
                self.ledger.commit(effect.release)
                if self._witness is not None:
                    self._witness.note(effect.release.round + 1)
            case on.Acknowledged():
                self.ledger.acknowledged(effect.round)
            case on.Compute():
                self._compute(effect)
            case _:
                super().execute(effect)


# Frames on their way to one member: bounded, and a newer model takes the place of an older one.
#
# What does not fit is dropped: everything that matters is sent again until it is answered.


MOST = 256


def queued(frames: list[tuple[Any, bytes]], message: Any, frame: bytes) -> list[tuple[Any, bytes]]:
    """A queue with one more frame, without what it makes old."""
    if isinstance(message, Model | Finished):
        frames = [entry for entry in frames if not isinstance(entry[0], Model | Finished)]
    frames = [entry for entry in frames if entry[1] != frame]  # what is said again is said once
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
