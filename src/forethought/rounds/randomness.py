"""One source of randomness per purpose, each round's values a function of (secret, round).

A stream is AES-128 in counter mode (FIPS 197, NIST SP 800-38A), whose key is hashed from a 256-bit
secret and the name of the purpose, and whose 128-bit counter begins at the round's number times
2⁶⁴. So any round can be drawn again exactly as it was, in any order, and nothing but the secrets
has to be stored. Uniform bits become normal numbers by NumPy's ziggurat, whose tail beyond 3.65 is
sampled by itself (Marsaglia and Tsang 2000), in double precision.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, replace

import numpy as np
from randomgen import AESCounter

SECRET_BYTES = 32


class Stream:
    """Random numbers for one purpose.

    Args:
        secret: 32 bytes; whoever knows them can draw the same numbers.
        purpose: its name; streams of different purposes are independent under one secret.
    """

    def __init__(self, secret: bytes, purpose: str) -> None:
        digest = hashlib.blake2b(purpose.encode(), key=secret, digest_size=16).digest()
        self._bits = AESCounter(key=np.frombuffer(digest, dtype=np.uint64))
        self._start = self._bits.state
        # Four blocks are made at a time: their counters, low word first. The upper words are the
        # index, so that two indices never share a block.
        counters = self._start["s"]["counter"]
        counters[0::2] = range(4)
        self._upper = counters[1::2]
        self._generator = np.random.Generator(self._bits)

    def at(self, index: int) -> np.random.Generator:
        """The generator set to the beginning of ``index``'s numbers (2⁶⁴ blocks of 16 bytes).

        The same object is handed out every time: draw what is needed before the next call.
        """
        self._upper[:] = index
        self._bits.state = self._start
        return self._generator


def seed_of(secret: bytes, purpose: str, index: int) -> int:
    """A seed below 2⁶³ for ``index``, for generators that are seeded rather than drawn from."""
    content = purpose.encode() + index.to_bytes(8, "little")
    digest = hashlib.blake2b(content, key=secret, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def salted_secret(secret: bytes, salt: bytes) -> bytes:
    """A secret of its own for each ``salt``; without ``secret`` nobody can tell it from chance."""
    return hashlib.blake2b(b"salt" + salt, key=secret, digest_size=SECRET_BYTES).digest()


@dataclass(frozen=True)
class Seeds:
    """Numbers that a person chose instead of the operating system's entropy.

    Args:
        sampling: of batches, groups and dropout. Then no amplification by sampling is claimed.
        noise: of all noise. Then nothing is guaranteed: whoever finds it can subtract the noise.

    Raises:
        TypeError, ValueError: a seed that is no whole number of at least 0.
    """

    sampling: int | None = None
    noise: int | None = None

    def __post_init__(self) -> None:
        for name, seed in (("seed", self.sampling), ("noise_seed", self.noise)):
            if seed is None:
                continue
            if isinstance(seed, bool) or not hasattr(seed, "__index__"):
                raise TypeError(f"{name} must be a whole number or None, not {seed!r}")
            if seed < 0:
                raise ValueError(f"{name} must be at least 0, not {seed}")

    def part(self, index: int) -> Seeds:
        """Seeds for part ``index`` of something seeded; None stays the system's entropy."""
        return Seeds(_derived(self.sampling, index), _derived(self.noise, index))


def _derived(seed: int | None, index: int) -> int | None:
    if seed is None:
        return None
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True)
class Secrets:
    """The two secrets of a run, and which of them a person chose.

    Both are needed to keep the guarantee: an attacker who knows the noise can subtract it, and
    one who knows the sampling takes away its amplification.
    """

    sampling: bytes
    noise: bytes
    seeded_sampling: bool = False
    seeded_noise: bool = False

    @classmethod
    def draw(cls, seeds: Seeds) -> Secrets:
        """Secrets from the operating system's entropy, or from a seed where one is given."""
        return cls(
            sampling=_secret("seed", seeds.sampling),
            noise=_secret("noise_seed", seeds.noise),
            seeded_sampling=seeds.sampling is not None,
            seeded_noise=seeds.noise is not None,
        )

    def of(self, holder: int) -> Secrets:
        """One holder's own secrets, where one simulation draws for all of them."""
        name = holder.to_bytes(8, "little")
        return replace(
            self,
            sampling=salted_secret(self.sampling, name),
            noise=salted_secret(self.noise, name),
        )


def _secret(name: str, seed: int | None) -> bytes:
    if seed is None:
        return secrets.token_bytes(SECRET_BYTES)
    # The name is hashed in, so that seed=1 and noise_seed=1 are different secrets.
    return hashlib.blake2b(f"{name}:{int(seed)}".encode(), digest_size=SECRET_BYTES).digest()
