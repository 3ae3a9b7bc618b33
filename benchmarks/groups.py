"""What a round of groups costs beside ordinary training of the same groups: LeNet-5, s = 64.

    python benchmarks/groups.py            # m = 1, 4, 16; inner steps of 64, 16 and 1 records
    python benchmarks/groups.py --smoke

Both make the same inner steps of the same groups in turns, in one process on one thread; medians of
processor time. Ordinary training picks each step's records from the data, steps torch's optimizer,
and puts the weights back after each group. The round does that in its enclosure, clips each weight
change, adds them up and adds noise. Rounds with steps of few records run groups side by side.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from forethought.models import build
from forethought.rounds import contributions
from forethought.rounds.contributions import cross_entropy
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import TensorRecords
from forethought.values.mechanism import FullBatch, Local, LocalUpdates, Mechanism, Rounds
from forethought.values.plan import Clip, Plan

SIZE, RATE = 64, 0.01


def ordinary(
    model: nn.Module, records: TensorRecords, groups: list[np.ndarray], step: int, name: str
) -> None:
    """Each group's inner steps by torch.optim, from the same weights."""
    start = [p.detach().clone() for p in model.parameters()]
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    for group in groups:
        optimizer = kinds[name](model.parameters(), lr=RATE)
        order = group[torch.randperm(len(group)).numpy()]
        for first in range(0, len(order), step):
            inputs, targets = records.take(order[first : first + step])
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).mean().backward()
            optimizer.step()
        for parameter, value in zip(model.parameters(), start, strict=True):
            parameter.data.copy_(value)
            parameter.grad = None


def in_turns(one: Callable[[], object], other: Callable[[], object], times: int) -> list[float]:
    """Median processor seconds of both, taken in turns."""
    found: list[list[float]] = [[], []]
    for turn in range(times + 1):
        for place, run in enumerate((one, other)):
            start = time.process_time()
            run()
            if turn:  # the first warms up
                found[place].append(time.process_time() - start)
    return [statistics.median(values) for values in found]


def measured(count: int, step: int, name: str, times: int) -> tuple[float, float]:
    """Seconds of ordinary training and of a round."""
    source = torch.Generator().manual_seed(0)
    examples = SIZE * count
    inputs = torch.randn(examples, 1, 28, 28, generator=source)
    records = TensorRecords(inputs, torch.randint(10, (examples,), generator=source))
    model = build("lenet5", inputs=(1, 28, 28), classes=10, seed=0)
    local = Local(name, RATE, step=None if step == SIZE else step)
    rounds = Rounds(1.0, 1000, FullBatch(), "group")
    plan = Plan(
        Mechanism(rounds), examples, 1e-5, Clip(1.0), contribution=LocalUpdates(count, local)
    )
    private = PrivateRounds(
        plan.privacy, dict(model.named_parameters()), cross_entropy, Secrets.draw(Seeds(1, 1))
    )
    groups = [np.arange(group, examples, count) for group in range(count)]
    index = iter(range(1000))

    def one_round() -> None:
        total = private.open(next(index))
        total.add(model, records)
        total.release()

    # The same groups for both: every m-th record.
    dealt, contributions.assign_groups = contributions.assign_groups, _every
    try:
        found = in_turns(lambda: ordinary(model, records, groups, step, name), one_round, times)
    finally:
        contributions.assign_groups = dealt
    return found[0], found[1]


def _every(size: int, groups: int, _generator: object) -> np.ndarray:
    return np.arange(size) % groups


def main() -> None:
    """Print a line for each number of groups, step and inner optimizer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="one small line, to see that it runs")
    parser.add_argument("--times", type=int, default=15)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    lines = [(m, step, name) for step in (64, 16, 1) for m in (1, 4, 16) for name in ("sgd",)]
    lines += [(m, 64, "adam") for m in (1, 4, 16)]
    if asked.smoke:
        lines, asked.times = [(2, 64, "sgd")], 1
    print("| groups | step | inside | ordinary, ms | round, ms | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for count, step, name in lines:
        one, other = measured(count, step, name, asked.times)
        print(
            f"| {count} | {step} | {name} | {1e3 * one:.1f} | {1e3 * other:.1f} "
            f"| {other / one:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
