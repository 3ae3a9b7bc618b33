"""Exchanges a second between real processes: workers that do nothing but average in pairs.

    python benchmarks/gossip_exchange.py                  # four processes, 1,000,000 parameters
    python benchmarks/gossip_exchange.py --smoke          # a few small ones

Every process sends its weights to its partner of the step, takes the partner's, and moves half way,
over the links of `torchrun examples/gossip.py`. An exchange is one pair's. Printed beside it: the
processor time of one worker's side, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import numpy as np
from torch.distributed import TCPStore

from forethought.gossip.compression import mixed
from forethought.gossip.graphs import make
from forethought.gossip.messages import Weights
from forethought.gossip.mixing import Mixing
from forethought.peers.links import Arrived
from forethought.peers.memory import keep_memory
from forethought.peers.pairs import GlooPairs, Meeting


def work(me: int, port: int, options: argparse.Namespace, results: Any) -> None:
    """One process: exchanges as fast as they go."""
    workers, size = options.workers, options.parameters
    if options.keep:
        keep_memory()
    peers = [peer for peer in range(workers) if peer != me]
    links = GlooPairs(Meeting("127.0.0.1", port), me, peers, size, 1e18)
    came: SimpleQueue[Any] = SimpleQueue()
    links.start(came.put)
    while any(links.heard(peer) is None for peer in peers):
        time.sleep(0.01)
    store = links.meeting.store()
    store.add("ready", 1)
    while store.add("ready", 0) < workers:
        time.sleep(0.001)
    mixing = Mixing("matchings", make("complete", workers))
    held = np.random.default_rng(me).standard_normal(size, dtype=np.float32)
    early: dict[tuple[int, int], Weights] = {}
    begin, used = time.perf_counter(), time.process_time()
    for step in range(options.exchanges):
        partner = mixing.partner(step, me)
        if partner is None:
            continue
        links.send(partner, Weights(0, step, 0, 0, -1, held))
        while (partner, step) not in early:
            arrived = came.get()
            assert isinstance(arrived, Arrived), arrived
            early[arrived.sender, arrived.message.base] = arrived.message
        held = mixed(held, held, early.pop((partner, step)).vector, 0.5)
    results.put((time.perf_counter() - begin, time.process_time() - used))
    links.close(10.0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Exchanges a second between real processes.")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--exchanges", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-keep", dest="keep", action="store_false", help="See keep_memory().")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.workers, options.parameters, options.exchanges, options.repeats = 2, 1000, 20, 1
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    print(f"load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    rates, costs = [], []
    for _ in range(options.repeats):
        store = TCPStore(
            "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False
        )
        results = context.Queue()
        processes = [
            context.Process(target=work, args=(me, store.port, options, results))
            for me in range(options.workers)
        ]
        for process in processes:
            process.start()
        measured = [results.get(timeout=600) for _ in processes]
        for process in processes:
            process.join(60)
        seconds = statistics.median(one for one, _ in measured)
        rates.append(options.exchanges * (options.workers // 2) / seconds)
        costs.append(statistics.mean(cost for _, cost in measured) / options.exchanges * 1e3)
    print(
        f"{options.workers} processes, {options.parameters:,} parameters: "
        f"{statistics.median(rates):.0f} exchanges a second (best {max(rates):.0f}), "
        f"{min(costs):.2f} ms of processor time a worker's side"
    )


if __name__ == "__main__":
    main()
