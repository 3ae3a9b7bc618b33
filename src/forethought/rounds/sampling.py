"""The records in a round's batch: Poisson, without replacement, dealt out, in turns, full.

Each sampler is a function from a round to record numbers. The distributions are exact: given
perfect random bits no floating-point rounding enters, which matters at rates near 1e-8, where a
53-bit uniform compared with the rate is wrong in the eighth digit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.rounds.randomness import Stream
from forethought.values.plan import Round
from forethought.values.samplings import (
    CyclicPoisson,
    FullBatch,
    Poisson,
    RandomAllocation,
    Sampling,
    Shuffled,
    WithoutReplacement,
)

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
    """Cuts one permutation an epoch into batches; keeps only the present epoch's."""

    def __init__(self, sampling: Shuffled, examples: int, stream: Stream, first: int) -> None:
        self._sampling, self._stream, self._first = sampling, stream, first
        self._epoch = -1
        self._order: Indices = np.empty(0, dtype=np.int64)

    def __call__(self, index: int) -> Indices:
        length, batch = self._sampling.rounds_per_epoch, self._sampling.batch
        epoch, position = divmod(index - self._first, length)
        if epoch != self._epoch:
            generator = self._stream.at(self._first + epoch * length)
            self._order = generator.permutation(self._sampling.examples)
            self._epoch = epoch
        return self._order[position * batch : (position + 1) * batch]


class _Allocated:
    """Every epoch deals the records to its rounds; keeps only the present epoch's deal."""

    def __init__(
        self, sampling: RandomAllocation, examples: int, stream: Stream, first: int
    ) -> None:
        self._length, self._examples = sampling.rounds, examples
        self._stream, self._first = stream, first
        self._epoch, self._dealt = -1, _Dealt(np.empty(0, dtype=np.int64), 1)

    def __call__(self, index: int) -> Indices:
        epoch, position = divmod(index - self._first, self._length)
        if epoch != self._epoch:
            generator = self._stream.at(self._first + epoch * self._length)
            places = assign_groups(self._examples, self._length, generator)
            self._epoch, self._dealt = epoch, _Dealt(places, self._length)
        return self._dealt[position]


class _Turns:
    """Deals the records to parts once, and Poisson-samples the part whose turn it is."""

    def __init__(self, sampling: CyclicPoisson, examples: int, stream: Stream, first: int) -> None:
        self._sampling, self._stream, self._first = sampling, stream, first
        # A place in the stream that no round has: rounds draw from their own numbers.
        places = assign_groups(examples, sampling.parts, stream.at(_BEYOND_ROUNDS + first))
        self._dealt = _Dealt(places, sampling.parts)

    def __call__(self, index: int) -> Indices:
        part = self._dealt[(index - self._first) % self._sampling.parts]
        return part[_poisson(len(part), self._sampling.rate, self._stream.at(index))]


class _Dealt:
    """Records by the place that they were dealt to."""

    def __init__(self, places: Indices, count: int) -> None:
        self._order = np.argsort(places, kind="stable")
        self._ends = np.cumsum(np.bincount(places, minlength=count))

    def __getitem__(self, place: int) -> Indices:
        start = self._ends[place - 1] if place else 0
        return self._order[start : self._ends[place]]


# (sampling, examples, stream, first) → its sampler, by kind.
SAMPLERS: dict[type[Sampling], Callable[[Any, int, Stream, int], Sampler]] = {
    Poisson: _independently,
    WithoutReplacement: _together,
    Shuffled: _Epochs,
    RandomAllocation: _Allocated,
    CyclicPoisson: _Turns,
    FullBatch: _everything,
}


def assign_groups(size: int, groups: int, generator: np.random.Generator) -> Indices:
    """Each record's group, independently and uniformly: int64 in [0, groups), shape (size,)."""
    return generator.integers(groups, size=size)
