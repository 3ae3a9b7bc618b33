"""Frames in turns: the server asks, a client answers, and nobody has a connection.

For engines that carry requests and replies (Flower's Message API) and may start a client's process
anew for every request. The machines are the same; a turn that is lost is asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from forethought.exchange.events import Compute, Computed
from forethought.exchange.messages import SERVER, Finished
from forethought.network.client import Begin, Send
from forethought.network.driving import ClientDriver, Out, ServerDriver, queued
from forethought.network.server import Heard

# Seconds after which a node that said nothing is asked who is there.
GREET = 30.0


class ServerTurns:
    """A server's driver between requests and replies.

    Nodes are the engine's: their numbers may change at any time. Who is behind one is what the
    signature on its last frame says.

    Args:
        make: makes the driver. clients: how many there are. clock: in seconds.

    Attributes:
        driver: of the machine. heard: when clients were heard of. told: clients that had the last
            model in a request that was answered.
    """

    def __init__(
        self,
        make: Callable[[Out], ServerDriver],
        clients: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.driver = make(self._send)
        self.heard = Heard(clients, clock)
        self.told: set[int] = set()
        self._clock = clock
        self._outboxes: dict[int, list[tuple[Any, bytes]]] = {}
        self._behind: dict[int, int] = {}
        self._asked: dict[int, tuple[float, bool]] = {}
        self._last_word: set[int] = set()

    def request(self, node: int) -> list[bytes] | None:
        """Frames for a node; []: who is there? None: nothing to say now."""
        client = self._behind.get(node)
        waiting = [] if client is None else self._outboxes.pop(client, [])
        if waiting:
            last = any(isinstance(message, Finished) for message, _ in waiting)
            self._asked[node] = (self._clock(), last)
            return [frame for _, frame in waiting]
        asked = self._asked.get(node)
        if asked is not None and self._clock() - asked[0] < GREET:
            return None
        self._asked[node] = (self._clock(), False)
        return []

    def replied(self, node: int, frames: Iterable[bytes]) -> None:
        """A node's answer to the last request."""
        client = self._behind.get(node)
        if client is not None and self._asked.get(node, (0.0, False))[1]:
            self.told.add(client)
        for frame in frames:
            sender = self.driver.received(frame)
            if sender is not None:
                self._behind[node] = sender
                self.heard.note(sender)
                self.heard.connected.add(sender)

    def failed(self, node: int) -> None:
        """A request was not answered: the node is asked again who is there."""
        self._asked.pop(node, None)
        client = self._behind.pop(node, None)
        if client is not None:
            self.heard.connected.discard(client)

    def _send(self, to: int, message: Any, frame: bytes) -> None:
        self._outboxes[to] = queued(self._outboxes.get(to, []), message, frame)


def client_turn(
    frames: Sequence[bytes],
    make: Callable[[Send, Begin], ClientDriver],
    compute: Callable[[Compute], Computed],
) -> tuple[ClientDriver, list[bytes]]:
    """A client's answer to one request; updates that it leads to are computed before it returns.

    Args:
        frames: of the request; none: who is there?
        make, compute: see :class:`forethought.network.client.FederationClient`.
    """
    replies: list[bytes] = []
    asked: list[Compute] = []
    driver = make(lambda to, message, frame: replies.append(frame), asked.append)
    if not frames:
        driver.connected()
    for frame in frames:
        driver.received(frame, SERVER)
    while asked:
        driver.handle(compute(asked.pop(0)))
    return driver, replies
