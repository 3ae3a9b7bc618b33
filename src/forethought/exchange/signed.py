"""Messages in signed frames, and back: verified first, then decoded, then judged.

What a message must look like follows from the run: its kind from who sends it, its vectors' length
and precision from the model, its norm from what honest noise can reach. A frame that fails at any
step raises, and has changed nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from forethought.exchange.codec import DecodeError, decode, encode, largest, layout
from forethought.exchange.frame import OVERHEAD, Frame, hashed, open_frame, seal
from forethought.exchange.messages import (
    KINDS,
    SERVER,
    Acknowledgement,
    Finished,
    Join,
    Leave,
    Model,
    Refusal,
    Update,
)

_IN_HEADER = ("round", "base")
_FROM_CLIENTS = (Join, Update, Leave)
_FROM_SERVER = (Model, Acknowledgement, Refusal, Finished)
# Longest vectors of registered kinds: padded to a power of two for a rotation, and counts beside.
_PADDING = 2


def _padding(number: int) -> int:
    return 1 if number < 32 else _PADDING


# No model goes on after a step of this length; its square still fits into single precision, so that
# whoever computes with a vector that was opened here meets no overflow.
MOST_NORM = 1e18


def _anything(sender: int, message: Any) -> float:
    return MOST_NORM


class Opened(NamedTuple):
    """A frame that was verified, decoded and judged.

    ``digest``: 16 bytes by which the same frame is recognised.
    """

    sender: int
    message: Any
    digest: bytes


@dataclass(frozen=True)
class Endpoint:
    """One member of one run, who seals what it sends and opens what it is sent.

    Args:
        run_id: 32 bytes: the hash of plans, architecture and roster.
        me: own place in the roster.
        key: own signing key.
        public_keys: place → Ed25519 public key (32 bytes), of everybody who may send here.
        parameters: length of a model's vector.
        largest: (sender, message) → the largest norm that an honest message's vector can have;
            by default :data:`MOST_NORM`, and the server's machine knows better.
    """

    run_id: bytes
    me: int
    key: Ed25519PrivateKey
    public_keys: Mapping[int, bytes]
    parameters: int
    largest: Callable[[int, Any], float] = _anything
    _last: dict[str, tuple[Any, bytes, bytes]] = field(default_factory=dict, init=False, repr=False)
    _limits: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    @property
    def limits(self) -> dict[int, int]:
        """Kind that may come → most bytes of its payload."""
        wrong = _FROM_SERVER if self.me == SERVER else _FROM_CLIENTS
        if len(self._limits) != len(KINDS) - len(wrong):  # first, or another kind was registered
            self._limits.update(
                (number, largest(kind, self.parameters * _padding(number), _IN_HEADER))
                for number, kind in KINDS.items()
                if kind not in wrong
            )
        return self._limits

    @property
    def most_bytes(self) -> int:
        """Length of the longest frame that may come."""
        return OVERHEAD + max(self.limits.values())

    def seal(self, to: int, message: Any) -> bytes:
        """A message's frame; the same message gives the same bytes.

        Raises:
            ValueError: a class that is not registered, or fields that do not fit.
        """
        number = next((number for number, kind in KINDS.items() if type(message) is kind), None)
        if number is None:
            raise ValueError(f"{type(message).__name__} is no registered message: see register()")
        payload, payload_hash = self._payload(message)
        frame = Frame(number, self.run_id, self.me, to, message.round, message.base, payload)
        return seal(frame, self.key, payload_hash)

    def _payload(self, message: Any) -> tuple[bytes, bytes]:
        """Payload and hash; of a model they are kept, for it goes to one client after the other."""
        if not isinstance(message, Model | Finished):
            payload = encode(message, _IN_HEADER)
            return payload, hashed(payload)
        kept = self._last.get("model")
        if kept is None or kept[0] is not message.vector:
            payload = encode(message, _IN_HEADER)
            kept = self._last["model"] = (message.vector, payload, hashed(payload))
        return kept[1], kept[2]

    def open(self, data: bytes) -> Opened:
        """A frame that came.

        Raises:
            FrameError: see :func:`~forethought.exchange.frame.open_frame`. DecodeError: a signed
                payload that is no such message of this run: other shape or precision, not finite,
                or beyond what honest noise can reach.
        """
        frame = open_frame(data, self.run_id, self.me, self.public_keys, self.limits)
        kind: Any = KINDS[frame.kind]
        if frame.round < 0 or frame.base < -1:
            raise DecodeError(f"round {frame.round} on version {frame.base}: neither is negative")
        given = {"round": frame.round, "base": frame.base}
        message = decode(kind, frame.payload, given)
        for name, type_ in layout(kind):
            if type_ in ("float32", "packed"):
                self._judge(
                    frame.sender, message, f"{kind.__name__}.{name}", getattr(message, name)
                )
        return Opened(frame.sender, message, frame.digest)

    def reopen(self, data: bytes, to: int) -> Any:
        """The message of a frame that this member sealed itself.

        Raises:
            FrameError, DecodeError: it is not one.
        """
        own = {self.me: self.key.public_key().public_bytes_raw()}
        kinds = {number: len(data) for number in KINDS}
        frame = open_frame(data, self.run_id, to, own, kinds)
        given = {"round": frame.round, "base": frame.base}
        return decode(KINDS[frame.kind], frame.payload, given)

    def _judge(self, sender: int, message: Any, what: str, vector: Any) -> None:
        if len(vector) != self.parameters:
            raise DecodeError(
                f"{what} has {len(vector)} entries, the model has {self.parameters} parameters"
            )
        # NaN and ∞ go through a sum of squares, and nothing finite gives them in double precision.
        with np.errstate(over="ignore", invalid="ignore"):
            square = float(np.dot(vector, vector))
        if not math.isfinite(square):
            square = float(np.dot(vector.astype(np.float64), vector.astype(np.float64)))
        if not math.isfinite(square):
            raise DecodeError(f"{what} holds NaN or ∞")
        most = self.largest(sender, message)
        if math.sqrt(square) > most * (1 + 1e-3):  # the sum of squares was in single precision
            raise DecodeError(
                f"{what} has norm {math.sqrt(square):.3g}; an honest one stays below {most:.3g}"
            )
