"""Fewer bytes for the weights that neighbours exchange. Post-processing: it costs no privacy.

Both ends of a link hold a *replica*: the sender's weights as the receiver has them. What is sent
takes the receiver's replica closer to the weights, so that what a message leaves out stays in the
next difference (error feedback: Koloskova, Stich and Jaggi 2019, Algorithm 1).

| kind | a message holds | bytes for d weights |
| --- | --- | --- |
| ``"none"`` | the weights | 4 d |
| ``"bf16"`` | the weights in 16 bits, rounded to nearest | 2 d |
| ``"top-k"`` | the largest changes of the replica, with their places | 8 · fraction · d |

Averaging with replicas (:func:`mixed`) keeps the mean of all workers whatever was left out: what
one end of a link gains, the other loses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.messages import Vector, rounded, widened
from forethought.values.checks import one_of, real

Kind = Literal["none", "bf16", "top-k"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_FLOAT, _PLACE, _HALF = np.dtype("<f4"), np.dtype("<u4"), np.dtype("<u2")


_HALF_WAY = np.array(0.5, dtype=np.float32)
_PIECE = 1 << 15


class PayloadError(ValueError):
    """Bytes from a neighbour that are not weights of this compression."""


@dataclass(frozen=True)
class Compression:
    """The form in which exchanged weights are written.

    Args:
        kind: see the module.
        fraction: share of the weights that a "top-k" message holds, in (0, 1]; None otherwise.
    """

    kind: str = "none"
    fraction: float | None = None

    def __post_init__(self) -> None:
        one_of("kind", self.kind, KINDS)
        if (self.fraction is not None) != (self.kind == "top-k"):
            raise ValueError("fraction is for 'top-k': give it there, and leave it out elsewhere")
        if self.fraction is not None:
            real("fraction", self.fraction, above=0, most=1)

    @property
    def exact(self) -> bool:
        """True if the receiver has the very weights."""
        return self.kind == "none"

    def kept(self, parameters: int) -> int:
        """Weights in a message."""
        if self.fraction is None:
            return parameters
        return min(parameters, max(1, math.ceil(self.fraction * parameters)))

    def size(self, parameters: int) -> int:
        """Bytes of a message."""
        width = {"none": 4, "bf16": 2, "top-k": 8}[self.kind]
        return width * self.kept(parameters)

    @property
    def consensus_step(self) -> float:
        """The factor on the mixing's weights: few changes a message take smaller steps."""
        return 1.0 if self.fraction is None else min(1.0, 2 * self.fraction)

    def received(self, vector: Vector) -> Vector:
        """The weights as the receiver has them, where nothing has to be remembered.

        Raises:
            ValueError: "top-k" needs what was said before.
        """
        if self.kind == "top-k":
            raise ValueError("'top-k' messages are changes of what was said before")
        return vector if self.kind == "none" else widened(rounded(vector))

    def change(self, vector: Vector, replica: Vector) -> Vector:
        """The change that a "top-k" message adds to the receiver's replica: mostly zeros."""
        found = np.zeros_like(replica)
        places = _largest(vector - replica, self.kept(len(vector)))
        found[places] = vector[places] - replica[places]
        return found

    def encode(self, vector: Vector, replica: Vector) -> tuple[bytes, Vector]:
        """A message, and the replica after it.

        Args:
            vector: the sender's weights (d,), float32.
            replica: what the receiver has of them; at first the weights that all begin with.
        """
        match self.kind:
            case "none":
                return vector.astype(_FLOAT, copy=False).tobytes(), vector
            case "bf16":
                halves = rounded(vector)
                return halves.tobytes(), widened(halves)
            case _:
                places = _largest(vector - replica, self.kept(len(vector)))
                values = (vector - replica)[places].astype(_FLOAT)
                return places.astype(_PLACE).tobytes() + values.tobytes(), _moved(
                    replica, places, values
                )

    def decode(self, payload: bytes | memoryview, replica: Vector) -> Vector:
        """The receiver's replica after a message: the very bits of the sender's.

        Raises:
            PayloadError: a message of another length, places out of order, weights not finite.
        """
        if len(payload) != self.size(len(replica)):
            raise PayloadError(
                f"weights came in {len(payload):,} bytes; {self.kind!r} messages of this model "
                f"have {self.size(len(replica)):,}"
            )
        match self.kind:
            case "none":
                found: Vector = np.frombuffer(payload, dtype=_FLOAT).astype(np.float32)
            case "bf16":
                found = widened(np.frombuffer(payload, dtype=_HALF))
            case _:
                half = len(payload) // 2
                places = np.frombuffer(payload[:half], dtype=_PLACE).astype(np.int64)
                if (np.diff(places) <= 0).any() or places[-1] >= len(replica):
                    raise PayloadError("places of changed weights are out of order or range")
                found = _moved(replica, places, np.frombuffer(payload[half:], dtype=_FLOAT))
        if not np.isfinite(found).all():
            raise PayloadError("weights that are not finite came from a neighbour")
        return found


def mixed(own: Vector, sent: Vector, received: Vector, weight: float) -> Vector:
    """``own`` after averaging with a neighbour: own + weight · (received − sent).

    Args:
        own: the worker's weights now. sent: its replica at the neighbour. received: the neighbour's
            replica here. weight: of the neighbour in the worker's row, such as 1/2;
            with few weights a message take less of it (a consensus step near ``fraction``), or
            agreement comes slowly.
    """
    step = _HALF_WAY if weight == 0.5 else np.float32(weight)
    if len(own) <= _PIECE:
        return _moved_by(own, sent, received, step, np.empty_like(own))
    # A long vector in pieces that stay in the processor's cache: a third less time.
    found = np.empty_like(own)
    for begin in range(0, len(own), _PIECE):
        piece = slice(begin, begin + _PIECE)
        _moved_by(own[piece], sent[piece], received[piece], step, found[piece])
    return found


def _moved_by(own: Vector, sent: Vector, received: Vector, step: Any, into: Vector) -> Vector:
    np.subtract(received, sent, into)
    np.multiply(into, step, into)
    return np.add(own, into, into)


def _largest(change: Vector, count: int) -> NDArray[np.int64]:
    """Places of the ``count`` largest changes, sorted; of equal ones the first."""
    sizes = np.abs(change)
    if count == len(change):
        return np.arange(count)
    least = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    above = np.flatnonzero(sizes > least)
    ties = np.flatnonzero(sizes == least)[: count - len(above)]
    return np.sort(np.concatenate([above, ties]))


def _moved(replica: Vector, places: NDArray[np.int64], values: Vector) -> Vector:
    found = replica.copy()
    found[places] += values
    return found


# The copies that two neighbours have of each other where messages hold changes, and some never
# arrive.
#
# Under "top-k" a message takes the receiver's replica of the sender closer to the sender's weights,
# and both ends must have the very same replica, or what one gains is not what the other loses. So a
# change is always one of a replica that the receiver has said it has; messages name it, and say
# which of the other side's arrived. Nothing is lost by a lost message: the next change holds what
# it held (error feedback, as in Koloskova, Stich and Jaggi 2019, but for ways that lose, double and
# reorder).
#
# Whoever has nothing, because it was started again or has fallen too far behind, says so; then both
# begin again with the weights that everybody began with.


# In place of an exchange: the weights that everybody began with.
START = -1


@dataclass(slots=True)
class Link:
    """One end of a link between two workers.

    Args:
        start: the first weights, float32, shape (coordinates,). window: replicas kept at most.

    Attributes:
        of: the exchange whose replica of this worker the neighbour surely has.
        heard: the newest exchange of which a replica of the neighbour is here.
    """

    start: Vector
    window: int
    of: int = START
    heard: int = START
    _there: dict[int, Vector] = field(default_factory=dict)
    _here: dict[int, Vector] = field(default_factory=dict)

    def change(self, step: int, held: Vector, compression: Compression) -> tuple[Vector, Vector]:
        """(What a message of exchange ``step`` holds, what the neighbour has of us after it)."""
        before = self._there.get(self.of, self.start)
        change = compression.change(held, before)
        there = before + change
        self._there[step] = there
        _forget(self._there, self.window, self.of)
        return change, there

    def received(self, step: int, of: int, heard: int, change: Vector) -> Vector | None:
        """The neighbour's weights, as both ends have them now; None: they are not known here.

        Args:
            step, of, heard, change: of its message.
        """
        if heard == START:
            self.of = START  # it has nothing else
        elif heard in self._there and heard > self.of:
            self.of = heard
        before = self.start if of == START else self._here.get(of)
        if before is None:
            self.heard = START
            return None
        found = before + change
        self._here[step] = found
        self.heard = max(self.heard, step)
        _forget(self._here, self.window, of)
        return found


def _forget(replicas: dict[int, Vector], window: int, besides: int) -> None:
    """All but the newest ones, and one that is still needed."""
    for step in sorted(replicas)[:-window]:
        if step != besides:
            del replicas[step]
