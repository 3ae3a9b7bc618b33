"""Speed of the training loop: sampling, private rounds a second, overhead beyond the mathematics.

    python benchmarks/training.py [--smoke] [--data ../shared/data]

All figures of one table come from one process on one thread: processor time, which on an idle
machine is wall time; medians of interleaved repetitions.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_svmlight_file
from torch import nn

from forethought.rounds import contributions as rounds_module
from forethought.rounds.randomness import GaussianNoise, Stream, sampler
from forethought.training.run import train
from forethought.values.mechanism import Mechanism, Poisson, Rounds
from forethought.values.plan import Plan
from forethought.values.use import Optimizer


class LeNet5(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.Tanh(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(400, 120),
            nn.Tanh(),
            nn.Linear(120, 84),
            nn.Tanh(),
            nn.Linear(84, 10),
        )


def table(title: str, rows: list[tuple[str, str, str]]) -> None:
    print(f"\n{title}")
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


def bench_sampling(repetitions: int) -> None:
    """Poisson batches against one uniform a record."""
    rows = [("sampling", "ms a round", "uniform a record")]
    for examples, rate in ((1_000_000, 1e-4), (60_000, 256 / 60_000), (32_561, 64 / 32_561)):
        draw = sampler(Poisson(rate), examples, Stream(bytes(32), "sampling"))
        generator = np.random.default_rng(0)
        times: tuple[list[float], list[float]] = ([], [])
        for index in range(repetitions):
            start = time.process_time()
            draw(index)
            middle = time.process_time()
            np.flatnonzero(generator.random(examples) < rate)
            times[0].append(middle - start)
            times[1].append(time.process_time() - middle)
        ours, naive = (1e3 * statistics.median(found) for found in times)
        rows.append((f"{examples:,} at {rate:.2g}", f"{ours:.3f}", f"{naive:.3f}"))
    table("Poisson sampling (goal: 1,000,000 at 1e-4 under 1 ms)", rows)


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Adds up, by name, the time inside gradients, noise and the optimizer's step."""

    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*args: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return function(*args, **options)
            finally:
                spent[name] = spent.get(name, 0.0) + time.process_time() - start

        return measured

    before = rounds_module.clipped_sum, GaussianNoise.add_to, torch.optim.SGD.step
    rounds_module.clipped_sum = wrap("gradients", before[0])
    GaussianNoise.add_to = wrap("noise", before[1])  # type: ignore[method-assign]
    torch.optim.SGD.step = wrap("optimizer step", before[2])  # type: ignore[method-assign]
    try:
        yield
    finally:
        rounds_module.clipped_sum = before[0]
        GaussianNoise.add_to = before[1]  # type: ignore[method-assign]
        torch.optim.SGD.step = before[2]  # type: ignore[method-assign]


class Clock:
    """Time from one round to a later one, without setting up and accounting."""

    def __init__(self, first: int, spent: dict[str, float]) -> None:
        self.first, self.spent = first, spent
        self.start = self.end = 0.0

    def __call__(self, event: Any) -> None:
        self.end = time.process_time()
        if event.round == self.first:
            self.start = self.end
            self.spent.clear()


def bench_rounds(
    title: str, make: Callable[[], nn.Module], data: Any, batch: int, rounds: int, repetitions: int
) -> None:
    """Whole rounds, and how their time divides."""
    examples = len(data[1])
    mechanism = Mechanism(Rounds(1.0, rounds, Poisson(batch / examples)))
    plan = Plan(mechanism, examples, 1e-6, optimizer=Optimizer(learning_rate=0.05))
    whole, parts = [], []
    first = max(1, rounds // 10)
    for _ in range(repetitions):
        for measured in (False, True):
            spent: dict[str, float] = {}
            clock = Clock(first, spent)
            options = {"progress": clock, "log_every": rounds, "diagnostics": False}
            if measured:
                with timed(spent):
                    train(make(), data, plan, **options)  # type: ignore[arg-type]
            else:
                train(make(), data, plan, **options)  # type: ignore[arg-type]
            each = (clock.end - clock.start) / (rounds - first)
            if measured:
                parts.append({k: v / (rounds - first) for k, v in spent.items()} | {"all": each})
            else:
                whole.append(each)
    middle = {name: statistics.median(part[name] for part in parts) for name in parts[0]}
    inside = sum(value for name, value in middle.items() if name != "all")
    each = statistics.median(whole)
    rows = [("part", "µs a round", "share")]
    for name in ("gradients", "noise", "optimizer step"):
        rows.append((name, f"{1e6 * middle[name]:.0f}", f"{middle[name] / middle['all']:.0%}"))
    own = middle["all"] - inside
    rows.append(("the loop's own", f"{1e6 * own:.0f}", f"{own / inside:.1%} of the rest"))
    rows.append(("whole round, unmeasured", f"{1e6 * each:.0f}", f"{1 / each:,.0f} rounds/s"))
    table(title, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few rounds only")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    smoke = arguments.smoke
    bench_sampling(20 if smoke else 500)
    path = arguments.data / "libsvm" / "a9a.gz"
    if path.is_file():
        inputs, labels = load_svmlight_file(str(path), n_features=123)
        data: Any = (inputs.toarray().astype(np.float32), (labels > 0).astype(np.int64))
        name = "a9a"
    else:
        generator = np.random.default_rng(0)
        data = (
            generator.random((32_561, 123)).astype(np.float32),
            generator.integers(2, size=32_561),
        )
        name = f"random numbers in a9a's shape ({path} is missing)"
    bench_rounds(
        f"Logistic regression on {name}, batch 64, one core (goal: 1,500 rounds/s)",
        lambda: nn.Linear(123, 2),
        data,
        64,
        50 if smoke else 1500,
        1 if smoke else 5,
    )
    images = torch.rand(2000 if smoke else 10_000, 1, 28, 28)
    bench_rounds(
        "LeNet-5, batch 256, one core (goal: the loop's own under 15 % of the rest)",
        LeNet5,
        (images, torch.randint(10, (len(images),))),
        256,
        4 if smoke else 20,
        1 if smoke else 3,
    )


if __name__ == "__main__":
    main()
