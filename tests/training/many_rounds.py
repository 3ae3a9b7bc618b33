"""Runs a plan of as many different rounds as asked and reports time and memory as JSON.

Run as a program: ``python many_rounds.py ROUNDS``. The accounting is left out: it is measured by
itself. Memory is what the process took beyond what it had before the plan was made.
"""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn

from forethought.rounds.contributions import cross_entropy
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import as_records
from forethought.training import run as loops
from forethought.training.run import Loop, Task
from forethought.values.mechanism import Mechanism, Poisson, Rounds, Shuffled, WithoutReplacement
from forethought.values.plan import Plan
from forethought.values.use import Optimizer, Schedule

EXAMPLES = 60_000


def different(rounds: int) -> list[Rounds]:
    """Growing samples of three kinds and falling noise: no two rounds are alike."""
    kinds = [
        lambda size: Poisson(size / EXAMPLES),
        lambda size: WithoutReplacement(size, EXAMPLES),
        lambda size: Shuffled(size, EXAMPLES),
    ]
    return [
        Rounds(2 - index / (2 * rounds), 1, kinds[index % 3](16 + index % 48))
        for index in range(rounds)
    ]


def run(rounds: int, data: Any) -> float:
    """Processor time of plan, sampler and loop."""
    begun = time.process_time()
    mechanism = Mechanism(*different(rounds), adjacency="zero-out")
    plan = Plan(
        mechanism,
        EXAMPLES,
        1e-6,
        optimizer=Optimizer(options=()),
        schedule=Schedule("inverse", 1e-3, unit="examples"),
    )
    assert len(plan.mechanism.rounds) == rounds
    model = nn.Linear(2, 2)
    loops.epsilon_at = lambda _statement, logged, _before: dict.fromkeys(logged, math.nan)
    every = max(1, rounds // 100)
    settings = {"log_every": every, "diagnostics": True}
    task = Task(model, data, None, plan, cross_entropy)
    loop = Loop(task, Secrets.draw(Seeds(1, 1)), settings, None)  # type: ignore[arg-type]
    for _ in loop.rounds():
        pass
    loop.checkpoint()
    loop.private.transcript.require(plan.mechanism)
    return time.process_time() - begun


if __name__ == "__main__":
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(EXAMPLES, 2)).astype(np.float32)
    records = as_records((inputs, (inputs[:, 0] > 0).astype(np.int64)), torch.float32)
    run(100, records)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    few = run(int(sys.argv[1]) // 4, records)
    many = run(int(sys.argv[1]), records)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"megabytes": (after - before) / 1024, "seconds": [few, many]}))
