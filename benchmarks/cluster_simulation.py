"""A simulated federation over a Ray cluster of one node and of two, at equal bits.

    python benchmarks/cluster_simulation.py                    # 100,000 clients
    python benchmarks/cluster_simulation.py --clients 200 --repeats 1

The nodes are processes of this machine with one core each, so two of them have two cores' worth.
Each client has six records and its own noise. Printed: seconds of the whole simulation, and the
ratio of both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # the nodes are on loopback alone
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from ray.cluster_utils import Cluster
from torch import nn

import forethought as ft
from forethought.federated.federation import Federation, Member
from forethought.holders.simulate import simulate
from forethought.holders.simulator import Times, Way
from forethought.holders.trainer import SharedModel
from forethought.rounds.randomness import Seeds

RECORDS, FEATURES, ROUNDS = 6, 20, 2


def simulated(clients: int, fused: bool, nodes: int) -> tuple[float, bytes]:
    """Seconds of a simulation over so many nodes, and the weights that it comes to."""
    torch.manual_seed(1)
    model = nn.Linear(FEATURES, 2)
    inputs = np.random.default_rng(3).standard_normal((clients, RECORDS, FEATURES), np.float32)
    targets = (inputs.sum(2) > 0).astype(np.int64)
    shares = [
        (torch.from_numpy(own), torch.from_numpy(of))
        for own, of in zip(inputs, targets, strict=True)
    ]
    mechanism = ft.Mechanism(ft.Rounds(1.0, ROUNDS, ft.Poisson(0.5)))
    plan = ft.Plan(mechanism, RECORDS, 1e-3, optimizer=ft.Optimizer("sgd", 0.5, ()))
    shared = SharedModel(model)
    federation = Federation(
        tuple(Member(f"c{place}") for place in range(clients)),
        (plan,),
        shared.layout.size,
        shared.architecture,
        ROUNDS,
        rule="synchronous",
    )
    times = Times((1.0,) * clients, Way(0.1))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        begin = time.perf_counter()
        simulate(
            model,
            shares,
            federation,
            times,
            seeds=Seeds(1, 2),
            workers=nodes,
            engine=f"ray:{cluster.address}",
            fused=fused,
        )
        seconds = time.perf_counter() - begin
    finally:
        cluster.shutdown()
    return seconds, SharedModel(model).read().tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description="A simulation over one node, and over two.")
    parser.add_argument("--clients", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--fused", action="store_true", help="One private sum a cohort.")
    parser.add_argument("--smoke", action="store_true", help="A few clients.")
    options = parser.parse_args()
    if options.smoke:
        options.clients = 40
    found: dict[int, list[float]] = {1: [], 2: []}
    bits = set()
    for _ in range(options.repeats):
        for nodes, seconds in found.items():
            taken, weights = simulated(options.clients, options.fused, nodes)
            seconds.append(taken)
            bits.add(weights)
    if len(bits) != 1:
        raise SystemExit("the bits depend on the number of nodes")
    one, two = (statistics.median(seconds) for seconds in found.values())
    print(
        f"{options.clients:,} clients, {ROUNDS} rounds: one node {one:.1f} s, two {two:.1f} s, "
        f"ratio {two / one:.2f}, equal bits"
    )


if __name__ == "__main__":
    main()
