"""Drivers of a federation's machines: ordered effects, a timer, a connection that may be lost.

A driver writes before it sends, and sends only what was written. After a failed write a machine's
state differs from its journal or ledger. So it gets no further event, the process ends, and a new
one continues from the journal or ledger. This module contains no transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from forethought.exchange import events as on
from forethought.exchange import messages
from forethought.exchange.events import Compute, Computed
from forethought.exchange.storage import ClientLedger, MemberWitness, ServerJournal
from forethought.training.execution import SIGNALS

# Seconds between two looks at the status.
LOOK = 0.25


@contextlib.asynccontextmanager
async def attended(show: Callable[[], None]) -> AsyncIterator[asyncio.Event]:
    """Call ``show`` every :data:`LOOK` seconds while active, and give an event to stop at.

    Ctrl-C and SIGTERM set it, in the main thread; a second signal acts at once.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    main = threading.current_thread() is threading.main_thread()
    signals = SIGNALS if main else ()

    def note() -> None:
        stop.set()
        for number in signals:
            loop.remove_signal_handler(number)

    async def again() -> None:
        while True:
            show()
            await asyncio.sleep(LOOK)

    for number in signals:
        loop.add_signal_handler(number, note)
    task = asyncio.create_task(again())
    try:
        yield stop
    finally:
        task.cancel()
        for number in signals:
            loop.remove_signal_handler(number)


class SerialDriver:
    """Runs a driver's steps one after the other, and keeps its timer.

    Args:
        driver: the driver.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._failure: BaseException | None = None
        self._over = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def do(self, step: Callable[[], object]) -> None:
        """Run one step of the driver; does nothing after a step has failed."""
        if self._failure is not None:
            return
        try:
            step()
        except BaseException as error:
            self.fail(error)
            return
        if self._driver.done is not None:
            self._over.set()
        if self._timer is not None:
            self._timer.cancel()
        if self._driver.wake_at is not None:
            wait = max(0.0, self._driver.wake_at - self._driver.clock())
            self._timer = asyncio.get_running_loop().call_later(wait, self.do, self._driver.woken)

    def fail(self, error: BaseException) -> None:
        """Note what failed; nothing more is done, and :meth:`check` raises it."""
        self._failure = self._failure or error
        self._over.set()

    def check(self) -> None:
        """Raise the exception of the step that failed, if any."""
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


# The drivers. Their caller supplies the function that sends frames, and hands in those that
# arrive. A frame that is refused is counted and changes nothing.


Clock = Callable[[], float]


# (to, message, frame): send a frame; it may be lost.
Out = Callable[[int, Any, bytes], None]


class EventMachine(Protocol):
    """The common part of both machines."""

    def handle(self, event: on.Event) -> list[on.Effect]:
        """Handle an event; returns the effects to execute."""


class Raised(NamedTuple):
    """An alarm, as the machine raised it."""

    code: str
    text: str


@dataclass(eq=False)
class Alarms:
    """Alarms, which an operator must see.

    Args:
        counts: number of all alarms by code. alarms: the last 50.
    """

    counts: Counter[str] = field(default_factory=Counter)
    alarms: deque[Raised] = field(default_factory=lambda: deque(maxlen=50))

    def alarm(self, code: str, text: str) -> None:
        """Record something that an operator must see."""
        self.counts[code] += 1
        self.alarms.append(Raised(code, text))


class Driver(Alarms):
    """The common part of client and server; use :class:`ClientDriver`, :class:`ServerDriver`.

    Attributes:
        wake_at: when to call :meth:`woken`, in seconds of the clock; None: never.
        done: why the machine has ended; None: it has not.
    """

    def __init__(
        self, machine: EventMachine, endpoint: messages.Endpoint, out: Out, clock: Clock
    ) -> None:
        super().__init__()
        self.machine, self.endpoint, self.out, self.clock = machine, endpoint, out, clock
        self.wake_at: float | None = None
        self.done: str | None = None

    def connected(self) -> None:
        """Handle that the connection to the other side is open."""
        self.handle(on.Connected(self.clock()))

    def stopped(self) -> None:
        """Handle that the owner ends this machine for good."""
        self.handle(on.Stopped(self.clock()))

    def woken(self) -> None:
        """Wake the machine if the time in :attr:`wake_at` has come."""
        if self.wake_at is not None and self.clock() >= self.wake_at:
            self.wake_at = None
            self.handle(on.Woken(self.clock()))

    def received(self, data: bytes, peer: int | None = None) -> int | None:
        """Handle a frame that arrived; a bad one leads to an alarm, not to an exception.

        Args:
            peer: the member whose connection brought it; None: the connection is no member's own.

        Returns:
            Its sender; None: it was refused.
        """
        try:
            opened: messages.Opened = self.endpoint.open(data)
        except (messages.FrameError, messages.DecodeError) as error:
            whose = "somebody" if peer is None else peer
            self.alarm(type(error).__name__, f"a frame from {whose} was refused: {error}")
            if isinstance(error, messages.DecodeError) and peer in (None, error.frame.sender):
                self.undecoded(error.frame)
            return None
        if peer not in (None, opened.sender):
            text = f"{peer}'s connection brought a frame of {opened.sender}: refused"
            self.alarm("ForgeryError", text)
            return None
        self.handle(on.Received(opened.sender, opened.message, self.clock(), opened.digest))
        return opened.sender

    def undecoded(self, frame: messages.Frame) -> None:
        """Handle a frame with a valid signature whose content is not a message."""

    def handle(self, event: on.Event) -> None:
        """Let the machine handle an event, and execute its effects in order."""
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

    def frame(self, to: int, message: Any) -> bytes:
        """The signed bytes of a message."""
        return self.endpoint.seal(to, message)

    def execute(self, effect: on.Effect) -> None:
        """Execute an effect that only one side has."""
        raise NotImplementedError(f"nobody executes {type(effect).__name__}")


class ServerDriver(Driver):
    """A server's machine with its journal.

    Args:
        snapshot: gives the state to store when the machine asks for a snapshot.
    """

    def __init__(
        self,
        machine: EventMachine,
        journal: ServerJournal,
        endpoint: messages.Endpoint,
        out: Out,
        snapshot: Callable[[], Any],
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(machine, endpoint, out, clock)
        self.journal, self._snapshot = journal, snapshot

    def undecoded(self, frame: messages.Frame) -> None:
        """Answer an update with a refusal, so that its client does not send it for ever."""
        if messages.KINDS[frame.kind] is messages.Update:
            answer = messages.Refusal(frame.round, frame.base, "undecodable")
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
        compute: begins the requested private rounds; hand their outcome to :meth:`handle`.
        witness: counts the releases, independently of the ledger; None: nothing does.
    """

    def __init__(
        self,
        machine: EventMachine,
        ledger: ClientLedger,
        endpoint: messages.Endpoint,
        out: Out,
        compute: Callable[[on.Compute], None],
        clock: Clock = time.monotonic,
        witness: MemberWitness | None = None,
    ) -> None:
        super().__init__(machine, endpoint, out, clock)
        self.ledger, self._compute, self._witness = ledger, compute, witness

    def frame(self, to: int, message: Any) -> bytes:
        """The signed bytes of a message; an update's are those in the ledger.

        Raises:
            RuntimeError: the update is not in the ledger.
        """
        if isinstance(message, messages.Update):
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
            case on.Begin():
                self.ledger.begin(effect.round, effect.rounds)
            case on.Compute():
                self._compute(effect)
            case _:
                super().execute(effect)


# Frames that wait to be sent to one member: a bounded queue, in which a newer model replaces an
# older one. Frames beyond the bound are dropped: all that matter are sent again until answered.


MOST = 256


def queued(
    frames: list[tuple[Any, bytes]], message: Any, frame: bytes, most: int = MOST
) -> list[tuple[Any, bytes]]:
    """A queue with one more frame, without an older model if the new frame is one."""
    models = messages.Model | messages.Finished
    if isinstance(message, models):
        frames = [entry for entry in frames if not isinstance(entry[0], models)]
    frames = [entry for entry in frames if entry[1] != frame]  # a repeated frame is sent once
    return [*frames, (message, frame)][-most:]


class Outbox:
    """A queue with one reader.

    Args:
        most: the most frames that wait; see :func:`queued`.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._frames: list[tuple[Any, bytes]] = []
        self._something = asyncio.Event()
        self._closed = False

    def put(self, message: Any, frame: bytes) -> None:
        """Queue a frame behind the others."""
        self._frames = queued(self._frames, message, frame, self._most)
        self._something.set()

    def close(self) -> None:
        """Close the queue; the reader still gets the remaining frames."""
        self._closed = True
        self._something.set()

    def __aiter__(self) -> Outbox:
        return self

    async def __anext__(self) -> bytes:
        """The next frame; the end when closed and empty."""
        while not self._frames:
            if self._closed:
                raise StopAsyncIteration
            self._something.clear()
            await self._something.wait()
        return self._frames.pop(0)[1]


# A client: connects, reconnects after every loss, and computes beside the connection.


# Seconds between two attempts to connect: the first, doubled up to the last. Each wait is a
# random 50 % to 100 % of that. It is doubled after short connections as well: of two processes with
# one client's keys each ends the other's connection.
BACK_OFF = (0.1, 5.0)


# Seconds that a client has to send its last frames.
_FLUSH = 5.0


Begin = Callable[[Compute], None]


class FrameStream(Protocol):
    """A connection to the server; frames under way are lost when it breaks."""

    async def read(self) -> bytes | None:
        """The next frame from the server; None: the connection is closed."""

    async def write(self, frame: bytes) -> None:
        """Send a frame."""

    async def finish(self) -> None:
        """End writing, and wait until everything has arrived or the connection is closed."""


# Size of the longest incoming frame → an open stream. An OSError (a TimeoutError is one): there is
# no connection now, so try again.
Connect: TypeAlias = Callable[[int], AbstractAsyncContextManager[FrameStream]]


async def both_ways(
    stream: FrameStream, outbox: Outbox, reading: Coroutine[Any, Any, None]
) -> None:
    """Write the frames of an outbox to a stream, and read beside, until one of the two ends.

    Raises:
        Exception: the error that ended it.
    """

    async def written() -> None:
        async for frame in outbox:
            await stream.write(frame)
        await stream.finish()

    tasks = [asyncio.create_task(one) for one in (written(), reading)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not task.cancelled():  # as by a server that ends
                task.result()
    finally:
        for task in tasks:
            task.cancel()


def watched(
    work: Coroutine[Any, Any, None], failed: Callable[[BaseException], object]
) -> asyncio.Task[None]:
    """A task; an error that ends it is given to ``failed``."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            failed(error)

    task = asyncio.create_task(work)
    task.add_done_callback(ended)
    return task


def in_loop(
    loop: asyncio.AbstractEventLoop | None, step: Callable[..., object], *values: object
) -> None:
    """Have a loop call a function, from any thread; does nothing before it runs and after."""
    if loop is not None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(step, *values)


async def reconnecting(
    connection: Callable[[], Awaitable[None]],
    back_off: tuple[float, float],
    over: Callable[[], bool] = lambda: False,
    failed: Callable[[str], object] = lambda text: None,
) -> None:
    """Connect, and connect again after every loss.

    Args:
        connection: runs one connection to its end; an OSError or a TimeoutError: try again later.
        back_off: (first, last) seconds between two attempts; the first again after a connection
            that lasted longer than the last. over: returns True to stop.
        failed: called with the text of such an error.
    """
    first, last = back_off
    wait = first
    while not over():
        begin = time.monotonic()
        try:
            await connection()
        except OSError as error:  # TimeoutError is one
            failed(str(error))
        if over():
            return
        if time.monotonic() - begin > last:
            wait = first
        await asyncio.sleep(wait * random.uniform(0.5, 1.0))
        wait = min(2 * wait, last)


class FederationClient:
    """Takes part in one federation.

    Args:
        connect: opens a stream to the server: :func:`grpc_stream`, or an engine's.
        driver: makes the driver, given the functions that send a frame and that begin an update.
        compute: computes an update; called in another thread, one call at a time.
        back_off: (first, last) seconds between two attempts to connect.

    Attributes:
        driver: of the machine.
        connected: True while there is a connection.
        trouble: why the last attempt to connect failed; "": it did not.
    """

    def __init__(
        self,
        connect: Connect,
        driver: Callable[[Out, Begin], ClientDriver],
        compute: Callable[[Compute], Computed | None],
        back_off: tuple[float, float] = BACK_OFF,
    ) -> None:
        self._connect, self._back_off = connect, back_off
        self.compute = compute
        self._outbox: Outbox | None = None
        self.driver = driver(self._send, self._begin)
        self.connected, self.trouble = False, ""
        self._ending = False
        self._worker: threading.Thread | None = None
        self._guard = SerialDriver(self.driver)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, stop: asyncio.Event, leave: bool = False) -> None:
        """Take part until the machine has nothing more to do, or until ``stop``.

        Args:
            leave: leave the federation for good on the first connection.

        Raises:
            Exception: an error in a write or a computation; a new process goes on from the ledger.
        """
        self._loop = asyncio.get_running_loop()
        talk = reconnecting(
            lambda: self._connection(leave),
            self._back_off,
            lambda: self._ending or self.driver.done is not None,
            partial(setattr, self, "trouble"),
        )
        talking = watched(talk, self._guard.fail)
        try:
            await self._guard.until(stop)
            self._ending = True
            if self._outbox is not None:
                self._outbox.close()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_FLUSH):
                        await talking
        finally:
            talking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await talking
        if self._worker is not None and self._worker.is_alive():
            # The current computation is finished and committed; a second signal ends it at once.
            await asyncio.to_thread(self._worker.join)
            await asyncio.sleep(0)
        self._guard.check()

    async def _connection(self, leave: bool) -> None:
        """One connection from its beginning to its end."""
        async with self._connect(self.driver.endpoint.most_bytes) as stream:
            outbox = self._outbox = Outbox()
            self.connected, self.trouble = True, ""
            try:
                self._guard.do(self.driver.stopped if leave else self.driver.connected)
                await both_ways(stream, outbox, self._read(stream))
            finally:
                self.connected, self._outbox = False, None
                outbox.close()

    async def _read(self, stream: FrameStream) -> None:
        while (data := await stream.read()) is not None:
            self._guard.do(lambda data=data: self.driver.received(data, messages.SERVER))  # type: ignore[misc]

    def _send(self, to: int, message: Any, frame: bytes) -> None:
        if self._outbox is not None:
            self._outbox.put(message, frame)

    def _begin(self, asked: Compute) -> None:
        if self._ending:
            return  # the process that goes on from the ledger gets this request again
        work = (asked, self._worker)
        self._worker = threading.Thread(target=self._work, args=work, daemon=True)
        self._worker.start()

    def _work(self, asked: Compute, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()  # the parts of one update are computed in order
        try:
            done = self.compute(asked)
        except BaseException as error:
            in_loop(self._loop, self._guard.fail, error)
        else:
            if done is not None:
                in_loop(self._loop, self._guard.do, lambda: self.driver.handle(done))


CarryClient: TypeAlias = Callable[
    [Callable[[Out, Begin], ClientDriver], Callable[[Compute], Computed | None]], ClientDriver
]


def over_streams(
    connect: Connect,
    *,
    leave: bool = False,
    look: Callable[[ClientDriver, bool, str], None] | None = None,
) -> CarryClient:
    """A carrier over streams to the server, until the machine is done, or SIGINT or SIGTERM.

    Args:
        connect: opens a stream: :func:`grpc_stream`, or an engine's.
        leave: leave for good; the server goes on without this client.
        look: called every :data:`LOOK` seconds with the driver, whether it is connected, and why
            the last attempt to connect failed ("": it did not).
    """

    def carry(
        make: Callable[[Out, Begin], ClientDriver], compute: Callable[[Compute], Computed | None]
    ) -> ClientDriver:
        client = FederationClient(connect, make, compute)

        def show() -> None:
            if look is not None:
                look(client.driver, client.connected, client.trouble)

        async def until_done() -> None:
            async with attended(show) as stop:
                await client.run(stop, leave)

        asyncio.run(until_done())
        return client.driver

    return carry


class LastHeard:
    """The time at which every client was last heard of.

    Args:
        clients: their number. connected: those that are connected now, kept by somebody else.
    """

    def __init__(
        self, clients: int, connected: Container[int], clock: Clock = time.monotonic
    ) -> None:
        self._at: list[float | None] = [None] * clients
        self.connected, self._clock = connected, clock

    def note(self, client: int) -> None:
        """Note that a client was heard now."""
        self._at[client] = self._clock()

    def ago(self, client: int) -> float | None:
        """Seconds since a client was last heard; None: never."""
        at = self._at[client]
        return None if at is None else self._clock() - at
