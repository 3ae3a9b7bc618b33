"""Messages and journal entries as bytes and back: fields in order, each with its type and length.

Types are taken from the class: int (64 bits), str, bytes, and vectors of float32 or int64; one that
is annotated "packed" is shorter where that loses nothing (:mod:`forethought.exchange.packing`).
Nothing in the bytes chooses a class or a type; what does not fit exactly is refused. No pickle.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any, get_args, get_type_hints

import numpy as np

from forethought.exchange.packing import pack, unpack

_NUMBER, _LENGTH = struct.Struct("<q"), struct.Struct("<Q")
_FLOAT = np.dtype("<f4")
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
    """Bytes that are not the message which they are said to be."""


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
    """What :func:`encode` joins, without a copy of the vectors."""
    parts: list[bytes | memoryview] = []
    for name, type_ in _layout_of(value):
        if name in skip:
            continue
        held = getattr(value, name)
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
    view, at = memoryview(payload), 0
    for name, type_ in layout(kind):
        if name in known:
            continue
        what = f"{kind.__name__}.{name}"
        if at >= len(view) or view[at] != _TAGS[type_][0]:
            found = _NAMES.get(view[at], "something else") if at < len(view) else "nothing"
            raise DecodeError(f"{what} is {type_}, here is {found}")
        at += 1
        if at + 8 > len(view):
            raise DecodeError(f"{what} is cut off")
        if type_ == "int":
            (known[name],) = _NUMBER.unpack_from(view, at)
            at += _NUMBER.size
            continue
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        size = length * (_DTYPES[type_].itemsize if type_ in _DTYPES else 1)
        form = b""
        if type_ == "packed":
            if at + 9 > len(view):
                raise DecodeError(f"{what} is cut off")
            form = bytes(view[at : at + 1])
            (size,) = _LENGTH.unpack_from(view, at + 1)
            at += 1 + _LENGTH.size
        if size > len(view) - at:
            raise DecodeError(f"{what} says {length} entries, which are not there")
        content = view[at : at + size]
        at += size
        if type_ == "packed":
            try:
                known[name] = unpack(form, length, content)
            except ValueError as problem:
                raise DecodeError(f"{what}: {problem}") from None
        elif type_ in _DTYPES:
            vector = np.frombuffer(content, _DTYPES[type_]).copy()
            vector.flags.writeable = False
            known[name] = vector
        elif type_ == "bytes":
            known[name] = bytes(content)
        else:
            try:
                known[name] = str(content, "utf-8")
            except UnicodeDecodeError:
                raise DecodeError(f"{what} is no text") from None
    if at != len(view):
        raise DecodeError(f"{len(view) - at} bytes follow the {kind.__name__}")
    return kind(**known)
