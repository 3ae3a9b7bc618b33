"""One source of randomness per purpose: batches follow from (secret, round), noise from its sum.

A stream is AES-128 in counter mode (FIPS 197, NIST SP 800-38A), whose key is hashed from a 256-bit
secret and the name of the purpose, and whose 128-bit counter begins at the round's number times
2⁶⁴. So any round can be drawn again exactly as it was, in any order, and nothing but the secrets
has to be stored. Uniform bits become normal numbers by NumPy's ziggurat, whose tail beyond 3.65 is
sampled by itself (Marsaglia and Tsang 2000), in double precision.

Noise never meets two sums (:class:`BoundNoise`): where its counter begins follows from everything
that it is about to hide, as in misuse-resistant encryption (Rogaway and Shrimpton 2006). The
argument is in docs/training.md.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from blake3 import blake3
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

    def at_place(self, place: bytes) -> np.random.Generator:
        """:meth:`at`, with 12 bytes that are the upper ones of the counter (2³² blocks)."""
        counters = b"".join([count + place for count in _FOUR])
        self._start["s"]["counter"] = np.frombuffer(counters, dtype=np.uint64)
        self._bits.state = self._start
        return self._generator


# The lower bytes of the counters of four blocks.
_FOUR = tuple(count.to_bytes(4, "little") for count in range(4))


class BoundNoise:
    """Noise that belongs to what it hides: the same value has the same noise, any other its own.

    Args:
        secret: 32 bytes; whoever knows them can draw the noise again.
        purpose: what the noise is for; purposes are independent under one secret.
    """

    def __init__(self, secret: bytes, purpose: str = "noise") -> None:
        self._stream = Stream(secret, purpose)
        name = b"bound " + purpose.encode()
        self._key = hashlib.blake2b(name, key=secret, digest_size=SECRET_BYTES).digest()

    def bind(self, about: bytes, vector: torch.Tensor) -> bytes:
        """32 bytes that name what is about to be released; they tell nothing without the secret.

        Args:
            about: all that the release depends on besides, as bytes of :func:`encoded`.
            vector: the exact sum before the noise, float64, one dimension. It counts by its bits:
                another zero or another value that is no number is another sum.
        """
        state = blake3(about, key=self._key)
        return state.update(vector.cpu().numpy().view(np.uint8).data).digest()

    def at(self, bound: bytes) -> np.random.Generator:
        """The generator for what :meth:`bind` named (2³² blocks of 16 bytes).

        The same object is handed out every time: draw what is needed before the next call.
        """
        return self._stream.at_place(bound[:12])


def encoded(value: object) -> bytes:
    """Plain values as bytes: equal ones have the same, and no others.

    Args:
        value: None, a number, text, bytes, a tuple or list, or a dataclass of such.

    Raises:
        TypeError: anything else.
    """
    return _written(value).encode()


def _written(value: Any) -> str:
    kind = type(value)
    if kind is float:
        return f"#{(value + 0.0).hex()};"  # zero has one form
    if kind is int and -(2**53) <= value <= 2**53:
        return f"#{float(value).hex()};"
    if value is None:
        return "-"
    if kind is str or kind is bytes:
        return f"{kind.__name__}{len(value)}:{value!r}"
    if kind is tuple or kind is list:
        return f"({len(value)}:{''.join(map(_written, value))}"
    if hasattr(kind, "__dataclass_fields__"):
        return _of_dataclass(value)
    if isinstance(value, Real):
        number = float(value)
        # A whole number that no float is has its digits.
        return _written(number) if number == value else f"#{value};"
    raise TypeError(f"noise cannot be bound to {kind.__name__}: it has no plain form")


def _of_dataclass(value: Any) -> str:
    kind = type(value)
    held = [_written(getattr(value, field.name)) for field in fields(value)]
    return f"{kind.__qualname__}({''.join(held)}"


def seed_of(secret: bytes, purpose: str, index: int) -> int:
    """A seed below 2⁶³ for ``index``, for generators that are seeded rather than drawn from."""
    content = purpose.encode() + index.to_bytes(8, "little")
    digest = hashlib.blake2b(content, key=secret, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def _of_holder(secret: bytes, name: bytes) -> bytes:
    return hashlib.blake2b(b"salt" + name, key=secret, digest_size=SECRET_BYTES).digest()


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
            sampling=_of_holder(self.sampling, name),
            noise=_of_holder(self.noise, name),
        )


def _secret(name: str, seed: int | None) -> bytes:
    if seed is None:
        return secrets.token_bytes(SECRET_BYTES)
    # The name is hashed in, so that seed=1 and noise_seed=1 are different secrets.
    return hashlib.blake2b(f"{name}:{int(seed)}".encode(), digest_size=SECRET_BYTES).digest()
