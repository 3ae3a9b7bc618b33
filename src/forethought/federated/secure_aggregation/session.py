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
from forethought.federated.secure_aggregation.aggregator import Aggregator
from forethought.federated.secure_aggregation.participant import Participant
from forethought.federated.secure_aggregation.ring import from_ring, to_ring
from forethought.federated.secure_aggregation.settings import (
    SecureAggregation,
    SecureAggregationError,
)

# (sender, message) → whether it gets lost, with its sender gone for the rest of the round.
Lost = Callable[[int, Any], bool]


def secure_sum(
    settings: SecureAggregation,
    sums: Mapping[int, NDArray[np.float64]],
    step: float,
    *,
    round: int = 0,
    run_id: bytes = bytes(32),
    lost: Lost = lambda _sender, _message: False,
    entropy: Callable[[int], bytes] = secrets.token_bytes,
) -> tuple[NDArray[np.float64], tuple[int, ...]]:
    """The sum of those who stayed, and who they are.

    Args:
        settings: of the cohort.
        sums: client → its noised sum, as ``noise="grid"`` released it, (parameters,).
        step: of the grid, the same for all: :func:`forethought.values.plan.grid`.
        lost: which message does not arrive; its sender is gone from then on.

    Raises:
        SecureAggregationError: fewer than the threshold stayed, so nothing was revealed.
        ValueError: a sum that is not on the grid.
    """
    sizes = {len(vector) for vector in sums.values()}
    if len(sizes) != 1:
        raise SecureAggregationError(f"sums of different lengths: {sorted(sizes)}")
    server = Aggregator(settings, run_id, round, list(sums), sizes.pop())
    clients = {client: Participant(settings, run_id, round, client, entropy) for client in sums}
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
            now += 1e6  # everybody who will answer has: the step's patience is at its end
            take(SERVER, server.handle(Woken(now)))
            if not waiting:
                break  # nobody else will begin
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
    if server.total is None:
        raise SecureAggregationError(
            f"round {round} is lost: more than {settings.dropouts} of {settings.clients} clients "
            "dropped out, so nothing was revealed"
        )
    return from_ring(server.total, step, settings.bits), server.survivors
