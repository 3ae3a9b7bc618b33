"""A message on the wire: one fixed header, the payload, one signature.

Layout (little-endian), :data:`OVERHEAD` bytes around the payload::

    magic      4   b"FTHX"
    version    1   1
    kind       1   what the payload is; its sizes are limited by kind
    reserved   2   0
    length     8   bytes of payload
    run        32  hash of plans, architecture and roster
    sender     8   place in the roster; -1: the server
    recipient  8   the same, of whom it is for: nobody else can be given it
    round      8
    base       8   version of the global model that it rests on
    payload    length
    signature  64  Ed25519 (RFC 8032) over context, header and the BLAKE3 hash of the payload

Nothing of the payload is looked at before the signature has been verified, and nothing is allocated
for it before its length has been found allowed. The hash stands in for the payload because Ed25519
itself reads what it signs twice, with a slower hash; a second payload of the same hash is a
collision of BLAKE3.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MAGIC, VERSION = b"FTHX", 1
_HEADER = struct.Struct("<4sBBHQ32sqqqq")
HEADER_BYTES, SIGNATURE_BYTES, RUN_BYTES = _HEADER.size, 64, 32
OVERHEAD = HEADER_BYTES + SIGNATURE_BYTES
# Signed before everything else, so that a signature made for another purpose never fits here.
_CONTEXT = b"forethought federation frame 1\n"


class FrameError(ValueError):
    """Bytes that are no frame of this run. Nothing of the payload was read."""


class ForgeryError(FrameError):
    """A frame whose sender is unknown, or whose signature is not the sender's."""


@dataclass(frozen=True)
class Frame:
    """What a frame says. Made by :func:`open_frame`: its signature has been verified.

    Args:
        kind: below 256. run: 32 bytes. sender, recipient: places in the roster.
        round, base: see the module.
        payload: not looked at yet.
        digest: 16 bytes of the hash of what is signed, by which the same frame is recognised;
            b"" where it is about to be sealed.
    """

    kind: int
    run: bytes
    sender: int
    recipient: int
    round: int
    base: int
    payload: bytes | memoryview
    digest: bytes = b""


def hashed(payload: bytes | memoryview) -> bytes:
    """What stands in for a payload in its signature."""
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
    signed = _signed(view[:HEADER_BYTES], hashed(payload))
    try:
        _public(senders[sender]).verify(bytes(view[-SIGNATURE_BYTES:]), signed)
    except InvalidSignature:
        raise ForgeryError(
            f"the signature is not that of {sender}: forged, or changed on its way"
        ) from None
    if its_run != run:
        raise FrameError(f"it belongs to run {its_run.hex()[:16]}, this is {run.hex()[:16]}")
    if recipient != me:
        raise FrameError(f"it is for {recipient}, not for {me}")
    return Frame(
        kind, its_run, sender, recipient, round_, base, payload, blake3(signed).digest(length=16)
    )


def _signed(header: bytes | memoryview, payload_hash: bytes) -> bytes:
    return b"".join((_CONTEXT, header, payload_hash))


@lru_cache(maxsize=4096)
def _public(key: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(key)
