"""What the machines of a federation cost: time of a client round without training, and memory.

    python benchmarks/simulation.py            # the table of docs/federation.md; minutes
    python benchmarks/simulation.py --smoke    # the same with less of everything; seconds

Seconds are of the processor, one thread; a round is everything that client, server and virtual
clock do for one update, no data, no noise, no signature. A client's own step on its model is made
when its trainer looks at the weights; "looked at" is a trainer that does. Beside it stands what one
pass over the vector costs here and now.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

import numpy as np

import forethought as ft
from forethought.exchange.messages import Vector
from forethought.federated.federation import Federation, Member
from forethought.holders.simulator import (
    NoTraining,
    Rehearsed,
    StarSimulator,
    Times,
    Work,
    no_gradients,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from trials.federation import run_trials


def federation(clients: int, parameters: int, rounds: int, rule: str) -> Federation:
    plan = ft.Plan(ft.Mechanism(ft.Rounds(1.0, rounds, ft.Poisson(0.01))), 1000, 1e-5)
    return Federation(
        tuple(Member(f"c{place}") for place in range(clients)),
        (plan,),
        parameters,
        "benchmark",
        rounds,
        rule=rule,
        exchanged="weights" if rule == "synchronous" else "gradients",
    )


def looking(parameters: int) -> Rehearsed:
    zeros = no_gradients(parameters)

    def vector(work: Work) -> Vector:
        assert len(work.weights) == parameters
        return zeros(work)

    return vector


def seconds_a_round(
    clients: int, parameters: int, rounds: int, rule: str, looked_at: bool = False
) -> float:
    agreed = federation(clients, parameters, rounds, rule)
    vector = None if rule == "synchronous" else no_gradients(parameters)
    if looked_at:
        vector = looking(parameters)
    start = np.zeros(parameters, dtype=np.float32)
    simulator = StarSimulator(agreed, start, NoTraining(vector=vector), Times([1.0] * clients))
    begin = time.process_time()
    done = simulator.run()
    spent = time.process_time() - begin
    assert done.applied.sum() == clients * rounds
    return spent / (clients * rounds)


def one_pass(parameters: int) -> float:
    vector, out = np.ones(parameters, dtype=np.float32), np.ones(parameters, dtype=np.float32)
    begin, repeats = time.process_time(), max(20, 10_000_000 // parameters)
    for _ in range(repeats):
        np.multiply(vector, np.float32(0.5), out=out)
    return (time.process_time() - begin) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--million", action="store_true", help="also 10^6 clients, a minute each")
    smoke = parser.parse_args().smoke
    print(f"{'rule':24} {'clients':>9} {'parameters':>11} {'a round':>12} {'one pass':>12}")
    sizes = [(20, 1000, 5), (3, 1_000_000, 2)] if smoke else [(200, 1000, 50), (50, 1_000_000, 8)]
    rules = [("synchronous", False), ("asynchronous", False), ("published", False)]
    for rule, looked_at in [*rules, ("asynchronous", True), ("published", True)]:
        for clients, parameters, rounds in sizes:
            found = min(
                seconds_a_round(clients, parameters, rounds, rule, looked_at) for _ in range(3)
            )
            least = one_pass(parameters)
            words = f"{rule}, looked at" if looked_at else rule
            row = f"{words:24} {clients:9,} {parameters:11,}"
            print(f"{row} {found * 1e6:9.1f} µs {least * 1e6:9.1f} µs")
    trials = 50 if smoke else 2000
    begin = time.process_time()
    run_trials(0, trials)
    print(f"trials of faults: {trials / (time.process_time() - begin):.0f} a second")
    if parser.parse_args().million:
        for rule in ("synchronous", "asynchronous"):
            found = seconds_a_round(1_000_000, 1000, 2, rule)
            held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            print(
                f"{rule:14} {1_000_000:9,} {1000:11,} {found * 1e6:9.1f} µs, {held:.2f} GB so far"
            )


if __name__ == "__main__":
    main()
