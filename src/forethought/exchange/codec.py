"""Messages and journal entries as bytes and back, and vectors in fewer bytes than they have."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.messages import Vector

# Vectors that need fewer bytes than they have: half of every number is zero, or most numbers are.
#
# Lossless: which form a vector takes follows from its bits, and reading gives the same bits. Nobody
# has to agree on anything. A vector whose numbers are all bfloat16 takes two bytes each; one that
# is mostly zero takes eight for each number that is not, its place with it.


DENSE, HALVES, SPARSE = b"f", b"h", b"z"
_HALF, _WORD, _FLOAT = np.dtype("<u2"), np.dtype("<u4"), np.dtype("<f4")
# A sparse vector is at most so many times longer than what is said of it: bounds what a short
# message can make its reader allocate.
MOST_ZEROS = 128
_LOOK = 64


def pack(vector: Vector) -> tuple[bytes, bytes | memoryview]:
    """(form, bytes) of a float32 vector; those of DENSE are the vector's own, without a copy."""
    held = np.ascontiguousarray(vector, dtype=_FLOAT)
    bits = held.view(_WORD)
    first = bits[:_LOOK]
    if not (first & 0xFFFF).any() and len(bits) > 1 and not (bits & 0xFFFF).any():
        halves = (bits >> 16).astype(_HALF)
        if 4 * np.count_nonzero(halves) >= len(halves):
            return HALVES, halves.tobytes()
    # Zeros among the first numbers tell whether it is worth looking at all.
    if 2 * np.count_nonzero(first) <= len(first) and len(bits) > 1:
        places = np.flatnonzero(bits)
        if 3 * len(places) < len(bits) <= MOST_ZEROS * len(places):
            return SPARSE, places.astype(_WORD).tobytes() + held[places].tobytes()
    return DENSE, memoryview(held).cast("B")  # type: ignore[arg-type]


def unpack(form: bytes, length: int, content: bytes | memoryview) -> Vector:
    """The vector again, read-only.

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
    """The upper 16 bits, to nearest, ties to even; a finite number stays finite."""
    bits = vector.astype(np.float32).view(np.uint32).astype(np.uint64)
    up = (bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    # The largest numbers would round to infinity.
    overflow = ((up & 0x7FFF) == 0x7F80) & np.isfinite(vector)
    return np.where(overflow, up - np.uint64(1), up).astype(_HALF)


def widened(halves: NDArray[Any]) -> Vector:
    """Numbers of 16 bits as float32."""
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


# Messages and journal entries as bytes and back: fields in order, each with its type and length.
#
# Types are taken from the class: int (64 bits), str, bytes, and vectors of float32 or int64; one
# that is annotated "packed" is shorter where that loses nothing
# (:mod:`forethought.exchange.codec`). Nothing in the bytes chooses a class or a type; what does not
# fit exactly is refused. No pickle.


_NUMBER, _LENGTH = struct.Struct("<q"), struct.Struct("<Q")
_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": _FLOAT,
    "packed": _FLOAT,
    "int64": np.dtype("<i8"),
}
# First byte of a field: its type, so that a vector of another precision is recognised as that.
_TAGS = {"int": b"i", "str": b"s", "bytes": b"b", "float32": b"f", "packed": b"p", "int64": b"l"}
_NAMES = {tag[0]: name for name, tag in _TAGS.items()}
# Most bytes of a text or a byte string in a message that somebody else sent.
MOST_TEXT, MOST_BYTES = 1024, 1 << 20


class DecodeError(ValueError):
    """Bytes that are not the message which they are said to be.

    Attributes:
        frame: whose signature held, where they came in one; else None.
    """

    frame: Any = None


@lru_cache(maxsize=256)
def layout(kind: type) -> tuple[tuple[str, str], ...]:
    """(field, type) of a class's fields in order.

    Raises:
        TypeError: a field of another type.
    """
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in fields(kind):
        hint = hints[field.name]
        words = get_args(hint)
        name = words[-1] if words and isinstance(words[-1], str) else getattr(hint, "__name__", "")
        if name not in _TAGS:
            raise TypeError(
                f"{kind.__name__}.{field.name}: {hint} cannot be sent; int, str, bytes, Vector and "
                "Integers can"
            )
        found.append((field.name, name))
    return tuple(found)


def largest(kind: type, parameters: int, skip: tuple[str, ...] = ()) -> int:
    """Most bytes that a message of this class can take.

    Args:
        parameters: longest vector. skip: fields that are sent elsewhere.
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


def _layout_of(value: object) -> tuple[tuple[str, str], ...]:
    kind: type = type(value)
    return layout(kind)


def encode(value: Any, skip: tuple[str, ...] = ()) -> bytes:
    """The fields of a registered dataclass.

    Raises:
        TypeError, ValueError: a field that is not what the class says.
    """
    return b"".join(parts_of(value, skip))


def parts_of(value: Any, skip: tuple[str, ...] = ()) -> list[bytes | memoryview]:
    """The parts that :func:`encode` joins, without a copy of the vectors."""
    parts: list[bytes | memoryview] = []
    later = getattr(value, "LATER", "")  # came after 0.2.0: left out while it is empty
    for name, type_ in _layout_of(value):
        held = getattr(value, name)
        if name in skip or (name == later and not held):
            continue
        parts.append(_TAGS[type_])
        if type_ == "int":
            parts.append(_NUMBER.pack(held))
        elif type_ in _DTYPES:
            if held.ndim != 1 or held.dtype != _DTYPES[type_]:
                raise ValueError(
                    f"{type(value).__name__}.{name} must be a vector of {type_}, not "
                    f"{held.ndim}-dimensional {held.dtype}"
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


def decode(kind: type, payload: bytes | memoryview, given: Mapping[str, int] | None = None) -> Any:
    """The inverse of :func:`encode`.

    Args:
        given: fields that were sent elsewhere.

    Raises:
        DecodeError: anything but exactly such a message.
    """
    known: dict[str, Any] = dict(given or {})
    content, later = _Content(payload), getattr(kind, "LATER", "")
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
    """Bytes that are read from their beginning to their end."""

    def __init__(self, payload: bytes | memoryview) -> None:
        self._view, self._at = memoryview(payload), 0

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return len(self._view) - self._at

    def field(self, type_: str, what: str) -> Any:
        """The value of a field; ``what`` it is, for a message."""
        tag = bytes(self._view[self._at : self._at + 1])
        if tag != _TAGS[type_]:
            found = _NAMES.get(tag[0], "something else") if tag else "nothing"
            raise DecodeError(f"{what} is {type_}, here is {found}")
        self._at += 1
        if type_ == "int":
            return self._number(_NUMBER, what)
        length = self._number(_LENGTH, what)
        if type_ == "packed":
            form = bytes(self._take(1, f"{what} is cut off"))
            size = self._number(_LENGTH, what)
        else:
            size = length * (_DTYPES[type_].itemsize if type_ in _DTYPES else 1)
        content = self._take(size, f"{what} says {length} entries, which are not there")
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
        (number,) = form.unpack(self._take(form.size, f"{what} is cut off"))
        return int(number)

    def _take(self, size: int, otherwise: str) -> memoryview:
        if size > self.left:
            raise DecodeError(otherwise)
        self._at += size
        return self._view[self._at - size : self._at]
