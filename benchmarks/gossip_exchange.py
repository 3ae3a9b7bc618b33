"""Exchanges a second between workers that do nothing but average in pairs, on a Ray cluster.

    python benchmarks/gossip_exchange.py                  # four processes, 1,000,000 parameters
    python benchmarks/gossip_exchange.py --smoke          # a few small ones

Every worker sends its weights to its partner of the step, takes the partner's, and moves half way,
over the links of `forethought gossip train`. An exchange is one pair's. Printed beside it: the
processor time of one worker's process, which a busy machine changes less; Ray's own processes take
some besides.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

import forethought as ft
from forethought.gossip.compression import mixed
from forethought.gossip.events import Weights
from forethought.gossip.gossip import Gossip, Member
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing
from forethought.holders.cluster import WorkerActor, cluster, run_workers
from forethought.holders.links import Arrived


def gossip_of(workers: int, parameters: int) -> Gossip:
    """As many workers that may exchange as many numbers; nothing of it is trained."""
    mechanism = ft.Mechanism(ft.Rounds(1.0, 9, ft.Poisson(0.5)))
    plan = ft.Plan(mechanism, 40, 1e-3, optimizer=ft.Optimizer("sgd", 0.5, ()))
    members = tuple(Member(f"worker-{k}") for k in range(workers))
    mixing = Mixing("matchings", make("complete", workers))
    return Gossip(members, (plan,), mixing, parameters, "made", 5)


def work(gossip: Gossip, me: int, exchanges: int, here: WorkerActor) -> tuple[float, float]:
    """One worker: exchanges as fast as they go; seconds, and those of the processor."""
    links = here.links(gossip, me)
    peers = [peer for peer in range(gossip.workers) if peer != me]
    came: SimpleQueue[Any] = SimpleQueue()
    links.start(came.put)
    while any(links.heard(peer) is None for peer in peers):
        time.sleep(0.01)
    held = np.random.default_rng(me).standard_normal(gossip.coordinates, dtype=np.float32)
    early: dict[tuple[int, int], Weights] = {}
    begin = used = 0.0
    for step in range(exchanges + 1):
        if step == 1:  # all have met
            begin, used = time.perf_counter(), time.process_time()
        partner = gossip.mixing.partner(step, me)
        if partner is None:
            continue
        links.send(partner, Weights(0, step, 0, 0, -1, held))
        while (partner, step) not in early:
            arrived = came.get()
            assert isinstance(arrived, Arrived), arrived
            early[arrived.sender, arrived.message.base] = arrived.message
        held = mixed(held, held, early.pop((partner, step)).vector, 0.5)
    measured = time.perf_counter() - begin, time.process_time() - used
    links.close(10.0)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description="Exchanges a second between workers on Ray.")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--exchanges", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.workers, options.parameters, options.exchanges, options.repeats = 2, 1000, 20, 1
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    gossip = gossip_of(options.workers, options.parameters)
    rates, costs = [], []
    with cluster(None, options.workers):
        for repeat in range(options.repeats):
            works = [partial(work, gossip, me, options.exchanges) for me in range(options.workers)]
            outcomes = run_workers(f"exchanges-{repeat}", works)
            for outcome in outcomes:
                if outcome.error is not None:
                    raise outcome.error
            measured = [outcome.result for outcome in outcomes if outcome.result is not None]
            seconds = statistics.median(one for one, _ in measured)
            rates.append(options.exchanges * (options.workers // 2) / seconds)
            costs.append(statistics.mean(cost for _, cost in measured) / options.exchanges * 1e3)
    print(
        f"{options.workers} workers, {options.parameters:,} parameters: "
        f"{statistics.median(rates):.0f} exchanges a second (best {max(rates):.0f}), "
        f"{min(costs):.2f} ms of processor time a worker's side"
    )


if __name__ == "__main__":
    main()
