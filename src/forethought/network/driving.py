"""Executes a machine's effects in their order: writes before it sends, and sends what was written.

No transport in here: whoever drives says how frames get out, and brings in those that arrive. A
frame that fails is counted and changes nothing.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from forethought.exchange import events as on
from forethought.exchange.codec import DecodeError
from forethought.exchange.frame import FrameError
from forethought.exchange.journal import ServerJournal
from forethought.exchange.ledger import ClientLedger
from forethought.exchange.messages import Update
from forethought.exchange.signed import Endpoint, Opened
from forethought.exchange.witness import Witness

Clock = Callable[[], float]
# (to, message, frame): put a frame on its way; it may be lost.
Out = Callable[[int, Any, bytes], None]
_KEPT_ALARMS = 50


class Machine(Protocol):
    """What both machines have."""

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
    """What client and server have in common; use :class:`ClientDriver`, :class:`ServerDriver`.

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
            return None
        if peer not in (None, opened.sender):
            text = f"{peer}'s connection brought a frame of {opened.sender}: refused"
            self.alarm("ForgeryError", text)
            return None
        self.handle(on.Received(opened.sender, opened.message, self.clock(), opened.digest))
        return opened.sender

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
