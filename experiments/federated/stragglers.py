"""What stragglers cost: virtual seconds of three rules for 10 to 10,000 clients.

    python experiments/federated/stragglers.py            # up to 1,000 clients, under two minutes
    python experiments/federated/stragglers.py --full     # and 10,000

39 rounds, each a second's work for a client of median speed. "one in ten": a tenth of the clients
is ten times slower for ever. "lognormal": speeds are lognormal with σ = 1. "now and then": all are
alike, and every single computation takes a lognormal factor with σ = 1. The rules are FedAvg, the
published asynchronous one (1-asynchronous: v_k waits for everybody), and the default, which matches
every client's sample size to its speed. Nothing is trained: only the machines run.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import forethought as ft
from forethought.federated.federation import Delay, Federation, Member
from forethought.holders.simulator import (
    NoTraining,
    StarSimulator,
    Times,
    lognormal_speeds,
    no_gradients,
    slow_ones,
)
from forethought.values.mechanism import Mechanism, Poisson, Rounds

ROUNDS = 39
HERE = Path(__file__).parent
DELAYS = {"published, 1 ahead": Delay("one"), "published, 10 ahead": Delay("constant", 10)}


def federation(clients: int) -> Federation:
    """Synchronous; times are all that matters of it."""
    plan = ft.Plan(Mechanism(Rounds(1.0, ROUNDS, Poisson(0.1))), 1000, 1e-5)
    members = tuple(Member(f"client {client}") for client in range(clients))
    return Federation(members, (plan,), 1, "", ROUNDS, exchanged="gradients")


def seconds(whole: Federation, compute: Sequence[float], straggling: float) -> float:
    """Virtual seconds to the last model."""
    trainers = NoTraining(1, no_gradients(1))
    times = Times(compute, straggling=straggling)
    return StarSimulator(whole, np.zeros(1, np.float32), trainers, times).run().seconds


def row(name: str, clients: int, compute: Sequence[float], straggling: float = 0.0) -> str:
    """FedAvg, the published rule, and the default with sizes matched to speed."""
    whole = federation(clients)
    found = [seconds(whole, compute, straggling)]
    for delay in DELAYS.values():
        published = replace(whole, rule="published", delay=delay)
        found.append(seconds(published, compute, straggling))
    matched = [float(np.median(compute))] * clients  # a slow client's samples are smaller
    default = replace(whole, rule="asynchronous", absence=30.0)
    found.append(seconds(default, matched, straggling))
    cells = " | ".join(f"{value:,.0f}" for value in found)
    return f"| {name} | {clients:,} | {cells} | {found[0] / found[-1]:.1f} × |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="10,000 clients too")
    parser.add_argument("--out", type=Path, default=HERE / "stragglers.md")
    arguments = parser.parse_args()
    lines = [
        f"| stragglers | clients | FedAvg | {' | '.join(DELAYS)} | default | FedAvg over default |",
        "| --- | --- | --- |" + " --- |" * (len(DELAYS) + 2),
    ]
    print(*lines, sep="\n", flush=True)
    for clients in (10, 100, 1000, *((10_000,) if arguments.full else ())):
        for made in (
            row("one in ten", clients, slow_ones(clients, max(1, clients // 10), 10.0)),
            row("lognormal", clients, lognormal_speeds(clients, 1.0, 0)),
            row("now and then", clients, [1.0] * clients, 1.0),
        ):
            print(made, flush=True)
            lines.append(made)
    head = "# What stragglers cost, in virtual seconds\n\n"
    head += "Written by `python experiments/federated/stragglers.py"
    head += (" --full" if arguments.full else "") + "`, which says what the rows are.\n\n"
    arguments.out.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
