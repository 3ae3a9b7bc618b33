"""Secrets cut into shares of which some number is needed: Shamir 1979, byte by byte over GF(2⁸).

The field is that of AES (polynomial x⁸ + x⁴ + x³ + x + 1). Fewer shares than the threshold are
independent of the secret. Tables are looked up by secret bytes, so the time may depend on them:
each side runs on its owner's machine, and no attacker of the threat model measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

# The points 1 … 255 of the field.
MOST_SHARES = 255
# So many false shares of one secret are found out.
_MOST_FALSE = 2

_Bytes = NDArray[np.uint8]


def _tables() -> tuple[_Bytes, NDArray[np.int64]]:
    powers = np.zeros(510, np.uint8)
    logarithms = np.zeros(256, np.int64)
    value = 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = value
        logarithms[value] = exponent
        doubled = value << 1
        value ^= doubled ^ (0x11B if doubled & 0x100 else 0)  # times 3, which generates the field
    return powers, logarithms


_POWERS, _LOGARITHMS = _tables()


def _times(one: _Bytes, other: _Bytes) -> _Bytes:
    product = _POWERS[_LOGARITHMS[one] + _LOGARITHMS[other]]
    return np.where((one == 0) | (other == 0), np.uint8(0), product)


def split(
    secret: bytes, points: list[int], threshold: int, entropy: Callable[[int], bytes]
) -> dict[int, bytes]:
    """One share for each point; any ``threshold`` of them give the secret back.

    Args:
        secret: any length. points: different, each from 1 to 255.
        threshold: from 1 to the number of points.
        entropy: n → n uniform secret bytes.

    Raises:
        ValueError: points or threshold outside their range.
    """
    if len(set(points)) < len(points) or not all(1 <= p <= MOST_SHARES for p in points):
        raise ValueError(f"shares go to different points from 1 to {MOST_SHARES}, not {points}")
    if not 1 <= threshold <= len(points):
        raise ValueError(f"a threshold of {threshold} does not go with {len(points)} shares")
    drawn = np.frombuffer(entropy((threshold - 1) * len(secret)), np.uint8)
    higher = drawn.reshape(threshold - 1, len(secret))
    shares = {}
    for point in points:
        at = np.full(1, point, np.uint8)
        value = np.zeros(len(secret), np.uint8)
        for coefficient in higher[::-1]:  # Horner, from the highest power down
            value = _times(value ^ coefficient, at)
        shares[point] = (value ^ np.frombuffer(secret, np.uint8)).tobytes()
    return shares


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, by Lagrange interpolation at 0 of ``threshold`` of the shares.

    Raises:
        ValueError: too few shares, or of different lengths.
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares of {threshold} that are needed")
    chosen = dict(sorted(shares.items())[:threshold])
    if len({len(share) for share in chosen.values()}) != 1:
        raise ValueError("shares of one secret have one length")
    secret = np.zeros(len(next(iter(chosen.values()))), np.uint8)
    for point, share in chosen.items():
        exponent = 0
        for other in chosen:
            if other != point:  # other/(other − point), and minus is plus
                exponent += int(_LOGARITHMS[other]) - int(_LOGARITHMS[other ^ point])
        secret ^= _times(np.frombuffer(share, np.uint8), np.full(1, _POWERS[exponent % 255]))
    return secret.tobytes()


def opened(
    shares: Mapping[int, bytes], threshold: int, right: Callable[[bytes], bool]
) -> tuple[bytes | None, set[int]]:
    """The secret in spite of a false share or two, and which do not go with it; None: not found.

    Args:
        right: whether a secret is the one that was shared.

    Raises:
        ValueError: as :func:`combine`.
    """
    spare = min(len(shares) - threshold, _MOST_FALSE)
    for count in range(max(spare, 0) + 1):
        for left_out in combinations(sorted(shares), count):
            rest = {point: share for point, share in shares.items() if point not in left_out}
            secret = combine(rest, threshold)
            if not right(secret):
                continue
            good = dict(sorted(rest.items())[: threshold - 1])
            others = set(shares) - set(good)
            return secret, {
                point
                for point in others
                if combine({**good, point: shares[point]}, threshold) != secret
            }
    return None, set()
