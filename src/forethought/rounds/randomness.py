"""One stream of random numbers for each purpose, and the noise that is drawn from it.

Batches follow from the secret and the round; noise follows from the secret and the sum that it
hides.

A stream is AES-128 in counter mode (FIPS 197, NIST SP 800-38A). Its key is hashed from a 256-bit
secret and the name of the purpose; its 128-bit counter begins at the round's number times 2⁶⁴. So
any round can be drawn again exactly, in any order, and only the secrets have to be stored. NumPy's
ziggurat turns uniform bits into normal numbers in double precision, and samples the tail beyond
3.65 separately (Marsaglia and Tsang 2000).

The same noise is never added to two different sums (:class:`BoundNoise`): the start of its counter
follows from everything that it will hide, as in misuse-resistant encryption (Rogaway and Shrimpton
2006). The argument is in docs/training.md.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from randomgen import AESCounter

from forethought.values.checks import optional, whole
from forethought.values.mechanism import (
    CyclicPoisson,
    FullBatch,
    Poisson,
    RandomAllocation,
    Sampling,
    Shuffled,
    WithoutReplacement,
)
from forethought.values.plan import NoiseKind, Round, grid
from forethought.values.strategies import Array, Banded, BufferedToeplitz, Strategy

SECRET_BYTES = 32


class Stream:
    """Random numbers for one purpose.

    Args:
        secret: 32 bytes; anyone who knows them can draw the same numbers.
        purpose: the name of the purpose; streams of different purposes are independent under one
            secret.
    """

    def __init__(self, secret: bytes, purpose: str) -> None:
        digest = hashlib.blake2b(purpose.encode(), key=secret, digest_size=16).digest()
        self._bits = AESCounter(key=np.frombuffer(digest, dtype=np.uint64))
        self._start = self._bits.state
        # The generator makes four blocks at a time; these are their counters, low word first. The
        # upper words are the index, so that two indices never share a block.
        counters = self._start["s"]["counter"]
        counters[0::2] = range(4)
        self._upper = counters[1::2]
        self._generator = np.random.Generator(self._bits)

    def at(self, index: int) -> np.random.Generator:
        """The generator, set to the first number of ``index`` (2⁶⁴ blocks of 16 bytes).

        Every call returns the same object: draw all numbers before the next call.
        """
        self._upper[:] = index
        self._bits.state = self._start
        return self._generator

    def at_place(self, place: bytes) -> np.random.Generator:
        """The generator, set to a counter whose upper 12 bytes are ``place`` (2³² blocks)."""
        counters = b"".join([count + place for count in _FOUR])
        self._start["s"]["counter"] = np.frombuffer(counters, dtype=np.uint64)
        self._bits.state = self._start
        return self._generator


# The lower bytes of the counters of four blocks.
_FOUR = tuple(count.to_bytes(4, "little") for count in range(4))


class BoundNoise:
    """Noise that follows from the value it hides: equal values have equal noise, others their own.

    Args:
        secret: 32 bytes; anyone who knows them can draw the noise again.
        purpose: the name of the purpose; purposes are independent under one secret.
        shard: number of the shard of a sum that the noise hides, if each shard has its own noise;
            None: the whole sum.
    """

    def __init__(self, secret: bytes, purpose: str = "noise", shard: int | None = None) -> None:
        self._stream, self._shard = Stream(secret, purpose), shard
        name = b"bound " + purpose.encode()
        self._key = hashlib.blake2b(name, key=secret, digest_size=SECRET_BYTES).digest()

    def bind(self, about: bytes, vector: torch.Tensor) -> bytes:
        """A keyed 32-byte hash of the coming release; it reveals nothing without the secret.

        Args:
            about: everything else that the release depends on, as bytes of :func:`encoded`.
            vector: the exact sum before the noise, float64, one dimension. Its bits are hashed: −0
                and 0 are different sums, and so are different NaNs.
        """
        state = blake3(about, key=self._key)
        return state.update(vector.cpu().numpy().view(np.uint8).data).digest()

    def at(self, bound: bytes) -> np.random.Generator:
        """The generator for the hash ``bound`` of :meth:`bind` (2³² blocks of 16 bytes).

        Every call returns the same object: draw all numbers before the next call.
        """
        if self._shard is not None:
            bound = blake3(encoded((bound, self._shard)), key=self._key).digest()
        return self._stream.at_place(bound[:12])


def encoded(value: object) -> bytes:
    """Plain values as bytes; two values have the same bytes exactly if they are equal.

    Args:
        value: None, a number, text, bytes, a tuple or list, or a dataclass of these.

    Raises:
        TypeError: anything else.
    """
    return _written(value).encode()


def _written(value: Any) -> str:
    kind = type(value)
    if kind is float:
        return f"#{(value + 0.0).hex()};"  # −0 and 0 have one form
    if kind is int and -(2**53) <= value <= 2**53:
        return f"#{float(value).hex()};"
    if value is None:
        return "-"
    if kind is str or kind is bytes:
        return f"{kind.__name__}{len(value)}:{value!r}"
    if kind is tuple or kind is list:
        return f"({len(value)}:{''.join(map(_written, value))}"
    if hasattr(kind, "__dataclass_fields__"):
        held = [_written(getattr(value, field.name)) for field in fields(value)]
        return f"{kind.__qualname__}({''.join(held)}"
    if isinstance(value, Real):
        number = float(value)
        # A whole number that is not exact as a float is written in digits.
        return _written(number) if number == value else f"#{value};"
    raise TypeError(f"noise cannot be bound to {kind.__name__}: it has no plain form")


def seed_of(secret: bytes, purpose: str, index: int) -> int:
    """A seed below 2⁶³ for ``index``, for a generator that takes a seed."""
    content = purpose.encode() + index.to_bytes(8, "little")
    digest = hashlib.blake2b(content, key=secret, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class Seeds:
    """Seeds that a person chose instead of the operating system's entropy.

    Args:
        sampling: seed of batches, groups and dropout. Then no amplification by sampling is claimed.
        noise: seed of all noise. Then nothing is guaranteed: anyone who finds the seed can subtract
            the noise.

    Raises:
        TypeError, ValueError: a seed that is no whole number of at least 0.
    """

    sampling: int | None = None
    noise: int | None = None

    def __post_init__(self) -> None:
        optional(whole, "seed", self.sampling, least=0)
        optional(whole, "noise_seed", self.noise, least=0)

    def part(self, index: int) -> Seeds:
        """Derived seeds for part ``index``; None stays None, the system's entropy."""
        return Seeds(_derived(self.sampling, index), _derived(self.noise, index))


def _derived(seed: int | None, index: int) -> int | None:
    if seed is None:
        return None
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")


@dataclass(frozen=True)
class Secrets:
    """The two secrets of a run, and flags that say which of them follow from a person's seed.

    The guarantee needs both to be secret: an attacker who knows the noise can subtract it, and for
    one who knows the sampling there is no amplification.
    """

    sampling: bytes
    noise: bytes
    seeded_sampling: bool = False
    seeded_noise: bool = False

    @classmethod
    def draw(cls, seeds: Seeds) -> Secrets:
        """Secrets from the operating system's entropy, or from the given seeds."""
        return cls(
            sampling=_secret("seed", seeds.sampling),
            noise=_secret("noise_seed", seeds.noise),
            seeded_sampling=seeds.sampling is not None,
            seeded_noise=seeds.noise is not None,
        )

    def of(self, holder: int) -> Secrets:
        """The secrets of one holder, in a simulation that draws for all holders."""
        name = b"salt" + holder.to_bytes(8, "little")
        sampling, noise = (
            hashlib.blake2b(name, key=secret, digest_size=SECRET_BYTES).digest()
            for secret in (self.sampling, self.noise)
        )
        return replace(self, sampling=sampling, noise=noise)


def _secret(name: str, seed: int | None) -> bytes:
    if seed is None:
        return secrets.token_bytes(SECRET_BYTES)
    # The name is hashed in, so that seed=1 and noise_seed=1 are different secrets.
    return hashlib.blake2b(f"{name}:{int(seed)}".encode(), digest_size=SECRET_BYTES).digest()


# Gaussian noise on a sum of clipped contributions.
#
# Noise is drawn in double precision and rounded once, together with the sum. Floating-point
# rounding can reveal differences between two sums (Mironov 2012); that it does not is an assumption
# of the guarantee.


# Small enough to stay in the first-level cache, large enough that the call costs little.
CHUNK = 1 << 13


class GaussianNoise:
    """Adds N(0, std² I) to vectors, a small buffer at a time."""

    def add_to(self, vector: torch.Tensor, std: float, generator: np.random.Generator) -> None:
        """Add to ``vector`` (one dimension, floating point) in place.

        The numbers are drawn on the CPU, so that a round's noise does not depend on the device.
        """
        size = vector.shape[0]
        # A new buffer for every call: one kept for each of many clients would not be in the cache.
        buffer = np.empty(min(size, CHUNK))
        drawn = torch.from_numpy(buffer)
        for start in range(0, size, CHUNK):
            length = min(CHUNK, size - start)
            generator.standard_normal(out=buffer[:length])
            noise = drawn[:length].to(vector.device)
            vector[start : start + length].add_(noise, alpha=std)


# Noise in whole numbers: discrete Gaussian noise on a fixed grid, exactly sampled.
#
# **Formal guarantee.** A sum that one contribution moves by at most C (in L2 norm) is released with
# at least the privacy of the accounted noise N(0, (σC)²), without any floating-point rounding.
#
# 1. The sum is rounded to multiples of γ = 2ᵏ (exactly: a power of two only shifts exponents) and
#    clamped to ±2⁵¹γ, which increases no distance. Rounding moves each of d coordinates by at most
#    γ/2, so one contribution moves the rounded sum by at most C + √d·γ: *the rounding is charged*.
# 2. The noise is K·γ, K from the discrete Gaussian of parameter s ≥ σ(C + √d·γ)/γ·(1 + 2⁻³⁰), a
#    whole number between 2¹⁸ and 2²⁷. Canonne, Kamath and Steinke (2020), Algorithms 1 to 3, sample
#    it exactly from uniform whole numbers.
# 3. The discrete Gaussian of s is post-processing of a real one. Let y ~ N(0, s² − r²) and draw K
#    from the discrete Gaussian of parameter r around y. By Poisson summation the normalising sum
#    over the integers, seen from any y, is r√(2π)(1 ± τ) with τ = 2.1·exp(−2π²r²) (Micciancio and
#    Regev 2007, Lemma 4.4; Peikert 2010, Theorem 3.1), so K has the discrete Gaussian's law up to a
#    factor within 1 ± 3τ. With r = 3, τ < 10⁻⁷⁶; over d coordinates and T rounds, ε and ln δ change
#    by at most 6τdT, below 10⁻⁵⁰ for any dT below 10²⁵. The slack in point 2 is over ten times the
#    loss from s to √(s² − 9), which is 4.5/s² of s, and the accountant rounds outward. So every
#    theorem about real Gaussian noise, subsampled or not, holds for the grid.


# Whole numbers up to this one are exact in double precision, also with noise added.
LIMIT = float(1 << 51)
# A grid is never coarser than this share of the noise's deviation: s stays above 2¹⁸.
COARSEST = 2.0**-19
# Coordinates that are drawn at once.
GRID_CHUNK = 1 << 16

Whole = NDArray[np.int64]


def reaching_grid(std: float, clip_norm: float, size: int, most: float) -> tuple[float, int]:
    """Step and scale of the usual :func:`grid`, or of the finest coarser one that reaches ``most``.

    Args:
        most: the largest absolute number, at most LIMIT · COARSEST · std.

    Raises:
        ValueError, OverflowError: noise so large that rounding would show.
    """
    step, scale = grid(std, clip_norm, size)
    if most <= LIMIT * step:
        return step, scale
    # In steps of twice the size, twice the noise has twice the scale.
    step, scale = reaching_grid(2 * std, clip_norm, size, most)
    return step, -(-scale // 2)


def add_grid_noise(
    vector: torch.Tensor,
    std: float,
    clip_norm: float,
    generator: np.random.Generator,
    most: float = 0.0,
) -> None:
    """Round ``vector`` to the grid and add discrete Gaussian noise, in place.

    Args:
        vector: the sum, float64, shape (parameters,).
        std: the accounted standard deviation σC; 0 leaves the sum as it is.
        clip_norm: C, the most by which one contribution moves the sum.
        generator: of the noise.
        most: the largest absolute number of a sum that is never to be clamped, as of
            :func:`reaching_grid`.
    """
    if not std:
        return
    step, scale = reaching_grid(std, clip_norm, vector.shape[0], most)
    for start in range(0, vector.shape[0], GRID_CHUNK):
        part = vector[start : start + GRID_CHUNK]
        whole = (part / step).round_().clamp_(-LIMIT, LIMIT)
        noise = discrete_gaussian(scale, len(part), generator)
        # Both are whole numbers below 2⁵³, and so is their sum: nothing is rounded.
        whole += torch.from_numpy(noise).to(whole)
        torch.mul(whole, step, out=part)


def noised_count(
    count: float, std: float, most: float, noise: NoiseKind, generator: np.random.Generator
) -> float:
    """A count with Gaussian noise, on the grid if ``noise`` is ``"grid"``.

    Args:
        std: standard deviation of the noise.
        most: the most by which one record moves the count.
    """
    if noise == "grid":
        vector = torch.tensor([count], dtype=torch.float64)
        add_grid_noise(vector, std, most, generator)
        return float(vector)
    return count + std * float(generator.standard_normal())


def discrete_gaussian(scale: int, size: int, generator: np.random.Generator) -> Whole:
    """``size`` independent whole numbers k with probability proportional to exp(−k²/(2·scale²)).

    Canonne, Kamath and Steinke (2020), Algorithm 3, with t = scale: propose from the discrete
    Laplace distribution, accept with probability exp(−(|y| − scale)²/(2·scale²)). Only uniform
    whole numbers are compared.
    """
    found = np.empty(size, dtype=np.int64)
    missing = np.arange(size)
    while len(missing):
        proposed = discrete_laplace(scale, len(missing), generator)
        kept = _accepted(np.abs(proposed) - scale, scale, generator)
        found[missing[kept]] = proposed[kept]
        missing = missing[~kept]
    return found


def discrete_laplace(scale: int, size: int, generator: np.random.Generator) -> Whole:
    """``size`` whole numbers y with probability proportional to exp(−|y|/scale).

    Canonne, Kamath and Steinke (2020), Algorithm 2.
    """
    found = np.empty(size, dtype=np.int64)
    missing = np.arange(size)
    while len(missing):
        low = generator.integers(scale, size=len(missing))
        kept = bernoulli_exp(low, scale, generator)
        high = _geometric(int(kept.sum()), generator)
        magnitude = low[kept] + scale * high
        negative = generator.integers(2, size=len(magnitude), dtype=np.int8).astype(bool)
        # −0 is rejected, so that zero is not twice as likely.
        whole = ~(negative & (magnitude == 0))
        places = missing[kept][whole]
        found[places] = np.where(negative, -magnitude, magnitude)[whole]
        done = np.zeros(len(missing), dtype=bool)
        done[np.flatnonzero(kept)[whole]] = True
        missing = missing[~done]
    return found


def bernoulli_exp(
    numerator: Whole, denominator: int, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """True with probability exp(−numerator/denominator), for each numerator in [0, denominator].

    Canonne, Kamath and Steinke (2020), Algorithm 1: flip coins with chances γ/1, γ/2, γ/3, …; the
    result is True if the first failure is at an odd place.
    """
    result = np.zeros(len(numerator), dtype=bool)
    active = np.arange(len(numerator))
    place = 1
    while len(active):
        # A coin of chance γ/k is a coin of chance γ and a coin of chance 1/k, both successful.
        up = generator.integers(denominator, size=len(active)) < numerator[active]
        if place > 1:
            up &= generator.integers(place, size=len(active)) == 0
        result[active[~up]] = place % 2 == 1
        active = active[up]
        place += 1
    return result


def _geometric(size: int, generator: np.random.Generator) -> Whole:
    """``size`` numbers of successes, each before the first failure, of a coin of chance 1/e."""
    counts = np.zeros(size, dtype=np.int64)
    active = np.arange(size)
    while len(active):
        one = np.ones(len(active), dtype=np.int64)
        active = active[bernoulli_exp(one, 1, generator)]
        counts[active] += 1
    return counts


def _accepted(offset: Whole, scale: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """True with probability exp(−offset²/(2·scale²)), for each offset."""
    denominator = 2 * scale * scale
    # Squares of larger offsets do not fit into 64 bits; they are rare and handled one by one.
    far = np.abs(offset) >= 1 << 31
    square = np.where(far, 0, offset) ** 2
    whole, rest = np.divmod(square, denominator)
    kept = bernoulli_exp(rest, denominator, generator)
    for units in range(1, int(whole.max(initial=0)) + 1):
        # exp(−γ) for γ above 1 is exp(−1) to the power of γ's whole part, times exp(−rest).
        again = np.flatnonzero(kept & (whole >= units))
        kept[again] = bernoulli_exp(np.ones(len(again), dtype=np.int64), 1, generator)
    for place in np.flatnonzero(far):
        kept[place] = accepted_far(int(offset[place]), denominator, generator)
    return kept


def accepted_far(offset: int, denominator: int, generator: np.random.Generator) -> bool:
    whole, rest = divmod(offset * offset, denominator)
    one = np.ones(1, dtype=np.int64)
    if not all(bernoulli_exp(one, 1, generator)[0] for _ in range(whole)):
        return False
    return bool(bernoulli_exp(np.array([rest]), denominator, generator)[0])


# Noise that is correlated over rounds: (C⁻¹z)_t, drawn round by round.
#
# Each round's z is bound to that round's sum. The part of earlier rounds is kept in memory, in as
# many vectors as C has bands (less one) or buffers. These are never stored: a continued run keeps
# 32 bytes for each round, and draws the noise of earlier rounds again from the secret, bit for bit.


class CorrelatedNoise:
    """The correlated noise of one part of a mechanism, round by round, in order.

    Args:
        size: length of a round's noise.
        strategy: C. noise: the source of z.
        bound: the bytes that the z of each of the run's rounds is bound to; the list grows during
            the run.
        first: number of the part's first round.
    """

    def __init__(
        self, size: int, strategy: Strategy, noise: BoundNoise, bound: Sequence[bytes], first: int
    ) -> None:
        self._noise, self._bound = noise, bound
        self._memory: _Bands | _Buffers
        self._memory = (
            _Bands(strategy) if isinstance(strategy, Banded) else _Buffers(strategy, size)
        )
        self._present = np.empty(size)
        self._next = first

    def add_to(self, vector: torch.Tensor, std: float, index: int) -> None:
        """Add std·(C⁻¹z) of round ``index`` to ``vector`` (one dimension, floating point).

        The numbers are drawn and combined on the CPU in double precision, so that a round's noise
        does not depend on the device.

        Raises:
            ValueError: a round before the last one that was drawn.
        """
        if index < self._next - 1:
            raise ValueError(
                f"round {index} is before {self._next - 1}: correlated noise is in order"
            )
        while self._next <= index:
            self._step()
        for start in range(0, vector.shape[0], CHUNK):
            part = slice(start, start + CHUNK)
            noise = torch.from_numpy(self._present[part]).to(vector.device)
            vector[part].add_(noise, alpha=std)

    def _step(self) -> None:
        generator = self._noise.at(self._bound[self._next])
        for start in range(0, self._present.size, CHUNK):
            # The same numbers as for uncorrelated noise, in the same order.
            generator.standard_normal(out=self._present[start : start + CHUNK])
        self._memory.pass_on(self._present)
        self._next += 1


class _Bands:
    """y_t = z_t − Σ_i c_i y_{t−i}, with the last bands − 1 values of y in memory."""

    def __init__(self, strategy: Banded) -> None:
        self._coefficients = strategy.coefficients[1:]
        self._last = deque[Array](maxlen=len(self._coefficients))

    def pass_on(self, present: Array) -> None:
        """Turn z_t into y_t, in place, and keep it."""
        for coefficient, before in zip(self._coefficients, self._last, strict=False):
            present -= coefficient * before
        self._last.appendleft(present.copy())


class _Buffers:
    """y_t = z_t − Σ_j w_j s_j, then s_j ← d_j s_j + y_t."""

    def __init__(self, strategy: BufferedToeplitz, size: int) -> None:
        self._weights, self._decays = strategy.weights, strategy.decays
        self._sums = np.zeros((len(self._weights), size))

    def pass_on(self, present: Array) -> None:
        """Turn z_t into y_t, in place, and add it to every buffer."""
        for weight, buffer in zip(self._weights, self._sums, strict=True):
            present -= weight * buffer
        for decay, buffer in zip(self._decays, self._sums, strict=True):
            buffer *= decay
            buffer += present


# The records of a round's batch: Poisson, without replacement, shuffled or allocated by epoch,
# cyclic, or all records.


# Up to this number of records, several halvings are drawn at once.
FEW = 1 << 14
# Larger than the number of any round.
_BEYOND_ROUNDS = 1 << 63

Indices = NDArray[np.int64]
Sampler = Callable[[int], Indices]


def poisson_count(examples: int, rate: float, generator: np.random.Generator) -> int:
    """Size of a Poisson batch: Binomial(examples, rate), exactly.

    The double ``rate`` is m·2⁻ᵉ with m in [1/2, 1). Halving ``examples`` e times by counting fair
    bits leaves Binomial(examples, 2⁻ᵉ) candidates. Each stays with probability m; a uniform number
    on the grid of 2⁻⁵³, on which m lies, decides. This takes about 2·examples random bits.
    """
    mantissa, exponent = math.frexp(rate)
    if exponent > 0:  # rate is 1
        return examples
    left = -exponent
    while left and examples:
        # One halving at a time draws the fewest bits; several at once make the fewest calls.
        halvings = 1 if examples > FEW else min(left, 8)
        examples = _survivors(examples, halvings, generator)
        left -= halvings
    return int(np.count_nonzero(generator.random(examples) < mantissa))


def _survivors(examples: int, halvings: int, generator: np.random.Generator) -> int:
    """The number of records that survive ``halvings`` fair coin flips each."""
    words, rest = divmod(examples, 64)
    raw = generator.bit_generator.random_raw((words + 1) * halvings)
    if halvings > 1:
        raw = np.bitwise_and.reduce(raw.reshape(halvings, words + 1))
    raw[words] &= np.uint64((1 << rest) - 1)
    return int(np.bitwise_count(raw).sum(dtype=np.int64))


def uniform_subset(examples: int, size: int, generator: np.random.Generator) -> Indices:
    """``size`` different record numbers below ``examples``, every subset equally likely."""
    return generator.choice(examples, size, replace=False, shuffle=False)


def sampler(sampling: Sampling, examples: int, stream: Stream, first: int = 0) -> Sampler:
    """The sampler of one part of a mechanism.

    Args:
        sampling: the kind, with its rate or batch.
        examples: number of records.
        stream: the randomness of sampling.
        first: number of the part's first round in the whole run, at which epochs begin.

    Returns:
        A function from the number of a round in the whole run to record numbers, int64, (batch,).

    Raises:
        TypeError: another kind of sampling.
    """
    row = SAMPLERS.get(type(sampling))
    if row is None:
        names = ", ".join(kind.__name__ for kind in SAMPLERS)
        raise TypeError(f"no sampler for {sampling!r}: batches are drawn for {names}")
    return row(sampling, examples, stream, first)


def _independently(sampling: Poisson, examples: int, stream: Stream, first: int) -> Sampler:
    return lambda index: _poisson(examples, sampling.rate, stream.at(index))


def _together(sampling: WithoutReplacement, examples: int, stream: Stream, first: int) -> Sampler:
    return lambda index: uniform_subset(examples, sampling.batch, stream.at(index))


def _everything(sampling: FullBatch, examples: int, stream: Stream, first: int) -> Sampler:
    everything = np.arange(examples)
    return lambda index: everything


class Batches:
    """Draws every round's batch; keeps the sampler of the plan's present part only.

    Args:
        stream: the randomness of sampling.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._part: tuple[Any, ...] = ()

    def __call__(self, chosen: Round) -> Indices:
        """Record numbers of a round's batch, int64, shape (batch,)."""
        part = chosen.sampling, chosen.examples, self._stream, chosen.origin
        if part != self._part:
            self._part, self._draw = part, sampler(*part)
        return self._draw(chosen.index)


def _poisson(examples: int, rate: float, generator: np.random.Generator) -> Indices:
    # Conditioned on its size, a Poisson batch is a uniform subset of that size.
    return uniform_subset(examples, poisson_count(examples, rate, generator), generator)


class _Epochs:
    """Assigns the records to the rounds of each epoch anew; keeps only the present assignment."""

    def __init__(
        self, sampling: Shuffled | RandomAllocation, examples: int, stream: Stream, first: int
    ) -> None:
        self._sampling, self._examples = sampling, examples
        self._stream, self._first = stream, first
        self._epoch, self._dealt = -1, list[Indices]()

    def __call__(self, index: int) -> Indices:
        sampling, length = self._sampling, self._sampling.rounds_per_epoch
        epoch, position = divmod(index - self._first, length)
        if epoch != self._epoch:
            generator = self._stream.at(self._first + epoch * length)
            if isinstance(sampling, Shuffled):
                # One permutation, cut into batches.
                order = generator.permutation(sampling.examples)
                self._dealt = np.split(order, sampling.batch * np.arange(1, length + 1))
            else:
                self._dealt = _by_place(assign_groups(self._examples, length, generator), length)
            self._epoch = epoch
        return self._dealt[position]


class _DealtTurns:
    """Assigns the records to parts once, and Poisson-samples one part after another."""

    def __init__(self, sampling: CyclicPoisson, examples: int, stream: Stream, first: int) -> None:
        self._sampling, self._stream, self._first = sampling, stream, first
        # A place in the stream that no round uses.
        places = assign_groups(examples, sampling.parts, stream.at(_BEYOND_ROUNDS + first))
        self._dealt = _by_place(places, sampling.parts)

    def __call__(self, index: int) -> Indices:
        part = self._dealt[(index - self._first) % self._sampling.parts]
        return part[_poisson(len(part), self._sampling.rate, self._stream.at(index))]


def _by_place(places: Indices, count: int) -> list[Indices]:
    """The records that were assigned to each place."""
    ends = np.cumsum(np.bincount(places, minlength=count))
    return np.split(np.argsort(places, kind="stable"), ends)


# Kind of sampling → function from (sampling, examples, stream, first) to a sampler.
SAMPLERS: dict[type[Sampling], Callable[[Any, int, Stream, int], Sampler]] = {
    Poisson: _independently,
    WithoutReplacement: _together,
    Shuffled: _Epochs,
    RandomAllocation: _Epochs,
    CyclicPoisson: _DealtTurns,
    FullBatch: _everything,
}


def assign_groups(size: int, groups: int, generator: np.random.Generator) -> Indices:
    """Each record's group, independently and uniformly: int64 in [0, groups), shape (size,)."""
    return generator.integers(groups, size=size)
