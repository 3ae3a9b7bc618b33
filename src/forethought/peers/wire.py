"""A message between workers that share a cluster: one small header, then the vector as it lies.

No copy, no signature: whoever reaches a worker's sockets inside a cluster is trusted to be who it
says, and what it may send is judged all the same. Between sites frames are signed
(:mod:`forethought.exchange.frame`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.codec import HALVES, DecodeError, layout, pack, widened
from forethought.exchange.messages import KINDS, Vector

Header = NDArray[np.int64]
_MAGIC, _INTS = 0x46544750, 8
# Entries: magic, kind, entries of the vector, whether they are halves, the message's whole numbers.
_NUMBERS = 4
HEADER = _NUMBERS + _INTS
# In place of a kind: a sign of life; the same from a worker that has finished; the last word.
BEAT, FINISHED, BYE = 0, -1, -2
SIGNS = (BEAT, FINISHED, BYE)
# Squares below this are exact enough in single precision; the other allows for their rounding.
_LARGE, _ROUNDING = 1e36, 1 + 1e-3


def sign(kind: int) -> Header:
    """The header of one of the signs."""
    header = np.zeros(HEADER, np.int64)
    header[:2] = _MAGIC, kind
    return header


def encode(message: Any) -> tuple[Header, NDArray[Any] | None]:
    """Header and vector of a registered message: float32, or int16 where all are bfloat16.

    Raises:
        ValueError: not registered, or more than one vector and whole numbers.
    """
    number = next((number for number, kind in KINDS.items() if type(message) is kind), None)
    if number is None:
        raise ValueError(f"{type(message).__name__} is no registered message: see register()")
    kind: type = type(message)
    numbers, vector = _fields(kind)
    header = sign(number)
    for place, name in enumerate(numbers):
        header[_NUMBERS + place] = getattr(message, name)
    if vector is None:
        return header, None
    held: Vector = np.ascontiguousarray(getattr(message, vector), dtype=np.float32)
    header[2] = len(held)
    if dict(layout(kind))[vector] == "packed":
        form, content = pack(held)
        if form == HALVES:
            header[3] = 1
            return header, np.frombuffer(content, np.int16)
    return header, held


def length_of(header: Header, most: int) -> int:
    """Entries of the vector that follows a header; judged before anything is allocated for it.

    Raises:
        DecodeError: no header, an unknown kind, or too long.
    """
    if int(header[0]) != _MAGIC:
        raise DecodeError("no message of this library, or of another version")
    kind, length = int(header[1]), int(header[2])
    if kind in SIGNS:
        return 0
    if kind not in KINDS:
        raise DecodeError(f"message kind {kind} is unknown here")
    if not 0 <= length <= most or int(header[3]) not in (0, 1):
        raise DecodeError(f"a vector of {length} entries, where {most} are the most")
    return length


def halves(header: Header) -> bool:
    """True if the vector that follows a header has entries of 16 bits."""
    return bool(header[3])


def decode(header: Header, vector: NDArray[Any] | None, largest: float) -> Any:
    """The message of a header and the vector behind it.

    Args:
        vector: float32, or int16 where the header says :func:`halves`.
        largest: norm that no honest vector exceeds.

    Raises:
        DecodeError: a vector where there is none or the reverse, NaN, ∞, or too large.
    """
    kind = KINDS[int(header[1])]
    numbers, name = _fields(kind)
    if (name is None) != (vector is None):
        raise DecodeError(f"{kind.__name__} came {'with' if name is None else 'without'} a vector")
    values: dict[str, Any] = {n: int(header[_NUMBERS + place]) for place, n in enumerate(numbers)}
    if name is not None and vector is not None:
        if halves(header):
            vector = widened(vector.view(np.uint16))
        _require_norm(vector, largest, f"{kind.__name__}.{name}")
        vector.flags.writeable = False
        values[name] = vector
    return kind(**values)


def _require_norm(vector: Vector, largest: float, what: str) -> None:
    # NaN and ∞ go through a sum of squares; in double precision nothing finite gives them.
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.dot(vector, vector))
    if not square < _LARGE:
        wide = vector.astype(np.float64)
        square = float(np.dot(wide, wide))
    if not math.isfinite(square):
        raise DecodeError(f"{what} holds NaN or ∞")
    if math.sqrt(square) > largest * _ROUNDING:
        raise DecodeError(f"{what} has norm {math.sqrt(square):.3g}; {largest:g} is the largest")


@lru_cache(maxsize=64)
def _fields(kind: type) -> tuple[tuple[str, ...], str | None]:
    """(names of whole numbers, name of the vector)."""
    types: Mapping[str, str] = dict(layout(kind))
    numbers = tuple(name for name, type_ in types.items() if type_ == "int")
    others = [name for name, type_ in types.items() if type_ != "int"]
    if (
        len(numbers) > _INTS
        or len(others) > 1
        or (others and types[others[0]] not in ("float32", "packed"))
    ):
        raise ValueError(f"{kind.__name__} has more than whole numbers and one vector")
    return numbers, others[0] if others else None
