"""What the simulator of gossips costs without training, and how much sooner nobody waits.

    python benchmarks/gossip.py            # 16 and 1,000 workers, and the cases of the paper
    python benchmarks/gossip.py --large    # 10,000 workers of 100 rounds as well
    python benchmarks/gossip.py --train    # the demo's training under each rule, alone
    python benchmarks/gossip.py --smoke    # 16 workers for a few rounds; seconds

Times are of the processor, in microseconds a round: an update and two exchanges, or eight, which is
the default, where a row says so. Virtual seconds are exact. No time is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

import forethought as ft
from forethought.gossip.gossip import Gossip, Member, Rule
from forethought.gossip.graphs import make
from forethought.gossip.mixing import Mixing
from forethought.holders.simulate import synchronous_seconds
from forethought.holders.simulator import (
    GraphSimulator,
    GraphTimes,
    Hiccups,
    NoTraining,
    SimulatedGraph,
    lognormal_speeds,
    no_gradients,
    slow_ones,
)
from forethought.jobs.holders import holders_of, simulate_job
from forethought.jobs.job import Job, JobRequest, built_in

PARAMETERS = 1000


def gossip(workers: int, rounds: int, rule: Rule, graph: str, kind: str) -> Gossip:
    """Workers whose plans have a fifth more rounds than they make on average."""
    mechanism = ft.Mechanism(ft.Rounds(1.0, round(1.2 * rounds), ft.Poisson(0.5)))
    plan = ft.Plan(mechanism, 40, 1e-3, optimizer=ft.Optimizer("sgd", 0.5, ()))
    return Gossip(
        tuple(Member(f"worker-{k}") for k in range(workers)),
        (plan,),
        Mixing(kind, make(graph, workers)),
        PARAMETERS,
        "benchmark",
        rounds,
        rule=rule,
    )


def timed(one: Gossip, times: GraphTimes) -> tuple[float, SimulatedGraph]:
    """Processor seconds, and what came of it."""
    start = np.zeros(PARAMETERS, dtype=np.float32)
    idle = NoTraining(1, no_gradients(PARAMETERS))
    simulator = GraphSimulator(one, start, idle, times)
    begun = time.process_time()
    done = simulator.run()
    return time.process_time() - begun, done


def trained(seeds: int) -> None:
    """The demo (case II, digits, eight workers) under each rule, with the same seeds."""
    print("| rule | accuracy, each seed | mean | worst worker, mean | virtual s |")
    print("| --- | --- | --- | --- | --- |")
    for rule in ("allreduce", "synchronous", "asynchronous"):
        found = []
        for seed in range(seeds):
            seeded = f"[run]\nseed = {seed}\nnoise_seed = {seed}\n"
            text = f'{built_in("gossip_demo").text}rule = "{rule}"\n{seeded}'
            run, _ = simulate_job(
                holders_of(JobRequest("demo", text, Job.parse(text, "demo")), "gossip")
            )
            found.append(run)
        scores = [100 * (run.accuracy or 0.0) for run in found]
        print(
            f"| {rule} | {', '.join(f'{score:.1f}' for score in scores)} | "
            f"{statistics.mean(scores):.2f} | "
            f"{100 * statistics.mean(min(run.each) for run in found):.2f} | "
            f"{statistics.mean(run.simulated.seconds for run in found):.0f} |",
            flush=True,
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--smoke", action="store_true")
    asked = parser.parse_args()
    if asked.train:
        trained(5)
        return
    large = asked.large
    print("| workers | rounds each | rule | graph, mixing | µs a round | seconds in all |")
    print("| --- | --- | --- | --- | --- | --- |")
    rows: list[tuple[int, int, Rule, str, str, int]] = [
        (16, 300, "asynchronous", "complete", "matchings", 3),
        (16, 300, "asynchronous", "ring", "metropolis", 3),
        (16, 300, "synchronous", "ring", "metropolis", 3),
        (16, 300, "allreduce", "complete", "matchings", 3),
        (1000, 100, "asynchronous", "complete", "matchings", 1),
    ]
    if asked.smoke:
        rows = [(16, 20, "asynchronous", "complete", "matchings", 1)]
    if large:
        rows.append((10_000, 100, "asynchronous", "complete", "matchings", 1))
    for place, (workers, rounds, rule, graph, kind, repeats) in enumerate(rows):
        one = gossip(workers, rounds, rule, graph, kind)
        for exchange in (0.5, None) if not place or workers == 10_000 else (0.5,):
            pace = GraphTimes([1.0] * workers, straggling=0.3, exchange=exchange)
            found = [timed(one, pace) for _ in range(repeats)]
            spent = statistics.median(seconds for seconds, _ in found)
            each = 1e6 * spent / found[0][1].updates.sum()
            name = rule if exchange else f"{rule}, eight exchanges"
            print(
                f"| {workers:,} | {rounds} | {name} | {graph}, {kind} | {each:.0f} | {spent:.1f} |",
                flush=True,
            )
    length = 20 if asked.smoke else 200
    print(
        f"\n| 16 workers, {length} rounds each | virtual s | SYNC's | ratio | "
        "fewest to most rounds |"
    )
    print("| --- | --- | --- | --- | --- |")
    alike = [1.0] * 16
    cases = {
        "all alike": GraphTimes(alike),
        "case I: a random one 2 × slower": GraphTimes(alike, factors=Hiccups(16, 2.0)),
        "case II: one 10 × slower": GraphTimes(slow_ones(16, 1, 10.0)),
        "lognormal speeds, σ = 0.5": GraphTimes(lognormal_speeds(16, 0.5, 1)),
        "lognormal factor on each round, σ = 0.5": GraphTimes(alike, straggling=0.5),
    }
    for name, times in cases.items():
        one = gossip(16, length, "asynchronous", "complete", "matchings")
        _, done = timed(one, times)
        waiting = synchronous_seconds(one, times)
        print(
            f"| {name} | {done.seconds:.0f} | {waiting:.0f} | {waiting / done.seconds:.2f} | "
            f"{done.updates.min()} to {done.updates.max()} |"
        )


if __name__ == "__main__":
    main()
