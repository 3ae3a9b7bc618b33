"""Ways from a worker to its neighbours, and who of them is living.

Whoever drives a worker asks :class:`Links` to send, and finds what came in a queue. A neighbour
that is dead has no connection; one that is stopped, or behind a broken line, has one but says
nothing, not even its sign of life. :class:`Liveness` makes both the same: lost, and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from forethought.exchange.messages import Vector

# Seconds between two signs of life, and after how many of silence a neighbour is taken for lost.
BEAT_EVERY, PATIENCE = 0.5, 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """A message that was judged when it came in.

    Args:
        proof: the sender's signature on its count; b"" where nobody signs.
    """

    sender: int
    message: Any
    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class Refused:
    """Something that was no message; it changed nothing."""

    sender: int | None
    text: str


Deliver = Callable[[Arrived | Refused], None]
Reduce = Callable[[int, Vector], Vector]


class Links(Protocol):
    """Ways to all neighbours of one worker; nothing here waits for anybody.

    Attributes:
        reduce: the mean of a round's vector over all workers, which does wait, for the rule
            "allreduce"; None: these links cannot.
    """

    reduce: Reduce | None

    def start(self, deliver: Deliver) -> None:
        """Begin; what comes is handed to ``deliver``, from any thread."""
        ...

    def send(self, to: int, message: Any) -> None:
        """Put a message on its way; it is lost where there is no way."""
        ...

    def heard(self, peer: int) -> float | None:
        """The time at which something last came from a neighbour, of ``time.monotonic``.

        None: it has no connection; it may have had one.
        """
        ...

    def finish(self) -> None:
        """Tell the neighbours that this worker has finished; it still answers them."""
        ...

    def over(self, peer: int) -> bool:
        """True if a neighbour has said that it has finished."""
        ...

    def close(self, seconds: float) -> None:
        """Say the last word, let it go out for so long, and end."""
        ...


class Liveness:
    """The lost neighbours: a function of when they were heard, and of nothing else.

    Args:
        peers: the neighbours. now: of the start; all but the lost ones count as heard then.
        patience: seconds of silence after which one is lost. lost: who is at the start.

    Attributes:
        lost: who.
    """

    def __init__(
        self,
        peers: Iterable[int],
        now: float,
        patience: float = PATIENCE,
        lost: Iterable[int] = (),
    ) -> None:
        self.lost = set(lost)
        self._patience, self._looked = patience, now
        self._since = dict.fromkeys(peers, now)
        self._met: set[int] = set()

    def look(
        self, now: float, heard: Callable[[int], float | None]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(who was lost, who came back) since the last look."""
        # Whoever slept itself has heard nobody, and learns nothing from that.
        slept = now - self._looked > self._patience / 2
        self._looked = now
        lost, back = [], []
        for peer, since in self._since.items():
            at = heard(peer)
            if at is not None:
                self._met.add(peer)
            if slept:
                since = now
            last = since if at is None else max(at, since)
            # No connection any more is a death; none yet may be a slow start.
            gone = at is None and peer in self._met
            silent = gone or now - last > self._patience
            if silent and peer not in self.lost:
                self.lost.add(peer)
                self._since[peer] = now  # only what comes later brings it back
                lost.append(peer)
            elif not silent and at is not None and at > since and peer in self.lost:
                self.lost.discard(peer)
                back.append(peer)
        return tuple(lost), tuple(back)
