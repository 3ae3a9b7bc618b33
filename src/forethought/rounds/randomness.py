"""One source of randomness per purpose, each round's values a function of (secret, round).

A stream is a Philox counter generator (Salmon et al. 2011) whose 128-bit key is hashed from a
256-bit secret and the name of the purpose, and whose counter starts at the round's number. So any
round can be drawn again exactly as it was, in any order, and nothing but the secrets has to be
stored. Philox passes all statistical tests but is not a cryptographic generator.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

import numpy as np

SECRET_BYTES = 32


class Stream:
    """Random numbers for one purpose.

    Args:
        secret: 32 bytes; whoever knows them can draw the same numbers.
        purpose: its name; streams of different purposes are independent under one secret.
    """

    def __init__(self, secret: bytes, purpose: str) -> None:
        digest = hashlib.blake2b(purpose.encode(), key=secret, digest_size=16).digest()
        self._bits = np.random.Philox(key=np.frombuffer(digest, dtype=np.uint64))
        self._start = self._bits.state
        self._generator = np.random.Generator(self._bits)

    def at(self, index: int) -> np.random.Generator:
        """The generator set to the beginning of ``index``'s numbers (2²⁵⁶⁻⁶⁴ blocks of them).

        The same object is handed out every time: draw what is needed before the next call.
        """
        # The counter's top word is the index, so that two indices never share a block.
        self._start["state"]["counter"][:] = (0, 0, 0, index)
        self._bits.state = self._start
        return self._generator


@dataclass(frozen=True)
class Secrets:
    """The two secrets of a run, and whether a person chose one of them.

    Both are needed to keep the guarantee: an attacker who knows the noise can subtract it, and
    one who knows the sampling takes away its amplification.
    """

    sampling: bytes
    noise: bytes
    seeded: bool

    @classmethod
    def draw(cls, seed: int | None, noise_seed: int | None) -> Secrets:
        """Secrets from the operating system's entropy, or from a seed where one is given.

        Raises:
            TypeError, ValueError: a seed that is no whole number of at least 0.
        """
        return cls(
            sampling=_secret("seed", seed),
            noise=_secret("noise_seed", noise_seed),
            seeded=seed is not None or noise_seed is not None,
        )


def _secret(name: str, seed: int | None) -> bytes:
    if seed is None:
        return secrets.token_bytes(SECRET_BYTES)
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"{name} must be a whole number or None, not {seed!r}")
    if seed < 0:
        raise ValueError(f"{name} must be at least 0, not {seed}")
    # The name is hashed in, so that seed=1 and noise_seed=1 are different secrets.
    return hashlib.blake2b(f"{name}:{int(seed)}".encode(), digest_size=SECRET_BYTES).digest()
