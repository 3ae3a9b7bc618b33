"""Vectors that need fewer bytes than they have: half of every number is zero, or most numbers are.

Lossless: which form a vector takes follows from its bits, and reading gives the same bits. Nobody
has to agree on anything. A vector whose numbers are all bfloat16 takes two bytes each; one that is
mostly zero takes eight for each number that is not, its place with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.messages import Vector

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
