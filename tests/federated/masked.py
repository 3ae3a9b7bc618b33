"""One secure round in memory: participants and aggregator with messages that may get lost."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forethought.exchange.events import Received, Send, Woken
from forethought.exchange.messages import SERVER
from forethought.federated.secure_aggregation.masking import SecureAggregation, from_ring, to_ring
from forethought.federated.secure_aggregation.protocol import Aggregator, Participant


def secure_sum(
    settings: SecureAggregation,
    sums: Mapping[int, NDArray[np.float64]],
    step: float,
    lost: Callable[[int, Any], bool] = lambda _sender, _message: False,
) -> tuple[NDArray[np.float64] | None, tuple[int, ...]]:
    """The sum of the surviving clients (None: the round is lost), and these clients, ascending.

    Args:
        lost: True for a message that does not arrive; its sender has then dropped out.
    """
    server = Aggregator(settings, bytes(32), 0, list(sums), len(sums[0]))
    clients = {
        client: Participant(settings, bytes(32), 0, client, secrets.token_bytes) for client in sums
    }
    waiting: deque[tuple[int, Send]] = deque()
    gone: set[int] = set()

    def take(sender: int, effects: Sequence[Any]) -> None:
        waiting.extend((sender, effect) for effect in effects if isinstance(effect, Send))

    take(SERVER, server.begin(0.0))
    for client, vector in sums.items():
        take(client, clients[client].begin())
        take(client, clients[client].contribute(to_ring(vector, step, settings.bits)))
    now = 0.0
    while not server.done:
        if not waiting:
            now += 1e6  # no further answer will come: let the step's patience run out
            take(SERVER, server.handle(Woken(now)))
            if not waiting:
                break  # too few clients sent keys
            continue
        sender, effect = waiting.popleft()
        if sender in gone or effect.to in gone:
            continue
        if sender != SERVER and lost(sender, effect.message):
            gone.add(sender)
            continue
        event = Received(sender, effect.message, now)
        receiver = server if effect.to == SERVER else clients[effect.to]
        take(effect.to, receiver.handle(event))
    total = None if server.total is None else from_ring(server.total, step, settings.bits)
    return total, server.survivors
