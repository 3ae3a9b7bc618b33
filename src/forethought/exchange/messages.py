"""The messages between members: frozen values, their encoding as bytes, and signed frames.

Every message has a ``round`` and a ``base``, which its frame carries in the signed header. Vectors
are one-dimensional contiguous NumPy arrays, never written to after the message was made. Each class
is sent under its number in :data:`KINDS`; a class that is not registered cannot be sent.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, get_args, get_type_hints

import numpy as np
from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray

# The server's number; a client's number is its place in the roster.
SERVER = -1

Vector: TypeAlias = Annotated[NDArray[np.float32], "float32"]
# The same vector, compressed without loss where it compresses.
Packed: TypeAlias = Annotated[NDArray[np.float32], "packed"]
Integers: TypeAlias = Annotated[NDArray[np.int64], "int64"]


@dataclass(frozen=True, slots=True, eq=False)
class Framed:
    """Base class of all messages: two numbers, which the frame carries in its header."""

    round: int
    base: int


@dataclass(frozen=True, slots=True, eq=False)
class Join(Framed):
    """A client reports that it is running; sent on every connection and as a heartbeat.

    Args:
        round: number of updates in the client's ledger, without those that wait for the cadence.
        base: version of the newest model that the client has; -1: none.
        life: number of the client's process, larger in every later process; 0: it has none.
    """

    life: int = 0
    LATER: ClassVar[str] = "life"


@dataclass(frozen=True, slots=True, eq=False)
class Update(Framed):
    """One release of a client: post-processing of noised sums, and nothing else.

    Args:
        round: number of this client's update, from 0. (client, round) identifies a release for
            ever.
        base: version of the model that the update was computed on.
        vector: float32, shape (parameters,): the weights after the local rounds, or a noised mean.
    """

    vector: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Leave(Framed):
    """A client stops for good: its plan is used up, or its owner ends it.

    Args:
        round: see :class:`Join`. base: version of its newest model.
        reason: a short code.
        life: see :class:`Join`. A :class:`Join` of a later process cancels this message.
    """

    reason: str
    life: int = 0
    LATER: ClassVar[str] = "life"


@dataclass(frozen=True, slots=True, eq=False)
class Model(Framed):
    """The global model. For a member of a synchronous cohort also the request to compute on it.

    Args:
        round: number of updates of the *recipient* that are applied.
        base: the model's version. vector: its weights, float32, shape (parameters,).
    """

    vector: Vector


@dataclass(frozen=True, slots=True, eq=False)
class Acknowledgement(Framed):
    """An update is in the server's journal; sent again whenever the update arrives again.

    Args:
        round: number of the update. base: version of the server's model.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Refusal(Framed):
    """An update was not applied, and changed nothing.

    Args:
        round, base: those of the refused update. reason: a short code.
    """

    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Finished(Framed):
    """The last model; nothing follows.

    Args:
        round: number of the recipient's updates that are applied. base: version. vector: weights.
    """

    vector: Vector


Message: TypeAlias = Join | Update | Leave | Model | Acknowledgement | Refusal | Finished

# Number in the frame → class, in their order above. A number is never used for another class.
KINDS: dict[int, type] = dict(enumerate(get_args(Message), start=1))


def register(number: int, kind: type) -> None:
    """Make a dataclass sendable under a number from 32 on.

    Its fields are ``round: int``, ``base: int``, and any of int, str, bytes, :data:`Vector`,
    :data:`Integers`. ``LEAST_BASE`` of the class is the least base that it can have, otherwise -1.

    Raises:
        ValueError: the number is taken by another class, or below 32.
    """
    if number < 32 or KINDS.get(number, kind) is not kind:
        raise ValueError(
            f"message kind {number} is taken or below 32: choose another for {kind.__name__}"
        )
    KINDS[number] = kind


def number_of(value: object, kinds: Mapping[int, type], what: str) -> int:
    """The number of a value's class. Raises ValueError: the class is not registered."""
    for number, kind in kinds.items():
        if type(value) is kind:
            return number
    raise ValueError(f"{type(value).__name__} is no registered {what}")


# Vectors that compress: the lower half of every number is zero, or most numbers are zero.
#
# Lossless: the form follows from the vector's bits, and decoding gives the same bits, so that the
# members need no agreement on it. A vector of bfloat16 numbers takes two bytes a number; a vector
# of mostly zeros takes eight bytes for each other number, four of them for its place.


DENSE, HALVES, SPARSE = b"f", b"h", b"z"
_HALF, _WORD, _FLOAT = np.dtype("<u2"), np.dtype("<u4"), np.dtype("<f4")
# Most entries of a sparse vector per non-zero entry: bounds the memory that a short message can
# make its reader allocate.
MOST_ZEROS = 128
_LOOK = 64


def pack(vector: Vector) -> tuple[bytes, bytes | memoryview]:
    """(form, bytes) of a float32 vector; the bytes of form DENSE are the vector's, not a copy."""
    held = np.ascontiguousarray(vector, dtype=_FLOAT)
    bits = held.view(_WORD)
    first = bits[:_LOOK]
    if not (first & 0xFFFF).any() and len(bits) > 1 and not (bits & 0xFFFF).any():
        halves = (bits >> 16).astype(_HALF)
        if 4 * np.count_nonzero(halves) >= len(halves):
            return HALVES, halves.tobytes()
    # The first numbers show whether the search through the whole vector is worth its time.
    if 2 * np.count_nonzero(first) <= len(first) and len(bits) > 1:
        places = np.flatnonzero(bits)
        if 3 * len(places) < len(bits) <= MOST_ZEROS * len(places):
            return SPARSE, places.astype(_WORD).tobytes() + held[places].tobytes()
    return DENSE, memoryview(held).cast("B")  # type: ignore[arg-type]


def unpack(form: bytes, length: int, content: bytes | memoryview) -> Vector:
    """The vector that :func:`pack` was given: float32, shape (length,), read-only.

    Raises:
        ValueError: another number of bytes, or a sparse vector that is far too long, or whose
            places are out of order or range.
    """
    expected = {DENSE: 4 * length, HALVES: 2 * length}.get(form, len(content))
    if form not in (DENSE, HALVES, SPARSE) or len(content) != expected:
        raise ValueError(f"{len(content)} bytes are no vector of {length} numbers")
    if form == DENSE:
        found: Vector = np.frombuffer(content, _FLOAT).copy()
    elif form == HALVES:
        found = widened(np.frombuffer(content, _HALF))
    else:
        count = len(content) // 8
        if len(content) != 8 * count:
            raise ValueError("a sparse vector is cut off")
        places = np.frombuffer(content[: 4 * count], _WORD)
        if length > MOST_ZEROS * count or (count and places[-1] >= length):
            raise ValueError("a sparse vector is longer than it may be, or holds places beyond it")
        if (places[1:] <= places[:-1]).any():
            raise ValueError("places of a sparse vector are out of order")
        found = np.zeros(length, dtype=np.float32)
        found[places] = np.frombuffer(content[4 * count :], _FLOAT)
    found.flags.writeable = False
    return found


def rounded(vector: Vector) -> NDArray[np.uint16]:
    """The upper 16 bits (bfloat16), rounded to nearest, ties to even; finite stays finite."""
    bits = vector.astype(np.float32).view(np.uint32).astype(np.uint64)
    up = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    # Without this the largest finite numbers would round to infinity.
    overflow = ((up & 0x7FFF) == 0x7F80) & np.isfinite(vector)
    return np.where(overflow, up - np.uint64(1), up).astype(_HALF)


def widened(halves: NDArray[Any]) -> Vector:
    """Numbers of 16 bits (bfloat16) as float32."""
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


# Encoding of messages and journal entries: the fields in order, each with its type and length.
#
# The class gives the types: int (64 bits), str, bytes, and vectors of float32 or int64; a vector
# annotated "packed" is compressed without loss (see above). The bytes cannot choose a class or a
# type; bytes that do not fit the class exactly are refused. No pickle.


_NUMBER, _LENGTH = struct.Struct("<q"), struct.Struct("<Q")
_DTYPES: dict[str, np.dtype[Any]] = {"float32": _FLOAT, "packed": _FLOAT, "int64": np.dtype("<i8")}
_FLOATS = ("float32", "packed")
# First byte of a field: its type, so that a vector of another precision is recognised.
_TAGS = {"int": b"i", "str": b"s", "bytes": b"b", "float32": b"f", "packed": b"p", "int64": b"l"}
_NAMES = {tag[0]: name for name, tag in _TAGS.items()}
# Most bytes of a text and of a byte string in a message from another member.
MOST_TEXT, MOST_BYTES = 1024, 1 << 20


class DecodeError(ValueError):
    """Bytes that do not encode a message of the expected class.

    Attributes:
        frame: the frame that carried the bytes, its signature verified; None: there was none.
    """

    frame: Any = None


@lru_cache(maxsize=256)
def layout(kind: type) -> tuple[tuple[str, str], ...]:
    """(field, type) of a class's fields in order.

    Raises:
        TypeError: a field of a type that cannot be sent.
    """
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for one in fields(kind):
        hint = hints[one.name]
        words = get_args(hint)
        name = words[-1] if words and isinstance(words[-1], str) else getattr(hint, "__name__", "")
        if name not in _TAGS:
            raise TypeError(f"{kind.__name__}.{one.name}: no {hint} can be sent: see register()")
        found.append((one.name, name))
    return tuple(found)


def largest(kind: type, parameters: int, skip: tuple[str, ...] = ()) -> int:
    """Most bytes of payload of a message of this class.

    Args:
        parameters: length of the longest vector. skip: fields that are not in the payload.
    """
    sizes = {
        "int": 1 + _NUMBER.size,
        "str": 1 + _LENGTH.size + MOST_TEXT,
        "bytes": 1 + _LENGTH.size + MOST_BYTES,
        "float32": 1 + _LENGTH.size + 4 * parameters,
        "packed": 2 + 2 * _LENGTH.size + 4 * parameters,
        "int64": 1 + _LENGTH.size + 8 * parameters,
    }
    return sum(sizes[type_] for name, type_ in layout(kind) if name not in skip)


def encode(value: Any, skip: tuple[str, ...] = ()) -> bytes:
    """The bytes of a dataclass's fields, without those in ``skip``.

    Raises:
        TypeError, ValueError: a field whose value is not of the type that the class declares.
    """
    return b"".join(parts_of(value, skip))


def parts_of(value: Any, skip: tuple[str, ...] = ()) -> list[bytes | memoryview]:
    """The parts that :func:`encode` joins, without a copy of the vectors."""
    parts: list[bytes | memoryview] = []
    later = getattr(value, "LATER", "")  # a field added after 0.2.0: left out while it is empty
    kind: type = type(value)
    for name, type_ in layout(kind):
        held = getattr(value, name)
        if name in skip or (name == later and not held):
            continue
        parts.append(_TAGS[type_])
        if type_ == "int":
            parts.append(_NUMBER.pack(held))
        elif type_ in _DTYPES:
            if held.ndim != 1 or held.dtype != _DTYPES[type_]:
                raise ValueError(
                    f"{kind.__name__}.{name} is {held.ndim}-D {held.dtype}, not {type_}"
                )
            parts.append(_LENGTH.pack(len(held)))
            if type_ == "packed":
                form, content = pack(held)
                parts += [form, _LENGTH.pack(len(content)), content]
                continue
            parts.append(memoryview(np.ascontiguousarray(held)).cast("B"))  # type: ignore[arg-type]
        else:
            content = held.encode() if type_ == "str" else bytes(held)
            parts += [_LENGTH.pack(len(content)), content]
    return parts


def decode(
    kind: type,
    payload: bytes | memoryview,
    given: Mapping[str, int] | None = None,
    parameters: int | None = None,
) -> Any:
    """The inverse of :func:`encode`.

    Args:
        given: values of the fields that are not in the payload.
        parameters: length of every float32 vector, checked before it is made; None: any length.

    Raises:
        DecodeError: the bytes are not exactly one such message.
    """
    known: dict[str, Any] = dict(given or {})
    content, later = _Content(payload, parameters), getattr(kind, "LATER", "")
    for name, type_ in layout(kind):
        if name in known or (name == later and not content.left):
            continue
        known[name] = content.field(type_, f"{kind.__name__}.{name}")
        if name == later and not known[name]:
            raise DecodeError(f"{kind.__name__}.{name} is empty, and is left out then")
    if content.left:
        raise DecodeError(f"{content.left} bytes follow the {kind.__name__}")
    return kind(**known)


class _Content:
    """A reader of bytes, from their beginning to their end."""

    def __init__(self, payload: bytes | memoryview, parameters: int | None) -> None:
        self._rest, self._parameters = memoryview(payload), parameters

    @property
    def left(self) -> int:
        """Number of bytes that were not read yet."""
        return len(self._rest)

    def field(self, type_: str, what: str) -> Any:
        """The value of the next field; ``what`` names the field in error messages."""
        tag = bytes(self._rest[:1])
        if tag != _TAGS[type_]:
            found = _NAMES.get(tag[0], "something else") if tag else "nothing"
            raise DecodeError(f"{what} is {type_}, here is {found}")
        self._take(1, what)
        if type_ == "int":
            return self._number(_NUMBER, what)
        length = self._number(_LENGTH, what)
        if type_ == "packed":
            form = bytes(self._take(1, what))
            size = self._number(_LENGTH, what)
        else:
            size = length * (_DTYPES[type_].itemsize if type_ in _DTYPES else 1)
        content = self._take(size, what)
        if type_ in _FLOATS and self._parameters not in (None, length):
            raise DecodeError(
                f"{what} has {length} entries, the model has {self._parameters} parameters"
            )
        match type_:
            case "packed":
                try:
                    return unpack(form, length, content)
                except ValueError as problem:
                    raise DecodeError(f"{what}: {problem}") from None
            case "bytes":
                return bytes(content)
            case "str":
                try:
                    return str(content, "utf-8")
                except UnicodeDecodeError:
                    raise DecodeError(f"{what} is no text") from None
        vector = np.frombuffer(content, _DTYPES[type_]).copy()
        vector.flags.writeable = False
        return vector

    def _number(self, form: struct.Struct, what: str) -> int:
        return int(form.unpack(self._take(form.size, what))[0])

    def _take(self, size: int, what: str) -> memoryview:
        if size > self.left:
            raise DecodeError(f"{what} is cut off: {size} bytes of it are not there")
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


# A signed frame: one fixed header, the payload, one signature. It is verified, then decoded, then
# checked.
#
# Layout (little-endian), :data:`OVERHEAD` bytes around the payload::
#
#     magic      4   b"FTHX"
#     version    1   1
#     kind       1   class of the message, see KINDS; it limits the payload's length
#     reserved   2   0
#     length     8   bytes of payload
#     run        32  hash of plans, architecture and roster
#     sender     8   place in the roster; -1: the server
#     recipient  8   place of the recipient, or -1; every other member refuses the frame
#     round      8
#     base       8   version of the global model that the message is about
#     payload    length
#     signature  64  Ed25519 (RFC 8032) over context, header and the BLAKE3 hash of the payload
#
# The payload is not decoded before the signature has been verified, and no memory is allocated for
# it before its length was checked. The signature covers the payload's hash in place of the payload
# because Ed25519 reads its input twice, with a slower hash; a second payload of the same hash would
# be a collision of BLAKE3.


MAGIC, VERSION = b"FTHX", 1
_HEADER = struct.Struct("<4sBBHQ32sqqqq")
HEADER_BYTES, SIGNATURE_BYTES, RUN_BYTES = _HEADER.size, 64, 32
OVERHEAD = HEADER_BYTES + SIGNATURE_BYTES
# Prefix of the signed bytes, so that a signature made for another purpose is never valid here.
_CONTEXT = b"forethought federation frame 1\n"


# Length of a proof that a member signed a frame: header, hash of the payload, signature. Every
# recipient of the frame can show the proof to others, also to the frame's sender.
PROOF_BYTES = HEADER_BYTES + 32 + SIGNATURE_BYTES


class FrameError(ValueError):
    """Bytes that are no valid frame of this run. The payload was not decoded."""


class ForgeryError(FrameError):
    """A frame whose sender is unknown, or whose signature is not the sender's."""


@dataclass(frozen=True)
class Frame:
    """The content of a frame. Made by :func:`open_frame`: its signature has been verified.

    Args:
        kind: below 256. run: 32 bytes. sender, recipient: places in the roster.
        round, base: see the module.
        payload: not decoded yet.
        digest: 16 bytes of the hash of the signed bytes, by which the same frame is recognised;
            b"" in a frame that is not sealed yet.
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

    @property
    def given(self) -> dict[str, int]:
        """The fields of its message that the header carries."""
        return {"round": self.round, "base": self.base}


def hashed(payload: bytes | memoryview) -> bytes:
    """The hash that the signature covers in place of the payload: BLAKE3, 32 bytes."""
    return blake3(payload).digest()


def seal(frame: Frame, key: Ed25519PrivateKey, payload_hash: bytes | None = None) -> bytes:
    """The frame's bytes, signed. The same frame and key give the same bytes.

    Args:
        payload_hash: :func:`hashed` of the payload, computed once for several recipients; None:
            it is computed here.

    Raises:
        ValueError: a field of the wrong size.
    """
    if len(frame.run) != RUN_BYTES:
        raise ValueError(f"a run has {RUN_BYTES} bytes, not {len(frame.run)}")
    try:
        about = frame.run, frame.sender, frame.recipient, frame.round, frame.base
        header = _HEADER.pack(MAGIC, VERSION, frame.kind, 0, len(frame.payload), *about)
    except struct.error as error:
        raise ValueError(f"a number does not fit into a frame's header: {error}") from None
    signature = key.sign(_signed(header, payload_hash or hashed(frame.payload)))
    return b"".join((header, frame.payload, signature))


def length_of(header: bytes | memoryview, limits: Mapping[int, int]) -> int:
    """Length of a whole frame in bytes, read from its header; allocates nothing for the payload.

    Args:
        header: at least :data:`HEADER_BYTES` bytes.
        limits: kind → most bytes of payload; other kinds are refused.

    Raises:
        FrameError: no header, another version, an unexpected kind, or a payload that is too long.
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
    """Verify a frame and return it; no state is changed.

    Args:
        data: exactly one frame.
        run: the run's 32 bytes.
        me: the place of the recipient that the frame must name.
        senders: place in the roster → Ed25519 public key (32 bytes) of the permitted senders.
        limits: kind → most bytes of payload.

    Raises:
        FrameError: truncated, oversized, a wrong length, another version, kind, run or recipient.
        ForgeryError: an unknown sender, or a signature that is not the sender's.
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
    """The number of updates that a member signed for in a frame of this run; 0: no valid proof.

    Args:
        proof: header, hash of the payload and signature of a frame whose class has ``COUNTS`` set:
            its round is the number of updates in its sender's ledger.
        member: the member's place. public_key: its Ed25519 key, 32 bytes.
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


# Messages in signed frames: a frame is verified, then decoded, then checked.
#
# The run says which messages are valid: the sender determines the kinds, the model the length and
# precision of vectors, and the honest noise the largest norm. A frame that fails at any step raises
# and changes no state.


_IN_HEADER = ("round", "base")
_FROM_CLIENTS = (Join, Update, Leave)
_FROM_SERVER = (Model, Acknowledgement, Refusal, Finished)
# Vectors of registered kinds may be longer than the model's by this factor: a rotation pads them to
# a power of two, and counts are appended.
_PADDING = 2


# No training survives a step of this length. Its square still fits into single precision, so that
# computing with a vector that was opened here does not overflow.
MOST_NORM = 1e18


class Opened(NamedTuple):
    """A frame that was verified, decoded and checked.

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
    """Decode a payload and check that an honest member can have sent this message.

    Args:
        number: of the message's kind. parameters: length of a model's vector.
        largest: message → the largest norm that its vector can have if its sender is honest.
        given: values of the fields that are not in the payload.

    Raises:
        DecodeError: another kind, shape or precision, not finite, or too large.
    """
    kind = KINDS.get(number)
    if kind is None:
        raise DecodeError(f"message kind {number} is unknown here")
    message = decode(kind, payload, given, parameters)
    for name, type_ in layout(kind):
        if type_ in _FLOATS:
            vector, what = getattr(message, name), f"{kind.__name__}.{name}"
            # NaN and ∞ carry over to the sum of squares; finite entries may overflow it in single
            # precision, but not in double precision.
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
    """One member of one run: seals the messages that it sends and opens those that it receives.

    Args:
        run_id: 32 bytes: the hash of plans, architecture and roster.
        me: the member's place in the roster.
        key: the member's signing key.
        public_keys: place → Ed25519 public key (32 bytes) of every permitted sender.
        parameters: length of a model's vector.
        largest: (sender, message) → the largest norm that an honest message's vector can have;
            by default :data:`MOST_NORM`; the server's machine then checks a tighter bound.
    """

    run_id: bytes
    me: int
    key: Ed25519PrivateKey
    public_keys: Mapping[int, bytes]
    parameters: int
    largest: Callable[[int, Any], float] = lambda sender, message: MOST_NORM
    _last: dict[str, tuple[Any, bytes, bytes]] = field(default_factory=dict, init=False, repr=False)
    _limits: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    # The most updates that this member signed for since it was started, or received a proof of.
    _counted: list[int] = field(default_factory=lambda: [0], init=False, repr=False)

    @property
    def limits(self) -> dict[int, int]:
        """Kind that this member accepts → most bytes of its payload."""
        wrong = _FROM_SERVER if self.me == SERVER else _FROM_CLIENTS
        if len(self._limits) != len(KINDS) - len(wrong):  # first, or another kind was registered
            for number, kind in KINDS.items():
                if kind not in wrong:
                    longest = self.parameters * (1 if number < 32 else _PADDING)
                    self._limits[number] = largest(kind, longest, _IN_HEADER)
        return self._limits

    @property
    def most_bytes(self) -> int:
        """Length in bytes of the longest frame that this member accepts."""
        return OVERHEAD + max(self.limits.values())

    def seal(self, to: int, message: Any) -> bytes:
        """A message's signed frame; the same message gives the same bytes.

        Args:
            to: the recipient's place. message: of a class in :data:`KINDS`.

        Raises:
            ValueError: a class that is not registered, or fields that do not fit.
        """
        number = number_of(message, KINDS, "message")
        if getattr(message, "COUNTS", False):
            self._counted[0] = max(self._counted[0], message.round)
        payload, payload_hash = self._payload(message)
        frame = Frame(number, self.run_id, self.me, to, message.round, message.base, payload)
        return seal(frame, self.key, payload_hash)

    def _payload(self, message: Any) -> tuple[bytes, bytes]:
        """Payload and hash; those of a model are cached, because it goes to many clients."""
        if not isinstance(message, Model | Finished):
            payload = encode(message, _IN_HEADER)
            return payload, hashed(payload)
        kept = self._last.get("model")
        if kept is None or kept[0] is not message.vector:
            payload = encode(message, _IN_HEADER)
            kept = self._last["model"] = (message.vector, payload, hashed(payload))
        return kept[1], kept[2]

    def open(self, data: bytes) -> Opened:
        """Verify, decode and check a received frame.

        Raises:
            FrameError: see :func:`~forethought.exchange.messages.open_frame`. DecodeError: a signed
                payload that is no valid message of this run: other shape or precision, not finite,
                a norm that honest noise cannot reach, or a claim about this member without proof.
        """
        frame = open_frame(data, self.run_id, self.me, self.public_keys, self.limits)
        kind: Any = KINDS[frame.kind]
        try:
            if frame.round < 0 or frame.base < getattr(kind, "LEAST_BASE", -1):
                raise DecodeError(
                    f"round {frame.round} on version {frame.base}: neither is negative"
                )
            most = partial(self.largest, frame.sender)
            message = judged(frame.kind, frame.payload, self.parameters, most, frame.given)
            self._require_proof(message)
        except DecodeError as error:
            error.frame = frame
            raise
        return Opened(frame.sender, message, frame.digest, frame.proof)

    def _require_proof(self, message: Any) -> None:
        """Refuse a message that claims updates of this member which it never signed for."""
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
        """The message of a frame that this member sealed itself for the recipient ``to``.

        Raises:
            FrameError, DecodeError: the bytes are no such frame.
        """
        own = {self.me: self.key.public_key().public_bytes_raw()}
        kinds = {number: len(data) for number in KINDS}
        frame = open_frame(data, self.run_id, to, own, kinds)
        return decode(KINDS[frame.kind], frame.payload, frame.given)
