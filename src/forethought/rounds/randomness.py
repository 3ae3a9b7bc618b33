"""One source of randomness per purpose, and the noise that is drawn from it.

Batches follow from (secret, round), noise from its sum.

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
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, assert_never

import numpy as np
import torch
from blake3 import blake3
from numpy.typing import NDArray
from randomgen import AESCounter

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
        shard: which shard of a sum it hides, where each has noise of its own; None: the whole.
    """

    def __init__(self, secret: bytes, purpose: str = "noise", shard: int | None = None) -> None:
        self._stream, self._shard = Stream(secret, purpose), shard
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
        if self._shard is not None:
            bound = blake3(encoded((bound, self._shard)), key=self._key).digest()
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
        held = [_written(getattr(value, field.name)) for field in fields(value)]
        return f"{kind.__qualname__}({''.join(held)}"
    if isinstance(value, Real):
        number = float(value)
        # A whole number that no float is has its digits.
        return _written(number) if number == value else f"#{value};"
    raise TypeError(f"noise cannot be bound to {kind.__name__}: it has no plain form")


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
            self, sampling=_of_holder(self.sampling, name), noise=_of_holder(self.noise, name)
        )


def _secret(name: str, seed: int | None) -> bytes:
    if seed is None:
        return secrets.token_bytes(SECRET_BYTES)
    # The name is hashed in, so that seed=1 and noise_seed=1 are different secrets.
    return hashlib.blake2b(f"{name}:{int(seed)}".encode(), digest_size=SECRET_BYTES).digest()


# Gaussian noise on a sum of clipped contributions.
#
# Noise is drawn in double precision and rounded once, together with the sum. What floating-point
# numbers leave of the difference between two sums (Mironov 2012) is an assumption of the guarantee,
# not covered by it.


# Small enough to stay in the nearest cache, large enough to hide the call.
CHUNK = 1 << 13


class GaussianNoise:
    """Adds N(0, std² I) to vectors, a small buffer at a time."""

    def add_to(self, vector: torch.Tensor, std: float, generator: np.random.Generator) -> None:
        """Add to ``vector`` (one dimension, floating point) in place.

        The numbers are drawn on the CPU, so that a round's noise does not depend on the device.
        """
        size = vector.shape[0]
        # Its own for every call: a thousand clients' buffers would be cold.
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
# the noise that is accounted, N(0, (σC)²), or better, and no floating-point number stands between.
#
# 1. The sum is rounded to multiples of γ = 2ᵏ (exactly: a power of two only shifts exponents) and
#    clamped to ±2⁵¹γ, which moves no two values apart. Each of d coordinates moves by at most γ/2,
#    so one contribution moves the gridded sum by at most C + √d·γ: *the rounding is charged*.
# 2. The noise is K·γ, K from the discrete Gaussian of parameter s ≥ σ(C + √d·γ)/γ·(1 + 2⁻³⁰), a
#    whole number between 2²⁵ and 2²⁷. Canonne, Kamath and Steinke (2020), Algorithms 1 to 3, sample
#    it exactly from uniform whole numbers.
# 3. The discrete Gaussian of s is post-processing of a real one. Let y ~ N(0, s² − r²) and draw K
#    from the discrete Gaussian of parameter r around y. By Poisson summation the normalising sum
#    over the integers, seen from any y, is r√(2π)(1 ± τ) with τ = 2.1·exp(−2π²r²) (Micciancio and
#    Regev 2007, Lemma 4.4; Peikert 2010, Theorem 3.1), so K has the discrete Gaussian's law up to a
#    factor within 1 ± 3τ. With r = 3, τ < 10⁻⁷⁶; over d coordinates and T rounds, ε and ln δ change
#    by at most 6τdT, below 10⁻⁵⁰ for any dT below 10²⁵. The slack in point 2 is what √(s² − 9)
#    takes away and a million times more, and the accountant rounds outward. So every theorem about
#    real Gaussian noise, subsampled or not, holds for the grid.


# Whole numbers up to here are exact in double precision, with noise added.
LIMIT = float(1 << 51)
# Coordinates that are drawn at a time.
GRID_CHUNK = 1 << 16

Whole = NDArray[np.int64]


def add_grid_noise(
    vector: torch.Tensor, std: float, clip_norm: float, generator: np.random.Generator
) -> None:
    """Round ``vector`` to the grid and add discrete Gaussian noise, in place.

    Args:
        vector: the sum, float64, shape (parameters,).
        std: standard deviation σC that is accounted.
        clip_norm: C, what one contribution can move the sum by.
    """
    if not std:
        return
    step, scale = grid(std, clip_norm, vector.shape[0])
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
    """A count with Gaussian noise, on the grid where that is the noise.

    Args:
        std: standard deviation of the noise.
        most: what one record can move the count by.
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
    """Whole numbers y with probability proportional to exp(−|y|/scale): their Algorithm 2."""
    found = np.empty(size, dtype=np.int64)
    missing = np.arange(size)
    while len(missing):
        low = generator.integers(scale, size=len(missing))
        kept = bernoulli_exp(low, scale, generator)
        high = _geometric(int(kept.sum()), generator)
        magnitude = low[kept] + scale * high
        negative = generator.integers(2, size=len(magnitude), dtype=np.int8).astype(bool)
        # Zero has one sign only.
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

    Their Algorithm 1: count how many in a row of coins of chance γ/1, γ/2, γ/3, … come up; the
    first failure at an odd place means yes.
    """
    result = np.zeros(len(numerator), dtype=bool)
    active = np.arange(len(numerator))
    place = 1
    while len(active):
        # A coin of chance γ/k is one of chance γ and one of chance 1/k.
        up = generator.integers(denominator, size=len(active)) < numerator[active]
        if place > 1:
            up &= generator.integers(place, size=len(active)) == 0
        result[active[~up]] = place % 2 == 1
        active = active[up]
        place += 1
    return result


def _geometric(size: int, generator: np.random.Generator) -> Whole:
    """The number of times in a row that a coin of chance 1/e comes up."""
    counts = np.zeros(size, dtype=np.int64)
    active = np.arange(size)
    while len(active):
        one = np.ones(len(active), dtype=np.int64)
        active = active[bernoulli_exp(one, 1, generator)]
        counts[active] += 1
    return counts


def _accepted(offset: Whole, scale: int, generator: np.random.Generator) -> NDArray[np.bool_]:
    """True with probability exp(−offset²/(2·scale²)), each."""
    denominator = 2 * scale * scale
    # Beyond this the square leaves 64 bits; such proposals are rare and go one by one.
    far = np.abs(offset) >= 1 << 31
    square = np.where(far, 0, offset) ** 2
    whole, rest = np.divmod(square, denominator)
    kept = bernoulli_exp(rest, denominator, generator)
    for units in range(1, int(whole.max(initial=0)) + 1):
        # exp(−γ) for γ above 1 is exp(−1) as often as γ holds 1, and exp of the rest.
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
# Each round's z is bound to that round's sum, and what it takes from the rounds before is kept in
# as many vectors as C has bands (less one) or buffers. Nothing of them is ever stored: a run that
# goes on keeps 32 bytes a round and draws the earlier rounds' noise again from the secret, bit for
# bit.


class CorrelatedNoise:
    """The noise of one part of a mechanism, in order.

    Args:
        size: numbers in a round's noise.
        strategy: C. noise: where z comes from.
        bound: what the z of each of the run's rounds is bound to; grows while it is used.
        first: number of the part's first round.
    """

    def __init__(
        self, size: int, strategy: Strategy, noise: BoundNoise, bound: Sequence[bytes], first: int
    ) -> None:
        self.strategy, self.first = strategy, first
        self._noise, self._bound = noise, bound
        self._memory = _memory(strategy, size)
        self._present = np.empty(size)
        self._next = first

    def add_to(self, vector: torch.Tensor, std: float, index: int) -> None:
        """Add std·(C⁻¹z) of round ``index`` to ``vector`` (one dimension, floating point).

        The numbers are drawn and combined on the CPU in double precision, so that a round's noise
        does not depend on the device.
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
            # The numbers of uncorrelated noise, in the same order.
            generator.standard_normal(out=self._present[start : start + CHUNK])
        self._memory.pass_on(self._present)
        self._next += 1


def _memory(strategy: Strategy, size: int) -> _Bands | _Buffers:
    match strategy:
        case Banded():
            return _Bands(strategy, size)
        case BufferedToeplitz():
            return _Buffers(strategy, size)
        case _:
            assert_never(strategy)


class _Bands:
    """y_t = z_t - Σ_i c_i y_{t-i}: the last bands - 1 of them."""

    def __init__(self, strategy: Banded, size: int) -> None:
        self._coefficients = strategy.coefficients[1:]
        self._last = np.zeros((len(self._coefficients), size))
        self._newest = 0

    def pass_on(self, present: Array) -> None:
        """Turn z_t into y_t, in place, and keep it."""
        bands = len(self._coefficients)
        for lag, coefficient in enumerate(self._coefficients):
            if coefficient:
                present -= coefficient * self._last[(self._newest + lag) % bands]
        if bands:
            self._newest = (self._newest - 1) % bands
            self._last[self._newest] = present


class _Buffers:
    """y_t = z_t - Σ_j w_j s_j with s_j ← d_j s_j + y_t."""

    def __init__(self, strategy: BufferedToeplitz, size: int) -> None:
        self._weights, self._decays = strategy.weights, strategy.decays
        self._sums = np.zeros((len(self._weights), size))

    def pass_on(self, present: Array) -> None:
        """Turn z_t into y_t, in place, and keep its trace in every buffer."""
        for weight, buffer in zip(self._weights, self._sums, strict=True):
            present -= weight * buffer
        for decay, buffer in zip(self._decays, self._sums, strict=True):
            buffer *= decay
            buffer += present


# The records in a round's batch: Poisson, without replacement, dealt out, in turns, full.


# Up to so many records several halvings are drawn at once.
FEW = 1 << 14
# Rounds have smaller numbers.
_BEYOND_ROUNDS = 1 << 63

Indices = NDArray[np.int64]
Sampler = Callable[[int], Indices]


def poisson_count(examples: int, rate: float, generator: np.random.Generator) -> int:
    """Size of a Poisson batch: Binomial(examples, rate), exactly.

    The double ``rate`` is m·2⁻ᵉ with m in [1/2, 1). Halving ``examples`` e times by counting fair
    bits leaves Binomial(examples, 2⁻ᵉ) candidates; each stays with probability m, decided by a
    uniform on the grid of 2⁻⁵³ that m lies on. This takes about 2·examples random bits.
    """
    mantissa, exponent = math.frexp(rate)
    if exponent > 0:  # rate is 1
        return examples
    left = -exponent
    while left and examples:
        # One halving at a time draws the fewest bits, several the fewest calls.
        halvings = 1 if examples > FEW else min(left, 8)
        examples = _survivors(examples, halvings, generator)
        left -= halvings
    return int(np.count_nonzero(generator.random(examples) < mantissa))


def _survivors(examples: int, halvings: int, generator: np.random.Generator) -> int:
    """The number of some records that come up heads in each of ``halvings`` fair flips."""
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
        first: number of the part's first round in the whole run. Epochs begin there.

    Returns:
        From the number of a round in the whole run to record numbers, int64, shape (batch,).
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
    """Draws every round's batch; keeps what the present part of the plan needs and no other.

    Args:
        stream: the randomness of sampling.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._part: tuple[Sampling, int, int] | None = None
        self._draw: Sampler | None = None

    def __call__(self, chosen: Round) -> Indices:
        """Record numbers of a round's batch, int64, shape (batch,)."""
        part = (chosen.sampling, chosen.examples, chosen.origin)
        if self._draw is None or part != self._part:
            self._part, self._draw = part, sampler(*part[:2], self._stream, chosen.origin)
        return self._draw(chosen.index)


def _poisson(examples: int, rate: float, generator: np.random.Generator) -> Indices:
    # Given its size, a Poisson batch is a uniform subset of that size.
    return uniform_subset(examples, poisson_count(examples, rate, generator), generator)


class _Epochs:
    """Deals the records to the rounds of every epoch anew; keeps only the present epoch's deal."""

    def __init__(
        self, sampling: Shuffled | RandomAllocation, examples: int, stream: Stream, first: int
    ) -> None:
        self._sampling, self._examples = sampling, examples
        self._stream, self._first = stream, first
        nothing: Indices = np.empty(0, dtype=np.int64)
        self._epoch, self._dealt = -1, _Dealt(nothing, nothing)

    def __call__(self, index: int) -> Indices:
        sampling, length = self._sampling, self._sampling.rounds_per_epoch
        epoch, position = divmod(index - self._first, length)
        if epoch != self._epoch:
            generator = self._stream.at(self._first + epoch * length)
            if isinstance(sampling, Shuffled):
                # One permutation, cut into batches.
                order = generator.permutation(sampling.examples)
                self._dealt = _Dealt(order, sampling.batch * np.arange(1, length + 1))
            else:
                self._dealt = _by_place(assign_groups(self._examples, length, generator), length)
            self._epoch = epoch
        return self._dealt[position]


class _DealtTurns:
    """Deals the records to parts once, and Poisson-samples the part whose turn it is."""

    def __init__(self, sampling: CyclicPoisson, examples: int, stream: Stream, first: int) -> None:
        self._sampling, self._stream, self._first = sampling, stream, first
        # A place in the stream that no round has: rounds draw from their own numbers.
        places = assign_groups(examples, sampling.parts, stream.at(_BEYOND_ROUNDS + first))
        self._dealt = _by_place(places, sampling.parts)

    def __call__(self, index: int) -> Indices:
        part = self._dealt[(index - self._first) % self._sampling.parts]
        return part[_poisson(len(part), self._sampling.rate, self._stream.at(index))]


@dataclass(frozen=True)
class _Dealt:
    """Records in the order of the places that they were dealt to, and where each place ends."""

    order: Indices
    ends: Indices

    def __getitem__(self, place: int) -> Indices:
        start = self.ends[place - 1] if place else 0
        return self.order[start : self.ends[place]]


def _by_place(places: Indices, count: int) -> _Dealt:
    ends = np.cumsum(np.bincount(places, minlength=count))
    return _Dealt(np.argsort(places, kind="stable"), ends)


# (sampling, examples, stream, first) → its sampler, by kind.
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
