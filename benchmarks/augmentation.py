"""What K altered copies of a record cost beside K times as many records.

    python benchmarks/augmentation.py            # LeNet-5, the CNN, WRN-16-4; K = 4 and 16
    python benchmarks/augmentation.py --smoke

One private round each, in turns, in one process on one thread; medians of processor time. The round
with copies alters them, and clips the mean gradient of each record's copies in a lane of its own;
the other takes K times as many records, each clipped. The last column is the altering alone.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from forethought.models import build
from forethought.rounds.contributions import augmented, cross_entropy
from forethought.rounds.private_sum import PrivateRounds
from forethought.rounds.randomness import Secrets, Seeds
from forethought.rounds.records import TensorRecords
from forethought.values.mechanism import Augmentation, FullBatch, Mechanism, Rounds
from forethought.values.plan import Plan

KINDS = ("mirror", "shift")
CASES = {"lenet5": ((1, 28, 28), 64), "cnn": ((1, 28, 28), 32), "wrn-16-4": ((3, 32, 32), 2)}


def records_of(shape: tuple[int, ...], size: int) -> TensorRecords:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(size, *shape, generator=generator)
    return TensorRecords(inputs, torch.randint(10, (size,), generator=generator))


def a_round(
    model: torch.nn.Module, records: TensorRecords, how: Augmentation | None
) -> Callable[[], object]:
    part = Rounds(1.0, 10**6, FullBatch())
    plan = Plan(Mechanism(part), len(records), 1e-5, augmentation=how)
    parameters = dict(model.named_parameters())
    rounds = PrivateRounds(plan.privacy, parameters, cross_entropy, Secrets.draw(Seeds(1, 1)))

    def run() -> object:
        total = rounds.open(len(rounds.transcript))
        total.add(model, records)
        return total.release()

    return run


def in_turns(runs: list[Callable[[], object]], times: int) -> list[float]:
    """Median processor seconds of each, taken in turns."""
    found: list[list[float]] = [[] for _ in runs]
    for turn in range(times + 1):
        for place, run in enumerate(runs):
            start = time.process_time()
            run()
            if turn:
                found[place].append(time.process_time() - start)
    return [statistics.median(values) for values in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="one small case, in seconds")
    smoke = parser.parse_args().smoke
    torch.set_num_threads(1)
    print(
        "| model, records, K | with copies, ms | K times the records, ms | ratio | altering, ms |"
    )
    print("| --- | --- | --- | --- | --- |")
    for name, (shape, size) in list(CASES.items())[: 1 if smoke else None]:
        for copies in (2,) if smoke else (4, 16):
            how = Augmentation(copies, KINDS)
            model = build(name, inputs=shape, classes=10, seed=0)
            records = records_of(shape, size)
            x, y = records.take(np.arange(size))
            draws = np.arange(size, dtype=np.uint64)
            first, second, third = in_turns(
                [
                    a_round(model, records, how),
                    a_round(model, records_of(shape, size * copies), None),
                    lambda x=x, y=y, d=draws, how=how: augmented(x, y, d, how),
                ],
                1 if smoke else 7,
            )
            print(
                f"| {name}, {size}, {copies} | {first * 1e3:.1f} | {second * 1e3:.1f} | "
                f"{first / second:.2f} | {third * 1e3:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
