"""The copies that two neighbours have of each other where messages hold changes, and some never
arrive.

Under "top-k" a message takes the receiver's replica of the sender closer to the sender's weights,
and both ends must have the very same replica, or what one gains is not what the other loses. So a
change is always one of a replica that the receiver has said it has; messages name it, and say which
of the other side's arrived. Nothing is lost by a lost message: the next change holds what it held
(error feedback, as in Koloskova, Stich and Jaggi 2019, but for ways that lose, double and reorder).

Whoever has nothing, because it was started again or has fallen too far behind, says so; then both
begin again with the weights that everybody began with.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forethought.exchange.messages import Vector
from forethought.gossip.compression import Compression

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
