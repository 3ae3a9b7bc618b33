"""A signed frame: header, payload, signature; verified first, then decoded, then judged."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from forethought.exchange.codec import DecodeError, decode, encode, largest, layout
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

# A message on the wire: one fixed header, the payload, one signature.
#
# Layout (little-endian), :data:`OVERHEAD` bytes around the payload::
#
#     magic      4   b"FTHX"
#     version    1   1
#     kind       1   what the payload is; its sizes are limited by kind
#     reserved   2   0
#     length     8   bytes of payload
#     run        32  hash of plans, architecture and roster
#     sender     8   place in the roster; -1: the server
#     recipient  8   the same, of whom it is for: nobody else can be given it
#     round      8
#     base       8   version of the global model that it rests on
#     payload    length
#     signature  64  Ed25519 (RFC 8032) over context, header and the BLAKE3 hash of the payload
#
# Nothing of the payload is looked at before the signature has been verified, and nothing is
# allocated for it before its length has been found allowed. The hash stands in for the payload
# because Ed25519 itself reads what it signs twice, with a slower hash; a second payload of the same
# hash is a collision of BLAKE3.


MAGIC, VERSION = b"FTHX", 1
_HEADER = struct.Struct("<4sBBHQ32sqqqq")
HEADER_BYTES, SIGNATURE_BYTES, RUN_BYTES = _HEADER.size, 64, 32
OVERHEAD = HEADER_BYTES + SIGNATURE_BYTES
# Signed before everything else, so that a signature made for another purpose never fits here.
_CONTEXT = b"forethought federation frame 1\n"


# A proof that a member signed a frame: its header, the hash of its payload, its signature. Whoever
# got the frame can show it to anybody, its sender first of all.
PROOF_BYTES = HEADER_BYTES + 32 + SIGNATURE_BYTES


class FrameError(ValueError):
    """Bytes that are no frame of this run. Nothing of the payload was read."""


class ForgeryError(FrameError):
    """A frame whose sender is unknown, or whose signature is not the sender's."""


@dataclass(frozen=True)
class Frame:
    """The content of a frame. Made by :func:`open_frame`: its signature has been verified.

    Args:
        kind: below 256. run: 32 bytes. sender, recipient: places in the roster.
        round, base: see the module.
        payload: not looked at yet.
        digest: 16 bytes of the hash of what is signed, by which the same frame is recognised;
            b"" where it is about to be sealed.
        proof: see :func:`proven`.
    """

    kind: int
    run: bytes
    sender: int
    recipient: int
    round: int
    base: int
    payload: bytes | memoryview
    digest: bytes = b""
    proof: bytes = b""


def hashed(payload: bytes | memoryview) -> bytes:
    """The hash that stands in for a payload in its signature."""
    return blake3(payload).digest()


def seal(frame: Frame, key: Ed25519PrivateKey, payload_hash: bytes | None = None) -> bytes:
    """The frame's bytes, signed. The same frame and key give the same bytes.

    Args:
        payload_hash: :func:`hashed` of the payload, where the same goes to several recipients.

    Raises:
        ValueError: a field of the wrong size.
    """
    if len(frame.run) != RUN_BYTES:
        raise ValueError(f"a run has {RUN_BYTES} bytes, not {len(frame.run)}")
    try:
        header = _HEADER.pack(
            MAGIC,
            VERSION,
            frame.kind,
            0,
            len(frame.payload),
            frame.run,
            frame.sender,
            frame.recipient,
            frame.round,
            frame.base,
        )
    except struct.error as error:
        raise ValueError(f"a number does not fit into a frame's header: {error}") from None
    signature = key.sign(_signed(header, payload_hash or hashed(frame.payload)))
    return b"".join((header, frame.payload, signature))


def length_of(header: bytes | memoryview, limits: Mapping[int, int]) -> int:
    """Length of a whole frame, from its first :data:`HEADER_BYTES`; allocates nothing for it.

    Args:
        header: at least :data:`HEADER_BYTES` bytes.
        limits: kind → most bytes of payload; other kinds are refused.

    Raises:
        FrameError: no header, another version, a kind that is not expected, or too long.
    """
    if len(header) < HEADER_BYTES:
        raise FrameError(f"truncated: {len(header)} bytes, a header has {HEADER_BYTES}")
    magic, version, kind, reserved, length = _HEADER.unpack_from(header)[:5]
    if magic != MAGIC:
        raise FrameError("no frame: it does not begin as one")
    if version != VERSION:
        raise FrameError(f"version {version} of the frame; this library speaks {VERSION}")
    if reserved:
        raise FrameError("reserved bytes of the header are not zero")
    if kind not in limits:
        raise FrameError(f"kind {kind} is not expected from there: {sorted(limits)} are")
    if length > limits[kind]:
        raise FrameError(
            f"the header says {length} bytes of payload; kind {kind} has at most {limits[kind]}"
        )
    return OVERHEAD + int(length)


def open_frame(
    data: bytes, run: bytes, me: int, senders: Mapping[int, bytes], limits: Mapping[int, int]
) -> Frame:
    """Verify a frame and hand it over; nothing is changed.

    Args:
        data: exactly one frame.
        run: the run's 32 bytes.
        me: for whom it must be.
        senders: place in the roster → Ed25519 public key (32 bytes) of those who may send to us.
        limits: kind → most bytes of payload.

    Raises:
        FrameError: truncated, oversized, a lying length, another version, kind, run or recipient.
        ForgeryError: an unknown sender, or a signature that does not fit.
    """
    length = length_of(data, limits)
    if len(data) != length:
        raise FrameError(f"{len(data)} bytes, where the header says {length}")
    _, _, kind, _, size, its_run, sender, recipient, round_, base = _HEADER.unpack_from(data)
    if sender not in senders:
        raise ForgeryError(f"unknown sender {sender}: nobody in the roster who may send to us")
    view = memoryview(data)
    payload = view[HEADER_BYTES : HEADER_BYTES + size]
    signed, signature = _signed(view[:HEADER_BYTES], hashed(payload)), view[-SIGNATURE_BYTES:]
    try:
        _public(senders[sender]).verify(bytes(signature), signed)
    except InvalidSignature:
        raise ForgeryError(
            f"the signature is not that of {sender}: forged, or changed on its way"
        ) from None
    if its_run != run:
        raise FrameError(f"it belongs to run {its_run.hex()[:16]}, this is {run.hex()[:16]}")
    if recipient != me:
        raise FrameError(f"it is for {recipient}, not for {me}")
    digest = blake3(signed).digest(length=16)
    proof = signed[len(_CONTEXT) :] + bytes(signature)
    return Frame(kind, its_run, sender, recipient, round_, base, payload, digest, proof)


def proven(proof: bytes, run: bytes, member: int, public_key: bytes) -> int:
    """The number of updates that a member signed for in a frame of this run; 0: it did not.

    Args:
        proof: header, hash of the payload and signature of a frame whose kind ``COUNTS``: its round
            is the number of updates in its sender's ledger.
        member: its place. public_key: its Ed25519 key, 32 bytes.
    """
    if len(proof) != PROOF_BYTES:
        return 0
    magic, version, kind, _, _, its_run, sender, _, round_, _ = _HEADER.unpack_from(proof)
    counts = getattr(KINDS.get(kind), "COUNTS", False)
    if (magic, version, its_run, sender, counts) != (MAGIC, VERSION, run, member, True):
        return 0
    try:
        signature = proof[-SIGNATURE_BYTES:]
        _public(public_key).verify(signature, _CONTEXT + proof[:-SIGNATURE_BYTES])
    except InvalidSignature:
        return 0
    return int(round_)


def _signed(header: bytes | memoryview, payload_hash: bytes) -> bytes:
    return b"".join((_CONTEXT, header, payload_hash))


@lru_cache(maxsize=4096)
def _public(key: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(key)


# Messages in signed frames, and back: verified first, then decoded, then judged.
#
# What a message must look like follows from the run: its kind from who sends it, its vectors'
# length and precision from the model, its norm from what honest noise can reach. A frame that fails
# at any step raises, and has changed nothing.


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

    ``digest``: 16 bytes by which the same frame is recognised. ``proof``: see :func:`proven`.
    """

    sender: int
    message: Any
    digest: bytes
    proof: bytes


def judged(
    number: int,
    payload: bytes | memoryview,
    parameters: int,
    largest: Callable[[Any], float],
    given: Mapping[str, int] | None = None,
) -> Any:
    """The message of a payload, held against what an honest one can be.

    Args:
        number: of its kind. parameters: length of a model's vector.
        largest: the largest norm that an honest message's vector can have, of the message.
        given: fields that are not in the payload.

    Raises:
        DecodeError: no such message: another kind, shape or precision, not finite, or too large.
    """
    kind = KINDS.get(number)
    if kind is None:
        raise DecodeError(f"message kind {number} is unknown here")
    message = decode(kind, payload, given)
    for name, type_ in layout(kind):
        if type_ in ("float32", "packed"):
            vector, what = getattr(message, name), f"{kind.__name__}.{name}"
            if len(vector) != parameters:
                raise DecodeError(
                    f"{what} has {len(vector)} entries, the model has {parameters} parameters"
                )
            # NaN and ∞ go through a sum of squares; in double precision nothing finite gives them.
            with np.errstate(over="ignore", invalid="ignore"):
                square = float(np.dot(vector, vector))
            if not math.isfinite(square):
                square = float(np.dot(vector.astype(np.float64), vector.astype(np.float64)))
            if not math.isfinite(square):
                raise DecodeError(f"{what} holds NaN or ∞")
            most = largest(message)
            if math.sqrt(square) > most * (1 + 1e-3):  # the sum of squares was in single precision
                raise DecodeError(
                    f"{what} has norm {math.sqrt(square):.3g}; an honest one stays below {most:.3g}"
                )
    return message


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
    # The most updates that this member signed for since it was started, or was shown a proof of.
    _counted: list[int] = field(default_factory=lambda: [0], init=False, repr=False)

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
        if getattr(message, "COUNTS", False):
            self._counted[0] = max(self._counted[0], message.round)
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
                beyond what honest noise can reach, or a claim on this member without proof.
        """
        frame = open_frame(data, self.run_id, self.me, self.public_keys, self.limits)
        kind: Any = KINDS[frame.kind]
        given = {"round": frame.round, "base": frame.base}
        try:
            if frame.round < 0 or frame.base < getattr(kind, "LEAST_BASE", -1):
                raise DecodeError(
                    f"round {frame.round} on version {frame.base}: neither is negative"
                )
            most = partial(self.largest, frame.sender)
            message = judged(frame.kind, frame.payload, self.parameters, most, given)
            self._require_proof(message)
        except DecodeError as error:
            error.frame = frame
            raise
        return Opened(frame.sender, message, frame.digest, frame.proof)

    def _require_proof(self, message: Any) -> None:
        """Refuse a message that says it knows of updates which this member never signed for."""
        claimed = getattr(message, "known", 0)
        if claimed <= self._counted[0]:
            return
        own = self.key.public_key().public_bytes_raw()
        shown = proven(message.proof, self.run_id, self.me, own)
        if shown < claimed:
            raise DecodeError(
                f"it says that it knows of {claimed} updates of this member, and shows no "
                "signature of this member on so many: a lie, or a frame that it did not keep"
            )
        self._counted[0] = shown

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
