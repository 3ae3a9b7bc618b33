"""A record of what happened to a gossip's worker, to be compared and played again.

Everything that a worker does is a function of the events it was given, in order. So two drivers
that gave the same events must have got the same effects: :class:`Recorded` keeps both, as bytes.
"""

from __future__ import annotations

from dataclasses import fields

from blake3 import blake3

from forethought.exchange.messages import KINDS, Vector, decode, encode
from forethought.gossip import events as on
from forethought.gossip.worker import Effects, Machine

_EVENTS: tuple[type, ...] = (
    on.Started,
    on.Mix,
    on.GradientDone,
    on.PeerMessage,
    on.PeerLost,
    on.PeerBack,
    on.Reduced,
    on.Stop,
    on.Heard,
)


class Recorded:
    """A worker whose events are kept, and whose effects are hashed.

    Args:
        machine: the worker.

    Attributes:
        events: what it was given, each as bytes, in order.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.events: list[bytes] = []
        self._effects = blake3()

    @property
    def updates(self) -> int:
        """How many were committed."""
        return self.machine.updates

    @property
    def finished(self) -> str | None:
        """Why it ended; None: it has not."""
        return self.machine.finished

    @property
    def weights(self) -> Vector:
        """The worker's model."""
        return self.machine.weights

    def handle(self, event: on.Event) -> Effects:
        """What an event leads to."""
        self.events.append(event_bytes(event))
        effects = self.machine.handle(event)
        for effect in effects:
            self._effects.update(_effect_bytes(effect))
        return effects

    @property
    def digest(self) -> str:
        """Of all effects so far, in order."""
        return self._effects.hexdigest()


def replayed(machine: Machine, events: list[bytes]) -> str:
    """The digest of what a new worker does on recorded events."""
    again = Recorded(machine)
    for event in events:
        again.handle(event_of(event))
    return again.digest


def event_bytes(event: on.Event) -> bytes:
    """An event as bytes; :func:`event_of` reads it back."""
    number = bytes([_EVENTS.index(type(event))])
    if isinstance(event, on.PeerMessage):
        sender = event.sender.to_bytes(4, "little")
        return number + sender + bytes([_kind(event.message)]) + encode(event.message)
    return number + encode(event)


def event_of(data: bytes) -> on.Event:
    """The inverse of :func:`event_bytes`."""
    kind = _EVENTS[data[0]]
    if kind is on.PeerMessage:
        sender = int.from_bytes(data[1:5], "little")
        return on.PeerMessage(sender, decode(KINDS[data[5]], memoryview(data)[6:]))
    event: on.Event = decode(kind, memoryview(data)[1:])
    return event


def _kind(message: object) -> int:
    return next(number for number, kind in KINDS.items() if type(message) is kind)


def _effect_bytes(effect: on.Effect) -> bytes:
    name = type(effect).__name__.encode()
    if isinstance(effect, on.Send):
        head = b"%d %d " % (effect.to, _kind(effect.message))
        return name + head + encode(effect.message)
    if isinstance(effect, on.Commit):
        made = effect.release
        parts = [getattr(made, field.name) for field in fields(made) if field.name != "update"]
        return name + repr(parts).encode() + encode(made.update)
    return name + encode(effect)
