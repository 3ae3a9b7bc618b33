"""Compression of the weights that neighbours exchange. Post-processing: it costs no privacy.

Both ends of a link hold a *replica*: the sender's weights as the receiver knows them. A message
moves the replica closer to the weights, so the part that a message leaves out stays in the next
difference (error feedback: Koloskova, Stich and Jaggi 2019, Algorithm 1).

| kind | content of a message | bytes for d weights |
| --- | --- | --- |
| ``"none"`` | the weights | 4 d |
| ``"bf16"`` | the weights in 16 bits, rounded to nearest | 2 d |
| ``"top-k"`` | the largest changes of the replica, with their indices | 8 · fraction · d |

Averaging with replicas (:func:`mixed`) preserves the mean of all workers, whatever a message leaves
out: one end of a link gains as much as the other loses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.messages import Vector, rounded, widened
from forethought.values.checks import one_of, optional, real

Kind = Literal["none", "bf16", "top-k"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_HALF_WAY = np.array(0.5, dtype=np.float32)
_PIECE = 1 << 15


class PayloadError(ValueError):
    """Of 0.2, and no longer raised: bytes that are not weights are a ``DecodeError``."""


@dataclass(frozen=True)
class Compression:
    """The form in which exchanged weights are written.

    Args:
        kind: see the module.
        fraction: of the weights that a "top-k" message holds, in (0, 1]; None for other kinds.

    Raises:
        ValueError: the kind is unknown, or ``fraction`` is missing, superfluous or out of range.
    """

    kind: str = "none"
    fraction: float | None = None

    def __post_init__(self) -> None:
        one_of("kind", self.kind, KINDS)
        if (self.fraction is not None) != (self.kind == "top-k"):
            raise ValueError("fraction is for 'top-k': give it there, and leave it out elsewhere")
        optional(real, "fraction", self.fraction, above=0, most=1)

    @property
    def exact(self) -> bool:
        """True if the receiver gets the exact weights."""
        return self.kind == "none"

    def kept(self, parameters: int) -> int:
        """Number of weights in a message."""
        if self.fraction is None:
            return parameters
        return min(parameters, max(1, math.ceil(self.fraction * parameters)))

    def size(self, parameters: int) -> int:
        """Bytes of a message."""
        return {"none": 4, "bf16": 2, "top-k": 8}[self.kind] * self.kept(parameters)

    @property
    def consensus_step(self) -> float:
        """The factor on the mixing's weights: messages with fewer changes need smaller steps."""
        return 1.0 if self.fraction is None else min(1.0, 2 * self.fraction)

    def received(self, vector: Vector) -> Vector:
        """The weights as the receiver gets them, for the kinds without replicas.

        Raises:
            ValueError: the kind is "top-k", whose messages are changes of a replica.
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


def mixed(own: Vector, sent: Vector, received: Vector, weight: float) -> Vector:
    """``own`` after averaging with a neighbour: own + weight · (received − sent).

    Args:
        own: the worker's current weights. sent: its replica at the neighbour. received: the
            neighbour's replica here. All (d,), float32.
        weight: of the neighbour in the worker's row, such as 1/2, times ``consensus_step``: with
            few weights per message a full step slows consensus.
    """
    step = _HALF_WAY if weight == 0.5 else np.float32(weight)
    if len(own) <= _PIECE:
        return _moved_by(own, sent, received, step, np.empty_like(own))
    # Pieces of a long vector stay in the processor's cache, which saves a third of the time.
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
    """Sorted indices of the ``count`` largest absolute changes; of equal ones, the first."""
    sizes = np.abs(change)
    if count == len(change):
        return np.arange(count)
    least = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    above = np.flatnonzero(sizes > least)
    ties = np.flatnonzero(sizes == least)[: count - len(above)]
    return np.sort(np.concatenate([above, ties]))


# Replicas of two neighbours when messages hold changes and some messages never arrive.
#
# Under "top-k" a message moves the receiver's replica of the sender closer to the sender's weights.
# Both ends must have exactly the same replica; otherwise one end does not gain what the other
# loses. So a change always refers to a replica that the receiver has acknowledged. Each message
# names that replica, and acknowledges the newest one received. A lost message loses nothing, since
# the next change includes its content (error feedback, as in Koloskova, Stich and Jaggi 2019, but
# for channels that lose, duplicate and reorder messages).
#
# A worker without the replica, because it restarted or is too far behind, says so; then both ends
# begin again with the common first weights.


# Stands for the common first weights, in place of an exchange.
START = -1


@dataclass(slots=True)
class Link:
    """One end of a link between two workers.

    Args:
        start: the first weights, float32, shape (coordinates,).
        window: number of newest replicas kept, besides the one in use.

    Attributes:
        of: the exchange whose replica of this worker the neighbour has acknowledged.
        heard: the newest exchange whose replica of the neighbour this worker has.
    """

    start: Vector
    window: int
    of: int = START
    heard: int = START
    _there: dict[int, Vector] = field(default_factory=dict)
    _here: dict[int, Vector] = field(default_factory=dict)

    def change(self, step: int, held: Vector, compression: Compression) -> tuple[Vector, Vector]:
        """(Change to send in exchange ``step``, the neighbour's replica of this end after it)."""
        before = self._there.get(self.of, self.start)
        change = compression.change(held, before)
        there = before + change
        self._there[step] = there
        _forget(self._there, self.window, self.of)
        return change, there

    def received(self, step: int, of: int, heard: int, change: Vector) -> Vector | None:
        """The replica of the neighbour after its message; None: the one before is not known here.

        Args:
            step, of, heard, change: fields of its message.
        """
        if heard == START:
            self.of = START  # the neighbour has no other replica
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
    """Delete all replicas but the ``window`` newest ones and that of exchange ``besides``."""
    for step in sorted(replicas)[:-window]:
        if step != besides:
            del replicas[step]
