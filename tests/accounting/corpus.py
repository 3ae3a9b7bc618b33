"""Two thousand random mechanisms over every cell, and the certified intervals written down once.

An interval may only become narrower: each must lie inside the one in ``corpus.txt``. An end that
moves outward needs a reason in the commit that rewrites its line.

python tests/accounting/corpus.py                   # compare all, print what moved
python tests/accounting/corpus.py --only 100:200    # some of them
python tests/accounting/corpus.py --write           # write those down anew that moved outward
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np

from forethought.accounting import exact
from forethought.accounting.interval import Interval
from forethought.values.mechanism import (
    ADJACENCIES,
    CLIPPINGS,
    SAMPLINGS,
    Correlated,
    CyclicPoisson,
    FullBatch,
    Mechanism,
    Poisson,
    RandomAllocation,
    Rounds,
    Shuffled,
    WithoutReplacement,
)
from forethought.values.strategies import Banded, BufferedToeplitz

CASES = 2000
WRITTEN = Path(__file__).parent / "corpus.txt"
# What the last digits of another machine's libraries may differ by.
SLACK = 1e-9


def case(number: int) -> tuple[Mechanism, float, int]:
    """The mechanism of that number, a δ and a group, from whole numbers and powers of ten."""
    rng = np.random.default_rng([2026, number])

    def spread(low: float, high: float) -> float:
        exponent = math.log10(low) + float(rng.random()) * (math.log10(high) - math.log10(low))
        return float(f"{10**exponent:.3e}")

    kinds = tuple(SAMPLINGS)
    adjacency = ADJACENCIES[number % 3]
    first = kinds[number // 3 % len(kinds)]
    group = int((1, 1, 1, 2, 3, 5, 8)[int(rng.integers(7))])
    delta = spread(1e-10, 1e-2)
    parts: list[Rounds] = []
    for turn in range(2 if rng.random() < 0.2 else 1):
        kind = kinds[int(rng.integers(len(kinds)))] if turn else first
        if kind == "shuffled" and adjacency == "add-or-remove":
            kind = "poisson"
        sigma, count = spread(0.5, 10), int(spread(1, 5000))
        rate, examples = spread(1e-4, 1), int(spread(50, 5000))
        batch = max(1, int(examples * rate))
        clipping = CLIPPINGS[int(rng.integers(2))]
        known = int((0, 1, 2, 5)[int(rng.integers(4))])
        groups = known if clipping == "group" and known else None
        parts_of_data = int(spread(1, 200))
        sampling = {
            "poisson": lambda rate=rate: Poisson(rate),
            "without-replacement": lambda b=batch, n=examples: WithoutReplacement(b, n),
            "shuffled": lambda b=batch, n=examples: Shuffled(b, n),
            "random-allocation": lambda t=parts_of_data: RandomAllocation(t),
            "cyclic-poisson": lambda rate=rate, t=parts_of_data: CyclicPoisson(rate, t),
            "full-batch": lambda: FullBatch(),
        }[kind]()
        if kind in ("cyclic-poisson", "full-batch") and rng.random() < 0.4:
            bands = int(rng.integers(1, 5))
            if rng.random() < 0.5 and kind == "full-batch":
                strategy = BufferedToeplitz((0.3, 0.2), (0.9, 0.5))
            else:
                if kind == "cyclic-poisson":
                    bands = min(bands, sampling.parts)
                strategy = Banded((1.0, 0.5, 0.25, 0.125)[:bands])
            parts.append(Correlated(sigma, count, sampling, clipping, strategy, groups=groups))
        else:
            parts.append(Rounds(sigma, count, sampling, clipping, groups=groups))
    return Mechanism(*parts, adjacency=adjacency), delta, group


def found(number: int) -> Interval:
    """The certified interval as the library has it now."""
    mechanism, delta, group = case(number)
    return exact.epsilon(mechanism, delta, group)


def written() -> list[Interval]:
    """The intervals as they were written down, by number."""
    lines = WRITTEN.read_text(encoding="utf-8").splitlines()
    return [Interval(*map(float, line.split())) for line in lines]


def moved_outward(now: Interval, before: Interval) -> bool:
    """Whether an end of ``now`` lies outside ``before``."""
    if now.upper > before.upper * (1 + SLACK):
        return True
    return now.lower < before.lower * (1 - SLACK) and now.lower < math.inf


def main() -> None:
    """Write, or compare and print what moved."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default=f"0:{CASES}", help="from:to")
    parser.add_argument("--slow", type=float, default=1.0, help="print what takes longer")
    args = parser.parse_args()
    first, last = map(int, args.only.split(":"))
    before = written()
    for number in range(first, last):
        start = time.process_time()
        now = found(number)
        seconds = time.process_time() - start
        if seconds > args.slow:
            print(f"{number}: {seconds:.1f} s {now} {case(number)}", flush=True)
        if moved_outward(now, before[number]):
            print(f"{number}: outward, {before[number]} -> {now}: {case(number)}", flush=True)
            before[number] = now
    if args.write:
        lines = (f"{one.lower:.12g} {one.upper:.12g}" for one in before)
        WRITTEN.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
