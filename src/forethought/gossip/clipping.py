"""The limits on a neighbour's weights where it is not trusted: finite, and not far from one's own.

A neighbour's weights may be anything. Those that are not finite, or longer than any honest model's,
are refused. Optionally the *difference* from one's own weights is shortened to a bound before it is
averaged (He, Karimireddy and Jaggi 2022, ClippedGossip): a hostile neighbour then moves a worker by
at most weight · bound an exchange. Between two honest workers both ends shorten the same difference
by the same factor, so that their mean stays. All of it is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from forethought.exchange.messages import Vector
from forethought.values.checks import real

# Norms above this are nobody's model: a float32 square would overflow.
HUGE = 1e18


class NeighbourError(ValueError):
    """Weights from a neighbour that are not taken."""


@dataclass(frozen=True)
class Trust:
    """The largest distance of a neighbour's weights from one's own.

    Args:
        difference: bound on the L2 norm of the difference; a longer one is shortened. None: any.
        largest: bound on the L2 norm of a neighbour's weights; longer ones are refused.
    """

    difference: float | None = None
    largest: float = HUGE

    def __post_init__(self) -> None:
        if self.difference is not None:
            real("difference", self.difference, above=0)
        real("largest", self.largest, above=0, most=HUGE)

    @property
    def hostile(self) -> bool:
        """True if a neighbour may lie: what one alone says ends nothing."""
        return self.difference is not None

    def admit(self, own: Vector, received: Vector, neighbour: str = "a neighbour") -> Vector:
        """The neighbour's weights as they are averaged.

        Args:
            own: weights (d,) that the difference is taken from. received: the neighbour's (d,).
            neighbour: its name, for the message.

        Raises:
            NeighbourError: another number of weights, weights that are not finite, or too long.
        """
        if received.shape != own.shape:
            raise NeighbourError(
                f"{neighbour} sent {received.size:,} weights, this model has {own.size:,}: all "
                "workers train one architecture"
            )
        length = _norm(received)
        if not math.isfinite(length):
            raise NeighbourError(f"{neighbour} sent weights that are not finite; they are refused")
        if length > self.largest:
            raise NeighbourError(
                f"{neighbour} sent weights of norm {length:.3g}, and at most {self.largest:.3g} is "
                "taken; they are refused"
            )
        if self.difference is None:
            return received
        change = received - own
        length = _norm(change)
        if length <= self.difference:
            return received
        return own + change * np.float32(self.difference / length)


def _norm(vector: Vector) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))
