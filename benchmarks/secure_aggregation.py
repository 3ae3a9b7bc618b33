"""Time and size of secure aggregation: what masks cost a client, and a whole round in memory.

python benchmarks/secure_aggregation.py            # medians of five
python benchmarks/secure_aggregation.py --smoke    # small vectors, one run of each

Processor seconds of one thread. A client expands one mask for each other client and its own; the
server does so only for clients that dropped out, besides one for each survivor.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import fields

import numpy as np

from forethought.exchange.events import Received, Send
from forethought.exchange.messages import SERVER
from forethought.federated.secure_aggregation import masking
from forethought.federated.secure_aggregation.masking import SecureAggregation, to_ring
from forethought.federated.secure_aggregation.protocol import (
    Aggregator,
    MaskedSum,
    Participant,
    secure_sum,
)

STEP = 2.0**-20


def seconds(action: Callable[[], object], runs: int) -> float:
    """Median processor time."""
    found = []
    for _ in range(runs):
        begun = time.process_time()
        action()
        found.append(time.process_time() - begun)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    runs = 1 if arguments.smoke else 5
    print("| what | parameters | clients | ms |\n| --- | --- | --- | --- |")
    for size in (1_000, 10_000) if arguments.smoke else (1_000, 1_000_000):
        total = np.zeros(size, np.uint64)
        one = seconds(lambda t=total: masking.add_mask(t, bytes(32), 1, 48), runs)
        print(f"| one mask of 48 bits | {size:,} | | {1e3 * one:.2f} |")
        vector = np.arange(size) * STEP
        ring = seconds(lambda v=vector: to_ring(v, STEP, 48), runs)
        print(f"| to the ring | {size:,} | | {1e3 * ring:.2f} |")
    for clients, gone in ((10, 0), (10, 2), (50, 5)):
        size = 1_000 if arguments.smoke or clients > 10 else 100_000
        settings = SecureAggregation(clients, gone, 0)
        sums = {client: np.arange(size) * STEP for client in range(clients)}

        def lost(sender: int, message: object, gone: int = gone) -> bool:
            return sender < gone and isinstance(message, MaskedSum)

        whole = seconds(
            lambda s=settings, v=sums, lost=lost: secure_sum(s, v, STEP, lost=lost), runs
        )
        name = f"a whole round, {gone} drop out" if gone else "a whole round"
        print(f"| {name} | {size:,} | {clients} | {1e3 * whole:.1f} |")
    print(f"\nbytes that one of ten clients sends besides its sum: {overhead(10):,}")


def overhead(clients: int) -> int:
    """Keys, sealed shares and unmasking of one client in one round."""
    settings = SecureAggregation(clients)
    made = {
        client: Participant(settings, bytes(32), 0, client, secrets.token_bytes)
        for client in range(clients)
    }
    sent = 0
    server = Aggregator(settings, bytes(32), 0, range(clients), 1)
    waiting = [(c, e) for c, one in made.items() for e in one.begin()]
    for client, one in made.items():
        waiting += [(client, effect) for effect in one.contribute(np.zeros(1, np.uint64))]
    while waiting:
        sender, effect = waiting.pop(0)
        if not isinstance(effect, Send):
            continue
        if sender == 0 and not isinstance(effect.message, MaskedSum):
            held = [getattr(effect.message, one.name) for one in fields(effect.message)]
            sent += sum(len(f) if isinstance(f, bytes) else getattr(f, "nbytes", 8) for f in held)
        receiver = server if effect.to == SERVER else made[effect.to]
        found = receiver.handle(Received(sender, effect.message, 0.0))
        waiting += [(effect.to, reply) for reply in found]
    return sent


if __name__ == "__main__":
    main()
